"""Behavioural scenarios from public reports, in the Simulator. Each test is named by the scenario's id.

overlap-03 and lease-01 need workers outside of the server: test_engine_workers.py.
"""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from tests.rigs.simulator import at, clock, ledger
from wheelsched import At, Call, Cron, Every, Retry, current_run
from wheelsched.model.errors import ScheduleError, WheelschedError
from wheelsched.simulator.simulator import Simulator


class Boom(Exception):
    pass


@pytest.fixture
def world():
    """A simulator with tasks that note what they see: ok, slow (150 s), boom; `do` calls what the test put into `world.acts`."""
    seen, acts = [], {}

    def ok(*args):
        seen.append((sim.now, current_run().scheduled_at, current_run().missed))
        return args

    def slow(seconds=150):
        ok()
        sim.advance(seconds)

    def boom():
        ok()
        raise Boom("down")

    def do(name):
        return acts[name]()

    with Simulator("2026-03-02T00:00:00Z", tasks={"ok": ok, "slow": slow, "boom": boom, "do": do}) as sim:
        sim.seen, sim.acts = seen, acts
        yield sim


def test_misfire_01(world):
    world.client.put("j", Call("ok"), Cron("*/5 * * * *"))
    world.advance(to="2026-03-02T22:00:00Z")
    before = len(world.seen)
    world.crash(down="10h")
    world.advance(0)
    # 07:55 is the latest that was missed; 08:00 itself is due just now, and its job is busy with the catch-up run
    assert world.seen[before:] == [(at("2026-03-03T08:00"), at("2026-03-03T07:55"), 118)]
    assert [(r.reason, r.count) for r in ledger(world, "j")] == [("misfire", 118), ("overlap", 1)]
    world.advance(to="2026-03-03T08:05:00Z")
    assert world.seen[-1][:2] == (at("2026-03-03T08:05"), at("2026-03-03T08:05"))


def test_misfire_03(world):
    world.client.put("j", Call("ok"), Cron("0 * * * *"), catchup="all")
    world.advance(to="2026-03-02T00:30:00Z")
    world.crash(down="3h")
    world.advance(0)
    assert [nominal.hour for _, nominal, _ in world.seen] == [1, 2, 3]
    assert {now for now, _, _ in world.seen} == {at("2026-03-02T03:30")}


def test_misfire_06(world):
    world.client.put("j", Call("ok"), Cron("0 12 * * 3"))
    for _ in range(42):
        world.advance("1d")
        world.crash()
    assert len(world.runs("j", "succeeded")) == 6


def test_misfire_07(world):
    world.client.put("j", Call("ok"), Cron("0 10 * * *"))
    world.advance(to="2026-03-02T09:59:59.744Z")
    world.crash(down="1s")
    world.advance("10s")
    assert [clock(r) for r in world.runs("j")] == ["10:00:00"]
    assert world.seen[0][0] == at("2026-03-02T10:00:00.744")


def test_overlap_02(world):
    """A ghost blocks its job no longer than until its worker is known to be lost: at once, when the server saw it die."""
    dying = iter([True])

    def ghost():
        world.advance("30s")
        if next(dying, False):
            world.crash()

    world.acts["ghost"] = ghost
    world.client.put("j", Call("do", "ghost"), Every("60s"), retry=Retry(attempts=1))
    world.advance("3m")
    assert [r.state for r in world.runs("j")] == ["dead", "succeeded", "succeeded"]
    assert "worker lost" in world.runs("j")[0].error.message


def test_overlap_05(world):
    start = world.now
    world.client.put("j", Call("slow", 150), Every("60s"), overlap="buffer_one")
    world.advance("5m")  # nominal 60 runs until 210; 120 waits, 180 is folded into it
    assert [(now - start).seconds for now, _, _ in world.seen][:2] == [60, 210]
    assert ledger(world, "j")[0].scheduled_at == start + timedelta(seconds=180)
    assert all(r.scheduled_at.second == start.second for r in world.runs("j"))


def test_duplicate_03(world):
    world.client.put("j", Call("ok"), Every("6h"), overlap="allow")
    first = world.client.get("j")
    for _ in range(50):
        world.crash(down="1m")
        assert world.client.put("j", Call("ok"), Every("6h"), overlap="allow").result == "unchanged"
    assert len(list(world.client.jobs())) == 1
    assert world.client.get("j").next_at == first.next_at
    assert world.client.get("j").version == first.version


def test_clock_05(world):
    world.client.put("j", Call("ok"), Every(900))
    for _ in range(24):
        world.advance("1h")
        world.step_clock(-1)
    world.advance("24s")
    assert len(world.runs("j", "succeeded")) == 96
    assert len({r.scheduled_at for r in world.runs("j")}) == 96
    assert not ledger(world, "j")


def test_clock_06(world):
    world.client.put("j", Call("ok"), Every("100ms"))
    world.advance("1s")
    steps = world.engine.state.meta.seq
    world.step_clock(86_400)
    world.advance("100ms")
    assert world.engine.state.meta.seq - steps < 100
    assert sum(r.count for r in ledger(world, "j")) + len(world.runs("j")) == 864_011
    assert max(r.count for r in ledger(world, "j")) >= 863_998
    assert world.runs("j", "succeeded")[-1].scheduled_at == world.now


@pytest.mark.slow
def test_clock_back_a_day(world):
    """A clock that was wrong for a minute: what ran does not run again, and the job goes on at once (design, section 3)."""
    world.client.put("j", Call("ok"), Every("60s"))
    world.advance("5m")
    world.step_clock(86_400)
    world.advance("2m")
    ran = {r.scheduled_at for r in world.runs("j")}
    world.step_clock(-86_400)
    world.advance("5m")
    assert len(world.runs("j")) == len({r.scheduled_at for r in world.runs("j")})
    assert len({r.scheduled_at for r in world.runs("j")} - ran) >= 3
    world.advance("1d")
    assert len(world.runs("j")) == len({r.scheduled_at for r in world.runs("j")})


def test_lifecycle_02(world):
    world.client.put("j", Call("ok"), Cron("0 18 * * *"))
    world.advance(to="2026-03-02T09:00:00Z")
    assert world.client.put("j", Call("ok"), Cron("0 10 * * *")).result == "updated"
    world.advance(to="2026-03-03T00:00:00Z")
    assert [clock(r) for r in world.runs("j")] == ["10:00:00"]


def test_lifecycle_04(world):
    def doomed():
        world.client.delete("j")
        world.advance("1s")
        raise Boom

    world.acts["doomed"] = doomed
    world.client.put("j", Call("do", "doomed"), Cron("0 1 * * *"))
    world.advance("3h")
    (run,) = world.runs("j")
    assert run.final
    assert run.attempt == 1
    assert run.attempts[0].outcome == "failed"
    assert [j.state for j in world.client.jobs(state="deleted")] == ["deleted"]


def test_lifecycle_05(world):
    world.client.put("j", Call("ok"), Cron("0 10 * * *"))
    world.advance(to="2026-03-02T10:00:00Z")
    manual = world.client.trigger("j")
    world.advance("1h")
    runs = world.runs("j")
    assert sorted(r.trigger for r in runs) == ["manual", "schedule"]
    assert len({r.id for r in runs}) == 2
    assert manual.refresh().state == "succeeded"


def test_lifecycle_06(world):
    world.client.put("j", Call("ok"), Cron("0 10 * * *"))
    world.advance(to="2026-03-02T09:59:59.999Z")
    world._jump(world.now_us + 1_000)  # the second has come; the command arrives in the same turn
    paused = world.client.pause("j")
    assert paused.cursor == at("2026-03-02T10:00"), "the answer tells that the occurrence was decided before the pause"
    world.advance("1h")
    assert [clock(r) for r in world.runs("j")] == ["10:00:00"]


def test_one_time_04(world):
    world.client.put("j", Call("ok"), Cron("0 0 12 24 12 * 2026"))
    world.advance(to="2026-12-25T00:00:00Z")
    assert world.client.get("j").state == "finished"
    assert world.client.get("j").next_at is None
    assert len(world.runs("j")) == 1
    steps = world.engine.state.meta.seq
    world.advance("10d")
    assert world.engine.state.meta.seq - steps <= 4, "housekeeping apart, nothing happens"


@pytest.mark.parametrize(("catchup", "states"), [(None, ["succeeded"]), ("skip", []), ("latest", ["succeeded"])])
def test_one_time_05(world, catchup, states):
    world.client.put("j", Call("ok"), At(at("2026-03-02T10:00")))
    world.client.pause("j")
    world.advance(to="2026-03-02T12:00:00Z")
    assert world.client.get("j").state == "paused"
    world.client.resume("j", catchup=catchup)
    world.advance("1m")
    assert [r.state for r in world.runs("j")] == states
    assert world.client.get("j").state == "finished"
    assert len(ledger(world, "j", "pause")) == (1 if catchup == "skip" else 0)


def test_one_time_06(world):
    world.advance(to="2026-03-02T10:00:00Z")
    world.client.put("j", Call("ok"), At(world.now))
    world.advance(0)
    world.advance("1d")
    assert [now for now, _, _ in world.seen] == [at("2026-03-02T10:00")]


def test_interval_02(world):
    start = world.now
    world.client.put("j", Call("slow", 150), Every("60s", anchor=start - timedelta(seconds=60)))
    world.advance("10m")
    assert [(nominal - start).seconds for _, nominal, _ in world.seen] == [(180 * i) + 60 for i in range(4)]
    assert all(now == nominal for now, nominal, _ in world.seen)
    assert all(r.reason == "overlap" for r in ledger(world, "j"))


def test_interval_04(world):
    world.client.put("j", Call("ok"), Every("6h"))
    for _ in range(16):
        world.advance("3h")
        world.crash()
        world.client.put("j", Call("ok"), Every("6h"))
    assert [nominal.hour for _, nominal, _ in world.seen] == [6, 12, 18, 0] * 2


def test_interval_06(world):
    """The grid does not drift, however late the runs are."""
    def late():
        world.advance("10s")

    world.acts["late"] = late
    world.client.put("j", Call("do", "late"), Every("24h", anchor=at("2026-03-01T01:30")))
    world.advance("180d")
    runs = world.runs("j")
    assert len(runs) == 180
    assert {clock(r) for r in runs} == {"01:30:00"}
    assert world.client.get("j").state == "active"


@pytest.mark.slow
def test_retry_01(world):
    start = world.now_us
    world.client.put_many([_once(i, world.now) for i in range(1_000)])
    world.advance(0)
    waiting = [r.next_at for r in world.runs(state="retry_wait")]
    assert len(waiting) == 1_000
    waits = sorted((w - world.now).total_seconds() for w in waiting)
    assert waits[0] >= 10
    assert waits[-1] <= 15
    assert waits[250] < 11.6 < 13.4 < waits[750], "spread evenly"
    world.advance("16s")
    seconds = sorted((now - world.now).total_seconds() for now, _, _ in world.seen[1_000:])
    assert len(seconds) == 1_000
    assert len({round(s) for s in seconds}) >= 5
    assert world.now_us > start


def _once(i, now):
    from wheelsched import Job

    return Job(f"j{i}", Call("boom"), At(now), retry=Retry(attempts=3, backoff="10s"))


def test_retry_03(world):
    def dying():
        world.crash()

    world.acts["dying"] = dying
    run = world.client.enqueue(Call("do", "dying"), retry=Retry(attempts=3, backoff="1s"))
    world.advance("1m")
    run.refresh()
    assert run.state == "dead"
    assert [a.outcome for a in run.attempts] == ["lost"] * 3
    assert "worker lost" in run.error.message
    assert [r.id for r in world.client.dead()] == [run.id]


def test_time_oddity_01(world):
    """UTC without leap seconds repeats 23:59:59: the clock is set back by one second, just before midnight."""
    world.client.put("j", Call("ok"), Cron("0 0 1 * *"))
    world.advance(to="2026-03-31T23:59:59.999Z")
    world.step_clock(-1)
    world.advance("5s")
    world.step_clock(-1)
    world.advance("5s")
    assert [r.scheduled_at for r in world.runs("j")] == [at("2026-04-01T00:00")]


def test_time_oddity_04(world):
    far = world.client.put("far", Call("ok"), At(at("9999-12-31T23:59:59")))
    assert far.next_at == at("9999-12-31T23:59:59")
    with pytest.raises((ScheduleError, WheelschedError), match=r"range|100 years|year"):
        world.client.put("long", Call("ok"), Every(10**12))
    with pytest.raises(WheelschedError):
        At(at("9999-12-31T23:59:59") + timedelta(seconds=0)).next(datetime(2026, 1, 1))
    world.advance("400d")
    assert world.client.get("far").state == "active"


def test_visible_01(world):
    world.client.put("j", Call("ok"), Cron("0 10 * * *"))
    before = world.client.get("j").to_dict()
    for wrong in ("61 * * * *", "0 0 30 2 *", "nonsense"):
        with pytest.raises(ScheduleError):
            world.client.put("j", Call("ok"), Cron(wrong))
    ask = world.client._verbs.put("j", Call("ok"), Cron("0 10 * * *"), {}, paused=None, note="", version=None)
    ask.args["given"]["schedule"]["expr"] = "61 * * * *"
    with pytest.raises(WheelschedError) as e:
        world.client._do(ask, None)
    assert e.value.code == "invalid_argument"
    assert world.client.get("j").to_dict() == before
    world.advance("1d")
    assert len(world.runs("j")) == 1


def test_scale_03(world):
    """Work depends on due jobs, not on stored ones."""
    jobs = [_later(i, world.now) for i in range(20_000)]
    world.client.put_many(jobs)
    world.advance("2h")
    seq = world.engine.state.meta.seq
    turns = []
    real = world.engine.step
    world.engine.step = lambda *a: turns.append(1) or real(*a)
    world.advance("1h")
    assert len(turns) <= 4
    assert world.engine.state.meta.seq == seq


def _later(i, now):
    from wheelsched import Job

    return Job(f"j{i}", Call("ok"), At(now + timedelta(days=2, seconds=i % 600)))


def test_lease_06(world):
    """The lease of a cancelled run is bookkeeping: the next run of the job starts."""
    def stubborn():
        world.client.cancel(current_run().id)
        world.advance("1h")

    world.acts["stubborn"] = stubborn
    first = world.client.enqueue(Call("do", "stubborn"))
    second = world.client.enqueue(Call("ok"))
    begun = world.now
    world.advance("1m")
    assert first.refresh().state == "cancelled"
    assert second.refresh().state == "succeeded"
    assert (second.started_at - begun) <= timedelta(seconds=3)


def test_crash_02(world):
    """What always takes its worker with it ends in the dead letters."""
    def hog():
        world.crash()

    world.acts["hog"] = hog
    world.client.put("j", Call("do", "hog"), At(world.now), retry=Retry(attempts=2, backoff=0))
    world.advance("1d")
    (run,) = world.client.dead()
    assert run.job == "j"
    assert run.attempt == 2


def test_crash_03(world):
    def memory():
        raise MemoryError

    world.acts["memory"] = memory
    run = world.client.enqueue(Call("do", "memory"), retry=1)
    ok = world.client.enqueue(Call("ok"))
    world.advance(0)
    assert run.refresh().error.type == "MemoryError"
    assert ok.refresh().state == "succeeded"


@pytest.mark.slow
def test_history_02(world):
    """What is in progress or waits for a retry is not moved to history."""
    world.client.put("j", Call("boom"), At(world.now), retry=Retry(attempts=2, backoff="20d", cap="30d"))
    world.client.put("k", Call("ok"), Every("1h"))
    world.advance("19d")
    (run,) = world.runs("j")
    assert run.state == "retry_wait"
    assert world.engine.state.meta.folded > 400
    world.advance("12d")
    assert world.runs("j")[0].state == "dead"

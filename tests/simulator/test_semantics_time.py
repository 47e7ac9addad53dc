"""Behavioural scenarios from public reports, second part: zone data, sleep, questions, workers as far as the Simulator shows them.

Scenarios whose test is elsewhere, by another name:
    overlap-03 lease-01   test_engine_workers.py; overlap-02 lease-05 -06 -07  test_beats.py        timeout-01 timeout-02   test_semantics_workers.py, test_pool.py
    duplicate-01          test_server_life.py (the second server is refused), test_journal_faults.py (of many servers one opens)
    clock-02              test_clock.py                 output-01               test_worker.py
    shutdown-02           test_server_life.py           payload-03              here as far as zone data go; damage: test_journal_faults.py
    storage-03 storage-06 storage-07  test_journal.py, test_journal_faults.py    ipc-01 ipc-03   test_server_life.py
    shutdown-03           test_crash_workers.py (a rolling deploy)
    fd-02                 test_server_life.py           fork-01                 test_sharing.py, test_pool.py (executors are spawned)
    history-01            test_journal.py (history is dropped in blocks), bench; what a month keeps: left to the operator's verbs
Left to the workers' issue: starvation-01 (ageing of priorities), output-04 (pages of
runs with large logs), because queues, ageing and logs are built there.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from tests.rigs.simulator import at, clock, ledger
from tests.sim.oracle import zone_data
from wheelsched import At, Call, Cron, Every, Overlap, current_run
from wheelsched.model.errors import NotFoundError, WheelschedError
from wheelsched.simulator.simulator import Simulator
from wheelsched.tasks.tasks import Handler

START = datetime(2026, 3, 2, tzinfo=UTC)


@pytest.fixture
def world():
    """A simulator with the tasks ok and slow (so many seconds)."""
    seen = []

    def ok(*args):
        seen.append((sim.now, current_run().scheduled_at))
        return args

    def slow(seconds):
        ok()
        sim.advance(seconds)

    with Simulator(START, tasks={"ok": ok, "slow": slow}) as sim:
        sim.seen = seen
        yield sim


def test_lease_05(world):
    """A run that was recorded by a server that died right after is executed by the next one; nobody asks for it again."""
    world.client.put("j", Call("ok"), Every("1h"))
    world._jump(world.now_us + 3_600_000_000)
    world._step([])  # the record is durable, no worker has the run yet
    world.crash(down="5m")
    world.advance(0)
    (run,) = world.runs("j")
    assert run.state == "succeeded"
    assert run.scheduled_at == START + timedelta(hours=1)
    assert world.seen == [(START + timedelta(minutes=65), run.scheduled_at)]


def test_lease_07(world):
    """A new worker of the same name touches nothing of the old one, which lives."""
    run = world.client.enqueue(Call("elsewhere"))
    hello = {"version": 1, "role": "worker", "name": "node-1", "tasks": {"elsewhere": {}}}
    old = world.call(50, ("hello", hello))["worker"]
    grant = world.call(50, ("lease", {"queues": [], "credits": 1, "wait_us": 0}))
    assert grant["n"] == 1
    assert world.call(51, ("hello", hello))["worker"] != old
    assert world.call(51, ("lease", {"queues": [], "credits": 1, "wait_us": 0}))["n"] == 0
    beat = world.call(50, ("heartbeat", {"id": grant["id"], "token": grant["token"], "started": b"\1", "progress": []}))
    assert beat["stale"] == []
    assert run.refresh().attempt == 1


def test_suspend_03(world):
    """Time that the machine was asleep is no run time: the monotonic clock stood still."""
    def sleeper():
        world.advance("10m")
        world.step_clock(2 * 3_600)  # it wakes: the wall clock is ahead, no other time has passed
        world.advance("10m")

    world._inline._tasks["sleeper"] = Handler("sleeper", sleeper, {})
    world.crash()  # announces it
    run = world.client.enqueue(Call("sleeper"), timeout="30m")
    world.advance("1h")
    assert run.refresh().state == "succeeded"
    assert run.ended_at - run.started_at > timedelta(hours=2)


def test_suspend_04(world):
    """What passed in sleep is found at wake, without a restart."""
    world.client.put("weekly", Call("ok"), Cron("0 12 * * 3"))
    world.advance("1d")
    world.step_clock(2 * 86_400)
    world.advance(0)
    assert [nominal for _, nominal in world.seen] == [at("2026-03-04T12:00")]
    assert world.runs("weekly")[0].reason == "misfire"


def other_zones(monkeypatch, world, version):
    monkeypatch.setattr("wheelsched.simulator.simulator.load_zone", lambda name: zone_data(name, version))
    monkeypatch.setattr("wheelsched.simulator.simulator.ZONE_VERSION", version)
    world.crash()


def test_tzdata_02(world, monkeypatch):
    other_zones(monkeypatch, world, "z1")
    world.client.put("berlin", Call("ok"), Cron("0 6 * * *", tz="Europe/Berlin"))
    world.client.put("utc", Call("ok"), Cron("0 6 * * *"))
    world.advance(to="2026-03-30T12:00:00Z")  # summer time: 06:00 is 04:00Z
    before = world.client.get("berlin").next_at
    ran = len(world.runs("berlin"))
    other_zones(monkeypatch, world, "z2")  # Germany gave summer time up
    world.advance(0)
    assert world.client.get("berlin").next_at - before == timedelta(hours=1)
    diff = world.client.tzdiff()
    assert [(m.job, m.old, m.new) for m in diff.moved] == [("berlin", before, before + timedelta(hours=1))]
    assert len(world.runs("berlin")) == ran, "nothing is fired for a difference in the past"
    world.advance("1d")
    assert [r.scheduled_at for r in world.runs("berlin")][-1] == at("2026-03-31T05:00")


def test_tzdata_02_a_midnight_is_not_repeated(world, monkeypatch):
    """Local midnight does not fire again an hour later, because the zone's midnight is an hour later now."""
    other_zones(monkeypatch, world, "z1")
    world.client.put("midnight", Call("ok"), Cron("0 0 * * *", tz="Europe/Berlin"))
    world.advance(to="2026-03-31T22:30:00Z")  # half past midnight
    other_zones(monkeypatch, world, "z2")
    world.advance("30h")
    assert [r.scheduled_at for r in world.runs("midnight")][-2:] == [at("2026-03-31T22:00"), at("2026-04-01T23:00")]
    assert world.client.why("midnight", at("2026-03-31T23:00")).disposition == "tzdata_moved"


def test_tzdata_02_what_was_missed_has_its_row_though_max_runs_is_used_up(world, monkeypatch):
    """A moved occurrence was the last one that max_runs allows; others passed while the server was down, until it came with other data."""
    other_zones(monkeypatch, world, "z1")
    world.client.put("hourly", Call("ok"), Cron("30 * * * *", tz="Europe/Berlin"), max_runs=1)
    (missed,) = world.client.next("hourly", 2)  # one is left, whichever it is
    moved = missed + timedelta(hours=1)
    world.client.move("hourly", moved, moved + timedelta(days=1))
    monkeypatch.setattr("wheelsched.simulator.simulator.load_zone", lambda name: zone_data(name, "z2"))
    monkeypatch.setattr("wheelsched.simulator.simulator.ZONE_VERSION", "z2")
    world.crash(down="40m")
    world.advance(0)
    assert "was skipped: max_runs was used up" in world.client.why("hourly", missed).text
    assert world.client.get("hourly").state == "finished"


@pytest.mark.parametrize("zone", ["+02:00", "UTC+2", "GMT-5", "CEST", ""])
def test_tzdata_04(world, zone):
    with pytest.raises(WheelschedError):
        world.client.put("j", Call("ok"), Cron("0 6 * * *", tz=zone))
    assert not list(world.client.jobs())


def test_visible_03(world):
    """One question names the fate of an occurrence: in time, late, refused, paused, missed, used up."""
    put = world.client.put
    put("nightly", Call("slow", 2_700), Cron("*/30 * * * *"))
    world.advance(to="2026-03-02T01:10:00Z")  # the run of 00:30 takes until 01:15
    why = world.client.why("nightly", at("2026-03-02T01:00"))
    blocking = world.runs("nightly")[0]
    assert (why.disposition, why.reason, why.blocking) == ("skipped", "overlap", blocking.id)
    assert blocking.id in why.text
    world.client.delete("nightly")
    world.advance(to="2026-03-02T02:10:00Z")
    put("paused", Call("ok"), Cron("45 * * * *"))
    world.client.pause("paused")
    world.advance(to="2026-03-02T02:50:00Z")
    world.client.resume("paused")
    assert world.client.why("paused", at("2026-03-02T02:45")).reason == "pause"
    put("missed", Call("ok"), Cron("*/10 * * * *"), max_runs=2)
    world.crash(down="65m")
    world.advance("30m")
    assert world.client.why("missed", at("2026-03-02T03:00")).disposition == "coalesced"
    late = world.client.why("missed", at("2026-03-02T03:50"))
    assert late.disposition == "fired"
    assert late.reason == "misfire"
    assert "late" in late.text
    assert world.client.get("missed").state == "finished"
    coming = world.client.why("missed", at("2026-03-02T05:00"))
    assert (coming.disposition, coming.reason) == ("skipped", "limit")
    put("coming", Call("ok"), Cron("0 12 * * *"))
    assert world.client.why("coming", at("2026-03-02T12:00")).disposition == "pending"
    with pytest.raises(NotFoundError, match="nearest"):
        world.client.why("coming", at("2026-03-02T12:30"))


def test_payload_02(world):
    """A task that no worker knows any more: the server starts, all others run, this one waits visibly and can be repaired."""
    world.client.put("renamed", Call("old.name"), Cron("0 * * * *"))
    world.client.put("other", Call("ok"), Cron("0 * * * *"))
    world.advance("90m")
    world.crash()
    world.advance("1h")
    assert [r.state for r in world.runs("other")] == ["succeeded", "succeeded"]
    assert [r.state for r in world.runs("renamed")] == ["queued"]
    assert world.ask("stats", {})["unserved_tasks"] == {"old.name": 1}
    world._inline._tasks["old.name"] = Handler("old.name", lambda: None, {})
    world.crash()
    world.advance(0)
    assert [r.state for r in world.runs("renamed")] == ["succeeded"]


def test_payload_03(world, monkeypatch):
    """A zone that new zone data do not have any more parks its jobs; it stops neither the start nor the others."""
    world.client.put("gone", Call("ok"), Cron("0 6 * * *", tz="Europe/Berlin"))
    world.client.put("other", Call("ok"), Cron("0 6 * * *"))
    monkeypatch.setattr("wheelsched.simulator.simulator.load_zone", lambda name: None if name == "Europe/Berlin" else zone_data(name, "z1"))
    monkeypatch.setattr("wheelsched.simulator.simulator.ZONE_VERSION", "without")
    world.crash()
    world.advance("1d")
    assert [clock(r) for r in world.runs("other")] == ["06:00:00"]
    assert world.client.get("gone").name == "gone"


def test_scale_02(world):
    """Two hundred jobs due at once are worked off without an idle moment."""
    from wheelsched import Job

    world.client.put_many([Job(f"j{i}", Call("ok"), At(START + timedelta(hours=1))) for i in range(200)])
    world.advance("1h")
    assert [now for now, _ in world.seen] == [START + timedelta(hours=1)] * 200


def test_overlap_05_under_each_buffer(world):
    """A job that overran: what waits starts at once when it ends, what found no room is on record, the grid stays."""
    for name, overlap, waited in (("one", "buffer_one", [120]), ("latest", "buffer_latest", [180]), ("all", Overlap("buffer_all", 5), [120, 180])):
        with Simulator(START, tasks={"slow": lambda: None}) as sim:
            begun = []
            sim._inline._tasks["slow"] = Handler("slow", lambda sim=sim, begun=begun: begun or (begun.append(1), sim.advance(130)), {})
            sim.client.put(name, Call("slow"), Every("60s", anchor=START), overlap=overlap)
            sim.advance("200s")
            runs = [(r.scheduled_at - START).seconds for r in sim.runs(name)]
            assert runs == [60, *waited], name
            assert all(r.state == "succeeded" for r in sim.runs(name)), name
            assert sum(r.count for r in ledger(sim, name)) == 2 - len(waited), name

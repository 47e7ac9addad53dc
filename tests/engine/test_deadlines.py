"""When a run is to start, and what counts from there: deadlines, lateness, what alarms tell."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tests.rigs.engine import FAILED, NOT_STARTED, Bench
from wheelsched import Call, Cron, Every, Manual, Overlap, current_run
from wheelsched.simulator.simulator import Simulator

HOURLY = Cron("0 * * * *")


@pytest.fixture
def b():
    with Bench("2026-03-02T00:00:00Z") as bench:
        yield bench


def starts(b, name="j"):
    """{nominal time: minutes by which jitter puts it off}, of the first hours."""
    found = {}
    for at in b.client.next(name, 20):
        found[at] = (b.client.why(name, at).at - at).total_seconds() / 60
    return found


def test_s10_jitter_is_no_delay():
    with Simulator("2026-03-02T00:00:00Z", tasks={"ok": lambda: None}) as sim:
        ws = sim.client
        ws.put("alarm", Call("ok"), Manual())
        ws.put("j", Call("ok"), HOURLY, jitter="40m", expires_after="5m", late_after="3m", on_missed="alarm")
        sim.advance("10h")
        assert {r.state for r in sim.runs("j")} <= {"succeeded", "scheduled"}
        assert len([r for r in sim.runs("j") if r.state == "succeeded"]) >= 9
        assert sim.runs("alarm") == []
        assert not [r for r in sim.runs("j") if r.late]
        assert ws.stats()["counters"]["expired"] == 0


def test_s10_both_count_from_the_armed_instant(b):
    """Nobody leases: the deadline and the mark come so long after the jittered instant, to the millisecond; also over a restart."""
    b.put(schedule=HOURLY, jitter="40m", expires_after="5m", late_after="3m", overlap="allow")
    armed = starts(b)
    at = next(at for at, minutes in armed.items() if minutes > 20)
    begins = b.client.why("j", at).at
    b.advance(to=begins)
    (run,) = b.runs("j", state="queued")
    b.crash(down=0)
    b.advance(3 * 60 - 1)
    assert (run.refresh().state, run.late) == ("queued", False)
    b.advance(2)
    assert (run.refresh().state, run.late) == ("queued", True)
    b.advance(2 * 60 - 2)
    assert run.refresh().state == "queued"
    b.advance(2)
    assert (run.refresh().state, run.reason) == ("cancelled", "expired")


def test_s10_handed_back_it_counts_from_there_still(b):
    b.put(schedule=HOURLY, jitter="40m", expires_after="5m", late_after="3m")
    at = next(at for at, minutes in starts(b).items() if minutes > 20)
    b.advance(to=b.client.why("j", at).at)
    run = b.runs("j")[-1]
    b.finish(b.lease(), NOT_STARTED)
    assert (run.refresh().state, run.late) == ("queued", False)
    b.advance("4m")
    assert (run.refresh().state, run.late) == ("queued", True)
    b.finish(b.lease(), FAILED)
    b.advance("2h")
    assert b.client.run(run.id).state in ("queued", "retry_wait"), "a run that was started once does not expire"


def test_s10_a_missed_one_does_not_expire_before_its_jitter_would_have_let_it_start(b):
    """It starts at once, without its jitter."""
    b.put(schedule=HOURLY, jitter="40m", expires_after="5m", late_after="3m", overlap="allow")
    at = next(at for at, minutes in starts(b).items() if minutes > 20)
    begins = b.client.why("j", at).at
    b.advance(to=at - timedelta(seconds=1))
    b.crash(down="6m")
    b.advance(0)
    run = b.runs("j")[-1]
    assert (run.scheduled_at, run.state, run.reason, run.late) == (at, "queued", "misfire", False)
    b.advance(to=begins + timedelta(minutes=4))
    assert (run.refresh().state, run.late) == ("queued", True)
    b.advance("61s")
    assert (run.refresh().state, run.reason) == ("cancelled", "expired")


def test_s10_nor_does_one_that_waits_for_its_turn(b):
    b.put(schedule=Every("60s"), jitter="40s", expires_after="5s", overlap="buffer_all")
    times = list(starts(b))
    k = next(k for k, at in enumerate(times) if k and (b.client.why("j", at).at - at).total_seconds() > 20)
    before, begins = b.client.why("j", times[k - 1]).at, b.client.why("j", times[k]).at
    b.hello()
    b.advance(to=before)
    held = b.lease()
    assert held
    b.work(held, int((times[k] - b.now).total_seconds()) // 5 * 5 + 15)
    run = b.runs("j")[-1]
    assert (run.scheduled_at, run.state) == (times[k], "scheduled"), "its nominal time is over for more than 5 s"
    b.finish(held)
    assert run.refresh().state == "queued"
    b.advance(to=begins + timedelta(seconds=4))
    assert run.refresh().state == "queued"
    b.advance(2)
    assert (run.refresh().state, run.reason) == ("cancelled", "expired")


def test_s10_backfill_and_redrive_are_as_ever(b):
    b.put(schedule=HOURLY, jitter="40m", expires_after="5m", late_after="3m", retry=1, overlap="allow")
    b.client.backfill("j", "2026-03-01T00:00:00Z", "2026-03-01T03:00:00Z", overlap=Overlap("allow", 9))
    assert {(r.state, r.late) for r in b.runs("j")} == {("queued", False)}
    b.advance("4m")
    b.finish(b.lease(n=1), FAILED)
    b.advance("2m")
    assert sorted(r.state for r in b.runs("j")) == ["cancelled", "cancelled", "cancelled", "dead"]
    b.client.redrive(match="*")
    b.advance("10m")
    assert [r.state for r in b.runs("j") if r.state != "cancelled"] == ["queued"]


def test_s10_moved_counts_from_where_it_was_moved(b):
    b.put(schedule=HOURLY, jitter="40m", expires_after="5m", late_after="3m")
    at = b.client.next("j", 1)[0]
    run = b.client.move("j", at, at.replace(hour=5))
    b.advance(to=at.replace(hour=5, minute=4))
    assert (run.refresh().state, run.late) == ("queued", True)
    b.advance("2m")
    assert (run.refresh().state, run.reason) == ("cancelled", "expired")


@pytest.mark.parametrize("jobs", [1, 3])
@pytest.mark.parametrize(("catchup", "more"), [("all", {"expires_after": "25m"}), ("latest", {}), ("skip", {}), ("all", {"late_after": "1m"})])
def test_s13_an_alarm_counts_jobs(jobs, catchup, more):
    told = []
    with Simulator("2026-03-02T00:00:00Z", tasks={"ok": lambda: None, "tell": lambda: told.append(current_run().cause)}) as sim:
        ws = sim.client
        ws.put("alarm", Call("tell"), Manual())
        for i in range(jobs):
            ws.put(f"j{i}", Call("ok"), Cron("*/10 * * * *"), catchup=catchup, on_missed="alarm", **more)
        sim.advance("5m")
        sim.crash(down="2h")
        sim.advance("5m")
    assert told
    assert {cause["jobs"] for cause in told} == {jobs}
    assert all(cause["count"] >= jobs for cause in told)

"""`expires_after`: whatever a run waits for, its deadline for a start ends it once, and what waits behind it goes on."""

from __future__ import annotations

import pytest

from tests.rigs.engine import NOT_STARTED, Bench, at
from wheelsched import Cron, Every, Manual

START = "2026-03-02T00:00:00Z"


@pytest.fixture
def b():
    with Bench(START) as bench:
        yield bench
        bench.engine.state.check()


def test_a_jittered_run_that_expired_is_not_woken_at_its_instant(b):
    b.put(schedule=Every("1h"), jitter="30m", expires_after="1s")
    b.advance("6h")
    assert set(b.states()) <= {"cancelled", "scheduled"}
    assert "cancelled" in b.states()


def test_a_job_after_completion_goes_on_when_its_run_expires(b):
    b.put(schedule=Every("60s", after_completion=True), expires_after="10s")
    b.advance(600)
    assert len(b.runs("j")) == 8


def test_what_waits_behind_a_run_that_expires_has_its_turn(b):
    b.put(schedule=Every("60s"), overlap="buffer_all", expires_after="90s")
    b.advance("2m")
    assert b.states() == ["queued", "scheduled"]
    b.advance("30s")
    assert b.states() == ["cancelled", "queued"]


def test_a_waiting_run_expires_too(b):
    b.hello()
    b.put(schedule=Every("60s"), overlap="buffer_one", expires_after="90s")
    b.advance("60s")
    held = b.lease()
    b.work(held, 145)
    assert b.states() == ["leased", "scheduled"]  # the one of 00:02, the one of 00:03 found no room
    b.work(held, 10)
    assert b.states() == ["leased", "cancelled"]


def test_a_backfill_expires_by_when_it_was_made(b):
    b.put(schedule=Cron("0 * * * *"), expires_after="10m")
    b.client.backfill("j", at("2026-03-01T00:00"), at("2026-03-01T03:00"))
    first = b.lease()
    assert first
    b.heartbeat(first)
    assert "cancelled" not in b.states()


def test_a_backfill_nobody_starts_expires_after_its_making(b):
    b.put(schedule=Cron("0 5 * * *"), expires_after="10m")
    b.client.backfill("j", at("2026-03-01T00:00"), at("2026-03-01T06:00"))
    b.advance("9m59s")
    assert b.states() == ["queued"]
    b.advance("1s")
    assert b.states() == ["cancelled"]


def test_a_run_that_was_handed_back_after_its_deadline_expires(b):
    b.put(schedule=Manual(), expires_after="10s")
    b.client.trigger("j")
    held = b.lease()
    b.work(held, 12)
    assert b.states() == ["leased"]
    assert b.finish(held, NOT_STARTED) == [1]
    b.advance(1)
    assert b.states() == ["cancelled"]


def test_a_run_that_is_handed_back_in_time_lives_to_its_deadline(b):
    b.put(schedule=Manual(), expires_after="10s")
    b.client.trigger("j")
    held = b.lease()
    b.advance(5)
    b.finish(held, NOT_STARTED)
    assert b.states() == ["queued"]
    b.advance("4s")
    assert b.states() == ["queued"]
    b.advance("1s")
    assert b.states() == ["cancelled"]


def test_a_run_that_was_started_does_not_expire(b):
    b.put(schedule=Manual(), expires_after="10s")
    b.client.trigger("j")
    held = b.lease()
    b.work(held, 30)
    assert b.finish(held) == [1]
    assert b.states() == ["succeeded"]


def test_the_deadline_is_never_early(b):
    """The nominal time is not a whole millisecond: a trigger has the instant of its command."""
    b.advance(0.0005)
    b.put(schedule=Manual(), expires_after="1s")
    b.client.trigger("j")
    assert b.now_us % 1_000 == 500
    b.advance(1)  # exactly a second later
    assert b.states() == ["queued"]
    b.advance(0.001)
    assert b.states() == ["cancelled"]


def test_who_waits_for_a_run_that_expires_is_answered(b):
    b.put(schedule=Manual(), expires_after="10s")
    run = b.client.trigger("j")
    b.advance("11s")
    assert run.refresh().state == "cancelled"
    assert b.client.stats()["counters"]["expired"] == 1

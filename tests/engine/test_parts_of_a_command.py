"""Commands of which a part applies: a frame with jobs that stay as they are, a schedule that only waiting runs give way to, a pause with a note."""

from __future__ import annotations

import pytest

from tests.rigs.engine import CALL, Bench
from wheelsched import Every, Job, Manual


@pytest.fixture
def b():
    return Bench(start="2026-03-02T00:00:00Z")


def test_jobs_of_a_frame_in_part_unchanged_are_found_by_their_names(b):
    b.client.put_many([Job(name, CALL, Manual()) for name in "abc"])
    b.client.put_many([Job(name, CALL, Manual(), priority=9 if name in "ce" else 5) for name in "abcdef"])
    for name in "abcdef":
        b.client.trigger(name)
        assert [run.state for run in b.runs(name)] == ["queued"], name
    assert len(list(b.client.jobs())) == 6, "none is there twice"


def test_a_new_schedule_takes_the_place_of_what_waits_and_leaves_what_is_due(b):
    b.put(schedule=Every("60s"), overlap="buffer_one")
    b.advance("2m1s")
    assert sorted(b.states()) == ["queued", "scheduled"]
    b.put(schedule=Every("90s"), overlap="buffer_one")
    assert b.states() == ["queued"]


def test_the_note_of_a_pause_ends_with_it(b):
    b.put(note="ticket 12")
    b.client.pause("j", "disk")
    b.put(schedule=Every("90s"), note="ticket 13")
    assert b.client.get("j").state == "paused"
    assert b.client.get("j").note == "disk"
    b.client.resume("j")
    assert b.client.get("j").note == "ticket 13"
    assert not b.engine.state.pauses

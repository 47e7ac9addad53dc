"""Runs of one call of a batch handler that died: no attempt is spent, and next each is called alone, so one run kills no others for good."""

from __future__ import annotations

import signal
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from tests.rigs.attempts import end, same_after_restart
from tests.rigs.engine import CALL
from tests.rigs.places import TASK_MODULES
from tests.rigs.server import wait_for
from wheelsched import Call, Enqueue, Retry
from wheelsched.model.errors import InvalidArgumentError
from wheelsched.model.nouns import Outcome

LOST, TIMED_OUT, SNOOZED = Outcome.LOST, Outcome.TIMED_OUT, Outcome.SNOOZED
TOGETHER = {"type": "gone", "message": "", "together": True}


def alone(b):
    """What a lease says of each row: is it to be called alone? And the leases."""
    got = b.call(50, ("lease", {"queues": [], "credits": 100, "wait_us": 0}))
    ids = [got["id"][i : i + 16] for i in range(0, len(got.get("id", b"")), 16)]
    leases = list(zip(ids, np.frombuffer(got["token"], "<i8").tolist(), np.frombuffer(got["attempt"], "<u4").tolist(), strict=True))
    return [i in got["alone"] for i in range(got["n"])], leases


@pytest.mark.parametrize("outcome", [LOST, TIMED_OUT, Outcome.INTERRUPTED])
def test_it_is_spared_once_and_then_counts(b, outcome):
    runs = [b.client.enqueue(CALL, retry=Retry(1)) for _ in range(3)]
    flags, leases = alone(b)
    assert flags == [False] * 3
    assert end(b, leases, outcome, TOGETHER) == [1] * 3
    b.crash()
    same_after_restart(b)
    b.hello()
    b.advance(1)
    flags, leases = alone(b)
    assert flags == [True] * 3
    assert [x[2] for x in leases] == [1] * 3, "still the first attempt"
    assert b.finish(leases[:1]) == [1]
    assert end(b, leases[1:], outcome, TOGETHER) == [1, 1], "a worker that did not heed it"
    for run in runs:
        run.refresh()
    assert [r.state for r in runs] == ["succeeded", "dead", "dead"]
    assert [[a.outcome for a in r.attempts] for r in runs[1:]] == [[outcome.name.lower()] * 2] * 2
    assert [r.attempt for r in runs] == [1, 1, 1]
    same_after_restart(b)


def test_one_that_was_called_alone_counts(b):
    run = b.client.enqueue(CALL, retry=Retry(2, 0))
    assert end(b, b.lease(), LOST, {"type": "gone"}) == [1]
    b.advance(1)
    flags, leases = alone(b)
    assert flags == [True]
    assert leases[0][2] == 2
    assert end(b, leases, Outcome.FAILED, TOGETHER) == [1], "an ending of its own is never spared"
    run.refresh()
    assert run.state == "dead"


def test_no_other_ending_asks_for_a_call_alone(b):
    b.client.enqueue(CALL, retry=Retry(3, 0))
    assert end(b, b.lease(), Outcome.FAILED, {"type": "E"}) == [1]
    b.advance(1)
    flags, leases = alone(b)
    assert flags == [False]
    assert end(b, leases, SNOOZED, {"snooze_us": 1}) == [1]
    b.advance(1)
    assert alone(b)[0] == [False]


def test_the_word_is_checked(b):
    b.client.enqueue(CALL)
    with pytest.raises(InvalidArgumentError, match="together is true or false"):
        end(b, b.lease(), LOST, {"together": 1})


def test_events_tell_of_a_failure(b):
    since = b.client.event_position()
    b.client.enqueue(CALL, retry=Retry(1))
    end(b, b.lease(), LOST, TOGETHER)
    kinds = [e.kind for e in b.client.events(since=since, timeout=0)]
    assert "run.failed" in kinds
    assert "run.snoozed" not in kinds


@pytest.mark.slow
@pytest.mark.parametrize("bad", ["poison", "stuck", "late"])
@pytest.mark.parametrize("mode", ["process", "thread", "external"])
def test_one_run_takes_no_other_along(serving, external, short_tmp, mode, bad):
    """On a real server: all in one call, one attempt each; only the one that is at fault dies."""
    notes = str(short_tmp / "notes")
    if mode == "external":
        ws = serving(workers=0).client()
        external("kept_tasks")
    else:
        ws = serving("--tasks", "kept_tasks", "--mode", mode, paths=[TASK_MODULES]).client()
    ws.queue_pause("default")
    what = [f"run {i}" for i in range(12)]
    what.insert(5, bad)
    calls = [Enqueue(Call("k.mixed_batch", notes, text), retry=Retry(1), timeout="60s" if bad == "poison" else "1s") for text in what]
    ids = ws.enqueue_many(calls).ids
    ws.queue_resume("default")
    wait_for(lambda: all(ws.run(i).state in ("succeeded", "dead") for i in ids), 60)
    ended = {text: ws.run(i) for text, i in zip(what, ids, strict=True)}
    assert {text for text, run in ended.items() if run.state == "dead"} == {bad}
    assert {run.attempt for run in ended.values()} == {1}
    times = Counter(Path(notes).read_text().splitlines())
    assert times[bad] == 2, "once with others, once alone"
    assert max(times.values()) == 2
    assert [a.outcome for a in ended[bad].attempts] == ["lost" if bad == "poison" else "timed_out"] * 2


def test_a_killed_server_spends_no_attempt_of_a_batch(serving, short_tmp):
    notes = short_tmp / "notes"
    server = serving("--tasks", "kept_tasks", paths=[TASK_MODULES])
    ws = server.client()
    ws.queue_pause("default")
    slow = ws.enqueue_many([Enqueue(Call("k.mixed_batch", str(notes), text), retry=Retry(1)) for text in ("a", "b", "stuck", "c")]).ids
    ws.queue_resume("default")
    wait_for(lambda: notes.exists() and len(notes.read_text().splitlines()) == 4, 30)
    ws.cancel(slow[2])
    server.end(signal.SIGKILL)
    ws = serving("--tasks", "kept_tasks", paths=[TASK_MODULES]).client()
    wait_for(lambda: all(ws.run(i).state in ("succeeded", "cancelled") for i in slow), 60)
    assert [ws.run(i).state for i in slow] == ["succeeded", "succeeded", "cancelled", "succeeded"]
    assert [ws.run(i).attempt for i in slow if i != slow[2]] == [1, 1, 1]

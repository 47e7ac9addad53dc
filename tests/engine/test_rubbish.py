"""Completions that a worker in another language may get wrong: refused with what is wanted, or put right; nothing breaks for others."""

from __future__ import annotations

import itertools
from datetime import timedelta

import msgpack
import numpy as np
import pytest

from tests.rigs.attempts import end, same_after_restart
from tests.rigs.engine import CALL
from wheelsched import Every, Retry
from wheelsched.client.times import span
from wheelsched.model.errors import InvalidArgumentError
from wheelsched.model.nouns import INSTANT_MAX_US, US, Outcome

OK, FAILED, LOST = Outcome.SUCCEEDED, Outcome.FAILED, Outcome.LOST
RUBBISH = (5, True, 1.0, float("nan"), "text", [[]], {}, b"\xc1", b"", b"\x93\x01")


@pytest.mark.parametrize("value", RUBBISH, ids=repr)
@pytest.mark.parametrize("more", [{}, {"stdout": b""}], ids=["alone", "with output"])
def test_a_value_that_nobody_could_read_is_refused(b, value, more):
    """Of a job's run: the next one is handed it as `last_result`."""
    b.put("j", Every("1m"))
    b.advance(60)
    leases = b.lease()
    with pytest.raises(InvalidArgumentError, match="value of a result is"):
        end(b, leases, OK, {"value": value, **more})
    assert end(b, leases, OK, {"value": msgpack.packb([1, {"a": None}])}) == [1]
    b.advance(60)
    assert len(b.lease()) == 1
    same_after_restart(b)


@pytest.mark.parametrize(("name", "value"), [
    *itertools.product(("stdout", "stderr"), ("text", 5, [b""])), *itertools.product(("stdout_cut", "stderr_cut"), ("x", -1, True, 2.0, None)),
    *itertools.product(("type", "message", "traceback"), (b"x", 5, None, ["x"])),
])
def test_what_run_get_shows_is_checked(b, name, value):
    run = b.client.enqueue(CALL, retry=Retry(1))
    leases = b.lease()
    with pytest.raises(InvalidArgumentError, match=name):
        end(b, leases, FAILED, {"type": "E", "message": "m", name: value})
    assert end(b, leases, FAILED, {"type": "E", "message": "m", "stdout": b"x", "stdout_cut": 3}) == [1]
    run.refresh()
    assert (run.state, run.attempts[0].stdout, run.attempts[0].stdout_cut) == ("dead", b"x", 3)


def tell(b, lease, started, ended, outcome=OK):
    return list(b.call(50, ("finish", {
        "id": lease[0], "token": np.array([lease[1]], "<i8").tobytes(), "outcome": bytes([outcome]),
        "started_us": np.array([started], "<i8").tobytes(), "ended_us": np.array([ended], "<i8").tobytes(), "result": [],
    }))["verdict"])


@pytest.mark.parametrize("outcome", [OK, LOST])
def test_times_that_can_not_be_are_put_right(b, outcome):
    """A run ends between the moment it was queued and now, whatever a worker says: retention and listings go by that."""
    queued = b.now_us
    runs = [b.client.enqueue(CALL, retry=Retry(1)) for _ in range(6)]
    leases = b.lease()
    b.advance(5)
    now = b.now_us
    told = [(0, 0), (1, 1), (INSTANT_MAX_US, INSTANT_MAX_US), (now, queued + US), (queued + US, queued + 3 * US), (0, queued + 2 * US)]
    for lease, times in zip(leases, told, strict=True):
        assert tell(b, lease, *times, outcome) == [1]
    for run in runs:
        run.refresh()
    start = b.now - timedelta(seconds=5)
    at = [(None if r.started_at is None else (r.started_at - start).total_seconds(), (r.ended_at - start).total_seconds()) for r in runs]
    assert at == [(None, 5), (5, 5), (5, 5), (1, 1), (1, 3), (None, 2)]
    same_after_restart(b)


def test_dead_letters_of_a_worker_without_a_clock_are_found_by_time(b):
    run = b.client.enqueue(CALL, retry=Retry(1))
    began = b.now
    b.advance(1)
    assert tell(b, b.lease()[0], 0, 0, LOST) == [1]
    assert [r.id for r in b.client.dead(since=began)] == [run.id]
    assert list(b.client.dead(until=began)) == []


def test_a_duration_of_ages_has_a_text():
    assert span(3.2e11) == "10140 years"
    assert span(200) == "3m 20s"

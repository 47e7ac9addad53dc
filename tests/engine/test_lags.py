"""From when lags are counted: the nominal time, but not from before somebody asked for the run."""

from __future__ import annotations

import numpy as np
import pytest

from tests.rigs.engine import FAILED, Bench
from wheelsched import At, Call, Every, Retry
from wheelsched.model.nouns import US


@pytest.fixture
def b():
    lags = {"queued": [], "start": [], "done": []}
    with Bench("2026-01-01T00:00:00Z") as bench:
        step = bench.engine.step

        def kept(now, inputs):
            effects = step(now, inputs)
            for name, instants in effects.lags:
                lags[name] += (now.wall_us - instants).tolist()
            for found in effects.start_lags:
                lags["start"] += found.tolist()
            return effects

        bench.engine.step = kept
        bench.lags = lags
        yield bench


def seconds(b, name):
    return np.round(np.array(b.lags[name]) / US).tolist()


def test_n_b9_a_time_of_the_past_given_to_enqueue_is_no_lag(b):
    b.client.enqueue(Call("t"), at="2020-01-01T00:00:00Z")
    b.advance(3)
    b.finish(b.lease())
    assert seconds(b, "start") == [3]
    assert seconds(b, "done") == [3]


def test_n_b9_nor_is_one_given_to_a_job(b):
    b.client.put("once", Call("t"), At("2020-01-01T00:00:00Z"))
    b.advance(3)
    b.finish(b.lease())
    assert seconds(b, "queued") == [0]
    assert seconds(b, "start") == [3]
    assert seconds(b, "done") == [3]


def test_n_b9_a_dead_letter_that_is_sent_back_counts_from_then(b):
    run = b.client.enqueue(Call("t"), retry=Retry(attempts=1))
    b.finish(b.lease(), FAILED)
    b.advance(3_600)
    b.client.redrive(ids=[run.id])
    b.advance(2)
    b.finish(b.lease())
    assert seconds(b, "done") == [2]


def test_n_b9_what_was_late_stays_late(b):
    b.client.put("each", Call("t"), Every("60s"))
    b.advance(65)  # due at 60
    b.client.set("each", priority=9)
    b.advance(5)
    b.finish(b.lease())
    assert seconds(b, "start") == [10]
    assert seconds(b, "done") == [10]


def test_n_b9_an_outage_is_a_lag(b):
    b.client.put("each", Call("t"), Every("60s"))
    b.client.hold()
    b.advance(200)
    b.client.release()
    b.advance(0)
    b.finish(b.lease())
    assert seconds(b, "start")[0] >= 20, "the latest of three, which was due at 180"


def test_n_b9_a_retry_counts_from_the_nominal_time(b):
    b.client.enqueue(Call("t"), retry=Retry(attempts=2, backoff="10s"))
    b.finish(b.lease(), FAILED)
    b.advance(20)
    b.finish(b.lease())
    assert seconds(b, "start") == [0]
    assert seconds(b, "done") == [20]

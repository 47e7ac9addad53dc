"""How attempts end, to the last byte and the last microsecond: what a result may weigh, when a run began, what counts for a lag."""

from __future__ import annotations

import msgpack
import numpy as np
import pytest

from tests.rigs.attempts import end
from tests.rigs.engine import CALL, FAILED, OK, Bench
from wheelsched import Cron, Every, Retry
from wheelsched.engine.endings import read_result
from wheelsched.model.errors import InvalidArgumentError
from wheelsched.model.nouns import US, Outcome, to_datetime
from wheelsched.state import records

START = "2026-03-02T00:00:00Z"
SNOOZED = Outcome.SNOOZED
RESULT_MAX = 212_992  # three outputs of 64 KiB, and 16 KiB for the rest


class Lags(Bench):
    """A bench that keeps the lags that the engine tells the server."""

    def __init__(self, start):
        self.done, self.started, self.kinds = [], [], []
        super().__init__(start)

    def _step(self, inputs):
        super()._step(inputs)
        self.done += [at for name, instants in self._effects.lags if name == "done" for at in instants.tolist()]
        self.kinds.append([records.decode(record)[0] for record in self._effects.records])
        self.started += [us for lags in self._effects.start_lags for us in lags.tolist()]


@pytest.fixture
def b():
    with Lags(START) as bench:
        bench.hello()
        yield bench
        bench.engine.state.check()


def report(b, leases, started_us, ended_us, outcome=OK):
    n = len(leases)
    return list(b.call(50, ("finish", {
        "id": b"".join(x[0] for x in leases), "token": np.array([x[1] for x in leases], "<i8").tobytes(), "outcome": bytes([outcome] * n),
        "started_us": np.full(n, started_us, "<i8").tobytes(), "ended_us": np.full(n, ended_us, "<i8").tobytes(), "result": [],
    }))["verdict"])


# What a result may weigh


@pytest.mark.parametrize("more", [0, 1])
def test_a_result_of_our_own_worker_may_have_just_its_limit(more):
    fixed = len(msgpack.packb({"value": bytes(2**17), "message": ""}, use_bin_type=True))
    result = {"value": bytes(2**17 + RESULT_MAX - fixed + more), "message": ""}
    assert len(msgpack.packb(result, use_bin_type=True)) == RESULT_MAX + more
    if more:
        with pytest.raises(InvalidArgumentError, match=f"a map of at most {RESULT_MAX} bytes"):
            read_result(result, OK, foreign=False)
    else:
        data, told = read_result(result, OK, foreign=False)
        assert (len(data), told) == (RESULT_MAX, None)


@pytest.mark.parametrize("result", [{"value": "text"}, {"value": b"", "stdout": 7}, {"stdout_cut": -1}, {"type": 5}])
def test_what_an_external_worker_sends_is_checked_before_anybody_reads_it(b, result):
    b.client.enqueue(CALL)
    leases = b.lease()
    with pytest.raises(InvalidArgumentError, match=r"finish: .* of a result"):
        end(b, leases, OK, result)
    assert b.finish(leases) == [1], "it may still report"


@pytest.mark.parametrize("pair", [7, [], [0], [0, {}, {}], ["0", {}], [None, {}], [0.5, {}], [-1, {}], [1, {}]])
def test_a_result_of_no_row_is_refused_and_ends_nothing(b, pair):
    b.client.enqueue(CALL)
    ((run_id, token, _),) = leases = b.lease()
    one = {"id": run_id, "token": np.array([token], "<i8").tobytes(), "outcome": bytes([OK]), "started_us": bytes(8), "ended_us": bytes(8)}
    with pytest.raises(InvalidArgumentError, match=r"result is a list of \[row, map\]"):
        b.call(50, ("finish", {**one, "result": [pair]}))
    assert b.finish(leases) == [1]


def test_a_frame_of_no_completions_is_answered(b):
    assert b.finish([]) == []


def test_what_has_succeeded_is_one_record(b):
    b.client.enqueue(CALL)
    b.finish(b.lease())
    assert b.kinds[-1] == ["FINISH"]


def test_what_is_late_is_counted(b):
    b.client.enqueue(CALL)
    leases = b.lease()
    assert b.finish(leases) == [1]
    assert b.finish(leases) == [1], "a repeat is not late"
    assert b.client.stats()["counters"]["stale"] == 0
    assert b.finish(leases, FAILED) == [2]
    assert b.client.stats()["counters"]["stale"] == 1


# When it began and ended


@pytest.mark.parametrize(("begun", "known"), [(-1, False), (0, True), (1, True)])
def test_a_run_that_began_as_it_was_queued_keeps_the_times_of_its_worker(b, begun, known):
    run = b.client.enqueue(CALL)
    queued, leases = b.now_us, b.lease()
    b.work(leases, 10)
    report(b, leases, queued + begun, queued + 3 * US)
    run.refresh()
    wanted = (queued + begun, queued + 3 * US) if known else (b.now_us - 3 * US + begun, b.now_us)
    assert (run.started_at, run.ended_at) == tuple(map(to_datetime, wanted))


def test_a_run_that_began_and_ended_as_it_was_queued_keeps_the_times_of_its_worker(b):
    run = b.client.enqueue(CALL)
    queued, leases = b.now_us, b.lease()
    b.work(leases, 10)
    report(b, leases, queued, queued)
    run.refresh()
    assert (run.started_at, run.ended_at) == (to_datetime(queued), to_datetime(queued))


@pytest.mark.parametrize(("ended", "known"), [(9_999_999, True), (10_000_000, True), (10_000_001, False)])
def test_a_run_that_ends_this_very_instant_keeps_the_times_of_its_worker(b, ended, known):
    run = b.client.enqueue(CALL)
    queued, leases = b.now_us, b.lease()
    b.work(leases, 10)
    report(b, leases, queued + 2 * US, queued + ended)
    run.refresh()
    began = queued + 2 * US if known else b.now_us - (ended - 2 * US)
    assert (run.started_at, run.ended_at) == (to_datetime(began), to_datetime(min(queued + ended, b.now_us)))


# What is measured


def test_a_run_that_took_no_time_counts_in_the_mean_of_its_task(b):
    for seconds in (0, 10):
        b.client.enqueue(CALL)
        leases = b.lease()
        began = b.now_us
        b.work(leases, seconds)
        report(b, leases, began, b.now_us)
    assert b.engine.durations["t"] == (2, 5.0 * US)


@pytest.mark.parametrize(("started", "ended"), [(0, 5 * US), (5 * US, 4 * US)])
def test_a_run_whose_times_are_not_known_is_not_measured(b, started, ended):
    b.client.enqueue(CALL)
    leases, began = b.lease(), b.now_us
    b.work(leases, 10)
    report(b, leases, started and began + started, began + ended)
    assert b.engine.durations.get("t", (0, 0.0)) in ((0, 0.0), (1, 0.0))


def test_what_a_run_printed_is_kept_with_its_own_result(b):
    runs = [b.client.enqueue(CALL) for _ in range(3)]
    leases = b.lease()
    for run_id, token, _ in leases:
        b.engine.running.printed(token, {"stdout": (0, run_id)})
    b.finish(leases[::-1])
    assert [b.client.run(run.id).stdout for run in runs] == [bytes.fromhex(run.id) for run in runs]


# From when on a lag counts


def test_the_lag_of_a_plain_run_counts_from_its_time(b):
    b.put(schedule=Every("60s"))
    b.advance("60s")
    due, leases = b.now_us, b.lease()
    b.work(leases, 10)
    report(b, leases, due + 4, due + 9)
    assert (b.done, b.started) == ([due], [4])


def test_a_worker_that_does_not_know_when_it_began_tells_no_lag_of_the_start(b):
    b.put(schedule=Every("60s"))
    b.advance("60s")
    leases = b.lease()
    report(b, leases, 0, b.now_us)
    assert (b.done, b.started) == ([b.now_us], [])


def test_the_lag_of_a_jittered_run_counts_from_its_own_instant(b):
    b.put(schedule=Every("1h"), jitter="30m")
    b.advance("1h")
    nominal = b.now_us
    (run,) = b.runs("j")
    assert run.state == "scheduled"
    b.advance(to=run.next_at)
    leases = b.lease()
    report(b, leases, b.now_us, b.now_us)
    assert b.now_us > nominal
    assert (b.done, b.started) == ([b.now_us], [0])


def test_the_lag_of_a_moved_run_counts_from_where_it_was_moved(b):
    b.put(schedule=Every("1h"), retry=Retry(2, 60))
    b.client.move("j", to_datetime(b.now_us + 3_600 * US), to_datetime(b.now_us + 5_000 * US))
    b.advance(5_000)
    moved, leases = b.now_us, b.lease()
    report(b, leases, b.now_us, b.now_us)
    assert (b.done, b.started) == ([moved], [0])


def test_the_lag_of_a_moved_run_that_was_tried_again_does_not_count_from_where_it_was(b):
    b.put(schedule=Every("1h"), retry=Retry(2, 60))
    b.client.move("j", to_datetime(b.now_us + 3_600 * US), to_datetime(b.now_us + 5_000 * US))
    b.advance(5_000)
    moved = b.now_us
    b.finish(b.lease(), FAILED)
    b.advance(100)
    leases = b.lease()
    report(b, leases, b.now_us, b.now_us)
    assert [at >= moved for at in b.done] == [True]


@pytest.mark.parametrize("snooze", [False, True])
def test_the_lag_of_a_run_that_was_tried_again_counts_from_its_time(b, snooze):
    b.put(schedule=Every("1h"), retry=Retry(2, 60))
    b.advance("1h")
    nominal, leases = b.now_us, b.lease()
    if snooze:
        end(b, leases, SNOOZED, {"snooze_us": 60 * US})
    else:
        b.finish(leases, FAILED)
    assert b.started == [0]
    b.advance(100)
    leases = b.lease()
    report(b, leases, b.now_us, b.now_us)
    assert b.done == [nominal]
    assert b.started == ([0, 100 * US] if snooze else [0]), "what was snoozed starts its first attempt again"


def test_what_makes_up_for_the_past_counts_for_no_lag(b):
    b.put(schedule=Cron("0 * * * *"))
    b.client.backfill("j", to_datetime(b.now_us - 7_200 * US), to_datetime(b.now_us - 3_600 * US))
    b.advance(0)
    leases = b.lease()
    assert leases
    report(b, leases, b.now_us, b.now_us)
    assert (b.done, b.started) == ([], [])

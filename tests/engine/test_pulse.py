"""What health sees: deaths, hangs, crash loops, jobs that are skipped again and again; and that it says nothing of what is as it should be."""

from __future__ import annotations

import pytest

from tests.rigs.engine import FAILED, OK
from wheelsched import Call, Cron, Every, Overlap
from wheelsched.client.troubles import troubles
from wheelsched.engine.turn import WorkerGone
from wheelsched.model.nouns import Outcome


def wrong(b):
    return troubles({"storage": {"state": "ok"}, **b.client.stats()})


def ends(b, n, outcome, job=None):
    """So many runs of one job, or of an enqueued task, end so."""
    for _ in range(n):
        if job is None:
            b.client.enqueue(Call("t", 1), retry=1)
        else:
            b.client.trigger(job)
        b.finish(b.lease(), outcome)


def test_n_a2_runs_that_die_are_told_with_their_jobs(b):
    ends(b, 3, OK)
    assert wrong(b) == []
    ends(b, 13, FAILED)
    (said,) = [text for text in wrong(b) if "last hour" in text]
    assert said == "13 runs died in the last hour, of 1 job: ~t (13); `wheelsched dead list` says why"
    b.advance("30m")
    assert any("13 runs died" in text for text in wrong(b))
    b.advance("31m")
    assert not any("last hour" in text for text in wrong(b))


@pytest.mark.parametrize(("died", "well", "told"), [(2, 0, False), (3, 0, True), (3, 297, True), (3, 298, False)])
def test_n_a2_few_of_many_are_no_trouble(b, died, well, told):
    ends(b, died, FAILED)
    ids = [b.client.enqueue(Call("t", i)).id for i in range(well)]
    b.finish(b.lease(n=500), OK)
    assert len(ids) == well
    assert any("died in the last hour" in text for text in wrong(b)) == told


def test_n_a2_a_job_that_dies_again_and_again_is_told_until_it_succeeds(b):
    b.put("a", Cron("0 0 1 1 *"), retry=1)
    ends(b, 100, OK)  # so that few of many died
    ends(b, 2, FAILED, "a")
    assert wrong(b) == []
    ends(b, 1, FAILED, "a")
    assert any(text.startswith("1 job died again and again: a (3 in a row);") for text in wrong(b))
    b.crash()
    b.hello()
    assert any("a (3 in a row)" in text for text in wrong(b))  # the state knows it, whatever was forgotten
    ends(b, 1, OK, "a")
    assert wrong(b) == []


@pytest.mark.parametrize("over", ["delete", "pause"])
def test_n_a2_of_a_job_that_somebody_stopped_nothing_is_told(b, over):
    b.put("a", Cron("0 0 1 1 *"), retry=1)
    ends(b, 3, FAILED, "a")
    getattr(b.client, over)("a")
    assert not any("again and again" in text for text in wrong(b))


def test_n_a2_when_all_workers_hang_it_is_told_since_when_and_in_what(b):
    b.put("shop/hang", Cron("0 0 1 1 *"))
    b.client.trigger("shop/hang")
    held = b.lease(n=1)
    for i in range(3):
        b.client.enqueue(Call("t", i))
    b.work(held, 55)
    assert wrong(b) == []
    b.work(held, 130)
    (said,) = wrong(b)
    assert said.startswith("no run was started for 3m 5s, 3 wait, the only worker is busy: shop/hang for 3m 5s;"), said
    b.finish(held, OK)
    assert b.lease(n=1)
    assert wrong(b) == []


def test_n_a2_a_long_run_with_nothing_behind_it_is_no_trouble(b):
    b.client.enqueue(Call("t", 1))
    b.work(b.lease(n=1), 600)
    assert wrong(b) == []


def test_n_a2_what_waits_for_a_limit_or_a_paused_queue_is_not_stalled(b):
    b.client.enqueue(Call("t", 1))
    held = b.lease(n=1)
    b.client.enqueue(Call("t", 2), queue="slow")
    b.client.queue_pause("slow")
    b.work(held, 300)
    assert not any("no run was started" in text for text in wrong(b))


@pytest.mark.parametrize(("n", "told"), [(2, False), (3, True), (9, True)])
def test_n_a2_workers_that_die_one_after_another_are_told(b, n, told):
    for _ in range(n):
        b.client.enqueue(Call("t", 1))
        b.lease(n=1)
        worker = b.engine.sessions[50].worker
        b._step([WorkerGone(worker, 2**62, Outcome.LOST, "killed by SIGKILL")])
        b.hello()
    assert any(text.startswith(f"{n} workers died in the midst of a run within the last two minutes") for text in wrong(b)) == told
    b.advance("3m")
    assert not any("two minutes" in text for text in wrong(b))


def test_n_a2_the_end_of_a_server_is_no_death_of_its_workers(b):
    for _ in range(12):
        b.client.enqueue(Call("t", 1))
    b.lease(n=1)
    for _ in range(12):
        b.crash()
        b.hello()
    assert not any("midst" in text for text in wrong(b))


@pytest.mark.parametrize("overlap", ["skip", Overlap("buffer_one")])
def test_n_b21_a_job_that_is_skipped_again_and_again_is_told_until_it_runs(b, overlap):
    b.put("m/late", Every("60s"), overlap=overlap)
    b.advance("60s")
    held = b.lease(n=1)
    b.work(held, 120)
    assert wrong(b) == []
    b.work(held, 180)
    (said,) = [text for text in wrong(b) if "still open" in text]
    assert said.startswith("1 job was skipped again and again, since a run of it is still open: m/late ("), said
    b.finish(held, OK)
    b.finish(b.lease(n=1), OK)
    b.advance("60s")
    assert not any("still open" in text for text in wrong(b))


def test_many_jobs_are_counted_and_the_worst_named(b):
    for i in range(8):
        b.put(f"j{i}", Cron("0 0 1 1 *"), retry=1)
        ends(b, 3 + i % 3, FAILED, f"j{i}")
    said = [text for text in wrong(b) if "again and again" in text]
    assert said[0].startswith("8 jobs died again and again: j2 (5 in a row), j5 (5 in a row), j1 (4 in a row), j4 (4 in a row), j7 (4 in a row) and 3 others;"), said


def test_a_name_that_goes_takes_what_was_told_of_it_along(b):
    b.put("gone", Cron("0 0 1 1 *"), retry=1)
    ends(b, 3, FAILED, "gone")
    row = b.engine.state.find_job(b"default/gone")
    b.engine.pulse.forget([row])
    assert not any("again and again" in text for text in wrong(b))

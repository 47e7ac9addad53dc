"""heartbeat_timeout, checkpoints and stopped executors, with real executor processes under a scripted server end."""

from __future__ import annotations

import os
import signal

import msgpack
import pytest

from tests.rigs.executor import Scripted, alive
from tests.rigs.places import TASK_MODULES
from wheelsched.model.errors import StorageFullError
from wheelsched.model.nouns import US, Outcome


@pytest.fixture
def make(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", TASK_MODULES)
    made = []

    def start(**options):
        made.append(Scripted(tmp_path, ["worker_tasks"], kill_grace_us=200_000, **options))
        return made[-1]

    yield start
    for end in made:
        end.close()


MODES = [("process", 1), ("thread", 2), ("async", 2)]


@pytest.mark.parametrize(("mode", "concurrency"), MODES)
def test_own_heartbeats_put_the_limit_off(make, mode, concurrency):
    """Two seconds of heartbeats under a limit of one and a half; then nothing more: it is told to end, and does."""
    end = make(mode=mode, concurrency=concurrency)
    (ended,) = end.finish(end.give("t.beating", 20, 1000, silence_us=1_500_000))
    assert ended[0] == Outcome.TIMED_OUT
    assert (ended[3]["type"], ended[3]["message"]) == ("wheelsched.TimedOut", "timed out: no heartbeat for 1.5 s")
    assert ended[2] - ended[1] >= 3_400_000
    assert not end.gone


@pytest.mark.parametrize("mode", ["thread", "async"])
def test_where_several_run_each_is_judged_by_its_own(make, mode):
    """One beats, one is silent and goes when it is told; then one is silent and deaf, and takes the executor along."""
    end = make(mode=mode, concurrency=3)
    beating, silent = end.give("t.beating", 1000, 0, silence_us=10_000_000), end.give("t.beating", 0, 1000, silence_us=500_000)
    waits = end.give("t.waits", 1000, silence_us=500_000)
    assert [e[0] for e in end.finish(silent, waits)] == [Outcome.TIMED_OUT] * 2
    assert end.ended[silent][3]["message"] == end.ended[waits][3]["message"] == "timed out: no heartbeat for 0.5 s"
    deaf = end.give("t.sleep", 1000, silence_us=500_000)
    end.until(lambda: end.gone, "the kill")
    assert end.gone[0].outcomes == {beating: Outcome.INTERRUPTED, deaf: Outcome.TIMED_OUT}
    assert end.gone[0].text.startswith("no heartbeat for 0.5 s: worker 1 (pid ")
    innocent, guilty = end.gone[0].errors[beating], end.gone[0].errors[deaf]
    assert innocent["type"] == "wheelsched.WorkerLost"
    assert innocent["message"].startswith("was in a process that was ended because of another run (worker 1 was ended by SIG")
    assert guilty["type"] == "wheelsched.TimedOut"
    assert guilty["message"].startswith("no heartbeat for 0.5 s, and it did not end when told to (worker 1 was ended by SIG")
    assert 0 < end.gone[0].begun_us[beating] <= end.gone[0].begun_us[deaf]


def test_a_hung_task_is_killed_and_the_next_run_is_judged_by_its_own_start(make):
    end = make()
    hung = end.give("t.sleep", 1000, silence_us=500_000)
    end.until(lambda: end.gone, "the kill")
    assert (end.gone[0].started_token, end.gone[0].outcome) == (hung, Outcome.TIMED_OUT)
    assert "timed out: no heartbeat for 0.5 s: worker 1" in end.gone[0].text
    end.spawn()
    for _ in range(3):
        assert end.finish(end.give("t.sleep", 0.7, silence_us=2_000_000))[0][0] == Outcome.SUCCEEDED
    assert len(end.gone) == 1


def test_a_timeout_is_told_as_one_also_where_there_is_a_limit_of_silence(make):
    end = make()
    (ended,) = end.finish(end.give("t.beating", 0, 1000, timeout_us=500_000, silence_us=3_600 * US))
    assert (ended[0], ended[3]["message"]) == (Outcome.TIMED_OUT, "timed out after 0.5 s")


def test_any_run_of_a_batch_handler_speaks_for_the_call(make):
    end = make()
    ended = end.finish(*[end.give("t.batch_beating", n, silence_us=1_500_000) for n in range(3)])
    assert [e[0] for e in ended] == [Outcome.SUCCEEDED] * 3


@pytest.mark.parametrize("limit", ["timeout_us", "silence_us"])
def test_a_stopped_executor_is_ended_by_the_limits_of_its_run(make, tmp_path, limit):
    end, note = make(), tmp_path / "note"
    token = end.give("t.sleep", 1000, str(note), **{limit: 1_000_000})
    end.until(note.exists, "the start of the run")
    os.kill(end.executor.pid, signal.SIGSTOP)
    end.until(lambda: end.gone, "the kill")
    assert (end.gone[0].started_token, end.gone[0].outcome, end.gone[0].status) == (token, Outcome.TIMED_OUT, -signal.SIGKILL)


def test_an_executor_that_is_stopped_for_a_lease_gives_its_runs_back(make):
    """It was stopped before it entered anything, so that no timeout counts."""
    end = make(lease_us=1 * US)
    end.idle()
    pid = end.executor.pid
    os.kill(pid, signal.SIGSTOP)
    tokens = end.give_many(2, "t.add", 1)
    end.until(lambda: end.gone, "the kill")
    assert end.gone[0].started_token < tokens[0]
    assert "because it had been stopped for about a lease" in end.gone[0].text
    assert not alive(pid)


def test_an_executor_that_is_stopped_for_a_moment_goes_on(make, tmp_path):
    end, note = make(lease_us=6 * US), tmp_path / "note"
    token = end.give("t.sleep", 0.2, str(note))
    end.until(note.exists, "the start of the run")
    os.kill(end.executor.pid, signal.SIGSTOP)
    end.until(lambda: end.executor.stopped_us, "the look")
    os.kill(end.executor.pid, signal.SIGCONT)
    assert end.finish(token)[0][0] == Outcome.SUCCEEDED
    assert not end.gone


# Checkpoints


def test_a_checkpoint_is_sent_answered_and_read_back(make):
    end = make()
    (ended,) = end.finish(end.give("t.checkpoint", {"page": 7}))
    assert msgpack.unpackb(ended[3]["value"]) == [{"page": 6}, {"page": 7}]
    assert [(h["progress"], h["checkpoint"]) for h in end.heartbeats] == [([[0, "kept"]], [[0, msgpack.packb({"page": 7})]])]


@pytest.mark.parametrize(("refusal", "kind"), [("stale", "FencedError"), (StorageFullError("full"), "StorageFullError")])
def test_what_is_not_kept_is_an_error_of_the_run_and_of_nothing_else(make, refusal, kind):
    end = make()
    end.refusing = refusal
    (ended,) = end.finish(end.give("t.checkpoint", 1))
    assert ended[0] == Outcome.FAILED
    assert ended[3]["type"] == f"wheelsched.errors.{kind}"
    end.refusing = None
    (ended,) = end.finish(end.give("t.checkpoint", 1))
    assert ended[0] == Outcome.SUCCEEDED
    assert not end.gone

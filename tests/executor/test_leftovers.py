"""What a run that ended by itself leaves: processes that go with their worker process, or stay."""

from __future__ import annotations

import os
import signal

import pytest

from tests.rigs.executor import Scripted, alive, wait_for
from tests.rigs.places import TASK_MODULES
from wheelsched.model.nouns import Outcome
from wheelsched.process import processes


@pytest.fixture
def end(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", TASK_MODULES)
    made = Scripted(tmp_path, ["worker_tasks"], kill_grace_us=200_000)
    yield made
    made.close()


def pids(note):
    return [int(pid) for pid in note.read_text().split()]


@pytest.mark.parametrize("how", ["timeout", "crash", "stop"])
def test_f12_leftovers_live_as_long_as_their_worker_process_unless_in_a_session_of_their_own(end, tmp_path, how):
    helper, note = tmp_path / "helper", tmp_path / "note"
    assert end.finish(end.give("t.leaves", str(helper)))[0][0] == Outcome.SUCCEEDED
    assert end.finish(end.give("t.leaves", str(note)))[0][0] == Outcome.SUCCEEDED
    inside, apart = zip(pids(helper), pids(note), strict=True)
    try:
        assert all(map(alive, inside + apart)), "another run in the same process ends none of them"
        if how == "timeout":
            end.give("t.leaves", str(tmp_path / "other"), 1000, True, timeout_us=1_000_000)
        elif how == "crash":
            os.kill(end.executor.pid, signal.SIGKILL)
        else:
            end.pool.stop()
        if how != "stop":
            end.until(lambda: end.gone, "the end of the executor")
        wait_for(lambda: not any(map(alive, inside)), "the end of what is in its group")
        assert all(map(alive, apart))
    finally:
        for pid in apart:
            processes.signal_process(pid, signal.SIGKILL)

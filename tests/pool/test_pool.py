"""pool/pool.py: start, kill, prove, replace; with real executor processes."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import wheelsched
from tests.rigs.executor import BOOT, FIRST, HOUR_US, Scripted, alive, wait_for
from tests.rigs.places import TASK_MODULES, TESTS
from wheelsched.model.nouns import NEVER, Outcome
from wheelsched.pool.pool import Pool
from wheelsched.process import processes
from wheelsched.process.contract import Allowed
from wheelsched.process.leftovers import kill_former_generation

ROOT = str(Path(wheelsched.__file__).resolve().parents[1])


@pytest.fixture
def end(tmp_path, monkeypatch, request):
    """With 0.2 s of grace, or what a test asks for."""
    monkeypatch.setenv("PYTHONPATH", TASK_MODULES)
    made = Scripted(tmp_path, ["worker_tasks"], allow_commands=True, kill_grace_us=getattr(request, "param", 200_000))
    yield made
    made.close()


with_grace = pytest.mark.parametrize("end", [1_500_000], indirect=True)


def files(tmp_path):
    return sorted(p.name for p in (tmp_path / "workers").iterdir())


def test_the_started_file_tells_who_the_executor_is(end, tmp_path):
    end.idle()
    file = processes.StartedFile(tmp_path / "workers" / "5-1.started")
    words = file.words
    assert words[processes.W_PID] == words[processes.W_PGID] == end.executor.pid == os.getpgid(end.executor.pid)
    assert words[processes.W_BEGUN] == processes.begun_ticks(end.executor.pid) > 0
    assert (words[processes.W_GENERATION], words[processes.W_WORKER], file.boot_id) == (5, 1, BOOT)
    assert words[processes.W_STARTED] == 0
    assert os.getsid(end.executor.pid) != os.getsid(0)


def test_an_executor_inherits_no_descriptor(end, tmp_path):
    secret = os.open(tmp_path, os.O_RDONLY)
    os.set_inheritable(secret, True)
    end.idle()
    links = {str(fd.readlink()) for fd in Path(f"/proc/{end.executor.pid}/fd").iterdir() if int(fd.name) > 2}
    os.close(secret)
    assert str(tmp_path) not in links
    assert sum(link.startswith("socket:") for link in links) == 2, "the one to the server, and the one that its stacks are asked over"


def test_kill_mid_run_proves_what_was_started(end, tmp_path):
    note = tmp_path / "note"
    done = end.give("t.add", 1)
    inside, behind = end.give("t.sleep", 1000, str(note)), end.give_many(3, "t.add", 1)
    end.until(note.exists, "the start of the run")
    assert end.pool.running() == {inside: 1}
    os.kill(end.executor.pid, signal.SIGKILL)
    end.until(lambda: end.gone, "the exit")
    gone = end.gone[0]
    assert (gone.worker, gone.started_token, gone.outcome, gone.status) == (1, inside, Outcome.LOST, -9)
    assert "was killed by SIGKILL" in gone.text
    assert not gone.errors, "nobody has ended it: it was lost, as the text says"
    assert list(gone.begun_us) == [inside]
    assert done <= gone.started_token < behind[0]
    assert files(tmp_path) == []


@pytest.mark.parametrize(("how", "status"), [("exit", 9), ("crash", -11)])
def test_a_run_that_ends_the_process(end, how, status):
    token = end.give("t.die", how)
    end.until(lambda: end.gone, "the exit")
    assert (end.gone[0].started_token, end.gone[0].outcome, end.gone[0].status) == (token, Outcome.LOST, status)


def test_the_pool_s_descriptor_tells_of_a_death(end):
    end.idle()
    os.kill(end.executor.pid, signal.SIGKILL)
    poll = select.poll()
    poll.register(end.pool.fileno(), select.POLLIN)
    assert poll.poll(30_000)
    assert [e.worker for e in end.pool.poll(0)] == [1]
    assert not poll.poll(0)


def test_a_timeout_kills_the_group_with_the_grandchild(end, tmp_path):
    """Cases timeout-01 and -02: the grandchild holds stdout open and ignores SIGTERM."""
    note = tmp_path / "note"
    token = end.give("t.grandchild", str(note), ignore_term=True, timeout_us=2_000_000)
    end.until(note.exists, "the grandchild")
    pids = [int(p) for p in note.read_text().split()]
    assert all(alive(p) for p in pids)
    end.until(lambda: end.gone, "the kill")
    assert (end.gone[0].started_token, end.gone[0].outcome) == (token, Outcome.TIMED_OUT)
    wait_for(lambda: not any(alive(p) for p in pids), "the end of the group", 1)


def test_the_clock_of_a_timeout_starts_with_user_code(end):
    """Two runs of 0.6 s with a timeout of 1 s each: waiting behind the first is no part of the second."""
    ended = end.finish(*end.give_many(2, "t.sleep", 0.6, timeout_us=1_000_000))
    assert Outcome.TIMED_OUT not in [e[0] for e in ended]
    assert not end.gone


@with_grace
def test_a_timed_out_command_leaves_its_executor_alone(end, tmp_path):
    note = tmp_path / "note"
    script = f"trap '' TERM; echo before; sleep 1000 & echo $! >{note}; wait; wait; sleep 1000"
    token = end.give("command", ["/bin/sh", "-c", script], timeout_us=700_000)
    ended = end.finish(token)[0]
    assert ended[0] == Outcome.TIMED_OUT
    assert ended[3]["stdout"] == b"before\n"
    assert ended[3]["type"] == "wheelsched.TimedOut"
    assert not end.gone
    wait_for(lambda: not alive(int(note.read_text())), "the end of the group", 1)
    assert end.finish(end.give("t.add", 1))[0][0] == Outcome.SUCCEEDED


def test_a_stopped_executor_is_killed_at_the_timeout(end, tmp_path):
    note = tmp_path / "note"
    token = end.give("t.sleep", 1000, str(note), timeout_us=600_000)
    end.until(note.exists, "the start of the run")
    os.kill(end.executor.pid, signal.SIGSTOP)
    end.until(lambda: end.gone, "the kill")
    assert (end.gone[0].started_token, end.gone[0].outcome, end.gone[0].status) == (token, Outcome.TIMED_OUT, -9)
    text = "ran longer than its timeout of 600ms and did not end when told to (worker 1 was ended by SIGKILL)"
    assert end.gone[0].errors == {token: {"type": "wheelsched.TimedOut", "message": text}}


def test_a_timeout_of_a_batch_handler(end):
    """The smallest in it counts, and all of it counts as entered."""
    tokens = [end.give("t.batch_stuck", i, timeout_us=t) for i, t in enumerate((HOUR_US, 500_000, HOUR_US))]
    end.until(lambda: end.gone, "the kill")
    assert (end.gone[0].started_token, end.gone[0].outcome) == (tokens[-1], Outcome.TIMED_OUT)
    assert end.gone[0].errors[tokens[-1]]["message"].startswith("ran longer than the shortest timeout in its batch, 500ms, and did not end ")
    assert [end.gone[0].call_of(token) for token in (*tokens, tokens[-1] + 1)] == [tokens[-1]] * 3 + [0]


def test_cooperative_cancel(end, tmp_path):
    token = end.give("t.polite", 1000)
    end.until(lambda: end.pool.running() == {token: 1}, "the start of the run")
    end.pool.cancel(1, token)
    assert end.finish(token)[0][0] == Outcome.CANCELLED
    assert not end.gone
    assert end.finish(end.give("t.polite", 0))[0][0] == Outcome.SUCCEEDED


def test_cancel_of_a_deaf_run_kills(end, tmp_path):
    note = tmp_path / "note"
    token = end.give("t.sleep", 1000, str(note))
    end.until(note.exists, "the start of the run")
    end.pool.cancel(1, token)
    end.until(lambda: end.gone, "the kill")
    assert (end.gone[0].started_token, end.gone[0].outcome, end.gone[0].status) == (token, Outcome.CANCELLED, -15)
    text = "did not end when told to (worker 1 was ended by SIGTERM)"
    assert end.gone[0].errors == {token: {"type": "wheelsched.Cancelled", "message": text}}


def test_a_cancelled_request_is_not_asked_first(tmp_path):
    """It could not heed it. With so much grace the test would fail if it were; a timeout the task keeps by itself."""
    pytest.importorskip("urllib3", reason="urllib3 is not installed")
    end = Scripted(tmp_path, allowed=Allowed(http=True, http_nets=("127.0.0.0/8",)), kill_grace_us=300_000_000)
    try:
        with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
            first, second = (f"http://127.0.0.1:{server.getsockname()[1]}/" for server in (one, other))
            assert end.finish(end.give("http", "GET", first, timeout_us=500_000))[0][0] == Outcome.TIMED_OUT
            assert not end.gone
            token = end.give("http", "GET", second)
            poll = select.poll()
            poll.register(other, select.POLLIN)
            end.until(lambda: poll.poll(0), "the request")
            end.pool.cancel(1, token)
            end.until(lambda: end.gone, "the end")
        assert (end.gone[0].started_token, end.gone[0].outcome, end.gone[0].status) == (token, Outcome.CANCELLED, -15)
    finally:
        end.close()


@pytest.mark.parametrize("task", ["t.sleep", "t.batch"])
def test_cancel_before_the_start_keeps_user_code_out(end, tmp_path, task):
    note = tmp_path / "note"
    end.idle()
    first = end.next_token
    end.pool.cancel(1, first + 1)
    args = [(0,), (0, str(note)), (0,)] if task == "t.sleep" else [(1,), (3,), (2,)]
    ended = end.finish(*[end.give(task, *a) for a in args])
    assert [e[0] for e in ended] == [Outcome.SUCCEEDED, Outcome.CANCELLED, Outcome.SUCCEEDED]
    assert ended[1][3] is None
    assert not note.exists()
    assert end.finish(end.give("t.add", 1))[0][0] == Outcome.SUCCEEDED


def test_the_cancel_of_one_run_leaves_a_batch_handler_alone(end):
    tokens = [end.give("t.batch_slow") for _ in range(3)]
    end.until(lambda: end.pool.running() == {tokens[-1]: 1}, "the start of the handler")
    end.pool.cancel(1, tokens[1])
    end.pool.cancel(1, tokens[2])
    assert [e[0] for e in end.finish(*tokens)] == [Outcome.SUCCEEDED] * 3
    assert not end.gone
    assert end.finish(end.give("t.add", 1))[0][0] == Outcome.SUCCEEDED


def test_a_timeout_tells_all_runs_of_a_batch_handler(end):
    tokens = [end.give("t.batch_polite", timeout_us=300_000) for _ in range(3)]
    ended = end.finish(*tokens)
    assert [e[0] for e in ended] == [Outcome.TIMED_OUT] * 3
    assert [e[3]["type"] for e in ended] == ["wheelsched.TimedOut"] * 3
    assert not end.gone


@with_grace
def test_what_a_command_s_leader_leaves_is_killed_too(end, tmp_path):
    """The leader heeds SIGTERM, its child doesn't and holds the pipes."""
    note = tmp_path / "note"
    script = f"(trap '' TERM; sleep 1000; sleep 1000) & echo $! >{note}; wait"
    ended = end.finish(end.give("command", ["/bin/sh", "-c", script], timeout_us=500_000))[0]
    assert ended[0] == Outcome.TIMED_OUT
    wait_for(lambda: not alive(int(note.read_text())), "the end of the group", 2)


def pids(note):
    return [int(p) for p in note.read_text().split()]


@pytest.mark.parametrize("how", ["timeout", "cancel"])
def test_what_a_run_that_goes_when_told_leaves_is_killed(end, tmp_path, how):
    """And what an earlier run has started, which ended in its own time, is left alone."""
    helper, note = tmp_path / "helper", tmp_path / "note"
    assert end.finish(end.give("t.leaves", str(helper)))[0][0] == Outcome.SUCCEEDED
    token = end.give("t.leaves", str(note), 1000, timeout_us=1_000_000 if how == "timeout" else HOUR_US)
    end.until(lambda: note.exists() and note.read_text(), "the start of the run")
    if how == "cancel":
        end.pool.cancel(1, token)
    assert end.finish(token)[0][0] == (Outcome.TIMED_OUT if how == "timeout" else Outcome.CANCELLED)
    wait_for(lambda: not any(map(alive, pids(note))), "the end of its children")
    try:
        assert all(map(alive, pids(helper)))
        assert not end.gone
    finally:
        os.kill(pids(helper)[1], signal.SIGKILL)
    end.pool.stop()
    wait_for(lambda: not any(map(alive, pids(helper))), "the end of the other one, with its group")


@pytest.mark.parametrize("how", ["timeout", "crash", "stop"])
def test_what_a_run_that_is_ended_with_its_executor_leaves_is_killed(end, tmp_path, how):
    note = tmp_path / "note"
    end.give("t.leaves", str(note), 1000, True, timeout_us=1_000_000 if how == "timeout" else HOUR_US)
    end.until(lambda: note.exists() and note.read_text(), "the start of the run")
    if how == "crash":
        os.kill(end.executor.pid, signal.SIGKILL)
    if how == "stop":
        end.pool.stop()
    else:
        end.until(lambda: end.gone, "the end of the executor")
    wait_for(lambda: not any(map(alive, pids(note))), "the end of its children")


@with_grace
def test_what_leaves_a_command_s_group_is_killed_too(end, tmp_path):
    """A background process of a command that ended by itself lives on; one of a command that was ended does not."""
    helper, note = tmp_path / "helper", tmp_path / "note"
    script = "setsid /bin/sh -c 'echo $$ >\"$0\"; exec sleep 1000' \"$0\" & while [ ! -s \"$0\" ]; do sleep 0.05; done"
    assert end.finish(end.give("command", ["/bin/sh", "-c", script, str(helper)]))[0][0] == Outcome.SUCCEEDED
    try:
        token = end.give("command", ["/bin/sh", "-c", f"{script}; sleep 1000", str(note)])
        end.until(lambda: note.exists() and note.read_text(), "the start of the child")
        end.pool.cancel(1, token)
        assert end.finish(token)[0][0] == Outcome.CANCELLED
        wait_for(lambda: not any(map(alive, pids(note))), "the end of the child")
        assert all(map(alive, pids(helper)))
        assert not end.gone
    finally:
        os.kill(pids(helper)[0], signal.SIGKILL)


@with_grace
@pytest.mark.parametrize("how", ["timeout", "stop"])
def test_children_have_their_time_after_sigterm_though_the_executor_dies_of_it(end, tmp_path, how):
    note = tmp_path / "note"
    end.give("t.tidy_child", str(note), timeout_us=500_000 if how == "timeout" else HOUR_US)
    end.until(lambda: note.exists() and note.read_text(), "the start of the child")
    gone = end.pool.stop() if how == "stop" else end.until(lambda: end.gone, "the kill") or end.gone
    assert gone[0].outcome == (Outcome.INTERRUPTED if how == "stop" else Outcome.TIMED_OUT)
    pid, *said = note.read_text().split()
    assert said == ["tidied"]
    assert not alive(int(pid))
    assert end.pool.wake_at_mono_us() == NEVER


def test_nothing_held_means_no_wake(end):
    end.idle()
    assert end.pool.wake_at_mono_us() == NEVER
    token = end.give("t.sleep", 0.3, timeout_us=HOUR_US)
    end.until(end.pool.running, "the start")
    end.pool.poll(time.monotonic_ns() // 1_000)
    left = end.pool.wake_at_mono_us() - time.monotonic_ns() // 1_000
    assert 0 < left <= 3_000_000, "its timeout is far, but it is looked at whether it is stopped"
    end.finish(token)
    end.until(lambda: end.pool.wake_at_mono_us() == NEVER, "quiet")


def test_early_deaths_are_backed_off(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", TASK_MODULES)
    pool = Pool(workers_dir=tmp_path / "workers", modules=["no_such_module_here"], generation=1, boot_id=BOOT)
    waits = []
    try:
        for worker in range(1, 5):
            before = time.monotonic_ns() // 1_000
            executor = pool.spawn(worker, before)
            waits.append(0 if executor.pid else pool.wake_at_mono_us() - before)
            pool.poll(before + waits[-1])  # as if the time had passed
            assert executor.pid
            poll = select.poll()
            poll.register(pool.fileno(), select.POLLIN)
            assert poll.poll(30_000)
            assert [e.can_not_import for e in pool.poll(before)] == [True]
            executor.sock.close()
        executor = pool.spawn(5, at_once=True)
        assert executor.pid
        executor.sock.close()
    finally:
        pool.stop()
        pool.close()
    assert waits == [0, 0, 100_000, 200_000]


def test_stop_tells_what_was_entered(end, tmp_path):
    note = tmp_path / "note"
    token = end.give("t.sleep", 1000, str(note))
    end.until(note.exists, "the start of the run")
    pid = end.executor.pid
    assert [(e.worker, e.started_token, e.outcome) for e in end.pool.stop()] == [(1, token, Outcome.INTERRUPTED)]
    assert not alive(pid)
    assert files(tmp_path) == []


def proofs(folder):
    """{worker: token entered last}."""
    return {worker: proof.started for worker, proof in kill_former_generation(folder, 6, BOOT).items()}


def leave_behind(tmp_path, *give):
    """A server of generation 5 that is killed while its executor is inside a run; returns when it is dead."""
    code = (
        f"import sys, os; sys.path[:0] = [{TASK_MODULES!r}, {ROOT!r}, {str(TESTS.parent)!r}]\n"
        "from pathlib import Path; from tests.rigs.executor import Scripted\n"
        f"end = Scripted(Path({str(tmp_path)!r}), ['worker_tasks'], allow_commands=True)\n"
        f"end.give(*{give!r}); end.give('t.add', 1)\n"
        f"end.until(Path({str(tmp_path / 'note')!r}).exists)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    env = {**os.environ, "PYTHONPATH": TASK_MODULES}
    done = subprocess.run([sys.executable, "-c", code], timeout=60, check=False, env=env, capture_output=True)
    assert done.returncode == -9, done.stderr.decode()
    return [int(p) for p in (tmp_path / "note").read_text().split()]


def test_a_start_kills_what_the_former_generation_left(tmp_path):
    pids = leave_behind(tmp_path, "t.grandchild", str(tmp_path / "note"), True)
    assert all(alive(p) for p in pids)  # the executor died with its parent, its children did not
    assert proofs(tmp_path / "workers") == {1: FIRST + 1}
    assert not any(alive(p) for p in pids)
    assert files(tmp_path) == []


def test_a_start_kills_commands_of_the_former_generation(tmp_path):
    script = f"trap '' TERM; sleep 1000 & echo $! $$ >{tmp_path}/note.tmp; mv {tmp_path}/note.tmp {tmp_path}/note; wait"
    pids = leave_behind(tmp_path, "command", ["/bin/sh", "-c", script])
    assert all(alive(p) for p in pids)
    assert proofs(tmp_path / "workers") == {1: FIRST + 1}
    assert not any(alive(p) for p in pids)


@pytest.fixture
def stranger():
    proc = subprocess.Popen(["/bin/sleep", "1000"], start_new_session=True)
    yield proc
    proc.kill()
    proc.wait()


def record(tmp_path, *, pid, begun, generation=5, boot=BOOT):
    (tmp_path / "workers").mkdir(exist_ok=True)
    file = processes.StartedFile(tmp_path / "workers" / f"{generation}-1.started", create=True)
    for word, value in (
        (processes.W_GENERATION, generation), (processes.W_WORKER, 1), (processes.W_PID, pid), (processes.W_PGID, pid), (processes.W_BEGUN, begun),
        (processes.W_STARTED, FIRST), (processes.W_MARK, 99), (processes.W_COMMAND, FIRST), (processes.W_COMMAND_PGID, pid),
        (processes.W_COMMAND_BEGUN, begun),
    ):
        file.words[word] = value
    file.boot_id = boot
    file.close()


def leaderless(mark):
    """A group whose leader is gone for good: (its number, its member)."""
    env = {**os.environ, processes.MARK: mark}
    script = "sleep 1000 >/dev/null 2>&1 & echo $!"
    with subprocess.Popen(["/bin/sh", "-c", script], start_new_session=True, stdout=subprocess.PIPE, env=env) as proc:
        member = int(proc.stdout.readline())
        proc.wait()
    assert alive(member)
    return proc.pid, member


def test_a_group_without_its_leader_is_known_by_the_mark(tmp_path):
    pgid, member = leaderless("5.1.0000000000000063")
    record(tmp_path, pid=pgid, begun=1)
    assert proofs(tmp_path / "workers") == {1: FIRST}
    assert not alive(member)


def test_a_stranger_s_group_without_its_leader_lives(tmp_path):
    pgid, member = leaderless("5.1.0000000000000064")
    try:
        record(tmp_path, pid=pgid, begun=1)
        assert proofs(tmp_path / "workers") == {1: FIRST}
        assert alive(member)
    finally:
        os.kill(member, signal.SIGKILL)


def test_a_stranger_with_the_same_number_lives(tmp_path, stranger):
    record(tmp_path, pid=stranger.pid, begun=processes.begun_ticks(stranger.pid) - 1)
    assert proofs(tmp_path / "workers") == {1: FIRST}
    assert stranger.poll() is None
    assert files(tmp_path) == []


def test_another_boot_proves_nothing_and_kills_nothing(tmp_path, stranger):
    record(tmp_path, pid=stranger.pid, begun=processes.begun_ticks(stranger.pid), boot="0" * 36)
    assert proofs(tmp_path / "workers") == {}
    assert stranger.poll() is None
    assert files(tmp_path) == []


def test_the_own_generation_is_left_alone(tmp_path, stranger):
    record(tmp_path, pid=stranger.pid, begun=processes.begun_ticks(stranger.pid), generation=6)
    assert proofs(tmp_path / "workers") == {}
    assert stranger.poll() is None
    assert len(files(tmp_path)) == 1


def test_a_torn_started_file_is_removed(tmp_path):
    (tmp_path / "workers").mkdir()
    (tmp_path / "workers" / "5-1.started").write_bytes(b"half")
    (tmp_path / "workers" / "5-2.started").write_bytes(bytes(processes.FILE_BYTES))
    assert proofs(tmp_path / "workers") == {}
    assert files(tmp_path) == []
    assert proofs(tmp_path / "nowhere") == {}


def test_what_is_held_is_kept_account_of(end):
    end.idle()
    hold = end.pool.executors[1]
    tokens = np.arange(FIRST + 1, FIRST + 9, dtype=np.int64)
    end.pool.sent(1, tokens[:5], np.array([5, 4, 3, 2, 9], np.int64) * 1_000_000)
    end.pool.sent(1, tokens[5:], np.array([7, 8, 6], np.int64) * 1_000_000)
    assert hold.least_waiting(0) == 2_000_000
    assert hold.least_waiting(FIRST + 4) == 6_000_000
    assert hold.least_waiting(FIRST + 8) == NEVER
    assert hold.limits_of(FIRST + 2) == (4_000_000, NEVER)
    assert hold.limits_of(FIRST + 7, FIRST + 5)[0] == 7_000_000
    end.pool.finished(1, tokens[[0, 1, 2, 3, 5]])
    assert len(hold.held) == 2
    end.pool.finished(1, tokens[[4]])
    assert len(hold.held) == 1
    end.pool.finished(1, tokens[6:])
    assert not hold.held
    end.pool.sent(99, tokens, tokens)  # a worker that is gone already
    end.pool.finished(99, tokens)
    end.pool.cancel(99, FIRST)

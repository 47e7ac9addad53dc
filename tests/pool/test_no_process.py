"""A process that can't be had: it can't be made, it hangs in its start, it is misused. One policy, in the pool and in `wheelsched worker`."""

from __future__ import annotations

import ctypes
import errno
import os
import re
import signal
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

import wheelsched
from tests.rigs.executor import BOOT, Scripted, alive, wait_for
from tests.rigs.places import TASK_MODULES
from wheelsched import Call, Retry
from wheelsched.cli.root import cli
from wheelsched.client.troubles import troubles
from wheelsched.model.nouns import NEVER, US, Outcome
from wheelsched.pool.pool import Pool
from wheelsched.process import launch
from wheelsched.process.starts import BACKOFF_MAX_US, Spare, Starts
from wheelsched.protocol import frames

ROOT = str(Path(wheelsched.__file__).resolve().parents[1])
WAYS = [
    (launch.subprocess, "Popen", errno.EAGAIN, "the limit of processes is reached"),
    (launch.subprocess, "Popen", errno.EMFILE, "raise the limit of open files"),
    (launch.socket, "socketpair", errno.EMFILE, "raise the limit of open files"),
    (launch.socket, "socketpair", errno.ENFILE, "the machine has no open file left"),
    (launch.os, "pidfd_open", errno.EMFILE, "raise the limit of open files"),
    (launch.os, "pidfd_open", errno.ENOMEM, "no memory is left"),
    (os, "posix_fallocate", errno.ENOSPC, "free some space there"),
    (os, "posix_fallocate", errno.EDQUOT, "free some space there"),
    (os, "posix_fallocate", errno.EIO, "Input/output error"),
]


def open_descriptors():
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.parametrize(("module", "name", "number", "told"), WAYS)
def test_f3_a_process_that_can_not_be_made_is_waited_for(tmp_path, monkeypatch, module, name, number, told):
    """F4 with ENOSPC. Nothing is left of a start that failed: no descriptor, no file, no process."""
    pool = Pool(workers_dir=tmp_path / "workers", modules=[], generation=1, boot_id=BOOT)
    before = open_descriptors()
    real, now = getattr(module, name), 1_000 * US

    def refuse(*args, **kwargs):
        raise OSError(number, os.strerror(number))

    try:
        monkeypatch.setattr(module, name, refuse)
        executor = pool.spawn(1, now)
        assert (executor.pid, pool.started(), pool.poll(now)) == (0, [], [])
        waits = []
        for _ in range(12):
            waits.append(pool.wake_at_mono_us() - now)
            now += waits[-1]
            assert pool.poll(now) == []
        assert waits[1:4] == [100_000, 200_000, 400_000]
        assert waits[-1] == BACKOFF_MAX_US
        first, *others = pool.starts.lines()
        assert first.startswith("worker 1 can't be started: ")
        assert told in first
        assert [line.rpartition(": ")[2] for line in others] == [f"again ({n})" for n in range(2, len(others) + 2)]
        assert pool.starts.failure() == {"text": first.partition(": ")[2], "tries": len(others) + 1}
        assert open_descriptors() == before
        assert list((tmp_path / "workers").iterdir()) == []
        monkeypatch.setattr(module, name, real)
        pool.poll(now + BACKOFF_MAX_US)
        assert pool.started() == [executor]
        assert executor.pid
        assert pool.began(1)
        assert pool.starts.lines()[-1] == f"workers start again, after {len(others) + 1} tries that failed"
        assert pool.starts.failure() is None
        executor.sock.close()
    finally:
        pool.stop()
        pool.close()


def test_f3_an_interpreter_that_is_gone_is_named(tmp_path, monkeypatch):
    pool = Pool(workers_dir=tmp_path / "workers", modules=[], generation=1, boot_id=BOOT)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no-python"))
    try:
        pool.spawn(1)
        assert f"{tmp_path}/no-python: No such file or directory: the interpreter is gone" in pool.starts.failure()["text"]
        pool.spawn(2, at_once=True)
        (event,) = pool.poll(0)
        assert (event.worker, event.told) == (2, False), "of a newcomer of a reload it is an end, and nobody tries again"
        assert "the interpreter is gone" in event.text
    finally:
        pool.stop()
        pool.close()


def test_f3_descriptors_are_kept_for_ends_and_starts():
    spare = Spare(4)
    before = open_descriptors()
    with spare:
        assert open_descriptors() == before - 4
        with spare:
            assert open_descriptors() == before - 4
        assert open_descriptors() == before - 4
    assert open_descriptors() == before
    spare.close()
    assert open_descriptors() == before - 4


def health(path):
    out = CliRunner().invoke(cli, ["--socket", path, "health"])
    return out.exit_code, out.stdout.strip()


def test_f3_without_descriptors_a_death_is_no_end_of_the_server(serving):
    """As with `ulimit -n 48`: idle connections take all that there are."""
    server = serving(workers=2, preexec=lambda: __import__("resource").setrlimit(__import__("resource").RLIMIT_NOFILE, (56, 56)))
    ws = server.client()
    assert ws.enqueue(Call("t.echo", 1)).result(timeout=60) == 1
    idle = [server.connect() for _ in range(60)]
    pids = [int(p) for p in Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children").read_text().split()]
    os.kill(pids[-1], signal.SIGKILL)
    wait_for(lambda: not alive(pids[-1]) and "was killed by SIGKILL" in server.log.read_text(), "the death")
    for sock in idle:
        sock.close()
    assert [ws.enqueue(Call("t.echo", n)).result(timeout=60) for n in range(3)] == [0, 1, 2]
    wait_for(lambda: [w["ready"] for w in ws.stats()["workers"]] == [True, True], "both workers", 60)
    assert server.process.poll() is None


@pytest.mark.parametrize("where", ["pool", "worker"])
def test_f3_a_server_and_a_worker_go_on_when_no_process_can_be_had(serving, short_tmp, where):
    """The interpreter goes away and comes back."""
    python, away = short_tmp / "python", short_tmp / "away"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    code = (
        f"import sys; sys.path[:0] = [{TASK_MODULES!r}, {ROOT!r}]; sys.executable = {str(python)!r}\n"
        + ("from wheelsched.cli import main; main()" if where == "pool" else
           "from wheelsched.pool.supervisor import Supervisor; sys.exit(Supervisor(sys.argv[1], ['worker_tasks']).run())")
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(short_tmp), TASK_MODULES, ROOT]), "TMPDIR": str(short_tmp)}
    path = str(short_tmp / "s")
    if where == "pool":
        argv = ["serve", "--data", str(short_tmp / "data"), "--socket", path, "--workers", "1", "--tasks", "worker_tasks"]
    else:
        serving(workers=0).client()
        argv = [path]
    log = short_tmp / "log2"
    with log.open("wb") as file:
        main = subprocess.Popen([sys.executable, "-c", code, *argv], env=env, stdin=subprocess.DEVNULL, stderr=file)
    try:
        wait_for(lambda: Path(path).exists(), "the socket")
        with wheelsched.Client(path) as ws:
            assert ws.enqueue(Call("t.add", 1)).result(timeout=60) == 2
            python.rename(away)
            pid = int(Path(f"/proc/{main.pid}/task/{main.pid}/children").read_text().split()[0])
            os.kill(pid, signal.SIGKILL)
            wait_for(lambda: "the interpreter is gone" in log.read_text(), "the words", 60)
            wait_for(lambda: ": again (2)" in log.read_text(), "another try", 60)
            if where == "pool":
                code_, said = health(path)
                assert code_ == 1
                assert said.startswith("workers can't start: ")
            away.rename(python)
            assert ws.enqueue(Call("t.add", 5)).result(timeout=60) == 6
        assert "workers start again, after " in log.read_text()
        main.send_signal(signal.SIGTERM)
        assert main.wait(60) == 0
    finally:
        main.kill()
        main.wait()


HANGS = """
import os, time
from wheelsched import on_start, task
@task("h.echo")
def echo(x): return x
@on_start
def start():
    if os.path.exists("{hang}"):
        os.unlink("{hang}")
        time.sleep(10**6)
"""


@pytest.mark.parametrize("where", ["pool", "worker"])
def test_s4_an_executor_that_hangs_in_its_start_is_replaced(serving, short_tmp, where):
    hang = short_tmp / "hang"
    (short_tmp / "hangs.py").write_text(HANGS.format(hang=hang))
    flags = ("--tasks", "hangs", "--max-runs", "1", "--start-timeout", "2s")
    server = serving(*(flags if where == "pool" else ()), workers=int(where == "pool"))
    ws, log = server.client(), server.log
    if where == "worker":
        log = short_tmp / "log2"
        env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(short_tmp), ROOT]), "TMPDIR": str(short_tmp)}
        with log.open("wb") as file:
            worker = subprocess.Popen([sys.executable, "-m", "wheelsched", "--socket", server.socket, "worker", *flags], env=env, stderr=file)
    try:
        assert ws.enqueue(Call("h.echo", 1)).result(timeout=60) == 1
        hang.touch()
        assert ws.enqueue(Call("h.echo", 2)).result(timeout=60) == 2
        wait_for(lambda: not hang.exists(), "a start that hangs")
        assert ws.enqueue(Call("h.echo", 3)).result(timeout=60) == 3
        assert "because it had not said hello after 2s: its imports, or its on_start, hang" in log.read_text()
        assert re.search(r"workers start again, after (1 try|\d+ tries) that failed", log.read_text())  # a slow machine's start may take 2 s
    finally:
        if where == "worker":
            worker.kill()
            worker.wait()


def test_s4_a_start_that_hangs_is_told_before_it_is_ended():
    starts = Starts(60 * US)
    starts.launched(4, 100)
    assert starts.wake_us == 100 + 5 * US
    assert starts.overdue(starts.wake_us) == []
    assert starts.lines() == ["waiting for worker 4: importing, or in its on_start; it is ended 1m after its start"]
    assert starts.slow(12 * US + 100) == [{"worker": 4, "us": 12 * US}]
    stats = {"draining": False, "storage": {"state": "ok"}, "queued": 0, "workers": [{"ready": True}], "unserved_tasks": {}}
    assert troubles({**stats, "slow_starts": starts.slow(12 * US + 100)}) == ["worker 4 has not come up for 12 s: importing, or in its on_start"]
    assert starts.wake_us == 100 + 60 * US
    assert starts.overdue(100 + 60 * US) == [4]
    assert (starts.wake_us, starts.slow(70 * US)) == (NEVER, [])


def test_w14_workers_start_again_only_if_one_did():
    starts = Starts()
    starts.failed(1, "worker 1 (pid 9) ended with exit code 1")
    starts.settled()  # as when a reload made do with the others
    assert starts.lines() == ["worker 1 (pid 9) ended with exit code 1"]
    assert starts.failure() is None
    starts.failed(2, "worker 2 (pid 9) ended with exit code 1")
    starts.launched(3, 0)
    assert starts.began(3)
    assert not starts.began(3)
    starts.settled()
    assert starts.lines()[1:] == ["workers start again, after 1 try that failed"]


# User code against its own executor

HELLO = frames.encode_request(999, "hello", {"version": frames.VERSION, "role": "worker", "name": "x", "tasks": {}})
MISUSES = [
    (struct.pack(">I", 64 * 1024 * 1024) + b"x", "frame"),
    (HELLO, "it said hello a second time"),
    (frames.encode_request(998, "stats", {}), "it asked for 'stats', as no executor does"),
    (struct.pack(">I", 3) + b"\xc1\xc1\xc1", ""),
]


@pytest.mark.parametrize("where", ["pool", "worker"])
def test_t12_what_user_code_writes_to_its_executor_s_socket_ends_that_executor(serving, short_tmp, where):
    server = serving(*(("--tasks", "misuse_tasks") if where == "pool" else ()), workers=int(where == "pool"), paths=[TASK_MODULES])
    ws, log = server.client(), server.log
    if where == "worker":
        log = short_tmp / "log2"
        env = {**os.environ, "PYTHONPATH": os.pathsep.join([TASK_MODULES, ROOT]), "TMPDIR": str(short_tmp)}
        with log.open("wb") as file:
            worker = subprocess.Popen([sys.executable, "-m", "wheelsched", "--socket", server.socket, "worker", "--tasks", "misuse_tasks"], env=env, stderr=file)
    try:
        for data, why in MISUSES:
            run = ws.enqueue(Call("misuse.own_socket", data), retry=Retry(attempts=1))
            wait_for(lambda run=run: run.refresh().state == "dead", "the end of the executor")
            assert [a.outcome for a in run.attempts] == ["lost"]
            assert why in run.error.message
            assert "user code has written to its socket" in run.error.message
            assert run.error.message in log.read_text()
        assert ws.enqueue(Call("misuse.nothing")).result(timeout=60) is None
        assert server.process.poll() is None
    finally:
        if where == "worker":
            worker.kill()
            worker.wait()


@pytest.fixture
def end(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", TASK_MODULES)
    made = Scripted(tmp_path, ["misuse_tasks"], lease_us=1_000_000)
    yield made
    made.close()


@pytest.mark.parametrize("size", [0, 100, 4_096])
def test_t12_a_started_file_that_is_cut_short_ends_its_executor_alone(end, size):
    end.idle()
    token = end.give("misuse.cut_started_file", size)
    end.until(lambda: end.gone, "the end of the executor")
    event = end.gone[0]
    assert event.started_token is None, "nobody knows what was started, so all of it was"
    assert re.search(r"because its started file was cut short|SIGBUS", event.text)
    assert event.outcomes.get(token, Outcome.LOST) == Outcome.LOST
    end.gone.clear()
    end.spawn()
    assert end.finish(end.give("misuse.nothing"))[0][0] == Outcome.SUCCEEDED


def subreaper():
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER; PID 1 of a container is one by nature


@pytest.mark.parametrize("where", ["pool", "worker"])
def test_f8_orphans_that_come_to_us_are_reaped(serving, short_tmp, where):
    server = serving("--allow-commands", workers=int(where == "pool"), preexec=subreaper)
    ws, main = server.client(), server.process
    if where == "worker":
        argv = [sys.executable, "-m", "wheelsched", "--socket", server.socket, "worker", "--tasks", "misuse_tasks", "--allow-commands"]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join([TASK_MODULES, ROOT]), "TMPDIR": str(short_tmp)}
        main = subprocess.Popen(argv, env=env, preexec_fn=subreaper)
    try:
        notes = [short_tmp / f"pid{n}" for n in range(3)]
        for note in notes:
            script = f"(sleep 0.3; exit 3) & echo $! >{note}"
            assert ws.enqueue(Call("command", ["/bin/sh", "-c", script])).result(timeout=60) == 0
        pids = [int(note.read_text()) for note in notes]
        wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), "the end of the orphans, zombies included")
        assert ws.enqueue(Call("command", ["/bin/true"])).result(timeout=60) == 0
        assert main.poll() is None
    finally:
        if where == "worker":
            main.kill()
            main.wait()


CODE = "from wheelsched import task\n@task('w.version')\ndef version():\n    return {}\n"


@pytest.mark.slow
def test_w9_and_w4_a_worker_waits_for_its_server_and_reloads_at_sighup(serving, short_tmp):
    module, log, path = short_tmp / "w4tasks.py", short_tmp / "log2", str(short_tmp / "s")
    module.write_text(CODE.format(1))
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(short_tmp), ROOT]), "TMPDIR": str(short_tmp), "PYTHONDONTWRITEBYTECODE": "1"}
    argv = [sys.executable, "-m", "wheelsched", "--socket", path, "worker", "--tasks", "w4tasks", "--concurrency", "2"]
    without = subprocess.run([*argv, "--no-wait"], env=env, capture_output=True, check=False, timeout=60)
    assert without.returncode == 5
    with log.open("wb") as file:
        worker = subprocess.Popen(argv, env=env, stderr=file)
    try:
        wait_for(lambda: "waiting for it" in log.read_text(), "the line")
        ws = serving(workers=0).client()
        assert ws.enqueue(Call("w.version")).result(timeout=60) == 1
        module.write_text(CODE.format(22))
        worker.send_signal(signal.SIGHUP)
        wait_for(lambda: "reload: 2 executors have the new code" in log.read_text(), "the reload", 60)
        assert {ws.enqueue(Call("w.version")).result(timeout=60) for _ in range(6)} == {22}
        wait_for(lambda: len(ws.stats()["workers"]) == 2, "the end of the old ones")
        module.write_text("1 / 0")
        worker.send_signal(signal.SIGHUP)
        wait_for(lambda: "reload: the old code goes on in 2 of 2 executors: " in log.read_text(), "the refusal", 60)
        assert ws.enqueue(Call("w.version")).result(timeout=60) == 22
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(60) == 0
    finally:
        worker.kill()
        worker.wait()

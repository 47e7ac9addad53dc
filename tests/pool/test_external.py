"""pool/supervisor.py: `wheelsched worker` against a real server, both as processes."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest

import wheelsched
from tests.rigs.client import HELLO, Peer
from tests.rigs.executor import alive, wait_for
from tests.rigs.places import TASK_MODULES
from wheelsched import Call, Client, UnavailableError
from wheelsched.model.nouns import Outcome

ROOT = str(Path(wheelsched.__file__).resolve().parents[1])
ENV = {**os.environ, "PYTHONPATH": os.pathsep.join([TASK_MODULES, ROOT])}


class World:
    """One server without a pool, and one external worker."""

    def __init__(self, folder):
        self.folder = folder
        self.socket = str(folder / "s")
        self.processes = []
        self.start_server()
        self.hire()

    def hire(self):
        code = (
            "import sys; from wheelsched.pool.supervisor import Supervisor; "
            "sys.exit(Supervisor(sys.argv[1], ['worker_tasks'], concurrency=2, queues=['default', 'sums']).run())"
        )
        self.worker = self._start(sys.executable, "-c", code, self.socket)

    def _start(self, *argv):
        self.processes.append(subprocess.Popen(argv, env={**ENV, "TMPDIR": str(self.folder)}, stdin=subprocess.DEVNULL))
        return self.processes[-1]

    def start_server(self):
        self.server = self._start(sys.executable, "-m", "wheelsched", "serve", "--data", str(self.folder / "d"), "--socket", self.socket, "--workers", "0")
        wait_for(self.answers, "the server")

    def answers(self):
        try:
            with Client(self.socket) as ws:
                ws.stats()
        except UnavailableError:
            return False
        return True

    def executors(self):
        path = Path(f"/proc/{self.worker.pid}/task/{self.worker.pid}/children")
        return [int(p) for p in re.findall(r"\d+", path.read_text())]

    def close(self):
        for process in reversed(self.processes):
            process.kill()
            process.wait()


@pytest.fixture
def world(short_tmp):
    made = World(short_tmp)
    yield made
    made.close()


def test_runs_are_executed_and_a_killed_executor_costs_one_attempt(world, tmp_path):
    note = tmp_path / "note"
    with Client(world.socket) as ws:
        assert ws.enqueue(Call("t.add", 2, b=3)).result(timeout=30) == 5
        run = ws.enqueue(Call("t.sleep", 1, str(note)), retry=wheelsched.Retry(attempts=2, backoff="10ms"))
        wait_for(lambda: note.exists() and note.read_text(), "the start of the run")
        os.kill(int(note.read_text()), signal.SIGKILL)
        assert run.result(timeout=30) == "slept"
        attempts = ws.run(run.id).attempts
        assert [a.outcome for a in attempts] == ["lost", "succeeded"]
        assert attempts[0].token < attempts[1].token


def test_a_timeout_is_enforced(world):
    with Client(world.socket) as ws:
        run = ws.enqueue(Call("t.sleep", 1000), timeout="500ms", retry=wheelsched.Retry(5, errors={"wheelsched.TimedOut": 1}))
        wait_for(lambda: ws.run(run.id).state == "dead", "the end of the run")
        assert [a.outcome for a in ws.run(run.id).attempts] == ["timed_out"]
        assert ws.run(run.id).error.message.startswith("ran longer than its timeout of 500ms and did not end when told to (worker ")
        assert ws.enqueue(Call("t.add", 1)).result(timeout=30) == 2


def test_a_hung_task_is_ended_by_the_heartbeat_timeout_of_its_decorator(world):
    with Client(world.socket) as ws:
        assert ws.enqueue(Call("t.add", 2, b=3)).result(timeout=30) == 5, "so that the worker has announced its tasks"
        run = ws.enqueue(Call("t.hangs"))
        wait_for(lambda: run.refresh().state == "dead", "the end of the run")
        assert [a.outcome for a in run.attempts] == ["timed_out"]
        assert run.error.type == "wheelsched.TimedOut"
        assert re.fullmatch(r"no heartbeat for 0\.5 s, and it did not end when told to \(worker \d+ was ended by SIG\w+\)", run.error.message)
        assert run.attempts[0].ended_at - run.attempts[0].started_at >= timedelta(milliseconds=500)


def test_a_cancel_reaches_the_run(world, tmp_path):
    note = tmp_path / "note"
    with Client(world.socket) as ws:
        run = ws.enqueue(Call("t.sleep", 1000, str(note)))
        wait_for(lambda: note.exists() and note.read_text(), "the start of the run")
        ws.cancel(run.id)
        wait_for(lambda: ws.run(run.id).state == "cancelled", "the cancel")
        wait_for(lambda: not alive(int(note.read_text())), "the end of the executor")


@pytest.mark.slow
def test_the_worker_outlives_the_server_and_drains_at_a_signal(world, tmp_path):
    over, note = tmp_path / "over", tmp_path / "note"
    with Client(world.socket) as ws:
        ws.enqueue(Call("t.add", 1)).result(timeout=30)
        held = ws.enqueue(Call("t.sleep", 0.3, None, str(over)))
        wait_for(lambda: ws.run(held.id).state == "running" or over.exists(), "the start of the run")
    world.server.kill()
    world.server.wait()
    wait_for(over.exists, "the end of the run, with no server there")
    world.start_server()
    with Client(world.socket) as ws:
        wait_for(lambda: ws.run(held.id).state == "succeeded", "the report of the run")
        assert [a.outcome for a in ws.run(held.id).attempts] == ["succeeded"]
        assert ws.enqueue(Call("t.add", 1)).result(timeout=30) == 2
        run = ws.enqueue(Call("t.sleep", 0.5, str(note)))
        wait_for(lambda: note.exists() and note.read_text(), "the start of the run")
        world.worker.send_signal(signal.SIGTERM)
        assert world.worker.wait(30) == 0
        assert run.result(timeout=30) == "slept"
        assert [a.outcome for a in ws.run(run.id).attempts] == ["succeeded"]


def test_a_drain_ends_when_its_time_is_over(world, tmp_path):
    """Its time is 30 s without the option, and the wait here is shorter."""
    note = tmp_path / "note"
    world.worker.kill()
    world.worker.wait()
    world.worker = world._start(sys.executable, "-m", "wheelsched", "worker", "--socket", world.socket, "--tasks", "worker_tasks", "--drain", "200ms")
    with Client(world.socket) as ws:
        run = ws.enqueue(Call("t.sleep", 1000, str(note)), retry=wheelsched.Retry(attempts=2, backoff="1h"))
        wait_for(lambda: note.exists() and note.read_text(), "the start of the run")
        world.worker.send_signal(signal.SIGTERM)
        assert world.worker.wait(25) == 0
        wait_for(lambda: ws.run(run.id).state == "retry_wait", "the report of the run")
        assert [a.outcome for a in ws.run(run.id).attempts] == ["interrupted"]


def test_a_drain_hands_back_what_is_granted_meanwhile(short_tmp):
    """Else a run that is granted to a worker that has just gone waits for the end of its lease, and has lost an attempt."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(short_tmp / "s"))
    listener.listen(1)
    listener.settimeout(60)
    code = "import sys; from wheelsched.pool.supervisor import Supervisor; sys.exit(Supervisor(sys.argv[1], ['worker_tasks']).run())"
    worker = subprocess.Popen([sys.executable, "-c", code, str(short_tmp / "s")], env={**ENV, "TMPDIR": str(short_tmp)}, stdin=subprocess.DEVNULL)
    try:
        peer = Peer(listener.accept()[0])
        peer.sock.settimeout(60)
        peer.ok(peer.read(), {**HELLO, "worker": 1, "lease_us": 600_000_000, "heartbeat_us": 600_000_000})
        lease = peer.read()
        assert lease.verb == "lease"
        worker.send_signal(signal.SIGTERM)
        withdrawn = peer.read()
        assert (withdrawn.verb, withdrawn.args["credits"]) == ("lease", 0)
        peer.ok(lease, {"n": 1, "id": b"r" * 16, "token": (5).to_bytes(8, "little")})  # granted before that came
        peer.ok(withdrawn, {"n": 0, "stop": False})
        back = peer.read()
        assert (back.verb, back.args["id"], back.args["outcome"]) == ("finish", b"r" * 16, bytes([Outcome.NOT_STARTED]))
        peer.ok(back, {"verdict": b"\1"})
        assert worker.wait(60) == 0
        assert peer.read() is None
        peer.sock.close()
    finally:
        worker.kill()
        worker.wait()
        listener.close()


def test_executors_die_with_their_supervisor(world):
    with Client(world.socket) as ws:
        ws.enqueue(Call("t.add", 1)).result(timeout=30)
    pids = world.executors()
    assert len(pids) == 2
    world.worker.kill()
    world.worker.wait()
    wait_for(lambda: not any(alive(p) for p in pids), "the end of the executors")


@pytest.mark.slow
def test_the_next_worker_ends_what_a_killed_one_has_left(world, tmp_path):
    """The executor dies with its supervisor; the children of its run do not. A worker that lives is left alone."""
    note, over = tmp_path / "note", tmp_path / "over"
    with Client(world.socket) as ws:
        ws.enqueue(Call("t.grandchild", str(note), ignore_term=True), retry=1)
        wait_for(note.exists, "the grandchild")
        pids = [int(p) for p in note.read_text().split()]
        world.worker.kill()
        world.worker.wait()
        (left,) = world.folder.glob("wheelsched-worker-*")
        assert all(map(alive, pids))
        world.hire()
        wait_for(lambda: not any(map(alive, pids)), "the end of what was left")
        wait_for(lambda: not left.exists(), "the end of the folder")
        held = ws.enqueue(Call("t.sleep", 3, None, str(over)), retry=1)
        wait_for(lambda: ws.run(held.id).state in ("leased", "running"), "the start of the run")
        world.hire()
        wait_for(lambda: len(list(world.folder.glob("wheelsched-worker-*/alive"))) == 2, "the third worker")
        assert held.result(timeout=30) == "slept"


@pytest.mark.slow
def test_a_lease_that_can_not_be_trusted_ends_the_run(world, tmp_path):
    """The server hangs for longer than a lease: user code is ended before another worker could be given the run."""
    note = tmp_path / "note"
    with Client(world.socket) as ws:
        run = ws.enqueue(Call("t.sleep", 1000, str(note)), retry=wheelsched.Retry(attempts=1))
        wait_for(lambda: note.exists() and note.read_text(), "the start of the run")
        world.server.send_signal(signal.SIGSTOP)
        try:
            wait_for(lambda: not alive(int(note.read_text())), "the end of user code", 15)
        finally:
            world.server.send_signal(signal.SIGCONT)
        wait_for(lambda: ws.run(run.id).state == "dead", "the end of the run")
        assert [a.outcome for a in ws.run(run.id).attempts] == ["lost"]


@pytest.mark.slow
def test_a_supervisor_that_was_frozen_for_longer_than_its_lease_goes_on(world, tmp_path):
    note = tmp_path / "note"
    with Client(world.socket) as ws:
        run = ws.enqueue(Call("t.sleep", 1000, str(note)), retry=wheelsched.Retry(attempts=1))
        wait_for(lambda: note.exists() and note.read_text(), "the start of the run")
        world.worker.send_signal(signal.SIGSTOP)
        try:
            wait_for(lambda: ws.run(run.id).state == "dead", "the end of the lease", 20)
        finally:
            world.worker.send_signal(signal.SIGCONT)
        wait_for(lambda: not alive(int(note.read_text())), "the end of user code")
        assert ws.enqueue(Call("t.add", 1)).result(timeout=30) == 2
        assert [a.outcome for a in ws.run(run.id).attempts] == ["lost"]
        assert world.worker.poll() is None

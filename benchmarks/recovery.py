"""A worker dies by kill -9 in the middle of a run: how long until the next attempt's first instruction (GOALS: lost worker)."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wheelsched import Call, Retry
from wheelsched.cli.bench.workbench import Folder, ServerProcess

if TYPE_CHECKING:
    from wheelsched.client.client import Client

NAME = "recovery"
DESCRIPTION = "a worker is killed by kill -9 in a run: until the first instruction of the next attempt (retry backoff 0)"
LEASE_S = 1.0
AGAIN = Retry(attempts=2, backoff=0)
TASKS = """
import os, time
from pathlib import Path
from wheelsched import current_run, task

@task("recovery.hold")
def hold(notes):
    began = time.monotonic_ns()
    run = current_run()
    if run.attempt > 1:
        return began
    note = Path(notes) / run.id
    note.with_suffix(".new").write_text(f"{os.getpid()}")
    note.with_suffix(".new").rename(note)
    time.sleep(600)

@task("recovery.meet")
def meet(notes, parties):
    Path(notes, f"{os.getpid()}").touch()
    while len(os.listdir(notes)) < parties:
        time.sleep(0.001)
"""


def run(smoke: bool = False) -> list[dict[str, Any]]:
    """The rows; `smoke` is a small size that only shows that it works."""
    n, slow = (3, 2) if smoke else (200, 30)
    rows = _rows("floor: kill -9 of an idle Python process, until its pidfd tells", [_floor() for _ in range(n)])
    rows += _rows("pool of 2: until the other worker has it", _pool(n, 2))
    rows += _rows("pool of 1: until the worker that replaces it has it", _pool(slow, 1))
    return rows + _rows(f"external, after its lease of {LEASE_S:g} s", [ms - LEASE_S * 1_000 for ms in _external(slow)])


def _rows(name: str, ms: list[float]) -> list[dict[str, Any]]:
    ms = sorted(ms)
    n = len(ms)
    return [
        {"name": f"{name}: {q}", "value": ms[min(n - 1, n * percent // 100)], "unit": "ms", "n": n}
        for q, percent in (("p50", 50), ("p99", 99), ("max", 100))
    ]


def _floor() -> float:
    with subprocess.Popen([sys.executable, "-Sc", "print(flush=True); import signal; signal.pause()"], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        fd = os.pidfd_open(process.pid)
        began = time.monotonic_ns()
        process.kill()
        select.select([fd], [], [])
        took = time.monotonic_ns() - began
        os.close(fd)
    return took / 1e6


def _pool(n: int, workers: int) -> list[float]:
    with Folder() as folder:
        server = _server(folder, workers)
        try:
            with server.client() as client:
                return [_one(client, folder, workers, lambda pid: pid) for _ in range(n)]
        finally:
            server.kill()


def _external(n: int) -> list[float]:
    """The whole worker dies, supervisor and executors; its connection closes, and its lease runs out."""
    with Folder() as folder:
        server = _server(folder, 0, "--lease", f"{LEASE_S:g}s")
        workers: dict[int, subprocess.Popen[bytes]] = {}

        def hire() -> None:
            argv = [sys.executable, "-m", "wheelsched", "--socket", server.socket, "worker", "--tasks", "recovery_tasks"]
            env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(Path(__file__).resolve().parent.parent)])}
            process = subprocess.Popen(argv, env=env, stderr=subprocess.DEVNULL)
            workers[process.pid] = process

        def supervisor_of(pid: int) -> int:
            return int(Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[1])

        def replace(pid: int) -> None:
            workers.pop(pid).wait()
            hire()

        try:
            hire()
            hire()
            with server.client() as client:
                return [_one(client, folder, 2, supervisor_of, replace) for _ in range(n)]
        finally:
            for process in workers.values():
                process.kill()
                process.wait()
            server.kill()


def _server(folder: Path, workers: int, *flags: str) -> ServerProcess:
    (folder / "recovery_tasks.py").write_text(TASKS, encoding="ascii")
    server = ServerProcess(folder, workers=workers, tasks=("recovery_tasks",), flags=flags)
    server.start()
    return server


def _one(client: Client, folder: Path, workers: int, whom: Any, afterwards: Any = None) -> float:
    """Milliseconds from one kill to the next attempt."""
    meeting = Path(tempfile.mkdtemp(dir=folder))  # all workers are there and idle
    for run in [client.enqueue(Call("recovery.meet", str(meeting), workers)) for _ in range(workers)]:
        run.result(timeout=60)
    run = client.enqueue(Call("recovery.hold", str(folder)), retry=AGAIN)
    note = folder / run.id
    while not note.exists():
        time.sleep(0.001)  # poll another process
    victim = whom(int(note.read_text(encoding="ascii")))
    began = time.monotonic_ns()
    os.kill(victim, signal.SIGKILL)
    took: float = (run.result(timeout=60) - began) / 1e6
    if afterwards:
        afterwards(victim)
    return took

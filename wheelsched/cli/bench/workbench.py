"""A server of one's own in a temporary folder, as a subprocess: for the demo and the benches."""

from __future__ import annotations

import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ...client.client import Client
from ...model.errors import InternalError, UnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import IO, Self

    from ...client.client import Run

__all__ = ["Census", "Folder", "ServerProcess", "clean_up_on_sigterm", "machine", "poll", "rss_bytes"]

_READY: Final = "ready in"
_START_S: Final = 60.0
_STOP_S: Final = 20.0
_POLL_S: Final = 0.05
_KEPT_LINES: Final = 100


class Folder:
    """A temporary folder with a path short enough for a socket, gone at the end."""

    def __enter__(self) -> Path:
        self._path = Path(tempfile.mkdtemp(prefix="wheelsched-"))
        return self._path

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        shutil.rmtree(self._path, ignore_errors=True)


class _Words:
    """Reads what one server process says, to its end."""

    def __init__(self, lines: deque[str]) -> None:
        self.told = threading.Event()  # it serves, or it ended
        self.serves = False
        self._lines = lines

    def read(self, stream: IO[str]) -> None:
        """For a thread."""
        with stream:
            for line in stream:
                self._lines.append(line.rstrip("\n"))
                if _READY in line:
                    self.serves = True
                    self.told.set()
        self.told.set()


class ServerProcess:
    """`wheelsched serve` on a folder. It can be killed and started again on the same data."""

    def __init__(self, folder: Path, *, workers: int, tasks: tuple[str, ...] = (), clock_offset_s: float = 0.0,
                 flags: tuple[str, ...] = ()) -> None:
        self.socket = str(folder / "socket")
        self.lines: deque[str] = deque(maxlen=_KEPT_LINES)
        self._folder = folder
        self._args = ["serve", "--data", str(folder / "data"), "--socket", self.socket, "--workers", str(workers), *flags]
        for module in tasks:
            self._args += ["--tasks", module]
        if clock_offset_s:
            self._args += ["--clock-offset", f"{clock_offset_s:.3f}s"]
        self._process: subprocess.Popen[str] | None = None

    @property
    def pid(self) -> int:
        """Of the server."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start it and wait until it serves. UnavailableError with its last words when it doesn't."""
        package_root = str(Path(__file__).resolve().parents[2])
        paths = [package_root, *filter(None, [os.environ.get("PYTHONPATH")])]
        env = {k: v for k, v in os.environ.items() if not k.startswith("WHEELSCHED_")} | {"PYTHONPATH": os.pathsep.join(paths)}
        self._process = subprocess.Popen(  # noqa: S603 - ourselves
            [sys.executable, "-m", "wheelsched", *self._args], cwd=self._folder, env=env, stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace",
        )
        words = _Words(self.lines)
        threading.Thread(target=words.read, args=(self._process.stderr,), daemon=True).start()
        if not words.told.wait(_START_S) or not words.serves:
            self.kill()
            raise UnavailableError("the server did not start: " + " | ".join(self.lines))

    def kill(self) -> None:
        """Kill -9, and wait until it is gone."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def stop(self) -> None:
        """Ask it to stop; kill -9 if it takes too long."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self.kill()

    def client(self) -> Client:
        """A client of it."""
        return Client(self.socket)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is None:
            self.stop()
        else:
            self.kill()


def clean_up_on_sigterm() -> None:
    """Make SIGTERM unwind the program, so that the server and the folder don't outlive it. Main thread only."""
    def leave(*_: object) -> None:
        sys.exit(128 + signal.SIGTERM)

    signal.signal(signal.SIGTERM, leave)


def poll(ask: Callable[[], bool], seconds: float) -> bool:
    """Ask again and again until it is true; False when the time is over."""
    end = time.monotonic() + seconds
    while not ask():
        if time.monotonic() >= end:
            return False
        time.sleep(_POLL_S)  # the server is asked by its own verbs, which have nothing to wait on
    return True


def rss_bytes(pid: int) -> int:
    """Resident memory of a process."""
    for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise InternalError(f"process {pid} has no VmRSS")


def machine() -> dict[str, Any]:
    """What a figure was measured on."""
    model = next(
        (line.partition(":")[2].strip() for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
         if line.startswith("model name")), platform.machine(),
    )
    return {
        "cpu": model, "cores": len(os.sched_getaffinity(0)), "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "kernel": platform.release(), "python": platform.python_version(), "load": [round(x, 2) for x in os.getloadavg()],
    }


class Census:
    """Counts runs of a full listing against what was put: each (job, nominal time) must have one run, and it succeeded."""

    def __init__(self) -> None:
        self.runs = 0
        self.retried = 0
        self._ids: set[bytes] = set()
        self._times: dict[tuple[str, int], int] = {}
        self._succeeded: set[str] = set()

    def add(self, run: Run) -> None:
        """One row of the listing; a row seen before counts once."""
        run_id = bytes.fromhex(run.id)
        if run_id in self._ids:
            return
        self._ids.add(run_id)
        self.runs += 1
        self.retried += run.attempt > 1
        assert run.scheduled_at is not None
        key = (run.job, round(run.scheduled_at.timestamp() * 1000))
        if run.trigger == "schedule":
            self._times[key] = self._times.get(key, 0) + 1
        if run.state == "succeeded":
            self._succeeded.add(run.job)

    @property
    def duplicates(self) -> int:
        """Run records beyond the first of a (job, nominal time)."""
        return sum(n - 1 for n in self._times.values())

    def lost(self, jobs: Any) -> int:
        """How many of these one-time jobs have no run that succeeded."""
        return sum(name not in self._succeeded for name in jobs)

"""Executor processes from outside: start, watch, end, replace.

The pool never blocks and never polls: `wake_at_mono_us` says when to call `poll`, and `fileno` is readable when an executor
has ended. What travels over an executor's socket is the caller's business; it tells the pool what each executor holds,
because the pool enforces the timeouts, counted from user code's first instruction as the started file shows it.

How a run is ended: the cancel word, which `current_run().cancelled` reads; after the grace period SIGTERM to the group;
after another one SIGKILL. The program of a `command` has a group of its own: it gets SIGTERM at once and the executor lives on.
"""

from __future__ import annotations

import os
import secrets
import select
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from . import process
from .builtin import Allowed
from .model import KILL_GRACE_US, NEVER, US, Outcome
from .process import StartedFile
from .worker import EXIT_IMPORT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

BACKOFF_US: Final = 100_000
BACKOFF_MAX_US: Final = 30 * US
GONE_WAIT_US: Final = 10 * US  # how long a start waits for the groups of the former generation to be gone
SUFFIX: Final = ".started"
_ROOT: Final = str(Path(__file__).resolve().parent.parent)
# As `python -m wheelsched.worker`, and the package is found wherever the parent has found it; the working directory comes first.
_ENTRY: Final = (
    "import sys; root = sys.argv.pop(1); root in sys.path or sys.path.append(root); "
    "from wheelsched.worker import main; sys.exit(main(sys.argv[1:]))"
)


@dataclass(frozen=True, slots=True)
class Exited:
    """An executor is gone, its group too. User code was entered for tokens up to `started_token`; None: not known."""

    worker: int
    started_token: int | None
    outcome: int  # model.Outcome of the run it was in: lost, timed_out or cancelled
    text: str
    status: int  # exit code, negative for a signal
    can_not_import: bool  # a task module can't be imported: it says so on stderr


class Executor:
    """One executor process. `sock` is the caller's from the start; the process may follow later (back-off)."""

    def __init__(self, worker: int, file: StartedFile, sock: socket.socket, theirs: socket.socket, start_at_us: int) -> None:
        self.worker = worker
        self.file = file
        self.sock = sock
        self.theirs: socket.socket | None = theirs
        self.start_at_us = start_at_us  # monotonic; NEVER once it is started
        self.proc: subprocess.Popen[bytes] | None = None
        self.pidfd = -1
        self.held: deque[list[Any]] = deque()  # [tokens, timeouts, how many are open]; tokens rise
        self.finished_any = False
        self.wake_us = start_at_us
        self.ending = 0  # the token whose run is being ended
        self.why = 0
        self.step = 0  # 0 told, 1 SIGTERM sent, 2 SIGKILL sent
        self.next_step_us = NEVER
        self.cancels: set[int] = set()
        self.kills: set[int] = set()  # of these, the ones that are not told first

    @property
    def pid(self) -> int:
        """0 before it is started."""
        return 0 if self.proc is None else self.proc.pid

    @property
    def worker_key(self) -> int:
        """The number that the engine gave it."""
        return self.worker

    def inside(self) -> tuple[int, int]:
        """(token entered last, when in monotonic µs; 0 when it is not in user code now)."""
        words = self.file.words
        token = words[process.W_STARTED]  # the token first: see worker.Executor._execute
        return token, -(-words[process.W_MONO_NS] // 1_000)

    def timeout_of(self, token: int) -> int:
        """Timeout in µs of what was entered with this token: of a batch handler the smallest. NEVER when it isn't held."""
        first = self.file.words[process.W_FIRST] or token
        least = NEVER
        for tokens, timeouts, _ in self.held:
            if tokens[-1] >= first and tokens[0] <= token:
                low, high = np.searchsorted(tokens, first), np.searchsorted(tokens, token, "right")
                if low < high:
                    least = min(least, int(timeouts[low:high].min()))
        return least

    def least_waiting(self, token: int) -> int:
        """The smallest timeout of what is held and not entered; NEVER for nothing."""
        least = NEVER
        for tokens, timeouts, _ in self.held:
            if tokens[-1] > token:
                least = min(least, int(timeouts[np.searchsorted(tokens, token, "right") :].min()))
        return least


class Pool:
    """Executors of one server or supervisor. One thread calls it."""

    def __init__(
        self, *, workers_dir: str | os.PathLike[str], modules: Sequence[str] = (), allowed: Allowed | None = None,
        generation: int, boot_id: str, kill_grace_us: int = KILL_GRACE_US,
    ) -> None:
        """`workers_dir` is made when it is missing. OSError when it can't be."""
        self.workers_dir = Path(workers_dir)
        self.workers_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.executors: dict[int, Executor] = {}
        self._modules = list(modules)
        self._allowed = (allowed or Allowed()).to_text()
        self._generation = generation
        self._boot_id = boot_id
        self._grace_us = kill_grace_us
        self._deaths = 0  # in a row, of executors that had finished nothing
        self._by_pidfd: dict[int, Executor] = {}
        self._epoll = select.epoll()

    def fileno(self) -> int:
        """Readable when an executor has ended: call `poll`. It stays the same for the pool's life."""
        return self._epoll.fileno()

    def fds(self) -> list[int]:
        """What to watch for reading."""
        return [self._epoll.fileno()]

    # Starting

    def spawn(self, worker: int, now_mono_us: int | None = None) -> Executor:
        """An executor for this worker number, at once or, after early deaths, as soon as the back-off is over."""
        assert worker not in self.executors, worker
        now = _mono_us() if now_mono_us is None else now_mono_us
        path = self.workers_dir / f"{self._generation}-{worker}{SUFFIX}"
        path.unlink(missing_ok=True)
        file = StartedFile(path, create=True)
        file.words[process.W_GENERATION] = self._generation
        file.words[process.W_WORKER] = worker
        file.words[process.W_MARK] = secrets.randbits(63)
        file.words[process.W_GRACE_US] = self._grace_us
        file.boot_id = self._boot_id
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        executor = Executor(worker, file, ours, theirs, now + self._backoff_us())
        self.executors[worker] = executor
        if executor.start_at_us <= now:
            self._start(executor)
        return executor

    def _backoff_us(self) -> int:
        return 0 if self._deaths < 2 else min(BACKOFF_MAX_US, BACKOFF_US << min(self._deaths - 2, 20))

    def _start(self, executor: Executor) -> None:
        theirs = executor.theirs
        assert theirs is not None
        argv = [sys.executable, "-c", _ENTRY, _ROOT, str(theirs.fileno()), executor.file.path, str(os.getpid()), self._allowed]
        executor.proc = subprocess.Popen(  # noqa: S603 - our own interpreter
            [*argv, *self._modules], pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, start_new_session=True,
            env={**os.environ, process.MARK: executor.file.mark},
        )
        words = executor.file.words
        words[process.W_BEGUN] = process.begun_ticks(executor.proc.pid)
        words[process.W_PID] = words[process.W_PGID] = executor.proc.pid
        theirs.close()
        executor.theirs = None
        executor.start_at_us = executor.wake_us = NEVER
        executor.pidfd = os.pidfd_open(executor.proc.pid)
        self._by_pidfd[executor.pidfd] = executor
        self._epoll.register(executor.pidfd, select.EPOLLIN)

    # What executors hold

    def sent(self, worker: int, tokens: NDArray[np.int64], timeouts_us: NDArray[np.int64]) -> None:
        """These runs, in token order, are about to be sent to the executor. Call before they are."""
        executor = self.executors.get(worker)
        if executor is not None and len(tokens):
            executor.held.append([np.asarray(tokens, np.int64), np.asarray(timeouts_us, np.int64), len(tokens)])
            self._rearm(executor, _mono_us())

    def finished(self, worker: int, tokens: NDArray[np.int64]) -> None:
        """The executor does not hold these any more."""
        executor = self.executors.get(worker)
        if executor is None or not len(tokens):
            return
        executor.finished_any = True
        self._deaths = 0
        tokens = np.sort(np.asarray(tokens, np.int64))
        for chunk in executor.held:
            chunk[2] -= int(np.searchsorted(tokens, chunk[0][-1], "right") - np.searchsorted(tokens, chunk[0][0]))
        executor.held = deque(chunk for chunk in executor.held if chunk[2] > 0)
        executor.cancels.difference_update(tokens.tolist())
        executor.kills.difference_update(tokens.tolist())
        if executor.ending and executor.ending in tokens:
            self._let_be(executor)
        self._rearm(executor, _mono_us())

    def cancel(self, worker: int, token: int, *, at_once: bool = False) -> None:
        """End this run: not entered it never will be, entered it is told so, then killed; `at_once` without being told. Inside a
        batch handler it goes on, because the other runs of the call are not cancelled.
        """
        executor = self.executors.get(worker)
        if executor is None:
            return
        executor.cancels.add(token)
        if at_once:
            executor.kills.add(token)
        executor.file.skip(token)  # first: the executor looks there after it has written the token
        self._look(executor, _mono_us())

    def running(self) -> dict[int, int]:
        """The tokens by worker, of those that are in user code now."""
        found = {}
        for worker, executor in self.executors.items():
            token, since = executor.inside()
            if since:
                found[worker] = token
        return found

    # Watching

    def wake_at_mono_us(self) -> int:
        """When `poll` has something to do, if nothing else happens; NEVER for not at all."""
        return min((e.wake_us for e in self.executors.values()), default=NEVER)

    def poll(self, now_mono_us: int) -> list[Exited]:
        """Start, warn, kill and bury what is due. One system call when nothing is."""
        gone = [self._bury(self._by_pidfd[fd]) for fd, _ in self._epoll.poll(0)]
        for executor in list(self.executors.values()):
            if executor.wake_us > now_mono_us and not executor.cancels:
                continue
            if executor.proc is None:
                if executor.start_at_us <= now_mono_us:
                    self._start(executor)
            else:
                self._look(executor, now_mono_us)
        return gone

    def _look(self, executor: Executor, now: int) -> None:
        """Is a deadline over, a cancelled run entered, the next step due?"""
        token, since = executor.inside()
        if executor.ending and (token != executor.ending or not since):
            self._let_be(executor)
        if not executor.ending and since:
            if token in executor.cancels and not executor.file.words[process.W_FIRST]:  # one run's cancel ends no batch handler
                self._end(executor, token, Outcome.CANCELLED, now)
            elif now >= min(NEVER, since + executor.timeout_of(token)):
                self._end(executor, token, Outcome.TIMED_OUT, now)
        if executor.ending and now >= executor.next_step_us:
            self._go_on(executor, now)
        self._rearm(executor, now)

    def _rearm(self, executor: Executor, now: int) -> None:
        if executor.proc is None:
            return
        if executor.ending:
            executor.wake_us = executor.next_step_us
            return
        token, since = executor.inside()
        wake = min(NEVER, now + executor.least_waiting(token)) if executor.held else NEVER
        if since:
            wake = min(wake, since + executor.timeout_of(token))
        executor.wake_us = min(NEVER, wake)

    def _end(self, executor: Executor, token: int, why: int, now: int) -> None:
        words = executor.file.words
        executor.ending, executor.why = token, why
        words[process.W_WHY] = why
        words[process.W_CANCEL] = token
        at_once = why == Outcome.CANCELLED and token in executor.kills
        executor.step = 1 if at_once else 0  # see _go_on
        executor.next_step_us = now if at_once or words[process.W_COMMAND_PGID] else now + self._grace_us

    def _let_be(self, executor: Executor) -> None:
        """The run is over; what comes after it has nothing to do with it."""
        executor.cancels.discard(executor.ending)
        executor.kills.discard(executor.ending)
        executor.ending = executor.why = executor.step = 0
        executor.next_step_us = NEVER

    def _go_on(self, executor: Executor, now: int) -> None:
        """The next step: the command's group first, then, when that has not helped, all."""
        words = executor.file.words
        command, begun = words[process.W_COMMAND_PGID], words[process.W_COMMAND_BEGUN]
        number = signal.SIGTERM if executor.step == 0 else signal.SIGKILL
        if command and executor.step < 2:
            if begun and process.begun_ticks(command) == begun:  # else the executor is about to end what the leader left
                process.signal_group(command, number)
        elif executor.proc is not None:
            process.signal_group(executor.proc.pid, number)
        executor.step += 1
        executor.next_step_us = now + self._grace_us

    def _bury(self, executor: Executor) -> Exited:
        """The process has ended and is not reaped yet, so its group's number is still its own: end what is left there."""
        proc = executor.proc
        assert proc is not None
        process.signal_group(proc.pid, signal.SIGKILL)
        words = executor.file.words
        _kill_command(executor.file)
        status = proc.wait()
        token = words[process.W_STARTED]
        outcome = executor.why if executor.ending and executor.ending == token else Outcome.LOST
        self._deaths = 0 if executor.finished_any else self._deaths + 1
        text = f"worker {executor.worker} (pid {proc.pid}) {_ended(status)}"
        if outcome == Outcome.TIMED_OUT:
            text = f"timed out: {text}"
        elif outcome == Outcome.CANCELLED:
            text = f"cancelled: {text}"
        self._forget(executor)
        return Exited(executor.worker, token, outcome, text, status, status == EXIT_IMPORT)

    def _forget(self, executor: Executor) -> None:
        del self.executors[executor.worker]
        if executor.pidfd >= 0:
            self._epoll.unregister(executor.pidfd)
            del self._by_pidfd[executor.pidfd]
            os.close(executor.pidfd)
        if executor.theirs is not None:
            executor.theirs.close()
        Path(executor.file.path).unlink(missing_ok=True)
        executor.file.close()

    # The end

    def stop(self) -> dict[int, int | None]:
        """End all executors, within two grace periods at most; what each had entered. Afterwards the pool is empty."""
        for executor in self.executors.values():
            if executor.proc is not None:
                _kill_command(executor.file, signal.SIGTERM)
                process.signal_group(executor.proc.pid, signal.SIGTERM)
        self._wait(_mono_us() + self._grace_us)
        found: dict[int, int | None] = {}
        for executor in list(self.executors.values()):
            found[executor.worker] = executor.file.words[process.W_STARTED]
            if executor.proc is not None:
                process.signal_group(executor.proc.pid, signal.SIGKILL)
                self._bury(executor)
            else:
                self._forget(executor)
        return found

    def _wait(self, until_us: int) -> None:
        """Until all processes have ended, or the time is over."""
        left = {e.pidfd for e in self.executors.values() if e.proc is not None}
        poll = select.poll()
        for fd in left:
            poll.register(fd, select.POLLIN)
        while left and (now := _mono_us()) < until_us:
            for fd, _ in poll.poll((until_us - now) / 1_000 + 1):
                poll.unregister(fd)
                left.discard(fd)

    def close(self) -> None:
        """Give the descriptor back; after `stop`."""
        self._epoll.close()


def _mono_us() -> int:
    return time.monotonic_ns() // 1_000


def _ended(status: int) -> str:
    if status >= 0:
        return f"ended with exit code {status}"
    try:
        return f"was killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"was killed by signal {-status}"


def _kill_command(file: StartedFile, number: int = signal.SIGKILL) -> None:
    """Signal the group of the command that the executor was in, if any."""
    words = file.words
    pgid, begun = words[process.W_COMMAND_PGID], words[process.W_COMMAND_BEGUN]
    if not words[process.W_COMMAND]:
        return
    if pgid and begun and process.begun_ticks(pgid) == begun:
        process.signal_group(pgid, number)
    elif number == signal.SIGKILL:  # the leader is gone, or was about to be recorded: the mark tells who belongs to it
        for pid in process.marked(f"{process.MARK}={file.mark}"):
            process.signal_process(pid, number)


def kill_former_generation(workers_dir: str | os.PathLike[str], generation: int, boot_id: str) -> dict[int, int]:
    """End what servers before `generation` have left running; {worker: token entered last} as proof of what was started.

    Kills only what is shown to be ours, under the same boot id; waits until it is gone, 10 s at most (then TimeoutError,
    because voiding a lease whose run still runs would run it twice). Proofs of another boot count for nothing: their
    files are removed.
    """
    proofs: dict[int, int] = {}
    files: list[StartedFile] = []
    for path in sorted(Path(workers_dir).glob(f"*{SUFFIX}")):
        try:
            file = StartedFile(path)
        except ValueError:  # the server died while it made the file: nothing was started with it
            path.unlink()
            continue
        if file.words[process.W_GENERATION] >= generation:
            file.close()
        elif file.boot_id != boot_id:
            file.close()
            path.unlink()
        else:
            files.append(file)
    for file in files:
        process.kill_group(file.words[process.W_PGID], file.words[process.W_BEGUN], file.mark)
        _kill_command(file)
    until = _mono_us() + GONE_WAIT_US
    for file in files:
        while _left(file):
            if _mono_us() > until:
                raise TimeoutError(f"the group {file.words[process.W_PGID]} of a former executor does not end after SIGKILL")
            time.sleep(0.01)  # these are no children of ours: nothing tells of their end
        proofs[file.words[process.W_WORKER]] = file.words[process.W_STARTED]
    for file in files:
        file.close()
        Path(file.path).unlink()
    return proofs


def _left(file: StartedFile) -> bool:
    words = file.words
    return process.group_left(words[process.W_PGID], words[process.W_BEGUN], file.mark) or process.group_left(
        words[process.W_COMMAND_PGID], words[process.W_COMMAND_BEGUN], file.mark
    )

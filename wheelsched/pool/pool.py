"""Executor processes from outside: start, watch, end, replace.

When a process can't be had, `starts` says what comes of it.

The pool never blocks and never polls: `wake_at_mono_us` says when to call `poll`, and `fileno` is readable when an executor
has ended. What travels over an executor's socket is the caller's business; it tells the pool what each executor holds,
because the pool enforces the timeouts, counted from user code's first instruction as the started file shows it.

How a run is ended: the cancel word, which `current_run().cancelled` reads and which cancels a coroutine; after the grace period
SIGTERM to the group; after another one SIGKILL. The program of a `command` has a group of its own: it gets SIGTERM at once and
the executor lives on. A cancelled `http`, alone in its executor, gets SIGTERM at once too: it hears nothing while it waits. An executor
with several runs at a time is ended as a whole, and the others in it are interrupted.

An executor that closes its end of the socket takes no more runs: told to stop, worn out, or unable to begin. Whatever keeps it from
exiting then (an `on_stop` that hangs, threads, `atexit`), it has EXIT_US; then SIGTERM, and SIGKILL after another grace period.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from ..model.nouns import KILL_GRACE_US, LEASE_US, NEVER, START_US, US, Outcome
from ..process import processes
from ..process.contract import Allowed
from ..process.launch import Launcher, told_folder
from ..process.leftovers import kill_commands
from ..process.reaper import Reaper
from ..process.starts import CanNotStartError, Spare, Starts
from ..process.stderr import pass_on
from ..process.wear import wear_text
from .handle import Executor, Exited, Place, error_of, how_ended, outcome_of, text_of, too_long
from .stacks import Stacks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

EXIT_US: Final = 10 * US  # from the end of its last run to its exit, `on_stop` included
GROUP_LOOK_US: Final = 20_000
_NO_PROCESS: Final = 71  # in place of an exit code, of one that was not made


class Pool:
    """Executors of one server or supervisor. One thread calls it."""

    def __init__(
        self, *, workers_dir: str | os.PathLike[str], modules: Sequence[str] = (), allowed: Allowed | None = None,
        generation: int, boot_id: str, kill_grace_us: int = KILL_GRACE_US, mode: str = "process", concurrency: int = 1,
        lease_us: int = LEASE_US, max_runs: int = 0, max_rss: int = 0, exit_us: int = EXIT_US, start_us: int = START_US,
    ) -> None:
        """`workers_dir` is made when it is missing. OSError when it can't be. `concurrency`: runs at a time in one executor, in
        threads (mode "thread") or coroutines ("async"); in mode "process" always one. `max_runs` and `max_rss` (bytes): after which an
        executor ends between two runs; 0: never. `exit_us`: how long it has then, and whenever it is told to stop. `start_us`: see Starts.
        """
        self.workers_dir = Path(workers_dir)
        self.workers_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.executors: dict[int, Executor] = {}
        self.starts = Starts(start_us)
        self._launcher = Launcher(
            self.workers_dir, modules, allowed or Allowed(), mode=mode, wear=wear_text(max_runs, max_rss),
            places=0 if mode == "process" else concurrency, generation=generation, boot_id=boot_id, grace_us=kill_grace_us,
        )
        self._grace_us = kill_grace_us
        self.lease_us = lease_us
        self._exit_us = exit_us
        self._started: list[Executor] = []  # whose sockets nobody has taken
        self._never: list[Exited] = []  # of those that were to be started once, and can't be
        self._by_pidfd: dict[int, Executor] = {}
        self._epoll = select.epoll()
        self._spare = Spare()
        self._stacks = Stacks(self._epoll)
        self.reaper = Reaper()

    def fileno(self) -> int:
        """Readable when an executor has ended: call `poll`. It stays the same for the pool's life."""
        return self._epoll.fileno()

    # Starting

    def spawn(self, worker: int, now_mono_us: int | None = None, *, at_once: bool = False) -> Executor:
        """An executor for this worker number, as soon as the back-off after starts that failed is over; or `at_once`, and if it can't be
        made then, `poll` tells of its end. Its socket comes with `started`.
        """
        assert worker not in self.executors, worker
        now = _mono_us() if now_mono_us is None else now_mono_us
        executor = self.executors[worker] = Executor(worker, now if at_once else now + self.starts.backoff_us, once=at_once)
        if executor.start_at_us <= now:
            self._start(executor, now)
        return executor

    def started(self) -> list[Executor]:
        """Those that have become processes since the last call: their sockets are the caller's."""
        started, self._started = self._started, []
        return started

    def began(self, worker: int) -> bool:
        """The executor has said hello. False when it has said so before."""
        executor = self.executors.get(worker)
        if executor is None or not self.starts.began(worker):
            return False
        executor.begun = True
        self._settle()
        return True

    def coming(self) -> list[int]:
        """Worker numbers of the processes that have not said hello."""
        return self.starts.coming()

    def _settle(self) -> None:
        if all(e.begun or e.unwanted for e in self.executors.values()):
            self.starts.settled()

    def _start(self, executor: Executor, now: int) -> None:
        if executor.once:
            self.starts.news()
        try:
            with self._spare:
                made = self._launcher.launch(executor.worker, self.starts.said)
        except CanNotStartError as e:
            self._not_started(executor, str(e), now)
            return
        executor.launched(made)
        self.starts.launched(executor.worker, now)
        self._started.append(executor)
        self._by_pidfd[executor.pidfd] = executor
        self._epoll.register(executor.pidfd, select.EPOLLIN)

    def _not_started(self, executor: Executor, text: str, now: int) -> None:
        if executor.once:
            self._give_up(executor, text)
            return
        self.starts.failed(executor.worker, text)
        executor.start_at_us = executor.wake_us = now + max(1, self.starts.backoff_us)

    def _give_up(self, executor: Executor, text: str) -> None:
        """It never was a process: an end for the caller like any other."""
        del self.executors[executor.worker]
        self._never.append(Exited(executor.worker, 0, {}, [], {}, text, _NO_PROCESS, can_not_import=False, errors={}, begun_us={}))

    # What executors hold

    def sent(self, worker: int, tokens: NDArray[np.int64], timeouts_us: NDArray[np.int64], silences_us: NDArray[np.int64] | None = None
             ) -> None:
        """These runs, in token order, are about to be sent to the executor. Call before they are. `silences_us`: each one's
        heartbeat_timeout, NEVER for none.
        """
        executor = self.executors.get(worker)
        if executor is not None and len(tokens):
            now = _mono_us()
            if not executor.held:
                executor.looked_us, executor.stopped_us = now, 0
            limits = [np.asarray(column, np.int64) for column in (timeouts_us, silences_us) if column is not None]
            executor.held.append([np.asarray(tokens, np.int64), limits, len(tokens)])
            self._rearm(executor, now)

    def finished(self, worker: int, tokens: NDArray[np.int64]) -> None:
        """The executor does not hold these any more."""
        executor = self.executors.get(worker)
        if executor is None or not len(tokens):
            return
        executor.finished_any = True
        self.starts.worked()
        tokens = np.sort(np.asarray(tokens, np.int64))
        for chunk in executor.held:
            chunk[2] -= int(np.searchsorted(tokens, chunk[0][-1], "right") - np.searchsorted(tokens, chunk[0][0]))
        executor.held = deque(chunk for chunk in executor.held if chunk[2] > 0)
        if executor.cancels:
            executor.cancels.difference_update(tokens.tolist())
            executor.kills.difference_update(tokens.tolist())
        for place in executor.places:
            if place.ending and place.ending in tokens:
                self._let_be(executor, place)
        self._rearm(executor, _mono_us())

    def cancel(self, worker: int, token: int, *, at_once: bool = False) -> None:
        """End this run: not entered it never will be, entered it is told so, then killed; `at_once` without being told. Inside a
        batch handler it goes on, because the other runs of the call are not cancelled.
        """
        executor = self.executors.get(worker)
        if executor is None or executor.proc is None:
            return
        executor.cancels.add(token)
        if at_once:
            executor.kills.add(token)
        executor.file.skip(token)  # first: the executor looks there after it has written the token
        self._look(executor, _mono_us())

    def hung_up(self, worker: int) -> None:
        """The executor has closed its end of the socket, or is gone: if it is not, it has so long to exit."""
        executor = self.executors.get(worker)
        if executor is not None and executor.exit_by_us == NEVER:
            executor.exit_by_us = _mono_us() + self._exit_us
            self._rearm(executor, _mono_us())

    def kill(self, worker: int, because: str) -> None:
        """End an executor; one that was not started yet never will be."""
        executor = self.executors.get(worker)
        if executor is None or executor.group_until_us is not None:
            return
        executor.because, executor.unwanted = because, not executor.begun
        if executor.proc is None:
            self._give_up(executor, f"worker {worker} was not started{because}")
        else:
            processes.signal_group(executor.pid, signal.SIGKILL)

    def running(self) -> dict[int, int]:
        """{token: worker} of what is in user code now."""
        self._look_at_all()
        return {token: worker for worker, executor in self.executors.items() for token in executor.inside()}

    def since(self) -> dict[int, int]:
        """{token: when it was entered, monotonic} of what is in user code now."""
        self._look_at_all()
        return {token: at for executor in self.executors.values() for token, at in executor.inside().items()}

    def _look_at_all(self) -> None:
        for executor in self.executors.values():
            executor.look()

    # Watching

    def ask_stack(self, worker: int, token: int) -> bool:
        """Have an executor tell where the run of a token is that it is in: `stacks` has the answer. False when it is in no such run."""
        executor = self.executors.get(worker)
        if executor is None or executor.proc is None or executor.group_until_us is not None:
            return False
        executor.look()
        if token > executor.started or not any(place.inside()[1] for place in executor.places):
            return False
        with self._spare:
            self._stacks.ask(executor, token, _mono_us())
        return True

    def stacks(self) -> list[tuple[int, str]]:
        """(token, text) of what was answered since the last call."""
        return self._stacks.poll(_mono_us())

    @property
    def code_folder(self) -> str:
        """Where executors import from, in words."""
        return told_folder(self._launcher.code)

    def wake_at_mono_us(self) -> int:
        """When `poll` has something to do, if nothing else happens; NEVER for not at all."""
        if self._never:
            return 0
        return min(self.starts.wake_us, self._stacks.wake_us(), min((e.wake_us for e in self.executors.values()), default=NEVER))

    def poll(self, now_mono_us: int) -> list[Exited]:
        """Start, warn, kill and bury what is due. One system call when nothing is."""
        never, self._never = self._never, []
        if self.reaper.due:
            with self._spare:
                self.reaper.reap({executor.pid for executor in self.executors.values()})
        if self.starts.tries:
            self._settle()
        if now_mono_us >= self.starts.wake_us:
            for worker in self.starts.overdue(now_mono_us):
                self._end_start(worker)
        over = [self._by_pidfd[fd] for fd, _ in self._epoll.poll(0) if fd in self._by_pidfd]  # others are those of `stacks`
        gone = [self._bury(executor) for executor in over if self._is_over(executor, now_mono_us)]
        for executor in list(self.executors.values()):
            if executor.wake_us > now_mono_us and not executor.cancels:
                continue
            if executor.group_until_us is not None:
                if self._is_over(executor, now_mono_us):
                    gone.append(self._bury(executor))
            elif executor.proc is None:
                if executor.start_at_us <= now_mono_us:
                    self._start(executor, now_mono_us)
            else:
                self._look(executor, now_mono_us)
        return never + gone

    def _end_start(self, worker: int) -> None:
        """It has not said hello in its time."""
        executor = self.executors[worker]
        if executor.group_until_us is None:
            executor.because = f", because it had not said hello after {self.starts.limit}: its imports, or its on_start, hang"
            processes.signal_group(executor.pid, signal.SIGKILL)

    def _is_over(self, executor: Executor, now: int) -> bool:
        """The process has ended. If that was by SIGTERM, its children got it too, and have their time to heed it."""
        if executor.group_until_us is None:
            self._epoll.unregister(executor.pidfd)
            asked = [place.next_step_us for place in executor.places if executor.ended and place.ending and place.step == 1]
            executor.group_until_us = max(asked, default=now)
        executor.wake_us = now + GROUP_LOOK_US  # nothing tells of the end of a group
        with self._spare:
            return now >= executor.group_until_us or not processes.living((executor.pid,))

    def _look(self, executor: Executor, now: int) -> None:
        """Is a deadline over, a cancelled run entered, the next step due, the executor stopped?"""
        if executor.group_until_us is not None:
            return
        executor.look()
        if executor.file.cut and not executor.because:
            executor.because = ", because its started file was cut short: user code has written there"
            processes.signal_group(executor.pid, signal.SIGKILL)
        for place in executor.places:
            token, since = place.inside()
            if place.ending and (token != place.ending or not since):
                self._let_be(executor, place)
            if not place.ending and since:
                first = place.words[processes.W_FIRST]
                timeout, silence = executor.limits_of(token, first)
                if token in executor.cancels and not first:  # one run's cancel ends no batch handler
                    self._end(executor, place, token, Outcome.CANCELLED, now)
                elif now >= min(NEVER, since + timeout):
                    place.because = too_long(timeout, batch=0 < first < token)
                    self._end(executor, place, token, Outcome.TIMED_OUT, now)
                elif now >= min(NEVER, place.beat_us(since) + silence):
                    place.because = f"no heartbeat for {silence / US:g} s, and it"
                    self._end(executor, place, token, Outcome.TIMED_OUT, now, silence)
            if place.ending and now >= place.next_step_us:
                self._go_on(executor, place, now)
        if executor.held and now >= executor.looked_us + self._look_us:
            self._look_whether_stopped(executor, now)
        if now >= executor.exit_by_us:
            self._hasten(executor, now)
        self._rearm(executor, now)

    def _look_whether_stopped(self, executor: Executor, now: int) -> None:
        """One that was stopped by a signal for about a lease is ended: it may hold runs that it never enters, which no timeout ends."""
        executor.looked_us = now
        with self._spare:
            stopped = processes.stopped(executor.pid)
        if not stopped:
            executor.stopped_us = 0
        elif not executor.stopped_us:
            executor.stopped_us = now
        elif now - executor.stopped_us >= self.lease_us - self._look_us:
            executor.because = ", because it had been stopped for about a lease"
            processes.signal_group(executor.pid, signal.SIGKILL)

    def _hasten(self, executor: Executor, now: int) -> None:
        if any(place.inside()[1] for place in executor.places):  # user code has closed the socket: its run goes on
            executor.exit_by_us = now + self._exit_us
            return
        processes.signal_group(executor.pid, signal.SIGKILL if executor.late else signal.SIGTERM)
        executor.late = True
        executor.exit_by_us = now + self._grace_us

    @property
    def _look_us(self) -> int:
        return self.lease_us * 3 // 10

    def _rearm(self, executor: Executor, now: int) -> None:
        if executor.proc is None or executor.group_until_us is not None:
            return
        executor.look()
        wake, alone = executor.exit_by_us, len(executor.places) == 1
        for place in executor.places:
            if place.ending:
                wake = min(wake, place.next_step_us)
                continue
            token, since = place.inside()
            if since:
                timeout, silence = executor.limits_of(token, place.words[processes.W_FIRST])
                wake = min(wake, since + timeout, place.beat_us(since) + silence)
        if executor.held:
            wake = min(wake, executor.looked_us + self._look_us)
            if not (alone and executor.places[0].ending):
                wake = min(wake, now + executor.least_waiting(executor.started))
        executor.wake_us = wake

    def _end(self, executor: Executor, place: Place, token: int, why: int, now: int, silent_us: int = 0) -> None:
        words = place.words
        place.ending, place.why, place.silent_us = token, why, silent_us
        place.seen.write(processes.W_SILENT_US, silent_us)
        place.seen.write(processes.W_WHY, why)
        place.seen.write(processes.W_CANCEL, token)
        at_once = why == Outcome.CANCELLED and token in executor.kills
        place.step = 1 if at_once else 0  # see _go_on
        deaf = why == Outcome.CANCELLED and words[processes.W_DEAF] and len(executor.places) == 1  # others beside it get the grace period
        place.next_step_us = now if at_once or deaf or words[processes.W_COMMAND_PGID] else now + self._grace_us

    def _let_be(self, executor: Executor, place: Place) -> None:
        """The run is over; what comes after it has nothing to do with it."""
        executor.cancels.discard(place.ending)
        executor.kills.discard(place.ending)
        place.ending = place.why = place.step = place.silent_us = 0
        place.next_step_us = NEVER

    def _go_on(self, executor: Executor, place: Place, now: int) -> None:
        """The next step: the command's group first, then, when that has not helped, all."""
        words = place.words
        command, begun = words[processes.W_COMMAND_PGID], words[processes.W_COMMAND_BEGUN]
        number = signal.SIGTERM if place.step == 0 else signal.SIGKILL
        if command and place.step < 2:
            with self._spare:
                known = begun and processes.begun_ticks(command) == begun
            if known:  # else the executor is about to end what the leader left
                processes.signal_group(command, number)
        elif executor.proc is not None:
            executor.ended = True
            processes.signal_group(executor.proc.pid, number)
        place.step += 1
        place.next_step_us = now + self._grace_us

    def _bury(self, executor: Executor) -> Exited:
        """The process has ended and is not reaped yet, so its group's number is still its own: end what is left there."""
        proc = executor.proc
        assert proc is not None
        executor.look()
        processes.signal_group(proc.pid, signal.SIGKILL)
        with self._spare:
            kill_commands(executor.file)
        status = proc.wait()
        how = how_ended(executor, status)
        inside = [(place, *place.inside()) for place in executor.places if place.inside()[1]]
        outcomes = {token: outcome_of(executor, place, token) for place, token, _ in inside}
        errors = {token: error_of(executor, place, token, how) for place, token, _ in inside if executor.ended or place.ending == token}
        started = executor.started
        outcome = outcomes.get(started, Outcome.LOST)
        text, said = text_of(executor, status, outcome, how), executor.file.text
        ended, calls, cut = executor.file.ended, executor.file.calls, executor.file.cut
        begun_us = {token: since for _, token, since in inside}
        printed, left = executor.file.last_words(executor.outputs)
        for fd, data in enumerate(left, 1):
            pass_on(data, fd)
        failed = not executor.begun and not executor.unwanted and not executor.once
        can_not_import = bool(executor.file.words[processes.W_IMPORT]) and not executor.once and not self.starts.ever
        if failed:
            self.starts.failed(executor.worker, text, said or executor.because.removeprefix(", because "))
        elif (status or inside) and not executor.late:  # one that was told to stop has not died
            self.starts.died(finished_any=executor.finished_any)
        self._forget(executor)
        return Exited(
            executor.worker, None if cut else started, outcomes, calls, ended, text, status, can_not_import, errors, begun_us, printed,
            said, failed,
        )

    def _forget(self, executor: Executor) -> None:
        del self.executors[executor.worker]
        self.starts.gone(executor.worker)
        if executor.proc is not None:
            if executor.group_until_us is None:
                self._epoll.unregister(executor.pidfd)
            del self._by_pidfd[executor.pidfd]
            self._stacks.gone(executor)
            if executor.asked is not None:
                executor.asked.close()
            for fd in (executor.pidfd, *executor.outputs):
                os.close(fd)
            executor.file.remove()

    # The end

    def stop(self) -> list[Exited]:
        """End all executors, within two grace periods at most; what each was in is interrupted. Afterwards the pool is empty."""
        self._look_at_all()
        for executor in self.executors.values():
            if executor.proc is not None:
                with self._spare:
                    kill_commands(executor.file, signal.SIGTERM)
                processes.signal_group(executor.proc.pid, signal.SIGTERM)
        self._wait(_mono_us() + self._grace_us)
        found: list[Exited] = []
        for executor in list(self.executors.values()):
            executor.look()
            inside = {executor.started, *executor.inside()}
            outcomes: dict[int, int] = dict.fromkeys(inside, Outcome.INTERRUPTED)
            status, ended, calls, begun_us, printed = 0, {}, [], {}, {}
            if executor.proc is not None:
                processes.signal_group(executor.proc.pid, signal.SIGKILL)
                exited = self._bury(executor)
                status, ended, calls, begun_us, printed = exited.status, exited.ended, exited.calls, exited.begun_us, exited.printed
            else:
                self._forget(executor)
            text = "interrupted: the worker was stopped"
            found.append(Exited(
                executor.worker, max(inside), outcomes, calls, ended, text, status, can_not_import=False, errors={}, begun_us=begun_us,
                printed=printed,
            ))
        return found

    def _wait(self, until_us: int) -> None:
        """Until all processes have ended, with what they have started, or the time is over."""
        left = {e.pidfd for e in self.executors.values() if e.proc is not None}
        groups = {e.pid for e in self.executors.values() if e.proc is not None}
        groups |= {place.words[processes.W_COMMAND_PGID] for e in self.executors.values() for place in e.places} - {0}
        poll = select.poll()
        for fd in left:
            poll.register(fd, select.POLLIN)
        while left and (now := _mono_us()) < until_us:
            for fd, _ in poll.poll((until_us - now) / 1_000 + 1):
                poll.unregister(fd)
                left.discard(fd)
        with self._spare:
            while groups and processes.living(groups) and _mono_us() < until_us:
                time.sleep(GROUP_LOOK_US / US)  # nothing tells of the end of a group

    def close(self) -> None:
        """Give the descriptors back; after `stop`."""
        self._epoll.close()
        self._spare.close()


def _mono_us() -> int:
    return time.monotonic_ns() // 1_000

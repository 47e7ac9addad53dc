"""What a process has that all its runs share, and user code may change: folder, umask, descriptors 0 to 2, signals, timers, environment.

A command gets them as they were when the worker began, before any user code was imported. Between two runs of Python tasks they are put
right as they were when the first run was about to begin, after imports and `on_start` hooks, but for the environment, which libraries fill
in as they are used. That is done at the end of each batch, and behind each run in it that was not over at once, because to change any of
these takes a system call; what takes several calls to look after waits for the end of the batch, unless the run was slow.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import os
import signal
import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from ..tasks.verdicts import text_of

if TYPE_CHECKING:
    from collections.abc import Iterator

_SIGNALS: Final = sorted(signal.valid_signals() & set(range(1, 32)) - {signal.SIGKILL, signal.SIGSTOP})
SLOW_NS: Final = 20_000
_TIMERS: Final = {signal.ITIMER_REAL: "signal.alarm", signal.ITIMER_VIRTUAL: "ITIMER_VIRTUAL", signal.ITIMER_PROF: "ITIMER_PROF"}
_handler_of: Any = _signal.getsignal  # that of `signal` makes enums of what it finds, which takes ten times as long
_set_mask: Any = _signal.pthread_sigmask


class Surroundings:
    """Those of this process. Made before user code is imported."""

    def __init__(self) -> None:
        self.environ = dict(os.environ)
        self._ignored = {number for number in _SIGNALS if _handler_of(number) == signal.SIG_IGN}
        self._first_mask = _set_mask(signal.SIG_BLOCK, ())
        self._first_folder, self._first_umask = _folder(), _umask()
        self._folder, self._umask = self._first_folder, self._first_umask
        self._handlers: list[Any] = []
        self.due = False  # may there be more to put right than was looked after?
        self._mask = self._first_mask
        self._idle_timers: list[int] = []
        self._descriptors: list[tuple[int, int, tuple[int, int]]] = []

    def settle(self) -> None:
        """Runs may begin: what is now, is what each of them finds."""
        self._folder, self._umask = _folder(), _umask()
        self._handlers = [*map(_handler_of, _SIGNALS)]
        self._mask = _set_mask(signal.SIG_BLOCK, ())
        self._idle_timers = [timer for timer in _TIMERS if not signal.getitimer(timer)[0]]
        for fd in (0, 1, 2):
            try:
                found = os.fstat(fd)
            except OSError:
                continue  # an import has closed it
            self._descriptors.append((fd, os.dup(fd), (found.st_dev, found.st_ino)))

    def put_right(self, took_ns: int = SLOW_NS) -> str:
        """After a run that took so long, in the main thread. What the run is to be told, for most nothing."""
        self.due = took_ns < SLOW_NS
        try:
            told = "" if not self._idle_timers else self._stop(self._idle_timers[: 1 if self.due else None])
            self._put_signals_right()
        except BaseException as e:  # noqa: BLE001 - a handler that the run has left for a signal may raise anything here
            told = f"wheelsched: {type(e).__name__} in a signal handler that this run left: {text_of(e)}\n"
            self._put_signals_right()
        if not self.due:
            _set_mask(signal.SIG_SETMASK, self._mask)
        return told + self._put_process_right()

    def put_signals_right(self) -> None:
        """Of an executor with several runs at a time, in its main thread: when none is in user code there."""
        _set_mask(signal.SIG_SETMASK, self._mask)
        self._put_signals_right()

    def put_process_right(self) -> str:
        """Of an executor with several runs at a time, in any thread: when none is in user code. What somebody is to be told."""
        self.due = False
        return self._stop(self._idle_timers) + self._put_process_right()

    def _stop(self, timers: list[int]) -> str:
        left = [_TIMERS[timer] for timer in timers if signal.setitimer(timer, 0)[0]]
        return f"wheelsched: stopped a timer that was still set when its run ended ({', '.join(left)})\n" if left else ""

    def _put_process_right(self) -> str:
        os.umask(self._umask)
        try:
            if self._folder >= 0:
                os.fchdir(self._folder)
            if not self.due:
                for fd, saved, was in self._descriptors:
                    if _identity(fd) != was:
                        os.dup2(saved, fd)
        except OSError as e:
            return f"wheelsched: the folder and the descriptors 0 to 2 can't be put right after a run: {e.strerror}\n"
        return ""

    def _put_signals_right(self) -> None:
        if [*map(_handler_of, _SIGNALS)] == self._handlers:
            return
        for number, handler in zip(_SIGNALS, self._handlers, strict=True):
            if handler is not None and _handler_of(number) is not handler:  # None: of C code, which nobody can set again
                signal.signal(number, handler)

    # For commands

    def folder_for(self, cwd: str | None) -> str | None:
        """The path for a program that is to start in `cwd`: relative ones begin where the worker did."""
        first = f"/proc/self/fd/{self._first_folder}" if self._first_folder >= 0 else None
        return cwd if first is None else first if cwd is None else os.path.join(first, cwd)  # noqa: PTH118 - the text of a user

    @property
    def first_umask(self) -> int:
        """As the worker began."""
        return self._first_umask

    @contextmanager
    def first_signals(self) -> Iterator[None]:
        """While a program is started: what it would inherit is as it was when the worker began. Only the main thread can see to what is
        ignored; in the others no user code can have changed it.
        """
        changed: list[tuple[int, Any]] = []
        mask = _set_mask(signal.SIG_SETMASK, self._first_mask)
        try:
            if threading.current_thread() is threading.main_thread():
                for number in _SIGNALS:
                    found, ignored = _handler_of(number), number in self._ignored
                    if found is not None and (found == signal.SIG_IGN) != ignored:
                        changed.append((number, found))
                        signal.signal(number, signal.SIG_IGN if ignored else signal.SIG_DFL)
            yield
        finally:
            for changed_number, handler in changed:
                signal.signal(changed_number, handler)
            _set_mask(signal.SIG_SETMASK, mask)


def forget_loop() -> None:
    """A run may leave its thread's current event loop closed, or none where one would be made: let it be as if nobody had ever set one."""
    events: Any = sys.modules.get("asyncio.events")
    local = getattr(getattr(events, "_event_loop_policy", None), "_local", None)  # asyncio itself can't take a set_event_loop back
    if local is None:
        return
    known = vars(local)  # of this thread
    loop = known.get("_loop")
    if known and (loop is None or loop.is_closed()):
        known.clear()


def _folder() -> int:
    """A descriptor of the working directory, which it keeps naming when that is moved or removed; -1 when it can't be entered anyway."""
    try:
        return os.open(".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return -1


def _umask() -> int:
    """The umask can only be read by setting it; what other threads make meanwhile is their user's alone."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _identity(fd: int) -> tuple[int, int] | None:
    try:
        found = os.fstat(fd)
    except OSError:
        return None
    return found.st_dev, found.st_ino

"""Processes that can't be had: one policy for the server's pool and for `wheelsched worker`.

A start has failed when the process can't be made (no memory, process, descriptor or disk is left, or the interpreter is gone), when it ends
before it has said hello, and when it has not said hello in its time. Each failure is told in the log, the same one in short; the next try
comes at once, then after waits that double up to BACKOFF_MAX_US. Deaths of processes that had finished nothing are waited for alike.
Nothing here goes by an exit code: user code may end its process with any.
"""

from __future__ import annotations

import errno
import os
import sys
from typing import Any, Final

from ..model.nouns import NEVER, START_US, US, format_duration
from . import processes

BACKOFF_US: Final = 100_000
BACKOFF_MAX_US: Final = 30 * US
SLOW_US: Final = 5 * US  # after which a start that isn't over is told of
_ADVICE: Final = {
    errno.EMFILE: "raise the limit of open files (ulimit -n, LimitNOFILE= of systemd)",
    errno.ENFILE: "the machine has no open file left: raise fs.file-max",
    errno.EAGAIN: "the limit of processes is reached: raise it (ulimit -u, TasksMax= of systemd, pids of the container)",
    errno.ENOMEM: "no memory is left",
    errno.ENOSPC: "free some space there",
    errno.EDQUOT: "free some space there",
}


class CanNotStartError(Exception):
    """A process can't be made now. Nothing of it is left."""


def why_not(error: OSError, path: str) -> str:
    """What to say of a process that can't be made; `path`: of its started file."""
    what = error.strerror or str(error)
    if error.errno == errno.ENOENT and error.filename == sys.executable:
        return f"{sys.executable}: {what}: the interpreter is gone: put it back, or stop this process and start it from where Python is now"
    where = f"{error.filename}: " if isinstance(error.filename, str) else f"{path}: " if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
    advice = _ADVICE.get(error.errno or 0)
    return f"{where}{what}" + (f": {advice}" if advice else "")


class Starts:
    """How the starts of one pool go."""

    def __init__(self, start_us: int = START_US) -> None:
        """`start_us`: how long a process has to say hello, its imports and `on_start` included."""
        self.start_us = start_us
        self.tries = 0  # that failed, since the last time that all were there
        self.why = ""  # of the last one
        self.said = "-"  # sum of what a process said that could not begin: the next ones log no traceback of the same
        self.ever = False  # has a process said hello?
        self._lines: list[str] = []
        self._coming: dict[int, tuple[int, bool]] = {}  # worker -> when it was started, whether it was told that it is slow
        self._deaths = 0  # in a row, of processes that had finished nothing
        self._news = False  # has one said hello since the last failure?

    # What happens

    def launched(self, worker: int, now_us: int) -> None:
        """A process was made: its time counts."""
        self._coming[worker] = (now_us, False)

    def began(self, worker: int) -> bool:
        """It has said hello. False when it has said so before."""
        if self._coming.pop(worker, None) is None:
            return False
        self.ever = self._news = True
        return True

    def failed(self, worker: int, text: str, said: str = "") -> None:
        """A start that was wanted has failed: `text` for the log, `said` why, if that is known. In full the first time, then in short."""
        self._coming.pop(worker, None)
        why = said or text.partition(") ")[2] or text.partition(": ")[2]
        again = f": again ({self.tries + 1})" if why == self.why else ""
        self.tries, self.why, self._news = self.tries + 1, why, False
        if said:
            self.said = processes.text_sum(said)
        self._deaths += 1
        self._lines.append(text + again)

    def gone(self, worker: int) -> None:
        """Nobody waits for it any more."""
        self._coming.pop(worker, None)

    def died(self, *, finished_any: bool) -> None:
        """A process has ended that should not have."""
        self._deaths = 0 if finished_any else self._deaths + 1

    def worked(self) -> None:
        """A run was finished."""
        self._deaths = 0

    def settled(self) -> None:
        """All that are wanted are there."""
        if self.tries and self._news:
            self._lines.append(f"workers start again, after {self.tries} {'try' if self.tries == 1 else 'tries'} that failed")
        if self.tries:
            self.news()
        self.tries, self.why = 0, ""

    def news(self) -> None:
        """What a process says from now on is news."""
        self.said = "-"

    # What is to be done

    @property
    def backoff_us(self) -> int:
        """How long the next start waits."""
        return 0 if self._deaths < 2 else min(BACKOFF_MAX_US, BACKOFF_US << min(self._deaths - 2, 20))

    @property
    def wake_us(self) -> int:
        """When one is slow, or its time is over (monotonic)."""
        slow_us = min(SLOW_US, self.start_us)
        return min((since + (self.start_us if told else slow_us) for since, told in self._coming.values()), default=NEVER)

    def overdue(self, now_us: int) -> list[int]:
        """Those whose time is over; told are those that are slow."""
        over = []
        for worker, (since, told) in list(self._coming.items()):
            if now_us >= since + self.start_us:
                over.append(worker)
                del self._coming[worker]
            elif now_us >= since + SLOW_US and not told:
                self._coming[worker] = (since, True)
                self._lines.append(f"waiting for worker {worker}: importing, or in its on_start; it is ended {self.limit} after its start")
        return over

    def coming(self) -> list[int]:
        """Whose hello is waited for."""
        return list(self._coming)

    @property
    def limit(self) -> str:
        """As "1m"."""
        return format_duration(self.start_us)

    def slow(self, now_us: int) -> list[dict[str, Any]]:
        """Those that have not said hello for a while: {worker, us}."""
        return [{"worker": worker, "us": now_us - since} for worker, (since, _) in self._coming.items() if now_us - since >= SLOW_US]

    def failure(self) -> dict[str, Any] | None:
        """What `stats` says of starts that fail: {text, tries}."""
        return {"text": self.why, "tries": self.tries} if self.tries else None

    def lines(self) -> list[str]:
        """What the log shall say, once."""
        lines, self._lines = self._lines, []
        return lines


class Spare:
    """Descriptors that are kept back, so that what ends and starts processes finds some when everybody else has none."""

    def __init__(self, count: int = 16) -> None:
        self._count = count
        self._fds: list[int] = []
        self._lent = 0
        self._fill()

    def __enter__(self) -> None:
        """They are free for now."""
        self._lent += 1
        while self._fds:
            os.close(self._fds.pop())

    def __exit__(self, *_: object) -> None:
        """As many as there are, back."""
        self._lent -= 1
        if not self._lent:
            self._fill()

    def _fill(self) -> None:
        try:
            while len(self._fds) < self._count:
                self._fds.append(os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC))
        except OSError:  # others were faster; the next time, perhaps
            return

    def close(self) -> None:
        """For good."""
        while self._fds:
            os.close(self._fds.pop())

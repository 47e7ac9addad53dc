"""New task code in the pool while the server runs: its processes are replaced one after another.

A newcomer is started beside the old processes. When it has imported the code, opened what its hooks open and said hello, one of the old
ones is told to take no more runs: it ends when those it has are over, on the old code. One that can't begin ends the reload: the old
processes that are left go on, and whoever asked is told why. So does one that has not begun after BEGIN_US; it is killed.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final

from . import protocol, rights, workers
from .errors import FailedPreconditionError, UnavailableError, WheelschedError
from .model import NEVER, US, format_duration

if TYPE_CHECKING:
    from collections.abc import Callable

    from .engine import Engine
    from .turn import Incoming

BEGIN_US: Final = 60 * US  # for the imports of one newcomer and its `on_start`
SLOW_US: Final = 5 * US  # after which the log says what is waited for


class Reload:
    """The reload that is under way, if one is."""

    def __init__(
        self, engine: Engine, spawn: Callable[[], int], kill: Callable[[int, str], None], log: Callable[[str], None], *,
        begin_us: int = BEGIN_US, slow_us: int = SLOW_US,
    ) -> None:
        """`spawn` starts one more process of the pool and gives its worker's number; `kill` ends one (its number, why)."""
        self._engine = engine
        self._spawn = spawn
        self._kill = kill
        self._log = log
        self._begin_us = begin_us
        self._slow_us = slow_us
        self._old: deque[int] = deque()  # worker numbers of those that are to be replaced
        self._coming = 0  # number of the newcomer, 0 when there is none
        self._since_us = 0  # monotonic; when it was started
        self._told = False  # that it takes long
        self._fresh = 0  # how many have been replaced
        self._askers: list[tuple[int, int]] = []  # connection, request
        self._wanted = False  # by a signal
        self.failure: dict[str, Any] | None = None  # of the last one, when the old code went on: text, at_us

    def ask(self, cmd: Incoming) -> None:
        """A client asks for it; it is answered at the end."""
        try:
            rights.check(cmd)
        except WheelschedError as e:
            self._engine.reply(cmd.conn, protocol.encode_error(cmd.request.id, e))
            return
        self._askers.append((cmd.conn, cmd.request.id))
        self.want()

    def want(self) -> None:
        """Begin at the next `step`; one that is under way begins again, since the code may have changed under it. For signal handlers
        too.
        """
        self._wanted = True

    def is_coming(self, worker: int) -> bool:
        """Is it the newcomer?"""
        return worker == self._coming

    @property
    def arrived(self) -> bool:
        """Has the newcomer said hello? Then `step` has something to do."""
        return bool(self._coming) and any(s.worker == self._coming and s.tasks for s in self._engine.sessions.values())

    @property
    def wake_us(self) -> int:
        """When `step` has something to do, if nothing else happens (monotonic)."""
        return self._since_us + (self._begin_us if self._told else self._slow_us) if self._coming else NEVER

    def step(self, pool: list[int], now_us: int, *, stopping: bool) -> None:
        """Go on as far as one can now. `pool`: numbers of the workers of the pool."""
        if stopping:
            if self._askers or self._old or self._coming:
                self._fail(UnavailableError("reload: the server is stopping"))
            return
        if self._wanted:
            self._wanted = False
            if self._coming:  # it may have the code of before
                self._dismiss(", because a newer reload has begun")
            self._old, self._coming, self._fresh = deque(w for w in pool if w not in self._engine.retiring), 0, 0
            if not self._old:
                self._fail(FailedPreconditionError(
                    "reload: this server has no worker processes; a `wheelsched worker` reads its code when it is started"))
                return
            self._log(f"reload: replacing {len(self._old)} workers, one after another")
            self._begin(now_us)
        while self.arrived:
            self._fresh += 1
            arrived, self._coming = self._coming, 0
            # None is left when the last has died and was replaced meanwhile: then this one is too many.
            workers.retire(self._engine, self._old.popleft() if self._old else arrived)
            if self._old:
                self._begin(now_us)
            else:
                self._done()
        if now_us >= self.wake_us:
            self._overdue(now_us)

    def _begin(self, now_us: int) -> None:
        self._coming, self._since_us, self._told = self._spawn(), now_us, False

    def _overdue(self, now_us: int) -> None:
        if not self._told:
            self._told = True
            self._log(f"reload: waiting for worker {self._coming}: importing, or in its on_start")
        if now_us >= self._since_us + self._begin_us:
            waited, worker = format_duration(self._begin_us), self._coming
            self._dismiss(f", because it had not begun after {waited}")
            why = f"worker {worker} has not finished importing, or its on_start, after {waited}: killed"
            self._refuse(why, why)

    def _dismiss(self, because: str) -> None:
        """The newcomer is not wanted any more. One that has not said hello asks for nothing, so nobody can tell it to stop."""
        workers.retire(self._engine, self._coming)
        if not self.arrived:
            self._kill(self._coming, because)

    def gone(self, worker: int, text: str, said: str = "") -> bool:
        """A process of the pool has ended, and said so itself, unless that is empty. True: no other one shall take its place."""
        if worker in self._engine.retiring:
            return True
        if worker in self._old:  # the one that takes its place has the new code already
            self._old.remove(worker)
        if worker != self._coming:
            return False
        self._refuse(text, said or text)
        return True

    def drop(self, conn: int) -> None:
        """That connection is gone."""
        self._askers = [(c, request) for c, request in self._askers if c != conn]

    def _done(self) -> None:
        self.failure = None
        result = {"workers": self._fresh, "finishing": len(self._engine.retiring)}
        self._log(f"reload: {self._fresh} workers have the new code; {result['finishing']} end when they have finished what they have")
        for conn, request in self._askers:
            self._engine.reply(conn, protocol.encode_ok(request, result))
        self._clear()

    def _refuse(self, why: str, short: str) -> None:
        left = len(self._old)
        self.failure = {"text": short, "at_us": self._engine.now.wall_us} if left or self._fresh else None
        of = f"the old code goes on in {left} of {left + self._fresh} workers" if left or self._fresh else (
            "no worker has code that can be imported")  # they have all ended meanwhile, and so have those in their places
        self._fail(FailedPreconditionError(f"reload: {of}: {why}"))

    def _fail(self, error: WheelschedError) -> None:
        self._log(error.message)
        for conn, request in self._askers:
            self._engine.reply(conn, protocol.encode_error(request, error))
        self._clear()

    def _clear(self) -> None:
        self._askers.clear()
        self._old.clear()
        self._coming = self._fresh = 0

"""New task code in the pool while the server runs: its processes are replaced one after another.

A newcomer is started beside the old processes. When it has imported the code, opened what its hooks open and said hello, one of the old
ones is told to take no more runs: it ends when those it has are over, on the old code. One that can't begin ends the reload: the old
processes that are left go on, and whoever asked is told why.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from . import protocol, rights, workers
from .errors import FailedPreconditionError, UnavailableError, WheelschedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from .engine import Engine
    from .turn import Incoming


class Reload:
    """The reload that is under way, if one is."""

    def __init__(self, engine: Engine, spawn: Callable[[], int], log: Callable[[str], None]) -> None:
        """`spawn` starts one more process of the pool and gives its worker's number."""
        self._engine = engine
        self._spawn = spawn
        self._log = log
        self._old: deque[int] = deque()  # worker numbers of those that are to be replaced
        self._coming = 0  # number of the newcomer, 0 when there is none
        self._fresh = 0  # how many have been replaced
        self._askers: list[tuple[int, int]] = []  # connection, request
        self._wanted = False  # by a signal

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

    @property
    def arrived(self) -> bool:
        """Has the newcomer said hello? Then `step` has something to do."""
        return bool(self._coming) and any(s.worker == self._coming and s.tasks for s in self._engine.sessions.values())

    def step(self, pool: list[int], *, stopping: bool) -> None:
        """Go on as far as one can now. `pool`: numbers of the workers of the pool."""
        if stopping:
            if self._askers or self._old or self._coming:
                self._fail(UnavailableError("reload: the server is stopping"))
            return
        if self._wanted:
            self._wanted = False
            if self._coming:  # it may have the code of before
                workers.retire(self._engine, self._coming)
            self._old, self._coming, self._fresh = deque(w for w in pool if w not in self._engine.retiring), 0, 0
            if not self._old:
                self._fail(FailedPreconditionError(
                    "reload: this server has no worker processes; a `wheelsched worker` reads its code when it is started"))
                return
            self._log(f"reload: replacing {len(self._old)} workers, one after another")
            self._coming = self._spawn()
        while self.arrived:
            self._fresh += 1
            arrived, self._coming = self._coming, 0
            # None is left when the last has died and was replaced meanwhile: then this one is too many.
            workers.retire(self._engine, self._old.popleft() if self._old else arrived)
            if self._old:
                self._coming = self._spawn()
            else:
                self._done()

    def gone(self, worker: int, text: str) -> bool:
        """A process of the pool has ended. True: no other one shall take its place."""
        if worker in self._engine.retiring:
            return True
        if worker in self._old:  # the one that takes its place has the new code already
            self._old.remove(worker)
        if worker != self._coming:
            return False
        left = len(self._old)
        self._fail(FailedPreconditionError(f"reload: the old code goes on in {left} of {left + self._fresh} workers: {text}"))
        return True

    def drop(self, conn: int) -> None:
        """That connection is gone."""
        self._askers = [(c, request) for c, request in self._askers if c != conn]

    def _done(self) -> None:
        result = {"workers": self._fresh, "finishing": len(self._engine.retiring)}
        self._log(f"reload: {self._fresh} workers have the new code; {result['finishing']} end when they have finished what they have")
        for conn, request in self._askers:
            self._engine.reply(conn, protocol.encode_ok(request, result))
        self._clear()

    def _fail(self, error: WheelschedError) -> None:
        self._log(error.message)
        for conn, request in self._askers:
            self._engine.reply(conn, protocol.encode_error(request, error))
        self._clear()

    def _clear(self) -> None:
        self._askers.clear()
        self._old.clear()
        self._coming = self._fresh = 0

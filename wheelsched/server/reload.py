"""A reload of the server's own pool, as `rolling` does it: who asked for it is answered at its end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..engine import leases, roles
from ..model.errors import FailedPreconditionError, UnavailableError, WheelschedError
from ..model.nouns import counted
from ..pool.rolling import Rolling
from ..process.stderr import WARNING
from ..protocol import frames
from ..protocol.limits import check

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..engine.engine import Engine
    from ..engine.turn import Incoming
    from ..process.stderr import Log


class Reload(Rolling):
    """The reload that is under way, if one is."""

    def __init__(
        self, engine: Engine, spawn: Callable[[], int], kill: Callable[[int, str], None], log: Log,
        folder: Callable[[], str] = str,
    ) -> None:
        """`spawn`, `kill`: as for Rolling. `folder`: where the code is imported from, in words."""
        super().__init__(spawn, lambda worker: leases.retire(engine, worker), kill, log)
        self._engine = engine
        self._folder = folder
        self._askers: list[tuple[int, int, int]] = []  # connection, request, uid
        self.settings: Callable[[], str] = str  # what to say of settings that were changed and that a reload does not take
        self._said = ""
        self.failure: dict[str, Any] | None = None  # of the last one, when the old code went on: text, at_us

    def ask(self, cmd: Incoming) -> None:
        """A client asks for it; it is answered at the end."""
        try:
            roles.check(cmd)
            check(
                "reloads", connection=sum(c == cmd.conn for c, _, _ in self._askers) + 1,
                user=sum(uid == cmd.uid for _, _, uid in self._askers) + 1, server=len(self._askers) + 1,
            )
        except WheelschedError as e:
            self._engine.reply(cmd.conn, frames.encode_error(cmd.request.id, e))
            return
        self._askers.append((cmd.conn, cmd.request.id, cmd.uid))
        self.want()

    def is_there(self, worker: int) -> bool:
        """As for Rolling."""
        return any(s.worker == worker and s.tasks for s in self._engine.sessions.values())

    def is_leaving(self, worker: int) -> bool:
        """As for Rolling."""
        return worker in self._engine.retiring

    def step(self, pool: list[int], *, stopping: bool) -> None:
        """Go on as far as one can now. `pool`: numbers of the workers of the pool."""
        if not stopping:
            if self._wanted:
                self._said = self.settings()
                if self._said:
                    self._log(f"reload: {self._said}", WARNING)
            self.roll(pool)
        elif self._askers or self.under_way:
            self.clear()
            self._fail(UnavailableError("reload: the server is stopping"))

    def drop(self, conn: int) -> None:
        """That connection is gone."""
        self._askers = [asker for asker in self._askers if asker[0] != conn]

    def none(self) -> None:
        """As for Rolling."""
        self._fail(FailedPreconditionError(
            "reload: this server has no worker processes; a `wheelsched worker` takes new code at SIGHUP"))

    def over(self, fresh: int) -> None:
        """As for Rolling."""
        self.failure = None
        state = self._engine.state
        busy = sum(1 for worker in self._engine.retiring if worker in state.workers and state.runs.list_len(state.workers[worker].list_id))
        result = {"workers": fresh, "finishing": busy, "folder": self._folder(), "settings": self._said}
        rest = f"; {busy} {'ends' if busy == 1 else 'end'} when what {'it has' if busy == 1 else 'they have'} is finished" if busy else ""
        self._log(f"reload: {fresh} worker{' has' if fresh == 1 else 's have'} the new code, from {result['folder']}{rest}")
        for conn, request, _ in self._askers:
            self._engine.reply(conn, frames.encode_ok(request, result))
        self._askers.clear()

    def refused(self, why: str, short: str, left: int, fresh: int) -> None:
        """As for Rolling."""
        self.failure = {"text": short, "at_us": self._engine.now.wall_us} if left or fresh else None
        of = f"the old code goes on in {left} of {counted(left + fresh, 'worker')}" if left or fresh else (
            "no worker has code that can be imported")  # they have all ended meanwhile, and so have those in their places
        self._fail(FailedPreconditionError(f"reload: {of}: {why}"))

    def _fail(self, error: WheelschedError) -> None:
        self._log(error.message, WARNING)
        for conn, request, _ in self._askers:
            self._engine.reply(conn, frames.encode_error(request, error))
        self._askers.clear()

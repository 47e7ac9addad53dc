"""Forecasts under way in a server: one after another, a piece a turn, so that neither triggering nor other requests wait for one."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

from ..model.errors import WheelschedError
from ..protocol import frames
from ..protocol.limits import check
from ..reads.forecast import ARGUMENTS, Forecast, check_forecast
from .answered import answered

if TYPE_CHECKING:
    from collections.abc import Generator

    from ..engine.engine import Engine
    from ..process.stderr import Log
    from ..protocol.frames import Request


class _Asked(NamedTuple):
    """A request that waits for its turn."""

    conn: int
    uid: int
    id: int
    args: dict[str, Any]


class Forecasts:
    """Requests for forecasts in the order of their coming. Only the first is worked on and holds memory."""

    def __init__(self, engine: Engine, log: Log) -> None:
        self._engine = engine
        self._log = log
        self._waiting: deque[_Asked] = deque()
        self._pieces: Generator[None, None, dict[str, Any]] | None = None  # of the first

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, conn: int, request: Request, uid: int = 0) -> bytes | None:
        """One more; its answer if there is one already. Of what it asks for that alone is kept which a forecast takes."""
        try:
            check(
                "forecasts", connection=sum(w.conn == conn for w in self._waiting) + 1, user=sum(w.uid == uid for w in self._waiting) + 1,
                server=len(self._waiting) + 1,
            )
            check_forecast(request.args)
        except WheelschedError as e:
            return frames.encode_error(request.id, e)
        self._waiting.append(_Asked(conn, uid, request.id, {name: request.args.get(name) for name in ARGUMENTS}))
        return None

    def drop(self, conn: int) -> None:
        """That connection is gone, and so are its forecasts."""
        if self._waiting and self._waiting[0].conn == conn:
            self._pieces = None
        self._waiting = deque(w for w in self._waiting if w.conn != conn)

    def piece(self, now_us: int, refusal: WheelschedError | None) -> list[tuple[int, bytes]]:
        """Do a piece of work; (connection, reply) of what is ready. With a refusal all are answered by it."""
        replies = []
        if refusal is not None:
            replies = [(asked.conn, frames.encode_error(asked.id, refusal)) for asked in self._waiting]
            self._waiting.clear()
            self._pieces = None
        if self._waiting:
            asked = self._waiting[0]
            frame = answered(asked.id, "forecast", lambda: self._advance(asked, now_us), self._log)
            if frame is not None:
                self._waiting.popleft()
                self._pieces = None
                replies.append((asked.conn, frame))
        return replies

    def _advance(self, request: _Asked, now_us: int) -> bytes | None:
        try:
            if self._pieces is None:
                self._pieces = Forecast(self._engine, request.args, now_us).pieces()
            next(self._pieces)
        except StopIteration as done:
            return frames.encode_ok(request.id, done.value)
        return None

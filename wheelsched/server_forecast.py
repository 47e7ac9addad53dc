"""Forecasts under way in a server: one after another, a piece a turn, so that neither triggering nor other requests wait for one."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final

from . import protocol
from .errors import InternalError, ResourceExhaustedError, WheelschedError
from .forecast import Forecast

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from .engine import Engine
    from .protocol import Request

WAITING_MAX: Final = 64


class Forecasts:
    """Requests for forecasts in the order of their coming. Only the first is worked on and holds memory."""

    def __init__(self, engine: Engine, log: Callable[[str], None]) -> None:
        self._engine = engine
        self._log = log
        self._waiting: deque[tuple[int, Request]] = deque()
        self._pieces: Generator[None, None, dict[str, Any]] | None = None  # of the first

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, conn: int, request: Request) -> None:
        """One more."""
        self._waiting.append((conn, request))

    def drop(self, conn: int) -> None:
        """That connection is gone, and so are its forecasts."""
        if self._waiting and self._waiting[0][0] == conn:
            self._pieces = None
        self._waiting = deque(w for w in self._waiting if w[0] != conn)

    def piece(self, now_us: int, refusal: WheelschedError | None) -> list[tuple[int, bytes]]:
        """Do a piece of work; (connection, reply) of what is ready. With a refusal all are answered by it."""
        replies = []
        while len(self._waiting) > (WAITING_MAX if refusal is None else 0):
            conn, request = self._waiting.pop()
            self._pieces = self._pieces if self._waiting else None
            error = refusal or ResourceExhaustedError(f"{WAITING_MAX} forecasts are under way: ask again later")
            replies.append((conn, protocol.encode_error(request.id, error)))
        if self._waiting:
            conn, request = self._waiting[0]
            frame = self._advance(request, now_us)
            if frame is not None:
                self._waiting.popleft()
                self._pieces = None
                replies.append((conn, frame))
        return replies

    def _advance(self, request: Request, now_us: int) -> bytes | None:
        try:
            if self._pieces is None:
                self._pieces = Forecast(self._engine, request.args, now_us).pieces()
            next(self._pieces)
        except StopIteration as done:
            return protocol.encode_ok(request.id, done.value)
        except WheelschedError as e:
            return protocol.encode_error(request.id, e)
        except (AssertionError, KeyError, IndexError, TypeError, ValueError, OverflowError, AttributeError) as e:
            # A reader's bug changes nothing, so it ends its own request only.
            self._log(f"bug: forecast: {type(e).__name__}: {e}")
            return protocol.encode_error(request.id, InternalError(f"{type(e).__name__}: {e}"))
        return None

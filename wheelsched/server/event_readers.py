"""Readers of events in a server: each request is one page, answered when there is something or its wait is over.

Nothing is kept for a reader but its request: what is told is read from the journal then. All of them together get a quarter of one
processor at most: after a page the next one waits three times as long as that took.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ..engine import roles as rights
from ..model.errors import InvalidArgumentError, UnavailableError, WheelschedError
from ..model.nouns import NEVER, US
from ..protocol import frames
from ..protocol.limits import check
from ..reads.events import Pager, Position, Wanted
from .answered import answered

if TYPE_CHECKING:

    from ..process.stderr import Log
    from ..protocol.frames import Request
    from ..state.state import State
    from .keeper import Keeper

WAIT_MAX_US: Final = 60 * US
BEHIND_US: Final = 5 * US  # so much longer is looked for something that fits in what is on disk already
REST: Final = 3
PAUSE_US: Final = 10_000  # of a reader between two pages, unless there was more than one


@dataclass(slots=True)
class _Reader:
    conn: int
    request_id: int
    wanted: Wanted
    position: Position
    until_us: int  # monotonic
    not_before_us: int
    roles: frozenset[str]
    uid: int


class Readers:
    """Requests for events, in the order of their turns."""

    def __init__(self, state: State, keeper: Keeper, log: Log) -> None:
        self._pager = Pager(state, keeper.journal.replay, keeper.block)
        self._journal = keeper.journal
        self._log = log
        self._waiting: deque[_Reader] = deque()
        self._answered: dict[int, int] = {}  # connection -> when it had its last page, if that was not full
        self._rest_us = 0  # no page before that
        self.durable = keeper.journal.durable_seq

    def add(self, conn: int, request: Request, now_us: int, roles: frozenset[str], uid: int = 0) -> bytes | None:
        """One more; its answer if there is one already."""
        try:
            check(
                "event_readers", connection=sum(r.conn == conn for r in self._waiting) + 1,
                user=sum(r.uid == uid for r in self._waiting) + 1, server=len(self._waiting) + 1,
            )
            wait = request.args.get("wait_us", 0)
            if isinstance(wait, bool) or not isinstance(wait, int) or wait < 0:
                raise InvalidArgumentError("wait_us: a number of microseconds is wanted")
            wanted = Wanted(request.args)
            position = self._pager.begin(wanted, self._journal.durable_seq)  # a page may have told more than the loop has seen yet
        except WheelschedError as e:
            return frames.encode_error(request.id, e)
        after = self._answered.pop(conn, 0) + PAUSE_US
        self._waiting.append(_Reader(conn, request.id, wanted, position, now_us + min(wait, WAIT_MAX_US), after, roles, uid))
        return None

    def drop(self, conn: int) -> None:
        """That connection is gone, and so are its requests."""
        self._answered.pop(conn, None)
        if any(r.conn == conn for r in self._waiting):
            self._waiting = deque(r for r in self._waiting if r.conn != conn)

    def wake_us(self) -> int:
        """Monotonic instant of the next page or end of a wait; NEVER when only a commit brings something."""
        if not self._waiting:
            return NEVER
        return min(min(r.until_us if r.position[0] > self.durable else NEVER, self._ready_us(r)) for r in self._waiting)

    def _ready_us(self, reader: _Reader) -> int:
        return max(self._rest_us, reader.not_before_us) if reader.position[0] <= self.durable else NEVER

    def serve(self, durable: int, now_us: int, *, stopping: bool) -> list[tuple[int, bytes]]:
        """(connection, reply) of what is ready: at most one page is read."""
        self.durable = durable
        replies = []
        if stopping:
            error = UnavailableError("the server is stopping: ask again later")
            replies = [(r.conn, frames.encode_error(r.request_id, error)) for r in self._waiting]
            self._waiting.clear()
        page = True
        for _ in range(len(self._waiting)):
            reader = self._waiting.popleft()
            frame = None
            if page and self._ready_us(reader) <= now_us:
                page = False
                frame = self._page(reader, now_us)
            behind = reader.position[0] <= durable  # what fits may be there, though the wait is over
            if frame is None and reader.until_us + (BEHIND_US if behind else 0) <= now_us:
                frame = frames.encode_ok(reader.request_id, self._pager.nothing(reader.position) | {"behind": behind})
            if frame is None:
                self._waiting.append(reader)
            else:
                replies.append((reader.conn, frame))
        return replies

    def _page(self, reader: _Reader, now_us: int) -> bytes | None:
        """A page of events; None when none of what was read fits."""
        begun = time.thread_time_ns()  # not the time in which others had the processor
        frame = answered(reader.request_id, "events", lambda: self._told(reader), self._log)
        took = (time.thread_time_ns() - begun) // 1_000
        self._rest_us = now_us + (REST + 1) * took
        if frame is not None and reader.position[0] > self.durable:
            self._answered[reader.conn] = now_us
        return frame

    def _told(self, reader: _Reader) -> bytes | None:
        result, reader.position = self._pager.page(reader.position, reader.wanted)
        return frames.encode_ok(reader.request_id, rights.shown(reader.roles, result)) if result["n"] else None


__all__ = ["Readers"]

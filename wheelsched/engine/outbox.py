"""What was decided and is not on disk yet, and for how long it has been waiting. Pure."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from ..model.nouns import NEVER

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .turn import Effects

AHEAD_MAX: Final = 8  # turns decided ahead of the disk
BRIEF_BYTES: Final = 64 * 1024  # of records, in a commit that takes a moment


class Outbox:
    """Effects in the order of their turns; each leaves when the record that it was decided on is durable."""

    def __init__(self, timeout_us: int) -> None:
        self._timeout_us = timeout_us
        self._waiting: deque[Effects] = deque()
        self._since_us = NEVER  # since when the disk has finished nothing though something waits; monotonic

    def __bool__(self) -> bool:
        return bool(self._waiting)

    @property
    def full(self) -> bool:
        """Is so much decided ahead of the disk that no more may be?"""
        return len(self._waiting) >= AHEAD_MAX

    def brief(self, seq: int) -> bool:
        """Is one short turn all that waits for more than that record to be on disk? Then its commit takes a moment."""
        if len(self._waiting) != 1:
            return False
        (effects,) = self._waiting
        return effects.seq > seq and not effects.history and sum(map(len, effects.records)) < BRIEF_BYTES

    def add(self, effects: Effects, now_us: int) -> None:
        """A turn's. One that only answers goes with those before it, so questions alone never fill it."""
        if not self._waiting:
            self._since_us = now_us
        last = self._waiting[-1] if self._waiting else None
        more = effects.lags or effects.start_lags or effects.cancels or effects.finished or effects.notices
        if last is not None and last.seq == effects.seq and not more:
            last.replies += effects.replies
        else:
            self._waiting.append(effects)

    def durable(self, seq: int, now_us: int) -> Iterator[Effects]:
        """Those that may go, up to a record that is on disk."""
        while self._waiting and self._waiting[0].seq <= seq:
            self._since_us = now_us
            yield self._waiting.popleft()
        if not self._waiting:
            self._since_us = NEVER

    def asked_to_end(self) -> frozenset[int]:
        """Tokens of attempts that were asked to end in turns that are not on disk yet."""
        return frozenset(token for effects in self._waiting for _, token, _ in effects.cancels)

    def wake_us(self) -> int:
        """Monotonic instant at which the disk has been silent for too long; NEVER while nothing waits for it."""
        return min(NEVER, self._since_us + self._timeout_us)

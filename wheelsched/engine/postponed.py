"""Commands that wait for a later turn: each must decide more of the past first than one turn has room for, or have history take more in.

Such a command raises `Later`. It is tried again each turn, and finds the past a piece further decided. What its connection sends behind it
waits too, so that the commands of a connection keep their order; what workers report and ask for never waits. All of this is soft. What is
recorded for a command that waits is due occurrences, which would be decided anyway, and definitions that nothing uses yet. Its answer comes
when all is done; a crash ends it as one that never came.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from ..model.nouns import US
from ..protocol.verbs import BY_NAME, UNKNOWN
from ..state import history
from .quotas import size_of

if TYPE_CHECKING:
    from .quotas import Quotas
    from .turn import Incoming

LIMIT: Final = "postponed_bytes"
JUMP_US: Final = 10 * US  # between two turns: the machine slept, or its clock was set


@dataclass(slots=True)
class Waiting:
    """A request, and when it came: what comes due after that, never makes it wait longer."""

    item: Incoming
    since_us: int  # wall clock
    size: int = 0  # bytes that are counted; 0: none yet


class Postponed:
    """What waits, in the order in which it came."""

    def __init__(self) -> None:
        self._waiting: deque[Waiting] = deque()

    def __bool__(self) -> bool:
        """Does anything wait?"""
        return bool(self._waiting)

    def take(self) -> list[Waiting]:
        """All of it, to be tried now."""
        taken = list(self._waiting)
        self._waiting.clear()
        return taken

    def keep(self, quotas: Quotas, one: Waiting) -> None:
        """Until the next turn. ResourceExhaustedError, InvalidArgumentError: it is too much to be kept."""
        if not one.size:
            size = size_of(one.item.request.args)
            quotas.take(LIMIT, one.item, size)
            one.size = size
        self._waiting.append(one)

    @staticmethod
    def over(quotas: Quotas, one: Waiting) -> None:
        """It has its answer."""
        if one.size:
            quotas.give(LIMIT, one.item.conn, one.size)

    def again_from(self, wall_us: int) -> None:
        """Much has come due since the turn before: as if all of it were asked now."""
        for one in self._waiting:
            one.since_us = wall_us

    def see(self, blocks: list[bytes]) -> None:
        """These blocks went to history in this turn: what a request found there beforehand doesn't hold them."""
        for one in self._waiting if blocks else ():
            verb, args = one.item.request.verb, one.item.request.args
            if BY_NAME.get(verb, UNKNOWN).history:
                one.item = replace(one.item, found=history.and_more(one.item.found, blocks, verb, args))


__all__ = ["JUMP_US", "LIMIT", "Postponed", "Waiting"]

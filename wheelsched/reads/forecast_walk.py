"""Stepping many schedules through their occurrences, all together, in bounded pieces. Pure.

A round takes every line to its next occurrence in one bulk call. Lines that are left after some rounds, and are few, fire often: the rest
of their span is cut into lanes, each a line of its own, so that the rounds stay few and wide.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

UNLIMITED: Final = 2**62
# kind, a and anchor: the schedule. at: the occurrence it stands at; until: the last instant that counts; left: how many occurrences it may
# have. row, weight, cost, sharp: how it is counted (see `_forecast.count_at`). line: whose it is. spec, job, key: of one job with jitter,
# calendars or exceptions.
WALK: Final = np.dtype([
    ("kind", "u1"), ("a", "<i8"), ("anchor", "<i8"), ("at", "<i8"), ("until", "<i8"), ("left", "<i8"), ("row", "<u4"), ("weight", "<i8"),
    ("cost", "<f8"), ("sharp", "u1"), ("line", "<i8"), ("spec", "<u4"), ("job", "<u4"), ("key", "<u8"),
])
_ROUNDS: Final = 64  # before what is left counts as often
_LANES: Final = 256  # of one line
_ROUND_COST: Final = 256  # of a round by itself, in lines


class Walk:
    """Lines on their way.

    `step(lines, after)` gives the first occurrence of each strictly after an instant, or NEVER. `sink(lines, following)` is told of the
    occurrence at which each stands, and the one after it, and says which use up one of those that are left.
    """

    def __init__(
        self, step: Callable[[NDArray[Any], NDArray[np.int64]], NDArray[np.int64]],
        sink: Callable[[NDArray[Any], NDArray[np.int64]], NDArray[np.bool_] | bool], size: int,
    ) -> None:
        """`size`: how many lines one piece of work may step."""
        self.step = step
        self._sink = sink
        self.size = size
        self._aside: list[NDArray[Any]] = []

    def feed(self, lines: NDArray[Any]) -> Iterator[None]:
        """Take lines (WALK, each standing at an occurrence) some way, or to their end."""
        lines = lines[(lines["at"] <= lines["until"]) & (lines["left"] > 0)]
        for start in range(0, len(lines), self.size):
            yield from self._rounds(lines[start : start + self.size])

    def finish(self) -> Iterator[None]:
        """Take all lines that are left to their end."""
        while self._aside:
            aside, self._aside = self._aside, []
            parts: list[NDArray[Any]] = []
            while aside:
                parts.append(aside.pop())
                if not aside or sum(map(len, parts)) + len(aside[-1]) > self.size:
                    lanes = self._lanes(np.concatenate(parts))
                    parts = []
                    yield
                    yield from self._rounds(lanes)

    def _rounds(self, lines: NDArray[Any]) -> Iterator[None]:
        done = rounds = 0
        while len(lines):
            if rounds >= _ROUNDS and len(lines) * 4 < self.size:
                self._aside.append(lines)
                break
            done += len(lines) + min(_ROUND_COST, self.size // 4)
            following = self.step(lines, np.ascontiguousarray(lines["at"]))
            used = self._sink(lines, following)
            lines["at"] = following
            lines["left"] -= used
            lines = lines[(following <= lines["until"]) & (lines["left"] > 0)]
            rounds += 1
            if done >= self.size:
                done = 0
                yield
        yield

    def _lanes(self, lines: NDArray[Any]) -> NDArray[Any]:
        """The spans cut into as many lanes as make a wide round. A line with a limited number of occurrences stays whole."""
        lanes = min(self.size // len(lines), _LANES)
        free = lines["left"] >= UNLIMITED // 2
        if lanes < 2 or not free.any():
            return lines
        cut = np.repeat(lines[free], lanes)
        lane = np.tile(np.arange(lanes, dtype=np.int64), int(free.sum()))
        at, span = cut["at"].copy(), cut["until"] - cut["at"]
        cut["until"] = at + span * (lane + 1) // lanes
        later = lane > 0
        cut["at"][later] = self.step(cut[later], (at + span * lane // lanes)[later])
        return np.concatenate((lines[~free], cut[cut["at"] <= cut["until"]]))

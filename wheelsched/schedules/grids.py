"""Counting with grids, first + k * period: how many instants several of them hit together. Pure; plain integers."""

from __future__ import annotations

from math import gcd
from typing import Final, NamedTuple

__all__ = ["Grid", "count_together", "meet", "outer"]

LOOKS_MAX: Final = 20_000  # meetings that `count_together` looks at before it gives up: tens of milliseconds


class Grid(NamedTuple):
    """first + k * period, k >= 0, up to `last`, which is one of them."""

    first: int
    period: int
    last: int

    @property
    def size(self) -> int:
        """How many instants."""
        return (self.last - self.first) // self.period + 1


def meet(a: Grid, b: Grid) -> Grid | None:
    """The instants of both, again a grid; None if there are none. By the Chinese remainder theorem."""
    common = gcd(a.period, b.period)
    if (b.first - a.first) % common:
        return None
    step = a.period // common * b.period
    k = (b.first - a.first) // common * pow(a.period // common, -1, b.period // common) % (b.period // common)
    first, begin, end = a.first + k * a.period, max(a.first, b.first), min(a.last, b.last)
    first += -((first - begin) // step) * step
    return Grid(first, step, first + (end - first) // step * step) if first <= end else None


def outer(grids: list[Grid]) -> list[Grid]:
    """The grids without those that lie within another one."""
    kept: list[Grid] = []
    for grid in sorted(set(grids), key=lambda g: (-g.size, g)):
        if not any((both := meet(grid, other)) is not None and both.size == grid.size for other in kept):
            kept.append(grid)
    return kept


def count_together(grids: list[Grid]) -> int | None:
    """How many different instants they have: inclusion and exclusion, where what doesn't meet is not looked at further.

    None if too many of them meet each other.
    """
    total = 0
    waiting = [(grid, i + 1, 1) for i, grid in enumerate(grids)]  # what some have in common, who comes next, the sign
    looks = 0
    while waiting:
        grid, following, sign = waiting.pop()
        total += sign * grid.size
        for i in range(following, len(grids)):
            looks += 1
            if looks > LOOKS_MAX:
                return None
            both = meet(grid, grids[i])
            if both is not None:
                waiting.append((both, i + 1, -sign))
    return total

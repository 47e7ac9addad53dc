"""Spans of the nominal times whose runs went to history, so that what history drops is still known to be decided. Pure, part of the state.

When the wall clock is set back, jobs come to times again that they decided before. A run that the table or history has blocks its own
nominal time. Of what history has dropped nobody knows any more which occurrence ran. So whatever a job had decided within the spans that
were dropped counts as decided: it does not run again.

Spans, not one greatest time: a clock that was a year ahead for some weeks leaves a span of these weeks, and no job is silent before it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np

from ..model.nouns import US

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

Spans: TypeAlias = list[tuple[int, int]]  # first and last nominal time of each; ascending, apart from one another

APART_US: Final = 86_400 * US  # spans that are no further apart are one
SPANS_MAX: Final = 64  # beyond it the nearest two are made one
PIECE_ROWS: Final = 8_192


class Bygone:
    """What went to history, and how far jobs had decided before the clock went back."""

    def __init__(self) -> None:
        self.folded: Spans = []  # of all runs by schedule or backfill that ever went to history
        self.lost: Spans = []  # of these, what history had dropped when the clock went back; empty while no job has a mark
        self.until = np.zeros(0, np.int64)  # by job row: its cursor before the clock went back, until it has passed it again; 0: none
        self._marked = 0

    def fold(self, nominal: NDArray[np.int64]) -> None:
        """Runs with these nominal times go to history."""
        if len(nominal):
            self.folded = merged([*self.folded, *spans_of(nominal)])

    def mark(self, jobs: NDArray[np.uint32], until: NDArray[np.int64], lost: Spans) -> None:
        """The clock goes back: these jobs had decided so far, and history has dropped that much."""
        if len(jobs):
            self._grow(int(jobs.max()) + 1)
            self.until[jobs] = np.maximum(self.until[jobs], until)
            self._marked = int(np.count_nonzero(self.until))
            self.lost = merged([*self.lost, *lost])

    def pass_by(self, jobs: NDArray[np.uint32], cursor: NDArray[np.int64]) -> None:
        """Jobs have decided up to these cursors."""
        if self.lost:
            known = jobs < len(self.until)
            jobs, cursor = jobs[known], cursor[known]
            self.remove(np.unique(jobs[self.until[jobs] <= cursor]))

    def remove(self, jobs: NDArray[np.uint32]) -> None:
        """These jobs have no mark any more, each named once."""
        jobs = jobs[jobs < len(self.until)]
        self._marked -= int(np.count_nonzero(self.until[jobs]))
        self.until[jobs] = 0
        if not self._marked:
            self.lost = []

    def decided(self, jobs: NDArray[np.uint32], nominal: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which occurrences these jobs had decided before the clock went back, and history has dropped."""
        found = np.zeros(len(jobs), np.bool_)
        if self.lost:
            self._grow(int(jobs.max(initial=0)) + 1)
            some = np.flatnonzero(nominal <= self.until[jobs])
            found[some] = within(self.lost, nominal[some])
        return found

    def of(self, job: int) -> Spans:
        """The spans of one job: what it has there counts as decided."""
        until = int(self.until[job]) if self.lost and job < len(self.until) else 0
        return [(first, min(last, until)) for first, last in self.lost if first <= until]

    def jobs(self) -> NDArray[np.uint32]:
        """Those that have a mark."""
        return np.flatnonzero(self.until).astype(np.uint32) if self.lost else np.empty(0, np.uint32)

    def _grow(self, size: int) -> None:
        if size > len(self.until):
            self.until = np.concatenate([self.until, np.zeros(max(size, 2 * len(self.until)) - len(self.until), np.int64)])

    def copy(self) -> NDArray[np.int64]:
        """The marks at this instant, up to the last one."""
        return self.until[: int(np.max(np.flatnonzero(self.until), initial=-1)) + 1].copy()

    def take(self, start: int, until: bytes) -> None:
        """A piece of the marks from a snapshot."""
        column = np.frombuffer(until, "<i8")
        self._grow(start + len(column))
        self.until[start : start + len(column)] = column
        self._marked = int(np.count_nonzero(self.until))


def pieces(until: NDArray[np.int64]) -> Iterator[tuple[int, bytes]]:
    """(first row, marks) of so many rows each, for a snapshot."""
    for start in range(0, len(until), PIECE_ROWS):
        yield start, until[start : start + PIECE_ROWS].astype("<i8").tobytes()


def spans_of(nominal: NDArray[np.int64]) -> Spans:
    """The spans that these times make."""
    first, last = int(nominal.min()), int(nominal.max())
    if last - first <= APART_US:
        return [(first, last)]
    times = np.sort(nominal)
    cut = np.flatnonzero(np.diff(times) > APART_US)
    return list(zip(times[[0, *(cut + 1)]].tolist(), times[[*cut, -1]].tolist(), strict=True))


def merged(spans: Iterable[tuple[int, int]]) -> Spans:
    """The spans of several lists, as one."""
    out: Spans = []
    for first, last in sorted(spans):
        if out and first - out[-1][1] <= APART_US:
            out[-1] = out[-1][0], max(out[-1][1], last)
        else:
            out.append((first, last))
    while len(out) > SPANS_MAX:
        i = min(range(1, len(out)), key=lambda n: out[n][0] - out[n - 1][1])
        out[i - 1 : i + 1] = [(out[i - 1][0], out[i][1])]
    return out


def within(spans: Spans, at: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which instants are in a span."""
    if not spans:
        return np.zeros(len(at), np.bool_)
    first, last = np.array(spans, np.int64).T
    i = np.searchsorted(first, at, "right") - 1
    return np.asarray((i >= 0) & (at <= last[i]), np.bool_)


__all__ = ["Bygone", "Spans", "merged", "pieces", "within"]

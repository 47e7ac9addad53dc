"""When each job was last changed, and when a run or ledger row of it last went to history: what is left of a name may be forgotten only
long after both. Pure, part of the state.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from ..model.nouns import US

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

PIECE_ROWS: Final = 8_192


class Touched:
    """By rows of the job table, in whole seconds of elapsed time since that began, rounded up. `changed` 0: not since then; `folded` 0:
    never.
    """

    def __init__(self) -> None:
        self.changed = np.zeros(0, np.uint32)
        self.folded = np.zeros(0, np.uint32)

    def _grow(self, size: int) -> None:
        if size > len(self.changed):
            more = np.zeros(max(size, 2 * len(self.changed)) - len(self.changed), np.uint32)
            self.changed, self.folded = np.concatenate([self.changed, more]), np.concatenate([self.folded, more])

    def change(self, rows: NDArray[np.uint32], us: int) -> None:
        """These jobs were changed, so long after the begin."""
        if len(rows):
            self._grow(int(rows.max()) + 1)
            self.changed[rows] = -(-us // US)

    def fold(self, rows: NDArray[np.uint32], us: int) -> None:
        """Rows of these jobs go to history."""
        if len(rows):
            self._grow(int(rows.max()) + 1)
            self.folded[rows] = max(1, -(-us // US))

    def remove(self, rows: NDArray[np.uint32]) -> None:
        """Jobs are no more; others will have their rows."""
        known = rows[rows < len(self.changed)]
        self.changed[known] = self.folded[known] = 0

    def of(self, rows: NDArray[np.uint32]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(changed, folded) of jobs."""
        if len(rows):
            self._grow(int(rows.max()) + 1)
        return self.changed[rows].astype(np.int64), self.folded[rows].astype(np.int64)

    def copy(self) -> Touched:
        """As it is at this instant."""
        other = Touched()
        end = int(np.max(np.flatnonzero(self.changed | self.folded), initial=-1)) + 1
        other.changed, other.folded = self.changed[:end].copy(), self.folded[:end].copy()
        return other

    def pieces(self) -> Iterator[tuple[int, bytes, bytes]]:
        """(first row, changed, folded) of so many rows each."""
        for start in range(0, len(self.changed), PIECE_ROWS):
            end = start + PIECE_ROWS
            yield start, self.changed[start:end].astype("<u4").tobytes(), self.folded[start:end].astype("<u4").tobytes()

    def take(self, start: int, changed: bytes, folded: bytes) -> None:
        """A piece of a snapshot."""
        if len(changed) != len(folded):
            raise ValueError("columns of two lengths")
        end = start + len(changed) // 4
        self._grow(end)
        self.changed[start:end] = np.frombuffer(changed, "<u4")
        self.folded[start:end] = np.frombuffer(folded, "<u4")


__all__ = ["Touched"]

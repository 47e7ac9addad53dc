"""Runs of the table in the order in which they were made. Soft: `apply` and `load` make it, and it is in no digest. Pure.

A row's number says nothing of its age, as the lowest free row is taken first. So each run gets a number that grows, and pages of a
listing walk an array of (number, row) from where the last one ended: a page looks at a bound of runs, however many there are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_LEAST: Final = 1_024  # entries that are not worth a compaction
_NONE: Final = -1


class Created:
    """The order. Numbers begin with 0 at each load."""

    def __init__(self) -> None:
        self._number = np.empty(_LEAST, np.int64)  # ascending
        self._row = np.empty(_LEAST, np.uint32)
        self._of_row = np.full(_LEAST, _NONE, np.int64)  # number of the run that is in a row
        self._n = 0  # entries in use
        self._gone = 0  # of them those whose run has left
        self.next = 0  # number of the next run

    def add(self, rows: NDArray[np.uint32]) -> None:
        """Runs were made in these rows, in this order; rows that are known already are left as they are."""
        if not len(rows):
            return
        top = int(rows.max()) + 1
        if top > len(self._of_row):
            more = np.full(max(top, 2 * len(self._of_row)) - len(self._of_row), _NONE, np.int64)
            self._of_row = np.concatenate((self._of_row, more))
        fresh = rows[self._of_row[rows] == _NONE]
        self._of_row[fresh] = places = np.arange(len(fresh))
        if (self._of_row[fresh] != places).any():  # one that was made and then lengthened in one batch
            fresh = fresh[np.sort(np.unique(fresh, return_index=True)[1])]
        n = self._n + len(fresh)
        if n > len(self._row):
            size = max(n, 2 * len(self._row))
            self._number, self._row = (np.concatenate((a[: self._n], np.empty(size - self._n, a.dtype))) for a in (self._number, self._row))
        numbers = np.arange(self.next, self.next + len(fresh), dtype=np.int64)
        self._number[self._n : n], self._row[self._n : n], self._of_row[fresh] = numbers, fresh, numbers
        self._n, self.next = n, self.next + len(fresh)

    def remove(self, rows: NDArray[np.uint32]) -> None:
        """The runs in these rows have left the table."""
        self._of_row[rows] = _NONE
        self._gone += len(rows)
        if self._gone > max(_LEAST, self._n // 2):
            live = self._live(0, self._n)
            self._n, self._gone = len(live), 0
            self._number[: self._n], self._row[: self._n] = self._number[live], self._row[live]

    def _live(self, begin: int, end: int) -> NDArray[np.intp]:
        return begin + np.flatnonzero(self._of_row[self._row[begin:end]] == self._number[begin:end])

    def after(self, number: int, most: int) -> tuple[NDArray[np.uint32], NDArray[np.int64], int | None]:
        """(rows, their numbers, number of the last that was looked at) of those made after `number`, oldest first. `most` are looked at;
        None: that were all.
        """
        begin = int(np.searchsorted(self._number[: self._n], number, "right"))
        end = min(self._n, begin + most)
        places = self._live(begin, end)
        return self._row[places], self._number[places], int(self._number[end - 1]) if end < self._n else None

    def before(self, number: int, most: int) -> tuple[NDArray[np.uint32], NDArray[np.int64], int | None]:
        """The same of those made before `number`, newest first."""
        end = int(np.searchsorted(self._number[: self._n], number, "left"))
        begin = max(0, end - most)
        places = self._live(begin, end)[::-1]
        return self._row[places], self._number[places], int(self._number[begin]) if begin else None

    def rows(self) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """(rows, numbers) of all, oldest first."""
        places = self._live(0, self._n)
        return self._row[places], self._number[places]

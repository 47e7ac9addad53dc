"""What a reader of old records needs to know of rows that others have since: run rows are used again once their runs are folded.

Soft state: not in the digest nor in a snapshot; a start begins anew at the snapshot and fills it while it replays, so what the journal
holds and what is known here begin at the same record, unless the bounds below were met.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from ..model.columns import decode_column, encode_column

if TYPE_CHECKING:
    from numpy.typing import NDArray

FOLDS_MAX: Final = 8_192
BYTES_MAX: Final = 16 * 1024 * 1024  # of the rows of all folds
CREATED_MAX: Final = 262_144  # records that made jobs
FORGOTTEN_MAX: Final = 65_536  # names of jobs that are gone
_DROPPED: Final = 16_384  # of the created at once


@dataclass(frozen=True, slots=True)
class Fold:
    """Rows that went to history."""

    seq: int
    block: int  # how many blocks of history were made before it since the trail began
    folded: int  # rows of history before it
    rows: bytes  # an encoded column


class Trail:
    """Records above `oldest` can be told exactly."""

    def __init__(self) -> None:
        self.oldest = 0
        self.blocks = 0  # of history, since the trail began
        self.starts: list[tuple[int, int]] = []  # (record, generation from it on)
        self.last: NDArray[np.uint32] = np.zeros(0, np.uint32)  # run row -> number of its last fold; 0: none
        self._first = 1  # number of the first fold that is kept
        self._folds: deque[Fold] = deque()
        self._bytes = 0
        self._created: array[int] = array("q")  # records that put new jobs alone
        self._mixed: dict[int, bytes] = {}  # record that put new ones and others -> a bit for each row
        self._forgotten: deque[tuple[int, dict[int, bytes]]] = deque()  # (record, job row -> name)
        self._names = 0

    def cut(self, seq: int) -> None:
        """Records up to this one can't be told any more."""
        self.oldest = max(self.oldest, seq)
        while self._folds and self._folds[0].seq <= self.oldest:
            self._bytes -= len(self._folds.popleft().rows)
            self._first += 1
        while self._forgotten and self._forgotten[0][0] <= self.oldest:
            self._names -= len(self._forgotten.popleft()[1])
        while len(self.starts) > 1 and self.starts[1][0] <= self.oldest:
            del self.starts[0]
        if len(self._created) > _DROPPED and self._created[_DROPPED] <= self.oldest:
            del self._created[:bisect_right(self._created, self.oldest)]
        if self._mixed and next(iter(self._mixed)) <= self.oldest:
            self._mixed = {at: bits for at, bits in self._mixed.items() if at > self.oldest}

    def started(self, seq: int, generation: int) -> None:
        """From this record on it is that generation."""
        self.starts.append((seq, generation))

    def generation(self, seq: int) -> int:
        """That of a record."""
        return next((generation for at, generation in reversed(self.starts) if at <= seq), self.starts[0][1])

    def put(self, seq: int, fresh: NDArray[np.bool_]) -> None:
        """A record put jobs; these of them were new."""
        if fresh.all():
            self._created.append(seq)
        elif fresh.any():
            self._mixed[seq] = np.packbits(fresh).tobytes()
        if len(self._created) > CREATED_MAX:
            self.cut(self._created[_DROPPED])
        if len(self._mixed) > CREATED_MAX // 16:
            self.cut(next(iter(self._mixed)))

    def was_new(self, seq: int, n: int) -> NDArray[np.bool_]:
        """Which of the n jobs that a record put were new."""
        if seq in self._mixed:
            return np.unpackbits(np.frombuffer(self._mixed[seq], np.uint8), count=n).astype(np.bool_)
        at = bisect_right(self._created, seq) - 1
        return np.full(n, at >= 0 and self._created[at] == seq, np.bool_)

    def fold(self, seq: int, folded: int, rows: NDArray[np.uint32]) -> None:
        """These rows of the run table go to history, in this order, as its next block."""
        highest = int(rows.max())
        if highest >= len(self.last):
            self.last = np.concatenate([self.last, np.zeros(max(highest + 1 - len(self.last), len(self.last) // 2), np.uint32)])
        data = encode_column(rows)
        self._folds.append(Fold(seq, self.blocks, folded, data))
        self.last[rows] = self._first + len(self._folds) - 1
        self._bytes += len(data)
        self.blocks += 1
        while len(self._folds) > FOLDS_MAX or self._bytes > BYTES_MAX:
            self.cut(self._folds[0].seq)

    def forget(self, seq: int, names: dict[int, bytes]) -> None:
        """These job rows are free from now on."""
        self._forgotten.append((seq, names))
        self._names += len(names)
        while self._names > FORGOTTEN_MAX:
            self.cut(self._forgotten[0][0])

    def job_name(self, row: int, seq: int) -> bytes | None:
        """The name that a job row had at a record, when another may have the row now."""
        return next((names[row] for at, names in self._forgotten if at > seq and row in names), None)

    @property
    def any_forgotten(self) -> bool:
        """Were job rows set free?"""
        return bool(self._forgotten)

    def find(self, rows: NDArray[np.uint32], seqs: NDArray[np.int64]) -> list[tuple[Fold, list[int], list[int]]]:
        """Which of these run rows, each as of a record, went to history since: (fold, their places here, their places in it)."""
        folds = list(self._folds)
        after = np.searchsorted(np.array([fold.seq for fold in folds], np.int64), seqs, "right") + self._first  # first fold that counts
        last = np.zeros(len(rows), np.int64)
        known = rows < len(self.last)
        last[known] = self.last[rows[known]]
        waiting: dict[int, list[int]] = {}
        for i in np.flatnonzero(last >= after).tolist():
            waiting.setdefault(int(rows[i]), []).append(i)
        found: list[tuple[Fold, list[int], list[int]]] = []
        if not waiting:
            return found
        wanted = np.zeros(len(self.last), np.bool_)
        wanted[list(waiting)] = True
        number = int(after[last >= after].min())
        while waiting:
            fold = folds[number - self._first]
            members = decode_column(fold.rows)
            mine: list[tuple[int, int]] = []
            for place in np.flatnonzero(wanted[members]).tolist():
                row = int(members[place])
                open_ = waiting[row]
                mine += [(i, place) for i in open_ if after[i] <= number]
                left = [i for i in open_ if after[i] > number]
                if left:
                    waiting[row] = left
                else:
                    del waiting[row]
                    wanted[row] = False
            if mine:
                found.append((fold, [i for i, _ in mine], [place for _, place in mine]))
            number += 1
        return found


__all__ = ["Fold", "Trail"]


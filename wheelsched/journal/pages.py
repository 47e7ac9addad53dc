"""The pages of an LMDB 0.9 file, read without mapping it: is each where it belongs, once, and is no page that is in use listed as free?

LMDB trusts its pages. A wrong pointer ends the process by a signal, and a wrong number in its list of free pages makes the next commits
write over records. So a start looks before LMDB does: at everything, but at a long history only afterwards, in the background. It looks
at structure only; what the values hold is the checksums' business.

Pages are read and judged in large batches, level by level: about two seconds for each gigabyte of short records, and
less of long ones.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from ..model.errors import CorruptJournalError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    Pages = NDArray[np.uint64]

__all__ = ["Walk", "walk_pages"]

_NONE: Final = 2**64 - 1  # the root of an empty tree
_META_PAGES: Final = 2
_DEPTH_MAX: Final = 32
_BATCH: Final = 2_048  # pages
_BRANCH, _LEAF, _OVERFLOW = 1, 2, 4  # flags of a page
_BIG, _SUB = 1, 2  # flags of a node
_ROOTS_AT: Final = 16 + 24  # in a meta page: the trees of free pages and of names, then the last page and the transaction
_HEAD: Final = np.dtype([("number", "<u8"), ("pad", "<u2"), ("flags", "<u2"), ("lower", "<u2"), ("upper", "<u2")])
_TREE: Final = np.dtype([
    ("pad", "<u4"), ("flags", "<u2"), ("depth", "<u2"), ("branch", "<u8"), ("leaf", "<u8"), ("overflow", "<u8"), ("entries", "<u8"),
    ("root", "<u8"),
])


class _Damaged(Exception):  # noqa: N818 - not for callers
    """What is wrong; the rest of the walk would be about nothing."""


class _Nodes(NamedTuple):
    """The nodes of a batch of pages."""

    pages: NDArray[np.uint8]
    row: NDArray[np.int64]  # of each: its page
    at: NDArray[np.int64]  # and where in it its key begins
    size: NDArray[np.int64]  # of its value; of a branch: the page that it points to
    flags: NDArray[np.int64]
    key: NDArray[np.int64]  # bytes

    def words(self, at: NDArray[np.int64], which: NDArray[np.int64]) -> Pages:
        """64-bit numbers at these places in the pages of these nodes; they need not be aligned."""
        found: Pages = self.pages[self.row[which][:, None], at[:, None] + np.arange(8)].copy().view("<u8")[:, 0]
        return found


class Walk:
    """One look at the newest state in a file that nobody changes, or whose pages are held by a read transaction."""

    def __init__(self, path: Path, page_bytes: int) -> None:
        """OSError. CorruptJournalError when it has no meta pages."""
        self._left: dict[str, Any] = {}  # tables that were put off
        self._path = path
        self._fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        self._psize = page_bytes
        metas = self._read(np.arange(_META_PAGES, dtype=np.uint64))
        if metas is None:
            os.close(self._fd)
            raise CorruptJournalError(f"{path} is cut off")
        ends = metas[:, _ROOTS_AT + 2 * _TREE.itemsize : _ROOTS_AT + 2 * _TREE.itemsize + 16].copy().view("<u8")
        newest = int(ends[:, 1].argmax())
        self.trees = metas[newest, _ROOTS_AT : _ROOTS_AT + 2 * _TREE.itemsize].copy().view(_TREE)
        self.end, self.txn_id = int(ends[newest, 0]) + 1, int(ends[newest, 1])
        self.live = np.zeros(max(self.end, _META_PAGES), np.uint8)
        self.free = np.zeros_like(self.live)
        self.live[:_META_PAGES] = 1

    def close(self) -> None:
        """Give the descriptor back."""
        os.close(self._fd)

    # Reading

    def _read(self, numbers: Pages) -> NDArray[np.uint8] | None:
        """These pages; None when one lies beyond the end of the file."""
        found = np.empty((len(numbers), self._psize), np.uint8)
        breaks = np.flatnonzero(np.diff(numbers) != 1) + 1
        starts = [0, *breaks.tolist()]
        for start, end in zip(starts, [*starts[1:], len(numbers)], strict=True):
            if end > start and os.preadv(self._fd, [found[start:end]], int(numbers[start]) * self._psize) < (end - start) * self._psize:
                return None
        return found

    def _value(self, number: int, size: int) -> bytes:
        return os.pread(self._fd, size, number * self._psize + _HEAD.itemsize)

    # Judging

    def _mark(self, numbers: Pages, what: str, kind: str = "live") -> None:
        """Pages that are in use here, or free."""
        marks = getattr(self, kind)
        outside = numbers[(numbers < _META_PAGES) | (numbers >= self.end)]
        if len(outside):
            raise _Damaged(f"{what} has page {outside[0]}, of {self.end}")
        ordered = np.sort(numbers)
        twice = ordered[np.flatnonzero(np.diff(ordered) == 0)] if len(ordered) > 1 else ordered[:0]
        twice = twice if len(twice) else numbers[marks[numbers.astype(np.int64)] > 0]
        if len(twice):
            raise _Damaged(f"page {twice[0]} is there twice, once in {what}")
        marks[numbers.astype(np.int64)] = 1

    def _heads(self, found: NDArray[np.uint8], numbers: Pages, what: str) -> Any:
        heads = found[:, : _HEAD.itemsize].copy().view(_HEAD)[:, 0]
        wrong = np.flatnonzero(heads["number"] != numbers)
        if len(wrong):
            raise _Damaged(f"page {numbers[wrong[0]]} of {what} says that it is page {heads['number'][wrong[0]]}")
        return heads

    def _nodes(self, found: NDArray[np.uint8], heads: Any, numbers: Pages, what: str) -> _Nodes:
        lower, upper = heads["lower"].astype(np.int64), heads["upper"].astype(np.int64)
        bad = (lower < _HEAD.itemsize) | (lower > upper) | (upper > self._psize) | (lower % 2 > 0)
        bad |= ~np.isin(heads["flags"], (_BRANCH, _LEAF)) | ((heads["flags"] == _BRANCH) & (lower < _HEAD.itemsize + 2))
        if bad.any():
            raise _Damaged(f"page {numbers[np.flatnonzero(bad)[0]]} of {what} has a damaged head")
        count = (lower - _HEAD.itemsize) // 2
        row = np.repeat(np.arange(len(found)), count)
        index = np.arange(len(row)) - np.repeat(np.cumsum(count) - count, count)
        words = found.view("<u2")
        at = words[row, _HEAD.itemsize // 2 + index].astype(np.int64)
        bad = (at < upper[row]) | (at + 8 > self._psize) | (at % 2 > 0)
        if bad.any():
            raise _Damaged(f"page {numbers[row[np.flatnonzero(bad)[0]]]} of {what} has an entry outside")
        low, high, flags, key = (words[row, at // 2 + i].astype(np.int64) for i in range(4))
        branch = heads["flags"][row] == _BRANCH
        size = low | high << 16 | np.where(branch, flags << 32, 0)
        flags = np.where(branch, 0, flags)
        taken = np.where(branch, 0, np.where(flags & _BIG > 0, 8, size))
        bad = (at + 8 + key + taken > self._psize) | (flags & ~(_BIG | _SUB) > 0) | (flags == _BIG | _SUB)
        if bad.any():
            raise _Damaged(f"page {numbers[row[np.flatnonzero(bad)[0]]]} of {what} has a damaged entry")
        return _Nodes(found, row, at + 8, size, flags, key)

    # Walking

    def tree(self, tree: Any, what: str) -> Iterator[_Nodes]:
        """The leaves of a tree, in its order, in batches; marks its pages, and checks its counters when it is at the end."""
        seen = {"branch": 0, "leaf": 0, "overflow": 0, "entries": 0, "depth": 0}
        level = np.array([tree["root"]], np.uint64) if int(tree["root"]) != _NONE else np.zeros(0, np.uint64)
        while len(level):
            seen["depth"] += 1
            if seen["depth"] > _DEPTH_MAX:
                raise _Damaged(f"{what} has no end")
            self._mark(level, what)
            below = []
            for start in range(0, len(level), _BATCH):
                numbers = level[start : start + _BATCH]
                found = self._read(numbers)
                if found is None:
                    raise _Damaged(f"a page of {what} is cut off")
                heads = self._heads(found, numbers, what)
                nodes = self._nodes(found, heads, numbers, what)
                branches = heads["flags"] == _BRANCH
                down = branches[nodes.row]
                below.append(nodes.size[down].astype(np.uint64))
                seen["branch"] += int(branches.sum())
                seen["leaf"] += int((~branches).sum())
                seen["entries"] += int((~down).sum())
                leaves = _Nodes(found, *(column[~down] for column in nodes[1:]))
                seen["overflow"] += self._long_values(leaves, what)
                yield leaves
            level = np.concatenate(below)
        for name, number in seen.items():
            if int(tree[name]) != number:
                raise _Damaged(f"{what} says that it has {name} {tree[name]}, it has {number}")

    def _long_values(self, leaves: _Nodes, what: str) -> int:
        big = np.flatnonzero(leaves.flags & _BIG)
        if not len(big):
            return 0
        starts = leaves.words(leaves.at[big] + leaves.key[big], big)
        need = (_HEAD.itemsize - 1 + leaves.size[big]) // self._psize + 1
        if int(need.max()) > self.end:
            raise _Damaged(f"{what} has a value of {need.max()} pages")
        total = (np.repeat(starts.astype(np.int64) - (np.cumsum(need) - need), need) + np.arange(int(need.sum()))).astype(np.uint64)
        self._mark(total, what)
        for number, pages in zip(starts.tolist(), need.tolist(), strict=True):
            head = np.frombuffer(os.pread(self._fd, _HEAD.itemsize, number * self._psize).ljust(_HEAD.itemsize, b"\0"), _HEAD)[0]
            length = int(head["lower"]) | int(head["upper"]) << 16
            if int(head["number"]) != number or int(head["flags"]) != _OVERFLOW or length != pages:
                raise _Damaged(f"page {number} of {what} has a damaged head")
        if int(total[-1] if len(total) == 1 else total.max() + 1) * self._psize > os.fstat(self._fd).st_size:
            raise _Damaged(f"a value of {what} is cut off")
        return len(total)

    def free_list(self) -> None:
        """Take in the list of free pages: each in range, and once."""
        before = 0
        for leaves in self.tree(self.trees[0], "the list of free pages"):
            all_of = np.arange(len(leaves.row))
            if ((leaves.key != 8) | (leaves.flags & _SUB > 0)).any():
                raise _Damaged("the list of free pages has a damaged entry")
            for i, txn in zip(all_of.tolist(), leaves.words(leaves.at, all_of).tolist(), strict=True):
                at, size = int(leaves.at[i]) + 8, int(leaves.size[i])
                if leaves.flags[i] & _BIG:
                    data = self._value(int(leaves.words(leaves.at[i : i + 1] + 8, np.array([i]))[0]), size)
                else:
                    data = leaves.pages[leaves.row[i], at : at + size].tobytes()
                numbers = np.frombuffer(data[: len(data) // 8 * 8], "<u8")
                whole = before < txn <= self.txn_id and len(numbers) > 0 and 8 * len(numbers) == size
                if not whole or int(numbers[0]) != len(numbers) - 1 or (numbers[1:-1] <= numbers[2:]).any():
                    raise _Damaged(f"the list of free pages has a damaged entry, of transaction {txn}")
                self._mark(numbers[1:], "the list of free pages", "free")
                before = txn

    def names(self) -> dict[str, Any]:
        """The trees by their names."""
        found = {}
        for leaves in self.tree(self.trees[1], "the names of the tables"):
            for i in range(len(leaves.row)):
                at, end = int(leaves.at[i]), int(leaves.at[i] + leaves.key[i])
                page = leaves.pages[leaves.row[i]]
                if leaves.flags[i] != _SUB or leaves.size[i] != _TREE.itemsize:
                    raise _Damaged("a table has no root")
                name = page[at:end].tobytes().decode("ascii", "replace")
                found[name] = page[end : end + _TREE.itemsize].copy().view(_TREE)[0]
        return found

    def look(self, *, put_off: str = "", above_bytes: int = 0) -> list[str]:
        """What is wrong: free pages, names, and every table, but the one to `put_off` if it has more than so many bytes."""
        try:
            self.free_list()
            for name, tree in self.names().items():
                pages = sum(int(tree[kind]) for kind in ("branch", "leaf", "overflow"))
                if name == put_off and pages * self._psize > above_bytes:
                    self._left[name] = tree
                    continue
                for _ in self.tree(tree, f"the table {name}"):
                    pass
            self._compare()
        except _Damaged as e:
            return [f"{self._path.name}: {e}"]
        return []

    @property
    def complete(self) -> bool:
        """Nothing was put off."""
        return not self._left

    def rest(self, stop: Callable[[], bool]) -> list[str]:
        """The same for what was put off, in pieces, until `stop` says so."""
        try:
            while self._left:
                name, tree = self._left.popitem()
                for _ in self.tree(tree, f"the table {name}"):
                    if stop():
                        return []
            self._compare()
        except _Damaged as e:
            return [f"{self._path.name}: {e}"]
        return []

    def _compare(self) -> None:
        both = np.flatnonzero(self.live & self.free)
        if len(both):
            raise _Damaged(f"page {both[0]} is in use and in the list of free pages")
        lost = np.flatnonzero((self.live | self.free) == 0)
        if len(lost) and self.complete:
            raise _Damaged(f"page {lost[0]} is neither in use nor in the list of free pages")


def walk_pages(path: Path, page_bytes: int) -> list[str]:
    """What is wrong with the structure of the file, all of it. OSError, CorruptJournalError."""
    walk = Walk(path, page_bytes)
    try:
        return walk.look()
    finally:
        walk.close()

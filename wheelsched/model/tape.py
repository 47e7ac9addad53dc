"""What is kept of an output: its first and its last half of so many bytes, and how much there was in all. Pure."""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

STREAMS: Final = ("stdout", "stderr")
JOIN_BYTES: Final = 4_096
MARK_MAX: Final = 64  # room for the line that says how much was left out


class Piece(NamedTuple):
    """A part of an output."""

    stream: str
    at: int  # behind how many bytes
    data: bytes


class Tape:
    """Memory stays flat, whatever is added."""

    __slots__ = ("_full", "_half", "_head", "_tail", "_tail_bytes", "limit", "total")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._half = limit // 2
        self.clear()

    def clear(self) -> None:
        """Begin anew."""
        self.total = 0  # bytes
        self._head = bytearray()
        self._full = False  # the head: what comes next doesn't follow on it
        self._tail: deque[bytes] = deque()
        self._tail_bytes = 0

    def add(self, data: bytes) -> None:
        """Put it behind what there is."""
        self.total += len(data)
        room = self._half - len(self._head)
        if room > 0 and not self._full:
            self._head += data[:room]
            data = data[room:]
        if not data:
            return
        data = data[-self._half :]
        self._tail_bytes += len(data)
        if self._tail and len(data) + len(self._tail[-1]) <= JOIN_BYTES:  # no object for each small write
            self._tail[-1] += data
        else:
            self._tail.append(data)
        while self._tail_bytes - len(self._tail[0]) >= self._half:
            self._tail_bytes -= len(self._tail.popleft())

    def add_at(self, at: int, data: bytes) -> None:
        """Put there what begins behind its first `at` bytes. What is known already is not added again, what is missing is left out."""
        if at > self.total:
            self.total, self._full = at, True
            self._tail.clear()
            self._tail_bytes = 0
        self.add(data[self.total - at :])

    def text(self) -> tuple[bytes, int]:
        """(what is kept, with a mark where bytes were left out; how many were)."""
        data, tail = bytes(self._head), self._end()
        cut = self.total - len(data) - len(tail)
        if cut:
            tail = tail[max(0, len(data) + len(tail) + MARK_MAX - self.limit) :]
            cut = self.total - len(data) - len(tail)
            return data + mark(cut) + tail, cut
        return data + tail, 0

    def since(self, at: int) -> tuple[int, bytes]:
        """What is kept of what comes behind the first `at` bytes, as far as it hangs together, and where it begins."""
        end = self._end()
        behind = self.total - len(end)
        if at < len(self._head):
            return at, bytes(self._head[at:]) + (end if behind == len(self._head) else b"")
        start = max(at, behind)
        return start, end[start - behind :]

    def pieces(self) -> list[tuple[int, bytes]]:
        """All that is kept, in pieces that hang together: (behind how many bytes, what)."""
        at, data = self.since(0)
        found = [(at, data), self.since(at + len(data))]
        return [(start, piece) for start, piece in found if piece]

    def _end(self) -> bytes:
        return b"".join(self._tail)[-self._half :]


def mark(cut: int) -> bytes:
    """The line in place of bytes that were left out."""
    return f"\n[... {cut} bytes left out ...]\n".encode()


def unseen(data: bytes, cut: int, seen: int) -> tuple[bytes, int]:
    """What comes behind the first `seen` bytes of an output that `Tape.text` gave as (data, cut), and how many it has had by now."""
    if not cut:
        return data[seen:], max(seen, len(data))
    head, _, tail = data.partition(mark(cut))
    behind = len(head) + cut
    total = max(seen, behind + len(tail))
    if seen <= len(head):
        return data[seen:], total
    if seen >= behind:
        return tail[seen - behind :], total
    return mark(behind - seen) + tail, total


__all__ = ["STREAMS", "Piece", "Tape", "mark", "unseen"]

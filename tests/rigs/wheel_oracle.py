"""Dumb twins of fast structures: a dict and a sort, to be compared with."""

from __future__ import annotations

NEVER_MS = 2**63 - 1


class DumbWheel:
    """The timing wheel as its interface says, by sorting."""

    def __init__(self, now_ms: int) -> None:
        self.now_ms = now_ms
        self.timers: dict[int, tuple[int, int]] = {}  # id -> (instant, number of the add)
        self.added = 0

    def add(self, ids: list[int], when_ms: list[int]) -> None:
        for timer, when in zip(ids, when_ms, strict=True):
            self.timers.pop(timer, None)
            if when != NEVER_MS:
                self.timers[timer] = (when, self.added)
                self.added += 1

    def cancel(self, ids: list[int]) -> int:
        return sum(self.timers.pop(timer, None) is not None for timer in ids)

    def due(self, now_ms: int) -> list[int]:
        """What `advance` gives until it is empty; the timers stay."""
        return sorted((t for t, (when, _) in self.timers.items() if when <= now_ms), key=self.timers.__getitem__)

    def advance(self, now_ms: int, count: int) -> list[int]:
        """Take the first `count` due ids."""
        assert now_ms >= self.now_ms
        self.now_ms = now_ms
        taken = self.due(now_ms)[:count]
        for timer in taken:
            del self.timers[timer]
        return taken

    def next_due(self) -> int:
        return min((when for when, _ in self.timers.values()), default=NEVER_MS)

    def when(self, timer: int) -> int | None:
        return self.timers[timer][0] if timer in self.timers else None

    def rebuild(self, now_ms: int) -> None:
        self.now_ms = now_ms

    def clear(self, now_ms: int) -> None:
        self.now_ms = now_ms
        self.timers.clear()

    def pending(self) -> list[int]:
        return sorted(self.timers)

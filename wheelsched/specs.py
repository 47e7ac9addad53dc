"""Compiled definitions, by number, as arrays: what the due path needs to know about a million jobs at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from .model import NEVER

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .schedule import ScheduleTable

KIND_CRON: Final = 1
KIND_EVERY: Final = 2
KIND_AT: Final = 3
KIND_MANUAL: Final = 4
OVERLAP_SKIP: Final = 0
OVERLAP_ALLOW: Final = 1
OVERLAP_BUFFER: Final = 2
_ARRAYS: Final = ("kind", "a", "overlap", "overlap_max", "start", "end", "max_runs", "timeout", "skip_missed")


class SpecTable:
    """Compiled definitions, by spec number: what the due path needs, as arrays."""

    def __init__(self, schedules: ScheduleTable) -> None:
        self.schedules = schedules
        self.count = 0
        self._cap = 64
        self.kind = np.zeros(64, np.uint8)
        self.a = np.zeros(64, np.int64)
        self.overlap = np.zeros(64, np.uint8)
        self.overlap_max = np.zeros(64, np.uint32)
        self.start = np.zeros(64, np.int64)
        self.end = np.zeros(64, np.int64)
        self.max_runs = np.zeros(64, np.uint32)
        self.timeout = np.zeros(64, np.int64)
        self.skip_missed = np.zeros(64, np.bool_)

    def add(self, spec: int, wire: dict[str, Any]) -> None:
        """Compile one definition. ScheduleError when its schedule can't be evaluated."""
        kind, a = self.schedules.compile(wire["schedule"], wire.get("hash_id") or "")
        if spec >= self._cap:
            self._cap *= 2
            for name in _ARRAYS:
                old = getattr(self, name)
                fresh = np.zeros(self._cap, old.dtype)
                fresh[: len(old)] = old
                setattr(self, name, fresh)
        overlap = wire["overlap"]
        policy = overlap["policy"]
        self.kind[spec], self.a[spec] = kind, a
        self.overlap[spec] = {"skip": OVERLAP_SKIP, "allow": OVERLAP_ALLOW}.get(policy, OVERLAP_BUFFER)
        self.overlap_max[spec] = overlap["max"] or (1 if policy == "buffer_one" else 0xFFFFFFFF if policy == "allow" else 100)
        self.start[spec] = -1 if wire["start_us"] is None else wire["start_us"]
        self.end[spec] = NEVER if wire["end_us"] is None else wire["end_us"]
        self.max_runs[spec] = 0xFFFFFFFF if wire["max_runs"] is None else wire["max_runs"]
        self.timeout[spec] = wire["timeout_us"]
        self.skip_missed[spec] = wire["catchup"]["policy"] == "skip"
        self.count = spec + 1

    def next(self, spec: NDArray[np.uint32], param: NDArray[np.int64], after: NDArray[np.int64]) -> NDArray[np.int64]:
        """First nominal instant strictly after each `after`, inside start and end; NEVER where there is none."""
        out = np.empty(len(spec), np.int64)
        after = np.maximum(after, self.start[spec] - 1)
        self.schedules.next_many(self.kind[spec], self.a[spec], np.ascontiguousarray(param), np.ascontiguousarray(after), out)
        out[out > self.end[spec]] = NEVER
        return out

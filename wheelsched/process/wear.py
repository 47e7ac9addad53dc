"""When an executor is to be replaced between two runs: after so many of them, or when its memory has grown too much."""

from __future__ import annotations

import os
from typing import Final

MIB: Final = 1024 * 1024
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")


class Wear:
    """What an executor may take until it is replaced."""

    def __init__(self, max_runs: int, max_rss: int) -> None:
        """`max_rss`: bytes of resident memory, without that of its children. 0: no limit."""
        self.runs = 0  # that it has entered
        self._max_runs = max_runs
        self._max_rss = max_rss
        self._statm = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC) if max_rss else -1

    @classmethod
    def from_text(cls, text: str) -> Wear:
        """As `wear_text` has written it."""
        return cls(*map(int, text.split(",")))

    def left(self, wanted: int) -> int:
        """How many of so many runs it may still enter."""
        return min(wanted, self._max_runs - self.runs) if self._max_runs else wanted

    def why(self) -> str:
        """Why it is to be replaced now; empty: it is not. About 2 µs with a limit of memory."""
        if self._max_runs and self.runs >= self._max_runs:
            return f"after {self.runs:,} runs (max_runs)"
        if self._max_rss:
            rss = int(os.pread(self._statm, 100, 0).split()[1]) * _PAGE
            if rss > self._max_rss:
                return f"at {rss / MIB:,.0f} MiB of memory (max_rss)"
        return ""


def wear_text(max_runs: int, max_rss: int) -> str:
    """Both limits as an argument of an executor."""
    return f"{max_runs},{max_rss}"

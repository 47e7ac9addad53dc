"""How much memory is left to the server: it refuses what would make it keep more before the kernel ends it."""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import Final

from ..model.nouns import US

LOOK_US: Final = US // 10  # between two looks
ROOM: Final = 96 * 1024 * 1024  # bytes that are kept back for answers and snapshots, or an eighth of a small limit
_SHARE: Final = 0.8  # of the machine's memory, or its control group's, that the server may have for itself
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")


class Headroom:
    """Looks at /proc/self/statm now and then."""

    def __init__(self) -> None:
        self._most = int(_SHARE * min(_of_group(), os.sysconf("SC_PHYS_PAGES") * _PAGE))
        self._statm = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)  # held: there may be no descriptor left when it is wanted
        self._look_us = 0
        self._full = ""

    def close(self) -> None:
        """Give the descriptor back."""
        os.close(self._statm)

    def full(self, mono_us: int) -> str:
        """Why nothing more is kept; empty when there is room."""
        if mono_us >= self._look_us:
            self._look_us = mono_us + LOOK_US
            size, resident, shared = (int(pages) * _PAGE for pages in os.pread(self._statm, 200, 0).split()[:3])
            self._full = self._judge(size, resident - shared)
        return self._full

    def _judge(self, size: int, own: int) -> str:
        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        if limit != resource.RLIM_INFINITY and size + min(ROOM, limit // 8) > limit:
            return f"limit memory: the address space of the server is used up, {size >> 20} of {limit >> 20} MiB (ulimit -v)"
        if own > self._most:
            return f"limit memory: the server has {own >> 20} MiB, and keeps no more than {self._most >> 20} MiB"
        return ""


def _of_group() -> int:
    """`memory.max` of the control group, version 2."""
    try:
        line = next(line for line in Path("/proc/self/cgroup").read_text(encoding="ascii").splitlines() if line.startswith("0::"))
        return int(Path("/sys/fs/cgroup", line[3:].lstrip("/"), "memory.max").read_text(encoding="ascii"))
    except (OSError, StopIteration, ValueError):  # no such group, or "max"
        return 2**62


__all__ = ["Headroom"]

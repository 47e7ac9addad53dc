"""What an attempt used: CPU time, of its children too, and memory at its peak. For executors with one run at a time.

A reading is taken at the begin of a batch and behind each run that lasted for MEASURED_NS; runs between two readings were short, and
what they used is taken for CPU time. The kernel's mark of the peak is set back with each reading.
"""

from __future__ import annotations

import os
import re
import resource
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import subprocess

MEASURED_NS: Final = 1_000_000  # shorter runs are not measured
_PEAK: Final = re.compile(rb"VmHWM:\s+(\d+) kB")


class Meter:
    """Measures this process."""

    def __init__(self) -> None:
        self._status = self._clear = -1
        try:
            self._clear = os.open("/proc/self/clear_refs", os.O_WRONLY | os.O_CLOEXEC)
            self._status = os.open("/proc/self/status", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            pass  # then the peak is not known: that since the start of the process would be said of runs that had no part in it
        self._child_rss = 0
        self._pid = os.getpid()
        self.begin()

    def begin(self) -> None:
        """What follows is used by the next run."""
        self._at_ns = time.monotonic_ns()
        self._cpu_us, self._children_rss = _cpu_us()
        self._child_rss = 0
        if self._status >= 0:
            try:
                os.pwrite(self._clear, b"5", 0)
            except OSError:
                self._status = -1

    def take(self, begun_ns: int) -> dict[str, int]:
        """Entries of the result map of the run that began then and has ended now; the next one may begin."""
        cpu_us, children = _cpu_us()
        used = cpu_us - self._cpu_us - max(0, begun_ns - self._at_ns) // 1_000
        found = {"cpu_us": max(0, used)}
        peak = _PEAK.search(os.pread(self._status, 8_192, 0)) if self._status >= 0 and self._pid == os.getpid() else None
        if peak is not None:
            found["max_rss"] = max(int(peak[1]) * 1_024, self._child_rss, children if children > self._children_rss else 0)
        self.begin()
        return found

    def reap(self, proc: subprocess.Popen[bytes]) -> int:
        """Wait for a child of this run; its exit code."""
        _, status, used = os.wait4(proc.pid, 0)
        self._child_rss = max(self._child_rss, used.ru_maxrss * 1_024)
        proc.returncode = os.waitstatus_to_exitcode(status)
        return proc.returncode


def _cpu_us() -> tuple[int, int]:
    """CPU time of this process and of the children that it waited for, in microseconds; the peak of the largest child, in bytes."""
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime
    return round(seconds * 1e6), children.ru_maxrss * 1_024

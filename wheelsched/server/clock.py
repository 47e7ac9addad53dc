"""The server's clocks: wall (with an offset for benchmarks and tests), monotonic, boot time; and a timer that reports clock steps.

timerfd on CLOCK_REALTIME with TFD_TIMER_CANCEL_ON_SET: the kernel ends the wait when somebody sets the clock, so a sleep
computed from the old clock is never slept out. Through ctypes, because `os.timerfd_create` came with Python 3.13 only.
"""

from __future__ import annotations

import ctypes
import errno
import os
import time
from typing import Final

from ..engine.turn import Now
from ..model.nouns import CLOCK_STEP_US, NEVER, US

_CLOCK_REALTIME: Final = 0
_TFD_NONBLOCK_CLOEXEC: Final = os.O_NONBLOCK | os.O_CLOEXEC
_TFD_TIMER_ABSTIME: Final = 1
_TFD_TIMER_CANCEL_ON_SET: Final = 2
_FAR_US: Final = 2**31 * US  # the kernel's timer takes any time; this keeps it inside time_t everywhere


class _Timespec(ctypes.Structure):
    _fields_ = (("sec", ctypes.c_long), ("nsec", ctypes.c_long))


class _Itimerspec(ctypes.Structure):
    _fields_ = (("interval", _Timespec), ("value", _Timespec))


class WallTimer:
    """One timerfd: `fileno()` is readable at the instant set, or when the wall clock was set."""

    def __init__(self) -> None:
        """OSError when the kernel has no timerfd."""
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd: int = self._libc.timerfd_create(_CLOCK_REALTIME, _TFD_NONBLOCK_CLOEXEC)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create failed")
        self._set_us = -1
        self.set(NEVER)

    def fileno(self) -> int:
        """For the selector."""
        return self._fd

    def set(self, wall_us: int) -> None:
        """Wake at this instant of the system's wall clock (no offset); NEVER only reports steps. One syscall when it changes."""
        wall_us = min(max(wall_us, 1), _FAR_US)
        if wall_us == self._set_us:
            return
        spec = _Itimerspec(_Timespec(0, 0), _Timespec(wall_us // US, wall_us % US * 1000))
        if self._libc.timerfd_settime(self._fd, _TFD_TIMER_ABSTIME | _TFD_TIMER_CANCEL_ON_SET, ctypes.byref(spec), None) < 0:
            raise OSError(ctypes.get_errno(), "timerfd_settime failed")
        self._set_us = wall_us

    def drain(self) -> None:
        """Clear the readiness; the timer must be set again."""
        self._set_us = -1
        try:
            os.read(self._fd, 8)
        except OSError as e:
            if e.errno not in (errno.ECANCELED, errno.EAGAIN):
                raise

    def close(self) -> None:
        """Give the descriptor back."""
        os.close(self._fd)


class Clock:
    """Reads both clocks and tells steps from suspends."""

    def __init__(self, offset_us: int = 0) -> None:
        self.offset_us = offset_us
        self._last = self.now()

    def now(self) -> Now:
        """Both clocks, in microseconds; `wall_us` with the offset."""
        wall_us, mono_us = time.time_ns() // 1000 + self.offset_us, time.monotonic_ns() // 1000
        return Now(wall_us, mono_us, time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000 - mono_us)

    def look(self) -> tuple[Now, int, int]:
        """(now, step, suspended): how far the wall clock was set since the last look, and how long the machine slept.

        Small drifts (slewing) count as no step.
        """
        now = self.now()
        elapsed = now.mono_us - self._last.mono_us
        slept = max(0, now.slept_us - self._last.slept_us)
        step = now.wall_us - self._last.wall_us - elapsed - slept
        self._last = now
        return now, step if abs(step) > CLOCK_STEP_US else 0, slept if slept > CLOCK_STEP_US else 0

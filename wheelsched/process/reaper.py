"""Orphans of a process that adopts them: PID 1 of a container, or a child subreaper. They are reaped, or they stay as zombies for ever."""

from __future__ import annotations

import ctypes
import os
import signal
from typing import TYPE_CHECKING, Any, Final

from . import processes

if TYPE_CHECKING:
    from collections.abc import Container

_PR_GET_CHILD_SUBREAPER: Final = 37


class Reaper:
    """Reaps what is no process of the pool. In any other process than such a one it does nothing."""

    def __init__(self) -> None:
        self.due = False  # a child has, since the last look

    def watch(self) -> None:
        """Have the signal of an ended child seen, if orphans come here. In the main thread."""
        if adopts():
            signal.signal(signal.SIGCHLD, self._signal)
            self.due = True

    def _signal(self, *_: Any) -> None:
        self.due = True

    def reap(self, own: Container[int]) -> None:
        """Take the ended children that are not among `own`."""
        self.due = False
        for pid in processes.zombies_of(os.getpid()):
            if pid not in own:
                os.waitpid(pid, os.WNOHANG)


def adopts() -> bool:
    """Do orphans become children of this process?"""
    found = ctypes.c_int(0)
    ctypes.CDLL(None).prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(found), 0, 0, 0)
    return os.getpid() == 1 or bool(found.value)

"""How a journal that can't go on ends its process: at once, and with a line that names the cause."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Final, NoReturn

import lmdb

from ..process.stderr import ERROR, say

if TYPE_CHECKING:
    from pathlib import Path

    from ..model.errors import CorruptJournalError

__all__ = ["EXIT_DAMAGED", "EXIT_FATAL", "end_damaged", "end_failed", "why_failed"]

EXIT_DAMAGED: Final = 65
EXIT_FATAL: Final = 70
_FULL_BYTES: Final = 1 << 20  # LMDB takes a write that was cut short for an I/O error; with less room than this it was the disk


def why_failed(error: BaseException, place: Path, map_size: int) -> str:
    """The cause of a commit that failed, for a person."""
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, lmdb.MapFullError):
        return f"the map is full: map_size is {map_size >> 20} MiB, and the disk may have more. Give a larger map_size ({text})"
    try:
        st = os.statvfs(place)
    except OSError:
        return text
    free = st.f_bavail * st.f_frsize
    if free < _FULL_BYTES or (isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)):
        return (f"the disk is full: {free >> 10} KiB are free at {place}; who else writes there has taken what the reserve had given up."
                f" Free space ({text})")
    return text


def end_failed(error: BaseException, place: Path, map_size: int) -> NoReturn:
    """After a commit that failed: an answer after a failed sync could be a lie."""
    say(f"the journal failed: {why_failed(error, place, map_size)}. The process ends; restart it when the cause is gone.", ERROR)
    os._exit(EXIT_FATAL)


def end_damaged(error: CorruptJournalError) -> NoReturn:
    """After damage was found while the journal is in use: each commit could make it worse."""
    say(error.message, ERROR)
    os._exit(EXIT_DAMAGED)

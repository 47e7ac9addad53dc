"""What has ended in an executor with several runs at a time, perhaps unknown to the server, where it outlives the process.

As `kept`, but runs end in any order, so what ended is a log of (token, how it ended). It has two areas at the end of the started file, and
one of them is written at a time. The other one is emptied and written next when the server has answered the reports of all that is in it.
Until then, and with the one in hand half full, no other run is entered: there is room for those that are in user code.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

import msgpack

from ..model.nouns import Ended
from .kept import ENDED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

LOG_HEAD_BYTES: Final = 64
LOG_BYTES: Final = 2 * 1024 * 1024  # of one area


class _Area:
    """One of the two, and who in it is not known to the server yet."""

    def __init__(self, memory: memoryview) -> None:
        self.head = memory[:LOG_HEAD_BYTES].cast("q")
        self.log = memory[LOG_HEAD_BYTES:]
        self.unreported: set[int] = set()  # tokens
        self.reports: list[int] = []  # numbers of the requests that tell the server of the others

    @property
    def used(self) -> int:
        """Bytes."""
        used: int = self.head[0]
        return used

    def close(self) -> None:
        """Release the views; the file stays."""
        self.head.release()
        self.log.release()


class KeptLog:
    """Both areas, mapped by their executor. Any thread may `put`; one thread reports."""

    def __init__(self, areas: Sequence[memoryview]) -> None:
        """`areas`: two; none when there was no room on the disk, and then nothing is kept."""
        self._areas = [_Area(memory) for memory in areas]
        self._lock = threading.Lock()
        self._pack = msgpack.Packer(use_bin_type=True).pack

    def put(self, token: int, ended: Ended, unanswered: Callable[[Iterable[int]], bool]) -> None:
        """Keep how a run ended. `unanswered`: has one of these requests no answer yet?"""
        with self._lock:
            data = self._pack((token, *ended))
            area = self._room_for(len(data), unanswered)
            if area is not None:
                at = area.used
                area.log[at : at + len(data)] = data
                area.unreported.add(token)
                area.head[0] = at + len(data)

    def _room_for(self, size: int, unanswered: Callable[[Iterable[int]], bool]) -> _Area | None:
        for _ in self._areas:
            area = self._areas[0]
            if area.used + size <= len(area.log):
                return area
            if not self._free(self._areas[1], unanswered):
                return None
            self._areas.reverse()
            area = self._areas[0]
            area.head[0] = 0
            area.reports.clear()
        return None

    @staticmethod
    def _free(area: _Area, unanswered: Callable[[Iterable[int]], bool]) -> bool:
        return not area.unreported and not unanswered(area.reports)

    def reported(self, tokens: Iterable[int], number: int) -> None:
        """This request, which is about to be sent, tells the server of these."""
        with self._lock:
            for area in self._areas:
                known = area.unreported.intersection(tokens)
                if known:
                    area.unreported -= known
                    area.reports.append(number)

    def tight(self, unanswered: Callable[[Iterable[int]], bool]) -> bool:
        """Shall no other run be entered before the server has answered?"""
        with self._lock:
            full = bool(self._areas) and self._areas[0].used > len(self._areas[0].log) // 2
            return full and not self._free(self._areas[1], unanswered)

    def close(self) -> None:
        """Release the views; the file stays."""
        for area in self._areas:
            area.close()


def read_log(area: bytes | bytearray) -> dict[int, Ended]:
    """{token: how it ended}; once the process is gone. Nothing when user code that wrote where it should not has spoilt it."""
    with memoryview(area)[:LOG_HEAD_BYTES] as raw, raw.cast("q") as head:
        used = head[0]
    if not 0 <= used <= len(area) - LOG_HEAD_BYTES:
        return {}
    found: dict[int, Ended] = {}
    try:
        log = msgpack.Unpacker(raw=False)
        log.feed(area[LOG_HEAD_BYTES : LOG_HEAD_BYTES + used])
        for token, outcome, started_us, ended_us, result in log:
            ended = Ended(int(outcome), int(started_us), int(ended_us), dict(result))
            if ended.outcome in ENDED:
                found[int(token)] = ended
        whole = log.tell() == used
    except (TypeError, ValueError, msgpack.exceptions.UnpackException):
        return {}
    return found if whole else {}


__all__ = ["LOG_BYTES", "LOG_HEAD_BYTES", "KeptLog", "read_log"]

"""The room that is left on disk and in the map: who is refused while there is little, and whether a snapshot still fits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ..model.nouns import US

if TYPE_CHECKING:
    from ..journal.memory import Journal, Usage
    from .config import Config

__all__ = ["Storage"]

LOOK_EVERY_US: Final = US
_MIB: Final = 1 << 20


def _mib(size: int) -> str:
    return f"{max(0, size) / _MIB:.0f} MiB" if size >= 10 * _MIB or size <= 0 else f"{size / _MIB:.1f} MiB"


class Storage:
    """One journal's room. Full: new commands are refused, and the reserve is given up. Exhausted, when half of what was kept for that is
    gone too: so is what calms, and no run is started; the rest is for the ends of runs and for trims.
    """

    def __init__(self, journal: Journal, config: Config) -> None:
        self._journal = journal
        self._data = config.data
        self._reserve_bytes = config.reserve_bytes
        self.full = ""  # why new commands are refused
        self.exhausted = ""  # why all that writes is refused
        self.next_us = 0  # when to look again
        self._unlooked = 0  # bytes written since the last look, roughly

    def wrote(self, size: int) -> None:
        """So much since."""
        self._unlooked += size

    def look(self, now_us: int) -> None:
        """See how much room there is, once a second or after many bytes. The reserve is given up and made again here."""
        if now_us < self.next_us and self._unlooked < self._reserve_bytes // 16:
            return
        self._unlooked = 0
        self.next_us = now_us + LOOK_EVERY_US
        back = not self.full or self._journal.restore_reserve()
        usage = self._journal.usage()
        if usage.state == "ok" and back:
            self.full = self.exhausted = ""
            return
        if not self.full and usage.short_of == "disk":
            self._journal.give_up_reserve()
            usage = self._journal.usage()
        self.full = self._why(usage)
        self.exhausted = ""
        if usage.room_bytes < usage.kept_bytes // 2:
            self.exhausted = f"{self.full}. What is left, {_mib(usage.room_bytes)}, is kept for the ends of runs: none is started"

    def _why(self, usage: Usage) -> str:
        if usage.short_of == "map":
            return (f"storage is nearly full: {_mib(usage.map_room_bytes)} are left in the map (map_size), and space on the disk doesn't"
                    " help: nothing was stored; delete what is not needed, or start the server with a larger map_size")
        wanted = self._reserve_bytes + usage.kept_bytes
        return (f"storage is nearly full ({_mib(usage.free_bytes)} free on the disk of {self._data}): nothing was stored; free space there,"
                f" until {_mib(wanted)} are free, and the server goes on by itself")

    def fits(self, size: int) -> bool:
        """Whether a snapshot of so many bytes may be written: not out of what is kept for the ends of runs."""
        usage = self._journal.usage()
        return usage.room_bytes - (usage.kept_bytes // 4 if self.full else 0) > size + size // 8

    def fits_easily(self, journal_bytes: int) -> bool:
        """The same by a guess on the safe side: the last snapshot, and three times what was written to the journal since."""
        return self.fits(self._journal.usage().snapshot_bytes + 3 * journal_bytes)

    @property
    def tight(self) -> bool:
        """So little room is left that a snapshot that is being written has to be given up."""
        usage = self._journal.usage()
        return usage.room_bytes < usage.kept_bytes // 8

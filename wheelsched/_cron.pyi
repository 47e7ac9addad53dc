"""Compiled cron schedules: next and previous occurrences, one at a time and in bulk.

Instants are int64 microseconds since the epoch, UTC; occurrences are whole seconds. NEVER (2**63 - 1) means that there
is none in the years 1 to 9999 of UTC and of the zone's wall clock.
"""

from typing import final

from typing_extensions import Buffer

@final
class CronTable:
    """Many schedules and zones. One thread at a time."""

    def __new__(cls) -> CronTable: ...
    def __len__(self) -> int:
        """The number of schedules."""
    def add_zone(self, at_s: Buffer, offset_s: Buffer, cycle: int) -> int:
        """A zone from its changes: `at_s` int64[n] seconds since the epoch, rising; `offset_s` int32[n + 1] seconds
        east of UTC, before the first change and after each. The changes from number `cycle` on repeat every 400 years
        (`cycle` = n: none do). Returns its number; zones stay for good. ValueError if these don't fit together.
        """
    def add(
        self, seconds: int, minutes: int, hours: int, days: bytes, months: int, years: bytes | None, zone: int,
        gap: int, overlap: int,
    ) -> int:
        """A schedule: bit masks of its fields (bit 0 is second 0, minute 0, hour 0, January).

        `days`: 28 native uint32 masks of the days that match (bit 0 is the first), at (length of the month - 28) * 7 +
        weekday of its first day (0 is Sunday). `years`: 3 native uint64, bit 0 is 1970, or None for all.
        `gap`: 0 skip, 1 run_after, 2 shift, 3 run_after for jumps of less than 3 h. `overlap`: 0 first, 1 second,
        2 both. Returns an index, which may be that of a removed one. ValueError for an empty mask or an unknown zone.
        """
    def remove(self, index: int) -> None:
        """Forget a schedule. IndexError if there is none."""
    def next_one(self, index: int, after_us: int) -> int:
        """The first occurrence strictly after; NEVER. IndexError if there is no such schedule."""
    def prev_one(self, index: int, before_us: int) -> int:
        """The last occurrence strictly before; NEVER. IndexError if there is no such schedule."""
    def next_many(self, index: Buffer, after_us: Buffer, out: Buffer) -> None:
        """`next_one` for columns: uint32[n], int64[n], result into int64[n]; the GIL is free meanwhile."""
    def prev_many(self, index: Buffer, before_us: Buffer, out: Buffer) -> None:
        """`prev_one` for columns, as `next_many`."""
    def next_mixed(self, kind: Buffer, a: Buffer, anchor_us: Buffer, after_us: Buffer, out: Buffer) -> None:
        """The first nominal instant strictly after, for schedules of all kinds: uint8[n], then int64[n] each.

        Kind 1 cron (`a` = index), 2 every (`a` = period; anchor + k * period, k >= 1), 3 at (`anchor_us`), 4 manual
        (NEVER). An `every` without an anchor (NEVER) has none. IndexError, ValueError: nothing was computed.
        """
    def count(self, index: int, after_us: int, until_us: int, limit: int) -> tuple[int, int]:
        """How many occurrences lie in (after, until], at most `limit`, and the first of them or NEVER."""

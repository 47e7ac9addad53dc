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
    def add_union(self, kind: Buffer, a: Buffer, anchor_us: Buffer) -> int:
        """A union of schedules of kind 1, 2 or 3: uint8[n], int64[n] as `next_mixed` takes them; an anchor of NEVER
        means that of the job. Returns its index, the `a` of kind 5; the members' own indexes must stay in use.
        IndexError, ValueError for a member that isn't there or can't be one.
        """
    def remove_union(self, index: int) -> None:
        """Forget a union. IndexError if there is none."""
    def next_row(self, kind: int, a: int, anchor_us: int, after_us: int) -> int:
        """`next_mixed` for one row. IndexError or ValueError for a schedule that isn't there."""
    def prev_row(self, kind: int, a: int, anchor_us: int, before_us: int) -> int:
        """The last nominal instant strictly before, or NEVER. Errors as `next_row`."""
    def next_mixed(self, kind: Buffer, a: Buffer, anchor_us: Buffer, after_us: Buffer, out: Buffer) -> None:
        """The first nominal instant strictly after, for schedules of all kinds: uint8[n], then int64[n] each.

        Kind 1 cron (`a` = index), 2 every (`a` = period; anchor + k * period, k >= 1), 3 at (`anchor_us`), 4 manual
        (NEVER), 5 union (`a` = its index; the first of its members), 6 after completion (as 3). An `every` without an anchor
        (NEVER) has none. IndexError, ValueError: nothing was computed.
        """
    def count(self, kind: int, a: int, anchor_us: int, after_us: int, until_us: int, limit: int) -> int:
        """How many nominal instants lie in (after, until], at most `limit`. Errors as `next_row`."""
    def count_beside(self, index: Buffer, first_s: Buffer, period_s: Buffer, after_us: int, until_us: int) -> int:
        """How many whole seconds in (after, until] some of the cron schedules (int64[n], n >= 1) hit, and no grid first
        + k * period, k >= 0 (int64[m] seconds each) does. A few microseconds a day. IndexError, ValueError.
        """
    def lost(self, index: int, after_us: int, until_us: int) -> list[tuple[int, int, int]]:
        """The instants in (after, until] that a change of the clock took from a schedule, rising: (instant, 1 gap or 2
        overlap, the change's instant). IndexError if there is no such schedule.
        """
    def quiet(self, index: int, at_us: int) -> tuple[int, int]:
        """A span (low, high) around an instant: `lost` between low and high is surely empty. -2**63, NEVER: no bound."""
    def fate(self, index: int, at_us: int) -> tuple[int, int]:
        """(0, NEVER), or for an instant that is no occurrence but whose wall time matches: (1 gap or 2 overlap, the
        instant that runs instead or NEVER). IndexError if there is no such schedule.
        """

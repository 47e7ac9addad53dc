# cython: embedsignature=False
"""Next and previous occurrences of many compiled cron schedules, in bulk.

A schedule is bit masks (second, minute, hour, month), a table of 28 day masks (length of the month x weekday of its
first day) and, rarely, a mask of years. A zone is its list of offset changes; where its rule goes on for ever the list
ends with 400 years of it, and the Gregorian calendar repeats after that (146,097 days are 20,871 weeks).

The search is in `_cron_search.pxd`. It ends at the years 1 and 9999, of UTC and of the wall clock, and walks months,
never minutes. Here the schedules are kept: shared, numbered, and used again when they are given back.
"""
cimport cython
from libc.stdint cimport INT64_MIN, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy, memset

from wheelsched.schedules._cron_count cimport count_row
from wheelsched.schedules._cron_days cimport count_beside
from wheelsched.schedules._cron_lost cimport SCAN, Change, fate, next_lost, prev_lost
from wheelsched.schedules._cron_search cimport next_row, next_us, prev_row, prev_us
from wheelsched.schedules._cron_wall cimport (
    CYCLE_S, FAR, GAP_RULE, GAP_RUN_AFTER, GAP_SHIFT, KIND_AFTER, KIND_AT, KIND_CRON, KIND_EVERY, KIND_MANUAL, KIND_UNION,
    NEVER_US, NONE_GE, NONE_LE, OVERLAP_BOTH, S_MAX, Entry, Member, Tables, Union, Years, Zone, clz, ctz, floor_div,
)


@cython.final
@cython.auto_pickle(False)
cdef class CronTable:
    """Compiled cron schedules and zones. Not safe for use by two threads at once."""

    cdef Tables t
    cdef list free_entries, free_unions
    cdef dict day_pool, year_pool                # content -> [index, users]
    cdef list day_keys, year_keys, free_days, free_years

    def __cinit__(self):
        memset(&self.t, 0, sizeof(Tables))
        self.free_unions = []
        self.free_entries, self.free_days, self.free_years = [], [], []
        self.day_pool, self.year_pool = {}, {}
        self.day_keys, self.year_keys = [], []

    def __dealloc__(self):
        cdef int32_t i
        for i in range(self.t.zone_count):
            free(self.t.zones[i].at)
            free(self.t.zones[i].offset)
        for i in range(self.t.union_count):
            free(self.t.unions[i].members)
        free(self.t.unions)
        free(self.t.zones)
        free(self.t.entries)
        free(self.t.days)
        free(self.t.years)

    def __len__(self):
        return self.t.entry_count - len(self.free_entries)

    # Building

    def add_zone(self, const int64_t[::1] at_s, const int32_t[::1] offset_s, int cycle) -> int:
        cdef int32_t n = <int32_t>at_s.shape[0]
        cdef int32_t i
        cdef Zone zone
        cdef Zone *room
        if offset_s.shape[0] != n + 1 or not 0 <= cycle <= n:
            raise ValueError("a zone of n changes has n + 1 offsets and a cycle from 0 to n")
        for i in range(n):
            if i and at_s[i] <= at_s[i - 1]:
                raise ValueError("the changes of a zone rise")
        for i in range(n + 1):
            if not -86400 < offset_s[i] < 86400 + 7200:
                raise ValueError("an offset is less than a day")
        if cycle < n and at_s[n - 1] >= at_s[cycle] + CYCLE_S:
            raise ValueError("the repeating part of a zone spans less than 400 years")
        if self.t.zone_count == self.t.zone_room:
            room = <Zone *>realloc(self.t.zones, (self.t.zone_room * 2 + 4) * sizeof(Zone))
            if room == NULL:
                raise MemoryError
            self.t.zones = room
            self.t.zone_room = self.t.zone_room * 2 + 4
        zone.at = <int64_t *>malloc((n + 1) * sizeof(int64_t))
        zone.offset = <int32_t *>malloc((n + 1) * sizeof(int32_t))
        if zone.at == NULL or zone.offset == NULL:
            free(zone.at)
            free(zone.offset)
            raise MemoryError
        for i in range(n):
            zone.at[i] = at_s[i]
        for i in range(n + 1):
            zone.offset[i] = offset_s[i]
        zone.n, zone.cycle, zone.hint = n, cycle, n
        self.t.zones[self.t.zone_count] = zone
        self.t.zone_count += 1
        return self.t.zone_count - 1

    def add(self, uint64_t seconds, uint64_t minutes, uint32_t hours, bytes days, uint16_t months, years, int zone,
            int gap, int overlap) -> int:
        cdef Entry e
        cdef Entry *room
        cdef int32_t index
        if not (0 < seconds < (<uint64_t>1 << 60) and 0 < minutes < (<uint64_t>1 << 60) and 0 < hours < (1 << 24)
                and 0 < months < (1 << 12)):
            raise ValueError("a mask is empty or has bits beyond its field")
        if len(days) != 28 * 4 or (years is not None and len(years) != 24):
            raise ValueError("days are 28 uint32, years are 3 uint64")
        if not (0 <= zone < self.t.zone_count and 0 <= gap <= GAP_RULE and 0 <= overlap <= OVERLAP_BOTH):
            raise ValueError("no such zone or DST rule")
        e.seconds, e.minutes, e.hours, e.months = seconds, minutes, hours, months
        e.zone, e.gap, e.overlap, e.used = zone, <uint8_t>gap, <uint8_t>overlap, 1
        e.tod_first = ctz(hours) * 3600 + ctz(minutes) * 60 + ctz(seconds)
        e.tod_last = (63 - clz(hours)) * 3600 + (63 - clz(minutes)) * 60 + 63 - clz(seconds)
        if not self.free_entries and self.t.entry_count == self.t.entry_room:
            room = <Entry *>realloc(self.t.entries, (self.t.entry_room * 2 + 16) * sizeof(Entry))
            if room == NULL:
                raise MemoryError
            self.t.entries = room
            self.t.entry_room = self.t.entry_room * 2 + 16
        e.days = self._share_days(days)
        e.years = -1 if years is None else self._share_years(years)
        if self.free_entries:
            index = self.free_entries.pop()
        else:
            index = self.t.entry_count
            self.t.entry_count += 1
        self.t.entries[index] = e
        return index

    def remove(self, int index) -> None:
        if not (0 <= index < self.t.entry_count and self.t.entries[index].used):
            raise IndexError("no such schedule")
        self.t.entries[index].used = 0
        _drop(self.day_pool, self.day_keys, self.free_days, self.t.entries[index].days)
        if self.t.entries[index].years >= 0:
            _drop(self.year_pool, self.year_keys, self.free_years, self.t.entries[index].years)
        self.free_entries.append(index)

    def add_union(self, const uint8_t[::1] kind, const int64_t[::1] a, const int64_t[::1] anchor_us) -> int:
        cdef Py_ssize_t i, n = kind.shape[0]
        cdef Union made
        cdef Union *room
        cdef int32_t index
        if n < 1 or n > 10000 or a.shape[0] != n or anchor_us.shape[0] != n:
            raise ValueError("a union has 1 to 10,000 members, and columns of one length")
        for i in range(n):
            if kind[i] != KIND_CRON and kind[i] != KIND_EVERY and kind[i] != KIND_AT:
                raise ValueError("a member of a union is cron, every or at")
            self._check_row(kind[i], a[i])
        if not self.free_unions and self.t.union_count == self.t.union_room:
            room = <Union *>realloc(self.t.unions, (self.t.union_room * 2 + 16) * sizeof(Union))
            if room == NULL:
                raise MemoryError
            self.t.unions = room
            self.t.union_room = self.t.union_room * 2 + 16
        made.members = <Member *>malloc(n * sizeof(Member))
        if made.members == NULL:
            raise MemoryError
        made.count = <int32_t>n
        for i in range(n):
            made.members[i].kind, made.members[i].a, made.members[i].anchor = kind[i], a[i], anchor_us[i]
        if self.free_unions:
            index = self.free_unions.pop()
        else:
            index = self.t.union_count
            self.t.union_count += 1
        self.t.unions[index] = made
        return index

    def remove_union(self, int index) -> None:
        self._check_row(KIND_UNION, index)
        free(self.t.unions[index].members)
        self.t.unions[index].members = NULL
        self.t.unions[index].count = 0
        self.free_unions.append(index)

    cdef uint32_t _share_days(self, bytes key) except? 0xFFFFFFFF:
        cdef uint32_t *room
        cdef int index = _take(self.day_pool, self.day_keys, self.free_days, key)
        if index >= self.t.day_room:
            room = <uint32_t *>realloc(self.t.days, (index * 2 + 8) * 28 * sizeof(uint32_t))
            if room == NULL:
                raise MemoryError
            self.t.days = room
            self.t.day_room = index * 2 + 8
        memcpy(self.t.days + index * 28, <const char *>key, 28 * sizeof(uint32_t))
        return <uint32_t>index

    cdef int32_t _share_years(self, bytes key) except? -2:
        cdef Years *room
        cdef int index = _take(self.year_pool, self.year_keys, self.free_years, key)
        if index >= self.t.year_room:
            room = <Years *>realloc(self.t.years, (index * 2 + 8) * sizeof(Years))
            if room == NULL:
                raise MemoryError
            self.t.years = room
            self.t.year_room = index * 2 + 8
        memcpy(self.t.years[index].bits, <const char *>key, sizeof(Years))
        return index

    # Asking

    def next_one(self, int index, int64_t after_us) -> int:
        self._check(index)
        return next_us(&self.t, &self.t.entries[index], after_us)

    def prev_one(self, int index, int64_t before_us) -> int:
        self._check(index)
        return prev_us(&self.t, &self.t.entries[index], before_us)

    def next_many(self, const uint32_t[::1] index, const int64_t[::1] after_us, int64_t[::1] out) -> None:
        cdef Py_ssize_t i, n = index.shape[0]
        if after_us.shape[0] != n or out.shape[0] != n:
            raise ValueError("the columns differ in length")
        for i in range(n):
            if index[i] >= <uint32_t>self.t.entry_count or not self.t.entries[index[i]].used:
                raise IndexError("no such schedule")
        with nogil:
            for i in range(n):
                out[i] = next_us(&self.t, &self.t.entries[index[i]], after_us[i])

    def prev_many(self, const uint32_t[::1] index, const int64_t[::1] before_us, int64_t[::1] out) -> None:
        cdef Py_ssize_t i, n = index.shape[0]
        if before_us.shape[0] != n or out.shape[0] != n:
            raise ValueError("the columns differ in length")
        for i in range(n):
            if index[i] >= <uint32_t>self.t.entry_count or not self.t.entries[index[i]].used:
                raise IndexError("no such schedule")
        with nogil:
            for i in range(n):
                out[i] = prev_us(&self.t, &self.t.entries[index[i]], before_us[i])

    def next_row(self, int kind, int64_t a, int64_t anchor_us, int64_t after_us) -> int:
        self._check_row(kind, a)
        return next_row(&self.t, <uint8_t>kind, a, anchor_us, after_us)

    def prev_row(self, int kind, int64_t a, int64_t anchor_us, int64_t before_us) -> int:
        self._check_row(kind, a)
        return prev_row(&self.t, <uint8_t>kind, a, anchor_us, before_us)

    def next_mixed(self, const uint8_t[::1] kind, const int64_t[::1] a, const int64_t[::1] anchor_us,
                   const int64_t[::1] after_us, int64_t[::1] out) -> None:
        cdef Py_ssize_t i, n = kind.shape[0]
        if a.shape[0] != n or anchor_us.shape[0] != n or after_us.shape[0] != n or out.shape[0] != n:
            raise ValueError("the columns differ in length")
        for i in range(n):
            self._check_row(kind[i], a[i])
        with nogil:
            for i in range(n):
                out[i] = next_row(&self.t, kind[i], a[i], anchor_us[i], after_us[i])

    def count(self, int kind, int64_t a, int64_t anchor_us, int64_t after_us, int64_t until_us, int64_t limit) -> int:
        cdef int64_t found
        self._check_row(kind, a)
        with nogil:
            found = count_row(&self.t, <uint8_t>kind, a, anchor_us, after_us, until_us, limit)
        return found

    def count_beside(self, const int64_t[::1] index, const int64_t[::1] first_s, const int64_t[::1] period_s,
                     int64_t after_us, int64_t until_us) -> int:
        cdef Py_ssize_t i, n = index.shape[0], m = first_s.shape[0]
        cdef int64_t found
        cdef const int64_t *first = NULL
        cdef const int64_t *period = NULL
        if n == 0 or period_s.shape[0] != m:
            raise ValueError("at least one schedule, and grids with first and period")
        for i in range(n):
            self._check_row(KIND_CRON, index[i])
        for i in range(m):
            if not (0 < period_s[i] <= FAR and -FAR <= first_s[i] <= FAR):
                raise ValueError("a period is positive")
        if m:
            first, period = &first_s[0], &period_s[0]
        with nogil:
            found = count_beside(&self.t, &index[0], n, first, period, m, floor_div(after_us, 1000000) + 1,
                                 floor_div(until_us, 1000000))
        return found

    def lost(self, int index, int64_t after_us, int64_t until_us) -> list:
        cdef int64_t u = floor_div(after_us, 1000000) + 1
        cdef int64_t last = floor_div(until_us, 1000000)
        cdef Change c
        cdef Entry *e
        self._check(index)
        e = &self.t.entries[index]
        found = []
        while True:
            u = next_lost(&self.t, e, u, last, -1, &c)
            if u == NONE_GE:
                return found
            found.append((u * 1000000, c.reason, c.at * 1000000))
            u += 1

    def quiet(self, int index, int64_t at_us) -> tuple:
        cdef int64_t u = floor_div(at_us, 1000000)
        cdef int64_t low, high
        cdef Change c
        self._check(index)
        if self.t.entries[index].overlap == OVERLAP_BOTH and self.t.entries[index].gap in (GAP_RUN_AFTER, GAP_SHIFT):
            return INT64_MIN, NEVER_US
        with nogil:
            prev_lost(&self.t, &self.t.entries[index], u, SCAN, &low)
            high = next_lost(&self.t, &self.t.entries[index], u + 1, S_MAX, SCAN, &c)
            if high == NONE_GE and c.at < FAR:
                high = c.low
        return (INT64_MIN if low == NONE_LE else low * 1000000), (NEVER_US if high == NONE_GE else high * 1000000 - 1)

    def fate(self, int index, int64_t at_us) -> tuple:
        cdef int64_t instead
        cdef int32_t reason
        self._check(index)
        if at_us % 1000000:
            return 0, NEVER_US
        reason = fate(&self.t, &self.t.entries[index], at_us // 1000000, &instead)
        return reason, (NEVER_US if instead == NONE_GE else instead * 1000000)

    cdef int _check_row(self, int kind, int64_t a) except -1:
        if kind == KIND_CRON:
            if not 0 <= a < self.t.entry_count or not self.t.entries[a].used:
                raise IndexError("no such schedule")
        elif kind == KIND_UNION:
            if not 0 <= a < self.t.union_count or not self.t.unions[a].count:
                raise IndexError("no such union")
        elif kind == KIND_EVERY:
            if a <= 0:
                raise ValueError("a period is positive")
        elif kind != KIND_AT and kind != KIND_MANUAL and kind != KIND_AFTER:
            raise ValueError("no such kind of schedule")
        return 0

    cdef int _check(self, int index) except -1:
        if not (0 <= index < self.t.entry_count and self.t.entries[index].used):
            raise IndexError("no such schedule")
        return 0


cdef int _take(dict pool, list keys, list unused, bytes key) except -1:
    """The index of shared content; one more user."""
    cell = pool.get(key)
    if cell is not None:
        cell[1] += 1
        return cell[0]
    if unused:
        index = unused.pop()
        keys[index] = key
    else:
        index = len(keys)
        keys.append(key)
    pool[key] = [index, 1]
    return index


cdef int _drop(dict pool, list keys, list unused, int index) except -1:
    """One user less; the last one frees the index."""
    key = keys[index]
    cell = pool[key]
    cell[1] -= 1
    if cell[1] == 0:
        del pool[key]
        keys[index] = None
        unused.append(index)
    return 0

# cython: embedsignature=False
"""Next and previous occurrences of many compiled cron schedules, in bulk.

A schedule is bit masks (second, minute, hour, month), a table of 28 day masks (length of the month x weekday of its
first day) and, rarely, a mask of years. A zone is its list of offset changes; where its rule goes on for ever the list
ends with 400 years of it, and the Gregorian calendar repeats after that (146,097 days are 20,871 weeks).

The zone cuts time into segments of one offset. Inside a segment the answer is arithmetic on the wall clock: the next
matching day by month and day mask, the next time of day by the other masks. At a segment's edges the two DST rules
apply: a gap (wall times that don't exist) belongs to the segment after it, an overlap to both. Two changes closer
together than their sizes would need more care; no zone of the tz database has any.

The search ends at the years 1 and 9999, of UTC and of the wall clock, and walks months, never minutes.
"""
cimport cython
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy


@cython.final
@cython.auto_pickle(False)
cdef class CronTable:
    """Compiled cron schedules and zones. Not safe for use by two threads at once."""

    cdef Entry *entries
    cdef Zone *zones
    cdef uint32_t *days
    cdef Years *years
    cdef int32_t entry_count, entry_room, zone_count, zone_room, day_room, year_room
    cdef list free_entries
    cdef dict day_pool, year_pool                # content -> [index, users]
    cdef list day_keys, year_keys, free_days, free_years

    def __cinit__(self):
        self.entries = NULL
        self.zones = NULL
        self.days = NULL
        self.years = NULL
        self.free_entries, self.free_days, self.free_years = [], [], []
        self.day_pool, self.year_pool = {}, {}
        self.day_keys, self.year_keys = [], []

    def __dealloc__(self):
        cdef int32_t i
        for i in range(self.zone_count):
            free(self.zones[i].at)
            free(self.zones[i].offset)
        free(self.zones)
        free(self.entries)
        free(self.days)
        free(self.years)

    def __len__(self):
        return self.entry_count - len(self.free_entries)

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
        if self.zone_count == self.zone_room:
            room = <Zone *>realloc(self.zones, (self.zone_room * 2 + 4) * sizeof(Zone))
            if room == NULL:
                raise MemoryError
            self.zones = room
            self.zone_room = self.zone_room * 2 + 4
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
        self.zones[self.zone_count] = zone
        self.zone_count += 1
        return self.zone_count - 1

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
        if not (0 <= zone < self.zone_count and 0 <= gap <= GAP_RULE and 0 <= overlap <= OVERLAP_BOTH):
            raise ValueError("no such zone or DST rule")
        e.seconds, e.minutes, e.hours, e.months = seconds, minutes, hours, months
        e.zone, e.gap, e.overlap, e.used = zone, <uint8_t>gap, <uint8_t>overlap, 1
        e.tod_first = ctz(hours) * 3600 + ctz(minutes) * 60 + ctz(seconds)
        e.tod_last = (63 - clz(hours)) * 3600 + (63 - clz(minutes)) * 60 + 63 - clz(seconds)
        if not self.free_entries and self.entry_count == self.entry_room:
            room = <Entry *>realloc(self.entries, (self.entry_room * 2 + 16) * sizeof(Entry))
            if room == NULL:
                raise MemoryError
            self.entries = room
            self.entry_room = self.entry_room * 2 + 16
        e.days = self._share_days(days)
        e.years = -1 if years is None else self._share_years(years)
        if self.free_entries:
            index = self.free_entries.pop()
        else:
            index = self.entry_count
            self.entry_count += 1
        self.entries[index] = e
        return index

    def remove(self, int index) -> None:
        if not (0 <= index < self.entry_count and self.entries[index].used):
            raise IndexError("no such schedule")
        self.entries[index].used = 0
        _drop(self.day_pool, self.day_keys, self.free_days, self.entries[index].days)
        if self.entries[index].years >= 0:
            _drop(self.year_pool, self.year_keys, self.free_years, self.entries[index].years)
        self.free_entries.append(index)

    cdef uint32_t _share_days(self, bytes key) except? 0xFFFFFFFF:
        cdef uint32_t *room
        cdef int index = _take(self.day_pool, self.day_keys, self.free_days, key)
        if index >= self.day_room:
            room = <uint32_t *>realloc(self.days, (index * 2 + 8) * 28 * sizeof(uint32_t))
            if room == NULL:
                raise MemoryError
            self.days = room
            self.day_room = index * 2 + 8
        memcpy(self.days + index * 28, <const char *>key, 28 * sizeof(uint32_t))
        return <uint32_t>index

    cdef int32_t _share_years(self, bytes key) except? -2:
        cdef Years *room
        cdef int index = _take(self.year_pool, self.year_keys, self.free_years, key)
        if index >= self.year_room:
            room = <Years *>realloc(self.years, (index * 2 + 8) * sizeof(Years))
            if room == NULL:
                raise MemoryError
            self.years = room
            self.year_room = index * 2 + 8
        memcpy(self.years[index].bits, <const char *>key, sizeof(Years))
        return index

    # Asking

    def next_one(self, int index, int64_t after_us) -> int:
        self._check(index)
        return self._next_us(&self.entries[index], after_us)

    def prev_one(self, int index, int64_t before_us) -> int:
        self._check(index)
        return self._prev_us(&self.entries[index], before_us)

    def next_many(self, const uint32_t[::1] index, const int64_t[::1] after_us, int64_t[::1] out) -> None:
        cdef Py_ssize_t i, n = index.shape[0]
        if after_us.shape[0] != n or out.shape[0] != n:
            raise ValueError("the columns differ in length")
        for i in range(n):
            if index[i] >= <uint32_t>self.entry_count or not self.entries[index[i]].used:
                raise IndexError("no such schedule")
        with nogil:
            for i in range(n):
                out[i] = self._next_us(&self.entries[index[i]], after_us[i])

    def prev_many(self, const uint32_t[::1] index, const int64_t[::1] before_us, int64_t[::1] out) -> None:
        cdef Py_ssize_t i, n = index.shape[0]
        if before_us.shape[0] != n or out.shape[0] != n:
            raise ValueError("the columns differ in length")
        for i in range(n):
            if index[i] >= <uint32_t>self.entry_count or not self.entries[index[i]].used:
                raise IndexError("no such schedule")
        with nogil:
            for i in range(n):
                out[i] = self._prev_us(&self.entries[index[i]], before_us[i])

    def next_mixed(self, const uint8_t[::1] kind, const int64_t[::1] a, const int64_t[::1] anchor_us,
                   const int64_t[::1] after_us, int64_t[::1] out) -> None:
        cdef Py_ssize_t i, n = kind.shape[0]
        if a.shape[0] != n or anchor_us.shape[0] != n or after_us.shape[0] != n or out.shape[0] != n:
            raise ValueError("the columns differ in length")
        for i in range(n):
            if kind[i] == KIND_CRON:
                if not 0 <= a[i] < self.entry_count or not self.entries[a[i]].used:
                    raise IndexError("no such schedule")
            elif kind[i] == KIND_EVERY:
                if a[i] <= 0:
                    raise ValueError("a period is positive")
            elif kind[i] != KIND_AT and kind[i] != KIND_MANUAL:
                raise ValueError("no such kind of schedule")
        with nogil:
            for i in range(n):
                if kind[i] == KIND_CRON:
                    out[i] = self._next_us(&self.entries[a[i]], after_us[i])
                elif kind[i] == KIND_EVERY:
                    out[i] = every_next(a[i], anchor_us[i], after_us[i])
                elif kind[i] == KIND_AT and anchor_us[i] > after_us[i]:
                    out[i] = anchor_us[i]
                else:
                    out[i] = NEVER_US

    def count(self, int index, int64_t after_us, int64_t until_us, int64_t limit) -> tuple:
        cdef int64_t found = 0, first = NEVER_US, t = after_us
        self._check(index)
        with nogil:
            while found < limit:
                t = self._next_us(&self.entries[index], t)
                if t == NEVER_US or t > until_us:
                    break
                if found == 0:
                    first = t
                found += 1
        return found, first

    cdef int _check(self, int index) except -1:
        if not (0 <= index < self.entry_count and self.entries[index].used):
            raise IndexError("no such schedule")
        return 0

    cdef inline int64_t _next_us(self, Entry *e, int64_t after_us) noexcept nogil:
        cdef int64_t s = self._next_s(e, &self.zones[e.zone], floor_div(after_us, 1000000) + 1)
        return NEVER_US if s == NONE_GE else s * 1000000

    cdef inline int64_t _prev_us(self, Entry *e, int64_t before_us) noexcept nogil:
        cdef int64_t s
        if before_us <= S_MIN * 1000000:
            return NEVER_US
        s = self._prev_s(e, &self.zones[e.zone], floor_div(before_us - 1, 1000000))
        return NEVER_US if s == NONE_LE else s * 1000000

    cdef int64_t _next_s(self, Entry *e, Zone *z, int64_t u) noexcept nogil:
        """The first occurrence at or after u, in seconds; NONE_GE."""
        cdef int64_t s, start, end, low, high, w, found
        cdef int32_t before, here, after
        if u < S_MIN:
            u = S_MIN
        if u > S_MAX:
            return NONE_GE
        s = find_segment(z, u)
        while True:
            here, start, end = offset_of(z, s), start_of(z, s), start_of(z, s + 1)
            before = offset_of(z, s - 1) if s > 0 else here
            after = offset_of(z, s + 1) if end < FAR else here
            found = NONE_GE
            low, high = u + here, end + here
            if before > here and e.overlap == OVERLAP_FIRST and low < start + before:
                low = start + before
            elif before < here and e.gap != GAP_SKIP and u < start + here - before:
                if e.gap == GAP_SHIFT:
                    w = self._wall_ge(e, u + before)
                    if w < start + here:
                        found = w - before
                elif u <= start and (e.gap == GAP_RUN_AFTER or here - before < CORRECTION_S):
                    if self._wall_ge(e, start + before) < start + here:
                        return start if start <= S_MAX else NONE_GE
            if after < here and e.overlap == OVERLAP_SECOND:
                high = end + after
            w = self._wall_ge(e, low)
            if w < high and w - here < found:
                found = w - here
            if found != NONE_GE:
                return found if found <= S_MAX else NONE_GE
            if end >= FAR:
                return NONE_GE
            if after < here:
                w = self._wall_ge(e, end + after)
            if w == NONE_GE:
                return NONE_GE
            # No wall time of the segments between here and w matches: jump over them.
            s += 1
            u = end
            if w - MARGIN_S > end:
                u = w - MARGIN_S
                s = find_segment(z, u)

    cdef int64_t _prev_s(self, Entry *e, Zone *z, int64_t u) noexcept nogil:
        """The last occurrence at or before u, in seconds; NONE_LE."""
        cdef int64_t s, start, end, low, high, w, found
        cdef int32_t before, here, after
        if u > S_MAX:
            u = S_MAX
        if u < S_MIN:
            return NONE_LE
        s = find_segment(z, u)
        while True:
            here, start, end = offset_of(z, s), start_of(z, s), start_of(z, s + 1)
            before = offset_of(z, s - 1) if s > 0 else here
            after = offset_of(z, s + 1) if end < FAR else here
            found = NONE_LE
            low, high = start + here, u + here
            if after < here and e.overlap == OVERLAP_SECOND and high >= end + after:
                high = end + after - 1
            if before > here and e.overlap == OVERLAP_FIRST:
                low = start + before
            w = self._wall_le(e, high)
            if w >= low and w != NONE_LE:
                found = w - here
            if before < here and e.gap != GAP_SKIP:
                if e.gap == GAP_SHIFT:
                    w = self._wall_le(e, min(u, start + here - before - 1) + before)
                    if w >= start + before and w - before > found:
                        found = w - before
                elif found == NONE_LE and (e.gap == GAP_RUN_AFTER or here - before < CORRECTION_S):
                    if self._wall_le(e, start + here - 1) >= start + before:
                        found = start
            if found != NONE_LE:
                return found if found >= S_MIN else NONE_LE
            if s == 0:
                return NONE_LE
            w = self._wall_le(e, start - 1 + max(before, here))
            if w == NONE_LE:
                return NONE_LE
            s -= 1
            u = start - 1
            if w + MARGIN_S < u:
                u = w + MARGIN_S
                s = find_segment(z, u)
            if u < S_MIN:
                return NONE_LE

    # The wall clock, without zones

    cdef inline int64_t _wall_ge(self, Entry *e, int64_t wall) noexcept nogil:
        """The first matching wall time at or after `wall`, in seconds; NONE_GE."""
        cdef int64_t day = floor_div(wall, 86400)
        cdef int64_t tod = wall - day * 86400
        cdef int64_t match
        if day < DAY_MIN:
            day, tod = DAY_MIN, 0
        match = self._day_ge(e, day)
        if match == day:
            tod = tod_ge(e, <int32_t>tod)
            if tod >= 0:
                return day * 86400 + tod
            match = self._day_ge(e, day + 1)
        return NONE_GE if match == NONE_GE else match * 86400 + e.tod_first

    cdef inline int64_t _wall_le(self, Entry *e, int64_t wall) noexcept nogil:
        """The last matching wall time at or before `wall`, in seconds; NONE_LE."""
        cdef int64_t day = floor_div(wall, 86400)
        cdef int64_t tod = wall - day * 86400
        cdef int64_t match
        if day > DAY_MAX:
            day, tod = DAY_MAX, 86399
        match = self._day_le(e, day)
        if match == day:
            tod = tod_le(e, <int32_t>tod)
            if tod >= 0:
                return day * 86400 + tod
            match = self._day_le(e, day - 1)
        return NONE_LE if match == NONE_LE else match * 86400 + e.tod_last

    cdef int64_t _day_ge(self, Entry *e, int64_t day) noexcept nogil:
        cdef int32_t year, month, mday, length
        cdef int64_t first
        cdef uint32_t mask
        if day > DAY_MAX:
            return NONE_GE
        civil(day, &year, &month, &mday)
        first = day - mday + 1
        while True:
            if e.years >= 0 and not self._year_ok(e, year):
                if year >= YEAR_MIN + YEAR_COUNT:
                    return NONE_GE
                year = YEAR_MIN if year < YEAR_MIN else year + 1
                month, mday = 1, 1
                first = day_number(year, 1)
                continue
            if e.months >> (month - 1) & 1:
                length = month_length(year, month)
                mask = self.days[e.days * 28 + (length - 28) * 7 + <uint32_t>(first + 1400004) % 7] >> (mday - 1)
                if mask:
                    return first + mday - 1 + ctz(mask)
            mday = 1
            if e.months >> month:
                month += 1 + ctz(e.months >> month)
            else:
                year += 1
                if year > 9999:
                    return NONE_GE
                month = 1 if e.years >= 0 else 1 + ctz(e.months)
            first = day_number(year, month)

    cdef int64_t _day_le(self, Entry *e, int64_t day) noexcept nogil:
        cdef int32_t year, month, mday, length
        cdef int64_t first
        cdef uint32_t mask
        if day < DAY_MIN:
            return NONE_LE
        civil(day, &year, &month, &mday)
        while True:
            if e.years >= 0 and not self._year_ok(e, year):
                if year < YEAR_MIN:
                    return NONE_LE
                year = YEAR_MIN + YEAR_COUNT - 1 if year >= YEAR_MIN + YEAR_COUNT else year - 1
                month, mday = 12, 31
                continue
            if e.months >> (month - 1) & 1:
                length = month_length(year, month)
                first = day_number(year, month)
                mask = self.days[e.days * 28 + (length - 28) * 7 + <uint32_t>(first + 1400004) % 7]
                mask &= <uint32_t>((<uint64_t>1 << mday) - 1)
                if mask:
                    return first + 63 - clz(mask)
            mday = 31
            if e.months & ((1 << (month - 1)) - 1):
                month = 64 - clz(e.months & ((1 << (month - 1)) - 1))
            else:
                year -= 1
                if year < 1:
                    return NONE_LE
                month = 12 if e.years >= 0 else 64 - clz(e.months)

    cdef inline bint _year_ok(self, Entry *e, int32_t year) noexcept nogil:
        cdef uint32_t i = <uint32_t>(year - YEAR_MIN)
        return i < <uint32_t>YEAR_COUNT and (self.years[e.years].bits[i >> 6] >> (i & 63)) & 1


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

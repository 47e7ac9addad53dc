"""How many occurrences lie between two instants: whole days times times of day inside a segment of one offset.

Steps are taken only where a schedule makes something up after a gap. Months are walked, never days, so that a hundred
million occurrences cost microseconds. Instants and wall times are seconds since 1970, ranges include both ends.
"""
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

from wheelsched.schedules._cron_search cimport (
    every_next, every_prev, find_segment, next_row, next_s, offset_of, start_of,
)
from wheelsched.schedules._cron_wall cimport (
    DAY_MAX, DAY_MIN, FAR, GAP_SHIFT, GAP_SKIP, KIND_CRON, KIND_EVERY, NEVER_US,
    OVERLAP_FIRST, OVERLAP_SECOND, S_MAX, S_MIN, Entry, Tables, Zone, civil, floor_div,
    month_length, popcount, year_ok,
)


cdef inline int64_t count_tod(Entry *e, int32_t tod) noexcept nogil:
    """Matching seconds of a day before `tod`, 0 to 86400."""
    cdef int32_t h = tod // 3600
    cdef int32_t m = (tod - h * 3600) // 60
    cdef int32_t s = tod - h * 3600 - m * 60
    cdef int64_t per_minute = popcount(e.seconds)
    cdef int64_t found = popcount(e.hours & ((<uint64_t>1 << h) - 1)) * popcount(e.minutes) * per_minute
    if h < 24 and e.hours >> h & 1:
        found += popcount(e.minutes & ((<uint64_t>1 << m) - 1)) * per_minute
        if e.minutes >> m & 1:
            found += popcount(e.seconds & ((<uint64_t>1 << s) - 1))
    return found


cdef inline int64_t count_days(Tables *t, Entry *e, int64_t low, int64_t high) noexcept nogil:
    """Matching days from `low` to `high`, both included."""
    cdef int32_t year, month, mday, length
    cdef int64_t first, found = 0
    cdef uint32_t mask
    low, high = max(low, DAY_MIN), min(high, DAY_MAX)
    if low > high:
        return 0
    civil(low, &year, &month, &mday)
    first = low - mday + 1
    while first <= high:
        length = month_length(year, month)
        if e.months >> (month - 1) & 1 and (e.years < 0 or year_ok(t, e, year)):
            mask = t.days[e.days * 28 + (length - 28) * 7 + <uint32_t>(first + 1400004) % 7]
            if first < low:
                mask = mask >> (low - first) << (low - first)
            if first + length - 1 > high:
                mask &= (<uint32_t>2 << (high - first)) - 1
            found += popcount(mask)
        first += length
        month += 1
        if month > 12:
            year, month = year + 1, 1
    return found


cdef inline int64_t count_wall(Tables *t, Entry *e, int64_t low, int64_t high) noexcept nogil:
    """Matching wall times from `low` to `high`."""
    cdef int64_t first, last, found
    low, high = max(low, DAY_MIN * 86400), min(high, DAY_MAX * 86400 + 86399)
    if low > high:
        return 0
    first, last = floor_div(low, 86400), floor_div(high, 86400)
    found = 0
    if count_days(t, e, first, first):
        found -= count_tod(e, <int32_t>(low - first * 86400))
    if count_days(t, e, last, last):
        found += count_tod(e, <int32_t>(high - last * 86400) + 1)
    return found + count_days(t, e, first, last - 1) * count_tod(e, 86400)


cdef inline int64_t count_s(Tables *t, Entry *e, int64_t u, int64_t last) noexcept nogil:
    """Occurrences from u to `last`."""
    cdef Zone *z = &t.zones[e.zone]
    cdef int64_t s, start, end, low, high, edge, found = 0
    cdef int32_t before, here, after
    u, last = max(u, S_MIN), min(last, S_MAX)
    if u > last:
        return 0
    s = find_segment(z, u)
    while u <= last:
        here, start, end = offset_of(z, s), start_of(z, s), start_of(z, s + 1)
        before = offset_of(z, s - 1) if s > 0 else here
        after = offset_of(z, s + 1) if end < FAR else here
        if before < here and e.gap != GAP_SKIP and u < start + here - before:
            # what runs after the gap may fall together with what is there anyway
            edge = min(last, end - 1, start + (here - before - 1 if e.gap == GAP_SHIFT else 0))
            if u <= edge:
                u = next_s(t, e, z, u)
                while u <= edge:
                    found += 1
                    u = next_s(t, e, z, u + 1)
                u = edge + 1
        low, high = u + here, min(end - 1, last) + here
        if before > here and e.overlap == OVERLAP_FIRST:
            low = max(low, start + before)
        if after < here and e.overlap == OVERLAP_SECOND:
            high = min(high, end + after - 1)
        found += count_wall(t, e, low, high)
        u = end
        s += 1
    return found


cdef inline int64_t count_row(Tables *t, uint8_t kind, int64_t a, int64_t anchor, int64_t after, int64_t until,
                              int64_t limit) noexcept nogil:
    """Nominal instants in (after, until], microseconds, at most `limit`. A union is stepped through."""
    cdef int64_t first, found = 0
    if kind == KIND_CRON:
        return min(limit, count_s(t, &t.entries[a], floor_div(after, 1000000) + 1, floor_div(until, 1000000)))
    if kind == KIND_EVERY:
        first = every_next(a, anchor, after)
        if first > until:  # NEVER_US is later than any
            return 0
        return min(limit, 1 if first == until else (every_prev(a, anchor, until + 1 if until < NEVER_US else until) - first) // a + 1)
    while found < limit:
        after = next_row(t, kind, a, anchor, after)
        if after == NEVER_US or after > until:
            break
        found += 1
    return found

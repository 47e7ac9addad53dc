"""How many seconds several schedules hit together: a bit for each second of a day, day by day, and their union counted.

For unions, whose members may hit the same second. A day costs microseconds, however many occurrences it has. Instants
are seconds since 1970, days are those of UTC.
"""
from libc.stdint cimport int32_t, int64_t, uint64_t
from libc.stdlib cimport llabs
from libc.string cimport memset

from wheelsched.schedules._cron_count cimport count_days
from wheelsched.schedules._cron_search cimport find_segment, next_s, offset_of, start_of
from wheelsched.schedules._cron_wall cimport FAR, S_MAX, S_MIN, Entry, Tables, Zone, ctz, floor_div, popcount

cdef enum:
    PAD = 64                                 # bits before second 0, which take what hangs over
    WORDS = 1352                             # 86400 + 2 * PAD bits


cdef inline void put_wall_day(Entry *e, int64_t shift, uint64_t *bits) noexcept nogil:
    """Set the bits of a wall day's matching seconds; its second 0 is second `shift` of the day. Bits beyond it are dropped."""
    cdef uint64_t hours = e.hours, minutes
    cdef int64_t hour, at
    while hours:
        hour = shift + ctz(hours) * 3600
        hours &= hours - 1
        if hour >= 86400 or hour <= -3600:
            continue
        minutes = e.minutes
        while minutes:
            at = hour + ctz(minutes) * 60
            minutes &= minutes - 1
            if -60 < at < 86400:
                at += PAD
                bits[at >> 6] |= e.seconds << (at & 63)
                if at & 63:
                    bits[(at >> 6) + 1] |= e.seconds >> (64 - (at & 63))


cdef inline void put_day(Tables *t, Entry *e, int64_t begin, uint64_t *bits) noexcept nogil:
    """Set the bits of a schedule's occurrences on the day that begins at that instant."""
    cdef Zone *z = &t.zones[e.zone]
    cdef int64_t s = find_segment(z, begin), start = start_of(z, s), end = start_of(z, s + 1), day, u
    cdef int32_t offset = offset_of(z, s)
    if ((s == 0 or start + llabs(offset - offset_of(z, s - 1)) <= begin)
            and (end >= FAR or begin + 86400 <= end - llabs(offset_of(z, s + 1) - offset))):
        for day in range(floor_div(begin + offset, 86400), floor_div(begin + 86399 + offset, 86400) + 1):
            if count_days(t, e, day, day):
                put_wall_day(e, day * 86400 - offset - begin, bits)
        return
    u = next_s(t, e, z, begin)               # the clock changes nearby: step by step
    while u < begin + 86400:
        bits[(u - begin + PAD) >> 6] |= <uint64_t>1 << ((u - begin + PAD) & 63)
        u = next_s(t, e, z, u + 1)


cdef inline int64_t count_bits(const uint64_t *bits, int64_t low, int64_t high) noexcept nogil:
    """How many bits are set from second `low` to `high` of the day, both included."""
    cdef int64_t first = (low + PAD) >> 6, last = (high + PAD) >> 6, i, found = 0
    for i in range(first, last + 1):
        found += popcount(bits[i])
    found -= popcount(bits[first] & ((<uint64_t>1 << ((low + PAD) & 63)) - 1))
    if (high + PAD) & 63 != 63:
        found -= popcount(bits[last] >> (((high + PAD) & 63) + 1))
    return found


cdef inline int64_t count_beside(Tables *t, const int64_t *index, int64_t n, const int64_t *first, const int64_t *period,
                                 int64_t m, int64_t low, int64_t high) noexcept nogil:
    """Seconds from `low` to `high` that one of n cron schedules hits, and none of m grids first + k * period, k >= 0."""
    cdef uint64_t bits[WORDS]
    cdef int64_t begin, i, u, found = 0
    for i in range(m):
        if period[i] == 1:                   # it hits all that comes later
            high = min(high, first[i] - 1)
    low, high = max(low, S_MIN), min(high, S_MAX)
    begin = floor_div(low, 86400) * 86400
    while begin <= high:
        memset(bits, 0, sizeof(bits))
        for i in range(n):
            put_day(t, &t.entries[index[i]], begin, bits)
        for i in range(m):
            u = first[i]
            if u < begin:
                u += (begin - u + period[i] - 1) // period[i] * period[i]
            while u < begin + 86400:
                bits[(u - begin + PAD) >> 6] &= ~(<uint64_t>1 << ((u - begin + PAD) & 63))
                u += period[i]
        found += count_bits(bits, max(low - begin, 0), min(high - begin, 86399))
        begin += 86400
    return found

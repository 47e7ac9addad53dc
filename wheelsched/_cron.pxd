"""What `_cron.pyx` computes with: masks, the calendar, times of day, and zones as segments of one offset.

Functions of plain C values only, so that each can be read alone. Instants and wall times are seconds since 1970.
"""
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t

cdef extern from *:
    """
    #define WS_NEVER_US INT64_MAX
    #define WS_NONE_GE INT64_MAX
    #define WS_NONE_LE (-INT64_MAX)
    #define WS_FAR ((int64_t)1 << 60)                    /* beyond every instant; sums of two stay in range */
    #define WS_DAY_MIN ((int64_t)-719162)                /* 0001-01-01 */
    #define WS_DAY_MAX ((int64_t)2932896)                /* 9999-12-31 */
    #define WS_S_MIN (WS_DAY_MIN * 86400)
    #define WS_S_MAX ((WS_DAY_MAX + 1) * 86400 - 1)
    #define WS_CYCLE_S ((int64_t)146097 * 86400)         /* 400 Gregorian years */
    #define WS_MARGIN_S ((int64_t)2 * 86400)             /* more than any offset from UTC and any change of one */
    #define WS_CORRECTION_S (3 * 3600)                   /* from here on a jump is a clock correction, not DST */
    """
    int64_t NEVER_US "WS_NEVER_US"
    int64_t NONE_GE "WS_NONE_GE"
    int64_t NONE_LE "WS_NONE_LE"
    int64_t FAR "WS_FAR"
    int64_t DAY_MIN "WS_DAY_MIN"
    int64_t DAY_MAX "WS_DAY_MAX"
    int64_t S_MIN "WS_S_MIN"
    int64_t S_MAX "WS_S_MAX"
    int64_t CYCLE_S "WS_CYCLE_S"
    int64_t MARGIN_S "WS_MARGIN_S"
    int32_t CORRECTION_S "WS_CORRECTION_S"
    int ctz "__builtin_ctzll"(uint64_t) noexcept nogil   # the argument is never 0
    int clz "__builtin_clzll"(uint64_t) noexcept nogil

cdef enum:
    YEAR_MIN = 1970                          # of the year field
    YEAR_COUNT = 130
    GAP_SKIP = 0
    GAP_RUN_AFTER = 1
    GAP_SHIFT = 2
    GAP_RULE = 3                             # run_after, but not for clock corrections: the default of fixed-time jobs
    OVERLAP_FIRST = 0
    OVERLAP_SECOND = 1
    OVERLAP_BOTH = 2
    KIND_CRON = 1
    KIND_EVERY = 2
    KIND_AT = 3
    KIND_MANUAL = 4

cdef struct Entry:
    uint64_t seconds
    uint64_t minutes
    uint32_t hours
    uint32_t days                            # index of a table of 28 masks
    int32_t years                            # index of a year mask; -1: every year
    int32_t tod_first
    int32_t tod_last
    int32_t zone
    uint16_t months
    uint8_t gap
    uint8_t overlap
    uint8_t used

cdef struct Years:
    uint64_t bits[3]

cdef struct Zone:
    int64_t *at                              # n instants of change, rising
    int32_t *offset                          # n + 1
    int32_t n
    int32_t cycle                            # at[cycle:] repeats every 400 years; n: it doesn't
    int32_t hint                             # the segment found last; only a guess, so a stale one is harmless


# Calendar. The two conversions are Howard Hinnant's (chrono-Compatible Low-Level Date Algorithms).

cdef inline int64_t day_number(int32_t year, int32_t month) noexcept nogil:
    """Days since 1970 of the first of a month; year >= 1."""
    cdef uint32_t y = <uint32_t>(year - (1 if month <= 2 else 0))
    cdef uint32_t era = y // 400
    cdef uint32_t yoe = y - era * 400
    cdef uint32_t mp = <uint32_t>(month - 3 if month > 2 else month + 9)
    cdef uint32_t doy = (153 * mp + 2) // 5
    cdef uint32_t doe = yoe * 365 + yoe // 4 - yoe // 100 + doy
    return <int64_t>era * 146097 + <int64_t>doe - 719468


cdef inline void civil(int64_t day, int32_t *year, int32_t *month, int32_t *mday) noexcept nogil:
    """The date of a day number from DAY_MIN to DAY_MAX."""
    cdef uint32_t z = <uint32_t>(day + 719468)
    cdef uint32_t era = z // 146097
    cdef uint32_t doe = z - era * 146097
    cdef uint32_t yoe = (doe - doe // 1460 + doe // 36524 - doe // 146096) // 365
    cdef uint32_t doy = doe - (365 * yoe + yoe // 4 - yoe // 100)
    cdef uint32_t mp = (5 * doy + 2) // 153
    mday[0] = <int32_t>(doy - (153 * mp + 2) // 5 + 1)
    month[0] = <int32_t>(mp + 3 if mp < 10 else mp - 9)
    year[0] = <int32_t>(yoe + era * 400 + (1 if mp >= 10 else 0))


cdef inline int32_t month_length(int32_t year, int32_t month) noexcept nogil:
    if month == 2:
        return 29 if year % 4 == 0 and (year % 100 != 0 or year % 400 == 0) else 28
    return 30 + ((month + (month >> 3)) & 1)


cdef inline int64_t floor_div(int64_t a, int64_t b) noexcept nogil:
    cdef int64_t q = a // b
    return q - 1 if a % b < 0 else q


# Times of day

cdef inline int32_t tod_ge(Entry *e, int32_t tod) noexcept nogil:
    """The first matching second of the day at or after `tod`; -1."""
    cdef int32_t h = tod // 3600
    cdef int32_t m = (tod - h * 3600) // 60
    cdef int32_t s = tod - h * 3600 - m * 60
    cdef uint64_t bits
    if e.hours >> h & 1:
        bits = e.minutes >> m
        if bits & 1 and e.seconds >> s:
            return tod + ctz(e.seconds >> s)
        bits >>= 1
        if bits:
            return h * 3600 + (m + 1 + ctz(bits)) * 60 + ctz(e.seconds)
    bits = e.hours >> (h + 1)
    if bits:
        return (h + 1 + ctz(bits)) * 3600 + e.tod_first % 3600
    return -1


cdef inline int32_t tod_le(Entry *e, int32_t tod) noexcept nogil:
    """The last matching second of the day at or before `tod`; -1."""
    cdef int32_t h = tod // 3600
    cdef int32_t m = (tod - h * 3600) // 60
    cdef int32_t s = tod - h * 3600 - m * 60
    cdef uint64_t bits
    if e.hours >> h & 1:
        bits = e.seconds & ((<uint64_t>2 << s) - 1)
        if e.minutes >> m & 1 and bits:
            return h * 3600 + m * 60 + 63 - clz(bits)
        bits = e.minutes & ((<uint64_t>1 << m) - 1)
        if bits:
            return h * 3600 + (63 - clz(bits)) * 60 + 63 - clz(e.seconds)
    bits = e.hours & ((<uint64_t>1 << h) - 1)
    if bits:
        return (63 - clz(bits)) * 3600 + e.tod_last % 3600
    return -1


# Zones. Segment s lies between change s - 1 and change s. Beyond the table the changes repeat every 400 years.

cdef inline int64_t start_of(Zone *z, int64_t s) noexcept nogil:
    """The instant at which segment s begins: -FAR for the first, FAR behind the last."""
    cdef int64_t i = s - 1
    cdef int64_t turn
    if i < 0:
        return -FAR
    if i < z.n:
        return z.at[i]
    if z.cycle == z.n:
        return FAR
    turn = (i - z.cycle) // (z.n - z.cycle)
    return z.at[i - turn * (z.n - z.cycle)] + turn * CYCLE_S


cdef inline int32_t offset_of(Zone *z, int64_t s) noexcept nogil:
    if s <= z.n:
        return z.offset[s]
    return z.offset[z.cycle + (s - 1 - z.cycle) % (z.n - z.cycle) + 1]


cdef inline int64_t find_segment(Zone *z, int64_t u) noexcept nogil:
    """The segment that holds instant u."""
    cdef int64_t turn = 0
    cdef int32_t low = 0, high = z.n, middle = z.hint
    if (middle == 0 or z.at[middle - 1] <= u) and middle < z.n and u < z.at[middle]:
        return middle
    if z.n == 0:
        return 0
    if u >= z.at[z.n - 1]:
        if z.cycle == z.n:
            return z.n
        turn = (u - z.at[z.cycle]) // CYCLE_S
        u -= turn * CYCLE_S
        low = z.cycle
    while low < high:                        # the number of changes at or before u
        middle = (low + high) >> 1
        if z.at[middle] <= u:
            low = middle + 1
        else:
            high = middle
    z.hint = low
    return low + turn * (z.n - z.cycle)


cdef inline int64_t every_next(int64_t every, int64_t anchor, int64_t after) noexcept nogil:
    """The first of anchor + k * every, k >= 1, after `after`; NEVER_US beyond the year 9999."""
    cdef int64_t k = 0
    if anchor > S_MAX * 1000000 or after >= S_MAX * 1000000 or anchor < S_MIN * 1000000:
        return NEVER_US
    if after > anchor:
        k = (after - anchor) // every
    if every > S_MAX * 1000000 - anchor - k * every:
        return NEVER_US
    return anchor + (k + 1) * every

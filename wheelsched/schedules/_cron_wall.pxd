"""What `_cron.pyx` computes with: its structures, the calendar, times of day, and the wall clock without zones.

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
    #define WS_US_MAX (WS_S_MAX * 1000000 + 999000)      /* the last millisecond of 9999 */
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
    int64_t US_MAX "WS_US_MAX"
    int64_t CYCLE_S "WS_CYCLE_S"
    int64_t MARGIN_S "WS_MARGIN_S"
    int32_t CORRECTION_S "WS_CORRECTION_S"
    int popcount "__builtin_popcountll"(uint64_t) noexcept nogil
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
    KIND_UNION = 5
    KIND_AFTER = 6                           # after_completion: the anchor is the one known time, as of `at`

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

cdef struct Member:
    int64_t a
    int64_t anchor                           # NEVER_US: that of the job
    uint8_t kind

cdef struct Union:
    Member *members
    int32_t count                            # 0: not in use

cdef struct Tables:
    Entry *entries
    Zone *zones
    Union *unions
    uint32_t *days
    Years *years
    int32_t entry_count, entry_room, zone_count, zone_room, union_count, union_room, day_room, year_room


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


# The wall clock, without zones


cdef inline int64_t wall_ge(Tables *t, Entry *e, int64_t wall) noexcept nogil:
    """The first matching wall time at or after `wall`, in seconds; NONE_GE."""
    cdef int64_t day = floor_div(wall, 86400)
    cdef int64_t tod = wall - day * 86400
    cdef int64_t match
    if day < DAY_MIN:
        day, tod = DAY_MIN, 0
    match = day_ge(t, e, day)
    if match == day:
        tod = tod_ge(e, <int32_t>tod)
        if tod >= 0:
            return day * 86400 + tod
        match = day_ge(t, e, day + 1)
    return NONE_GE if match == NONE_GE else match * 86400 + e.tod_first


cdef inline int64_t wall_le(Tables *t, Entry *e, int64_t wall) noexcept nogil:
    """The last matching wall time at or before `wall`, in seconds; NONE_LE."""
    cdef int64_t day = floor_div(wall, 86400)
    cdef int64_t tod = wall - day * 86400
    cdef int64_t match
    if day > DAY_MAX:
        day, tod = DAY_MAX, 86399
    match = day_le(t, e, day)
    if match == day:
        tod = tod_le(e, <int32_t>tod)
        if tod >= 0:
            return day * 86400 + tod
        match = day_le(t, e, day - 1)
    return NONE_LE if match == NONE_LE else match * 86400 + e.tod_last


cdef inline int64_t day_ge(Tables *t, Entry *e, int64_t day) noexcept nogil:
    cdef int32_t year, month, mday, length
    cdef int64_t first
    cdef uint32_t mask
    if day > DAY_MAX:
        return NONE_GE
    civil(day, &year, &month, &mday)
    first = day - mday + 1
    while True:
        if e.years >= 0 and not year_ok(t, e, year):
            if year >= YEAR_MIN + YEAR_COUNT:
                return NONE_GE
            year = YEAR_MIN if year < YEAR_MIN else year + 1
            month, mday = 1, 1
            first = day_number(year, 1)
            continue
        if e.months >> (month - 1) & 1:
            length = month_length(year, month)
            mask = t.days[e.days * 28 + (length - 28) * 7 + <uint32_t>(first + 1400004) % 7] >> (mday - 1)
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


cdef inline int64_t day_le(Tables *t, Entry *e, int64_t day) noexcept nogil:
    cdef int32_t year, month, mday, length
    cdef int64_t first
    cdef uint32_t mask
    if day < DAY_MIN:
        return NONE_LE
    civil(day, &year, &month, &mday)
    while True:
        if e.years >= 0 and not year_ok(t, e, year):
            if year < YEAR_MIN:
                return NONE_LE
            year = YEAR_MIN + YEAR_COUNT - 1 if year >= YEAR_MIN + YEAR_COUNT else year - 1
            month, mday = 12, 31
            continue
        if e.months >> (month - 1) & 1:
            length = month_length(year, month)
            first = day_number(year, month)
            mask = t.days[e.days * 28 + (length - 28) * 7 + <uint32_t>(first + 1400004) % 7]
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


cdef inline bint year_ok(Tables *t, Entry *e, int32_t year) noexcept nogil:
    cdef uint32_t i = <uint32_t>(year - YEAR_MIN)
    return i < <uint32_t>YEAR_COUNT and (t.years[e.years].bits[i >> 6] >> (i & 63)) & 1

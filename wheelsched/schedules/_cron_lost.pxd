"""Wall times that match a schedule and that a change of the clock took away.

Each is known by an instant: a wall time in a gap by the one that the offset before the gap gives (PEP 495, fold=0; the
rule `shift` would run there), a repeated one by the instant that is left out. An instant that is an occurrence all the
same, of another wall time, is not lost. Instants and wall times are seconds since 1970.
"""
from libc.stdint cimport int32_t, int64_t

from wheelsched.schedules._cron_count cimport count_days
from wheelsched.schedules._cron_search cimport find_segment, next_s, offset_of, start_of
from wheelsched.schedules._cron_wall cimport (
    CORRECTION_S, FAR, GAP_RULE, GAP_SHIFT, GAP_SKIP, MARGIN_S, NONE_GE, NONE_LE, OVERLAP_BOTH, OVERLAP_FIRST, S_MAX,
    S_MIN, Entry, Tables, Zone, floor_div, wall_ge, wall_le,
)

cdef enum:
    LOST_GAP = 1
    LOST_OVERLAP = 2
    SCAN = 40                                # changes that `quiet` looks at in each direction: 20 years of summer time

cdef struct Change:
    int64_t at                               # FAR: there is none
    int64_t low                              # the instants in question: low <= u < high
    int64_t high
    int64_t instead                          # at which distance from u, or at which instant (gap), it runs instead
    int32_t offset                           # their wall clock
    int32_t reason
    int32_t lost                             # 0: the schedule runs these at another instant


cdef inline Change change_of(Entry *e, Zone *z, int64_t s) noexcept nogil:
    """The change of the clock at which segment s begins, s >= 1, as a schedule sees it; reason 0: not at all."""
    cdef Change c
    cdef int32_t before = offset_of(z, s - 1), here
    c.at, c.reason, c.lost, c.instead, c.offset = start_of(z, s), 0, 0, NONE_GE, before
    c.low, c.high = c.at, c.at
    if c.at >= FAR:
        return c
    here = offset_of(z, s)
    if here > before and e.gap != GAP_SHIFT:
        c.reason, c.high = LOST_GAP, c.at + here - before
        c.lost = e.gap == GAP_SKIP or (e.gap == GAP_RULE and here - before >= CORRECTION_S)
        c.instead = NONE_GE if c.lost else c.at
    elif here < before and e.overlap != OVERLAP_BOTH:
        c.reason, c.lost = LOST_OVERLAP, 1
        if e.overlap == OVERLAP_FIRST:
            c.high, c.offset, c.instead = c.at + before - here, here, here - before
        else:
            c.low, c.instead = c.at - before + here, before - here
    return c


cdef inline bint harmless(Tables *t, Entry *e, Change *c) noexcept nogil:
    """A quick look at a schedule of every hour: after a gap of whole hours the same minutes come on days that match too."""
    cdef int64_t first = floor_div(c.low + c.offset, 86400), last = floor_div(2 * c.high - c.low + c.offset, 86400)
    return (c.reason == LOST_GAP and e.hours == 0xFFFFFF and (c.high - c.low) % 3600 == 0
            and count_days(t, e, first, last) == last - first + 1)


cdef inline int64_t lost_ge(Tables *t, Entry *e, Zone *z, Change *c, int64_t u) noexcept nogil:
    """The first lost instant of a change at or after u; NONE_GE."""
    cdef int64_t w
    if not c.lost or harmless(t, e, c):
        return NONE_GE
    u = max(u, c.low)
    while u < c.high:
        w = wall_ge(t, e, u + c.offset)
        if w == NONE_GE or w - c.offset >= c.high:
            return NONE_GE
        u = w - c.offset
        if next_s(t, e, z, u) != u:
            return u
        u += 1
    return NONE_GE


cdef inline int64_t lost_le(Tables *t, Entry *e, Zone *z, Change *c, int64_t u) noexcept nogil:
    """The last lost instant of a change at or before u; NONE_LE."""
    cdef int64_t w
    if not c.lost or harmless(t, e, c):
        return NONE_LE
    u = min(u, c.high - 1)
    while u >= c.low:
        w = wall_le(t, e, u + c.offset)
        if w == NONE_LE or w - c.offset < c.low:
            return NONE_LE
        u = w - c.offset
        if next_s(t, e, z, u) != u:
            return u
        u -= 1
    return NONE_LE


cdef inline int64_t next_lost(Tables *t, Entry *e, int64_t u, int64_t last, int64_t changes, Change *c) noexcept nogil:
    """The first lost instant from u to `last`, its change in `c`; NONE_GE. Looks at so many changes at most: if there
    are more, c.at is the first one not looked at, and FAR otherwise.
    """
    cdef Zone *z = &t.zones[e.zone]
    cdef int64_t s, found
    u, last = max(u, S_MIN), min(last, S_MAX)
    s = find_segment(z, max(u - MARGIN_S, S_MIN)) + 1
    while True:
        c[0] = change_of(e, z, s)
        if c.at >= FAR or c.low > last:
            c.at = FAR
            return NONE_GE
        if changes == 0:
            return NONE_GE
        found = lost_ge(t, e, z, c, u)
        if found <= last:
            return found
        s += 1
        changes -= 1


cdef inline int64_t prev_lost(Tables *t, Entry *e, int64_t u, int64_t changes, int64_t *edge) noexcept nogil:
    """The last lost instant at or before u; NONE_LE. `edge`: no instant later than that is lost up to u."""
    cdef Zone *z = &t.zones[e.zone]
    cdef Change c
    cdef int64_t s, found
    u = max(min(u, S_MAX), S_MIN)
    s = find_segment(z, min(u + MARGIN_S, S_MAX))
    while s >= 1:
        c = change_of(e, z, s)
        if changes == 0:
            edge[0] = c.high
            return NONE_LE
        found = lost_le(t, e, z, &c, u)
        if found != NONE_LE:
            edge[0] = found
            return found
        s -= 1
        changes -= 1
    edge[0] = NONE_LE
    return NONE_LE


cdef inline int32_t fate(Tables *t, Entry *e, int64_t u, int64_t *instead) noexcept nogil:
    """Which change took u away, LOST_GAP or LOST_OVERLAP, and the instant that runs instead, or NONE_GE; 0: none did."""
    cdef Zone *z = &t.zones[e.zone]
    cdef Change c
    cdef int64_t s
    instead[0] = NONE_GE
    if not S_MIN <= u <= S_MAX or next_s(t, e, z, u) == u:
        return 0
    s = find_segment(z, max(u - MARGIN_S, S_MIN)) + 1
    while True:
        c = change_of(e, z, s)
        if c.at >= FAR or c.low > u + MARGIN_S:
            return 0
        if c.reason and c.low <= u < c.high and wall_ge(t, e, u + c.offset) == u + c.offset:
            if c.instead != NONE_GE:
                u = c.instead if c.reason == LOST_GAP else u + c.instead
                if next_s(t, e, z, u) == u:
                    instead[0] = u
            return c.reason
        s += 1

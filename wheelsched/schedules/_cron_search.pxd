"""Zones as segments of one offset, and the search for the next and the previous occurrence; schedules of all kinds.

The zone cuts time into segments of one offset. Inside a segment the answer is arithmetic on the wall clock: the next
matching day by month and day mask, the next time of day by the other masks. At a segment's edges the two DST rules
apply: a gap (wall times that don't exist) belongs to the segment after it, an overlap to both. Two changes closer
together than their sizes would need more care; no zone of the tz database has any.

Instants and wall times are seconds since 1970; microseconds where a name ends in `_us`, and in what has an anchor.
"""
from libc.stdint cimport int32_t, int64_t, uint8_t

from wheelsched.schedules._cron_wall cimport (
    CORRECTION_S, CYCLE_S, FAR, GAP_RUN_AFTER, GAP_SHIFT, GAP_SKIP, KIND_CRON, KIND_EVERY, KIND_MANUAL, KIND_UNION,
    MARGIN_S, NEVER_US, NONE_GE, NONE_LE, OVERLAP_FIRST, OVERLAP_SECOND, S_MAX, S_MIN, US_MAX, Entry, Member, Tables,
    Zone, floor_div, wall_ge, wall_le,
)

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


cdef inline int64_t next_s(Tables *t, Entry *e, Zone *z, int64_t u) noexcept nogil:
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
                w = wall_ge(t, e, u + before)
                if w < start + here:
                    found = w - before
            elif u <= start and (e.gap == GAP_RUN_AFTER or here - before < CORRECTION_S):
                if wall_ge(t, e, start + before) < start + here:
                    return start if start <= S_MAX else NONE_GE
        if after < here and e.overlap == OVERLAP_SECOND:
            high = end + after
        w = wall_ge(t, e, low)
        if w < high and w - here < found:
            found = w - here
        if found != NONE_GE:
            return found if found <= S_MAX else NONE_GE
        if end >= FAR:
            return NONE_GE
        if after < here:
            w = wall_ge(t, e, end + after)
        if w == NONE_GE:
            return NONE_GE
        # No wall time of the segments between here and w matches: jump over them.
        s += 1
        u = end
        if w - MARGIN_S > end:
            u = w - MARGIN_S
            s = find_segment(z, u)


cdef inline int64_t prev_s(Tables *t, Entry *e, Zone *z, int64_t u) noexcept nogil:
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
        w = wall_le(t, e, high)
        if w >= low and w != NONE_LE:
            found = w - here
        if before < here and e.gap != GAP_SKIP:
            if e.gap == GAP_SHIFT:
                w = wall_le(t, e, min(u, start + here - before - 1) + before)
                if w >= start + before and w - before > found:
                    found = w - before
            elif found == NONE_LE and (e.gap == GAP_RUN_AFTER or here - before < CORRECTION_S):
                if wall_le(t, e, start + here - 1) >= start + before:
                    found = start
        if found != NONE_LE:
            return found if found >= S_MIN else NONE_LE
        if s == 0:
            return NONE_LE
        w = wall_le(t, e, start - 1 + max(before, here))
        if w == NONE_LE:
            return NONE_LE
        s -= 1
        u = start - 1
        if w + MARGIN_S < u:
            u = w + MARGIN_S
            s = find_segment(z, u)
        if u < S_MIN:
            return NONE_LE


cdef inline int64_t next_us(Tables *t, Entry *e, int64_t after_us) noexcept nogil:
    cdef int64_t s = next_s(t, e, &t.zones[e.zone], floor_div(after_us, 1000000) + 1)
    return NEVER_US if s == NONE_GE else s * 1000000


cdef inline int64_t prev_us(Tables *t, Entry *e, int64_t before_us) noexcept nogil:
    cdef int64_t s
    if before_us <= S_MIN * 1000000:
        return NEVER_US
    s = prev_s(t, e, &t.zones[e.zone], floor_div(before_us - 1, 1000000))
    return NEVER_US if s == NONE_LE else s * 1000000


cdef inline int64_t every_next(int64_t every, int64_t anchor, int64_t after) noexcept nogil:
    """The first of anchor + k * every, k >= 1, after `after`; NEVER_US beyond the year 9999."""
    cdef int64_t k = 0
    if anchor > US_MAX or after >= US_MAX or anchor < S_MIN * 1000000:
        return NEVER_US
    if after > anchor:
        k = (after - anchor) // every
    if every > US_MAX - anchor - k * every:
        return NEVER_US
    return anchor + (k + 1) * every


cdef inline int64_t every_prev(int64_t every, int64_t anchor, int64_t before) noexcept nogil:
    """The last of anchor + k * every, k >= 1, before `before`; NEVER_US if there is none."""
    if anchor > US_MAX or anchor < S_MIN * 1000000:
        return NEVER_US
    before = min(before, US_MAX + 1) - 1
    if before < anchor or before - anchor < every:
        return NEVER_US
    return before - (before - anchor) % every


# Schedules of all kinds, in microseconds. A union's members are of the other kinds.

cdef inline int64_t next_simple(Tables *t, uint8_t kind, int64_t a, int64_t anchor, int64_t after) noexcept nogil:
    """The first nominal instant strictly after `after`; NEVER_US."""
    if kind == KIND_CRON:
        return next_us(t, &t.entries[a], after)
    if kind == KIND_EVERY:
        return every_next(a, anchor, after)
    return anchor if kind != KIND_MANUAL and anchor > after else NEVER_US


cdef inline int64_t prev_simple(Tables *t, uint8_t kind, int64_t a, int64_t anchor, int64_t before) noexcept nogil:
    """The last nominal instant strictly before `before`; NEVER_US."""
    if kind == KIND_CRON:
        return prev_us(t, &t.entries[a], before)
    if kind == KIND_EVERY:
        return every_prev(a, anchor, before)
    return anchor if kind != KIND_MANUAL and anchor < before else NEVER_US


cdef inline int64_t anchor_of(Member *m, int64_t anchor) noexcept nogil:
    return anchor if m.anchor == NEVER_US else m.anchor


cdef inline int64_t next_row(Tables *t, uint8_t kind, int64_t a, int64_t anchor, int64_t after) noexcept nogil:
    """`next_simple`, of a union too."""
    cdef int64_t best = NEVER_US
    cdef Member *m
    cdef int32_t i
    if kind != KIND_UNION:
        return next_simple(t, kind, a, anchor, after)
    for i in range(t.unions[a].count):
        m = &t.unions[a].members[i]
        best = min(best, next_simple(t, m.kind, m.a, anchor_of(m, anchor), after))
    return best


cdef inline int64_t prev_row(Tables *t, uint8_t kind, int64_t a, int64_t anchor, int64_t before) noexcept nogil:
    """`prev_simple`, of a union too."""
    cdef int64_t best = NEVER_US, one
    cdef Member *m
    cdef int32_t i
    if kind != KIND_UNION:
        return prev_simple(t, kind, a, anchor, before)
    for i in range(t.unions[a].count):
        m = &t.unions[a].members[i]
        one = prev_simple(t, m.kind, m.a, anchor_of(m, anchor), before)
        if one != NEVER_US and (best == NEVER_US or one > best):
            best = one
    return best

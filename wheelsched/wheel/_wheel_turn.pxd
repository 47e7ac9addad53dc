"""The wheel's turn: handing down, taking due timers, the earliest instant. See _wheel.pyx for the whole."""

from libc.stdint cimport int64_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memset

from wheelsched.wheel._wheel_memory cimport (
    ALL_SLOTS, append, Chunk, chunk, chunk_give, Core, drop, ensure_chunks, ensure_late, ensure_rec, ENTRIES, fetch,
    find, FIRST, first_unit, HEAD, KEEP, LATE, late_alive, late_pop, late_sort, LEVELS, link_chunk, lower_min, mark_stale, MIXED,
    NONE, prefetch, put, Rec, rec_of, scan, SEGMENT_BITS, SHIFT, Slot, slot_at, SLOTS, unlink_chunk, WORDS,
)

cdef extern from *:
    """
    #define WS_SIGN 0x8000000000000000ULL
    """
    const uint64_t SIGN "WS_SIGN"       # flips int64 milliseconds to uint64 in the same order

cdef enum:
    WORK = 131072       # one advance stops after about this much work, a move from slot to slot counting for more than a due id
    MOVE_COST = 3
    AHEAD = 8192        # timers handed down early by one advance
    BLOCK = 32          # timers added together
    EXACT = 65536       # next_due looks for the minimum among at most so many timers


cdef inline void look_ahead(Core* c, uint32_t n, bint whole) noexcept nogil:
    """Fetch the records of chunk n (`whole`: unless it moves as a whole) and the chunk behind it."""
    cdef uint32_t i
    cdef Chunk* h
    if n == 0:
        return
    h = chunk(c, n)
    if h.next:
        prefetch(chunk(c, h.next))
        prefetch(<char*>chunk(c, h.next) + 64)
    if whole and h.when != MIXED and h.live >= KEEP:
        return
    for i in range(h.used):
        if c.pool[n * WORDS + HEAD + i] != NONE:
            prefetch(rec_of(c, c.pool[n * WORDS + HEAD + i]))


cdef inline int64_t hand_down(Core* c, int k, uint64_t unit, int64_t limit) noexcept nogil:
    """Move timers of a unit of level k to the level below, oldest first, about `limit` of them. Returns how many, -1 when memory is out."""
    cdef Slot* slot = &c.slots[FIRST[k] + (<uint32_t>unit & (SLOTS[k] - 1))]
    cdef Slot* target
    cdef Chunk* h
    cdef uint32_t n, i, id, used
    cdef int64_t moved = 0
    cdef uint64_t when
    cdef Rec* r
    look_ahead(c, slot.head, True)
    while slot.head and moved < limit:
        n = slot.head
        h = chunk(c, n)
        look_ahead(c, h.next, True)
        if h.when != MIXED:
            target = slot_at(c, k - 1, h.when)
            if h.live >= KEEP or target.head == 0:
                when = h.when
                unlink_chunk(c, n)
                link_chunk(c, k - 1, target, n, when)
                moved += 4
                continue
        if not ensure_chunks(c, ENTRIES):
            return -1
        used = chunk(c, n).used
        for i in range(used):
            id = c.pool[n * WORDS + HEAD + i]
            if id != NONE:
                r = rec_of(c, id)
                append(c, k - 1, id, r, r.when)
                moved += 1
        unlink_chunk(c, n)
        chunk_give(c, n)
    if slot.head:
        mark_stale(c, <uint32_t>(slot - c.slots))
    return moved


cdef inline uint32_t emit(Core* c, uint64_t unit, uint32_t* out, uint32_t limit) noexcept nogil:
    """Take up to `limit` ids from a slot of level 0, oldest first."""
    cdef Slot* slot = &c.slots[<uint32_t>unit & (SLOTS[0] - 1)]
    cdef Chunk* h
    cdef uint32_t n, i, id, done = 0
    while slot.head and done < limit:
        n = slot.head
        h = chunk(c, n)
        look_ahead(c, h.next, False)
        for i in range(h.used):
            id = c.pool[n * WORDS + HEAD + i]
            if id == NONE:
                continue
            if done == limit:
                break
            out[done] = id
            done += 1
            rec_of(c, id).pos = 0
            c.pool[n * WORDS + HEAD + i] = NONE
            h.live -= 1
        if h.live == 0:
            unlink_chunk(c, n)
            chunk_give(c, n)
    c.count -= done
    return done


cdef inline uint32_t emit_late(Core* c, uint32_t* out, uint32_t limit) noexcept nogil:
    """Take up to `limit` ids from the heap, in order."""
    cdef uint32_t done = 0
    while c.late_len and done < limit:
        if late_alive(c, &c.late[0]):
            out[done] = c.late[0].id
            done += 1
            rec_of(c, c.late[0].id).pos = 0
        else:
            c.late_dead -= 1
        late_pop(c)
    c.count -= done
    return done


cdef inline void settle(Core* c) noexcept nogil:
    """Move the cursor to now, when nothing up to now is left."""
    cdef int k
    c.base[0] = max(c.base[0], c.now)
    for k in range(1, LEVELS):
        c.base[k] = max(c.base[k], (c.now >> SHIFT[k]) + 1)


cdef inline void hand_down_early(Core* c) noexcept nogil:
    """Hand down coming units, as far as the circles below have room, in steps. Failing for want of memory is harmless here."""
    cdef int k, d
    cdef int64_t moved, budget = AHEAD
    for k in range(LEVELS - 1, 0, -1):
        d = SHIFT[k] - SHIFT[k - 1]
        while budget > 0 and ((c.base[k] + 1) << d) - c.base[k - 1] <= SLOTS[k - 1]:
            if c.base[k] == SLOTS[k] if k == LEVELS - 1 else c.base[k] == c.base[k + 1] << (SHIFT[k + 1] - SHIFT[k]):
                break
            moved = hand_down(c, k, c.base[k], budget)
            if moved < 0:
                return
            budget -= moved
            if c.slots[FIRST[k] + (<uint32_t>c.base[k] & (SLOTS[k] - 1))].head:
                return
            c.base[k] += 1


cdef inline int64_t turn(Core* c, uint32_t* out, uint32_t limit) noexcept nogil:
    """Take due ids, in order. Returns how many, -1 when memory is out and none was taken."""
    cdef uint32_t n = emit_late(c, out, limit)
    cdef int64_t moved, work = n * MOVE_COST
    cdef uint64_t unit, start
    cdef bint early
    cdef int k, j
    while n < limit and (n == 0 or work < WORK):
        k = 0
        while k < LEVELS and c.filled[k] == 0:
            k += 1
        if k == LEVELS:
            settle(c)
            break
        unit = first_unit(c, k)
        # What was handed down early from a unit has to wait for the rest of that unit.
        early = k + 1 < LEVELS and (unit >> (SHIFT[k + 1] - SHIFT[k])) >= c.base[k + 1]
        if early:
            k += 1
            unit = c.base[k]
        start = unit << SHIFT[k]
        if start > c.now:
            settle(c)
            break
        if k == 0:
            c.base[0] = unit
            moved = emit(c, unit, out + n, limit - n)
            n += <uint32_t>moved
            work += moved + 8
            continue
        if not early:
            for j in range(k):  # nothing is left below
                c.base[j] = start >> SHIFT[j]
        moved = hand_down(c, k, unit, <int64_t>1 << 62)
        if moved < 0:
            return n if n else -1
        c.base[k] = unit + 1
        work += moved * MOVE_COST
    if c.count == 0:
        settle(c)
    if work < WORK:
        hand_down_early(c)
    return n


cdef inline uint64_t earliest(Core* c) noexcept nogil:
    """The earliest instant of all timers; NEVER when there is none. Exact, but for a crowd whose first was cancelled: a lower bound."""
    cdef uint64_t best = MIXED
    cdef uint32_t g
    cdef int k
    while c.late_len and not late_alive(c, &c.late[0]):
        c.late_dead -= 1
        late_pop(c)
    if c.late_len:
        return c.late[0].when
    if c.filled[0]:
        best = first_unit(c, 0)
    for k in range(1, LEVELS):
        if c.filled[k]:
            g = FIRST[k] + (<uint32_t>first_unit(c, k) & (SLOTS[k] - 1))
            if c.slots[g].min < best:
                if (c.stale[g >> 6] >> (g & 63)) & 1:
                    find_min(c, g)
                best = min(best, c.slots[g].min)
    return best


cdef inline void find_min(Core* c, uint32_t g) noexcept nogil:
    """Make the minimum of a slot exact again, unless it holds too many timers."""
    cdef uint64_t low = MIXED
    cdef uint32_t n = c.slots[g].head, i, id, seen = 0
    while n and low != c.slots[g].min:
        for i in range(chunk(c, n).used):
            id = c.pool[n * WORDS + HEAD + i]
            if id != NONE:
                low = min(low, rec_of(c, id).when)
        seen += chunk(c, n).used
        if seen > EXACT and low != c.slots[g].min:
            return
        n = chunk(c, n).next
    c.slots[g].min = low
    c.stale[g >> 6] &= ~(1ULL << (g & 63))


cdef inline void start_at(Core* c, uint64_t now) noexcept nogil:
    """Empty slots, free chunks and an empty heap, with the cursor at now. Records are left alone."""
    cdef int k
    memset(c.slots, 0, ALL_SLOTS * sizeof(Slot))
    memset(c.bits, 0, ALL_SLOTS // 64 * 8)
    memset(c.stale, 0, ALL_SLOTS // 64 * 8)
    memset(c.sums, 0, ALL_SLOTS // 4096 * 8)
    for k in range(LEVELS):
        c.filled[k] = 0
        c.base[k] = (now >> SHIFT[k]) + 1
    c.now = c.base[0] = now
    c.count = 0
    c.pool_top = 1
    c.free_head = c.free_count = 0
    c.late_len = c.late_dead = c.stamp = 0
    hand_down_early(c)


cdef inline uint64_t chunk_bound(uint64_t n) noexcept nogil:
    """Chunks that adding n timers can take at most: full ones, and one that is not full per slot."""
    return n // ENTRIES + min(n, ALL_SLOTS) + 1


cdef inline void collect(Core* c, uint32_t* out) noexcept nogil:
    """All pending ids, timers of one instant in order of adding."""
    cdef uint32_t g = 0, n, i, id
    cdef uint64_t done = 0
    late_sort(c)
    for i in range(c.late_len):
        out[done] = c.late[i].id
        done += 1
    while True:
        g = scan(c, g, ALL_SLOTS)
        if g == ALL_SLOTS:
            return
        n = c.slots[g].head
        while n:
            for i in range(chunk(c, n).used):
                id = c.pool[n * WORDS + HEAD + i]
                if id != NONE:
                    out[done] = id
                    done += 1
            n = chunk(c, n).next
        g += 1
        if g == ALL_SLOTS:
            return


cdef inline bint prepare(Core* c, const uint32_t* ids, const int64_t* when, size_t n) noexcept nogil:
    """Get all memory that adding these can need; False when it is out."""
    cdef size_t i
    cdef uint64_t late = 0, w, pending = 0
    for i in range(n):
        if when[i] == <int64_t>(MIXED ^ SIGN):
            continue
        pending += 1
        w = <uint64_t>when[i] ^ SIGN
        late += w < c.base[0]
        if ids[i] >= c.top or c.segments[ids[i] >> SEGMENT_BITS] == NULL:
            if not ensure_rec(c, ids[i]):
                return False
    return ensure_late(c, late) and ensure_chunks(c, chunk_bound(pending - late))


cdef inline void add_any(Core* c, uint32_t id, uint64_t when) noexcept nogil:
    """Add, move or (NEVER) cancel one timer; the memory for it is there."""
    cdef Rec* r
    if when != MIXED:
        put(c, id, when)
    else:
        r = find(c, id)
        if r != NULL:
            drop(c, r)


cdef inline void add_all(Core* c, const uint32_t* ids, const int64_t* when, size_t n) noexcept nogil:
    """Add in blocks: first the slots of all are fetched, then their last chunks, then each id is put at the end of its chunk."""
    cdef uint64_t base0 = c.base[0], base1 = c.base[1], base2 = c.base[2], w
    cdef uint32_t* pool = c.pool    # does not move, and no base changes: see `prepare`
    cdef Slot* slots = c.slots
    cdef Slot* slot
    cdef uint32_t[BLOCK] place
    cdef uint32_t tail, pos, used
    cdef Chunk* h
    cdef Rec* r
    cdef size_t i, k, m
    i = 0
    while i < n:
        m = min(n - i, <size_t>BLOCK)
        for k in range(m):
            w = <uint64_t>when[i + k] ^ SIGN
            place[k] = NONE
            if base0 <= w and w >> SHIFT[2] < base2 and w != MIXED:   # NEVER is within reach at the end of time
                place[k] = FIRST[1] + (<uint32_t>(w >> SHIFT[1]) & (SLOTS[1] - 1)) if w >> SHIFT[1] >= base1 else \
                    <uint32_t>w & (SLOTS[0] - 1)
                prefetch(&slots[place[k]])
                prefetch(rec_of(c, ids[i + k]))
        for k in range(m):
            if place[k] != NONE and slots[place[k]].tail:
                prefetch(pool + <size_t>slots[place[k]].tail * WORDS)
                prefetch(pool + <size_t>slots[place[k]].tail * WORDS + WORDS // 2)
        for k in range(m):
            w = <uint64_t>when[i + k] ^ SIGN
            if place[k] != NONE:    # the common case; `add_any` does the same, and all others
                r = rec_of(c, ids[i + k])
                slot = &slots[place[k]]
                tail = slot.tail
                h = <Chunk*>(pool + <size_t>tail * WORDS)
                if r.pos == 0 and tail and h.used < ENTRIES:
                    used = h.used
                    if h.when != w:
                        h.when = MIXED
                    lower_min(c, slot, w)
                    h.used = <uint16_t>(used + 1)
                    h.live += 1
                    pos = tail * WORDS + HEAD + used
                    pool[pos] = ids[i + k]
                    r.when = w
                    r.pos = pos
                    c.count += 1
                    continue
            add_any(c, ids[i + k], w)
        i += m


cdef inline size_t cancel_all(Core* c, const uint32_t* ids, size_t n) noexcept nogil:
    cdef size_t i, done = 0
    cdef Rec* r
    for i in range(n):
        if i + 24 < n:
            fetch(c, ids[i + 24])
        if i + 12 < n:
            r = find(c, ids[i + 12])
            if r != NULL and not r.pos & LATE:
                prefetch(c.pool + r.pos)
                prefetch(c.pool + r.pos // WORDS * WORDS)
        r = find(c, ids[i])
        if r != NULL:
            drop(c, r)
            done += 1
    return done

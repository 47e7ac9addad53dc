"""The wheel's memory: records by id, chunks of ids, slots with bit maps, and the heap of late timers.

Instants here are uint64: the int64 milliseconds with the sign bit flipped, so that they compare and shift as unsigned numbers.
"""

from libc.stdint cimport int64_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, qsort, realloc
from libc.string cimport memset

cdef extern from *:
    """
    #define WS_LEVELS 6
    static const int WS_SHIFT[WS_LEVELS] = {0, 13, 27, 36, 45, 54};          /* a unit of level k is 2**shift ms */
    static const unsigned WS_SLOTS[WS_LEVELS] = {1u << 14, 1u << 15, 1u << 10, 1u << 10, 1u << 10, 1u << 10};
    static const unsigned WS_FIRST[WS_LEVELS] = {0, 1u << 14, 49152, 50176, 51200, 52224};  /* slot 0 of level k */
    #define WS_ALL 53248u
    #define WS_NONE 0xFFFFFFFFu
    #define WS_MIXED 0xFFFFFFFFFFFFFFFFULL
    #define WS_LATE 0x80000000u
    #define WS_PREFETCH(p) __builtin_prefetch((p), 1)
    """
    enum:
        LEVELS "WS_LEVELS"
        ALL_SLOTS "WS_ALL"
    const int SHIFT "WS_SHIFT" [6]
    const unsigned int SLOTS "WS_SLOTS" [6]
    const unsigned int FIRST "WS_FIRST" [6]
    const uint32_t NONE "WS_NONE"       # an entry that was cancelled; never an id
    const uint64_t MIXED "WS_MIXED"     # NEVER, so never the instant of a timer
    const uint32_t LATE "WS_LATE"
    int ctz "__builtin_ctzll"(unsigned long long) noexcept nogil
    void prefetch "WS_PREFETCH"(const void*) noexcept nogil

cdef enum:
    SEGMENT_BITS = 14   # records of 16,384 ids are allocated together
    SEGMENT = 1 << SEGMENT_BITS
    WORDS = 32          # of a chunk: 128 bytes, two cache lines
    HEAD = 6            # words before the entries
    ENTRIES = WORDS - HEAD
    MERGE = ENTRIES // 2
    KEEP = 8            # a uniform chunk with this many timers moves as a whole

cdef packed struct Rec:
    uint64_t when
    uint32_t pos        # 0: not pending; LATE | stamp: in the heap; else the word of `pool` that holds the id

cdef struct Chunk:      # the header; ids follow, oldest first
    uint32_t next
    uint32_t prev
    uint32_t place      # level << 20 | slot within the level
    uint16_t used
    uint16_t live
    uint64_t when       # of every entry, or MIXED

cdef struct Slot:
    uint32_t head       # chunk number; 0: none
    uint32_t tail
    uint64_t min        # no later than the earliest entry; equal to it unless marked stale

cdef struct Late:
    uint64_t when
    uint32_t stamp      # order of adding
    uint32_t id

cdef struct Core:
    Rec** segments
    uint32_t segment_room
    uint64_t top            # one more than the highest id ever added
    uint32_t* pool
    uint32_t pool_room      # chunks; chunk 0 is not used
    uint32_t pool_top       # chunks from here on were never touched
    uint32_t free_head
    uint32_t free_count
    Slot* slots
    uint64_t* bits          # slots in use, ...
    uint64_t* sums          # ... words of `bits` that are not zero, ...
    uint64_t* stale         # ... and slots whose `min` may be too early
    uint32_t filled[6]      # slots in use, per level
    uint64_t base[6]        # first unit of level k that is not (wholly) handed down; base[0] is the cursor in ms
    uint64_t now
    uint64_t count
    Late* late
    uint32_t late_len
    uint32_t late_room
    uint32_t late_dead      # entries of `late` that were cancelled or moved
    uint32_t stamp


cdef inline Rec* rec_of(Core* c, uint32_t id) noexcept nogil:
    """The record of an id whose segment exists."""
    return &c.segments[id >> SEGMENT_BITS][id & (SEGMENT - 1)]


cdef inline Rec* find(Core* c, uint32_t id) noexcept nogil:
    """The record of any id; NULL when it is not pending."""
    if (id >> SEGMENT_BITS) >= c.segment_room or c.segments[id >> SEGMENT_BITS] == NULL:
        return NULL
    cdef Rec* r = rec_of(c, id)
    return r if r.pos else NULL


cdef inline void fetch(Core* c, uint32_t id) noexcept nogil:
    """Have the record of an id brought near."""
    if (id >> SEGMENT_BITS) < c.segment_room and c.segments[id >> SEGMENT_BITS] != NULL:
        prefetch(rec_of(c, id))


cdef inline bint ensure_rec(Core* c, uint32_t id) noexcept nogil:
    """Make room for a record; False when memory is out."""
    cdef uint32_t s = id >> SEGMENT_BITS
    cdef uint32_t room
    cdef Rec** table
    if s >= c.segment_room:
        room = max(s + 1, c.segment_room * 2)
        table = <Rec**>realloc(c.segments, room * sizeof(Rec*))
        if table == NULL:
            return False
        memset(table + c.segment_room, 0, (room - c.segment_room) * sizeof(Rec*))
        c.segments = table
        c.segment_room = room
    if c.segments[s] == NULL:
        c.segments[s] = <Rec*>calloc(SEGMENT, sizeof(Rec))
        if c.segments[s] == NULL:
            return False
    c.top = max(c.top, <uint64_t>id + 1)
    return True


# Chunks

cdef inline Chunk* chunk(Core* c, uint32_t n) noexcept nogil:
    return <Chunk*>(c.pool + <size_t>n * WORDS)


cdef inline bint ensure_chunks(Core* c, uint64_t n) noexcept nogil:
    """Make sure that n chunks can be taken; False when memory is out."""
    cdef uint64_t room
    cdef uint32_t* pool
    if <int64_t>c.free_count + c.pool_room - c.pool_top >= <int64_t>n:
        return True
    room = max(c.pool_top + n - c.free_count, <uint64_t>c.pool_room + c.pool_room // 2)
    if room >= LATE // WORDS:
        room = LATE // WORDS - 1
        if room < c.pool_top + n - c.free_count:
            return False
    pool = <uint32_t*>realloc(c.pool, room * WORDS * 4)
    if pool == NULL:
        return False
    c.pool = pool
    c.pool_room = <uint32_t>room
    return True


cdef inline uint32_t chunk_take(Core* c) noexcept nogil:
    cdef uint32_t n = c.free_head
    if n:
        c.free_head = chunk(c, n).next
        c.free_count -= 1
    else:
        n = c.pool_top
        c.pool_top += 1
    return n


cdef inline void chunk_give(Core* c, uint32_t n) noexcept nogil:
    chunk(c, n).next = c.free_head
    c.free_head = n
    c.free_count += 1


# Slots

cdef inline void mark(Core* c, int k, uint32_t slot) noexcept nogil:
    cdef uint32_t g = FIRST[k] + slot
    c.bits[g >> 6] |= 1ULL << (g & 63)
    c.sums[g >> 12] |= 1ULL << ((g >> 6) & 63)
    c.filled[k] += 1


cdef inline void unmark(Core* c, int k, uint32_t slot) noexcept nogil:
    cdef uint32_t g = FIRST[k] + slot
    c.bits[g >> 6] &= ~(1ULL << (g & 63))
    c.stale[g >> 6] &= ~(1ULL << (g & 63))
    if c.bits[g >> 6] == 0:
        c.sums[g >> 12] &= ~(1ULL << ((g >> 6) & 63))
    c.filled[k] -= 1


cdef inline uint32_t scan(Core* c, uint32_t start, uint32_t end) noexcept nogil:
    """The first slot in use (numbered over all levels) in [start, end); `end` when there is none."""
    cdef uint32_t w = start >> 6
    cdef uint64_t word = c.bits[w] & (~0ULL << (start & 63))
    cdef uint32_t s
    if word == 0:
        w += 1
        if w >= end >> 6:
            return end
        s = w >> 6
        word = c.sums[s] & (~0ULL << (w & 63))
        while word == 0:
            s += 1
            if s > (end - 1) >> 12:
                return end
            word = c.sums[s]
        w = (s << 6) + ctz(word)
        if w >= end >> 6:
            return end
        word = c.bits[w]
    return (w << 6) + ctz(word)


cdef inline uint64_t first_unit(Core* c, int k) noexcept nogil:
    """The earliest unit in use of a level that is not empty."""
    cdef uint32_t mask = SLOTS[k] - 1
    cdef uint32_t start = <uint32_t>c.base[k] & mask
    cdef uint32_t end = FIRST[k] + SLOTS[k]
    cdef uint32_t g = scan(c, FIRST[k] + start, end)
    if g == end:
        g = scan(c, FIRST[k], end)
    return c.base[k] + ((g - FIRST[k] - start) & mask)


cdef inline int level_of(Core* c, uint64_t when) noexcept nogil:
    """The level for a timer that is not late."""
    cdef int k = 0
    while k < LEVELS - 1 and (when >> SHIFT[k + 1]) >= c.base[k + 1]:
        k += 1
    return k


cdef inline Slot* slot_at(Core* c, int k, uint64_t when) noexcept nogil:
    return &c.slots[FIRST[k] + (<uint32_t>(when >> SHIFT[k]) & (SLOTS[k] - 1))]


cdef inline void lower_min(Core* c, Slot* slot, uint64_t when) noexcept nogil:
    cdef uint32_t g
    if when < slot.min:
        slot.min = when
        g = <uint32_t>(slot - c.slots)
        c.stale[g >> 6] &= ~(1ULL << (g & 63))


cdef inline void mark_stale(Core* c, uint32_t g) noexcept nogil:
    c.stale[g >> 6] |= 1ULL << (g & 63)


cdef inline Chunk* link_chunk(Core* c, int k, Slot* slot, uint32_t n, uint64_t when) noexcept nogil:
    """Put a chunk at the end of a slot; `when` is the earliest in it."""
    cdef Chunk* h = chunk(c, n)
    cdef uint32_t s = <uint32_t>(slot - c.slots) - FIRST[k]
    h.next = 0
    h.prev = slot.tail
    h.place = (<uint32_t>k << 20) | s
    if slot.tail:
        chunk(c, slot.tail).next = n
        lower_min(c, slot, when)
    else:
        slot.head = n
        slot.min = when
        mark(c, k, s)
    slot.tail = n
    return h


cdef inline void unlink_chunk(Core* c, uint32_t n) noexcept nogil:
    cdef Chunk* h = chunk(c, n)
    cdef int k = h.place >> 20
    cdef uint32_t s = h.place & 0xFFFFF
    cdef Slot* slot = &c.slots[FIRST[k] + s]
    if h.prev:
        chunk(c, h.prev).next = h.next
    else:
        slot.head = h.next
    if h.next:
        chunk(c, h.next).prev = h.prev
    else:
        slot.tail = h.prev
    if slot.head == 0:
        unmark(c, k, s)


cdef inline void append(Core* c, int k, uint32_t id, Rec* r, uint64_t when) noexcept nogil:
    """Put an id at the end of its slot at level k. A chunk must be there for the taking."""
    cdef Slot* slot = slot_at(c, k, when)
    cdef uint32_t n = slot.tail
    cdef Chunk* h
    cdef uint32_t pos
    if n == 0 or chunk(c, n).used == ENTRIES:
        n = chunk_take(c)
        h = link_chunk(c, k, slot, n, when)
        h.used = h.live = 0
        h.when = when
    else:
        h = chunk(c, n)
        if h.when != when:
            h.when = MIXED
        lower_min(c, slot, when)
    pos = n * WORDS + HEAD + h.used
    h.used += 1
    h.live += 1
    c.pool[pos] = id
    r.when = when
    r.pos = pos


cdef inline void merge(Core* c, uint32_t a, uint32_t b) noexcept nogil:
    """Pack the entries of two neighbours into the first and free the second."""
    cdef Chunk* h = chunk(c, a)
    cdef Chunk* g = chunk(c, b)
    cdef uint32_t* into = c.pool + <size_t>a * WORDS + HEAD
    cdef uint32_t* source = into
    cdef uint32_t n = 0, i, used = h.used
    cdef int _turn
    for _turn in range(2):
        for i in range(used):
            if source[i] != NONE:
                into[n] = source[i]
                rec_of(c, into[n]).pos = a * WORDS + HEAD + n
                n += 1
        source = c.pool + <size_t>b * WORDS + HEAD
        used = g.used
    h.used = h.live = <uint16_t>n
    if h.when != g.when:
        h.when = MIXED
    unlink_chunk(c, b)
    chunk_give(c, b)


cdef inline void take_out(Core* c, Rec* r) noexcept nogil:
    """Remove a pending timer from its chunk. Chunks that became thin are merged, so memory follows the number of timers."""
    cdef uint32_t n = r.pos // WORDS
    cdef Chunk* h = chunk(c, n)
    cdef uint32_t place = h.place
    cdef uint32_t g = FIRST[place >> 20] + (place & 0xFFFFF)
    c.pool[r.pos] = NONE
    h.live -= 1
    if h.live == 0:
        unlink_chunk(c, n)
        chunk_give(c, n)
    elif h.live <= MERGE:
        if h.next and h.live + chunk(c, h.next).live <= MERGE:
            merge(c, n, h.next)
        elif h.prev and h.live + chunk(c, h.prev).live <= MERGE:
            merge(c, h.prev, n)
    if (place >> 20) and c.slots[g].min == r.when and c.slots[g].head:
        mark_stale(c, g)
    r.pos = 0


# The heap of late timers: 4-ary, by (when, stamp). Cancelled entries stay in it until they come up or are too many.

cdef inline bint before(Late* a, Late* b) noexcept nogil:
    return a.when < b.when or (a.when == b.when and a.stamp < b.stamp)


cdef inline int by_when(const void* a, const void* b) noexcept nogil:
    return -1 if before(<Late*>a, <Late*>b) else 1


cdef inline bint late_alive(Core* c, Late* e) noexcept nogil:
    return rec_of(c, e.id).pos == (LATE | e.stamp)


cdef inline void late_sift(Core* c, uint32_t i, Late e) noexcept nogil:
    """Put e at i or below, where it belongs."""
    cdef Late* h = c.late
    cdef uint32_t j, k
    while True:
        j = i * 4 + 1
        if j >= c.late_len:
            break
        for k in range(j + 1, min(j + 4, c.late_len)):
            if before(&h[k], &h[j]):
                j = k
        if not before(&h[j], &e):
            break
        h[i] = h[j]
        i = j
    h[i] = e


cdef inline void late_pop(Core* c) noexcept nogil:
    c.late_len -= 1
    if c.late_len:
        late_sift(c, 0, c.late[c.late_len])


cdef inline void late_sort(Core* c) noexcept nogil:
    """Drop dead entries, sort (a sorted array is a heap) and number anew from 0."""
    cdef uint32_t i, n = 0
    for i in range(c.late_len):
        if late_alive(c, &c.late[i]):
            c.late[n] = c.late[i]
            n += 1
    if n:
        qsort(c.late, n, sizeof(Late), by_when)
    for i in range(n):
        c.late[i].stamp = i
        rec_of(c, c.late[i].id).pos = LATE | i
    c.late_len = c.stamp = n
    c.late_dead = 0


cdef inline bint ensure_late(Core* c, uint64_t n) noexcept nogil:
    """Make room for n more late timers; False when memory is out."""
    cdef uint64_t room = c.late_len + n
    cdef Late* late
    if room > c.late_room:
        if room >= LATE:
            return False
        room = max(room, <uint64_t>c.late_room + c.late_room // 2)
        late = <Late*>realloc(c.late, room * sizeof(Late))
        if late == NULL:
            return False
        c.late = late
        c.late_room = <uint32_t>room
    return True


cdef inline void late_add(Core* c, uint32_t id, Rec* r, uint64_t when) noexcept nogil:
    cdef uint32_t i, parent
    cdef Late e
    if c.late_len == 0:
        c.stamp = 0
    elif c.stamp == LATE - 1:
        late_sort(c)
    e.when, e.stamp, e.id = when, c.stamp, id
    c.stamp += 1
    i = c.late_len
    c.late_len += 1
    while i:
        parent = (i - 1) // 4
        if not before(&e, &c.late[parent]):
            break
        c.late[i] = c.late[parent]
        i = parent
    c.late[i] = e
    r.when = when
    r.pos = LATE | e.stamp


cdef inline void drop(Core* c, Rec* r) noexcept nogil:
    """Make a pending timer not pending."""
    c.count -= 1
    if r.pos & LATE:
        r.pos = 0
        c.late_dead += 1
        if c.late_dead == c.late_len:
            c.late_len = c.late_dead = 0
        elif c.late_dead > 1024 and c.late_dead > c.late_len // 2:
            late_sort(c)
    else:
        take_out(c, r)


cdef inline void put(Core* c, uint32_t id, uint64_t when) noexcept nogil:
    """Add or move a timer; the memory for it is there."""
    cdef Rec* r = rec_of(c, id)
    if r.pos:
        drop(c, r)
    c.count += 1
    if when < c.base[0]:
        late_add(c, id, r, when)
    else:
        append(c, level_of(c, when), id, r, when)

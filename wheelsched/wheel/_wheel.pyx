# cython: embedsignature=False
"""Hierarchical timing wheel over ids: add, cancel, advance, next_due; nothing is ever scanned.

Six levels with units of 1 ms, 8.2 s, 37 h, 2.2 years, 1,115 years and the rest of int64. A level is a circle of slots with a
bit map, so the next slot in use is a few words away. Levels cover adjoining spans: level k holds the units from `base[k]` up to
the first unit of level k + 1 that was not handed down yet. That rule depends on `base` alone, so timers of one instant are
always in one slot (or split between a slot's rest and the level below, older ones below), and order of adding is kept.
As a unit is handed down up to two units early, in small steps at the end of `advance`, a full one seldom costs a pause; and a
timer of the next day or so is put at once where it is handed down only once.

A slot is a list of 128-byte chunks of ids rather than of timers: handing down reads it in order and fetches the records of the
coming ids ahead, where a list of timers would wait for memory at each step. A chunk whose timers have one instant moves as a whole.
A record (12 bytes: instant, place of the id) is all that is touched at random. An id that is cancelled leaves a hole in its chunk.

Timers that are added for an instant before the cursor (late: overdue already) wait in a heap; they come before all others.
After the hierarchical wheel of Varghese and Lauck (1987) and the bit maps of W. Ahern's timeout.c; the rest is measured.
"""
cimport cython
from cpython.buffer cimport PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcpy

from wheelsched.wheel._wheel_memory cimport (
    ALL_SLOTS, ENTRIES, FIRST, HEAD, LEVELS, MIXED, NONE, SEGMENT, SEGMENT_BITS, SHIFT, SLOTS, WORDS, Chunk, Core, Late, Rec,
    Slot, before, chunk, drop, ensure_chunks, ensure_late, find, late_alive, put, rec_of,
)
from wheelsched.wheel._wheel_turn cimport SIGN, add_all, cancel_all, chunk_bound, collect, earliest, prepare, start_at, turn

import numpy as np

NEVER_MS = 2**63 - 1  # no such instant: not pending


@cython.final
@cython.auto_pickle(False)
cdef class Wheel:
    """Timers by id. One thread at a time: a second one gets RuntimeError."""

    cdef Core c
    cdef uint32_t* scratch
    cdef uint32_t scratch_room
    cdef bint busy

    def __cinit__(self, int64_t now_ms):
        self.c.slots = <Slot*>calloc(ALL_SLOTS, sizeof(Slot))
        self.c.bits = <uint64_t*>calloc(ALL_SLOTS // 64 * 2 + ALL_SLOTS // 4096, 8)
        if self.c.slots == NULL or self.c.bits == NULL:
            raise MemoryError("no memory for a wheel")
        self.c.stale = self.c.bits + ALL_SLOTS // 64
        self.c.sums = self.c.stale + ALL_SLOTS // 64
        start_at(&self.c, <uint64_t>now_ms ^ SIGN)

    def __dealloc__(self):
        cdef uint32_t s
        for s in range(self.c.segment_room):
            free(self.c.segments[s])
        free(self.c.segments)
        free(self.c.pool)
        free(self.c.late)
        free(self.c.slots)
        free(self.c.bits)
        free(self.scratch)

    cdef int enter(self) except -1:
        if self.busy:
            raise RuntimeError("a wheel serves one thread at a time")
        return 0

    def __len__(self):
        return self.c.count

    def __contains__(self, uint32_t id):
        return find(&self.c, id) != NULL

    @property
    def now_ms(self):
        return <int64_t>(self.c.now ^ SIGN)

    @property
    def nbytes(self):
        cdef uint64_t records = 0
        cdef uint32_t s
        for s in range(self.c.segment_room):
            if self.c.segments[s] != NULL:
                records += min(<uint64_t>SEGMENT, self.c.top - <uint64_t>s * SEGMENT)
        return (
            ALL_SLOTS * sizeof(Slot) + (ALL_SLOTS // 64 * 2 + ALL_SLOTS // 4096) * 8
            + self.c.segment_room * sizeof(Rec*) + records * sizeof(Rec)
            + <size_t>self.c.pool_top * WORDS * 4 + self.c.late_len * sizeof(Late) + self.scratch_room * 4
        )

    def when(self, uint32_t id):
        cdef Rec* r = find(&self.c, id)
        return None if r == NULL else <int64_t>(r.when ^ SIGN)

    def add(self, const uint32_t[::1] ids, const int64_t[::1] when_ms):
        cdef size_t n = ids.shape[0], i
        cdef bint fine = True
        if when_ms.shape[0] != ids.shape[0]:
            raise ValueError("ids and when_ms differ in length")
        if n == 0:
            return
        for i in range(n):
            if ids[i] == NONE:
                raise ValueError("2**32 - 1 is not an id")
        self.enter()
        self.busy = True
        with nogil:
            fine = prepare(&self.c, &ids[0], &when_ms[0], n)
            if fine:
                add_all(&self.c, &ids[0], &when_ms[0], n)
        self.busy = False
        if not fine:
            raise MemoryError("no memory for more timers; nothing was added")

    def add_one(self, uint32_t id, int64_t when_ms):
        cdef Core* c = &self.c
        self.enter()
        if id == NONE:
            raise ValueError("2**32 - 1 is not an id")
        if not prepare(c, &id, &when_ms, 1):
            raise MemoryError("no memory for more timers; nothing was added")
        add_all(c, &id, &when_ms, 1)

    def cancel_one(self, uint32_t id):
        self.enter()
        cdef Rec* r = find(&self.c, id)
        if r == NULL:
            return False
        drop(&self.c, r)
        return True

    def cancel(self, const uint32_t[::1] ids):
        cdef size_t n = ids.shape[0], done = 0
        self.enter()
        if n:
            self.busy = True
            with nogil:
                done = cancel_all(&self.c, &ids[0], n)
            self.busy = False
        return done

    def advance(self, int64_t now_ms, int64_t limit=65536):
        cdef uint64_t now = <uint64_t>now_ms ^ SIGN
        cdef uint32_t room
        cdef uint32_t* scratch
        cdef int64_t n
        self.enter()
        if now < self.c.now:
            raise ValueError("time does not go back here; rebuild() starts anew at an earlier instant")
        if limit < 1:
            raise ValueError("limit is at least 1")
        room = <uint32_t>min(<uint64_t>limit, min(self.c.count, <uint64_t>NONE))
        if room > self.scratch_room:
            scratch = <uint32_t*>realloc(self.scratch, <size_t>room * 4)
            if scratch == NULL:
                raise MemoryError("no memory for due ids; nothing was taken")
            self.scratch = scratch
            self.scratch_room = room
        self.c.now = now
        self.busy = True
        with nogil:
            n = turn(&self.c, self.scratch, room)
        self.busy = False
        if n < 0:
            raise MemoryError("no memory for moving timers; nothing was taken, and the wheel is as good as before")
        return self.array(self.scratch, <size_t>n)

    cdef object array(self, const uint32_t* source, size_t n):
        out = np.empty(n, np.uint32)
        cdef Py_buffer view
        if n:  # a typed memoryview would cost more than all else here
            PyObject_GetBuffer(out, &view, PyBUF_WRITABLE)
            memcpy(view.buf, source, n * 4)
            PyBuffer_Release(&view)
        return out

    def next_due(self):
        return <int64_t>(earliest(&self.c) ^ SIGN)

    def pending(self):
        out = np.empty(self.c.count, np.uint32)
        cdef uint32_t[::1] view = out
        cdef size_t n = 0
        cdef uint32_t s, i
        for s in range(self.c.segment_room):
            if self.c.segments[s] != NULL:
                for i in range(<uint32_t>min(<uint64_t>SEGMENT, self.c.top - <uint64_t>s * SEGMENT)):
                    if self.c.segments[s][i].pos:
                        view[n] = (s << SEGMENT_BITS) | i
                        n += 1
        assert n == self.c.count, f"{n} pending records, {self.c.count} counted"
        return out

    def rebuild(self, int64_t now_ms):
        cdef Core* c = &self.c
        cdef uint64_t now = <uint64_t>now_ms ^ SIGN
        cdef uint64_t n = c.count, i, late = 0, when
        cdef uint32_t* ids
        self.enter()
        ids = <uint32_t*>malloc(max(n, 1) * 4)
        if ids == NULL:
            raise MemoryError("no memory to rebuild; the wheel is as it was")
        collect(c, ids)
        for i in range(n):
            late += rec_of(c, ids[i]).when < now
        if not ensure_late(c, late) or not ensure_chunks(c, chunk_bound(n)):
            free(ids)
            raise MemoryError("no memory to rebuild; the wheel is as it was")
        start_at(c, now)
        for i in range(n):
            when = rec_of(c, ids[i]).when
            rec_of(c, ids[i]).pos = 0
            put(c, ids[i], when)
        free(ids)

    def clear(self, int64_t now_ms):
        cdef uint32_t s
        self.enter()
        for s in range(self.c.segment_room):
            free(self.c.segments[s])
            self.c.segments[s] = NULL
        free(self.c.pool)
        free(self.c.late)
        free(self.scratch)
        self.c.pool = NULL
        self.c.late = NULL
        self.scratch = NULL
        self.c.top = self.c.pool_room = self.c.late_room = self.scratch_room = 0
        start_at(&self.c, <uint64_t>now_ms ^ SIGN)

    def check(self):
        cdef Core* c = &self.c
        cdef uint64_t seen = 0
        cdef uint32_t i, s, chunks = 0, dead = 0
        cdef int k
        assert c.base[0] <= c.now, "the cursor is ahead of the clock"
        for k in range(1, LEVELS):
            assert (c.base[k] << (SHIFT[k] - SHIFT[k - 1])) - c.base[k - 1] <= SLOTS[k - 1], f"level {k - 1} covers too much"
        for k in range(LEVELS):
            seen += self.check_level(k, &chunks)
        s = 0
        i = c.free_head
        while i:
            assert i < c.pool_top, f"free chunk {i} was never touched"
            s += 1
            assert s <= c.free_count, "the list of free chunks is too long"
            i = chunk(c, i).next
        assert s == c.free_count, f"{s} free chunks, {c.free_count} counted"
        assert c.pool_top == 1 + s + chunks, f"{c.pool_top - 1} chunks touched, {s} free, {chunks} in slots"
        assert c.pool_top <= max(c.pool_room, 1), "chunks beyond their room"
        for i in range(c.late_len):
            if not late_alive(c, &c.late[i]):
                dead += 1
            else:
                seen += 1
                assert rec_of(c, c.late[i].id).when == c.late[i].when, f"late timer {c.late[i].id} differs from its record"
                assert c.late[i].when < c.base[0], f"late timer {c.late[i].id} is not late"
            if i:
                assert not before(&c.late[i], &c.late[(i - 1) // 4]), f"the heap is out of order at {i}"
        assert dead == c.late_dead, f"{dead} dead late timers, {c.late_dead} counted"
        assert seen == c.count, f"{seen} timers, {c.count} counted"
        self.pending()

    cdef uint64_t check_level(self, int k, uint32_t* chunks) except? 0xFFFFFFFF:
        cdef Core* c = &self.c
        cdef uint32_t g, filled = 0
        cdef uint64_t seen = 0, unit
        cdef bint used
        for g in range(FIRST[k], FIRST[k] + SLOTS[k]):
            used = (c.bits[g >> 6] >> (g & 63)) & 1
            assert used == (c.slots[g].head != 0), f"slot {g} and its bit differ"
            assert ((c.sums[g >> 12] >> ((g >> 6) & 63)) & 1) == (c.bits[g >> 6] != 0), f"summary bit of slot {g}"
            if not used:
                assert not (c.stale[g >> 6] >> (g & 63)) & 1, f"empty slot {g} is stale"
                continue
            filled += 1
            unit = c.base[k] + ((g - FIRST[k] - c.base[k]) & (SLOTS[k] - 1))
            seen += self.check_slot(k, g, unit, chunks)
        assert filled == c.filled[k], f"level {k}: {filled} slots in use, {c.filled[k]} counted"
        return seen

    cdef uint64_t check_slot(self, int k, uint32_t g, uint64_t unit, uint32_t* chunks) except? 0xFFFFFFFF:
        cdef Core* c = &self.c
        cdef uint64_t seen = 0, low = MIXED
        cdef uint32_t n = c.slots[g].head, last = 0, i, live, id
        cdef Chunk* h
        cdef Rec* r
        while n:
            h = chunk(c, n)
            assert n < c.pool_top and h.prev == last and h.place == (<uint32_t>k << 20 | (g - FIRST[k])), f"links of chunk {n}"
            assert 0 < h.live <= h.used <= ENTRIES, f"chunk {n} has {h.live} timers in {h.used} entries"
            live = 0
            for i in range(h.used):
                id = c.pool[n * WORDS + HEAD + i]
                if id == NONE:
                    continue
                live += 1
                r = find(c, id)
                assert r != NULL and r.pos == n * WORDS + HEAD + i, f"timer {id} doesn't know its place"
                assert r.when >> SHIFT[k] == unit and r.when >= c.base[0], f"timer {id} is in slot {g} of unit {unit}"
                assert h.when == MIXED or h.when == r.when, f"timer {id} in the uniform chunk {n}"
                low = min(low, r.when)
            assert live == h.live, f"chunk {n} has {live} timers, {h.live} counted"
            chunks[0] += 1
            assert chunks[0] < c.pool_top, "the lists of chunks are too long"
            seen += live
            last = n
            n = h.next
        assert last == c.slots[g].tail, f"slot {g} ends elsewhere"
        assert c.slots[g].min <= low, f"slot {g} has a timer before its minimum"
        assert k == 0 or c.slots[g].min == low or (c.stale[g >> 6] >> (g & 63)) & 1, f"slot {g}: the minimum is not exact"
        return seen

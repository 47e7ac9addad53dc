"""Jobs in columns: find by name, put, and the fields that triggering needs, in bulk."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcmp, memcpy, memset

from wheelsched.tables._rows cimport CHUNK, NONE, WORDS, blob_bytes, blob_data, blob_drop, blob_from, blob_new

import numpy as np

cdef enum:
    KEY = 10  # bytes of a job's key
    ACTIVE = 1  # model.JobState
    PAUSED = 2
    DELETED = 4

JOB_DTYPE = np.dtype([
    ("key_low", "<u8"), ("key_high", "<u2"), ("state", "u1"), ("failures", "u1"), ("spec", "<u4"),
    ("next_us", "<i8"), ("cursor_us", "<i8"), ("param_us", "<i8"), ("created_us", "<i8"), ("updated_us", "<i8"),
    ("name", "<u8"), ("payload", "<u8"), ("version", "<u4"), ("active", "<u4"), ("waiting", "<u4"), ("rows", "<u4"),
    ("fired", "<u4"), ("first_run", "<u4"),
])
assert JOB_DTYPE.itemsize == sizeof(Job)


cdef inline uint64_t _load_low(const uint8_t* key) noexcept nogil:
    cdef uint64_t low = 0
    cdef int k
    for k in range(2, KEY):
        low = (low << 8) | key[k]
    return low


cdef class JobTable(Rows):
    """All jobs. Rows are numbered densely from 0; a number is reused only after `remove`."""

    def __cinit__(self):
        self.row_size = sizeof(Job)
        self.index_resize(1024)

    def __dealloc__(self):
        cdef uint32_t i
        for i in range(self.chunk_count * CHUNK):
            if self.live(i):
                blob_drop(self.job(i).name)
                blob_drop(self.job(i).payload)
        free(self.index)

    cdef int clear_row(self, char* row) except -1:
        blob_drop((<Job*>row).name)
        blob_drop((<Job*>row).payload)
        return 0

    # The index: open addressing over row numbers, linear probing, removal by shifting back.

    cdef int index_resize(self, uint32_t size) except -1:
        cdef uint32_t* old = self.index
        cdef uint32_t old_size = self.index_mask + 1 if old != NULL else 0
        cdef uint32_t* fresh = <uint32_t*>calloc(size, 4)
        cdef uint32_t k, at
        if fresh == NULL:
            raise MemoryError("no memory for the index of jobs")
        memset(fresh, 0xFF, size * 4)
        self.index = fresh
        self.index_mask = size - 1
        for k in range(old_size):
            if old[k] != NONE:
                at = <uint32_t>self.job(old[k]).key_low & self.index_mask
                while self.index[at] != NONE:
                    at = (at + 1) & self.index_mask
                self.index[at] = old[k]
        free(old)
        return 0

    cdef int index_add(self, uint32_t slot) except -1:
        if self.index_used * 4 >= (self.index_mask + 1) * <uint64_t>3:
            self.index_resize((self.index_mask + 1) * 2)
        cdef uint32_t at = <uint32_t>self.job(slot).key_low & self.index_mask
        while self.index[at] != NONE:
            at = (at + 1) & self.index_mask
        self.index[at] = slot
        self.index_used += 1
        return 0

    cdef void index_remove(self, uint32_t slot) noexcept nogil:
        cdef uint32_t at = <uint32_t>self.job(slot).key_low & self.index_mask
        cdef uint32_t hole, home
        while self.index[at] != slot:
            at = (at + 1) & self.index_mask
        hole = at
        while True:
            at = (at + 1) & self.index_mask
            if self.index[at] == NONE:
                break
            home = <uint32_t>self.job(self.index[at]).key_low & self.index_mask
            if ((at - home) & self.index_mask) >= ((at - hole) & self.index_mask):
                self.index[hole] = self.index[at]
                hole = at
        self.index[hole] = NONE
        self.index_used -= 1

    cdef uint32_t lookup(self, uint64_t low, uint16_t high, const char* name, size_t size) noexcept nogil:
        cdef uint32_t at = <uint32_t>low & self.index_mask
        cdef Job* j
        while self.index[at] != NONE:
            j = self.job(self.index[at])
            if j.key_low == low and j.key_high == high and j.name.size == size and \
                    memcmp(blob_data(j.name), name, size) == 0:
                return self.index[at]
            at = (at + 1) & self.index_mask
        return NONE

    def find(self, list names, bytes keys):
        """Row numbers (uint32 array) of the full names in UTF-8; NONE (2**32-1) where there is none. `keys`: 10 bytes a name."""
        cdef Py_ssize_t n = len(names), i
        assert len(keys) == n * KEY
        out = np.empty(n, np.uint32)
        cdef uint32_t[::1] result = out
        cdef const uint8_t* k = <const uint8_t*>PyBytes_AS_STRING(keys)
        cdef bytes name
        for i in range(n):
            name = names[i]
            result[i] = self.lookup(
                _load_low(k), (<uint16_t>k[0] << 8) | k[1], PyBytes_AS_STRING(name), len(name)
            )
            k += KEY
        return out

    def find_key(self, bytes key):
        """Row of the job with this key of 10 bytes, or None."""
        assert len(key) == KEY
        cdef const uint8_t* k = <const uint8_t*>PyBytes_AS_STRING(key)
        cdef uint64_t low = _load_low(k)
        cdef uint16_t high = (<uint16_t>k[0] << 8) | k[1]
        cdef uint32_t at = <uint32_t>low, found = self.with_key(low, high, &at)
        return None if found == NONE else found

    def put(self, names, bytes keys, payloads, const uint32_t[::1] spec, const int64_t[::1] param,
            const int64_t[::1] next_us, const int64_t[::1] cursor, const uint8_t[::1] state, int64_t at):
        """Insert or replace jobs by name; the row numbers as a uint32 array. The version of each grows by one."""
        cdef list name_list = list(names), payload_list = list(payloads)
        cdef Py_ssize_t n = len(name_list), i
        out = self.find(name_list, keys)
        assert len(payload_list) == n == spec.shape[0] == param.shape[0] == next_us.shape[0] == cursor.shape[0] == state.shape[0]
        cdef uint32_t[::1] slots = out
        cdef const uint8_t* k = <const uint8_t*>PyBytes_AS_STRING(keys)
        cdef bytes name, payload
        cdef Job* j
        cdef uint32_t s
        for i in range(n):
            s = slots[i]
            name = name_list[i]
            payload = payload_list[i]
            if s == NONE:
                s = self.lookup(_load_low(k), (<uint16_t>k[0] << 8) | k[1], PyBytes_AS_STRING(name), len(name))
            if s == NONE:
                s = self.alloc()
                j = self.job(s)
                j.key_low = _load_low(k)
                j.key_high = (<uint16_t>k[0] << 8) | k[1]
                j.name = blob_from(name)
                j.created_us = at
                j.first_run = NONE
                self.index_add(s)
            else:
                self.touch(s)
                j = self.job(s)
                if j.state == DELETED:  # created anew: max_runs counts from here
                    j.fired = 0
                blob_drop(j.payload)
                j.payload = NULL
            slots[i] = s
            j.payload = blob_from(payload)
            j.spec = spec[i]
            j.param_us = param[i]
            j.next_us = next_us[i]
            j.cursor_us = cursor[i]
            j.state = state[i]
            j.updated_us = at
            j.failures = 0
            j.version += 1
            k += KEY
        return out

    def same(self, const uint32_t[::1] slots, const uint32_t[::1] spec, const int64_t[::1] param, list payloads):
        """uint8 array: 1 where the job in that row has exactly this definition (and `slots` isn't NONE)."""
        cdef Py_ssize_t n = slots.shape[0], i
        assert spec.shape[0] == n == param.shape[0] == len(payloads)
        out = np.zeros(n, np.uint8)
        cdef uint8_t[::1] result = out
        cdef Job* j
        cdef bytes payload
        for i in range(n):
            if slots[i] == NONE:
                continue
            j = self.job(slots[i])
            payload = payloads[i]
            if j.spec != spec[i] or j.param_us != param[i]:
                continue
            if j.payload == NULL:
                result[i] = len(payload) == 0
            else:
                result[i] = j.payload.size == <size_t>len(payload) and \
                    memcmp(blob_data(j.payload), PyBytes_AS_STRING(payload), j.payload.size) == 0
        return out

    def gather(self, const uint32_t[::1] slots):
        """Copies of rows as an array of JOB_DTYPE. IndexError for a row not in use."""
        cdef Py_ssize_t n = slots.shape[0], i
        out = np.empty(n, JOB_DTYPE)
        cdef char[::1] raw = out.view(np.int8)
        for i in range(n):
            if not self.live(slots[i]):
                raise IndexError(f"no job in row {slots[i]}")
            memcpy(&raw[i * sizeof(Job)], self.row(slots[i]), sizeof(Job))
        return out

    def names(self, const uint32_t[::1] slots):
        """Full names in UTF-8: list of bytes."""
        cdef Py_ssize_t i
        return [blob_bytes(self.job(slots[i]).name) for i in range(slots.shape[0])]

    def payload(self, uint32_t slot):
        """The stored payload of one job."""
        if not self.live(slot):
            raise IndexError(f"no job in row {slot}")
        return blob_bytes(self.job(slot).payload)

    def set(self, const uint32_t[::1] slots, const uint8_t[::1] state, const int64_t[::1] next_us, const int64_t[::1] cursor,
            int64_t at):
        """Change state, next nominal time and cursor. `at` >= 0 also counts as an update: a new version."""
        cdef Py_ssize_t n = slots.shape[0], i
        cdef Job* j
        assert state.shape[0] == n == next_us.shape[0] == cursor.shape[0]
        for i in range(n):
            assert self.live(slots[i])
        for i in range(n):
            self.touch(slots[i])
            j = self.job(slots[i])
            if j.state == PAUSED and state[i] == ACTIVE:
                j.failures = 0
            j.state = state[i]
            j.next_us = next_us[i]
            j.cursor_us = cursor[i]
            if at >= 0:
                j.updated_us = at
                j.version += 1

    def retime(self, const uint32_t[::1] slots, const uint8_t[::1] state, const int64_t[::1] next_us, const int64_t[::1] cursor,
               const int64_t[::1] param):
        """Change state, next nominal time, cursor and anchor: not what was asked for, so no new version."""
        cdef Py_ssize_t n = slots.shape[0], i
        assert param.shape[0] == n
        self.set(slots, state, next_us, cursor, -1)
        for i in range(n):
            self.job(slots[i]).param_us = param[i]

    def set_back(self, const uint32_t[::1] slots, int64_t at):
        """The clock went back: what was put or changed later than `at` counts as of then."""
        cdef Py_ssize_t i
        for i in range(slots.shape[0]):
            self.touch(slots[i])
            self.job(slots[i]).updated_us = min(self.job(slots[i]).updated_us, at)

    def remove(self, const uint32_t[::1] slots):
        """Forget jobs altogether (tombstones whose time is over). Asserts that no run row belongs to them."""
        cdef Py_ssize_t i
        for i in range(slots.shape[0]):
            assert self.live(slots[i]) and self.job(slots[i]).rows == 0
        for i in range(slots.shape[0]):
            self.index_remove(slots[i])
            self.release(slots[i])

    cdef bytes dump_rows(self, uint32_t chunk):
        cdef size_t size = CHUNK * sizeof(Job)
        cdef uint32_t base = chunk * CHUNK, i
        cdef Job* j
        for i in range(base, base + CHUNK):
            if self.live(i):
                j = self.job(i)
                size += 8 + j.name.size + (j.payload.size if j.payload != NULL else 0)
        out = PyBytes_FromStringAndSize(NULL, size)
        cdef char* p = PyBytes_AS_STRING(out)
        memcpy(p, self.chunks[chunk], CHUNK * sizeof(Job))
        cdef char* tail = p + CHUNK * sizeof(Job)
        cdef Job* copy
        cdef uint32_t sizes[2]
        for i in range(base, base + CHUNK):
            if not self.live(i):
                continue
            j = self.job(i)
            copy = <Job*>(p + (i - base) * sizeof(Job))
            copy.name = NULL
            copy.payload = NULL
            copy.first_run = NONE
            sizes[0] = j.name.size
            sizes[1] = j.payload.size if j.payload != NULL else 0
            memcpy(tail, sizes, 8)
            memcpy(tail + 8, blob_data(j.name), sizes[0])
            if sizes[1]:
                memcpy(tail + 8 + sizes[0], blob_data(j.payload), sizes[1])
            tail += 8 + sizes[0] + sizes[1]
        return out

    def load(self, uint32_t chunk, bytes data):
        """Read back one dump; chunks come in ascending order. ValueError when it doesn't fit."""
        cdef size_t head = WORDS * 8 + CHUNK * sizeof(Job), size = len(data)
        if chunk != self.chunk_count or size < head:
            raise ValueError(f"job chunk {chunk}: {size} bytes don't fit")
        self.grow()
        cdef const char* p = PyBytes_AS_STRING(data)
        memcpy(self.used + chunk * WORDS, p, WORDS * 8)
        memcpy(self.chunks[chunk], p + WORDS * 8, CHUNK * sizeof(Job))
        cdef uint32_t base = chunk * CHUNK, i
        cdef uint32_t sizes[2]
        cdef Job* j
        cdef size_t at = head
        for i in range(base, base + CHUNK):
            if not self.live(i):
                continue
            j = self.job(i)
            if at + 8 > size:
                raise ValueError(f"job chunk {chunk}: too short")
            memcpy(sizes, p + at, 8)
            if sizes[0] == 0 or at + 8 + <size_t>sizes[0] + sizes[1] > size:
                raise ValueError(f"job chunk {chunk}: too short")
            j.name = blob_new(p + at + 8, sizes[0])
            j.payload = blob_new(p + at + 8 + sizes[0], sizes[1])
            if j.name == NULL or (sizes[1] and j.payload == NULL):
                raise MemoryError("no memory for a job")
            # Run rows are chained and counted again as they are loaded.
            j.rows = j.active = j.waiting = 0
            at += 8 + sizes[0] + sizes[1]
            self.count += 1
            self.index_add(i)
        if at != size:
            raise ValueError(f"job chunk {chunk}: {size - at} bytes too many")

    def check(self):
        """AssertionError naming the first broken invariant."""
        cdef uint32_t i, seen = 0
        cdef Job* j
        for i in range(self.chunk_count * CHUNK):
            if not self.live(i):
                assert self.job(i).name == NULL, f"free job row {i} holds a name"
                continue
            seen += 1
            j = self.job(i)
            assert j.name != NULL and j.name.size, f"job row {i} has no name"
            assert self.lookup(j.key_low, j.key_high, blob_data(j.name), j.name.size) == i, f"job row {i} is not found by name"
        assert seen == self.count == self.index_used, (seen, self.count, self.index_used)

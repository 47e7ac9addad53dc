# cython: embedsignature=False
"""Counting coming starts: jobs that start alike are one line with a weight, and lines are counted into buckets of time."""
cimport cython
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, realloc

import numpy as np

cdef enum:
    HOUR_S = 3600

cdef struct Line:
    int64_t x
    int64_t y
    int64_t n
    int64_t weight
    uint32_t spec
    uint32_t first


cdef inline uint64_t _mix(uint64_t h, uint64_t value) noexcept nogil:
    """One step of a hash: the finaliser of splitmix64 over what was and what comes."""
    h = (h ^ value) + <uint64_t>0x9E3779B97F4A7C15
    h = (h ^ (h >> 30)) * <uint64_t>0xBF58476D1CE4E5B9
    h = (h ^ (h >> 27)) * <uint64_t>0x94D049BB133111EB
    return h ^ (h >> 31)


@cython.final
@cython.auto_pickle(False)
cdef class Lines:
    """Distinct (spec, x, y, n) with their weights, numbered in order of their first coming."""

    cdef Line *lines
    cdef uint32_t *index  # number + 1; 0 is free
    cdef uint64_t mask
    cdef uint32_t count, room

    def __cinit__(self, uint32_t expected):
        cdef uint64_t size = 1024
        while size < <uint64_t>expected * 2:
            size *= 2
        self.room = max(expected, 512)
        # Pages that are never touched cost nothing, so room for all is taken at once: no call stalls to make more.
        self.index = <uint32_t *>calloc(size, sizeof(uint32_t))
        self.lines = <Line *>calloc(self.room, sizeof(Line))
        if self.index == NULL or self.lines == NULL:
            raise MemoryError("no memory for a forecast")
        self.mask = size - 1

    def __dealloc__(self):
        free(self.index)
        free(self.lines)

    def __len__(self):
        return self.count

    cdef int grow(self) except -1:
        cdef uint64_t size = (self.mask + 1) * 2, at
        cdef uint32_t i
        cdef Line *lines = <Line *>realloc(self.lines, <size_t>self.room * 2 * sizeof(Line))
        cdef uint32_t *index
        if lines == NULL:
            raise MemoryError("no memory for a forecast")
        self.lines = lines
        self.room *= 2
        index = <uint32_t *>calloc(size, sizeof(uint32_t))
        if index == NULL:
            raise MemoryError("no memory for a forecast")
        for i in range(self.count):
            at = self.place(&lines[i]) & (size - 1)
            while index[at]:
                at = (at + 1) & (size - 1)
            index[at] = i + 1
        free(self.index)
        self.index, self.mask = index, size - 1
        return 0

    cdef inline uint64_t place(self, Line *line) noexcept nogil:
        return _mix(_mix(_mix(line.spec, <uint64_t>line.x), <uint64_t>line.y), <uint64_t>line.n)

    def add(self, const uint32_t[::1] spec, const int64_t[::1] x, const int64_t[::1] y, const int64_t[::1] n,
            const uint32_t[::1] row) -> None:
        cdef Py_ssize_t i, rows = spec.shape[0]
        cdef Line line
        cdef Line *known
        cdef uint64_t at
        if x.shape[0] != rows or y.shape[0] != rows or n.shape[0] != rows or row.shape[0] != rows:
            raise ValueError("the columns differ in length")
        for i in range(rows):
            if self.count == self.room:
                self.grow()
            line = Line(x[i], y[i], n[i], 1, spec[i], row[i])
            at = self.place(&line) & self.mask
            while self.index[at]:
                known = &self.lines[self.index[at] - 1]
                if known.spec == line.spec and known.x == line.x and known.y == line.y and known.n == line.n:
                    break
                at = (at + 1) & self.mask
            if self.index[at]:
                known.weight += 1
            else:
                self.lines[self.count] = line
                self.count += 1
                self.index[at] = self.count

    def slice(self, uint32_t start, uint32_t stop) -> tuple:
        cdef uint32_t i, size
        stop = min(stop, self.count)
        size = stop - start if stop > start else 0
        columns = (np.empty(size, np.uint32), *(np.empty(size, np.int64) for _ in range(4)), np.empty(size, np.uint32))
        cdef uint32_t[::1] spec = columns[0], first = columns[5]
        cdef int64_t[::1] x = columns[1], y = columns[2], n = columns[3], weight = columns[4]
        cdef Line *line
        for i in range(size):
            line = &self.lines[start + i]
            spec[i], x[i], y[i], n[i], weight[i], first[i] = line.spec, line.x, line.y, line.n, line.weight, line.first
        return columns


cdef int _rows_fit(int64_t[:, ::1] starts, double[::1] work, const uint32_t[::1] row, Py_ssize_t n) except -1:
    cdef Py_ssize_t i
    if row.shape[0] != n or work.shape[0] != starts.shape[1]:
        raise ValueError("the columns differ in length")
    for i in range(n):
        if row[i] >= starts.shape[0]:
            raise IndexError("no such row of the histogram")
    return 0


def count_at(int64_t[:, ::1] starts, double[::1] work, int64_t[::1] hours, int64_t from_us, int64_t bucket_us,
             const int64_t[::1] at_us, const uint32_t[::1] row, const int64_t[::1] weight, const double[::1] cost,
             const uint8_t[::1] sharp) -> None:
    cdef Py_ssize_t i, n = at_us.shape[0]
    cdef int64_t bucket, hour
    cdef int64_t hour_us = <int64_t>HOUR_S * 1000000
    cdef int64_t first_hour = from_us // hour_us
    _rows_fit(starts, work, row, n)
    if weight.shape[0] != n or cost.shape[0] != n or sharp.shape[0] != n or bucket_us < 1 or from_us < 0:
        raise ValueError("the columns differ in length, or there is no bucket")
    with nogil:
        for i in range(n):
            if at_us[i] < from_us:
                continue
            bucket = (at_us[i] - from_us) // bucket_us
            if bucket >= starts.shape[1]:
                continue
            starts[row[i], bucket] += weight[i]
            work[bucket] += cost[i]
            if sharp[i] and at_us[i] % hour_us == 0:
                hour = at_us[i] // hour_us - first_hour
                if hour < hours.shape[0]:
                    hours[hour] += weight[i]


def count_every(int64_t[:, ::1] starts, double[::1] work, const int64_t[::1] every, const int64_t[::1] bucket,
                const int64_t[::1] first, const int64_t[::1] n, const uint32_t[::1] row, const int64_t[::1] weight,
                const double[::1] cost) -> None:
    cdef Py_ssize_t i, rows = every.shape[0]
    cdef int64_t x, left, b, k
    _rows_fit(starts, work, row, rows)
    if bucket.shape[0] != rows or first.shape[0] != rows or n.shape[0] != rows or weight.shape[0] != rows or cost.shape[0] != rows:
        raise ValueError("the columns differ in length")
    for i in range(rows):
        if every[i] < 1 or bucket[i] < 1 or first[i] < 0 or n[i] < 0:
            raise ValueError("a period or a bucket is positive, a first start is not before the first bucket")
    with nogil:
        for i in range(rows):
            x, left = first[i], n[i]
            while left > 0:
                b = x // bucket[i]
                if b >= starts.shape[1]:
                    break
                k = 1
                if every[i] < bucket[i]:
                    k = ((b + 1) * bucket[i] - x + every[i] - 1) // every[i]
                    if k > left:
                        k = left
                starts[row[i], b] += k * weight[i]
                work[b] += <double>k * cost[i]
                x += k * every[i]
                left -= k

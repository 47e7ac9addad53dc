"""Runs by id and by token. All of it is soft: a snapshot has none of it, and `RunRows.load` and `rebuild` make it anew.

Most runs are in no index of ids. An id that follows from job and time says whose it is: the key in it leads to the job, and the job's chain
has its runs, one or none for nearly all jobs. In the index are the runs whose ids say nothing (triggered, enqueued, called by hooks), and
all runs of a job that is long: it has had LONG rows at once, and has not been without any since.

A leased run is found by its token, among the leased ones alone: these are few, so the place is in the cache when a worker reports. Who
finds a run so must compare the id all the same.
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memset

from wheelsched.tables._jobs cimport Job, JobTable
from wheelsched.tables._rows cimport CHUNK, NONE
from wheelsched.tables._run cimport LEASED, Run

import numpy as np

cdef enum:
    LONG_JOB = 16

LONG = LONG_JOB


cdef inline uint64_t _mix(uint64_t high, uint64_t low) noexcept nogil:
    """Finalizer of splitmix64 over both halves: runs of one job differ in `high` only."""
    cdef uint64_t z = low ^ (high * 0x9E3779B97F4A7C15ULL)
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL
    return z ^ (z >> 31)


cdef inline uint32_t _home(int64_t token) noexcept nogil:
    """Where a token belongs: four that were granted together are in one line of the cache."""
    return <uint32_t>(_mix(0, <uint64_t>token >> 2) << 2 | (token & 3))


cdef class RunIndex(RunTurns):
    """Finds runs by id, by job and time, and by token."""

    def __cinit__(self, JobTable jobs, bytes moves):
        self.index_resize(1024)
        self.lease_room(512)

    def __dealloc__(self):
        free(self.index)
        free(self.long_jobs)
        free(self.leases)

    # By id

    cdef uint32_t lookup(self, uint64_t high, uint64_t low) except? 0xFFFFFFFE:
        cdef uint32_t s = self.probe(high, low), at = <uint32_t>low, job
        while s == NONE:
            job = self.jobs.with_key(low, <uint16_t>high, &at)
            if job == NONE:
                break
            s = NONE if self.is_long(job) else self.of_job_at(job, high, low)
        return s

    cdef uint32_t of_job_at(self, uint32_t job, uint64_t high, uint64_t low) except? 0xFFFFFFFE:
        """The run of a job with an id that follows from it; NONE when there is none."""
        cdef Job* j = self.jobs.job(job)
        if j.rows == 0:
            return NONE
        if self.is_long(job):
            return self.probe(high, low)
        cdef uint32_t s = j.first_run
        while s != NONE and (self.run(s).id_high != high or self.run(s).id_low != low):
            s = self.run(s).job_next
        if s == NONE and self.lines and job in self.lines:
            for top in self.lines[job].values():
                if s == NONE:
                    s = self.seek_below(top, high, low)
        return s

    cdef uint32_t seek_below(self, uint32_t top, uint64_t high, uint64_t low) noexcept nogil:
        """The run of that id in a heap that is not long."""
        cdef uint32_t s
        if top == NONE or (self.run(top).id_high == high and self.run(top).id_low == low):
            return top
        s = self.seek_below(self.run(top).job_prev, high, low)
        return s if s != NONE else self.seek_below(self.run(top).job_next, high, low)

    def exists(self, const uint32_t[::1] job, const int64_t[::1] nominal):
        """uint8 array: 1 where a row for that job and nominal time is in the table."""
        cdef Py_ssize_t n = job.shape[0], i
        out = np.empty(n, np.uint8)
        cdef uint8_t[::1] result = out
        cdef Job* j
        for i in range(n):
            j = self.jobs.job(job[i])
            result[i] = self.of_job_at(job[i], (<uint64_t>(nominal[i] // 1000) << 16) | j.key_high, j.key_low) != NONE
        return out

    # The index

    cdef uint32_t probe(self, uint64_t high, uint64_t low) noexcept nogil:
        cdef uint32_t at = <uint32_t>_mix(high, low) & self.index_mask
        cdef Run* r
        while self.index[at] != NONE:
            r = self.run(self.index[at])
            if r.id_low == low and r.id_high == high:
                return self.index[at]
            at = (at + 1) & self.index_mask
        return NONE

    cdef int index_resize(self, uint32_t size) except -1:
        cdef uint32_t* old = self.index
        cdef uint32_t old_size = self.index_mask + 1 if old != NULL else 0, k, at
        cdef uint32_t* fresh = <uint32_t*>malloc(size * sizeof(uint32_t))
        if fresh == NULL:
            raise MemoryError("no memory for the run index")
        memset(fresh, 0xFF, size * sizeof(uint32_t))
        self.index = fresh
        self.index_mask = size - 1
        for k in range(old_size):
            if old[k] != NONE:
                at = <uint32_t>_mix(self.run(old[k]).id_high, self.run(old[k]).id_low) & self.index_mask
                while self.index[at] != NONE:
                    at = (at + 1) & self.index_mask
                self.index[at] = old[k]
        free(old)
        return 0

    cdef int index_new(self, uint32_t slot) except -1:
        """A row was made or loaded; it hangs in the chain and counts among its job's rows."""
        cdef Run* r = self.run(slot)
        if self.is_long(r.job) or not self.follows(r):
            self.index_add(slot)
        if self.jobs.job(r.job).rows >= LONG_JOB and not self.is_long(r.job):
            self.make_long(r.job)
        return 0

    cdef int make_long(self, uint32_t job) except -1:
        """All runs of a job are in the index from now on, those in line too."""
        cdef uint32_t size = self.long_size
        if job >= size:
            size = max(1024, job * 2)
            more = <uint8_t*>realloc(self.long_jobs, size)
            if more == NULL:
                raise MemoryError("no memory for a job of many runs")
            memset(more + self.long_size, 0, size - self.long_size)
            self.long_jobs, self.long_size = more, size
        cdef uint32_t s
        for s in self.of_job(job):
            if self.follows(self.run(s)):
                self.index_add(s)
        self.long_jobs[job] = 1
        return 0

    cdef int index_add(self, uint32_t slot) except -1:
        if self.index_used * 4 >= (self.index_mask + 1) * <uint64_t>3:
            self.index_resize((self.index_mask + 1) * 2)
        cdef uint32_t at = <uint32_t>_mix(self.run(slot).id_high, self.run(slot).id_low) & self.index_mask
        while self.index[at] != NONE:
            at = (at + 1) & self.index_mask
        self.index[at] = slot
        self.index_used += 1
        return 0

    cdef int index_gone(self, uint32_t slot) except -1:
        """A row is about to go, and counts among its job's rows no more."""
        cdef uint32_t job = self.run(slot).job, at, hole, home
        if self.is_long(job):
            self.long_jobs[job] = self.jobs.job(job).rows > 0
        elif self.follows(self.run(slot)):
            return 0
        at = <uint32_t>_mix(self.run(slot).id_high, self.run(slot).id_low) & self.index_mask
        while self.index[at] != slot:
            assert self.index[at] != NONE, f"run row {slot} is not in the index"
            at = (at + 1) & self.index_mask
        hole = at
        while True:
            at = (at + 1) & self.index_mask
            if self.index[at] == NONE:
                break
            home = <uint32_t>_mix(self.run(self.index[at]).id_high, self.run(self.index[at]).id_low) & self.index_mask
            if ((at - home) & self.index_mask) >= ((at - hole) & self.index_mask):
                self.index[hole] = self.index[at]
                hole = at
        self.index[hole] = NONE
        self.index_used -= 1
        return 0

    # By token

    cdef int lease_room(self, uint32_t more) except -1:
        """Before runs are leased: room for so many more, half of it empty."""
        cdef uint64_t wanted = (<uint64_t>self.lease_used + more) * 2
        cdef uint64_t size = self.lease_mask + 1 if self.leases != NULL else 0, old = size, k
        if wanted <= size:
            return 0
        size = max(size, 1024)
        while size < wanted:
            size *= 2
        cdef Lease* before = self.leases
        cdef Lease* fresh = <Lease*>calloc(size, sizeof(Lease))
        if fresh == NULL:
            raise MemoryError("no memory for more leases")
        self.leases, self.lease_mask, self.lease_used = fresh, <uint32_t>(size - 1), 0
        for k in range(old):
            if before[k].token:
                self.lease_add(before[k].token, before[k].slot)
        free(before)
        return 0

    cdef void lease_add(self, int64_t token, uint32_t slot) noexcept nogil:
        cdef uint32_t at = _home(token) & self.lease_mask
        while self.leases[at].token:
            at = (at + 1) & self.lease_mask
        self.leases[at].token = token
        self.leases[at].slot = slot
        self.lease_used += 1

    cdef uint32_t leased_as(self, int64_t token) noexcept nogil:
        """The run that is leased under a token; NONE when none is."""
        cdef uint32_t at = _home(token) & self.lease_mask
        while self.leases[at].token:
            if self.leases[at].token == token:
                return self.leases[at].slot
            at = (at + 1) & self.lease_mask
        return NONE

    cdef int lease_end(self, int64_t token, uint32_t slot) except -1:
        cdef uint32_t at = _home(token) & self.lease_mask, hole, home
        while self.leases[at].token != token or self.leases[at].slot != slot:
            assert self.leases[at].token, f"run row {slot} is not found by its token {token}"
            at = (at + 1) & self.lease_mask
        hole = at
        while True:
            at = (at + 1) & self.lease_mask
            if not self.leases[at].token:
                break
            home = _home(self.leases[at].token) & self.lease_mask
            if ((at - home) & self.lease_mask) >= ((at - hole) & self.lease_mask):
                self.leases[hole] = self.leases[at]
                hole = at
        self.leases[hole].token = 0
        self.lease_used -= 1
        return 0

    def check_index(self):
        """AssertionError naming the first run that is not found by id or token, or is where it should not be."""
        cdef uint32_t i, indexed = 0, leased = 0
        cdef Run* r
        for i in range(self.chunk_count * CHUNK):
            if not self.live(i):
                continue
            r = self.run(i)
            assert self.lookup(r.id_high, r.id_low) == i, f"run row {i} is not found by id"
            if self.is_long(r.job) or not self.follows(r):
                indexed += 1
                assert self.probe(r.id_high, r.id_low) == i, f"run row {i} is not in the index"
            assert self.is_long(r.job) or self.jobs.job(r.job).rows < LONG_JOB, f"job row {r.job} has many runs, but not in the index"
            if r.state == LEASED:
                leased += 1
                assert self.leased_as(r.token) == i, f"run row {i} is not found by its token {r.token}"
        assert indexed == self.index_used, f"{self.index_used} runs in the index instead of {indexed}"
        assert leased == self.lease_used, f"{self.lease_used} runs by token instead of {leased}"
        for i in range(self.long_size):
            assert not self.long_jobs[i] or self.jobs.live(i) and self.jobs.job(i).rows, f"job row {i} is long without runs"

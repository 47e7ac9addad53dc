"""Runs by id and by token."""

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from wheelsched.tables._jobs cimport Job
from wheelsched.tables._run cimport Run
from wheelsched.tables._runturns cimport RunTurns

cdef struct Lease:
    int64_t token  # 0: nothing here
    uint32_t slot


cdef class RunIndex(RunTurns):
    cdef uint32_t* index        # by id: runs whose ids don't follow from job and time, and all runs of long jobs
    cdef uint32_t index_mask
    cdef uint32_t index_used
    cdef uint8_t* long_jobs     # by job row: 1 where all its runs are in the index
    cdef uint32_t long_size
    cdef Lease* leases          # by token
    cdef uint32_t lease_mask
    cdef uint32_t lease_used

    cdef inline bint is_long(self, uint32_t job) noexcept nogil:
        return job < self.long_size and self.long_jobs[job]

    cdef inline bint follows(self, Run* r) noexcept nogil:
        """Whether the run's id follows from its job and a time."""
        cdef Job* j = self.jobs.job(r.job)
        return r.id_low == j.key_low and <uint16_t>r.id_high == j.key_high

    cdef uint32_t probe(self, uint64_t high, uint64_t low) noexcept nogil
    cdef uint32_t seek_below(self, uint32_t top, uint64_t high, uint64_t low) noexcept nogil
    cdef uint32_t of_job_at(self, uint32_t job, uint64_t high, uint64_t low) except? 0xFFFFFFFE
    cdef uint32_t lookup(self, uint64_t high, uint64_t low) except? 0xFFFFFFFE
    cdef int index_add(self, uint32_t slot) except -1
    cdef int index_resize(self, uint32_t size) except -1
    cdef int index_new(self, uint32_t slot) except -1
    cdef int make_long(self, uint32_t job) except -1
    cdef int index_gone(self, uint32_t slot) except -1
    cdef int lease_room(self, uint32_t more) except -1
    cdef void lease_add(self, int64_t token, uint32_t slot) noexcept nogil
    cdef int lease_end(self, int64_t token, uint32_t slot) except -1
    cdef uint32_t leased_as(self, int64_t token) noexcept nogil

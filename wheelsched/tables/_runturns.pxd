"""Rows of runs by job: the chain of a job, and the lines in which its runs wait for their turn."""

from libc.stdint cimport int64_t, uint32_t, uint64_t

from wheelsched.tables._jobs cimport JobTable
from wheelsched.tables._rows cimport Rows
from wheelsched.tables._run cimport Run


cdef packed struct Latest:
    int64_t most_us  # no occurrence of this job in the table is later
    uint32_t slot    # the one that is as late; NONE: it has gone


cdef class RunTurns(Rows):
    cdef JobTable jobs
    cdef dict lines            # job row -> {line: the row at its top}
    cdef dict made_up          # job row -> [waiting, active, active with a limit of their own] of its runs that make up for the past
    cdef Latest* latest        # by job row
    cdef uint32_t latest_size
    cdef readonly uint64_t passed  # rows that walks over chains and lines went by: what a turn costs

    cdef inline Run* run(self, uint32_t i) noexcept nogil:
        return <Run*>self.row(i)

    cdef void chain(self, uint32_t slot) noexcept nogil
    cdef void unchain(self, uint32_t slot) noexcept nogil
    cdef int enter_line(self, uint32_t slot) except -1
    cdef int leave_line(self, uint32_t slot) except -1
    cdef int tally(self, uint32_t slot, int by) except -1
    cdef int see_occurrence(self, uint32_t slot) except -1
    cdef void forget_occurrence(self, uint32_t slot) noexcept nogil
    cdef uint32_t latest_ended(self, uint32_t job) except? 0xFFFFFFFE
    cdef uint32_t blocking(self, uint32_t job) except? 0xFFFFFFFE
    cdef uint32_t older(self, uint32_t a, uint32_t b) noexcept nogil
    cdef list below(self, uint32_t top, int64_t limit)
    cdef uint32_t merge(self, uint32_t a, uint32_t b) noexcept nogil

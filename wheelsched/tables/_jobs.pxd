"""The job row. 96 bytes; see JOB_DTYPE in _jobs.pyx, which must agree."""

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from wheelsched.tables._rows cimport NONE, Blob, Rows

cdef packed struct Job:
    uint64_t key_low     # the 80-bit key is the end of the run ids of scheduled runs
    uint16_t key_high
    uint8_t state        # model.JobState
    uint8_t failures     # dead runs in a row; stops counting at 255
    uint32_t spec
    int64_t next_us      # next nominal time; NEVER when there is none
    int64_t cursor_us    # last nominal time decided; -1 before the first
    int64_t param_us     # the instant of `at`, the anchor of `every`
    int64_t created_us
    int64_t updated_us
    Blob* name
    Blob* payload
    uint32_t version
    uint32_t active      # runs queued, leased or in retry_wait
    uint32_t waiting     # runs scheduled, armed for an instant or waiting for their turn; moved occurrences don't count
    uint32_t rows        # rows of the run table that belong to this job
    uint32_t fired       # occurrences that made a run
    uint32_t first_run   # head of the chain of its run rows; NONE


cdef class JobTable(Rows):
    cdef uint32_t* index
    cdef uint32_t index_mask
    cdef uint32_t index_used

    cdef inline Job* job(self, uint32_t i) noexcept nogil:
        return <Job*>self.row(i)

    cdef inline uint32_t with_key(self, uint64_t low, uint16_t high, uint32_t* at) noexcept nogil:
        """The next job that has a key, NONE after the last. `at` begins with the key's low half, and moves."""
        cdef uint32_t i = self.index[at[0] & self.index_mask]
        while i != NONE:
            at[0] += 1
            if self.job(i).key_low == low and self.job(i).key_high == high:
                return i
            i = self.index[at[0] & self.index_mask]
        return NONE

    cdef uint32_t lookup(self, uint64_t low, uint16_t high, const char* name, size_t size) noexcept nogil
    cdef int index_add(self, uint32_t slot) except -1
    cdef void index_remove(self, uint32_t slot) noexcept nogil
    cdef int index_resize(self, uint32_t size) except -1

"""Rows of runs with their lists."""

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from wheelsched.tables._run cimport BY_BACKFILL, MISFIRE, Run
from wheelsched.tables._rows cimport NONE, Blob
from wheelsched.tables._runindex cimport RunIndex

cdef struct List:
    uint32_t head
    uint32_t tail
    uint32_t count
    uint32_t place       # of a ready line that is not empty: where it stands among these
    uint32_t queue       # of a ready line; NONE: of no queue
    uint32_t key         # concurrency key
    uint32_t job         # the key that stands for a job with a concurrency of its own
    uint32_t job_most    # that concurrency
    uint32_t group       # its namespace in its queue
    uint32_t task
    uint8_t priority
    uint8_t backlog
    int64_t expires_us   # of all its runs, which no worker has had; negative: they have no deadline

cdef struct Spec:
    uint32_t line        # ready line of its runs
    uint32_t backlog     # of those that make up for the past: catch-up and backfill
    uint32_t again       # the same two for runs that were started before: these have no deadline for a start
    uint32_t again_backlog
    uint16_t attempts


cdef class RunRows(RunIndex):
    cdef List* lists
    cdef uint32_t list_count
    cdef uint32_t* filled         # ready lines that are not empty, in no order
    cdef uint32_t filled_count
    cdef uint32_t filled_size
    cdef Spec* specs
    cdef uint32_t spec_count
    cdef uint32_t* queue_leased   # leased runs by number of the queue
    cdef uint32_t queue_count
    cdef uint32_t* key_leased     # by number of the concurrency key, or of a job as one; number 0: no key
    cdef uint32_t key_count
    cdef uint8_t moves[256]  # state << 4 | event -> state, 0: illegal
    cdef public uint64_t order
    cdef public list left         # (group, final state) of members that ended, since State took them last

    cdef inline uint32_t line_of(self, Run* r) noexcept nogil:
        cdef Spec* spec = &self.specs[r.spec]
        if r.reason == MISFIRE or r.trigger == BY_BACKFILL:
            return spec.again_backlog if r.attempt else spec.backlog
        return spec.again if r.attempt else spec.line

    cdef inline void hold_place(self, Run* r, int by) noexcept nogil:
        """Count a lease of a queue, of a key and of a job: by 1, or -1 when it ends."""
        cdef List* line = &self.lists[self.specs[r.spec].line]
        self.queue_leased[line.queue] += by
        self.key_leased[line.key] += by
        self.key_leased[line.job] += by

    cdef inline void join(self, uint32_t list_id) noexcept nogil:
        """A run is about to enter a list: an empty ready line is one of the filled ones from now on."""
        cdef List* line = &self.lists[list_id]
        if line.count == 0 and line.queue != NONE:
            line.place = self.filled_count
            self.filled[self.filled_count] = list_id
            self.filled_count += 1

    cdef inline void leave(self, List* line) noexcept nogil:
        """A run has left a list."""
        if line.count == 0 and line.queue != NONE:
            self.filled_count -= 1
            self.filled[line.place] = self.filled[self.filled_count]
            self.lists[self.filled[line.place]].place = line.place

    cdef void push(self, uint32_t list_id, uint32_t slot) noexcept nogil
    cdef void insert(self, uint32_t list_id, uint32_t slot) noexcept nogil
    cdef void unlink(self, uint32_t slot) noexcept nogil
    cdef uint32_t make(self, uint32_t job, uint64_t high, uint64_t low, uint8_t state, uint8_t disposition) except? 0xFFFFFFFF
    cdef int move(self, uint32_t slot, uint8_t event) except -1
    cdef int settle(self, uint32_t slot) except -1
    cdef int verify(self, const uint32_t[::1] slots, uint8_t event) except -1


cdef inline Blob* blob_of(RunRows t, uint32_t slot, int which) noexcept nogil:
    """The job's name (0), payload (1), result (2) or history (3) of one run."""
    cdef Run* r = t.run(slot)
    if which == 0:
        return t.jobs.job(r.job).name
    if which == 1:
        return r.payload
    return r.result if which == 2 else r.history

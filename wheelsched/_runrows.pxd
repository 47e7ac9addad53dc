"""The run row. 160 bytes; see RUN_DTYPE in _runrows.pyx, which must agree."""

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from wheelsched._jobs cimport JobTable
from wheelsched._rows cimport NONE, Blob, Rows

cdef enum:
    # model.RunState and model.Event; a test compares them
    SCHEDULED = 1
    QUEUED = 2
    LEASED = 3
    RETRY_WAIT = 4
    SUCCEEDED = 5
    DEAD = 6
    CANCELLED = 7
    SKIPPED = 8
    DUE = 1
    GRANT = 2
    GIVE_BACK = 3
    RETRY = 5
    CANCEL = 7
    REDRIVE = 8
    DISCARD = 9
    SUPERSEDE = 10
    SPARE = 11
    REDRIVE_AT = 12
    SNOOZED = 8  # model.Outcome
    # model.Reason, model.Trigger
    OVERLAP = 1
    MISFIRE = 2
    DELETED = 10
    EXPIRED = 12
    BY_SCHEDULE = 1
    BY_BACKFILL = 2
    BY_ENQUEUE = 4
    # lists
    NO_LIST = 0
    FINISHED_LIST = 1
    DEAD_LIST = 2
    FIRST_LIST = 3
    FIRED = 1  # model.Disposition
    MOVED = 5
    # flags
    CANCEL_ASKED = 1
    DISCARDED = 2
    LATE = 4
    ORPHANED = 8
    TOLD = 64


cdef packed struct Run:
    uint64_t id_high     # milliseconds of the nominal time << 16 | high part of the key
    uint64_t id_low
    int64_t nominal_us
    int64_t created_us
    int64_t due_us       # scheduled: armed for, or negative: waits for its turn; retry_wait: instant; skipped: end of the range
    int64_t queued_us    # skipped: the job's anchor then
    int64_t started_us   # of the last attempt; skipped by overlap: high half of the blocking run's id XOR that of its own
    int64_t ended_us
    int64_t token        # fencing token of the last lease; skipped by overlap: low half of that id XOR its own: 0 for a run by schedule
    uint64_t order       # position in its list: grows by one with each entry
    Blob* payload
    Blob* result         # of the last attempt
    Blob* history        # earlier attempts, packed one behind the other
    uint32_t job
    uint32_t spec
    uint32_t worker
    uint32_t missed      # occurrences folded into this one
    uint32_t count       # occurrences of a skipped range; of a backfill's run: how it waits its turn; of an open enqueued run: its group
    uint32_t list_id
    uint32_t prev
    uint32_t next
    uint32_t job_prev
    uint32_t job_next
    uint16_t attempt
    uint16_t budget      # attempts allowed
    uint8_t state        # model.RunState
    uint8_t outcome      # model.Outcome of the last attempt
    uint8_t trigger      # model.Trigger
    uint8_t reason       # model.Reason
    uint8_t disposition  # model.Disposition
    uint8_t flags        # model.RunFlag
    uint16_t snoozes     # attempts that asked for another time and were not counted; stops at the largest number

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


cdef class RunRows(Rows):
    cdef JobTable jobs
    cdef uint32_t* index
    cdef uint32_t index_mask
    cdef uint32_t index_used
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

    cdef inline Run* run(self, uint32_t i) noexcept nogil:
        return <Run*>self.row(i)

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

    cdef uint32_t lookup(self, uint64_t high, uint64_t low) noexcept nogil
    cdef int index_add(self, uint32_t slot) except -1
    cdef void index_remove(self, uint32_t slot) noexcept nogil
    cdef int index_resize(self, uint32_t size) except -1
    cdef void push(self, uint32_t list_id, uint32_t slot) noexcept nogil
    cdef void insert(self, uint32_t list_id, uint32_t slot) noexcept nogil
    cdef void unlink(self, uint32_t slot) noexcept nogil
    cdef void chain(self, uint32_t slot) noexcept nogil
    cdef void unchain(self, uint32_t slot) noexcept nogil
    cdef uint32_t make(self, uint32_t job, uint64_t high, uint64_t low, uint8_t state, uint8_t disposition) except? 0xFFFFFFFF
    cdef int move(self, uint32_t slot, uint8_t event) except -1
    cdef int settle(self, uint32_t slot) except -1
    cdef int verify(self, const uint32_t[::1] slots, uint8_t event) except -1


cdef inline bint is_waiting(Run* r) noexcept nogil:
    """Counts as waiting in its job: a moved occurrence is in nobody's way before its instant."""
    return r.state == SCHEDULED and r.disposition != MOVED


cdef inline Blob* blob_of(RunRows t, uint32_t slot, int which) noexcept nogil:
    """The job's name (0), payload (1), result (2) or history (3) of one run."""
    cdef Run* r = t.run(slot)
    if which == 0:
        return t.jobs.job(r.job).name
    if which == 1:
        return r.payload
    return r.result if which == 2 else r.history

"""The run row. 160 bytes; see RUN_DTYPE in _runturns.pyx, which must agree."""

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from wheelsched.tables._rows cimport Blob

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
    SEND_BACK = 13
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
    IN_LINE = 0x7FFFFFFF  # no list: it waits for its turn in a line of its job, see _runturns.pyx
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
    SENT_BACK = 16
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
    uint32_t count       # of a skipped range: occurrences; of a backfill's or sent back run: how it waits its turn; of a member: its group
    uint32_t list_id
    uint32_t prev        # neighbours in its list; of a run in line: `prev` is the row above it
    uint32_t next
    uint32_t job_prev    # neighbours in the chain of its job; of a run in line: the rows below it
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


cdef inline bint is_waiting(Run* r) noexcept nogil:
    """Counts as waiting in its job: a moved occurrence is in nobody's way before its instant."""
    return r.state == SCHEDULED and r.disposition != MOVED


cdef inline bint makes_up(Run* r) noexcept nogil:
    """Whether a run makes up for the past by a person's will: it takes no fresh occurrence away."""
    return r.trigger == BY_BACKFILL or (r.flags & SENT_BACK and r.trigger != BY_ENQUEUE)

"""Rows of runs: what keeps lists and snapshots right. `_runs.RunTable` has the verbs.

Every run row is in at most one list: a ready line (queued), a worker's (leased), the dead letters, or the finished ones that wait to
be folded into history. Rows also hang in a chain or a line of their job (see `_runturns`), and are found by id and by token (`_runindex`).
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy

from wheelsched.tables._jobs cimport Job, JobTable
from wheelsched.tables._rows cimport CHUNK, NONE, WORDS, Blob, blob_data, blob_drop, blob_new
from wheelsched.tables._run cimport (
    BY_ENQUEUE, BY_SCHEDULE, DEAD, DEAD_LIST, DISCARDED, FINISHED_LIST, FIRST_LIST, IN_LINE, LEASED, NO_LIST, QUEUED, RETRY_WAIT,
    SCHEDULED, Run, is_waiting,
)
from wheelsched.tables._runindex cimport RunIndex

import numpy as np


cdef class RunRows(RunIndex):
    """The rows of all runs with their lists. `moves` is model.TRANSITIONS as 256 bytes."""

    def __cinit__(self, JobTable jobs, bytes moves):
        assert len(moves) == 256
        self.row_size = sizeof(Run)
        self.left = []
        memcpy(self.moves, PyBytes_AS_STRING(moves), 256)
        self.new_key()
        for _ in range(FIRST_LIST):
            self.new_list()

    def __dealloc__(self):
        cdef uint32_t i
        for i in range(self.chunk_count * CHUNK):
            if self.live(i):
                blob_drop(self.run(i).payload)
                blob_drop(self.run(i).result)
                blob_drop(self.run(i).history)
        free(self.lists)
        free(self.filled)
        free(self.specs)
        free(self.queue_leased)
        free(self.key_leased)

    cdef int clear_row(self, char* row) except -1:
        cdef Run* r = <Run*>row
        blob_drop(r.payload)
        blob_drop(r.result)
        blob_drop(r.history)
        return 0

    # Lists and specs

    def new_list(self, uint32_t queue=NONE, uint32_t key=0, uint32_t job=0, uint32_t job_most=0, uint32_t group=0, uint32_t task=0,
                 uint8_t priority=0, bint backlog=False, int64_t expires_us=-1):
        """Number of a new empty list; a ready line has a queue, and perhaps a key, a job's key, a deadline for a start."""
        assert (queue == NONE or queue < self.queue_count) and key < self.key_count and job < self.key_count
        if self.list_count >= self.filled_size:
            self.filled_size = max(64, self.list_count * 2)
            filled = <uint32_t*>realloc(self.filled, self.filled_size * sizeof(uint32_t))
            if filled == NULL:
                raise MemoryError("no memory for a list of runs")
            self.filled = filled
        cdef List* lists = <List*>realloc(self.lists, (self.list_count + 1) * sizeof(List))
        if lists == NULL:
            raise MemoryError("no memory for a list of runs")
        self.lists = lists
        self.lists[self.list_count] = List(NONE, NONE, 0, 0, queue, key, job, job_most, group, task, priority, backlog, expires_us)
        self.list_count += 1
        return self.list_count - 1

    def new_queue(self):
        """Number of a new queue, whose leases are counted."""
        cdef uint32_t* counts = <uint32_t*>realloc(self.queue_leased, (self.queue_count + 1) * sizeof(uint32_t))
        if counts == NULL:
            raise MemoryError("no memory for a queue")
        self.queue_leased = counts
        self.queue_leased[self.queue_count] = 0
        self.queue_count += 1
        return self.queue_count - 1

    def new_key(self):
        """Number of a new concurrency key, whose leases are counted."""
        cdef uint32_t* counts = <uint32_t*>realloc(self.key_leased, (self.key_count + 1) * sizeof(uint32_t))
        if counts == NULL:
            raise MemoryError("no memory for a concurrency key")
        self.key_leased = counts
        self.key_leased[self.key_count] = 0
        self.key_count += 1
        return self.key_count - 1

    def leased(self, uint32_t queue):
        """How many runs of a queue are leased."""
        assert queue < self.queue_count
        return self.queue_leased[queue]

    def list_len(self, uint32_t list_id):
        """How many runs are in a list."""
        assert list_id < self.list_count
        return self.lists[list_id].count

    def set_spec(self, uint32_t spec, uint32_t line, uint32_t backlog, uint16_t attempts, uint32_t again=NONE, uint32_t again_backlog=NONE):
        """Tell the ready line, the line of what makes up for the past, and the attempts of the runs of a spec; `again`: the same two
        lines for runs that were started before, if these are others."""
        cdef Spec* specs
        again, again_backlog = line if again == NONE else again, backlog if again_backlog == NONE else again_backlog
        assert line < self.list_count and backlog < self.list_count and self.lists[line].queue != NONE
        if spec >= self.spec_count:
            specs = <Spec*>realloc(self.specs, (spec + 1) * 2 * sizeof(Spec))
            if specs == NULL:
                raise MemoryError("no memory for another definition")
            self.specs = specs
            self.spec_count = (spec + 1) * 2
        self.specs[spec] = Spec(line, backlog, again, again_backlog, attempts)

    cdef void push(self, uint32_t list_id, uint32_t slot) noexcept nogil:
        cdef List* line = &self.lists[list_id]
        cdef Run* r = self.run(slot)
        self.join(list_id)
        self.order += 1
        r.order = self.order
        r.list_id = list_id
        r.prev = line.tail
        r.next = NONE
        if line.tail == NONE:
            line.head = slot
        else:
            self.run(line.tail).next = slot
        line.tail = slot
        line.count += 1

    cdef void insert(self, uint32_t list_id, uint32_t slot) noexcept nogil:
        """Put back a run where its `order` says; it is older than nearly all that wait, so the walk from the head is short."""
        cdef List* line = &self.lists[list_id]
        cdef Run* r = self.run(slot)
        cdef uint32_t at = line.head, before = NONE
        while at != NONE and self.run(at).order < r.order:
            before = at
            at = self.run(at).next
        self.join(list_id)
        r.list_id = list_id
        r.prev = before
        r.next = at
        if before == NONE:
            line.head = slot
        else:
            self.run(before).next = slot
        if at == NONE:
            line.tail = slot
        else:
            self.run(at).prev = slot
        line.count += 1

    cdef void unlink(self, uint32_t slot) noexcept nogil:
        cdef Run* r = self.run(slot)
        if r.list_id == NO_LIST:
            return
        cdef List* line = &self.lists[r.list_id]
        if r.prev == NONE:
            line.head = r.next
        else:
            self.run(r.prev).next = r.next
        if r.next == NONE:
            line.tail = r.prev
        else:
            self.run(r.next).prev = r.prev
        line.count -= 1
        self.leave(line)
        r.list_id = NO_LIST
        r.prev = r.next = NONE

    # Changes

    cdef int verify(self, const uint32_t[::1] slots, uint8_t event) except -1:
        """An illegal transition changes nothing: all rows are looked at before the first one moves."""
        cdef Py_ssize_t i
        for i in range(slots.shape[0]):
            if not self.live(slots[i]):
                raise IndexError(f"no run in row {slots[i]}")
            if not self.moves[(self.run(slots[i]).state << 4) | event]:
                raise ValueError(f"run {self.text_id(slots[i])} in state {self.run(slots[i]).state}: event {event} is illegal")
        return 0

    cdef int move(self, uint32_t slot, uint8_t event) except -1:
        """The only place where a state changes. Keeps the job's counts."""
        cdef Run* r = self.run(slot)
        cdef uint8_t old = r.state, new = self.moves[(r.state << 4) | event]
        cdef bint waited = is_waiting(r)
        assert new, "moved without verify"
        self.touch(slot)
        if r.list_id == IN_LINE:
            self.leave_line(slot)
        else:
            self.unlink(slot)
        if old == new:
            return 0
        self.tally(slot, -1)
        r.state = new
        self.tally(slot, 1)
        if (old <= RETRY_WAIT) != (new <= RETRY_WAIT):
            self.unchain(slot)
            self.chain(slot)
        self.jobs.touch(r.job)
        cdef Job* j = self.jobs.job(r.job)
        if waited:
            j.waiting -= 1
        elif QUEUED <= old <= RETRY_WAIT:
            j.active -= 1
        if QUEUED <= new <= RETRY_WAIT:
            j.active += 1
        elif is_waiting(r):
            j.waiting += 1
        if new == LEASED:
            self.hold_place(r, 1)
        elif old == LEASED:
            self.hold_place(r, -1)
            self.lease_end(r.token, slot)
        return 0

    cdef int settle(self, uint32_t slot) except -1:
        """Put a run that reached a final state where such runs are kept. A member leaves its group."""
        cdef Run* r = self.run(slot)
        if r.count and r.trigger == BY_ENQUEUE:
            self.left.append((r.count, r.state))
            r.count = 0
        if r.state == DEAD:
            self.push(DEAD_LIST, slot)
        else:
            self.push(FINISHED_LIST, slot)
        return 0

    cdef uint32_t make(self, uint32_t job, uint64_t high, uint64_t low, uint8_t state, uint8_t disposition) except? 0xFFFFFFFF:
        cdef uint32_t s
        assert self.jobs.live(job), f"no job in row {job}"
        cdef Job* j = self.jobs.job(job)
        s = self.of_job_at(job, high, low) if low == j.key_low and <uint16_t>high == j.key_high else self.lookup(high, low)
        assert s == NONE, f"a second record for run {high:016x}{low:016x}"
        s = self.alloc()
        cdef Run* r = self.run(s)
        r.id_high = high
        r.id_low = low
        r.job = job
        r.prev = r.next = NONE
        r.state = state
        r.disposition = disposition
        self.jobs.touch(job)
        j.rows += 1
        self.chain(s)
        self.index_new(s)
        if is_waiting(r):
            j.waiting += 1
        elif state == QUEUED:
            j.active += 1
        return s

    # Snapshot

    cdef bytes dump_rows(self, uint32_t chunk):
        cdef size_t size = CHUNK * sizeof(Run)
        cdef uint32_t base = chunk * CHUNK, i
        cdef int k
        cdef Run* copy
        cdef Blob* b
        for i in range(base, base + CHUNK):
            if self.live(i):
                size += 12
                for k in range(1, 4):
                    b = blob_of(self, i, k)
                    size += b.size if b != NULL else 0
        out = PyBytes_FromStringAndSize(NULL, size)
        cdef char* p = PyBytes_AS_STRING(out)
        memcpy(p, self.chunks[chunk], CHUNK * sizeof(Run))
        cdef char* tail = p + CHUNK * sizeof(Run)
        cdef uint32_t* sizes
        for i in range(base, base + CHUNK):
            if not self.live(i):
                continue
            copy = <Run*>(p + (i - base) * sizeof(Run))
            copy.payload = copy.result = copy.history = NULL
            copy.list_id = 0
            copy.prev = copy.next = copy.job_prev = copy.job_next = NONE
            sizes = <uint32_t*>tail
            tail += 12
            for k in range(1, 4):
                b = blob_of(self, i, k)
                sizes[k - 1] = b.size if b != NULL else 0
                if b != NULL:
                    memcpy(tail, blob_data(b), b.size)
                    tail += b.size
        return out

    def load(self, uint32_t chunk, bytes data):
        """Read back one dump; chunks come in ascending order, all before `rebuild`. ValueError when it doesn't fit."""
        cdef size_t head = WORDS * 8 + CHUNK * sizeof(Run), size = len(data), at = head
        if chunk != self.chunk_count or size < head:
            raise ValueError(f"run chunk {chunk}: {size} bytes don't fit")
        self.grow()
        cdef const char* p = PyBytes_AS_STRING(data)
        memcpy(self.used + chunk * WORDS, p, WORDS * 8)
        memcpy(self.chunks[chunk], p + WORDS * 8, CHUNK * sizeof(Run))
        cdef uint32_t base = chunk * CHUNK, i
        cdef uint32_t sizes[3]
        cdef Run* r
        for i in range(base, base + CHUNK):
            if not self.live(i):
                continue
            r = self.run(i)
            if at + 12 > size:
                raise ValueError(f"run chunk {chunk}: too short")
            memcpy(sizes, p + at, 12)
            at += 12
            if at + <size_t>sizes[0] + sizes[1] + sizes[2] > size or not self.jobs.live(r.job):
                raise ValueError(f"run chunk {chunk}: too short, or a run without its job")
            r.payload = blob_new(p + at, sizes[0])
            r.result = blob_new(p + at + sizes[0], sizes[1])
            r.history = blob_new(p + at + sizes[0] + sizes[1], sizes[2])
            at += <size_t>sizes[0] + sizes[1] + sizes[2]
            self.count += 1
            self.jobs.job(r.job).rows += 1
            self.chain(i)
            self.index_new(i)
            self.tally(i, 1)
            if r.trigger == BY_SCHEDULE:
                self.see_occurrence(i)
            if r.state == SCHEDULED and r.due_us < 0:
                self.enter_line(i)
            if is_waiting(r):
                self.jobs.job(r.job).waiting += 1
            elif QUEUED <= r.state <= RETRY_WAIT:
                self.jobs.job(r.job).active += 1
        if at != size:
            raise ValueError(f"run chunk {chunk}: {size - at} bytes too many")

    def rebuild(self, dict worker_lists):
        """Put loaded runs into their lists, in order. `worker_lists`: worker id -> list."""
        cdef uint64_t order = self.order
        cdef uint32_t s
        cdef Run* r
        rows = np.array(self.slots(), np.uint32)
        fields = self.gather(rows)
        # a worker's list is in token order; other lists keep the order of entry
        self.lease_room(int((fields["state"] == LEASED).sum()))
        rank = np.where(fields["state"] == LEASED, fields["token"].astype(np.uint64), fields["order"])
        for s in rows[np.argsort(rank, kind="stable")].tolist():
            r = self.run(s)
            saved = r.order
            if r.state == QUEUED:
                self.push(self.line_of(r), s)
            elif r.state == LEASED:
                self.push(worker_lists[r.worker], s)
                self.hold_place(r, 1)
                self.lease_add(r.token, s)
            elif r.state == DEAD and not r.flags & DISCARDED:
                self.push(DEAD_LIST, s)
            elif r.state > RETRY_WAIT:
                self.push(FINISHED_LIST, s)
            r.order = saved
        self.order = order

    def check(self):
        """AssertionError naming the first broken invariant."""
        cdef uint32_t i, seen = 0, s, before, n
        cdef Run* r
        active, queues, keys = {}, [0] * self.queue_count, [0] * self.key_count
        for i in range(self.chunk_count * CHUNK):
            if not self.live(i):
                continue
            seen += 1
            r = self.run(i)
            in_list = r.state != SCHEDULED and r.state != RETRY_WAIT
            assert (r.list_id != NO_LIST and r.list_id != IN_LINE) == in_list, f"run row {i}: list {r.list_id} in state {r.state}"
            counts = active.setdefault(r.job, [0, 0, 0])
            counts[0] += is_waiting(r)
            counts[1] += QUEUED <= r.state <= RETRY_WAIT
            counts[2] += 1
            if r.state == LEASED:
                queues[self.lists[self.specs[r.spec].line].queue] += 1
                keys[self.lists[self.specs[r.spec].line].key] += 1
                keys[self.lists[self.specs[r.spec].line].job] += 1
        assert queues == [self.queue_leased[i] for i in range(self.queue_count)], "leases of the queues"
        assert keys == [self.key_leased[i] for i in range(self.key_count)], "leases of the concurrency keys"
        assert seen == self.count, (seen, self.count)
        for job, counts in active.items():
            assert [self.jobs.job(job).waiting, self.jobs.job(job).active, self.jobs.job(job).rows] == counts, f"counts of job row {job}"
        self.check_turns()
        self.check_index()
        for i in range(self.list_count):
            s, before, n = self.lists[i].head, NONE, 0
            while s != NONE:
                assert self.run(s).list_id == i and self.run(s).prev == before, f"links of run row {s}"
                assert before == NONE or i >= FIRST_LIST or self.run(before).order < self.run(s).order, f"order of run row {s}"
                before = s
                s = self.run(s).next
                n += 1
            assert before == self.lists[i].tail and n == self.lists[i].count, f"list {i}"
            filled = self.lists[i].place < self.filled_count and self.filled[self.lists[i].place] == i
            assert filled == (n > 0 and self.lists[i].queue != NONE), f"list {i} among those that are not empty"

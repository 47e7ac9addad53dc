"""Runs in columns: create, queue, lease, finish and fold them in bulk. Only `state.py` calls what changes rows."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from wheelsched.tables._jobs cimport Job
from wheelsched.tables._rows cimport NONE, Blob, blob_bytes, blob_data, blob_drop, blob_from, blob_instead, blob_share
from wheelsched.tables._run cimport (
    BY_BACKFILL, BY_ENQUEUE, BY_SCHEDULE, CANCEL, CANCEL_ASKED, CANCELLED, DEAD, DEAD_LIST, DELETED, DISCARD, DISCARDED, DUE, EXPIRED,
    FINISHED_LIST, FIRED, GIVE_BACK, GRANT, IN_LINE, LATE, LEASED, MOVED, ORPHANED, OVERLAP, QUEUED, REDRIVE, REDRIVE_AT, RETRY_WAIT,
    SCHEDULED, SEND_BACK, SENT_BACK, SKIPPED, SNOOZED, SPARE, SUCCEEDED, SUPERSEDE, TOLD, Run,
)
from wheelsched.tables._runrows cimport List, RunRows, blob_of

import numpy as np

FINISHED = FINISHED_LIST
DEAD_LETTERS = DEAD_LIST
NO_ROW = NONE


cdef inline uint64_t _load64(const uint8_t* p) noexcept nogil:
    cdef uint64_t v = 0
    cdef int k
    for k in range(8):
        v = (v << 8) | p[k]
    return v


cdef inline void _store64(uint8_t* p, uint64_t v) noexcept nogil:
    cdef int k
    for k in range(8):
        p[k] = <uint8_t>(v >> (56 - 8 * k))


cdef class RunTable(RunRows):
    """All runs that are open, dead letters, or finished and not yet folded."""

    def due(self, const uint32_t[::1] job, const int64_t[::1] nominal, const uint8_t[::1] state, const uint8_t[::1] disposition,
            const uint8_t[::1] reason, const int64_t[::1] until, const uint32_t[::1] count, const uint32_t[::1] missed, int64_t at):
        """One row for each decided occurrence: a run (state queued or scheduled) or a ledger row (state skipped). Rows as uint32 array.

        `until`: the end of a skipped range; the instant a scheduled run is armed for, or negative: it waits for its turn. An occurrence
        that the same run blocks as it blocked the one before extends that one's row.
        AssertionError when a run record for that job and nominal time is there already.
        """
        cdef Py_ssize_t n = job.shape[0], i
        assert n == nominal.shape[0] == state.shape[0] == disposition.shape[0] == reason.shape[0] == until.shape[0]
        assert n == count.shape[0] == missed.shape[0]
        out = np.empty(n, np.uint32)
        cdef uint32_t[::1] slots = out
        cdef Job* j
        cdef Run* r
        cdef uint32_t s, blocking
        for i in range(n):
            assert self.jobs.live(job[i]), f"no job in row {job[i]}"
            j = self.jobs.job(job[i])
            blocking = self.blocking(job[i]) if state[i] == SKIPPED and reason[i] == OVERLAP else NONE
            if blocking != NONE:
                slots[i] = self.extend(job[i], blocking, disposition[i], until[i], count[i], at)
                if slots[i] != NONE:
                    continue
            s = self.make(job[i], (<uint64_t>(nominal[i] // 1000) << 16) | j.key_high, j.key_low, state[i], disposition[i])
            slots[i] = s
            r = self.run(s)
            r.nominal_us = nominal[i]
            r.created_us = at
            r.trigger = BY_SCHEDULE
            r.spec = j.spec
            r.reason = reason[i]
            r.missed = missed[i]
            r.count = count[i]
            r.due_us = until[i]
            self.see_occurrence(s)
            if state[i] == SKIPPED:
                r.ended_us = at
                r.queued_us = j.param_us  # the anchor that the range was counted with
                if blocking != NONE:
                    r.started_us = <int64_t>(self.run(blocking).id_high ^ r.id_high)
                    r.token = <int64_t>(self.run(blocking).id_low ^ r.id_low)
                self.settle(s)
                continue
            j.fired += 1
            r.payload = blob_share(j.payload)
            r.budget = self.specs[r.spec].attempts
            if state[i] == QUEUED:
                r.queued_us = at
                self.push(self.line_of(r), s)
            elif r.due_us < 0:
                self.enter_line(s)
        return out

    cdef uint32_t extend(self, uint32_t job, uint32_t blocking, uint8_t disposition, int64_t until, uint32_t count, int64_t at
                         ) except? 0xFFFFFFFE:
        """Lengthen the job's latest occurrence when it is a range that the same run blocks: its row. NONE when it isn't."""
        cdef uint32_t latest = self.latest_ended(job)
        cdef Run* r
        if latest == NONE:
            return NONE
        r = self.run(latest)
        if r.state != SKIPPED or r.reason != OVERLAP or r.disposition != disposition or until <= r.due_us or \
                r.spec != self.jobs.job(job).spec or r.created_us < self.jobs.job(job).updated_us or \
                r.started_us != <int64_t>(self.run(blocking).id_high ^ r.id_high) or \
                r.token != <int64_t>(self.run(blocking).id_low ^ r.id_low):
            return NONE
        self.touch(latest)
        r.due_us = until
        r.count += count
        r.ended_us = at
        return latest

    def enqueue(self, const uint32_t[::1] job, bytes ids, const uint32_t[::1] spec, const uint8_t[::1] trigger, const int64_t[::1] nominal,
                const int64_t[::1] due, const uint8_t[::1] state, payloads, int64_t at):
        """Runs with ids of their own (16 bytes each) and their own payloads; an empty one stands for the job's. Rows as a uint32 array."""
        cdef Py_ssize_t n = job.shape[0], i
        assert len(ids) == 16 * n and n == spec.shape[0] == trigger.shape[0] == nominal.shape[0] == due.shape[0] == state.shape[0]
        cdef list payload_list = list(payloads)
        assert n == len(payload_list)
        out = np.empty(n, np.uint32)
        cdef uint32_t[::1] slots = out
        cdef const uint8_t* p = <const uint8_t*>PyBytes_AS_STRING(ids)
        cdef bytes payload
        cdef Run* r
        cdef uint32_t s
        for i in range(n):
            s = self.make(job[i], _load64(p), _load64(p + 8), state[i], MOVED if trigger[i] == BY_SCHEDULE else FIRED)
            p += 16
            slots[i] = s
            r = self.run(s)
            payload = payload_list[i]
            r.payload = blob_from(payload) if len(payload) else blob_share(self.jobs.job(job[i]).payload)
            r.nominal_us = nominal[i]
            r.created_us = at
            r.due_us = due[i]
            r.trigger = trigger[i]
            r.spec = spec[i]
            if trigger[i] == BY_SCHEDULE:
                self.jobs.job(job[i]).fired += 1
                self.see_occurrence(s)
            r.budget = self.specs[r.spec].attempts
            if due[i] < 0 and (trigger[i] == BY_BACKFILL or (trigger[i] == BY_ENQUEUE and state[i] == QUEUED)):
                r.count = <uint32_t>(-1 - due[i])  # overlap.backfill_wait, or the group; kept when `due_us` is needed for retries
            self.tally(s, 1)
            if state[i] == QUEUED:
                r.queued_us = at
                self.push(self.line_of(r), s)
            elif r.due_us < 0:
                self.enter_line(s)
        return out

    def wake(self, const uint32_t[::1] slots, int64_t at):
        """Scheduled and waiting runs whose instant or turn has come enter their ready line."""
        cdef Py_ssize_t i
        self.verify(slots, DUE)
        for i in range(slots.shape[0]):
            self.move(slots[i], DUE)
            self.run(slots[i]).queued_us = at
            self.push(self.line_of(self.run(slots[i])), slots[i])

    def let_go(self, const uint32_t[::1] slots, bytes payload, int64_t at):
        """A run whose group has ended enters its ready line; this is its nominal time."""
        self.wake(slots, at)
        cdef Run* r = self.run(slots[0])
        r.nominal_us = r.due_us = at
        r.payload = blob_instead(r.payload, payload)

    def grant(self, const uint32_t[::1] slots, uint32_t worker, uint32_t list_id, int64_t token, int64_t at):
        """Lease queued runs to a worker, tokens counting up from `token`. An attempt is spent."""
        cdef Py_ssize_t i
        cdef Run* r
        cdef uint64_t order
        assert token > 0, f"{token} is no token"
        self.verify(slots, GRANT)
        self.lease_room(<uint32_t>slots.shape[0])
        for i in range(slots.shape[0]):
            r = self.run(slots[i])
            order = r.order
            self.move(slots[i], GRANT)
            r.attempt += 1
            r.token = token + i
            r.worker = worker
            r.outcome = 0
            r.started_us = r.ended_us = 0
            blob_drop(r.result)
            r.result = NULL
            self.lease_add(r.token, slots[i])
            self.push(list_id, slots[i])
            self.order -= 1
            r.order = order  # kept for the way back; a worker's list is in token order anyway

    def give_back(self, const uint32_t[::1] slots):
        """Leased runs of which it is proven that user code was not entered: no attempt is spent, the place in the line is kept."""
        cdef Py_ssize_t i
        cdef Run* r
        self.verify(slots, GIVE_BACK)
        for i in range(slots.shape[0]):
            self.move(slots[i], GIVE_BACK)
            r = self.run(slots[i])
            r.attempt -= 1
            self.insert(self.line_of(r), slots[i])

    def finish(self, const uint32_t[::1] slots, const uint8_t[::1] event, const uint8_t[::1] outcome, const int64_t[::1] started,
               const int64_t[::1] ended, const int64_t[::1] due, dict results, dict histories):
        """End attempts. `results`: row number in `slots` -> bytes; `histories`: likewise the packed earlier attempts, for retries."""
        cdef Py_ssize_t n = slots.shape[0], i
        cdef Run* r
        cdef bytes data
        assert n == event.shape[0] == outcome.shape[0] == started.shape[0] == ended.shape[0] == due.shape[0]
        for i in range(n):
            assert self.live(slots[i]), f"no run in row {slots[i]}"
            if not self.moves[(self.run(slots[i]).state << 4) | event[i]]:
                raise ValueError(f"run {self.text_id(slots[i])} in state {self.run(slots[i]).state}: event {event[i]} is illegal")
        for i in range(n):
            self.move(slots[i], event[i])
            r = self.run(slots[i])
            r.started_us = started[i]
            r.ended_us = ended[i]
            r.outcome = outcome[i]
            if r.state == RETRY_WAIT:
                r.due_us = due[i]
                if event[i] == SPARE:
                    r.attempt -= 1
                    if outcome[i] == SNOOZED and r.snoozes < 0xFFFF:
                        r.snoozes += 1
            else:
                self.settle(slots[i])
            if r.state == SUCCEEDED:
                self.jobs.job(r.job).failures = 0
            elif r.state == DEAD and self.jobs.job(r.job).failures < 255:
                self.jobs.job(r.job).failures += 1
            elif r.state == CANCELLED and r.flags & ORPHANED and not r.flags & CANCEL_ASKED:
                r.reason = DELETED
        for i, data in results.items():
            r = self.run(slots[i])
            r.result = blob_instead(r.result, data)
        for i, data in histories.items():
            self.set_history(slots[i], data)

    def redrive(self, const uint32_t[::1] slots, const int64_t[::1] due, int64_t at):
        """Dead letters get all their attempts anew: at once, or from an instant later than `at` on."""
        cdef Py_ssize_t i
        cdef Run* r
        assert slots.shape[0] == due.shape[0]
        self.verify(slots, REDRIVE)
        for i in range(slots.shape[0]):
            r = self.sent_back(slots[i], at)
            self.move(slots[i], REDRIVE_AT if due[i] > at else REDRIVE)
            if due[i] > at:
                r.due_us = due[i]
            else:
                self.push(self.line_of(r), slots[i])

    def send_back(self, const uint32_t[::1] slots, const int64_t[::1] due, const uint32_t[::1] count, int64_t at):
        """As `redrive`, and they wait for their turn: from now on (`due` negative), or from an instant on; `count` as of a backfill."""
        cdef Py_ssize_t i
        cdef Run* r
        assert slots.shape[0] == due.shape[0] == count.shape[0]
        self.verify(slots, SEND_BACK)
        for i in range(slots.shape[0]):
            assert self.run(slots[i]).trigger != BY_ENQUEUE, "an enqueued run waits for nobody"
            r = self.sent_back(slots[i], at)
            r.count = count[i]
            self.move(slots[i], SEND_BACK)
            r.due_us = due[i]
            if due[i] < 0:
                self.enter_line(slots[i])

    cdef Run* sent_back(self, uint32_t slot, int64_t at) except NULL:
        """A dead letter gets all its attempts anew."""
        cdef Run* r = self.run(slot)
        self.touch(slot)
        r.flags |= SENT_BACK
        r.budget = min(0xFFFF, r.attempt + self.specs[r.spec].attempts)
        r.queued_us = at
        return r

    def change(self, const uint32_t[::1] slots, uint8_t event, int64_t at):
        """Cancel or discard."""
        cdef Py_ssize_t i
        cdef Run* r
        self.verify(slots, event)
        for i in range(slots.shape[0]):
            self.move(slots[i], event)
            r = self.run(slots[i])
            if event == DISCARD:
                r.flags |= DISCARDED
                self.push(FINISHED_LIST, slots[i])
            else:
                r.ended_us = at
                self.settle(slots[i])

    def set_history(self, uint32_t slot, bytes history):
        """Replace what is packed of one run's past."""
        assert self.live(slot), f"no run in row {slot}"
        cdef Run* r = self.run(slot)
        self.touch(slot)
        r.history = blob_instead(r.history, history)

    def ask_cancel(self, const uint32_t[::1] slots):
        """Mark leased runs: whatever their attempt comes to, they end as cancelled unless they succeed."""
        cdef Py_ssize_t i
        for i in range(slots.shape[0]):
            assert self.live(slots[i]) and self.run(slots[i]).state == LEASED
        for i in range(slots.shape[0]):
            self.touch(slots[i])
            self.run(slots[i]).flags |= CANCEL_ASKED

    def supersede(self, const uint32_t[::1] slots, const uint8_t[::1] disposition, const uint8_t[::1] reason, int64_t at):
        """Runs that only waited give their place to another: ledger rows from now on."""
        cdef Py_ssize_t i
        cdef Run* r
        self.verify(slots, SUPERSEDE)
        for i in range(slots.shape[0]):
            self.move(slots[i], SUPERSEDE)
            r = self.run(slots[i])
            if r.trigger == BY_SCHEDULE and self.jobs.job(r.job).fired:
                self.jobs.job(r.job).fired -= 1
            r.disposition = disposition[i]
            r.reason = reason[i]
            r.due_us = r.nominal_us
            r.count = 1
            r.ended_us = at
            self.settle(slots[i])

    def rearm(self, const uint32_t[::1] slots, const int64_t[::1] due):
        """Scheduled runs get another instant."""
        cdef Py_ssize_t i
        for i in range(slots.shape[0]):
            assert self.live(slots[i]) and self.run(slots[i]).state == SCHEDULED
        for i in range(slots.shape[0]):
            self.touch(slots[i])
            if self.run(slots[i]).list_id == IN_LINE:
                self.leave_line(slots[i])
            self.run(slots[i]).due_us = due[i]

    def expire(self, const uint32_t[::1] slots, int64_t at, uint8_t reason=EXPIRED):
        """Runs that were not started by their deadline, whose group did not succeed, or whose job was deleted are cancelled."""
        cdef Py_ssize_t i
        self.verify(slots, CANCEL)
        for i in range(slots.shape[0]):
            self.move(slots[i], CANCEL)
            self.run(slots[i]).reason = reason
            self.run(slots[i]).ended_us = at
            self.settle(slots[i])

    def mark(self, const uint32_t[::1] slots, uint8_t flag):
        """Runs that were not started in time (LATE), whose hooks were called (TOLD), whose job was deleted (ORPHANED)."""
        assert flag == LATE or flag == TOLD or flag == ORPHANED
        cdef Py_ssize_t i
        for i in range(slots.shape[0]):
            assert self.live(slots[i])
        for i in range(slots.shape[0]):
            self.touch(slots[i])
            self.run(slots[i]).flags |= flag

    def withdraw(self, const uint32_t[::1] slots, const int64_t[::1] until, const uint32_t[::1] count):
        """Ledger rows beyond a clock that went back: shortened, or (count 0) taken away."""
        cdef Py_ssize_t i
        cdef uint32_t s
        for i in range(slots.shape[0]):
            assert self.live(slots[i]) and self.run(slots[i]).state == SKIPPED
        for i in range(slots.shape[0]):
            s = slots[i]
            self.touch(s)
            if count[i]:
                self.run(s).due_us = until[i]
                self.run(s).count = count[i]
            else:
                self.drop(s)

    cdef int drop(self, uint32_t s) except -1:
        """Take a settled row out of everything."""
        self.touch(s)
        self.jobs.touch(self.run(s).job)
        self.unlink(s)
        self.forget_occurrence(s)
        self.unchain(s)
        self.jobs.job(self.run(s).job).rows -= 1
        self.index_gone(s)
        self.release(s)
        return 0

    def fold(self, uint32_t count):
        """Forget the `count` oldest finished rows: history has them."""
        assert count <= self.lists[FINISHED_LIST].count
        for _ in range(count):
            self.drop(self.lists[FINISHED_LIST].head)

    # Questions

    def find(self, bytes ids):
        """Rows (uint32 array) of run ids of 16 bytes each; NO_ROW where there is none."""
        cdef Py_ssize_t n = len(ids) // 16, i
        out = np.empty(n, np.uint32)
        cdef uint32_t[::1] slots = out
        cdef const uint8_t* p = <const uint8_t*>PyBytes_AS_STRING(ids)
        for i in range(n):
            slots[i] = self.lookup(_load64(p + 16 * i), _load64(p + 16 * i + 8))
        return out

    def held(self, bytes ids, const int64_t[::1] tokens, uint32_t worker=0):
        """(rows, verdict): 1 held under that token (by `worker`, unless 0), 2 stale, 3 ended before under it, 4 another's."""
        cdef Py_ssize_t n = tokens.shape[0], i
        assert len(ids) == 16 * n
        out = np.empty(n, np.uint32)
        verdict = np.empty(n, np.uint8)
        cdef uint32_t[::1] slots = out
        cdef uint8_t[::1] v = verdict
        cdef const uint8_t* p = <const uint8_t*>PyBytes_AS_STRING(ids)
        cdef uint32_t s
        cdef uint64_t high, low
        for i in range(n):
            high, low = _load64(p + 16 * i), _load64(p + 16 * i + 8)
            s = self.leased_as(tokens[i])
            if s == NONE or self.run(s).id_low != low or self.run(s).id_high != high:  # stale, or it has ended
                s = self.lookup(high, low)
            slots[i] = s
            if s == NONE or self.run(s).token != tokens[i]:
                v[i] = 2
            elif self.run(s).state == LEASED:
                v[i] = 1 if worker == 0 or self.run(s).worker == worker else 4
            else:
                v[i] = 3
        return out, verdict

    def peek(self, uint32_t list_id, uint32_t limit, uint64_t behind=0):
        """The first rows of a list in order, at most `limit`: uint32 array. `behind`: those alone that entered it later."""
        assert list_id < self.list_count
        cdef uint32_t n = 0, s = self.lists[list_id].head
        while s != NONE and behind and self.run(s).order <= behind:
            s = self.run(s).next
        out = np.empty(min(limit, self.lists[list_id].count), np.uint32)
        cdef uint32_t[::1] slots = out
        while s != NONE and n < slots.shape[0]:
            slots[n] = s
            n += 1
            s = self.run(s).next
        return out[:n]

    def ready(self):
        """Ready lines that are not empty: [list, waiting, leased of its queue, leased of its key, queue, key, leased of its job] as columns
        of uint32, and since when the head of each has waited, in microseconds."""
        cdef uint32_t n
        cdef List* line
        columns, since = np.empty((7, self.filled_count), np.uint32), np.empty(self.filled_count, np.int64)
        cdef uint32_t[:, ::1] c = columns
        cdef int64_t[::1] at = since
        for n in range(self.filled_count):
            line = &self.lists[self.filled[n]]
            c[0, n] = self.filled[n]
            c[1, n] = line.count
            c[2, n] = self.queue_leased[line.queue]
            c[3, n] = self.key_leased[line.key]
            c[4, n] = line.queue
            c[5, n] = line.key
            c[6, n] = self.key_leased[line.job]
            at[n] = self.run(line.head).queued_us
        return columns, since

    def blobs(self, uint32_t slot):
        """(payload, result, history) of one run."""
        if not self.live(slot):
            raise IndexError(f"no run in row {slot}")
        cdef Run* r = self.run(slot)
        return blob_bytes(r.payload), blob_bytes(r.result), blob_bytes(r.history)

    def joined(self, const uint32_t[::1] slots, str what):
        """One byte string of each run, joined, and their ends as a uint32 array: `what` is job, payload, result or history."""
        cdef Py_ssize_t n = slots.shape[0], i
        cdef int which = ("job", "payload", "result", "history").index(what)
        ends = np.empty(n, np.uint32)
        cdef uint32_t[::1] e = ends
        cdef uint64_t size = 0
        cdef Blob* b
        for i in range(n):
            b = blob_of(self, slots[i], which)
            size += b.size if b != NULL else 0
            e[i] = <uint32_t>size
        out = PyBytes_FromStringAndSize(NULL, size)
        cdef char* p = PyBytes_AS_STRING(out)
        for i in range(n):
            b = blob_of(self, slots[i], which)
            if b != NULL:
                memcpy(p, blob_data(b), b.size)
                p += b.size
        return out, ends

    def ids(self, const uint32_t[::1] slots):
        """Run ids, 16 bytes each, joined."""
        cdef Py_ssize_t n = slots.shape[0], i
        out = PyBytes_FromStringAndSize(NULL, 16 * n)
        cdef uint8_t* p = <uint8_t*>PyBytes_AS_STRING(out)
        for i in range(n):
            _store64(p + 16 * i, self.run(slots[i]).id_high)
            _store64(p + 16 * i + 8, self.run(slots[i]).id_low)
        return out

"""Runs of one job: its chain, and its lines of those that wait for their turn. All of it is soft: a snapshot has none of it.

A run that waits for its turn stands in a line of its job; every other run hangs in the job's chain, open ones first. So a turn looks at
the runs that are open and at the head of a line, however many wait behind it and however many have ended.

    OWN        the job's own occurrences and triggered runs, by nominal time
    BACK       runs that a person sent back, likewise: who takes a turn compares the heads of both
    BEHIND     runs of a backfill without a limit of their own, in its direction
    APART + n  runs that take no notice of the others: n of them are active at most

A line is a skew heap, threaded through the rows: entering, leaving and taking the head cost the logarithm of its length.
"""

import heapq

from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy

from wheelsched.tables._jobs cimport Job, JobTable
from wheelsched.tables._rows cimport NONE
from wheelsched.tables._run cimport (
    BY_SCHEDULE, IN_LINE, NO_LIST, QUEUED, RETRY_WAIT, SCHEDULED, SENT_BACK, Run, is_waiting, makes_up,
)

import numpy as np

OWN, BACK, BEHIND, APART = range(4)
RUN_DTYPE = np.dtype([
    ("id_high", "<u8"), ("id_low", "<u8"), ("nominal_us", "<i8"), ("created_us", "<i8"), ("due_us", "<i8"), ("queued_us", "<i8"),
    ("started_us", "<i8"), ("ended_us", "<i8"), ("token", "<i8"), ("order", "<u8"), ("payload", "<u8"), ("result", "<u8"),
    ("history", "<u8"), ("job", "<u4"), ("spec", "<u4"), ("worker", "<u4"), ("missed", "<u4"), ("count", "<u4"), ("list_id", "<u4"),
    ("prev", "<u4"), ("next", "<u4"), ("job_prev", "<u4"), ("job_next", "<u4"), ("attempt", "<u2"), ("budget", "<u2"),
    ("state", "u1"), ("outcome", "u1"), ("trigger", "u1"), ("reason", "u1"), ("disposition", "u1"), ("flags", "u1"), ("snoozes", "<u2"),
])
assert RUN_DTYPE.itemsize == sizeof(Run)


cdef inline int64_t _place(Run* r) noexcept nogil:
    """What a line is ordered by."""
    return -r.nominal_us if r.count & 1 and makes_up(r) else r.nominal_us


cdef inline uint32_t _line_of(Run* r) noexcept nogil:
    if not makes_up(r):
        return 0
    if r.count // 2:
        return 3 + r.count // 2
    return 1 if r.flags & SENT_BACK else 2


cdef class RunTurns(Rows):
    """Chains, lines and counts by job."""

    def __cinit__(self, JobTable jobs, bytes moves):
        self.jobs = jobs
        self.lines = {}
        self.made_up = {}

    def __dealloc__(self):
        free(self.latest)

    # The chain: open runs first, those that have ended behind them. The first one's job_prev is the last one

    cdef void chain(self, uint32_t slot) noexcept nogil:
        cdef Run* r = self.run(slot)
        cdef Job* j = self.jobs.job(r.job)
        cdef uint32_t head = j.first_run
        r.job_next = NONE
        if head == NONE:
            r.job_prev = slot
            j.first_run = slot
            return
        r.job_prev = self.run(head).job_prev
        self.run(head).job_prev = slot
        if r.state <= RETRY_WAIT:
            r.job_next = head
            j.first_run = slot
        else:
            self.run(r.job_prev).job_next = slot

    cdef void unchain(self, uint32_t slot) noexcept nogil:
        cdef Run* r = self.run(slot)
        cdef Job* j = self.jobs.job(r.job)
        if slot == j.first_run:
            j.first_run = r.job_next
        else:
            self.run(r.job_prev).job_next = r.job_next
        if r.job_next != NONE:
            self.run(r.job_next).job_prev = r.job_prev
        elif j.first_run != NONE:
            self.run(j.first_run).job_prev = r.job_prev
        r.job_prev = r.job_next = NONE

    # Lines

    cdef uint32_t merge(self, uint32_t a, uint32_t b) noexcept nogil:
        """Two heaps in one: its top row. Sides are swapped on the way down, which keeps the ways short."""
        cdef uint32_t top = NONE, above = NONE, rest
        cdef int64_t x, y
        while a != NONE and b != NONE:
            self.passed += 1
            x, y = _place(self.run(a)), _place(self.run(b))
            if y < x or (y == x and b < a):
                a, b = b, a
            rest = self.run(a).job_next
            self.run(a).job_next = self.run(a).job_prev
            self.run(a).prev = above
            if above == NONE:
                top = a
            else:
                self.run(above).job_prev = a
            above = a
            a = rest
        rest = a if a != NONE else b
        if above == NONE:
            top = rest
        else:
            self.run(above).job_prev = rest
        if rest != NONE:
            self.run(rest).prev = above
        return top

    cdef int enter_line(self, uint32_t slot) except -1:
        """A run that is in no list stands in line from now on."""
        cdef Run* r = self.run(slot)
        assert r.state == SCHEDULED and r.list_id == NO_LIST
        cdef dict tops = self.lines.setdefault(r.job, {})
        cdef uint32_t line = _line_of(r)
        self.unchain(slot)
        r.list_id = IN_LINE
        r.prev = r.job_prev = r.job_next = NONE
        tops[line] = self.merge(tops.get(line, NONE), slot)
        return 0

    cdef int leave_line(self, uint32_t slot) except -1:
        """It hangs in the chain again."""
        cdef Run* r = self.run(slot)
        cdef dict tops = self.lines[r.job]
        cdef uint32_t line = _line_of(r), above = r.prev, rest = self.merge(r.job_prev, r.job_next)
        if rest != NONE:
            self.run(rest).prev = above
        if above == NONE:
            assert tops[line] == slot
            if rest != NONE:
                tops[line] = rest
            else:
                del tops[line]
                if not tops:
                    del self.lines[r.job]
        elif self.run(above).job_prev == slot:
            self.run(above).job_prev = rest
        else:
            self.run(above).job_next = rest
        r.list_id = NO_LIST
        r.prev = NONE
        self.chain(slot)
        return 0

    cdef list below(self, uint32_t top, int64_t limit):
        """A heap's rows whose place is not beyond `limit`, in no order."""
        out, open_ = [], [top]
        cdef uint32_t s
        while open_:
            s = open_.pop()
            self.passed += 1
            if _place(self.run(s)) > limit:
                continue
            out.append(s)
            if self.run(s).job_prev != NONE:
                open_.append(self.run(s).job_prev)
            if self.run(s).job_next != NONE:
                open_.append(self.run(s).job_next)
        return out

    def stand(self, const uint32_t[::1] slots):
        """Scheduled runs whose instant has come, and whose job is busy, wait for their turn."""
        cdef Py_ssize_t i
        for i in range(slots.shape[0]):
            assert self.live(slots[i]) and self.run(slots[i]).state == SCHEDULED
            if self.run(slots[i]).list_id != IN_LINE:
                self.enter_line(slots[i])

    def step_out(self, const uint32_t[::1] slots):
        """Runs in line wait for an instant instead."""
        cdef Py_ssize_t i
        for i in range(slots.shape[0]):
            assert self.live(slots[i]) and self.run(slots[i]).list_id == IN_LINE
            self.leave_line(slots[i])

    def lines_of(self, uint32_t job):
        """The lines of a job in which runs stand, ascending: list of int."""
        return sorted(self.lines.get(job, ()))

    def heads(self, uint32_t job, uint32_t line, uint64_t n):
        """The first n of a line: list of (place, row), in order."""
        cdef dict tops = self.lines.get(job)
        cdef uint32_t s, side
        cdef list out = []
        if tops is None or line not in tops or not n:
            return out
        s = tops[line]
        cdef list open_ = [(_place(self.run(s)), s)]
        while open_ and <uint64_t>len(out) < n:
            found = heapq.heappop(open_)
            out.append(found)
            s = found[1]
            self.passed += 1
            for side in (self.run(s).job_prev, self.run(s).job_next):
                if side != NONE:
                    heapq.heappush(open_, (_place(self.run(side)), side))
        return out

    def in_line(self, uint32_t job, uint32_t line):
        """All rows of a line as a uint32 array, in no order."""
        cdef dict tops = self.lines.get(job, {})
        return np.array(self.below(tops[line], 0x7FFFFFFFFFFFFFFF) if line in tops else [], np.uint32)

    def turns(self, const uint32_t[::1] slots):
        """Rows of the jobs behind these runs that have runs in line; each once: list of int."""
        cdef Py_ssize_t i
        if not self.lines:
            return []
        return sorted({self.run(slots[i]).job for i in range(slots.shape[0]) if self.run(slots[i]).job in self.lines})

    def jobs_in_line(self):
        """Rows of all jobs that have runs in line: list of int."""
        return sorted(self.lines)

    # What makes up for the past

    cdef int tally(self, uint32_t slot, int by) except -1:
        """Count a run that makes up for the past, in the state it has."""
        cdef Run* r = self.run(slot)
        cdef bint active = QUEUED <= r.state <= RETRY_WAIT
        if not makes_up(r) or not (active or is_waiting(r)):
            return 0
        cdef list counts = self.made_up.setdefault(r.job, [0, 0, 0])
        counts[1 if active else 0] += by
        if active and r.count // 2:
            counts[2] += by
        if not counts[0] and not counts[1]:
            del self.made_up[r.job]
        return 0

    def making_up(self, uint32_t job):
        """(waiting, active, active with a limit of their own) of a job's runs that make up for the past."""
        counts = self.made_up.get(job)
        return (0, 0, 0) if counts is None else tuple(counts)

    def any_makes_up(self):
        """Whether any job has open runs that make up for the past."""
        return bool(self.made_up)

    # Questions about one job

    def text_id(self, uint32_t slot):
        """The run id as 32 hex digits."""
        return f"{self.run(slot).id_high:016x}{self.run(slot).id_low:016x}"

    def gather(self, const uint32_t[::1] slots):
        """Copies of rows as an array of RUN_DTYPE. IndexError for a row not in use."""
        cdef Py_ssize_t n = slots.shape[0], i
        out = np.empty(n, RUN_DTYPE)
        cdef char[::1] raw = out.view(np.int8)
        for i in range(n):
            if not self.live(slots[i]):
                raise IndexError(f"no run in row {slots[i]}")
            memcpy(&raw[i * sizeof(Run)], self.row(slots[i]), sizeof(Run))
        return out

    def of_job(self, uint32_t job):
        """Rows of one job's runs, in no order: list of int."""
        out = []
        if not self.jobs.live(job):
            return out
        cdef uint32_t s = self.jobs.job(job).first_run
        while s != NONE:
            out.append(s)
            s = self.run(s).job_next
        for top in self.lines.get(job, {}).values():
            out += self.below(top, 0x7FFFFFFFFFFFFFFF)
        self.passed += len(out)
        return out

    def chained(self, uint32_t job, bint ended):
        """Rows of a job's runs that have ended, or of those that are open and stand in no line: uint32 array, in no order."""
        cdef list out = []
        cdef uint32_t first = self.jobs.job(job).first_run, s
        s = first if first == NONE or not ended else self.run(first).job_prev
        while s != NONE:
            self.passed += 1
            if (self.run(s).state > RETRY_WAIT) != ended:
                break
            out.append(s)
            if ended and s == first:
                break
            s = self.run(s).job_prev if ended else self.run(s).job_next
        return np.array(out, np.uint32)

    def in_the_way(self, uint32_t job):
        """Row of the run that keeps a job busy: its oldest open one, one that a worker may have before one that waits; None without one."""
        cdef uint32_t s = self.blocking(job)
        return None if s == NONE else s

    cdef uint32_t blocking(self, uint32_t job) except? 0xFFFFFFFE:
        """As `in_the_way`; NONE without one. The answer must not depend on the order of the chain, which is another after a restart."""
        cdef uint32_t s = self.jobs.job(job).first_run, best = NONE
        while s != NONE and self.run(s).state <= RETRY_WAIT:
            self.passed += 1
            if self.run(s).state != SCHEDULED or is_waiting(self.run(s)):
                best = self.older(best, s)
            s = self.run(s).job_next
        if best != NONE and self.run(best).state != SCHEDULED:
            return best
        for top in self.lines.get(job, {}).values():
            # the head is the oldest one, but for those of the same millisecond; of a line that runs backwards anybody may be
            ahead = self.run(top).nominal_us // 1000 * 1000 + 999
            for s in self.below(top, 0x7FFFFFFFFFFFFFFF if _place(self.run(top)) < 0 else ahead):
                if is_waiting(self.run(s)):
                    best = self.older(best, s)
        return best

    cdef uint32_t older(self, uint32_t a, uint32_t b) noexcept nogil:
        """Of two open runs the one to name: by whether a worker may have it, then by id."""
        if a == NONE:
            return b
        cdef Run* x = self.run(a)
        cdef Run* y = self.run(b)
        if (x.state == SCHEDULED) != (y.state == SCHEDULED):
            return a if y.state == SCHEDULED else b
        return b if y.id_high < x.id_high or (y.id_high == x.id_high and y.id_low < x.id_low) else a

    # The latest occurrence in the table

    cdef int see_occurrence(self, uint32_t slot) except -1:
        """An occurrence was made, or loaded."""
        cdef Run* r = self.run(slot)
        cdef uint32_t size, i
        if r.job >= self.latest_size:
            size = max(1024, r.job * 2)
            more = <Latest*>realloc(self.latest, size * sizeof(Latest))
            if more == NULL:
                raise MemoryError("no memory for another job")
            for i in range(self.latest_size, size):
                more[i] = Latest(-1, NONE)
            self.latest, self.latest_size = more, size
        if r.nominal_us > self.latest[r.job].most_us or self.jobs.job(r.job).rows == 1:
            self.latest[r.job] = Latest(r.nominal_us, slot)
        return 0

    cdef void forget_occurrence(self, uint32_t slot) noexcept nogil:
        """A row is about to go."""
        cdef uint32_t job = self.run(slot).job
        if job < self.latest_size and self.latest[job].slot == slot:
            self.latest[job].slot = NONE

    cdef uint32_t latest_ended(self, uint32_t job) except? 0xFFFFFFFE:
        """Row of a job's latest occurrence, if it stands in no line; NONE else. It is looked for when the one that was it has gone."""
        cdef uint32_t s, best = self.latest[job].slot if job < self.latest_size else NONE
        if best != NONE:
            return best
        s = self.jobs.job(job).first_run
        while s != NONE:
            self.passed += 1
            if self.run(s).trigger == BY_SCHEDULE and (best == NONE or self.run(s).nominal_us > self.run(best).nominal_us):
                best = s
            s = self.run(s).job_next
        if best == NONE or self.run(best).state <= RETRY_WAIT:
            return best
        for top in self.lines.get(job, {}).values():
            for s in self.below(top, 0x7FFFFFFFFFFFFFFF):
                if self.run(s).trigger == BY_SCHEDULE and self.run(s).nominal_us > self.run(best).nominal_us:
                    return NONE
        self.latest[job] = Latest(self.run(best).nominal_us, best)
        return best

    def check_turns(self):
        """AssertionError naming the first broken invariant of chains, lines and counts."""
        cdef uint32_t job, s, before
        cdef Run* r
        for job in self.jobs.slots():
            s, before, ended = self.jobs.job(job).first_run, NONE, False
            counts, latest = [0, 0, 0], -1
            while s != NONE:
                r = self.run(s)
                assert r.job == job and r.list_id != IN_LINE, f"chain of job row {job}"
                assert before == NONE or r.job_prev == before, f"chain of job row {job}, run row {s}"
                assert r.state > RETRY_WAIT or not ended, f"job row {job}: an open run behind one that has ended"
                before, ended = s, r.state > RETRY_WAIT
                s = r.job_next
            assert before == NONE or self.run(self.jobs.job(job).first_run).job_prev == before, f"end of the chain of job row {job}"
            for line, top in self.lines.get(job, {}).items():
                assert self.run(top).prev == NONE, f"top of a line of job row {job}"
                for s in self.below(top, 0x7FFFFFFFFFFFFFFF):
                    r = self.run(s)
                    assert (r.job, r.list_id, r.state, _line_of(r)) == (job, IN_LINE, SCHEDULED, line), f"run row {s} in a line"
                    for before in (r.job_prev, r.job_next):
                        assert before == NONE or self.run(before).prev == s, f"links below run row {s}"
                        assert before == NONE or _place(self.run(before)) >= _place(r), f"order below run row {s}"
            rows = self.of_job(job)
            assert len(rows) == self.jobs.job(job).rows, f"rows of job row {job}"
            for s in rows:
                r = self.run(s)
                assert r.state != SCHEDULED or r.due_us >= 0 or r.list_id == IN_LINE, f"run row {s} waits for its turn in no line"
                if r.trigger == BY_SCHEDULE:
                    latest = max(latest, r.nominal_us)
                if makes_up(r):
                    counts[0] += is_waiting(r)
                    counts[1] += QUEUED <= r.state <= RETRY_WAIT
                    counts[2] += QUEUED <= r.state <= RETRY_WAIT and r.count // 2 > 0
            assert self.making_up(job) == tuple(counts), f"what makes up for the past of job row {job}"
            if job < self.latest_size:
                assert latest <= self.latest[job].most_us, f"latest occurrence of job row {job}"
                assert self.latest[job].slot == NONE or self.run(self.latest[job].slot).nominal_us == latest, f"latest row of job row {job}"

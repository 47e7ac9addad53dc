"""The judge of the simulated world: reads durable records only, and knows schedules by plain arithmetic and `Schedule.next`.

It shares no code with the engine's due path: which occurrences a job owes follows from its definition, from when it was put,
paused, resumed and deleted, and from the clock.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from wheelsched import records
from wheelsched.model import NEVER, REQUEST_TTL_US, JobState, Reason, RunState
from wheelsched.schedule import schedule_from_wire
from wheelsched.state import State

DAY_US = 86_400_000_000
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def occurrences(wire, param, after, until):
    """Nominal times of a definition in (after, until], ascending; the dumbest way there is."""
    after = max(after, -1 if wire["start_us"] is None else wire["start_us"] - 1)
    until = min(until, NEVER - 1 if wire["end_us"] is None else wire["end_us"])
    schedule = wire["schedule"]
    if schedule["kind"] == "manual" or after >= until:
        return []
    if schedule["kind"] == "at":
        return [param] if after < param <= until else []
    if schedule["kind"] == "every":
        every, at, out = schedule["every_us"], param + schedule["every_us"], []
        if at <= after:
            at += (after - at) // every * every
        while at <= until:
            if at > after:
                out.append(at)
            at += every
        return out
    out = []
    cron = replace(schedule_from_wire(schedule), hash_id=wire.get("hash_id"))
    at = EPOCH + timedelta(microseconds=after)
    while True:
        batch = cron.next(at, 50)
        for moment in batch:
            us = (moment - EPOCH) // timedelta(microseconds=1)
            if us > until:
                return out
            out.append(us)
        if len(batch) < 50:
            return out
        at = batch[-1]


@dataclass
class Watched:
    """One job as the records tell it."""

    wire: dict | None = None
    param: int = NEVER
    state: int = 0
    after: int = -1  # what is owed begins after this instant
    cursor: int = -1
    owed: set = field(default_factory=set)
    cover: Counter = field(default_factory=Counter)
    runs: Counter = field(default_factory=Counter)
    fired: int = 0

    def close(self, until):
        """What was owed up to now; a paused job owes an answer too, a paused one-time job only when it is resumed."""
        if self.wire is None or self.state not in (JobState.ACTIVE, JobState.PAUSED):
            return
        if self.state == JobState.PAUSED and self.wire["schedule"]["kind"] == "at":
            return
        self.owed.update(occurrences(self.wire, self.param, self.after, until))


class Judge:
    """Replays durable records and collects what is owed and what was decided."""

    def __init__(self):
        self.state = State()
        self.jobs: dict[bytes, Watched] = {}
        self.names: dict[int, bytes] = {}
        self.back = False  # the clock went back: what was decided beyond it may be decided again
        self.grants: Counter = Counter()  # run id -> attempts granted and not given back
        self.redrives: Counter = Counter()
        self.given_back: set[int] = set()  # tokens of attempts that were not spent
        self.last_token = 0
        self.forgotten: set[bytes] = set()  # request ids whose time was over
        self.replied: dict[bytes, int] = {}  # request id -> when it was decided

    def feed(self, body):
        """One durable record."""
        kind, f = records.decode(body)
        before = self.state
        if kind == "GRANT":
            assert f["token"] > self.last_token, f"token {f['token']} after {self.last_token}"
            self.last_token = f["token"] + len(f["run"]) - 1
        if kind == "GIVE_BACK":
            self.given_back.update(self.state.runs.gather(f["run"])["token"].tolist())
        if kind in ("GRANT", "GIVE_BACK"):
            for run_id in self.ids(f["run"]):
                self.grants[run_id] += 1 if kind == "GRANT" else -1
        if kind == "RUNS" and f["event"] == 8:
            for run_id in self.ids(f["run"]):
                self.redrives[run_id] += 1
        result = before.apply(kind, f)
        handler = getattr(self, "_" + kind.lower(), None)
        if handler:
            handler(f, result)

    def ids(self, rows):
        """Run ids of rows of the table."""
        joined = self.state.runs.ids(rows)
        return [joined[i : i + 16] for i in range(0, len(joined), 16)]

    def _put(self, f, rows):
        for i, name in enumerate(f["name"]):
            self.names[int(rows[i])] = name
            job = self.jobs.setdefault(name, Watched())
            job.close(f["at"])
            job.wire, job.param = self.state.specs[int(f["spec"][i])], int(f["param"][i])
            once = job.wire["schedule"]["kind"] == "at"
            job.fired = 0 if job.state == JobState.DELETED else job.fired
            job.after = int(f["cursor"][i]) if once else max(int(f["cursor"][i]), f["at"])
            job.state, job.cursor = int(f["state"][i]), int(f["cursor"][i])

    def _jobs(self, f, _):
        for i, row in enumerate(f["job"].tolist()):
            job = self.jobs[self.names[row]]
            state = int(f["state"][i])
            once = job.wire["schedule"]["kind"] == "at"
            if job.state == JobState.PAUSED and state in (JobState.ACTIVE, JobState.FINISHED):
                if once:
                    job.after = job.cursor
                if state == JobState.FINISHED:
                    job.close(f["at"])
            else:
                job.close(f["at"])
                job.after = max(job.cursor, job.after if once else f["at"])
            job.state = state

    def _due(self, f, _):
        finished = []
        for i, row in enumerate(f["job"].tolist()):
            job = self.jobs[self.names[row]]
            nominal, state = int(f["nominal"][i]), int(f["state"][i])
            job.cursor = int(f["cursor"][i])
            if f["job_state"][i] != job.state:
                assert f["job_state"][i] == JobState.FINISHED, "a due time only ever finishes a job"
                job.close(job.cursor)
                job.state = JobState.FINISHED
                finished.append(job)
            if state == 0:
                assert job.runs[nominal] or self.back or not occurrences(job.wire, job.param, nominal - 1, nominal), "dropped silently"
                continue
            until = int(f["until"][i]) if state == RunState.SKIPPED else nominal
            found = occurrences(job.wire, job.param, nominal - 1, until)
            assert found, f"{nominal} is no occurrence of {job.wire['schedule']}"
            if state == RunState.SKIPPED:
                assert len(found) == f["count"][i], f"a range of {f['count'][i]} holds {len(found)}"
                assert f["reason"][i] != Reason.NONE, "skipped without a reason"
            else:
                job.runs[nominal] += 1
                job.fired += 1
                assert job.runs[nominal] == 1, f"a second run record for {nominal}"
                limit = job.wire["max_runs"]
                assert limit is None or job.fired <= limit or self.back, "more runs than max_runs"
            job.cover.update(found)
        for job in finished:
            limit = job.wire["max_runs"]
            if limit is None or job.fired < limit:
                assert not occurrences(job.wire, job.param, job.cursor, job.cursor + DAY_US), "finished too early"

    def _clock(self, f, _):
        self.back = True
        for i, row in enumerate(f["job"].tolist()):
            job = self.jobs[self.names[row]]
            job.cursor = job.after = int(f["cursor"][i])
            if job.state == JobState.PAUSED:  # when the pause began is not known on the new clock: it is judged from here
                job.after = NEVER
            job.state = int(f["state"][i])

    def _reply(self, f, _):
        first = self.replied.get(f["rid"])
        assert first is None or self.back or f["at"] - first > REQUEST_TTL_US, "a repeated request was done twice"
        self.replied[f["rid"]] = f["at"]

    def _forget(self, f, _):
        self.forgotten.update(f["rid"])
        for row in f["job"].tolist():
            self.jobs.pop(self.names.pop(row))

    def verdict(self, end_us):
        """After the quiet: every owed occurrence has its disposition."""
        for name, job in self.jobs.items():
            if job.state == JobState.ACTIVE:
                job.close(end_us)
            for at in sorted(job.owed):
                n = job.cover[at]
                assert n, f"{name}: occurrence {at} disappeared; {job.wire['schedule']}"
                assert n == 1 or self.back, f"{name}: occurrence {at} was decided {n} times"
            extra = set(job.cover) - job.owed
            assert not extra or self.back, f"{name}: {sorted(extra)[:5]} were decided but never owed"

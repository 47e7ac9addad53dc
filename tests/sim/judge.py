"""The judge of the simulated world: reads durable records only, and holds them against the specification.

Which occurrences a job owes follows from its definition, from when it was put, paused, resumed, held and deleted, from calendars and zone
data, and from the clock. Each must end in a run record or in a row of the ledger, once.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from tests.sim.chains import ChainRules
from tests.sim.oracle import DAY_US, Plan, blocked, local
from tests.sim.rules import Rules
from wheelsched.model.ids import scheduled_run_id
from wheelsched.model.nouns import NEVER, REQUEST_TTL_US, SERVER_UID, Disposition, JobState, Reason, RunFlag, RunState, Trigger
from wheelsched.state import records
from wheelsched.state.state import State

DST = {Reason.DST_GAP: "dst_gap", Reason.DST_OVERLAP: "dst_overlap"}
OWN = (Trigger.SCHEDULE, Trigger.BACKFILL)
SKIP, AS_EVER = -1, -2


@dataclass
class Watched:
    """One job as the records tell it."""

    name: bytes
    wire: dict | None = None
    param: int = NEVER
    state: int = 0
    after: int = -1  # what is owed begins after this instant
    cursor: int = -1
    owed: dict = field(default_factory=dict)  # nominal time -> grid, calendar, dst_gap, dst_overlap
    cover: Counter = field(default_factory=Counter)
    runs: Counter = field(default_factory=Counter)
    fates: dict = field(default_factory=dict)  # nominal time -> (disposition, reason) as last decided
    marks: dict = field(default_factory=dict)  # nominal time -> SKIP or where it was moved
    fired: int = 0
    dead: int = 0  # dead runs one after another
    floor: int | None = None  # wall time (naive) of the last one decided under former zone data, of a fixed-time job
    vague: bool = False  # the clock went back while it was paused: since when is not known on the new clock

    @property
    def kind(self):
        """Kind of schedule, `after` for a delay after completion."""
        schedule = self.wire["schedule"]
        return "after" if schedule.get("after_completion") else schedule["kind"]


class Judge(Rules, ChainRules):
    """Replays durable records and collects what is owed and what was decided."""

    def __init__(self, version="z1"):
        super().__init__()
        self.state = State()
        self.version = version
        self.jobs: dict[bytes, Watched] = {}
        self.names: dict[int, bytes] = {}
        self.back = False  # the clock went back at least once
        self.spans: list[tuple[int, int]] = []  # what was decided there may be decided again
        self.newest = 0  # latest `at`
        self.grants: Counter = Counter()  # run id -> attempts granted and not given back
        self.redrives: Counter = Counter()
        self.spared: Counter = Counter()  # run id -> attempts that were not counted
        self.given_back: set[int] = set()  # tokens of attempts that were not spent
        self.last_token = 0
        self.forgotten: set[bytes] = set()  # request ids whose time was over
        self.replied: dict[bytes, int] = {}  # request id -> when it was decided
        self.answers: dict[bytes, set[bytes]] = {}  # request id -> its answers: a second one after the first was forgotten
        self.ledger: dict[bytes, list[int]] = {}  # run id of a ledger row -> nominal times that it covers
        self.idle_at: dict[bytes, int] = {}  # when a job's last open run ended
        self.untold: set[str] = set()  # alarms that this batch owes
        self.failing: set[bytes] = set()  # jobs of runs that died in this batch
        self.orphans: set[bytes] = set()  # runs that were open when their job was deleted
        self.batches: dict[bytes, tuple] = {}  # run id -> (number of the backfill, its code)
        self.counts: Counter = Counter()

    def feed(self, body):
        """One durable record."""
        kind, f = records.decode(body)
        name = kind.lower()
        before = getattr(self, "_before_" + name, None)
        if before:
            before(f)
        result = self.state.apply(kind, f)
        if "at" in f:
            self.now = f["at"]
        after = getattr(self, "_" + name, None)
        if after:
            after(f, result)
        self.ends(kind, f)
        self.newest = max(self.newest, f.get("at", 0), f.get("wall", 0))
        self.counts[name] += 1

    # What is owed

    def plan(self, job):
        """The dumb schedule of a job."""
        return Plan(job.wire, job.param, self.version)

    def excluded(self, job, at):
        """Whether a calendar keeps an instant of a job from running."""
        names = job.wire.get("calendar")
        return bool(names) and blocked([self.state.calendars[n] for n in names], at, self.version)

    def loose(self, at):
        """Whether an instant was decided on a clock that was set back later."""
        return any(low < at <= high for low, high in self.spans)

    def close(self, job, until, *, lazy=None):
        """What was owed up to an instant. `lazy`: what calendars and zone changes took away is on record only up to here."""
        if job.wire is None or job.state not in (JobState.ACTIVE, JobState.PAUSED) or job.after >= until:
            return
        if job.kind == "after":
            if job.state == JobState.ACTIVE and job.after < job.param <= until:
                job.owed[job.param] = "calendar" if self.excluded(job, job.param) else "grid"
            return
        plan = self.plan(job)
        most = until if lazy is None else lazy
        for at in plan.grid(job.after, until):
            kind = "calendar" if self.excluded(job, at) else "grid"
            if kind == "grid" or at <= most:
                job.owed[at] = kind
        for at, why in plan.lost(job.after, min(until, most)).items():
            job.owed.setdefault(at, why)

    def open_rows(self, row):
        """Fields of a job's open runs."""
        fields = self.state.runs.gather(np.array(self.state.runs.of_job(row), np.uint32))
        return fields[fields["state"] <= RunState.RETRY_WAIT]

    def ids(self, rows):
        """Run ids of rows of the table."""
        joined = self.state.runs.ids(rows)
        return [joined[i : i + 16] for i in range(0, len(joined), 16)]

    # Records

    def _start(self, f, _):
        self.now = f["wall"]
        old, self.version = self.version, f["zone_version"]
        if old == self.version:
            return
        self.version = old
        for job in self.jobs.values():
            self.close(job, job.cursor)
            job.after = max(job.after, job.cursor)
            zone = Plan(job.wire, job.param, old).fixed if job.cursor >= 0 else None
            decided = zone is not None and job.cursor in Plan(job.wire, job.param, old).grid(job.cursor - 1, job.cursor)
            job.floor = local(job.cursor, zone, old).replace(tzinfo=None) if decided else None
        self.version = f["zone_version"]

    def _before_put(self, f):
        """What waits under the old schedule has given its place before the new one is there."""
        for i, name in enumerate(f["name"]):
            job = self.jobs.get(name)
            if job is None or job.wire is None or job.state == JobState.DELETED:
                continue
            wire = self.state.specs[int(f["spec"][i])]
            same = all(job.wire[k] == wire[k] for k in ("schedule", "start_us", "end_us")) and (job.kind == "after" or job.param == int(f["param"][i]))
            row = self.state.find_job(name)
            open_ = self.open_rows(row)
            waits = (open_["state"] == RunState.SCHEDULED) & (open_["trigger"] == Trigger.SCHEDULE) & (open_["disposition"] == Disposition.FIRED)
            waits &= open_["flags"] & RunFlag.SENT_BACK == 0  # what a person sent back stays
            assert same or not waits.any(), f"{name}: a run of the old schedule still waits when the new one is put"

    def _put(self, f, rows):
        for i, name in enumerate(f["name"]):
            self.names[int(rows[i])] = name
            job = self.jobs.setdefault(name, Watched(name))
            wire, param, cursor = self.state.specs[int(f["spec"][i])], int(f["param"][i]), int(f["cursor"][i])
            kept = job.wire is not None and job.kind == "at" == wire["schedule"]["kind"] and job.param == param and job.state == JobState.PAUSED
            if not kept:
                self.close(job, max(job.cursor, f["at"]))
            job.fired = 0 if job.state == JobState.DELETED else job.fired
            job.wire, job.param, job.dead, job.floor = wire, param, 0, None
            job.after = cursor if job.kind == "at" else max(cursor, f["at"])
            job.state, job.cursor = int(f["state"][i]), cursor
            self.past_dates(job, f["at"])
            self.not_over(job, f["at"])
            self.idle_at[name] = f["at"]

    def past_dates(self, job, at):
        """Of a list of dates also those are owed that were past when it was put, as a job of such a date alone is, but not what was decided before."""
        parts = job.wire["schedule"].get("of", ())
        if any(part["schedule"]["kind"] != "at" for part in parts):
            return
        for date in [part["param_us"] for part in parts]:
            if job.cursor < date <= at and self.plan(job).grid(date - 1, date):
                job.owed[date] = "calendar" if self.excluded(job, date) else "grid"

    def _jobs(self, f, _):
        for i, row in enumerate(f["job"].tolist()):
            job = self.jobs[self.names[row]]
            state = int(f["state"][i])
            if f["uid"] == SERVER_UID:
                wanted = job.wire.get("pause_after")
                assert state == JobState.PAUSED
                assert 0 < (wanted or 0) <= job.dead, f"{job.name}: paused after {job.dead} dead runs, not {wanted}"
            if job.state == JobState.PAUSED and state in (JobState.ACTIVE, JobState.FINISHED):
                job.after = job.cursor if job.kind == "at" else f["at"] if job.kind == "after" else job.after
                if state == JobState.FINISHED:
                    self.close(job, f["at"])
                job.dead = 0
            elif job.kind == "at" and state == JobState.PAUSED:
                job.after = job.cursor  # a one-time job that is paused waits for its resume
            else:
                self.close(job, max(job.cursor, f["at"]))
                job.after = max(job.cursor, f["at"])
                if state == JobState.DELETED:  # a skip was of this job; one put later by the same name has its own
                    job.marks = {at: to for at, to in job.marks.items() if to != SKIP}
            job.state = state
            self.not_over(job, f["at"])
            self.idle_at[job.name] = f["at"]

    def _retime(self, f, _):
        for i, row in enumerate(f["job"].tolist()):
            job = self.jobs[self.names[row]]
            param, state = int(f["param"][i]), int(f["state"][i])
            if job.kind == "after":
                self.close(job, f["at"])
            if job.kind == "after" and f["next"][i] < NEVER:
                delay = job.wire["schedule"]["every_us"]
                idle = self.idle_at[job.name]
                assert not len(self.busy_rows(row)), f"{job.name}: the delay after completion counts from before the end"
                wanted = max(-(-idle // 1_000) * 1_000 + delay, job.cursor + 1_000)
                assert param == wanted or self.back, f"{job.name}: completed at {idle}, next at {param}, not at {wanted}"
            job.param = NEVER if job.kind == "after" and f["next"][i] == NEVER else param
            if state != job.state:
                self.close(job, f["at"])
                job.state = state
            self.not_over(job, f["at"])

    def _before_calendar(self, f):
        for job in self.jobs.values():
            if f["name"] in (job.wire.get("calendar") or ()):  # what is not decided yet is up to the new one
                decided = f["at"] if job.state == JobState.ACTIVE and self.state.meta.held_us < 0 else job.cursor
                self.close(job, decided)
                job.after = max(job.after, decided)

    def not_over(self, job, at):
        """A job is finished only when nothing is left of it."""
        limit, end = job.wire["max_runs"], job.wire["end_us"]
        if job.state != JobState.FINISHED or (limit is not None and job.fired >= limit):
            return
        if job.kind == "after":
            over = end is not None and max(at, job.param) >= end - job.wire["schedule"]["every_us"]
            assert over, f"{job.name}: finished, and runs are left"
        elif job.kind == "at":
            assert job.param <= job.cursor or (end is not None and job.param > end), f"{job.name}: finished before its time"
        else:
            base = max(job.cursor, at)
            assert not self.plan(job).grid(base, base + DAY_US), f"{job.name}: finished too early"

    def _due(self, f, made):
        rows = iter(made.tolist())
        finished, folded, stood = [], Counter(), set()
        for i, row in enumerate(f["job"].tolist()):
            job = self.jobs[self.names[row]]
            nominal, state, reason = int(f["nominal"][i]), int(f["state"][i]), Reason(int(f["reason"][i]))
            job.cursor = int(f["cursor"][i])
            if f["job_state"][i] != job.state:
                assert f["job_state"][i] == JobState.FINISHED, "a due time only ever finishes a job"
                finished.append(job)
            if state == 0:
                there = job.cover[nominal] or job.runs[nominal] or self.loose(nominal) or self.excluded(job, nominal)
                assert there or nominal not in self.plan(job).grid(nominal - 1, nominal), f"{job.name}: {nominal} was dropped silently"
                continue
            slot = next(rows)
            if job.kind == "after" and not len(self.busy_rows(row)):
                self.idle_at[job.name] = f["at"]
            if state == RunState.SKIPPED:
                self.skipped(job, slot, nominal, int(f["until"][i]), int(f["count"][i]), Disposition(int(f["disposition"][i])), reason)
                if reason in (Reason.MISFIRE, Reason.PAUSE) and f["disposition"][i] == Disposition.COALESCED:
                    folded[job.name] += int(f["count"][i])
            else:
                self.run_made(job, slot, nominal, state, int(f["until"][i]), f["at"], last=f["next"][i] == NEVER)
                if reason == Reason.MISFIRE:
                    stood.add(job.name)
                    folded[job.name] -= int(f["missed"][i])
                if f["job_state"][i] == JobState.ACTIVE and job.wire["max_runs"] is not None:
                    assert job.fired < job.wire["max_runs"] or self.back, f"{job.name}: max_runs is used up and the job goes on"
        wrong = [name for name, n in folded.items() if n != 0 and name in stood]
        assert not wrong, f"{wrong}: `missed` and the ledger disagree"
        for job in {id(j): j for j in finished}.values():
            self.close(job, job.cursor)
            job.state = JobState.FINISHED
            self.not_over(job, job.cursor)
        self.overlap_of_due(f, made)

    def skipped(self, job, slot, nominal, until, count, disposition, reason):
        """One row of the ledger: it covers just what it counts."""
        plan = self.plan(job)
        assert reason != Reason.NONE or disposition == Disposition.TZDATA_MOVED, f"{job.name}: skipped without a reason"
        if reason in DST:
            found = [at for at, why in plan.lost(nominal - 1, until).items() if why == DST[reason]]
        else:
            found = plan.grid(nominal - 1, until)
            for at in found if reason != Reason.MANUAL else ():
                held_back = self.excluded(job, at)
                assert held_back == (reason == Reason.CALENDAR), f"{job.name}: {at} is recorded as {reason.name.lower()}; in a calendar: {held_back}"
        assert found, f"{job.name}: {nominal} to {until} is no occurrence of {job.wire['schedule']} (row by {reason.name.lower()})"
        assert len(found) == count, f"{job.name}: a range of {count} by {reason.name.lower()} holds {len(found)}"
        if reason == Reason.MANUAL:
            assert job.marks.get(nominal) == SKIP, f"{job.name}: nobody skipped {nominal}"
        if reason == Reason.LIMIT:
            assert job.wire["max_runs"] is not None
        if disposition == Disposition.TZDATA_MOVED:
            self.tzdata_moved(job, found)
        self.newest = max(self.newest, until)
        job.cover.update(found)
        job.fates.update(dict.fromkeys(found, (disposition.name.lower(), reason.name.lower() if reason else None)))
        for at in found:
            job.marks.pop(at, None)
        self.row_holds(job, slot, found)

    def row_holds(self, job, slot, found):
        """The row in the table, perhaps an older one that was lengthened, covers its own occurrences and no others."""
        f = self.state.runs.gather(np.array([slot], np.uint32))[0]
        run_id = self.ids(np.array([slot], np.uint32))[0]
        fresh = int(f["nominal_us"]) == found[0]
        mine = self.ledger[run_id] = [*(() if fresh else self.ledger[run_id]), *found]
        assert (len(mine), mine[-1]) == (f["count"], f["due_us"]), f"{job.name}: a row of {f['count']} covers {mine}"
        if Reason(int(f["reason"])) not in DST:
            inside = self.plan(job).grid(mine[0] - 1, mine[-1])
            assert len(inside) == len(mine), f"{job.name}: a row of {len(mine)} from {mine[0]} to {mine[-1]} has {len(inside)} occurrences inside"

    def run_made(self, job, slot, nominal, state, until, at, *, last):
        """A run by schedule."""
        plan = self.plan(job)
        assert plan.grid(nominal - 1, nominal), f"{job.name}: {nominal} is no occurrence of {job.wire['schedule']}"
        assert not self.excluded(job, nominal), f"{job.name}: {nominal} runs, and a calendar excludes it"
        assert job.marks.get(nominal) is None, f"{job.name}: {nominal} runs, and a person {'skipped' if job.marks[nominal] == SKIP else 'moved'} it"
        assert job.state != JobState.PAUSED, f"{job.name}: triggered while paused"
        assert self.state.meta.held_us < 0, f"{job.name}: triggered while all triggering is held"
        assert at >= nominal, f"{job.name}: {nominal} is made early, at {at}"
        if job.floor is not None:
            wall = local(nominal, plan.fixed, self.version).replace(tzinfo=None)
            assert wall > job.floor, f"{job.name}: wall time {wall} runs again under other zone data (decided up to {job.floor})"
        if state == RunState.SCHEDULED and until >= 0:
            following = plan.next(nominal, lambda us: not self.excluded(job, us))
            spread = "jitter" in job.wire and nominal <= until and (until < following or last)
            assert spread, f"{job.name}: {nominal} is spread to {until}, the next is {following}"
        self.one_run(job, nominal)
        job.cover[nominal] += 1
        job.fates[nominal] = ("fired", None)
        assert self.ids(np.array([slot], np.uint32))[0] == scheduled_run_id(job.name, nominal)

    def one_run(self, job, nominal, *, counts=True):
        """Never a second run record."""
        job.runs[nominal] += 1
        job.fired += counts
        assert job.runs[nominal] == 1, f"{job.name}: a second run record for {nominal}"
        limit = job.wire["max_runs"]
        assert limit is None or not counts or job.fired <= limit or self.back, f"{job.name}: more runs than max_runs"

    def _supersede(self, f, _):
        """A run that only waited gave its place to another: it used nothing of max_runs."""
        for row, run_id in zip(self.state.runs.gather(f["run"]), self.ids(f["run"]), strict=True):
            assert (row["state"], row["attempt"]) == (RunState.SKIPPED, 0)
            assert row["disposition"] in (Disposition.COALESCED, Disposition.SUPERSEDED)
            assert row["trigger"] == Trigger.SCHEDULE, "only an occurrence gives its place to another"
            job, nominal = self.jobs[self.names[int(row["job"])]], int(row["nominal_us"])
            job.fired -= 1
            job.runs[nominal] -= 1
            job.fates[nominal] = (Disposition(int(row["disposition"])).name.lower(), None)
            self.ledger[run_id] = [nominal]

    def _before_withdraw(self, f):
        for row, run_id, until, count in zip(self.state.runs.gather(f["run"]), self.ids(f["run"]), f["until"].tolist(), f["count"].tolist(), strict=True):
            assert row["state"] == RunState.SKIPPED, "a run was withdrawn"
            job, mine = self.jobs[self.names[int(row["job"])]], self.ledger[run_id]
            keep = [at for at in mine if at <= f["at"]]
            kept = count == len(keep) and (not keep or until == keep[-1])
            assert kept, f"{job.name}: of {len(mine)} occurrences {len(keep)} are past, {count} are kept"
            for at in mine[len(keep) :]:
                job.cover[at] -= 1
                if not job.cover[at]:
                    job.owed.pop(at, None)
            self.ledger[run_id] = keep

    def _clock(self, f, _):
        self.back = True
        self.spans.append((f["at"], self.newest))
        listed = set(f["job"].tolist())
        for row, name in self.names.items():
            job = self.jobs[name]
            if row in listed:
                i = f["job"].tolist().index(row)
                self.close(job, f["at"] if self.state.meta.held_us < 0 else min(job.cursor, f["at"]))
                job.cursor, job.after = int(f["cursor"][i]), f["at"]  # up to the new now all is decided, or was never owed
                job.state = int(f["state"][i])
                if job.kind == "after":
                    job.param = int(f["next"][i])
            if job.state == JobState.PAUSED and job.kind != "at" and (row in listed or job.after > f["at"]):
                job.after, job.vague = NEVER, True
            for at in [at for at in job.owed if at > f["at"] and not job.cover[at] and not job.runs[at]]:
                del job.owed[at]  # it is to come again
            self.not_over(job, f["at"])

    def _reply(self, f, _):
        first = self.replied.get(f["rid"])
        assert first is None or self.back or f["at"] - first > REQUEST_TTL_US, "a repeated request was done twice"
        self.replied[f["rid"]] = f["at"]
        self.answers.setdefault(f["rid"], set()).add(bytes(f["reply"]))

    def _forget(self, f, _):
        self.forgotten.update(f["rid"])
        for row in f["job"].tolist():
            self.jobs.pop(self.names.pop(row))

    def verdict(self, end_us):
        """After the quiet: every owed occurrence has its disposition."""
        for name, job in self.jobs.items():
            if job.state == JobState.ACTIVE:
                self.close(job, max(end_us, job.cursor), lazy=job.cursor)  # other zone data may pass by what is still to come
            for at, kind in sorted(job.owed.items()):
                n = job.cover[at] or job.runs[at]
                assert n, f"{name}: occurrence {at} ({kind}) disappeared; {job.wire['schedule']}"
                assert n == 1 or self.loose(at), f"{name}: occurrence {at} was decided {n} times"
                reason = job.fates[at][1]
                own = kind if kind != "grid" else None
                assert self.loose(at) or (reason in (own, "manual") if own else reason not in ("calendar", "dst_gap", "dst_overlap")) or job.fates[at][0] == "moved", \
                    f"{name}: {at} is {kind}, and its row says {job.fates[at]}"
            extra = {at for at, n in job.cover.items() if n > 0} - set(job.owed)
            extra = {at for at in extra if not self.loose(at) and not job.vague and job.fates[at][0] != "moved"}
            assert not extra, f"{name}: {sorted(extra)[:5]} were decided but never owed: {[job.fates[x] for x in sorted(extra)[:5]]}"
            if job.kind == "after" and job.state == JobState.ACTIVE:
                f = self.state.jobs.gather(np.array([self.state.find_job(name)], np.uint32))[0]
                latest = end_us + job.wire["schedule"]["every_us"] + 2_001_000  # the clock may stand still for a small step
                start = job.wire["start_us"]
                assert f["next_us"] <= max(latest, start or 0) or self.busy_rows(self.state.find_job(name)).size, f"{name}: it does not go on"

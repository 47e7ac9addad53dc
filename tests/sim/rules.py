"""Rules of the judge about runs: overlap, order of turns, moves, backfills, holds, lateness, alarms. Mixed into `sim_judge.Judge`."""

from __future__ import annotations

import numpy as np

from tests.sim.oracle import local
from tests.sim.turns import TurnRules, apart, makes_up, sent_back
from wheelsched.model.ids import scheduled_run_id
from wheelsched.model.nouns import MS, Disposition, Event, JobState, Reason, RunState, Trigger

LATE_FLAG = 4
OWN = (Trigger.SCHEDULE, Trigger.BACKFILL)
SKIP, AS_EVER = -1, -2


def limit_of(wire):
    """How many runs of a job may be active at once."""
    overlap = wire["overlap"]
    return (overlap["max"] or 2**32) if overlap["policy"] == "allow" else 1


def is_active(fields):
    """Which runs are queued, leased, or wait for a retry."""
    return (fields["state"] >= RunState.QUEUED) & (fields["state"] <= RunState.RETRY_WAIT)


class Rules(TurnRules):
    """What must hold of runs, record by record."""

    # Overlap

    def overlap_of_due(self, f, made):
        """No run starts beside others against its job's policy; a refused one names a run that was in its way."""
        started = f["job"][f["state"] == RunState.QUEUED].tolist()
        for row in dict.fromkeys(started):
            self.crowd(row)
        for slot in made.tolist():
            fields = self.state.runs.gather(np.array([slot], np.uint32))[0]
            if fields["state"] == RunState.SKIPPED and fields["reason"] == Reason.OVERLAP:
                self.was_blocked(slot, fields)

    def was_blocked(self, slot, fields):
        """Something was in the way: an active run, or one that waits for its turn or its jittered instant; not one that was moved to later."""
        job = self.jobs[self.names[int(fields["job"])]]
        open_ = self.busy_rows(int(fields["job"]))
        assert len(open_), f"{job.name}: {int(fields['nominal_us'])} is skipped by overlap, and nothing is in its way"
        own = open_[~makes_up(open_)]
        assert len(own), f"{job.name}: {int(fields['nominal_us'])} is skipped by overlap with nothing but what makes up for the past"
        high = (int(fields["started_us"]) & (2**64 - 1)) ^ int(fields["id_high"])
        low = (int(fields["token"]) & (2**64 - 1)) ^ int(fields["id_low"])
        blocking = {(int(r["id_high"]), int(r["id_low"])) for r in self.open_rows(int(fields["job"]))}
        assert (high, low) in blocking, f"{job.name}: the blocking run of {int(fields['nominal_us'])} is not open"

    def busy_rows(self, row):
        """Open runs but those that were moved to a later instant: they are in nobody's way yet."""
        open_ = self.open_rows(row)
        return open_[~((open_["state"] == RunState.SCHEDULED) & (open_["disposition"] == Disposition.MOVED) & (open_["due_us"] >= 0))]

    def crowd(self, row):
        """After a run of this job began: not more of its own are active than its policy allows."""
        job = self.jobs[self.names[row]]
        open_ = self.open_rows(row)
        own = open_[is_active(open_) & np.isin(open_["trigger"], (*OWN, Trigger.MANUAL)) & ~apart(open_)]
        assert len(own) <= limit_of(job.wire), f"{job.name}: {len(own)} active at once, overlap {job.wire['overlap']}"

    def _before_wake(self, f):
        self.waking = self.state.runs.gather(f["run"])

    def _wake(self, f, _):
        waited = self.waking[self.waking["state"] == RunState.SCHEDULED]
        for r in waited:
            job = self.jobs[self.names[int(r["job"])]]
            if r["due_us"] >= 0:
                assert f["at"] >= r["due_us"], f"{job.name}: {int(r['nominal_us'])} starts before its instant"
                assert self.state.meta.held_us < 0, f"{job.name}: a delayed run starts while all triggering is held"
            else:
                self.in_turn(job, r, f["run"])
        for row in np.unique(waited["job"][(waited["trigger"] != Trigger.ENQUEUE) & ~apart(waited)]).tolist():
            self.crowd(row)

    def in_turn(self, job, r, woken):
        """Runs take their turns in nominal order; those of a backfill in its direction, after the job's own."""
        open_ = self.open_rows(int(r["job"]))
        waits = open_[(open_["state"] == RunState.SCHEDULED) & (open_["due_us"] < 0)]
        at = int(r["nominal_us"])
        if apart(r) or (sent_back(r) and r["count"]):
            return
        if r["trigger"] == Trigger.SCHEDULE or sent_back(r):
            waits = waits[~apart(waits) & ((waits["count"] == 0) | ~makes_up(waits))]
            early = waits[((waits["trigger"] == Trigger.SCHEDULE) | sent_back(waits)) & (waits["nominal_us"] < at)]
            assert not len(early), f"{job.name}: {at} has its turn before {early['nominal_us'].tolist()}"
        if r["trigger"] == Trigger.BACKFILL and not sent_back(r):
            number, code = self.batches[scheduled_run_id(job.name, at)]
            same = [int(w["nominal_us"]) for w in waits if self.batches.get(scheduled_run_id(job.name, int(w["nominal_us"])), (None,))[0] == number
                    and w["trigger"] == Trigger.BACKFILL and not sent_back(w)]
            backwards, limit = code % 2, code // 2
            wrong = [w for w in same if (w > at if backwards else w < at)]
            assert not wrong, f"{job.name}: backfill of {at} has its turn before {wrong}"
            if limit:
                active = open_[is_active(open_) & (open_["trigger"] == Trigger.BACKFILL)]
                mine = [a for a in active if self.batches[scheduled_run_id(job.name, int(a["nominal_us"]))][0] == number]
                assert len(mine) <= limit, f"{job.name}: {len(mine)} runs of a backfill at once, not {limit}"

    # Moves, skips, backfills, alarms

    def _enqueue(self, f, _):
        self.members_made(f)
        for i, row in enumerate(f["job"].tolist()):
            trigger, nominal, due = int(f["trigger"][i]), int(f["nominal"][i]), int(f["due"][i])
            run_id = f["id"][16 * i : 16 * i + 16]
            name = self.names[row]
            job = self.jobs[name]
            if trigger == Trigger.CHAIN:
                self.chain_made(name.decode(), f["payload"][i])
            if trigger not in OWN:
                continue
            assert run_id == scheduled_run_id(name, nominal), f"{name}: a run of {nominal} has another id than its schedule gives it"
            assert self.plan(job).grid(nominal - 1, nominal), f"{name}: {nominal} is no occurrence of {job.wire['schedule']}"
            if trigger == Trigger.SCHEDULE:
                assert nominal > f["at"] or self.back, f"{name}: {nominal} was moved when it was past"
                self.one_run(job, nominal)
                job.cover[nominal] += 1
                job.fates[nominal] = ("moved", None)
            else:
                assert nominal <= f["at"], f"{name}: a backfill of what is to come"
                assert not self.excluded(job, nominal), f"{name}: a backfill of what a calendar excludes"
                self.one_run(job, nominal, counts=False)
                self.batches[run_id] = (self.counts["enqueue"], -1 - due)
                job.fates[nominal] = ("fired", None)
                if nominal in job.owed:
                    job.owed[nominal] = "grid"  # by the definition in force, whatever it was when it was due

    def _except(self, f, _):
        for row, nominal, to in zip(f["job"].tolist(), f["nominal"].tolist(), f["to"].tolist(), strict=True):
            job = self.jobs[self.names[row]]
            if to == AS_EVER:
                job.marks.pop(nominal, None)
            else:
                job.marks[nominal] = to
                assert to == SKIP or job.runs[nominal] == 1, f"{job.name}: {nominal} is moved without a run"

    def _before_due(self, f):
        """Which alarms are owed for what this record leaves without a run."""
        for i in np.flatnonzero((f["state"] == RunState.SKIPPED) & np.isin(f["reason"], (Reason.MISFIRE, Reason.WINDOW, Reason.MAX))).tolist():
            name = self.names[int(f["job"][i])]
            self.alarm(name, self.jobs[name].wire)

    def alarm(self, name, wire):
        """Somebody is to be told of this job."""
        target, everyone = wire.get("on_missed") or "", self.alarm_jobs.on_missed
        target = target if self.there(target) or not everyone else everyone
        if target.encode() == name:
            return
        known = self.jobs.get(target.encode()) if target else None
        if known is not None and known.state != JobState.DELETED and known.name in self.names.values():
            self.untold.add(target)

    def batch_end(self):
        """One turn is durable, whole."""
        gone = {t for t in self.untold if self.jobs.get(t.encode()) is None or self.jobs[t.encode()].state == JobState.DELETED}
        assert not self.untold - gone, f"alarms were not raised: {sorted(self.untold)}"
        self.untold.clear()
        left = self.orphans_wait() if self.orphans else []
        assert not left, f"runs {left} wait, and their job was deleted"
        self.chains_at_batch_end()
        for job in [self.jobs[name] for name in self.failing if name in self.jobs]:
            wanted = job.wire.get("pause_after")
            assert not wanted or job.dead < wanted or job.state != JobState.ACTIVE, f"{job.name}: {job.dead} dead runs, and pause_after {wanted} did nothing"
        self.failing.clear()

    # Attempts and their ends

    # Deletes

    def _before_jobs(self, f):
        """Runs that are open when their job is deleted: no further attempt of theirs may begin, whatever becomes of the job's name."""
        for row in f["job"][f["state"] == JobState.DELETED].tolist():
            self.orphans.update(map(self.id_of, self.open_rows(row)))

    def _deleted(self, f, _):
        for r in self.state.runs.gather(f["run"]):
            assert (r["state"], r["reason"]) == (RunState.CANCELLED, Reason.DELETED)
            assert self.id_of(r) in self.orphans, f"{self.names[int(r['job'])]}: {int(r['nominal_us'])} ends with its job, which was not deleted"
        for row in np.unique(self.state.runs.gather(f["run"])["job"]).tolist():
            self.ended(row, f["at"])

    def orphans_wait(self):
        """Orphans that wait for an attempt, which will not come."""
        rows = np.array(self.state.runs.slots(), np.uint32)
        fields = self.state.runs.gather(rows)
        return [self.id_of(r).hex() for r in fields[(fields["state"] <= RunState.RETRY_WAIT) & (fields["state"] != RunState.LEASED)]
                if self.id_of(r) in self.orphans]

    def _before_grant(self, f):
        for r in self.state.runs.gather(f["run"]):
            assert self.id_of(r) not in self.orphans, f"{self.names[int(r['job'])]}: {int(r['nominal_us'])} starts after its job was deleted"
        assert f["token"] > self.last_token, f"token {f['token']} after {self.last_token}"
        self.last_token = f["token"] + len(f["run"]) - 1
        for r in self.state.runs.gather(f["run"]):
            after = self.state.specs[int(r["spec"])].get("late_after_us")
            new = r["attempt"] == r["snoozes"] == r["outcome"] == 0
            if after is not None and new and not r["flags"] & LATE_FLAG and r["trigger"] != Trigger.BACKFILL and not self.unarmed(r):
                late = -(-(self.wanted_at(r) + after) // MS) * MS
                assert f["at"] <= late, f"{self.names[int(r['job'])]}: {int(r['nominal_us'])} starts {(f['at'] - late) / 1e6:g} s later than late_after allows, unmarked"

    def wanted_at(self, r):
        """When a run that has had no attempt should have started: its nominal time or its jittered instant, or where a person moved it."""
        if r["disposition"] == Disposition.MOVED and r["due_us"] >= 0:
            return int(r["due_us"])
        return max(int(r["nominal_us"]), int(r["due_us"]))

    def unarmed(self, r):
        """A run that its jitter would have put off, but that was made late or had to wait: how far is not on record."""
        return "jitter" in self.state.specs[int(r["spec"])] and r["due_us"] <= 0

    def _grant(self, f, _):
        for run_id in self.ids(f["run"]):
            self.grants[run_id] += 1

    def _before_give_back(self, f):
        self.given_back.update(self.state.runs.gather(f["run"])["token"].tolist())

    def id_of(self, r):
        return int(r["id_high"]).to_bytes(8, "big") + int(r["id_low"]).to_bytes(8, "big")

    def _give_back(self, f, _):
        for run_id in self.ids(f["run"]):
            self.grants[run_id] -= 1

    def _before_late(self, f):
        for r in self.state.runs.gather(f["run"]):
            after = self.state.specs[int(r["spec"])]["late_after_us"]
            assert (r["attempt"], r["state"] <= RunState.QUEUED) == (0, True), "a run that was started is marked late"
            assert r["trigger"] != Trigger.BACKFILL, "what makes up for the past is marked late"
            assert f["at"] >= self.wanted_at(r) + after, "marked late in time"
            if r["trigger"] == Trigger.SCHEDULE:
                self.alarm(self.names[int(r["job"])], self.state.specs[int(r["spec"])])

    def _finish(self, f, _):
        for r, event in zip(self.state.runs.gather(f["run"]), f["event"].tolist(), strict=True):
            job = self.jobs[self.names[int(r["job"])]]
            if event == Event.SUCCEED:
                job.dead = 0
            if event == Event.SPARE:  # snoozed, or lost with others
                self.grants[self.id_of(r)] -= 1
                self.spared[self.id_of(r)] += 1
            if event == Event.EXHAUST:
                job.dead += 1
                self.failing.add(job.name)
            self.ended(int(r["job"]), f["at"])

    def _runs(self, f, _):
        for row in np.unique(self.state.runs.gather(f["run"])["job"]).tolist():
            self.ended(row, f["at"])

    def ended(self, row, at):
        """A run of this job ended: when none is open any more, a delay after completion counts from here."""
        if not len(self.busy_rows(row)):
            self.idle_at[self.names[row]] = at

    # Zone data

    def tzdata_moved(self, job, found):
        """Only what had its wall time already is passed by."""
        if job.floor is None:
            return
        zone = self.plan(job).fixed
        for at in found:
            wall = local(at, zone, self.version).replace(tzinfo=None)
            assert wall <= job.floor, f"{job.name}: {wall} is passed by, and only {job.floor} was decided"

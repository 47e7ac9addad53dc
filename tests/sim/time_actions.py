"""What clients and operators do with time in the simulated world: skip, move, backfill, hold, calendars, apply, `why`."""

from __future__ import annotations

from tests.sim.definitions import CALENDARS, NAMES, ZONES
from tests.sim.oracle import CHANGED, Plan
from wheelsched.model.nouns import NEVER, JobState

US = 1_000_000


class TimeActions:
    """Mixed into `sim.Actor`."""

    def settled_job(self):
        """A job as the judge knows it when all that happened is durable; None without one. The judge and the engine agree then."""
        self.world.step()
        self.world.sync()
        known = [j for j in self.world.judge.jobs.values() if j.wire is not None and b"~" not in j.name and j.state != JobState.DELETED]
        return self.rng.choice(known) if known else None

    def coming(self, job):
        """One of the next nominal times of a job; None without one."""
        plan = Plan(job.wire, job.param, self.world.version)
        at = self.world.wall_us
        for _ in range(self.rng.randint(1, 3)):
            found = plan.next(at, look_us=26 * 3_600 * US)
            if found == NEVER:
                break
            at = found
        return None if at == self.world.wall_us else at

    def asked(self, verb, args):
        """Ask, and let the answer out, after several turns if it takes them: (result, error code), with all that was decided durable and judged."""
        got = []
        w = self.world
        rid = {"rid": self.rng.randbytes(16)} if verb != "why" else {}
        w.request(w.client, verb, {**args, **rid}, got.append)
        for _ in range(1_000):
            w.step()
            w.sync()
            if got:
                break
        (reply,) = got
        return reply.result, reply.error.code if reply.error else None

    def act_skip(self):
        job = self.settled_job()
        at = self.coming(job) if job else None
        if at is not None:
            self.world.command("skip", {"name": job.name.decode(), "at_us": at, "undo": self.rng.random() < 0.2})

    def act_move(self):
        job = self.settled_job()
        at = self.coming(job) if job else None
        if at is not None:
            to = at + self.rng.choice([-30, 1, 30, 200, 4_000]) * US
            self.world.command("move", {"name": job.name.decode(), "at_us": at, "to_us": max(to, 0)})

    def act_backfill(self):
        job = self.settled_job()
        if job is None:
            return
        now = self.world.wall_us
        since = now - self.rng.choice([10, 60, 900, 4_000]) * US
        until = now - self.rng.choice([0, 0, 30]) * US
        args = {
            "name": job.name.decode(), "since_us": since, "until_us": until, "only": self.rng.choice(["missing", "missing", "failed"]),
            "backwards": self.rng.random() < 0.4, "dry_run": self.rng.random() < 0.15,
            "overlap": self.rng.choice([None, None, {"policy": "allow", "max": 2}, {"policy": "buffer_all"}]),
        }
        result, code = self.asked("backfill", args)
        if code is None:
            plan = Plan(job.wire, job.param, self.world.version)
            times = [at for at in plan.grid(since - 1, until) if not self.world.judge.excluded(job, at)]
            assert result["total"] == len(times), f"{job.name}: a backfill of {result['total']}, {len(times)} are due"
            assert result["count"] + result["existing"] == result["total"]
            assert result["forgotten"] == 0, "the range is younger than history is kept"
            without = [at for at in times if not job.runs[at]]
            assert args["dry_run"] or not without, f"{job.name}: no run for {without[:3]} after the backfill"
        else:
            assert code in ("failed_precondition", "not_found", "invalid_argument"), code
            undecided = job.state == JobState.PAUSED or self.world.judge.state.meta.held_us >= 0
            assert since > until or undecided or job.kind in ("manual", "after") or self.world.judge.jobs.get(job.name) is not job, (code, args)

    def act_hold(self):
        verb = self.rng.choice(["hold", "release", "release"])
        self.world.command(verb, {"note": "n"} if verb == "hold" else {})

    def act_calendar(self):
        if "calendar" not in self.definitions.features:
            return
        name = self.rng.choice(CALENDARS)
        if self.rng.random() < 0.15:
            self.world.command("calendar_delete", {"name": name})
        else:
            self.world.command("calendar_put", {"name": name, "calendar": self.definitions.calendar()})

    def act_apply(self):
        """Stage some frames, then apply them, perhaps pruning; the connection may be gone in between."""
        w, r = self.world, self.rng
        self.batches += 1
        names = r.sample(NAMES, r.randint(1, 4))
        frames = [names[:2], names[2:]] if len(names) > 2 and r.random() < 0.5 else [names]
        for part in frames:
            pairs = [self.definitions.given(n) for n in part]
            w.command("stage", {
                "batch": self.batches, "given": [g for g, _ in pairs], "names": list(part), "payload": [self.payload() for _ in part],
                "which": b"".join(i.to_bytes(4, "little") for i in range(len(part))),
                "param_us": b"".join(p.to_bytes(8, "little") for _, p in pairs), "notes": [r.choice(["", "n"]) for _ in part],
                "paused": [r.choice([None, None, True, False]) for _ in part],
            })
            if r.random() < 0.3:
                w.step()
        w.command("apply", {"batch": self.batches, "jobs": len(names), "prune": r.choice([None, None, "team/*", "*"]), "dry_run": r.random() < 0.1})

    def act_other_zones(self):
        """A restart with other zone data."""
        w = self.world
        if "zones" in self.definitions.features:
            w.crash(down_us=self.rng.choice([US, 60 * US, 4_000 * US]), version="z2" if w.version == "z1" else "z1")

    def act_to_change(self):
        """To the change of the wall clock, or past it."""
        w = self.world
        if w.change_us is not None and w.wall_us < w.change_us:
            w.pass_time(max(0, w.change_us - w.wall_us + self.rng.choice([-1, 0, 1, 60, 1_800, 3_600]) * US))

    def act_wobble(self):
        """A step of the clock that is too small to be a record."""
        self.world.wall_us -= self.rng.choice([1, 1_500_000])

    # Questions

    def act_why(self):
        job = self.settled_job()
        if job is None:
            return
        decided = sorted(job.cover)
        picks = self.rng.sample(decided, min(3, len(decided)))
        later = self.coming(job)
        for at in [*picks, *([later] if later is not None else [])]:
            self.explained(job, at)

    def explained(self, job, at):
        """`why` agrees with what the judge knows."""
        judge = self.world.judge
        answer, code = self.asked("why", {"name": job.name.decode(), "at_us": at})
        if judge.jobs.get(job.name) is not job or judge.loose(at):
            return
        told = f"{job.name}: why {at} is {answer or code}, not "
        if job.runs[at] > 0 or job.cover[at] > 0:
            disposition, reason = job.fates[at]
            assert code is None, told + disposition
            assert answer["disposition"] == disposition, told + disposition
            assert reason is None or answer["reason"] == reason, told + reason
            assert disposition not in ("fired", "moved") or answer["run_id"], told + "a run"
            return
        mark = job.marks.get(at)
        now = self.world.engine.now.wall_us
        if at <= now or job.state == JobState.DELETED:
            return
        plan = Plan(job.wire, job.param, self.world.version)
        if not plan.grid(at - 1, at):
            return
        assert code is None, told + "known"
        if mark is not None:
            assert answer["disposition"] == ("skipped" if mark == -1 else "moved"), told + "as a person said"
        elif judge.excluded(job, at):
            assert (answer["disposition"], answer["reason"]) == ("skipped", "calendar"), told + "excluded"
        elif job.state == JobState.FINISHED or (job.wire["max_runs"] is not None and job.fired >= job.wire["max_runs"]):
            assert (answer["disposition"], answer["reason"]) == ("skipped", "limit"), told + "over"
        elif job.state == JobState.ACTIVE and judge.state.meta.held_us < 0 and self.used_up_before(job, plan, now, at):
            assert (answer["disposition"], answer["reason"]) == ("skipped", "limit"), told + "beyond max_runs"
        else:
            assert (answer["disposition"], answer["scheduled_us"]) == ("pending", at), told + "to come"

    def used_up_before(self, job, plan, now, at):
        """Whether the occurrences until then are as many as max_runs leaves."""
        limit, excluded = job.wire["max_runs"], self.world.judge.excluded
        if limit is None or job.kind in ("at", "after"):
            return False
        coming = [t for t in plan.grid(now, at - 1) if t not in job.marks and not job.runs[t] and not excluded(job, t)]
        return job.fired + len(coming) >= limit


assert set(ZONES) == set(CHANGED)

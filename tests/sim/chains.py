"""Chains and groups in the simulated world: what draws them, and the rules of the judge about them. Every fourth seed has them, drawn
from a source of their own, so that the others stay as they were.
"""

from __future__ import annotations

import random
from collections import Counter

import numpy as np

from wheelsched import Call, Retry
from wheelsched.engine.alarms import AlarmJobs
from wheelsched.model.nouns import HOOKS, JobState, RunState, Trigger
from wheelsched.protocol.definition import given_from_api
from wheelsched.protocol.frames import decode_headers, encode_payload

REASONS = {"on_success": "success", "on_failure": "failure", "on_dead": "dead"}
ENDS = {RunState.SUCCEEDED: "succeeded", RunState.DEAD: "failed", RunState.CANCELLED: "cancelled"}


def alarm_jobs_of(seed):
    """The server's own alarms: every eighth seed has them."""
    rng = random.Random(f"alarms of {seed}")
    return AlarmJobs(*(rng.choice(("default/a", "default/d", "team/f")) for _ in range(2))) if seed % 8 == 7 else AlarmJobs()


class ChainDraws:
    """Hooks of jobs, and groups."""

    def __init__(self, seed, names, tasks, attempts_max):
        self.rng = random.Random(f"chains of {seed}")
        self.on = seed % 4 == 3
        self.names, self.tasks, self.attempts_max = names, tasks, attempts_max

    def hooks(self, name, known):
        """Hooks of a job, to those that stand behind it in the list: no cycles."""
        behind = [n for n in self.names if n > name and n in known]
        if not self.on or not behind or self.rng.random() < 0.2:
            return {}
        hooks = {hook: self.rng.choice(behind) for hook in self.rng.sample(HOOKS, self.rng.randint(1, 3))}
        return hooks | ({"retry": Retry(1)} if self.rng.random() < 0.5 else {})

    def dies(self):
        """Whether a worker fails at all that it has; dead letters are sent back then, to die again."""
        return self.on and self.rng.random() < 0.3

    def commands(self, known):
        """(verb, arguments) beside an enqueue."""
        if self.on and known and self.rng.random() < 0.7:
            hooks = {hook: self.rng.choice(known) for hook in HOOKS}
            given, _ = given_from_api(Call(self.rng.choice(self.tasks)), None, {"retry": Retry(1), **hooks})
            yield "enqueue", {"given": given, "payload": encode_payload((3,), {}), "namespace": "default"}
        if self.on and self.rng.random() < 0.7:
            yield "group", self.group(known)

    def group(self, known):
        """Arguments of the verb group."""
        r = self.rng
        n = r.randint(1, 4)
        retry = {"retry": Retry(r.randint(1, self.attempts_max), "1s")}
        hooks = {"on_failure": r.choice(known)} if known and r.random() < 0.5 else {}
        given = [given_from_api(Call(r.choice(self.tasks)), None, more)[0] for more in (retry, {**retry, **hooks})]
        return {
            "given": given, "which": bytes(4 * n), "payload": [encode_payload((r.randint(0, 2),), {}) for _ in range(n)], "namespace": "default",
            "then": {"which": 1, "payload": encode_payload((7,), {})}, "when": r.choice(["finished", "succeeded"]),
            "key": r.choice([None, None, "g"]), "members": n,
        }


class Group:
    """What the judge knows of one that is open."""

    def __init__(self, run_id, members, succeeded):
        self.run_id, self.members, self.needs_all = run_id, members, succeeded
        self.ends = {}  # member -> how it ended first

    def counts(self):
        """As the cause of the run behind has them."""
        found = Counter(self.ends.values())
        return [len(self.members), *(found[name] for name in ENDS.values())]


class ChainRules:
    """What must hold of hooks and groups, record by record and at the end of each batch. Mixed into `sim_judge.Judge`."""

    def __init__(self):
        self.chained = Counter()  # (run id, reason) -> runs that were made for it
        self.told = set()  # dead letters of which a job was told
        self.alarm_jobs = AlarmJobs()
        self.owed_hooks = {}  # (run id, reason) -> job to trigger, of this batch
        self.coming = {}  # number of a group -> its members, between its two records
        self.groups = {}
        self.group_of = {}

    def ends(self, kind, f):
        """A record by which runs may have ended."""
        if kind not in ("FINISH", "RUNS", "EXPIRE", "DELETED"):
            return
        for r, run_id in zip(self.state.runs.gather(f["run"]), self.ids(f["run"]), strict=True):
            if int(r["state"]) not in ENDS:
                continue
            if run_id in self.group_of:
                self.groups[self.group_of[run_id]].ends.setdefault(run_id, ENDS[RunState(int(r["state"]))])
            if kind == "FINISH" and r["state"] != RunState.CANCELLED:
                self.owe(run_id, r, ("on_success",) if r["state"] == RunState.SUCCEEDED else ("on_failure", "on_dead"))

    def there(self, name):
        """Whether there is a job of this name."""
        job = self.jobs.get((name or "").encode())
        return job is not None and job.state != JobState.DELETED

    def owe(self, run_id, r, hooks):
        """These hooks of a run are to be called, once each."""
        wire = self.state.specs[int(r["spec"])]
        everyone = self.alarm_jobs.on_dead
        if "on_dead" in hooks and everyone and r["trigger"] != Trigger.CHAIN and self.names.get(int(r["job"])) != everyone.encode():
            wire = {**wire, "on_dead": wire["on_dead"] if self.there(wire.get("on_dead")) else everyone}
        if run_id in self.told and r["state"] == RunState.DEAD:
            return
        for hook in hooks:
            target = self.jobs.get(wire[hook].encode()) if hook in wire else None
            if target is not None and target.state != JobState.DELETED:
                self.owed_hooks[run_id, REASONS[hook]] = wire[hook]
                if r["state"] == RunState.DEAD:
                    self.told.add(run_id)

    def chain_made(self, name, payload):
        """A run that a hook, or an alarm, made."""
        cause = decode_headers(payload)["cause"]
        if cause["reason"] in ("missed", "late"):
            self.untold.discard(name)
            return
        made = (bytes.fromhex(cause["run_id"]), cause["reason"])
        self.chained[made] += 1
        assert self.chained[made] == 1, f"{name}: a second run for the {cause['reason']} of {cause['run_id']}"
        assert self.owed_hooks.pop(made, None) == name, f"{name}: {cause['reason']} of {cause['run_id']} called it, and it should not"

    def members_made(self, f):
        """Which runs of an ENQUEUE are members of a group that comes next."""
        own = (f["trigger"] == Trigger.ENQUEUE) & (f["state"] == RunState.QUEUED) & (f["due"] < 0)
        for i in np.flatnonzero(own).tolist():
            self.coming.setdefault(-1 - int(f["due"][i]), set()).add(f["id"][16 * i : 16 * i + 16])

    def _group(self, f, _):
        members = self.coming.pop(f["number"])
        assert len(members) == f["members"], "a group of other members than its runs"
        self.groups[f["number"]] = Group(f["run"], members, f["succeeded"])
        self.group_of |= dict.fromkeys(members, f["number"])

    def _group_end(self, f, _):
        group = self.groups.pop(f["number"], None)
        assert group is not None, f"group {f['number']} ends twice"
        for member in group.members:
            del self.group_of[member]
        assert len(group.ends) == len(group.members), f"group {f['number']} ends before its members"
        if not len(f["run"]):
            return
        (run_id,), (r,) = self.ids(f["run"]), self.state.runs.gather(f["run"])
        assert run_id == group.run_id, "another run than that of the group"
        goes = not group.needs_all or set(group.ends.values()) == {"succeeded"}
        assert r["state"] == (RunState.QUEUED if goes else RunState.CANCELLED), f"group {f['number']}: {group.counts()}, and its run is {r['state']}"
        if goes:
            cause = decode_headers(self.state.runs.blobs(int(f["run"][0]))[0])["cause"]
            told = [cause[name] for name in ("members", "succeeded", "failed", "cancelled")]
            assert told == group.counts(), f"group {f['number']} tells of {told}, not of {group.counts()}"
        else:
            self.owe(run_id, r, ("on_failure",))

    def chains_at_batch_end(self):
        """One turn is durable, whole: what its endings cause is in it."""
        assert not self.coming, "members without their group"
        assert not self.owed_hooks, f"hooks were not called: {sorted(self.owed_hooks.values())}"
        open_ = [n for n, group in self.groups.items() if len(group.ends) == len(group.members)]
        assert not open_, f"groups {open_}: the last member ended, and nothing came of it"
        for number, group in self.groups.items():
            row = self.state.find_run(group.run_id)
            fields = None if row is None else self.state.runs.gather(np.array([row], np.uint32))[0]
            assert fields is None or fields["state"] in (RunState.SCHEDULED, RunState.CANCELLED), f"group {number}: its run does not wait"

"""What the product promises beyond "at least once", under the faults of crash_workers.py: checkpoints, heartbeat_timeout, RetryAfter, groups,
and that what an executor had done before it died is not done again."""

from __future__ import annotations

from collections import defaultdict

from wheelsched import Call, Manual, Retry
from wheelsched.model.errors import DeadlineExceededError, UnavailableError

ATTEMPTS = 20
STEPS = 5
LATER_S = 0.4
SILENT_MAX = 6  # each takes a worker for as long as its end takes
RETRY = Retry(attempts=ATTEMPTS, backoff="50ms", cap="500ms")


class Featured:
    """What a harness does now and then beside its own commands."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.unsure = []  # groups whose answer was lost: they are asked for again, with the same key

    def one_feature(self):
        kind = self.rng.choice(("steps", "steps", "later", "group", "group", "silent"))
        if self.unsure:
            self.make_group(*self.unsure[0])
        elif kind == "group":
            self.counts["group_sent"] += 1
            self.make_group(f"g{self.counts['group_sent']}", self.rng.randint(2, 12))
        elif kind != "silent" or self.counts["silent"] < SILENT_MAX:
            self.counts[kind] += 1
            self.put_feature(f"{kind}-{self.counts[kind]}", f"crash.{kind}")

    def put_feature(self, job, task):
        definition = {
            "misfire": {"policy": "coalesce", "grace": 0}, "overlap": {"policy": "skip"}, "max_attempts": ATTEMPTS, "task": task,
            "schedule": {"kind": "manual"},
        }

        def put():
            self.client.put(job, Call(task), Manual(), retry=RETRY, timeout="60s")
            return {"def": definition}

        self.command("put", job, put, **{"def": definition})
        self.trigger(job)

    def make_group(self, key, members):
        """Members that now and then fail or wait, and one behind them."""
        calls = [Call("crash.member", key, i, i % 3 * 0.05) for i in range(members)]
        try:
            made = self.client.group(calls, then=Call("crash.then", key), key=key, retry=RETRY, timeout="60s")
        except (UnavailableError, DeadlineExceededError):
            self.unsure = [(key, members)]
            raise
        self.unsure = []
        self.rec.event("note", note="group", key=key, members=members, then=made.run.id, ids=list(made.ids))


def judge_features(events, attempts_of, counts):
    """Findings. `attempts_of`: the notes of runs as the product tells them, by run id."""
    return [
        *judge_done(events, attempts_of, counts), *judge_steps(events, counts), *judge_silent(events, attempts_of, counts),
        *judge_later(events, attempts_of, counts), *judge_groups(events, attempts_of, counts),
    ]


def judge_done(events, attempts_of, counts):
    """A run has ended once its executor has entered the next: that executor's death takes nothing of it, as long as its parent lives."""
    ends, last_start = {}, defaultdict(float)
    for e in events:
        if e["type"] == "end":
            ends[e["run_id"], e["token"]] = e
        elif e["type"] == "start":
            last_start[e["worker"]] = max(last_start[e["worker"]], e["mono"])
    for run, note in attempts_of.items():
        for number, token, outcome, message in note["attempts"]:
            end = ends.get((run, token))
            if outcome == "lost" and "(pid" in message:  # the parent has seen the process end
                counts["seen_to_die"] += 1
                if end and last_start[end["worker"]] > end["mono"]:
                    yield f"run {run}: attempt {number} was done, its executor went on and died later, and it counts as lost"


def by_run(events, word):
    found = defaultdict(list)
    for e in events:
        if e.get("note") == word:
            found[e["run_id"]].append(e)
    return found


def judge_steps(events, counts):
    """A checkpoint that was acknowledged is there for each later attempt, and none is there that nobody sent."""
    kept, sent = by_run(events, "kept"), by_run(events, "sending")
    for run, resumed in by_run(events, "resumed").items():
        for e in resumed:
            counts["resumed"] += e["step"] > 0
            least = max((k["step"] for k in kept[run] if k["token"] < e["token"]), default=0)
            most = max((s["step"] for s in sent[run] if s["token"] < e["token"]), default=0)
            if not least <= e["step"] <= most:
                yield f"run {run}: token {e['token']} went on from step {e['step']}; {least} was kept, {most} sent"


def judge_silent(events, attempts_of, counts):
    """Who is silent for longer than heartbeat_timeout is ended."""
    woke = {e["run_id"] for e in events if e.get("note") == "woke"}
    for run, note in attempts_of.items():
        if not note["job"].startswith("silent-"):
            continue
        counts["silent"] += 1
        first = note["attempts"][0][2] if note["attempts"] else "none"
        if run in woke or first not in ("timed_out", "lost", "interrupted") or note["state"] != "succeeded":
            yield f"silent run {run}: first attempt {first}, {'woke up' if run in woke else 'did not wake up'}, {note['state']}"


def judge_later(events, attempts_of, counts):
    """RetryAfter: not before."""
    starts = {(e["run_id"], e["token"]): e["mono"] for e in events if e["type"] == "start"}
    ends = {(e["run_id"], e["token"]): e["mono"] for e in events if e["type"] == "end"}
    for run, note in attempts_of.items():
        if not note["job"].startswith("later-"):
            continue
        for (_, token, outcome, _), (_, following, _, _) in zip(note["attempts"], note["attempts"][1:], strict=False):
            end, start = ends.get((run, token)), starts.get((run, following))
            if outcome == "failed" and end and start:
                counts["later"] += 1
                if start - end < LATER_S:
                    yield f"run {run}: token {following} began {start - end:.3f} s after token {token} had asked for {LATER_S}"


def judge_groups(events, attempts_of, counts):
    """Each member once, and the one behind them after all of them, with the right counts."""
    ends, thens = defaultdict(dict), defaultdict(list)
    runs = defaultdict(set)
    for e in events:
        if e.get("note") == "member":
            runs[e["key"], e["member"]].add(e["run_id"])
            ends[e["key"]].setdefault(e["member"], e["mono"])
        elif e.get("note") == "then":
            thens[e["key"]].append(e)
    for e in (e for e in events if e.get("note") == "group"):
        key, n = e["key"], e["members"]
        counts["groups"] += 1
        for i in range(n):
            if len(runs[key, i]) != 1:
                yield f"group {key}: member {i} was done by the runs {sorted(runs[key, i])}"
        if {t["run_id"] for t in thens[key]} != {e["then"]}:
            yield f"group {key}: run {e['then']} is behind it, executed was {sorted({t['run_id'] for t in thens[key]})}"
        for then in thens[key]:
            cause = then["cause"]
            if (cause["members"], cause["succeeded"], cause["failed"], cause["cancelled"]) != (n, n, 0, 0):
                yield f"group {key}: {cause} of {n} that succeeded"
            late = [i for i in range(n) if ends[key].get(i, then["mono"]) >= then["mono"]]
            if late:
                yield f"group {key}: the run behind it began before the members {late} had ended"
        note = attempts_of.get(e["then"])
        if note is None or note["state"] != "succeeded":
            yield f"group {key}: the run behind it is {note and note['state']}"

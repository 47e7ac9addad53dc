"""Workers that die and workers that freeze, under load: `python -m tests.crash --worker-kills 300 --zombies 100 --seed 1`.

A server with a pool, supervisors of `wheelsched worker` and foreign workers (foreign_worker.py) share the runs. kill -9 hits an executor, a
supervisor, or a supervisor with the process groups of its executors; a zombie is a worker that SIGSTOP holds for longer than its lease and SIGCONT
lets go on as if nothing had been. `judge_workers` checks in the history what the general checker does not see: attempts, and that no run was
executed twice at a time by workers that held its lease.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from contextlib import suppress
from itertools import pairwise
from typing import TYPE_CHECKING

from tests.crash.features import Featured, judge_features
from tests.crash.server_kills import Harness, executors
from tests.rigs.places import TASK_MODULES, TESTS
from wheelsched import Call, Client, Manual, Retry

if TYPE_CHECKING:
    from pathlib import Path

LEASE_S = 1.0
BEAT_S = 0.3 * LEASE_S
POISON_ATTEMPTS = 3
EXIT_NO_SERVER = 5


class Fleet(Featured, Harness):
    """The harness of kill -9 with workers outside of the server."""

    tasks = ("crash.quick", "crash.slow", "crash.flaky", "crash.long", "crash.long")
    flags = ("--lease", f"{LEASE_S:g}s")

    def __init__(self, out: Path, seed: int, workers: int = 2, supervisors: int = 2, foreign: int = 2):
        super().__init__(out, seed, workers)
        self.crew: list[tuple[str, subprocess.Popen[bytes]]] = []
        self.poison: list[str] = []
        self.wanted = ["supervisor"] * supervisors + ["foreign"] * foreign

    def man(self):
        """Start the workers that are missing; one that found no server when it was started has ended by itself."""
        self.crew = [(kind, process) for kind, process in self.crew if process.poll() != EXIT_NO_SERVER]
        have = Counter(kind for kind, _ in self.crew)
        for kind in self.wanted:
            have[kind] -= 1
            if have[kind] < 0:
                self.crew.append((kind, self.hire(kind)))

    def hire(self, kind):
        env = dict(os.environ, WHEELSCHED_HISTORY=str(self.history), PYTHONPATH=os.pathsep.join([TASK_MODULES, str(TESTS.parent), os.environ.get("PYTHONPATH", "")]))
        if kind == "foreign":
            argv = [sys.executable, "-m", "tests.crash.foreign", self.socket, str(self.history)]
        else:
            argv = [sys.executable, "-m", "wheelsched", "--socket", self.socket, "worker", "--tasks", "crash_tasks", "--concurrency", "2"]
        return subprocess.Popen(argv, env=env, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log, cwd=self.out, start_new_session=True)

    # Load

    def one_command(self):
        if self.rng.random() < 0.04:
            self.one_feature()
        else:
            super().one_command()

    def put_poison(self):
        """A run that kills whoever executes it."""
        job = f"p{len(self.poison)}"
        self.poison.append(job)
        definition = {
            "misfire": {"policy": "coalesce", "grace": 0}, "overlap": {"policy": "skip"}, "max_attempts": POISON_ATTEMPTS, "task": "crash.poison",
            "schedule": {"kind": "manual"},
        }

        def put():
            retry = Retry(attempts=POISON_ATTEMPTS, backoff="100ms", cap="1s")
            self.client.put(job, Call("crash.poison"), Manual(), retry=retry)
            return {"def": definition}

        self.command("put", job, put, **{"def": definition})
        self.trigger(job)

    def call_of(self, task):
        return Call(task, round(self.rng.uniform(0.1, 1.2), 2)) if task == "crash.long" else Call(task)

    # Faults

    def fault(self, kind, event, pids, number):
        self.rec.event("fault", kind=kind, event=event, id=f"{kind}-{number}", affects="workers", pids=pids)

    def hit(self, kind, pids):
        """kill -9 of these processes."""
        self.counts[kind] += 1
        self.counts["worker_kills"] += 1
        self.fault(kind, "begin", pids, self.counts[kind])
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.fault(kind, "end", pids, self.counts[kind])

    def kill_some_worker(self):
        """One of the ways in which workers die."""
        way = self.rng.choice(["pool", "pool", "pool", "executor", "executor", "supervisor", "group", "foreign"])
        if way == "pool":
            victims = executors(self.server.pid)
            if not victims:
                return False
            self.hit("pool", [self.rng.choice(victims)])
            return True
        kind = "foreign" if way == "foreign" else "supervisor"
        entry = self.rng.choice([e for e in self.crew if e[0] == kind])
        process = entry[1]
        children = executors(process.pid)
        if way == "executor":
            if not children:
                return False
            self.hit("executor", [self.rng.choice(children)])
            return True
        # a supervisor that is killed takes its executors along: by the signal of a parent's death, or because they are killed too
        if way == "group":
            self.hit("group", [process.pid, *children])
        else:
            self.fault(way, "begin", [process.pid, *children], self.counts[way] + 1)
            self.hit(way, [process.pid])
        process.wait()
        self.crew.remove(entry)
        self.man()
        return True

    def kill(self):
        """The server dies, and its pool with it."""
        self.fault("server", "begin", executors(self.server.pid), self.counts["server"])
        self.counts["server"] += 1
        super().kill()

    def zombies(self, count):
        """Freeze so many workers for longer than their lease, and let them go on; how many held a run."""
        held = 0
        chosen = self.rng.sample([process for _, process in self.crew], count)
        frozen = []
        for process in chosen:
            children = executors(process.pid)
            whole = bool(children) and self.rng.random() < 0.5  # or the supervisor alone: its executors end what they are in
            self.counts["zombies"] += 1
            name = f"z{self.counts['zombies']}"
            pids = [process.pid, *children]
            self.rec.event("fault", kind="zombie", event="begin", id=name, affects="workers", pids=pids)
            stopped = pids if whole else [process.pid]
            for pid in stopped:
                os.kill(pid, signal.SIGSTOP)
            frozen.append((name, pids, stopped))
            held += self.in_a_run(pids)
        self.work(LEASE_S + self.rng.uniform(0.4, 1.0))
        for name, pids, stopped in frozen:
            for pid in reversed(stopped):  # executors first: else their supervisor ends them before they can say anything
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
            self.rec.event("fault", kind="zombie", event="end", id=name, affects="workers", pids=pids)
        self.counts["zombies_held"] += held

    def in_a_run(self, pids):
        """Is one of them in user code, as far as their files tell?"""
        inside = set()
        for path in [self.history / f"worker-{pid}.jsonl" for pid in pids]:
            for line in path.read_bytes().splitlines() if path.exists() else ():
                event = json.loads(line)
                if event["type"] in ("start", "end"):
                    (inside.add if event["type"] == "start" else inside.discard)(event["token"])
        return bool(inside)

    def freeze_server(self, seconds):
        """SIGSTOP of the server; what came in meanwhile is read before a lease is judged."""
        self.counts["server_freezes"] += 1
        self.rec.event("server", node="n1", event="pause")
        self.server.send_signal(signal.SIGSTOP)
        time.sleep(seconds)  # how long it is frozen is the test
        self.server.send_signal(signal.SIGCONT)
        self.rec.event("server", node="n1", event="resume")

    # The end

    def quiet(self):
        super().quiet()
        rec_attempts(self.rec, self.client)

    def dismiss(self):
        """A drain of all workers."""
        for _, process in self.crew:
            process.terminate()
        for kind, process in self.crew:
            assert process.wait(40) == 0, kind

    def kill_all(self):
        for _, process in self.crew:
            process.kill()
            process.wait()


def rec_attempts(rec, client: Client):
    """Each run's attempts, as the product tells them, into the history."""
    for info in list(client.runs(limit=None)):
        run = client.run(info.id)
        rec.event(
            "note", note="attempts", run_id=run.id, job=run.job, state=run.state, attempt=run.attempt,
            attempts=[[a.attempt, a.token, a.outcome, a.error.message if a.error else ""] for a in run.attempts],
        )


def run_faults(out: Path, seed: int, worker_kills: int = 0, zombies: int = 0, kills: int = 0, freezes: int = 0, **size):
    """The whole test; the harness after it."""
    h = Fleet(out, seed, **size)
    faults = ["worker"] * worker_kills + ["zombie"] * zombies + ["server"] * kills + ["freeze"] * freezes
    h.rng.shuffle(faults)
    try:
        h.start()
        h.man()
        h.work(1.0)
        while faults:
            h.work(h.rng.uniform(0.05, 0.4))
            h.man()
            if len(h.poison) < 1 + (h.counts["worker_kills"] + h.counts["zombies"]) // 20:
                h.put_poison()
            match faults.pop():
                case "worker":
                    while not h.kill_some_worker():
                        h.work(0.05)
                case "zombie":
                    pair = "zombie" in faults and h.rng.random() < 0.5
                    if pair:
                        faults.remove("zombie")
                    h.zombies(1 + pair)
                case "freeze":
                    h.freeze_server(LEASE_S * h.rng.uniform(1.2, 2.5))
                case _:
                    h.kill()
                    h.start()
        h.man()
        h.work(1.0)
        h.quiet()
        h.dismiss()
        h.stop()
    finally:
        h.kill_all()
        h.server.kill()
        h.server.wait()
        h.log.close()
    return h


# What the history must show


def read(history: Path):
    events = []
    for path in sorted(history.glob("*.jsonl")):
        for line in path.read_bytes().splitlines():
            try:
                events.append(json.loads(line))
            except ValueError:  # the last line of a killed writer
                continue
    return sorted((e for e in events if "mono" in e), key=lambda e: e["mono"])


class Lives:
    """When processes were killed and frozen, as the harness noted it."""

    def __init__(self, events):
        self.killed = defaultdict(list)
        self.frozen = defaultdict(list)
        begun = {}
        for e in events:
            if e["type"] != "fault" or "pids" not in e:
                continue
            if e["kind"] != "zombie" and e["event"] == "begin":
                for pid in e["pids"]:
                    self.killed[pid].append(e["mono"])
            elif e["event"] == "begin":
                begun[e["id"]] = e["mono"]
            elif e["kind"] == "zombie":
                for pid in e["pids"]:
                    self.frozen[pid].append((begun[e["id"]], e["mono"]))

    def overlap(self, start, end, second, attempt):
        """Was the run that began with `start` still executed by a living holder of its lease when `second` began? "" for no, else a word:
        "starved" when its lease ran out though nobody froze the worker, "vanished" when its process ended and the harness did not do it."""
        pid, at = int(start["worker"][1:]), second["mono"]
        if end and end["mono"] <= at:
            return ""
        if any(start["mono"] <= t <= at for t in self.killed[pid]):
            return ""
        # frozen: the lease counts from the last heartbeat before, which is at most one beat older
        if any(start["mono"] <= until + BEAT_S and at >= since + LEASE_S - BEAT_S - 0.05 for since, until in self.frozen[pid]):
            return ""
        if attempt[2] == "timed_out" and not end:
            return ""  # its process was killed for it
        if attempt[2] != "lost":
            return f"{attempt[2]} while it ran"
        if end or any(t > at for t in self.killed[pid]):
            return "starved" if "lease ran out" in attempt[3] else "lost while it ran"
        return "vanished"


def judge_workers(history: Path):
    """Findings, and counts of what was seen."""
    events = read(history)
    findings, counts = [], Counter()
    lives = Lives(events)
    starts, ends = defaultdict(list), {}
    for e in events:
        if e["type"] == "start":
            starts[e["run_id"]].append(e)
        elif e["type"] == "end":
            ends[e["run_id"], e["token"]] = e
        elif e["type"] == "complete":
            counts["told" if e["accepted"] else "refused"] += 1
    attempts_of = {e["run_id"]: e for e in events if e.get("note") == "attempts"}
    for run, note in attempts_of.items():
        attempts = note["attempts"]
        counts["runs"] += 1
        counts["attempts"] += len(attempts)
        tokens = [t for _, t, *_ in attempts]
        if [n for n, *_ in attempts] != list(range(1, len(attempts) + 1)) or note["attempt"] != len(attempts):
            findings.append(f"run {run}: attempts {[n for n, *_ in attempts]} with the count {note['attempt']}")
        if tokens != sorted(set(tokens)):
            findings.append(f"run {run}: tokens {tokens} do not grow")
        known = {(n, t) for n, t, *_ in attempts}
        findings += [
            f"run {run}: attempt {e['attempt']} with token {e['token']} was executed and is not on record"
            for e in starts[run] if (e["attempt"], e["token"]) not in known
        ]
        entered = {e["token"] for e in starts[run]}
        for n, t, outcome, _ in attempts:
            counts[outcome] += 1
            if t not in entered:
                counts["never_entered"] += 1  # killed between the grant and the first line of user code
                if outcome in ("succeeded", "failed"):
                    findings.append(f"run {run}: attempt {n} {outcome} and was not executed")
        if note["job"].startswith("p") and note["state"] == "dead":
            counts["poison_dead"] += 1
        if note["job"].startswith("p") and (note["state"] != "dead" or len(attempts) != POISON_ATTEMPTS):
            findings.append(f"poison run {run}: {note['state']} after {len(attempts)} attempts")
        in_order = sorted(starts[run], key=lambda e: e["token"])
        by_token = {a[1]: a for a in attempts}
        for first, second in pairwise(in_order):
            word = lives.overlap(first, ends.get((run, first["token"])), second, by_token.get(first["token"], [0, 0, "unknown", ""]))
            if word in ("starved", "vanished"):
                counts[word] += 1
            elif word:
                findings.append(f"run {run}: token {second['token']} began while token {first['token']} ran: {word}")
    return findings + list(judge_features(events, attempts_of, counts)), counts

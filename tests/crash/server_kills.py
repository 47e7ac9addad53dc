"""kill -9 under load, judged from outside: `python -m tests.crash --kills 100 --seed 1 --out DIR`.

A server with two workers runs under a client that puts, pauses, resumes, deletes, triggers and reads; the server (or now and then one of its
workers) is killed at random moments and started again. All parties write a history; after a quiet period the product's own rows are exported,
`judge` checks what needs no calendar, and oracles/check_history.py, which knows nothing of wheelsched, checks everything.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

from tests.rigs.places import TASK_MODULES, TESTS
from wheelsched import At, Call, Client, Cron, Every, Manual, Retry, WheelschedError
from wheelsched.model.errors import DeadlineExceededError, UnavailableError

CHECKER = TESTS / "oracles" / "check_history.py"
QUIET_S = 8.0
META = {
    "type": "meta", "schema": 1,
    "config": {"tol": 1.5, "recovery": 3, "settle": 2, "put_keeps_pause": True, "coalesce_to": "latest", "ambiguous_horizon": 20},
}


class Recorder:
    """One history file."""

    def __init__(self, path):
        self.fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self.count = 0

    def raw(self, **event):
        os.write(self.fd, (json.dumps(event) + "\n").encode())

    def event(self, kind, /, **fields):
        self.raw(type=kind, wall=time.time(), mono=time.monotonic(), src="client", **fields)


class Harness:
    """One data directory, its server, and a client under orders of a seed."""

    tasks: tuple[str, ...] = ("crash.quick", "crash.slow", "crash.flaky")
    flags: tuple[str, ...] = ()

    def __init__(self, out: Path, seed: int, workers: int = 2):
        self.out, self.rng, self.workers = out, random.Random(seed), workers
        self.data = out / "data"
        self.history = out / "history"
        self.history.mkdir(parents=True)
        self.socket_dir = Path(tempfile.mkdtemp(prefix="ws"))
        self.socket = str(self.socket_dir / "s")
        self.log = (out / "server.log").open("ab")
        self.rec = Recorder(self.history / "client.jsonl")
        self.rec.raw(**META)
        self.recoveries: list[float] = []
        self.counts: Counter[str] = Counter()
        self.jobs: dict[str, str] = {}
        self.runs: list[str] = []
        self.serial = 0

    def start(self):
        paths = [TASK_MODULES, *filter(None, [os.environ.get("PYTHONPATH")])]
        env = dict(os.environ, WHEELSCHED_HISTORY=str(self.history), PYTHONPATH=os.pathsep.join(paths))
        begun = time.monotonic()
        self.server = subprocess.Popen(
            [sys.executable, "-m", "wheelsched", "serve", "--data", str(self.data), "--socket", self.socket, "--tasks", "crash_tasks",
             "--workers", str(self.workers), *self.flags],
            env=env, stdout=self.log, stderr=self.log, cwd=self.out,
        )
        deadline = begun + 60
        while True:
            try:
                self.client = Client(self.socket, retry_for=0)
                self.client.stats()
                break
            except UnavailableError:
                if self.server.poll() is not None or time.monotonic() > deadline:
                    raise AssertionError(f"the server did not start, see {self.out / 'server.log'}") from None
                time.sleep(0.01)  # poll for the socket of another process
        self.recoveries.append(time.monotonic() - begun)
        self.rec.event("server", node="n1", event="ready")

    def kill(self):
        self.rec.event("server", node="n1", event="kill")
        self.server.kill()
        self.server.wait()
        self.client.close()

    def kill_worker(self):
        """kill -9 of one executor, by the id the server tells."""
        victims = executors(self.server.pid)
        if victims:
            self.counts["worker_kills"] += 1
            self.rec.event("fault", kind="worker_kill", event="begin", id=f"k{self.counts['worker_kills']}", affects="workers")
            os.kill(self.rng.choice(victims), signal.SIGKILL)
            self.rec.event("fault", kind="worker_kill", event="end", id=f"k{self.counts['worker_kills']}", affects="workers")

    # Commands

    def command(self, op, job, call, **fields):
        self.rec.count += 1
        number = f"c{self.rec.count}"
        self.rec.event("invoke", id=number, op=op, job=job, **fields)
        try:
            answer = call()
        except (UnavailableError, DeadlineExceededError) as e:
            self.rec.event("info", id=number, error=str(e))
            self.counts["ambiguous"] += 1
            raise
        except WheelschedError as e:
            if op == "get" and e.code == "not_found":
                self.rec.event("ok", id=number, exists=False)
            else:
                self.rec.event("fail", id=number, error=str(e))
            return None
        extra = answer if isinstance(answer, dict) else {}
        self.rec.event("ok", id=number, **extra)
        self.counts["acked"] += 1
        return extra

    def one_command(self):
        roll = self.rng.random()
        if roll < 0.45 or len(self.jobs) < 4:
            self.put()
        else:
            job = self.rng.choice(sorted(self.jobs))
            verb = self.rng.choice(["pause", "resume", "delete", "trigger", "get", "get"])
            getattr(self, verb)(job)

    def put(self):
        self.serial += 1
        kind = self.rng.choice(["every", "cron", "once", "once", "manual"])
        job = f"j{self.serial}"
        if kind in ("every", "cron") and sum(k in ("every", "cron") for k in self.jobs.values()) > 25:
            kind = "once"
        task = self.rng.choice(self.tasks)
        overlap = self.rng.choice(["skip", "allow"])
        definition = {
            "misfire": {"policy": "coalesce", "grace": 0}, "overlap": {"policy": overlap}, "max_attempts": 5, "task": task,
        }
        if kind == "every":
            every = self.rng.choice([0.5, 1.0, 1.7])
            schedule, definition["schedule"] = Every(every), {"kind": "interval", "every": every, "first": "after"}
        elif kind == "cron":
            expr = self.rng.choice(["* * * * * *", "*/2 * * * * *", "0-59/3 * * * * *"])
            schedule, definition["schedule"] = Cron(expr, "Europe/Berlin"), {"kind": "cron", "expr": expr, "tz": "Europe/Berlin", "seconds": "first"}
        elif kind == "once":
            at = datetime.now(UTC) + timedelta(seconds=self.rng.uniform(0.2, 3))
            at = at.replace(microsecond=at.microsecond // 1000 * 1000)
            schedule, definition["schedule"] = At(at), {"kind": "once", "at": at.isoformat()}
        else:
            schedule, definition["schedule"] = Manual(), {"kind": "manual"}
        retry = Retry(attempts=5, backoff="100ms", cap="1s")

        call = self.call_of(task)

        def send():
            info = self.client.put(job, call, schedule, overlap=overlap, retry=retry, timeout="20s")
            self.jobs[job] = kind
            if kind == "every":
                definition["schedule"]["anchor"] = info.schedule.anchor.timestamp()
            return {"def": definition}

        self.command("put", job, send, **{"def": definition})

    def call_of(self, task):
        return Call(task)

    def pause(self, job):
        self.command("pause", job, lambda: self.client.pause(job))

    def resume(self, job):
        self.command("resume", job, lambda: self.client.resume(job))

    def delete(self, job):
        def send():
            self.client.delete(job)
            self.jobs.pop(job, None)

        self.command("delete", job, send)

    def trigger(self, job):
        key = f"k{self.rec.count}"
        self.command("trigger", job, lambda: {"run_id": self.client.trigger(job, key=key).id}, key=key)

    def get(self, job):
        self.command("get", job, lambda: {"exists": True, "paused": self.client.get(job).state == "paused"})

    def work(self, seconds):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(0.01)  # a pace that two workers can follow between their deaths
            try:
                self.one_command()
            except (UnavailableError, DeadlineExceededError):
                return

    # The end

    def quiet(self):
        """Stop everything, let open runs end, export."""
        for info in list(self.client.jobs(state="active", limit=None)):
            if not info.name.startswith("~"):
                self.pause(info.name)
        time.sleep(QUIET_S)  # the quiet period that the judge asks for
        deadline = time.monotonic() + 120
        while self.open_runs():
            assert time.monotonic() < deadline, f"{self.open_runs()} runs are still open"
            time.sleep(0.1)  # poll another process
        with (self.history / "zz-export.jsonl").open("wb") as out:
            subprocess.run(
                [sys.executable, "-m", "wheelsched", "--socket", self.socket, "admin", "export", "--history"], stdout=out, check=True, timeout=120
            )
        self.stats = self.client.stats()

    def open_runs(self):
        return sum(1 for state in ("scheduled", "queued", "leased", "retry_wait") for _ in self.client.runs(state=state, limit=1_000))

    def stop(self):
        self.client.close()
        self.server.terminate()
        assert self.server.wait(60) == 0


def executors(server_pid):
    """Pids of the children of a server."""
    found = []
    for task in Path(f"/proc/{server_pid}/task").glob("*/children"):
        try:
            found += [int(p) for p in task.read_text().split()]
        except OSError:
            continue
    return found


def judge(history: Path):
    """What can be judged without a calendar: list of findings. A run id is one (job, time); a token is given once; what was executed has a record."""
    events = []
    for path in sorted(history.glob("*.jsonl")):
        for line in path.read_text().splitlines():
            try:
                events.append(json.loads(line))
            except json.JSONDecodeError:  # the last line of a killed writer
                continue
    findings = []
    rows = [e for e in events if e["type"] == "run"]
    by_id = Counter(r["run_id"] for r in rows)
    findings += [f"run {i} is listed {n} times" for i, n in by_id.items() if n > 1]
    by_time = Counter((r["job"], r["scheduled_at"]) for r in rows if r.get("trigger") == "schedule" and r["state"] != "skipped")
    findings += [f"{k} has {n} run records" for k, n in by_time.items() if n > 1]
    starts = [e for e in events if e["type"] == "start"]
    tokens = Counter(e["token"] for e in starts)
    findings += [f"token {t} was used {n} times" for t, n in tokens.items() if n > 1]
    findings += [f"run {e['run_id']} was executed and has no record" for e in starts if e["run_id"] not in by_id]
    attempts = Counter((e["run_id"], e["attempt"]) for e in starts)
    findings += [f"attempt {k} was entered {n} times" for k, n in attempts.items() if n > 1]
    triggered = {e["run_id"] for e in events if e["type"] == "ok" and "run_id" in e}
    findings += [f"run {i} was acknowledged and has no record" for i in triggered if i not in by_id]
    return findings, {"starts": len(starts), "rows": len(rows)}


def run(out: Path, kills: int, seed: int, pause=(0.05, 0.5)):
    """The whole test; the harness after it."""
    h = Harness(out, seed)
    try:
        h.start()
        for n in range(kills):
            # every tenth time it is left alone for long enough that runs are owed on time again
            h.work(h.rng.uniform(*pause) if n % 10 else 5.0)
            if h.rng.random() < 0.3:
                h.kill_worker()
                h.work(h.rng.uniform(0.02, 0.2))
            h.kill()
            h.start()
        h.work(1.0)
        h.quiet()
        h.stop()
    finally:
        h.server.kill()
        h.server.wait()
        h.log.close()
    return h


def checkable(history: Path):
    """A copy of a history without enqueued runs: check_history.py knows jobs and their triggers."""
    copy = history.with_name("checkable")
    copy.mkdir()
    for path in history.glob("*.jsonl"):
        lines = path.read_bytes().splitlines(keepends=True)
        (copy / path.name).write_bytes(b"".join(line for line in lines if b'"job": "~' not in line and b'"job":"~' not in line))
    return copy


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=None, help="of the server (100, or none with the other two)")
    parser.add_argument("--worker-kills", type=int, default=0, help="of executors, supervisors and foreign workers")
    parser.add_argument("--zombies", type=int, default=0, help="workers frozen for longer than their lease")
    parser.add_argument("--freezes", type=int, default=0, help="of the server, for longer than a lease")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--out", type=Path, default=None)
    args = parser.parse_args()
    out = args.out or Path(tempfile.mkdtemp(prefix="wheelsched-crash-"))
    print(f"seed {args.seed}, history in {out / 'history'}")
    with_workers = args.worker_kills or args.zombies or args.freezes
    kills = args.kills if args.kills is not None else 0 if with_workers else 100
    if with_workers:
        from tests.crash import worker_kills

        h = worker_kills.run_faults(out, args.seed, args.worker_kills, args.zombies, kills, args.freezes)
    else:
        h = run(out, kills, args.seed)
    findings, counts = judge(h.history)
    recoveries = sorted(h.recoveries[1:]) or h.recoveries
    print(f"kills {kills}, {dict(h.counts)}, {counts}, recovery s: median {recoveries[len(recoveries) // 2]:.2f} max {recoveries[-1]:.2f}")
    if with_workers:
        more, seen = worker_kills.judge_workers(h.history)
        findings += more
        print(f"workers: {dict(seen)}")
    for finding in findings:
        print("FINDING", finding)
    code = 1 if findings else 0
    wanted = [f"starts={10 * (args.worker_kills + args.zombies) + kills}", f"faults={kills + args.freezes}"]
    checked = subprocess.run([sys.executable, CHECKER, str(checkable(h.history)), *(x for w in wanted for x in ("--min", w))], check=False)
    sys.exit(code or checked.returncode)

"""Tasks of the crash test: they write down what they do, one file per process, one write per line."""

import json
import os
import random
import signal
import time
from pathlib import Path

from wheelsched import current_run, task

_FILES = {}


def note(kind, **fields):
    """One event of the history; the file is opened when the first one comes."""
    pid = os.getpid()
    if pid not in _FILES:
        path = Path(os.environ["WHEELSCHED_HISTORY"]) / f"worker-{pid}.jsonl"
        _FILES[pid] = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    event = {"type": kind, "wall": time.time(), "mono": time.monotonic(), "src": f"w{pid}", **fields}
    os.write(_FILES[pid], (json.dumps(event) + "\n").encode())


def body(seconds, fail):
    run = current_run()
    who = {
        "job": run.job, "scheduled_at": run.scheduled_at.isoformat(), "run_id": run.id, "attempt": run.attempt, "token": run.token,
        "worker": f"w{os.getpid()}",
    }
    note("start", **who)
    if seconds:
        time.sleep(seconds)  # the work
    if fail and random.random() < fail:
        note("end", outcome="error", **who)
        raise ValueError("this attempt fails on purpose")
    note("end", outcome="ok", **who)


@task("crash.quick")
def quick():
    body(0, 0)


@task("crash.slow")
def slow():
    body(0.02, 0)


@task("crash.flaky")
def flaky():
    body(0, 0.3)


@task("crash.long")
def long(seconds):
    body(seconds, 0)


@task("crash.poison")
def poison():
    body(0, 0)
    os.kill(os.getpid(), signal.SIGKILL)

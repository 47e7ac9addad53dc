"""Tasks of the crash test: they write down what they do, one file per process, one write per line."""

import json
import os
import random
import signal
import time
from pathlib import Path

from wheelsched import RetryAfter, current_run, task

_FILES = {}


def note(kind, **fields):
    """One event of the history; the file is opened when the first one comes."""
    pid = os.getpid()
    if pid not in _FILES:
        path = Path(os.environ["WHEELSCHED_HISTORY"]) / f"worker-{pid}.jsonl"
        _FILES[pid] = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    event = {"type": kind, "wall": time.time(), "mono": time.monotonic(), "src": f"w{pid}", **fields}
    os.write(_FILES[pid], (json.dumps(event) + "\n").encode())


def begin():
    """The start of a run, noted; what its other events have in common."""
    run = current_run()
    who = {
        "job": run.job, "scheduled_at": run.scheduled_at.isoformat(), "run_id": run.id, "attempt": run.attempt, "token": run.token,
        "worker": f"w{os.getpid()}",
    }
    note("start", **who)
    return who


def body(seconds, fail):
    who = begin()
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


@task("crash.steps")
def steps():
    """Five steps, each kept; see crash_features.py."""
    run, who = current_run(), begin()
    done = run.checkpoint or 0
    note("note", note="resumed", step=done, **who)
    for step in range(done + 1, 6):
        time.sleep(0.1)  # the work
        note("note", note="sending", step=step, **who)
        try:
            run.heartbeat(f"step {step} of 5", checkpoint=step)
        except Exception:
            note("end", outcome="error", **who)
            raise
        note("note", note="kept", step=step, **who)
    note("end", outcome="ok", **who)


@task("crash.silent", heartbeat_timeout="600ms")
def silent():
    who = begin()
    if who["attempt"] == 1:
        time.sleep(40)  # it hangs
        note("note", note="woke", **who)
    note("end", outcome="ok", **who)


@task("crash.later")
def later():
    who = begin()
    note("end", outcome="error" if who["attempt"] < 3 else "ok", **who)
    if who["attempt"] < 3:
        raise RetryAfter("400ms", "not yet")


@task("crash.member")
def member(key, number, seconds):
    who = begin()
    time.sleep(seconds)  # the work
    note("note", note="member", key=key, member=number, **who)
    note("end", outcome="ok", **who)


@task("crash.then")
def then(key):
    who = begin()
    note("note", note="then", key=key, cause=current_run().cause, **who)
    note("end", outcome="ok", **who)

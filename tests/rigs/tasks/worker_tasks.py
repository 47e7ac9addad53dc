"""Tasks for the executors of the tests."""

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path

from wheelsched import Retry, current_run, task


@task("t.add", queue="sums", timeout="10m", retry=Retry(attempts=5, backoff="30s"), priority=7)
def add(a, b=1):
    return a + b


@task("t.nothing")
def nothing(*args):
    return None


@task("t.coroutine")
async def coroutine(value):
    return value


@task("t.about")
def about():
    run = current_run()
    return {
        "id": run.id, "job": run.job, "task": run.task, "scheduled_at": run.scheduled_at, "started_at": run.started_at,
        "attempt": run.attempt, "token": run.token, "missed": run.missed, "last_result": run.last_result, "cancelled": run.cancelled,
        "cause": run.cause,
    }


@task("t.raise")
def raise_(kind):
    if kind == "memory":
        raise MemoryError("no more")
    if kind == "exit":
        sys.exit(7)
    if kind == "interrupt":
        raise KeyboardInterrupt
    if kind == "long":
        raise ValueError("m" * 10_000)
    if kind == "no text":
        class SilentError(Exception):
            def __str__(self):
                raise RuntimeError("silent")
        raise SilentError
    if kind == "exit in text":
        class LeavingError(Exception):
            def __str__(self):
                raise SystemExit(8)
        raise LeavingError
    if kind == "no attributes":
        class ClosedError(Exception):
            def __getattribute__(self, name):
                raise KeyboardInterrupt
        raise ClosedError("said")
    raise LookupError("not there")


@task("t.allocate")
def allocate():
    return len(bytearray(1 << 62))


@task("t.value")
def value(kind):
    return {"set": {1, 2}, "large": "x" * 70_000, "fits": b"x" * 65_000}[kind]


@task("t.print")
def print_(text, where="stdout", how="python", times=1):
    stream, fd = (sys.stdout, 1) if where == "stdout" else (sys.stderr, 2)
    for _ in range(times):
        if how == "python":
            print(text, file=stream)
        elif how == "raw":
            os.write(fd, text.encode() + b"\n")
        else:
            subprocess.run(["/bin/sh", "-c", f"echo {text} >/dev/{where}"], check=True)


@task("t.close")
def close():
    sys.stdout.close()


@task("t.fork")
def fork():
    pid = os.fork()
    if pid == 0:
        print("from the child", flush=True)
        os._exit(0)
    os.waitpid(pid, 0)


@task("t.sleep")
def sleep(seconds, note=None, after=None):
    if note:
        Path(note).write_text(str(os.getpid()))
    time.sleep(seconds)
    if after:
        Path(after).write_text("over")
    return "slept"


@task("t.polite")
def polite(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if current_run().cancelled:
            return "left early"
        time.sleep(0.005)
    return "in full"


@task("t.progress")
def progress():
    current_run().heartbeat("half")
    current_run().heartbeat("dropped")


@task("t.die")
def die(how):
    if how == "exit":
        os._exit(9)
    os.kill(os.getpid(), 11)


@task("t.grandchild")
def grandchild(note, ignore_term=False):
    trap = "trap '' TERM; " if ignore_term else ""
    subprocess.Popen(["/bin/sh", "-c", f"{trap}sleep 1000 & echo $! $$ >{note}.tmp; mv {note}.tmp {note}; wait"])
    time.sleep(1000)


@task("t.batch", batch=True)
def batch(runs):
    return [ValueError(f"no {r.args[0]}") if r.args[0] == 3 else {1, 2} if r.args[0] == 4 else r.args[0] * 10 for r in runs]


@task("t.batch_wrong", batch=True)
def batch_wrong(runs):
    return [1]


@task("t.batch_stuck", batch=True)
def batch_stuck(runs):
    time.sleep(1000)


@task("t.batch_polite", batch=True)
def batch_polite(runs):
    while not all(r.cancelled for r in runs):
        time.sleep(0.005)
    return [None] * len(runs)


@task("t.batch_slow", batch=True)
def batch_slow(runs):
    time.sleep(0.8)
    return [None] * len(runs)


@task("t.leaves")
def leaves(note, seconds=0, deaf=False):
    """Starts two processes, one of them in a session of its own, and does not end them, but ends itself when it is told to."""
    children = [subprocess.Popen(["/bin/sleep", "1000"], start_new_session=apart) for apart in (False, True)]
    time.sleep(0.05)
    Path(note).write_text(" ".join(str(child.pid) for child in children))
    (time.sleep if deaf else polite)(seconds)


@task("t.tidy_child")
def tidy_child(note):
    """Its child takes a third of a second to tidy up after SIGTERM; the executor's pipes would break under it."""
    script = f"trap 'sleep 0.3; echo tidied >>{note}; exit' TERM; echo $$ >{note}; while :; do sleep 0.05; done"
    subprocess.Popen(["/bin/sh", "-c", script], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    time.sleep(1000)


@task("t.checkpoint")
def checkpoint(value):
    run = current_run()
    before = run.checkpoint
    run.heartbeat("kept", checkpoint=value)
    return [before, run.checkpoint]


@task("t.beating")
def beating(beats, silent):
    """Call heartbeat() ten times a second, `beats` times; then be silent for so many seconds."""
    for _ in range(beats):
        current_run().heartbeat()
        time.sleep(0.1)
    end = time.monotonic() + silent
    while time.monotonic() < end and not current_run().cancelled:
        time.sleep(0.01)


@task("t.hangs", heartbeat_timeout="500ms", retry=1)
def hangs():
    time.sleep(1000)


@task("t.waits")
async def waits(seconds):
    await asyncio.sleep(seconds)


@task("t.batch_beating", batch=True)
def batch_beating(runs):
    for n in range(20):
        runs[n % len(runs)].heartbeat()
        time.sleep(0.1)
    return [None] * len(runs)


@task("t.exit")
def exit_(code):
    os._exit(code)


@task("t.signal")
def signal_(number):
    os.kill(os.getpid(), number)

"""Tasks for executors that have several runs in user code at a time."""

import asyncio
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

from wheelsched import current_run, task

THREADS = threading.Barrier(3)
ARRIVED = []


@task("c.add")
def add(a, b=1):
    return a + b


@task("c.meet")
def meet():
    """Ends when three of it are in user code at once."""
    THREADS.wait(20)
    print("met by", current_run().token)
    print(f"{current_run().token} complains", file=sys.stderr)
    return current_run().token


@task("c.meet_async")
async def meet_async():
    ARRIVED.append(asyncio.Event())
    if len(ARRIVED) == 3:
        for arrived in ARRIVED:
            arrived.set()
    await ARRIVED[0].wait()
    await asyncio.gather(*[said(i) for i in range(2)])
    return current_run().token


async def said(i):
    await asyncio.sleep(0)
    print(i, "by", current_run().token)


@task("c.where")
async def where():
    return [id(asyncio.get_running_loop()), threading.current_thread() is threading.main_thread()]


@task("c.sleep")
def sleep(seconds, note=None):
    if note:
        Path(note).write_text(str(os.getpid()))
    time.sleep(seconds)
    return "slept"


@task("c.polite")
def polite(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if current_run().cancelled:
            return "left early"
        time.sleep(0.005)
    return "in full"


@task("c.waits")
async def waits(seconds, note=None, swallow=False):
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError as e:
        if note:
            await asyncio.to_thread(Path(note).write_text, str(e))
        if swallow:
            return "tidied up"
        raise
    return "in full"


@task("c.fail")
async def fail():
    await asyncio.sleep(0)
    raise LookupError("not there")


@task("c.raw")
def raw():
    os.write(1, b"by nobody\n")
    subprocess.run(["/bin/sh", "-c", "echo nor by its child"], check=True)
    threading.Thread(target=print, args=("nor by its thread",)).start()
    print("mine")


@task("c.batch", batch=True)
def batch(runs):
    return [ValueError("no") if r.args[0] == 2 else [r.args[0], len(runs)] for r in runs]


@task("c.batch_async", batch=True)
async def batch_async(runs):
    await asyncio.sleep(0.01)
    return [r.args[0] * 10 for r in runs]


@task("c.tell")
def tell(step):
    current_run().heartbeat(f"step {step}", checkpoint={"step": step})
    return step


class LeavingError(Exception):
    def __str__(self):
        raise SystemExit(8)


class ClosedError(LeavingError):
    def __getattribute__(self, name):
        raise KeyboardInterrupt


@task("c.closed")
def closed():
    raise ClosedError


@task("c.closed_async")
async def closed_async():
    raise LeavingError


@task("c.exit_async")
async def exit_async():
    sys.exit(8)

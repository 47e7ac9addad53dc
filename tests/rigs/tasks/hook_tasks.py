"""Tasks, hooks and middleware for the executors of the tests: who did what is told by lines of a file."""

import asyncio
import os
import time
from pathlib import Path

from wheelsched import current_run, middleware, on_start, on_stop, task

STATE = {}


def tell(line):
    with Path(os.environ["HOOKS_FILE"]).open("a", encoding="utf-8") as file:
        file.write(f"{line}\n")


@on_start
def open_pool():
    print("opening")
    STATE["pool"] = f"pool of {os.getpid()}"
    tell("open")


@on_start
def count_again():
    if os.environ.get("HOOKS_FAIL") and not Path(os.environ["HOOKS_FAIL"]).exists():
        Path(os.environ["HOOKS_FAIL"]).touch()
        raise ConnectionError("the database is away")
    tell("counted")


@on_stop
def close_pool():
    time.sleep(float(os.environ.get("HOOKS_SLOW", "0")))
    tell("closed")


@on_stop
def close_first():
    tell("closing")
    raise RuntimeError("on purpose")


@middleware
def outer(run):
    tell(f"outer {run.headers.get('traceparent', '')}")
    yield
    tell("outer left")


@middleware
def inner(run):
    if "refuse" in run.headers:
        raise PermissionError("not this one")
    tell(f"inner {run.token == current_run().token}")
    try:
        yield
    except LookupError as e:
        tell(f"inner saw {e}")
        if "swallow" not in run.headers:
            raise


@task("h.pool")
def pool():
    tell("run")
    return [STATE["pool"], os.getpid()]


@task("h.fail")
def fail():
    raise LookupError("it is not there")


@task("h.async")
async def later():
    await asyncio.sleep(0)
    tell(f"in {current_run().token}")
    return current_run().token


@task("h.batch", batch=True)
def batch(runs):
    tell(f"batch of {len(runs)}")
    return [r.args[0] for r in runs]

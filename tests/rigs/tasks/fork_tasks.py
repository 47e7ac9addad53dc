"""Tasks for test_forks.py whose children end in user code; each execution leaves a line in a file."""

import asyncio
import multiprocessing
import os
import sys

from kept_tasks import note

from wheelsched import current_run, middleware, task
from wheelsched.model.errors import FailedPreconditionError


def fork(end):
    """In the parent the exit code of a child that ends so; the child gives None."""
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if end == "raise":
        os.execv("/no/such/program", ["x"])
    if end == "exit":
        sys.exit(3)
    return None


@middleware
def noted(run):
    note(os.environ["FORK_NOTES"], f"in {run.token}")
    yield
    note(os.environ["FORK_NOTES"], f"out {run.token}")


if "FORK_NOTES" not in os.environ:
    del noted


@task("f.plain")
def plain(path, what, end):
    note(path, what)
    return fork(end)


@task("f.value")
def value(path, what):
    note(path, what)
    return what


@task("f.sub")
async def sub(path, what, end):
    note(path, what)
    return await asyncio.create_task(forking(end))


@task("f.coroutine")
async def coroutine(path, what, end):
    note(path, what)
    return await forking(end)


async def forking(end):
    code = fork(end)
    if end == "await":
        await asyncio.sleep(0)
    return code


@task("f.batch", batch=True)
def batch(runs):
    for run in runs:
        note(*run.args[:2])
    return [fork(runs[0].args[2])] * len(runs)


@task("f.processes")
def processes(path, what):
    note(path, what)
    child = multiprocessing.get_context("fork").Process(target=in_child, args=(path,))
    child.start()
    child.join()
    return child.exitcode


def in_child(path):
    run = current_run()
    try:
        run.heartbeat("from the child")
    except FailedPreconditionError:
        note(path, f"{run.args} {run.cancelled}")

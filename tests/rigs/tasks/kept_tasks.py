"""Tasks for test_kept.py and test_together.py: each execution of a run leaves a line in a file."""

import os
import signal
import time
from pathlib import Path

from wheelsched import task


def note(path, what):
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(fd, f"{what}\n".encode())
    os.close(fd)


@task("k.value")
def value(path, what):
    note(path, what)
    return what


@task("k.none")
def none(path, what):
    note(path, what)


@task("k.fail")
def fail(path, what):
    note(path, what)
    raise ValueError(what)


@task("k.print")
def print_(path, what):
    note(path, what)
    print("printed", what)


@task("k.big")
def big(path, what):
    note(path, what)
    return b"x" * 40_000


@task("k.batch", batch=True)
def batch(runs):
    for run in runs:
        note(*run.args)
    return [run.args[1] for run in runs]


@task("k.kill")
def kill(path, what):
    note(path, what)
    os.kill(os.getpid(), signal.SIGKILL)


@task("k.kill_batch", batch=True)
def kill_batch(runs):
    for run in runs:
        note(*run.args)
    os.kill(os.getpid(), signal.SIGKILL)


@task("k.kill_server")
def kill_server(path, what):
    note(path, what)
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(60)


@task("k.mixed_batch", batch=True)
def mixed_batch(runs):
    """One of them may end the process, or never end, or end when it is told to."""
    for run in runs:
        note(*run.args)
    if any(run.args[1] == "poison" for run in runs):
        os.kill(os.getpid(), signal.SIGKILL)
    if any(run.args[1] == "stuck" for run in runs):
        time.sleep(60)
    if any(run.args[1] == "late" for run in runs):
        while not runs[0].cancelled:
            time.sleep(0.01)
        raise TimeoutError("told to end")
    return [run.args[1] for run in runs]


@task("k.gate")
def gate(path, what):
    """Ends when `path`.go is there; the process that it was in is in `path`.pid."""
    note(path, what)
    note(f"{path}.pid", os.getpid())
    while not Path(f"{path}.go").exists():
        time.sleep(0.01)
    return what

"""Tasks for test_last_words.py: each says something, and ends its process."""

import ctypes
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

from wheelsched import task


def end(how):
    if how == "abort":
        os.abort()
    if how == "exit":
        os._exit(0)
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "crash":
        ctypes.string_at(0)
    threading.Event().wait(60)


def gate(path):
    while not Path(path).exists():
        threading.Event().wait(0.01)


@task("f.last", retry=1)
def last(how, path=None):
    print("first")
    if path:
        gate(path)
    print("final words")
    print("to stderr", file=sys.stderr)
    os.write(2, b"C library says: assertion failed\n")
    end(how)


@task("f.last_async", retry=1)
async def last_async(how, path=None):
    last.call(how, path)
    print("final words")
    end(how)


@task("f.much", retry=1)
def much(how, lines):
    """Some of it in Python, some of it from a child, at once."""
    for i in range(lines):
        print("python", i)
    subprocess.run(["seq", "-f", "child %g", str(lines)], check=True)
    end(how)


@task("f.left", retry=1)
def left(how, path):
    """A process in a session of its own has the descriptors, and goes on to write."""
    script = f"echo $$ >{path}.tmp; mv {path}.tmp {path}; while echo more; do sleep 0.01; done"
    subprocess.Popen(["sh", "-c", script], start_new_session=True)
    gate(path)
    os.write(2, b"last\n")
    end(how)


@task("f.says", retry=1)
def says(text):
    print(text)
    return text


@task("f.dies", retry=1)
def dies():
    os.abort()


@task("f.batch", batch=True, retry=1)
def batch(runs):
    print("all of us:", len(runs))
    os.write(2, b"assertion failed\n")
    os.abort()

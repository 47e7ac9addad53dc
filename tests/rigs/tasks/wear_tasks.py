"""Tasks for executors that are replaced."""

import os
import threading
import time
from pathlib import Path

from wheelsched import task

HELD = []


@task("w.pid")
def pid():
    return os.getpid()


@task("w.leave")
def leave():
    threading.Thread(target=threading.Event().wait).start()
    return os.getpid()


@task("w.grow")
def grow(size):
    HELD.append(b"x" * size)
    return "grown"


@task("w.wait")
def wait(path):
    while not Path(path).exists():
        time.sleep(0.01)
    return "waited"


@task("w.held")
def held(path):
    Path(f"{path}.begun").touch()
    while not Path(path).exists():
        time.sleep(0.01)
    Path(f"{path}.over").touch()
    return "held"

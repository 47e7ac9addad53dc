"""Tasks that turn against their own executor."""

import os
import time
from pathlib import Path

from wheelsched import task


@task("misuse.own_socket")
def own_socket(data):
    """Write to the socket of its own executor, as a library that guesses descriptors would."""
    for fd in Path("/proc/self/fd").iterdir():
        if int(fd.name) > 2 and fd.exists() and str(fd.readlink()).startswith("socket:"):
            os.write(int(fd.name), data)
    time.sleep(1000)


@task("misuse.cut_started_file")
def cut_started_file(size):
    for line in Path("/proc/self/maps").read_text().splitlines():
        if line.endswith(".started"):
            os.truncate(line.split()[-1], size)
            break
    time.sleep(1000)


@task("misuse.nothing")
def nothing():
    return None

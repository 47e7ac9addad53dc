"""The folder of a worker outside of the server. A lock tells whether its supervisor lives; what a killed one left, the next one ends."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
from pathlib import Path
from typing import Final

from ..process import processes
from ..process.leftovers import groups_of, kill_former_generation
from ..process.started import SUFFIX, SeenFile

PREFIX: Final = "wheelsched-worker-"
GENERATION: Final = 0  # of all executors outside of the server
_ALIVE: Final = "alive"


class WorkerFolder:
    """A new folder for started files, in the system's folder for temporary files; nobody else's."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX))
        made = self.path / f"{_ALIVE}.new"
        self._lock = os.open(made, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        made.rename(self.path / _ALIVE)  # who sees it sees it locked

    def close(self) -> None:
        """Remove it."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def end_leftovers(boot_id: str) -> list[str]:
    """End what supervisors of this user that were killed have left running, and remove their folders; a line where something ran."""
    told = []
    for folder in sorted(Path(tempfile.gettempdir()).glob(f"{PREFIX}*")):
        try:
            found = folder.lstat()
            if found.st_uid != os.geteuid() or not stat.S_ISDIR(found.st_mode):
                continue
            lock = os.open(folder / _ALIVE, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:  # it is about to be made, or removed
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            count = _living_groups(folder, boot_id)
            kill_former_generation(folder, GENERATION + 1, boot_id)
            shutil.rmtree(folder, ignore_errors=True)
            if count:
                groups = "1 process group" if count == 1 else f"{count} process groups"
                told.append(f"ended {groups} that a worker that was killed had left running ({folder.name})")
        except BlockingIOError:  # it lives
            continue
        except TimeoutError as e:
            told.append(f"{folder.name}: {e}")
        finally:
            os.close(lock)
    return told


def _living_groups(folder: Path, boot_id: str) -> int:
    """How many process groups of executors that left a started file here, and of their commands, live."""
    count = 0
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        try:
            file = SeenFile(path)
        except ValueError:  # made, and nothing was started with it
            continue
        if file.boot_id == boot_id:
            count += sum(processes.group_left(pgid, begun, file.mark) for pgid, begun in groups_of(file))
        file.close()
    return count

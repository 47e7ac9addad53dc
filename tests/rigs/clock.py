"""A wall clock that a test sets while a real server runs."""

from __future__ import annotations

import mmap
import struct
import subprocess
from typing import TYPE_CHECKING

from tests.rigs.places import TESTS

if TYPE_CHECKING:
    from pathlib import Path


class Shift:
    """The library's control word: nanoseconds added to the wall clock of the server and its workers."""

    def __init__(self, folder: Path):
        self.library = folder / "clockstep.so"
        subprocess.run(["gcc", "-O2", "-shared", "-fPIC", "-o", str(self.library), str(TESTS / "shims" / "clockstep.c")], check=True)
        self.path = folder / "offset"
        self.path.write_bytes(bytes(4096))
        with self.path.open("r+b") as file:
            self.map = mmap.mmap(file.fileno(), 4096)

    def set(self, seconds):
        self.map[:8] = struct.pack("<q", int(seconds * 1e9))

    @property
    def env(self):
        return {"LD_PRELOAD": str(self.library), "CLOCKSTEP_FILE": str(self.path)}

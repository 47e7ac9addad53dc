"""What user code prints: Python's streams in memory, the descriptors through pipes."""

from __future__ import annotations

import io
import os
import select
import sys
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from ..model.tape import STREAMS
from ..process import processes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..process.last_words import LastWords

PIPE_BYTES: Final = 1024 * 1024
_CALIBRATION_NS_MAX: Final = 50_000_000


class Captures:
    """What one run at a time writes to stdout and stderr, in memory."""

    def __init__(self, words: memoryview | None = None, said: Sequence[LastWords] = ()) -> None:
        """`words`: of the place in the started file; `said`: where its streams outlive this process."""
        self._words = words
        out, err = said or (None, None)
        self.captures = (processes.Capture(1, said=out), processes.Capture(2, said=err))

    def install(self) -> None:
        """Have the streams in place for the next run."""

    @property
    def waiting(self) -> bool:
        """Is there output that nobody took?"""
        return self.captures[0].dirty or self.captures[1].dirty

    def collect(self) -> None:
        """Take what has not come here by itself."""

    def take(self) -> dict[str, Any]:
        """What was written since the last call, as entries of a result map."""
        self.collect()
        found: dict[str, Any] = {}
        token = 0 if self._words is None else self._words[processes.W_STARTED]
        for name, capture in zip(STREAMS, self.captures, strict=True):
            data, cut = capture.take(token)
            if data:
                found[name] = data
            if cut:
                found[f"{name}_cut"] = cut
        return found


class PassedOn:
    """Descriptors 1 and 2 of an executor with several runs at a time: what is written there goes on to where they led before."""

    def __init__(self, file: processes.StartedFile, pipes: str) -> None:
        """`pipes`: see `Launcher`."""
        self._shared = file.shared
        self._to = (os.dup(1), os.dup(2))
        ends = [int(fd) for fd in pipes.split(",")]
        self._pipes = (_take_pipe(1, *ends[:2]), _take_pipe(2, *ends[2:4]))
        threading.Thread(target=self._pass_on, name="wheelsched-outputs", daemon=True).start()

    def _pass_on(self) -> None:
        poll = select.poll()
        for fd in self._pipes:
            poll.register(fd, select.POLLIN)
        while True:
            for fd, _ in poll.poll():
                which = self._pipes.index(fd)
                said = self._shared[which] if self._shared else None
                data = b""
                with suppress(BlockingIOError):
                    data = self._read(fd, said)
                while data:
                    try:
                        data = data[os.write(self._to[which], data) :]
                    except OSError:  # nobody is there to read it
                        break
                if said is not None:
                    said.passed()

    @staticmethod
    def _read(fd: int, said: LastWords | None) -> bytes:
        if said is None:
            return os.read(fd, PIPE_BYTES)
        stage = said.expect()
        data = bytes(stage[: os.readv(fd, [stage])])
        said.add(data, staged=True)
        return data


class Outputs(Captures):
    """Descriptors 1 and 2, and sys.stdout and sys.stderr, of this process.

    What Python prints goes to memory. What is written to the descriptors (by children, by C) goes through pipes that a
    thread empties, so that a writer is never held up for long.
    """

    def __init__(self, file: processes.StartedFile, pipes: str) -> None:
        """`pipes`: see `Launcher`."""
        super().__init__(file.words, file.said[0])
        self._lock = threading.Lock()
        self._poll = select.poll()
        ends = [int(fd) for fd in pipes.split(",")]
        self.pipes = (_take_pipe(1, *ends[:2]), _take_pipe(2, *ends[2:4]))
        for fd in self.pipes:
            self._poll.register(fd, select.POLLIN)
        self.quick_ns = self._calibrate()
        self.install()

    def _calibrate(self) -> int:
        """Most of the time of the quickest write to a pipe: a call that took less has written to no descriptor, nor printed."""
        best = _CALIBRATION_NS_MAX
        for _ in range(50):
            start = time.monotonic_ns()
            os.write(1, b".")
            best = min(best, time.monotonic_ns() - start)
        self.collect()
        for capture in self.captures:
            capture.take()
        return best * 3 // 4

    def install(self) -> None:
        """Give Python code its streams, again if a run closed or replaced them."""
        for name, capture in zip(STREAMS, self.captures, strict=True):
            stream = getattr(sys, name)
            if stream is None or stream.closed or getattr(stream, "buffer", None) is not capture:
                setattr(sys, name, io.TextIOWrapper(capture, "utf-8", "backslashreplace", write_through=True))

    @property
    def waiting(self) -> bool:
        """Is there output that nobody took? One system call."""
        return self.captures[0].dirty or self.captures[1].dirty or bool(self._poll.poll(0))

    def collect(self) -> None:
        """Take what the pipes hold. `dirty` is set before the read, so whoever sees neither has seen the truth."""
        for fd, capture in zip(self.pipes, self.captures, strict=True):
            capture.dirty = True
            with self._lock:
                capture.fill(fd)


def _take_pipe(fd: int, read: int, write: int) -> int:
    """Have this descriptor lead into a pipe; its reading end."""
    import fcntl  # noqa: PLC0415 - once

    try:
        fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    except PermissionError:
        os.write(2, b"wheelsched: executor: output pipes of the default size only\n")
    os.set_inheritable(read, False)  # children write here, and read nothing
    os.dup2(write, fd)
    os.close(write)
    return read

"""The log of a server or a worker, on stderr: a pipe that is full, or that nobody reads any more, ends and holds up nothing.

A line begins with its time (UTC) and its level. Under systemd's journal, which has times of its own, it begins with the level as the
journal reads it, `<4>`. What a pipe or socket doesn't take at once is lost, and counted: the next line that gets through says how many.
"""

from __future__ import annotations

import os
import select
import socket
import stat
import time
from typing import Final, Protocol

ERROR: Final = 3  # levels as syslog numbers them: somebody has lost something
WARNING: Final = 4  # somebody should look
INFO: Final = 6
_LEVELS: Final = {ERROR: "ERROR", WARNING: "WARNING", INFO: "INFO"}
_INDENTED: Final = "\n    "
_lost = [0]


class Log(Protocol):
    """Takes one message for the operator."""

    def __call__(self, message: str, level: int = INFO) -> None:
        """See `say`."""


def harmless(message: str) -> str:
    """What others wrote can be in it: what moves a cursor is escaped, and no further line can pass for one of ours."""
    return "".join(c if c.isprintable() or c == "\t" else _INDENTED if c == "\n" else ascii(c)[1:-1] for c in message)


def say(message: str, level: int = INFO, fd: int = 2) -> None:
    """One line for the operator; those after the first are indented. Raises nothing, and does not wait for a pipe or socket."""
    line = _line(message, level, fd)
    note = _line(f"{_lost[0]} lines lost here: stderr took no more", WARNING, fd) if _lost[0] else b""
    try:
        taken = _write(fd, note + line)
    except OSError:
        taken = 0
    _lost[0] = 0 if taken >= len(note + line) else _lost[0] + 1


def _line(message: str, level: int, fd: int) -> bytes:
    text = f"wheelsched: {harmless(message)}"
    if _is_journal(fd):  # it takes each line for a message of its own
        text = f"<{level}>" + text.replace("\n", f"\n<{level}>")
    else:
        now_ms = time.time_ns() // 1_000_000
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now_ms // 1_000))
        text = f"{at}.{now_ms % 1_000:03d}Z {_LEVELS[level]} {text}"
    return f"{text}\n".encode("utf-8", "backslashreplace")


def _is_journal(fd: int) -> bool:
    """Is it the stream to systemd's journal that the environment names? One that was redirected since is none."""
    named = os.environ.get("JOURNAL_STREAM")
    if not named:
        return False
    try:
        found = os.fstat(fd)
    except OSError:
        return False
    return named == f"{found.st_dev}:{found.st_ino}"


def pass_on(data: bytes, fd: int) -> None:
    """What a worker process wrote and nobody has passed on, as it is. Raises nothing, and does not wait for a pipe or socket."""
    try:
        taken = _write(fd, data) if data else 0
    except OSError:
        taken = 0
    _lost[0] += data[taken:].count(b"\n")


def _write(fd: int, data: bytes) -> int:
    mode = os.fstat(fd).st_mode
    if stat.S_ISSOCK(mode):
        with socket.socket(fileno=os.dup(fd)) as sock:
            return sock.send(data, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
    if not stat.S_ISFIFO(mode):
        return os.write(fd, data)
    try:  # opened anew: the flag of `fd` itself is shared with whoever else writes there
        own = os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except PermissionError:  # another user's pipe
        poll = select.poll()
        poll.register(fd, select.POLLOUT)
        return os.write(fd, data[: select.PIPE_BUF]) if poll.poll(0) else 0
    try:
        return os.write(own, data)
    finally:
        os.close(own)

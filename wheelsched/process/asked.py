"""What is asked of a process about a run that it is in: its stack, over a socket of its own, and what the kernel says of it."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Final

from ..model.nouns import STACK_MAX
from . import processes

_GROUP_MAX: Final = 20
_STATES: Final = {"R": "running", "S": "sleeping", "D": "waiting for a disk or the like", "T": "stopped", "t": "traced", "Z": "ended"}


def pair() -> tuple[socket.socket, socket.socket]:
    """Both ends, by which a packet is a message."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    return ours, theirs


def ask(sock: socket.socket, token: int) -> bool:
    """Ask for the stack of a token's run. False when nobody is there to answer, or too much was asked already."""
    try:
        sock.send(token.to_bytes(8, "little"), socket.MSG_NOSIGNAL)
    except OSError:
        return False
    return True


def answers(sock: socket.socket) -> list[tuple[int, str]]:
    """(token, text) of what was answered."""
    found: list[tuple[int, str]] = []
    while True:
        try:
            data = sock.recv(8 + STACK_MAX)
        except OSError:
            return found
        if len(data) < 8:
            return found
        found.append((int.from_bytes(data[:8], "little"), data[8:].decode("utf-8", "replace")))


def in_kernel(pid: int) -> str:
    """What the kernel says of a process, in words: "pid 7 (sleep), sleeping in do_nanosleep"."""
    try:
        comm = Path(f"/proc/{pid}/comm").read_text(encoding="utf-8", errors="replace").strip()
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(") ")[2][:1]
    except OSError:
        return f"pid {pid}, which has ended"
    try:
        place = Path(f"/proc/{pid}/wchan").read_text(encoding="ascii", errors="replace").strip("0\n ")
    except OSError:
        place = ""
    return f"pid {pid} ({comm}), {_STATES.get(state, state)}{f' in {place}' if place else ''}"


def group_in_kernel(pgid: int, mark: str) -> str:
    """A program of a `command` and what it has started, a line each."""
    others = [pid for pid in processes.members(pgid, mark) if pid != pgid]
    lines = [f"program: {in_kernel(pgid)}", *(f"  its child: {in_kernel(pid)}" for pid in others[:_GROUP_MAX])]
    if len(others) > _GROUP_MAX:
        lines.append(f"  and {len(others) - _GROUP_MAX} more")
    return "\n".join(lines)

"""Where a server's socket is: what a client is told, the places where servers put it, and what the locks of data directories name."""

from __future__ import annotations

import os
import socket
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ..model.errors import ConfigError, InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["SCHEME", "advice", "check_path", "default_socket_path", "find_socket", "is_known", "server_pid", "server_uid"]

SOCKET_PATH_MAX: Final = 107  # bytes; the kernel's limit
SCHEME: Final = "unix://"
_NAME: Final = "wheelsched/wheelsched.sock"
_SYSTEM: Final = f"/run/{_NAME}"  # of the unit in the manual, page `operating`
_CREDENTIALS: Final = struct.Struct("3i")
_LOCK_READ: Final = 1_024


def check_path(path: Any) -> str:
    """A socket's path as text; `unix:///run/x` is one as well. InvalidArgumentError when the kernel can't take it."""
    text = os.fspath(path)
    text = text.removeprefix(SCHEME) if isinstance(text, str) else text
    if not isinstance(text, str) or not text or "\0" in text or len(os.fsencode(text)) > SOCKET_PATH_MAX:
        raise InvalidArgumentError(f"socket path {str(text)[:120]!r}: text of 1 to {SOCKET_PATH_MAX} bytes is wanted")
    return text


def default_socket_path() -> str:
    """Where a server makes its own: $WHEELSCHED_SOCKET, wheelsched/wheelsched.sock in $XDG_RUNTIME_DIR, or ~/.wheelsched/wheelsched.sock.

    ConfigError when there is no home directory either.
    """
    path = os.environ.get("WHEELSCHED_SOCKET")
    if path:
        return path.removeprefix(SCHEME)
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime:
        return str(Path(runtime, _NAME))
    try:
        return str(Path("~/.wheelsched/wheelsched.sock").expanduser())
    except RuntimeError:
        raise ConfigError("this user has no home directory for the default socket: give its path (--socket, WHEELSCHED_SOCKET)") from None


def find_socket() -> str:
    """The socket of a client that is told none: $WHEELSCHED_SOCKET, else the first of the known places where a server answers, else the
    default. ConfigError when there is no default either.
    """
    if os.environ.get("WHEELSCHED_SOCKET"):
        return default_socket_path()
    return next((place for place in _places() if _alive(place)), None) or default_socket_path()


def is_known(path: str) -> bool:
    """Is it where a client looks that is told no path?"""
    return path == default_socket_path() or path in _places()


def advice(path: str) -> str:
    """What to do where no server answers at a path: where one does, or where else was looked."""
    others = [place for place in _places() if place != path]
    found = next((place for place in others if _alive(place)), None)
    if found is not None:
        return f"one answers at {found}: give that, --socket {found}"
    looked = f" (none at {', '.join(others)} either)" if others else ""
    return f"start one with `wheelsched serve`, or say where it is, with --socket or WHEELSCHED_SOCKET{looked}"


def _places() -> Iterator[str]:
    """Where servers put their sockets, each once: this user's first, then what the locks of data directories name, then the machine's."""
    seen = set()
    runtime = f"/run/user/{os.geteuid()}"
    try:
        home = str(Path("~/.wheelsched").expanduser())
    except RuntimeError:
        home = ""
    for place in (
        *(str(Path(folder, _NAME)) for folder in (os.environ.get("XDG_RUNTIME_DIR"), runtime) if folder),
        *([f"{home}/wheelsched.sock"] if home else []),
        *(_of_lock(folder) for folder in (os.environ.get("WHEELSCHED_DATA"), f"{home}/data" if home else None) if folder),
        _SYSTEM,
    ):
        if place and place not in seen and len(os.fsencode(place)) <= SOCKET_PATH_MAX:
            seen.add(place)
            yield place


def _of_lock(folder: str) -> str:
    """The socket that the lock of a data directory names; empty when it names none."""
    try:
        with Path(folder, "lock").open("rb") as file:
            lines = os.fsdecode(file.read(_LOCK_READ)).splitlines()
    except OSError:
        return ""  # there is none, or it is another user's
    return next((line.removeprefix("socket ") for line in lines if line.startswith("socket ")), "")


def _alive(place: str) -> bool:
    """Does anybody listen there?"""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as sock:
        try:
            sock.connect(place)
        except BlockingIOError:
            return True  # so many wait that there is no room for one more
        except OSError:
            return False
    return True


def server_pid(path: str) -> int | None:
    """The process that listens at a path, as the kernel tells; None when that can't be told."""
    found = _peer(path)
    return None if found is None else found[0]


def server_uid(path: str) -> int | None:
    """Its user."""
    found = _peer(path)
    return None if found is None else found[1]


def _peer(path: str) -> tuple[int, int] | None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as sock:
        try:
            sock.connect(path)
            pid, uid, _ = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
        except OSError:
            return None
    return int(pid), int(uid)

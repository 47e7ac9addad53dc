"""The listening socket: made safely, made again when its file is lost, removed at the end only if it is still ours.

A file that is lost is told by the kernel (inotify), so an idle server isn't woken to look for it. Where that can't be had, and as long as
the file can't be made again, it is looked for once a minute.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import stat
from typing import TYPE_CHECKING, Final

from ..model.errors import ConfigError, LockedError, WheelschedError
from ..model.nouns import NEVER, US

if TYPE_CHECKING:
    from collections.abc import Iterator

LOOK_EVERY_US: Final = 60 * US
_CHANGED: Final = 0x4 | 0x400 | 0x800  # IN_ATTRIB (the count of its links, too), IN_DELETE_SELF, IN_MOVE_SELF
_EVENTS_BYTES: Final = 4_096


class Listener:
    """Where peers connect."""

    def __init__(self, path: str, mode: int, group: str | None) -> None:
        """ConfigError for a path that can't be used; LockedError when a living server listens there."""
        self.path = path
        self._mode = mode
        self._group = group
        self._looked_us = 0  # monotonic; when it was looked at last
        self._failed = False  # to make it again
        self.sock, self._id = self._bind()
        self._notes = _inotify()
        self._told = self._ask_to_be_told()

    def _bind(self) -> tuple[socket.socket, tuple[int, int]]:
        _prepare(self.path)
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
        mask = os.umask(0o777 & ~self._mode)
        try:
            sock.bind(self.path)
            if self._group is not None:
                _give_to_group(self.path, self._group)
            found = _identity(self.path)
            sock.listen(1024)
        except OSError as e:
            sock.close()
            raise ConfigError(f"socket {self.path}: {os.strerror(e.errno or 0)}") from e
        except ConfigError:
            sock.close()
            raise
        finally:
            os.umask(mask)
        return sock, found

    def fileno(self) -> int:
        """For the selector."""
        return self.sock.fileno()

    @property
    def notes(self) -> int:
        """A descriptor that is readable when something has happened to the file; negative without."""
        return self._notes

    def accept(self, most: int = 64) -> Iterator[socket.socket]:
        """New connections, so many at most. OSError with EMFILE or ENFILE when descriptors are out."""
        for _ in range(most):
            try:
                yield self.sock.accept()[0]
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return

    # Its file

    def wake_us(self) -> int:
        """Monotonic instant at which it has to be looked at; NEVER when the kernel tells of what happens to it."""
        return NEVER if self._told and not self._failed else self._looked_us + LOOK_EVERY_US

    def lost(self, now_us: int, *, noted: bool) -> bool:
        """Is the file gone, or another's? Looked at when something was noted, and at most once a minute otherwise."""
        if noted:
            with contextlib.suppress(BlockingIOError):
                os.read(self._notes, _EVENTS_BYTES)
        if not noted and now_us < self._looked_us + LOOK_EVERY_US:
            return False
        self._looked_us = now_us
        try:
            return _identity(self.path) != self._id
        except OSError:
            return True

    def make_again(self) -> str:
        """Listen anew at the same path; what is to be logged of it. Those who are connected stay so."""
        try:
            sock, found = self._bind()
        except WheelschedError as e:
            said = "" if self._failed else f"the socket file is gone, and can't be made again: {e}; trying once a minute"
            self._failed = True
            return said
        self.sock.close()
        self.sock, self._id, self._failed = sock, found, False
        self._told = self._ask_to_be_told()
        return f"the socket file {self.path} was gone: it is made again; those who were connected stayed so"

    def _ask_to_be_told(self) -> bool:
        return self._notes >= 0 and _LIBC.inotify_add_watch(self._notes, os.fsencode(self.path), _CHANGED) >= 0

    def close(self) -> None:
        """Stop listening."""
        self.sock.close()
        if self._notes >= 0:
            os.close(self._notes)
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            if _identity(self.path) == self._id:
                os.unlink(self.path)  # noqa: PTH108


_LIBC: Final = ctypes.CDLL(None, use_errno=True)


def _inotify() -> int:
    """A descriptor of inotify, or -1 when the user has no more of them."""
    return int(_LIBC.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))


def _identity(path: str) -> tuple[int, int]:
    info = os.lstat(path)
    return info.st_dev, info.st_ino


def _prepare(path: str) -> None:
    """Make the directory; remove a dead socket of ours, and nothing else."""
    folder = os.path.dirname(os.path.abspath(path))  # noqa: PTH100, PTH120
    try:
        if not os.path.isdir(folder):  # noqa: PTH112
            os.mkdir(folder, mode=0o700)  # noqa: PTH102 - not those above it: a slip of the pen makes no tree
        info = os.lstat(path)
    except FileNotFoundError as e:
        if os.path.isdir(folder):  # noqa: PTH112
            return
        above = os.path.dirname(folder)  # noqa: PTH120
        why = f"{folder} can't be made: {e.strerror}" if os.path.isdir(above) else f"the folder {above} is not there: make it"  # noqa: PTH112
        raise ConfigError(f"socket {path}: {why}, or choose another path") from None
    except FileExistsError:
        raise ConfigError(f"socket {path}: {folder} is no directory; choose another path") from None
    except OSError as e:
        raise ConfigError(f"socket {path}: {os.strerror(e.errno or 0)}") from e
    if not stat.S_ISSOCK(info.st_mode):
        raise ConfigError(f"socket {path}: there is something else than a socket; remove it or choose another path")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            if info.st_uid != os.geteuid():
                raise ConfigError(f"socket {path}: a dead socket of another user; remove it") from None
            os.unlink(path)  # noqa: PTH108
            return
        except OSError as e:
            raise ConfigError(f"socket {path}: {e}") from e
    raise LockedError(f"socket {path}: another server listens there; give this one a socket of its own with --socket")


def _give_to_group(path: str, group: str) -> None:
    import grp  # noqa: PLC0415 - only with socket_group

    try:
        os.chown(path, -1, grp.getgrnam(group).gr_gid, follow_symlinks=False)
    except (KeyError, OSError) as e:
        raise ConfigError(f"socket_group {group}: {e}") from e

"""Files of a data directory: private, durable, and never through a link that somebody put there."""

from __future__ import annotations

import errno
import os
import stat
import zlib
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from ..model.errors import ConfigError, StorageFullError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = [
    "FULL", "check_owner", "full_disk_is_fine", "in_words", "make_private", "read_note", "storage_errors", "sync_path", "upgrade_note",
    "write_file",
    "write_note",
]

FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
_NOTE_MAX: Final = 4_096
_SUM: Final = b" crc32="


def in_words(error: OSError) -> str:
    """What failed, with the file it is about."""
    why = error.strerror or str(error) or type(error).__name__
    return why if error.filename is None else f"{os.fsdecode(error.filename)}: {why}"


def write_file(path: Path, data: bytes) -> None:
    """Replace the file as a whole, durably: after a power cut it is the old one or the new one."""
    new = path.with_name(path.name + ".new")
    new.unlink(missing_ok=True)  # of a write that a crash ended
    fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        os.fchmod(fd, 0o600)
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        os.fsync(fd)
    finally:
        os.close(fd)
    new.replace(path)
    sync_path(path.parent)


def read_file(path: Path, size_max: int = _NOTE_MAX) -> bytes | None:
    """A small file as a whole; None when there is none. ValueError when it is too long, or no file, or a link."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as e:
        if e.errno == errno.ELOOP:
            raise ValueError("it is a symbolic link") from e
        raise
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise ValueError("it is no file")
        data = os.read(fd, size_max + 1)
    finally:
        os.close(fd)
    if len(data) > size_max:
        raise ValueError(f"it has more than {size_max} bytes")
    return data


def _note(numbers: tuple[int, ...]) -> bytes:
    text = b" ".join(b"%d" % n for n in numbers)
    return b"%s%s%08x\n" % (text, _SUM, zlib.crc32(text))


def write_note(path: Path, *numbers: int) -> None:
    """Replace a file of numbers, with a checksum, durably."""
    write_file(path, _note(numbers))


def upgrade_note(path: Path, *numbers: int) -> None:
    """The same, if it is there in another form."""
    if read_file(path) not in (None, _note(numbers)):
        write_file(path, _note(numbers))


def read_note(path: Path, count: int) -> tuple[int, ...] | None:
    """The numbers of a note; None when there is none. ValueError for anything but `count` numbers and their checksum, or, as older
    versions wrote it, the numbers alone.
    """
    data = read_file(path)
    if data is None:
        return None
    text, sign, found = data.partition(_SUM)
    if sign and found != b"%08x\n" % zlib.crc32(text):
        raise ValueError("its checksum is wrong")
    parts = text.split()
    if len(parts) != count or data[-1:] != b"\n" or not all(part.removeprefix(b"-").isdigit() for part in parts):
        raise ValueError("it is empty" if not data.strip(b"\0 \n") else f"it has {data[:40]!r}")
    return tuple(int(part) for part in parts)


def sync_path(path: Path) -> None:
    """Sync a file or directory by name."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def make_private(path: Path, *, exist_ok: bool = False) -> None:
    """Make a directory 0700, durably."""
    path.mkdir(mode=0o700, exist_ok=exist_ok)
    path.chmod(0o700)
    sync_path(path.parent)


def close_new_mount(path: Path, fd: int) -> None:
    """A file system just mounted on the directory is open to all (a tmpfs has mode 1777). An empty one is closed."""
    info = os.fstat(fd)
    if info.st_mode & stat.S_ISVTX and info.st_uid == os.geteuid() and path.is_mount() and not set(os.listdir(fd)) - {"lost+found"}:
        os.fchmod(fd, 0o700)


def check_owner(path: Path, info: os.stat_result) -> None:
    """A directory that others own or may write in can hold what they put there. ConfigError."""
    mine = os.geteuid()
    if info.st_uid != mine:
        raise ConfigError(f"data {path}: it belongs to the user {info.st_uid}, and this server is the user {mine}: start it as its owner")
    if info.st_mode & 0o022:
        raise ConfigError(f"data {path}: others may write in it (mode {stat.S_IMODE(info.st_mode):04o}): `chmod 700 {path}`, when you"
                          " have made sure that nobody has put anything there")


@contextmanager
def storage_errors(what: str) -> Iterator[None]:
    """A full disk becomes StorageFullError."""
    try:
        yield
    except OSError as e:
        if e.errno in FULL:
            raise StorageFullError(f"no space to {what}: {in_words(e)}") from e
        raise


@contextmanager
def full_disk_is_fine() -> Iterator[None]:
    """For writes that help but that nothing depends on."""
    try:
        yield
    except OSError as e:
        if e.errno not in FULL:
            raise

"""The data directory around the LMDB environment: lock, marker, position, reserve, and a look at the file before LMDB maps it.

    DIR/lock          flock for life, taken before LMDB is opened; the holder's pid, how far it got, and where its socket is
    DIR/marker.json   identity and format; there once the directory is complete, never changed
    DIR/position      last record at the last open or close: an older copy of the data file is noticed
    DIR/clock_offset  the --clock-offset that the directory was made with; there before the first record
    DIR/reserve       preallocated bytes to give up on a full disk
    DIR/journal/      the LMDB environment; made as journal.new and renamed when complete

Directories are 0700, files 0600, whatever the umask. The directory is the server's own and nobody else may write in it, so nobody else
can put a link there. Whoever only reads (`admin verify`) changes nothing, and may be root or on a file system that is mounted so.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import stat
import struct
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from ..model.errors import ConfigError, CorruptJournalError, LockedError, NotFoundError
from .files import (
    FULL,
    check_owner,
    close_new_mount,
    full_disk_is_fine,
    make_private,
    read_file,
    read_note,
    storage_errors,
    sync_path,
    upgrade_note,
    write_file,
    write_note,
)

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["FORMAT", "DataDirectory", "Extent", "Head", "damage", "read_extent"]

FORMAT: Final = 1  # layout of directory and databases; raised by any change
_MAGIC: Final = 0xBEEFC0DE
_DATA_VERSION: Final = 1  # LMDB 0.9
_HEAD: Final = struct.Struct("<QQIQQQIQqIIQ")
_CRC: Final = struct.Struct("<I")
# A page header of 16 bytes, then of MDB_meta: magic, version, address, map size, page size, …, last page number, transaction number.
_META: Final = struct.Struct("=16xIIQQI92xQQ")


def damage(directory: Path, what: str, advice: str = "", **detail: object) -> CorruptJournalError:
    """The error for a damaged data directory, with what a person does about it."""
    return CorruptJournalError(
        f"the journal in {directory} is damaged: {what}. {advice}Nothing was changed. Look with 'wheelsched admin verify {directory}', "
        "then restore a copy of the whole directory: nothing is repaired silently.",
        **detail,
    )


class Head(NamedTuple):
    """Where everything begins and ends. `snapshot_at` is -1 without a snapshot."""

    txn_id: int = 0
    last_seq: int = 0
    last_crc: int = 0
    trimmed_to: int = 0
    history_first: int = 0
    history_next: int = 0
    history_crc: int = 0
    snapshot_id: int = 0
    snapshot_at: int = -1
    snapshot_chunks: int = 0
    snapshot_crc: int = 0
    next_snapshot_id: int = 1

    def pack(self) -> bytes:
        """The stored form."""
        data = _HEAD.pack(*self)
        return data + _CRC.pack(zlib.crc32(data))

    @classmethod
    def unpack(cls, data: bytes) -> Head:
        """Read it back. CorruptJournalError."""
        if len(data) != _HEAD.size + _CRC.size or _CRC.unpack_from(data, _HEAD.size)[0] != zlib.crc32(data[: _HEAD.size]):
            raise CorruptJournalError("the head record is damaged")
        return cls(*_HEAD.unpack_from(data))


class Extent:
    """What the two meta pages of a data file say: page size, bytes of the newest state, its transaction number."""

    __slots__ = ("bytes_needed", "file_bytes", "page_bytes", "txn_id")

    def __init__(self, page_bytes: int, last_page: int, txn_id: int, file_bytes: int) -> None:
        self.page_bytes = page_bytes
        self.bytes_needed = (last_page + 1) * page_bytes
        self.txn_id = txn_id
        self.file_bytes = file_bytes


def read_extent(path: Path) -> Extent:
    """Read the meta pages without mapping the file. CorruptJournalError when it is none of LMDB 0.9, or either page is damaged."""
    with path.open("rb") as f:
        size = os.fstat(f.fileno()).st_size
        metas = []
        page = 4_096
        for number in (0, 1):
            f.seek(number * page)
            data = f.read(_META.size)
            if len(data) < _META.size:
                raise CorruptJournalError(f"{path} is cut off: {size} bytes")
            magic, version, _, _, page_bytes, last_page, txn_id = _META.unpack(data)
            if magic != _MAGIC or version != _DATA_VERSION:
                raise CorruptJournalError(f"{path}: meta page {number} is not of an LMDB 0.9 file")
            if number == 0:
                page = page_bytes
            if page_bytes != page or not 512 <= page <= 65_536 or page & (page - 1):
                raise CorruptJournalError(f"{path}: meta page {number} has the page size {page_bytes}")
            metas.append((txn_id, last_page))
    # Commits alternate between the pages, so the numbers are neighbours and their parity is that of the page.
    (even, _), (odd, _) = metas
    if (even, odd) != (0, 0) and (even % 2 or abs(even - odd) != 1):
        raise CorruptJournalError(f"{path}: the meta pages do not fit together: transactions {even} and {odd}")
    txn_id, last_page = max(metas)
    return Extent(page, last_page, txn_id, size)


class DataDirectory:
    """One locked data directory. `identity` is what marker and data file agree on."""

    def __init__(
        self, directory: str | os.PathLike[str], *, create: bool, reserve_bytes: int, low_water_bytes: int, read_only: bool = False
    ) -> None:
        """Take the lock. LockedError, NotFoundError without `create`, ConfigError for one that others own or may write in,
        StorageFullError, OSError. `read_only`: whatever is there may be looked at, and nothing is changed.
        """
        self.path = Path(directory).absolute()
        self.env_path = self.path / "journal"
        self.data_path = self.env_path / "data.mdb"
        self.reserve_bytes = reserve_bytes
        self.low_water_bytes = low_water_bytes
        self.read_only = read_only
        self.identity: dict[str, object] = {}
        self.died_loading = False
        self._lock_fd = -1
        self._state = self._socket = ""
        if create and not self.path.exists():
            with storage_errors(f"make {self.path}"):
                self.path.parent.mkdir(parents=True, exist_ok=True)
                make_private(self.path, exist_ok=True)  # another server may be quicker; the lock decides
        # The directory itself is locked too: a lock file that was removed or replaced lets nobody in.
        self._fds: list[int] = []
        try:
            self._fds.append(self._lock(self.path, os.O_RDONLY | os.O_DIRECTORY))
            if not read_only:
                close_new_mount(self.path, self._fds[0])
                check_owner(self.path, os.fstat(self._fds[0]))
            self._take_lock_file()
        except BaseException:
            self.release()
            raise

    def _take_lock_file(self) -> None:
        path = self.path / "lock"
        if self.read_only:
            if path.exists():
                self._fds.append(self._lock(path, os.O_RDONLY | os.O_NOFOLLOW))
            return
        self._lock_fd = self._lock(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW)
        self._fds.append(self._lock_fd)
        os.fchmod(self._lock_fd, 0o600)
        self.died_loading = b"loading" in os.pread(self._lock_fd, 256, 0).partition(b"\n")[0]
        self.note("loading")

    def _lock(self, path: Path, flags: int) -> int:
        try:
            fd = os.open(path, flags | os.O_CLOEXEC, 0o600)
        except FileNotFoundError:
            raise NotFoundError(f"there is no data directory {self.path}") from None
        except NotADirectoryError:
            raise ConfigError(f"data {self.path}: it is no directory") from None
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            raise LockedError(f"{self.path} is in use by another server ({self._holder()})", path=str(self.path)) from None
        except BaseException:
            os.close(fd)
            raise
        return fd

    def _holder(self) -> str:
        try:
            text = (self.path / "lock").read_text("utf-8", "replace").split()
        except OSError as e:
            return f"its pid is unknown: {e.strerror}"
        return f"pid {text[1]}" if len(text) > 1 else "its pid is not written yet"

    def note(self, state: str) -> None:
        """Write into the lock file who holds it and how far it got. Not synced: it tells of processes, which a power cut ends anyway.

        On a full disk the old text stays, so that it alone stops no start.
        """
        if self.read_only:
            return
        self._state = state
        text = f"pid {os.getpid()} {state}\n".encode() + (b"socket " + os.fsencode(self._socket) + b"\n" if self._socket else b"")
        with full_disk_is_fine():
            os.pwrite(self._lock_fd, text, 0)
            os.ftruncate(self._lock_fd, len(text))

    def name_socket(self, path: str) -> None:
        """Tell clients in the lock file where this server's socket is."""
        self._socket = path
        self.note(self._state)

    def release(self) -> None:
        """Give the lock back."""
        while self._fds:
            os.close(self._fds.pop())

    def prepare(self, build: Callable[[Path, bytes], None], new_identity: dict[str, object], *, create: bool) -> bool:
        """Make the directory complete, or check that it is. True when a marker is missing and the data file must prove to be unused.

        `build` makes an environment with this identity record at a path. CorruptJournalError when anything is missing that was there.
        """
        marker = self.path / "marker.json"
        new = self.env_path.with_name("journal.new")
        if new.exists() and not self.read_only:
            shutil.rmtree(new)  # never renamed, so never used
        for path, is_kind in ((self.env_path, stat.S_ISDIR), (self.data_path, stat.S_ISREG)):
            if os.path.lexists(path) and not is_kind(path.lstat().st_mode):
                what = "a symbolic link: to have it elsewhere, move the whole directory" if path.is_symlink() else "something else"
                raise damage(self.path, f"{path} is {what}")
        if os.path.lexists(marker):
            self._read_marker(marker)
            if not self.data_path.exists():
                raise damage(self.path, f"{self.data_path} is missing, and {marker} says that it was there")
            return False
        if (self.path / "position").exists():
            raise damage(self.path, f"{marker} is missing, and {self.path} was in use")
        if self.env_path.exists():
            return True  # a start that died between the last two steps below, or a marker that was lost
        if not create:
            raise NotFoundError(f"{self.path} is no data directory")
        with storage_errors(f"make the journal in {self.path}"):
            make_private(new)
            build(new, json.dumps(new_identity).encode())
            for path in new.iterdir():
                path.chmod(0o600)
                sync_path(path)
            sync_path(new)
            new.rename(self.env_path)
            sync_path(self.path)
            self.write_marker(new_identity)
        return False

    def _read_marker(self, marker: Path) -> None:
        try:
            identity = json.loads(read_file(marker) or b"")
            known = identity["format"]
        except (ValueError, KeyError, TypeError) as e:
            raise damage(self.path, f"{marker} can't be read: {e}") from e
        if known != FORMAT:
            raise CorruptJournalError(f"{marker}: format {known}; this program reads {FORMAT}")
        self.identity = identity

    def write_marker(self, identity: dict[str, object]) -> None:
        """The last step: from here on the data file must be there."""
        write_file(self.path / "marker.json", json.dumps(identity).encode())
        self.identity = identity

    def read_position(self) -> tuple[int, int]:
        """(number, CRC) of the last record that is known to have been on disk; (0, 0) when not known. CorruptJournalError."""
        seq, crc = self._read("position", 2, "") or (0, 0)
        return seq, crc

    def write_position(self, seq: int, crc: int) -> None:
        """Remember that this record is on disk. A full disk is no reason to fail: the old position stays true."""
        if not self.read_only:
            with full_disk_is_fine():
                write_note(self.path / "position", seq, crc)

    def read_clock_offset(self) -> int:
        """Microseconds that the clock of this directory's server is set off; 0 when it is not known. CorruptJournalError."""
        found = self._read("clock_offset", 1, "It holds the --clock-offset that the directory was made with: if that was none, remove it. ")
        return found[0] if found else 0

    def write_clock_offset(self, us: int, *, fresh: bool = True) -> None:
        """Before the first record, `fresh`; later only in the form of today, when there is room. StorageFullError."""
        path = self.path / "clock_offset"
        if not fresh:
            with full_disk_is_fine():
                upgrade_note(path, us)
            return
        with storage_errors(f"make {self.path}"):
            write_note(path, us)

    def _read(self, name: str, count: int, advice: str) -> tuple[int, ...] | None:
        try:
            return read_note(self.path / name, count)
        except ValueError as e:
            raise damage(self.path, f"{self.path / name} can't be read: {e}", advice) from e

    def workers(self) -> Path:
        """Where the workers' files go: it is made when it is missing. CorruptJournalError when something else is there."""
        path = self.path / "workers"
        if os.path.lexists(path) and not stat.S_ISDIR(path.lstat().st_mode):
            raise damage(self.path, f"{path} is no directory", "It holds the workers' files while they run: remove it. ")
        if not self.read_only:
            with storage_errors(f"make {path}"):
                make_private(path, exist_ok=True)
        return path

    def free_bytes(self) -> int:
        """Bytes the file system has left for us."""
        st = os.statvfs(self.path)
        return st.f_bavail * st.f_frsize

    @property
    def has_reserve(self) -> bool:
        """Whether the reserve is there (or none is wanted)."""
        if not self.reserve_bytes:
            return True
        try:
            info = (self.path / "reserve").lstat()
        except FileNotFoundError:
            return False
        return stat.S_ISREG(info.st_mode) and info.st_blocks * 512 >= self.reserve_bytes

    def give_up_reserve(self) -> None:
        """Free the reserve's bytes."""
        (self.path / "reserve").unlink(missing_ok=True)
        sync_path(self.path)

    def restore_reserve(self) -> bool:
        """Allocate the reserve when the disk has room for it and the low-water mark; whether it is there."""
        if self.read_only or self.has_reserve:
            return True
        if self.free_bytes() < self.reserve_bytes + self.low_water_bytes:
            return False
        path = self.path / "reserve"
        path.unlink(missing_ok=True)  # too short, or a link
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            os.fchmod(fd, 0o600)
            os.posix_fallocate(fd, 0, self.reserve_bytes)
        except OSError as e:
            path.unlink()
            if e.errno not in {*FULL, errno.EFBIG}:
                raise
            return False
        finally:
            os.close(fd)
        return True

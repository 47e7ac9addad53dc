"""The LMDB environment of a journal: open it safely, and read it in bounded transactions.

Databases, all keys big-endian:

    journal    number u64 · part u16                     -> a part of records.frame(number, CRC of the one before, body)
    history    number u64 · part u16                     -> the same for blocks, chained on their own
    snapshot   snapshot id u64 · chunk u64 · part u16    -> the same for chunks, each snapshot a chain from 0
    meta       "identity" -> as in marker.json; "head" -> Head, written by every transaction

A value holds at most VALUE_MAX bytes, so that it and its page header fill 16 pages.
"""

from __future__ import annotations

import errno
import os
import resource
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import lmdb

from ..model.errors import ConfigError, CorruptJournalError, FailedPreconditionError
from ..state import records
from .directory import DataDirectory, Head, damage, read_extent
from .memory import Usage
from .pages import Walk, walk_pages

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["KEY", "VALUE_MAX", "Store", "build_env", "check_file", "map_size_for", "open_env", "page_findings"]

VALUE_MAX: Final = 65_520
READ_BYTES: Final = 1 << 20  # read in one read transaction at most, but for a single longer record
MAP_SIZE: Final = 4 << 40
HISTORY_BYTES: Final = 128 << 20  # a longer history is looked at while the server runs
KEY: Final = struct.Struct(">QH")
_DATABASES: Final = ("journal", "history", "snapshot", "meta")


def _engine() -> dict[str, Any]:
    """The argument that pins LMDB 0.9; py-lmdb 2 has no other and takes none. ConfigError when there is no 0.9."""
    pin = {"lib_version": 0}
    try:
        version = lmdb.version(**pin)
    except TypeError:
        pin = {}
        version = lmdb.version()
    except lmdb.Error as e:
        raise ConfigError(f"this build of py-lmdb has no LMDB 0.9: {e}") from e
    if tuple(version[:2]) != (0, 9):
        raise ConfigError(f"LMDB 0.9 is needed, this is {version}")
    return pin


def map_size_for(wanted: int | None) -> int:
    """Bytes of address space: as wanted, or 4 TiB, or half of what RLIMIT_AS leaves."""
    if wanted is not None:
        return wanted
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return MAP_SIZE
    used = int(Path("/proc/self/statm").read_text("ascii").split()[0]) * resource.getpagesize()
    return max(1 << 20, min(MAP_SIZE, ((limit - used) // 2) & ~0xFFFFF))


def open_env(path: Path, map_size: int, *, read_only: bool = False) -> lmdb.Environment:
    """Map an existing environment. lmdb.Error. `read_only`: without a lock file, as our own lock keeps writers out."""
    return lmdb.open(
        os.fspath(path), map_size=map_size, max_dbs=8, mode=0o600, sync=True, metasync=True, map_async=False,
        writemap=False, lock=not read_only, readonly=read_only, readahead=True, max_spare_txns=2, **_engine(),
    )


def build_env(path: Path, identity: bytes) -> None:
    """Fill the new directory: every database, the identity and an empty head, in one transaction. OSError."""
    try:
        with open_env(path, 16 << 20) as env, env.begin(write=True) as txn:
            dbs = {name: env.open_db(name.encode(), txn=txn) for name in _DATABASES}
            txn.put(b"identity", identity, db=dbs["meta"])
            txn.put(b"head", Head(txn_id=txn.id()).pack(), db=dbs["meta"])
    except lmdb.DiskError as e:
        raise OSError(errno.ENOSPC, str(e)) from e
    except lmdb.Error as e:
        raise OSError(errno.EIO, str(e)) from e


def page_findings(data_path: Path) -> list[str]:
    """What is wrong with the pages of a data file that nobody writes. Never maps it. py-lmdb 3 has a second opinion."""
    try:
        found = walk_pages(data_path, read_extent(data_path).page_bytes)
        from lmdb import verify  # noqa: PLC0415 - new in py-lmdb 3
    except CorruptJournalError as e:
        return [e.message]
    except ImportError:
        return found
    if found:
        return found
    try:
        return [f"{data_path.name}: {text}" for text in verify.verify(os.fspath(data_path))]  # type: ignore[no-untyped-call]
    except verify.VerifyError as e:
        return [f"{data_path.name}: {e}"]


def check_file(place: DataDirectory) -> Walk | None:
    """Refuse a data file that LMDB would misunderstand: it would end the process with a signal, or write over records.
    CorruptJournalError. What is left to look at when the history is long; else None.
    """
    path = place.data_path
    try:
        extent = read_extent(path)
        walk = Walk(path, extent.page_bytes)
    except CorruptJournalError as e:
        raise damage(place.path, e.message) from e
    except FileNotFoundError as e:
        raise damage(place.path, f"{path} is missing") from e
    left = None
    try:
        findings = walk.look(put_off="" if place.died_loading else "history", above_bytes=HISTORY_BYTES)
        left = None if findings or walk.complete else walk
    finally:
        if left is None:
            walk.close()
    if findings:
        raise damage(place.path, findings[0])
    if extent.file_bytes < extent.bytes_needed and not place.read_only:
        os.truncate(path, extent.bytes_needed)  # the pages that are missing at the end are free ones
    return left


class Store:
    """Reads of one environment. No read transaction stays open while the caller thinks."""

    def __init__(self, place: Path, env: lmdb.Environment) -> None:
        """`place` is the data directory, for messages. lmdb.Error when a database is missing."""
        self.place = place
        self.env = env
        self.closed = False
        self.dbs = {name: env.open_db(name.encode(), create=False) for name in _DATABASES}

    def live_bytes(self) -> tuple[int, int, int]:
        """(bytes of the pages in use, of those in use by snapshots, bytes of the file up to its last page)."""
        with self.env.begin() as txn:
            stats = {"": self.env.stat(), **{name: txn.stat(db) for name, db in self.dbs.items()}}
        page = stats[""]["psize"]
        pages = {name: s["branch_pages"] + s["leaf_pages"] + s["overflow_pages"] for name, s in stats.items()}
        return page * (2 + sum(pages.values())), page * pages["snapshot"], page * (self.env.info()["last_pgno"] + 1)

    def usage(self, place: DataDirectory, map_size: int) -> Usage:
        """As LmdbJournal.usage."""
        live, snapshots, used = self.live_bytes()
        # Free pages inside the file are used again, but not all: long values need neighbours.
        reusable = max(0, used - live) // 2
        free = place.free_bytes()
        kept = place.low_water_bytes
        kept_of_map = min(kept, map_size // 4)
        room, map_room = reusable + free, reusable + map_size - used
        if room < kept or not place.has_reserve:
            return Usage(used, free, live, "full", "disk", min(room, map_room), map_room, kept, snapshots)
        if map_room < kept_of_map:
            return Usage(used, free, live, "full", "map", min(room, map_room), map_room, kept_of_map, snapshots)
        return Usage(used, free, live, "ok", "", min(room, map_room), map_room, kept, snapshots)

    def identity(self) -> bytes | None:
        """The identity record."""
        with self.env.begin() as txn:
            return txn.get(b"identity", db=self.dbs["meta"])

    def head(self) -> Head:
        """The head on disk. CorruptJournalError."""
        with self.env.begin() as txn:
            return self._head(txn)

    def _head(self, txn: lmdb.Transaction) -> Head:
        try:
            return Head.unpack(bytes(txn.get(b"head", b"", db=self.dbs["meta"])))
        except CorruptJournalError as e:
            raise damage(self.place, e.message) from e

    def records(self, after: int, head: Head) -> Iterator[tuple[int, bytes]]:
        """(number, body) from after + 1 to the end that `head` says. CorruptJournalError for damage and gaps."""
        crc: int | None = None if after else 0
        if after > head.trimmed_to:  # the record before is there, so the chain can be checked from it on
            for seq, framed in self._items("journal", b"", after, after + 1):
                _, crc = self._unframe("record", framed, seq, None)
        for seq, framed in self._items("journal", b"", after + 1, head.last_seq + 1):
            body, crc = self._unframe("record", framed, seq, crc)
            yield seq, body
        if head.last_seq > head.trimmed_to and crc != head.last_crc:
            raise damage(self.place, f"record {head.last_seq} is not the one that was written last")

    def chunks(self, head: Head) -> Iterator[bytes]:
        """The chunks of the current snapshot. CorruptJournalError; FailedPreconditionError once another is current."""
        crc = 0
        prefix = head.snapshot_id.to_bytes(8, "big")
        for number, framed in self._items("snapshot", prefix, 0, head.snapshot_chunks):
            chunk, crc = self._unframe("snapshot chunk", framed, number, crc)
            yield chunk
        if crc != head.snapshot_crc:
            raise damage(self.place, f"the snapshot at {head.snapshot_at} ends with another checksum than was written")

    def blocks(self, start: int, head: Head) -> Iterator[tuple[int, bytes]]:
        """(number, block) from `start` to the end that `head` says, without those dropped meanwhile. CorruptJournalError."""
        crc: int | None = None if start else 0
        expected = start
        for number, framed in self._items("history", b"", start, head.history_next):
            if number != expected:
                crc = None
            expected = number + 1
            block, crc = self._unframe("history block", framed, number, crc)
            yield number, block
            if number + 1 == head.history_next and crc != head.history_crc:
                raise damage(self.place, f"history block {number} is not the one that was written last")

    def block(self, number: int) -> bytes | None:
        """One history block; None when it was dropped. CorruptJournalError."""
        for _, framed in self._items("history", b"", number, number + 1):
            return self._unframe("history block", framed, number, None)[0]
        return None

    def findings(self, head: Head) -> list[str]:
        """Read everything and check it; one line for each chain that is damaged."""
        chains: list[Iterator[object]] = [self.records(head.trimmed_to, head), self.blocks(head.history_first, head)]
        if head.snapshot_at >= 0:
            chains.append(self.chunks(head))
        found = []
        for chain in chains:
            try:
                for _ in chain:
                    pass
            except CorruptJournalError as e:
                found.append(e.message)
        return found

    def _items(self, name: str, prefix: bytes, start: int, end: int) -> Iterator[tuple[int, bytes]]:
        """(number, framed bytes) of start <= number < end, one read transaction at a time. CorruptJournalError for a gap."""
        while start < end:
            head, found = self._load(name, prefix, start, end)
            if _replaced(head, prefix):
                raise FailedPreconditionError("the snapshot was replaced while it was read")
            if name == "history" and start < head.history_first:
                start = head.history_first
                continue
            if not found:
                raise damage(self.place, f"{name} {start} is missing", seq=start)
            for number, framed in found:
                if number != start:
                    raise damage(self.place, f"{name} {start} is missing", seq=start)
                yield number, framed
                start += 1

    def _load(self, name: str, prefix: bytes, start: int, end: int) -> tuple[Head, list[tuple[int, bytes]]]:
        """The head, and numbered items from `start` on until READ_BYTES are full, all from one read transaction."""
        found: list[tuple[int, bytes]] = []
        parts: list[bytes] = []
        number, size, width = start, 0, len(prefix)
        if self.closed:
            raise FailedPreconditionError("the journal is closed")
        try:
            with self.env.begin() as txn, txn.cursor(self.dbs[name]) as cursor:
                head = self._head(txn)
                if _replaced(head, prefix) or (name == "history" and start < head.history_first):
                    return head, found
                there = cursor.set_range(prefix + KEY.pack(start, 0))
                for key, value in cursor.iternext() if there else ():
                    if len(key) != width + KEY.size or key[:width] != prefix:
                        break
                    n, part = KEY.unpack_from(key, width)
                    if part == 0:
                        if parts:
                            found.append((number, b"".join(parts)))
                            parts = []
                        if n >= end or size >= READ_BYTES:
                            break
                        number = n
                    if n != number or part != len(parts):
                        raise damage(self.place, f"{name} {number}: part {len(parts)} is missing", seq=number)
                    parts.append(value)
                    size += len(value)
        except lmdb.Error as e:
            raise damage(self.place, f"{name} {number} can't be read: {e}", seq=number) from e
        if parts:
            found.append((number, b"".join(parts)))
        return head, found

    def _unframe(self, what: str, framed: bytes, number: int, crc: int | None) -> tuple[bytes, int]:
        try:
            return records.unframe(framed, number, crc)
        except CorruptJournalError as e:
            raise damage(self.place, f"{what} {number}; those before it are whole: {e.message}", seq=number) from e


def _replaced(head: Head, prefix: bytes) -> bool:
    """Whether the snapshot of this prefix is no longer the current one."""
    return bool(prefix) and int.from_bytes(prefix, "big") != head.snapshot_id

"""The journal in LMDB: append, replay, snapshot, trim, history, backup.

One commit is one `sync=True` LMDB transaction: data pages, fdatasync, meta page. An error in it ends the process, because after a
failed sync a later one reports success for what was lost. Batches that wait while a sync runs are joined in the next transaction.
The head, written by every transaction, names that transaction and the CRC that ends each chain, so a stale page or a lost tail is seen.
"""

from __future__ import annotations

import json
import os
import shutil
import threading
import uuid
from collections import deque
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Final, Self

import lmdb

from ..model.errors import AlreadyExistsError, CorruptJournalError, FailedPreconditionError, InternalError
from ..model.nouns import RESERVE_BYTES
from ..state import records
from .directory import FORMAT, DataDirectory, Head, damage, read_extent
from .ending import end_damaged, end_failed
from .files import make_private, storage_errors, sync_path, write_file, write_note
from .memory import LAST, SWEEP_MAX, Batch, Journal, MemoryJournal, Plan, Usage
from .store import KEY, VALUE_MAX, Store, build_env, check_file, map_size_for, open_env, page_findings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .pages import Walk

__all__ = ["Batch", "Journal", "LmdbJournal", "MemoryJournal", "Usage", "page_findings"]

JOIN_BYTES: Final = 8 << 20  # queued batches are joined in one transaction up to this
COMMIT_BYTES_MAX: Final = 256 << 20  # LMDB keeps a transaction's dirty pages in memory, at most 512 MiB of them
# A page that is allocated and freed in one transaction may lie past the end of the file and is never written: a good file can be
# shorter than its meta page says. So before removing anything the file is made (sparsely) longer than a sweep can reach.
HEADROOM_BYTES: Final = 16 << 20


class LmdbJournal:
    """The Journal of one data directory. One thread calls; commits of submitted batches run in a second one, which does nothing else."""

    def __init__(self, directory: DataDirectory, env: lmdb.Environment, on_fatal: Callable[[BaseException], object] | None) -> None:
        """Only `open` calls this."""
        self._dir = directory
        self._env = env
        self._on_fatal = on_fatal or (lambda e: end_failed(e, directory.path, self.map_size))
        self._store = Store(directory.path, env)
        self._head = Head()
        self._plan = Plan()
        self._building: tuple[int, int, int, int] | None = None  # id, position, chunks, CRC; belongs to whoever holds _writing
        self._sweeping = True
        self._loading = True
        self._error: BaseException | None = None
        self._closed = False
        self._queue: deque[Batch] = deque()
        self._writing = threading.Lock()
        self._tokens: SimpleQueue[bool] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._looking: threading.Thread | None = None
        self._on_damage: Callable[[CorruptJournalError], object] = end_damaged
        self._event_fd = -1
        self.map_size: int = env.info()["map_size"]

    @classmethod
    def open(
        cls,
        directory: str | os.PathLike[str],
        *,
        map_size: int | None = None,
        reserve_bytes: int = RESERVE_BYTES,
        low_water_bytes: int | None = None,
        create: bool = True,
        read_only: bool = False,
        on_fatal: Callable[[BaseException], object] | None = None,
    ) -> LmdbJournal:
        """Lock and open a data directory, or make a new one with `create`. The default of `on_fatal` ends the process with status 70.

        `map_size`: 4 TiB by default. `low_water_bytes`: below so much room (of disk or map) usage() is `full`; `reserve_bytes` by default.
        `read_only`: nothing in the directory is made or changed, whoever owns it; then there is no append and no submit.
        LockedError, NotFoundError, CorruptJournalError, StorageFullError, ConfigError; OSError when the directory can't be used.
        """
        low_water = reserve_bytes if low_water_bytes is None else low_water_bytes
        create = create and not read_only
        place = DataDirectory(directory, create=create, reserve_bytes=reserve_bytes, low_water_bytes=low_water, read_only=read_only)
        try:
            identity: dict[str, object] = {"uuid": str(uuid.uuid4()), "format": FORMAT, "lib_version": 0}
            unproved = place.prepare(build_env, identity, create=create)
            walk = check_file(place)
            try:
                env = open_env(place.env_path, map_size_for(map_size), read_only=read_only)
            except lmdb.Error as e:
                raise damage(place.path, f"LMDB can't open it: {e}") from e
            try:
                if not read_only:
                    place.env_path.joinpath("lock.mdb").chmod(0o600)  # LMDB may have made it anew, under the umask
                journal = cls(place, env, on_fatal)
                journal._read_head(unproved=unproved)
                if walk is not None:
                    journal._look_on(walk)
            except BaseException as e:
                env.close()
                if isinstance(e, lmdb.Error):
                    raise damage(place.path, f"LMDB can't read it: {e}") from e
                raise
        except BaseException:
            place.release()
            raise
        return journal

    def _read_head(self, *, unproved: bool) -> None:
        """Check identity, head and position, and take up what they say."""
        if not self._dir.read_only:
            self._env.reader_check()
        identity, head = self._store.identity(), self._store.head()
        found = json.loads(identity) if identity else None
        if unproved:
            if head != Head(txn_id=head.txn_id) or not isinstance(found, dict):
                raise damage(self._dir.path, "marker.json is missing")
            if not self._dir.read_only:
                self._dir.write_marker(found)
            self._dir.identity = found
        elif found != self._dir.identity:
            raise damage(self._dir.path, f"the data file belongs to another directory: {found}, marker.json says {self._dir.identity}")
        if head.txn_id != self._env.info()["last_txnid"]:
            raise damage(self._dir.path, f"the head record is of transaction {head.txn_id}, not {self._env.info()['last_txnid']}")
        seq, crc = self._dir.read_position()
        if head.last_seq < seq or (head.last_seq == seq and head.last_crc != crc):
            raise damage(self._dir.path, f"it ends with record {head.last_seq}, but record {seq} was on disk: an older copy?")
        self._head = head
        self._plan = Plan(head.last_seq, None if head.snapshot_at < 0 else head.snapshot_at, None, head.history_next)
        self._dir.write_position(head.last_seq, head.last_crc)
        self._dir.restore_reserve()
        self._event_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def _look_on(self, walk: Walk) -> None:
        """Look at the rest of the pages while the journal is in use; the transaction keeps them as they are. Damage ends the process."""
        txn = self._env.begin()

        def look() -> None:
            try:
                found = walk.rest(lambda: self._closed)
            finally:
                walk.close()
                txn.abort()
            if found:
                self._on_damage(damage(self._dir.path, found[0]))

        self._looking = threading.Thread(target=look, name="journal-look", daemon=True)
        self._looking.start()

    # What is there

    @property
    def last_seq(self) -> int:
        """Number of the last record appended or submitted."""
        return self._plan.last_seq

    @property
    def durable_seq(self) -> int:
        """Number of the last record on disk."""
        return self._head.last_seq

    @property
    def identity(self) -> str:
        """Random id of the store, from marker.json."""
        return str(self._dir.identity["uuid"])

    @property
    def directory(self) -> DataDirectory:
        """What is beside the journal."""
        return self._dir

    def snapshot(self) -> tuple[int, Iterator[bytes]] | None:
        """Position and chunks of the current snapshot. Iterating raises CorruptJournalError; FailedPreconditionError once replaced."""
        self._check_open()
        head = self._head
        if head.snapshot_at < 0:
            return None
        return head.snapshot_at, self._store.chunks(head)

    def replay(self, after: int) -> Iterator[tuple[int, bytes]]:
        """(number, body) of the records on disk above `after`, in order. CorruptJournalError for damage, gaps and trimmed ones."""
        self._check_open()
        head = self._head
        if not head.trimmed_to <= after <= head.last_seq:
            raise damage(self._dir.path, f"records from {after + 1} on are needed, {head.trimmed_to + 1} to {head.last_seq} are there")
        return self._store.records(after, head)

    def history_blocks(self, start: int = 0, *, reverse: bool = False, last: int = LAST) -> Iterator[tuple[int, bytes]]:
        """(number, block) from `start` on, upwards, or with `reverse` from the newest, or from `last`, down to `start`; without those
        dropped meanwhile.

        No read transaction is open between two blocks. CorruptJournalError.
        """
        self._check_open()
        head = self._head
        start = max(start, head.history_first)
        if not reverse:
            yield from self._store.blocks(start, head)
            return
        for number in range(min(last, head.history_next - 1), start - 1, -1):
            block = self._store.block(number)
            if block is None:
                return
            yield number, block

    def history_range(self) -> tuple[int, int]:
        """Number of the first block on disk, and the number the next one gets."""
        return self._head.history_first, self._head.history_next

    def usage(self) -> Usage:
        """Space used and left. `full` without the reserve, or when disk or map has less room than the low-water mark; of a small map that
        is a quarter.
        """
        self._check_open()
        return self._store.usage(self._dir, self.map_size)

    @property
    def sweeping(self) -> bool:
        """Whether more commits will free more space: what was trimmed, dropped or replaced is removed in steps."""
        return self._sweeping

    # Writing

    def append(self, batch: Batch) -> int:
        """Make it durable in the calling thread, joined with all submitted before it; then `last_seq`."""
        last_seq = self._take(batch)
        with self._writing:
            while self._queue:
                self._commit()
        self._check_open()
        return last_seq

    def submit(self, batch: Batch) -> int:
        """Hand it to the commit thread; the number of its last record."""
        last_seq = self._take(batch)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="journal-commit", daemon=True)
            self._thread.start()
        self._tokens.put(True)
        return last_seq

    def _take(self, batch: Batch) -> int:
        self._check_open()
        assert not self._dir.read_only, "opened to be read only"
        assert batch.size() <= COMMIT_BYTES_MAX, ("batch too long", batch.size())
        last_seq = self._plan.take(batch)
        self._queue.append(batch)
        return last_seq

    def fileno(self) -> int:
        """An eventfd that is readable once a commit has finished."""
        return self._event_fd

    def poll(self) -> int:
        """Clear the eventfd; `durable_seq`."""
        try:
            os.eventfd_read(self._event_fd)
        except BlockingIOError:
            return self.durable_seq
        return self.durable_seq

    def _run(self) -> None:
        """The commit thread. A token for each batch; whoever holds _writing first takes all that wait."""
        while self._tokens.get():
            with self._writing:
                if self._queue and self._error is None:
                    self._commit()

    def _commit(self) -> None:
        """One transaction of the batches that wait, up to JOIN_BYTES. Any error is fatal."""
        try:
            if self._loading:
                self._dir.note("serving")
                self._loading = False
            batches = [self._queue.popleft()]
            size = batches[0].size()
            while self._queue and size + self._queue[0].size() <= JOIN_BYTES:
                size += self._queue[0].size()
                batches.append(self._queue.popleft())
            if self._sweeping or any(batch.removes for batch in batches):
                self._make_headroom(size)
            with self._env.begin(write=True) as txn:
                head = self._head
                for batch in batches:
                    head = self._write(txn, head, batch)
                if self._sweeping:
                    self._sweeping = self._sweep(txn, head)
                head = head._replace(txn_id=txn.id())
                txn.put(b"head", head.pack(), db=self._store.dbs["meta"])
            self._head = head
            os.eventfd_write(self._event_fd, 1)
        except BaseException as e:  # noqa: BLE001 - whatever it is, what is on disk is not known any more
            self._error = e
            self._queue.clear()
            self._on_fatal(e)

    def _write(self, txn: lmdb.Transaction, head: Head, batch: Batch) -> Head:
        crc = head.last_crc
        if batch.records:
            crc = self._put(txn, "journal", b"", head.last_seq + 1, crc, batch.records)
            head = head._replace(last_seq=head.last_seq + len(batch.records), last_crc=crc)
        if batch.history:
            crc = self._put(txn, "history", b"", head.history_next, head.history_crc, batch.history)
            head = head._replace(history_next=head.history_next + len(batch.history), history_crc=crc)
        if batch.snapshot_begin is not None:
            self._building = (head.next_snapshot_id, batch.snapshot_begin, 0, 0)
            head = head._replace(next_snapshot_id=head.next_snapshot_id + 1)
            self._sweeping = True
        if batch.snapshot:
            assert self._building is not None
            number, at, chunks, crc = self._building
            crc = self._put(txn, "snapshot", number.to_bytes(8, "big"), chunks, crc, batch.snapshot)
            self._building = (number, at, chunks + len(batch.snapshot), crc)
        if batch.snapshot_end:
            assert self._building is not None
            number, at, chunks, crc = self._building
            self._building = None
            head = head._replace(snapshot_id=number, snapshot_at=at, snapshot_chunks=chunks, snapshot_crc=crc)
            self._sweeping = True
        if batch.snapshot_drop:
            self._building = None
            self._sweeping = True
        if batch.trim_to is not None or batch.drop_history is not None:
            assert (batch.trim_to or 0) <= max(head.snapshot_at, 0), "a trim beyond the snapshot"
            trimmed, first = max(head.trimmed_to, batch.trim_to or 0), max(head.history_first, batch.drop_history or 0)
            head = head._replace(trimmed_to=trimmed, history_first=first)
            self._sweeping = True
        return head

    def _put(self, txn: lmdb.Transaction, name: str, prefix: bytes, number: int, crc: int, bodies: list[bytes]) -> int:
        """Append the framed bodies in parts; the CRC of the last."""
        items: list[tuple[bytes, bytes | memoryview]] = []
        for seq, body in enumerate(bodies, number):
            framed, crc = records.frame(seq, crc, body)
            assert len(framed) == records.HEADER_SIZE + len(body)
            parts = range(0, len(framed), VALUE_MAX)
            assert len(parts) <= 0xFFFF
            if len(parts) == 1:
                items.append((prefix + KEY.pack(seq, 0), framed))
            else:
                view = memoryview(framed)
                items += [(prefix + KEY.pack(seq, i), view[at : at + VALUE_MAX]) for i, at in enumerate(parts)]
        with txn.cursor(self._store.dbs[name]) as cursor:
            _, added = cursor.putmulti(items, append=True)
        if added != len(items):
            raise InternalError(f"{name} {number}: only {added} of {len(items)} values are new: something is there already")
        return crc

    def _make_headroom(self, size: int) -> None:
        """See HEADROOM_BYTES. The commit's own sync makes the new length durable before its meta page."""
        needed = (self._env.info()["last_pgno"] + 1) * self._env.stat()["psize"] + 2 * size + HEADROOM_BYTES
        needed += -needed % (1 << 20)
        if self._dir.data_path.stat().st_size < needed:
            os.truncate(self._dir.data_path, needed)

    def _sweep(self, txn: lmdb.Transaction, head: Head) -> bool:
        """Remove what is trimmed, dropped or replaced, oldest first; whether more is left."""
        left = SWEEP_MAX
        keep = {head.snapshot_id, *(self._building[:1] if self._building else ())}
        for name, size, first_kept in (("journal", 8, head.trimmed_to + 1), ("history", 8, head.history_first), ("snapshot", 8, -1)):
            with txn.cursor(self._store.dbs[name]) as cursor:
                found = cursor.first()
                while found:
                    number = int.from_bytes(cursor.key()[:size], "big")
                    if first_kept < 0 and number in keep:
                        found = cursor.set_range((number + 1).to_bytes(8, "big"))
                        continue
                    if 0 <= first_kept <= number:
                        break
                    if not left:
                        return True
                    cursor.delete()
                    left -= 1
                    found = bool(cursor.key())
        return False

    # Care

    def give_up_reserve(self) -> None:
        """Free the reserve, so that starts, completions and trims can commit; usage() is `full` until it is restored."""
        self._dir.give_up_reserve()

    def restore_reserve(self) -> bool:
        """Make the reserve again if the disk has room for it; whether it is there now."""
        return self._dir.restore_reserve()

    def verify(self) -> list[str]:
        """Check every page, record, block and chunk on disk; one line for each thing that is wrong. Commits wait meanwhile."""
        self._check_open()
        if self._looking is not None:
            self._looking.join()
        with self._writing:
            pages = page_findings(self._dir.data_path)
            # LMDB aborts the process on some damaged pages, so the rest stays unread then.
            return pages or self._store.findings(self._head) + self._beside()

    def _beside(self) -> list[str]:
        """What is wrong with what a start reads beside the journal; the position was read when it was opened."""
        found = []
        for read in (self._dir.read_clock_offset if self._head.last_seq else None, self._dir.workers):
            try:
                if read is not None:
                    read()
            except CorruptJournalError as e:
                found.append(e.message)
        return found

    def backup(self, dest: str | os.PathLike[str]) -> None:
        """A copy in the new directory `dest`, checked before it gets its name. The state is that of one commit; commits go on meanwhile.

        AlreadyExistsError, CorruptJournalError, StorageFullError.
        """
        self._check_open()
        target = Path(dest).absolute()
        if target.exists():
            raise AlreadyExistsError(f"{target} exists")
        new = target.with_name(f".{target.name}.{os.getpid()}.new")
        with storage_errors(f"copy to {target}"):
            make_private(new)
            try:
                self._copy(new)
                new.rename(target)
                sync_path(target.parent)
            except BaseException:
                shutil.rmtree(new)
                raise

    def _copy(self, new: Path) -> None:
        make_private(new / "journal")
        path = new / "journal" / "data.mdb"
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.fchmod(fd, 0o600)
            self._env.copyfd(fd)
            os.fsync(fd)
        except lmdb.Error as e:
            raise damage(self._dir.path, f"LMDB can't copy it: {e}") from e
        finally:
            os.close(fd)
        extent = read_extent(path)
        if extent.file_bytes < extent.bytes_needed:
            os.truncate(path, extent.bytes_needed)
        sync_path(path)
        sync_path(path.parent)
        write_file(new / "marker.json", (self._dir.path / "marker.json").read_bytes())
        write_note(new / "clock_offset", self._dir.read_clock_offset())
        copy = LmdbJournal.open(new, create=False, reserve_bytes=0)
        try:
            findings = copy.verify()
        finally:
            copy.close()
        if findings:
            raise damage(self._dir.path, f"the copy is damaged, so the journal is: {'; '.join(findings[:5])}")

    def close(self) -> None:
        """Make durable what was submitted, and release everything. Does nothing the second time."""
        if self._closed:
            return
        with self._writing:
            while self._queue and self._error is None:
                self._commit()
        self._closed = True
        if self._thread is not None:
            self._tokens.put(False)
            self._thread.join()
        if self._looking is not None:
            self._looking.join()
        self._store.closed = True
        self._env.close()
        try:
            if self._error is None:
                self._dir.write_position(self._head.last_seq, self._head.last_crc)
                self._dir.note("closed")
        finally:
            os.close(self._event_fd)
            self._dir.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_open(self) -> None:
        if self._error is not None:
            raise InternalError(f"the journal failed before: {self._error}") from self._error
        if self._closed:
            raise FailedPreconditionError("the journal is closed")

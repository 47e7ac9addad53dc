"""The seam of every journal, and the journal in memory that simulator and tests use. Pure.

A caller numbers nothing: records get the next sequence numbers in the order of `append` and `submit`, from 1, without gaps. One thread
calls. What was submitted is not readable, and lost in a crash, until it is durable.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, Protocol, Self

from ..model.errors import CorruptJournalError, FailedPreconditionError, UnimplementedError
from ..state import records

if TYPE_CHECKING:
    from collections.abc import Iterator
    from random import Random

__all__ = ["LAST", "SWEEP_MAX", "Batch", "Journal", "MemoryJournal", "Plan", "Usage"]

LAST: Final = 2**63 - 1  # above the number of any block of history
SWEEP_MAX: Final = 1_000  # stored values removed by one transaction at most; the rest is carried on by later ones


@dataclass(slots=True)
class Batch:
    """What one transaction makes durable, applied in the order of the fields."""

    records: list[bytes] = field(default_factory=list)
    history: list[bytes] = field(default_factory=list)  # opaque blocks for the run history
    snapshot_begin: int | None = None  # a snapshot of the state after this record starts; an unfinished older one is dropped
    snapshot: list[bytes] = field(default_factory=list)  # the next chunks of the snapshot being written
    snapshot_end: bool = False  # with this transaction the snapshot becomes the current one
    snapshot_drop: bool = False  # the snapshot being written is given up
    trim_to: int | None = None  # remove records up to this number, never beyond the current snapshot
    drop_history: int | None = None  # remove history blocks below this number

    def size(self) -> int:
        """Bytes of all its values."""
        return sum(map(len, self.records)) + sum(map(len, self.history)) + sum(map(len, self.snapshot))

    @property
    def removes(self) -> bool:
        """Whether something stored is no longer needed after it."""
        snapshot = self.snapshot_begin is not None or self.snapshot_end or self.snapshot_drop
        return snapshot or self.trim_to is not None or self.drop_history is not None


@dataclass(frozen=True, slots=True)
class Usage:
    """Space, in bytes. `map_used_bytes` is the file, `live_bytes` what in it is in use, `snapshot_bytes` of that by snapshots;
    `free_bytes` is the file system's.

    `full`: new commands are to be refused until the state is `ok` again. `short_of` says what there is too little of. `room_bytes` can
    still be written, as far as `map_room_bytes` go; `kept_bytes` of it are for what must go on when it is full.
    """

    map_used_bytes: int
    free_bytes: int
    live_bytes: int
    state: Literal["ok", "full"]
    short_of: Literal["", "disk", "map"] = ""
    room_bytes: int = LAST
    map_room_bytes: int = LAST
    kept_bytes: int = 0
    snapshot_bytes: int = 0


class Journal(Protocol):
    """What engine and server use, whatever is underneath."""

    @property
    def last_seq(self) -> int:
        """Number of the last record appended or submitted; 0 before the first."""

    @property
    def durable_seq(self) -> int:
        """Number of the last record that is on disk."""

    def snapshot(self) -> tuple[int, Iterator[bytes]] | None:
        """Position and chunks of the current snapshot. CorruptJournalError while iterating over damage."""

    def replay(self, after: int) -> Iterator[tuple[int, bytes]]:
        """(number, body) of the durable records above `after`, in order. CorruptJournalError for damage, gaps and trimmed ones."""

    def append(self, batch: Batch) -> int:
        """Make it durable, and all submitted before it; then `last_seq`."""

    def submit(self, batch: Batch) -> int:
        """Queue it; the number of its last record. It is durable when `durable_seq` has reached that."""

    def fileno(self) -> int:
        """A descriptor that is readable once a commit has finished; -1 for a journal without one."""

    def poll(self) -> int:
        """Clear the descriptor; `durable_seq`."""

    def history_blocks(self, start: int = 0, *, reverse: bool = False, last: int = LAST) -> Iterator[tuple[int, bytes]]:
        """(number, block) from `start` on, upwards, or with `reverse` from the newest, or from `last`, down to `start`."""

    def history_range(self) -> tuple[int, int]:
        """Number of the first block there is, and the number the next one gets."""

    def usage(self) -> Usage:
        """Space used and left."""

    @property
    def sweeping(self) -> bool:
        """Whether more commits will free more space: what was trimmed, dropped or replaced is removed in steps."""

    def give_up_reserve(self) -> None:
        """Free the reserve, so that starts, completions and trims can commit on a full disk. Full until it is restored."""

    def restore_reserve(self) -> bool:
        """Make the reserve again if there is room for it; whether it is there now."""

    def verify(self) -> list[str]:
        """Read and check everything; one line for each thing that is wrong."""

    def backup(self, dest: str) -> None:
        """A checked copy in the new directory `dest`. AlreadyExistsError, CorruptJournalError."""

    def close(self) -> None:
        """Make durable what was submitted, and release everything."""


@dataclass(slots=True)
class Plan:
    """Where a journal stands once all that was submitted is durable; refuses, by assertion, batches that can't be right."""

    last_seq: int = 0
    snapshot: int | None = None
    building: int | None = None
    history_next: int = 0

    def take(self, batch: Batch) -> int:
        """Check it and count it in; the new last_seq. A batch that fails changes nothing."""
        last_seq = self.last_seq + len(batch.records)
        history_next = self.history_next + len(batch.history)
        building, snapshot = self.building, self.snapshot
        if batch.snapshot_begin is not None:
            building = batch.snapshot_begin
            assert (snapshot or 0) <= building <= last_seq, ("snapshot position", snapshot, building, last_seq)
        if batch.snapshot or batch.snapshot_end:
            assert building is not None, "snapshot chunks before a snapshot_begin"
        if batch.snapshot_end:
            building, snapshot = None, building
        if batch.snapshot_drop:
            building = None
        if batch.trim_to is not None:
            assert snapshot is not None, "a trim without a snapshot"
            assert batch.trim_to <= snapshot, ("a trim beyond the snapshot", batch.trim_to, snapshot)
        if batch.drop_history is not None:
            assert batch.drop_history <= history_next, ("history dropped beyond its end", batch.drop_history, history_next)
        self.last_seq, self.history_next, self.building, self.snapshot = last_seq, history_next, building, snapshot
        return last_seq


@dataclass(slots=True)
class _Stored:
    """What is durable."""

    records: dict[int, bytes] = field(default_factory=dict)  # framed
    last_seq: int = 0
    last_crc: int = 0
    trimmed_to: int = 0
    history: dict[int, bytes] = field(default_factory=dict)
    history_first: int = 0
    history_next: int = 0
    current: tuple[int, list[bytes]] | None = None
    building: tuple[int, list[bytes]] | None = None

    def apply(self, batch: Batch) -> None:
        for body in batch.records:
            self.last_seq += 1
            self.records[self.last_seq], self.last_crc = records.frame(self.last_seq, self.last_crc, body)
        for block in batch.history:
            self.history[self.history_next] = block
            self.history_next += 1
        if batch.snapshot_begin is not None:
            self.building = (batch.snapshot_begin, [])
        if batch.snapshot:
            assert self.building is not None
            self.building[1].extend(batch.snapshot)
        if batch.snapshot_end:
            self.current, self.building = self.building, None
        if batch.snapshot_drop:
            self.building = None
        self.trimmed_to = max(self.trimmed_to, batch.trim_to or 0)
        self.history_first = max(self.history_first, batch.drop_history or 0)
        _sweep(self.records, self.trimmed_to)
        _sweep(self.history, self.history_first - 1)

    def copy(self) -> _Stored:
        return _Stored(
            dict(self.records), self.last_seq, self.last_crc, self.trimmed_to, dict(self.history), self.history_first, self.history_next,
            self.current, None,
        )


def _sweep(values: dict[int, bytes], last: int) -> None:
    """Remove the oldest values up to the number `last`, as many as one transaction may."""
    for _ in range(SWEEP_MAX):
        first = next(iter(values), None)
        if first is None or first > last:
            return
        del values[first]


class MemoryJournal:
    """A Journal without threads: `append` is durable at once, what is submitted when `sync` says so."""

    def __init__(self) -> None:
        self._stored = _Stored()
        self._queue: list[Batch] = []
        self._plan = Plan()
        self._gone = ""
        self.full = False  # what usage() reports; the simulator's disk

    @property
    def last_seq(self) -> int:
        """Number of the last record appended or submitted."""
        return self._plan.last_seq

    @property
    def durable_seq(self) -> int:
        """Number of the last record that survives a crash for certain."""
        return self._stored.last_seq

    @property
    def pending(self) -> int:
        """Batches submitted and not durable."""
        return len(self._queue)

    def append(self, batch: Batch) -> int:
        """Make it durable, and all submitted before it; then `last_seq`."""
        last_seq = self.submit(batch)
        self.sync()
        return last_seq

    def submit(self, batch: Batch) -> int:
        """Queue it; the number of its last record."""
        self._check_open()
        last_seq = self._plan.take(batch)
        self._queue.append(batch)
        return last_seq

    def sync(self, n: int | None = None) -> int:
        """Make the oldest n submitted batches durable, all by default; `durable_seq`."""
        self._check_open()
        done = self._queue[:n]
        del self._queue[:n]
        for batch in done:
            self._stored.apply(batch)
        return self._stored.last_seq

    def crash(self, random: Random | None = None) -> MemoryJournal:
        """The journal as a restart finds it; this one is dead. `random` draws how many of the unsynced batches got to disk."""
        self._check_open()
        other = MemoryJournal()
        other._stored = self._stored.copy()
        if self._stored.building is not None:  # queued chunks may continue it
            other._stored.building = (self._stored.building[0], list(self._stored.building[1]))
        for batch in self._queue[: random.randint(0, len(self._queue)) if random else 0]:
            other._stored.apply(batch)
        other._stored.building = None
        s = other._stored
        other._plan = Plan(s.last_seq, s.current[0] if s.current else None, None, s.history_next)
        other.full = self.full
        self._gone = "crashed"
        return other

    def snapshot(self) -> tuple[int, Iterator[bytes]] | None:
        """Position and chunks of the current snapshot."""
        self._check_open()
        current = self._stored.current
        return None if current is None else (current[0], iter(current[1]))

    def replay(self, after: int) -> Iterator[tuple[int, bytes]]:
        """(number, body) of the durable records above `after`. CorruptJournalError when some of them were trimmed."""
        self._check_open()
        s = self._stored
        if not s.trimmed_to <= after <= s.last_seq:
            raise CorruptJournalError(f"records {after + 1} and on are asked for, {s.trimmed_to + 1} to {s.last_seq} are there", seq=after)
        return self._replay(after, s.last_seq)

    def _replay(self, after: int, last: int) -> Iterator[tuple[int, bytes]]:
        crc: int | None = None
        for seq in range(after + 1, last + 1):
            body, crc = records.unframe(self._stored.records[seq], seq, crc)
            yield seq, body

    def fileno(self) -> int:
        """-1: there is nothing to wait for."""
        return -1

    def poll(self) -> int:
        """`durable_seq`."""
        return self._stored.last_seq

    def history_blocks(self, start: int = 0, *, reverse: bool = False, last: int = LAST) -> Iterator[tuple[int, bytes]]:
        """(number, block) from `start` on, upwards, or with `reverse` from the newest, or from `last`, down to `start`."""
        self._check_open()
        first, end = max(start, self._stored.history_first), self._stored.history_next
        for number in range(min(last, end - 1), first - 1, -1) if reverse else range(first, end):
            if number >= self._stored.history_first:  # dropped since
                yield number, self._stored.history[number]

    def history_range(self) -> tuple[int, int]:
        """Number of the first block there is, and the number the next one gets."""
        return self._stored.history_first, self._stored.history_next

    def usage(self) -> Usage:
        """Bytes held; `full` is what the attribute of that name says."""
        s = self._stored
        live = sum(map(len, s.records.values())) + sum(map(len, s.history.values())) + sum(map(len, s.current[1] if s.current else ()))
        if self.full:
            return Usage(live, 0, live, "full", "disk")
        return Usage(live, 1 << 40, live, "ok")

    @property
    def sweeping(self) -> bool:
        """Whether stored values are left that were trimmed."""
        return min(self._stored.records, default=LAST) <= self._stored.trimmed_to

    def give_up_reserve(self) -> None:
        """Nothing to give up."""

    def restore_reserve(self) -> bool:
        """Whether there is room, as `full` says."""
        return not self.full

    def verify(self) -> list[str]:
        """Check the chain of the records; nothing else can be damaged."""
        try:
            for _ in self._replay(self._stored.trimmed_to, self._stored.last_seq):
                pass
        except CorruptJournalError as e:
            return [e.message]
        return []

    def backup(self, dest: str) -> None:
        """UnimplementedError: there are no files."""
        raise UnimplementedError(f"a journal in memory has no files to copy to {dest}")

    def close(self) -> None:
        """Make durable what was submitted; later calls raise FailedPreconditionError."""
        if not self._gone:
            self.sync()
            self._gone = "closed"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_open(self) -> None:
        if self._gone:
            raise FailedPreconditionError(f"the journal is {self._gone}")

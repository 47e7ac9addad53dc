"""What the loop keeps on disk beside the records: snapshots, trims, retention, full storage, and look-ups in history."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ..engine.turn import ClockBack
from ..journal.memory import LAST, Batch
from ..model.errors import InvalidArgumentError, NotFoundError
from ..model.nouns import NEVER, US
from ..state import history, readable
from ..state.history import Block, made_us, of_runs, opener
from ..state.pages import PACKED_MAX, runs_page
from ..tables._runs import NO_ROW
from ..verbs.runs import parse_run_id
from .storage import Storage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..engine.turn import Effects
    from ..journal.lmdb_journal import LmdbJournal
    from ..state.live import Live
    from ..state.state import State
    from .config import Config

PIECE_BYTES: Final = 2 * 1024 * 1024
COMMIT_BYTES: Final = 32 * 1024  # pages that one small commit may touch
EARLY_BYTES: Final = 64 * 1024
RETENTION_EVERY_US: Final = 600 * US


class Keeper:
    """Between the loop and the journal."""

    def __init__(self, journal: LmdbJournal, state: State, config: Config) -> None:
        self.journal = journal
        self.state = state
        self.config = config
        self._pieces: Iterator[list[bytes]] | None = None
        self._snapshot_seq = 0
        self._bytes = 0  # journal bytes since the last snapshot
        self._again_bytes = 0  # before so many, no snapshot is tried: it did not fit
        self.storage = Storage(journal, config)
        self._retention_us = 0
        self._opened = opener()
        self._spans: dict[int, tuple[int, int]] = {}  # history block -> span of the milliseconds in its run ids
        self._unwritten: deque[tuple[int, int, bytes]] = deque()  # record number, block number, block: submitted, maybe not on disk yet
        self._history_next = journal.history_range()[1]
        self._history_base = self._history_next - state.trail.blocks
        self.commits = 0
        self.journal_bytes = 0

    def fileno(self) -> int:
        """Readable when a commit has finished."""
        return int(self.journal.fileno())

    def poll(self) -> int:
        """The last durable sequence number."""
        durable = int(self.journal.poll())
        while self._unwritten and self._unwritten[0][0] <= durable:
            self._unwritten.popleft()
        return durable

    def close(self) -> None:
        """Close the journal."""
        self.journal.close()

    @property
    def busy(self) -> bool:
        """A snapshot is under way, or a full storage gets room by more commits: come again at once."""
        return self._pieces is not None or (bool(self.storage.full) and self.journal.sweeping)

    def wake_at_us(self, now_us: int) -> int:
        """Monotonic instant of the next look at storage, while it is full; NEVER otherwise."""
        return max(now_us, self.storage.next_us) if self.storage.full else NEVER

    def submit(self, effects: Effects) -> None:
        """Hand a turn's records, history and the next piece of a snapshot to the journal, as one transaction."""
        size = sum(map(len, effects.records))
        self.storage.wrote(size + COMMIT_BYTES)
        self._bytes += size
        self.journal_bytes += size
        self.commits += 1
        batch = Batch(records=effects.records, history=effects.history)
        self._snapshot(batch)
        self._retain(batch)
        for block in effects.history:
            self._unwritten.append((effects.seq, self._history_next, block))
            self._history_next += 1
        seq = self.journal.submit(batch)
        assert seq == effects.seq, f"journal at {seq}, state at {effects.seq}"

    def _snapshot(self, batch: Any) -> None:
        if self._pieces is None:
            if not self._wants_snapshot():
                return
            self._pieces = self.state.copy(PIECE_BYTES)
            self._snapshot_seq = batch.snapshot_begin = self.state.meta.seq
            self._bytes = self._again_bytes = 0
        elif self.storage.tight:
            self._give_up_snapshot(batch)
            return
        try:
            piece = next(self._pieces, None)
        except MemoryError:  # the journal is whole without it
            self._give_up_snapshot(batch)
            return
        if piece is None:
            batch.snapshot_end = True
            batch.trim_to = self._snapshot_seq
            self.state.trail.cut(self._snapshot_seq)
            self._pieces = None
        else:
            batch.snapshot = piece

    def _wants_snapshot(self) -> bool:
        """Every so many bytes of the journal; on a full storage sooner, as it lets the journal be trimmed. Only if it fits."""
        early = max(EARLY_BYTES, self.config.reserve_bytes // 16)
        if self._bytes < (min(self.config.snapshot_bytes, early) if self.storage.full else self.config.snapshot_bytes):
            return False
        if self._bytes < self._again_bytes:
            return False
        if self.storage.fits_easily(self._bytes) or self.storage.fits(self._snapshot_size()):
            return True
        self._again_bytes = self._bytes + early
        return False

    def _snapshot_size(self) -> int:
        """Bytes of a snapshot of now. It takes as long as writing one to memory: only for who is about to run out of room."""
        return sum(len(piece) for pieces in self.state.copy(PIECE_BYTES) for piece in pieces)

    def _give_up_snapshot(self, batch: Any) -> None:
        self.state.copy_drop()
        self._pieces = None
        self._again_bytes = max(EARLY_BYTES, self.config.reserve_bytes // 16)
        batch.snapshot_drop = True

    def _retain(self, batch: Any) -> None:
        """Drop history blocks that are older than the retention time, by the time that has really passed."""
        now = self.state.elapsed.us
        if now < self._retention_us:
            return
        self._retention_us = now + RETENTION_EVERY_US
        limit = now - self.config.retention_us
        drop = None
        for number, data in self.journal.history_blocks():
            if self.state.elapsed.read(made_us(data, self.state.elapsed.begun_us)) >= limit:
                break
            drop = number + 1
        batch.drop_history = drop
        if drop is not None:
            self._spans = {number: span for number, span in self._spans.items() if number >= drop}

    def full(self, now_us: int) -> str:
        """Why new commands are refused; empty while there is room."""
        before = self.storage.full
        self.storage.look(now_us)
        if self.storage.full and not before:
            self._retention_us = 0  # what may go, goes at once
        return self.storage.full

    # History

    def blocks(self, start: int = 0, *, reverse: bool = False, last: int = LAST) -> Iterator[tuple[int, bytes]]:
        """(number, block) of all history, what was submitted and is not on disk yet included. The arguments are a journal's."""
        waiting = [(number, block) for _, number, block in self._unwritten]
        if reverse:
            end = self.journal.history_range()[1]
            yield from ((number, block) for number, block in reversed(waiting) if end <= number <= last)
            yield from ((number, block) for number, block in self.journal.history_blocks(start, reverse=True, last=last) if number < end)
            return
        seen = start - 1
        for number, block in self.journal.history_blocks(start):
            seen = number
            yield number, block
        yield from ((number, block) for number, block in waiting if number > seen)

    def block(self, number: int) -> bytes | None:
        """A block of history by its number in the state's trail; None when retention has dropped it."""
        number += self._history_base
        waiting = next((block for _, n, block in self._unwritten if n == number), None)
        if waiting is not None:
            return waiting
        return next((block for n, block in self.journal.history_blocks(number) if n == number), None)

    def look_for(self, verb: str, args: dict[str, Any]) -> Any:
        """What history holds that the engine needs to decide a request."""
        return self._ended(args) if verb == "finish" else history.look_for(self.blocks(), verb, args)

    def _ended(self, args: dict[str, Any]) -> dict[bytes, dict[int, int]]:
        """Of completions of runs that are history by now: {run id: {token: outcome} of its attempts}."""
        ids, token = args.get("id"), args.get("token")
        if not isinstance(ids, bytes) or not isinstance(token, bytes) or not token or len(token) % 8 or len(ids) != 2 * len(token):
            return {}
        rows, _ = self.state.runs.held(ids, np.frombuffer(token, "<i8"))
        wanted = {ids[16 * i : 16 * i + 16] for i in np.flatnonzero(rows == NO_ROW).tolist()}
        found: dict[bytes, dict[int, int]] = {}
        for number, data in of_runs(self.blocks(reverse=True)) if wanted else ():
            first, last = self._span(number, data)
            inside = [run_id for run_id in wanted if first <= int.from_bytes(run_id[:6], "big") <= last]
            block = Block(data) if inside else None
            for run_id in inside:
                row = None if block is None else block.find(run_id)
                if block is not None and row is not None:
                    found[run_id] = block.outcomes(row)
                    wanted.discard(run_id)
            if not wanted:
                break
        return found

    def fired_after(self, us: int) -> list[tuple[bytes, int]]:
        """Scheduled runs in history that are later than an instant."""
        return [pair for _, data in of_runs(self.blocks()) for pair in Block(data).fired_after(us)]

    def clock_back(self, us: int) -> ClockBack:
        """What the engine has to know of history when the wall clock goes back to an instant."""
        return ClockBack(self.fired_after(us), history.dropped(self.blocks(), self.state))

    def runs_page(self, state: State, args: dict[str, Any], running: Live) -> dict[str, Any]:
        """A page of runs."""
        limit = args.get("limit")
        limit = PACKED_MAX if limit is None else limit
        after = args.get("after")
        if not isinstance(limit, int) or limit < 1:
            raise InvalidArgumentError("limit: a whole number from 1 on is wanted")
        if after is not None and not (
            isinstance(after, list) and len(after) in (2, 3) and all(type(x) is int and -1 <= x <= NEVER for x in after)
            and (after[0] < 0) == (len(after) == 3)
        ):
            raise InvalidArgumentError("after: the position from the page before is wanted")
        most = PACKED_MAX if args.get("packed") else readable.TOLD_MAX
        return runs_page(state, self.blocks, args, running, min(limit, most), self._opened)

    def run(self, state: State, args: dict[str, Any], running: Live) -> dict[str, Any]:
        """One run, from the table or from history."""
        run_id = parse_run_id(args.get("id"))
        row = state.find_run(run_id)
        if row is not None:
            return readable.run(state, row, running)
        begun_ms = int.from_bytes(run_id[:6], "big")
        for number, data in of_runs(self.blocks(reverse=True)):
            first, last = self._span(number, data)
            if first <= begun_ms <= last:
                block = Block(data)
                found = block.find(run_id)
                if found is not None:
                    return block.rows([found])[0]
        raise NotFoundError(f"no run {run_id.hex()}")

    def _span(self, number: int, data: bytes) -> tuple[int, int]:
        """The milliseconds that begin a block's run ids: nominal times, or those of creation."""
        if number not in self._spans:
            self._spans[number] = Block(data).id_span_ms()
        return self._spans[number]

    def stats(self) -> dict[str, Any]:
        """Figures of the store."""
        usage = self.journal.usage()
        return {
            "storage": {
                "used_bytes": usage.map_used_bytes, "free_bytes": usage.free_bytes, "state": usage.state, "short_of": usage.short_of,
                "why": self.storage.exhausted or self.storage.full,
            },
            "commits": self.commits, "journal_bytes": self.journal_bytes, "fsyncs": getattr(self.journal, "syncs", self.commits),
        }

"""Pages of events: the records of the journal as state changes, from a position on. Pure.

A position is `GENERATION.RECORD.ROW`: all records before that one were told, and so many rows of it, by a server of that generation. Only
durable records are read. Rows of the run table that belong to other runs by now are found in the history, see `state/reused_rows.py`.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ..model.errors import FailedPreconditionError, InvalidArgumentError
from ..model.globs import glob
from ..model.ids import job_key
from ..model.nouns import MS, RunState, display_name
from ..state import records
from ..state.history import Block
from ..state.past import unpack_past
from ..tables._runs import NO_ROW
from .event_kinds import KINDS, NUMBER, STATES, Told, tell

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from ..state.reused_rows import Fold
    from ..state.state import State

EVENTS_MAX: Final = 4_096  # events of one page
RECORDS_MAX: Final = 256  # records that one page looks at, together with
ROWS_MAX: Final = 65_536  # so many rows and
BYTES_MAX: Final = 1024 * 1024  # so many bytes: a server does nothing else meanwhile
PATTERNS_MAX: Final = 100
_BLOCKS_KEPT: Final = 16
_NO_POSITION: Final = "is no position of an event (the first column of `wheelsched events`) and not `oldest`"
_LEASED, _CREATED, _STALE = NUMBER["run.leased"], NUMBER["run.created"], NUMBER["run.stale"]

Position = tuple[int, int]  # record, rows of it that were told


class Wanted:
    """What a reader asks for. InvalidArgumentError for what can't be asked."""

    def __init__(self, args: dict[str, Any]) -> None:
        match, kinds, limit, since = args.get("match"), args.get("kinds"), args.get("limit"), args.get("since")
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
            raise InvalidArgumentError("limit: a whole number from 1 on is wanted")
        if since is not None and not isinstance(since, str):
            raise InvalidArgumentError("since: the position of an event, 'oldest' or nil (from now on) is wanted")
        self.match = None if match is None else glob(match)
        self.since: str | None = since
        self.limit: int = min(limit or EVENTS_MAX, EVENTS_MAX)
        self.kinds: NDArray[np.bool_] = np.ones(len(KINDS), np.bool_)
        if kinds is not None:
            if not isinstance(kinds, list) or len(kinds) > PATTERNS_MAX or not all(isinstance(k, str) for k in kinds):
                raise InvalidArgumentError(f"kinds: a list of at most {PATTERNS_MAX} names or patterns such as 'run.*' is wanted")
            fits = [glob(pattern, "kinds") for pattern in kinds]
            for pattern, fit in zip(kinds, fits, strict=True):
                if not any(map(fit, KINDS)):
                    raise InvalidArgumentError(f"kinds: {pattern[:60]!r} fits none of {', '.join(KINDS)}")
            self.kinds = np.array([any(fit(kind) for fit in fits) for kind in KINDS], np.bool_)


@dataclass(slots=True)
class _Page:
    """Columns under way, one row an event."""

    n: int
    seq: NDArray[np.int64] = field(init=False)
    row: NDArray[np.uint32] = field(init=False)
    at: NDArray[np.int64] = field(init=False)
    kind: NDArray[np.uint8] = field(init=False)
    state: NDArray[np.uint8] = field(init=False)
    job: NDArray[np.uint32] = field(init=False)
    id: NDArray[np.uint64] = field(init=False)  # two a row
    scheduled: NDArray[np.int64] = field(init=False)
    attempt: NDArray[np.uint32] = field(init=False)
    token: NDArray[np.int64] = field(init=False)
    worker: NDArray[np.uint32] = field(init=False)
    more: list[list[Any]] = field(default_factory=list)
    names: dict[bytes, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        n = self.n
        self.seq, self.at, self.token = (np.zeros(n, np.int64) for _ in range(3))
        self.row, self.attempt, self.worker = (np.zeros(n, np.uint32) for _ in range(3))
        self.kind, self.state = np.zeros(n, np.uint8), np.zeros(n, np.uint8)
        self.job = np.full(n, NO_ROW, np.uint32)
        self.id = np.zeros((n, 2), np.uint64)
        self.scheduled = np.full(n, -1, np.int64)

    def number(self, name: bytes) -> int:
        """Place of a job's name among those of the page."""
        return self.names.setdefault(name, len(self.names))


@dataclass(slots=True)
class _Part:
    """Rows of one record that are told, and where in the page they stand."""

    seq: int
    told: Told
    rows: NDArray[np.int64]
    start: int

    @property
    def places(self) -> slice:
        return slice(self.start, self.start + len(self.rows))


class Pager:
    """Reads pages. `replay` gives the durable records above one; `block` the data of a block of history by its number in the trail."""

    def __init__(self, state: State, replay: Callable[[int], Iterator[tuple[int, bytes]]], block: Callable[[int], bytes | None]) -> None:
        self._state = state
        self._replay = replay
        self._block = block
        self._blocks: OrderedDict[int, Block] = OrderedDict()
        self._last: tuple[int, Told | None] = (0, None)  # a record that several pages tell

    # Positions

    def begin(self, wanted: Wanted, durable: int) -> Position:
        """Where to begin. FailedPreconditionError for a position that is not kept any more, or of another past."""
        if wanted.since is None:
            return durable + 1, 0
        if wanted.since == "oldest":
            return self._state.trail.oldest + 1, 0
        try:
            generation, seq, row = (int(x) for x in wanted.since.split("."))
        except ValueError:
            raise InvalidArgumentError(f"since: {wanted.since[:60]!r} {_NO_POSITION}") from None
        if generation < 1 or seq < 1 or row < 0:
            raise InvalidArgumentError(f"since: {wanted.since[:60]!r} {_NO_POSITION}")
        trail = self._state.trail
        self.check((seq, row))
        ends = next((at for at, number in trail.starts if number > generation), durable + 1)
        if generation > self._state.meta.generation or seq > ends:
            raise FailedPreconditionError(
                f"position {wanted.since} is of another past of this store (was a backup restored?): read on from 'oldest', or from now",
                oldest=self.text((trail.oldest + 1, 0)),
            )
        return seq, row

    def check(self, position: Position) -> None:
        """FailedPreconditionError when what follows is not kept any more."""
        oldest = self._state.trail.oldest + 1
        if position[0] < oldest:
            shown = self.text((oldest, 0))
            raise FailedPreconditionError(
                f"events after position {self.text(position)} are not kept any more: the oldest position is {shown}; read on from"
                " 'oldest', and list the runs for what happened between", oldest=shown,
            )

    def text(self, position: Position) -> str:
        """A position as it is told."""
        seq, row = position
        return f"{self._state.trail.generation(seq if row else seq - 1)}.{seq}.{row}"

    def nothing(self, position: Position) -> dict[str, Any]:
        """The answer when a wait is over."""
        return {"n": 0, "position": self.text(position)}

    # Pages

    def page(self, position: Position, wanted: Wanted) -> tuple[dict[str, Any], Position]:
        """The next events that fit, perhaps none, and where the next page begins. Looks at so much, whatever fits."""
        self.check(position)
        parts, n, position = self._read(position, wanted)
        page = _Page(n)
        moved: list[_Part] = []
        for part in parts:
            self._plain(page, part)
            if part.told.run is not None:
                moved.append(part)
        if moved:
            self._runs(page, moved)
        return self._reply(page, wanted, position), position

    def _read(self, position: Position, wanted: Wanted) -> tuple[list[_Part], int, Position]:
        parts: list[_Part] = []
        n, (seq, skip) = 0, position
        looked = size = 0
        for count, (number, body) in enumerate(self._replay(seq - 1), 1):
            told = self._told(number, body)
            size += len(body)
            position = (number + 1, 0)
            if told is not None:
                looked += len(told.kind)
                rows = skip + np.flatnonzero(wanted.kinds[told.kind[skip:]])
                if len(rows) > wanted.limit - n:
                    rows = rows[: wanted.limit - n]
                    position = (number, int(rows[-1]) + 1)
                if len(rows):
                    parts.append(_Part(number, told, rows, n))
                    n += len(rows)
            skip = 0
            if n == wanted.limit or count == RECORDS_MAX or looked >= ROWS_MAX or size >= BYTES_MAX:
                break
        return parts, n, position

    def _told(self, seq: int, body: bytes) -> Told | None:
        if self._last[0] == seq:
            return self._last[1]
        kind, fields = records.decode(body)
        told = tell(self._state.trail, seq, kind, fields)
        if told is not None:
            self._last = seq, told
        return told

    @staticmethod
    def _plain_more(part: _Part) -> list[list[Any]]:
        assert part.told.more is not None
        told = ([part.start + k, part.told.more(i)] for k, i in enumerate(part.rows.tolist()))
        return [pair for pair in told if pair[1]]

    def _plain(self, page: _Page, part: _Part) -> None:
        """What the record itself has."""
        told, rows, at = part.told, part.rows, part.places
        ends = rows + 1
        whole = ends == len(told.kind)  # all of the record is told then
        page.seq[at], page.row[at] = part.seq + whole, np.where(whole, 0, ends)
        page.at[at], page.kind[at], page.state[at] = told.at_us, told.kind[rows], told.state[rows]
        if told.token is not None:
            page.token[at] = told.token[rows]
        if told.worker:
            page.worker[at] = told.worker
        if told.more is not None:
            page.more += self._plain_more(part)
        if told.names is not None:
            page.job[at] = [page.number(told.names[i]) for i in rows.tolist()]
        elif told.job is not None:
            self._jobs(page, part, told.job[rows])

    def _jobs(self, page: _Page, part: _Part, jobs: NDArray[np.uint32]) -> None:
        told, at = part.told, part.places
        unique, which = np.unique(jobs, return_inverse=True)
        names = self._names(unique, part.seq)
        page.job[at] = np.array([page.number(name) for name in names], np.uint32)[which]
        if told.scheduled is None:
            return
        scheduled = told.scheduled[part.rows]
        page.scheduled[at] = scheduled
        if told.ids is not None:
            page.id[at] = np.frombuffer(told.ids, ">u8").reshape(-1, 2)[part.rows]
            return
        made = np.flatnonzero(told.kind[part.rows] == _CREATED)
        if len(made):
            keys = np.frombuffer(b"".join([job_key(name) for name in names]), [("high", ">u2"), ("low", ">u8")])[which[made]]
            ids = page.id[at]
            ids[made, 0] = (scheduled[made] // MS).astype(np.uint64) << np.uint64(16) | keys["high"].astype(np.uint64)
            ids[made, 1] = keys["low"]

    def _names(self, rows: NDArray[np.uint32], seq: int) -> list[bytes]:
        """Names of job rows as of a record."""
        state = self._state
        if not state.trail.any_forgotten:
            return list(state.jobs.names(rows))
        known = {row: state.trail.job_name(row, seq) for row in rows.tolist()}
        live = [row for row, name in known.items() if name is None]
        known |= dict(zip(live, state.jobs.names(np.array(live, np.uint32)), strict=True))
        return [known[row] or b"" for row in rows.tolist()]

    # Runs by their rows

    def _runs(self, page: _Page, parts: list[_Part]) -> None:
        rows = np.concatenate([part.told.run[part.rows] for part in parts if part.told.run is not None])
        seqs = np.concatenate([np.full(len(part.rows), part.seq, np.int64) for part in parts])
        places = np.concatenate([np.arange(part.start, part.start + len(part.rows)) for part in parts])
        ask = _Attempts(page, parts)
        here = np.ones(len(rows), np.bool_)
        for fold, mine, members in self._state.trail.find(rows, seqs):
            here[mine] = False
            self._folded(page, fold, places[mine], members, ask)
        self._open(page, places[here], rows[here], ask)

    def _open(self, page: _Page, places: NDArray[np.int64], rows: NDArray[np.uint32], ask: _Attempts) -> None:
        """Runs that are in the table."""
        if not len(rows):
            return
        runs, fields = self._state.runs, self._state.runs.gather(rows)
        jobs, which = np.unique(fields["job"], return_inverse=True)
        page.job[places] = np.array([page.number(name) for name in self._state.jobs.names(jobs.astype(np.uint32))], np.uint32)[which]
        page.id[places, 0], page.id[places, 1] = fields["id_high"], fields["id_low"]
        page.scheduled[places] = fields["nominal_us"]
        ask.fill(places, fields.__getitem__, lambda i: runs.blobs(int(rows[i]))[2])

    def _folded(self, page: _Page, fold: Fold, places: NDArray[np.int64], members: list[int], ask: _Attempts) -> None:
        """Runs that are in history."""
        block = self._block_of(fold)
        names, (high, low) = block.names(), block.ids()
        job = block.jobs()[members]
        unique, which = np.unique(job, return_inverse=True)
        page.job[places] = np.array([page.number(names[j]) for j in unique.tolist()], np.uint32)[which]
        page.id[places, 0], page.id[places, 1] = high[members], low[members]
        page.scheduled[places] = block["nominal_us"][members]
        ask.fill(places, lambda name: block[name][members], lambda i: block.past(members[i]))

    def _block_of(self, fold: Fold) -> Block:
        block = self._blocks.get(fold.block)
        if block is None:
            data = self._block(fold.block)
            if data is None:  # dropped by retention
                self._state.trail.cut(fold.seq)
                self.check((fold.seq, 0))
            assert data is not None
            block = self._blocks[fold.block] = Block(data)
            assert block.folded == fold.folded, (block.folded, fold)
            if len(self._blocks) > _BLOCKS_KEPT:
                self._blocks.popitem(last=False)
        return block

    def _reply(self, page: _Page, wanted: Wanted, position: Position) -> dict[str, Any]:
        keep = np.arange(page.n)
        names = [display_name(name.decode()) for name in page.names]
        if wanted.match is not None:
            good = np.array([wanted.match(name) for name in names] + [False], np.bool_)
            keep = np.flatnonzero(good[np.minimum(page.job, len(names))])
        place = {int(old): new for new, old in enumerate(keep)} if len(keep) < page.n else None
        more = page.more if place is None else [[place[row], told] for row, told in page.more if row in place]
        if not len(keep):
            return self.nothing(position)
        reply = self.nothing(position) | {"n": len(keep)}
        columns: dict[str, NDArray[Any]] = {
            "seq": page.seq, "row": page.row, "at_us": page.at, "kind": page.kind, "state": page.state, "job": page.job,
            "id": page.id.astype(">u8"), "scheduled_us": page.scheduled, "attempt": page.attempt, "token": page.token,
            "worker": page.worker,
        }
        return reply | {name: np.ascontiguousarray(column[keep]).tobytes() for name, column in columns.items()} | {
            "jobs": names, "kinds": list(KINDS), "states": list(STATES), "more": more, "generations": self._generations(page, keep),
        }

    def _generations(self, page: _Page, keep: NDArray[np.int64]) -> list[list[int]]:
        """[row, generation from it on]."""
        seqs = page.seq[keep] - (page.row[keep] == 0)
        found = [[0, self._state.trail.generation(int(seqs[0]))]]
        for at, generation in self._state.trail.starts:
            if seqs[0] < at <= seqs[-1]:
                found.append([int(np.searchsorted(seqs, at)), generation])
        return found


class _Attempts:
    """Which attempt of its run a lease or an ending was: the first, as a rule; else the run's own list of attempts tells."""

    def __init__(self, page: _Page, parts: list[_Part]) -> None:
        self._page = page
        self._parts = parts
        self._wanted = (page.kind == _LEASED) | (page.kind == _STALE)
        for part in parts:
            if part.told.ended is not None:
                self._wanted[part.places] = True

    def fill(self, places: NDArray[np.int64], runs: Callable[[str], NDArray[Any]], past: Callable[[int], bytes]) -> None:
        """Set them. `runs`: a column of these runs as they are by now; `past`: the kept attempts of the i-th."""
        wanted = self._wanted[places]
        self._page.attempt[places[wanted]] = 1
        spent, token = runs("attempt"), runs("token")
        back = (token > 0) & (runs("outcome") == 0) & (runs("state") != RunState.LEASED)  # the last lease was handed back
        for i in np.flatnonzero(wanted & ((spent > 1) | back)).tolist():
            kept = unpack_past(past(i))[0]
            self._page.attempt[places[i]] = self._among(int(places[i]), int(spent[i]), int(token[i]) if back[i] else 0, kept)

    def _among(self, place: int, spent: int, back: int, past: list[list[Any]]) -> int:
        """Of a run with several, the last lease of which, perhaps, was handed back: under the token `back`. Each kept one is
        [attempt, token, worker, start, end, outcome, result].
        """
        ended = self._ended(place)
        if ended is not None:
            return next((int(kept[0]) for kept in past if tuple(kept[3:6]) == ended), spent)
        token = int(self._page.token[place])
        number = next((int(kept[0]) for kept in past if int(kept[1]) >= token), None)  # of one handed back: the next one has its number
        return number or spent + (token == back)

    def _ended(self, place: int) -> tuple[int, int, int] | None:
        part = next(p for p in self._parts if p.start <= place < p.start + len(p.rows))
        if part.told.ended is None:
            return None
        row = part.rows[place - part.start]
        start, end, outcome = (int(column[row]) for column in part.told.ended)
        return start, end, outcome


__all__ = ["EVENTS_MAX", "KINDS", "Pager", "Position", "Wanted"]

"""Blocks of the run history: finished runs in columns, as they leave the run table. Pure. Blocks of changes stand between them.

A block is MessagePack {version, n, folded (how many rows of history are before it), first_us, last_us (span of nominal times, skipped
ranges included), ended_us (latest end), elapsed_us (when it was made, in elapsed time), before (spans of the
nominal times of all runs before it), columns {field: column}, job, spec, names, tasks, queues, other, id_high, id_low, result,
result_end, history, history_end}.
`job` and `spec` in a block number its own names, tasks and queues, so a block needs nothing else to be read. The run id of an occurrence
follows from its job and nominal time and is not kept; `other` are the rows whose ids are, in `id_high` and `id_low`. Names are deflated.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import msgpack
import numpy as np

from ..model import plain
from ..model.columns import decode_blobs, decode_column, encode_blobs, encode_column
from ..model.errors import CorruptJournalError, InvalidArgumentError
from ..model.ids import job_key
from ..model.nouns import MS, Disposition, RunState, Trigger, parse_job_name
from . import changelog
from .past import unpack_past
from .readable import RunFilter, run_fields

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from .bygone import Spans
    from .state import State

VERSION: Final = 3
READABLE: Final = frozenset({1, 2, 3})  # 1 had no flags, all ids, and plain names; 3 added elapsed_us and before
_OPENED: Final = 4  # blocks that a server keeps read
_NAMES_LEVEL: Final = 1  # of zlib
_FIELDS: Final = (
    "nominal_us", "created_us", "due_us", "queued_us", "started_us", "ended_us", "token", "worker", "missed", "count",
    "attempt", "state", "outcome", "trigger", "reason", "disposition", "flags", "snoozes",
)
_LATER: Final = {"flags": np.uint8, "snoozes": np.uint16}  # blocks that were written earlier lack these: all zero


def pack(state: State, rows: NDArray[np.uint32]) -> bytes:
    """One block of these finished rows, in their order."""
    fields = state.runs.gather(rows)
    fields["queued_us"][fields["state"] == plain.RUN_SKIPPED] = 0  # it serves a clock that goes back, and only in the table
    jobs, job = np.unique(fields["job"], return_inverse=True)
    specs, spec = np.unique(fields["spec"], return_inverse=True)
    wires = [state.specs[s] for s in specs.tolist()]
    keys = state.jobs.gather(jobs.astype(np.uint32))
    other = np.flatnonzero(
        (fields["id_high"] != _scheduled_high(fields["nominal_us"], keys["key_high"][job])) | (fields["id_low"] != keys["key_low"][job])
    )
    block: dict[str, Any] = {
        "version": VERSION, "n": len(rows), "folded": state.meta.folded, "first_us": int(fields["nominal_us"].min()),
        "last_us": int(np.where(fields["state"] == plain.RUN_SKIPPED, fields["due_us"], fields["nominal_us"]).max()),
        "ended_us": int(fields["ended_us"].max()), "elapsed_us": state.elapsed.us, "before": state.bygone.folded,
        "columns": {name: encode_column(np.ascontiguousarray(fields[name])) for name in _FIELDS},
        "job": encode_column(job.astype("<u4")), "spec": encode_column(spec.astype("<u4")),
        "names": zlib.compress(encode_blobs(state.jobs.names(jobs.astype(np.uint32))), _NAMES_LEVEL),
        "other": encode_column(other.astype("<u4")), "id_high": encode_column(np.ascontiguousarray(fields["id_high"][other])),
        "id_low": encode_column(np.ascontiguousarray(fields["id_low"][other])),
        "tasks": [w["task"] for w in wires], "queues": [w["queue"] for w in wires],
    }
    for what in ("result", "history"):
        joined, ends = state.runs.joined(rows, what)
        block[what] = joined
        block[what + "_end"] = encode_column(ends)
    data: bytes = msgpack.packb(block, use_bin_type=True)
    return data


def _scheduled_high(nominal_us: NDArray[np.int64], key_high: NDArray[np.uint16]) -> NDArray[np.uint64]:
    """The high half of the ids of scheduled runs: milliseconds, and the first two bytes of the job's key."""
    return (nominal_us // MS).astype(np.uint64) << np.uint64(16) | key_high.astype(np.uint64)


class Block:
    """A block read back; columns are decoded when first asked for."""

    def __init__(self, data: bytes) -> None:
        """CorruptJournalError for another version or rubbish."""
        try:
            self._block = msgpack.unpackb(data, raw=False)
            version = self._block["version"]
        except (ValueError, KeyError, TypeError) as e:
            raise CorruptJournalError(f"history block can't be read: {e}") from e
        if version not in READABLE:
            raise CorruptJournalError(f"history block of version {version}; this program reads up to {VERSION}")
        self.version: int = version
        self._decoded: dict[str, NDArray[Any]] = {}
        self._ids: tuple[NDArray[np.uint64], NDArray[np.uint64]] | None = None
        self._names: list[bytes] | None = None
        self.n: int = self._block["n"]
        self.folded: int = self._block.get("folded", 0)
        self.first_us: int = self._block["first_us"]
        self.last_us: int = self._block["last_us"]
        self.ended_us: int = self._block["ended_us"]
        self.elapsed_us: int | None = self._block.get("elapsed_us")
        before = self._block.get("before", [[0, self.ended_us]] if self.folded else [])  # older ones don't say: any time may be there
        self.before: Spans = [(first, last) for first, last in before]

    def __getitem__(self, name: str) -> NDArray[Any]:
        if name not in self._decoded:
            column = self._block["columns"].get(name)
            self._decoded[name] = np.zeros(self.n, _LATER[name]) if column is None and name in _LATER else decode_column(column)
        return self._decoded[name]

    def names(self) -> list[bytes]:
        """Full job names of the block."""
        if self._names is None:
            data = self._block["names"]
            self._names = decode_blobs(data if self.version == 1 else zlib.decompress(data))
        return self._names

    def ids(self) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
        """(high, low) halves of all run ids."""
        if self._ids is None:
            if self.version == 1:
                self._ids = self["id_high"], self["id_low"]
            else:
                keys = b"".join([job_key(name) for name in self.names()])
                raw = np.frombuffer(keys, [("high", ">u2"), ("low", ">u8")])[decode_column(self._block["job"])]
                high, low = _scheduled_high(self["nominal_us"], raw["high"]), raw["low"].astype(np.uint64)
                other = decode_column(self._block["other"])
                high[other], low[other] = decode_column(self._block["id_high"]), decode_column(self._block["id_low"])
                self._ids = high, low
        return self._ids

    def select(self, wanted: RunFilter) -> NDArray[np.intp]:
        """Rows that pass a filter, ascending."""
        if self.last_us < wanted.since or self.first_us >= wanted.until:
            return np.empty(0, np.intp)
        keep = wanted.mask(self)
        for folded, now in wanted.steps:  # ledger rows beyond a clock that went back: their time came again
            if self.folded < folded:
                stays = (self["state"] != RunState.SKIPPED) | (self["disposition"] == Disposition.TZDATA_MOVED)
                keep &= stays | (self["nominal_us"] <= now)
        if wanted.of_definitions:
            fits = np.array([wanted.fits(*of) for of in zip(self._block["tasks"], self._block["queues"], strict=True)], np.bool_)
            keep &= fits[decode_column(self._block["spec"])]
        if wanted.of_names:
            good = np.array([wanted.matches(x.decode()) for x in self.names()], np.bool_)
            keep &= good[decode_column(self._block["job"])]
        return np.flatnonzero(keep)

    def id_span_ms(self) -> tuple[int, int]:
        """Least and greatest of the milliseconds that begin the run ids."""
        high = self["id_high"] if self.version == 1 else decode_column(self._block["id_high"])
        ms = high >> np.uint64(16)
        if self.version > 1:
            ms = np.concatenate([ms, (self["nominal_us"] // MS).astype(np.uint64)])
        return int(ms.min()), int(ms.max())

    def find(self, run_id: bytes) -> int | None:
        """Row of a run id."""
        high, low = int.from_bytes(run_id[:8], "big"), int.from_bytes(run_id[8:], "big")
        highs, lows = self.ids()
        hits = np.flatnonzero((lows == np.uint64(low)) & (highs == np.uint64(high)))
        return int(hits[0]) if len(hits) else None

    def outcomes(self, row: int) -> dict[int, int]:
        """{token: outcome} of a run's attempts."""
        attempts, _ = unpack_past(self._joined("history", [row])[0])
        return {a[1]: a[5] for a in attempts} | {int(self["token"][row]): int(self["outcome"][row])}

    def rows(self, picked: list[int]) -> list[dict[str, Any]]:
        """Runs as the wire shows them."""
        columns = [self[name][picked].tolist() for name in _FIELDS]
        columns += [half[picked].tolist() for half in self.ids()]
        job, spec = (decode_column(self._block[what])[picked].tolist() for what in ("job", "spec"))
        names = self.names()
        tasks, queues = self._block["tasks"], self._block["queues"]
        results, histories = self._joined("result", picked), self._joined("history", picked)
        fields = (*_FIELDS, "id_high", "id_low")
        return [
            run_fields(
                dict(zip(fields, values, strict=True)), names[job[k]].decode(), tasks[spec[k]], queues[spec[k]],
                results[k], histories[k], {},
            )
            for k, values in enumerate(zip(*columns, strict=True))
        ]

    def jobs(self) -> NDArray[Any]:
        """For each row, the place of its job's name in `names`."""
        return decode_column(self._block["job"])

    def specs(self) -> NDArray[Any]:
        """For each row, the place of its definition in `definitions`."""
        return decode_column(self._block["spec"])

    def definitions(self) -> tuple[list[str], list[str]]:
        """(tasks, queues)."""
        return self._block["tasks"], self._block["queues"]

    def whole(self, fields: tuple[str, ...]) -> dict[str, Any]:
        """All rows as they are stored: see `packed`."""
        stored, names = self._block["columns"], self._block["names"]
        return {
            "columns": {name: stored[name] if name in stored else encode_column(self[name]) for name in fields},
            "job": self._block["job"], "spec": self._block["spec"], "tasks": self._block["tasks"], "queues": self._block["queues"],
            "names": names if self.version == 1 else zlib.decompress(names),
        }

    def past(self, row: int) -> bytes:
        """The kept attempts of a row."""
        return self._joined("history", [row])[0]

    def _joined(self, what: str, picked: list[int]) -> list[bytes]:
        data: bytes = self._block[what]
        if not data:
            return [b""] * len(picked)
        ends = [0, *decode_column(self._block[what + "_end"]).tolist()]
        return [data[ends[i] : ends[i + 1]] for i in picked]

    def _of_job(self, name: bytes) -> NDArray[np.bool_] | None:
        names = self.names()
        if name not in names:
            return None
        return np.asarray(decode_column(self._block["job"]) == names.index(name), np.bool_)

    def covering(self, name: bytes, at_us: int) -> list[int]:
        """Rows of one job's occurrences that are at, or whose range covers, a nominal time."""
        ends_early = self.version > 1 and self.last_us < at_us
        mine = None if ends_early or self.first_us > at_us else self._of_job(name)
        if mine is None:
            return []
        nominal, skipped = self["nominal_us"], self["state"] == RunState.SKIPPED
        covers = (nominal == at_us) | ((nominal <= at_us) & skipped & (self["due_us"] >= at_us))
        return [int(i) for i in np.flatnonzero(mine & (self["trigger"] <= Trigger.BACKFILL) & covers)]

    def runs_between(self, name: bytes, since_us: int, until_us: int) -> dict[int, int]:
        """Nominal time -> state of one job's runs by schedule or backfill in a span, both ends included."""
        mine = None if self.last_us < since_us or self.first_us > until_us else self._of_job(name)
        if mine is None:
            return {}
        nominal, state = self["nominal_us"], self["state"]
        keep = mine & (self["trigger"] <= Trigger.BACKFILL) & (state != RunState.SKIPPED) & (nominal >= since_us) & (nominal <= until_us)
        return dict(zip(nominal[keep].tolist(), state[keep].tolist(), strict=True))

    def fired_after(self, us: int) -> list[tuple[bytes, int]]:
        """(job key, nominal) of runs by schedule or backfill later than an instant, for a clock that went back; and of what other zone
        data passed by, which must not come again either.
        """
        if self.last_us <= us:
            return []
        nominal = self["nominal_us"]
        stays = (self["state"] != RunState.SKIPPED) | (self["disposition"] == Disposition.TZDATA_MOVED)
        hits = np.flatnonzero((nominal > us) & (self["trigger"] <= Trigger.BACKFILL) & stays)
        high, low = self.ids()
        return [((int(high[i]) & 0xFFFF).to_bytes(2, "big") + int(low[i]).to_bytes(8, "big"), int(nominal[i])) for i in hits.tolist()]


def of_runs(blocks: Iterator[tuple[int, bytes]]) -> Iterator[tuple[int, bytes]]:
    """The blocks of runs alone."""
    return ((number, data) for number, data in blocks if not changelog.is_changes(data))


def made_us(data: bytes, begun_us: int) -> int:
    """When a block of either kind was made, in elapsed time. An older one has no such stamp: when the newest thing in it ended or happened
    by the wall clock, though not later than that time began.
    """
    if changelog.is_changes(data):
        made, last = changelog.made_us(data), max(entry.at_us for entry in changelog.unpack(data))
    else:
        block = Block(data)
        made, last = block.elapsed_us, block.ended_us
    return min(last, begun_us) if made is None else made


class Past(NamedTuple):
    """What history holds for a backfill."""

    runs: dict[int, int]  # nominal time -> state, of the job's runs
    dropped: Spans | None  # of the nominal times of runs that history has dropped; None: there is no block, all that ever went to it

    def and_more(self, later: Past) -> Past:
        """With what later blocks hold."""
        return Past(self.runs | later.runs, later.dropped if self.dropped is None else self.dropped)


def dropped(blocks: Iterator[tuple[int, bytes]], state: State) -> Spans:
    """Spans of the nominal times of the runs that were in history once and are not any more. `blocks`: what there is."""
    first = next(of_runs(blocks), None)
    return state.bygone.folded if first is None else Block(first[1]).before


def look_for(blocks: Iterator[tuple[int, bytes]], verb: str, args: dict[str, Any]) -> Any:
    """What history holds that the engine needs to decide a request; None for rubbish, which the engine refuses.

    why: rows as the wire shows runs, oldest first. backfill: Past. history: entries of one job, oldest first.
    """
    try:
        name = parse_job_name(args.get("name")).encode()
    except InvalidArgumentError:
        return None
    if verb == "history":
        key = job_key(name)
        kept = (data for _, data in blocks if changelog.is_changes(data) and key in data)
        return [row for data in kept for entry in changelog.unpack(data) for row in entry.of(key)]
    if verb == "why":
        at = args.get("at_us")
        found: list[dict[str, Any]] = []
        for _, data in of_runs(blocks) if isinstance(at, int) else ():
            block = Block(data)
            picked = block.covering(name, at)  # type: ignore[arg-type]
            found += block.rows(picked) if picked else []
        return found
    since, until = args.get("since_us"), args.get("until_us")
    past = Past({}, None)
    for _, data in of_runs(blocks) if isinstance(since, int) and isinstance(until, int) else ():
        block = Block(data)
        past = past.and_more(Past(block.runs_between(name, since, until), block.before))  # type: ignore[arg-type]
    return past


def and_more(found: Any, blocks: list[bytes], verb: str, args: dict[str, Any]) -> Any:
    """What `look_for` found, and what is in later blocks."""
    more = look_for(iter(enumerate(blocks)), verb, args)
    if found is None or more is None:
        return more if found is None else found
    return found.and_more(more) if isinstance(found, Past) else found + more


Opened: TypeAlias = Callable[[bytes], Block]


def opener() -> Opened:
    """Reads blocks, and knows the last ones: the pages of a listing come from one block many times."""
    return lru_cache(_OPENED)(Block)


__all__ = ["Block", "Opened", "Past", "and_more", "dropped", "look_for", "made_us", "of_runs", "opener", "pack"]

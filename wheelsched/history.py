"""Blocks of the run history: finished runs in columns, as they leave the run table. Pure.

A block is MessagePack {version, n, first_us, last_us (span of nominal times), ended_us (latest end), columns {field: column}, job, spec,
names, tasks, queues, result, result_end, history, history_end}.
`job` and `spec` in a block number its own names, tasks and queues, so a block needs nothing else to be read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgpack
import numpy as np

from .errors import CorruptJournalError
from .reads import RunFilter, as_columns, run, run_fields, select_runs
from .records import decode_blobs, decode_column, encode_blobs, encode_column

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from .state import State

VERSION: Final = 1
_FIELDS: Final = (
    "id_high", "id_low", "nominal_us", "created_us", "due_us", "queued_us", "started_us", "ended_us", "token", "worker", "missed", "count",
    "attempt", "state", "outcome", "trigger", "reason", "disposition",
)


def pack(state: State, rows: NDArray[np.uint32]) -> bytes:
    """One block of these finished rows, in their order."""
    fields = state.runs.gather(rows)
    jobs, job = np.unique(fields["job"], return_inverse=True)
    specs, spec = np.unique(fields["spec"], return_inverse=True)
    wires = [state.specs[s] for s in specs.tolist()]
    block: dict[str, Any] = {
        "version": VERSION, "n": len(rows), "first_us": int(fields["nominal_us"].min()), "last_us": int(fields["nominal_us"].max()),
        "ended_us": int(fields["ended_us"].max()),
        "columns": {name: encode_column(np.ascontiguousarray(fields[name])) for name in _FIELDS},
        "job": encode_column(job.astype("<u4")), "spec": encode_column(spec.astype("<u4")),
        "names": encode_blobs(state.jobs.names(jobs.astype(np.uint32))),
        "tasks": [w["task"] for w in wires], "queues": [w["queue"] for w in wires],
    }
    for what in ("result", "history"):
        joined, ends = state.runs.joined(rows, what)
        block[what] = joined
        block[what + "_end"] = encode_column(ends)
    data: bytes = msgpack.packb(block, use_bin_type=True)
    return data


class Block:
    """A block read back; columns are decoded when first asked for."""

    def __init__(self, data: bytes) -> None:
        """CorruptJournalError for another version or rubbish."""
        try:
            self._block = msgpack.unpackb(data, raw=False)
            version = self._block["version"]
        except (ValueError, KeyError, TypeError) as e:
            raise CorruptJournalError(f"history block can't be read: {e}") from e
        if version != VERSION:
            raise CorruptJournalError(f"history block of version {version}; this program reads {VERSION}")
        self._decoded: dict[str, NDArray[Any]] = {}
        self.n: int = self._block["n"]
        self.first_us: int = self._block["first_us"]
        self.last_us: int = self._block["last_us"]
        self.ended_us: int = self._block["ended_us"]

    def __getitem__(self, name: str) -> NDArray[Any]:
        if name not in self._decoded:
            self._decoded[name] = decode_column(self._block["columns"][name])
        return self._decoded[name]

    def names(self) -> list[bytes]:
        """Full job names of the block."""
        return decode_blobs(self._block["names"])

    def select(self, wanted: RunFilter) -> list[int]:
        """Rows that pass a filter."""
        if self.last_us < wanted.since or self.first_us >= wanted.until:
            return []
        keep = wanted.mask(self)
        if wanted.pattern is not None:
            good = np.array([wanted.matches(x.decode()) for x in self.names()], np.bool_)
            keep &= good[decode_column(self._block["job"])]
        return [int(i) for i in np.flatnonzero(keep)]

    def id_span_ms(self) -> tuple[int, int]:
        """Least and greatest of the milliseconds that begin the run ids."""
        high = self["id_high"]
        return int(high.min()) >> 16, int(high.max()) >> 16

    def find(self, run_id: bytes) -> int | None:
        """Row of a run id."""
        high, low = int.from_bytes(run_id[:8], "big"), int.from_bytes(run_id[8:], "big")
        hits = np.flatnonzero((self["id_low"] == np.uint64(low)) & (self["id_high"] == np.uint64(high)))
        return int(hits[0]) if len(hits) else None

    def rows(self, picked: list[int]) -> list[dict[str, Any]]:
        """Runs as the wire shows them."""
        columns = [self[name][picked].tolist() for name in _FIELDS]
        job, spec = (decode_column(self._block[what])[picked].tolist() for what in ("job", "spec"))
        names = [x.decode() for x in self.names()]
        tasks, queues = self._block["tasks"], self._block["queues"]
        results, histories = self._joined("result", picked), self._joined("history", picked)
        return [
            run_fields(
                dict(zip(_FIELDS, values, strict=True)), names[job[k]], tasks[spec[k]], queues[spec[k]], results[k], histories[k], {},
            )
            for k, values in enumerate(zip(*columns, strict=True))
        ]

    def _joined(self, what: str, picked: list[int]) -> list[bytes]:
        data: bytes = self._block[what]
        if not data:
            return [b""] * len(picked)
        ends = [0, *decode_column(self._block[what + "_end"]).tolist()]
        return [data[ends[i] : ends[i + 1]] for i in picked]

    def fired_after(self, us: int) -> list[tuple[bytes, int]]:
        """(job key, nominal) of scheduled runs later than an instant, for a clock that went back."""
        if self.last_us <= us:
            return []
        nominal = self["nominal_us"]
        hits = np.flatnonzero((nominal > us) & (self["trigger"] == 1))
        high, low = self["id_high"], self["id_low"]
        return [((int(high[i]) & 0xFFFF).to_bytes(2, "big") + int(low[i]).to_bytes(8, "big"), int(nominal[i])) for i in hits.tolist()]


def runs_page(
    state: State, blocks: Iterator[tuple[int, bytes]], args: dict[str, Any], running: dict[int, int], limit: int
) -> dict[str, Any]:
    """A page of runs, oldest first: history, then the table. `blocks` starts at the block of the position `after`.

    A position is [block, row] inside history, [-1, created_us, row] inside the table.
    """
    wanted = RunFilter(args)
    after = args.get("after")
    found: list[dict[str, Any]] = []
    if after is None or after[0] >= 0:
        for number, data in blocks:
            block = Block(data)
            start = after[1] if after is not None and number == after[0] else 0
            picked = [i for i in block.select(wanted) if i >= start]
            room = limit - len(found)
            found += block.rows(picked[:room])
            if len(found) == limit:
                return {"columns": as_columns(found), "after": [number, picked[:room][-1] + 1]}
        after = None
    rows = select_runs(state, np.array(state.runs.slots(), np.uint32), wanted)
    fields = state.runs.gather(rows)
    for row, created in zip(rows.tolist(), fields["created_us"].tolist(), strict=True):
        if after is not None and (created, row) <= (after[1], after[2]):
            continue
        found.append(run(state, row, running))
        if len(found) == limit:
            return {"columns": as_columns(found), "after": [-1, created, row]}
    return {"columns": as_columns(found), "after": None}


__all__ = ["Block", "pack", "runs_page"]

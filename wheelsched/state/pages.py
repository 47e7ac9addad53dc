"""Pages of runs: history, then the table; in rows for people, in columns for who reads many.

A page in columns is a list of parts, each with texts and numbers of its own: {n, columns {name: column}, job, spec (columns: places in the
next ones), names (column of full names), tasks, queues, id (16 bytes a row), running (places of runs whose user code was entered), started
(when)}. Columns are `model.columns`; those of a part are FIELDS. What a block of history has is handed on as it is where all of its rows
are wanted. Output, errors and single attempts are left to the rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ..model.columns import encode_blobs, encode_column
from ..model.nouns import NEVER, RunState
from .history import Block, of_runs
from .readable import RunFilter, as_columns, runs, select_runs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from .history import Opened
    from .live import Live
    from .state import State

FIELDS: Final = (
    "nominal_us", "created_us", "due_us", "queued_us", "started_us", "ended_us", "worker", "missed", "count", "attempt", "state", "trigger",
    "reason", "disposition", "flags", "snoozes",
)
PACKED_MAX: Final = 16_384  # rows of a page in columns
BLOCKS_MAX: Final = 4  # of history that a page looks through; others follow
_ROWS_MAX: Final = 2**32  # of a block
_NUMBER_BITS: Final = 40  # of a position's number: those of creation, and above them the generation
_GENERATIONS: Final = 2**23 - 1
_SKIPPED_HAVE_NONE: Final = ("queued_us", "started_us")  # such a row keeps the id of the run that blocked it in these places


def runs_page(
    state: State, blocks: Callable[..., Iterator[tuple[int, bytes]]], args: dict[str, Any], running: Live, limit: int,
    opened: Opened = Block,
) -> dict[str, Any]:
    """A page of runs, oldest first: history, then the table; with `newest` from the other end. `blocks` takes a journal's arguments,
    `opened` reads a block.

    A position is [block, row] inside history, [-1, created_us, number] inside the table: of the next row of history and the last run of
    the table that was looked at, in both orders of the last one; the number is of its creation, with the server's generation. A run
    that goes to history between two pages may come twice when the newest are first.
    """
    wanted = RunFilter(args)
    wanted.steps = state.meta.steps
    page = PackedPage(limit) if args.get("packed") else RowPage(limit)
    position = (_newest if wanted.newest else _oldest)(state, blocks, wanted, args.get("after"), running, page, opened)
    return page.answer(position)


class RowPage:
    """What was found so far, row by row, as the wire shows runs. `room`: how many more rows the page takes."""

    def __init__(self, limit: int) -> None:
        self.room = limit
        self._found: list[dict[str, Any]] = []

    def of_block(self, block: Block, picked: NDArray[np.intp]) -> None:
        """Rows of a block, in their order."""
        self._found += block.rows(picked.tolist())
        self.room -= len(picked)

    def of_table(self, state: State, rows: NDArray[np.uint32], running: Live) -> None:
        """Rows of the run table."""
        self._found += runs(state, rows, running)
        self.room -= len(rows)

    def answer(self, after: list[int] | None) -> dict[str, Any]:
        """The page, and where the next one begins."""
        return {"columns": as_columns(self._found), "after": after}


class PackedPage:
    """What was found so far, in parts. `room`: how many more rows the page takes."""

    def __init__(self, limit: int) -> None:
        self.room = limit
        self._parts: list[dict[str, Any]] = []

    def of_block(self, block: Block, picked: NDArray[np.intp]) -> None:
        """Rows of a block, in their order."""
        if not len(picked):
            return
        whole = len(picked) == block.n and picked[0] == 0 and not (block["state"] == RunState.SKIPPED).any()
        high, low = (half if whole else half[picked] for half in block.ids())
        part = block.whole(FIELDS) if whole else self._cut(block, picked)
        self._add(part | {"n": len(picked), "id": _ids(high, low)})

    @staticmethod
    def _cut(block: Block, picked: NDArray[np.intp]) -> dict[str, Any]:
        fields = {name: block[name][picked] for name in FIELDS}
        names, (tasks, queues) = block.names(), block.definitions()
        jobs, job = np.unique(block.jobs()[picked], return_inverse=True)
        return _part(fields, job, [names[i] for i in jobs.tolist()], block.specs()[picked], tasks, queues)

    def of_table(self, state: State, rows: NDArray[np.uint32], running: Live) -> None:
        """Rows of the run table."""
        if not len(rows):
            return
        fields = state.runs.gather(rows)
        jobs, job = np.unique(fields["job"], return_inverse=True)
        specs, spec = np.unique(fields["spec"], return_inverse=True)
        wires = [state.specs[n] for n in specs.tolist()]
        leased = np.flatnonzero(fields["state"] == RunState.LEASED)
        tokens, workers = fields["token"][leased].tolist(), fields["worker"][leased].tolist()
        entered = [
            (place, running.started_us(token)) for place, token, worker in zip(leased.tolist(), tokens, workers, strict=True)
            if token in running.beats or running.get(token) == worker
        ]
        part = _part(
            {name: np.ascontiguousarray(fields[name]) for name in FIELDS}, job, state.jobs.names(jobs.astype(np.uint32)), spec,
            [w["task"] for w in wires], [w["queue"] for w in wires],
        )
        self._add(part | {
            "n": len(rows), "id": _ids(fields["id_high"], fields["id_low"]),
            "running": [place for place, _ in entered], "started": [at for _, at in entered],
        })

    def _add(self, part: dict[str, Any]) -> None:
        self._parts.append(part)
        self.room -= part["n"]

    def answer(self, after: list[int] | None) -> dict[str, Any]:
        """The page, and where the next one begins."""
        return {"parts": self._parts, "after": after}


def _part(fields: dict[str, NDArray[Any]], job: NDArray[Any], names: list[bytes], spec: NDArray[Any], tasks: list[str], queues: list[str]
          ) -> dict[str, Any]:
    """A part but for its ids; without what rows that were skipped keep in the places of instants."""
    skipped = fields["state"] == RunState.SKIPPED
    if skipped.any():
        fields |= {name: np.where(skipped, 0, fields[name]) for name in _SKIPPED_HAVE_NONE}
    return {
        "columns": {name: encode_column(fields[name]) for name in FIELDS}, "job": encode_column(job.astype("<u4")),
        "names": encode_blobs(names), "spec": encode_column(spec.astype("<u4")), "tasks": tasks, "queues": queues,
    }


def _ids(high: NDArray[np.uint64], low: NDArray[np.uint64]) -> bytes:
    """16 bytes a row, as ids are written."""
    halves = np.empty((len(high), 2), ">u8")
    halves[:, 0], halves[:, 1] = high, low
    return halves.tobytes()


def _oldest(
    state: State, blocks: Callable[..., Iterator[tuple[int, bytes]]], wanted: RunFilter, after: Any, running: Live,
    page: RowPage | PackedPage, opened: Opened,
) -> list[int] | None:
    """Where the page after this one begins; None after the last."""
    if after is None or after[0] >= 0:
        for looked_at, (number, data) in enumerate(of_runs(blocks(0 if after is None else after[0]))):
            if looked_at == BLOCKS_MAX:
                return [number, 0]
            block = opened(data)
            start = after[1] if after is not None and number == after[0] else 0
            chosen = block.select(wanted)
            picked = chosen[chosen >= start][: page.room]
            page.of_block(block, picked)
            if not page.room:
                return [number, int(picked[-1]) + 1]
        after = None
    return _of_table(state, wanted, after, running, page)


def _newest(
    state: State, blocks: Callable[..., Iterator[tuple[int, bytes]]], wanted: RunFilter, after: Any, running: Live,
    page: RowPage | PackedPage, opened: Opened,
) -> list[int] | None:
    if after is None or after[0] < 0:
        position = _of_table(state, wanted, after, running, page)
        if position is not None:
            return position
        after = None
    above = blocks(reverse=True) if after is None else blocks(reverse=True, last=after[0])
    for looked_at, (number, data) in enumerate(of_runs(above)):
        if looked_at == BLOCKS_MAX:
            return [number, _ROWS_MAX]
        block = opened(data)
        end = after[1] if after is not None and number == after[0] else _ROWS_MAX
        chosen = block.select(wanted)
        picked = chosen[chosen < end][::-1][: page.room]
        page.of_block(block, picked)
        if not page.room:
            return [number, int(picked[-1])]
    return None


def _of_table(state: State, wanted: RunFilter, after: Any, running: Live, page: RowPage | PackedPage) -> list[int] | None:
    """Adds what the table has behind a position in it, None for its begin; the position, None at its end. A bound of runs is looked at,
    so a page may be short and not the last.
    """
    order, newest = state.created, wanted.newest
    start = (order.next if newest else -1) if after is None else _number(state, after, newest=newest)
    rows, numbers, last = (order.before if newest else order.after)(start, wanted.looked_at)
    places = select_runs(state, rows, wanted)
    if len(places) >= page.room:
        places = places[: page.room]
        last = int(numbers[places[-1]])
    page.of_table(state, np.ascontiguousarray(rows[places]), running)
    if last is None:
        return None
    end = rows[np.flatnonzero(numbers == last)]
    made = int(state.runs.gather(end)["created_us"][0]) if len(end) else after[1] if after is not None else NEVER if newest else 0
    return [-1, made, (state.meta.generation & _GENERATIONS) << _NUMBER_BITS | last]


def _number(state: State, after: Any, *, newest: bool) -> int:
    """The number behind which a page begins. A restart numbers the runs anew: then what was made in the position's instant comes again."""
    at, number = after[1:]
    if number >> _NUMBER_BITS == state.meta.generation & _GENERATIONS:
        return int(number & (1 << _NUMBER_BITS) - 1)
    rows, numbers = state.created.rows()
    made = state.runs.gather(rows)["created_us"] if len(rows) else np.empty(0, np.int64)
    further = np.flatnonzero(made <= at if newest else made >= at)
    if not len(further):
        return -1 if newest else state.created.next
    return int(numbers[further[-1]]) + 1 if newest else int(numbers[further[0]]) - 1


__all__ = ["BLOCKS_MAX", "FIELDS", "PACKED_MAX", "runs_page"]

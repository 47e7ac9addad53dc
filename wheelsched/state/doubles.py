"""Looks for what must never be: two run records of one scheduled time of a job, over history and the table. Pure.

Their ids are equal by construction, so a checker that knows runs by their ids can't see them.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ..model.nouns import RunState, Trigger
from .history import Block, of_runs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from .state import State

_ODD: Final = np.uint64(0x9E3779B97F4A7C15)  # spreads the milliseconds over all bits


def doubled(state: State, blocks: Callable[[], Iterator[tuple[int, bytes]]]) -> list[tuple[str, int, int]]:
    """(full job name, nominal time, how many) of each scheduled time that has several run records. `blocks` gives all of history."""
    hashes = [_hashes(high, low) for high, low, _ in _parts(state, blocks)]
    found = np.sort(np.concatenate(hashes)) if hashes else np.zeros(0, np.uint64)
    twice = np.unique(found[1:][found[1:] == found[:-1]])
    if not len(twice):
        return []
    count: Counter[tuple[str, int]] = Counter()
    for high, low, names in _parts(state, blocks):
        rows = np.flatnonzero(np.isin(_hashes(high, low), twice))
        if len(rows):
            count.update(names(rows))
    return sorted((name, at, n) for (name, at), n in count.items() if n > 1)


def _hashes(high: NDArray[np.uint64], low: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """8 of the 16 bytes of run ids; what is equal here is looked at again."""
    return low ^ (high * _ODD)


_Part = tuple["NDArray[np.uint64]", "NDArray[np.uint64]", "Callable[[NDArray[np.int64]], list[tuple[str, int]]]"]


def _parts(state: State, blocks: Callable[[], Iterator[tuple[int, bytes]]]) -> Iterator[_Part]:
    """(halves of the run ids, rows of them to names and nominal times) of each block, and of the table."""
    for _, data in of_runs(blocks()):
        block = Block(data)
        mine = np.flatnonzero(_scheduled(block))
        high, low = block.ids()
        names, jobs, nominal = block.names(), block.jobs()[mine], block["nominal_us"][mine]
        yield high[mine], low[mine], _named(names, jobs, nominal)
    rows = np.array(state.runs.slots(), np.uint32)
    if len(rows):
        fields = state.runs.gather(rows)
        fields = fields[_scheduled(fields)]
        numbers, jobs = np.unique(fields["job"], return_inverse=True)
        names = state.jobs.names(numbers.astype(np.uint32))
        yield fields["id_high"].astype(np.uint64), fields["id_low"].astype(np.uint64), _named(names, jobs, fields["nominal_us"])


def _named(names: list[bytes], jobs: NDArray[Any], nominal: NDArray[np.int64]) -> Callable[[NDArray[np.int64]], list[tuple[str, int]]]:
    return lambda rows: [(names[int(jobs[i])].decode(), int(nominal[i])) for i in rows.tolist()]


def _scheduled(fields: Any) -> NDArray[np.bool_]:
    """Which rows are runs by schedule or backfill; a row of the ledger is no run."""
    return np.asarray((fields["trigger"] <= Trigger.BACKFILL) & (fields["state"] != RunState.SKIPPED), np.bool_)


__all__ = ["doubled"]

"""Completions that come too late: refused, and kept with the run, so that whoever wonders about a double effect finds its cause."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..model.nouns import STALE_MAX, Outcome, RunState
from ..state.past import unpack_past
from ..tables._runs import NO_ROW

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .core import Core



def record_stale(core: Core, worker: int, rows: NDArray[np.uint32], token: NDArray[np.int64], outcome: NDArray[np.uint8],
                 stale: NDArray[np.bool_]) -> None:
    """Record the completions that `stale` marks, at most STALE_MAX a run and each once. Those that repeat what once counted are
    taken out of `stale`: they are answered as they were then. A run that went to history keeps no more.
    """
    found: dict[tuple[int, int, int], None] = {}
    room: dict[int, int] = {}
    for i in np.flatnonzero(stale & (rows != NO_ROW)).tolist():
        row, t, how = int(rows[i]), int(token[i]), int(outcome[i])
        fields = core.state.runs.gather(rows[i : i + 1])[0]
        if fields["state"] == RunState.SKIPPED:
            continue
        attempts, kept = unpack_past(core.state.runs.blobs(row)[2])
        ended = {int(a[1]): int(a[5]) for a in attempts}
        if ended.get(t, int(Outcome.NOT_STARTED)) == how and t < fields["token"]:  # no trace is left of a lease that was handed back
            stale[i] = False
            continue
        room.setdefault(row, STALE_MAX - len(kept))
        new = how != Outcome.NOT_STARTED and (t, how) not in {(s["token"], s["outcome"]) for s in kept} and (row, t, how) not in found
        if new and room[row] > 0:
            room[row] -= 1
            found[row, t, how] = None
    if found:
        columns = dict(zip(("run", "token", "outcome"), zip(*found, strict=True), strict=True))
        arrays = {name: np.array(columns[name], dtype) for name, dtype in (("run", "<u4"), ("token", "<i8"), ("outcome", "u1"))}
        core.record("STALE", {"at": core.now.wall_us, **arrays, "worker": worker})


def answer_repeats(past: dict[bytes, dict[int, int]], ids: bytes, token: NDArray[np.int64], outcome: NDArray[np.uint8],
                   stale: NDArray[np.bool_]) -> None:
    """Take those out of `stale` that repeat what counted once, of runs that are history: `past` has {token: outcome} by run id."""
    for i in np.flatnonzero(stale).tolist():
        ended, how = past.get(ids[16 * i : 16 * i + 16], {}), int(outcome[i])
        # of a lease that was handed back no trace is left, and handing back what has ended does nothing
        if ended and (how == Outcome.NOT_STARTED or ended.get(int(token[i])) == how):
            stale[i] = False


__all__ = ["answer_repeats", "record_stale"]

"""What is remembered and for how long: keys, answers, names of finished and deleted jobs, marks of single occurrences.

All of it is forgotten by elapsed time (see `elapsed`), never by what the wall clock says alone. A name outlives its history, and as long
as a row of it is there, in the table or in history, it is known.
"""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING, Final

import numpy as np

from ..model import plain
from ..model.nouns import REQUEST_TTL_US, SERVER_UID, TOMBSTONE_US, US
from ..state import records
from ..state.state import AS_EVER
from . import keys
from .core import LOOK_US
from .memory import elapsed_us

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from .core import Core

KEYS_MAX: Final = 4_096  # looked at in a turn
JOBS_MAX: Final = 16_384
DAY_US: Final = 86_400 * US


def forget(core: Core) -> Iterator[None]:
    """Forget what is too old, a piece a turn, so that nothing waits for long."""
    state = core.state
    if state.elapsed.claims:  # one may count from now on: stamps are read with it then
        core.look()
    now = elapsed_us(core) - LOOK_US  # stamps may be so much too early
    _marks(core, now)
    over = takewhile(lambda item: state.elapsed.read(item[1][0]) + REQUEST_TTL_US < now, state.replies.items())  # the oldest come first
    rids = [rid for rid, _ in over]
    names, nobody = list(state.keys), np.empty(0, np.uint32)
    for start in range(0, max(len(rids), len(names)), KEYS_MAX):
        known = [(key, state.keys[key]) for key in names[start : start + KEYS_MAX] if key in state.keys]
        _record(core, rids[start : start + KEYS_MAX], [key for key, value in known if keys.is_over(core, key, value, now)], nobody)
        if len(known) == KEYS_MAX:
            yield
    start = 0
    while rows := state.jobs.slots(start, JOBS_MAX):
        start = rows[-1] + 1
        _record(core, [], [], _over(core, np.array(rows, np.uint32), now))
        if len(rows) == JOBS_MAX:
            yield


def _marks(core: Core, now: int) -> None:
    """Marks of occurrences that no schedule had any more."""
    state, wall = core.state, core.now.wall_us
    past_us = state.elapsed.read
    old = [pair for pair, past in state.past_us.items() if past_us(past) + TOMBSTONE_US < now and pair[1] + TOMBSTONE_US < wall]
    if old:
        job, at = (np.array(column, dtype) for column, dtype in zip(zip(*old, strict=True), (np.uint32, np.int64), strict=True))
        core.record("EXCEPT", {"at": wall, "uid": SERVER_UID, "job": job, "nominal": at, "to": np.full(len(old), AS_EVER, np.int64)})


def _over(core: Core, jobs: NDArray[np.uint32], now: int) -> NDArray[np.uint32]:
    """Which of these jobs are no more needed: not by a person, not by a row, not by history, not by a mark."""
    state = core.state
    fields = state.jobs.gather(jobs)
    over = ((fields["state"] == plain.JOB_DELETED) | (fields["state"] == plain.JOB_FINISHED)) & (fields["rows"] == 0)
    over &= fields["cursor_us"] + TOMBSTONE_US < core.now.wall_us
    if not over.any():
        return jobs[:0]
    begun, (changed, folded) = state.elapsed.begun_us, state.touched.of(jobs)
    ages = [(now - state.elapsed.read(stamps * US + begun)) // US for stamps in (changed, folded)]
    kept = (core.retention_us + DAY_US) // US  # a day longer than its history
    over &= ages[0] > np.where(folded == 0, 0, kept).clip(TOMBSTONE_US // US)
    over &= (folded == 0) | (ages[1] > kept)
    marked = [job for job, _ in state.exceptions]
    out: NDArray[np.uint32] = jobs[over & ~np.isin(jobs, marked)] if marked else jobs[over]
    return out


def _record(core: Core, rids: list[bytes], keys: list[bytes], jobs: NDArray[np.uint32]) -> None:
    if rids or keys or len(jobs):
        core.pulse.forget(jobs.tolist())
        core.answers.forgot([core.state.replies[rid][1] for rid in rids])
        core.record("FORGET", {"rid": records.Blobs(rids), "key": records.Blobs(keys), "job": jobs})


__all__ = ["forget"]

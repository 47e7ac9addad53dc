"""Which occurrences are decided though a job's cursor has not reached them: the clock went back, or a person or a backfill was ahead of it.

An occurrence is *taken* when its row is known: in the table, or in history when the clock went back. It is *lost* when the job had decided
it before the clock went back and history has dropped what became of it (see `bygone`). Neither runs again. A taken one has its row; a lost
one gets a row of the ledger, with the reason `decided`. Scheduling, catch-up, backfill, `why`, `skip`, `move` and the forecast ask here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..model.nouns import NEVER, Trigger
from ..schedules.table import KIND_AFTER
from .spans import Span, split, times

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..state.bygone import Spans
    from .core import Core


def taken(core: Core, rows: NDArray[np.uint32], nominal: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which of these occurrences have their row already: moved or backfilled ahead of time, or decided before the clock went back.

    Rows of the table are seen here; those in history are known by `state.meta.blocked`.
    """
    found = core.state.runs.exists(rows, np.ascontiguousarray(nominal)) > 0
    blocked = core.state.meta.blocked
    if blocked:
        found |= np.fromiter((pair in blocked for pair in zip(rows.tolist(), nominal.tolist(), strict=True)), np.bool_, len(rows))
    return np.asarray(found, np.bool_)


def taken_times(core: Core, row: int, at: list[int]) -> set[int]:
    """Those of a job's nominal times that have their row already."""
    nominal = np.array(at, np.int64)
    return set(nominal[taken(core, np.full(len(at), row, np.uint32), nominal)].tolist())


def taken_between(core: Core, job: int, spec: int, param: int, low: int, high: int) -> set[int]:
    """The occurrences of a span that have their row already: looked up one by one, or among the rows of the job if these are less."""
    rows = int(core.state.jobs.gather(np.array([job], np.uint32))["rows"][0])
    count = core.specs.counted(spec, param, low - 1, high)[0]
    if not count or not (rows or core.state.meta.blocked):
        return set()
    if count <= rows:
        return taken_times(core, job, list(times(core.specs, spec, param, [Span(low, high, count)])))
    fields = core.state.runs.gather(np.array(core.state.runs.of_job(job), np.uint32))
    own = fields[fields["trigger"] <= Trigger.BACKFILL]["nominal_us"].tolist()
    own += [at for row, at in core.state.meta.blocked if row == job]
    return {at for at in own if low <= at <= high}


def lost(core: Core, rows: NDArray[np.uint32], nominal: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which of these occurrences are lost. A delay after completion has no times of its own that could come again."""
    found = core.state.bygone.decided(rows, nominal)
    if found.any():
        found &= core.specs.kind[core.state.jobs.gather(np.ascontiguousarray(rows))["spec"]] != KIND_AFTER
    return found


def is_lost(core: Core, row: int, at: int) -> bool:
    """The same of one."""
    return bool(lost(core, np.array([row], np.uint32), np.array([at], np.int64))[0])


def part_lost(core: Core, job: int, spec: int, param: int, spans: list[Span]) -> tuple[list[Span], list[Span]]:
    """Spans of a job's occurrences, without the lost ones; and these."""
    gone: list[Span] = []
    for first, last in _lost_spans(core, job, spec):
        before, rest = split(core.specs, spec, param, spans, first - 1)
        inside, after = split(core.specs, spec, param, rest, last)
        spans, gone = before + after, gone + inside
    return spans, gone


def _lost_spans(core: Core, job: int, spec: int) -> Spans:
    return core.state.bygone.of(job) if core.specs.kind[spec] != KIND_AFTER else []


def any_known(core: Core) -> bool:
    """Whether any coming occurrence may be decided already, or is an exception; few servers have any."""
    state = core.state
    return bool(state.exceptions or state.meta.blocked or state.bygone.lost) or state.meta.recheck_us > core.now.wall_us


def known(core: Core, rows: NDArray[np.uint32], nominal: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which coming occurrences make no run of their own when their time comes: skipped or moved by a person, taken, or lost."""
    found, exceptions = taken(core, rows, nominal) | lost(core, rows, nominal), core.state.exceptions
    if exceptions:
        found |= np.fromiter((pair in exceptions for pair in zip(rows.tolist(), nominal.tolist(), strict=True)), np.bool_, len(rows))
    return found


def jobs_known(core: Core) -> NDArray[np.uint32]:
    """The jobs that have such occurrences."""
    state = core.state
    named = np.fromiter((row for pairs in (state.exceptions, state.meta.blocked) for row, _ in pairs), np.uint32)
    return np.unique(np.concatenate([named, state.bygone.jobs()]))


def first_open(core: Core, row: int, spec: int, param: int, at: int) -> int:
    """The first nominal time of a job from one of them on that makes a run as far as is known; NEVER for none."""
    spans, job = _lost_spans(core, row, spec), np.array([row], np.uint32)
    while at < NEVER and known(core, job, np.array([at], np.int64))[0]:
        at = core.specs.next_one(spec, param, next((last for first, last in spans if first <= at <= last), at))
    return at


__all__ = ["any_known", "first_open", "is_lost", "jobs_known", "known", "lost", "part_lost", "taken", "taken_between", "taken_times"]

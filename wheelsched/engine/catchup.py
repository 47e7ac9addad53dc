"""Catch-up: what becomes of occurrences that nobody could trigger in time.

    latest     the newest one runs, the others are folded into it (`missed` tells it how many)
    earliest   the oldest one runs, the others are folded into it
    all        every one runs, one after another in nominal order; at most `max`, the newest ones
    skip       none runs

Of `all` there may be very many: a piece is decided in a turn, the oldest first, and the job stays due until all are.
`window` drops what is older than that. What did not run is in the ledger as ranges (from, to, count). Catch-up runs stand in a ready line
of their own, behind the fresh ones of their queue and priority.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ..model.nouns import NEVER, Disposition, JobState, Reason, RunState
from ..schedules.table import KIND_AFTER
from ..state.state import SKIP
from .decided import part_lost, taken_between
from .definitions import OVERLAP_SKIP
from .overlap import room_beside_backfill
from .spans import Entry, Span, changed_away, free_and_excluded, newest, nth, split, without

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .core import Core

PIECE: Final = 2_048  # occurrences of one turn that make a run each
SKIPPED: Final = {"state": RunState.SKIPPED, "missed": 0}
_DTYPES: Final = {
    "job": np.uint32, "nominal": np.int64, "next": np.int64, "cursor": np.int64, "job_state": np.uint8, "state": np.uint8,
    "disposition": np.uint8, "reason": np.uint8, "until": np.int64, "count": np.uint32, "missed": np.uint32,
}


@dataclass(frozen=True, slots=True)
class Catching:
    """How to catch up: a policy, how far back, how many; and the reason in the ledger for what is skipped."""

    policy: str
    window_us: int | None = None
    max: int = 1_000
    reason: Reason = Reason.MISFIRE


SKIP_PAUSED: Final = Catching("skip", reason=Reason.PAUSE)


def as_columns(rows: list[dict[str, int]]) -> dict[str, NDArray[Any]]:
    """The rows that `plan` made, as columns of a DUE record."""
    return {name: np.array([r[name] for r in rows], dtype) for name, dtype in _DTYPES.items()}


def put_before(rows: list[dict[str, int]], columns: dict[str, NDArray[Any]], keep: NDArray[np.bool_]) -> dict[str, NDArray[Any]]:
    """Further rows of a DUE record, and behind them those that are kept."""
    more = as_columns(rows)
    return {name: np.concatenate([more[name], columns[name][keep]]) for name in _DTYPES}


def ledger_rows(entries: list[Entry], common: dict[str, int]) -> list[dict[str, int]]:
    """Rows of a DUE record for occurrences that make no run. `common`: job, next, cursor, job_state."""
    return [
        {"nominal": e.span.first, "until": e.span.last, "count": e.span.n, "disposition": e.disposition, "reason": e.reason,
         **SKIPPED, **common}
        for e in entries
    ]


def owed_after(core: Core, fields: Any) -> NDArray[np.int64]:
    """After which instant a job's occurrences are not decided: its cursor, or when it was last put, paused or resumed.

    That time may be ahead of a clock that went back; then only the cursor counts.
    """
    cursor, updated, now = fields["cursor_us"], fields["updated_us"], core.now.wall_us
    return np.where(updated <= now, np.maximum(cursor, updated), np.where(cursor < 0, now, cursor))


def plan(core: Core, job: int, fields: Any, before_us: int, catching: Catching) -> list[dict[str, int]]:
    """Rows for the occurrences of one job from its next one up to (not with) `before_us`."""
    specs, spec, param, first = core.specs, int(fields["spec"]), int(fields["param_us"]), int(fields["next_us"])
    owed = int(owed_after(core, fields))
    if catching.policy == "all":
        before_us, catching = _piece(core, job, spec, param, first, before_us, catching)
    begin = min(first, owed + 1) if specs.calendar[spec] else first
    spans, excluded = free_and_excluded(specs, spec, param, begin - 1, before_us - 1)
    entries = excluded_entries(core, job, spec, param, excluded)
    entries += changed_away(specs, spec, param, min(owed, first), before_us - 1)
    last = max((span.last for span in [*spans, *excluded, *(e.span for e in entries)]), default=-1)
    spans, special = _exceptions(core, job, spec, param, spans)
    entries += special
    if catching.window_us is not None:
        old, spans = split(specs, spec, param, spans, min(core.now.wall_us - catching.window_us, before_us) - 1)
        entries += [Entry(span, Disposition.SKIPPED, Reason.WINDOW) for span in old]
    chosen, folded = _choose(core, spec, param, spans, catching)
    refused = _refused(core, job, spec, fields, chosen)
    following = specs.next_one(spec, param, before_us - 1)
    runs, following, limited = (chosen, following, []) if refused else _limit(core, spec, fields, chosen, following, spans)
    if refused or not runs:  # there is nothing that they could be folded into
        folded = [Entry(e.span, Disposition.SKIPPED, e.reason) for e in folded]
    entries += folded + limited
    done = following == NEVER and specs.kind[spec] != KIND_AFTER
    common = {
        "job": job, "next": following, "cursor": max(last, int(fields["cursor_us"])),
        "job_state": JobState.FINISHED if done else JobState.ACTIVE,
    }
    rows = ledger_rows(entries, common) + _states(core, spec, fields, runs, common, refused=refused)
    if not rows:  # nothing was due after all: the job still moves on
        rows = [{"nominal": first, "state": 0, "disposition": 0, "reason": 0, "until": 0, "count": 0, "missed": 0, **common}]
    return rows


def _piece(core: Core, job: int, spec: int, param: int, first: int, before_us: int, catching: Catching) -> tuple[int, Catching]:
    """Up to where `all` is decided in this turn, and how."""
    specs = core.specs
    since = first if catching.window_us is None else max(first, min(core.now.wall_us - catching.window_us, before_us))
    spans, _ = free_and_excluded(specs, spec, param, since - 1, before_us - 1)
    spans, _ = part_lost(core, job, spec, param, spans)
    total = sum(span.n for span in spans)
    wanted = min(total, catching.max)
    if wanted <= PIECE + 1:  # one that is left alone would be no catch-up any more
        return before_us, catching
    end = nth(specs, spec, param, spans, total - wanted + PIECE)
    return end + 1, replace(catching, max=PIECE)


def excluded_entries(core: Core, job: int, spec: int, param: int, spans: list[Span]) -> list[Entry]:
    """Ledger entries of what a calendar excludes, without what has a run all the same: moved before the calendar came."""
    if spans:
        spans = without(core.specs, spec, param, spans, _with_row(core, job, spec, param, spans[0].first, spans[-1].last)[0])
    return [Entry(span, Disposition.SKIPPED, Reason.CALENDAR) for span in spans]


def _with_row(core: Core, job: int, spec: int, param: int, low: int, high: int) -> tuple[set[int], list[int]]:
    """(occurrences that have their row already: moved, or fired before the clock went back; those that a person said to skip)."""
    marked = {
        at: to for (row, at), to in core.state.exceptions.items()
        if row == job and low <= at <= high and core.specs.one(spec, param, at - 1) == at
    }
    has_row = {at for at, to in marked.items() if to != SKIP} | taken_between(core, job, spec, param, low, high)
    return has_row, [at for at, to in marked.items() if to == SKIP and at not in has_row]


def _exceptions(core: Core, job: int, spec: int, param: int, spans: list[Span]) -> tuple[list[Span], list[Entry]]:
    """Leave out what has its row already, what a person said to skip, and what was decided before the clock went back."""
    if not spans:
        return spans, []
    has_row, skipped = _with_row(core, job, spec, param, spans[0].first, spans[-1].last)
    spans = without(core.specs, spec, param, spans, has_row | set(skipped))
    spans, gone = part_lost(core, job, spec, param, spans)
    entries = [Entry(Span(at, at, 1), Disposition.SKIPPED, Reason.MANUAL) for at in skipped]
    return spans, entries + [Entry(span, Disposition.SKIPPED, Reason.DECIDED) for span in gone]


def _choose(core: Core, spec: int, param: int, spans: list[Span], catching: Catching) -> tuple[list[tuple[int, int]], list[Entry]]:
    """(nominal, missed) of those that run, and ledger entries of the others."""
    total = sum(span.n for span in spans)
    if not total:
        return [], []
    specs = core.specs
    if catching.policy == "skip":
        return [], [Entry(span, Disposition.SKIPPED, catching.reason) for span in spans]
    if catching.policy == "all":
        chosen = newest(specs, spec, param, spans, catching.max)
        dropped, _ = split(specs, spec, param, spans, chosen[0] - 1)
        return [(at, 0) for at in chosen], [Entry(span, Disposition.SKIPPED, Reason.MAX) for span in dropped]
    at = spans[-1].last if catching.policy == "latest" else spans[0].first
    others = without(specs, spec, param, spans, [at])
    return [(at, total - 1)], [Entry(span, Disposition.COALESCED, Reason.MISFIRE) for span in others]


def _limit(core: Core, spec: int, fields: Any, runs: list[tuple[int, int]], following: int, spans: list[Span]
           ) -> tuple[list[tuple[int, int]], int, list[Entry]]:
    """What max_runs leaves of the runs for these spans; after the last one nothing follows."""
    room = max(0, int(core.specs.max_runs[spec]) - int(fields["fired"]))
    if len(runs) < room:
        return runs, following, []
    cut = [Span(at, at, 1) for at, _ in runs[room:]]
    if len(cut) > 1:  # of several runs all are made: what is cut off is the end of the spans
        cut = split(core.specs, spec, int(fields["param_us"]), spans, cut[0].first - 1)[1]
    return runs[:room], NEVER, [Entry(span, Disposition.SKIPPED, Reason.LIMIT) for span in cut]


def _refused(core: Core, job: int, spec: int, fields: Any, runs: list[tuple[int, int]]) -> bool:
    """The one catch-up run of a busy job under `skip` is skipped as any other occurrence."""
    busy = bool(fields["active"] + fields["waiting"]) and len(runs) == 1 and core.specs.overlap[spec] == OVERLAP_SKIP
    return busy and not room_beside_backfill(core, job, OVERLAP_SKIP, 1)


def _states(core: Core, spec: int, fields: Any, runs: list[tuple[int, int]], common: dict[str, int], *, refused: bool
            ) -> list[dict[str, int]]:
    """The first run starts unless the job is busy; the others wait for their turn. `allow` starts all up to its limit."""
    busy = int(fields["active"]) + int(fields["waiting"])
    limit = int(core.specs.overlap_max[spec]) if core.state.specs[spec]["overlap"]["policy"] == "allow" else 1
    rows = []
    for nominal, missed in runs:
        row = {
            "nominal": nominal, "state": RunState.QUEUED, "disposition": Disposition.FIRED, "reason": Reason.MISFIRE, "until": 0,
            "count": 0, "missed": missed, **common,
        }
        if refused:
            row |= {"state": RunState.SKIPPED, "disposition": Disposition.SKIPPED, "reason": Reason.OVERLAP, "until": nominal, "count": 1,
                    "missed": 0}
        elif busy >= limit:
            row |= {"state": RunState.SCHEDULED, "until": -1}
        busy += 1
        rows.append(row)
    return rows


__all__ = ["PIECE", "SKIP_PAUSED", "Catching", "as_columns", "excluded_entries", "ledger_rows", "owed_after", "plan", "put_before"]

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
from ..schedules.table import KIND_AFTER, KIND_AT
from ..state.state import SKIP
from .decided import part_lost, taken_between
from .definitions import OVERLAP_SKIP
from .overlap import room_beside_backfill
from .spans import Entry, Span, changed_away, free_and_excluded, newest, nth, split, without

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .engine import Engine

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


def owed_after(engine: Engine, fields: Any) -> NDArray[np.int64]:
    """After which instant a job's occurrences are not decided: its cursor, or when it was last put, paused or resumed.

    That time may be ahead of a clock that went back; then only the cursor counts.
    """
    cursor, updated, now = fields["cursor_us"], fields["updated_us"], engine.now.wall_us
    return np.where(updated <= now, np.maximum(cursor, updated), np.where(cursor < 0, now, cursor))


def plan(engine: Engine, job: int, fields: Any, before_us: int, catching: Catching) -> list[dict[str, int]]:
    """Rows for the occurrences of one job from its next one up to (not with) `before_us`."""
    specs, spec, param, first = engine.specs, int(fields["spec"]), int(fields["param_us"]), int(fields["next_us"])
    owed = int(owed_after(engine, fields))
    if catching.policy == "all":
        before_us, catching = _piece(engine, job, spec, param, first, before_us, catching)
    begin = min(first, owed + 1) if specs.calendar[spec] else first
    spans, excluded = free_and_excluded(specs, spec, param, begin - 1, before_us - 1)
    entries = excluded_entries(engine, job, spec, param, excluded)
    entries += changed_away(specs, spec, param, min(owed, first), before_us - 1)
    last = max((span.last for span in [*spans, *excluded, *(e.span for e in entries)]), default=-1)
    spans, special = _exceptions(engine, job, spec, param, spans)
    entries += special
    if catching.window_us is not None:
        old, spans = split(specs, spec, param, spans, min(engine.now.wall_us - catching.window_us, before_us) - 1)
        entries += [Entry(span, Disposition.SKIPPED, Reason.WINDOW) for span in old]
    chosen, folded = _choose(engine, spec, param, spans, catching)
    refused = _refused(engine, job, spec, fields, chosen)
    following = specs.next_one(spec, param, before_us - 1)
    runs, following, limited = (chosen, following, []) if refused else _limit(engine, spec, fields, chosen, following, spans)
    if refused or not runs:  # there is nothing that they could be folded into
        folded = [Entry(e.span, Disposition.SKIPPED, e.reason) for e in folded]
    entries += folded + limited
    done = following == NEVER and specs.kind[spec] != KIND_AFTER
    common = {
        "job": job, "next": following, "cursor": max(last, int(fields["cursor_us"])),
        "job_state": JobState.FINISHED if done else JobState.ACTIVE,
    }
    rows = ledger_rows(entries, common) + _states(engine, spec, fields, runs, common, refused=refused)
    if not rows:  # nothing was due after all: the job still moves on
        rows = [{"nominal": first, "state": 0, "disposition": 0, "reason": 0, "until": 0, "count": 0, "missed": 0, **common}]
    return rows


def _piece(engine: Engine, job: int, spec: int, param: int, first: int, before_us: int, catching: Catching) -> tuple[int, Catching]:
    """Up to where `all` is decided in this turn, and how."""
    specs = engine.specs
    since = first if catching.window_us is None else max(first, min(engine.now.wall_us - catching.window_us, before_us))
    spans, _ = free_and_excluded(specs, spec, param, since - 1, before_us - 1)
    spans, _ = part_lost(engine, job, spec, param, spans)
    total = sum(span.n for span in spans)
    wanted = min(total, catching.max)
    if wanted <= PIECE + 1:  # one that is left alone would be no catch-up any more
        return before_us, catching
    end = nth(specs, spec, param, spans, total - wanted + PIECE)
    return end + 1, replace(catching, max=PIECE)


def excluded_entries(engine: Engine, job: int, spec: int, param: int, spans: list[Span]) -> list[Entry]:
    """Ledger entries of what a calendar excludes, without what has a run all the same: moved before the calendar came."""
    if spans:
        spans = without(engine.specs, spec, param, spans, _with_row(engine, job, spec, param, spans[0].first, spans[-1].last)[0])
    return [Entry(span, Disposition.SKIPPED, Reason.CALENDAR) for span in spans]


def _with_row(engine: Engine, job: int, spec: int, param: int, low: int, high: int) -> tuple[set[int], list[int]]:
    """(occurrences that have their row already: moved, or fired before the clock went back; those that a person said to skip)."""
    marked = {
        at: to for (row, at), to in engine.state.exceptions.items()
        if row == job and low <= at <= high and engine.specs.one(spec, param, at - 1) == at
    }
    has_row = {at for at, to in marked.items() if to != SKIP} | taken_between(engine, job, spec, param, low, high)
    return has_row, [at for at, to in marked.items() if to == SKIP and at not in has_row]


def _exceptions(engine: Engine, job: int, spec: int, param: int, spans: list[Span]) -> tuple[list[Span], list[Entry]]:
    """Leave out what has its row already, what a person said to skip, and what was decided before the clock went back."""
    if not spans:
        return spans, []
    has_row, skipped = _with_row(engine, job, spec, param, spans[0].first, spans[-1].last)
    spans = without(engine.specs, spec, param, spans, has_row | set(skipped))
    spans, gone = part_lost(engine, job, spec, param, spans)
    entries = [Entry(Span(at, at, 1), Disposition.SKIPPED, Reason.MANUAL) for at in skipped]
    return spans, entries + [Entry(span, Disposition.SKIPPED, Reason.DECIDED) for span in gone]


def _choose(engine: Engine, spec: int, param: int, spans: list[Span], catching: Catching) -> tuple[list[tuple[int, int]], list[Entry]]:
    """(nominal, missed) of those that run, and ledger entries of the others."""
    total = sum(span.n for span in spans)
    if not total:
        return [], []
    specs = engine.specs
    if catching.policy == "skip":
        return [], [Entry(span, Disposition.SKIPPED, catching.reason) for span in spans]
    if catching.policy == "all":
        chosen = newest(specs, spec, param, spans, catching.max)
        dropped, _ = split(specs, spec, param, spans, chosen[0] - 1)
        return [(at, 0) for at in chosen], [Entry(span, Disposition.SKIPPED, Reason.MAX) for span in dropped]
    at = spans[-1].last if catching.policy == "latest" else spans[0].first
    others = without(specs, spec, param, spans, [at])
    return [(at, total - 1)], [Entry(span, Disposition.COALESCED, Reason.MISFIRE) for span in others]


def _limit(engine: Engine, spec: int, fields: Any, runs: list[tuple[int, int]], following: int, spans: list[Span]
           ) -> tuple[list[tuple[int, int]], int, list[Entry]]:
    """What max_runs leaves of the runs for these spans; after the last one nothing follows."""
    room = max(0, int(engine.specs.max_runs[spec]) - int(fields["fired"]))
    if len(runs) < room:
        return runs, following, []
    cut = [Span(at, at, 1) for at, _ in runs[room:]]
    if len(cut) > 1:  # of several runs all are made: what is cut off is the end of the spans
        cut = split(engine.specs, spec, int(fields["param_us"]), spans, cut[0].first - 1)[1]
    return runs[:room], NEVER, [Entry(span, Disposition.SKIPPED, Reason.LIMIT) for span in cut]


def _refused(engine: Engine, job: int, spec: int, fields: Any, runs: list[tuple[int, int]]) -> bool:
    """The one catch-up run of a busy job under `skip` is skipped as any other occurrence."""
    busy = bool(fields["active"] + fields["waiting"]) and len(runs) == 1 and engine.specs.overlap[spec] == OVERLAP_SKIP
    return busy and not room_beside_backfill(engine, job, OVERLAP_SKIP, 1)


def _states(engine: Engine, spec: int, fields: Any, runs: list[tuple[int, int]], common: dict[str, int], *, refused: bool
            ) -> list[dict[str, int]]:
    """The first run starts unless the job is busy; the others wait for their turn. `allow` starts all up to its limit."""
    busy = int(fields["active"]) + int(fields["waiting"])
    limit = int(engine.specs.overlap_max[spec]) if engine.state.specs[spec]["overlap"]["policy"] == "allow" else 1
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


def settle(engine: Engine, row: int) -> None:
    """Ledger rows for what calendars and zone changes took away up to now: a command is about to change what that depends on."""
    fields = engine.state.jobs.gather(np.array([row], np.uint32))[0]
    if fields["state"] != JobState.ACTIVE or engine.state.meta.held_us >= 0:
        return
    spec, param, owed, now = int(fields["spec"]), int(fields["param_us"]), int(owed_after(engine, fields)), engine.now.wall_us
    entries = changed_away(engine.specs, spec, param, owed, now)
    if engine.specs.calendar[spec]:
        _, excluded = free_and_excluded(engine.specs, spec, param, owed, now)
        entries += excluded_entries(engine, row, spec, param, excluded)
    if entries:
        last = max(e.span.last for e in entries)
        common = {"job": row, "next": int(fields["next_us"]), "cursor": max(last, int(fields["cursor_us"])), "job_state": JobState.ACTIVE}
        engine.record_planned(ledger_rows(entries, common))


def unsettled(engine: Engine, fields: Any) -> NDArray[np.bool_]:
    """Which jobs a command must call `skip_unattended` for: most have nothing but their next occurrence open."""
    specs, spec, state = engine.specs, fields["spec"], fields["state"]
    noisy = (specs.calendar[spec] > 0) | ~specs.quiet(spec, owed_after(engine, fields), np.full(len(spec), engine.now.wall_us, np.int64))
    attended = (state == JobState.ACTIVE) if engine.state.meta.held_us < 0 else np.zeros(len(spec), np.bool_)
    return np.asarray(np.where(attended, noisy, state <= JobState.PAUSED), np.bool_)


def skip_unattended(engine: Engine, row: int, *, once: bool = False) -> None:
    """What a job missed up to now, paused or while all triggering was held, is skipped for good; and what else took occurrences away.

    A command is about to end that pause or to change its definition. `once`: a paused one-time job's instant too, which it owes on resume
    as long as it keeps it.
    """
    settle(engine, row)
    fields = engine.state.jobs.gather(np.array([row], np.uint32))[0]
    state, kind = fields["state"], engine.specs.kind[int(fields["spec"])]
    if state == JobState.PAUSED and kind == KIND_AT and once and int(fields["cursor_us"]) < int(fields["param_us"]) <= engine.now.wall_us:
        fields["next_us"] = fields["param_us"]
        planned = plan(engine, row, fields, engine.now.wall_us + 1, SKIP_PAUSED)
        engine.record_planned([p | {"job_state": state, "next": NEVER} for p in planned])
    elif state == JobState.PAUSED and kind not in (KIND_AT, KIND_AFTER):
        planned = plan_unattended(engine, row, fields, SKIP_PAUSED)
        engine.record_planned([p | {"job_state": state, "next": NEVER} for p in planned])
    elif state == JobState.ACTIVE and engine.state.meta.held_us >= 0:
        engine.record_planned(plan_unattended(engine, row, fields, SKIP_PAUSED))


def plan_unattended(engine: Engine, row: int, fields: Any, catching: Catching) -> list[dict[str, int]]:
    """Rows for all that a paused or held job owes up to now, with what calendars and zone changes took away; none if it owes nothing."""
    specs, spec, param, now = engine.specs, int(fields["spec"]), int(fields["param_us"]), engine.now.wall_us
    owed = int(owed_after(engine, fields))
    fields = fields.copy()
    first = int(fields["next_us"])
    if specs.kind[spec] != KIND_AFTER:  # its grid has what calendars exclude as well
        first = min(first, specs.one(spec, param, owed))
    fields["next_us"] = first
    if first > now and not changed_away(specs, spec, param, owed, now):
        return []
    return plan(engine, row, fields, now + 1, catching)


__all__ = [
    "PIECE", "SKIP_PAUSED", "Catching", "as_columns", "excluded_entries", "ledger_rows", "owed_after", "plan",
    "plan_unattended", "put_before", "settle", "skip_unattended", "unsettled",
]

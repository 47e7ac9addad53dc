"""Catch-up: what becomes of occurrences that nobody could trigger in time.

    latest     the newest one runs, the others are folded into it (`missed` tells it how many)
    earliest   the oldest one runs, the others are folded into it
    all        every one runs, one after another in nominal order; at most `max`, the newest ones
    skip       none runs

`window` drops what is older than that. What did not run is in the ledger as one range (from, to, count).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from .model import NEVER, Disposition, JobState, Reason, RunState
from .specs import KIND_AT

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .engine import Engine

COUNT_MAX: Final = 5_000_000  # counting stops here for one job; the range in the ledger is still exact
_DTYPES: Final = {
    "job": np.uint32, "nominal": np.int64, "next": np.int64, "cursor": np.int64, "job_state": np.uint8, "state": np.uint8,
    "disposition": np.uint8, "reason": np.uint8, "until": np.int64, "count": np.uint32, "missed": np.uint32,
}


def as_columns(rows: list[dict[str, int]]) -> dict[str, NDArray[Any]]:
    """The rows that `plan` made, as columns of a DUE record."""
    return {name: np.array([r[name] for r in rows], dtype) for name, dtype in _DTYPES.items()}


def catch_up(engine: Engine, columns: dict[str, NDArray[Any]], jobs: NDArray[Any], slow: NDArray[np.bool_]) -> dict[str, NDArray[Any]]:
    """The columns of a DUE record with the rows in `slow` replaced by what each job's policy makes of its misfires."""
    planned = []
    for i in np.flatnonzero(slow).tolist():
        planned += plan(engine, int(columns["job"][i]), jobs[i])
    missed = as_columns(planned)
    return {name: np.concatenate([columns[name][~slow], missed[name]]) for name in _DTYPES}


def plan(engine: Engine, job: int, fields: Any, before_us: int | None = None, policy: dict[str, Any] | None = None,
         skip_reason: Reason = Reason.MISFIRE) -> list[dict[str, int]]:
    """Rows for the occurrences of one job from its next one up to (not with) `before_us`, by its own catch-up policy or the given one."""
    before = engine.missed_before_us if before_us is None else before_us
    spec, param, first = int(fields["spec"]), int(fields["param_us"]), int(fields["next_us"])
    wire = engine.state.specs[spec]
    catchup = policy or wire["catchup"]
    following = _next(engine, spec, param, before - 1)
    ledger: list[tuple[int, int, int, Disposition, Reason]] = []
    runs: list[tuple[int, int]] = []  # nominal, missed
    window = catchup["window_us"]
    oldest = first
    if window is not None and engine.now.wall_us - window > first:
        count, dropped, last = _count(engine, spec, param, first - 1, min(engine.now.wall_us - window, before) - 1)
        if count:
            ledger.append((dropped, last, count, Disposition.SKIPPED, Reason.WINDOW))
            oldest = _next(engine, spec, param, last)
    count, oldest, newest = _count(engine, spec, param, oldest - 1, before - 1)
    last = max(newest, ledger[-1][1] if ledger else -1, int(fields["cursor_us"]))
    if count and catchup["policy"] == "skip":
        ledger.append((oldest, newest, count, Disposition.SKIPPED, skip_reason))
    elif count and catchup["policy"] == "latest":
        if count > 1:
            ledger.append((oldest, _before(engine, spec, param, oldest, newest), count - 1, Disposition.COALESCED, Reason.MISFIRE))
        runs.append((newest, count - 1))
    elif count and catchup["policy"] == "earliest":
        runs.append((oldest, count - 1))
        if count > 1:
            ledger.append((_next(engine, spec, param, oldest), newest, count - 1, Disposition.COALESCED, Reason.MISFIRE))
    elif count:
        runs = [(at, 0) for at in _newest(engine, spec, param, oldest, newest, catchup["max"])]
        if count > len(runs):
            ledger.append((oldest, _before(engine, spec, param, oldest, runs[0][0]), count - len(runs), Disposition.SKIPPED, Reason.MAX))
    room = int(engine.specs.max_runs[spec]) - int(fields["fired"])
    busy = int(fields["active"]) + int(fields["waiting"])
    refused = busy > 0 and len(runs) == 1 and wire["overlap"]["policy"] == "skip"  # an occurrence without a run uses none of max_runs
    taken = engine.taken(np.full(len(runs), job, np.uint32), np.array([at for at, _ in runs], np.int64)).tolist()
    runs = [run for run, has_one in zip(runs, taken, strict=True) if not has_one]
    if len(runs) >= room and not refused:
        for at, _ in runs[max(room, 0):]:
            ledger.append((at, at, 1, Disposition.SKIPPED, Reason.LIMIT))
        runs = runs[: max(room, 0)]
        following = NEVER
    common = {"job": job, "next": following, "cursor": last, "job_state": JobState.FINISHED if following == NEVER else JobState.ACTIVE}
    rows = [
        {"nominal": a, "state": RunState.SKIPPED, "disposition": d, "reason": r, "until": b, "count": n, "missed": 0, **common}
        for a, b, n, d, r in ledger
    ]
    rows += _states(engine, spec, busy, runs, common, refused=refused)
    if not rows:  # nothing was due after all: the job still moves on
        rows = [{"nominal": first, "state": 0, "disposition": 0, "reason": 0, "until": 0, "count": 0, "missed": 0, **common}]
    return rows


def paused_since(engine: Engine, fields: Any) -> NDArray[np.int64]:
    """After which instant a paused recurring job has occurrences that are not decided. `updated_us` is ahead of a clock that went back."""
    cursor = fields["cursor_us"]
    return np.where(fields["updated_us"] <= engine.now.wall_us, np.maximum(cursor, fields["updated_us"]),
                    np.where(cursor < 0, engine.now.wall_us, cursor))


def skip_paused(engine: Engine, row: int) -> None:
    """What a paused job missed up to now is skipped for good, since a command is about to end that pause or its definition."""
    rows = np.array([row], np.uint32)
    fields = engine.state.jobs.gather(rows)
    if fields["state"][0] != JobState.PAUSED or engine.specs.kind[fields["spec"][0]] == KIND_AT:
        return
    fields["next_us"] = engine.specs.next(fields["spec"].copy(), fields["param_us"].copy(), paused_since(engine, fields))
    if fields["next_us"][0] <= engine.now.wall_us:
        policy = {"policy": "skip", "window_us": None, "max": None}
        planned = plan(engine, row, fields[0], engine.now.wall_us + 1, policy, Reason.PAUSE)
        engine.record_planned([p | {"next": NEVER, "job_state": JobState.PAUSED} for p in planned])


def _states(engine: Engine, spec: int, busy: int, runs: list[tuple[int, int]], common: dict[str, int], *,
            refused: bool) -> list[dict[str, int]]:
    """The first run starts unless the job is busy; the others wait for their turn. `allow` starts all up to its limit."""
    overlap = engine.state.specs[spec]["overlap"]["policy"]
    limit = int(engine.specs.overlap_max[spec])
    rows = []
    for nominal, missed in runs:
        row = {
            "nominal": nominal, "state": RunState.QUEUED, "disposition": Disposition.FIRED, "reason": Reason.NONE, "until": 0, "count": 0,
            "missed": missed, **common,
        }
        if overlap == "allow":
            if busy >= limit:
                row |= {"state": RunState.SCHEDULED, "until": -1}
        elif refused:
            row |= {"state": RunState.SKIPPED, "disposition": Disposition.SKIPPED, "reason": Reason.OVERLAP, "until": nominal, "count": 1}
        elif busy:
            row |= {"state": RunState.SCHEDULED, "until": -1}
        busy += 1
        rows.append(row)
    return rows


def _next(engine: Engine, spec: int, param: int, after: int) -> int:
    return int(engine.specs.next(np.array([spec], np.uint32), np.array([param], np.int64), np.array([after], np.int64))[0])


def _count(engine: Engine, spec: int, param: int, after: int, until: int) -> tuple[int, int, int]:
    s = engine.specs
    until = min(until, int(s.end[spec]))
    after = max(after, int(s.start[spec]) - 1)
    count, first, last = s.schedules.count_between(int(s.kind[spec]), int(s.a[spec]), param, after, until, COUNT_MAX)
    return (count, first, last) if count else (0, NEVER, -1)


def _before(engine: Engine, spec: int, param: int, oldest: int, at: int) -> int:
    return _count(engine, spec, param, oldest - 1, at - 1)[2]


def _newest(engine: Engine, spec: int, param: int, oldest: int, newest: int, most: int) -> list[int]:
    """The last `most` occurrences of a range, oldest first: stepping back, so a long outage costs no walk through all of it."""
    s = engine.specs
    found: list[int] = []
    at = newest
    while oldest <= at < NEVER and len(found) < most:
        found.append(at)
        at = s.schedules.prev_one(int(s.kind[spec]), int(s.a[spec]), param, at)
    return found[::-1]

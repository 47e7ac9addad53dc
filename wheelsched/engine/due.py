"""Due occurrences: one DUE record for a batch of jobs. What is plain is decided in arrays, the rest job by job.

What can become of an occurrence that is due in time, in this order: it has its row already, a person skipped it, a calendar excludes it,
max_runs is used up, an open run of the job is in its way (overlap), or it makes a run: queued, armed for its jittered instant, or
waiting for its turn. Beside it, ledger rows for what a calendar or a zone change took away since the last one decided.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ..model import plain
from ..model.nouns import NEVER, Reason
from ..schedules.table import KIND_AFTER
from ..state.state import SKIP
from .catchup import PIECE, Catching, as_columns, excluded_entries, ledger_rows, owed_after, plan, put_before
from .decided import is_lost, lost, taken, taken_times
from .definitions import OVERLAP_ALLOW, OVERLAP_BUFFER, OVERLAP_REPLACE
from .overlap import make_room, room_beside_backfill
from .spans import changed_away, free_and_excluded
from .start_times import armed_us
from .turn import Later

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .core import Core

WAITS: Final = -1  # `until` of a run that waits for its turn
ROOM: Final = 2_048  # occurrences that the commands of a turn decide; the batch that passes it is the last one
_BATCH: Final = 8_192  # jobs of it


def decide(core: Core, rows: NDArray[np.uint32]) -> int:
    """One DUE record for the next occurrence of each job, and the misfires of those that nobody could trigger in time. How many rows."""
    jobs = core.state.jobs.gather(rows)
    specs, spec, nominal = core.specs, jobs["spec"], jobs["next_us"].copy()
    after = specs.next(spec, jobs["param_us"], nominal)
    missed = nominal < core.missed_before_us
    slow = missed & ((after < core.missed_before_us) | specs.skip_missed[spec] | _outside_window(core, spec, nominal, missed))
    columns = _plain(core, rows, jobs, nominal, after, missed)
    more: list[dict[str, int]] = []
    for i in np.flatnonzero(_odd(core, rows, jobs, nominal) & ~slow).tolist():
        more += _odd_one(core, columns, jobs, i)
    for i in np.flatnonzero(slow).tolist():
        if len(more) >= PIECE:  # enough for one turn
            core.arm_jobs(rows[i : i + 1], nominal[i : i + 1])
            continue
        more += plan(core, int(rows[i]), jobs[i], core.missed_before_us, _catching(core, int(spec[i]), int(nominal[i])))
    if more:  # first: an occurrence that an open run blocks may lengthen a range, but not over what a calendar excludes
        columns = put_before(more, columns, ~slow)
    record(core, columns, len(more))
    return len(columns["job"])


def _catching(core: Core, spec: int, first_us: int) -> Catching:
    """How a definition catches up; what came due while all triggering was held is told as such."""
    wire = core.state.specs[spec]["catchup"]
    begin, end = core.held_span
    reason = Reason.PAUSE if begin <= first_us < end else Reason.MISFIRE
    return Catching(wire["policy"], wire["window_us"], wire["max"] or 1_000, reason)


def _plain(core: Core, rows: NDArray[np.uint32], jobs: Any, nominal: NDArray[np.int64], after: NDArray[np.int64],
           missed: NDArray[np.bool_]) -> dict[str, NDArray[Any]]:
    """The columns of a DUE record, by overlap policy, max_runs and jitter alone. Changes `after` to NEVER where max_runs is used up."""
    specs, spec, n = core.specs, jobs["spec"], len(rows)
    busy = jobs["active"] + jobs["waiting"]
    policy, limit = specs.overlap[spec], specs.overlap_max[spec]
    waits = (busy > 0) & (((policy == OVERLAP_BUFFER) & (jobs["waiting"] < limit)) | (policy == OVERLAP_REPLACE))
    refused = ~waits & (busy > 0) & ((policy != OVERLAP_ALLOW) | (busy >= limit))
    if refused.any() and core.state.runs.any_makes_up():
        for i in np.flatnonzero(refused).tolist():  # what makes up for the past takes no fresh occurrence away
            waits[i] = room_beside_backfill(core, int(rows[i]), int(policy[i]), int(limit[i]))
        refused &= ~waits
    after[~refused & (jobs["fired"] + np.uint32(1) >= specs.max_runs[spec])] = NEVER
    used_up = jobs["fired"] >= specs.max_runs[spec]  # a moved occurrence was the last one
    after[used_up] = NEVER
    waits &= ~used_up
    refused |= used_up
    state = np.where(refused, plain.RUN_SKIPPED, np.where(waits, plain.RUN_SCHEDULED, plain.RUN_QUEUED)).astype(np.uint8)
    until = np.where(waits, WAITS, np.where(refused, nominal, 0)).astype(np.int64)
    if specs.any_jitter:
        _jitter(core, jobs, nominal, after, (state == plain.RUN_QUEUED) & ~missed, state, until)
    coalesced = refused & ~used_up & (policy == OVERLAP_BUFFER) & (limit == 1)
    because = np.where(used_up, plain.REASON_LIMIT, plain.REASON_OVERLAP)
    disposition = np.where(coalesced, plain.DISPOSITION_COALESCED, np.where(refused, plain.DISPOSITION_SKIPPED, plain.DISPOSITION_FIRED))
    return {
        "job": rows, "nominal": nominal, "next": after, "cursor": nominal.copy(),
        "job_state": _job_state(core, spec, after, jobs["fired"] + ~refused),
        "state": state,
        "disposition": disposition.astype(np.uint8),
        "reason": np.where(refused, because, np.where(missed, plain.REASON_MISFIRE, plain.REASON_NONE)).astype(np.uint8),
        "until": until, "count": refused.astype(np.uint32), "missed": np.zeros(n, np.uint32),
    }


def _job_state(core: Core, spec: NDArray[np.uint32], after: NDArray[np.int64], fired: NDArray[np.uint32]) -> NDArray[np.uint8]:
    """Finished where nothing follows; after_completion goes on until max_runs is used up."""
    over = after == NEVER
    if core.specs.any_after:
        over &= (core.specs.kind[spec] != KIND_AFTER) | (fired >= core.specs.max_runs[spec])
    return np.where(over, plain.JOB_FINISHED, plain.JOB_ACTIVE).astype(np.uint8)


def _jitter(core: Core, jobs: Any, nominal: NDArray[np.int64], after: NDArray[np.int64], fresh: NDArray[np.bool_],
            state: NDArray[np.uint8], until: NDArray[np.int64]) -> None:
    """Arm fresh runs for their jittered instant: a stable offset, never past the next nominal time. Changes `state` and `until`."""
    armed = armed_us(core.specs, jobs["spec"], jobs["key_low"], nominal, after)
    later = fresh & (armed > core.now.wall_us)
    state[later] = plain.RUN_SCHEDULED
    until[later] = armed[later]


def _outside_window(core: Core, spec: NDArray[np.uint32], nominal: NDArray[np.int64], missed: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Which misfires are older than their catch-up window."""
    if not missed.any():
        return missed
    specs, which = np.unique(spec, return_inverse=True)
    windows = [core.state.specs[s]["catchup"]["window_us"] for s in specs.tolist()]
    return np.asarray(nominal < core.now.wall_us - np.array([NEVER // 2 if w is None else w for w in windows], np.int64)[which], np.bool_)


def _odd(core: Core, rows: NDArray[np.uint32], jobs: Any, nominal: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which jobs need a look of their own: an exception, one that is decided already, a calendar, or a zone change on the way."""
    specs, spec = core.specs, jobs["spec"]
    odd = taken(core, rows, nominal) | lost(core, rows, nominal) | ~specs.quiet(spec, owed_after(core, jobs), nominal)
    if core.state.exceptions:
        pairs = zip(rows.tolist(), nominal.tolist(), strict=True)
        odd |= np.fromiter((pair in core.state.exceptions for pair in pairs), np.bool_, len(rows))
    if specs.calendar_sets:
        some = np.flatnonzero(specs.calendar[spec])
        param, owed = jobs["param_us"][some], owed_after(core, jobs[some])
        odd[some] |= (specs.grid(spec[some], param, owed) != nominal[some]) | specs.excluded(spec[some], nominal[some])
    return odd


def _odd_one(core: Core, columns: dict[str, NDArray[Any]], jobs: Any, i: int) -> list[dict[str, int]]:
    """Correct row `i` of the columns, and give further ledger rows of that job."""
    specs, spec, param = core.specs, int(jobs["spec"][i]), int(jobs["param_us"][i])
    job, nominal = int(columns["job"][i]), int(columns["nominal"][i])
    owed = int(owed_after(core, jobs[i]))
    to = core.state.exceptions.get((job, nominal))
    has_row = to not in (None, SKIP) or bool(taken_times(core, job, [nominal]))
    reason = Reason.NONE
    if to == SKIP:
        reason = Reason.MANUAL
    elif specs.excluded(jobs["spec"][i : i + 1], columns["nominal"][i : i + 1])[0]:
        reason = Reason.CALENDAR
    elif is_lost(core, job, nominal):
        reason = Reason.DECIDED
    if has_row:
        columns["state"][i] = 0
    elif reason:
        row = {"state": plain.RUN_SKIPPED, "disposition": plain.DISPOSITION_SKIPPED, "reason": reason, "until": nominal, "count": 1}
        for name, value in row.items():
            columns[name][i] = value
    if has_row or reason:  # it used nothing of max_runs
        used_up = jobs["fired"][i] >= specs.max_runs[spec]
        columns["next"][i] = NEVER if used_up else specs.next_one(spec, param, nominal)
        goes_on = columns["next"][i] < NEVER or (specs.kind[spec] == KIND_AFTER and not used_up)
        columns["job_state"][i] = plain.JOB_ACTIVE if goes_on else plain.JOB_FINISHED
    common = {"job": job, "next": int(columns["next"][i]), "cursor": nominal, "job_state": int(columns["job_state"][i])}
    entries = changed_away(specs, spec, param, owed, nominal)
    specs.look_on(spec, nominal)
    if specs.calendar[spec]:
        _, excluded = free_and_excluded(specs, spec, param, owed, nominal - 1)
        entries += excluded_entries(core, job, spec, param, excluded)
    return ledger_rows(entries, common)


def _one_row_each(core: Core, columns: dict[str, NDArray[Any]], planned: int) -> None:
    """A last look at planned rows: no nominal time gets a second row. A range begins behind one that has its row.

    Rules met in an order that nobody foresaw must not end in a record that can't be applied: the server would stop, at each start again.
    """
    job, nominal, state, until, count = (columns[name] for name in ("job", "nominal", "state", "until", "count"))
    if not planned:
        return
    made = np.flatnonzero(state[:planned])
    alone = len(set(zip(job[made].tolist(), nominal[made].tolist(), strict=True))) == len(made)
    if alone and not taken(core, job[made], nominal[made]).any():
        return
    seen: set[tuple[int, int]] = set()
    for i in range(planned):
        while state[i]:
            pair = int(job[i]), int(nominal[i])
            if pair not in seen and not taken_times(core, pair[0], [pair[1]]):
                seen.add(pair)
                break
            fields = core.state.jobs.gather(job[i : i + 1])[0]
            following = core.specs.one(int(fields["spec"]), int(fields["param_us"]), pair[1])
            if state[i] != plain.RUN_SKIPPED or count[i] <= 1 or following > until[i]:
                state[i] = count[i] = 0
            else:
                nominal[i], count[i] = following, count[i] - 1


def record(core: Core, columns: dict[str, NDArray[Any]], planned: int) -> None:
    """Record what was decided, after making room for runs that replace others, and arm what it asks for. The first `planned` rows were
    planned job by job.
    """
    _one_row_each(core, columns, planned)
    specs = core.specs
    jobs = core.state.jobs.gather(columns["job"])
    spec = jobs["spec"]
    replacing = (specs.overlap[spec] == OVERLAP_REPLACE) & (columns["state"] == plain.RUN_SCHEDULED) & (columns["until"] == WAITS)
    for i in np.flatnonzero(replacing & (columns["reason"] != plain.REASON_MISFIRE)).tolist():
        columns["missed"][i] += make_room(core, int(columns["job"][i]), int(spec[i]))
        if columns["next"][i] == NEVER:
            _go_on(core, columns, i)
    made = core.record("DUE", {"at": core.now.wall_us, **columns})
    core.arm_jobs(columns["job"], columns["next"])
    state = columns["state"][columns["state"] > 0]
    armed = (state == plain.RUN_SCHEDULED) & (columns["until"][columns["state"] > 0] >= 0)
    if armed.any():
        core.arm_delayed(made[armed], columns["until"][columns["state"] > 0][armed])
    runs = made[state != plain.RUN_SKIPPED]
    core.counters["created"] += len(runs)
    core.counters["skipped"] += int(columns["count"].sum())
    wanted = np.maximum(columns["nominal"], jobs["updated_us"])  # a time of the past is asked for when the job is put
    core.effects.lags.append(("queued", wanted[columns["state"] == plain.RUN_QUEUED]))
    core.look_at(columns["job"][(columns["state"] == plain.RUN_SCHEDULED) & (columns["until"] < 0)])
    if specs.any_after:
        core.look_at(columns["job"][(specs.kind[spec] == KIND_AFTER) & (columns["next"] == NEVER)])
    core.watch(runs)
    core.pulse.decided(columns)
    core.alarms.missed(columns, spec)


def _go_on(core: Core, columns: dict[str, NDArray[Any]], i: int) -> None:
    """What was replaced uses nothing of max_runs, so it may not have been the last one."""
    fields = core.state.jobs.gather(columns["job"][i : i + 1])[0]
    spec = int(fields["spec"])
    if fields["fired"] + 1 < core.specs.max_runs[spec]:
        columns["next"][i] = core.specs.next_one(spec, int(fields["param_us"]), int(columns["nominal"][i]))
        goes_on = columns["next"][i] < NEVER or core.specs.kind[spec] == KIND_AFTER
        columns["job_state"][i] = plain.JOB_ACTIVE if goes_on else plain.JOB_FINISHED


def record_planned(core: Core, rows: list[dict[str, int]]) -> None:
    """A DUE record of rows that `catchup.plan` made, if there are any."""
    if rows:
        record(core, as_columns(rows), len(rows))


def decide_jobs(core: Core, rows: NDArray[np.uint32], *, whole: bool = False) -> None:
    """Decide the occurrences of jobs up to now, before a command changes them; not while all triggering is held.

    Later: it is more than the turn has room for. What was decided stays so. `whole`: all of it in this turn.
    """
    rows = np.ascontiguousarray(rows)
    while len(rows) and core.state.meta.held_us < 0:
        fields = core.state.jobs.gather(rows)
        due = (fields["state"] == plain.JOB_ACTIVE) & (fields["next_us"] <= core.now.wall_us)
        old = due & (fields["next_us"] <= core.asked_us)
        if not due.any():
            return
        if core.room <= 0 and old.any() and not whole:
            raise Later
        core.room -= decide(core, rows[old if old.any() else due][:_BATCH])


__all__ = ["ROOM", "WAITS", "decide", "decide_jobs", "record", "record_planned"]

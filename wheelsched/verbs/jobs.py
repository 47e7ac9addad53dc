"""The verbs about jobs, and the table of all verbs of clients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from ..engine.arguments import done, text, whole
from ..engine.catchup import SKIP_PAUSED, Catching, owed_after
from ..engine.decided import first_open, known
from ..engine.due import decide_jobs, record_planned
from ..engine.overlap import end_with_job, open_runs
from ..engine.unattended import plan_unattended, skip_unattended, unsettled
from ..model.errors import FailedPreconditionError, InvalidArgumentError
from ..model.nouns import NEVER, NOTE_MAX, JobState, parse_job_name
from ..protocol import frames
from ..reads import reads
from ..schedules.table import KIND_AFTER, KIND_AT, KIND_MANUAL
from . import cancels, dead, enqueue, groups, occurrences, operator, queues, runs
from .apply import apply, stage
from .put import job_row, put, put_many
from .why import why

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from ..engine.core import Core
    from ..engine.turn import Incoming


def get(core: Core, cmd: Incoming) -> bytes:
    """One job."""
    return frames.encode_ok(cmd.request.id, reads.job(core, job_row(core, cmd.request.args)))


def upcoming(core: Core, cmd: Incoming) -> bytes:
    """The next nominal times of a job, as many as max_runs leaves."""
    row = job_row(core, cmd.request.args)
    n = whole(cmd.request.args, "n", 1, 1_000, 1) or 1
    fields = core.state.jobs.gather(np.array([row], np.uint32))
    n = min(n, reads.runs_left(core, fields[0]))
    out: list[int] = []
    if fields["state"][0] == JobState.ACTIVE:
        spec, param = fields["spec"].copy(), fields["param_us"].copy()
        at = fields["next_us"].copy()
        while len(out) < n and at[0] != NEVER:
            at[0] = first_open(core, row, int(spec[0]), int(param[0]), int(at[0]))
            found: list[int] = []
            while len(out) + len(found) < n and at[0] != NEVER and not core.specs.excluded(spec, at)[0]:
                found.append(int(at[0]))
                at = core.specs.next(spec, param, at)
            if not found:
                break  # nothing that may run is in sight
            times = np.array(found, np.int64)
            out += times[~known(core, np.full(len(found), row, np.uint32), times)].tolist()
    return frames.encode_ok(cmd.request.id, out)


def _change(core: Core, cmd: Incoming, row: int, state: JobState, following: int, note: str) -> None:
    rows = np.array([row], np.uint32)
    cursor = core.state.jobs.gather(rows)["cursor_us"].copy()
    core.record("JOBS", {
        "at": core.now.wall_us, "uid": cmd.uid, "job": rows, "state": np.array([state], np.uint8),
        "next": np.array([following], np.int64), "cursor": cursor, "note": [[0, note]] if note else [],
    })
    core.arm_jobs(rows, np.array([following], np.int64))


def pause(core: Core, cmd: Incoming) -> bytes:
    """Stop triggering until resume; open runs go on."""
    row = job_row(core, cmd.request.args)
    note = text(cmd.request.args, "note", NOTE_MAX)
    if parse_job_name(cmd.request.args.get("name")).partition("/")[2].startswith("~"):
        raise FailedPreconditionError("runs of enqueue can't be paused, they have no schedule: pause their queue, `queue pause NAME`")
    state = core.state.jobs.gather(np.array([row], np.uint32))["state"][0]
    if state == JobState.FINISHED:
        raise FailedPreconditionError("the job is finished: nothing is left to pause")
    skip_unattended(core, row)
    _change(core, cmd, row, JobState.PAUSED, NEVER, note)
    return done(core, cmd, reads.job(core, row))


def resume(core: Core, cmd: Incoming) -> bytes:
    """Trigger again. What was due while paused is skipped (default), or the latest or all of it runs.

    A one-time job whose time passed runs now unless `skip` is given. A delay after completion counts from now, or from the end of
    the run that is under way.
    """
    catchup = cmd.request.args.get("catchup")
    if catchup not in (None, "skip", "latest", "all"):
        raise InvalidArgumentError(f"catchup: {catchup!r} is not one of skip, latest, all")
    row = job_row(core, cmd.request.args)
    rows = np.array([row], np.uint32)
    fields = core.state.jobs.gather(rows).copy()
    if fields["state"][0] != JobState.PAUSED:
        return done(core, cmd, reads.job(core, row))
    parked = core.parked.get(int(fields["spec"][0]))
    if parked is not None:
        raise FailedPreconditionError(f"the job is parked, its definition can't be evaluated: {parked}; put it anew")
    kind, held = core.specs.kind[int(fields["spec"][0])], core.state.meta.held_us >= 0
    policy = catchup or ("latest" if kind == KIND_AT else "skip")
    if held and policy != "skip" and kind != KIND_AT:
        raise FailedPreconditionError("all triggering is held: release it first, or resume with catchup skip")
    after = fields["cursor_us"] if kind == KIND_AT else owed_after(core, fields)
    following = core.specs.next(fields["spec"].copy(), fields["param_us"].copy(), after)
    if kind == KIND_AFTER:
        following[:] = NEVER
    goes_on = following[0] < NEVER or kind in (KIND_MANUAL, KIND_AFTER)
    _change(core, cmd, row, JobState.ACTIVE if goes_on else JobState.FINISHED, int(following[0]), "")
    if kind != KIND_AFTER and not (held and kind == KIND_AT):
        record_planned(core, plan_unattended(core, row, fields[0], Catching(policy, reason=SKIP_PAUSED.reason)))
    if kind == KIND_AFTER:
        core.look_at(rows)
    return done(core, cmd, reads.job(core, row))


def delete(core: Core, cmd: Incoming) -> bytes:
    """Delete a job: a tombstone keeps its cursor. What no worker has is cancelled. What one has goes on, and is not retried."""
    row = job_row(core, cmd.request.args)
    cancelled = delete_jobs(core, cmd, np.array([row], np.uint32))
    return done(core, cmd, {**reads.job(core, row), "cancelled": cancelled})


def delete_jobs(core: Core, cmd: Incoming, rows: NDArray[np.uint32]) -> int:
    """Delete jobs, their occurrences up to now decided first. How many of their runs were cancelled."""
    if not len(rows):
        return 0
    decide_jobs(core, rows)
    for row in rows[unsettled(core, core.state.jobs.gather(rows))].tolist():
        skip_unattended(core, row, once=True)
    fields, never = core.state.jobs.gather(rows), np.full(len(rows), NEVER, np.int64)
    core.record("JOBS", {
        "at": core.now.wall_us, "uid": cmd.uid, "job": rows, "state": np.full(len(rows), JobState.DELETED, np.uint8), "next": never,
        "cursor": fields["cursor_us"].copy(), "note": [],
    })
    core.arm_jobs(rows, never)
    waiting, held = open_runs(core, rows)
    if len(waiting) + len(held):
        end_with_job(core, waiting, held)
    return len(waiting)



VERBS: Final[dict[str, Callable[[Core, Incoming], bytes]]] = {
    "put": put, "put_many": put_many, "get": get, "next": upcoming, "pause": pause, "resume": resume, "delete": delete,
    "stage": stage, "apply": lambda core, cmd: apply(core, cmd, delete_jobs),
    "why": why, **runs.VERBS, **enqueue.VERBS, **groups.VERBS, **cancels.VERBS, **dead.VERBS,
    **occurrences.VERBS, **operator.VERBS, **queues.VERBS,
}

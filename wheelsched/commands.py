"""The verbs about jobs, and the table of all verbs of clients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from . import protocol, reads, run_commands
from .arguments import done, text, whole
from .errors import FailedPreconditionError, InvalidArgumentError
from .misfire import paused_since, plan, skip_paused
from .model import NEVER, NOTE_MAX, JobState, Reason, RunState
from .put import job_row, put, put_many
from .specs import KIND_AT, KIND_MANUAL

if TYPE_CHECKING:
    from collections.abc import Callable

    from .engine import Engine
    from .turn import Incoming


def get(engine: Engine, cmd: Incoming) -> bytes:
    """One job."""
    return protocol.encode_ok(cmd.request.id, reads.job(engine.state, job_row(engine, cmd.request.args)))


def upcoming(engine: Engine, cmd: Incoming) -> bytes:
    """The next nominal times of a job."""
    row = job_row(engine, cmd.request.args)
    n = whole(cmd.request.args, "n", 1, 1_000, 1) or 1
    fields = engine.state.jobs.gather(np.array([row], np.uint32))
    out: list[int] = []
    if fields["state"][0] == JobState.ACTIVE:
        spec, param = fields["spec"].copy(), fields["param_us"].copy()
        at = fields["next_us"].copy()
        while len(out) < n and at[0] != NEVER:
            out.append(int(at[0]))
            at = engine.specs.next(spec, param, at)
    return protocol.encode_ok(cmd.request.id, out)


def _change(engine: Engine, cmd: Incoming, row: int, state: JobState, following: int, note: str) -> None:
    rows = np.array([row], np.uint32)
    cursor = engine.state.jobs.gather(rows)["cursor_us"].copy()
    engine.record("JOBS", {
        "at": engine.now.wall_us, "uid": cmd.uid, "job": rows, "state": np.array([state], np.uint8),
        "next": np.array([following], np.int64), "cursor": cursor, "note": [[0, note]] if note else [],
    })
    engine.arm_jobs(rows, np.array([following], np.int64))


def pause(engine: Engine, cmd: Incoming) -> bytes:
    """Stop triggering until resume; open runs go on."""
    row = job_row(engine, cmd.request.args)
    note = text(cmd.request.args, "note", NOTE_MAX)
    state = engine.state.jobs.gather(np.array([row], np.uint32))["state"][0]
    if state == JobState.FINISHED:
        raise FailedPreconditionError("the job is finished: nothing is left to pause")
    skip_paused(engine, row)
    _change(engine, cmd, row, JobState.PAUSED, NEVER, note)
    return done(engine, cmd, reads.job(engine.state, row))


def resume(engine: Engine, cmd: Incoming) -> bytes:
    """Trigger again. What was due while paused is skipped (default), or the latest or all of it runs.

    A one-time job whose time passed runs now unless `skip` is given.
    """
    catchup = cmd.request.args.get("catchup")
    if catchup not in (None, "skip", "latest", "all"):
        raise InvalidArgumentError(f"catchup: {catchup!r} is not one of skip, latest, all")
    row = job_row(engine, cmd.request.args)
    rows = np.array([row], np.uint32)
    fields = engine.state.jobs.gather(rows).copy()
    if fields["state"][0] != JobState.PAUSED:
        return done(engine, cmd, reads.job(engine.state, row))
    spec = int(fields["spec"][0])
    once = engine.specs.kind[spec] == KIND_AT
    after = fields["cursor_us"] if once else paused_since(engine, fields)
    fields["next_us"] = following = engine.specs.next(fields["spec"].copy(), fields["param_us"].copy(), after)
    policy = catchup or ("latest" if once else "skip")
    state = JobState.FINISHED if following[0] == NEVER and engine.specs.kind[spec] != KIND_MANUAL else JobState.ACTIVE
    _change(engine, cmd, row, state, int(following[0]), "")
    if following[0] <= engine.now.wall_us:
        planned = plan(engine, row, fields[0], engine.now.wall_us + 1,
                       {"policy": policy, "window_us": None, "max": 1_000}, Reason.PAUSE)
        engine.record_planned(planned)
    return done(engine, cmd, reads.job(engine.state, row))


def delete(engine: Engine, cmd: Incoming) -> bytes:
    """Delete a job: a tombstone keeps its cursor. Open attempts may end; what waits is cancelled, nothing is retried."""
    row = job_row(engine, cmd.request.args)
    skip_paused(engine, row)
    members = np.array(engine.state.runs.of_job(row), np.uint32)
    _change(engine, cmd, row, JobState.DELETED, NEVER, "")
    if len(members):
        states = engine.state.runs.gather(members)["state"]
        waiting = members[(states == RunState.SCHEDULED) | (states == RunState.RETRY_WAIT)]
        if len(waiting):
            run_commands.cancel_rows(engine, waiting)
    return done(engine, cmd, reads.job(engine.state, row))


VERBS: Final[dict[str, Callable[[Engine, Incoming], bytes]]] = {
    "put": put, "put_many": put_many, "get": get, "next": upcoming, "pause": pause, "resume": resume, "delete": delete,
    **run_commands.VERBS,
}

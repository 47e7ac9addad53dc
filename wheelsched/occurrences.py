"""The verbs about single occurrences and ranges of them: skip, move, backfill."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from . import reads, records
from .arguments import done
from .errors import FailedPreconditionError, InvalidArgumentError, NotFoundError, ResourceExhaustedError
from .ids import scheduled_run_id
from .misfire import owed_after
from .model import BACKFILL_MAX, MS, NEVER, Disposition, Event, JobState, RunState, Trigger
from .overlap import backfill_wait
from .put import job_row
from .schedules import KIND_AFTER, KIND_MANUAL
from .spans import Span, free_and_excluded
from .state import AS_EVER, SKIP
from .why import Clock, explain, instant_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from .engine import Engine
    from .turn import Incoming

IDS_MAX: Final = 1_000  # run ids in the answer to backfill
OWN_LIMIT_MAX: Final = 1_000


def _waiting(engine: Engine, run_id: bytes) -> int | None:
    """Row of a moved run that still waits for its instant."""
    row = engine.state.find_run(run_id)
    if row is None:
        return None
    fields = engine.state.runs.gather(np.array([row], np.uint32))[0]
    return row if fields["state"] == RunState.SCHEDULED and fields["disposition"] == Disposition.MOVED else None


def _coming(engine: Engine, row: int, at: int, *, again: bool = False) -> None:
    """failed_precondition unless the job has an occurrence at that instant and it is not decided yet; `again`: or is moved and waits."""
    fields = engine.state.jobs.gather(np.array([row], np.uint32))[0]
    specs, spec, param = engine.specs, int(fields["spec"]), int(fields["param_us"])
    clock = Clock(engine, spec)
    if specs.one(spec, param, at - 1) != at or specs.kind[spec] == KIND_MANUAL:
        after = specs.one(spec, param, at)
        near = "" if after == NEVER else f"; the next one after it is at {clock(after)}"
        raise FailedPreconditionError(f"the job has no occurrence at {clock(at)}{near}")
    if at <= max(engine.now.wall_us, int(fields["cursor_us"])):
        raise FailedPreconditionError(f"the occurrence at {clock(at)} is past; `why` tells what became of it")
    run_id = scheduled_run_id(engine.state.jobs.names(np.array([row], np.uint32))[0], at)
    to = engine.state.exceptions.get((row, at))
    if again and to is not None and to != SKIP and _waiting(engine, run_id) is not None:
        return
    if to is not None and to != SKIP:
        text = f"the occurrence at {clock(at)} was moved to {clock(to)} already; cancel run {run_id.hex()} to give it up"
        raise FailedPreconditionError(text, run_id=run_id.hex())
    if engine.state.find_run(run_id) is not None or engine.taken(np.array([row], np.uint32), np.array([at], np.int64))[0]:
        raise FailedPreconditionError(f"the occurrence at {clock(at)} has run {run_id.hex()} already; see `why`", run_id=run_id.hex())


def _except(engine: Engine, cmd: Incoming, row: int, at: int, to: int) -> None:
    engine.record("EXCEPT", {
        "at": engine.now.wall_us, "uid": cmd.uid, "job": np.array([row], np.uint32), "nominal": np.array([at], np.int64),
        "to": np.array([to], np.int64),
    })


def skip(engine: Engine, cmd: Incoming) -> bytes:
    """One coming occurrence will not run; `undo` takes that back."""
    args = cmd.request.args
    at, undo = instant_of(args), args.get("undo", False)
    if not isinstance(undo, bool):
        raise InvalidArgumentError("undo: true or false is wanted")
    row = job_row(engine, args)
    _coming(engine, row, at)
    marked = engine.state.exceptions.get((row, at)) == SKIP
    if undo and not marked:
        raise FailedPreconditionError("this occurrence is not skipped: there is nothing to undo")
    if undo or not marked:
        _except(engine, cmd, row, at, AS_EVER if undo else SKIP)
    return done(engine, cmd, explain(engine, row, at, None))


def move(engine: Engine, cmd: Incoming) -> bytes:
    """One coming occurrence runs at another instant. Its run keeps the nominal time and its id; it may be moved again, also back."""
    args = cmd.request.args
    at, to = instant_of(args), instant_of(args, "to_us")
    row = job_row(engine, args)
    fields = engine.state.jobs.gather(np.array([row], np.uint32))[0]
    if engine.specs.kind[int(fields["spec"])] == KIND_AFTER:
        raise FailedPreconditionError("the next time of this job follows from the end of its run: trigger it now instead")
    _coming(engine, row, at, again=True)
    if to < engine.now.wall_us:
        raise InvalidArgumentError("to_us: that instant is past; give a coming one, or trigger the job now")
    spec = fields["spec"].reshape(1)
    if engine.specs.excluded(spec, np.array([at], np.int64))[0]:
        raise FailedPreconditionError("a calendar excludes this occurrence, so there is nothing to move: trigger the job when it shall run")
    if fields["fired"] >= engine.specs.max_runs[int(fields["spec"])]:
        raise FailedPreconditionError("max_runs is used up: this occurrence would not run anyway")
    to = -(-to // MS) * MS
    waiting = _waiting(engine, scheduled_run_id(engine.state.jobs.names(np.array([row], np.uint32))[0], at))
    if waiting is not None:  # moved again, perhaps back to its own time
        rows = np.array([waiting], np.uint32)
        engine.record("REARM", {"at": engine.now.wall_us, "run": rows, "due": np.array([to], np.int64)})
        engine.watch(rows)
    else:
        rows = _make(engine, cmd, row, [at], Trigger.SCHEDULE, to)
    _except(engine, cmd, row, at, to)
    engine.arm_delayed(rows, np.array([to], np.int64))
    return done(engine, cmd, reads.run(engine.state, int(rows[0]), engine.running))


def _make(engine: Engine, cmd: Incoming, row: int, times: list[int], trigger: Trigger, due: int) -> NDArray[np.uint32]:
    """Runs of one job with deterministic ids and the job's payload, scheduled for an instant or a turn."""
    n = len(times)
    spec = int(engine.state.jobs.gather(np.array([row], np.uint32))["spec"][0])
    name = engine.state.jobs.names(np.array([row], np.uint32))[0]
    engine.fold_all()  # a ledger row of the same nominal time has the same id
    made: NDArray[np.uint32] = engine.record("ENQUEUE", {
        "at": engine.now.wall_us, "uid": cmd.uid, "job": np.full(n, row, np.uint32),
        "id": b"".join([scheduled_run_id(name, at) for at in times]), "spec": np.full(n, spec, np.uint32),
        "trigger": np.full(n, trigger, np.uint8), "nominal": np.array(times, np.int64), "due": np.full(n, due, np.int64),
        "state": np.full(n, RunState.SCHEDULED, np.uint8), "payload": records.Blobs([b""] * n), "key": [],
    })
    engine.counters["created"] += n
    engine.watch(made)
    return made


def _own_overlap(value: Any) -> int:
    """The limit of active runs that a backfill brings along; 0: one after another, as the job's own."""
    if value is None:
        return 0
    if not isinstance(value, dict) or value.get("policy") not in ("allow", "buffer_all"):
        raise InvalidArgumentError("overlap of a backfill: allow (max: how many at a time) or buffer_all (one after another) is wanted")
    limit = value.get("max")
    if value["policy"] == "buffer_all":
        return 0
    if isinstance(limit, bool) or not isinstance(limit, int | None) or not 1 <= (limit or 1) <= OWN_LIMIT_MAX:
        raise InvalidArgumentError(f"overlap max of a backfill: a whole number from 1 to {OWN_LIMIT_MAX} is wanted")
    return limit or OWN_LIMIT_MAX


def _times(engine: Engine, spans: list[Span], spec: int, param: int) -> list[int]:
    found = []
    for span in spans:
        at = span.first
        while at <= span.last:
            found.append(at)
            at = engine.specs.one(spec, param, at)
    return found


def _range(engine: Engine, fields: Any, args: dict[str, Any]) -> list[int]:
    """The nominal times that a backfill is about, checked."""
    since, until = instant_of(args, "since_us"), instant_of(args, "until_us")
    if until < since:
        raise InvalidArgumentError("until is before since")
    if until > engine.now.wall_us:
        raise InvalidArgumentError("a backfill is about the past: until is still to come; what is to come fires by itself")
    spec, param = int(fields["spec"]), int(fields["param_us"])
    decided = int(owed_after(engine, fields))
    if until > decided and (fields["state"] == JobState.PAUSED or engine.state.meta.held_us >= 0):
        text = f"the job is paused or held: what comes due after {Clock(engine, spec)(decided)} is not decided yet; end the range there"
        raise FailedPreconditionError(text)
    if engine.specs.kind[spec] in (KIND_MANUAL, KIND_AFTER):
        raise FailedPreconditionError("this job has no fixed times to be filled in: trigger it")
    total = engine.specs.counted(spec, param, since - 1, until)[0]
    if total > BACKFILL_MAX:
        text = f"that range has {total:,} occurrences; one backfill makes at most {BACKFILL_MAX:,}: split the range"
        raise ResourceExhaustedError(text, count=total, limit=BACKFILL_MAX)
    free, _ = free_and_excluded(engine.specs, spec, param, since - 1, until)
    return _times(engine, free, spec, param)


def backfill(engine: Engine, cmd: Incoming) -> bytes:
    """Runs for past occurrences that have none. An existing run is never doubled; `failed` also sends dead ones back."""
    args = cmd.request.args
    only, dry, backwards = args.get("only") or "missing", args.get("dry_run", False), args.get("backwards", False)
    if only not in ("missing", "failed") or not isinstance(dry, bool) or not isinstance(backwards, bool):
        raise InvalidArgumentError("backfill: only is 'missing' or 'failed', dry_run and backwards are true or false")
    limit = _own_overlap(args.get("overlap"))
    row = job_row(engine, args)
    fields = engine.state.jobs.gather(np.array([row], np.uint32))[0]
    if fields["state"] == JobState.DELETED:
        raise NotFoundError("the job is deleted")
    times = _range(engine, fields, args)
    have = dict(cmd.found or {})
    members = np.array(engine.state.runs.of_job(row), np.uint32)
    f = engine.state.runs.gather(members)
    mine = (f["trigger"] <= Trigger.BACKFILL) & (f["state"] != RunState.SKIPPED)
    have |= dict(zip(f["nominal_us"][mine].tolist(), f["state"][mine].tolist(), strict=True))
    wanted = [at for at in times if at not in have]
    again = members[mine & (f["state"] == RunState.DEAD) & np.isin(f["nominal_us"], times)] if only == "failed" else members[:0]
    name = engine.state.jobs.names(np.array([row], np.uint32))[0]
    answer = {
        "count": len(wanted) + len(again), "existing": len(times) - len(wanted) - len(again), "total": len(times),
        "first_us": times[0] if times else None, "last_us": times[-1] if times else None,
        "ids": [scheduled_run_id(name, at).hex() for at in wanted[:IDS_MAX]],
    }
    if not dry:
        if wanted:
            _make(engine, cmd, row, wanted, Trigger.BACKFILL, backfill_wait(limit, backwards=backwards))
            engine.backfilling.add(row)
            engine.look_at(np.array([row], np.uint32))
        if len(again):
            engine.record("RUNS", {"at": engine.now.wall_us, "event": int(Event.REDRIVE), "run": again})
            engine.backfilling.add(row)
    return done(engine, cmd, answer)


VERBS: Final[dict[str, Callable[[Engine, Incoming], bytes]]] = {"skip": skip, "move": move, "backfill": backfill}

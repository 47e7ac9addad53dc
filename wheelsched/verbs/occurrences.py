"""The verbs about single occurrences and ranges of them: skip, move, backfill."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ..engine import housekeeping
from ..engine.arguments import done
from ..engine.catchup import owed_after
from ..engine.core import Sweep
from ..engine.decided import is_lost, taken_times
from ..engine.overlap import backfill_wait
from ..engine.spans import Span, free_and_excluded, times
from ..engine.sweeps import PIECE, join
from ..engine.turn import Later
from ..model.errors import FailedPreconditionError, InvalidArgumentError, ResourceExhaustedError
from ..model.ids import scheduled_run_id
from ..model.nouns import BACKFILL_MAX, MS, NEVER, Disposition, JobState, RunFlag, RunState, Trigger, parse_job_name
from ..schedules.table import KIND_AFTER, KIND_MANUAL
from ..state import readable, records
from ..state.bygone import within
from ..state.history import Past
from ..state.state import AS_EVER, SKIP
from ..tables._runs import NO_ROW
from .dead import send_back
from .put import job_row
from .why import Clock, explain, instant_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from ..engine.core import Core
    from ..engine.turn import Incoming
    from ..state.bygone import Spans

IDS_MAX: Final = 1_000  # run ids in the answer to backfill
OWN_LIMIT_MAX: Final = 1_000


def _waiting(core: Core, run_id: bytes) -> int | None:
    """Row of a moved run that still waits for its instant."""
    row = core.state.find_run(run_id)
    if row is None:
        return None
    fields = core.state.runs.gather(np.array([row], np.uint32))[0]
    return row if fields["state"] == RunState.SCHEDULED and fields["disposition"] == Disposition.MOVED else None


def _coming(core: Core, row: int, at: int, *, again: bool = False) -> None:
    """failed_precondition unless the job has an occurrence at that instant and it is not decided yet; `again`: or is moved and waits."""
    fields = core.state.jobs.gather(np.array([row], np.uint32))[0]
    specs, spec, param = core.specs, int(fields["spec"]), int(fields["param_us"])
    clock = Clock(core, spec)
    if specs.one(spec, param, at - 1) != at or specs.kind[spec] == KIND_MANUAL:
        after = specs.one(spec, param, at)
        near = "" if after == NEVER else f"; the next one after it is at {clock(after)}"
        raise FailedPreconditionError(f"the job has no occurrence at {clock(at)}{near}")
    if at <= max(core.now.wall_us, int(fields["cursor_us"])):
        raise FailedPreconditionError(f"the occurrence at {clock(at)} is past; `why` tells what became of it")
    run_id = scheduled_run_id(core.state.jobs.names(np.array([row], np.uint32))[0], at)
    to = core.state.exceptions.get((row, at))
    if again and to is not None and to != SKIP and _waiting(core, run_id) is not None:
        return
    if to is not None and to != SKIP:
        text = f"the occurrence at {clock(at)} was moved to {clock(to)} already; cancel run {run_id.hex()} to give it up"
        raise FailedPreconditionError(text, run_id=run_id.hex())
    if core.state.find_run(run_id) is not None or taken_times(core, row, [at]):
        raise FailedPreconditionError(f"the occurrence at {clock(at)} has run {run_id.hex()} already; see `why`", run_id=run_id.hex())
    if is_lost(core, row, at):
        raise FailedPreconditionError(f"the occurrence at {clock(at)} was decided before the clock was set back; see `why`")


def _except(core: Core, cmd: Incoming, row: int, at: int, to: int) -> None:
    core.record("EXCEPT", {
        "at": core.now.wall_us, "uid": cmd.uid, "job": np.array([row], np.uint32), "nominal": np.array([at], np.int64),
        "to": np.array([to], np.int64),
    })


def skip(core: Core, cmd: Incoming) -> bytes:
    """One coming occurrence will not run; `undo` takes that back."""
    args = cmd.request.args
    at, undo = instant_of(args), args.get("undo", False)
    if not isinstance(undo, bool):
        raise InvalidArgumentError("undo: true or false is wanted")
    row = job_row(core, args)
    _coming(core, row, at)
    marked = core.state.exceptions.get((row, at)) == SKIP
    if undo and not marked:
        raise FailedPreconditionError("this occurrence is not skipped: there is nothing to undo")
    if undo or not marked:
        _except(core, cmd, row, at, AS_EVER if undo else SKIP)
    return done(core, cmd, explain(core, row, at, None))


def move(core: Core, cmd: Incoming) -> bytes:
    """One coming occurrence runs at another instant. Its run keeps the nominal time and its id; it may be moved again, also back."""
    args = cmd.request.args
    at, to = instant_of(args), instant_of(args, "to_us")
    row = job_row(core, args)
    fields = core.state.jobs.gather(np.array([row], np.uint32))[0]
    housekeeping.fold_all(core)
    if core.specs.kind[int(fields["spec"])] == KIND_AFTER:
        raise FailedPreconditionError("the next time of this job follows from the end of its run: trigger it now instead")
    _coming(core, row, at, again=True)
    if to < core.now.wall_us:
        raise InvalidArgumentError("to_us: that instant is past; give a coming one, or trigger the job now")
    spec = fields["spec"].reshape(1)
    if core.specs.excluded(spec, np.array([at], np.int64))[0]:
        raise FailedPreconditionError("a calendar excludes this occurrence, so there is nothing to move: trigger the job when it shall run")
    if fields["fired"] >= core.specs.max_runs[int(fields["spec"])]:
        raise FailedPreconditionError("max_runs is used up: this occurrence would not run anyway")
    to = -(-to // MS) * MS
    waiting = _waiting(core, scheduled_run_id(core.state.jobs.names(np.array([row], np.uint32))[0], at))
    if waiting is not None:  # moved again, perhaps back to its own time
        rows = np.array([waiting], np.uint32)
        core.record("REARM", {"at": core.now.wall_us, "run": rows, "due": np.array([to], np.int64)})
        core.watch(rows)
    else:
        rows = _make(core, cmd, row, [at], Trigger.SCHEDULE, to)
    _except(core, cmd, row, at, to)
    core.arm_delayed(rows, np.array([to], np.int64))
    return done(core, cmd, readable.run(core.state, int(rows[0]), core.running))


def _make(core: Core, cmd: Incoming, row: int, times: list[int], trigger: Trigger, due: int) -> NDArray[np.uint32]:
    """Runs of one job with deterministic ids and the job's payload, scheduled for an instant or a turn."""
    n = len(times)
    spec = int(core.state.jobs.gather(np.array([row], np.uint32))["spec"][0])
    name = core.state.jobs.names(np.array([row], np.uint32))[0]
    housekeeping.fold_all(core)  # a ledger row of the same nominal time has the same id
    made: NDArray[np.uint32] = core.record("ENQUEUE", {
        "at": core.now.wall_us, "uid": cmd.uid, "job": np.full(n, row, np.uint32),
        "id": b"".join([scheduled_run_id(name, at) for at in times]), "spec": np.full(n, spec, np.uint32),
        "trigger": np.full(n, trigger, np.uint8), "nominal": np.array(times, np.int64), "due": np.full(n, due, np.int64),
        "state": np.full(n, RunState.SCHEDULED, np.uint8), "payload": records.Blobs([b""] * n), "key": [],
    })
    core.counters["created"] += n
    core.watch(made)
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


def _range(core: Core, fields: Any, args: dict[str, Any]) -> list[Span]:
    """What a backfill is about, checked."""
    since, until = instant_of(args, "since_us"), instant_of(args, "until_us")
    if until < since:
        raise InvalidArgumentError("until is before since")
    if until > core.now.wall_us:
        raise InvalidArgumentError("a backfill is about the past: until is still to come; what is to come fires by itself")
    spec, param = int(fields["spec"]), int(fields["param_us"])
    decided = int(owed_after(core, fields))
    if until > decided and (fields["state"] == JobState.PAUSED or core.state.meta.held_us >= 0):
        text = f"the job is paused or held: what comes due after {Clock(core, spec)(decided)} is not decided yet; end the range there"
        raise FailedPreconditionError(text)
    if core.specs.kind[spec] in (KIND_MANUAL, KIND_AFTER):
        raise FailedPreconditionError("this job has no fixed times to be filled in: trigger it")
    total = core.specs.counted(spec, param, since - 1, until)[0]
    if total > BACKFILL_MAX:
        text = f"that range has {total:,} occurrences; one backfill makes at most {BACKFILL_MAX:,}: split the range"
        raise ResourceExhaustedError(text, count=total, limit=BACKFILL_MAX)
    return free_and_excluded(core.specs, spec, param, since - 1, until)[0]


@dataclass(slots=True)
class BackfillSweep(Sweep):
    """A backfill. What it makes waits for its turn from the first piece on."""

    job: int
    schedule: tuple[int, int]  # definition and anchor of the job, when it began
    times: Iterator[int]
    how: int  # see overlap.backfill_wait
    failed: bool  # dead runs are sent back, too
    have: set[int]  # nominal times that have a run in history
    dropped: Spans  # in which history has dropped runs
    since: int  # when the job was created
    found: list[int] = field(default_factory=list, init=False)  # all nominal times
    made: list[int] = field(default_factory=list, init=False)  # those that get a run
    forgotten: int = field(default=0, init=False)  # of these: history may have dropped a run of theirs

    def piece(self, core: Core) -> bool:
        """As in Sweep."""
        if housekeeping.behind(core):
            return True
        state = core.state
        fields = state.jobs.gather(np.array([self.job], np.uint32))[0]
        if fields["state"] == JobState.DELETED or (fields["spec"], fields["param_us"]) != self.schedule:
            raise FailedPreconditionError(
                f"the job was changed while its backfill was under way: {len(self.made)} runs are made; ask again for the others",
                count=len(self.made),
            )
        piece = list(islice(self.times, PIECE))
        times = [at for at in piece if at <= core.now.wall_us]  # the clock may have gone back meanwhile
        name = state.jobs.names(np.array([self.job], np.uint32))[0]
        rows = state.runs.find(b"".join([scheduled_run_id(name, at) for at in times]))
        there = np.flatnonzero(rows != NO_ROW)
        f = state.runs.gather(rows[there])
        runs = f["state"] != RunState.SKIPPED
        have = self.have | {times[i] for i in there[runs].tolist()}
        wanted = [at for at in times if at not in have]
        dead = (f["state"] == RunState.DEAD) & (f["flags"] & RunFlag.DISCARDED == 0)
        again = rows[there[dead]] if self.failed else rows[:0]
        self.found += times
        self.made += wanted
        self.forgotten += int(within(self.dropped, np.array([at for at in wanted if at >= self.since], np.int64)).sum())
        self.count += len(wanted) + len(again)
        if not self.dry:
            if wanted:
                _make(core, self.first, self.job, sorted(wanted), Trigger.BACKFILL, self.how)
                core.look_at(np.array([self.job], np.uint32))
            if len(again):
                again = state.runs.find(b"".join([scheduled_run_id(name, times[i]) for i in there[dead].tolist()]))
                send_back(core, again, np.full(len(again), core.now.wall_us, np.int64), -1 - self.how)
        return len(piece) == PIECE

    def folded(self, core: Core, rows: NDArray[np.uint32]) -> None:
        """As in Sweep."""
        f = core.state.runs.gather(rows)
        mine = (f["job"] == self.job) & (f["trigger"] <= Trigger.BACKFILL) & (f["state"] != RunState.SKIPPED)
        self.have.update(f["nominal_us"][mine].tolist())

    def answer(self) -> dict[str, Any]:
        """As in Sweep."""
        name = self.first.request.args["name"]
        times, made = sorted(self.found), sorted(self.made)
        return {
            "count": self.count, "existing": len(times) - self.count, "total": len(times), "first_us": times[0] if times else None,
            "last_us": times[-1] if times else None, "forgotten": self.forgotten,
            "ids": [scheduled_run_id(parse_job_name(name).encode(), at).hex() for at in made[:IDS_MAX]],
        }


def backfill(core: Core, cmd: Incoming) -> bytes:
    """Runs for past occurrences that have none. An existing run is never doubled; `failed` also sends dead ones back.

    Of what history has dropped nobody knows whether it ran: it runs, and `forgotten` in the answer counts it.
    A large one is made in pieces, one a turn; the answer comes after the last.
    """
    args = cmd.request.args
    if join(core, cmd):
        return b""
    if housekeeping.behind(core):
        raise Later
    only, dry, backwards = args.get("only") or "missing", args.get("dry_run", False), args.get("backwards", False)
    if only not in ("missing", "failed") or not isinstance(dry, bool) or not isinstance(backwards, bool):
        raise InvalidArgumentError("backfill: only is 'missing' or 'failed', dry_run and backwards are true or false")
    limit = _own_overlap(args.get("overlap"))
    row = job_row(core, args)
    fields = core.state.jobs.gather(np.array([row], np.uint32))[0]
    spans = _range(core, fields, args)
    schedule = int(fields["spec"]), int(fields["param_us"])
    every, how = times(core.specs, *schedule, spans, backwards=backwards), backfill_wait(limit, backwards=backwards)
    past = cmd.found or Past({}, None)
    dropped = core.state.bygone.folded if past.dropped is None else past.dropped
    since = int(fields["created_us"]) if fields["created_us"] <= core.now.wall_us else 0  # the clock was ahead then
    sweep = BackfillSweep(cmd, dry, row, schedule, every, how, only == "failed", set(past.runs), dropped, since)
    if sum(span.n for span in spans) > PIECE:
        core.sweeps.append(sweep)
        return b""
    sweep.piece(core)
    return done(core, cmd, sweep.answer())


VERBS: Final[dict[str, Callable[[Core, Incoming], bytes]]] = {"skip": skip, "move": move, "backfill": backfill}

"""put and put_many: upsert by name. What is the same already stays untouched; what was decided before never fires again."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ..engine import memory
from ..engine.alarms import living
from ..engine.arguments import done, param_of, payload_fault, payload_of, text, whole
from ..engine.chains import cycle_text, find_cycle, targets_of
from ..engine.definitions import whole_ms
from ..engine.due import decide_jobs
from ..engine.overlap import own_open, supersede
from ..engine.retime import keep_zones
from ..engine.roles import check_task
from ..engine.served import remark, remarks
from ..engine.unattended import skip_unattended, unsettled
from ..model import plain
from ..model.errors import (
    AlreadyExistsError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    ResourceExhaustedError,
    ScheduleError,
)
from ..model.ids import job_key
from ..model.nouns import (
    FRAME_JOBS_MAX,
    HOOKS,
    INSTANT_MAX_US,
    MS,
    NEVER,
    NOTE_MAX,
    TOMBSTONE_US,
    US,
    Disposition,
    Reason,
    RunState,
    Trigger,
    display_name,
    parse_job_name,
)
from ..protocol.definition import SERVER_KEYS, check_given, resolve
from ..reads import reads
from ..schedules.table import KIND_AFTER, KIND_AT, KIND_EVERY, KIND_MANUAL, KIND_UNION
from ..state import records
from ..state.state import AS_EVER, SKIP, spec_bytes
from ..tables._runs import NO_ROW
from .differences import Wanted, difference

if TYPE_CHECKING:
    from collections.abc import Collection

    from numpy.typing import NDArray

    from ..engine.core import Core
    from ..engine.turn import Incoming

OUTSIDE: Final = "at: the instant is outside start and end, so it could never fire; change one of them"
SPECS_MAX: Final = 2**24
UNCHANGED, CREATED, UPDATED = 0, 1, 2
_RESULTS: Final = ("unchanged", "created", "updated")
_HASHED: Final = re.compile(r"(?<![A-Za-z])[Hh](?![A-Za-z])")  # the H of a cron expression: another schedule for each job


def job_row(core: Core, args: dict[str, Any], *, deleted: bool = False) -> int:
    """Row of the named job, its occurrences up to now decided; not_found for none and for a deleted one."""
    name = parse_job_name(args.get("name"))
    row = core.state.find_job(name.encode())
    if row is not None:
        decide_jobs(core, np.array([row], np.uint32))
        if deleted or core.state.jobs.gather(np.array([row], np.uint32))["state"][0] != plain.JOB_DELETED:
            return row
    raise NotFoundError(f"no job {display_name(name)}")


def resolved_spec(core: Core, given: Any, name: str, coming: Collection[str] = (), jobs: Collection[str] = ()
                  ) -> tuple[bytes, dict[str, Any]]:
    """(key, resolved definition) of what was asked for a job. Records nothing; `check_spec` sees whether it can be evaluated.

    `coming`, `jobs`: calendars and jobs that will be there when the job is put.
    """
    given = check_given(given)
    wire = resolve(given, core.state.announced.get(given["task"]))
    wire["namespace"] = name.partition("/")[0]
    parts = [part["schedule"] for part in wire["schedule"].get("of", ())] or [wire["schedule"]]
    if any(_HASHED.search(part["expr"]) for part in parts if part["kind"] == "cron"):
        wire["hash_id"] = name
    if "concurrency" in wire:
        wire["concurrency_of"] = name
    missing = [x for x in wire.get("calendar", ()) if x not in core.state.calendars and x not in coming]
    if missing:
        raise FailedPreconditionError(f"calendar {missing[0]!r} does not exist; make it first, then put the job")
    if wire.get("on_missed") == name:
        raise InvalidArgumentError(f"on_missed: job {display_name(name)} can't be its own alarm; name another job")
    for hook in ("on_missed", *HOOKS):
        if hook in wire and wire[hook] not in jobs and not alive(core, wire[hook]):
            raise FailedPreconditionError(f"{hook}: there is no job {display_name(wire[hook])}; put it first")
    return spec_bytes(wire), wire


def alive(core: Core, name: str) -> bool:
    """Whether a job of that full name is there and not deleted."""
    return living(core.state, name) is not None


def own(wire: dict[str, Any]) -> bool:
    """Does this definition hold its job's name, so that no other job can have it?"""
    return "hash_id" in wire or "concurrency_of" in wire


def check_spec(core: Core, wire: dict[str, Any]) -> None:
    """ScheduleError when the schedule of a definition can't be evaluated. Nothing stays behind."""
    schedules = core.specs.schedules
    schedules.release(*schedules.compile(wire["schedule"], wire.get("hash_id") or ""))


def record_spec(core: Core, wire: dict[str, Any]) -> int:
    """Number of a definition that has none yet; it is compiled first and then recorded."""
    spec = len(core.state.specs)
    if spec >= SPECS_MAX:
        raise ResourceExhaustedError(f"{SPECS_MAX:,} different definitions are stored; use fewer distinct schedules and policies")
    core.specs.add(spec, wire, core.now.wall_us)  # raises before anything is recorded
    keep_zones(core, wire["schedule"])
    core.record("SPEC", {"id": spec, "wire": wire})
    return spec


def spec_number(core: Core, given: Any, name: str, jobs: Collection[str] = ()) -> int:
    """Number of the resolved definition; a new one is compiled first and then recorded. `jobs`: names that are put with it."""
    key, wire = resolved_spec(core, given, name, jobs=jobs)
    spec = core.state.spec_ids.get(key)
    return record_spec(core, wire) if spec is None else spec


def kept_anchors(core: Core, rows: NDArray[np.uint32], spec: NDArray[np.uint32], param: NDArray[np.int64]) -> NDArray[np.int64]:
    """`param` with the anchors of intervals filled in: that of the job with an unchanged period, else now.

    That of after_completion is the next time: of a job that has it already it is its own affair.
    """
    param, kind, a = param.copy(), core.specs.kind, core.specs.a
    grid = np.isin(kind[spec], (KIND_EVERY, KIND_UNION)) & (param == NEVER)
    delay = kind[spec] == KIND_AFTER
    old = np.flatnonzero((grid | delay) & (rows != NO_ROW))
    now = whole_ms(core.now.wall_us)
    kept = np.zeros(len(rows), np.bool_)
    if len(old):
        fields = core.state.jobs.gather(rows[old])
        keep = (kind[fields["spec"]] == kind[spec[old]]) & (a[fields["spec"]] == a[spec[old]]) & (fields["param_us"] < NEVER)
        param[old[keep]] = fields["param_us"][keep]
        kept[old[keep]] = True
    first = delay & ~kept
    delayed = np.where(param[first] == NEVER, now, param[first]) + a[spec[first]]
    param[first] = np.maximum(delayed, -(-core.specs.start[spec[first]] // MS) * MS)
    param[grid & (param == NEVER)] = now
    return param


def first_next(core: Core, rows: NDArray[np.uint32], spec: NDArray[np.uint32], param: NDArray[np.int64], paused: bool | None
               ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.uint8]]:
    """(next, cursor, state) of put jobs. What was decided before, tombstones included, never fires again."""
    n = len(rows)
    cursor = np.full(n, -1, np.int64)
    fired = np.zeros(n, np.uint32)
    was_paused = np.zeros(n, np.bool_)
    old = np.flatnonzero(rows != NO_ROW)
    kind = core.specs.kind[spec]
    if len(old):
        fields = core.state.jobs.gather(rows[old])
        cursor[old] = fields["cursor_us"]
        fired[old] = np.where(fields["state"] == plain.JOB_DELETED, 0, fields["fired"])
        was_paused[old] = fields["state"] == plain.JOB_PAUSED
    after = np.where((kind == KIND_AT) | core.specs.dates[spec], cursor, np.maximum(cursor, core.now.wall_us))
    delay = (kind == KIND_AFTER) & ((param <= after) | (param < core.specs.start[spec]))  # its run is or was under way: from now
    earliest = -(-np.maximum(core.specs.start[spec[delay]], cursor[delay] + MS) // MS) * MS
    param[delay] = np.maximum(whole_ms(core.now.wall_us) + core.specs.a[spec[delay]], earliest)
    following = core.specs.next(spec, param, after)
    following[fired >= core.specs.max_runs[spec]] = NEVER
    state = np.where((following == NEVER) & (kind != KIND_MANUAL), plain.JOB_FINISHED, plain.JOB_ACTIVE).astype(np.uint8)
    state[(was_paused if paused is None else np.full(n, paused)) & (state != plain.JOB_FINISHED)] = plain.JOB_PAUSED
    following[state == plain.JOB_PAUSED] = NEVER
    return following, cursor, state


def decided_before(core: Core, rows: NDArray[np.uint32], param: NDArray[np.int64], once: NDArray[np.int64]) -> NDArray[np.int64]:
    """Which of the known one-time jobs `once` would get a new instant before what they have decided: as if it had run already."""
    old = core.state.jobs.gather(np.ascontiguousarray(rows[once]))
    before = (param[once] <= old["cursor_us"]) | core.state.bygone.decided(rows[once], param[once])
    decided: NDArray[np.int64] = once[before & (param[once] != old["param_us"])]
    return decided


def decided_text(name: str) -> str:
    """What is said about such a job. Never firing that instant in silence would break the first promise."""
    return (
        f"job {name} has decided its times up to a later one: a one-time run at an earlier instant could double one of them;"
        " choose another name, or a later instant"
    )


def so_long_past(core: Core, wire: dict[str, Any], param: int) -> str:
    """What is said of a job whose name is not known, when a time of it is longer past than names are remembered. Empty: nothing."""
    schedule = wire["schedule"]
    parts = schedule.get("of") or [{"schedule": schedule, "param_us": param}]
    if any(part["schedule"]["kind"] != "at" for part in parts):
        return ""  # it goes on from now
    past = core.now.wall_us - min(part["param_us"] for part in parts)
    if past <= TOMBSTONE_US:
        return ""
    days, kept = past // (86_400 * US), TOMBSTONE_US // (86_400 * US)
    return (
        f"its time is {days} days past, and the name of a job that is over is known for {kept} days after it was put last: if a job of"
        " this name ran then, it runs a second time"
    )


def said_of(core: Core, names: list[str], spec: NDArray[np.uint32], param: NDArray[np.int64]) -> list[list[Any]]:
    """[row, text] of the jobs of a frame, not yet put, about which something is said."""
    early = core.specs.dates[spec] | ((core.specs.kind[spec] == KIND_AT) & (param < core.now.wall_us - TOMBSTONE_US))
    rows = [i for i in np.flatnonzero(early).tolist() if core.state.find_job(names[i].encode()) is None]
    told = [[i, so_long_past(core, core.state.specs[int(spec[i])], int(param[i]))] for i in rows]
    return [[i, said] for i, said in told if said]


def refuse_decided(core: Core, names: list[bytes], rows: NDArray[np.uint32], spec: NDArray[np.uint32], param: NDArray[np.int64],
                   known: NDArray[np.int64]) -> None:
    """failed_precondition for a one-time job's new instant before what it has decided."""
    bad = decided_before(core, rows, param, known[core.specs.kind[spec[known]] == KIND_AT])
    if len(bad):
        raise FailedPreconditionError(decided_text(display_name(names[int(bad[0])].decode())))


def put_jobs(core: Core, cmd: Incoming, names: list[bytes], payloads: list[bytes], spec: NDArray[np.uint32],
             param: NDArray[np.int64], note: list[list[Any]], *, paused: bool | None = None) -> NDArray[np.uint8]:
    """Upsert by name; what is the same already stays untouched. Result codes."""
    keys = b"".join([job_key(n) for n in names])
    rows = core.state.jobs.find(names, keys)
    known = np.flatnonzero(rows != NO_ROW)
    decide_jobs(core, rows[known])
    param = kept_anchors(core, rows, spec, param)
    result = np.full(len(names), CREATED, np.uint8)
    if len(known):
        same = core.state.jobs.same(rows, spec, param, payloads) > 0
        old = core.state.jobs.gather(rows[known])["state"]
        same[known[old == plain.JOB_DELETED]] = False
        if paused is not None:
            same[known[(old == plain.JOB_PAUSED) != paused]] = False
        if note:
            same[[i for i, text in note if core.state.notes.get(int(rows[i]), "") != text]] = False
        result[known[old != plain.JOB_DELETED]] = UPDATED
        result[same] = UNCHANGED
        memory.renew(core, np.ascontiguousarray(rows[same]))
    take = np.flatnonzero(result != UNCHANGED)
    if not len(take):
        return result
    refuse_decided(core, names, rows, spec, param, np.intersect1d(take, known))
    changed = np.intersect1d(take, known)
    fields = core.state.jobs.gather(np.ascontiguousarray(rows[changed]))
    for i in changed[unsettled(core, fields)].tolist():
        keeps = core.specs.kind[spec[i]] == KIND_AT and param[i] == core.state.jobs.gather(rows[i : i + 1])["param_us"][0]
        skip_unattended(core, int(rows[i]), once=not keeps)
    marked = {job for job, _ in core.state.exceptions}
    for i in changed[(fields["waiting"] > 0) | np.isin(rows[changed], list(marked))].tolist():
        replace_waiting(core, cmd, int(rows[i]), int(spec[i]), int(param[i]))
    following, cursor, state = first_next(core, rows, spec, param, paused)
    pick = take.tolist()
    whole_frame = len(pick) == len(names)
    made = core.record("PUT", {
        "at": core.now.wall_us, "uid": cmd.uid,
        "name": records.Blobs(names if whole_frame else [names[i] for i in pick]),
        "key": keys if whole_frame else b"".join([keys[10 * i : 10 * i + 10] for i in pick]),
        "payload": records.Blobs(payloads if whole_frame else [payloads[i] for i in pick]),
        "spec": spec[take], "param": param[take], "next": following[take], "cursor": cursor[take], "state": state[take],
        "note": [[pick.index(i), n] for i, n in note if i in pick],
    })
    core.arm_jobs(made, following[take])
    return result


def outside(core: Core, spec: NDArray[np.uint32], param: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which one-time jobs could never fire, since their instant is before start or after end."""
    specs = core.specs
    return np.asarray((specs.kind[spec] == KIND_AT) & ((param < specs.start[spec]) | (param > specs.end[spec])), np.bool_)


def replace_waiting(core: Core, cmd: Incoming, row: int, spec: int, param: int) -> None:
    """A new schedule is effective at once: recorded occurrences of the old one that only waited give their place to it, and what a
    person said about single ones that it doesn't have is forgotten.
    """
    fields = core.state.jobs.gather(np.array([row], np.uint32))[0]
    old, new = core.state.specs[int(fields["spec"])], core.state.specs[spec]
    if all(old[key] == new[key] for key in ("schedule", "start_us", "end_us")) and int(fields["param_us"]) == param:
        return
    marks = core.state.exceptions.items()  # a moved occurrence keeps its mark: it has a run, whatever schedule comes
    gone = [at for (job, at), to in marks if job == row and to == SKIP and core.specs.one(spec, param, at - 1) != at]
    if gone:
        core.record("EXCEPT", {
            "at": core.now.wall_us, "uid": cmd.uid, "job": np.full(len(gone), row, np.uint32), "nominal": np.array(gone, np.int64),
            "to": np.full(len(gone), AS_EVER, np.int64),
        })
    members, runs = own_open(core, row)
    waiting = (runs["state"] == RunState.SCHEDULED) & (runs["trigger"] == Trigger.SCHEDULE) & (runs["disposition"] == Disposition.FIRED)
    if waiting.any():
        supersede(core, members[waiting], Disposition.SUPERSEDED, Reason.NONE)


def own_name(name: Any) -> str:
    """The full name of a job that a user may put."""
    full = parse_job_name(name)
    if full.partition("/")[2].startswith("~"):
        raise InvalidArgumentError(f"job name {full}: names beginning with ~ are reserved for enqueued runs")
    return full


def _asked(args: dict[str, Any]) -> tuple[Any, bytes, int]:
    """(given, payload, param_us) of a put that says all."""
    return args.get("given"), payload_of(args.get("payload")), param_of(args.get("param_us", NEVER))


def _kept(core: Core, cmd: Incoming) -> tuple[dict[str, Any], bytes, int]:
    """(given, payload, param_us) of a put that changes what it names and leaves the rest of the job as it is; nil takes a policy away.

    NotFoundError. The whole that comes of it is checked as that of any put.
    """
    args = cmd.request.args
    named = args.get("given")
    if not isinstance(named, dict):
        raise InvalidArgumentError(f"given: a map is wanted, not {type(named).__name__}")
    row = job_row(core, args)
    fields = core.state.jobs.gather(np.array([row], np.uint32))[0]
    before = core.state.specs[int(fields["spec"])]
    whole = {key: value for key, value in before.items() if key not in SERVER_KEYS and value is not None} | named
    check_task(cmd, whole.get("task"))
    param = param_of(args.get("param_us", NEVER))
    if "schedule" not in named and before["schedule"]["kind"] == "at":
        param = int(fields["param_us"])
    given = {key: value for key, value in whole.items() if value is not None}
    return given, core.state.jobs.payload(row) if args.get("payload") is None else payload_of(args["payload"]), param


def put(core: Core, cmd: Incoming) -> bytes:
    """Upsert one job."""
    args = cmd.request.args
    name = own_name(args.get("name"))
    given, payload, param = _kept(core, cmd) if args.get("keep") else _asked(args)
    paused = args.get("paused")
    if paused is not None and not isinstance(paused, bool):
        raise InvalidArgumentError("paused: true or false is wanted")
    row = core.state.find_job(name.encode())
    if row is not None:
        decide_jobs(core, np.array([row], np.uint32))
    version = whole(args, "version", 0, 2**32 - 1)
    have = 0 if row is None else int(core.state.jobs.gather(np.array([row], np.uint32))["version"][0])
    if version is not None and version != have:
        raise AlreadyExistsError(f"job {display_name(name)} is at version {have}, not {version}: read it again and repeat", version=have)
    spec = spec_number(core, given, name)
    if core.specs.hooked[spec] and (cycle := find_cycle(core, {name: targets_of(core.state.specs[spec])})):
        raise InvalidArgumentError(cycle_text(cycle))
    if core.specs.kind[spec] == KIND_AT and param == NEVER:
        raise ScheduleError("at: param_us, the instant, is wanted")
    if outside(core, np.array([spec], np.uint32), np.array([param], np.int64))[0]:
        raise ScheduleError(OUTSIDE)
    note = text(args, "note", NOTE_MAX)
    known = row is not None and alive(core, name)
    changes = difference(core, row, Wanted(core.state.specs[spec], param, payload, note, paused)) if known and row is not None else None
    said = said_of(core, [name], np.array([spec], np.uint32), np.array([param], np.int64))
    result = put_jobs(
        core, cmd, [name.encode()], [payload], np.array([spec], np.uint32), np.array([param], np.int64), [[0, note]] if note else [],
        paused=paused,
    )
    row = core.state.find_job(name.encode())
    assert row is not None
    answer = {**reads.job(core, row), "result": _RESULTS[int(result[0])]}
    if result[0] == CREATED and answer["state"] == "finished" and answer["cursor_us"] is not None:
        said = [[0, "its times were decided before it was deleted: none of them fires again"]]
    if result[0] == UPDATED:
        answer["changes"] = changes
    if said:
        answer["said"] = said[0][1]
    if warning := remark(core, answer["spec"]["task"]):
        answer["warning"] = warning
    return done(core, cmd, answer)


def put_many(core: Core, cmd: Incoming) -> bytes:
    """Upsert a frame of jobs, all or nothing."""
    args = cmd.request.args
    names, payloads, given = args.get("names"), args.get("payload"), args.get("given")
    if not isinstance(names, list) or not isinstance(payloads, list) or not isinstance(given, list) or len(names) != len(payloads):
        raise InvalidArgumentError("put_many: names, payload and given are lists, the first two of one length")
    n = len(names)
    if not 1 <= n <= FRAME_JOBS_MAX:
        raise InvalidArgumentError(f"put_many: 1 to {FRAME_JOBS_MAX} jobs a frame, not {n}")
    which, param = _column(args, "which", "<u4", n), _column(args, "param_us", "<i8", n)
    if len(given) == 0 or int(which.max()) >= len(given):
        raise InvalidArgumentError("put_many: which names a row of `given` that is not there")
    faults: list[list[Any]] = []
    full = []
    for i, name in enumerate(names):
        try:
            full.append(own_name(name))
        except InvalidArgumentError as e:
            faults.append([i, str(e)])
        if (fault := payload_fault(payloads[i])) is not None:
            faults.append([i, fault])
    if not faults and len(set(full)) != n:
        first = {x: i for i, x in reversed(list(enumerate(full)))}
        faults = [[i, f"job {x} is in the frame twice"] for i, x in enumerate(full) if first[x] != i]
    bad = (param != NEVER) & ((param < 0) | (param > INSTANT_MAX_US))
    faults += [[i, "param_us is out of range"] for i in np.flatnonzero(bad).tolist()]
    if not faults:
        spec = _specs_of(core, given, which, full, faults)
    if not faults:
        missing = (core.specs.kind[spec] == KIND_AT) & (param == NEVER)
        faults += [[i, "at: param_us, the instant, is wanted"] for i in np.flatnonzero(missing).tolist()]
        faults += [[i, OUTSIDE] for i in np.flatnonzero(~missing & outside(core, spec, param)).tolist()]
        if core.specs.hooked[spec].any():
            coming = {x: targets_of(core.state.specs[s]) for x, s in zip(full, spec.tolist(), strict=True)}
            if cycle := find_cycle(core, coming):
                faults.append([full.index(cycle[0]), cycle_text(cycle)])
    if faults:
        raise InvalidArgumentError(f"job {faults[0][0]} of the frame: {faults[0][1]} (nothing was stored)", jobs=faults[:100])
    param = np.where(param == NEVER, NEVER, -(-param // MS) * MS)
    said = said_of(core, full, spec, param)
    result = put_jobs(core, cmd, [x.encode() for x in full], payloads, spec, param, [])
    warnings = remarks(core, (core.state.specs[n]["task"] for n in np.unique(spec).tolist()))
    more = {"said": said, "warnings": warnings}
    return done(core, cmd, {"result": result.tobytes(), **{key: value for key, value in more.items() if value}})


def _column(args: dict[str, Any], name: str, dtype: str, n: int) -> NDArray[Any]:
    data = args.get(name)
    if not isinstance(data, bytes) or len(data) != n * np.dtype(dtype).itemsize:
        raise InvalidArgumentError(f"{name}: a column of {n} rows is wanted")
    return np.frombuffer(data, dtype)


def _specs_of(core: Core, given: list[Any], which: NDArray[Any], names: list[str], faults: list[list[Any]]) -> NDArray[np.uint32]:
    """Definition numbers, each distinct (given, namespace) resolved once; those that hold their job's name one by one."""
    out = np.zeros(len(names), np.uint32)
    cache: dict[tuple[int, str], int] = {}
    spaces, together = [x.partition("/")[0] for x in names], frozenset(names)
    for i, (w, space) in enumerate(zip(which.tolist(), spaces, strict=True)):
        spec = cache.get((w, space))
        if spec is None:
            try:
                spec = spec_number(core, given[w], names[i], together)
            except (InvalidArgumentError, FailedPreconditionError) as e:
                faults.append([i, str(e)])
                continue
            if not own(core.state.specs[spec]):
                cache[(w, space)] = spec
        out[i] = spec
    return out

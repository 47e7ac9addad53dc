"""put and put_many: upsert by name. What is the same already stays untouched; what was decided before never fires again."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from . import reads, records
from .arguments import done, param_of, payload_of, text, whole
from .definition import check_given, resolve
from .errors import AlreadyExistsError, FailedPreconditionError, InvalidArgumentError, NotFoundError, ResourceExhaustedError, ScheduleError
from .misfire import skip_paused
from .model import FRAME_JOBS_MAX, INSTANT_MAX_US, MS, NEVER, NOTE_MAX, PAYLOAD_MAX, JobState, display_name, parse_job_name
from .specs import KIND_AT, KIND_EVERY, KIND_MANUAL
from .state import job_key, spec_bytes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .engine import Engine
    from .turn import Incoming

_NO_ROW: Final = 0xFFFFFFFF
UNCHANGED, CREATED, UPDATED = 0, 1, 2
_RESULTS: Final = ("unchanged", "created", "updated")
_HASHED: Final = re.compile(r"(?<![A-Za-z])[Hh](?![A-Za-z])")  # the H of a cron expression: another schedule for each job


def job_row(engine: Engine, args: dict[str, Any], *, deleted: bool = False) -> int:
    """Row of the named job, its occurrences up to now decided; not_found for none and for a deleted one."""
    name = parse_job_name(args.get("name"))
    row = engine.state.find_job(name.encode())
    if row is not None:
        engine.decide_job(row)
        if deleted or engine.state.jobs.gather(np.array([row], np.uint32))["state"][0] != JobState.DELETED:
            return row
    raise NotFoundError(f"no job {display_name(name)}")


def spec_number(engine: Engine, given: Any, name: str) -> int:
    """Number of the resolved definition; a new one is compiled first and then recorded."""
    given = check_given(given)
    wire = resolve(given, engine.state.announced.get(given["task"]))
    wire["namespace"] = name.partition("/")[0]
    schedule = wire["schedule"]
    if schedule["kind"] == "cron" and _HASHED.search(schedule["expr"]):
        wire["hash_id"] = name
    key = spec_bytes(wire)
    spec = engine.state.spec_ids.get(key)
    if spec is None:
        spec = len(engine.state.specs)
        if spec >= 2**24:
            raise ResourceExhaustedError("16,777,216 different definitions are stored; use fewer distinct schedules and policies")
        engine.specs.add(spec, wire)  # raises before anything is recorded
        engine.record("SPEC", {"id": spec, "wire": wire})
    return spec


def kept_anchors(engine: Engine, rows: NDArray[np.uint32], spec: NDArray[np.uint32], param: NDArray[np.int64]) -> NDArray[np.int64]:
    """`param` with the anchors of intervals filled in: that of the job with an unchanged period, else now."""
    param = param.copy()
    every = (engine.specs.kind[spec] == KIND_EVERY) & (param == NEVER)
    old = np.flatnonzero(every & (rows != _NO_ROW))
    if len(old):
        fields = engine.state.jobs.gather(rows[old])
        keep = (engine.specs.kind[fields["spec"]] == KIND_EVERY) & (engine.specs.a[fields["spec"]] == engine.specs.a[spec[old]])
        param[old[keep]] = fields["param_us"][keep]
    param[every & (param == NEVER)] = -(-engine.now.wall_us // MS) * MS
    return param


def first_next(engine: Engine, rows: NDArray[np.uint32], spec: NDArray[np.uint32], param: NDArray[np.int64], paused: bool | None
               ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.uint8]]:
    """(next, cursor, state) of put jobs. What was decided before, tombstones included, never fires again."""
    n = len(rows)
    cursor = np.full(n, -1, np.int64)
    fired = np.zeros(n, np.uint32)
    was_paused = np.zeros(n, np.bool_)
    old = np.flatnonzero(rows != _NO_ROW)
    kind = engine.specs.kind[spec]
    if len(old):
        fields = engine.state.jobs.gather(rows[old])
        cursor[old] = fields["cursor_us"]
        fired[old] = np.where(fields["state"] == JobState.DELETED, 0, fields["fired"])
        was_paused[old] = fields["state"] == JobState.PAUSED
    after = np.where(kind == KIND_AT, cursor, np.maximum(cursor, engine.now.wall_us))
    following = engine.specs.next(spec, param, after)
    following[fired >= engine.specs.max_runs[spec]] = NEVER
    state = np.where((following == NEVER) & (kind != KIND_MANUAL), JobState.FINISHED, JobState.ACTIVE).astype(np.uint8)
    state[(was_paused if paused is None else np.full(n, paused)) & (state != JobState.FINISHED)] = JobState.PAUSED
    following[state == JobState.PAUSED] = NEVER
    return following, cursor, state


def refuse_decided(engine: Engine, names: list[bytes], rows: NDArray[np.uint32], spec: NDArray[np.uint32], param: NDArray[np.int64],
                   known: NDArray[np.int64]) -> None:
    """failed_precondition for a new instant before what a job has decided: it can't be told from one that has run.

    Never firing it in silence would break the first promise.
    """
    once = known[engine.specs.kind[spec[known]] == KIND_AT]
    old = engine.state.jobs.gather(np.ascontiguousarray(rows[once]))
    bad = once[(param[once] <= old["cursor_us"]) & (param[once] != old["param_us"])]
    if len(bad):
        raise FailedPreconditionError(
            f"job {display_name(names[int(bad[0])].decode())} has decided its times up to a later one: a one-time run at an earlier instant"
            " could double one of them; choose another name, or a later instant"
        )


def put_jobs(engine: Engine, cmd: Incoming, names: list[bytes], payloads: list[bytes], spec: NDArray[np.uint32],
             param: NDArray[np.int64], note: list[list[Any]], *, paused: bool | None = None) -> NDArray[np.uint8]:
    """Upsert by name; what is the same already stays untouched. Result codes."""
    keys = b"".join([job_key(n) for n in names])
    rows = engine.state.jobs.find(names, keys)
    known = np.flatnonzero(rows != _NO_ROW)
    for row in rows[known].tolist():
        engine.decide_job(row)
    param = kept_anchors(engine, rows, spec, param)
    result = np.full(len(names), CREATED, np.uint8)
    if len(known):
        same = engine.state.jobs.same(rows, spec, param, payloads) > 0
        old = engine.state.jobs.gather(rows[known])["state"]
        same[known[old == JobState.DELETED]] = False
        if paused is not None:
            same[known[(old == JobState.PAUSED) != paused]] = False
        if note:
            same[[i for i, text in note if engine.state.notes.get(int(rows[i]), "") != text]] = False
        result[known[old != JobState.DELETED]] = UPDATED
        result[same] = UNCHANGED
    take = np.flatnonzero(result != UNCHANGED)
    if not len(take):
        return result
    refuse_decided(engine, names, rows, spec, param, np.intersect1d(take, known))
    for row in rows[np.intersect1d(take, known)].tolist():
        skip_paused(engine, row)
    following, cursor, state = first_next(engine, rows, spec, param, paused)
    pick = take.tolist()
    whole_frame = len(pick) == len(names)
    made = engine.record("PUT", {
        "at": engine.now.wall_us, "uid": cmd.uid,
        "name": records.Blobs(names if whole_frame else [names[i] for i in pick]),
        "key": keys if whole_frame else b"".join([keys[10 * i : 10 * i + 10] for i in pick]),
        "payload": records.Blobs(payloads if whole_frame else [payloads[i] for i in pick]),
        "spec": spec[take], "param": param[take], "next": following[take], "cursor": cursor[take], "state": state[take],
        "note": [[pick.index(i), n] for i, n in note if i in pick],
    })
    engine.arm_jobs(made, following[take])
    return result


def own_name(name: Any) -> str:
    """The full name of a job that a user may put."""
    full = parse_job_name(name)
    if full.partition("/")[2].startswith("~"):
        raise InvalidArgumentError(f"job name {full}: names beginning with ~ are reserved for enqueued runs")
    return full


def put(engine: Engine, cmd: Incoming) -> bytes:
    """Upsert one job."""
    args = cmd.request.args
    name = own_name(args.get("name"))
    payload = payload_of(args.get("payload"))
    param = param_of(args.get("param_us", NEVER))
    paused = args.get("paused")
    if paused is not None and not isinstance(paused, bool):
        raise InvalidArgumentError("paused: true or false is wanted")
    row = engine.state.find_job(name.encode())
    if row is not None:
        engine.decide_job(row)
    version = whole(args, "version", 0, 2**32 - 1)
    have = 0 if row is None else int(engine.state.jobs.gather(np.array([row], np.uint32))["version"][0])
    if version is not None and version != have:
        raise AlreadyExistsError(f"job {display_name(name)} is at version {have}, not {version}: read it again and repeat", version=have)
    spec = spec_number(engine, args.get("given"), name)
    if engine.specs.kind[spec] == KIND_AT and param == NEVER:
        raise ScheduleError("at: param_us, the instant, is wanted")
    note = text(args, "note", NOTE_MAX)
    result = put_jobs(
        engine, cmd, [name.encode()], [payload], np.array([spec], np.uint32), np.array([param], np.int64), [[0, note]] if note else [],
        paused=paused,
    )
    row = engine.state.find_job(name.encode())
    assert row is not None
    return done(engine, cmd, {**reads.job(engine.state, row), "result": _RESULTS[int(result[0])]})


def put_many(engine: Engine, cmd: Incoming) -> bytes:
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
        if not isinstance(payloads[i], bytes) or not 0 < len(payloads[i]) <= PAYLOAD_MAX:
            faults.append([i, f"payload: a bin of 1 to {PAYLOAD_MAX} bytes is wanted"])
    if not faults and len(set(full)) != n:
        first = {x: i for i, x in reversed(list(enumerate(full)))}
        faults = [[i, f"job {x} is in the frame twice"] for i, x in enumerate(full) if first[x] != i]
    bad = (param != NEVER) & ((param < 0) | (param > INSTANT_MAX_US))
    faults += [[i, "param_us is out of range"] for i in np.flatnonzero(bad).tolist()]
    if not faults:
        spec = _specs_of(engine, given, which, full, faults)
    if not faults:
        missing = (engine.specs.kind[spec] == KIND_AT) & (param == NEVER)
        faults += [[i, "at: param_us, the instant, is wanted"] for i in np.flatnonzero(missing).tolist()]
    if faults:
        raise InvalidArgumentError(f"job {faults[0][0]} of the frame: {faults[0][1]} (nothing was stored)", jobs=faults[:100])
    param = np.where(param == NEVER, NEVER, -(-param // MS) * MS)
    result = put_jobs(engine, cmd, [x.encode() for x in full], payloads, spec, param, [])
    return done(engine, cmd, {"result": result.tobytes()})


def _column(args: dict[str, Any], name: str, dtype: str, n: int) -> NDArray[Any]:
    data = args.get(name)
    if not isinstance(data, bytes) or len(data) != n * np.dtype(dtype).itemsize:
        raise InvalidArgumentError(f"{name}: a column of {n} rows is wanted")
    return np.frombuffer(data, dtype)


def _specs_of(engine: Engine, given: list[Any], which: NDArray[Any], names: list[str], faults: list[list[Any]]) -> NDArray[np.uint32]:
    """Definition numbers, each distinct (given, namespace) resolved once; jobs with an H in their expression one by one."""
    out = np.zeros(len(names), np.uint32)
    cache: dict[tuple[int, str], int] = {}
    spaces = [x.partition("/")[0] for x in names]
    for i, (w, space) in enumerate(zip(which.tolist(), spaces, strict=True)):
        spec = cache.get((w, space))
        if spec is None:
            try:
                spec = spec_number(engine, given[w], names[i])
            except InvalidArgumentError as e:
                faults.append([i, str(e)])
                continue
            if "hash_id" not in engine.state.specs[spec]:
                cache[(w, space)] = spec
        out[i] = spec
    return out

"""The verbs of clients: parse, decide, answer. A mutating verb's answer is remembered under its `rid` in the same commit."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final

import msgpack
import numpy as np

from . import protocol, reads, records
from .definition import check_given, resolve
from .errors import (
    AlreadyExistsError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    ResourceExhaustedError,
    ScheduleError,
)
from .misfire import plan
from .model import (
    FRAME_JOBS_MAX,
    INSTANT_MAX_US,
    KEY_MAX,
    MS,
    NEVER,
    NOTE_MAX,
    PAYLOAD_MAX,
    Event,
    JobState,
    Reason,
    RunState,
    Trigger,
    display_name,
    parse_job_name,
)
from .specs import KIND_AT, KIND_EVERY, KIND_MANUAL
from .state import job_key, other_run_id, spec_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from .engine import Engine
    from .turn import Incoming

_NO_ROW: Final = 0xFFFFFFFF
UNCHANGED, CREATED, UPDATED = 0, 1, 2
_RESULTS: Final = ("unchanged", "created", "updated")
_HASHED: Final = re.compile(r"(?<![A-Za-z])[Hh](?![A-Za-z])")  # the H of a cron expression: another schedule for each job


def remembered(engine: Engine, cmd: Incoming) -> bytes | None:
    """The answer to a request id that was seen before; None for a new one. InvalidArgumentError when there is none."""
    rid = cmd.request.args.get("rid")
    if not isinstance(rid, bytes) or len(rid) != 16:
        raise InvalidArgumentError(f"{cmd.request.verb}: rid, a bin of 16 bytes, is wanted: it makes a repeat harmless")
    seen = engine.state.replies.get(rid)
    return None if seen is None else protocol.encode_ok(cmd.request.id, msgpack.unpackb(seen[1], raw=False))


def done(engine: Engine, cmd: Incoming, result: Any) -> bytes:
    """Remember the answer of a mutating verb, then send it."""
    reply = msgpack.packb(result, use_bin_type=True)
    engine.record("REPLY", {"at": engine.now.wall_us, "rid": cmd.request.args["rid"], "reply": reply})
    return protocol.encode_ok(cmd.request.id, result)


def text(args: dict[str, Any], name: str, limit: int, default: str = "") -> str:
    """A text argument of at most `limit` characters."""
    value = args.get(name, default)
    if value is None:
        return default
    if not isinstance(value, str) or len(value) > limit:
        raise InvalidArgumentError(f"{name}: a text of at most {limit} characters is wanted")
    return value


def whole(args: dict[str, Any], name: str, low: int, high: int, default: int | None = None) -> int | None:
    """A whole number between two limits, or the default for nil."""
    value = args.get(name, default)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise InvalidArgumentError(f"{name}: a whole number from {low} to {high} is wanted, not {value!r}")
    return value


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
    wire = resolve(given, engine.announced.get(given["task"]))
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


def first_next(engine: Engine, rows: NDArray[np.uint32], spec: NDArray[np.uint32], param: NDArray[np.int64]
               ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.uint8]]:
    """(param, next, cursor, state) of put jobs. What was decided before, tombstones included, never fires again."""
    n = len(rows)
    now = engine.now.wall_us
    cursor = np.full(n, -1, np.int64)
    state = np.full(n, JobState.ACTIVE, np.uint8)
    old = np.flatnonzero(rows != _NO_ROW)
    kind = engine.specs.kind[spec]
    param = param.copy()
    if len(old):
        fields = engine.state.jobs.gather(rows[old])
        cursor[old] = fields["cursor_us"]
        state[old[fields["state"] == JobState.PAUSED]] = JobState.PAUSED
        keep = (kind[old] == KIND_EVERY) & (param[old] == NEVER) & (engine.specs.kind[fields["spec"]] == KIND_EVERY) \
            & (engine.specs.a[fields["spec"]] == engine.specs.a[spec[old]])
        param[old[keep]] = fields["param_us"][keep]
    fresh = (kind == KIND_EVERY) & (param == NEVER)
    param[fresh] = -(-now // MS) * MS
    at = kind == KIND_AT
    after = np.where(at, cursor, np.maximum(cursor, now))
    following = engine.specs.next(spec, param, after)
    state[(following == NEVER) & (state == JobState.ACTIVE) & (kind != KIND_MANUAL)] = JobState.FINISHED
    following[state == JobState.PAUSED] = NEVER
    return param, following, cursor, state


def put_jobs(engine: Engine, cmd: Incoming, names: list[bytes], payloads: list[bytes], spec: NDArray[np.uint32],
             param: NDArray[np.int64], note: list[list[Any]], *, paused: bool | None = None) -> NDArray[np.uint8]:
    """Upsert by name; what is the same already stays untouched. Result codes."""
    keys = b"".join([job_key(n) for n in names])
    rows = engine.state.jobs.find(names, keys)
    known = np.flatnonzero(rows != _NO_ROW)
    for row in rows[known].tolist():
        engine.decide_job(row)
    param, following, cursor, state = first_next(engine, rows, spec, param)
    if paused is not None:
        state[:] = np.where(paused & (state != JobState.FINISHED), JobState.PAUSED, state)
        following[state == JobState.PAUSED] = NEVER
    result = np.full(len(names), CREATED, np.uint8)
    if len(known):
        same = engine.state.jobs.same(rows, spec, param, payloads) > 0
        old = engine.state.jobs.gather(rows[known])["state"]
        same[known[old == JobState.DELETED]] = False
        if paused is not None:
            same[known[(old == JobState.PAUSED) != paused]] = False
        if note:
            same[[i for i, _ in note]] = False
        result[known[old != JobState.DELETED]] = UPDATED
        result[same] = UNCHANGED
    take = np.flatnonzero(result != UNCHANGED)
    if not len(take):
        return result
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


def put(engine: Engine, cmd: Incoming) -> bytes:
    """Upsert one job."""
    args = cmd.request.args
    name = parse_job_name(args.get("name"))
    if name.partition("/")[2].startswith("~"):
        raise InvalidArgumentError(f"job name {name}: names beginning with ~ are reserved")
    payload = _payload(args.get("payload"))
    param = _param(args.get("param_us", NEVER))
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


def _payload(value: Any) -> bytes:
    if not isinstance(value, bytes) or not value:
        raise InvalidArgumentError("payload: a bin with the encoded [args, kwargs] is wanted")
    if len(value) > PAYLOAD_MAX:
        raise InvalidArgumentError(f"payload of {len(value)} bytes: at most {PAYLOAD_MAX} are allowed")
    protocol.decode_payload(value)
    return value


def _param(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not (value == NEVER or 0 <= value <= INSTANT_MAX_US):
        raise InvalidArgumentError("param_us: microseconds since 1970, up to the year 9999, are wanted")
    return value if value == NEVER else -(-value // MS) * MS


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
            full.append(parse_job_name(name))
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
    after = fields["cursor_us"] if once else np.maximum(fields["cursor_us"], fields["updated_us"])
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
    members = np.array(engine.state.runs.of_job(row), np.uint32)
    _change(engine, cmd, row, JobState.DELETED, NEVER, "")
    if len(members):
        states = engine.state.runs.gather(members)["state"]
        waiting = members[(states == RunState.SCHEDULED) | (states == RunState.RETRY_WAIT)]
        if len(waiting):
            cancel_rows(engine, waiting)
    return done(engine, cmd, reads.job(engine.state, row))


def cancel_rows(engine: Engine, rows: NDArray[np.uint32]) -> None:
    """Cancel runs that no worker holds."""
    engine.delayed.cancel(rows)
    engine.mono.cancel(rows)
    engine.record("RUNS", {"at": engine.now.wall_us, "event": int(Event.CANCEL), "run": rows})
    engine.counters["cancelled"] += len(rows)
    engine.turn_of(rows)
    engine.end_waits(rows)


def trigger(engine: Engine, cmd: Incoming) -> bytes:
    """Run a job now, with a run of its own."""
    key = text(cmd.request.args, "key", KEY_MAX)
    row = job_row(engine, cmd.request.args)
    fields = engine.state.jobs.gather(np.array([row], np.uint32))[0]
    name = engine.state.jobs.names(np.array([row], np.uint32))[0]
    scoped = b"trigger\0" + name + b"\0" + key.encode() if key else b""
    known = _known_key(engine, cmd, scoped)
    if known:
        return known
    wire = engine.state.specs[int(fields["spec"])]
    busy = int(fields["active"]) + int(fields["waiting"])
    state, due = RunState.QUEUED, engine.now.wall_us
    if busy:
        policy = wire["overlap"]["policy"]
        if policy == "skip" or (policy == "allow" and busy >= engine.specs.overlap_max[int(fields["spec"])]):
            blocking = _blocking(engine, row)
            shown = display_name(name.decode())
            raise FailedPreconditionError(f"job {shown} is busy with run {blocking} (overlap {policy})", run_id=blocking)
        if policy != "allow":
            state, due = RunState.SCHEDULED, -1
    return _new_run(engine, cmd, row, name, int(fields["spec"]), Trigger.MANUAL, engine.now.wall_us, due, state,
                    engine.state.jobs.payload(row), scoped)


def _blocking(engine: Engine, row: int) -> str:
    members = np.array(engine.state.runs.of_job(row), np.uint32)
    fields = engine.state.runs.gather(members)
    open_rows = members[fields["state"] <= RunState.RETRY_WAIT]
    return engine.state.runs.text_id(int(open_rows[-1]))


def _known_key(engine: Engine, cmd: Incoming, scoped: bytes) -> bytes | None:
    """The answer when an idempotency key was used before: the run it made."""
    known = engine.state.keys.get(scoped) if scoped else None
    if known is None:
        return None
    return done(engine, cmd, reads.run_or_stub(engine, known.run_id))


def _new_run(engine: Engine, cmd: Incoming, job: int, name: bytes, spec: int, kind: Trigger, nominal: int, due: int, state: RunState,
             payload: bytes, scoped: bytes) -> bytes:
    run_id = other_run_id(name, engine.now.wall_us, engine.state.meta.seq + 1, 0)
    rows = engine.record("ENQUEUE", {
        "at": engine.now.wall_us, "uid": cmd.uid, "job": np.array([job], np.uint32), "id": run_id, "spec": np.array([spec], np.uint32),
        "trigger": np.array([kind], np.uint8), "nominal": np.array([nominal], np.int64), "due": np.array([due], np.int64),
        "state": np.array([state], np.uint8), "payload": records.Blobs([payload]), "key": [[0, scoped]] if scoped else [],
    })
    engine.counters["created"] += 1
    if state == RunState.SCHEDULED and due >= 0:
        engine.delayed.add(rows, np.array([-(-due // MS)], np.int64))
    return done(engine, cmd, reads.run(engine.state, int(rows[0]), engine.running))


def enqueue(engine: Engine, cmd: Incoming) -> bytes:
    """A one-time run of a task; its job is the reserved NAMESPACE/~TASK."""
    args = cmd.request.args
    namespace = text(args, "namespace", 64, "default")
    given = check_given({**args.get("given", {}), "schedule": {"kind": "manual"}})
    name = parse_job_name(f"{namespace}/x").partition("/")[0] + "/~" + given["task"]
    payload = _payload(args.get("payload"))
    key = text(args, "key", KEY_MAX)
    scoped = b"enqueue\0" + name.encode() + b"\0" + key.encode() if key else b""
    known = _known_key(engine, cmd, scoped)
    if known:
        return known
    now = engine.now.wall_us
    at, delay = whole(args, "at_us", 0, INSTANT_MAX_US), whole(args, "delay_us", 0, INSTANT_MAX_US)
    if at is not None and delay is not None:
        raise InvalidArgumentError("enqueue: give at_us or delay_us, not both")
    nominal = -(-(at if at is not None else now + (delay or 0)) // MS) * MS if at is not None or delay else now
    spec = spec_number(engine, given, name)
    row = engine.state.find_job(name.encode())
    if row is None:
        blank = np.array([NEVER], np.int64)
        engine.record("PUT", {
            "at": now, "uid": cmd.uid, "name": records.Blobs([name.encode()]), "key": job_key(name.encode()),
            "payload": records.Blobs([b""]), "spec": np.array([spec], np.uint32), "param": blank, "next": blank,
            "cursor": np.array([-1], np.int64), "state": np.array([JobState.ACTIVE], np.uint8), "note": [],
        })
        row = engine.state.find_job(name.encode())
        assert row is not None
    later = nominal > now
    return _new_run(engine, cmd, row, name.encode(), spec, Trigger.ENQUEUE, nominal, nominal,
                    RunState.SCHEDULED if later else RunState.QUEUED, payload, scoped)


def run_row(engine: Engine, args: dict[str, Any]) -> int:
    """Row of the run with that id, if it is not folded; not_found otherwise."""
    row = engine.state.find_run(parse_run_id(args.get("id")))
    if row is None:
        raise NotFoundError(f"no open run {args.get('id')}")
    return row


def parse_run_id(value: Any) -> bytes:
    """The 16 bytes of a run id given as 32 hex digits."""
    try:
        run_id = bytes.fromhex(value)
    except (ValueError, TypeError):
        run_id = b""
    if len(run_id) != 16:
        raise InvalidArgumentError(f"run id {str(value)[:60]!r}: 32 hex digits are wanted")
    return run_id


def cancel(engine: Engine, cmd: Incoming) -> bytes:
    """Cancel a run: at once when no worker holds it, else through its worker."""
    row = run_row(engine, cmd.request.args)
    rows = np.array([row], np.uint32)
    fields = engine.state.runs.gather(rows)[0]
    if fields["state"] == RunState.LEASED:
        engine.record("ASK_CANCEL", {"at": engine.now.wall_us, "run": rows})
        engine.effects.cancels.append((int(fields["worker"]), int(fields["token"])))
    elif fields["state"] <= RunState.RETRY_WAIT:
        cancel_rows(engine, rows)
    elif fields["state"] != RunState.CANCELLED:
        state = RunState(int(fields["state"])).name.lower()
        raise FailedPreconditionError(f"the run is {state} already")
    return done(engine, cmd, reads.run(engine.state, row, engine.running))


def dead_rows(engine: Engine, args: dict[str, Any]) -> NDArray[np.uint32]:
    """Dead letters by ids or by a pattern over job names."""
    ids, match = args.get("ids"), args.get("match")
    if (ids is None) == (match is None):
        raise InvalidArgumentError("give match (a pattern such as 'billing/*') or ids")
    if ids is not None:
        if not isinstance(ids, list) or len(ids) > FRAME_JOBS_MAX:
            raise InvalidArgumentError(f"ids: a list of at most {FRAME_JOBS_MAX} run ids is wanted")
        rows = np.array([run_row(engine, {"id": i}) for i in dict.fromkeys(ids)], np.uint32)
        if len(rows) and (engine.state.runs.gather(rows)["state"] != RunState.DEAD).any():
            raise FailedPreconditionError("some of these runs are no dead letters")
        return rows
    rows = engine.state.runs.peek(2, 2**31)
    if match == "*" or not len(rows):
        return rows
    jobs = engine.state.runs.gather(rows)["job"].copy()
    names = [display_name(x.decode()) for x in engine.state.jobs.names(jobs)]
    return rows[np.array([fnmatchcase(x, str(match)) for x in names], np.bool_)]


def _settle_dead(engine: Engine, cmd: Incoming, event: Event) -> bytes:
    rows = dead_rows(engine, cmd.request.args)
    if len(rows):
        engine.record("RUNS", {"at": engine.now.wall_us, "event": int(event), "run": rows})
    return done(engine, cmd, {"count": len(rows)})


def redrive(engine: Engine, cmd: Incoming) -> bytes:
    """Send dead letters back to their queues, with all their attempts anew."""
    return _settle_dead(engine, cmd, Event.REDRIVE)


def discard(engine: Engine, cmd: Incoming) -> bytes:
    """Give dead letters up: they leave the list for history, as dead."""
    return _settle_dead(engine, cmd, Event.DISCARD)


def wait(engine: Engine, cmd: Incoming) -> bytes:
    """Answer when the run is final or the time is over."""
    run_id = parse_run_id(cmd.request.args.get("id"))
    row = run_row(engine, cmd.request.args)
    if engine.state.runs.gather(np.array([row], np.uint32))["state"][0] > RunState.RETRY_WAIT:
        return protocol.encode_ok(cmd.request.id, reads.run(engine.state, row, engine.running))
    limit = whole(cmd.request.args, "timeout_us", 0, 2**62, 2**62) or 0
    engine.waiters.setdefault(run_id, []).append((cmd.conn, cmd.request.id, engine.now.mono_us + limit))
    return b""


def expire_waiters(engine: Engine) -> None:
    """Answer waits whose time is over with the run as it stands."""
    for run_id in [r for r, waiting in engine.waiters.items() if any(w[2] <= engine.now.mono_us for w in waiting)]:
        keep = []
        for conn, request_id, deadline in engine.waiters.pop(run_id):
            if deadline > engine.now.mono_us:
                keep.append((conn, request_id, deadline))
            else:
                engine.reply(conn, protocol.encode_ok(request_id, reads.run_or_stub(engine, run_id)))
        if keep:
            engine.waiters[run_id] = keep


VERBS: Final[dict[str, Callable[[Engine, Incoming], bytes]]] = {
    "put": put, "put_many": put_many, "get": get, "next": upcoming, "pause": pause, "resume": resume, "delete": delete,
    "trigger": trigger, "enqueue": enqueue, "cancel": cancel, "redrive": redrive, "discard": discard, "wait": wait,
}

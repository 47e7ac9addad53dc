"""enqueue and enqueue_many: one-time runs of tasks; their job is the reserved NAMESPACE/~TASK.

Two kinds of durable names keep a call from running twice. An idempotency key is spent by its run for `key_ttl`, at least while the run is
open. An identity (`unique`) is held by a run only while that is open: the same namespace, task and named fields make no second run
meanwhile. A dead letter that is sent back holds its identity again, beside another run that took it since; it is free when the last of
them has ended. Both stand in one table.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final

import msgpack
import numpy as np

from ..engine.arguments import column, done, payload_fault, payload_of, text, whole
from ..model.errors import InvalidArgumentError, WheelschedError
from ..model.ids import job_key, other_run_id
from ..model.nouns import (
    FRAME_JOBS_MAX,
    INSTANT_MAX_US,
    KEY_MAX,
    MS,
    NEVER,
    RUN_FAULTS_MAX,
    UNIQUE_FIELDS,
    JobState,
    RunState,
    Trigger,
    parse_job_name,
)
from ..protocol import frames
from ..protocol.definition import check_given
from ..state import readable, records
from ..state.nouns import IDENTITY
from .put import alive, spec_number

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from ..engine.core import Core
    from ..engine.turn import Incoming



@dataclass(slots=True)
class Wanted:
    """One run that is asked for."""

    job: str  # full name
    spec: int
    payload: bytes
    nominal: int
    key: bytes = b""  # in the table of keys; empty: none
    unique: bytes = b""


# Names in the table of keys


def scoped(kind: str, name: str, key: str) -> bytes:
    """What a user's key is in the table of keys; nothing for no key."""
    return f"{kind}\0{name}\0{key}".encode() if key else b""


def identity(job: str, fields: Sequence[str], payload: bytes, wire: dict[str, Any]) -> bytes:
    """The identity of a run by the named fields; equal arguments are equal whatever the order of their names."""
    values = {"args": _sorted(msgpack.unpackb(payload, raw=False)[:2]) if "args" in fields else None}
    values |= {name: wire[name] for name in fields if name not in ("args", "task")}
    packed = msgpack.packb([job, sorted(fields), _sorted(values)], use_bin_type=True)
    return IDENTITY + blake2b(packed, digest_size=16, person=b"wheelsched.uniq").digest()


def _sorted(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _sorted(value[key]) for key in sorted(value)}
    return [_sorted(part) for part in value] if isinstance(value, list) else value


def unique_fields(value: Any) -> tuple[str, ...]:
    """Checked names of what makes an identity; empty: none is wanted."""
    if value is None:
        return ()
    if not isinstance(value, list) or not value or not all(name in UNIQUE_FIELDS for name in value):
        raise InvalidArgumentError(f"unique: a list of some of {', '.join(UNIQUE_FIELDS)} is wanted")
    return tuple(sorted(set(value)))


def _holder(core: Core, key: bytes) -> bytes | None:
    """The run that a name stands for now; an identity does only while one that has it is open."""
    known = core.state.keys.get(key)
    if known is None:
        return None
    return (known.holders(core.state.runs)[:16] or None) if key.startswith(IDENTITY) else known.run_id


# Making runs


def make(core: Core, cmd: Incoming, wanted: Sequence[Wanted]) -> tuple[list[bytes], list[bool]]:
    """(run ids, whether each is one that was there already): all new ones in one record."""
    fresh: list[Wanted] = []
    keys: list[list[Any]] = []  # of the record: [number of the new run, key]
    given: dict[bytes, bytes | int] = {}  # what the names of this frame stand for: a run, or the number of a new one
    late: list[tuple[bytes, bytes]] = []  # keys for runs that are there
    plan: list[bytes | int] = []
    existing = []
    for one in wanted:
        names = [name for name in (one.key, one.unique) if name]
        holders = (given[name] if name in given else _holder(core, name) for name in names)
        found = next((x for x in holders if x is not None), None)
        existing.append(found is not None)
        if found is None:
            found = len(fresh)
            fresh.append(one)
        elif one.key in given or one.key in core.state.keys:
            names = []
        else:
            names = [one.key] if one.key else []
        for name in names:
            given[name] = found
            if isinstance(found, int):
                keys.append([found, name])
            else:
                late.append((name, found))
        plan.append(found)
    if late:
        core.record("KEYED", {"at": core.now.wall_us, "key": records.Blobs([k for k, _ in late]), "id": b"".join(x for _, x in late)})
    ids = _record(core, cmd, fresh, keys) if fresh else []
    return [ids[x] if isinstance(x, int) else x for x in plan], existing


def _record(core: Core, cmd: Incoming, fresh: list[Wanted], keys: list[list[Any]]) -> list[bytes]:
    n, now = len(fresh), core.now.wall_us
    jobs = job_rows(core, cmd, fresh)
    seq = core.state.meta.seq + 1
    ids = [other_run_id(one.job.encode(), now, seq, i) for i, one in enumerate(fresh)]
    nominal = np.array([one.nominal for one in fresh], np.int64)
    later = nominal > now
    rows = core.record("ENQUEUE", {
        "at": now, "uid": cmd.uid, "job": jobs, "id": b"".join(ids), "spec": np.array([one.spec for one in fresh], np.uint32),
        "trigger": np.full(n, Trigger.ENQUEUE, np.uint8), "nominal": nominal, "due": nominal,
        "state": np.where(later, RunState.SCHEDULED, RunState.QUEUED).astype(np.uint8),
        "payload": records.Blobs([one.payload for one in fresh]), "key": keys,
    })
    core.counters["created"] += n
    if later.any():
        core.arm_delayed(rows[later], nominal[later])
    core.watch(rows)
    return ids


def job_rows(core: Core, cmd: Incoming, wanted: Sequence[Wanted]) -> NDArray[np.uint32]:
    """Rows of the jobs of these runs; those that are not there, or were deleted, are made."""
    specs = {one.job: one.spec for one in wanted}
    found = {job: core.state.find_job(job.encode()) for job in specs}
    missing = {job: spec for job, spec in specs.items() if not alive(core, job)}
    if missing:
        names, n = [name.encode() for name in missing], len(missing)
        blank = np.full(n, NEVER, np.int64)
        made = core.record("PUT", {
            "at": core.now.wall_us, "uid": cmd.uid, "name": records.Blobs(names), "key": b"".join(map(job_key, names)),
            "payload": records.Blobs([frames.encode_payload((), {})] * n), "spec": np.array(list(missing.values()), np.uint32),
            "param": blank, "next": blank, "cursor": np.full(n, -1, np.int64), "state": np.full(n, JobState.ACTIVE, np.uint8), "note": [],
        })
        found |= dict(zip(missing, made.tolist(), strict=True))
    return np.array([found[one.job] for one in wanted], np.uint32)


def resolved(core: Core, given: Any, namespace: str) -> tuple[str, int]:
    """(full name of the job, number of the definition) of an enqueue's `given`."""
    if not isinstance(given, dict):
        raise InvalidArgumentError("enqueue: given, a map, is wanted")
    checked = check_given({**given, "schedule": {"kind": "manual"}})
    name = parse_job_name(f"{namespace}/x").partition("/")[0] + "/~" + checked["task"]
    return name, spec_number(core, checked, name)


def _nominal(core: Core, at: int | None, delay: int | None) -> int:
    """The nominal time of a run for an instant, after a delay, or now."""
    now = core.now.wall_us
    if at is not None and delay is not None:
        raise InvalidArgumentError("enqueue: give at_us or delay_us, not both")
    return -(-(at if at is not None else now + (delay or 0)) // MS) * MS if at is not None or delay else now


def enqueue(core: Core, cmd: Incoming) -> bytes:
    """One run, now, at an instant or after a delay."""
    args = cmd.request.args
    namespace, unique = text(args, "namespace", 64, "default"), unique_fields(args.get("unique"))
    job, spec = resolved(core, args.get("given"), namespace)
    payload = payload_of(args.get("payload"))
    nominal = _nominal(core, whole(args, "at_us", 0, INSTANT_MAX_US), whole(args, "delay_us", 0, INSTANT_MAX_US))
    one = Wanted(job, spec, payload, nominal, scoped("enqueue", job, text(args, "key", KEY_MAX)))
    if unique:
        one.unique = identity(job, unique, payload, core.state.specs[spec])
    (run_id,), (existing,) = make(core, cmd, [one])
    row = core.state.find_run(run_id) if existing else None
    differs = {} if row is None or core.state.runs.blobs(row)[0] == payload else {"differs": True}
    return done(core, cmd, {**readable.run_or_stub(core.state, run_id, core.running), "existing": existing, **differs})


def enqueue_many(core: Core, cmd: Incoming) -> bytes:
    """A frame of runs, all or nothing."""
    args = cmd.request.args
    payloads, which = args.get("payload"), column(args, "which", "<u4")
    n = len(which)
    if not isinstance(payloads, list) or not 1 <= n <= FRAME_JOBS_MAX or len(payloads) != n:
        raise InvalidArgumentError(f"enqueue_many: 1 to {FRAME_JOBS_MAX} runs a frame are wanted, with a payload each")
    at, delay = column(args, "at_us", "<i8", n), column(args, "delay_us", "<i8", n)
    keys = args.get("key") or [None] * n
    if not isinstance(keys, list) or len(keys) != n:
        raise InvalidArgumentError("enqueue_many: key is a list with a text or nil a run, or nil")
    faults: list[list[Any]] = []
    kinds = _kinds(core, args, which, faults)
    wanted = []
    for i, (w, payload, key, at_us, delay_us) in enumerate(zip(which.tolist(), payloads, keys, at.tolist(), delay.tolist(), strict=True)):
        if w not in kinds:
            continue
        job, spec, unique = kinds[w]
        try:
            if (fault := payload_fault(payload)) is not None:
                raise InvalidArgumentError(fault)
            if any(us != NEVER and not 0 <= us <= INSTANT_MAX_US for us in (at_us, delay_us)):
                raise InvalidArgumentError("at_us or delay_us is out of range")
            nominal = _nominal(core, None if at_us == NEVER else at_us, None if delay_us == NEVER else delay_us)
            one = Wanted(job, spec, payload, nominal, scoped("enqueue", job, text({"key": key}, "key", KEY_MAX)))
            if unique:
                one.unique = identity(job, unique, payload_of(payload), core.state.specs[spec])
            wanted.append(one)
        except WheelschedError as e:
            faults.append([i, str(e)])
    if faults:
        raise InvalidArgumentError(
            f"run {faults[0][0]} of the frame: {faults[0][1]} (nothing was enqueued)", runs=sorted(faults)[:RUN_FAULTS_MAX]
        )
    ids, existing = make(core, cmd, wanted)
    return done(core, cmd, {"id": b"".join(ids), "existing": bytes(existing)})


def _kinds(core: Core, args: dict[str, Any], which: NDArray[np.uint32], faults: list[list[Any]]
           ) -> dict[int, tuple[str, int, tuple[str, ...]]]:
    """(job, definition, fields of the identity) of each row of `given` that a run names; faults are told of the first that does."""
    given, spaces, unique = args.get("given"), args.get("namespace"), args.get("unique")
    lists = isinstance(given, list) and isinstance(spaces, list) and isinstance(unique, list)
    if not lists or not len(given) == len(spaces) == len(unique) or int(which.max()) >= len(given):  # type: ignore[arg-type]
        raise InvalidArgumentError("enqueue_many: given, namespace and unique are lists of one length, and `which` names their rows")
    assert isinstance(given, list) and isinstance(spaces, list) and isinstance(unique, list)  # noqa: PT018 - for the types
    out = {}
    rows, first = np.unique(which, return_index=True)
    for w, i in zip(rows.tolist(), first.tolist(), strict=True):
        try:
            job, spec = resolved(core, given[w], text({"namespace": spaces[w]}, "namespace", 64, "default"))
            out[w] = job, spec, unique_fields(unique[w])
        except WheelschedError as e:
            faults.append([i, str(e)])
    return out


VERBS: Final[dict[str, Callable[[Core, Incoming], bytes]]] = {"enqueue": enqueue, "enqueue_many": enqueue_many}

__all__ = ["VERBS", "Wanted", "enqueue", "identity", "job_rows", "make", "resolved", "scoped"]

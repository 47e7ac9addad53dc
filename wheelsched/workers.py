"""The engine's dealings with workers: sessions, leases, completions, losses.

A lease is a worker's: it holds for all runs of that worker as long as the worker lives (pool: its process; external: heartbeats). Every
completion is matched by (run id, token), never by run id alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final

import msgpack
import numpy as np

from . import protocol
from .definition import check_announced
from .errors import FailedPreconditionError, InvalidArgumentError
from .misfire import skip_unattended
from .model import (
    BATCH_MAX,
    HEARTBEAT_US,
    INSTANT_MAX_US,
    LEASE_US,
    NEVER,
    OUTPUT_MAX,
    SERVER_UID,
    Disposition,
    Event,
    JobState,
    Outcome,
    Trigger,
    parse_task_name,
)
from .turn import WorkerGone

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from .engine import Engine
    from .turn import Incoming

BATCH_BYTES_MAX: Final = 8 * 1024 * 1024  # payload bytes of one batch, but always one run
CREDITS_MAX: Final = BATCH_MAX
_RESULT_MAX: Final = 3 * OUTPUT_MAX + 16 * 1024
ACCEPTED: Final = 1
STALE: Final = 2
_MEASURED_MAX: Final = 10_000  # runs that a moving mean remembers
_ENDED: Final = 3  # the run was held under that token once


@dataclass(slots=True)
class Session:
    """A connection that said hello."""

    conn: int
    uid: int
    worker: int = 0
    name: str = ""
    kind: str = "client"  # client, pool, external
    tasks: frozenset[str] = frozenset()
    lease_until_us: int = NEVER  # monotonic; external workers only


@dataclass(slots=True)
class Seeker:
    """A lease request that waits for runs."""

    conn: int
    request_id: int
    worker: int
    queues: frozenset[str]
    credits: int
    deadline_us: int  # monotonic


def add_worker(engine: Engine, conn: int, name: str, kind: str, uid: int = 0) -> int:
    """A worker is about to connect (pool) or has (external): its number is durable before anything is leased to it."""
    worker = engine.state.meta.next_worker
    engine.record("WORKER", {"at": engine.now.wall_us, "id": worker, "name": name, "kind": kind, "gone": False})
    engine.sessions[conn] = Session(conn, uid, worker, name, kind)
    return worker


def hello(engine: Engine, cmd: Incoming) -> bytes:
    """Versions and roles; a worker announces its tasks."""
    args = cmd.request.args
    if args.get("version") != protocol.VERSION:
        raise FailedPreconditionError(f"protocol version {args.get('version')!r}: this server speaks {protocol.VERSION}")
    role, name = args.get("role"), args.get("name", "")
    if role not in ("client", "worker") or not isinstance(name, str) or len(name) > 200:
        raise InvalidArgumentError("hello: role is 'client' or 'worker', name a text of at most 200 characters")
    session = engine.sessions.get(cmd.conn)
    if role == "worker":
        tasks = args.get("tasks")
        if not isinstance(tasks, dict) or len(tasks) > 10_000 or not all(isinstance(v, dict) for v in tasks.values()):
            raise InvalidArgumentError("hello: tasks is a map of task names to the options of their decorators")
        checked = {parse_task_name(task): check_announced(options) for task, options in tasks.items()}
        if session is None:
            add_worker(engine, cmd.conn, name, "external", cmd.uid)
            session = engine.sessions[cmd.conn]
            session.lease_until_us = engine.now.mono_us + LEASE_US
        session.tasks = frozenset(checked)
        # Durable: a put just after a restart must resolve to what it resolved to before, though no worker has said hello yet.
        news = {task: options for task, options in checked.items() if engine.state.announced.get(task) != options}
        if news:
            engine.record("ANNOUNCE", {"at": engine.now.wall_us, "tasks": news})
    elif session is None:
        session = engine.sessions[cmd.conn] = Session(cmd.conn, cmd.uid, name=name)
    result = {
        "version": protocol.VERSION, "server": engine.server, "instance": engine.instance, "generation": engine.state.meta.generation,
        "clock_offset_us": engine.clock_offset_us, "worker": session.worker, "lease_us": LEASE_US, "heartbeat_us": HEARTBEAT_US,
    }
    return protocol.encode_ok(cmd.request.id, result)


def session_of(engine: Engine, cmd: Incoming) -> Session:
    """The worker session of a connection; failed_precondition for others."""
    session = engine.sessions.get(cmd.conn)
    if session is None or not session.worker:
        raise FailedPreconditionError(f"{cmd.request.verb}: say hello with role 'worker' first")
    return session


def lease(engine: Engine, cmd: Incoming) -> bytes:
    """Ask for runs; answered when there are some."""
    session = session_of(engine, cmd)
    args = cmd.request.args
    queues, credit, wait = args.get("queues", []), args.get("credits"), args.get("wait_us", NEVER)
    if not isinstance(queues, list) or not all(isinstance(q, str) for q in queues):
        raise InvalidArgumentError("lease: queues is a list of names")
    if isinstance(credit, bool) or not isinstance(credit, int) or not 1 <= credit <= CREDITS_MAX:
        raise InvalidArgumentError(f"lease: credits is a whole number from 1 to {CREDITS_MAX}")
    if isinstance(wait, bool) or not isinstance(wait, int) or wait < 0:
        raise InvalidArgumentError("lease: wait_us is a number of microseconds")
    if engine.draining:
        return protocol.encode_ok(cmd.request.id, {"n": 0, "stop": True})
    deadline = min(NEVER, engine.now.mono_us + wait)
    engine.seekers.append(Seeker(cmd.conn, cmd.request.id, session.worker, frozenset(queues), credit, deadline))
    return b""


def serve_seekers(engine: Engine) -> None:
    """Grant what is ready, fairly among those who ask."""
    keep = []
    engine.limits.wake_us = NEVER
    for i, seeker in enumerate(engine.seekers):
        rows = _pick(engine, seeker, len(engine.seekers) - i)
        if len(rows):
            engine.reply(seeker.conn, grant(engine, seeker, rows))
        elif engine.draining or seeker.deadline_us <= engine.now.mono_us:
            engine.reply(seeker.conn, protocol.encode_ok(seeker.request_id, {"n": 0, "stop": engine.draining}))
        else:
            keep.append(seeker)
    engine.seekers = keep


def _pick(engine: Engine, seeker: Seeker, sharing: int) -> NDArray[np.uint32]:
    """Ready runs for one worker, as far as the limits of their queues let them go."""
    if engine.draining:
        return np.empty(0, np.uint32)
    return engine.limits.pick(engine.sessions[seeker.conn].tasks, seeker.queues, seeker.credits, sharing, engine.now)


def grant(engine: Engine, seeker: Seeker, rows: NDArray[np.uint32]) -> bytes:
    """Lease the runs, durably before they leave; the reply with the batch."""
    runs, state = engine.state.runs, engine.state
    payload, payload_end = runs.joined(rows, "payload")
    if len(payload) > BATCH_BYTES_MAX:
        rows = rows[: max(1, int(np.searchsorted(payload_end, BATCH_BYTES_MAX)))]
        payload, payload_end = runs.joined(rows, "payload")
    token = state.next_token()
    engine.record("GRANT", {"at": engine.now.wall_us, "worker": seeker.worker, "token": token, "run": rows})
    fields = runs.gather(rows)
    specs, index = np.unique(fields["spec"], return_inverse=True)
    job, job_end = runs.joined(rows, "job")
    timeouts = engine.specs.timeout[fields["spec"]]
    engine.effects.granted.append((seeker.worker, np.ascontiguousarray(fields["token"]), timeouts))
    wires = [state.specs[s] for s in specs.tolist()]
    if engine.limits.any_rate:
        for wire, n in zip(wires, np.bincount(index).tolist(), strict=True):
            engine.limits.spend(wire["queue"], wire["concurrency_key"], n, engine.now.mono_us)
    return protocol.encode_ok(seeker.request_id, {
        "n": len(rows), "id": runs.ids(rows), "token": fields["token"].tobytes(), "attempt": fields["attempt"].astype("<u4").tobytes(),
        "scheduled_us": fields["nominal_us"].tobytes(), "missed": fields["missed"].tobytes(), "spec": index.astype("<u4").tobytes(),
        "specs": [{"task": w["task"], "timeout_us": w["timeout_us"], "queue": w["queue"]} for w in wires],
        "job": job, "job_end": job_end.tobytes(), "payload": payload, "payload_end": payload_end.tobytes(),
        "last_result": [], "checkpoint": [], "lease_us": LEASE_US,
    })


def column(args: dict[str, Any], name: str, dtype: str, n: int | None = None) -> NDArray[Any]:
    """A column of a request as an array. InvalidArgumentError when its size is off."""
    data = args.get(name)
    size = np.dtype(dtype).itemsize
    if not isinstance(data, bytes) or len(data) % size or (n is not None and len(data) != n * size):
        raise InvalidArgumentError(f"{name}: a bin of {size} bytes a row is wanted")
    return np.frombuffer(data, dtype).copy()


def finish(engine: Engine, cmd: Incoming) -> bytes:
    """Completions in columns; a verdict for each."""
    session = session_of(engine, cmd)
    args = cmd.request.args
    token = column(args, "token", "<i8")
    n = len(token)
    ids = args.get("id")
    if not isinstance(ids, bytes) or len(ids) != 16 * n:
        raise InvalidArgumentError("finish: id has 16 bytes a row")
    outcome, started, ended = column(args, "outcome", "u1", n), column(args, "started_us", "<i8", n), column(args, "ended_us", "<i8", n)
    if n and not (int(outcome.min()) >= 1 and int(outcome.max()) <= Outcome.NOT_STARTED):
        raise InvalidArgumentError("finish: outcome is a number from 1 to 7")
    for name, times in (("started_us", started), ("ended_us", ended)):
        if n and not (int(times.min()) >= 0 and int(times.max()) <= INSTANT_MAX_US):
            raise InvalidArgumentError(f"finish: {name} is in microseconds since 1970, up to the year 9999")
    results: dict[int, bytes] = {}
    sparse = args.get("result", [])
    if not isinstance(sparse, list):
        raise InvalidArgumentError("finish: result is a list of [row, map]")
    for pair in sparse:
        if not isinstance(pair, list) or len(pair) != 2 or not isinstance(pair[0], int) or not 0 <= pair[0] < n:
            raise InvalidArgumentError("finish: result is a list of [row, map]")
        data = msgpack.packb(pair[1], use_bin_type=True)
        if not isinstance(pair[1], dict) or len(data) > _RESULT_MAX:
            raise InvalidArgumentError(f"finish: a result is a map of at most {_RESULT_MAX} bytes")
        results[pair[0]] = data
    rows, verdict = engine.state.runs.held(ids, token)
    held = np.flatnonzero(verdict == 1)
    first = np.unique(rows[held], return_index=True)[1]  # the same completion twice in one frame counts once
    held = held[np.sort(first)]
    end_attempts(engine, rows[held], outcome[held], started[held], ended[held], {
        k: results[i] for k, i in enumerate(held.tolist()) if i in results
    } if results else {})
    engine.effects.finished.append((session.worker, token))
    # a repeat is answered as the first was; another outcome under a token whose attempt has ended is late
    late = np.flatnonzero(verdict == _ENDED)
    same = engine.state.runs.gather(rows[late])["outcome"] == outcome[late]
    verdict[late] = np.where(same | (outcome[late] == Outcome.NOT_STARTED), ACCEPTED, STALE)
    answer = np.where(verdict == STALE, STALE, ACCEPTED).astype(np.uint8)
    engine.counters["stale"] += int((answer == STALE).sum())
    return protocol.encode_ok(cmd.request.id, {"verdict": answer.tobytes()})


def _measure(engine: Engine, spec: NDArray[np.uint32], took: NDArray[np.int64]) -> None:
    """Add the run times of ended attempts (microseconds) to the means of their tasks. Soft state: a restart forgets it."""
    means = engine.durations
    numbers, which = np.unique(spec, return_inverse=True)
    total, count = np.bincount(which, took), np.bincount(which)
    for number, us, n in zip(numbers.tolist(), total.tolist(), count.tolist(), strict=True):
        task = engine.state.specs[number]["task"]
        known, mean = means.get(task, (0, 0.0))
        share = n / (min(known, _MEASURED_MAX) + n)
        means[task] = known + n, mean + (us / n - mean) * share


def end_attempts(engine: Engine, rows: NDArray[np.uint32], outcome: NDArray[np.uint8], started: NDArray[np.int64],
                 ended: NDArray[np.int64], results: dict[int, bytes]) -> None:
    """Decide what each ended attempt leads to, and record it. A deleted job's failure is not retried: the run is cancelled."""
    back = outcome == Outcome.NOT_STARTED
    fields = engine.state.runs.gather(rows)
    asked = (fields["flags"] & 1) > 0
    deleted = engine.state.jobs.gather(np.ascontiguousarray(fields["job"]))["state"] == JobState.DELETED
    if (back & ~asked).any():
        give_back(engine, rows[back & ~asked])
    take = ~(back & ~asked)
    if not take.any():
        return
    event = np.full(len(rows), Event.SUCCEED, np.uint8)
    due = np.zeros(len(rows), np.int64)
    for i in np.flatnonzero(take & (outcome != Outcome.SUCCEEDED)).tolist():
        if asked[i] or outcome[i] == Outcome.CANCELLED or deleted[i]:
            event[i] = Event.CANCEL
        else:
            event[i], due[i] = _after_failure(engine, fields[i], results.get(i, b""))
    keep = np.flatnonzero(take).tolist()
    engine.record("FINISH", {
        "at": engine.now.wall_us, "run": rows[take], "event": event[take], "outcome": outcome[take], "started": started[take],
        "ended": ended[take], "due": due[take], "result": [[k, results[i]] for k, i in enumerate(keep) if i in results] if results else [],
    })
    retry = event == Event.RETRY
    if retry.any():
        engine.arm_retries(rows[retry], due[retry])
    _count(engine, event[take], fields[take], started[take])
    timed = take & (started > 0) & (ended >= started)
    if timed.any():
        _measure(engine, fields["spec"][timed], (ended - started)[timed])
    if (event == Event.EXHAUST).any():
        _pause_failing(engine, fields["job"][event == Event.EXHAUST])
    engine.turn_of(rows[take])
    engine.end_waits(rows[take & ~retry])


def _pause_failing(engine: Engine, jobs: NDArray[np.uint32]) -> None:
    """`pause_after`: jobs whose last so many runs all died are paused, with a note."""
    jobs = np.unique(jobs)
    fields = engine.state.jobs.gather(jobs)
    wanted = engine.specs.pause_after[fields["spec"]]
    stop = (wanted > 0) & (fields["failures"] >= wanted) & (fields["state"] == JobState.ACTIVE)
    if stop.any():
        rows, wanted = jobs[stop], wanted[stop]
        for row in rows.tolist():
            engine.decide_job(row)
            skip_unattended(engine, row)
        fields = engine.state.jobs.gather(rows)
        never = np.full(len(rows), NEVER, np.int64)
        engine.record("JOBS", {
            "at": engine.now.wall_us, "uid": SERVER_UID, "job": rows, "state": np.full(len(rows), JobState.PAUSED, np.uint8), "next": never,
            "cursor": fields["cursor_us"].copy(),
            "note": [
                [i, f"paused by pause_after: {n} dead runs one after another; resume it when the cause is gone"]
                for i, n in enumerate(wanted.tolist())
            ],
        })
        engine.arm_jobs(rows, never)


def _count(engine: Engine, event: NDArray[np.uint8], fields: NDArray[Any], started: NDArray[np.int64]) -> None:
    for name, number in (("succeeded", Event.SUCCEED), ("retried", Event.RETRY), ("dead", Event.EXHAUST), ("cancelled", Event.CANCEL)):
        engine.counters[name] += int((event == number).sum())
    timely = fields["trigger"] != Trigger.BACKFILL  # what makes up for the past is late by nature
    wanted = np.where(fields["disposition"] == Disposition.MOVED, np.maximum(fields["due_us"], fields["nominal_us"]), fields["nominal_us"])
    engine.effects.lags.append(("done", wanted[timely & (event == Event.SUCCEED)]))
    first = timely & (fields["attempt"] == 1) & (started > 0)
    engine.effects.start_lags.append((started - wanted)[first])


def _after_failure(engine: Engine, row: Any, result: bytes) -> tuple[int, int]:
    """RETRY with its instant, or EXHAUST: attempts used up, or an error that is never retried."""
    retry = engine.state.specs[int(row["spec"])]["retry"]
    if row["attempt"] >= row["budget"]:
        return Event.EXHAUST, 0
    if retry["not_on"] and result:
        kind = str(msgpack.unpackb(result, raw=False).get("type", ""))
        if kind in retry["not_on"] or kind.rpartition(".")[2] in retry["not_on"]:
            return Event.EXHAUST, 0
    wait = min(retry["cap_us"], retry["backoff_us"] * retry["factor"] ** min(int(row["attempt"]) - 1, 60))
    draw = blake2b(b"".join(row[x].tobytes() for x in ("id_high", "id_low", "attempt")), digest_size=8, person=b"wheelsched.wait")
    spread = int.from_bytes(draw.digest(), "big") / 2**64
    return Event.RETRY, engine.now.wall_us + int(wait * (1 + spread / 2))


def give_back(engine: Engine, rows: NDArray[np.uint32]) -> None:
    """Leases end without an attempt being spent: user code was not entered."""
    engine.record("GIVE_BACK", {"at": engine.now.wall_us, "run": rows})
    engine.counters["given_back"] += len(rows)
    engine.watch(rows)


def worker_gone(engine: Engine, gone: WorkerGone) -> None:
    """End a worker: what it had started is lost, what it had not is given back."""
    worker = engine.state.workers.get(gone.worker)
    engine.gone.pop(gone.worker, None)
    if worker is None:
        return
    engine.seekers = [s for s in engine.seekers if s.worker != gone.worker]
    rows = engine.state.runs.peek(worker.list_id, 2**31)
    if len(rows):
        token = engine.state.runs.gather(rows)["token"]
        entered = np.ones(len(rows), np.bool_) if gone.started_token is None else token <= gone.started_token
        outcome = np.where(entered, Outcome.LOST, Outcome.NOT_STARTED).astype(np.uint8)
        outcome[token == gone.started_token] = gone.outcome
        zero = np.zeros(len(rows), np.int64)
        result = msgpack.packb({"type": "wheelsched.WorkerLost", "message": gone.reason}, use_bin_type=True)
        ended = np.full(len(rows), engine.now.wall_us, np.int64)
        end_attempts(engine, rows, outcome, zero, ended, dict.fromkeys(np.flatnonzero(entered).tolist(), result))
    engine.record("WORKER", {"at": engine.now.wall_us, "id": gone.worker, "name": worker.name, "kind": worker.kind, "gone": True})
    for conn in [c for c, s in engine.sessions.items() if s.worker == gone.worker]:
        del engine.sessions[conn]


def heartbeat(engine: Engine, cmd: Incoming) -> bytes:
    """Renew an external worker's lease; tell it what to stop."""
    session = session_of(engine, cmd)
    token = column(cmd.request.args, "token", "<i8")
    ids = cmd.request.args.get("id")
    if not isinstance(ids, bytes) or len(ids) != 16 * len(token):
        raise InvalidArgumentError("heartbeat: id has 16 bytes a row")
    session.lease_until_us = engine.now.mono_us + LEASE_US if session.kind == "external" else NEVER
    rows, verdict = engine.state.runs.held(ids, token)
    held = np.flatnonzero(verdict == 1)
    for worker in engine.gone.keys() & set(engine.state.runs.gather(rows[held])["worker"].tolist()):
        engine.gone[worker] = engine.now.mono_us + LEASE_US  # it came back under a new number: what it holds stays its own
    asked = engine.state.runs.gather(rows[held])["flags"] & 1
    return protocol.encode_ok(cmd.request.id, {
        "cancel": held[asked > 0].tolist(), "stale": np.flatnonzero(verdict != 1).tolist(),
    })


def disconnect(engine: Engine, conn: int) -> None:
    """A connection is gone. A client's waits end; an external worker keeps its leases until they run out."""
    session = engine.sessions.pop(conn, None)
    engine.staged.pop(conn, None)
    engine.seekers = [s for s in engine.seekers if s.conn != conn]
    for run_id in list(engine.waiters):
        engine.waiters[run_id] = [w for w in engine.waiters[run_id] if w[0] != conn]
        if not engine.waiters[run_id]:
            del engine.waiters[run_id]
    if session is not None and session.kind == "external":
        engine.gone[session.worker] = min(session.lease_until_us, engine.now.mono_us + LEASE_US)


def expire_leases(engine: Engine) -> None:
    """Workers whose lease has run out are gone."""
    now = engine.now.mono_us
    silent = [s.worker for s in engine.sessions.values() if s.kind == "external" and s.lease_until_us <= now]
    for worker in [w for w, until in engine.gone.items() if until <= now] + silent:
        worker_gone(engine, WorkerGone(worker, None, Outcome.LOST, "worker lost: its lease ran out"))


VERBS: Final[dict[str, Callable[[Engine, Incoming], bytes]]] = {
    "hello": hello, "lease": lease, "finish": finish, "heartbeat": heartbeat,
}

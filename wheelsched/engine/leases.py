"""The engine's dealings with workers: leases, grants, losses.

A lease is a worker's: it holds for all runs of that worker as long as the worker lives (pool: its process; external: heartbeats). Every
completion is matched by (run id, token), never by run id alone.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import msgpack
import numpy as np

from ..model.errors import InvalidArgumentError
from ..model.nouns import BATCH_MAX, NEVER, Outcome
from ..protocol import frames
from ..protocol.limits import check
from . import retries
from .connected import Seeker
from .endings import end_attempts, finish, read_result
from .heartbeats import heartbeat
from .peers import hello, session_of
from .turn import WorkerGone

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from ..model.nouns import Ended
    from ..state.state import State
    from .core import Core
    from .turn import Incoming

LEASE_BYTES_MAX: Final = 8 * 1024 * 1024  # payload bytes of one batch, but always one run
QUEUES_MAX: Final = 100  # names in one lease request
NAME_MAX: Final = 200  # characters of each
FEW_SEEKERS: Final = 16  # lease requests that nobody needs to count: as many as one connection may have
_SPEC_KEYS: Final = ("task", "timeout_us", "queue", "heartbeat_timeout_us")  # of a definition, as a worker is told it


def lease(core: Core, cmd: Incoming) -> bytes:
    """Ask for runs; answered when there are some."""
    session = session_of(core, cmd)
    args = cmd.request.args
    queues, credit, wait = args.get("queues", []), args.get("credits"), args.get("wait_us", NEVER)
    if not isinstance(queues, list) or len(queues) > QUEUES_MAX or not all(isinstance(q, str) and len(q) <= NAME_MAX for q in queues):
        raise InvalidArgumentError(f"lease: queues is a list of at most {QUEUES_MAX} names, each of at most {NAME_MAX} characters")
    if isinstance(credit, bool) or not isinstance(credit, int) or not 0 <= credit <= BATCH_MAX:
        raise InvalidArgumentError(f"lease: credits is a whole number from 1 to {BATCH_MAX}, or 0 to withdraw what waits")
    if isinstance(wait, bool) or not isinstance(wait, int) or wait < 0:
        raise InvalidArgumentError("lease: wait_us is a number of microseconds")
    if credit == 0:
        withdraw(core, cmd.conn)
        return frames.encode_ok(cmd.request.id, {"n": 0, "stop": False})
    if core.draining or session.worker in core.retiring:
        return frames.encode_ok(cmd.request.id, {"n": 0, "stop": True})
    _check_room(core, cmd)
    deadline = min(NEVER, core.now.mono_us + wait)
    core.seekers.append(Seeker(cmd.conn, cmd.request.id, session.worker, frozenset(queues), credit, deadline))
    return b""


def _check_room(core: Core, cmd: Incoming) -> None:
    """ResourceExhaustedError when too many lease requests wait."""
    if len(core.seekers) < FEW_SEEKERS:
        return
    users = {conn: session.uid for conn, session in core.sessions.items() if session.kind == "external"}
    check(
        "waiting_leases", connection=sum(s.conn == cmd.conn for s in core.seekers) + 1,
        user=sum(users.get(s.conn) == cmd.uid for s in core.seekers) + (cmd.conn in users), server=len(core.seekers) + 1,
    )


def withdraw(core: Core, conn: int) -> None:
    """Answer the lease requests of a connection that wait: there is nothing. Runs that were granted before have been sent before."""
    for seeker in [s for s in core.seekers if s.conn == conn]:
        core.reply(conn, frames.encode_ok(seeker.request_id, {"n": 0, "stop": False}))
    core.seekers = [s for s in core.seekers if s.conn != conn]


def serve_seekers(core: Core) -> None:
    """Grant what is ready, fairly among those who ask."""
    keep = []
    core.limits.wake_us = NEVER
    for i, seeker in enumerate(core.seekers):
        rows = _pick(core, seeker, len(core.seekers) - i)
        if len(rows):
            core.reply(seeker.conn, grant(core, seeker, rows))
        elif core.draining or seeker.deadline_us <= core.now.mono_us:
            core.reply(seeker.conn, frames.encode_ok(seeker.request_id, {"n": 0, "stop": core.draining}))
        else:
            keep.append(seeker)
    core.seekers = keep


def _pick(core: Core, seeker: Seeker, sharing: int) -> NDArray[np.uint32]:
    """Ready runs for one worker, as far as the limits of their queues let them go."""
    if core.draining or core.no_room:
        return np.empty(0, np.uint32)
    return core.limits.pick(core.sessions[seeker.conn].tasks, seeker.queues, seeker.credits, sharing, core.now, core.durations)


def grant(core: Core, seeker: Seeker, rows: NDArray[np.uint32]) -> bytes:
    """Lease the runs, durably before they leave; the reply with the batch."""
    runs, state = core.state.runs, core.state
    fields = runs.gather(rows)
    payload, payload_end = runs.joined(rows, "payload")
    size = payload_end
    if state.checkpoints or state.lasts.of:
        more = np.zeros(len(rows), np.int64)
        for handed in (_checkpoints(state, rows), *_lasts(state, fields)):
            for i, data in handed:
                more[i] += len(data)
        size = payload_end + more.cumsum()
    if size[-1] > LEASE_BYTES_MAX:
        rows = rows[: max(1, int(np.searchsorted(size, LEASE_BYTES_MAX)))]
        fields = fields[: len(rows)]
        payload, payload_end = runs.joined(rows, "payload")
    first = state.next_token()
    core.pulse.granted_us = core.now.mono_us
    core.record("GRANT", {"at": core.now.wall_us, "worker": seeker.worker, "token": first, "run": rows})
    token = np.arange(first, first + len(rows), dtype=np.int64)
    specs, index = np.unique(fields["spec"], return_inverse=True)
    job, job_end = runs.joined(rows, "job")
    timeouts = core.specs.timeout[fields["spec"]]
    silences = core.specs.silence[fields["spec"]] if core.specs.any_silence else None
    core.effects.granted.append((seeker.worker, token, timeouts, silences))
    last_result, last_error = _lasts(state, fields)
    wires = [state.specs[s] for s in specs.tolist()]
    if core.limits.any_rate:
        for wire, n in zip(wires, np.bincount(index).tolist(), strict=True):
            core.limits.spend(wire["queue"], wire["concurrency_key"], n, core.now.mono_us)
    return frames.encode_ok(seeker.request_id, {
        "n": len(rows), "id": runs.ids(rows), "token": token.tobytes(), "attempt": (fields["attempt"] + 1).astype("<u4").tobytes(),
        "scheduled_us": fields["nominal_us"].tobytes(), "missed": fields["missed"].tobytes(), "spec": index.astype("<u4").tobytes(),
        "specs": [{key: w[key] for key in _SPEC_KEYS if key in w} for w in wires],
        "job": job, "job_end": job_end.tobytes(), "payload": payload, "payload_end": payload_end.tobytes(),
        "last_result": last_result, "last_error": last_error, "checkpoint": _checkpoints(state, rows), "lease_us": core.lease_us,
        "alone": retries.ended_with_worker(fields["outcome"]),
    })


def _checkpoints(state: State, rows: NDArray[np.uint32]) -> list[list[Any]]:
    """[place in `rows`, checkpoint] of those that have one."""
    if not state.checkpoints:
        return []
    known = np.flatnonzero(np.isin(rows, np.fromiter(state.checkpoints, np.uint32)))
    return [[i, state.checkpoints[int(rows[i])]] for i in known.tolist()]


def _lasts(state: State, fields: Any) -> tuple[list[list[Any]], list[list[Any]]]:
    """[place in `fields`, value] and [place, error] of those whose job has left one."""
    values: list[list[Any]] = []
    errors: list[list[Any]] = []
    for i in np.flatnonzero(state.lasts.known(fields)).tolist() if state.lasts.of else ():
        value, error = state.lasts.of[int(fields["job"][i])]
        values += [[i, value]] if value else []
        errors += [[i, error]] if error else []
    return values, errors


def retire(core: Core, worker: int) -> None:
    """This worker gets no more runs; those it has it may finish. Soft: a restart ends the processes of the pool anyway."""
    core.retiring.add(worker)
    for seeker in [s for s in core.seekers if s.worker == worker]:
        core.seekers.remove(seeker)
        core.reply(seeker.conn, frames.encode_ok(seeker.request_id, {"n": 0, "stop": True}))


def worker_gone(core: Core, gone: WorkerGone) -> None:
    """End a worker: what had ended counts, what it was in is lost, what it had not started is given back."""
    worker = core.state.workers.get(gone.worker)
    core.gone.pop(gone.worker, None)
    core.retiring.discard(gone.worker)
    if worker is None:
        return
    core.seekers = [s for s in core.seekers if s.worker != gone.worker]
    rows = core.state.runs.peek(worker.list_id, 2**31)
    if len(rows):
        token = core.state.runs.gather(rows)["token"]
        entered = np.ones(len(rows), np.bool_) if gone.started_token is None else token <= gone.started_token
        outcome = np.where(entered, Outcome.LOST, Outcome.NOT_STARTED).astype(np.uint8)
        outcome[token == gone.started_token] = gone.outcome
        for one, how in gone.outcomes.items():
            outcome[token == one] = how
        started, ended = np.zeros(len(rows), np.int64), np.full(len(rows), core.now.wall_us, np.int64)
        for one, at in gone.begun.items():
            started[token == one] = at
        lost: dict[str, Any] = {"type": "wheelsched.WorkerLost", "message": gone.reason}
        said = dict.fromkeys(np.flatnonzero(entered).tolist(), lost)
        said |= {i: gone.errors[one] for i, one in enumerate(token.tolist()) if one in gone.errors} if gone.errors else {}
        results = {i: msgpack.packb(error, use_bin_type=True) for i, error in said.items()}
        for first, last in gone.calls:
            call = (token >= first) & (token <= last)
            outcome[call], started[call] = gone.outcomes.get(last, gone.outcome), gone.begun.get(last, 0)
            error = gone.errors.get(last, lost)
            said |= {i: {**error, "together": True} for i in np.flatnonzero(call).tolist()}
            results |= dict.fromkeys(np.flatnonzero(call).tolist(), msgpack.packb(error, use_bin_type=True))
        for i, one in enumerate(token.tolist()) if gone.ended else ():
            if one in gone.ended:
                with suppress(InvalidArgumentError):  # user code that wrote where it should not has spoilt it: lost
                    outcome[i], started[i], ended[i] = _take(gone.ended[one], i, results, said)
        for one in gone.printed.keys() & set(token.tolist()) - gone.ended.keys():
            for stream, at_byte, data in gone.printed[one]:
                core.running.printed(one, {stream: (at_byte, data)})
        if (outcome == Outcome.LOST).any():
            core.pulse.lost(core.now.mono_us)
        end_attempts(core, rows, outcome, started, ended, results, said)
    core.record("WORKER", {"at": core.now.wall_us, "id": gone.worker, "name": worker.name, "kind": worker.kind, "gone": True})
    for conn in [c for c, s in core.sessions.items() if s.worker == gone.worker and not s.lost]:
        del core.sessions[conn]


def _take(ended: Ended, row: int, results: dict[int, bytes], said: dict[int, dict[str, Any]]) -> tuple[int, int, int]:
    """What a dead executor had finished, as if it had reported it: (outcome, started, ended). InvalidArgumentError for what it can't be."""
    data, told = read_result(ended.result, ended.outcome, foreign=True)
    if ended.outcome == Outcome.SNOOZED and told is None:
        raise InvalidArgumentError("snoozed, without for how long")
    results.pop(row, None)
    said.pop(row, None)
    if ended.result:
        results[row] = data
    if told is not None:
        said[row] = told
    return ended.outcome, ended.started_us, ended.ended_us


def disconnect(core: Core, conn: int) -> None:
    """A connection is gone. A client's waits end; an external worker keeps its leases until they run out."""
    session = core.sessions.pop(conn, None)
    core.staged.pop(conn, None)
    core.parts.pop(conn, None)
    core.seekers = [s for s in core.seekers if s.conn != conn]
    waits = core.quotas.of("waits", conn)
    core.quotas.leave(conn)
    for run_id in list(core.waiters) if waits else ():
        core.waiters[run_id] = [w for w in core.waiters[run_id] if w.conn != conn]
        if not core.waiters[run_id]:
            del core.waiters[run_id]
    if session is not None and session.kind == "external" and not session.lost:
        core.gone[session.worker] = min(session.lease_until_us, core.now.mono_us + core.lease_us)


def expire_leases(core: Core) -> None:
    """Workers whose lease has run out are gone. One that is still connected may come back, and asks for runs again then."""
    now = core.now.mono_us
    silent = [s for s in core.sessions.values() if s.kind == "external" and not s.lost and s.lease_until_us <= now]
    for session in silent:
        for seeker in [s for s in core.seekers if s.worker == session.worker]:
            core.reply(seeker.conn, frames.encode_ok(seeker.request_id, {"n": 0, "stop": False}))
        session.lost, session.lease_until_us = True, NEVER
    for worker in [w for w, until in core.gone.items() if until <= now] + [s.worker for s in silent]:
        worker_gone(core, WorkerGone(worker, None, Outcome.LOST, "worker lost: its lease ran out"))


VERBS: Final[dict[str, Callable[[Core, Incoming], bytes]]] = {
    "hello": hello, "lease": lease, "finish": finish, "heartbeat": heartbeat,
}

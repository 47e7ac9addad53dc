"""The verbs about runs: trigger, wait."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ..engine.arguments import done, text, whole
from ..engine.peers import Waiter
from ..engine.roles import shown
from ..model.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError
from ..model.ids import other_run_id
from ..model.nouns import KEY_MAX, NEVER, RunState, Trigger, display_name
from ..protocol import frames
from ..reads import reads
from ..state import records
from .put import job_row

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..engine.engine import Engine
    from ..engine.turn import Incoming


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
            in_the_way = engine.state.runs.in_the_way(row)
            assert in_the_way is not None, "a busy job has an open run"
            blocking = engine.state.runs.text_id(in_the_way)
            shown = display_name(name.decode())
            raise FailedPreconditionError(f"job {shown} is busy with run {blocking} (overlap {policy})", run_id=blocking)
        if policy != "allow":
            state, due = RunState.SCHEDULED, -1
    now = engine.now.wall_us
    rows = engine.record("ENQUEUE", {
        "at": now, "uid": cmd.uid, "job": np.array([row], np.uint32), "id": other_run_id(name, now, engine.state.meta.seq + 1, 0),
        "spec": fields["spec"].reshape(1).copy(), "trigger": np.array([Trigger.MANUAL], np.uint8), "nominal": np.array([now], np.int64),
        "due": np.array([due], np.int64), "state": np.array([state], np.uint8),
        "payload": records.Blobs([engine.state.jobs.payload(row)]), "key": [[0, scoped]] if scoped else [],
    })
    engine.counters["created"] += 1
    engine.watch(rows)
    if due < 0:
        engine.look_at(np.array([row], np.uint32))
    return done(engine, cmd, {**reads.run(engine.state, int(rows[0]), engine.running), "existing": False})


def _known_key(engine: Engine, cmd: Incoming, scoped: bytes) -> bytes | None:
    """The answer when an idempotency key was used before: the run it made."""
    known = engine.state.keys.get(scoped) if scoped else None
    if known is None:
        return None
    return done(engine, cmd, {**reads.run_or_stub(engine, known.run_id), "existing": True})


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


def wait(engine: Engine, cmd: Incoming) -> bytes:
    """Answer when the run is final or the time is over."""
    run_id = parse_run_id(cmd.request.args.get("id"))
    row = run_row(engine, cmd.request.args)
    if engine.state.runs.gather(np.array([row], np.uint32))["state"][0] > RunState.RETRY_WAIT:
        return frames.encode_ok(cmd.request.id, shown(cmd.roles, reads.run(engine.state, row, engine.running)))
    limit = whole(cmd.request.args, "timeout_us", 0, 2**62, 2**62) or 0
    deadline = engine.now.mono_us + limit
    engine.quotas.take("waits", cmd)
    engine.waiters.setdefault(run_id, []).append(Waiter(cmd.conn, cmd.request.id, deadline, cmd.roles))
    engine.waiters_due_us = min(engine.waiters_due_us, deadline)
    return b""


def expire_waiters(engine: Engine) -> None:
    """Answer waits whose time is over with the run as it stands. They are looked through when the first may be due, not each turn."""
    if engine.now.mono_us < engine.waiters_due_us:
        return
    for run_id in [r for r, waiting in engine.waiters.items() if any(w.deadline_us <= engine.now.mono_us for w in waiting)]:
        keep = []
        for waiter in engine.waiters.pop(run_id):
            if waiter.deadline_us > engine.now.mono_us:
                keep.append(waiter)
            else:
                engine.quotas.give("waits", waiter.conn)
                told = shown(waiter.roles, reads.run_or_stub(engine, run_id))
                engine.reply(waiter.conn, frames.encode_ok(waiter.request_id, told))
        if keep:
            engine.waiters[run_id] = keep
    engine.waiters_due_us = min((w.deadline_us for waiting in engine.waiters.values() for w in waiting), default=NEVER)


VERBS: Final[dict[str, Callable[[Engine, Incoming], bytes]]] = {"trigger": trigger, "wait": wait}

"""The verbs about runs: trigger, wait."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ..engine.arguments import done, text, whole
from ..engine.connected import Waiter
from ..engine.roles import shown
from ..model.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError
from ..model.ids import other_run_id
from ..model.nouns import KEY_MAX, RunState, Trigger, display_name
from ..protocol import frames
from ..state import readable, records
from .put import job_row

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..engine.core import Core
    from ..engine.turn import Incoming


def trigger(core: Core, cmd: Incoming) -> bytes:
    """Run a job now, with a run of its own."""
    key = text(cmd.request.args, "key", KEY_MAX)
    row = job_row(core, cmd.request.args)
    fields = core.state.jobs.gather(np.array([row], np.uint32))[0]
    name = core.state.jobs.names(np.array([row], np.uint32))[0]
    scoped = b"trigger\0" + name + b"\0" + key.encode() if key else b""
    known = _known_key(core, cmd, scoped)
    if known:
        return known
    wire = core.state.specs[int(fields["spec"])]
    busy = int(fields["active"]) + int(fields["waiting"])
    state, due = RunState.QUEUED, core.now.wall_us
    if busy:
        policy = wire["overlap"]["policy"]
        if policy == "skip" or (policy == "allow" and busy >= core.specs.overlap_max[int(fields["spec"])]):
            in_the_way = core.state.runs.in_the_way(row)
            assert in_the_way is not None, "a busy job has an open run"
            blocking = core.state.runs.text_id(in_the_way)
            shown = display_name(name.decode())
            raise FailedPreconditionError(f"job {shown} is busy with run {blocking} (overlap {policy})", run_id=blocking)
        if policy != "allow":
            state, due = RunState.SCHEDULED, -1
    now = core.now.wall_us
    rows = core.record("ENQUEUE", {
        "at": now, "uid": cmd.uid, "job": np.array([row], np.uint32), "id": other_run_id(name, now, core.state.meta.seq + 1, 0),
        "spec": fields["spec"].reshape(1).copy(), "trigger": np.array([Trigger.MANUAL], np.uint8), "nominal": np.array([now], np.int64),
        "due": np.array([due], np.int64), "state": np.array([state], np.uint8),
        "payload": records.Blobs([core.state.jobs.payload(row)]), "key": [[0, scoped]] if scoped else [],
    })
    core.counters["created"] += 1
    core.watch(rows)
    if due < 0:
        core.look_at(np.array([row], np.uint32))
    return done(core, cmd, {**readable.run(core.state, int(rows[0]), core.running), "existing": False})


def _known_key(core: Core, cmd: Incoming, scoped: bytes) -> bytes | None:
    """The answer when an idempotency key was used before: the run it made."""
    known = core.state.keys.get(scoped) if scoped else None
    if known is None:
        return None
    return done(core, cmd, {**readable.run_or_stub(core.state, known.run_id, core.running), "existing": True})


def run_row(core: Core, args: dict[str, Any]) -> int:
    """Row of the run with that id, if it is not folded; not_found otherwise."""
    row = core.state.find_run(parse_run_id(args.get("id")))
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


def wait(core: Core, cmd: Incoming) -> bytes:
    """Answer when the run is final or the time is over."""
    run_id = parse_run_id(cmd.request.args.get("id"))
    row = run_row(core, cmd.request.args)
    if core.state.runs.gather(np.array([row], np.uint32))["state"][0] > RunState.RETRY_WAIT:
        return frames.encode_ok(cmd.request.id, shown(cmd.roles, readable.run(core.state, row, core.running)))
    limit = whole(cmd.request.args, "timeout_us", 0, 2**62, 2**62) or 0
    deadline = core.now.mono_us + limit
    core.quotas.take("waits", cmd)
    core.waiters.setdefault(run_id, []).append(Waiter(cmd.conn, cmd.request.id, deadline, cmd.roles))
    core.waiters_due_us = min(core.waiters_due_us, deadline)
    return b""


VERBS: Final[dict[str, Callable[[Core, Incoming], bytes]]] = {"trigger": trigger, "wait": wait}

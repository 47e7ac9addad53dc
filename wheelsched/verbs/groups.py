"""group: N runs, then one. All of them are made in one commit; the one waits, scheduled for no instant, until the others have ended.

A member has ended with its first final state: succeeded, cancelled (expired too), or a dead letter; what is sent back afterwards is not
counted again. When the last has ended, the waiting run is queued in that very commit with the counts as its cause, and that moment is its
nominal time. With `when` "succeeded" it is cancelled instead, with the reason `group`, unless all members succeeded: its `on_failure` is
called then. A waiting run that somebody cancelled stays so; the members go on.

`group_part` keeps members that don't fit into one frame with their connection, until `group` or its end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ..engine.arguments import column, done, payload_fault, payload_of, text, whole
from ..engine.quotas import size_of
from ..engine.uploads import Part, Parts
from ..model.errors import FailedPreconditionError, InvalidArgumentError, ResourceExhaustedError, WheelschedError
from ..model.ids import other_run_id
from ..model.nouns import GROUP_MAX, KEY_MAX, NEVER, RUN_FAULTS_MAX, RunState, Trigger
from ..protocol import frames
from ..state import readable, records
from .enqueue import Wanted, job_rows, resolved, scoped

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..engine.core import Core
    from ..engine.turn import Incoming

GROUPS_MAX: Final = 100_000  # that are open
WHEN: Final = ("finished", "succeeded")


def _part(args: dict[str, Any]) -> Part:
    given, payloads, which = args.get("given"), args.get("payload"), column(args, "which", "<u4")
    if not isinstance(given, list) or not isinstance(payloads, list) or len(payloads) != len(which):
        raise InvalidArgumentError("group: given and payload are lists, `which` has a row of `given` for each payload")
    if len(which) and int(which.max()) >= len(given):
        raise InvalidArgumentError("group: which names a row of `given` that is not there")
    for i, payload in enumerate(payloads):
        if (fault := payload_fault(payload)) is not None:
            raise InvalidArgumentError(f"member {i} of the frame: {fault}")
    return Part(given, which, payloads)


def group_part(core: Core, cmd: Incoming) -> bytes:
    """Keep members for `group`; a new batch takes the place of the one before."""
    number = whole(cmd.request.args, "batch", 0, 2**63 - 1, 0) or 0
    kept = _taken(core, cmd)  # an error drops all of it
    if kept is None or kept.batch != number:
        kept = Parts(number)
    kept.add(_part(cmd.request.args))
    size = kept.size + size_of(cmd.request.args)
    core.quotas.take("staged_bytes", cmd, size)
    kept.size = size
    core.parts[cmd.conn] = kept
    return frames.encode_ok(cmd.request.id, {"staged": kept.members})


def _taken(core: Core, cmd: Incoming) -> Parts | None:
    """What a connection has sent so far: it is not kept any more."""
    kept = core.parts.pop(cmd.conn, None)
    if kept is not None:
        core.quotas.give("staged_bytes", cmd.conn, kept.size)
    return kept


def group(core: Core, cmd: Incoming) -> bytes:
    """Make the members and the run that waits for them, all or nothing."""
    args = cmd.request.args
    number = whole(args, "batch", 0, 2**63 - 1)
    kept = _taken(core, cmd)
    namespace, when = text(args, "namespace", 64, "default"), text(args, "when", 20, WHEN[0])
    if when not in WHEN:
        raise InvalidArgumentError(f"when: {when!r} is not one of {', '.join(WHEN)}")
    key = scoped("group", namespace, text(args, "key", KEY_MAX))
    known = core.state.keys.get(key) if key else None
    if known is not None:
        return done(core, cmd, {"run": readable.run_or_stub(core.state, known.run_id, core.running), "existing": True, "id": b""})
    staged = kept if kept is not None and kept.batch == number else Parts(number or 0)
    staged.add(_part(args))
    expected = whole(args, "members", 1, GROUP_MAX, staged.members)
    if staged.members != expected or not expected:
        raise FailedPreconditionError(
            f"group: {staged.members} members are here, not {expected or 'at least one'}: send them again if the connection was lost",
            staged=staged.members,
        )
    if len(core.state.groups) >= GROUPS_MAX:
        raise ResourceExhaustedError(f"{GROUPS_MAX:,} groups are open; wait for some to end")
    then = _then(core, args, namespace)
    members = _members(core, staged, namespace)
    run_id, ids = _record(core, cmd, members, then, key, succeeded=when == "succeeded")
    return done(core, cmd, {"run": readable.run_or_stub(core.state, run_id, core.running), "existing": False, "id": ids})


def _then(core: Core, args: dict[str, Any], namespace: str) -> Wanted:
    asked, rows = args.get("then"), args["given"]
    if not isinstance(asked, dict):
        raise InvalidArgumentError("group: then, a map of which and payload, is wanted")
    payload, which = payload_of(asked.get("payload")), whole(asked, "which", 0, len(rows) - 1)
    if which is None:
        raise InvalidArgumentError("group: then names a row of `given` as which")
    given = rows[which]
    if isinstance(given, dict) and given.get("expires_after_us") is not None:
        raise InvalidArgumentError("group: expires_after goes with the members; the run behind them waits for as long as they take")
    return Wanted(*resolved(core, given, namespace), payload, core.now.wall_us)


def _members(core: Core, staged: Parts, namespace: str) -> list[Wanted]:
    """InvalidArgumentError lists the members that can't be."""
    out: list[Wanted] = []
    faults: list[list[Any]] = []
    first = 0
    for part in staged.parts:
        kinds: dict[int, tuple[str, int]] = {}
        for i, (w, payload) in enumerate(zip(part.which.tolist(), part.payloads, strict=True)):
            try:
                if w not in kinds:
                    kinds[w] = resolved(core, part.given[w], namespace)
                out.append(Wanted(*kinds[w], payload, core.now.wall_us))
            except WheelschedError as e:
                faults.append([first + i, str(e)])
        first += len(part.payloads)
    if faults:
        raise InvalidArgumentError(f"member {faults[0][0]}: {faults[0][1]} (nothing was enqueued)", runs=faults[:RUN_FAULTS_MAX])
    return out


def _record(core: Core, cmd: Incoming, members: list[Wanted], then: Wanted, key: bytes, *, succeeded: bool) -> tuple[bytes, bytes]:
    everyone, n, now = [*members, then], len(members), core.now.wall_us
    jobs = job_rows(core, cmd, everyone)
    seq, number = core.state.meta.seq + 1, core.state.meta.groups + 1
    ids = [other_run_id(one.job.encode(), now, seq, i) for i, one in enumerate(everyone)]
    due = np.full(n + 1, -1 - number, np.int64)  # of a member: its group; see RunTable.enqueue
    due[n] = NEVER
    state = np.full(n + 1, RunState.QUEUED, np.uint8)
    state[n] = RunState.SCHEDULED
    rows = core.record("ENQUEUE", {
        "at": now, "uid": cmd.uid, "job": jobs, "id": b"".join(ids), "spec": np.array([one.spec for one in everyone], np.uint32),
        "trigger": np.full(n + 1, Trigger.ENQUEUE, np.uint8), "nominal": np.full(n + 1, now, np.int64), "due": due, "state": state,
        "payload": records.Blobs([one.payload for one in everyone]), "key": [[n, key]] if key else [],
    })
    core.record("GROUP", {"at": now, "number": number, "run": ids[n], "members": n, "succeeded": succeeded})
    core.counters["created"] += n + 1
    core.watch(rows[:n])
    return ids[n], b"".join(ids[:n])


VERBS: Final[dict[str, Callable[[Core, Incoming], bytes]]] = {"group": group, "group_part": group_part}

__all__ = ["VERBS"]

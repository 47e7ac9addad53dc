"""Small chains: how a run ends triggers another job. And what makes the runs of every hook, `on_missed`'s (see alarms) too.

    on_success   the run succeeded
    on_failure   the run will not succeed any more and nobody wanted that: it is a dead letter, its deadline for a start passed, or not
                 all of its group succeeded. An attempt that is retried is none, and a cancel is somebody's will
    on_dead      the run is a dead letter

The definition that the run was made with counts. One (run, hook) makes one run ever, in the commit of the ending itself: a completion
that is repeated ends nothing again, and a dead letter of which a job was told is marked: sent back (`redrive`), it tells nobody when it
dies again, and when it succeeds then, that is its `on_success`.

A server may have a job for everybody's deaths (`AlarmJobs`): it is told as `on_dead` says of each dead letter whose definition names
none, or one that is deleted. It is never told of its own, nor of those of runs that a hook made, or two failing alarms would call each
other for ever.

A run that a hook makes is made whatever the overlap policy of its job says, also while that job is paused (as `trigger` does) or all
triggering is held. A job that is not there (any more) is counted as untold. Cycles are refused when a job is put.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgpack
import numpy as np

from ..model.ids import other_run_id
from ..model.nouns import BATCH_MAX, HOOKS, Reason, RunFlag, RunState, Trigger, display_name
from ..state import records
from .alarms import living, target_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from numpy.typing import NDArray

    from .core import Core

VALUE_MAX: Final = 8 * 1024  # bytes of a return value that go with the cause
MESSAGE_MAX: Final = 1_000  # characters of an error's message
_REASONS: Final = {"on_success": "success", "on_failure": "failure", "on_dead": "dead"}
_UNWANTED: Final[dict[int, dict[str, str]]] = {  # how a run is cancelled though nobody wanted that
    Reason.EXPIRED: {"type": "wheelsched.Expired", "message": "no worker had it by its deadline for a start (expires_after)"},
    Reason.GROUP: {"type": "wheelsched.GroupFailed", "message": "not all members of its group succeeded"},
}


def hooks_of(fields: Any) -> tuple[str, ...]:
    """The hooks that the ending of a run calls, from its row."""
    if fields["state"] == RunState.SUCCEEDED:
        return ("on_success",)
    if fields["state"] == RunState.DEAD:
        return () if fields["flags"] & RunFlag.TOLD else ("on_failure", "on_dead")
    unwanted = fields["state"] == RunState.CANCELLED and int(fields["reason"]) in _UNWANTED
    return ("on_failure",) if unwanted else ()


def ended(core: Core, rows: NDArray[np.uint32]) -> None:
    """These runs may have ended in this turn: trigger what their definitions name, and what the server has for all."""
    everyone = core.alarm_jobs.on_dead
    if not core.specs.any_hooked and not everyone:
        return
    fields = core.state.runs.gather(rows)
    final = core.specs.hooked[fields["spec"]] & (fields["state"] > RunState.RETRY_WAIT)
    if everyone:
        final |= (fields["state"] == RunState.DEAD) & (fields["trigger"] != Trigger.CHAIN)
    orders: list[tuple[str, dict[str, Any], dict[str, str]]] = []
    told = []
    for row, f in zip(rows[final].tolist(), fields[final], strict=True):
        wanted = _wanted(core, f)
        if wanted:
            about = _about(core, row, f)
            headers = own_headers(core.state.runs.blobs(row)[0])
            orders += [(target, {"reason": _REASONS[hook], **about}, headers) for hook, target in wanted.items()]
            if f["state"] == RunState.DEAD and any(living(core.state, target) is not None for target in wanted.values()):
                told.append(row)
    trigger(core, orders)
    if told:
        core.record("CHAINED", {"at": core.now.wall_us, "run": np.array(told, np.uint32)})


def _wanted(core: Core, fields: Any) -> dict[str, str]:
    """Which job each hook of a run that ended calls."""
    hooks, wire = hooks_of(fields), core.state.specs[int(fields["spec"])]
    found = {hook: wire[hook] for hook in hooks if hook in wire}
    everyone = core.alarm_jobs.on_dead
    if everyone and "on_dead" in hooks and fields["trigger"] != Trigger.CHAIN and _name(core, fields) != everyone:
        found["on_dead"] = target_of(core.state, wire.get("on_dead"), everyone)
    return found


def _name(core: Core, fields: Any) -> str:
    return core.state.jobs.names(np.array([fields["job"]], np.uint32))[0].decode()


def _about(core: Core, row: int, fields: Any) -> dict[str, Any]:
    """What a cause tells of the run that ended: job, run_id, value (bin) or value_left_out (its size in bytes, if known), and error. The
    values of redacted arguments are not in the error.
    """
    runs = core.state.runs
    about: dict[str, Any] = {"job": display_name(_name(core, fields)), "run_id": runs.text_id(row), "value": None, "error": None}
    packed = runs.blobs(row)[1]
    result = msgpack.unpackb(packed, raw=False) if packed else {}
    if fields["state"] != RunState.SUCCEEDED:
        found = _UNWANTED.get(int(fields["reason"])) or {key: str(result.get(key) or "") for key in ("type", "message")}
        wire, payload = core.state.specs[int(fields["spec"])], runs.blobs(row)[0]
        message = core.redaction.scrubbed(found["message"], payload, core.state.announced, wire)  # it may go on into a mail or a chat
        about["error"] = {"type": found["type"], "message": message[:MESSAGE_MAX]}
    elif isinstance(result.get("value"), bytes):
        if len(result["value"]) <= VALUE_MAX:
            about["value"] = result["value"]
        else:
            about["value_left_out"] = len(result["value"])
    elif isinstance(result.get("left_out"), dict):
        about["value_left_out"] = result["left_out"]["bytes"]
    return about


def trigger(core: Core, orders: list[tuple[str, dict[str, Any], dict[str, str]]]) -> None:
    """Make a run of each named job, with a cause and further headers: one record for (up to 65,536 of) them."""
    found: dict[str, int | None] = {}
    made: list[tuple[str, int, dict[str, Any]]] = []
    for target, cause, headers in orders:
        if target not in found:
            found[target] = living(core.state, target)
        row = found[target]
        if row is None:
            core.counters["untold"] += 1
        else:
            made.append((target, row, {**headers, "cause": cause}))
    for start in range(0, len(made), BATCH_MAX):
        _make(core, made[start : start + BATCH_MAX])


def _make(core: Core, orders: list[tuple[str, int, dict[str, Any]]]) -> None:
    n, now, seq = len(orders), core.now.wall_us, core.state.meta.seq + 1
    job = np.array([row for _, row, _ in orders], np.uint32)
    instants = np.full(n, now, np.int64)
    rows = core.record("ENQUEUE", {
        "at": now, "uid": 0, "job": job, "id": b"".join(other_run_id(name.encode(), now, seq, i) for i, (name, _, _) in enumerate(orders)),
        "spec": core.state.jobs.gather(job)["spec"].copy(), "trigger": np.full(n, Trigger.CHAIN, np.uint8), "nominal": instants,
        "due": instants, "state": np.full(n, RunState.QUEUED, np.uint8),
        "payload": records.Blobs([with_headers(core.state.jobs.payload(row), headers) for _, row, headers in orders]), "key": [],
    })
    core.counters["created"] += n
    core.watch(rows)


def with_headers(payload: bytes, more: Mapping[str, Any]) -> bytes:
    """The payload with more headers, which are the third element of the array and mostly not there yet."""
    if payload[:1] == b"\x92":  # an array of two
        return b"\x93" + payload[1:] + encoded(more)
    args, kwargs, headers = msgpack.unpackb(payload, raw=False)
    return encoded([args, kwargs, {**headers, **more}])


def own_headers(payload: bytes) -> dict[str, str]:
    """The headers that came with a call, without the cause that a hook has added."""
    if payload[:1] == b"\x92":
        return {}
    return {name: value for name, value in msgpack.unpackb(payload, raw=False)[2].items() if name != "cause"}


def encoded(value: Any) -> bytes:
    """Plain data as MessagePack."""
    data: bytes = msgpack.packb(value, use_bin_type=True)
    return data


# Cycles


def targets_of(wire: Mapping[str, Any]) -> list[str]:
    """Full names of the jobs that the hooks of a definition trigger, each once."""
    return list(dict.fromkeys(wire[hook] for hook in HOOKS if hook in wire))


def find_cycle(core: Core, coming: Mapping[str, list[str]]) -> list[str]:
    """A cycle of hooks that there would be with these jobs put (full name -> targets): its jobs, the first again as the last, which is
    one of those that are put. Empty: none.
    """
    done: set[str] = set()
    for start in [name for name, targets in coming.items() if targets]:
        path, walks = [start], [iter(coming[start])]
        on_path = {start}
        while walks:
            target = next(walks[-1], None)
            if target is None:
                walks.pop()
                on_path.discard(path[-1])
                done.add(path.pop())
            elif target in on_path:
                return _from_one_of(coming, path[path.index(target) :])
            elif target not in done:
                path.append(target)
                on_path.add(target)
                walks.append(iter(_targets(core, target, coming)))
    return []


def _from_one_of(coming: Iterable[str], cycle: list[str]) -> list[str]:
    at = next(i for i, name in enumerate(cycle) if name in coming)
    return [*cycle[at:], *cycle[:at], cycle[at]]


def _targets(core: Core, name: str, coming: Mapping[str, list[str]]) -> list[str]:
    if name in coming:
        return coming[name]
    row = living(core.state, name)
    if row is None:
        return []
    return targets_of(core.state.specs[int(core.state.jobs.gather(np.array([row], np.uint32))["spec"][0])])


def cycle_text(cycle: list[str]) -> str:
    """What is said about a cycle."""
    shown = " -> ".join(display_name(name) for name in cycle)
    return f"on_success, on_failure, on_dead: {shown} is a cycle, which would trigger itself for ever; take one of these hooks away"


__all__ = ["cycle_text", "ended", "find_cycle", "targets_of", "trigger"]

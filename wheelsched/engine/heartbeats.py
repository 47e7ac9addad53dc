"""Heartbeats: leases renewed, what attempts tell of themselves, and what a worker shall stop."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgpack
import numpy as np

from ..model.errors import InvalidArgumentError
from ..model.nouns import CHECKPOINT_MAX, KILL_GRACE_US, NEVER, OUTPUT_MAX, PROGRESS_MAX, STACK_MAX, US, Outcome, RunFlag
from ..model.tape import STREAMS
from ..protocol import frames
from ..state.live import Beat
from ..state.records import Blobs
from . import holders
from .arguments import check_value, column
from .endings import end_attempts
from .peers import session_of

if TYPE_CHECKING:
    from collections.abc import Collection

    from numpy.typing import NDArray

    from .connected import Session
    from .core import Core
    from .turn import Incoming, Now

SLACK_US: Final = 5 * KILL_GRACE_US  # a worker of ours needs up to two of them to end a run, and then reports it


@dataclass(slots=True)
class _Told:
    """What a heartbeat says. InvalidArgumentError for rubbish."""

    ids: bytes
    token: NDArray[np.int64]
    started: NDArray[np.uint8]
    progress: dict[int, str]
    checkpoints: dict[int, bytes]
    outputs: dict[int, dict[str, tuple[int, bytes]]]
    stacks: dict[int, str]


def _read(args: dict[str, Any]) -> _Told:
    token = column(args, "token", "<i8")
    n = len(token)
    ids, started = args.get("id"), column(args, "started", "u1", n)
    if not isinstance(ids, bytes) or len(ids) != 16 * n:
        raise InvalidArgumentError("heartbeat: id has 16 bytes a row")
    progress = _sparse(args, "progress", n, str, PROGRESS_MAX)
    checkpoints = _sparse(args, "checkpoint", n, bytes, CHECKPOINT_MAX)
    for data in checkpoints.values():
        check_value(data, "heartbeat: checkpoint")
    return _Told(ids, token, started, progress, checkpoints, _outputs(args, n), _sparse(args, "stack", n, str, STACK_MAX))


def heartbeat(core: Core, cmd: Incoming) -> bytes:
    """Renew an external worker's lease; keep what its runs tell; say what it shall stop."""
    session = session_of(core, cmd)
    told = _read(cmd.request.args)
    rows, verdict = holders.held(core, session, told.ids, told.token)
    held = np.flatnonzero(verdict == 1)
    kept = [i for i in held.tolist() if i in told.checkpoints] if told.checkpoints else []
    if kept:
        checkpoints = Blobs([told.checkpoints[i] for i in kept])
        core.record("CHECKPOINT", {"at": core.now.wall_us, "run": rows[kept], "checkpoint": checkpoints})
    fields = core.state.runs.gather(rows[held])
    _renew(core, session, told, held, fields, core.now)
    asked = fields["flags"] & RunFlag.CANCEL_ASKED
    return frames.encode_ok(cmd.request.id, {
        "cancel": held[asked > 0].tolist(), "stale": np.flatnonzero(verdict != 1).tolist(), **_asked(core, told),
    })


def answer_at_once(core: Core, cmd: Incoming, now: Now, undurable: Collection[int]) -> bytes | None:
    """The answer to a heartbeat that needs no record, whatever the disk does: a sync that hangs costs no healthy run its lease.

    It tells only what is durable: that all its runs are held, as they are since before their worker got them, and who of them was asked
    to end, but for `undurable` tokens, of which that is not on disk yet. None: the heartbeat has to go through a turn.
    """
    session = core.sessions.get(cmd.conn)
    if session is None or not session.worker or session.lost or cmd.request.args.get("checkpoint"):
        return None
    try:
        told = _read(cmd.request.args)
    except InvalidArgumentError:
        return None
    rows, verdict = holders.held(core, session, told.ids, told.token)
    if (verdict != 1).any():
        return None
    fields = core.state.runs.gather(rows)
    _renew(core, session, told, np.arange(len(rows)), fields, now)
    asked = np.flatnonzero(fields["flags"] & RunFlag.CANCEL_ASKED).tolist()
    cancel = [i for i in asked if int(told.token[i]) not in undurable]
    return frames.encode_ok(cmd.request.id, {"cancel": cancel, "stale": [], **_asked(core, told)})


def _asked(core: Core, told: _Told) -> dict[str, list[int]]:
    """The rows whose stacks are wanted, as an entry of an answer."""
    wanted = [i for i, token in enumerate(told.token.tolist()) if core.running.asked.get(token, "") is None] if core.running.asked else []
    return {"stack": wanted} if wanted else {}


def _renew(core: Core, session: Session, told: _Told, held: NDArray[np.intp], fields: NDArray[Any], now: Now) -> None:
    """The lease goes on from now; what the runs that are `held` (places, and `fields` of their rows) tell is kept."""
    external = session.kind == "external"  # the pool knows better about its own
    session.lease_until_us = now.mono_us + core.lease_us if external else NEVER
    for worker in core.gone.keys() & set(fields["worker"].tolist()):
        core.gone[worker] = now.mono_us + core.lease_us  # it came back under a new number: what it holds stays its own
    for i, spec in zip(held.tolist(), fields["spec"].tolist(), strict=True):
        own = i in told.progress or i in told.checkpoints
        if told.started[i] or own:
            run_id = told.ids[16 * i : 16 * i + 16]
            _keep(core, int(told.token[i]), run_id, told.progress.get(i), spec if external else None, now, own=own)
        if i in told.stacks and core.running.asked.get(int(told.token[i]), "") is None:
            core.running.asked[int(told.token[i])] = told.stacks[i]
        if i in told.outputs:
            core.running.printed(int(told.token[i]), told.outputs[i])


def _keep(core: Core, token: int, run_id: bytes, progress: str | None, spec: int | None, now: Now, *, own: bool) -> None:
    """Keep what an attempt tells; an empty text leaves what it told before. `own`: its own code has called. With a `spec` it is held to
    its limits, and gets a little more, so that a worker that ends runs itself, as ours do, comes first.
    """
    live = core.running
    beat = live.beats.get(token)
    fresh = beat is None
    if beat is None:
        beat = live.beats[token] = Beat(run_id, now.wall_us)
    if spec is not None and (fresh or own):
        if fresh:
            beat.over_us = min(NEVER, now.mono_us + int(core.specs.timeout[spec]) + SLACK_US)
        beat.due_us = min(NEVER, now.mono_us + int(core.specs.silence[spec]) + SLACK_US)
        live.wake_us = min(live.wake_us, beat.over_us, beat.due_us)
    if own:
        beat.at_us = now.wall_us
    if progress:
        beat.progress = progress


def end_overdue(core: Core) -> None:
    """End the attempts of external workers that were not ended by them when their timeout was over, or when their own code was silent
    for longer than their heartbeat_timeout; the workers are told that they are stale.
    """
    live, now = core.running, core.now
    if now.mono_us < live.wake_us:
        return
    over = {token: beat for token, beat in live.beats.items() if min(beat.over_us, beat.due_us) <= now.mono_us}
    if over:
        token = np.fromiter(over, np.int64, len(over))
        rows, verdict = core.state.runs.held(b"".join(beat.run_id for beat in over.values()), token)
        assert (verdict == 1).all(), "what has ended is forgotten"
        specs = core.state.runs.gather(rows)["spec"].tolist()
        said = {i: _timed_out(core, beat, spec) for i, (beat, spec) in enumerate(zip(over.values(), specs, strict=True))}
        results = {i: msgpack.packb(result) for i, result in said.items()}
        outcome, zero = np.full(len(rows), Outcome.TIMED_OUT, np.uint8), np.zeros(len(rows), np.int64)
        end_attempts(core, rows, outcome, zero, zero + now.wall_us, results, said)
    live.wake_us = min((min(beat.over_us, beat.due_us) for beat in live.beats.values()), default=NEVER)


def _timed_out(core: Core, beat: Beat, spec: int) -> dict[str, Any]:
    silence, timeout = int(core.specs.silence[spec]) / US, int(core.specs.timeout[spec]) / US
    why = f"no heartbeat for {silence:g} s" if beat.due_us < beat.over_us else f"its worker did not end it after {timeout:g} s"
    return {"type": "wheelsched.TimedOut", "message": f"timed out: {why}", "traceback": ""}


def _sparse(args: dict[str, Any], name: str, n: int, kind: type[str | bytes | dict[str, Any]], limit: int) -> dict[int, Any]:
    """A sparse list of [row, value] pairs as a map. InvalidArgumentError for rows that are not there and values over their limit."""
    pairs = args.get(name)
    if not isinstance(pairs, list | None):
        raise InvalidArgumentError(f"heartbeat: {name} is a list of [row, value]")
    found: dict[int, Any] = {}
    for pair in pairs or ():
        row, value = pair if isinstance(pair, list) and len(pair) == 2 else (None, None)
        if type(row) is not int or not 0 <= row < n or not isinstance(value, kind):
            raise InvalidArgumentError(f"heartbeat: {name} is a list of [row, value]")
        if len(value) > limit:
            unit = "bytes" if kind is bytes else "characters"
            raise InvalidArgumentError(f"heartbeat: {name} of {len(value)} {unit}: at most {limit} are allowed")
        found[row] = value
    return found


def _outputs(args: dict[str, Any], n: int) -> dict[int, dict[str, tuple[int, bytes]]]:
    """The sparse list `output` as a map: row -> {stream: (behind how many bytes, what was printed)}."""
    found: dict[int, dict[str, tuple[int, bytes]]] = {}
    for row, streams in _sparse(args, "output", n, dict, len(STREAMS)).items():
        found[row] = {}
        for name, pair in streams.items():
            at, data = pair if isinstance(pair, list) and len(pair) == 2 else (None, None)
            if name not in STREAMS or type(at) is not int or not 0 <= at < 2**62 or not isinstance(data, bytes) or len(data) > OUTPUT_MAX:
                raise InvalidArgumentError(
                    f"heartbeat: an output is a map of stdout and stderr, each [behind how many bytes, at most {OUTPUT_MAX} bytes]"
                )
            found[row][name] = at, data
    return found

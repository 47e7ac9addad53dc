"""Heartbeats: leases renewed, what attempts tell of themselves, and what a worker shall stop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgpack
import numpy as np

from . import protocol
from .arguments import column
from .endings import end_attempts
from .errors import InvalidArgumentError
from .live import Beat
from .model import CHECKPOINT_MAX, KILL_GRACE_US, NEVER, OUTPUT_MAX, PROGRESS_MAX, US, Outcome
from .payloads import RAW
from .records import Blobs
from .sessions import session_of
from .tape import STREAMS

if TYPE_CHECKING:
    from .engine import Engine
    from .turn import Incoming

SLACK_US: Final = 3 * KILL_GRACE_US


def heartbeat(engine: Engine, cmd: Incoming) -> bytes:
    """Renew an external worker's lease; keep what its runs tell; say what it shall stop."""
    args = cmd.request.args
    session = session_of(engine, cmd)
    token = column(args, "token", "<i8")
    n = len(token)
    ids, started = args.get("id"), column(args, "started", "u1", n)
    if not isinstance(ids, bytes) or len(ids) != 16 * n:
        raise InvalidArgumentError("heartbeat: id has 16 bytes a row")
    progress = _sparse(args, "progress", n, str, PROGRESS_MAX)
    checkpoints = _sparse(args, "checkpoint", n, bytes, CHECKPOINT_MAX)
    for data in checkpoints.values():
        _check_value(data)
    outputs = _outputs(args, n)
    session.lease_until_us = engine.now.mono_us + engine.lease_us if session.kind == "external" else NEVER
    rows, verdict = engine.state.runs.held(ids, token)
    held = np.flatnonzero(verdict == 1)
    fields = engine.state.runs.gather(rows[held])
    for worker in engine.gone.keys() & set(fields["worker"].tolist()):
        engine.gone[worker] = engine.now.mono_us + engine.lease_us  # it came back under a new number: what it holds stays its own
    kept = [i for i in held.tolist() if i in checkpoints] if checkpoints else []
    if kept:
        engine.record("CHECKPOINT", {"at": engine.now.wall_us, "run": rows[kept], "checkpoint": Blobs([checkpoints[i] for i in kept])})
    limited = engine.specs.any_silence and session.kind == "external"  # the pool knows better about its own
    limits = engine.specs.silence[fields["spec"]].tolist() if limited else [NEVER] * len(held)
    for i, limit in zip(held.tolist(), limits, strict=True):
        own = i in progress or i in checkpoints
        if started[i] or own:
            _keep(engine, int(token[i]), ids[16 * i : 16 * i + 16], progress.get(i), limit, own=own)
    for i in held.tolist() if outputs else ():
        if i in outputs:
            engine.running.printed(int(token[i]), outputs[i])
    asked = fields["flags"] & 1
    return protocol.encode_ok(cmd.request.id, {
        "cancel": held[asked > 0].tolist(), "stale": np.flatnonzero(verdict != 1).tolist(),
    })


def _keep(engine: Engine, token: int, run_id: bytes, progress: str | None, limit_us: int, *, own: bool) -> None:
    """Keep what an attempt tells; an empty text leaves what it told before. `own`: its own code has called. It may be silent for
    `limit_us` and a little more, so that a worker that ends silent runs itself, as ours do, comes first.
    """
    live = engine.running
    beat = live.beats.get(token)
    fresh = beat is None
    if beat is None:
        beat = live.beats[token] = Beat(run_id)
    if (fresh or own) and limit_us < NEVER:
        beat.due_us = engine.now.mono_us + limit_us + SLACK_US
        live.wake_us = min(live.wake_us, beat.due_us)
    if own:
        beat.at_us = engine.now.wall_us
    if progress:
        beat.progress = progress


def end_silent(engine: Engine) -> None:
    """End the attempts of external workers whose own code was silent for longer than their heartbeat_timeout; the workers are told
    that they are stale.
    """
    live, now = engine.running, engine.now
    if now.mono_us < live.wake_us:
        return
    over = {token: beat for token, beat in live.beats.items() if beat.due_us <= now.mono_us}
    if over:
        token = np.fromiter(over, np.int64, len(over))
        rows, verdict = engine.state.runs.held(b"".join(beat.run_id for beat in over.values()), token)
        assert (verdict == 1).all(), "what has ended is forgotten"
        limits = engine.specs.silence[engine.state.runs.gather(rows)["spec"]].tolist()
        said = {
            i: {"type": "wheelsched.TimedOut", "message": f"timed out: no heartbeat for {limit / US:g} s", "traceback": ""}
            for i, limit in enumerate(limits)
        }
        results = {i: msgpack.packb(result) for i, result in said.items()}
        outcome, zero = np.full(len(rows), Outcome.TIMED_OUT, np.uint8), np.zeros(len(rows), np.int64)
        end_attempts(engine, rows, outcome, zero, zero + now.wall_us, results, said)
    live.wake_us = min((beat.due_us for beat in live.beats.values()), default=NEVER)


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


def _check_value(data: bytes) -> None:
    """What the next attempt could not read is refused."""
    try:
        protocol.decode_value(data, RAW)
    except (ValueError, TypeError, OverflowError, RecursionError, msgpack.exceptions.UnpackException) as e:
        raise InvalidArgumentError(f"heartbeat: checkpoint is no MessagePack value: {type(e).__name__}: {e}") from e

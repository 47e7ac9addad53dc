"""Heartbeats: leases renewed, what attempts tell of themselves, and what a worker shall stop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgpack
import numpy as np

from . import protocol
from .arguments import column
from .errors import InvalidArgumentError
from .live import Beat
from .model import CHECKPOINT_MAX, NEVER, PROGRESS_MAX
from .records import Blobs
from .sessions import session_of

if TYPE_CHECKING:
    from .engine import Engine
    from .turn import Incoming


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
    session.lease_until_us = engine.now.mono_us + engine.lease_us if session.kind == "external" else NEVER
    rows, verdict = engine.state.runs.held(ids, token)
    held = np.flatnonzero(verdict == 1)
    fields = engine.state.runs.gather(rows[held])
    for worker in engine.gone.keys() & set(fields["worker"].tolist()):
        engine.gone[worker] = engine.now.mono_us + engine.lease_us  # it came back under a new number: what it holds stays its own
    kept = [i for i in held.tolist() if i in checkpoints] if checkpoints else []
    if kept:
        engine.record("CHECKPOINT", {"at": engine.now.wall_us, "run": rows[kept], "checkpoint": Blobs([checkpoints[i] for i in kept])})
    for i in held.tolist():
        if started[i] or i in progress or i in checkpoints:
            _keep(engine, int(token[i]), progress.get(i), own=i in progress or i in checkpoints)
    asked = fields["flags"] & 1
    return protocol.encode_ok(cmd.request.id, {
        "cancel": held[asked > 0].tolist(), "stale": np.flatnonzero(verdict != 1).tolist(),
    })


def _keep(engine: Engine, token: int, progress: str | None, *, own: bool) -> None:
    """Keep what an attempt tells; an empty text leaves what it told before. `own`: its own code has called."""
    beat = engine.running.beats.get(token)
    if beat is None:
        beat = engine.running.beats[token] = Beat()
    if own:
        beat.at_us = engine.now.wall_us
    if progress:
        beat.progress = progress


def _sparse(args: dict[str, Any], name: str, n: int, kind: type[str | bytes], limit: int) -> dict[int, Any]:
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


def _check_value(data: bytes) -> None:
    """What the next attempt could not read is refused."""
    try:
        protocol.decode_value(data)
    except (ValueError, TypeError, OverflowError, RecursionError, msgpack.exceptions.UnpackException) as e:
        raise InvalidArgumentError(f"heartbeat: checkpoint is no MessagePack value: {type(e).__name__}: {e}") from e

"""Heartbeats: leases renewed, and what a worker shall stop."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from . import protocol
from .arguments import column
from .errors import InvalidArgumentError
from .model import LEASE_US, NEVER
from .sessions import session_of

if TYPE_CHECKING:
    from .engine import Engine
    from .turn import Incoming


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

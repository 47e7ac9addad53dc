"""Attempts that a test ends as a worker would, and what a restart must find."""

from __future__ import annotations

import numpy as np

from wheelsched.journal.recover import recover
from wheelsched.state.state import State


def end(b, leases, outcome, result, conn=50):
    """Report all of them with one result."""
    at = np.full(len(leases), b.now_us, "<i8").tobytes()
    return list(b.call(conn, ("finish", {
        "id": b"".join(x[0] for x in leases), "token": np.array([x[1] for x in leases], "<i8").tobytes(), "outcome": bytes([outcome] * len(leases)),
        "started_us": at, "ended_us": at, "result": [[i, result] for i in range(len(leases))],
    }))["verdict"])


def same_after_restart(b):
    """Replay and snapshot give the state that lives."""
    live = b.engine.state
    live.check()
    assert recover(b.journal).digest() == live.digest()
    loaded = State.load(p for part in live.copy(1 << 20) for p in part)
    assert loaded.digest() == live.digest()
    loaded.check()

"""Runs that no worker has by their deadline for a start (see `deadlines`) end as cancelled, with the reason `expired`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..model.nouns import MS
from . import chains, waiters
from .alarms import not_started

if TYPE_CHECKING:
    from .core import Core


def expire(core: Core) -> None:
    """End the runs whose time for a start is over."""
    while len(rows := core.deadlines.wheel.advance(core.now.wall_us // MS)):
        rows = np.ascontiguousarray(rows[not_started(core.state.runs.gather(rows))])
        if not len(rows):
            continue
        core.delayed.cancel(rows)
        core.record("EXPIRE", {"at": core.now.wall_us, "run": rows})
        core.counters["expired"] += len(rows)
        core.alarms.expired(rows)
        chains.ended(core, rows)
        core.turn_of(rows)
        waiters.end(core, rows)


__all__ = ["expire"]

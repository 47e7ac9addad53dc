"""`expires_after`: the deadline for a start. A run that no worker has by then ends as cancelled, with the reason `expired`.

It counts from the instant at which the run is to start (see `due.start_us`), a backfill's from its making; a run that was started once does
not expire.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..model.nouns import MS, NEVER, Trigger
from ..wheel._wheel import Wheel
from . import chains
from .alarms import not_started
from .due import start_us

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .engine import Engine


class Expiry:
    """The timers of `expires_after`."""

    def __init__(self, now_ms: int) -> None:
        self.wheel = Wheel(now_ms)

    def watch(self, engine: Engine, rows: NDArray[np.uint32]) -> None:
        """Runs that were made, given back, or found at a start."""
        if not engine.specs.any_expires or not len(rows):
            return
        fields = engine.state.runs.gather(rows)
        after = engine.specs.expires_after[fields["spec"]]
        some = (after < NEVER) & not_started(fields)
        if some.any():
            rows, fields = np.ascontiguousarray(rows[some]), fields[some]
            since = np.where(fields["trigger"] == Trigger.BACKFILL, fields["created_us"], start_us(engine, fields))
            self.wheel.add(rows, -(-(since + after[some]) // MS))
            self.expire(engine)  # a missed occurrence may be too old at once

    def expire(self, engine: Engine) -> None:
        """End the runs whose time for a start is over."""
        while len(rows := self.wheel.advance(engine.now.wall_us // MS)):
            rows = np.ascontiguousarray(rows[not_started(engine.state.runs.gather(rows))])
            if not len(rows):
                continue
            engine.delayed.cancel(rows)
            engine.record("EXPIRE", {"at": engine.now.wall_us, "run": rows})
            engine.counters["expired"] += len(rows)
            engine.alarms.expired(engine, rows)
            if engine.specs.any_hooked:
                chains.ended(engine, rows)
            engine.turn_of(rows)
            engine.end_waits(rows)


__all__ = ["Expiry"]

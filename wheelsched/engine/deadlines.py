"""`expires_after`: the deadline for a start. It counts from the instant at which a run is to start (see `start_times`), a backfill's
from its making; a run that was started once does not expire. `expiry` has what becomes of those that do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..model.nouns import MS, NEVER, Trigger
from ..wheel._wheel import Wheel
from .alarms import not_started
from .start_times import start_us

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..state.state import State
    from .definitions import SpecTable


class Deadlines:
    """The timers of `expires_after`."""

    def __init__(self, now_ms: int, state: State, specs: SpecTable) -> None:
        self.wheel = Wheel(now_ms)
        self._state, self._specs = state, specs

    def watch(self, rows: NDArray[np.uint32]) -> None:
        """Runs that were made, given back, or found at a start."""
        if not self._specs.any_expires or not len(rows):
            return
        fields = self._state.runs.gather(rows)
        after = self._specs.expires_after[fields["spec"]]
        some = (after < NEVER) & not_started(fields)
        if some.any():
            rows, fields = np.ascontiguousarray(rows[some]), fields[some]
            since = np.where(fields["trigger"] == Trigger.BACKFILL, fields["created_us"], start_us(self._state, self._specs, fields))
            self.wheel.add(rows, -(-(since + after[some]) // MS))


__all__ = ["Deadlines"]

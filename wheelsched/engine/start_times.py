"""When runs are to start: at their nominal time, put off by jitter, or where a person moved them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..model.nouns import MS, NEVER, Disposition, Trigger
from ..schedules.jitter import jitter

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..state.state import State
    from .definitions import SpecTable


def armed_us(specs: SpecTable, spec: NDArray[np.uint32], key_low: NDArray[np.uint64], nominal: NDArray[np.int64],
             after: NDArray[np.int64]) -> NDArray[np.int64]:
    """When occurrences start by their jitter; `after`: their next nominal times."""
    period = np.where(after < NEVER, after - nominal, 0)
    span = np.maximum(specs.jitter_us[spec], (period * specs.jitter_share[spec]).astype(np.int64))
    span = np.where(after < NEVER, np.minimum(span, period - MS), span)
    return np.asarray(nominal + jitter(np.ascontiguousarray(key_low), nominal, span), np.int64)


def start_us(state: State, specs: SpecTable, fields: NDArray[Any]) -> NDArray[np.int64]:
    """When these runs, which nobody has had yet, are to start unless something holds them back: at their nominal time, put off by its
    jitter; a moved one where a person put it. `expires_after` and `late_after` count from there.

    One that was made late, or that waits for its turn, starts without its jitter, but is not late before it would have been with it.
    """
    nominal, due = fields["nominal_us"], fields["due_us"]
    armed = (due >= 0) & (due < NEVER)  # negative: it waits for its turn, or is a member of a group
    out = np.where(fields["disposition"] == Disposition.MOVED, due, np.where(armed, np.maximum(nominal, due), nominal))
    if specs.any_jitter:
        spec = fields["spec"]
        spread = (specs.jitter_us[spec] > 0) | (specs.jitter_share[spec] > 0)
        unarmed = spread & (due <= 0) & (fields["trigger"] == Trigger.SCHEDULE) & (fields["disposition"] == Disposition.FIRED)
        if unarmed.any():
            jobs, spec, at = state.jobs.gather(fields["job"][unarmed]), spec[unarmed], nominal[unarmed]
            following = np.full(len(at), NEVER, np.int64)
            same = jobs["spec"] == spec  # else the job has another schedule by now
            following[same] = specs.next(spec[same], jobs["param_us"][same], at[same])
            out[unarmed] = armed_us(specs, spec, jobs["key_low"], at, following)
    return np.asarray(out, np.int64)

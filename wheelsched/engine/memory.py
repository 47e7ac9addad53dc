"""What decides about elapsed time (see `elapsed`): looks at the clocks, and names that are remembered anew."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from ..model.nouns import CLOCK_STEP_US, US, JobState

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .engine import Engine

LOOK_US: Final = 10 * US  # a record is stamped with a look at the clocks that is no older
RENEW_US: Final = 3_600 * US  # an unchanged put renews what was not renewed for so long


def look(engine: Engine) -> None:
    """Record a look at the clocks."""
    engine.keep("ELAPSED", {"at": engine.now.wall_us, "boot_us": engine.now.boot_us})


def see_step(engine: Engine) -> None:
    """Record that the wall clock was set, as soon as it is seen: what stands, and since when, depends on it."""
    last, now = engine.state.elapsed, engine.now
    if abs(now.wall_us - last.wall_us - (now.boot_us - last.boot_us)) > CLOCK_STEP_US:
        look(engine)


def elapsed_us(engine: Engine) -> int:
    """Elapsed time as of now."""
    return engine.state.elapsed.at(engine.now.boot_us)


def renew(engine: Engine, rows: NDArray[np.uint32]) -> None:
    """Finished jobs were put again as they are: a list of dates that is loaded at each deploy must not be forgotten."""
    finished = rows[engine.state.jobs.gather(rows)["state"] == JobState.FINISHED]
    changed, _ = engine.state.touched.of(finished)
    since = elapsed_us(engine) - engine.state.elapsed.begun_us
    old = finished[changed * US + RENEW_US < since]
    if len(old):
        engine.record("RENEW", {"at": engine.now.wall_us, "job": np.unique(old)})


__all__ = ["LOOK_US", "elapsed_us", "look", "renew", "see_step"]

"""What decides about elapsed time (see `elapsed`): looks at the clocks, and names that are remembered anew."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from ..model.nouns import CLOCK_STEP_US, US, JobState

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .core import Core

RENEW_US: Final = 3_600 * US  # an unchanged put renews what was not renewed for so long


def see_step(core: Core) -> None:
    """Record that the wall clock was set, as soon as it is seen: what stands, and since when, depends on it."""
    last, now = core.state.elapsed, core.now
    if abs(now.wall_us - last.wall_us - (now.boot_us - last.boot_us)) > CLOCK_STEP_US:
        core.look()


def elapsed_us(core: Core) -> int:
    """Elapsed time as of now."""
    return core.state.elapsed.at(core.now.boot_us)


def renew(core: Core, rows: NDArray[np.uint32]) -> None:
    """Finished jobs were put again as they are: a list of dates that is loaded at each deploy must not be forgotten."""
    finished = rows[core.state.jobs.gather(rows)["state"] == JobState.FINISHED]
    changed, _ = core.state.touched.of(finished)
    since = elapsed_us(core) - core.state.elapsed.begun_us
    old = finished[changed * US + RENEW_US < since]
    if len(old):
        core.record("RENEW", {"at": core.now.wall_us, "job": np.unique(old)})


__all__ = ["elapsed_us", "renew", "see_step"]

"""Telling somebody without being asked: runs that are not started in time, and occurrences that were not run.

`late_after` marks and counts a run that no worker has so long after it was to start (see `due.start_us`; a backfill is late by nature, and
never marked). `on_missed` names a job to trigger when a misfire
leaves occurrences without a run, or when a scheduled run is late: once a turn for each such job, with the cause in the run's headers.
The run of that job is made whatever its overlap policy says, and also while all triggering is held: an alarm is never skipped.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ..model.nouns import MS, NEVER, Disposition, Reason, RunFlag, RunState, Trigger, display_name
from ..wheel._wheel import Wheel
from . import chains
from .due import start_us

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .engine import Engine

_UNRUN: Final = (Reason.MISFIRE, Reason.WINDOW, Reason.MAX)  # a pause or a hold is somebody's will


@dataclass(slots=True)
class Cause:
    """What one alarm of a turn is about; `job` is the first of its jobs."""

    reason: str  # missed or late
    job: str
    of: set[int]  # rows of the jobs
    count: int
    from_us: int
    until_us: int

    def add(self, job: int, count: int, from_us: int, until_us: int) -> None:
        """More of this job, or of another one."""
        self.of.add(job)
        self.count += count
        self.from_us, self.until_us = min(self.from_us, from_us), max(self.until_us, until_us)

    def plain(self) -> dict[str, Any]:
        """As the run that is told has it."""
        return {
            "reason": self.reason, "job": self.job, "jobs": len(self.of), "count": self.count, "from_us": self.from_us,
            "until_us": self.until_us,
        }


class Alarms:
    """The timers of `late_after`, and what is to be told at the end of the turn."""

    def __init__(self, now_ms: int) -> None:
        self.wheel = Wheel(now_ms)
        self._causes: dict[tuple[str, str], Cause] = {}  # (job to trigger, reason)

    def watch(self, engine: Engine, rows: NDArray[np.uint32]) -> None:
        """Runs that were made, or found at a start: those that may become late."""
        if not engine.specs.any_late or not len(rows):
            return
        fields = engine.state.runs.gather(rows)
        after = engine.specs.late_after[fields["spec"]]
        some = (after < NEVER) & not_started(fields) & (fields["flags"] & RunFlag.LATE == 0) & (fields["trigger"] != Trigger.BACKFILL)
        if some.any():
            at = start_us(engine, fields[some]) + after[some]
            late = at <= engine.now.wall_us
            self._mark(engine, rows[some][late], fresh=True)
            self.wheel.add(np.ascontiguousarray(rows[some][~late]), -(-at[~late] // MS))

    def expire(self, engine: Engine) -> None:
        """Mark and count the runs that are late now."""
        while len(rows := self.wheel.advance(engine.now.wall_us // MS)):
            self._mark(engine, rows[not_started(engine.state.runs.gather(rows))], fresh=False)

    def _mark(self, engine: Engine, rows: NDArray[np.uint32], *, fresh: bool) -> None:
        if not len(rows):
            return
        rows = np.ascontiguousarray(rows)
        engine.record("LATE", {"at": engine.now.wall_us, "run": rows})
        engine.counters["late"] += len(rows)
        for f in engine.state.runs.gather(rows):
            # told in this turn, by the occurrences that it stands for; one that was given back late is not made in this turn
            told = fresh and f["created_us"] == engine.now.wall_us and f["reason"] == Reason.MISFIRE and f["missed"]
            if f["trigger"] == Trigger.SCHEDULE and not told:  # an alarm that is late raises no other
                at = int(f["nominal_us"])
                self._add(engine, int(f["job"]), int(f["spec"]), "late", 1, at, at)

    def expired(self, engine: Engine, rows: NDArray[np.uint32]) -> None:
        """Runs that were not started by their deadline: they did not run."""
        for f in engine.state.runs.gather(rows):
            if f["trigger"] == Trigger.SCHEDULE:
                at = int(f["nominal_us"])
                self._add(engine, int(f["job"]), int(f["spec"]), "missed", 1, at, at)

    def missed(self, engine: Engine, columns: dict[str, NDArray[Any]], spec: NDArray[np.uint32]) -> None:
        """Rows of a DUE record: occurrences that a misfire left without a run."""
        unrun = (columns["state"] == RunState.SKIPPED) & np.isin(columns["reason"], _UNRUN)
        for i in np.flatnonzero(unrun & (columns["disposition"] != Disposition.TZDATA_MOVED)).tolist():
            span = int(columns["count"][i]), int(columns["nominal"][i]), int(columns["until"][i])
            self._add(engine, int(columns["job"][i]), int(spec[i]), "missed", *span)

    def _add(self, engine: Engine, job: int, spec: int, reason: str, count: int, from_us: int, until_us: int) -> None:
        target = engine.state.specs[spec].get("on_missed")
        if target is None:
            return
        cause = self._causes.get((target, reason))
        if cause is None:
            name = engine.state.jobs.names(np.array([job], np.uint32))[0].decode()
            self._causes[target, reason] = Cause(reason, display_name(name), {job}, count, from_us, until_us)
        else:
            cause.add(job, count, from_us, until_us)

    def tell(self, engine: Engine) -> None:
        """Trigger the jobs that are to know. One that is not there (any more) is counted as untold."""
        causes, self._causes = self._causes, {}
        chains.trigger(engine, [(target, cause.plain(), {}) for (target, _), cause in causes.items()])


def not_started(fields: Any) -> NDArray[np.bool_]:
    """Which runs no worker has had yet."""
    new = (fields["attempt"] == 0) & (fields["snoozes"] == 0) & (fields["outcome"] == 0)
    return np.asarray((fields["state"] <= RunState.QUEUED) & new, np.bool_)


__all__ = ["Alarms", "Cause", "not_started"]

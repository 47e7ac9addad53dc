"""Telling somebody without being asked: runs that are not started in time, and occurrences that were not run.

`late_after` marks and counts a run that no worker has so long after it was to start (see `start_times`; a backfill is late by nature, and
never marked). `on_missed` names a job to trigger when a misfire
leaves occurrences without a run, or when a scheduled run is late: once a turn for each such job, with the cause in the run's headers.
Those of jobs that name none, or one that is deleted, are told to the server's own (`AlarmJobs`), and so are enqueued runs that expired.
The run of that job is made whatever its overlap policy says, and also while all triggering is held: an alarm is never skipped.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ..model import plain
from ..model.nouns import MS, NEVER, Reason, RunFlag, Trigger, display_name
from ..wheel._wheel import Wheel
from .start_times import start_us

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from ..state.state import State
    from .definitions import SpecTable

_UNRUN: Final = (Reason.MISFIRE, Reason.WINDOW, Reason.MAX)  # a pause or a hold is somebody's will


@dataclass(frozen=True, slots=True)
class AlarmJobs:
    """Full names of the jobs that are told what befalls jobs and enqueued runs without one of their own; empty: nobody is. They come from
    a server's configuration and are soft: the records say which job was told, so a replay needs to know neither.
    """

    on_dead: str = ""
    on_missed: str = ""


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

    def __init__(self, now_ms: int, state: State, specs: SpecTable, counters: dict[str, int], record: Callable[[str, dict[str, Any]], Any],
                 everyone: str) -> None:
        """`record`: makes a record of this turn. `everyone`: the full name of the job for those that name none, or empty."""
        self.wheel = Wheel(now_ms)
        self._state, self._specs, self._counters, self._record, self._everyone = state, specs, counters, record, everyone
        self._causes: dict[tuple[str, str], Cause] = {}  # (job to trigger, reason)

    def watch(self, rows: NDArray[np.uint32], now_us: int) -> None:
        """Runs that were made, or found at a start: those that may become late."""
        if not self._specs.any_late or not len(rows):
            return
        fields = self._state.runs.gather(rows)
        after = self._specs.late_after[fields["spec"]]
        some = (after < NEVER) & not_started(fields) & (fields["flags"] & RunFlag.LATE == 0) & (fields["trigger"] != plain.TRIGGER_BACKFILL)
        if some.any():
            at = start_us(self._state, self._specs, fields[some]) + after[some]
            late = at <= now_us
            self._mark(rows[some][late], now_us, fresh=True)
            self.wheel.add(np.ascontiguousarray(rows[some][~late]), -(-at[~late] // MS))

    def expire(self, now_us: int) -> None:
        """Mark and count the runs that are late now."""
        while len(rows := self.wheel.advance(now_us // MS)):
            self._mark(rows[not_started(self._state.runs.gather(rows))], now_us, fresh=False)

    def _mark(self, rows: NDArray[np.uint32], now_us: int, *, fresh: bool) -> None:
        if not len(rows):
            return
        rows = np.ascontiguousarray(rows)
        self._record("LATE", {"at": now_us, "run": rows})
        self._counters["late"] += len(rows)
        for f in self._state.runs.gather(rows):
            # told in this turn, by the occurrences that it stands for; one that was given back late is not made in this turn
            told = fresh and f["created_us"] == now_us and f["reason"] == Reason.MISFIRE and f["missed"]
            if f["trigger"] == Trigger.SCHEDULE and not told:  # an alarm that is late raises no other
                at = int(f["nominal_us"])
                self._add(int(f["job"]), int(f["spec"]), "late", 1, at, at)

    def expired(self, rows: NDArray[np.uint32]) -> None:
        """Runs that were not started by their deadline: they did not run."""
        for f in self._state.runs.gather(rows):
            if f["trigger"] in (Trigger.SCHEDULE, Trigger.ENQUEUE):
                at = int(f["nominal_us"])
                self._add(int(f["job"]), int(f["spec"]), "missed", 1, at, at)

    def missed(self, columns: dict[str, NDArray[Any]], spec: NDArray[np.uint32]) -> None:
        """Rows of a DUE record: occurrences that a misfire left without a run."""
        unrun = columns["state"] == plain.RUN_SKIPPED
        if not unrun.any():
            return
        unrun &= np.isin(columns["reason"], _UNRUN)
        for i in np.flatnonzero(unrun & (columns["disposition"] != plain.DISPOSITION_TZDATA_MOVED)).tolist():
            span = int(columns["count"][i]), int(columns["nominal"][i]), int(columns["until"][i])
            self._add(int(columns["job"][i]), int(spec[i]), "missed", *span)

    def _add(self, job: int, spec: int, reason: str, count: int, from_us: int, until_us: int) -> None:
        target = target_of(self._state, self._state.specs[spec].get("on_missed"), self._everyone)
        if not target:
            return
        name = self._state.jobs.names(np.array([job], np.uint32))[0].decode()
        if target == name:  # an alarm tells nobody of itself
            return
        cause = self._causes.get((target, reason))
        if cause is None:
            self._causes[target, reason] = Cause(reason, display_name(name), {job}, count, from_us, until_us)
        else:
            cause.add(job, count, from_us, until_us)

    def orders(self) -> list[tuple[str, dict[str, Any], dict[str, str]]]:
        """What is to be told now, for `chains.trigger`: (job, cause, further headers)."""
        causes, self._causes = self._causes, {}
        return [(target, cause.plain(), {}) for (target, _), cause in causes.items()]


def living(state: State, name: str) -> int | None:
    """The row of a job that is not deleted; None: there is none."""
    row = state.find_job(name.encode())
    if row is None or state.jobs.gather(np.array([row], np.uint32))["state"][0] == plain.JOB_DELETED:
        return None
    return row


def target_of(state: State, own: str | None, everyone: str) -> str:
    """Who is told: the job that a definition names, else `everyone`'s, also when that job is deleted. Empty: nobody is to be."""
    return own if own and (not everyone or living(state, own) is not None) else everyone


def not_started(fields: Any) -> NDArray[np.bool_]:
    """Which runs no worker has had yet."""
    new = (fields["attempt"] == 0) & (fields["snoozes"] == 0) & (fields["outcome"] == 0)
    return np.asarray((fields["state"] <= plain.RUN_QUEUED) & new, np.bool_)


__all__ = ["AlarmJobs", "Alarms", "Cause", "living", "not_started", "target_of"]

"""What an operator wants to know at night: what died, what hangs, what is skipped again and again, which workers went.

Of the last hour, in buckets of a minute. Soft: it is in no record, and begins anew with each start.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np

from ..model import plain
from ..model.nouns import US, display_name

if TYPE_CHECKING:
    from collections.abc import Collection

    from numpy.typing import NDArray

    from ..state.live import Live
    from ..state.state import State
    from .connected import Seeker, Session
    from .turn import Now

MINUTE_US: Final = 60 * US
MINUTES: Final = 60
IN_A_ROW: Final = 3  # dead runs, or skipped occurrences, of a job that is told
STALLED_US: Final = 60 * US  # without a start, though runs wait
JOBS_MAX: Final = 10_000  # that are kept in mind
TOLD_MAX: Final = 5  # names in an answer


class Seen(Protocol):
    """What of an engine is looked at."""

    state: State
    now: Now
    sessions: dict[int, Session]
    seekers: list[Seeker]
    running: Live


@dataclass(slots=True)
class _Minute:
    number: int  # monotonic
    ended: int = 0
    died: int = 0
    lost: int = 0  # workers that went in the midst of a run
    jobs: Counter[int] = field(default_factory=Counter)  # deaths by job row


class Pulse:
    """Counts by minute, and what is so now."""

    def __init__(self, mono_us: int) -> None:
        self.granted_us = mono_us  # when the last run was handed out; monotonic
        self._minutes: deque[_Minute] = deque(maxlen=MINUTES)
        self._blocked: dict[int, int] = {}  # job row -> occurrences in a row that an open run was in the way of
        self._failing: set[int] = set()  # job rows with so many dead runs in a row, when they last died

    def _minute(self, mono_us: int) -> _Minute:
        number = mono_us // MINUTE_US
        if not self._minutes or self._minutes[-1].number != number:
            self._minutes.append(_Minute(number))
        return self._minutes[-1]

    def ended(self, core: Seen, n: int, dead: NDArray[np.uint32]) -> None:
        """So many runs have ended; the jobs of those that died."""
        minute = self._minute(core.now.mono_us)
        minute.ended += n
        if len(dead):
            minute.died += len(dead)
            jobs, count = np.unique(dead, return_counts=True)
            if len(minute.jobs) < JOBS_MAX:
                minute.jobs.update(dict(zip(jobs.tolist(), count.tolist(), strict=True)))
            self.failed(jobs[core.state.jobs.gather(jobs)["failures"] >= IN_A_ROW])

    def failed(self, jobs: NDArray[np.uint32]) -> None:
        """These jobs have died so many times in a row."""
        if len(self._failing) < JOBS_MAX:
            self._failing.update(jobs.tolist())

    def lost(self, mono_us: int) -> None:
        """A worker is gone in the midst of a run."""
        self._minute(mono_us).lost += 1

    def forget_minutes(self) -> None:
        """What was counted so far is of another life."""
        self._minutes.clear()

    def decided(self, columns: dict[str, NDArray[Any]]) -> None:
        """What became of occurrences: the columns of a DUE record."""
        state = columns["state"]
        blocked = (columns["reason"] == plain.REASON_OVERLAP) & (state == plain.RUN_SKIPPED)
        if self._blocked:
            for job in np.intersect1d(columns["job"][(state != plain.RUN_SKIPPED) & (state > 0)], list(self._blocked)).tolist():
                del self._blocked[job]
        if blocked.any():
            for job, n in zip(columns["job"][blocked].tolist(), columns["count"][blocked].tolist(), strict=True):
                if job in self._blocked or len(self._blocked) < JOBS_MAX:
                    self._blocked[job] = self._blocked.get(job, 0) + n

    def forget(self, jobs: list[int]) -> None:
        """These rows will be other jobs'."""
        for job in jobs:
            self._blocked.pop(job, None)
            self._failing.discard(job)

    def told(self, core: Seen, waiting: int) -> dict[str, Any]:
        """For `stats`. `waiting`: queued runs whose tasks somebody serves."""
        now = core.now.mono_us // MINUTE_US
        minutes = [one for one in self._minutes if one.number > now - MINUTES]
        died: Counter[int] = sum((one.jobs for one in minutes), Counter())
        jobs, fields = _active(core, self._failing)
        failing = {job: n for job, n in zip(jobs, fields["failures"].tolist(), strict=True) if n >= IN_A_ROW}
        self._failing = set(failing)
        self._blocked = {job: self._blocked[job] for job in _active(core, self._blocked)[0]}
        blocked = {job: n for job, n in self._blocked.items() if n >= IN_A_ROW}
        return {
            "ended": sum(one.ended for one in minutes), "died": sum(one.died for one in minutes), "died_jobs": len(died),
            "died_most": _most(core, died), "lost_workers": sum(one.lost for one in minutes),
            "lost_lately": sum(one.lost for one in minutes if one.number >= now - 1),
            "failing_jobs": len(failing), "failing_most": _most(core, failing),
            "blocked_jobs": len(blocked), "blocked_most": _most(core, blocked), "stalled": self._stalled(core, waiting),
        }

    def _stalled(self, core: Seen, waiting: int) -> dict[str, Any] | None:
        """That nothing starts though runs wait and workers are there, since each has one; and what the longest of them are."""
        since = core.now.mono_us - self.granted_us
        ready = {session.worker for session in core.sessions.values() if session.ready}
        held = {number: core.state.runs.peek(core.state.workers[number].list_id, 1) for number in ready if number in core.state.workers}
        if not waiting or since < STALLED_US or core.seekers or not held or not all(map(len, held.values())):
            return None
        first = np.concatenate(list(held.values()))
        fields = core.state.runs.gather(first)
        busy = []
        for number, f in zip(held, fields, strict=True):
            started = core.running.started_us(int(f["token"])) or int(f["queued_us"])
            task = core.state.specs[int(f["spec"])]["task"]
            busy.append({"worker": f"w{number}", "job": _name(core, int(f["job"])), "task": task, "us": max(0, core.now.wall_us - started)})
        busy.sort(key=lambda one: -one["us"])
        return {"us": since, "waiting": waiting, "workers": len(held), "busy": busy[:TOLD_MAX]}


def _active(core: Seen, jobs: Collection[int]) -> tuple[list[int], Any]:
    """Those of the jobs that are active, and their fields."""
    rows = np.fromiter(jobs, np.uint32, len(jobs))
    fields = core.state.jobs.gather(rows)
    good = fields["state"] == plain.JOB_ACTIVE
    return rows[good].tolist(), fields[good]


def _name(core: Seen, job: int) -> str:
    return display_name(core.state.jobs.names(np.array([job], np.uint32))[0].decode())


def _most(core: Seen, jobs: dict[int, int]) -> list[list[Any]]:
    """[name, number] of those with most."""
    most = sorted(jobs.items(), key=lambda pair: (-pair[1], pair[0]))[:TOLD_MAX]
    return [[_name(core, job), n] for job, n in most]


__all__ = ["IN_A_ROW", "STALLED_US", "Pulse"]

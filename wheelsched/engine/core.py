"""What a decision may use: the state and the clocks of this turn, a way to record, timers, and what is soft.

Decisions are functions of the other modules of this room; they take a Core. `engine.Engine` is a Core that takes turns.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ..model.nouns import LEASE_US, MS, NEVER, RETENTION_US, US
from ..protocol.redact import Redaction
from ..schedules.calendars import Calendars
from ..schedules.table import KIND_AFTER, ScheduleTable
from ..state import records
from ..state.live import Live
from ..wheel._wheel import Wheel
from .alarms import AlarmJobs, Alarms
from .census import JobCensus
from .deadlines import Deadlines
from .definitions import SpecTable
from .postponed import Postponed
from .pulse import Pulse
from .queues import Limits
from .quotas import Answers, Quotas
from .turn import Effects

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from ..schedules.expressions import Zones
    from ..state.state import State
    from .connected import Seeker, Session, Waiter
    from .turn import Incoming, Now
    from .uploads import Parts, Staged
LOOK_US: Final = 10 * US  # a record is stamped with a look at the clocks that is no older


@dataclass(slots=True)
class Sweep:
    """A command that is under way. Soft: a crash ends it. With `dry` it only counts."""

    first: Incoming
    dry: bool
    count: int = field(default=0, init=False)
    again: list[Incoming] = field(default_factory=list, init=False)  # the same request, from other connections

    def piece(self, core: Core) -> bool:
        """Do the next piece. False after the last one. A WheelschedError ends it, and is its answer."""
        raise NotImplementedError

    def folded(self, core: Core, rows: NDArray[np.uint32]) -> None:
        """These runs are about to leave the table for history."""

    def answer(self) -> dict[str, Any]:
        """After the last piece."""
        return {"count": self.count}
NEVER_MS = 2**63 - 1


class Core:
    """State, clocks, timers and what is soft."""

    def __init__(self, state: State, zones: Zones, pack: Callable[[State, NDArray[np.uint32]], bytes], now: Now, server: str,
                 alarm_jobs: AlarmJobs) -> None:
        """`pack` makes finished rows into one block of the run history."""
        self.state = state
        self.zones = zones
        self.calendars = Calendars(zones)
        self.specs = SpecTable(ScheduleTable(zones), self.calendars)
        self.pack = pack
        self.now = now
        self.server = server
        self.alarm_jobs = alarm_jobs
        self.sessions: dict[int, Session] = {}  # by connection
        self.retiring: set[int] = set()  # workers that get no more runs
        self.seekers: list[Seeker] = []  # lease requests that wait for runs
        self.waiters: dict[bytes, list[Waiter]] = {}  # by run id
        self.waiters_due_us = NEVER  # not later than the first of these deadlines
        self.running = Live()  # which attempts have entered user code, as last seen, and what they told; not journaled
        self.gone: dict[int, int] = {}  # external worker without a connection -> monotonic end of its lease
        self.lease_us = LEASE_US
        self.retention_us = RETENTION_US  # how long history is kept: names outlive it
        self.redaction = Redaction()
        self.census = JobCensus()
        self.instance = b""
        self.clock_offset_us = 0
        self.draining = False
        self.no_room = False  # the storage is exhausted: no run is started
        self.staged: dict[int, dict[int, Staged]] = {}  # by connection: frames that wait for `apply`
        self.parts: dict[int, Parts] = {}  # by connection: members that wait for `group`
        self.quotas, self.answers = Quotas(), Answers(state.replies.values())
        self.sweeps: list[Sweep] = []  # commands on many runs that are under way
        self.pulse = Pulse(now.mono_us)
        self.postponed = Postponed()  # commands that no turn had room for yet
        self.room = 0  # how many more occurrences the commands of this turn may decide
        self.asked_us = NEVER  # when the command that is under way came
        self.durations: dict[str, tuple[int, float]] = {}  # task -> (runs measured, moving mean of their run times in microseconds)
        self.missed_before_us = now.wall_us
        self.held_span = (NEVER, NEVER)  # from when to when all triggering was held last
        self.limits = Limits(state, now.mono_us)
        self.turns: set[int] = set()  # job rows whose waiting runs may have their turn
        self.counters: dict[str, int] = dict.fromkeys(
            ("created", "skipped", "succeeded", "failed", "retried", "dead", "cancelled", "stale", "given_back", "late", "untold",
             "expired", "snoozed"), 0
        )
        now_ms = now.wall_us // MS
        self.wall = Wheel(now_ms)  # jobs by next nominal time
        self.delayed = Wheel(now_ms)  # runs scheduled for an instant
        self.mono = Wheel(now.mono_us // MS)  # runs in retry_wait
        self.alarms = Alarms(now_ms, state, self.specs, self.counters, self.record, alarm_jobs.on_missed)
        self.deadlines = Deadlines(now_ms, state, self.specs)
        self.effects = Effects()
        self.parked: dict[int, str] = {}  # definitions that can't be evaluated, and why

    # Records

    def record(self, kind: str, fields: dict[str, Any]) -> Any:
        """Encode, apply, and queue for the journal; the look at the clocks by which it is stamped comes before it."""
        if self.now.boot_us - self.state.elapsed.boot_us >= LOOK_US:
            self.look()
        return self.keep(kind, fields)

    def keep(self, kind: str, fields: dict[str, Any]) -> Any:
        """`record` without that look."""
        self.effects.records.append(records.encode(kind, fields))
        return self.state.apply(kind, fields)

    def look(self) -> None:
        """Record a look at the clocks."""
        self.keep("ELAPSED", {"at": self.now.wall_us, "boot_us": self.now.boot_us})

    def reply(self, conn: int, frame: bytes) -> None:
        """Queue a reply behind everything decided so far."""
        self.effects.replies.append((conn, frame))

    # Timers

    def arm_jobs(self, rows: NDArray[np.uint32], next_us: NDArray[np.int64]) -> None:
        """Set the timers of jobs; NEVER disarms."""
        self.wall.add(np.ascontiguousarray(rows), ceil_ms(next_us))

    def arm_delayed(self, rows: NDArray[np.uint32], due_us: NDArray[np.int64]) -> None:
        """Set the timers of runs that are scheduled for an instant."""
        self.delayed.add(np.ascontiguousarray(rows), ceil_ms(due_us))

    def arm_retries(self, rows: NDArray[np.uint32], due_us: NDArray[np.int64]) -> None:
        """Retry waits run on the monotonic clock: a step of the wall clock neither shortens nor stretches them."""
        wait = np.maximum(due_us - self.now.wall_us, 0)
        self.mono.add(np.ascontiguousarray(rows), ceil_ms(self.now.mono_us + wait))

    def watch(self, rows: NDArray[np.uint32]) -> None:
        """Runs that may become late, or whose time for a start may end."""
        self.alarms.watch(rows, self.now.wall_us)
        self.deadlines.watch(rows)

    # Whose turn it may be

    def look_at(self, jobs: NDArray[np.uint32]) -> None:
        """Jobs whose waiting runs may have their turn, or that may have ended their last run: at the end of this turn."""
        self.turns.update(jobs.tolist())

    def turn_of(self, rows: NDArray[np.uint32]) -> None:
        """Runs have ended: jobs that have others waiting for their turn, or that count from here, come to the next look."""
        self.turns.update(self.state.runs.turns(rows))
        if self.specs.any_after:
            jobs = np.unique(self.state.runs.gather(rows)["job"])
            self.look_at(jobs[self.specs.kind[self.state.jobs.gather(jobs)["spec"]] == KIND_AFTER])


def ceil_ms(us: NDArray[np.int64]) -> NDArray[np.int64]:
    """Whole milliseconds not before each instant; NEVER stays NEVER."""
    us = np.ascontiguousarray(us)
    return np.where(us == NEVER, NEVER_MS, -(-us // MS)).astype(np.int64)


__all__ = ["LOOK_US", "NEVER_MS", "Core", "Sweep", "ceil_ms"]

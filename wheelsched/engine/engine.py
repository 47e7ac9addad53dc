"""`Engine.step(now, inputs) -> Effects`: decides, in batches, and never touches the world.

A turn decides in this order: worker outcomes, due times up to now, expiries, commands, leases. The engine reads state and makes
records; each is applied at once, so that later decisions of the turn see it; the server sends replies and hands out
batches only when the journal says that all records up to `Effects.seq` are on disk.
"""

from __future__ import annotations

import zlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..model.errors import InternalError, ScheduleError, UnimplementedError, WheelschedError
from ..model.nouns import BATCH_MAX, LEASE_US, MS, NEVER, RETENTION_US, SERVER_UID, US, JobState, RunState
from ..protocol import frames
from ..protocol.redact import Redaction
from ..reads import reads
from ..schedules.calendars import Calendars
from ..schedules.table import KIND_AFTER, ScheduleTable
from ..state import changelog, history, records
from ..state.live import Live
from ..verbs import groups
from ..verbs import jobs as commands
from ..verbs import runs as run_commands
from ..wheel._wheel import Wheel
from . import arguments, due, forgetting, heartbeats, leases, memory, overlap, retime, roles, sweeps
from .alarms import Alarms
from .catchup import as_columns
from .definitions import TRIES, SpecTable
from .expiry import Expiry
from .queues import Limits
from .quotas import Answers, Quotas
from .served import JobCensus
from .turn import ClockBack, Disconnect, Effects, Incoming, Now, WorkerGone

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from ..schedules.expressions import Zones
    from ..state.state import State
    from ..verbs.apply import Staged
    from .peers import Seeker, Session, Waiter

NEVER_MS = 2**63 - 1
FOLD_ROWS = 4_096
CHANGES_MAX = 4_096  # changes of jobs that are kept in the state
HOUSEKEEPING_US = 60 * US
_EARLY = frozenset({"finish", "heartbeat"})

class Engine:
    """Decides for one partition."""

    def __init__(self, state: State, zones: Zones, pack: Callable[[State, NDArray[np.uint32]], bytes], now: Now, *,
                 zone_version: str = "", boot_id: str = "", server: str = "") -> None:
        """Take over a replayed state: the first record of a generation is START, then timers are armed.

        `pack` makes finished rows into one block of the run history. Occurrences before `now` that have not been decided are
        misfires.
        """
        if now.wall_us < state.meta.at_us:  # behind the last record: by less than a step, or a ClockBack comes with the first turn
            now = replace(now, wall_us=state.meta.at_us)
        self.state = state
        self.zones = zones
        zones.kept = {name: zlib.decompress(data) for name, data in state.zones.items()}  # new zone data may lack a name
        self.calendars = Calendars(zones)
        for name, wire in state.calendars.items():
            self.calendars.put(name, wire)
        self.specs = SpecTable(ScheduleTable(zones), self.calendars)
        self._pack_history = pack
        self.now = now
        self.server = server
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
        self.parts: dict[int, groups.Parts] = {}  # by connection: members that wait for `group`
        self.quotas, self.answers = Quotas(), Answers(state.replies.values())
        self.sweeps: list[sweeps.Sweep] = []  # commands on many runs that are under way
        self.durations: dict[str, tuple[int, float]] = {}  # task -> (runs measured, moving mean of their run times in microseconds)
        self.missed_before_us = now.wall_us
        self.held_span = (NEVER, NEVER)  # from when to when all triggering was held last
        self.alarms = Alarms(now.wall_us // MS)
        self.expiry = Expiry(now.wall_us // MS)
        self.limits = Limits(state, now.mono_us)
        self._turns: set[int] = set()  # job rows whose waiting runs may have their turn
        self._counted = self._changed = 0  # entries of state.changes that were counted, and how many changes they hold
        self._housekeeping_us = now.mono_us
        self._forgetting: Iterator[None] | None = None  # what is under way
        self.counters: dict[str, int] = dict.fromkeys(
            ("created", "skipped", "succeeded", "failed", "retried", "dead", "cancelled", "stale", "given_back", "late", "untold",
             "expired", "snoozed"), 0
        )
        now_ms = now.wall_us // MS
        self.wall = Wheel(now_ms)  # jobs by next nominal time
        self.delayed = Wheel(now_ms)  # runs scheduled for an instant
        self.mono = Wheel(now.mono_us // MS)  # runs in retry_wait
        self.effects = Effects()
        self.parked: dict[int, str] = {}  # definitions that can't be evaluated, and why
        for spec in range(len(state.specs)):
            self._compile(spec)
        before = state.meta.zone_version
        self.keep("START", {
            "generation": state.meta.generation + 1, "boot_id": boot_id, "wall": now.wall_us, "mono": now.mono_us,
            "zone_version": zone_version, "server": server,
        })
        memory.look(self)
        retime.other_zone_data(self, before, zone_version)
        self._park()
        self._arm()

    def _compile(self, spec: int) -> None:
        """One stored definition that can't be evaluated stops neither the start nor the others."""
        wire = self.state.specs[spec]
        try:
            self.specs.add(spec, wire, self.now.wall_us)
        except ScheduleError as e:
            self.parked[spec] = e.message
            self.specs.add(spec, {**wire, "schedule": {"kind": "manual"}}, self.now.wall_us)

    def _park(self) -> None:
        """Pause the jobs whose definitions can't be evaluated, with the reason."""
        rows = np.array(self.state.jobs.slots(), np.uint32)
        jobs = self.state.jobs.gather(rows)
        stop = np.isin(jobs["spec"], list(self.parked)) & (jobs["state"] == JobState.ACTIVE)
        if stop.any():
            rows, jobs = rows[stop], jobs[stop]
            self.record("JOBS", {
                "at": self.now.wall_us, "uid": SERVER_UID, "job": rows, "state": np.full(len(rows), JobState.PAUSED, np.uint8),
                "next": np.full(len(rows), NEVER, np.int64), "cursor": jobs["cursor_us"].copy(),
                "note": [[i, f"parked: {self.parked[spec]}; put the job anew"] for i, spec in enumerate(jobs["spec"].tolist())],
            })

    def adopt(self, worker: int) -> None:
        """An external worker of a former generation: its leases hold for one lease more."""
        self.gone[worker] = self.now.mono_us + self.lease_us

    def lose(self, gone: WorkerGone) -> None:
        """A worker of a former generation, before the first turn; the records go out with that turn."""
        leases.worker_gone(self, gone)

    # The turn

    def step(self, now: Now, inputs: list[Any]) -> Effects:
        """One turn. At most BATCH_MAX runs are decided; `again` asks to be called at once."""
        assert now.mono_us >= self.now.mono_us, "the monotonic clock went back"
        if now.wall_us < self.now.wall_us:
            now = replace(now, wall_us=self.now.wall_us) if not any(isinstance(i, ClockBack) for i in inputs) else now
        self.now = now
        memory.see_step(self)
        self.specs.tries_left = TRIES
        early = [i for i in inputs if isinstance(i, Incoming) and i.request.verb in _EARLY and i.conn in self.sessions]
        for item in early:  # before losses: what a worker reported before it died, or during a stall of ours, counts
            self._command(item)
        taken = {id(item) for item in early}
        for item in inputs:
            if isinstance(item, WorkerGone):
                leases.worker_gone(self, item)
            elif isinstance(item, Disconnect):
                leases.disconnect(self, item.conn)
            elif isinstance(item, ClockBack):
                retime.clock_back(self, item)
        if self.state.meta.held_us < 0:
            self._due()
        self._expire()
        for item in inputs:
            if isinstance(item, Incoming) and id(item) not in taken:
                self._command(item)
        if self.sweeps:
            sweeps.go_on(self)
        self.alarms.tell(self)
        self._take_turns()
        if self.state.groups:
            groups.end(self)
        leases.serve_seekers(self)
        self._housekeep()
        return self._finish_step()

    def _finish_step(self) -> Effects:
        effects, self.effects = self.effects, Effects()
        effects.seq = self.state.meta.seq
        due_ms = min(self.alarms.wheel.next_due(), self.expiry.wheel.next_due())
        if self.state.meta.held_us < 0:
            due_ms = min(due_ms, self.wall.next_due(), self.delayed.next_due())
        effects.wake_wall_us = due_ms if due_ms == NEVER_MS else due_ms * MS
        effects.again |= effects.wake_wall_us <= self.now.wall_us
        mono_ms = self.mono.next_due()
        wakes = [mono_ms if mono_ms == NEVER_MS else mono_ms * MS, *self.gone.values()]
        wakes += [s.lease_until_us for s in self.sessions.values()]
        wakes += [s.deadline_us for s in self.seekers]
        meta = self.state
        if meta.replies or meta.keys or meta.changes or meta.runs.list_len(1):
            wakes.append(self._housekeeping_us)
        wakes += [self.limits.wake_us, self.running.wake_us, self.waiters_due_us if self.waiters else NEVER]
        effects.wake_mono_us = min(wakes)
        effects.again |= effects.wake_mono_us <= self.now.mono_us
        return effects

    def record(self, kind: str, fields: dict[str, Any]) -> Any:
        """Encode, apply, and queue for the journal; the look at the clocks by which it is stamped comes before it."""
        if self.now.boot_us - self.state.elapsed.boot_us >= memory.LOOK_US:
            memory.look(self)
        return self.keep(kind, fields)

    def keep(self, kind: str, fields: dict[str, Any]) -> Any:
        """`record` without that look."""
        self.effects.records.append(records.encode(kind, fields))
        return self.state.apply(kind, fields)

    def reply(self, conn: int, frame: bytes) -> None:
        """Queue a reply behind everything decided so far."""
        self.effects.replies.append((conn, frame))

    def _command(self, item: Incoming) -> None:
        request, before = item.request, len(self.effects.records)
        try:
            roles.check(item)
            handler = commands.VERBS.get(request.verb) or leases.VERBS.get(request.verb)
            if handler is None:
                raise UnimplementedError(f"verb {request.verb[:40]!r} is not known; this server speaks version {frames.VERSION}")
            frame = None
            if request.verb in frames.MUTATING:
                frame = arguments.remembered(self, item)
                if frame is None:
                    arguments.check_room(self, item)
            if request.verb in history.NEEDED and self.effects.history:
                item = replace(item, found=history.and_more(item.found, self.effects.history, request.verb, request.args))
            if frame is None:
                frame = handler(self, item)
        except WheelschedError as e:
            frame = frames.encode_error(request.id, e)
        except (AssertionError, LookupError, TypeError, ValueError, ArithmeticError, AttributeError) as e:
            if len(self.effects.records) > before:  # state and journal may differ from what was decided: stop, restart is the repair
                raise
            frame = frames.encode_error(request.id, InternalError(f"{type(e).__name__}: {e}"))
        if frame:
            self.reply(item.conn, frame)

    # Due occurrences

    def _arm(self) -> None:
        jobs = np.array(self.state.jobs.slots(), np.uint32)
        if len(jobs):
            rows = self.state.jobs.gather(jobs)
            active = rows["state"] == JobState.ACTIVE
            self.arm_jobs(jobs[active], rows["next_us"][active])
            if self.specs.any_after:
                self.look_at(jobs[active & (rows["next_us"] == NEVER)])
        runs = np.array(self.state.runs.slots(), np.uint32)
        if len(runs):
            rows = self.state.runs.gather(runs)
            scheduled = (rows["state"] == RunState.SCHEDULED) & (rows["due_us"] >= 0)
            self.delayed.add(runs[scheduled], ceil_ms(rows["due_us"][scheduled]))
            waiting = rows["state"] == RunState.RETRY_WAIT
            self.arm_retries(runs[waiting], self._at_most(rows[waiting]))
            self._turns.update(self.state.runs.jobs_in_line())
            self.watch(runs)

    def arm_jobs(self, rows: NDArray[np.uint32], next_us: NDArray[np.int64]) -> None:
        """Set the timers of jobs; NEVER disarms."""
        self.wall.add(np.ascontiguousarray(rows), ceil_ms(next_us))

    def arm_delayed(self, rows: NDArray[np.uint32], due_us: NDArray[np.int64]) -> None:
        """Set the timers of runs that are scheduled for an instant."""
        self.delayed.add(np.ascontiguousarray(rows), ceil_ms(due_us))

    def watch(self, rows: NDArray[np.uint32]) -> None:
        """Runs that may become late, or whose time for a start may end."""
        self.alarms.watch(self, rows)
        self.expiry.watch(self, rows)

    def look_at(self, jobs: NDArray[np.uint32]) -> None:
        """Jobs whose waiting runs may have their turn, or that may have ended their last run: at the end of this turn."""
        self._turns.update(jobs.tolist())

    def arm_retries(self, rows: NDArray[np.uint32], due_us: NDArray[np.int64]) -> None:
        """Retry waits run on the monotonic clock: a step of the wall clock neither shortens nor stretches them."""
        wait = np.maximum(due_us - self.now.wall_us, 0)
        self.mono.add(np.ascontiguousarray(rows), ceil_ms(self.now.mono_us + wait))

    def _at_most(self, rows: NDArray[Any]) -> NDArray[np.int64]:
        """Instants of waiting runs, none further than it was when the wait began: the clock may have been set meanwhile."""
        due, ended = rows["due_us"], rows["ended_us"]
        since = np.where(ended <= due, np.maximum(ended, rows["queued_us"]), rows["queued_us"])
        return np.asarray(np.minimum(due, self.now.wall_us + np.maximum(due - since, 0)), np.int64)

    def _due(self) -> None:
        rows = self.wall.advance(self.now.wall_us // MS, BATCH_MAX)
        if len(rows):
            self.decide(rows)

    def decide_job(self, row: int) -> None:
        """Decide one job's occurrences up to now, before a command changes it; not while all triggering is held."""
        for _ in range(1_000 if self.state.meta.held_us < 0 else 0):
            fields = self.state.jobs.gather(np.array([row], np.uint32))
            if fields["state"][0] != JobState.ACTIVE or fields["next_us"][0] > self.now.wall_us:
                return
            self.decide(np.array([row], np.uint32))

    def decide_jobs(self, rows: NDArray[np.uint32]) -> None:
        """`decide_job` for many, of which few are due."""
        if len(rows):
            fields = self.state.jobs.gather(np.ascontiguousarray(rows))
            for row in rows[(fields["state"] == JobState.ACTIVE) & (fields["next_us"] <= self.now.wall_us)].tolist():
                self.decide_job(row)

    def decide(self, rows: NDArray[np.uint32]) -> None:
        """The next occurrence of each of these jobs, and what each missed before it."""
        due.decide(self, rows)

    def record_planned(self, rows: list[dict[str, int]]) -> None:
        """A DUE record of rows that `catchup.plan` made, if there are any."""
        if rows:
            due.record(self, as_columns(rows), len(rows))

    # Expiries and turns

    def _expire(self) -> None:
        held = self.state.meta.held_us >= 0
        self.alarms.expire(self)
        self.expiry.expire(self)
        for wheel, now_ms in ((self.delayed, self.now.wall_us // MS), (self.mono, self.now.mono_us // MS)):
            if held and wheel is not self.mono:
                continue
            rows = wheel.advance(now_ms, BATCH_MAX)
            if wheel is self.delayed and len(rows):
                rows = self._without_waiting(rows)
            if len(rows):
                self.record("WAKE", {"at": self.now.wall_us, "run": rows})
                self.effects.lags.append(("queued", self.state.runs.gather(rows)["due_us"]))
        leases.expire_leases(self)
        heartbeats.end_overdue(self)
        run_commands.expire_waiters(self)

    def _without_waiting(self, rows: NDArray[np.uint32]) -> NDArray[np.uint32]:
        """The runs whose instant has come, without those of busy jobs: they get their turn later."""
        wait = overlap.must_wait(self, rows)
        if wait.any():
            self.state.runs.stand(rows[wait])
            self.look_at(self.state.runs.gather(rows[wait])["job"])
        return rows[~wait]

    def turn_of(self, rows: NDArray[np.uint32]) -> None:
        """Runs have ended: jobs that have others waiting for their turn, or that count from here, come to the next look."""
        self._turns.update(self.state.runs.turns(rows))
        if self.specs.any_after:
            jobs = np.unique(self.state.runs.gather(rows)["job"])
            self.look_at(jobs[self.specs.kind[self.state.jobs.gather(jobs)["spec"]] == KIND_AFTER])

    def _take_turns(self) -> None:
        """What waits in jobs that have room now enters its ready line."""
        turns, self._turns = self._turns, set()
        overlap.take_turns(self, sorted(turns))

    # Housekeeping

    def _housekeep(self) -> None:
        finished = self.state.runs.list_len(1)
        overdue = self.now.mono_us >= self._housekeeping_us
        if finished >= FOLD_ROWS or (finished and overdue):
            self._fold()
            self.effects.again |= finished > FOLD_ROWS
        entries = self.state.changes
        self._changed += sum(map(len, entries[self._counted :]))
        self._counted = len(entries)
        if self._changed >= CHANGES_MAX or (self._changed and overdue):
            self.effects.history.append(changelog.pack(entries, self.state.elapsed.us))
            self.record("TOLD", {"count": len(entries)})
            self._counted = self._changed = 0
        if overdue:
            self._housekeeping_us = self.now.mono_us + HOUSEKEEPING_US
            self._forgetting = forgetting.forget(self)
        if self._forgetting is not None:
            if next(self._forgetting, self) is self:
                self._forgetting = None
            self.effects.again |= self._forgetting is not None

    def _fold(self) -> None:
        rows = self.state.runs.peek(1, FOLD_ROWS)
        for sweep in self.sweeps:
            sweep.folded(self, rows)
        self.alarms.wheel.cancel(rows)
        self.expiry.wheel.cancel(rows)
        self.effects.history.append(self._pack_history(self.state, rows))
        self.record("FOLD", {"count": len(rows)})

    def fold_all(self) -> None:
        """Move everything that is finished to history, now: what a backfill does again must not meet the ledger rows of the past."""
        while self.state.runs.list_len(1):
            self._fold()

    def end_waits(self, rows: NDArray[np.uint32]) -> None:
        """Answer those who wait for runs that are final now."""
        if not self.waiters:
            return
        ids = self.state.runs.ids(rows)
        for i in [i for i in range(len(rows)) if ids[16 * i : 16 * i + 16] in self.waiters]:
            if self.state.runs.gather(rows[i : i + 1])["state"][0] > RunState.RETRY_WAIT:
                told = reads.run(self.state, int(rows[i]), self.running)
                for waiter in self.waiters.pop(ids[16 * i : 16 * i + 16], ()):
                    self.quotas.give("waits", waiter.conn)
                    self.reply(waiter.conn, frames.encode_ok(waiter.request_id, roles.shown(waiter.roles, told)))


def ceil_ms(us: NDArray[np.int64]) -> NDArray[np.int64]:
    """Whole milliseconds not before each instant; NEVER stays NEVER."""
    us = np.ascontiguousarray(us)
    return np.where(us == NEVER, NEVER_MS, -(-us // MS)).astype(np.int64)

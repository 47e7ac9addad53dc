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

from ..model.errors import BUGS, InternalError, ScheduleError, UnimplementedError, WheelschedError
from ..model.nouns import BATCH_MAX, MS, NEVER, SERVER_UID, JobState, RunState
from ..protocol import frames
from ..protocol.verbs import BY_NAME, UNKNOWN
from ..state import history
from . import arguments, chains, due, expiry, groups, heartbeats, leases, memory, notices, overlap, retime, roles, sweeps, waiters
from .alarms import AlarmJobs
from .core import NEVER_MS, Core, ceil_ms
from .definitions import TRIES
from .housekeeping import Housekeeping
from .postponed import JUMP_US, Waiting
from .pulse import IN_A_ROW
from .turn import ClockBack, Disconnect, Effects, Incoming, Later, Now, WorkerGone

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from ..schedules.expressions import Zones
    from ..state.state import State



class Engine(Core):
    """Decides for one partition."""

    def __init__(self, state: State, zones: Zones, pack: Callable[[State, NDArray[np.uint32]], bytes], now: Now, *,
                 verbs: Mapping[str, Callable[[Core, Incoming], bytes]], zone_version: str = "", boot_id: str = "", server: str = "",
                 alarm_jobs: AlarmJobs | None = None) -> None:
        """Take over a replayed state: the first record of a generation is START, then timers are armed.

        `pack` makes finished rows into one block of the run history; `verbs` answer clients. Occurrences before `now` that have
        not been decided are misfires.
        """
        if now.wall_us < state.meta.at_us:  # behind the last record: by less than a step, or a ClockBack comes with the first turn
            now = replace(now, wall_us=state.meta.at_us)
        zones.kept = {name: zlib.decompress(data) for name, data in state.zones.items()}  # new zone data may lack a name
        super().__init__(state, zones, pack, now, server, alarm_jobs or AlarmJobs())
        for name, wire in state.calendars.items():
            self.calendars.put(name, wire)
        self._verbs = verbs
        self._housekeeping = Housekeeping(now.mono_us)
        for spec in range(len(state.specs)):
            self._compile(spec)
        before = state.meta.zone_version
        self.keep("START", {
            "generation": state.meta.generation + 1, "boot_id": boot_id, "wall": now.wall_us, "mono": now.mono_us,
            "zone_version": zone_version, "server": server,
        })
        self.look()
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
        self.pulse.forget_minutes()  # that a server ended says nothing of its workers

    # The turn

    def step(self, now: Now, inputs: list[Any]) -> Effects:
        """One turn. At most BATCH_MAX runs are decided; `again` asks to be called at once."""
        assert now.mono_us >= self.now.mono_us, "the monotonic clock went back"
        if now.wall_us < self.now.wall_us:
            now = replace(now, wall_us=self.now.wall_us) if not any(isinstance(i, ClockBack) for i in inputs) else now
        if now.wall_us - self.now.wall_us > JUMP_US:
            self.postponed.again_from(now.wall_us)
        self.now = now
        memory.see_step(self)
        self.specs.tries_left = TRIES
        self.room = due.ROOM
        requests = [i for i in inputs if isinstance(i, Incoming) and i.conn in self.sessions]
        early = [i for i in requests if BY_NAME.get(i.request.verb, UNKNOWN).early]
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
            rows = self.wall.advance(self.now.wall_us // MS, BATCH_MAX)
            if len(rows):
                due.decide(self, rows)
        self._expire()
        self._commands([item for item in inputs if isinstance(item, Incoming) and id(item) not in taken])
        if self.sweeps:
            sweeps.go_on(self)
        expiry.expire(self)  # what commands made may be too old at once
        chains.trigger(self, self.alarms.orders())
        self._take_turns()
        if self.state.groups:
            groups.end(self)
        leases.serve_seekers(self)
        self._housekeeping.go_on(self)
        return self._finish_step()

    def _finish_step(self) -> Effects:
        self.postponed.see(self.effects.history)
        effects, self.effects = self.effects, Effects()
        effects.again |= bool(self.postponed)
        effects.seq = self.state.meta.seq
        due_ms = min(self.alarms.wheel.next_due(), self.deadlines.wheel.next_due())
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
            wakes.append(self._housekeeping.next_us)
        wakes += [self.limits.wake_us, self.running.wake_us, self.waiters_due_us if self.waiters else NEVER]
        effects.wake_mono_us = min(wakes)
        effects.again |= effects.wake_mono_us <= self.now.mono_us
        return effects

    def _commands(self, fresh: list[Incoming]) -> None:
        """First those that wait from former turns. What a connection sent behind one that waits stays behind it."""
        behind: set[int] = set()
        for one in [*self.postponed.take(), *(Waiting(item, self.now.wall_us) for item in fresh)]:
            item, self.asked_us = one.item, one.since_us
            if item.conn in behind and item.request.verb not in leases.VERBS:
                self._postpone(one)
                continue
            try:
                self._command(item)
            except Later:
                behind.add(item.conn)
                self._postpone(one)
            else:
                self.postponed.over(self.quotas, one)

    def _postpone(self, one: Waiting) -> None:
        try:
            self.postponed.keep(self.quotas, one)
        except WheelschedError as e:
            self.reply(one.item.conn, frames.encode_error(one.item.request.id, e))

    def _command(self, item: Incoming) -> None:
        """Later: it has no room in this turn."""
        request, before = item.request, len(self.effects.records)
        try:
            roles.check(item)
            handler = self._verbs.get(request.verb) or leases.VERBS.get(request.verb)
            if handler is None:
                raise UnimplementedError(f"verb {request.verb[:40]!r} is not known; this server speaks version {frames.VERSION}")
            frame = None
            known = BY_NAME.get(request.verb, UNKNOWN)
            if known.mutating:
                frame = arguments.remembered(self, item)
                if frame is None:
                    arguments.check_room(self, item)
            if known.history and self.effects.history:
                item = replace(item, found=history.and_more(item.found, self.effects.history, request.verb, request.args))
            if frame is None:
                frame = handler(self, item)
        except WheelschedError as e:
            frame = frames.encode_error(request.id, e)
            if request.verb == "hello" and request.args.get("role") == "worker":
                notices.refused(self, item, e)
        except BUGS as e:
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
            self.pulse.failed(jobs[active & (rows["failures"] >= IN_A_ROW)])
            if self.specs.any_after:
                self.look_at(jobs[active & (rows["next_us"] == NEVER)])
        runs = np.array(self.state.runs.slots(), np.uint32)
        if len(runs):
            rows = self.state.runs.gather(runs)
            scheduled = (rows["state"] == RunState.SCHEDULED) & (rows["due_us"] >= 0)
            self.delayed.add(runs[scheduled], ceil_ms(rows["due_us"][scheduled]))
            waiting = rows["state"] == RunState.RETRY_WAIT
            self.arm_retries(runs[waiting], self._at_most(rows[waiting]))
            self.turns.update(self.state.runs.jobs_in_line())
            self.watch(runs)

    def _at_most(self, rows: NDArray[Any]) -> NDArray[np.int64]:
        """Instants of waiting runs, none further than it was when the wait began: the clock may have been set meanwhile."""
        due, ended = rows["due_us"], rows["ended_us"]
        since = np.where(ended <= due, np.maximum(ended, rows["queued_us"]), rows["queued_us"])
        return np.asarray(np.minimum(due, self.now.wall_us + np.maximum(due - since, 0)), np.int64)

    # Expiries and turns

    def _expire(self) -> None:
        held = self.state.meta.held_us >= 0
        self.alarms.expire(self.now.wall_us)
        expiry.expire(self)
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
        waiters.expire(self)

    def _without_waiting(self, rows: NDArray[np.uint32]) -> NDArray[np.uint32]:
        """The runs whose instant has come, without those of busy jobs: they get their turn later."""
        wait = overlap.must_wait(self, rows)
        if wait.any():
            self.state.runs.stand(rows[wait])
            self.look_at(self.state.runs.gather(rows[wait])["job"])
        return rows[~wait]

    def _take_turns(self) -> None:
        """What waits in jobs that have room now enters its ready line."""
        turns, self.turns = self.turns, set()
        overlap.take_turns(self, sorted(turns))

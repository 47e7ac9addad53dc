"""`Engine.step(now, inputs) -> Effects`: decides, in batches, and never touches the world.

A turn decides in this order: worker outcomes, due times up to now, expiries, commands, leases. The engine reads state and makes
records; each is applied at once, so that later decisions of the turn see it; the server sends replies and hands out
batches only when the journal says that all records up to `Effects.seq` are on disk.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from . import arguments, commands, protocol, reads, records, run_commands, workers
from ._wheel import Wheel
from .errors import InternalError, UnimplementedError, WheelschedError
from .misfire import as_columns, catch_up
from .model import (
    BATCH_MAX,
    KEY_TTL_US,
    LEASE_US,
    MS,
    NEVER,
    REQUEST_TTL_US,
    TOMBSTONE_US,
    US,
    Disposition,
    JobState,
    Reason,
    RunState,
)
from .schedule import ScheduleTable
from .specs import OVERLAP_ALLOW, OVERLAP_BUFFER, SpecTable
from .turn import ClockBack, Disconnect, Effects, Incoming, Now, WorkerGone

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from .cron import Zones
    from .state import State

NEVER_MS = 2**63 - 1
FOLD_ROWS = 4_096
HOUSEKEEPING_US = 60 * US
_EARLY = frozenset({"finish", "heartbeat"})

class Engine:
    """Decides for one partition."""

    def __init__(self, state: State, zones: Zones, history: Callable[[State, NDArray[np.uint32]], bytes], now: Now, *,
                 zone_version: str = "", boot_id: str = "", server: str = "") -> None:
        """Take over a replayed state: the first record of a generation is START, then timers are armed.

        `history` packs finished rows into one block of the run history. Occurrences before `now` that have not been decided are
        misfires.
        """
        self.state = state
        self.specs = SpecTable(ScheduleTable(zones))
        self._pack_history = history
        self.now = now
        self.server = server
        self.sessions: dict[int, workers.Session] = {}  # by connection
        self.seekers: list[workers.Seeker] = []  # lease requests that wait for runs
        self.waiters: dict[bytes, list[tuple[int, int, int]]] = {}  # run id -> (connection, request id, monotonic deadline)
        self.running: dict[int, int] = {}  # worker -> token whose user code was entered, as last seen; not journaled
        self.gone: dict[int, int] = {}  # external worker without a connection -> monotonic end of its lease
        self.instance = b""
        self.clock_offset_us = 0
        self.draining = False
        self.missed_before_us = now.wall_us
        self._turns: set[int] = set()  # job rows whose waiting runs may have their turn
        self._housekeeping_us = now.mono_us
        self.counters: dict[str, int] = dict.fromkeys(
            ("created", "skipped", "succeeded", "failed", "retried", "dead", "cancelled", "stale", "given_back"), 0
        )
        now_ms = now.wall_us // MS
        self.wall = Wheel(now_ms)  # jobs by next nominal time
        self.delayed = Wheel(now_ms)  # runs scheduled for an instant
        self.mono = Wheel(now.mono_us // MS)  # runs in retry_wait
        self.effects = Effects()
        for spec in range(len(state.specs)):
            self.specs.add(spec, state.specs[spec])
        self.record("START", {
            "generation": state.meta.generation + 1, "boot_id": boot_id, "wall": now.wall_us, "mono": now.mono_us,
            "zone_version": zone_version, "server": server,
        })
        self._arm()

    def adopt(self, worker: int) -> None:
        """An external worker of a former generation: its leases hold for one lease more."""
        self.gone[worker] = self.now.mono_us + LEASE_US

    def lose(self, gone: WorkerGone) -> None:
        """A worker of a former generation, before the first turn; the records go out with that turn."""
        workers.worker_gone(self, gone)

    # The turn

    def step(self, now: Now, inputs: list[Any]) -> Effects:
        """One turn. At most BATCH_MAX runs are decided; `again` asks to be called at once."""
        assert now.mono_us >= self.now.mono_us, "the monotonic clock went back"
        if now.wall_us < self.now.wall_us:
            now = Now(self.now.wall_us, now.mono_us) if not any(isinstance(i, ClockBack) for i in inputs) else now
        self.now = now
        early = [i for i in inputs if isinstance(i, Incoming) and i.request.verb in _EARLY and i.conn in self.sessions]
        for item in early:  # before losses: what a worker reported before it died, or during a stall of ours, counts
            self._command(item)
        taken = {id(item) for item in early}
        for item in inputs:
            if isinstance(item, WorkerGone):
                workers.worker_gone(self, item)
            elif isinstance(item, Disconnect):
                workers.disconnect(self, item.conn)
            elif isinstance(item, ClockBack):
                self._clock_back(item)
        self._due()
        self._expire()
        for item in inputs:
            if isinstance(item, Incoming) and id(item) not in taken:
                self._command(item)
        self._take_turns()
        workers.serve_seekers(self)
        self._housekeep()
        return self._finish_step()

    def _finish_step(self) -> Effects:
        effects, self.effects = self.effects, Effects()
        effects.seq = self.state.meta.seq
        due_ms = min(self.wall.next_due(), self.delayed.next_due())
        effects.wake_wall_us = due_ms if due_ms == NEVER_MS else due_ms * MS
        effects.again |= effects.wake_wall_us <= self.now.wall_us
        mono_ms = self.mono.next_due()
        wakes = [mono_ms if mono_ms == NEVER_MS else mono_ms * MS, *self.gone.values()]
        wakes += [s.lease_until_us for s in self.sessions.values()]
        wakes += [s.deadline_us for s in self.seekers]
        wakes += [deadline for waiting in self.waiters.values() for _, _, deadline in waiting]
        meta = self.state
        if meta.replies or meta.keys or meta.runs.list_len(1):
            wakes.append(self._housekeeping_us)
        effects.wake_mono_us = min(wakes)
        effects.again |= effects.wake_mono_us <= self.now.mono_us
        return effects

    def record(self, kind: str, fields: dict[str, Any]) -> Any:
        """Encode, apply, and queue for the journal."""
        self.effects.records.append(records.encode(kind, fields))
        return self.state.apply(kind, fields)

    def reply(self, conn: int, frame: bytes) -> None:
        """Queue a reply behind everything decided so far."""
        self.effects.replies.append((conn, frame))

    def _command(self, item: Incoming) -> None:
        request, before = item.request, len(self.effects.records)
        try:
            handler = commands.VERBS.get(request.verb) or workers.VERBS.get(request.verb)
            if handler is None:
                raise UnimplementedError(f"verb {request.verb[:40]!r} is not known; this server speaks version {protocol.VERSION}")
            frame = arguments.remembered(self, item) if request.verb in protocol.MUTATING else None
            if frame is None:
                frame = handler(self, item)
        except WheelschedError as e:
            frame = protocol.encode_error(request.id, e)
        except (AssertionError, KeyError, IndexError, TypeError, ValueError, AttributeError) as e:
            if len(self.effects.records) > before:  # state and journal may differ from what was decided: stop, restart is the repair
                raise
            frame = protocol.encode_error(request.id, InternalError(f"{type(e).__name__}: {e}"))
        if frame:
            self.reply(item.conn, frame)

    # Due occurrences

    def _arm(self) -> None:
        jobs = np.array(self.state.jobs.slots(), np.uint32)
        if len(jobs):
            rows = self.state.jobs.gather(jobs)
            active = rows["state"] == JobState.ACTIVE
            self.arm_jobs(jobs[active], rows["next_us"][active])
        runs = np.array(self.state.runs.slots(), np.uint32)
        if len(runs):
            rows = self.state.runs.gather(runs)
            scheduled = (rows["state"] == RunState.SCHEDULED) & (rows["due_us"] >= 0)
            self.delayed.add(runs[scheduled], ceil_ms(rows["due_us"][scheduled]))
            waiting = rows["state"] == RunState.RETRY_WAIT
            self.arm_retries(runs[waiting], rows["due_us"][waiting])
            turns = (rows["state"] == RunState.SCHEDULED) & (rows["due_us"] < 0)
            self._turns.update(rows["job"][turns].tolist())

    def arm_jobs(self, rows: NDArray[np.uint32], next_us: NDArray[np.int64]) -> None:
        """Set the timers of jobs; NEVER disarms."""
        self.wall.add(np.ascontiguousarray(rows), ceil_ms(next_us))

    def arm_retries(self, rows: NDArray[np.uint32], due_us: NDArray[np.int64]) -> None:
        """Retry waits run on the monotonic clock: a step of the wall clock neither shortens nor stretches them."""
        specs, which = np.unique(self.state.runs.gather(rows)["spec"], return_inverse=True)
        longest = np.array([self.state.specs[s]["retry"]["cap_us"] * 3 // 2 + 1 for s in specs.tolist()], np.int64)
        wait = np.clip(due_us - self.now.wall_us, 0, longest[which])  # the clock may have been set meanwhile
        self.mono.add(np.ascontiguousarray(rows), ceil_ms(self.now.mono_us + wait))

    def _due(self) -> None:
        rows = self.wall.advance(self.now.wall_us // MS, BATCH_MAX)
        if len(rows):
            self.decide(rows)

    def decide_job(self, row: int) -> None:
        """Decide one job's occurrences up to now, before a command changes it."""
        for _ in range(1_000):
            fields = self.state.jobs.gather(np.array([row], np.uint32))
            if fields["state"][0] != JobState.ACTIVE or fields["next_us"][0] > self.now.wall_us:
                return
            self.decide(np.array([row], np.uint32))

    def decide(self, rows: NDArray[np.uint32]) -> None:
        """One DUE record for the next occurrence of each job, and the misfires of those that nobody could trigger in time."""
        jobs = self.state.jobs.gather(rows)
        nominal = jobs["next_us"]
        spec = jobs["spec"]
        after = self.specs.next(spec, jobs["param_us"], nominal)
        missed = nominal < self.missed_before_us
        slow = missed & ((after < self.missed_before_us) | self.specs.skip_missed[spec] | self._outside_window(spec, nominal, missed))
        n = len(rows)
        busy = jobs["active"] + jobs["waiting"]
        policy = self.specs.overlap[spec]
        limit = self.specs.overlap_max[spec]
        state = np.full(n, RunState.QUEUED, np.uint8)
        disposition = np.full(n, Disposition.FIRED, np.uint8)
        reason = np.zeros(n, np.uint8)
        buffered = (policy == OVERLAP_BUFFER) & (busy > 0) & (jobs["waiting"] < limit)
        state[buffered] = RunState.SCHEDULED
        refused = ~buffered & (((policy != OVERLAP_ALLOW) & (busy > 0)) | ((policy == OVERLAP_ALLOW) & (busy >= limit)))
        after[~refused & ~self.taken(rows, nominal) & (jobs["fired"] + np.uint32(1) >= self.specs.max_runs[spec])] = NEVER
        state[refused] = RunState.SKIPPED
        disposition[refused] = np.where((policy == OVERLAP_BUFFER) & (limit == 1), Disposition.COALESCED, Disposition.SKIPPED)[refused]
        reason[refused] = Reason.OVERLAP
        until = np.where(buffered, -1, np.where(refused, nominal, 0)).astype(np.int64)
        columns = {
            "job": rows, "nominal": nominal.copy(), "next": after, "cursor": nominal.copy(),
            "job_state": np.where(after == NEVER, JobState.FINISHED, JobState.ACTIVE).astype(np.uint8), "state": state,
            "disposition": disposition, "reason": reason, "until": until,
            "count": refused.astype(np.uint32), "missed": np.zeros(n, np.uint32),
        }
        if slow.any():
            columns = catch_up(self, columns, jobs, slow)
        self._record_due(columns)

    def _outside_window(self, spec: NDArray[np.uint32], nominal: NDArray[np.int64], missed: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Which misfires are older than their catch-up window."""
        if not missed.any():
            return missed
        specs, which = np.unique(spec, return_inverse=True)
        windows = [self.state.specs[s]["catchup"]["window_us"] for s in specs.tolist()]
        return nominal < self.now.wall_us - np.array([NEVER // 2 if w is None else w for w in windows], np.int64)[which]

    def record_planned(self, rows: list[dict[str, int]]) -> None:
        """A DUE record of rows that `misfire.plan` made."""
        self._record_due(as_columns(rows))

    def _recheck(self, columns: dict[str, NDArray[Any]]) -> None:
        """After the clock went back, nominal times that have their row already make no second one; a skipped range begins behind them."""
        nominal, until, count = columns["nominal"], columns["until"], columns["count"]
        for i in np.flatnonzero(self.taken(columns["job"], nominal)).tolist():
            while self.taken(columns["job"][i : i + 1], nominal[i : i + 1])[0]:
                if columns["state"][i] != RunState.SKIPPED or count[i] <= 1 or nominal[i] >= until[i]:
                    columns["state"][i] = 0
                    break
                fields = self.state.jobs.gather(columns["job"][i : i + 1])
                nominal[i : i + 1] = self.specs.next(fields["spec"].copy(), fields["param_us"].copy(), nominal[i : i + 1].copy())
                count[i] -= 1

    def taken(self, rows: NDArray[np.uint32], nominal: NDArray[np.int64]) -> NDArray[np.bool_]:
        """For which of these occurrences there is a row already, since the clock went back: in the table or in history."""
        if not len(nominal) or int(nominal.min()) > self.state.meta.recheck_us:
            return np.zeros(len(rows), np.bool_)
        taken = self.state.runs.exists(rows, np.ascontiguousarray(nominal)) > 0
        blocked = self.state.meta.blocked
        if blocked:
            taken |= np.fromiter((pair in blocked for pair in zip(rows.tolist(), nominal.tolist(), strict=True)), np.bool_, len(rows))
        return taken

    def _record_due(self, columns: dict[str, NDArray[Any]]) -> None:
        self._recheck(columns)
        self.record("DUE", {"at": self.now.wall_us, **columns})
        self.arm_jobs(columns["job"], columns["next"])
        queued = columns["state"] == RunState.QUEUED
        self.counters["created"] += int((columns["state"] > 0).sum() - (columns["state"] == RunState.SKIPPED).sum())
        self.counters["skipped"] += int(columns["count"].sum())
        self.effects.lags.append(("queued", columns["nominal"][queued]))
        self._turns.update(columns["job"][columns["state"] == RunState.SCHEDULED].tolist())

    def _clock_back(self, item: ClockBack) -> None:
        """Cursors beyond the new now are lowered to it; runs beyond it stay and block their own nominal time."""
        now = self.now.wall_us
        self.wall.rebuild(now // MS)
        self.delayed.rebuild(now // MS)
        rows = np.array(self.state.jobs.slots(), np.uint32)
        jobs = self.state.jobs.gather(rows)
        ahead = jobs["cursor_us"] > now
        rows, jobs = rows[ahead], jobs[ahead]
        cursor = np.full(len(rows), now, np.int64)
        following = self.specs.next(jobs["spec"], jobs["param_us"], cursor)
        live = (jobs["state"] == JobState.ACTIVE) | ((jobs["state"] == JobState.FINISHED) & (following < NEVER))
        following[~live] = NEVER
        blocked = [(self.state.jobs.find_key(key), at) for key, at in item.fired]
        blocked = [(job, at) for job, at in blocked if job is not None]
        self.record("CLOCK", {
            "at": now, "job": rows, "cursor": cursor, "next": following,
            "state": np.where(live, JobState.ACTIVE, jobs["state"]).astype(np.uint8),
            "blocked_job": np.array([j for j, _ in blocked], np.uint32), "blocked_at": np.array([a for _, a in blocked], np.int64),
        })
        self.arm_jobs(rows, following)
        self.missed_before_us = min(self.missed_before_us, now)

    # Expiries and turns

    def _expire(self) -> None:
        for wheel, now_ms in ((self.delayed, self.now.wall_us // MS), (self.mono, self.now.mono_us // MS)):
            rows = wheel.advance(now_ms, BATCH_MAX)
            if len(rows):
                self.record("WAKE", {"at": self.now.wall_us, "run": rows})
                self.effects.lags.append(("queued", self.state.runs.gather(rows)["due_us"]))
        workers.expire_leases(self)
        run_commands.expire_waiters(self)

    def turn_of(self, rows: NDArray[np.uint32]) -> None:
        """Runs have ended: jobs that have others waiting for their turn come to the next look."""
        self._turns.update(self.state.runs.turns(rows))

    def _take_turns(self) -> None:
        """The oldest waiting run of each job that is idle now enters its ready line."""
        turns, self._turns = self._turns, set()
        woken = []
        for job in sorted(turns):
            members = np.array(self.state.runs.of_job(job), np.uint32)
            fields = self.state.runs.gather(members)
            if ((fields["state"] >= RunState.QUEUED) & (fields["state"] <= RunState.RETRY_WAIT)).any():
                continue
            waiting = np.flatnonzero((fields["state"] == RunState.SCHEDULED) & (fields["due_us"] < 0))
            if len(waiting):
                woken.append(int(members[waiting[np.lexsort((members[waiting], fields["nominal_us"][waiting]))[0]]]))
        if woken:
            self.record("WAKE", {"at": self.now.wall_us, "run": np.array(woken, np.uint32)})

    # Housekeeping

    def _housekeep(self) -> None:
        finished = self.state.runs.list_len(1)
        overdue = self.now.mono_us >= self._housekeeping_us
        if finished >= FOLD_ROWS or (finished and overdue):
            rows = self.state.runs.peek(1, FOLD_ROWS)
            self.effects.history.append(self._pack_history(self.state, rows))
            self.record("FOLD", {"count": len(rows)})
            self.effects.again |= finished > FOLD_ROWS
        if overdue:
            self._housekeeping_us = self.now.mono_us + HOUSEKEEPING_US
            self._forget()

    def _forget(self) -> None:
        now = self.now.wall_us
        rids = [rid for rid, (at, _) in self.state.replies.items() if at + REQUEST_TTL_US < now]
        keys = [k for k, v in self.state.keys.items() if v.at_us + KEY_TTL_US < now and not self._open(v.run_id)]
        jobs = np.array(self.state.jobs.slots(), np.uint32)
        if len(jobs):
            fields = self.state.jobs.gather(jobs)
            done = (fields["state"] == JobState.DELETED) | (fields["state"] == JobState.FINISHED)
            jobs = jobs[done & (fields["updated_us"] + TOMBSTONE_US < now) & (fields["cursor_us"] + TOMBSTONE_US < now)
                        & (fields["rows"] == 0)]
        if rids or keys or len(jobs):
            self.record("FORGET", {"rid": records.Blobs(rids), "key": records.Blobs(keys), "job": jobs})

    def end_waits(self, rows: NDArray[np.uint32]) -> None:
        """Answer those who wait for runs that are final now."""
        if not self.waiters:
            return
        for row in rows.tolist():
            run_id = self.state.runs.ids(np.array([row], np.uint32))
            if run_id in self.waiters and self.state.runs.gather(np.array([row], np.uint32))["state"][0] > RunState.RETRY_WAIT:
                for conn, request_id, _ in self.waiters.pop(run_id):
                    self.reply(conn, protocol.encode_ok(request_id, reads.run(self.state, row, self.running)))

    def _open(self, run_id: bytes) -> bool:
        row = self.state.find_run(run_id)
        return row is not None and self.state.runs.gather(np.array([row], np.uint32))["state"][0] <= RunState.RETRY_WAIT


def ceil_ms(us: NDArray[np.int64]) -> NDArray[np.int64]:
    """Whole milliseconds not before each instant; NEVER stays NEVER."""
    us = np.ascontiguousarray(us)
    return np.where(us == NEVER, NEVER_MS, -(-us // MS)).astype(np.int64)

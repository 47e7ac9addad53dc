"""Overlap: who is in the way of whom, and whose turn it is.

    skip                       an occurrence that is due while a run of its job is open makes none
    allow(max)                 they run side by side, `max` at most
    buffer_one, buffer_all     they wait, one or `max` of them; one that finds no room makes none
    buffer_latest              one waits: the newest, with the earlier ones folded into it
    cancel_other, kill_other   as buffer_latest, and the active run is asked to end (is killed)

A moved occurrence is in nobody's way before its instant, and then waits like another if the job is busy.

Runs of a backfill wait behind the job's own. With a limit of their own (allow) they take no notice of other runs, nor others of them;
without one they run one after another, as the job's own do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from .model import MS, NEVER, Disposition, Event, JobState, Reason, RunState, Trigger
from .schedules import KIND_AFTER
from .specs import OVERLAP_ALLOW, OVERLAP_BUFFER, whole_ms

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .engine import Engine

ENDS_OTHERS: Final = ("cancel_other", "kill_other")


def backfill_wait(limit: int, *, backwards: bool) -> int:
    """`due_us` of a backfill's run that waits for its turn: its own limit of active ones (0: as the job's own), and the direction."""
    return -1 - (2 * limit + backwards)


def _is_active(state: NDArray[np.uint8]) -> NDArray[np.bool_]:
    return np.asarray((state >= RunState.QUEUED) & (state <= RunState.RETRY_WAIT), np.bool_)


def room_beside_backfill(engine: Engine, row: int, policy: int, limit: int) -> bool:
    """Whether a fresh occurrence that looks refused may wait for its turn: only runs of a backfill are in its way."""
    if row not in engine.backfilling:
        return False
    fields = engine.state.runs.gather(np.array(engine.state.runs.of_job(row), np.uint32))
    own = fields[(fields["trigger"] != Trigger.BACKFILL) & (fields["disposition"] != Disposition.MOVED)]
    waiting, active = int((own["state"] == RunState.SCHEDULED).sum()), int(_is_active(own["state"]).sum())
    if policy == OVERLAP_BUFFER:
        return waiting < limit
    return waiting + active < (limit if policy == OVERLAP_ALLOW else 1)


def make_room(engine: Engine, row: int, spec: int) -> int:
    """The new occurrence takes the place of what waits, and may end what is active. How many are folded into it."""
    members = np.array(engine.state.runs.of_job(row), np.uint32)
    fields = engine.state.runs.gather(members)
    own = (fields["trigger"] != Trigger.BACKFILL) & (fields["state"] <= RunState.RETRY_WAIT)
    waiting = own & (fields["state"] == RunState.SCHEDULED) & (fields["trigger"] == Trigger.SCHEDULE)
    waiting &= fields["disposition"] != Disposition.MOVED
    folded = int(waiting.sum() + fields["missed"][waiting].sum())
    if waiting.any():
        supersede(engine, members[waiting], Disposition.COALESCED, Reason.OVERLAP)
    policy = engine.state.specs[spec]["overlap"]["policy"]
    if policy in ENDS_OTHERS:
        active = own & _is_active(fields["state"])
        leased = active & (fields["state"] == RunState.LEASED)
        if (active & ~leased).any():
            cancel_rows(engine, members[active & ~leased])
        if leased.any():
            engine.record("ASK_CANCEL", {"at": engine.now.wall_us, "run": members[leased]})
            for f in fields[leased]:
                engine.effects.cancels.append((int(f["worker"]), int(f["token"]), policy == "kill_other"))
    return folded


def cancel_rows(engine: Engine, rows: NDArray[np.uint32]) -> None:
    """Cancel runs that no worker holds."""
    _cancel(engine, rows, "RUNS", {"event": int(Event.CANCEL)})


def end_with_job(engine: Engine, rows: NDArray[np.uint32], held: NDArray[np.uint32]) -> None:
    """The job of these runs was deleted. What no worker has is cancelled, with the reason `deleted`. What one has (`held`) goes on, and
    that attempt is its last, also when a job is put anew under that name meanwhile.
    """
    _cancel(engine, rows, "DELETED", {"held": held})


def open_runs(engine: Engine, jobs: NDArray[np.uint32]) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    """The open runs of some jobs: those that no worker has, and those that one has."""
    some = jobs[engine.state.jobs.gather(jobs)["rows"] > 0]
    members = np.array([run for job in some.tolist() for run in engine.state.runs.of_job(job)], np.uint32)
    states = engine.state.runs.gather(members)["state"]
    leased = states == RunState.LEASED
    return members[(states <= RunState.RETRY_WAIT) & ~leased], members[leased]


def _cancel(engine: Engine, rows: NDArray[np.uint32], kind: str, fields: dict[str, Any]) -> None:
    engine.delayed.cancel(rows)
    engine.mono.cancel(rows)
    engine.record(kind, {"at": engine.now.wall_us, "run": rows, **fields})
    engine.counters["cancelled"] += len(rows)
    engine.turn_of(rows)
    engine.end_waits(rows)


def supersede(engine: Engine, rows: NDArray[np.uint32], disposition: Disposition, reason: Reason) -> None:
    """Runs that only waited give their place to another."""
    engine.delayed.cancel(rows)
    engine.record("SUPERSEDE", {
        "at": engine.now.wall_us, "run": rows, "disposition": np.full(len(rows), disposition, np.uint8),
        "reason": np.full(len(rows), reason, np.uint8),
    })
    engine.counters["skipped"] += len(rows)
    engine.end_waits(rows)


def take_turns(engine: Engine, jobs: list[int]) -> None:
    """What waits in jobs that have room now enters its ready line; after_completion learns its next time."""
    woken: list[int] = []
    idle: list[int] = []
    for job in jobs:
        members = np.array(engine.state.runs.of_job(job), np.uint32)
        fields = engine.state.runs.gather(members)
        woken += _woken(engine, job, members, fields)
        if not (fields["state"] <= RunState.RETRY_WAIT).any():
            idle.append(job)
            engine.backfilling.discard(job)
            engine.overdue.discard(job)
    if woken:
        engine.record("WAKE", {"at": engine.now.wall_us, "run": np.array(woken, np.uint32)})
    if idle and engine.specs.any_after:
        after_completion(engine, np.array(idle, np.uint32))


def must_wait(engine: Engine, rows: NDArray[np.uint32]) -> NDArray[np.bool_]:
    """Which of these runs, whose instant has come, wait for their turn: jittered or moved occurrences of jobs that are busy meanwhile."""
    fields = engine.state.runs.gather(rows)
    jobs = engine.state.jobs.gather(np.ascontiguousarray(fields["job"]))
    limit = np.where(engine.specs.overlap[jobs["spec"]] == OVERLAP_ALLOW, engine.specs.overlap_max[jobs["spec"]], 1)
    own = np.flatnonzero(fields["trigger"] == Trigger.SCHEDULE)
    order = own[np.argsort(fields["job"][own], kind="stable")]
    job, place = fields["job"][order], np.arange(len(order))
    first = np.ones(len(order), np.bool_)
    first[1:] = job[1:] != job[:-1]
    before = place - np.maximum.accumulate(np.where(first, place, 0))  # runs of the same job that come first
    wait = np.zeros(len(rows), np.bool_)
    wait[order] = jobs["active"][order] + before >= limit[order]
    return wait


def _woken(engine: Engine, job: int, members: NDArray[np.uint32], fields: Any) -> list[int]:
    """Rows of one job that have their turn now: its own by nominal time, then those of a backfill in its direction."""
    overdue = (fields["trigger"] == Trigger.SCHEDULE) & (fields["due_us"] <= engine.now.wall_us) & (engine.state.meta.held_us < 0)
    waiting = np.flatnonzero((fields["state"] == RunState.SCHEDULED) & ((fields["due_us"] < 0) | overdue))
    if not len(waiting):
        return []
    backfill = fields["trigger"] == Trigger.BACKFILL
    code = np.where(backfill, fields["count"].astype(np.int64), 0)  # of a backfill: its limit and direction
    limits, backwards = code // 2, code % 2 == 1
    active = _is_active(fields["state"])
    apart = backfill & (limits > 0)
    spec = int(engine.state.jobs.gather(np.array([job], np.uint32))["spec"][0])
    room = (int(engine.specs.overlap_max[spec]) if engine.specs.overlap[spec] == OVERLAP_ALLOW else 1) - int((active & ~apart).sum())
    beside = int((active & apart).sum())
    order = np.lexsort((members[waiting], np.where(backwards, -1, 1)[waiting] * fields["nominal_us"][waiting], backfill[waiting]))
    out = []
    for i in waiting[order].tolist():
        if apart[i]:
            if beside < limits[i]:
                beside += 1
                out.append(int(members[i]))
        elif room > 0:
            room -= 1
            out.append(int(members[i]))
    return out


def after_completion(engine: Engine, rows: NDArray[np.uint32]) -> None:
    """The next time of idle after_completion jobs: now and the delay, later than the last one decided."""
    fields = engine.state.jobs.gather(rows)
    spec = fields["spec"]
    due = (engine.specs.kind[spec] == KIND_AFTER) & (fields["state"] == JobState.ACTIVE) & (fields["next_us"] == NEVER)
    if not due.any():
        return
    rows, fields, spec = rows[due], fields[due], spec[due]
    earliest = -(-np.maximum(fields["cursor_us"] + MS, engine.specs.start[spec]) // MS) * MS
    at = np.maximum(whole_ms(engine.now.wall_us) + engine.specs.a[spec], earliest)
    following = engine.specs.next(spec, at, at - 1)
    engine.record("RETIME", {
        "at": engine.now.wall_us, "job": rows, "next": following, "cursor": fields["cursor_us"].copy(), "param": at,
        "state": np.where(following == NEVER, JobState.FINISHED, JobState.ACTIVE).astype(np.uint8),
    })
    engine.arm_jobs(rows, following)


__all__ = [
    "after_completion", "backfill_wait", "cancel_rows", "end_with_job", "make_room", "must_wait", "open_runs",
    "room_beside_backfill", "supersede", "take_turns",
]

"""Overlap: who is in the way of whom, and whose turn it is.

    skip                       an occurrence that is due while a run of its job is open makes none
    allow(max)                 they run side by side, `max` at most
    buffer_one, buffer_all     they wait, one or `max` of them; one that finds no room makes none
    buffer_latest              one waits: the newest, with the earlier ones folded into it
    cancel_other, kill_other   as buffer_latest, and the active run is asked to end (is killed)

A moved occurrence is in nobody's way before its instant, and then waits like another if the job is busy.

Runs of a backfill wait behind the job's own. With a limit of their own (allow) they take no notice of other runs, nor others of them;
without one they run one after another, as the job's own do. A dead letter that is sent back waits for its turn among the job's own, by
nominal time, whatever the policy: no later occurrence takes its place or ends it. Neither kind takes a fresh occurrence away: that waits.

Who waits for a turn stands in a line of the job (see `_runturns`): a turn costs the same however many wait.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ..model.nouns import MS, NEVER, Disposition, Event, JobState, Reason, RunFlag, RunState, Trigger
from ..schedules.table import KIND_AFTER
from ..tables._runturns import APART, BACK, BEHIND, OWN
from . import waiters
from .definitions import OVERLAP_ALLOW, OVERLAP_BUFFER, whole_ms

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .core import Core

ENDS_OTHERS: Final = ("cancel_other", "kill_other")


def backfill_wait(limit: int, *, backwards: bool) -> int:
    """`due_us` of a backfill's run that waits for its turn: its own limit of active ones (0: as the job's own), and the direction."""
    return -1 - (2 * limit + backwards)


def _is_active(state: NDArray[np.uint8]) -> NDArray[np.bool_]:
    return np.asarray((state >= RunState.QUEUED) & (state <= RunState.RETRY_WAIT), np.bool_)


def makes_up(fields: Any) -> NDArray[np.bool_]:
    """Which runs make up for the past by a person's will: a backfill's, and those that were sent back."""
    sent_back = (fields["flags"] & RunFlag.SENT_BACK > 0) & (fields["trigger"] != Trigger.ENQUEUE)
    return np.asarray((fields["trigger"] == Trigger.BACKFILL) | sent_back, np.bool_)


def room_beside_backfill(core: Core, row: int, policy: int, limit: int) -> bool:
    """Whether a fresh occurrence that looks refused may wait for its turn: only runs that make up for the past are in its way."""
    waiting, active, _ = core.state.runs.making_up(row)
    if not waiting and not active:
        return False
    fields = core.state.jobs.gather(np.array([row], np.uint32))[0]
    waiting, active = int(fields["waiting"]) - waiting, int(fields["active"]) - active
    if policy == OVERLAP_BUFFER:
        return waiting < limit
    return waiting + active < (limit if policy == OVERLAP_ALLOW else 1)


def own_open(core: Core, row: int) -> tuple[NDArray[np.uint32], NDArray[Any]]:
    """(rows, fields) of a job's open runs, without those that make up for the past."""
    runs = core.state.runs
    rows = np.concatenate([runs.in_line(row, OWN), runs.chained(row, ended=False)])
    fields = runs.gather(rows)
    own = ~makes_up(fields)
    return rows[own], fields[own]


def make_room(core: Core, row: int, spec: int) -> int:
    """The new occurrence takes the place of what waits, and may end what is active. How many are folded into it."""
    members, fields = own_open(core, row)
    waiting = (fields["state"] == RunState.SCHEDULED) & (fields["trigger"] == Trigger.SCHEDULE)
    waiting &= fields["disposition"] != Disposition.MOVED
    folded = int(waiting.sum() + fields["missed"][waiting].sum())
    if waiting.any():
        supersede(core, members[waiting], Disposition.COALESCED, Reason.OVERLAP)
    policy = core.state.specs[spec]["overlap"]["policy"]
    if policy in ENDS_OTHERS:
        active = _is_active(fields["state"])
        leased = active & (fields["state"] == RunState.LEASED)
        if (active & ~leased).any():
            cancel_rows(core, members[active & ~leased])
        if leased.any():
            core.record("ASK_CANCEL", {"at": core.now.wall_us, "run": members[leased]})
            for f in fields[leased]:
                core.effects.cancels.append((int(f["worker"]), int(f["token"]), policy == "kill_other"))
    return folded


def cancel_rows(core: Core, rows: NDArray[np.uint32]) -> None:
    """Cancel runs that no worker holds."""
    _cancel(core, rows, "RUNS", {"event": int(Event.CANCEL)})


def end_with_job(core: Core, rows: NDArray[np.uint32], held: NDArray[np.uint32]) -> None:
    """The job of these runs was deleted. What no worker has is cancelled, with the reason `deleted`. What one has (`held`) goes on, and
    that attempt is its last, also when a job is put anew under that name meanwhile.
    """
    _cancel(core, rows, "DELETED", {"held": held})


def open_runs(core: Core, jobs: NDArray[np.uint32]) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    """The open runs of some jobs: those that no worker has, and those that one has."""
    some = jobs[core.state.jobs.gather(jobs)["rows"] > 0]
    members = np.array([run for job in some.tolist() for run in core.state.runs.of_job(job)], np.uint32)
    states = core.state.runs.gather(members)["state"]
    leased = states == RunState.LEASED
    return members[(states <= RunState.RETRY_WAIT) & ~leased], members[leased]


def _cancel(core: Core, rows: NDArray[np.uint32], kind: str, fields: dict[str, Any]) -> None:
    core.delayed.cancel(rows)
    core.mono.cancel(rows)
    core.record(kind, {"at": core.now.wall_us, "run": rows, **fields})
    core.counters["cancelled"] += len(rows)
    core.turn_of(rows)
    waiters.end(core, rows)


def supersede(core: Core, rows: NDArray[np.uint32], disposition: Disposition, reason: Reason) -> None:
    """Runs that only waited give their place to another."""
    core.delayed.cancel(rows)
    core.record("SUPERSEDE", {
        "at": core.now.wall_us, "run": rows, "disposition": np.full(len(rows), disposition, np.uint8),
        "reason": np.full(len(rows), reason, np.uint8),
    })
    core.counters["skipped"] += len(rows)
    waiters.end(core, rows)


def take_turns(core: Core, jobs: list[int]) -> None:
    """What waits in jobs that have room now enters its ready line; after_completion learns its next time."""
    if not jobs:
        return
    rows = np.array(jobs, np.uint32)
    fields = core.state.jobs.gather(rows)
    woken = [run for job, f in zip(jobs, fields, strict=True) for run in _woken(core, job, f)]
    if woken:
        core.record("WAKE", {"at": core.now.wall_us, "run": np.array(woken, np.uint32)})
    if core.specs.any_after:
        fields = core.state.jobs.gather(rows)  # again: what was woken now keeps its job busy
        idle = fields["active"] + fields["waiting"] == 0
        if idle.any():
            after_completion(core, rows[idle])


def must_wait(core: Core, rows: NDArray[np.uint32]) -> NDArray[np.bool_]:
    """Which of these runs, whose instant has come, stand in line: of jobs that are busy meanwhile, or with a limit of their own."""
    fields = core.state.runs.gather(rows)
    jobs = core.state.jobs.gather(np.ascontiguousarray(fields["job"]))
    limit = np.where(core.specs.overlap[jobs["spec"]] == OVERLAP_ALLOW, core.specs.overlap_max[jobs["spec"]], 1)
    again = makes_up(fields)
    own = np.flatnonzero((fields["trigger"] == Trigger.SCHEDULE) | again)
    order = own[np.argsort(fields["job"][own], kind="stable")]
    job, place = fields["job"][order], np.arange(len(order))
    first = np.ones(len(order), np.bool_)
    first[1:] = job[1:] != job[:-1]
    before = place - np.maximum.accumulate(np.where(first, place, 0))  # runs of the same job that come first
    wait = np.zeros(len(rows), np.bool_)
    wait[order] = jobs["active"][order] + before >= limit[order]
    return wait | again


def _woken(core: Core, job: int, fields: Any) -> list[int]:
    """Rows of one job that have their turn now: its own and those that were sent back by nominal time, then those of a backfill."""
    runs, spec = core.state.runs, int(fields["spec"])
    lines = runs.lines_of(job)
    if not lines:
        return []
    beside = runs.making_up(job)[2]
    room = (int(core.specs.overlap_max[spec]) if core.specs.overlap[spec] == OVERLAP_ALLOW else 1) - (int(fields["active"]) - beside)
    out: list[int] = []
    if room > 0:
        heads = [*_heads(core, job, OWN, room), *_heads(core, job, BACK, room)]
        heads.sort(key=lambda head: (head[0] < 0, *head))  # who is sent back newest first stands behind the job's own
        out += [row for _, row in [*heads, *_heads(core, job, BEHIND, room)][:room]]
    for line in lines:
        if line >= APART:
            found = _heads(core, job, line, max(0, line - APART - beside))
            beside += len(found)
            out += [row for _, row in found]
    return out


def _heads(core: Core, job: int, line: int, n: int) -> list[tuple[int, int]]:
    """The first n of a line: (place, row). One whose instant is to come again, as the clock went back or all triggering is held, waits
    for that outside.
    """
    runs = core.state.runs
    while found := runs.heads(job, line, n):
        rows = np.array([row for _, row in found], np.uint32)
        due = runs.gather(rows)["due_us"]
        early = due > core.now.wall_us if core.state.meta.held_us < 0 else due >= 0
        if not early.any():
            break
        runs.step_out(rows[early])
        core.arm_delayed(rows[early], due[early])
    return found


def after_completion(core: Core, rows: NDArray[np.uint32]) -> None:
    """The next time of idle after_completion jobs: now and the delay, later than the last one decided."""
    fields = core.state.jobs.gather(rows)
    spec = fields["spec"]
    due = (core.specs.kind[spec] == KIND_AFTER) & (fields["state"] == JobState.ACTIVE) & (fields["next_us"] == NEVER)
    if not due.any():
        return
    rows, fields, spec = rows[due], fields[due], spec[due]
    earliest = -(-np.maximum(fields["cursor_us"] + MS, core.specs.start[spec]) // MS) * MS
    at = np.maximum(whole_ms(core.now.wall_us) + core.specs.a[spec], earliest)
    following = core.specs.next(spec, at, at - 1)
    core.record("RETIME", {
        "at": core.now.wall_us, "job": rows, "next": following, "cursor": fields["cursor_us"].copy(), "param": at,
        "state": np.where(following == NEVER, JobState.FINISHED, JobState.ACTIVE).astype(np.uint8),
    })
    core.arm_jobs(rows, following)


__all__ = [
    "after_completion", "backfill_wait", "cancel_rows", "end_with_job", "make_room", "makes_up", "must_wait", "open_runs", "own_open",
    "room_beside_backfill", "supersede", "take_turns",
]

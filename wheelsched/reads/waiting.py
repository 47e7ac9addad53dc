"""What holds back one open run that no worker has: the reason, its rank in its queue, and when it is expected to start.

    rank       1 is next: its place among the runs that wait in its queue, in the order of `_ready`, were there no limits. What nobody
               serves is in nobody's way. None for a run that is not queued, and beyond the first 10,000
    expected   an instant if everything goes on as measured and nothing else comes: run times of tasks, workers that serve the task,
               limits. None when that can't be said: a pause, no worker, a task that never ended here

All of it is soft, and worked out when it is asked for. The cost grows with the lines that have runs, not with the runs in them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ..model.nouns import RunState, unserved

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..engine.core import Core
    from ..state.state import Line

RANKS_MAX: Final = 10_000
HELD_MAX: Final = 256  # runs of a worker that its work in hand is told by


def told(core: Core, shown: dict[str, Any]) -> dict[str, Any]:
    """A run as the wire shows it, with `waiting`: {reason, rank, expected_us}, or None when nothing is waited for; and with the payload
    of its call as anybody may see it, or None for a run that is history.
    """
    row = core.state.find_run(bytes.fromhex(shown["id"]))
    if row is not None:
        spec = int(core.state.runs.gather(np.array([row], np.uint32))["spec"][0])
        payload, wire = core.state.runs.blobs(row)[0], core.state.specs[spec]
        shown = {**shown, "payload": core.redaction.shown(payload, core.state.announced, wire) if payload else None}
    if row is None or shown["state"] not in ("scheduled", "queued", "retry_wait"):
        return {**shown, "waiting": None}
    fields = core.state.runs.gather(np.array([row], np.uint32))[0]
    if fields["state"] == RunState.QUEUED:
        reason, rank, expected = _queued(core, row, fields)
    else:
        rank = None
        reason, expected = _set_aside(core, fields, bool(shown["progress"]))
    return {**shown, "waiting": {"reason": reason, "rank": rank, "expected_us": expected}}


def _set_aside(core: Core, fields: Any, grouped: bool) -> tuple[str, int | None]:
    """(reason, instant) of a run that is not in its queue yet."""
    due = int(fields["due_us"])
    if fields["state"] == RunState.RETRY_WAIT:
        return "it waits for its next attempt", max(due, core.now.wall_us)
    if grouped:
        return "the members of its group have not all ended", None
    if core.state.meta.held_us >= 0:
        note = core.state.meta.hold_note
        return "all triggering is held" + (f": {note}" if note else ""), None
    if due > core.now.wall_us:
        return "its time has not come", due
    return "an earlier run of its job is open", None


def _queued(core: Core, row: int, fields: Any) -> tuple[str, int | None, int | None]:
    """(reason, rank, instant) of a run in its queue."""
    state, limits, now = core.state, core.limits, core.now
    columns = state.runs.ready()[0]
    _, _, _, key_leased, _, _, job_leased = columns[:, columns[0] == fields["list_id"]][:, 0].tolist()
    line = state.line_of[int(fields["list_id"])]
    sessions = [s for s in core.sessions.values() if s.worker and not s.lost]
    served = frozenset().union(*(s.tasks for s in sessions))  # what nobody serves is in nobody's way
    ahead, found = limits.ahead(
        row, served if line.task in served else frozenset(state.task_numbers), line.queue, RANKS_MAX, now.wall_us)
    rank = len(ahead) + 1 if found else None
    held = limits.holds(line, key_leased, job_leased, now.mono_us)
    serving = [s.worker for s in sessions if line.task in s.tasks]
    if core.draining:
        return "the server is stopping", rank, None
    if held and state.queues.get(line.queue, {}).get("paused"):
        return held, rank, None
    if not serving:
        return unserved(line.task), rank, None
    expected = _expected(core, line, ahead, serving, (key_leased, job_leased)) if found else None
    if held:
        return held, rank, expected
    if rank is None:
        return f"more than {RANKS_MAX:,} runs of queue {line.queue} go before it", None, None
    if rank > 1:
        return f"{rank - 1:,} {'run goes' if rank == 2 else 'runs go'} before it in queue {line.queue}", rank, expected
    return "no worker that serves its task is free", rank, expected


def _expected(core: Core, line: Line, ahead: NDArray[np.uint32], workers: list[int], leased: tuple[int, int]) -> int | None:
    """When the run behind `ahead` is leased, if each worker does one run after the other and queues take turns. `leased`: of its key
    and of its job.
    """
    state, now = core.state, core.now
    settings = state.queues.get(line.queue, {})
    mine, work = core.durations.get(line.task), _work(core, ahead)
    in_hand = [_in_hand(core, worker) for worker in workers]
    others = _others(core, line.queue, len(ahead) + 1)
    if mine is None or work is None or None in in_hand:
        return None
    total = work + others + sum(filter(None, in_hand))
    waits = [total / max(1, min(len(workers), settings.get("concurrency", len(workers))))]
    like = [state.line_of[number] for number in state.runs.gather(ahead)["list_id"].tolist()] if line.key or line.job else []
    of_key = sum(one.key == line.key for one in like) if line.key else 0
    if line.key:
        waits.append((leased[0] + of_key) // settings.get("key_concurrency", 1) * mine[1])
    if line.job:
        waits.append((leased[1] + sum(one.job == line.job for one in like)) // line.job_most * mine[1])
    return now.wall_us + int(max(round(max(waits)), core.limits.token_in_us(line, len(ahead) + 1, of_key + 1, now.mono_us)))


def _in_hand(core: Core, worker: int) -> float | None:
    """Run time of what a worker holds, as if it had just begun."""
    list_id = core.state.workers[worker].list_id
    some = core.state.runs.peek(list_id, HELD_MAX)
    known = _work(core, some)
    return None if known is None else known * core.state.runs.list_len(list_id) / max(1, len(some))


def _work(core: Core, rows: NDArray[np.uint32]) -> float | None:
    """Run time of these runs as measured, in microseconds; None when one of their tasks never was."""
    specs, count = np.unique(core.state.runs.gather(rows)["spec"], return_counts=True)
    total = 0.0
    for spec, n in zip(specs.tolist(), count.tolist(), strict=True):
        known = core.durations.get(core.state.specs[spec]["task"])
        if known is None:
            return None
        total += known[1] * n
    return total


def _others(core: Core, queue: str, rank: int) -> float:
    """Run time of what other queues have leased meanwhile: as many runs as this one, as far as they have them and were measured."""
    waiting: dict[str, list[float]] = {}  # queue -> runs, run time
    for number, n in core.state.runs.ready()[0][:2].T.tolist():
        line = core.state.line_of[number]
        known = core.durations.get(line.task)
        if known is not None and line.queue != queue and not core.state.queues.get(line.queue, {}).get("paused"):
            sums = waiting.setdefault(line.queue, [0, 0.0])
            sums[0] += n
            sums[1] += n * known[1]
    return sum(min(n, rank) * work / n for n, work in waiting.values())


__all__ = ["told"]

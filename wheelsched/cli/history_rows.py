"""The server's history as rows of events: runs, jobs and dead letters between two `export` rows.

The form is for checkers that know nothing of wheelsched: plain names of states, schedules and policies.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from ..client.values import rfc3339
from ..model.nouns import MS, US

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..client.client import Client, Run
    from ..client.values import JobInfo

__all__ = ["definition", "history_rows", "run_row"]

_STATES: Final = {"retry_wait": "retrying"}
_TRIGGERS: Final = {"schedule": "schedule", "backfill": "schedule"}  # whatever else was asked for by somebody
_MISFIRE: Final = {"latest": "coalesce", "earliest": "coalesce", "all": "run_all", "skip": "skip"}
_OVERLAP: Final = {"buffer_one": "queue", "buffer_latest": "queue", "buffer_all": "queue", "kill_other": "cancel_other"}


def history_rows(client: Client) -> Iterator[dict[str, Any]]:
    """All rows, the `export` ones included."""
    yield {"type": "export", "phase": "begin", "dead_letters": True, "wall": time.time(), "mono": time.monotonic()}
    seen: set[tuple[str, datetime | None]] = set()
    for run in client.runs():
        if (run.id, run.created_at) not in seen:  # one may move to history, and be listed again, while pages are read; two of one id differ
            seen.add((run.id, run.created_at))
            yield run_row(run)
    for run in client.runs(skipped=True):
        if run.state == "skipped":  # a range of the ledger is no run: readers of runs pass over notes
            yield run_row(run) | {"type": "note", "note": "ledger"}
    for job in client.jobs():
        yield {"type": "job", "job": job.name, "state": job.state, "def": definition(job)}
    for run in client.dead():
        yield {"type": "dead_letter", "run_id": run.id}
    yield {"type": "export", "phase": "end", "wall": time.time(), "mono": time.monotonic()}


def run_row(run: Run) -> dict[str, Any]:
    """One run."""
    row: dict[str, Any] = {
        "type": "run", "run_id": run.id, "job": run.job, "scheduled_at": rfc3339(run.scheduled_at),
        "state": _STATES.get(run.state, run.state), "trigger": _TRIGGERS.get(run.trigger or "schedule", "manual"),
        "attempts": run.attempt, "token": run.token, "created_at": rfc3339(run.created_at),
        "finished_at": rfc3339(run.ended_at) if run.final else None, "next_at": rfc3339(run.next_at), "reason": run.reason,
    }
    if run.state == "skipped":
        row |= {"until": rfc3339(run.until), "count": run.count}
    return {name: value for name, value in row.items() if value is not None}


def _iso(us: int | None) -> str | None:
    return None if us is None else rfc3339(datetime.fromtimestamp(0, UTC) + timedelta(microseconds=us))


def _schedule(job: JobInfo) -> dict[str, Any]:
    wire = job.spec["schedule"]
    kind = wire["kind"]
    if kind == "cron":
        return {
            "kind": "cron", "expr": wire["expr"], "tz": wire["tz"], "seconds": wire["seconds"],
            "dst_gap": {None: "vixie", "run_after": "shift", "shift": "shift_wall"}.get(wire["dst_gap"], wire["dst_gap"]),
            "dst_fold": wire["dst_overlap"] or "vixie", "day_mode": "or_vixie" if wire["day_or"] else "and",
        }
    schedule: Any = job.schedule
    if kind == "union" or wire.get("after_completion"):  # a checker's times can't hold these: it leaves such jobs alone
        return {**wire, "kind": "union" if kind == "union" else "after_completion"}
    if kind == "every":
        return {"kind": "interval", "every": wire["every_us"] / US, "anchor": rfc3339(schedule.anchor), "first": "after"}
    if kind == "at":
        return {"kind": "once", "at": rfc3339(schedule.instant)}
    return {"kind": "manual"}


def definition(job: JobInfo) -> dict[str, Any]:
    """A job's definition."""
    spec, shown = job.spec, job.to_dict()
    overlap = spec["overlap"]
    limit = overlap.get("max") if overlap["policy"] == "allow" else None
    return {
        "schedule": _schedule(job), "start_at": _iso(spec.get("start_us")), "end_at": _iso(spec.get("end_us")),
        "jitter": ((spec.get("jitter") or {}).get("us") or 0) / US, "paused": job.state == "paused", "pause_policy": "skip",
        "misfire": {"policy": _MISFIRE[spec["catchup"]["policy"]], "grace": 0},
        "overlap": {"policy": _OVERLAP.get(overlap["policy"], overlap["policy"]), **({"limit": limit} if limit else {})},
        "max_attempts": spec["retry"]["attempts"], "task": job.task, "queue": job.queue, "timeout": spec["timeout_us"] // MS / 1000,
        "payload": [shown["args"], shown["kwargs"]],
    }

"""`wheelsched bench latency`: single runs at random sub-second times on an idle server."""

from __future__ import annotations

import random
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from ...model.jobs import Job
from ...model.nouns import Call
from ...schedules.schedule import At
from ..output import Progress
from .midnight import doubts
from .workbench import Census, Folder, ServerProcess, machine, poll, rss_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...client.client import Client

__all__ = ["latency", "percentiles"]

SEED: Final = 20261129
TASK: Final = "wheelsched.noop"
_GAP_S: Final = (0.01, 0.06)  # between two runs, drawn evenly
_MARGIN_S: Final = 1.0
_QUANTILES: Final = (("p50", 0.5), ("p99", 0.99), ("p999", 0.999))


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """p50, p99, p999 and max: the smallest value that so many are not above."""
    ordered = sorted(values)
    if not ordered:
        return dict.fromkeys(("p50", "p99", "p999", "max"), 0.0)
    out = {name: ordered[max(0, -(-round(q * 1000) * len(ordered) // 1000) - 1)] for name, q in _QUANTILES}
    return {name: round(value, 3) for name, value in (out | {"max": ordered[-1]}).items()}


def latency(runs: int, workers: int) -> dict[str, Any]:
    """Run the bench. Start lags are exact, from the listing; the others are the server's histograms (2 % wide)."""
    with Folder() as folder:
        server = ServerProcess(folder, workers=workers)
        with server, server.client() as client:
            return _measure(runs, workers, server, client)


def _measure(runs: int, workers: int, server: ServerProcess, client: Client) -> dict[str, Any]:
    client.stats()
    where = machine()  # its load is what others do
    empty_bytes = rss_bytes(server.pid)
    draw = random.Random(SEED)  # noqa: S311 - load, not secrets
    first = datetime.now(UTC) + timedelta(seconds=_MARGIN_S + runs / 50_000)
    due, jobs = first, []
    for i in range(runs):
        due += timedelta(seconds=draw.uniform(*_GAP_S))
        jobs.append(Job(f"latency/job-{i:011d}", Call(TASK), At(due)))
    begun = time.monotonic()
    client.put_many(jobs)
    ingest_s = time.monotonic() - begun
    before = client.stats()
    job_bytes = (rss_bytes(server.pid) - empty_bytes) / max(runs, 1)
    with Progress("waiting", runs) as bar:
        for i, job in enumerate(jobs):
            time.sleep(max(0.0, (job.schedule.instant - datetime.now(UTC)).total_seconds()))  # nothing is asked of the server meanwhile
            bar.to(i + 1)
        last: dict[str, Any] = {}

        def done() -> bool:
            last.update(client.stats())
            return bool(last["lag_ms"]["done"]["count"] >= runs)  # counted when the commit is durable

        poll(done, 30)
    census, lags = Census(), []
    for run in client.runs("latency/*"):
        census.add(run)
        if run.started_at is not None and run.scheduled_at is not None:
            lags.append((run.started_at - run.scheduled_at).total_seconds() * 1000)
    drain_s = (datetime.now(UTC) - first).total_seconds()
    return {
        "runs": runs, "workers": workers, "ingest_s": round(ingest_s, 3), "queued_lag_ms": _lag(last, "queued"),
        "start_lag_ms": percentiles(lags), "done_lag_ms": _lag(last, "done"), "drain_s": round(drain_s, 3),
        "runs_per_s": round(runs / drain_s, 1), "rss_bytes_per_job": round(job_bytes, 1), "duplicates": census.duplicates,
        "lost": census.lost(job.name for job in jobs), "fsyncs": last["fsyncs"] - before["fsyncs"],
        "journal_bytes": last["journal_bytes"] - before["journal_bytes"], "notes": doubts(last), "machine": where,
    }


def _lag(stats: dict[str, Any], name: str) -> dict[str, float]:
    return {q: stats["lag_ms"][name][q] for q in ("p50", "p99", "p999", "max")}

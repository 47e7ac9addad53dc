"""Single runs of one namespace while another has a million in the same queue, against a real server with two workers.

A's runs are queued while the queue is paused. Then it is resumed, and B's one-time runs come due at random instants (8 ms apart on
average) as long as A has runs waiting. Their start lag is from their scheduled time to the first instruction of user code. The floor is
the same afterwards, in the same server, when nothing else is queued: what the machine and whatever else it does make of a single run.
"""

from __future__ import annotations

import random
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from wheelsched.cli.bench.latency import TASK, percentiles
from wheelsched.cli.bench.workbench import Folder, ServerProcess, poll
from wheelsched.model.jobs import Job
from wheelsched.model.nouns import Call
from wheelsched.schedules.schedule import At

if TYPE_CHECKING:
    from wheelsched.client.client import Client, Run

NAME = "fairness"
DESCRIPTION = "start lag of single no-op runs of namespace B while namespace A has N queued no-op runs: one queue, two workers"

SEED = 20261129
GAP_S = 0.008
LEAD_S = 1.0  # until the first of them, beside the time that putting them takes
PATIENCE_S = 600.0


def run(smoke: bool = False) -> list[dict[str, Any]]:
    """The rows; `smoke` is a small size that only shows that it works."""
    n, seconds = (20_000, 1.0) if smoke else (1_000_000, 20.0)
    with Folder() as folder:
        server = ServerProcess(folder, workers=2)
        with server, server.client() as client:
            return _measure(client, n, seconds)


def _measure(client: Client, n: int, seconds: float) -> list[dict[str, Any]]:
    """`seconds`: for so long B has runs; a drain that is over sooner leaves the last of them alone, and these don't count."""
    client.queue_pause("default")
    now = At(datetime.now(UTC))
    client.put_many((Job(f"a/{i}", Call(TASK), now) for i in range(n)), timeout="10m")
    _until(lambda: client.queue("default").queued == n)
    start = _put_singles(client, "b", seconds)
    time.sleep(max(0.0, (start - datetime.now(UTC)).total_seconds()))
    client.queue_resume("default")
    _until(lambda: client.queue("default").queued < max(n // 100, 1))
    drained = datetime.now(UTC)
    beside = [r for r in _ended(client, "b", start + timedelta(seconds=seconds)) if r.scheduled_at and r.scheduled_at < drained]
    alone = _ended(client, "c", _put_singles(client, "c", seconds / 5) + timedelta(seconds=seconds / 5))
    took = (drained - start).total_seconds()
    return [
        *_rows("B beside A", beside), *_rows("B alone", alone),
        {"name": "A: drain beside it", "value": n / took, "unit": "runs/s", "n": n},
    ]


def _put_singles(client: Client, namespace: str, seconds: float) -> datetime:
    """One-time runs at random instants from the one that is returned on, for so long."""
    draw = random.Random(SEED)
    start = due = datetime.now(UTC) + timedelta(seconds=LEAD_S + seconds / GAP_S / 20_000)
    jobs = []
    while due < start + timedelta(seconds=seconds):
        due += timedelta(seconds=draw.expovariate(1 / GAP_S))
        jobs.append(Job(f"{namespace}/{len(jobs)}", Call(TASK), At(due)))
    client.put_many(jobs)
    return start


def _until(ask: Any) -> None:
    if not poll(ask, PATIENCE_S):
        raise TimeoutError(f"the server was not through after {PATIENCE_S:g} s")


def _ended(client: Client, namespace: str, until: datetime) -> list[Run]:
    """All runs of a namespace, the last of which is due about then; each of them has started."""
    time.sleep(max(0.0, (until - datetime.now(UTC)).total_seconds() + LEAD_S))  # the listing below is no part of what is measured
    _until(lambda: all(job.state == "finished" for job in client.jobs(match=f"{namespace}/*")))
    _until(lambda: client.queue("default").queued + client.queue("default").leased == 0)
    runs = list(client.runs(f"{namespace}/*"))
    assert runs
    assert all(r.state == "succeeded" and r.started_at for r in runs), "a run was lost"
    return runs


def _rows(name: str, runs: list[Run]) -> list[dict[str, Any]]:
    lags = [(r.started_at - r.scheduled_at).total_seconds() * 1000 for r in runs if r.started_at and r.scheduled_at]
    found = percentiles(lags).items() if lags else ()
    return [{"name": f"{name}: start lag {q}", "value": value, "unit": "ms", "n": len(lags)} for q, value in found]

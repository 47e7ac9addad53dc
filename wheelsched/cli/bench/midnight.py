"""`wheelsched bench midnight`: N runs due at the same instant, on a fresh server.

Lags are the server's own histograms (buckets 2 % wide): scheduled time -> run record and queue position durable, -> first
instruction of user code, -> completion durable. Duplicates and lost are counted from a full listing of the runs.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final

from ...model.errors import ScheduleError, WheelschedError
from ...model.jobs import Job
from ...model.nouns import Call
from ...schedules.schedule import At, Cron
from ..output import Progress
from ..shell import say
from .workbench import Census, Folder, ServerProcess, machine, poll, rss_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ...client.client import Client

__all__ = ["Plan", "midnight", "recurring_at"]

SEED: Final = 20261129
TASK: Final = "wheelsched.noop"
_FIRST_RATE: Final = 100_000  # jobs a second that the first try expects to put
_MARGIN_S: Final = 3.0
_TRIES: Final = 4
_SLOWEST: Final = 2_000  # runs a second below which the bench gives up
_QUIET: Final = timedelta(minutes=4)  # a recurring job fires at T and not this long before or after
_BUCKET: Final = 0.02  # width of the server's histogram buckets
_RECURRING_SHARE: Final = 0.5  # of --mix real


@dataclass(frozen=True, slots=True)
class Plan:
    """What one try does: `lead_s` is the time from its start to T."""

    runs: int
    mix: str
    workers: int
    lead_s: float


class _TooLateError(Exception):
    """T came before everything was put."""

    def __init__(self, done: int, seconds: float) -> None:
        super().__init__(f"{done} jobs in {seconds:.1f} s")
        self.done = done
        self.seconds = seconds


def midnight(runs: int, mix: str, workers: int) -> dict[str, Any]:
    """Run the bench; the object that API users know. UnavailableError, DeadlineExceededError when the server fails."""
    lead_s = runs / _FIRST_RATE + _MARGIN_S
    for _ in range(_TRIES):
        try:
            return _try(Plan(runs, mix, workers, lead_s))
        except _TooLateError as e:
            lead_s = max(2 * lead_s, 1.5 * e.seconds * runs / max(e.done, 1)) + _MARGIN_S
            say(f"the ingest was not done at T ({e}); once more with T {lead_s:.0f} s ahead")
    raise WheelschedError(f"the ingest of {runs} jobs was never done in time; the last try had {lead_s:.0f} s")


def _try(plan: Plan) -> dict[str, Any]:
    now = datetime.now(UTC)
    offset = timedelta()
    due = now + timedelta(seconds=plan.lead_s)
    if plan.mix == "real":
        due = datetime(now.year, now.month, now.day, tzinfo=UTC) + timedelta(days=1)
        offset = due - timedelta(seconds=plan.lead_s) - now
    due = due.replace(microsecond=due.microsecond // 1000 * 1000)
    with Folder() as folder:
        server = ServerProcess(folder, workers=plan.workers, clock_offset_s=offset.total_seconds())
        with server, server.client() as client:
            return _measure(plan, server, client, due, offset, folder)


def _measure(plan: Plan, server: ServerProcess, client: Client, due: datetime, offset: timedelta, folder: Path) -> dict[str, Any]:
    client.stats()
    where = machine()  # its load is what others do
    empty_bytes = rss_bytes(server.pid)
    recurring = recurring_at(due, round(plan.runs * _RECURRING_SHARE)) if plan.mix == "real" else []
    begun = time.monotonic()
    real_due = due - offset
    with Progress("putting", plan.runs) as bar:
        client.put_many(_jobs(plan, due, real_due, recurring, bar), timeout="10m")
    ingest_s = time.monotonic() - begun
    before = client.stats()
    if datetime.now(UTC) >= real_due:
        raise _TooLateError(plan.runs, ingest_s)
    job_bytes = (rss_bytes(server.pid) - empty_bytes) / plan.runs
    time.sleep(max(0.0, (real_due - datetime.now(UTC)).total_seconds()))  # nothing is asked of an idle server
    after = _drain(plan, client)
    drain_s = (datetime.now(UTC) - real_due).total_seconds()  # when it was seen, so up to one poll (50 ms) too long
    census = Census()
    with Progress("counting", plan.runs) as bar:
        for run in client.runs("midnight/*", timeout="10m"):
            census.add(run)
            bar.step()
    return _result(plan, before, after, drain_s, census) | {
        "ingest_s": round(ingest_s, 3), "ingest_per_s": round(plan.runs / ingest_s), "rss_bytes_per_job": round(job_bytes, 1),
        "clock_offset": f"{offset.total_seconds():.3f}s" if offset else None, "recurring": len(recurring),
        "scheduled_at": due.isoformat().replace("+00:00", "Z"), "machine": where,
        "data_bytes": sum(f.stat().st_blocks * 512 for f in folder.rglob("*") if f.is_file()),
    }


def name_of(i: int) -> str:
    """24 bytes with the namespace: `midnight/job-00000000042`."""
    return f"midnight/job-{i:011d}"


def _jobs(plan: Plan, due: datetime, real_due: datetime, recurring: list[Cron], bar: Progress) -> Iterator[Job]:
    """The jobs. Stops with _TooLateError when T has come."""
    begun = time.monotonic()
    once, call = At(due), Call(TASK)
    deadline = begun + (real_due - datetime.now(UTC)).total_seconds()
    for i in range(plan.runs):
        if not i % 10_000:
            bar.to(i)
            if time.monotonic() >= deadline:
                raise _TooLateError(i, time.monotonic() - begun)
        yield Job(name_of(i), call, recurring[i] if i < len(recurring) else once)


def _drain(plan: Plan, client: Client) -> dict[str, Any]:
    """Wait until every completion is durable; the figures then. What isn't in time is left to the census, which counts it as lost.

    Counters rise when a turn decides, lags are counted when its commit is durable: so the lags' counts say that all is done.
    """
    last: dict[str, Any] = {}
    with Progress("running", plan.runs) as bar:
        def done() -> bool:
            last.update(client.stats())
            durable = min(last["lag_ms"][name]["count"] for name in ("queued", "start", "done"))
            bar.to(durable)
            return bool(durable >= plan.runs)

        if not poll(done, plan.runs / _SLOWEST + 60):
            say("the time for the drain is over; what is missing counts as lost")
    return last


def _result(plan: Plan, before: dict[str, Any], after: dict[str, Any], drain_s: float, census: Census) -> dict[str, Any]:
    def lag(name: str) -> dict[str, float]:
        found = after["lag_ms"][name]
        return {q: found[q] for q in ("p50", "p99", "p999", "max")}

    return {
        "runs": plan.runs, "mix": plan.mix, "workers": plan.workers, "queued_lag_ms": lag("queued"), "start_lag_ms": lag("start"),
        "done_lag_ms": lag("done"), "drain_s": round(drain_s, 3), "runs_per_s": round(plan.runs / drain_s),
        "notes": doubts(after), "duplicates": census.duplicates, "lost": census.lost(map(name_of, range(plan.runs))), "listed": census.runs,
        "fsyncs": after["fsyncs"] - before["fsyncs"], "journal_bytes": after["journal_bytes"] - before["journal_bytes"],
        "ingest_fsyncs": before["fsyncs"], "ingest_journal_bytes": before["journal_bytes"],
    }


def doubts(stats: dict[str, Any]) -> list[str]:
    """What in the server's own lags can't be right: no completion is durable before its run was started or queued."""
    lags = stats["lag_ms"]
    return [
        f"{later}_lag_ms {q} is below {earlier}_lag_ms {q}: the server's {later} lag is too low"
        for earlier, later in (("queued", "start"), ("start", "done")) for q in ("p50", "p99", "p999", "max")
        if lags[later][q] < lags[earlier][q] * (1 - _BUCKET)
    ]


def corpus() -> list[tuple[int, str]]:
    """(times seen in real files, expression) of the corpus that comes with the package."""
    lines = (files(__package__) / "corpus.txt").read_text(encoding="utf-8").splitlines()
    rows = [line.split("\t", 2) for line in lines if line and not line.startswith("#")]
    return [(int(seen), expr) for seen, _, expr in rows if int(seen)]


def recurring_at(due: datetime, n: int) -> list[Cron]:
    """N schedules drawn by frequency, with a fixed seed, from those of the corpus that fire at `due`.

    Those that fire within 4 minutes of it as well are left out, so that each has one occurrence in the bench; so are
    those that no parser of ours takes (other systems' dialects) and H, whose times depend on the job.
    """
    found: list[Cron] = []
    weights: list[int] = []
    for weight, expr in corpus():
        try:
            cron = Cron(expr)
            near = cron.next(due - _QUIET, 2)
        except ScheduleError:
            continue
        if near and near[0] == due and (len(near) == 1 or near[1] > due + _QUIET):
            found.append(cron)
            weights.append(weight)
    return random.Random(SEED).choices(found, weights, k=n) if found and n else []  # noqa: S311 - load, not secrets

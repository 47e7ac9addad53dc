"""The story of `wheelsched demo`: what happens, told as it happens, and a verdict from what was measured."""

from __future__ import annotations

import os
import select
import signal
import time
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from ...client.times import instant_text, span
from ...client.words import number
from ...model.errors import DeadlineExceededError
from ...model.jobs import Job
from ...model.nouns import Call
from ...model.policies import Retry
from ...schedules.schedule import At, Cron, Every
from ..output import Progress
from ..status import lag_line
from . import demo_tasks
from .workbench import Census, ServerProcess, poll

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from ...client.client import Client, Run
    from ...client.values import JobInfo

__all__ = ["Promise", "Story"]

WORKERS: Final = 2
LOAD: Final = 20_000  # one-time jobs in whose middle the server is killed
SPIKE: Final = 100_000
ZONE: Final = "Europe/Berlin"
LAG_P99_S: Final = 5.0
RECOVERY_S: Final = 5.0
PATIENCE_S: Final = 20.0
_PROGRESS: Final = 100  # more than the recurring jobs end in that time
_PUT_PER_S: Final = 50_000  # a cautious guess of how fast jobs are put
_RETRY: Final = Retry(attempts=5, backoff="200ms")
_CRON: Final = Cron("*/2 * * * * *", tz=ZONE)
_INTERVAL: Final = Every("500ms")
_RECURRING: Final = ("demo/every-two-seconds-in-berlin", "demo/every-half-second")
_ONCE, _FLAKY, _HOPELESS, _SLOW = "demo/once", "demo/flaky", "demo/hopeless", "demo/slow"


class Promise:
    """One row of the verdict: what was promised, what was measured, whether it held."""

    def __init__(self, text: str, measured: str, held: bool) -> None:
        self.text = text
        self.measured = measured
        self.held = held


class Story:
    """Goes through it once. `tell` shows one line."""

    def __init__(self, folder: Path, tell: Callable[[str], None]) -> None:
        self.server = ServerProcess(folder, workers=WORKERS, tasks=("wheelsched.cli.bench.demo_tasks",))
        self.promises: list[Promise] = []
        self.result: dict[str, Any] = {}
        self._tell = tell
        self._pipe = str(folder / "pipe")
        self._put: list[str] = []  # acknowledged one-time jobs that must succeed
        self._begun = time.monotonic()
        self._kills = 0
        self._recovery_s = 0.0

    def tell(self, text: str) -> None:
        """One line, with the time since the beginning."""
        self._tell(f"{time.monotonic() - self._begun:5.1f} s  {text}")

    def promise(self, text: str, measured: str, *, held: bool) -> None:
        """A row of the verdict."""
        self.promises.append(Promise(text, measured, held))

    def run(self) -> None:
        """The whole story. DeadlineExceededError when something never happens."""
        with self.server, self.server.client() as client:
            self.tell(f"a server with {WORKERS} workers, pid {self.server.pid}: {self._said()}")
            self._put_jobs(client)
            self._kill_a_worker(client)
            self._retries(client)
            self._kill_the_server(client)
            self._spike(client)
            self._count(client)

    def _said(self) -> str:
        """What the server said of its start: jobs, open runs, generation, time."""
        return self.server.lines[-1].rpartition(f"{self.server.socket}: ")[2].rpartition(" (")[0]

    def _wait(self, what: str, ask: Callable[[], bool], seconds: float = PATIENCE_S) -> None:
        if not poll(ask, seconds):
            last = " | ".join(list(self.server.lines)[-5:])
            raise DeadlineExceededError(f"{what}: not within {seconds:g} s; the server's last words: {last}")

    def _put_jobs(self, client: Client) -> None:
        os.mkfifo(self._pipe)
        soon = At(datetime.now(UTC) + timedelta(milliseconds=300))
        client.put(_RECURRING[0], demo_tasks.ok.call(), _CRON)
        client.put(_RECURRING[1], demo_tasks.ok.call(), _INTERVAL)
        client.put(_ONCE, demo_tasks.ok.call(), soon)
        client.put(_FLAKY, demo_tasks.flaky.call(), soon)
        client.put(_HOPELESS, demo_tasks.hopeless.call(), soon)
        self._put += [_ONCE, _FLAKY]
        self.tell(f"put a cron job ({_CRON.expr} in {ZONE}), one every 500 ms, a one-time job, one that fails twice, one that always fails")

    def _kill_a_worker(self, client: Client) -> None:
        """A run hangs in a worker; the worker is killed; the run must be tried again with a newer token."""
        pipe = os.open(self._pipe, os.O_RDONLY | os.O_NONBLOCK)
        try:
            client.put(_SLOW, demo_tasks.slow.call(self._pipe), At(datetime.now(UTC)))
            if not select.select([pipe], [], [], PATIENCE_S)[0]:
                raise DeadlineExceededError("the slow run did not start")
            pid = int(os.read(pipe, 64))
        finally:
            os.close(pipe)
        self._put.append(_SLOW)
        self.tell(f"{_SLOW} runs in worker process {pid}: kill -9 {pid}")
        killed = datetime.now(UTC)
        os.kill(pid, signal.SIGKILL)
        self._kills += 1
        self._wait("the killed run's second attempt", lambda: _only_run(client, _SLOW).final)
        run = client.run(_only_run(client, _SLOW).id)
        tokens = [a.token or 0 for a in run.attempts]
        started = run.attempts[-1].started_at or run.attempts[-1].ended_at or killed
        again = (started - killed).total_seconds()
        outcomes = ", ".join(str(a.outcome) for a in run.attempts)
        self.tell(f"the worker was replaced and the run started again {span(again)} after the kill: {outcomes}")
        held = run.state == "succeeded" and len(tokens) == 2 and tokens[0] < tokens[1]
        self.promise("a killed worker costs one attempt, never the run", f"{run.state} at attempt {run.attempt}, newer token", held=held)

    def _retries(self, client: Client) -> None:
        self._wait("the retries", lambda: _only_run(client, _FLAKY).final and _only_run(client, _HOPELESS).final)
        flaky = client.run(_only_run(client, _FLAKY).id)
        self.tell(f"{_FLAKY} failed twice ({flaky.attempts[0].error}), then: {flaky.output}")
        held = flaky.state == "succeeded" and flaky.attempt == 3
        self.promise("a failed attempt is retried", f"{flaky.state} at attempt {flaky.attempt}", held=held)
        letters = list(client.dead("demo/*"))
        error = str(letters[0].error) if letters else "none"
        self.tell(f"{_HOPELESS} is a dead letter, kept for a person: {error}")
        held = [r.job for r in letters] == [_HOPELESS] and "never work" in error
        self.promise("a run out of attempts is a dead letter with its error", f"{len(letters)} dead letter: {error}", held=held)

    def _many(self, client: Client, kind: str, n: int) -> datetime:
        """Put n one-time jobs due at one instant, which is given."""
        due = At(datetime.now(UTC) + timedelta(seconds=0.5 + n / _PUT_PER_S))
        names = [f"{kind}/{i:06d}" for i in range(n)]
        with Progress(f"putting {kind}", n) as bar:
            def jobs() -> Iterator[Job]:
                for i, name in enumerate(names):
                    if not i % 1_000:
                        bar.to(i)
                    yield Job(name, Call("demo.ok", name), due, retry=_RETRY)

            begun = time.monotonic()
            client.put_many(jobs())
            took = time.monotonic() - begun
        self._put += names
        self.tell(f"put {number(n)} one-time jobs, all due at {instant_text(due.instant)[11:]}: all durable in {span(took)}")
        instant: datetime = due.instant
        return instant

    def _kill_the_server(self, client: Client) -> None:
        before = client.stats()["counters"]["succeeded"]
        due = self._many(client, "load", LOAD)
        time.sleep(max(0.0, (due - datetime.now(UTC)).total_seconds()))  # until they are due
        seen = client.stats()
        while seen["counters"]["succeeded"] - before < LOAD // 20:  # a twentieth is done: now it is in the middle
            seen = client.stats()
            if (datetime.now(UTC) - due).total_seconds() > PATIENCE_S:
                raise DeadlineExceededError("the load does not run")
        pid, killed = self.server.pid, time.monotonic()
        self.server.kill()
        self._kills += 1
        self.tell(
            f"kill -9 {pid}: the server, with {number(seen['queued'])} runs queued, {number(seen['leased'])} leased,"
            f" {number(seen['counters']['succeeded'] - before)} of the load done"
        )
        self.server.start()
        stats = client.stats()
        self._recovery_s = time.monotonic() - killed
        self.tell(f"restarted on the same data: {self._said()}; it answers {span(self._recovery_s)} after the kill")
        self.promise(
            f"a killed server is back within {RECOVERY_S:g} s", f"{span(self._recovery_s)}, generation {stats['generation']}",
            held=self._recovery_s < RECOVERY_S,
        )
        self._wait("the rest of the load", lambda: _idle(client))
        again = client.stats()["counters"]["retried"]
        self.tell(f"the rest of the load is done; {number(again)} runs had been entered without a durable end and were tried again")

    def _spike(self, client: Client) -> None:
        before = client.stats()["counters"]["succeeded"]
        due = self._many(client, "spike", SPIKE)
        with Progress("running", SPIKE) as bar:
            def count() -> int:
                ended: int = client.stats()["counters"]["succeeded"] - before
                bar.to(ended)
                return ended

            def reached(goal: int) -> bool:
                return count() >= goal

            self._wait("the first run of the spike", partial(reached, 1), (due - datetime.now(UTC)).total_seconds() + PATIENCE_S)
            while (so_far := count()) < SPIKE:  # a busy machine takes longer: what may not be is that nothing goes on
                more = min(so_far + _PROGRESS, SPIKE)
                self._wait(f"{more - so_far} more runs of the spike after {so_far:,}", partial(reached, more))
        drained = datetime.now(UTC) - due
        stats = client.stats()
        lag = stats["lag_ms"]["queued"]
        self.result["queued_lag_ms"] = {q: lag[q] for q in ("p50", "p99", "p999", "max")}
        self.tell(f"{number(SPIKE)} runs due in the same millisecond: queued with {lag_line(lag)} (of all runs since the restart)")
        self.tell(f"first instruction of user code with {lag_line(stats['lag_ms']['start'])}")
        self.tell(f"all {number(SPIKE)} were seen done {span(drained.total_seconds())} after their time")
        p50_s, p99_s = lag["p50"] / 1000, lag["p99"] / 1000
        text = f"due runs are queued within {LAG_P99_S:g} s at p99"
        self.promise(text, f"p50 {span(p50_s)}, p99 {span(p99_s)}", held=p99_s < LAG_P99_S)

    def _count(self, client: Client) -> None:
        for name in _RECURRING:
            client.pause(name)
        self._wait("the last runs", lambda: _idle(client))
        ledger: list[Run] = []
        census, times = Census(), {name: set[datetime]() for name in _RECURRING}
        with Progress("counting", len(self._put)) as bar:
            for run in client.runs(skipped=True):
                if run.state == "skipped":
                    ledger.append(run)
                    continue
                census.add(run)
                bar.step()
                if run.job in times and run.scheduled_at is not None:
                    times[run.job].add(run.scheduled_at)
        lost = census.lost(self._put)
        owed, missing = 0, 0
        for name in _RECURRING:
            wanted = _occurrences(client.get(name))
            owed += len(wanted)
            missing += sum(not _covered(t, times[name], [r for r in ledger if r.job == name]) for t in wanted)
        there = client.stats()["jobs"]
        self.tell(f"counted every run record: {number(census.runs)}, each with an id and a scheduled time of its own")
        self.promise("one run record for a job and scheduled time", f"{number(census.runs)} run records, {census.duplicates} duplicates",
                     held=not census.duplicates)
        measured = f"{number(len(self._put))} one-time jobs, {lost} without success; {number(there)} jobs there"
        self.promise("no acknowledged job is lost", measured, held=not lost and there >= len(self._put) + len(_RECURRING) + 1)
        measured = f"{owed} of the recurring jobs, {missing} without a run or a reason"
        self.promise("no occurrence disappears silently", measured, held=owed > 0 and not missing)
        self.result = {
            "held": all(p.held for p in self.promises), "runs": census.runs, "retried": census.retried,
            "dead": sum(1 for _ in client.dead()), "duplicates": census.duplicates, "lost": lost + missing, "kills": self._kills,
            "recovery_s": round(self._recovery_s, 3), **self.result, "seconds": round(time.monotonic() - self._begun, 1),
        }


def _only_run(client: Client, job: str) -> Run:
    """The one run of a one-time job, once it is there."""
    found: list[Run] = []

    def there() -> bool:
        found[:] = client.runs(job)
        return bool(found)

    if not poll(there, PATIENCE_S):
        raise DeadlineExceededError(f"{job} has no run")
    return found[0]


def _idle(client: Client) -> bool:
    """Nothing of a one-time job is open: nothing waits for a retry, and at most what the two recurring jobs just began runs."""
    stats = client.stats()
    return stats["queued"] + stats["leased"] <= len(_RECURRING) and not list(client.runs(state="retry_wait", limit=1))


def _occurrences(job: JobInfo) -> list[datetime]:
    """Every nominal time of a recurring job from its first put to the last that was decided."""
    if job.created_at is None or job.cursor is None:
        return []
    schedule: Any = job.schedule
    seconds = (job.cursor - job.created_at).total_seconds()
    return [t.astimezone(UTC) for t in schedule.next(job.created_at, int(seconds * 2) + 10) if t <= job.cursor]


def _covered(moment: datetime, times: set[datetime], ledger: list[Run]) -> bool:
    return moment in times or any(
        r.scheduled_at is not None and r.scheduled_at <= moment <= (r.until or r.scheduled_at) for r in ledger
    )

"""A user's code that `mypy --strict` accepts; `reveal_type` lines are compared with the comment behind them."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, reveal_type

from wheelsched import (
    At,
    Call,
    Catchup,
    Client,
    Command,
    Cron,
    Enqueue,
    Every,
    Http,
    Job,
    Manual,
    Overlap,
    Retry,
    current_run,
    task,
)

if TYPE_CHECKING:
    from typing import Unpack

    from wheelsched import AsyncClient, Policies, Run, RunContext, RunPolicies, Schedule, Task


@task("shop.charge", queue="billing", timeout="5m", retry=Retry(attempts=5, backoff=timedelta(seconds=30), not_on=("ValueError",)))
def charge(customer: str, *, cents: int = 100) -> int:
    return cents + current_run().attempt


@task
def bare(n: int) -> str:
    return str(n)


@task("shop.fetch", retry=3, heartbeat_timeout=30)
async def fetch(url: str) -> bytes:
    return url.encode()


@task
async def bare_async() -> float:
    return 1.0


@task("mail.flush", batch=True)
def flush(runs: list[RunContext]) -> list[object]:
    return [run.args[0] for run in runs]


def plain(ws: Client, day: datetime) -> None:
    reveal_type(charge("eu", cents=5))  # int
    reveal_type(charge.call("eu"))  # Call[int]
    reveal_type(ws.enqueue(charge.call("eu"), delay="10m", key="k", timeout="5m", retry=2).result(timeout=30))  # int
    reveal_type(ws.enqueue(bare.call(1), at=timedelta(hours=1), unique=True).result())  # str
    reveal_type(ws.enqueue(fetch.call("x"), at=date(2030, 1, 1), unique=("task", "args")).result())  # bytes
    reveal_type(ws.enqueue(bare_async.call()).refresh().result())  # float
    reveal_type(ws.enqueue(Call("by.name", 1)).result())  # Any
    by_name = Call("by.name", 1)
    reveal_type(by_name)  # Call[Any]
    reveal_type(ws.enqueue(Call[int]("by.name", 1)).result())  # int
    reveal_type(ws.enqueue(Command(["true"])).result())  # int
    reveal_type(ws.enqueue(Http("GET", "https://a.example"))).result()  # Run[int]
    reveal_type(ws.group([bare.call(1), charge.call("eu")], then=bare.call(2), priority=3).run.result())  # str
    reveal_type(ws.run("0" * 32).result())  # Any
    ws.enqueue(flush.call("any", "arguments"))
    put = ws.put(
        "a/b", charge.call("eu").with_headers({"a": "b"}), Cron("0 0 * * *", tz="Europe/Berlin", dst_gap="skip"), overlap="skip",
        catchup=Catchup("latest", window="24h"), jitter="10%", calendar=["de", "us"], start="2026-01-01T00:00:00Z", end=day, max_runs=5,
        late_after=60, on_missed="a/c", pause_after=3, queue="q", priority=5, expires_after=timedelta(hours=1), concurrency_key="eu",
        concurrency=2, redact="password", on_success="x", on_failure="y", on_dead=None, note="n", paused=True, call_timeout="5s",
    )
    reveal_type(put.schedule)
    ws.put("c", bare.call(1), [Every("30s"), At(datetime(2030, 1, 1, tzinfo=UTC))], overlap=Overlap("buffer_all", max=5))
    crons: list[Cron] = [Cron("@daily"), Cron("@hourly")]
    ws.put("d", bare.call(1), crons, timeout=None)
    ws.set("c", schedule=Manual(), overlap=None)
    ws.put_many([Job("e", bare.call(1), Every(30), note="n", overlap="allow")])
    ws.enqueue_many([bare.call(1), Enqueue(charge.call("x"), delay=5, priority=1)])
    ws.queue("q", concurrency=3, rate="100/s", weights={"a": 2})
    ws.calendar("de", dates=["2026-12-25"], weekdays="sat", tz="Europe/Berlin")


async def awaited(ws: AsyncClient) -> None:
    reveal_type(await (await ws.enqueue(charge.call("eu"))).result())  # int
    reveal_type(await (await ws.enqueue(fetch.call("x"))).result())  # bytes
    await ws.put("x", fetch.call("x"), Cron("@daily"), timeout="5m")


def bare_call(call: Call, run: Run) -> None:  # a generic name without its parameter, as code of before has it
    print(call.task, run.id)


def annotated(what: Task[[int], str], when: Schedule) -> Call[str]:
    print(when.next(datetime.now(UTC)))
    return what.call(1)


def wrapped(ws: Client, name: str, **policies: Unpack[Policies]) -> None:
    ws.put(name, annotated(bare, Every("1m")), Every("1m"), **policies)


def wrapped_run(ws: Client, **policies: Unpack[RunPolicies]) -> Run[int]:
    return ws.enqueue(charge.call("eu"), **policies)

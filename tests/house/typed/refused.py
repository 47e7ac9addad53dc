"""A user's slips: `mypy --strict` must refuse the lines that end in `# no`, and no other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wheelsched import Call, Catchup, Client, Cron, Enqueue, Every, Job, Overlap, Retry, task

if TYPE_CHECKING:
    from wheelsched import AsyncClient


@task("one", timeout=object())  # no
def one(n: int) -> int:
    return n


@task("two", timeuot="5m")  # no
def two(n: int) -> int:
    return n


@task("three", queue="q")
def three(n: int) -> int:
    return n


def slips(ws: Client) -> None:
    ws.put("a", three.call(1), Every("1m"), tiemout="5m")  # no
    ws.put("a", three.call(1), Every("1m"), overlap="skipp")  # no
    ws.put("a", three.call(1), Every("1m"), catchup="last")  # no
    ws.put("a", three.call(1), "* * * * *")  # no
    ws.put("a", three.call(1), ["* * * * *"])  # no
    ws.put("a", three, Every("1m"))  # no
    ws.put("a", three.call(1), Every("1m"), priority="high")  # no
    ws.set("a", schedule="* * * * *")  # no
    ws.set("a", tiemout="5m")  # no
    ws.queue("q", concurency=3)  # no
    ws.queue("q", rate=100)  # no
    ws.calendar("c", weekday="sat")  # no
    ws.enqueue(three.call("x"))  # no
    ws.enqueue(three.call(1), tiemout="5m")  # no
    ws.enqueue(three.call(1), overlap="skip")  # no
    ws.enqueue(three.call(1), unique="arg")  # no
    ws.group([three.call(1)], then=three.call(2), retries=3)  # no
    text: str = ws.enqueue(three.call(1)).result()  # no
    print(text)
    Job("a", three.call(1), "* * * * *")  # no
    Job("a", three.call(1), Every("1m"), tiemout=3)  # no
    Enqueue(three.call(1), dealy="5m")  # no
    Overlap("skipp")  # no
    Catchup("last")  # no
    Retry(attempts="3")  # no
    Cron("@daily", dst_gap="later")  # no
    Every([])  # no
    ws.put("a", Call("by.name", 1), Every("1m"), timeout="5m")


async def awaited(ws: AsyncClient) -> None:
    await ws.put("a", three.call(1), "* * * * *")  # no
    await ws.enqueue(three.call(1), tiemout="5m")  # no
    await ws.queue("q", concurency=3)  # no
    text: str = await (await ws.enqueue(three.call(1))).result()  # no
    print(text)

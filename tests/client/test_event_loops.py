"""One AsyncClient in several event loops, and clients on both sides of a fork."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import threading

import pytest

from tests.rigs.server import Serving
from wheelsched import AsyncClient, Call, Client, FailedPreconditionError

pytestmark = [pytest.mark.filterwarnings("ignore::ResourceWarning"),  # of a transport that is left behind in a closed loop
              pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")]


@pytest.fixture
def served(short_tmp):
    server = Serving(short_tmp, workers=0)
    server.client()
    yield server
    server.end()
    for one in server.open:
        one.close()
    gc.collect()


async def enqueue(client, n=1):
    return (await client.enqueue(Call("t.echo", n))).id


def of_runs(served):
    with Client(served.socket) as ws:
        return [run.id for run in ws.runs()]


def test_f6_a_client_in_one_loop_after_another(served):
    client = AsyncClient(served.socket, timeout="20s")
    ids = [asyncio.run(enqueue(client, n)) for n in range(4)]
    assert sorted(of_runs(served)) == sorted(ids)
    asyncio.run(client.close())
    with pytest.raises(FailedPreconditionError, match="closed"):
        asyncio.run(enqueue(client))


def test_f6_a_call_that_was_given_up_in_a_loop_that_is_gone_is_not_sent_in_the_next_one(served):
    client = AsyncClient(served.socket, timeout="20s")

    async def give_up():
        await enqueue(client, 0)
        task = asyncio.ensure_future(client.wait_run("00" * 16, 10))
        await asyncio.sleep(0)
        return task

    asyncio.run(give_up())  # ends with a task that waits: it is cancelled with its loop
    asyncio.run(enqueue(client, 1))
    assert len(of_runs(served)) == 2
    asyncio.run(client.close())


def test_f6_a_loop_that_stands_still_gives_its_client_away_and_gets_it_back(served):
    first, second = asyncio.new_event_loop(), asyncio.new_event_loop()
    client = AsyncClient(served.socket, timeout="20s")
    for loop in (first, second, first):
        loop.run_until_complete(enqueue(client))
    waits = first.create_task(client.wait_run(of_runs(served)[0], 30))
    first.run_until_complete(asyncio.sleep(0.01))
    with pytest.raises(FailedPreconditionError, match="another event loop"):  # somebody there waits for an answer
        second.run_until_complete(enqueue(client))
    waits.cancel()
    with pytest.raises(asyncio.CancelledError):
        first.run_until_complete(waits)
    second.run_until_complete(enqueue(client))
    second.run_until_complete(client.close())
    assert len(of_runs(served)) == 4
    for loop in (first, second):
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()


def test_f6_a_loop_that_runs_in_another_thread_keeps_its_client(served):
    client = AsyncClient(served.socket, timeout="20s")
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        asyncio.run_coroutine_threadsafe(enqueue(client, 0), loop).result(20)
        for ask in (enqueue(client, 1), client.close()):
            with pytest.raises(FailedPreconditionError, match="make one AsyncClient for each loop"):
                asyncio.run(ask)
        asyncio.run_coroutine_threadsafe(enqueue(client, 2), loop).result(20)
        asyncio.run_coroutine_threadsafe(client.close(), loop).result(20)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
    assert len(of_runs(served)) == 2


FORKS = """
import asyncio, os, sys
from wheelsched import AsyncClient, Call, Client

def both(parent, child):
    pid = os.fork()
    if pid == 0:
        try:
            child()
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0
    parent()

with Client(sys.argv[1], timeout="20s") as ws:
    ws.enqueue(Call("t.echo", 1))
    mark = ws._transport._link
    both(lambda: ws.enqueue(Call("t.echo", 2)), ws.close)
    both(lambda: ws.enqueue(Call("t.echo", 3)), lambda: ws.enqueue(Call("t.echo", 4)))
    assert ws._transport._link is mark and not mark.gone, "the parent's connection stands"

client = AsyncClient(sys.argv[1], timeout="20s")
async def enqueue(n): return await client.enqueue(Call("t.echo", n))
async def main():
    await enqueue(5)
    mark = client._transport._link
    pid = os.fork()
    if pid == 0:
        asyncio._set_running_loop(None)
        asyncio.run(enqueue(6))
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    await enqueue(7)
    assert client._transport._link is mark and not mark.gone
    await client.close()
asyncio.run(main())
"""


@pytest.mark.slow
def test_f6_a_forked_child_leaves_the_connection_of_its_parent_alone(served):
    done = subprocess.run([sys.executable, "-c", FORKS, served.socket], capture_output=True, text=True, check=False, env=os.environ, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(of_runs(served)) == 7

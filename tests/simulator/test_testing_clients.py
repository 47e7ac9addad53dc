"""Code under test that makes clients of its own reaches the simulator of the fixture, and nothing else."""

from __future__ import annotations

import asyncio

import pytest

from tests.rigs.client import FakeServer
from wheelsched import AsyncClient, Call, Client, Every, FailedPreconditionError, RunFailed, RunTimeout, task
from wheelsched.simulator.simulator import Simulator

EARLY = Client()  # as a module of an application makes it, at its import
EARLY_ASYNC = AsyncClient()


@task("shop.add", retry=1)
def add(a, b):
    return a + b


@task("shop.fail", retry=1)
def fail():
    raise ValueError("no")


def view(a):
    """Of an application."""
    with Client() as ws:
        return ws.enqueue(add.call(a, 1)).id


async def route(a):
    async with AsyncClient() as ws:
        run = await ws.enqueue(add.call(a, 1))
        return await run.result(timeout=5)


@pytest.mark.wheelsched(tasks=[add, fail])
def test_n_a8_a_client_of_the_code_under_test_is_the_simulators(wheelsched, monkeypatch, short_tmp):
    monkeypatch.setenv("WHEELSCHED_SOCKET", str(short_tmp / "the-live-one"))
    run_id = view(4)
    wheelsched.assert_enqueued("shop.add", count=1)
    wheelsched.advance(0)
    assert wheelsched.client.run(run_id).output == 5
    with Client() as ws:
        assert ws.enqueue(add.call(1, 2)).result() == 3
        with pytest.raises(RunFailed, match="ValueError: no"):
            ws.enqueue(fail.call()).result()
        ws.put("j", add.call(1, 1), Every("1h"))
        assert [job.name for job in ws.jobs("j")] == ["j"]
        with pytest.raises(RunTimeout):
            ws.queue_pause("q")
            ws.pause("j")
            ws.enqueue(add.call(1, 1), queue="q").result()
        events = ws.events(since="oldest", limit=3)
        assert len(list(events)) == 3
    wheelsched.advance("3h")
    assert not wheelsched.runs("j")


@pytest.mark.wheelsched(tasks=[add])
def test_n_a8_so_is_an_asyncio_client(wheelsched):
    assert asyncio.run(route(7)) == 8
    wheelsched.client.put_many([])

    async def more():
        ws = wheelsched.async_client
        run = await ws.enqueue(add.call(2, 2), delay="1h")
        await ws.put("j", add.call(1, 1), Every("10m"))
        names = [job.name async for job in ws.jobs("j")]
        done = await ws.apply([])
        return await run.result(), names, bool(done)

    assert asyncio.run(more()) == (4, ["j"], False)
    wheelsched.advance(0)
    assert len(wheelsched.runs("j")) == 6, "it waited in virtual time"


@pytest.mark.wheelsched(tasks=[add])
def test_n_a8_so_are_clients_that_were_made_before(wheelsched, monkeypatch):
    monkeypatch.delenv("WHEELSCHED_SOCKET", raising=False)
    EARLY.enqueue(Call("shop.add", 1, 1))

    async def early():
        await EARLY_ASYNC.enqueue(Call("shop.add", 2, 2))

    asyncio.run(early())
    wheelsched.assert_enqueued("shop.add", count=2)


def test_n_a8_a_client_with_a_path_of_its_own_is_refused(wheelsched, short_tmp):
    with FakeServer(str(short_tmp / "s"), lambda peer, _: peer.hello()), Client(str(short_tmp / "s")) as ws, \
            pytest.raises(FailedPreconditionError, match=r"connections=True\) allows real connections"):
        ws.stats()


@pytest.mark.wheelsched(connections=True)
def test_n_a8_unless_real_connections_are_wanted(wheelsched, serving):
    assert wheelsched.client.stats()["jobs"] == 0
    server = serving(workers=0)
    assert server.client().stats()["pid"] == server.process.pid


def test_n_a8_nothing_is_left_of_it_behind_the_test(short_tmp):
    with Client(str(short_tmp / "s")) as ws, pytest.raises(Exception, match="no server at"):
        ws.stats()


def test_n_a8_a_simulator_without_the_fixture_has_an_asyncio_client():
    async def use(sim):
        ws = sim.async_client
        run = await ws.enqueue(add.call(20, 1))
        value = await run.result()
        await ws.close()
        with pytest.raises(FailedPreconditionError, match="closed"):
            await ws.stats()
        return value

    with Simulator(tasks=[add]) as sim:
        assert asyncio.run(use(sim)) == 21


def test_n_c2_a_module_is_taken_as_well_as_a_list_of_them():
    with Simulator(modules=__name__) as sim:
        assert sim.client.enqueue(add.call(1, 1)).result() == 2

"""Many threads, coroutines and processes at one client."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import wheelsched
from tests.rigs.client import Driven, FakeServer, job_raw
from wheelsched import AsyncClient, Call, Client, Job, Manual, UnavailableError, WheelschedError


@pytest.fixture(params=[Client, Driven], ids=["sync", "async"])
def make(request):
    return request.param


@pytest.fixture
def path(short_tmp):
    return str(short_tmp / "s")


def shuffled(peer, number):
    """Answers eight at a time in another order."""
    rng = random.Random(number)
    peer.hello()
    while True:
        waiting = [peer.read() for _ in range(8)]
        if waiting[0] is None:
            return
        rng.shuffle(waiting)
        for request in waiting:
            peer.ok(request, job_raw(name=request.args["name"]))


def test_threads_share_a_connection_and_get_their_own_answers(path):
    with FakeServer(path, shuffled) as server, Client(path) as ws:
        wrong = []

        def work(k):
            for i in range(50):
                if ws.get(f"{k}/{i}").name != f"{k}/{i}":
                    wrong.append((k, i))

        threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not any(thread.is_alive() for thread in threads)
        assert (wrong, server.connections) == ([], 1)


def test_coroutines_share_a_connection_and_get_their_own_answers(path):
    async def main():
        async with AsyncClient(path) as ws:
            for _ in range(10):
                names = [f"n/{i}" for i in range(40)]
                assert [job.name for job in await asyncio.gather(*(ws.get(name) for name in names))] == names

    with FakeServer(path, shuffled) as server:
        asyncio.run(main())
        assert server.connections == 1


def test_a_cancelled_coroutine_leaves_the_others_alone(path):
    cancelled = threading.Event()

    def handle(peer, number):
        peer.hello()
        first, second = peer.read(), peer.read()
        peer.ok(second, job_raw(name="b"))
        assert cancelled.wait(10)
        peer.ok(first, job_raw(name="a"))
        peer.ok(peer.read(), job_raw(name="c"))
        peer.read()

    async def main():
        async with AsyncClient(path) as ws:
            first = asyncio.create_task(ws.get("a"))
            await asyncio.sleep(0)
            second = asyncio.create_task(ws.get("b"))
            await second
            first.cancel()
            with pytest.raises(asyncio.CancelledError):
                await first
            assert ws._transport._session.idle  # nothing is kept for the one that went away
            cancelled.set()
            assert (await ws.get("c")).name == "c"

    with FakeServer(path, handle):
        asyncio.run(main())


def test_close_ends_what_another_thread_waits_for(path):
    asked = threading.Event()

    def handle(peer, number):
        peer.hello()
        peer.read()
        asked.set()
        peer.read()

    caught = []

    def work(ws):
        try:
            ws.get("x")
        except UnavailableError as e:
            caught.append(e)

    with FakeServer(path, handle), Client(path) as ws:
        thread = threading.Thread(target=work, args=(ws,))
        thread.start()
        assert asked.wait(10)
        ws.close()
        thread.join(10)
        assert not thread.is_alive()
    assert "closed" in str(caught[0])


def test_a_server_that_answers_before_it_reads_on_is_no_deadlock(path):
    begun, big = threading.Event(), "x" * (8 << 20)

    def handle(peer, number):
        peer.hello()
        stats = peer.read()
        assert peer.sock.recv(4)  # the first of a frame; the rest fills the socket
        begun.set()
        peer.ok(stats, {"big": big})  # can't be sent unless the client reads while it writes
        peer.reader.feed(b"")
        rest = peer.sock.recv(1 << 20)
        while rest:
            rest = peer.sock.recv(1 << 20)

    got = []
    with FakeServer(path, handle), Client(path, retry_for=0) as ws:
        reader = threading.Thread(target=lambda: got.append(ws.stats()))
        reader.start()

        def write():
            with pytest.raises(WheelschedError):
                ws.put_many([Job(f"n{i}", Call("t", b"x" * 200_000), Manual()) for i in range(20)], timeout=5)

        writer = threading.Thread(target=write)
        writer.start()
        reader.join(30)
        assert got == [{"big": big}]
        assert begun.is_set()
        ws.close()
        writer.join(30)
        assert not writer.is_alive()


def test_a_forked_child_makes_a_connection_of_its_own(path):
    script = """
import os, sys
from wheelsched import Client
ws = Client(sys.argv[1])
first = ws.get("x").version
child = os.fork()
if child == 0:
    os._exit(10 + ws.get("x").version)
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
print(first, status, ws.get("x").version)
ws.close()
"""

    def handle(peer, number):
        peer.hello()
        while (request := peer.read()) is not None:
            peer.ok(request, job_raw(version=number))

    env = {**os.environ, "PYTHONPATH": str(Path(wheelsched.__file__).parents[1])}
    with FakeServer(path, handle):
        done = subprocess.run([sys.executable, "-c", script, path], capture_output=True, text=True, timeout=60, check=False, env=env)
    assert done.stdout.split() == ["0", "11", "0"], done.stderr

"""Single runs beside strangers that flood the server with questions, against a real server with two workers.

Each stranger opens a connection, sends 900 requests for pages of all jobs at once and reads whatever comes back, and again when all is
answered. Meanwhile one-time runs come due at random instants, a worker of its own holds runs by heartbeats at the default lease, and
another client puts single jobs. The start lag is from a run's scheduled time to the first instruction of user code.
"""

from __future__ import annotations

import random
import socket
import struct
import threading
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import msgpack

from wheelsched.cli.bench.latency import TASK, percentiles
from wheelsched.cli.bench.workbench import Folder, ServerProcess, poll
from wheelsched.model.jobs import Job
from wheelsched.model.nouns import Call
from wheelsched.protocol.frames import encode_request
from wheelsched.schedules.schedule import At, Manual

if TYPE_CHECKING:
    from wheelsched.client.client import Client, Run

NAME = "flood"
DESCRIPTION = "start lag of single no-op runs, round trip of a put and leases kept, beside N connections with 900 listings each under way"

SEED = 20261130
ASKED = 900  # requests of one connection under way
GAP_S = 0.05
LEAD_S = 2.0
HELD = "bench.held"  # what the worker of its own holds
PATIENCE_S = 600.0


def run(smoke: bool = False) -> list[dict[str, Any]]:
    """The rows; `smoke` is a small size that only shows that it works."""
    jobs, seconds, strangers = (500, 1.0, (1,)) if smoke else (10_000, 20.0, (0, 1, 12))
    rows: list[dict[str, Any]] = []
    for n in strangers:
        with Folder() as folder:
            server = ServerProcess(folder, workers=2)
            with server, server.client() as client:
                client.put_many(Job(f"fodder/{i}", Call(TASK), Manual()) for i in range(jobs))
                rows += _measure(client, server.socket, n, seconds)
    return rows


def _measure(client: Client, path: str, strangers: int, seconds: float) -> list[dict[str, Any]]:
    held = [client.enqueue(Call(HELD), timeout="1h") for _ in range(4)]
    worker = _Worker(path, len(held))
    worker.start()
    draw = random.Random(SEED)
    due = [datetime.now(UTC) + timedelta(seconds=LEAD_S)]
    while due[-1] < due[0] + timedelta(seconds=seconds):
        due.append(due[-1] + timedelta(seconds=draw.expovariate(1 / GAP_S)))
    client.put_many(Job(f"single/{i}", Call(TASK), At(at)) for i, at in enumerate(due))
    floods = [_Stranger(path) for _ in range(strangers)]
    for flood in floods:
        flood.start()
    puts = []
    while datetime.now(UTC) < due[-1]:
        begun = time.perf_counter()
        client.put(f"put/{len(puts)}", Call(TASK), Manual())
        puts.append((time.perf_counter() - begun) * 1000)
        time.sleep(GAP_S)
    time.sleep(0.5)
    for flood in floods:
        flood.end()
    if not poll(lambda: client.queue("default").queued + client.queue("default").leased == len(held), PATIENCE_S):
        raise TimeoutError(f"the server was not through after {PATIENCE_S:g} s")
    runs = list(client.runs("single/*"))
    worker.end()
    assert len(runs) == len(due)
    assert all(r.state == "succeeded" for r in runs), "a run was lost"
    name = f"{strangers} strangers"
    rows = [{"name": f"{name}: start lag {q}", "value": v, "unit": "ms", "n": len(runs)} for q, v in percentiles(_lags(runs)).items()]
    rows += [{"name": f"{name}: put {q}", "value": v, "unit": "ms", "n": len(puts)} for q, v in percentiles(puts).items()]
    rows.append({"name": f"{name}: leases lost", "value": worker.lost, "unit": "runs", "n": len(held)})
    if floods:
        pages = sum(flood.answered for flood in floods)
        rows.append({"name": f"{name}: pages for them", "value": pages / seconds, "unit": "pages/s", "n": max(pages, 1)})
    return rows


def _lags(runs: list[Run]) -> list[float]:
    return [(r.started_at - r.scheduled_at).total_seconds() * 1000 for r in runs if r.started_at and r.scheduled_at]


class _Peer(threading.Thread):
    """A connection of its own, in a thread."""

    def __init__(self, path: str) -> None:
        super().__init__(daemon=True)
        self._sock = socket.socket(socket.AF_UNIX)
        self._sock.connect(path)
        self._ended = threading.Event()

    def end(self) -> None:
        self._ended.set()
        self._sock.shutdown(socket.SHUT_RDWR)
        self.join()
        self._sock.close()

    def _read(self, n: int) -> bytes:
        data = self._sock.recv(n, socket.MSG_WAITALL)
        if len(data) < n:
            raise ConnectionError
        return data


class _Stranger(_Peer):
    answered = 0

    def run(self) -> None:
        asked = b"".join(encode_request(1 + i, "jobs", {"match": None, "state": None, "after": None, "limit": 1_000}) for i in range(ASKED))
        try:
            while not self._ended.is_set():
                self._sock.sendall(asked)
                for _ in range(ASKED):
                    self._read(struct.unpack(">I", self._read(4))[0])
                    self.answered += 1
        except OSError:
            assert self._ended.is_set(), "a stranger was dropped"


class _Worker(_Peer):
    """Holds runs and renews their lease, as DESIGN's external workers do."""

    def __init__(self, path: str, wanted: int) -> None:
        super().__init__(path)
        self.lost = 0
        self._number = 0
        hello = self._ask("hello", {"version": 1, "role": "worker", "name": "holder", "tasks": {HELD: {}}})
        self._every_s = hello["heartbeat_us"] / 1e6
        self._ids, self._tokens = b"", b""
        while len(self._tokens) < 8 * wanted:
            got = self._ask("lease", {"queues": [], "credits": wanted, "wait_us": 5_000_000})
            if got["n"]:
                self._ids, self._tokens = self._ids + got["id"], self._tokens + got["token"]

    def _ask(self, verb: str, args: dict[str, Any]) -> Any:
        self._number += 1
        self._sock.sendall(encode_request(self._number, verb, args))
        _, _, result = msgpack.unpackb(self._read(struct.unpack(">I", self._read(4))[0]))
        return result

    def run(self) -> None:
        n = len(self._tokens) // 8
        while not self._ended.wait(self._every_s):
            try:
                told = self._ask("heartbeat", {"id": self._ids, "token": self._tokens, "started": bytes([1]) * n, "progress": []})
            except OSError:
                return
            self.lost = max(self.lost, len(told["stale"]))

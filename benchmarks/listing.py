"""Listing finished runs of a real server, in rows and in columns.

N enqueued no-op runs are drained and have gone to history. Then all are listed: as objects, and as numpy arrays by name
(`columns=True`, ids included). The floor is a copy of as many bytes as the columns take on the wire, through a Unix socket in one process.
"""

from __future__ import annotations

import socket
import threading
import time
from typing import Any

from wheelsched.cli.bench.latency import TASK
from wheelsched.cli.bench.workbench import Folder, ServerProcess, poll
from wheelsched.model.nouns import Call

NAME = "listing"
DESCRIPTION = "rows a second of a listing of N finished runs: as objects, and in columns; one client"

FRAME = 10_000
BYTES_A_ROW = 24  # of the columns on the wire, ids included: about this
PATIENCE_S = 600.0


def run(smoke: bool = False) -> list[dict[str, Any]]:
    """The rows; `smoke` is a small size that only shows that it works."""
    n = 5_000 if smoke else 1_000_000
    with Folder() as folder:
        server = ServerProcess(folder, workers=2)
        with server, server.client() as client:
            for start in range(0, n, FRAME):
                client.enqueue_many([Call(TASK) for _ in range(min(FRAME, n - start))])
            if not poll(lambda: client.queue("default").queued + client.queue("default").leased == 0, PATIENCE_S):
                raise TimeoutError(f"the server was not through after {PATIENCE_S:g} s")
            few = min(n, 100_000)
            began = time.perf_counter()
            objects = sum(1 for _ in client.runs(limit=few))
            rows_s = time.perf_counter() - began
            client.runs(limit=1, columns=True)  # numpy is loaded
            began = time.perf_counter()
            columns = client.runs(columns=True)
            columns_s = time.perf_counter() - began
    assert objects == few, objects
    assert columns.rows == n, columns.rows
    assert set(columns["state"]) == {"succeeded"}, "a run was lost"
    ours = n / columns_s
    floor = n / _copied(n * BYTES_A_ROW)
    return [
        {"name": "columns", "value": ours, "unit": "rows/s", "n": n},
        {"name": "objects", "value": few / rows_s, "unit": "rows/s", "n": few, "ratio": few / rows_s / ours},
        {"name": "floor: the same bytes through a socket", "value": floor, "unit": "rows/s", "n": n, "ratio": floor / ours},
    ]


def _copied(size: int) -> float:
    """Seconds that so many bytes take through a Unix socket."""
    a, b = socket.socketpair()
    piece = bytes(1 << 20)

    def send() -> None:
        for _ in range(-(-size // len(piece))):
            a.sendall(piece)
        a.close()

    sender = threading.Thread(target=send)
    began = time.perf_counter()
    sender.start()
    while b.recv(1 << 20):
        pass
    took = time.perf_counter() - began
    sender.join()
    b.close()
    return took

"""What a caller is told while the server drains: at once that it waits, and at the end that nothing was done."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import wheelsched
from tests.rigs.server import wait_for
from wheelsched import Call, UnavailableError

ROOT = str(Path(wheelsched.__file__).resolve().parents[1])


def draining(serving, short_tmp):
    server = serving("--drain", "5m")
    ws = server.client()
    run = ws.enqueue(Call("t.gate", str(short_tmp / "gate")))
    wait_for(lambda: run.refresh().state == "running")
    server.process.send_signal(signal.SIGTERM)
    wait_for(lambda: "draining" in server.log.read_text())
    return server, run


def test_n_b23_enqueue_at_a_server_that_drains(serving, short_tmp):
    server, _ = draining(serving, short_tmp)
    done = subprocess.run(
        [sys.executable, "-m", "wheelsched", "--socket", server.socket, "--timeout", "1s", "enqueue", "t.echo", "--args", "[1]"],
        env={**os.environ, "PYTHONPATH": ROOT}, capture_output=True, text=True, timeout=60, check=False,
    )
    assert done.returncode == 5, done.stderr
    first, last = done.stderr.splitlines()
    assert first.startswith("wheelsched: waiting for the next server, for 1s (--timeout D): the server is stopping: it takes nothing new")
    assert last.startswith("wheelsched: the server is stopping: it takes nothing new while what runs ends, for up to 4m")
    assert last.endswith("this was not done: repeat it when the next one is up")
    with server.client(retry_for=0) as ws, pytest.raises(UnavailableError, match="this was not done") as refused:
        ws.enqueue(Call("t.echo", 1))
    assert refused.value.detail["stopping"] is True
    (short_tmp / "gate").touch()
    server.process.wait(30)


def test_n_b23_a_short_drain_is_waited_for(serving, short_tmp):
    server, _ = draining(serving, short_tmp)
    ws = server.client()
    told = []
    ws.tell_waiting(lambda why: (told.append(why), (short_tmp / "gate").touch(), server.process.wait(30), serving()))
    run = ws.enqueue(Call("t.echo", 7))
    assert run.result(timeout=30) == 7
    assert len(told) == 1

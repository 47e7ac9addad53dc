"""Workers in other languages, written from wheelsched/manual/protocol.md alone, against a real server.

The same scenarios for both: foreign_worker.py (standard library only) and foreign_worker.js (Node.js, MessagePack from npm).
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from datetime import UTC, datetime

import pytest

from tests.rigs.places import FOREIGN
from tests.rigs.server import wait_for
from wheelsched import Call, ResultNotKept, Retry

NOW = Retry(attempts=3, backoff="1ms", cap="1ms")


@pytest.fixture(scope="session")
def node_modules(tmp_path_factory):
    """A folder of npm packages, or a skip that says why there is none."""
    if not (shutil.which("node") and shutil.which("npm")):
        pytest.skip("node and npm are not installed")
    folder = tmp_path_factory.mktemp("npm")
    shutil.copy(FOREIGN / "package.json", folder)
    try:
        done = subprocess.run(
            ["npm", "install", "--no-audit", "--no-fund", "--fetch-retries=0"], cwd=folder, capture_output=True, text=True, timeout=60, check=False
        )
    except subprocess.TimeoutExpired:
        pytest.skip("npm install took too long: no registry is reachable")
    if done.returncode:
        pytest.skip(f"npm install failed (no registry?): {done.stderr.strip().splitlines()[:1]}")
    return folder / "node_modules"


class Foreign:
    """One worker process and the events that it printed."""

    def __init__(self, argv, env):
        self.process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env={**os.environ, **env})
        self.events = []
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()
        self.wait("hello")

    def read(self):
        for line in self.process.stdout:
            self.events.append(json.loads(line))

    def of(self, event, **fields):
        return [e for e in self.events if e["event"] == event and fields.items() <= e.items()]

    def wait(self, event, count=1, **fields):
        wait_for(lambda: len(self.of(event, **fields)) >= count, 30)
        return self.of(event, **fields)

    def close(self):
        self.process.kill()
        self.process.wait()
        self.reader.join()
        self.process.stdout.close()


@pytest.fixture(params=["python", "node"])
def foreign(request, serving):
    """Starts (server, worker, client) of one language."""
    if request.param == "node":
        argv, env = ["node", str(FOREIGN / "foreign_worker.js")], {"NODE_PATH": str(request.getfixturevalue("node_modules"))}
    else:
        argv, env = [sys.executable, "-I", str(FOREIGN / "foreign_worker.py")], {}
    made = []

    def start(*flags, room=4, concurrency=2):
        server = serving(*flags, workers=0)
        client = server.client()
        options = [str(room), str(concurrency)]
        if request.param == "python":
            options = ["--credits", options[0], "--concurrency", options[1]]
        made.append(Foreign([*argv, server.socket, *options], env))
        return server, made[-1], client

    yield start
    for worker in made:
        worker.close()


def outcomes(client, run):
    return [attempt.outcome for attempt in client.run(run.id).attempts]


def test_arguments_results_and_failures_arrive_as_they_were(foreign):
    _, worker, ws = foreign()
    at = datetime(2026, 3, 29, 1, 30, 0, 123456, tzinfo=UTC)
    args = [None, True, False, 0, -1, 127, 128, -33, 2**63 - 1, -(2**63), 1.5, -1e300, "", "ß漢🙂", "x" * 70_000, b"\x00\xff" * 200, [[], {}], at]
    kwargs = {"empty": {}, "deep": {"a": [{"b": [1, [2, [3]]]}]}, **{f"k{i}": i for i in range(20)}}
    assert ws.enqueue(Call("foreign.echo", *args, **kwargs)).result(timeout=20) == [args, kwargs]

    told = ws.enqueue(Call("foreign.facts"), queue="far")
    value = told.result(timeout=20)
    run = ws.run(told.id)
    assert value == {
        "id": run.id, "job": "default/~foreign.facts", "attempt": 1, "token": run.token, "missed": 0, "task": "foreign.facts", "queue": "far",
        "scheduled_us": int(run.scheduled_at.timestamp() * 1e6), "headers": {},
    }
    assert run.stdout == b"a line\n"
    assert run.scheduled_at <= run.started_at <= run.ended_at

    failing = ws.enqueue(Call("foreign.fail", 1), retry=NOW)
    assert failing.result(timeout=20) == 2
    first, second = ws.run(failing.id).attempts
    assert [first.outcome, second.outcome] == ["failed", "succeeded"]
    assert first.token < second.token
    assert first.error.type in ("ValueError", "RangeError")
    assert first.error.message == "attempt 1 of default/~foreign.fail fails"
    assert "foreign_worker" in first.error.traceback
    assert all(e["accepted"] for e in worker.wait("verdict", 4))


def test_f5_a_value_that_is_too_long_costs_no_run(foreign):
    _, worker, ws = foreign()
    run = ws.enqueue(Call("foreign.echo", *["x" * 50_000] * 4), retry=NOW)
    with pytest.raises(ResultNotKept):
        run.result(timeout=20)
    assert run.output.bytes > 200_000
    assert outcomes(ws, run) == ["succeeded"]
    assert len(worker.of("start", run=run.id)) == 1


def test_timeout_and_cancel_are_the_workers_to_enforce(foreign):
    _, worker, ws = foreign(room=3, concurrency=1)
    slow = ws.enqueue(Call("foreign.sleep", 100), timeout="300ms", retry=Retry(attempts=2, backoff="1ms", cap="1ms"))
    wait_for(lambda: ws.run(slow.id).state == "dead")
    assert outcomes(ws, slow) == ["timed_out", "timed_out"]
    held, behind = ws.enqueue(Call("foreign.sleep", 100)), ws.enqueue(Call("foreign.echo"))
    worker.wait("start", run=held.id)
    wait_for(lambda: ws.run(behind.id).state == "leased")  # held by the worker, behind the one that runs
    ws.cancel(behind.id)
    ws.cancel(held.id)
    worker.wait("cancel", run=held.id)
    wait_for(lambda: ws.run(held.id).state == ws.run(behind.id).state == "cancelled")
    assert outcomes(ws, held) == ["cancelled"]
    assert not worker.of("start", run=behind.id)
    assert ws.enqueue(Call("foreign.echo", 1)).result(timeout=20) == [[1], {}]


def test_a_finish_is_repeated_to_the_server_that_comes_up_again(foreign, serving):
    server, worker, ws = foreign()
    run = ws.enqueue(Call("foreign.sleep", 1))
    long = ws.enqueue(Call("foreign.sleep", 3))
    token = worker.wait("start", run=run.id)[0]["token"]
    worker.wait("start", run=long.id)
    server.end(signal.SIGKILL)
    worker.wait("away")
    serving(workers=0).client()
    first, second = worker.wait("hello", 2)
    assert first["generation"] < second["generation"]
    assert first["instance"] != second["instance"]
    assert run.result(timeout=20) == "slept"
    assert worker.wait("verdict", run=run.id, token=token)[-1]["accepted"]
    assert long.result(timeout=20) == "slept"  # renewed at the new server by the heartbeats of the old lease
    assert outcomes(ws, run) == outcomes(ws, long) == ["succeeded"]
    assert len(worker.of("start")) == 2


@pytest.mark.slow
def test_a_frozen_worker_is_told_that_it_lost_its_lease(foreign):
    _, worker, ws = foreign()
    run = ws.enqueue(Call("foreign.sleep", 600, first=True), retry=NOW)
    old = worker.wait("start", run=run.id)[0]["token"]
    worker.process.send_signal(signal.SIGSTOP)
    wait_for(lambda: ws.run(run.id).state == "queued", 30)
    worker.process.send_signal(signal.SIGCONT)
    worker.wait("stale", run=run.id, token=old)
    assert run.result(timeout=20) == "attempt 2"
    assert not worker.wait("verdict", run=run.id, token=old)[0]["accepted"]
    first, second = ws.run(run.id).attempts
    assert [first.outcome, second.outcome] == ["lost", "succeeded"]
    assert old == first.token < second.token


def test_a_graceful_end_finishes_what_runs_and_hands_back_the_rest(foreign):
    _, worker, ws = foreign(room=4, concurrency=1)
    runs = [ws.enqueue(Call("foreign.sleep", 1)) for _ in range(3)]
    worker.wait("start", run=runs[0].id)
    wait_for(lambda: all(ws.run(run.id).state == "leased" for run in runs[1:]))
    worker.process.send_signal(signal.SIGTERM)
    assert worker.process.wait(20) == 0
    worker.wait("bye")
    assert outcomes(ws, runs[0]) == ["succeeded"]
    for run in runs[1:]:
        assert ws.run(run.id).state == "queued"
        assert ws.run(run.id).attempt == 0, "no attempt was spent"
    assert len(worker.of("start")) == 1


def test_a_server_that_ends_leaves_the_worker_alone(foreign, serving):
    server, worker, ws = foreign()
    run = ws.enqueue(Call("foreign.sleep", 2))
    worker.wait("start", run=run.id)
    assert server.end() == 0
    serving(workers=0).client()
    assert run.result(timeout=20) == "slept"
    assert outcomes(ws, run) == ["succeeded"]
    assert len(worker.of("server_stops")) <= 1, "told if it was asking just then"
    assert len(worker.of("hello")) == 2

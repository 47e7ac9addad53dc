"""Waiting for a run: every way to end answers, over retries, kills of the server, and folds into history; results that expire."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading

import pytest

from tests.rigs.engine import CALL, FAILED, Waiting
from tests.rigs.server import wait_for
from wheelsched import AsyncClient, Call, Every, Manual, NotFoundError, Retry
from wheelsched.model.nouns import Outcome

TASKS = """
import time
from pathlib import Path
from wheelsched import current_run, task

@task("w.gated")
def gated(folder):
    while not Path(folder, "gate").exists():
        time.sleep(0.01)  # the test opens it
    if not Path(folder, "failed").exists():
        Path(folder, "failed").touch()
        raise ValueError("the first that gets here")
    return current_run().attempt
"""


def queued(b, **policies):
    b.put("j", Manual(), **policies)
    return b.client.trigger("j")


def leased(b):
    run = queued(b, retry=Retry(attempts=1))
    b.leases = b.lease()
    return run


def retrying(b):
    run = queued(b, retry=Retry(attempts=3))
    b.finish(b.lease(), FAILED)
    return run


def scheduled(b):
    b.put("j", Every("60s"), jitter="30s")
    for _ in range(120):
        b.advance(1)
        found = [run for run in b.runs("j") if run.state == "scheduled"]
        if found:
            return found[0]
    raise AssertionError("no run was put off")


ENDINGS = {
    "success": (queued, lambda b, _: b.finish(b.lease()), "succeeded"),
    "death": (leased, lambda b, _: b.finish(b.leases, FAILED), "dead"),
    "loss": (leased, lambda b, _: b.advance(30), "dead"),
    "cancel of a queued one": (queued, lambda b, run: b.client.cancel(run.id), "cancelled"),
    "cancel by filter": (queued, lambda b, _: b.client.cancel(match="*"), "cancelled"),
    "purge": (queued, lambda b, _: b.client.queue_purge("default"), "cancelled"),
    "deadline": (lambda b: queued(b, expires_after="5s"), lambda b, _: b.advance(60), "cancelled"),
    "another definition": (scheduled, lambda b, _: b.put("j", Every("300s")), "skipped"),
    "deletion": (scheduled, lambda b, _: b.client.delete("j"), "cancelled"),
    "cancel of a delayed one": (lambda b: b.client.enqueue(CALL, delay="1h"), lambda b, run: b.client.cancel(run.id), "cancelled"),
    "cancel between attempts": (retrying, lambda b, run: b.client.cancel(run.id), "cancelled"),
    "cancel of a leased one": (leased, lambda b, run: (b.client.cancel(run.id), b.finish(b.leases, Outcome.CANCELLED)), "cancelled"),
}


@pytest.mark.parametrize(("make", "end", "state"), ENDINGS.values(), ids=ENDINGS)
def test_every_ending_answers_who_waits(make, end, state):
    with Waiting() as b:
        run = make(b)
        b.wait_for(run)
        assert b.answer is None
        end(b, run)
        assert b.answer is not None
        assert (b.answer.result["state"], b.answer.result["id"]) == (state, run.id)
        assert b.client.run(run.id).state == state


def is_entered(ws, run_id):
    wait_for(lambda: ws.run(run_id).state == "running", 60)
    return True


@pytest.mark.slow
def test_every_kind_of_client_waits_over_a_retry_and_kills_of_the_server(serving, short_tmp):
    (short_tmp / "wait_tasks.py").write_text(TASKS)
    server = serving("--tasks", "wait_tasks")
    ws = server.client()
    run = ws.enqueue(Call("w.gated", str(short_tmp)), retry=Retry(attempts=50, backoff="10ms"))
    found = {}
    before = ws.stats()["connections"]

    async def ask():
        async with AsyncClient(server.socket) as other:
            found["asyncio"] = await (await other.run(run.id)).result(timeout=120)

    threads = [
        threading.Thread(target=lambda: found.update(client=run.result(timeout=120)), daemon=True),
        threading.Thread(target=lambda: asyncio.run(ask()), daemon=True),
    ]
    for thread in threads:
        thread.start()
    shell = subprocess.Popen(
        [sys.executable, "-m", "wheelsched", "--socket", server.socket, "run", "wait", run.id, "--timeout", "120s"],
        stdout=subprocess.PIPE, text=True,
    )
    wait_for(lambda: ws.stats()["connections"] >= before + 2, 60)  # whoever finds no server at first, doesn't wait for one
    for _ in range(2):
        assert is_entered(server.client(), run.id)
        server.end(signal.SIGKILL)
        server = serving("--tasks", "wait_tasks")
    (short_tmp / "gate").touch()
    for thread in threads:
        thread.join(120)
    value = server.client().run(run.id).output
    assert value >= 2
    assert found == {"client": value, "asyncio": value}
    out, _ = shell.communicate(timeout=120)
    assert (shell.returncode, out) == (0, f"{value}\n")


@pytest.mark.slow
def test_results_are_found_after_a_fold_and_expire_by_retention(serving, short_tmp):
    server = serving(workers=2)
    ws = server.client()
    first = ws.enqueue(Call("t.echo", "kept"))  # not looked at again: it is as it was before it ran
    ws.enqueue_many([Call("t.echo", i) for i in range(5_000)])
    wait_for(lambda: ws.stats()["counters"]["succeeded"] == 5_001, 60)
    wait_for(lambda: ws.stats()["folded"] > 4_000, 60)
    assert first.state == "queued"
    assert first.result(timeout=60) == "kept"
    argv = [sys.executable, "-m", "wheelsched", "--socket", server.socket, "run", "wait", first.id]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == '"kept"\n'
    assert server.end() == 0
    (short_tmp / "w.toml").write_text('retention = "100ms"\n')
    ws = serving("--config", str(short_tmp / "w.toml"), workers=2).client()
    ws.queue("any", concurrency=1)  # a commit, with which what is too old goes

    def gone():
        try:
            ws.run(first.id)
        except NotFoundError:
            return True
        return False

    wait_for(gone, 60)
    late = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)
    assert late.returncode == 3

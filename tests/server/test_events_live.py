"""Events of a real server: over kill -9, snapshots, slow readers, both clients and the command line."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import threading
import time

import pytest

from wheelsched import AsyncClient, Call, Client, FailedPreconditionError, Job, Manual, Retry


def cli(server, *args):
    return subprocess.Popen(
        [sys.executable, "-m", "wheelsched", "--socket", server.socket, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@pytest.mark.slow
def test_a_reader_goes_on_over_kill_9_without_a_loss_or_a_double(serving):
    server = serving(workers=2)
    ws = server.client()
    here = ws.event_position()
    told, ended = [], threading.Event()

    def read():
        with Client(server.socket) as other:
            for event in other.events(here):
                told.append(event)
                if event.name == "the-end":
                    ended.set()
                    return

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    runs = []
    for round_ in range(3):
        for i in range(40):
            runs.append(ws.enqueue(Call("t.echo", i), key=f"{round_}:{i}", retry=Retry(attempts=5, backoff="100ms")).id)
        server.end(signal.SIGKILL)
        server = serving(workers=2)
        ws = server.client()
    for run in runs:
        ws.run(run).result(timeout=60)
    ws.queue("the-end", concurrency=1)
    assert ended.wait(60)
    again = list(ws.events(here, timeout=0))
    again = again[: [e.name for e in again].index("the-end") + 1]
    reader.join(60)
    assert told == again
    created = [e.run_id for e in told if e.kind == "run.created"]
    assert sorted(created) == sorted(runs)
    assert sorted(e.run_id for e in told if e.kind == "run.succeeded") == sorted(runs)
    assert [e.count for e in told if e.kind == "server.started"] == [2, 3, 4]


def test_a_snapshot_trims_what_is_told_and_says_so(serving, short_tmp):
    (short_tmp / "w.toml").write_text("snapshot_bytes = 65536\n")
    server = serving("--config", str(short_tmp / "w.toml"), workers=1)
    ws = server.client()
    here = ws.event_position()
    runs = set()
    lost = None
    deadline = time.monotonic() + 60
    while lost is None and time.monotonic() < deadline:
        runs |= {ws.enqueue(Call("t.echo", "x" * 1_000)).id for _ in range(30)}
        try:
            list(ws.events(here, limit=1, timeout=0))
        except FailedPreconditionError as e:
            lost = e
    assert lost is not None
    assert int(lost.detail["oldest"].split(".")[1]) > int(here.split(".")[1])
    server.end(signal.SIGKILL)
    server = serving("--config", str(short_tmp / "w.toml"), workers=1)
    with server.client() as ws:
        assert {e.run_id for e in read_on(ws, lost.detail["oldest"], kinds=["run.*"])} <= runs


def read_on(ws, position, **options):
    """As the error advises, if a further snapshot was faster."""
    while True:
        try:
            return list(ws.events(position, timeout="200ms", **options))
        except FailedPreconditionError as e:
            position = e.detail["oldest"]


def test_async_and_command_line(serving):
    server = serving(workers=1)
    ws = server.client()
    ws.put("billing/x", Call("t.once", True), Manual(), retry=Retry(attempts=1))

    async def read():
        async with AsyncClient(server.socket) as other:
            here = await other.event_position()
            run = await other.trigger("billing/x")
            return run.id, [e async for e in other.events(here, "billing/*", timeout=60, limit=3)]

    run_id, found = asyncio.run(read())
    assert [(e.kind, e.run_id) for e in found] == [(kind, run_id) for kind in ("run.created", "run.leased", "run.dead")]
    follow = cli(server, "events", "--match", "billing/*", "--kind", "run.*", "--since", found[0].position, "-o", "jsonl")
    rows = [json.loads(follow.stdout.readline()) for _ in range(2)]
    assert [(r["kind"], r["run_id"]) for r in rows] == [("run.leased", run_id), ("run.dead", run_id)]
    assert rows[1]["error"] == "ValueError"
    follow.send_signal(signal.SIGINT)
    out, err = follow.communicate(timeout=60)
    assert (follow.returncode, out) == (0, "")
    assert "go on with --since" in err
    shown = cli(server, "events", "--since", "oldest", "--until-idle", "100ms")
    out, _ = shown.communicate(timeout=60)
    assert shown.returncode == 0
    assert "run.dead" in out
    assert "ValueError: on purpose" in out
    refused = cli(server, "events", "--kind", "run.eaten")
    _, err = refused.communicate(timeout=60)
    assert (refused.returncode, "fits none of" in err) == (2, True)


@pytest.mark.slow
def test_many_readers_that_do_not_read_cost_nothing_and_waits_end(serving):
    server = serving(workers=1)
    ws = server.client()
    clients = [Client(server.socket) for _ in range(50)]
    for client in clients:
        client._start(client.events()._pages.next_ask()[0], None)  # asked, and the answer is never read
    runs = [ws.enqueue(Call("t.echo", i)) for i in range(100)]
    assert [r.result(timeout=60) for r in runs] == list(range(100))
    assert list(ws.events(timeout="300ms", match="nothing/*")) == []
    for client in clients:
        client.close()


@pytest.mark.slow
def test_a_record_of_many_rows_is_paged(serving):
    server = serving(workers=2)
    ws = server.client()
    n = 20_000
    here = ws.event_position()
    ws.put_many([Job(f"spike/{i}", Call("t.echo", 1), Manual()) for i in range(n)])
    ws.delete("spike/0")
    found = list(ws.events(here, limit=n + 1, timeout=60, match="spike/*"))
    assert len(found) == n + 1
    assert len({e.job for e in found}) == n
    assert found[-1].kind == "job.deleted"

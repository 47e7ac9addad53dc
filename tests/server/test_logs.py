"""What runs print: kept while they run, followed over retries, kept when their worker dies."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.rigs.engine import FAILED, Bench
from wheelsched import AsyncClient, Call, Command, InvalidArgumentError, Manual, Retry
from wheelsched.model.nouns import Outcome
from wheelsched.model.tape import Tape, mark, unseen

TASKS = """
import os, signal, subprocess, sys, time
from pathlib import Path
from wheelsched import current_run, task

def gate(path):
    while not Path(path).exists():
        time.sleep(0.01)  # the test opens it

@task("l.speak")
def speak(folder):
    n = current_run().attempt
    print(f"one of {n}")
    print(f"aside of {n}", file=sys.stderr)
    gate(f"{folder}/gate{n}")
    print(f"two of {n}")
    if n == 1:
        raise ValueError("again")

@task("l.child")
def child(folder):
    subprocess.run(["sh", "-c", "echo from a child"], check=True)
    gate(f"{folder}/gate1")

@task("l.die")
def die(folder):
    print("last words")
    gate(f"{folder}/gate1")
    os.kill(os.getpid(), signal.SIGKILL)
"""


@given(st.lists(st.tuples(st.integers(0, 90), st.booleans()), max_size=30))
def test_a_follower_has_all_or_a_mark_that_counts(steps):
    """Each step prints so many bytes; then the follower looks, or not."""
    data = bytes(97 + i % 26 for i in range(sum(n for n, _ in steps)))
    tape, far, at, shown = Tape(200), Tape(200), 0, b""
    seen = told = 0
    for n, look in [*steps, (0, True)]:
        tape.add(data[at : at + n])
        at += n
        if look:
            start, piece = tape.since(told)
            assert data[start : start + len(piece)] == piece
            far.add_at(start, piece)
            told = start + len(piece)
            more, seen = unseen(*far.text(), seen)
            shown += more
    assert (seen, told) == (at, at) or (seen == told and len(data) > 200)
    if len(data) <= 200:
        assert shown == data
    place = 0
    for part in re.split(rb"\n\[\.\.\. (\d+) bytes left out \.\.\.\]\n", shown)[:: 1]:
        if part.isdigit():
            place += int(part)
        else:
            assert data[place : place + len(part)] == part
            place += len(part)
    assert place == seen


def test_what_is_known_is_not_added_twice_and_what_is_missing_is_left_out():
    tape = Tape(1_000)
    tape.add_at(0, b"abc")
    tape.add_at(1, b"bcd")
    assert tape.text() == (b"abcd", 0)
    tape.add_at(100, b"x" * 100)
    kept, cut = tape.text()
    assert (kept, cut) == (b"abcd" + mark(96) + b"x" * 100, 96)
    assert unseen(kept, cut, 2) == (b"cd" + mark(96) + b"x" * 100, 200)
    assert unseen(kept, cut, 50) == (mark(50) + b"x" * 100, 200)
    assert unseen(kept, cut, 190) == (b"x" * 10, 200)
    assert unseen(kept, cut, 250) == (b"", 250)


@pytest.fixture
def bench():
    with Bench() as made:
        yield made


def tell(bench, lease, **output):
    return bench.call(50, ("heartbeat", {
        "id": lease[0], "token": lease[1].to_bytes(8, "little"), "started": b"\1", "progress": [], "output": [[0, output]],
    }))


def test_an_open_attempt_shows_what_it_printed_and_an_end_without_a_report_keeps_it(bench):
    bench.put("j", Manual(), retry=Retry(attempts=2, backoff="1s"))
    run = bench.client.trigger("j")
    [lease] = bench.lease()
    tell(bench, lease, stdout=[0, b"a\n"], stderr=[0, b"e\n"])
    tell(bench, lease, stdout=[2, b"b\n"])
    run.refresh()
    assert (run.state, run.stdout, run.stderr, run.attempts[0].stdout) == ("running", b"a\nb\n", b"e\n", b"a\nb\n")
    bench.advance(30)  # no heartbeat: lost
    run.refresh()
    assert (run.attempts[0].outcome, run.attempts[0].stdout, run.attempts[0].stderr) == ("lost", b"a\nb\n", b"e\n")
    assert run.attempts[0].error is not None
    [lease] = bench.lease()
    tell(bench, lease, stdout=[0, b"x" * 60_000], stderr=[7, b"late\n"])
    tell(bench, lease, stdout=[60_000, b"y" * 60_000])
    bench.finish([lease], FAILED)  # by its own report, which has other ideas
    run.refresh()
    last = run.attempts[1]
    assert (last.stdout_cut, len(last.stdout), last.stderr_cut) == (120_000 - 65_536 + 64, 65_536 - 64 + len(mark(54_528)), 7)
    assert bench.engine.running.outputs == {}
    assert bench.engine.running._limits == 0
    assert b"".join(piece.data for piece in bench.client.logs(run.id) if piece.attempt == 1) == b"a\nb\ne\n"


def test_an_attempt_after_a_snooze_has_its_own_output(bench):
    bench.put("j", Manual())
    run = bench.client.trigger("j")
    for word in (b"first", b"second"):
        [lease] = bench.lease()
        tell(bench, lease, stdout=[0, word])
        at = bench.now_us.to_bytes(8, "little")
        if word == b"first":
            bench.call(50, ("finish", {
                "id": lease[0], "token": lease[1].to_bytes(8, "little"), "outcome": bytes([Outcome.SNOOZED]), "started_us": at, "ended_us": at,
                "result": [[0, {"snooze_us": 1_000_000, "stdout": word}]],
            }))
            bench.work([], 5)
    run.refresh()
    assert [a.stdout for a in run.attempts] == [b"first", b"second"]
    assert [piece.data for piece in bench.client.logs(run.id)] == [b"first", b"second"]


def test_a_report_with_its_own_output_counts(bench):
    bench.put("j", Manual(), retry=Retry(attempts=1))
    run = bench.client.trigger("j")
    [lease] = bench.lease()
    tell(bench, lease, stdout=[0, b"a"], stderr=[0, b"e"])
    at = bench.now_us.to_bytes(8, "little")
    bench.call(50, ("finish", {
        "id": lease[0], "token": lease[1].to_bytes(8, "little"), "outcome": b"\1", "started_us": at, "ended_us": at,
        "result": [[0, {"stdout": b"abc"}]],
    }))
    run.refresh()
    assert (run.state, run.stdout, run.stderr) == ("succeeded", b"abc", b"e")


@pytest.mark.parametrize("output", [{"stdout": b"a"}, {"stdin": [0, b"a"]}, {"stdout": [-1, b"a"]}, {"stdout": [0, "a"]},
                                    {"stdout": [0, bytes(65_537)]}, [], {"stdout": [True, b"a"]}])
def test_outputs_of_another_shape_are_refused(bench, output):
    bench.put("j", Manual())
    bench.client.trigger("j")
    [lease] = bench.lease()
    with pytest.raises(InvalidArgumentError, match="heartbeat"):
        bench.call(50, ("heartbeat", {
            "id": lease[0], "token": lease[1].to_bytes(8, "little"), "started": b"\1", "progress": [], "output": [[0, output]],
        }))


def test_many_outputs_stay_small(bench, monkeypatch):
    monkeypatch.setattr("wheelsched.state.live.OUTPUTS_MAX", 200_000)
    bench.put("j", Manual(), overlap="allow")
    for i in range(10):
        bench.client.trigger("j", key=str(i))
    leases = bench.lease()
    for lease in leases:
        tell(bench, lease, stdout=[0, b"x" * 50_000])
    sizes = [len(msgpack.packb(bench.engine.running.output(lease[1]))) for lease in leases]
    assert all(size > 50_000 for size in sizes[:3])
    assert all(size < 2_000 for size in sizes[4:])


@pytest.fixture
def speaking(serving, short_tmp):
    (short_tmp / "log_tasks.py").write_text(TASKS)

    def start(*flags, **options):
        return serving("--tasks", "log_tasks", "--allow-commands", *flags, **options)

    return start


def followed(ws, run_id, folder):
    """[(attempt, stream, text)], opening the gate of an attempt when it has been heard."""
    found = {}
    with patience(ws, run_id):
        for piece in ws.logs(run_id, follow=True):
            place = piece.attempt, piece.stream
            found[place] = found.get(place, "") + piece.data.decode()
            if found.get((piece.attempt, "stdout")):
                (folder / f"gate{piece.attempt}").touch()
    return found


@contextmanager
def patience(ws, run_id):
    """A run that is followed in vain is cancelled after a while."""
    timer = threading.Timer(60, ws.cancel, [run_id])
    timer.daemon = True
    timer.start()
    yield
    timer.cancel()


SPOKEN = {
    (1, "stdout"): "one of 1\ntwo of 1\n", (1, "stderr"): "aside of 1\n", (2, "stdout"): "one of 2\ntwo of 2\n", (2, "stderr"): "aside of 2\n",
}


@pytest.mark.parametrize("mode", ["process", "thread"])
def test_a_run_is_followed_while_it_runs_over_its_retry(speaking, short_tmp, mode):
    ws = speaking("--mode", mode).client()
    run = ws.enqueue(Call("l.speak", str(short_tmp)), retry=Retry(attempts=2, backoff="10ms"))
    assert followed(ws, run.id, short_tmp) == SPOKEN
    assert {(p.attempt, p.stream): p.data.decode() for p in ws.logs(run.id)} == SPOKEN
    calls = [Command(["sh", "-c", f"echo from a child; while ! test -e {short_tmp}/gate1; do sleep 0.05; done"])]
    if mode == "process":  # in threads, what children of a task write belongs to nobody
        calls.append(Call("l.child", str(short_tmp)))
    for call in calls:
        (short_tmp / "gate1").unlink()
        assert followed(ws, ws.enqueue(call).id, short_tmp) == {(1, "stdout"): "from a child\n"}


@pytest.mark.slow
def test_an_external_worker_s_run_is_followed_over_a_restart_of_the_server(speaking, short_tmp):
    server = speaking(workers=0)
    ws = server.client()
    worker = subprocess.Popen(
        [sys.executable, "-m", "wheelsched", "--socket", server.socket, "worker", "--tasks", "log_tasks"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(short_tmp), *filter(None, [os.environ.get("PYTHONPATH")])])},
    )
    try:
        run = ws.enqueue(Call("l.speak", str(short_tmp)), retry=Retry(attempts=2, backoff="10ms"))
        heard = {}
        with patience(ws, run.id):
            for piece in ws.logs(run.id, follow=True):
                heard[piece.attempt, piece.stream] = heard.get((piece.attempt, piece.stream), "") + piece.data.decode()
                if piece.attempt == 1 and not (short_tmp / "gate1").exists() and len(heard) == 2:
                    server.end(signal.SIGKILL)
                    server = speaking(workers=0)
                    (short_tmp / "gate1").touch()
                if piece.attempt == 2:
                    (short_tmp / "gate2").touch()
        assert heard == SPOKEN
    finally:
        worker.kill()
        worker.wait()


def test_the_last_words_of_a_killed_worker_are_kept(speaking, short_tmp):
    server = speaking()
    ws = server.client()
    run = ws.enqueue(Call("l.die", str(short_tmp)), retry=Retry(attempts=1))
    assert followed(ws, run.id, short_tmp) == {(1, "stdout"): "last words\n"}
    run.refresh()
    assert (run.state, run.attempts[0].outcome, run.stdout) == ("dead", "lost", b"last words\n")
    assert run.error is not None


def test_command_line_and_asyncio(speaking, short_tmp):
    server = speaking()
    ws = server.client()
    run = ws.enqueue(Call("l.speak", str(short_tmp)), retry=Retry(attempts=2, backoff="10ms"))
    base = [sys.executable, "-m", "wheelsched", "--socket", server.socket, "run", "logs", run.id]
    follow = subprocess.Popen([*base, "--follow", "--stream", "stdout"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    for n in (1, 2):
        assert follow.stdout.readline() == f"one of {n}\n"
        (short_tmp / f"gate{n}").touch()
        assert follow.stdout.readline() == f"two of {n}\n"
    out, err = follow.communicate(timeout=60)
    assert (follow.returncode, out) == (0, "")
    assert re.findall(r"attempt \d", err) == ["attempt 1", "attempt 2"]
    done = subprocess.run([*base, "-o", "jsonl", "-f"], capture_output=True, text=True, check=True, timeout=60)
    assert {(row["attempt"], row["stream"]): row["text"] for row in map(json.loads, done.stdout.splitlines())} == SPOKEN
    missing = subprocess.run([*base[:-1], "0" * 32], capture_output=True, text=True, check=False, timeout=60)
    assert missing.returncode == 3

    async def read():
        async with AsyncClient(server.socket) as other:
            return {(p.attempt, p.stream): p.data.decode() async for p in other.logs(run.id, follow=True)}

    assert asyncio.run(read()) == SPOKEN

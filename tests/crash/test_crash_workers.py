"""Dying and frozen workers under load, in a small size (`python -m tests.crash --worker-kills 300 --zombies 100` is the long form); deploys."""

import json
import os
import signal
import subprocess
import sys

import pytest

from tests.rigs.places import TASK_MODULES

pytest.importorskip("lmdb")

from tests.crash import server_kills as crash
from tests.crash import worker_kills as crash_workers
from tests.rigs.server import wait_for
from wheelsched import Call, Retry


@pytest.mark.slow
def test_dying_and_frozen_workers_lose_nothing_and_double_nothing(tmp_path):
    seed = int(os.environ.get("WHEELSCHED_SEED", "1"))
    h = crash_workers.run_faults(tmp_path, seed, worker_kills=8, zombies=2, kills=1, freezes=1, supervisors=1, foreign=2)
    findings, counts = crash.judge(h.history)
    more, seen = crash_workers.judge_workers(h.history)
    assert not findings + more, (seed, (findings + more)[:10])
    assert counts["starts"] > 50, (seed, counts)
    assert h.counts["worker_kills"] == 8
    assert h.counts["zombies"] == 2
    assert seen["lost"] > 0, (seed, seen)
    assert seen["told"] > 0, (seed, seen)
    result = subprocess.run(
        [sys.executable, crash.CHECKER, str(crash.checkable(h.history)), "--min", "starts=50", "--min", "faults=2"],
        capture_output=True, text=True, check=False,
    )
    assert result.returncode == 0, f"seed {seed}\n{result.stdout[-5_000:]}"


def history(tmp_path, *events):
    """A history with one run: `events` are (type, seconds, fields)."""
    lines = [{"mono": mono, "run_id": "r", "job": "j", "worker": "w7", "type": kind, **fields} for kind, mono, fields in events]
    (tmp_path / "h.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"torn')
    return crash_workers.judge_workers(tmp_path)


def attempts(*rows, **fields):
    return ("note", 99, {"note": "attempts", "state": "succeeded", "attempt": len(rows), "attempts": [list(r) for r in rows], **fields})


FIRST, SECOND = {"attempt": 1, "token": 5}, {"attempt": 2, "token": 9, "worker": "w8"}
LOST, WON = (1, 5, "lost", "worker lost: its lease ran out"), (2, 9, "succeeded", "")


def test_the_judge_knows_what_may_be(tmp_path):
    killed = ("fault", 2.0, {"kind": "group", "event": "begin", "pids": [7]})
    findings, counts = history(tmp_path, ("start", 1.0, FIRST), killed, ("start", 2.1, SECOND), ("end", 2.2, SECOND), attempts(LOST, WON))
    assert not findings
    assert counts["lost"] == counts["succeeded"] == 1
    zombie = [("fault", t, {"kind": "zombie", "event": e, "id": "z1", "pids": [7]}) for t, e in ((2.0, "begin"), (4.0, "end"))]
    findings, counts = history(
        tmp_path, ("start", 1.0, FIRST), *zombie, ("start", 2.9, SECOND), ("end", 3.2, SECOND), ("end", 4.1, FIRST),
        ("complete", 4.2, {**FIRST, "accepted": False}), attempts(LOST, WON),
    )
    assert not findings
    assert counts["refused"] == 1
    findings, counts = history(
        tmp_path, ("start", 1.0, FIRST), ("start", 2.9, SECOND), ("end", 3.2, SECOND), ("end", 4.1, FIRST), attempts(LOST, WON)
    )
    assert not findings, "a worker that a busy machine starved"
    assert counts["starved"] == 1


@pytest.mark.parametrize(
    ("events", "finding"),
    [
        ([("start", 1, FIRST), ("start", 2, SECOND), ("end", 3, FIRST), attempts((1, 5, "failed", ""), WON)], "token 9 began while token 5 ran"),
        ([("start", 1, FIRST), ("start", 2, SECOND), ("fault", 3, {"kind": "pool", "event": "begin", "pids": [7]}),
          attempts((1, 5, "lost", "killed"), WON)], "token 9 began while token 5 ran"),
        ([("start", 1, FIRST), ("fault", 2, {"kind": "zombie", "event": "begin", "id": "z", "pids": [7]}), ("start", 2.2, SECOND),
          ("fault", 4, {"kind": "zombie", "event": "end", "id": "z", "pids": [7]}), ("end", 4.1, FIRST),
          attempts((1, 5, "lost", "killed"), WON)], "token 9 began while token 5 ran"),
        ([("start", 1, FIRST), attempts((1, 6, "succeeded", ""))], "is not on record"),
        ([attempts((1, 6, "succeeded", ""))], "was not executed"),
        ([attempts((1, 6, "lost", ""), (2, 4, "lost", ""))], "do not grow"),
        ([attempts((1, 6, "lost", ""), (3, 7, "lost", ""))], "with the count 2"),
        ([attempts((1, 6, "lost", ""), attempt=2)], "with the count 2"),
        ([attempts((1, 6, "lost", ""), job="p1", state="retry_wait")], "poison run"),
    ],
)
def test_the_judge_finds_what_must_not_be(tmp_path, events, finding):
    findings, _ = history(tmp_path, *events)
    assert any(finding in f for f in findings), findings


WHO = {"attempt": 1, "token": 5}
DIED = "worker 3 (pid 7) was killed by SIGKILL"
GROUP = {"note": "group", "key": "g", "members": 2, "then": "t", "ids": ["r", "m"]}
ALL = {"members": 2, "succeeded": 2, "failed": 0, "cancelled": 0}


def member(number, mono, **fields):
    return ("note", mono, {"note": "member", "key": "g", "member": number, "run_id": f"m{number}", **fields})


@pytest.mark.parametrize(
    ("events", "finding"),
    [
        ([("start", 1, WHO), ("end", 2, WHO), ("start", 3, {"run_id": "other", "token": 6, "attempt": 1}), attempts((1, 5, "lost", DIED))],
         "was done, its executor went on"),
        ([("note", 1, {"note": "sending", "step": 2, **FIRST}), ("note", 2, {"note": "kept", "step": 2, **FIRST}),
          ("note", 3, {"note": "resumed", "step": 1, **SECOND})], "went on from step 1; 2 was kept"),
        ([("note", 1, {"note": "resumed", "step": 1, **FIRST})], "went on from step 1; 0 was kept, 0 sent"),
        ([attempts((1, 5, "succeeded", ""), job="silent-1")], "first attempt succeeded"),
        ([("note", 1, {"note": "woke"}), attempts((1, 5, "timed_out", ""), job="silent-1")], "woke up"),
        ([("start", 1, FIRST), ("end", 1.1, FIRST), ("start", 1.3, SECOND), attempts((1, 5, "failed", ""), WON, job="later-1")], "had asked for"),
        ([("note", 1, GROUP), member(0, 1), member(0, 2, run_id="twin"), member(1, 3)], "member 0 was done by the runs ['m0', 'twin']"),
        ([("note", 1, GROUP), member(0, 1), ("note", 2, {"note": "then", "key": "g", "run_id": "t", "cause": ALL})], "before the members [1]"),
        ([("note", 1, GROUP), ("note", 2, {"note": "then", "key": "g", "run_id": "t", "cause": {**ALL, "failed": 1}})], "of 2 that succeeded"),
        ([("note", 1, GROUP), ("note", 2, {"note": "then", "key": "g", "run_id": "u", "cause": ALL})], "executed was ['u']"),
        ([("note", 1, GROUP)], "the run behind it is None"),
    ],
)
def test_the_judge_of_features_finds_what_must_not_be(tmp_path, events, finding):
    findings, _ = history(tmp_path, *events)
    assert any(finding in f for f in findings), findings


@pytest.mark.slow
def test_shutdown_03_a_rolling_deploy_executes_nothing_twice(serving, tmp_path):
    """Ten workers are replaced one by one under load; each run ends within the drain limit, so each is executed once."""
    server = serving(workers=0)
    ws = server.client()
    env = dict(os.environ, WHEELSCHED_HISTORY=str(tmp_path), PYTHONPATH=os.pathsep.join([TASK_MODULES, os.environ.get("PYTHONPATH", "")]))
    argv = [sys.executable, "-m", "wheelsched", "--socket", server.socket, "worker", "--tasks", "crash_tasks"]

    def hire():
        return subprocess.Popen(argv, env=env, stdin=subprocess.DEVNULL, cwd=tmp_path)

    def load(n):
        return [ws.enqueue(Call("crash.long", 0.02 * (i % 10)), retry=Retry(attempts=3, backoff="1ms", cap="1ms")) for i in range(n)]

    workers = [hire() for _ in range(10)]
    try:
        runs = load(50)
        wait_for(lambda: len(ws.stats()["workers"]) >= 10, 60)
        for i, old in enumerate(workers[:]):
            runs += load(30)
            workers[i] = hire()
            old.send_signal(signal.SIGTERM)
            assert old.wait(40) == 0
        wait_for(lambda: all(ws.run(run.id).state == "succeeded" for run in runs[-50:]), 60)
        for run in runs:
            assert [(a.outcome, a.error) for a in ws.run(run.id).attempts] == [("succeeded", None)]
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    starts = [json.loads(line)["run_id"] for path in tmp_path.glob("worker-*.jsonl") for line in path.read_text().splitlines() if '"start"' in line]
    assert sorted(starts) == sorted(run.id for run in runs)

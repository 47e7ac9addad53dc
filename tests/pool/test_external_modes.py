"""`wheelsched worker` with several runs in one process: restarts of the server, drains, and processes that are replaced."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import wheelsched
from tests.rigs.executor import wait_for
from tests.rigs.places import TASK_MODULES
from wheelsched import Call

ROOT = str(Path(wheelsched.__file__).resolve().parents[1])
MODES = ["thread", "async"]
pytestmark = pytest.mark.slow


@pytest.fixture
def world(serving, short_tmp):
    """A server without a pool, and how to start workers of its own for it."""
    started = []

    class World:
        server = serving(workers=0)
        folder = short_tmp

        def worker(self, mode, concurrency, *flags):
            self.server.client()  # it answers
            env = {
                **os.environ, "PYTHONPATH": os.pathsep.join([TASK_MODULES, ROOT]), "TMPDIR": str(short_tmp),
                "HOOKS_FILE": str(short_tmp / "hooks"),
            }
            argv = [
                sys.executable, "-m", "wheelsched", "--socket", self.server.socket, "worker", "--tasks", "wear_tasks", "--tasks", "hook_tasks",
                "--mode", mode, "--concurrency", str(concurrency), *flags,
            ]
            started.append(subprocess.Popen(argv, env=env, stdin=subprocess.DEVNULL))
            return started[-1]

        def again(self):
            self.server.end(signal.SIGKILL)
            self.server = serving(workers=0)

        def held(self, ws, names):
            """Runs in user code until their files are there."""
            runs = [ws.enqueue(Call("w.held", str(short_tmp / name))) for name in names]
            wait_for(lambda: all((short_tmp / f"{name}.begun").exists() for name in names), "the start of the runs")
            return runs

        def let_go(self, names):
            for name in names:
                (short_tmp / name).touch()

    yield World()
    for process in started:
        process.kill()
        process.wait()


def outcomes(ws, run):
    return [a.outcome for a in ws.run(run.id).attempts]


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_results_that_come_while_no_server_is_there_are_reported_to_the_next(world, mode):
    world.worker(mode, 3)
    with world.server.client() as ws:
        runs = world.held(ws, "abc")
    world.server.end(signal.SIGKILL)
    world.let_go("ab")
    wait_for(lambda: all((world.folder / f"{name}.over").exists() for name in "ab"), "the end of two runs, with no server there")
    world.again()
    with world.server.client() as ws:
        assert [run.result(timeout=60) for run in (ws.run(r.id) for r in runs[:2])] == ["held", "held"]
        assert ws.run(runs[2].id).state in ("leased", "running"), "the third goes on under its lease"
        world.let_go("c")
        assert ws.run(runs[2].id).result(timeout=60) == "held"
        assert [outcomes(ws, run) for run in runs] == [["succeeded"]] * 3
        assert ws.enqueue(Call("w.pid")).result(timeout=60)


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_a_drain_finishes_what_was_entered_and_hands_back_the_rest_at_no_cost(world, mode):
    worker = world.worker(mode, 2)
    with world.server.client() as ws:
        runs = world.held(ws, "ab")
        behind = [ws.enqueue(Call("w.pid")) for _ in range(5)]
        worker.send_signal(signal.SIGTERM)
        world.let_go("ab")
        assert worker.wait(60) == 0
        assert [run.result(timeout=60) for run in runs] == ["held", "held"]
        assert [outcomes(ws, run) for run in runs] == [["succeeded"]] * 2
        for run in behind:
            run.refresh()
            assert (run.state, run.attempts) == ("queued", []), "no attempt is spent on what was not entered"
        assert (world.folder / "hooks").read_text().splitlines()[-1] == "closed", "after the last run"
        world.worker(mode, 2)
        assert all(run.result(timeout=60) for run in behind)
        assert {tuple(outcomes(ws, run)) for run in behind} == {("succeeded",)}


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["process", *MODES])
def test_processes_that_are_replaced_cost_no_attempt(world, mode):
    worker = world.worker(mode, 2, "--max-runs", "8")
    with world.server.client() as ws:
        runs = [ws.enqueue(Call("w.pid")) for _ in range(60)]
        pids = [run.result(timeout=120) for run in runs]
        assert max(pids.count(p) for p in pids) <= 8
        assert {tuple(outcomes(ws, run)) for run in runs} == {("succeeded",)}
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(60) == 0

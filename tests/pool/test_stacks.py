"""Where a run is in its code, asked from outside: in each mode, for commands, from workers outside, and without harm."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import wheelsched
from tests.rigs.cli import invoke
from tests.rigs.executor import Scripted, value
from tests.rigs.executor import wait_for as wait_until
from tests.rigs.places import TASK_MODULES
from tests.rigs.server import wait_for
from wheelsched import Call, Command, FailedPreconditionError, NotFoundError
from wheelsched.model.nouns import NEVER

ROOT = str(Path(wheelsched.__file__).resolve().parents[1])


@pytest.fixture
def make(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", TASK_MODULES)
    made = []

    def start(mode="process", **options):
        made.append(Scripted(tmp_path, ["stack_tasks"], mode=mode, **options))
        return made[-1]

    yield start
    for end in made:
        end.close()


def inside(end, token):
    end.until(lambda: token in end.pool.running())


def stack(end, token):
    found = {}
    assert end.pool.ask_stack(end.worker, token)

    def told():
        found.update(end.pool.stacks())
        return token in found

    end.until(told)
    return found[token]


def stack_with(end, token, word):
    """The stack when the run has come so far."""
    texts = []

    def there():
        texts.append(stack(end, token))
        return word in texts[-1]

    end.until(there)
    return texts[-1]


@pytest.mark.parametrize("mode", ["process", "thread", "async"])
def test_n_b5_a_function_that_hangs_shows_where_and_goes_on(make, mode, tmp_path):
    end, gate = make(mode, concurrency=1 if mode == "process" else 2), tmp_path / "gate"
    token = end.give("k.plain", str(gate))
    inside(end, token)
    text = stack_with(end, token, "in stuck")
    assert text.index("in plain") < text.index("in stuck"), "the most recent call last"
    assert "time.sleep(0.02)" in text or "Path(path).exists()" in text
    for ours in ("runner.py", "crew.py", "executor/main.py", "wheelsched-watch"):
        assert ours not in text
    assert "in plain" in stack(end, token), "it can be asked again"
    gate.touch()
    assert value(end.finish(token)[0]) == "went on"
    assert not end.pool.ask_stack(end.worker, token)
    assert end.pool._stacks.wake_us() == NEVER


@pytest.mark.parametrize("mode", ["process", "thread", "async"])
def test_n_b5_a_coroutine_shows_what_it_awaits(make, mode, tmp_path):
    end, gate = make(mode, concurrency=1 if mode == "process" else 2), tmp_path / "gate"
    token = end.give("k.coroutine", str(gate))
    inside(end, token)
    text = stack_with(end, token, "in waiting")
    assert text.index("in coroutine") < text.index("in waiting")
    assert "await asyncio.sleep(0.02)" in text or "there(path)" in text
    gate.touch()
    assert value(end.finish(token)[0]) == "went on"


def test_n_b5_other_threads_of_the_process_are_shown(make, tmp_path):
    end, gate = make(), tmp_path / "gate"
    token = end.give("k.threads", str(gate))
    inside(end, token)
    text = stack_with(end, token, "in stuck")
    assert "helper.join()" in text
    assert text.index("in threads") < text.index("Thread helper:") < text.index("in stuck")
    gate.touch()
    assert value(end.finish(token)[0]) == "went on"


def test_n_b5_of_two_runs_each_shows_its_own(make, tmp_path):
    end = make("thread", concurrency=2)
    one, two = end.give("k.plain", str(tmp_path / "a")), end.give("k.threads", str(tmp_path / "a"))
    inside(end, one)
    inside(end, two)
    assert "in plain" in stack_with(end, one, "in stuck").partition("Thread ")[0]
    assert "in threads" in stack_with(end, two, "in threads").partition("Thread ")[0]
    (tmp_path / "a").touch()
    end.finish(one, two)


def test_n_b5_code_that_holds_the_interpreter_has_the_kernels_word(make, monkeypatch):
    monkeypatch.setattr("wheelsched.pool.stacks.WAIT_US", 100_000)
    end = make()
    token = end.give("k.in_c", 1.5)
    inside(end, token)
    text = stack(end, token)
    assert text.startswith("its process gives no stack: its code holds the interpreter")
    assert f"pid {end.executor.pid} (" in text
    assert value(end.finish(token)[0]) == "went on"


def test_n_b5_a_process_that_ends_meanwhile(make):
    end = make()
    token = end.give("k.in_c", 60)
    inside(end, token)
    assert end.pool.ask_stack(end.worker, token)
    end.pool.kill(end.worker, ", because it is tested")
    wait_until(lambda: (end.step(0.05), end.gone)[1], "its end")
    assert end.pool.stacks() == [(token, "the process has ended meanwhile")]


def test_n_b5_run_stack_of_a_server(serving, tmp_path):
    server = serving("--tasks", "stack_tasks", "--allow-commands", workers=2, paths=[TASK_MODULES])
    ws, gate = server.client(), tmp_path / "gate"
    hung = ws.enqueue(Call("k.plain", str(gate)))
    wait_for(lambda: hung.refresh().state == "running")
    wait_for(lambda: "in stuck" in ws.stack(hung.id).text)
    found = ws.stack(hung.id)
    assert (found.id, found.job, found.worker) == (hung.id, "~k.plain", str(hung.worker))
    assert "in stuck" in found.text
    done = invoke("run", "stack", hung.id[:14], "--socket", server.socket)
    assert done.exit_code == 0
    assert done.stdout.startswith(f"run {hung.id} of ~k.plain on w")
    assert "in stuck" in done.stdout
    program = ws.enqueue(Command(["sh", "-c", f"while [ ! -e {gate} ]; do sleep 0.05; done"]))
    wait_for(lambda: program.refresh().state == "running")
    wait_for(lambda: "program: pid " in ws.stack(program.id).text)
    assert "(sh)" in ws.stack(program.id).text
    behind = ws.enqueue(Call("k.plain", str(gate)), delay="1h")
    with pytest.raises(FailedPreconditionError, match="is scheduled: no worker has it"):
        ws.stack(behind.id)
    gate.touch()
    assert hung.result(timeout=20) == "went on"
    assert program.result(timeout=20) == 0
    with pytest.raises(FailedPreconditionError, match="is succeeded: no worker has it"):
        ws.stack(hung.id)
    with pytest.raises(NotFoundError):
        ws.stack("0" * 32)
    assert invoke("run", "stack", hung.id, "--socket", server.socket).exit_code == 4


@pytest.mark.slow  # a worker outside tells it with a heartbeat, and one comes every 3 s
def test_n_b5_run_stack_from_a_worker_outside(serving, tmp_path):
    server = serving("--lease", "2s", workers=0)
    ws, gate = server.client(), Path(tmp_path) / "gate"
    worker = subprocess.Popen([sys.executable, "-m", "wheelsched", "worker", "--tasks", "stack_tasks", "--socket", server.socket],
                              env={**os.environ, "PYTHONPATH": os.pathsep.join([TASK_MODULES, ROOT])})
    try:
        hung = ws.enqueue(Call("k.plain", str(gate)))
        wait_for(lambda: hung.refresh().state == "running")
        wait_for(lambda: "in stuck" in ws.stack(hung).text)
        gate.touch()
        assert hung.result(timeout=20) == "went on"
    finally:
        worker.terminate()
        worker.wait(20)

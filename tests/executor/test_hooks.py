"""tasks/hooks.py: start and stop hooks and middleware, in every kind of executor, under a scripted server end and a real one."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path

import msgpack
import pytest

from tests.rigs.executor import Scripted
from tests.rigs.places import TASK_MODULES
from wheelsched import Call, FailedPreconditionError, InvalidArgumentError, RunFailed, middleware, on_start
from wheelsched.executor.main import EXIT_HOOK
from wheelsched.model.nouns import Outcome
from wheelsched.simulator.simulator import Simulator

MODES = [("process", 1), ("thread", 2), ("async", 2)]


@pytest.fixture
def make(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", TASK_MODULES)
    monkeypatch.setenv("HOOKS_FILE", str(tmp_path / "told"))
    made = []

    def start(mode="process", concurrency=1, module="hook_tasks", **options):
        made.append(Scripted(tmp_path, [module], mode=mode, concurrency=concurrency, **options))
        return made[-1]

    yield start
    for end in made:
        end.close()


@pytest.fixture
def told(tmp_path):
    return lambda: (tmp_path / "told").read_text(encoding="utf-8").splitlines()


def value(ended):
    assert ended[0] == Outcome.SUCCEEDED, ended
    return msgpack.unpackb(ended[3]["value"], timestamp=3)


def stopped(end):
    """The executor is told to stop; how it ended."""
    end.stopping = True
    end.until(lambda: end.gone, "the end of the executor")
    return end.gone[0]


@pytest.mark.parametrize(("mode", "concurrency"), MODES)
def test_hooks_run_before_the_first_run_and_after_the_last(make, told, mode, concurrency):
    end = make(mode, concurrency)
    pool, pid = value(end.finish(end.give("h.pool"))[0])
    assert pool == f"pool of {pid}"
    assert "stdout" not in (end.ended[end.next_token - 1][3] or {}), "what a hook prints belongs to no run"
    gone = stopped(end)
    assert gone.status == 0
    lines = told()
    assert lines[:2] == ["open", "counted"]
    assert lines[-2:] == ["closing", "closed"], "in reverse order, whatever the others raise"
    assert lines.index("run") > 1


def test_a_start_hook_that_fails_ends_the_executor_and_the_next_one_tries_again(make, told, tmp_path, monkeypatch):
    monkeypatch.setenv("HOOKS_FAIL", str(tmp_path / "failed"))
    end = make()
    end.until(lambda: end.gone, "the end of the executor")
    gone = end.gone[0]
    assert (gone.status, gone.can_not_import) == (EXIT_HOOK, False)
    assert "on_start hook_tasks.count_again failed: ConnectionError: the database is away" in gone.text
    assert told() == ["open"], "nothing is stopped that has not started"
    end.spawn()
    assert value(end.finish(end.give("h.pool"))[0])


@pytest.mark.parametrize(("mode", "concurrency"), [("process", 1), ("async", 2)])
def test_coroutines_as_hooks_share_the_loop_of_the_tasks(make, told, mode, concurrency):
    end = make(mode, concurrency, "hook_tasks_async")
    assert value(end.finish(end.give("h.loop"))[0]) is True
    stopped(end)
    assert told() == ["same loop True"]


def test_threads_take_no_coroutines_as_hooks(make):
    end = make("thread", 2, "hook_tasks_async")
    end.until(lambda: end.gone, "the end of the executor")
    assert end.gone[0].can_not_import
    assert "connect: in mode thread each thread has an event loop of its own" in end.gone[0].text


def test_a_stop_hook_is_not_ended_by_sigterm(make, told, monkeypatch):
    monkeypatch.setenv("HOOKS_SLOW", "0.5")
    end = make(kill_grace_us=20_000_000)
    end.idle()
    end.stopping = True
    end.until(lambda: "closing" in told(), "the stop hooks")
    [gone] = end.pool.stop()
    assert gone.status == 0
    assert told()[-1] == "closed"


@pytest.mark.parametrize(("mode", "concurrency", "worn"), [("process", 1, True), ("process", 1, False), ("thread", 2, True), ("async", 2, False)])
def test_a_stop_hook_that_hangs_is_ended_and_the_next_process_comes_at_once(make, monkeypatch, mode, concurrency, worn):
    monkeypatch.setenv("HOOKS_SLOW", "1000")
    end = make(mode, concurrency, max_runs=int(worn), exit_us=200_000, kill_grace_us=200_000)
    for _ in range(3):
        value(end.finish(end.give("h.pool"))[0])
        end.gone.clear()
        gone = stopped(end)
        assert (gone.status < 0, gone.outcomes) == (True, {})
        assert re.fullmatch(r"worker \d \(pid \d+\) did not exit after its last run: killed", gone.text)
        end.stopping = False
        end.spawn()
        assert end.executor.pid, "an end like this is no early death"


@pytest.mark.slow
def test_stop_hooks_that_hang_stop_no_external_worker(serving, tmp_path):
    server = serving(workers=0)
    code = ("import sys; from wheelsched.pool.supervisor import Supervisor; "
            "sys.exit(Supervisor(sys.argv[1], ['hook_tasks'], max_runs=1, exit_us=200_000).run())")
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([TASK_MODULES, str(Path(TASK_MODULES).parent)]), "TMPDIR": str(server.folder),
           "HOOKS_FILE": str(tmp_path / "told"), "HOOKS_SLOW": "1000"}
    with server.client() as ws, (tmp_path / "log").open("wb") as log:
        worker = subprocess.Popen([sys.executable, "-c", code, server.socket], env=env, stderr=log)
        try:
            runs = [ws.enqueue(Call("h.pool")) for _ in range(2)]
            assert len({run.result(timeout=60)[1] for run in runs}) == 2
            worker.terminate()
            assert worker.wait(60) == 0
        finally:
            worker.kill()
            worker.wait()
        assert {a.outcome for run in runs for a in ws.run(run.id).attempts} == {"succeeded"}
    assert "did not exit after its last run: killed" in (tmp_path / "log").read_text()


@pytest.mark.slow
def test_a_stop_hook_that_hangs_holds_up_no_server(serving, tmp_path):
    env = {"HOOKS_FILE": str(tmp_path / "told"), "HOOKS_SLOW": "1000"}
    server = serving("--tasks", "hook_tasks", "--max-runs", "1", env=env, paths=[TASK_MODULES])
    with server.client() as ws:
        runs = [ws.enqueue(Call("h.pool")) for _ in range(2)]
        assert len({run.result(timeout=60)[1] for run in runs}) == 2
        assert {a.outcome for run in runs for a in ws.run(run.id).attempts} == {"succeeded"}
    assert "did not exit after its last run: killed" in server.log.read_text()


def test_a_server_that_stops_waits_for_stop_hooks(serving, tmp_path):
    env = {"HOOKS_FILE": str(tmp_path / "told"), "HOOKS_SLOW": "0.5"}
    server = serving("--tasks", "hook_tasks", env=env, paths=[TASK_MODULES], workers=2)
    with server.client() as ws:
        assert ws.enqueue(Call("h.pool").with_headers({"traceparent": "00-7"})).result(timeout=30)
    assert server.end() == 0
    lines = (tmp_path / "told").read_text(encoding="utf-8").splitlines()
    assert lines.count("closed") == lines.count("open") > 0
    assert "outer 00-7" in lines


def test_a_simulator_calls_them_too(monkeypatch, told, tmp_path):
    monkeypatch.setenv("HOOKS_FILE", str(tmp_path / "told"))
    monkeypatch.syspath_prepend(TASK_MODULES)
    with pytest.raises(FailedPreconditionError, match="close_first failed: RuntimeError: on purpose"), Simulator(modules=["hook_tasks"]) as sim:
        run = sim.client.enqueue(Call("h.fail").with_headers({"swallow": "1"}))
        assert not (tmp_path / "told").exists()
        assert run.result() is None
        assert told()[:4] == ["open", "counted", "outer ", "inner True"]
        sim.crash()
        sim.client.enqueue(Call("h.pool")).result()
    assert told().count("open") == 2
    assert told()[-1] == "closing"
    with pytest.raises(FailedPreconditionError, match="no running event loop"), Simulator(modules=["hook_tasks_async"]) as sim:
        sim.client.enqueue(Call("h.loop")).result()


def test_coroutines_in_a_simulator_may_await_others_and_nothing_else():
    async def inner(x):
        await asyncio.sleep(0)
        return 2 * x

    async def outer(x):
        return await inner(x) + (await inner(x) if x < 5 else 1)

    async def waits():
        await asyncio.sleep(1)

    async def future():
        await Never()

    with Simulator(tasks={"outer": outer, "waits": waits, "future": future}) as sim:
        assert sim.client.enqueue(Call("outer", 3)).result() == 12
        for name, why in (("waits", "no running event loop"), ("future", "a coroutine waits for something, and a Simulator has no event loop")):
            with pytest.raises(RunFailed, match=why):
                sim.client.enqueue(Call(name), retry=1).result()


class Never:
    def __await__(self):
        yield self


@pytest.mark.parametrize(("mode", "concurrency"), MODES)
def test_middleware_is_around_each_run(make, told, mode, concurrency):
    end = make(mode, concurrency)
    end.finish(end.give("h.pool", beside={"traceparent": "00-1"}))
    assert told()[2:] == ["outer 00-1", "inner True", "run", "outer left"]
    failed, swallowed, refused = (end.give("h.fail", beside=beside) for beside in ({}, {"swallow": "1"}, {"refuse": "1"}))
    ended = end.finish(failed, swallowed, refused)
    assert [e[0] for e in ended] == [Outcome.FAILED, Outcome.SUCCEEDED, Outcome.FAILED]
    assert ended[0][3]["message"] == "it is not there"
    assert ended[2][3]["type"] == "PermissionError"
    assert told().count("inner saw it is not there") == 2


@pytest.mark.parametrize(("mode", "concurrency"), MODES)
def test_middleware_around_coroutines_and_batch_handlers(make, told, mode, concurrency):
    end = make(mode, concurrency)
    tokens = end.give_many(2, "h.async")
    assert [value(e) for e in end.finish(*tokens)] == tokens, "each coroutine knows its own run"
    before = told()
    assert [f"in {t}" in before for t in tokens] == [True, True]
    assert before.count("inner True") == before.count("outer left") == 2
    assert [value(e) for e in end.finish(*[end.give("h.batch", i) for i in range(3)])] == [0, 1, 2]
    after = told()[len(before) :]
    assert after.count("inner True") == after.count("outer left") == 3, "once for each run of a call"


def test_what_can_not_be_marked_is_refused():
    async def wrong(run):
        yield

    with pytest.raises(InvalidArgumentError, match="a plain generator function is wanted"):
        middleware(wrong)
    with pytest.raises(InvalidArgumentError, match="without brackets"):
        on_start(None)

"""New task code in the pool of a running server, one process after another."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from tests.rigs.executor import alive, wait_for
from wheelsched import Call, FailedPreconditionError, PermissionDeniedError
from wheelsched.cli.root import cli
from wheelsched.server.reload import Reload

CODE = """
import os, time
from pathlib import Path
from wheelsched import on_start, on_stop, task

VERSION = {version}

@task("v.version")
def version():
    return VERSION

@task("v.wait")
def wait(begun, go):
    Path(begun).touch()
    while not Path(go).exists():
        time.sleep(0.01)
    return VERSION

def tell(what):
    with open(os.environ["TOLD"] + what, "a") as file:
        file.write(f"{{VERSION}}\\n")

@on_start
def started():
    tell("started")

@on_stop
def stopped():
    tell("stopped")
"""


@pytest.fixture
def world(serving, short_tmp):
    """A server whose task module is rewritten by the test."""

    def write(text):
        (short_tmp / "v_tasks.py").write_text(text)

    def start(*flags, workers=2):
        write(CODE.format(version=1))
        env = {"TOLD": f"{short_tmp}/", "PYTHONDONTWRITEBYTECODE": "1"}
        server = serving("--tasks", "v_tasks", *flags, workers=workers, env=env)
        started = short_tmp / "started"
        wait_for(lambda: not workers or (started.exists() and started.read_text() == "1\n" * workers), "the start of all workers")
        return server

    start.write = write
    start.folder = short_tmp
    return start


def versions(ws, n=12):
    return {run.result(timeout=60) for run in [ws.enqueue(Call("v.version")) for _ in range(n)]}


@pytest.mark.parametrize("flags", [(), ("--mode", "thread", "--concurrency", "2"), ("--mode", "async", "--concurrency", "2")])
def test_runs_under_way_finish_on_the_old_code(world, flags):
    server = world(*flags)
    with server.client() as ws:
        begun, go = server.folder / "begun", server.folder / "go"
        held = ws.enqueue(Call("v.wait", str(begun), str(go)))
        wait_for(begun.exists, "the start of the run")
        world.write(CODE.format(version=22))
        done = ws.reload(timeout=60)
        assert (done.workers, done.finishing in (1, 2)) == (2, True)
        assert versions(ws) == {22}, "nothing new goes to the old code"
        held.refresh()
        assert held.state == "running"
        go.touch()
        assert held.result(timeout=60) == 1
        assert [a.outcome for a in ws.run(held.id).attempts] == ["succeeded"]
        stopped = server.folder / "stopped"
        wait_for(lambda: stopped.exists() and stopped.read_text() == "1\n1\n", "the end of both old processes")
        wait_for(lambda: len(ws.stats()["workers"]) == 2, "two workers")
    assert server.end() == 0


def test_code_that_can_not_be_imported_leaves_the_old_one_running(world):
    server = world()
    with server.client() as ws:
        assert versions(ws) == {1}
        world.write("import nothing_of_this_name")
        with pytest.raises(FailedPreconditionError, match=r"the old code goes on in 2 of 2 workers: .*No module named 'nothing_of_this_name'"):
            ws.reload(timeout=60)
        out = CliRunner().invoke(cli, ["--socket", server.socket, "admin", "reload"])
        assert (out.exit_code, "the old code goes on" in out.stderr) == (4, True)
        assert versions(ws) == {1}
        world.write(CODE.format(version=3))
        out = CliRunner().invoke(cli, ["--socket", server.socket, "admin", "reload"])
        assert (out.exit_code, out.stdout.startswith("2 workers have the new code")) == (0, True)
        assert versions(ws) == {3}
    assert "the old code goes on" in server.log.read_text()


def test_a_signal_does_the_same_and_says_so(world):
    server = world(workers=1)
    with server.client() as ws:
        assert versions(ws) == {1}
        world.write(CODE.format(version=4))
        server.process.send_signal(signal.SIGHUP)
        wait_for(lambda: "reload: 1 worker has the new code" in server.log.read_text(), "the reload")
        assert versions(ws) == {4}
        world.write("1 / 0")
        server.process.send_signal(signal.SIGHUP)
        wait_for(lambda: "ZeroDivisionError: division by zero" in server.log.read_text(), "the refusal")
        assert versions(ws) == {4}


def test_many_who_ask_at_once_are_all_answered(world):
    server = world()
    with server.client() as ws:
        assert versions(ws) == {1}
        world.write(CODE.format(version=5))
        found = []

        def ask():
            with server.client() as mine:
                found.append(mine.reload(timeout=120).workers)

        threads = [threading.Thread(target=ask) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == [2, 2, 2]
        assert versions(ws) == {5}
        wait_for(lambda: len(ws.stats()["workers"]) == 2, "two workers")


def test_a_newer_reload_ends_a_newcomer_that_hangs(world):
    server = world()
    with server.client() as ws:
        pid = server.folder / "pid"
        hangs = f"import os, time\nopen({str(pid) + '.new'!r}, 'w').write(str(os.getpid()))\nos.rename({str(pid) + '.new'!r}, {str(pid)!r})\n"
        world.write(hangs + "time.sleep(3600)")
        found = []
        asker = threading.Thread(target=lambda: found.append(ws.reload(timeout=120).workers))
        asker.start()
        wait_for(pid.exists, "the import that hangs")
        assert versions(ws) == {1}
        world.write(CODE.format(version=6))
        assert ws.reload(timeout=120).workers == 2
        asker.join()
        assert found == [2]
        assert versions(ws) == {6}
        wait_for(lambda: not alive(int(pid.read_text())), "the end of the one that hung")
        wait_for(lambda: len(ws.stats()["workers"]) == 2, "two workers")
    assert "because a newer reload has begun" in server.log.read_text()


def test_a_newcomer_that_does_not_begin_ends_the_reload():
    """Its time is the pool's business: `test_no_process.py`."""
    engine = SimpleNamespace(sessions={1: SimpleNamespace(worker=1, tasks=["v"]), 2: SimpleNamespace(worker=2, tasks=["v"])},
                             retiring=set(), seekers=[], now=SimpleNamespace(wall_us=7))
    log, killed, numbers = [], [], count(3)
    reload = Reload(engine, lambda: next(numbers), lambda worker, _: killed.append(worker), lambda text, _level=None: log.append(text))
    reload.want()
    reload.step([1, 2], stopping=False)
    reload.step([1, 2, 3], stopping=False)
    assert log == ["reload: replacing 2 workers, one after another"]
    engine.sessions[3] = SimpleNamespace(worker=3, tasks=["v"])
    reload.step([1, 2, 3], stopping=False)
    assert (killed, engine.retiring) == ([], {1})
    assert not reload.gone(2, "it died"), "another one takes its place, and has the new code already"
    assert reload.gone(4, "worker 4 (pid 9) was killed by SIGKILL, because it had not said hello after 1m"), "nobody takes its place"
    assert log[-1] == "reload: the old code goes on in 0 of 1 worker: worker 4 (pid 9) was killed by SIGKILL, because it had not said hello after 1m"
    assert reload.failure == {"text": log[-1].partition("worker: ")[2], "at_us": 7}
    assert not reload.gone(3, "it died")


def test_a_reload_replaces_what_is_not_there_yet():
    """One that waits for its back-off asks for nothing, so it can't be told to stop."""
    engine = SimpleNamespace(sessions={}, retiring=set(), seekers=[], now=SimpleNamespace(wall_us=7), state=SimpleNamespace(workers={}))
    killed, log = [], []
    reload = Reload(engine, lambda: 2, lambda worker, _: killed.append(worker), lambda text, _level=None: log.append(text))
    reload.want()
    reload.step([1], stopping=False)
    engine.sessions[2] = SimpleNamespace(worker=2, tasks=["v"])
    reload.step([1, 2], stopping=False)
    assert killed == [1]
    assert log[-1].startswith("reload: 1 worker has the new code")


def test_a_reload_where_all_have_ended_meanwhile_says_so():
    engine = SimpleNamespace(sessions={}, retiring=set(), seekers=[], now=SimpleNamespace(wall_us=7))
    log = []
    reload = Reload(engine, lambda: 2, lambda worker, _: None, lambda text, _level=None: log.append(text))
    reload.want()
    reload.step([1], stopping=False)
    assert not reload.gone(1, "worn out")
    assert reload.gone(2, "no such module")
    assert log[-1] == "reload: no worker has code that can be imported: no such module"
    assert reload.failure is None, "no old code goes on"


def test_who_may_not_and_where_there_is_nothing_to_reload(world):
    server = world("--grant", "admin=nobody", workers=0)
    with server.client() as ws, pytest.raises((FailedPreconditionError, PermissionDeniedError), match="no worker processes"):
        ws.reload()


def test_n_a6_a_reload_imports_from_where_the_folders_name_leads_by_then(serving, short_tmp):
    for number in (1, 2):
        (short_tmp / f"r{number}").mkdir()
        (short_tmp / f"r{number}" / "app.py").write_text(f"from wheelsched import task\n@task('app.version')\ndef version(): return {number}\n")
    current = short_tmp / "current"
    current.symlink_to(short_tmp / "r1")
    here = Path.cwd()
    os.chdir(current)
    try:
        server = serving("--tasks", "app", workers=1, env={"PWD": str(current), "PYTHONDONTWRITEBYTECODE": "1"})
    finally:
        os.chdir(here)
    with server.client() as ws:
        assert ws.enqueue(Call("app.version")).result(timeout=60) == 1
        current.unlink()
        current.symlink_to(short_tmp / "r2")
        shutil.rmtree(short_tmp / "r1")
        done = ws.reload()
        assert done.folder == f"{current}, which is {short_tmp / 'r2'}"
        assert done.finishing == 0, "an idle worker has nothing to finish"
        assert ws.enqueue(Call("app.version")).result(timeout=60) == 2
    assert f"reload: 1 worker has the new code, from {current}, which is {short_tmp / 'r2'}" in server.log.read_text()

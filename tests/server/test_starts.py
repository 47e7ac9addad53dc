"""Workers that can't start, and reloads that fail: what `status` and `health` say, and what is in the log."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from click.testing import CliRunner

from tests.rigs.executor import wait_for
from wheelsched import Call, FailedPreconditionError, Retry
from wheelsched.cli.root import cli

CODE = """
from pathlib import Path
from wheelsched import on_start, task

@task("d.one")
def one():
    return 1

@on_start
def f():
    if Path(__file__).with_name("down").exists():
        raise RuntimeError("db is down")
"""


def health(server):
    out = CliRunner().invoke(cli, ["--socket", server.socket, "health"])
    return out.exit_code, out.stdout.strip()


@pytest.fixture
def dies(serving, short_tmp):
    """Starts a server whose workers can't start as long as a file is there."""
    (short_tmp / "dies.py").write_text(CODE)

    def start(**options):
        return serving("--tasks", "dies", env={"PYTHONDONTWRITEBYTECODE": "1"}, **options)

    return start


def test_workers_that_can_not_start_are_told_and_not_counted(dies, short_tmp):
    down = short_tmp / "down"
    down.touch()
    server = dies(workers=1)
    ws = server.client()
    wait_for(lambda: (ws.stats()["start_failure"] or {}).get("tries", 0) >= 3, "some tries", 60)
    code, said = health(server)
    assert code == 1
    assert said.startswith("workers can't start: on_start dies.f failed: RuntimeError: db is down (")
    assert said.endswith(" tries)")
    assert [w["ready"] for w in ws.stats()["workers"]] == [False]
    page = CliRunner().invoke(cli, ["--socket", server.socket, "status"]).stdout
    assert "workers can't start: on_start dies.f failed" in page
    assert "all is well" not in page
    run = ws.enqueue(Call("d.one"))
    assert "1 run is queued and there is no worker" in health(server)[1]
    log = server.log.read_text()
    assert log.count("Traceback") == 1
    assert "on_start dies.f failed: RuntimeError: db is down: again (2)\n" in log
    assert "on_start dies.f failed: RuntimeError: db is down: again (3)\n" in log
    down.unlink()
    assert run.result(timeout=60) == 1
    assert ws.stats()["start_failure"] is None
    assert health(server) == (0, "ok: 1 job, 0 queued, 1 worker")
    assert "workers start again, after " in server.log.read_text()


def test_an_import_that_fails_later(dies, short_tmp):
    server = dies(workers=1)
    ws = server.client()
    assert ws.enqueue(Call("d.one")).result(timeout=60) == 1
    (short_tmp / "dies.py").write_text("import nothing_of_this_name")
    with pytest.raises(FailedPreconditionError):
        ws.reload(timeout=60)
    code, said = health(server)
    assert code == 1
    assert "reload failed at " in said
    assert "Z: the old code goes on: the task module dies can't be imported: ModuleNotFoundError: No module named 'nothing_of_this_name'" in said
    assert "can't start" not in said, "the one that is there goes on"
    assert ws.enqueue(Call("d.one")).result(timeout=60) == 1
    ws.enqueue(Call("t.die"), retry=Retry(attempts=1))
    wait_for(lambda: (ws.stats()["start_failure"] or {}).get("tries", 0) >= 2, "some tries", 60)
    assert "workers can't start: the task module dies can't be imported: ModuleNotFoundError" in health(server)[1]
    (short_tmp / "dies.py").write_text(CODE)
    wait_for(lambda: ws.stats()["start_failure"] is None, "the start of the worker", 60)
    assert ws.reload(timeout=60).workers == 1
    assert ws.stats()["reload_failure"] is None


def test_a_worker_outside_of_the_server_logs_a_traceback_once(dies, short_tmp):
    (short_tmp / "down").touch()
    server = dies(workers=0)
    ws = server.client()
    log = short_tmp / "worker.log"
    env = {**os.environ, "TMPDIR": str(short_tmp), "PYTHONPATH": os.pathsep.join([str(short_tmp), os.environ.get("PYTHONPATH", "")])}
    with log.open("wb") as file:
        argv = [sys.executable, "-m", "wheelsched", "worker", "--socket", server.socket, "--tasks", "dies"]
        worker = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stderr=file, env=env)
    try:
        wait_for(lambda: "db is down: again (3)" in log.read_text(), "some tries", 60)
        assert log.read_text().count("Traceback") == 1
        assert ws.stats()["workers"] == []
        (short_tmp / "down").unlink()
        assert ws.enqueue(Call("d.one")).result(timeout=60) == 1
        assert "workers start again, after " in log.read_text()
        assert [w["ready"] for w in ws.stats()["workers"]] == [True]
    finally:
        worker.kill()
        worker.wait()

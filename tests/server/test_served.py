"""Tasks that nobody serves are told when a job is put; bare marks; packages whose tasks are in their modules."""

from __future__ import annotations

import functools
import json
import runpy
import sys
import tempfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.rigs.engine import Bench
from tests.rigs.server import wait_for
from wheelsched import Call, Client, Command, Every, Http, Job, Manual, task
from wheelsched.cli.root import cli
from wheelsched.engine import census
from wheelsched.executor.packages import no_tasks
from wheelsched.model.errors import InvalidArgumentError
from wheelsched.simulator.simulator import Simulator
from wheelsched.tasks.tasks import load_tasks


@task
def charge(amount: int = 1) -> int:
    return amount


@task()
def refund(amount: int = 1) -> int:
    return -amount


@task(queue="slow")
async def settle() -> str:
    return "settled"


def test_n_a7_a_bare_mark_names_the_task_after_its_function():
    def inner():
        return 1

    here = __name__
    assert [f.call().task for f in (charge, refund, settle)] == [f"{here}.charge", f"{here}.refund", f"{here}.settle"]
    assert settle.call().options == {"queue": "slow"}
    assert (charge(3), refund(3)) == (3, -3)
    assert task(inner).call().task == f"{here}.inner"
    assert {f"{here}.charge", f"{here}.refund", f"{here}.settle"} <= set(load_tasks([here]))
    with Simulator(tasks=[charge, settle]) as sim:
        runs = [sim.client.enqueue(charge.call(4)), sim.client.enqueue(settle.call())]
        sim.advance(0)
        assert [run.result() for run in runs] == [4, "settled"]


def test_n_a7_what_has_no_name_is_refused_and_what_is_no_name_too():
    with pytest.raises(InvalidArgumentError, match=r"has no name of its own: give it one, @task\('name'\)"):
        task(functools.partial(charge, 1))
    with pytest.raises(InvalidArgumentError, match="task"):
        task(5)(charge)
    with pytest.raises(InvalidArgumentError, match="generator"):
        @task
        def many():
            yield 1


def test_n_a7_a_script_names_its_tasks_as_a_worker_will(tmp_path):
    file = tmp_path / "bank.py"
    file.write_text("from wheelsched import task\n@task\ndef settle(): pass\nNAME = settle.call().task\n")
    main = sys.modules["__main__"]
    try:
        sys.modules["__main__"] = type(sys)("__main__")
        sys.modules["__main__"].__file__ = str(file)
        sys.modules["__main__"].__spec__ = None
        space = {"__name__": "__main__"}
        exec(compile(file.read_text(), str(file), "exec"), space)  # as `python bank.py`
        assert space["NAME"] == "bank.settle"
    finally:
        sys.modules["__main__"] = main
    assert runpy.run_path(str(file), run_name="bank")["NAME"] == "bank.settle"


@pytest.fixture
def b():
    with Bench("2026-03-02T00:00:00Z") as bench:
        yield bench


def test_n_a5_a_job_whose_task_no_worker_serves_is_remarked(b):
    assert b.client.put("early", Call("shop.chagre"), Manual()).warning is None  # nobody is there: the next worker may serve it
    b.hello(tasks=("shop.charge", "shop.ship"))
    wrong = b.client.put("wrong", Call("shop.chagre"), Every("5m"))
    assert wrong.warning == "its runs wait: no worker serves task shop.chagre; did you mean shop.charge?"
    assert wrong.to_dict()["warning"] == wrong.warning
    assert b.client.put("wrong", Call("shop.chagre"), Every("5m")).warning == wrong.warning  # unchanged, and still wrong
    assert b.client.put("far", Call("nothing.like.it"), Manual()).warning == "its runs wait: no worker serves task nothing.like.it"
    assert b.client.put("right", Call("shop.charge"), Manual()).warning is None
    assert "--allow-http" in b.client.put("h", Http("GET", "http://x.example/"), Manual()).warning
    assert "--allow-commands" in b.client.put("c", Command(["true"]), Manual()).warning
    many = b.client.put_many([Job(f"m{i}", Call(("shop.ship", "shop.shipp")[i % 2]), Manual()) for i in range(6)])
    assert many.warnings == [("shop.shipp", "its runs wait: no worker serves task shop.shipp; did you mean shop.ship?")]
    for dry in (True, False):
        done = b.client.apply([Job("a", Call("ship"), Manual()), Job("z", Call("shop.ship"), Manual())], dry_run=dry)
        assert [name for name, _ in done.warnings] == ["ship"]
        assert done.to_dict()["warnings"]


def test_n_a5_the_active_jobs_of_such_tasks_are_counted(b, monkeypatch):
    b.client.put_many([Job(f"m{i}", Call(("t.one", "t.two", "t.three")[i % 3]), Manual()) for i in range(30)])
    assert b.client.stats()["unserved_jobs"] == {}  # no worker is there
    b.hello(tasks=("t.one",))
    assert b.client.stats()["unserved_jobs"] == {"t.three": 10, "t.two": 10}
    b.client.pause("m1")
    b.client.delete("m4")
    b.client.enqueue(Call("t.two"))  # the name of its runs is no job of anybody's
    assert b.client.stats()["unserved_jobs"] == {"t.three": 10, "t.two": 8}
    b.hello(tasks=("t.one", "t.two"))
    stats = b.client.stats()
    assert stats["unserved_jobs"] == {"t.three": 10}
    assert {"t.one", "t.two"} <= set(stats["served_tasks"])
    monkeypatch.setattr(census, "PIECE", 7)  # more jobs than one question looks at: told after some questions
    b.client.put_many([Job(f"n{i}", Call("t.four"), Manual()) for i in range(5)])
    for _ in range(12):
        told = b.client.stats()["unserved_jobs"]
    assert told == {"t.four": 5, "t.three": 10}


def test_n_a5_the_command_line_says_it_and_status_goes_on_saying_it(serving):
    server = serving()
    with server.client() as ws:
        wait_for(lambda: "t.echo" in ws.stats()["served_tasks"])

    def run(*args, code=0):
        done = CliRunner().invoke(cli, ["--socket", server.socket, *args], catch_exceptions=False)
        assert done.exit_code == code, done.output
        return done

    assert "did you mean t.echo?" in run("job", "put", "y", "--every", "5m", "t.ehco").stderr
    assert "to run the program: command -- true" in run("job", "put", "x", "--cron", "0 4 * * *", "--", "true").stderr
    file = server.folder / "jobs.toml"
    file.write_text('[jobs.filed]\ntask = "t.sleeep"\nmanual = true\n')
    assert "did you mean t.sleep?" in run("job", "apply", "-f", str(file)).stderr
    assert "did you mean t.sleep?" in run("job", "apply", "-f", str(file), "--dry-run").stderr
    assert "did you mean" not in run("job", "put", "z", "--manual", "t.echo").stderr
    told = run("status").stdout
    assert "3 active jobs name tasks that no worker serves: t.ehco; did you mean t.echo?; t.sleeep; did you mean t.sleep?; true" in told
    assert "all is well" not in told
    assert json.loads(run("status", "-o", "json").stdout)["unserved_jobs"] == {"t.ehco": 1, "t.sleeep": 1, "true": 1}
    assert "did you mean t.echo?" in run("enqueue", "t.ehco").stderr
    with Client(server.socket) as ws:
        for name in ("x", "y", "filed"):
            ws.delete(name)
        ws.cancel(match="*")
    assert run("health").stdout.startswith("ok")


def test_n_b1_a_package_whose_tasks_are_in_its_modules_says_where(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    package = tmp_path / "shopfront" / "tasks"
    (package / "deep").mkdir(parents=True)
    (tmp_path / "shopfront" / "__init__.py").write_text("")
    (package / "__init__.py").write_text("from . import images, payments\n")
    two = "import wheelsched\nfrom wheelsched import task\n@task\ndef a(): pass\n@wheelsched.task('b', retry=1)\nasync def b(): pass\n"
    (package / "images.py").write_text(two)
    (package / "payments.py").write_text("from wheelsched import task\n@task('pay')\ndef pay(): pass\n")
    (package / "deep" / "__init__.py").write_text("from wheelsched import task\n@task('deep')\ndef deep(): pass\n")
    (package / "broken.py").write_text("def (")
    (package / "none.py").write_text("raise RuntimeError('reading it imports nothing')\n")
    assert no_tasks("shopfront.tasks") == (
        "the module shopfront.tasks has no function marked @task; shopfront.tasks.deep has 1, shopfront.tasks.images has 2,"
        " shopfront.tasks.payments has 1: name them, --tasks shopfront.tasks.deep --tasks shopfront.tasks.images"
        " --tasks shopfront.tasks.payments"
    )
    assert no_tasks("json") == "the module json has no function marked @task"
    assert no_tasks("shopfront.tasks.none") == "the module shopfront.tasks.none has no function marked @task"
    assert list(load_tasks(["shopfront.tasks.images"])) == ["shopfront.tasks.images.a", "b"]


def test_n_b1_the_worker_says_it_in_the_log(serving):
    folder = Path(tempfile.mkdtemp(prefix="ws-n-b1-"))
    (folder / "pack").mkdir()
    (folder / "pack" / "__init__.py").write_text("")
    (folder / "pack" / "mail.py").write_text("from wheelsched import task\n@task\ndef send(): pass\n")
    server = serving("--tasks", "pack", paths=[str(folder)])
    wait_for(lambda: "pack.mail has 1: name it, --tasks pack.mail" in server.log.read_text())

"""User code inside an executor: what one run raises, leaves and changes is nothing to the runs after it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
import user_tasks

from tests.rigs.executor import Scripted, value
from tests.rigs.places import TASK_MODULES
from tests.rigs.server import wait_for
from wheelsched import Call
from wheelsched.model.nouns import Outcome
from wheelsched.process.contract import Allowed
from wheelsched.simulator.simulator import Simulator

MODES = [("process", 1), ("thread", 1), ("async", 3)]
every_mode = pytest.mark.parametrize(("mode", "concurrency"), MODES)


@pytest.fixture
def make(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", TASK_MODULES)
    made = []

    def start(mode="process", concurrency=1, **options):
        made.append(Scripted(tmp_path, ["user_tasks"], mode=mode, concurrency=concurrency, **options))
        return made[-1]

    yield start
    for one in made:
        one.close()


@every_mode
@pytest.mark.parametrize(("how", "error"), [
    (7, ("SystemExit", "7")), ("interrupt", ("KeyboardInterrupt", "")), ("child", ("SystemExit", "4")), ("stop", ("RuntimeError", "stopped")),
    ("background", None), ("callback", None),
])
@pytest.mark.parametrize("task", ["u.quits", "u.quits_batch"])
def test_f1_a_coroutine_that_exits_takes_no_other_run_along(make, tmp_path, mode, concurrency, how, error, task):
    if (mode, how) == ("async", "stop"):
        error = None  # the loop is everybody's: it goes on
    end, notes = make(mode, concurrency), str(tmp_path / "notes")
    if mode == "async":
        beside = end.give("u.pays", notes)
    quits = end.ended_for_good((task, how, notes))[0]
    if error is None:
        assert quits[0] == Outcome.SUCCEEDED
    else:
        assert quits[0] == Outcome.FAILED
        assert quits[3]["type"] == error[0]
        assert error[1] in quits[3]["message"]
    for _ in range(3):
        assert value(end.ended_for_good(("u.pays", notes))[0]) == "paid"
    if mode == "async":
        assert value(end.finish(beside)[0]) == "paid"
    lines = Path(notes).read_text().split()
    if how == "stop":
        assert lines.count("stop") == (mode == "async"), "it is not in anybody's later run"
    assert lines.count("paying") == lines.count("paid") == 3 + (mode == "async")
    assert not end.gone


@pytest.mark.parametrize("mode", ["process", "thread"])
@pytest.mark.parametrize("how", ["current", "run", "kept"])
def test_f2_a_closed_loop_is_no_other_runs(make, tmp_path, mode, how):
    end, notes = make(mode), str(tmp_path / "notes")
    for _ in range(2):
        if how == "kept":
            end.ended_for_good(("u.keeps_loop",))
        if mode == "process" or how == "run":  # other threads have no current loop to begin with
            assert value(end.ended_for_good(("u.closes", how))[0]) == 1
            assert value(end.ended_for_good(("u.closes", "current" if mode == "process" else how))[0]) == 1
        assert value(end.ended_for_good(("u.pays", notes))[0]) == "paid"


@every_mode
@pytest.mark.parametrize("task", ["u.exits", "u.exits_async", "u.exits_batch"])
def test_w1_exit_code_0_is_a_success_and_any_other_a_failure(make, mode, concurrency, task):
    end = make(mode, concurrency)
    for code in ([], [None], [0], [False]):
        assert end.ended_for_good((task, code))[0][::3] == (Outcome.SUCCEEDED, None), code
    for code in ([1], [256], ["no"], [""], [0.0], [[]], [0, 1]):
        ended = end.ended_for_good((task, code))[0]
        assert (ended[0], ended[3]["type"]) == (Outcome.FAILED, "SystemExit"), code
    assert not end.gone


@pytest.mark.parametrize("task", [user_tasks.exits, user_tasks.exits_async, user_tasks.exits_batch])
def test_w1_the_simulator_does_the_same(task):
    name = task.__wheelsched_task__.name
    with Simulator(tasks=[task]) as sim:
        assert sim.client.enqueue(Call(name, [0])).result() is None
        failed = sim.client.enqueue(Call(name, [3]), retry=1)
        sim.advance("1s")
        assert (failed.refresh().state, failed.error.type) == ("dead", "SystemExit")


@every_mode
@pytest.mark.parametrize("task", ["u.context", "u.context_async", "u.context_batch"])
def test_w2_context_variables_end_with_the_run(make, mode, concurrency, task):
    end = make(mode, concurrency)
    for name in ("a", "b", "c"):
        assert value(end.ended_for_good((task, name))[0]) == "nobody"


@every_mode
def test_w2_each_run_sees_what_on_start_has_set(make, monkeypatch, mode, concurrency):
    monkeypatch.setenv("USER_TASKS_WHO", "everybody")
    end = make(mode, concurrency)
    for task in ("u.context", "u.context_async", "u.context_batch") * 2:
        assert value(end.ended_for_good((task, "a"))[0]) == "everybody"


@pytest.mark.parametrize("task", [user_tasks.context, user_tasks.context_batch, user_tasks.context_async])
def test_w2_and_in_a_simulator(task):
    with Simulator(tasks=[task]) as sim:
        if task is user_tasks.context_async:
            task = user_tasks.context  # a simulator has no event loop to sleep on
            sim.client.enqueue(Call("u.context_async", "x"))
        else:
            for name in ("a", "b"):
                assert sim.client.enqueue(Call(task.__wheelsched_task__.name, name)).result() == "nobody"
    assert user_tasks.WHO.get() == "nobody"


@pytest.mark.parametrize("mode", ["process", "thread"])
@pytest.mark.parametrize("fail", [False, True])
def test_w3_what_a_run_leaves_on_its_loop_is_cancelled_and_told(make, mode, fail):
    end = make(mode)
    left = end.ended_for_good(("u.leaves_tasks", 0, fail))[0]
    assert left[0] == (Outcome.FAILED if fail else Outcome.SUCCEEDED)
    said = left[3]["stderr"].decode()
    assert said.startswith("wheelsched: cancelled 2 tasks that were still running when this run ended (")
    assert "hums" in said
    assert value(end.ended_for_good(("u.is_over",))[0]) == [True, 0]


@pytest.mark.parametrize("mode", ["process", "thread"])
def test_w3_a_task_that_heeds_no_cancel_holds_up_nobody(make, mode):
    end = make(mode)
    left = end.ended_for_good(("u.leaves_tasks", 1, False))[0]
    assert value(left) == "left"
    assert "1 did not heed it in 1 s" in left[3]["stderr"].decode()
    assert value(end.ended_for_good(("u.is_over",))[0]) == [False, 1]


def looks(end):
    return value(end.ended_for_good(("u.looks",))[0])


@pytest.mark.parametrize("what", ["signals", "mask", "umask", "folder"])
def test_w6_nor_does_a_coroutine_of_a_shared_loop_change_it_for_good(make, tmp_path, what):
    end = make("async", 3, allowed=Allowed(commands=True))
    (tmp_path / "gone").mkdir()
    script = ("command", ["/bin/sh", "-c", "pwd; umask; grep SigIgn /proc/self/status"])
    before, first = looks(end), end.ended_for_good(script)[0][3]["stdout"]
    end.ended_for_good(("u.spoils_async", what, str(tmp_path / "gone")))
    assert end.ended_for_good(script)[0][3]["stdout"] == first
    assert looks(end) == before


@pytest.mark.parametrize("mode", ["process", "thread"])
@pytest.mark.parametrize("what", ["folder", "umask", "signals", "mask", "alarm", "profile", "closed", "redirected", "swapped"])
def test_w6_what_a_run_has_changed_is_put_right(make, tmp_path, mode, what):
    if mode == "thread" and what in ("signals", "mask"):
        pytest.skip("no thread but the main one can, and its own mask is a thread's own")
    end = make(mode)
    (tmp_path / "gone").mkdir()
    before = looks(end)
    spoilt = end.ended_for_good(("u.spoils", what, str(tmp_path / "gone")))[0]
    assert spoilt[0] == Outcome.SUCCEEDED, spoilt
    assert looks(end) == before
    burnt = end.ended_for_good(("u.burns", 0.1 if what == "profile" else 0))[0]
    assert value(burnt) == "burnt"
    if mode == "process":
        assert (burnt[3]["stdout"], burnt[3]["stderr"]) == (b"out\n", b"err\n")
    assert not end.gone


def test_w7_a_timer_that_a_run_leaves_is_stopped_and_told(make, tmp_path):
    end = make()
    left = end.ended_for_good(("u.spoils", "alarm", ""))[0]
    assert left[3]["stderr"] == b"wheelsched: stopped a timer that was still set when its run ended (signal.alarm)\n"
    assert value(end.ended_for_good(("u.burns", 0))[0]) == "burnt"


@every_mode
@pytest.mark.parametrize("what", ["folder", "umask", "signals", "mask", "environment", "closed"])
def test_f9_a_command_inherits_nothing_of_what_a_task_did(make, tmp_path, monkeypatch, mode, concurrency, what):
    if mode != "process" and what == "signals":
        pytest.skip("no thread but the main one can")
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "gone"
    folder.mkdir()
    (tmp_path / "sub").mkdir()
    end = make(mode, concurrency, allowed=Allowed(commands=True, env=("LC_*",)))
    script = "pwd; umask; grep -E 'Sig(Ign|Blk)' /proc/self/status; echo $PATH $LC_SPOILT; ls -l /proc/self/fd/0 | grep -o '/dev/null'"
    first = end.ended_for_good(("command", ["/bin/sh", "-c", script]))[0]
    end.ended_for_good(("u.spoils", what, str(folder)))
    then = end.ended_for_good(("command", ["/bin/sh", "-c", script]))[0]
    assert then[3]["stdout"] == first[3]["stdout"]
    assert first[3]["stdout"].decode().split("\n")[0] == str(tmp_path)
    inside = end.ended_for_good(("command", ["/bin/pwd"], "sub"))[0]
    assert inside[3]["stdout"].decode() == f"{tmp_path}/sub\n"
    assert "the working directory nowhere can't be entered" in end.ended_for_good(("command", ["/bin/pwd"], "nowhere"))[0][3]["message"]


@pytest.mark.parametrize("mode", ["process", "thread", "async"])
@pytest.mark.parametrize("where", ["pool", "external"])
def test_f7_a_client_in_a_task_finds_the_server_that_runs_it(serving, external, short_tmp, monkeypatch, where, mode):
    monkeypatch.setenv("PYTHONPATH", TASK_MODULES)
    monkeypatch.setenv("WHEELSCHED_SOCKET", str(short_tmp / "another"))
    ws = serving("--tasks", "user_tasks", "--mode", mode, workers=int(where == "pool")).client()
    if where == "external":
        external("user_tasks", mode=mode)
    run = ws.enqueue(Call("u.follows"))
    assert ws.run(run.result(timeout=30)).queue == "elsewhere"


def test_n_a9_also_where_the_socket_is_named_by_a_relative_path(short_tmp, monkeypatch):
    monkeypatch.chdir(short_tmp)
    folder = Path("rel")
    folder.mkdir()
    (folder / "moves.py").write_text(
        "import os\nfrom wheelsched import Client, task\n@task('moves')\ndef moves():\n    os.chdir('/')\n    return Client().stats() and os.environ['WHEELSCHED_SOCKET']\n"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(short_tmp / "rel"), os.environ.get("PYTHONPATH", "")])}
    env.pop("WHEELSCHED_SOCKET", None)
    flags = ["--data", "rel/d", "--socket", "rel/s", "--tasks", "moves", "--workers", "1"]
    server = subprocess.Popen([os.sys.executable, "-m", "wheelsched", "serve", *flags], env=env)
    try:
        wait_for(Path("rel/s").exists)
        from wheelsched import Client

        with Client("rel/s") as ws:
            assert ws.enqueue(Call("moves"), retry=1).result(timeout=30) == str(short_tmp / "rel" / "s")
    finally:
        server.terminate()
        server.wait(30)

"""executor/forks.py: a child of os.fork() that leaves user code is no second executor."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.rigs.executor import Scripted, value
from tests.rigs.places import TASK_MODULES
from tests.rigs.server import wait_for
from wheelsched import Call, Retry
from wheelsched.model.nouns import Outcome

CODES = {"return": 0, "raise": 1, "exit": 3, "await": 1}


@pytest.fixture
def make(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", TASK_MODULES)
    made = []

    def start(mode):
        made.append(Scripted(tmp_path, ["fork_tasks"], mode=mode, concurrency=1 if mode == "process" else 3))
        return made[-1]

    yield start
    for end in made:
        end.close()


@pytest.mark.parametrize("around", [False, True], ids=["alone", "middleware"])
@pytest.mark.parametrize("mode", ["process", "thread", "async"])
def test_what_a_child_does_at_the_end_of_user_code(make, tmp_path, monkeypatch, capfd, mode, around):
    if around:
        monkeypatch.setenv("FORK_NOTES", str(tmp_path / "around"))
    end, notes = make(mode), str(tmp_path / "notes")
    wanted = {}
    for kind in ("plain", "batch", "coroutine", "sub"):
        for how in ("return", "raise", "exit", *(["await"] if kind in ("coroutine", "sub") else [])):
            what = f"{kind} {how}"
            wanted[end.give(f"f.{kind}", notes, what, how)] = (what, CODES[how])
            wanted[end.give("f.value", notes, f"behind {what}")] = (f"behind {what}", f"behind {what}")
    ended = dict(zip(wanted, end.finish(*wanted), strict=True))
    for token in [token for token in wanted if ended[token][0] == Outcome.NOT_STARTED]:  # stood behind a run that was slow today
        del wanted[token], ended[token]
    assert wanted
    assert {token: value(ended[token]) for token in wanted} == {token: code for token, (_, code) in wanted.items()}
    assert Counter(Path(notes).read_text().splitlines()) == Counter(what for what, _ in wanted.values())
    if around:
        told = [f"{where} {token}" for token in wanted for where in ("in", "out")]
        assert Counter((tmp_path / "around").read_text().splitlines()) == Counter(told)
    said = capfd.readouterr().err if mode != "process" else "".join(
        (e[3].get("stderr") or b"").decode() for e in ended.values())
    raised = [what for what, _ in wanted.values() if what.endswith(" raise") and not what.startswith("behind")]
    assert said.count("FileNotFoundError") >= len(raised)
    assert not end.gone


@pytest.mark.parametrize("mode", ["process", "thread"])
def test_processes_of_multiprocessing_go_on_as_ever(make, tmp_path, mode):
    end, notes = make(mode), str(tmp_path / "notes")
    assert value(end.finish(end.give("f.processes", notes, "once"))[0]) == 0
    assert Path(notes).read_text().splitlines() == ["once", f"{[notes, 'once']} False"]
    assert not end.heartbeats


@pytest.mark.parametrize("where", ["pool", "external"])
def test_runs_behind_a_fork_are_executed_once(serving, external, short_tmp, monkeypatch, where):
    monkeypatch.setenv("PYTHONPATH", TASK_MODULES)
    ws = serving("--tasks", "fork_tasks", workers=int(where == "pool")).client()
    if where == "external":
        external("fork_tasks")
    notes, once = str(short_tmp / "notes"), Retry(attempts=1)
    ws.queue_pause("default")
    runs = []
    for how in ("return", "raise"):
        runs.append(ws.enqueue(Call("f.plain", notes, how, how), retry=once))
        runs += [ws.enqueue(Call("f.value", notes, f"{how} {i}"), retry=once) for i in range(5)]
    ws.queue_resume("default")
    wait_for(lambda: all(ws.run(r.id).state in ("succeeded", "dead") for r in runs), 60)
    assert {ws.run(r.id).state for r in runs} == {"succeeded"}
    lines = Path(notes).read_text().splitlines()
    assert len(lines) == len(set(lines)) == len(runs)

"""process/wear.py: executors that are replaced between two runs, under a scripted server end and a real one."""

from __future__ import annotations

import re
import time

import pytest

from tests.rigs.executor import HOUR_US, Scripted, value
from tests.rigs.places import TASK_MODULES
from wheelsched import Call, ConfigError
from wheelsched.model.nouns import Outcome
from wheelsched.process.wear import Wear, wear_text
from wheelsched.server.config import MAX_RSS_MIN, load, parse_size

MODES = [("process", 1), ("thread", 2), ("async", 2)]


@pytest.fixture
def make(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", TASK_MODULES)
    made = []

    def start(mode="process", concurrency=1, **options):
        made.append(Scripted(tmp_path, ["wear_tasks"], mode=mode, concurrency=concurrency, **options))
        return made[-1]

    yield start
    for end in made:
        end.close()


@pytest.mark.parametrize(("mode", "concurrency"), MODES)
def test_an_executor_is_replaced_after_so_many_runs(make, mode, concurrency):
    end = make(mode, concurrency, max_runs=5)
    pids = [value(e) for e in end.finish(*end.give_many(5, "w.pid"))]
    assert len(set(pids)) == 1
    end.until(lambda: end.gone, "the end of the executor")
    gone = end.gone[0]
    assert (gone.status, gone.outcomes) == (0, {})
    assert re.fullmatch(r"worker 1 \(pid \d+\) is replaced after 5 runs \(max_runs\)", gone.text)
    end.spawn()
    assert value(end.finish(end.give("w.pid"))[0]) != pids[0]


@pytest.mark.parametrize(("mode", "concurrency"), MODES)
def test_it_takes_no_more_runs_than_that(make, mode, concurrency):
    end = make(mode, concurrency, max_runs=3)
    tokens = end.give_many(8, "w.pid")
    end.until(lambda: end.gone, "the end of the executor")
    done = [t for t in tokens if t in end.ended and end.ended[t][0] == Outcome.SUCCEEDED]
    assert len(done) == 3
    assert end.gone[0].started_token == max(done), "proof that no other was entered"


@pytest.mark.parametrize(("mode", "concurrency"), MODES)
def test_an_executor_is_replaced_when_its_memory_has_grown(make, mode, concurrency):
    end = make(mode, concurrency, max_rss=MAX_RSS_MIN * 2)
    assert value(end.finish(end.give("w.pid"))[0])
    end.idle()
    assert not end.gone
    assert value(end.finish(end.give("w.grow", MAX_RSS_MIN * 2))[0]) == "grown"
    end.until(lambda: end.gone, "the end of the executor")
    assert re.search(r"is replaced at \d+ MiB of memory \(max_rss\)", end.gone[0].text)
    assert end.gone[0].status == 0


@pytest.mark.parametrize(("mode", "concurrency"), MODES)
def test_a_thread_that_a_run_has_left_holds_up_nothing(make, mode, concurrency):
    end = make(mode, concurrency, max_runs=1)
    assert value(end.finish(end.give("w.leave"))[0])
    end.until(lambda: end.gone, "the end of the executor")
    assert (end.gone[0].status, end.gone[0].outcomes) == (0, {})


@pytest.mark.parametrize("mode", ["thread", "async"])
def test_runs_beside_it_end_first(make, tmp_path, mode):
    end = make(mode, 2, max_runs=2)
    slow = end.give("w.wait", str(tmp_path / "go"))
    end.until(lambda: slow in end.pool.running(), "the start of the slow run")
    quick = end.give("w.pid")
    behind = end.give("w.pid")
    end.finish(quick)
    end.step(0.2)
    assert not end.gone
    assert behind not in end.ended or end.ended[behind][0] == Outcome.NOT_STARTED
    (tmp_path / "go").touch()
    assert value(end.finish(slow)[0]) == "waited"
    end.until(lambda: end.gone, "the end of the executor")
    assert (end.gone[0].status, end.gone[0].outcomes) == (0, {})


def test_a_server_replaces_its_workers_and_no_attempt_is_spent(serving):
    server = serving("--tasks", "wear_tasks", "--max-runs", "7", paths=[TASK_MODULES])
    with server.client() as ws:
        runs = [ws.enqueue(Call("w.pid")) for _ in range(40)]
        pids = [run.result(timeout=60) for run in runs]
        assert max(pids.count(p) for p in pids) <= 7
        for run in runs:
            run.refresh()
            assert [a.outcome for a in run.attempts] == ["succeeded"]
    assert "is replaced after 7 runs (max_runs)" in server.log.read_text()


def test_a_run_goes_on_when_user_code_has_closed_the_socket(make, tmp_path):
    end = make(exit_us=HOUR_US)
    run = end.give("w.held", str(tmp_path / "go"))
    end.until((tmp_path / "go.begun").exists, "the start of the run")
    end.pool.hung_up(1)
    now = time.monotonic_ns() // 1_000
    end.executor.exit_by_us = end.executor.wake_us = now  # as if the time had passed
    assert end.pool.poll(now) == []
    assert end.executor.exit_by_us > now, "looked at again later"
    (tmp_path / "go").touch()
    assert end.finish(run)[0][0] == Outcome.SUCCEEDED


def test_sizes():
    assert [parse_size(x, "max_rss") for x in (0, "0", 2**30, "512m", "2GiB", "100MB")] == [
        0, 0, 2**30, 2**29, 2**31, 100 * 2**20,
    ]
    for wrong in ("1k", "x", "", True, "63m", "-1", 5, "9999999t"):
        with pytest.raises(ConfigError, match="max_rss: bytes are wanted"):
            parse_size(wrong, "max_rss")
    config = load({"data": "d", "socket": "s", "max_rss": "1g", "max_runs": 9})
    assert (config.max_rss, config.max_runs) == (2**30, 9)
    with pytest.raises(ConfigError, match="max_runs: a whole number"):
        load({"data": "d", "socket": "s", "max_runs": -1})
    wear = Wear.from_text(wear_text(0, 0))
    assert (wear.left(9), wear.why()) == (9, "")
    assert "MiB" in Wear(0, 1).why()

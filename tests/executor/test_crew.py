"""executor/crew.py: several runs at a time in one executor, threads or coroutines, under a scripted server end."""

from __future__ import annotations

import os
import signal

import msgpack
import pytest

from tests.rigs.executor import FIRST, Scripted, alive, value, wait_for
from tests.rigs.places import TASK_MODULES
from wheelsched.model.nouns import Outcome
from wheelsched.process import processes


@pytest.fixture
def make(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", TASK_MODULES)
    made = []

    def start(mode, concurrency=3, **options):
        made.append(Scripted(tmp_path, ["crew_tasks"], mode=mode, concurrency=concurrency, kill_grace_us=200_000, **options))
        return made[-1]

    yield start
    for end in made:
        end.close()


@pytest.mark.parametrize("mode", ["thread", "async"])
def test_runs_are_in_user_code_together_each_with_its_own_output(make, mode):
    end = make(mode)
    tokens = end.give_many(3, "c.meet")
    for token, ended in zip(tokens, end.finish(*tokens), strict=True):
        assert value(ended) == token
        assert ended[3]["stdout"] == f"met by {token}\n".encode()
        assert ended[3]["stderr"] == f"{token} complains\n".encode()
    assert end.pool.running() == {}


def test_coroutines_share_the_loop_of_the_main_thread(make):
    end = make("async")
    tokens = end.give_many(3, "c.meet_async")
    for token, ended in zip(tokens, end.finish(*tokens), strict=True):
        assert value(ended) == token
        assert ended[3]["stdout"] == f"0 by {token}\n1 by {token}\n".encode()
    loops = [value(e) for e in end.finish(*end.give_many(4, "c.where"))]
    assert {main for _, main in loops} == {True}
    assert len({loop for loop, _ in loops}) == 1


def test_coroutines_in_threads_have_a_loop_each(make):
    end = make("thread")
    assert {main for _, main in [value(e) for e in end.finish(*end.give_many(4, "c.where"))]} == {False}


@pytest.mark.parametrize("mode", ["thread", "async"])
def test_none_of_many_runs_is_lost_or_doubled(make, mode):
    """Scripted refuses a second report of a run. On a busy machine some are handed back unentered, and given again."""
    end = make(mode, 8)
    ended = end.ended_for_good(*(("c.fail",) if i % 50 == 0 else ("c.add", i) for i in range(3_000)))
    for i, one in enumerate(ended):
        if i % 50:
            assert value(one) == i + 1
        else:
            assert (one[0], one[3]["type"], one[3]["message"]) == (Outcome.FAILED, "LookupError", "not there")
            assert "crew.py" not in one[3]["traceback"]


@pytest.mark.parametrize("mode", ["thread", "async"])
def test_slow_runs_hold_nothing_back(make, mode):
    end = make(mode)
    end.finish(*end.give_many(200, "c.add", 1))  # it has learnt that runs are quick
    slow, behind = end.give_many(3, "c.sleep", 2), end.give_many(5, "c.add", 1)
    end.until(lambda: all(t in end.ended for t in behind), "the return of the runs behind")
    assert not any(t in end.ended for t in slow)
    assert {end.ended[t][0] for t in behind} <= {Outcome.NOT_STARTED}
    assert [value(e) for e in end.finish(*slow)] == ["slept"] * 3


@pytest.mark.parametrize("mode", ["thread", "async"])
def test_a_timeout_and_a_cancel_end_those_runs_only(make, mode):
    end = make(mode)
    late, other = end.give("c.polite", 1000, timeout_us=300_000), end.give("c.polite", 1.5)
    asked = end.give("c.polite", 1000)
    end.until(lambda: len(end.pool.running()) == 3, "the start of all")
    end.pool.cancel(1, asked)
    assert [e[0] for e in end.finish(late, asked, other)] == [Outcome.TIMED_OUT, Outcome.CANCELLED, Outcome.SUCCEEDED]
    assert end.ended[late][3]["type"] == "wheelsched.TimedOut"
    assert not end.gone


@pytest.mark.parametrize(("mode", "concurrency"), [("process", 1), ("thread", 2), ("async", 2)])
@pytest.mark.parametrize("swallow", [False, True])
def test_a_coroutine_that_shall_end_is_cancelled(make, tmp_path, mode, concurrency, swallow):
    end = make(mode, concurrency)
    token = end.give("c.waits", 1000, str(tmp_path / "note"), swallow)
    end.until(lambda: token in end.pool.running(), "the start of the run")
    end.pool.cancel(1, token)
    ended = end.finish(token)[0]
    assert ended[0] == Outcome.CANCELLED
    assert (tmp_path / "note").read_text() == "this run was told to end"
    late = end.give("c.waits", 1000, timeout_us=200_000)
    assert end.finish(late)[0][0] == Outcome.TIMED_OUT
    assert value(end.finish(end.give("c.waits", 0))[0]) == "in full"
    assert not end.gone


@pytest.mark.parametrize("mode", ["thread", "async"])
def test_a_deaf_run_ends_the_executor_and_the_others_are_interrupted(make, tmp_path, mode):
    end = make(mode)
    done = end.give("c.add", 1)
    other = end.give("c.sleep", 1000)
    deaf = end.give("c.sleep", 1000, str(tmp_path / "note"), timeout_us=600_000)
    end.until((tmp_path / "note").exists, "the start of the run")
    end.until(lambda: end.gone, "the kill")
    gone = end.gone[0]
    assert (gone.started_token, gone.outcomes) == (deaf, {other: Outcome.INTERRUPTED, deaf: Outcome.TIMED_OUT})
    assert "did not end when it was told to" in gone.text
    assert value(end.ended[done]) == 2


@pytest.mark.parametrize("mode", ["thread", "async"])
def test_a_kill_proves_what_was_entered(make, tmp_path, mode):
    end = make(mode, 2)
    inside = [end.give("c.sleep", 1000, str(tmp_path / f"note{i}")) for i in range(2)]
    end.until(lambda: len(list(tmp_path.glob("note*"))) == 2, "the start of the runs")
    assert end.pool.running() == dict.fromkeys(inside, 1)
    os.kill(end.executor.pid, signal.SIGKILL)
    end.until(lambda: end.gone, "the exit")
    assert (end.gone[0].started_token, end.gone[0].outcomes) == (inside[1], dict.fromkeys(inside, Outcome.LOST))


def test_stop_interrupts_all_that_was_inside(make, tmp_path):
    end = make("thread", 2)
    inside = [end.give("c.sleep", 1000, str(tmp_path / f"note{i}")) for i in range(2)]
    end.until(lambda: len(list(tmp_path.glob("note*"))) == 2, "the start of the runs")
    [gone] = end.pool.stop()
    assert gone.outcomes == dict.fromkeys(inside, Outcome.INTERRUPTED)


@pytest.mark.parametrize("mode", ["thread", "async"])
def test_a_cancel_before_the_start_keeps_user_code_out(make, tmp_path, mode):
    end = make(mode)
    end.idle()
    end.pool.cancel(1, FIRST + 2)
    ended = end.finish(end.give("c.sleep", 0), end.give("c.sleep", 0, str(tmp_path / "note")), end.give("c.sleep", 0))
    assert [e[0] for e in ended] == [Outcome.SUCCEEDED, Outcome.CANCELLED, Outcome.SUCCEEDED]
    assert not (tmp_path / "note").exists()


@pytest.mark.parametrize("mode", ["process", "thread", "async"])
def test_batch_handlers(make, mode):
    end = make(mode)
    plain = [end.give("c.batch", i) for i in range(4)]
    ended = end.finish(*plain, *[end.give("c.batch_async", i) for i in range(3)])
    assert [e[0] for e in ended[:4]] == [Outcome.SUCCEEDED, Outcome.SUCCEEDED, Outcome.FAILED, Outcome.SUCCEEDED]
    numbers, sizes = zip(*[value(ended[i]) for i in (0, 1, 3)], strict=True)
    assert numbers == (0, 1, 3)
    assert max(sizes) > 1
    assert [value(e) for e in ended[4:]] == [0, 10, 20]


@pytest.mark.parametrize("mode", ["thread", "async"])
def test_checkpoints_of_several_runs_are_waited_for(make, mode):
    end = make(mode)
    tokens = [end.give("c.tell", i) for i in range(3)]
    assert [value(e) for e in end.finish(*tokens)] == [0, 1, 2]
    told = {h["token"]: (h["progress"], msgpack.unpackb(h["checkpoint"][0][1])) for h in end.heartbeats}
    assert told == {t.to_bytes(8, "little"): ([[0, f"step {i}"]], {"step": i}) for i, t in enumerate(tokens)}


def test_what_belongs_to_no_run_goes_to_the_worker_s_own_output(make, capfd):
    end = make("thread")
    ended = end.finish(end.give("c.raw"))[0]
    assert ended[3] == {"stdout": b"mine\n"}
    wait_for(lambda: capfd.readouterr().err.count("nor by its thread"), "the thread's line")


def test_commands_run_together_and_one_that_times_out_ends_alone(make, tmp_path):
    end = make("thread", allow_commands=True)
    note = tmp_path / "pid"
    fine = [end.give("command", ["/bin/sh", "-c", f"echo {i}; sleep 1"]) for i in range(2)]
    late = end.give("command", ["/bin/sh", "-c", f"echo $$ >{note}; echo begun; sleep 1000"], timeout_us=400_000)
    ended = end.finish(*fine, late)
    assert [(e[0], e[3]["stdout"]) for e in ended] == [
        (Outcome.SUCCEEDED, b"0\n"), (Outcome.SUCCEEDED, b"1\n"), (Outcome.TIMED_OUT, b"begun\n"),
    ]
    wait_for(lambda: not alive(int(note.read_text())), "the end of the command")
    assert not end.gone


def test_places_of_the_started_file(tmp_path):
    file = processes.StartedFile(tmp_path / "5-1.started", create=True, places=3)
    file.places[2][processes.W_STARTED] = 7
    file.text = "why ä" * 1_000
    file.boot_id = "b" * 36
    file.skip(9)
    again = processes.StartedFile(tmp_path / "5-1.started")
    assert [p[processes.W_STARTED] for p in again.places] == [0, 0, 7]
    assert (again.words[processes.W_STARTED], again.boot_id, again.skips()) == (0, "b" * 36, {9})
    assert again.text.startswith("why äwhy")
    alone = processes.StartedFile(tmp_path / "5-2.started", create=True)
    assert alone.places == [alone.words]


@pytest.mark.parametrize("mode", ["thread", "async"])
def test_an_exception_that_lets_nobody_look_fails_its_run_only(make, mode):
    end = make(mode)
    bad = [end.give("c.closed"), end.give("c.closed_async")]
    good = end.give_many(4, "c.add", 1)
    for ended, name in zip(end.finish(*bad), ["ClosedError", "LeavingError"], strict=True):
        assert (ended[0], ended[3]["type"], ended[3]["message"]) == (
            Outcome.FAILED, f"crew_tasks.{name}", "<no text: SystemExit in __str__>")
    assert [value(e) for e in end.finish(*good)] == [2] * 4
    assert not end.gone


@pytest.mark.parametrize("mode", ["thread", "async"])
def test_a_coroutine_that_exits_fails_its_run_only(make, mode):
    end = make(mode)
    bad, good = end.give("c.exit_async"), end.give_many(4, "c.add", 1)
    (ended,) = end.finish(bad)
    assert (ended[0], ended[3]["type"], ended[3]["message"]) == (Outcome.FAILED, "SystemExit", "8")
    assert [value(e) for e in end.finish(*good)] == [2] * 4
    assert not end.gone

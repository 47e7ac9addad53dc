"""process/kept.py: what an executor had finished when it was killed counts, and is not executed again."""

from __future__ import annotations

import errno
import os
import signal
from pathlib import Path

import msgpack
import pytest

from tests.rigs.executor import FIRST, USED, Scripted, withheld
from tests.rigs.places import TASK_MODULES
from tests.rigs.server import wait_for
from wheelsched import Call, Retry
from wheelsched.model.nouns import Outcome
from wheelsched.process.kept import AREA_BYTES, HEAD_BYTES, RESULT_BYTES, ROWS_MAX, Kept
from wheelsched.process.processes import FILE_BYTES, W_MONO_NS, W_PID
from wheelsched.process.started import SeenFile

MODES = ("process", "thread", "async")
KINDS = ("k.value", "k.none", "k.fail", "k.print", "k.batch")


def enqueue_around(ws, killer, notes):
    """Many runs, one that kills, more behind it, offered at once: (those in front and behind, the killer)."""
    once = Retry(attempts=3, backoff="50ms", cap="50ms")
    ws.queue_pause("default")
    runs = [ws.enqueue(Call(KINDS[i // 4 % len(KINDS)], notes, f"run {i}"), retry=once) for i in range(40)]
    killing = ws.enqueue(Call(killer, notes, "killer"), retry=Retry(attempts=1))
    runs += [ws.enqueue(Call("k.value", notes, f"run {i}"), retry=once) for i in range(40, 50)]
    ws.queue_resume("default")
    return runs, killing


def check_executed_once(ws, notes, runs, killing):
    """Failing runs are retried until they are dead; every other one was executed once, and is told of in full."""
    wait_for(lambda: all(ws.run(r.id).state in ("succeeded", "dead") for r in [*runs, killing]), 60)
    lines = Path(notes).read_text().splitlines()
    assert [a.outcome for a in ws.run(killing.id).attempts] == ["lost"]
    assert lines.count("killer") == 1
    for i, run in enumerate(map(ws.run, [r.id for r in runs])):
        what = f"run {i}"
        kind = KINDS[i // 4 % len(KINDS)] if i < 40 else "k.value"
        assert lines.count(what) == len(run.attempts) == (3 if kind == "k.fail" else 1), (kind, what, run)
        if kind == "k.fail":
            assert {(a.outcome, a.error.type, a.error.message) for a in run.attempts} == {("failed", "ValueError", what)}
            continue
        assert run.state == "succeeded", (kind, what, run)
        assert run.result() == (what if kind in ("k.value", "k.batch") else None)
        assert run.attempts[0].stdout == (b"printed %s\n" % what.encode() if kind == "k.print" else b"")


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("where", ["pool", "external"])
def test_w10_a_run_that_kills_its_executor_makes_no_other_be_executed_again(serving, external, short_tmp, monkeypatch, where, mode):
    monkeypatch.setenv("PYTHONPATH", TASK_MODULES)
    ws = serving("--tasks", "kept_tasks", "--mode", mode, workers=int(where == "pool")).client()
    if where == "external":
        external("kept_tasks", mode=mode)
    notes = str(short_tmp / "notes")
    check_executed_once(ws, notes, *enqueue_around(ws, "k.kill", notes))


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_w10_a_server_that_is_killed_finds_what_its_executor_had_finished(serving, short_tmp, monkeypatch, mode):
    monkeypatch.setenv("PYTHONPATH", TASK_MODULES)
    server = serving("--tasks", "kept_tasks", "--mode", mode)
    notes = str(short_tmp / "notes")
    runs, killing = enqueue_around(server.client(), "k.kill_server", notes)
    assert server.process.wait(60) == -signal.SIGKILL
    check_executed_once(serving("--tasks", "kept_tasks", "--mode", mode).client(), notes, runs, killing)


def reported(folder):
    """Has each executor left user code, and has nothing more to say? It waits for its socket then."""
    for path in folder.rglob("*.started"):
        file = SeenFile(path)
        inside, pid = any(place.words[W_MONO_NS] for place in file.places), file.words[W_PID]
        file.close()
        if inside or process_state(pid) != "S":
            return False
    return True


def process_state(pid):
    return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("where", ["pool", "external"])
def test_w10_a_run_whose_report_was_sent_and_not_answered_is_not_executed_again(serving, external, short_tmp, monkeypatch, where, mode):
    monkeypatch.setenv("PYTHONPATH", TASK_MODULES)
    workers = int(where == "pool")
    server = serving("--tasks", "kept_tasks", "--mode", mode, workers=workers)
    if where == "external":
        external("kept_tasks", mode=mode)
    notes = str(short_tmp / "notes")
    run = server.client().enqueue(Call("k.gate", notes, "gate"), retry=Retry(attempts=3, backoff="50ms", cap="50ms"))
    wait_for(lambda: Path(f"{notes}.pid").exists() and Path(f"{notes}.pid").read_text().endswith("\n"), 30)
    executor = int(Path(f"{notes}.pid").read_text())
    os.kill(server.process.pid, signal.SIGSTOP)  # it reads no report from now on
    Path(f"{notes}.go").touch()
    wait_for(lambda: reported(short_tmp), 30)
    if where == "external":
        os.kill(executor, signal.SIGTERM)
        wait_for(lambda: not Path(f"/proc/{executor}").exists(), 30)
    os.kill(server.process.pid, signal.SIGKILL)
    assert server.process.wait(60) == -signal.SIGKILL
    ws = serving("--tasks", "kept_tasks", "--mode", mode, workers=workers).client()
    wait_for(lambda: ws.run(run.id).state in ("succeeded", "dead"), 60)
    assert ws.run(run.id).result() == "gate"
    assert len(ws.run(run.id).attempts) == 1
    assert Path(notes).read_text().splitlines() == ["gate"]


@pytest.fixture
def end(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", TASK_MODULES)
    made = Scripted(tmp_path, ["kept_tasks"])
    yield made
    made.close()


def told(end, token):
    """(outcome, start, end, result) of a token, as reported or as found after the death."""
    if token in end.ended:
        return end.ended[token]
    outcome, start, ended, result = end.gone[0].ended[token]
    return outcome, start, ended, {k: v for k, v in result.items() if k not in USED} or None


def test_a_dead_executor_s_batch_is_told_of_row_by_row(end, tmp_path):
    notes = str(tmp_path / "notes")
    end.idle()
    tokens = [end.give(kind, notes, kind) for kind in KINDS]
    killer = end.give("k.kill", notes, "killer")
    behind = end.give("k.value", notes, "behind")
    end.until(lambda: end.gone, "the exit")
    assert end.gone[0].started_token == killer
    assert {killer, behind}.isdisjoint(end.gone[0].ended)
    rows = [told(end, token) for token in tokens]
    assert [row[0] for row in rows] == [1, 1, 2, 1, 1]
    assert [(row[3] or {}).get("value") for row in rows] == [msgpack.packb("k.value"), None, None, None, msgpack.packb("k.batch")]
    assert rows[1][3] is None
    assert (rows[2][3]["type"], rows[2][3]["message"]) == ("ValueError", "k.fail")
    assert rows[3][3] == {"stdout": b"printed k.print\n"}
    times = [t for row in rows for t in row[1:3]]
    assert times == sorted(times)
    assert 0 < times[-1] - times[0] < 60_000_000


def test_a_batch_handler_that_kills_has_ended_for_none_of_its_runs(end, tmp_path):
    notes = str(tmp_path / "notes")
    end.idle()
    before = end.give("k.value", notes, "before")
    inside = [end.give("k.kill_batch", notes, str(i)) for i in range(3)]
    end.until(lambda: end.gone, "the exit")
    assert told(end, before)[3] == {"value": msgpack.packb("before")}
    assert set(inside).isdisjoint(end.gone[0].ended)


def test_results_that_fill_the_log_are_reported_on_the_way(end, tmp_path):
    notes = str(tmp_path / "notes")
    end.idle()
    tokens = [end.give(kind, notes, "") for kind in ("k.big", "k.none") for _ in range(2 * RESULT_BYTES // 40_000)]
    tokens += [end.give("k.big", notes, "") for _ in range(3)]
    end.give("k.kill", notes, "killer")
    end.until(lambda: end.gone, "the exit")
    big = {"value": msgpack.packb(b"x" * 40_000)}
    half = 2 * RESULT_BYTES // 40_000
    assert [told(end, t)[3] for t in tokens] == [big] * half + [None] * half + [big] * 3
    assert len(Path(notes).read_text().splitlines()) == len(tokens) + 1


def test_w10_what_ended_is_kept_until_the_server_has_answered_its_report(end, tmp_path):
    notes = str(tmp_path / "notes")
    held, send = withheld(end)
    end.idle()
    tokens = []
    for what in ("first", "second"):
        tokens.append(end.give("k.value", notes, what))
        end.finish(tokens[-1])
        end.idle()
    file = SeenFile(end.executor.file.path)
    assert sorted(file.ended) == tokens, "two batches are kept, reported and not answered"
    tokens.append(end.give("k.value", notes, "third"))
    for _ in range(20):
        end.step(0.02)
    assert Path(notes).read_text().splitlines() == ["first", "second"], "a third batch has no area before the first is answered"
    assert sorted(file.ended) == tokens[:2]
    send(held.pop(0))
    end.finish(tokens[2])
    end.idle()
    assert sorted(file.ended) == tokens[1:]
    file.close()
    os.kill(end.executor.pid, signal.SIGKILL)
    end.until(lambda: end.gone, "the exit")
    assert {t: msgpack.unpackb(e.result["value"]) for t, e in end.gone[0].ended.items()} == {tokens[1]: "second", tokens[2]: "third"}


def test_w10_a_full_log_is_emptied_only_when_its_reports_were_answered(end, tmp_path):
    notes = str(tmp_path / "notes")
    held, send = withheld(end)
    end.idle()
    fit = RESULT_BYTES // 40_100
    tokens = end.give_many(fit + 2, "k.big", notes, "")
    end.finish(*tokens[:fit])
    for _ in range(20):
        end.step(0.02)
    file = SeenFile(end.executor.file.path)
    assert sorted(file.ended) == tokens[:fit]
    assert len(Path(notes).read_text().splitlines()) == fit + 1, "the run whose result has no room has returned"
    assert file.words[W_MONO_NS] == 0, "and can't time out while the server is slow"
    file.close()
    while held:
        send(held.pop(0))
    assert end.finish(tokens[fit])[0][0] == Outcome.SUCCEEDED


def test_on_a_full_disk_nothing_is_kept_and_runs_go_on(tmp_path, monkeypatch):
    allocate = os.posix_fallocate

    def full(fd, offset, size):
        if size > FILE_BYTES:
            allocate(fd, offset, FILE_BYTES * 2)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        allocate(fd, offset, size)

    monkeypatch.setenv("PYTHONPATH", TASK_MODULES)
    monkeypatch.setattr(os, "posix_fallocate", full)
    end = Scripted(tmp_path, ["kept_tasks"])
    try:
        notes = str(tmp_path / "notes")
        assert end.finish(end.give("k.value", notes, "one"))[0][3]["value"] == msgpack.packb("one")
        end.give("k.kill", notes, "killer")
        end.until(lambda: end.gone, "the exit")
        assert end.gone[0].ended == {}
    finally:
        end.close()


def test_what_user_code_has_scribbled_on_counts_for_nothing():
    area = memoryview(bytearray(AREA_BYTES))
    kept = Kept(area)
    kept.begin(b"".join((FIRST + i).to_bytes(8, "little") for i in range(4)), 0, 0)
    for row in range(4):
        assert kept.put(row, {"value": b"?"})
        assert kept.put(row, {"value": b"%d" % row})
        kept.ended_ns[row] = 1_000 * (row + 1)
    assert {t: e.result["value"] for t, e in kept.read().items()} == {FIRST + i: b"%d" % i for i in range(4)}
    assert [e.ended_us for e in kept.read().values()] == [1, 2, 3, 4]
    kept.outcome[0] = Outcome.LOST
    kept.ended_ns[1] = 0
    assert list(kept.read()) == [FIRST + 2, FIRST + 3]
    results = area[HEAD_BYTES + 17 * ROWS_MAX :]
    for spoilt in (0xC1, 0x93, 0x90, 0x01, 0xDB):
        results[0] = spoilt
        assert kept.read() == {}
    results[0] = 0x92
    assert list(kept.read()) == [FIRST + 2, FIRST + 3]
    kept.begin(b"", 0, 0)
    assert kept.read() == {}

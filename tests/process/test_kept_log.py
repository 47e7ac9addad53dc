"""kept_log.py: what ended in an executor with several runs at a time is kept until the server has answered its report."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.rigs.executor import Scripted, withheld
from tests.rigs.places import TASK_MODULES
from wheelsched.model.nouns import Ended, Outcome
from wheelsched.process.kept_log import LOG_BYTES, LOG_HEAD_BYTES, KeptLog, read_log
from wheelsched.process.started import SeenFile

BIG = {"value": b"x" * 200_000}


def areas():
    return [bytearray(LOG_HEAD_BYTES + LOG_BYTES) for _ in range(2)]


def ended(result):
    return Ended(int(Outcome.SUCCEEDED), 10, 20, result)


def found(memory):
    return {token: how for area in memory for token, how in read_log(area).items()}


@pytest.fixture
def make(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", TASK_MODULES)
    made = []

    def start(mode):
        made.append(Scripted(tmp_path, ["kept_tasks"], mode=mode, concurrency=2))
        return made[-1]

    yield start
    for end in made:
        end.close()


@pytest.mark.parametrize("mode", ["thread", "async"])
def test_w10_what_ended_is_kept_until_the_server_has_answered_its_report(make, tmp_path, mode):
    end = make(mode)
    notes = str(tmp_path / "notes")
    held, _ = withheld(end)
    end.idle()
    tokens = [end.give(kind, notes, kind) for kind in ("k.value", "k.print", "k.fail")]
    tokens += [end.give("k.batch", notes, "k.batch")]
    end.finish(*tokens)
    assert held, "reported, and not answered"
    file = SeenFile(end.executor.file.path)
    assert sorted(file.ended) == tokens
    file.close()
    os.kill(end.executor.pid, signal.SIGKILL)
    end.until(lambda: end.gone, "the exit")
    told = end.gone[0].ended
    assert [told[t].outcome for t in tokens] == [Outcome.SUCCEEDED, Outcome.SUCCEEDED, Outcome.FAILED, Outcome.SUCCEEDED]
    assert msgpack.unpackb(told[tokens[0]].result["value"]) == "k.value"
    assert told[tokens[1]].result["stdout"] == b"printed k.print\n"
    assert (told[tokens[2]].result["type"], told[tokens[2]].result["message"]) == ("ValueError", "k.fail")
    for token in tokens:
        outcome, started_us, ended_us, result = end.ended[token]
        assert told[token].outcome == outcome
        assert abs(told[token].started_us - started_us) < 1_000, "the wall clock was read twice: for what is kept, and for the report"
        assert abs(told[token].ended_us - ended_us) < 1_000_000
        assert told[token].result == (result or {})


@pytest.mark.parametrize("mode", ["thread", "async"])
def test_w10_a_run_is_kept_before_another_one_can_end_the_process(make, tmp_path, mode):
    end = make(mode)
    notes = str(tmp_path / "notes")
    end.idle()
    first, killer = end.give("k.value", notes, "first"), end.give("k.kill", notes, "killer")
    end.until(lambda: end.gone, "the exit")
    lines = Path(notes).read_text().splitlines()
    assert lines.count("killer") == 1
    assert killer not in end.gone[0].ended
    assert first in end.gone[0].ended or first in end.gone[0].outcomes, "it had ended, or was in user code"


def test_w10_an_area_is_emptied_only_when_its_reports_were_answered():
    memory = areas()
    log = KeptLog([memoryview(area) for area in memory])
    pending: set[int] = set()

    def unanswered(numbers):
        return bool(pending.intersection(numbers))

    fit = LOG_BYTES // 200_100
    for token in range(1, fit + 1):
        log.put(token, ended(BIG), unanswered)
    assert not log.tight(unanswered), "the other area is free"
    for token in range(fit + 1, 2 * fit + 1):
        log.put(token, ended(BIG), unanswered)
    assert sorted(found(memory)) == list(range(1, 2 * fit + 1))
    assert log.tight(unanswered)
    pending.add(5)
    log.reported(range(1, fit + 1), 5)
    assert log.tight(unanswered), "reported, not answered"
    log.put(1_000, ended(BIG), unanswered)
    assert sorted(found(memory)) == list(range(1, 2 * fit + 1)), "nothing that may be wanted is overwritten"
    pending.clear()
    assert not log.tight(unanswered)
    log.put(1_001, ended(BIG), unanswered)
    assert sorted(found(memory)) == [*range(fit + 1, 2 * fit + 1), 1_001]
    log.close()


@given(st.lists(st.tuples(st.integers(0, 300_000), st.booleans()), max_size=60))
def test_w10_what_the_server_has_not_answered_is_there(steps):
    memory = areas()
    log = KeptLog([memoryview(area) for area in memory])
    pending: set[int] = set()
    open_, number = {}, 0

    def unanswered(numbers):
        return bool(pending.intersection(numbers))

    for token, (size, answer) in enumerate(steps, 1):
        if log.tight(unanswered):
            number += 1
            log.reported(list(open_), number)
            open_.clear()
        log.put(token, ended({"value": b"v" * size}), unanswered)
        open_[token] = size
        if answer:
            number += 1
            pending.add(number)
            log.reported([token], number)
            pending.discard(number)
            del open_[token]
        there = found(memory)
        assert {t: len(there[t].result["value"]) for t in open_} == open_
    log.close()


def test_without_room_on_the_disk_nothing_is_kept():
    log = KeptLog([])
    log.put(1, ended({}), lambda _: False)
    log.reported([1], 1)
    assert not log.tight(lambda _: False)
    log.close()


def test_what_user_code_has_scribbled_on_counts_for_nothing():
    memory = areas()
    log = KeptLog([memoryview(area) for area in memory])
    for token in (7, 8):
        log.put(token, ended({"value": b"v"}), lambda _: False)
    assert sorted(found(memory)) == [7, 8]
    for spoilt in (0xC1, 0x93, 0x90, 0x01, 0xDB):
        kept = memory[0][LOG_HEAD_BYTES]
        memory[0][LOG_HEAD_BYTES] = spoilt
        assert found(memory) == {}
        memory[0][LOG_HEAD_BYTES] = kept
    for used in (1, LOG_BYTES + 1, 2**62):
        memory[0][:8] = used.to_bytes(8, "little")
        assert found(memory) == {}
    memory[0][:8] = (2**64 - 1).to_bytes(8, "little")
    assert found(memory) == {}
    log.close()

"""last_words.py: what a run printed just before its process died is with the run."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.rigs.executor import Scripted
from tests.rigs.places import TASK_MODULES
from tests.rigs.server import wait_for
from wheelsched import Call
from wheelsched.model.nouns import OUTPUT_MAX
from wheelsched.model.tape import Tape
from wheelsched.process.last_words import ALONE_BYTES, HALF, HEAD_BYTES, LastWords, read

WAYS = ["abort", "exit", "kill", "crash"]
WHERE = ["pool", "external"]


@pytest.fixture
def world(serving, external, monkeypatch):
    """A server with one executor of the mode, in its pool or under a worker: world(where, mode, concurrency)."""
    monkeypatch.setenv("PYTHONPATH", TASK_MODULES)

    def start(where, mode="process", concurrency=1):
        flags = ["--mode", mode, "--concurrency", str(concurrency)]
        server = serving("--tasks", "last_words_tasks", *flags, workers=int(where == "pool"))
        ws = server.client()
        if where == "external":
            external("last_words_tasks", mode=mode, concurrency=concurrency)
        return ws

    return start


def attempt_of(ws, run):
    wait_for(lambda: ws.run(run.id).final, 60)
    (attempt,) = ws.run(run.id).attempts
    assert attempt.outcome == "lost", attempt
    return attempt


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "where"), [
    ("process", "pool"), ("thread", "external"), ("async", "pool"),
    *(pytest.param(*pair, marks=pytest.mark.nightly) for pair in (("process", "external"), ("thread", "pool"), ("async", "external"))),
])
def test_f13_the_last_words_before_a_crash_are_with_the_run(world, short_tmp, where, mode):
    ws = world(where, mode, 1 if mode == "process" else 2)
    for how in WAYS:
        for path in (None, str(short_tmp / f"{how}.go")):
            run = ws.enqueue(Call("f.last", how, path), retry=1)
            if path:  # it lasts long enough to have told of its beginning
                wait_for(lambda r=run: ws.run(r.id).stdout == b"first\n", 30)
                Path(path).touch()
            attempt = attempt_of(ws, run)
            assert (attempt.stdout, attempt.stdout_cut) == (b"first\nfinal words\n", 0), (how, path)
            assert attempt.stderr == b"to stderr\nC library says: assertion failed\n", (how, path)
            assert b"".join(piece.data for piece in ws.logs(run.id)) == attempt.stdout + attempt.stderr
    said = ws.enqueue(Call("f.says", "well"))
    assert said.result(timeout=60) == "well"
    assert ws.run(said.id).attempts[0].stdout == b"well\n"


@pytest.mark.slow
@pytest.mark.parametrize("where", WHERE)
def test_f13_a_coroutine_s_last_words(world, where):
    ws = world(where, "async", 3)
    for how in WAYS:
        assert attempt_of(ws, ws.enqueue(Call("f.last_async", how), retry=1)).stdout == b"final words\n", how


@pytest.mark.slow
@pytest.mark.parametrize("where", WHERE)
def test_f13_a_batch_handler_s_last_words_are_with_its_first_run(world, where):
    ws = world(where)
    ws.queue_pause("default")
    runs = [ws.enqueue(Call("f.batch", i), retry=1) for i in range(3)]
    ws.queue_resume("default")
    wait_for(lambda: all(ws.run(run.id).final for run in runs), 60)
    found = [a for run in runs for a in ws.run(run.id).attempts if a.stdout]
    assert b"all of us: 3\n" in [a.stdout for a in found]
    assert {a.stderr for a in found} == {b"assertion failed\n"}


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["process", "thread"])
def test_f13_a_server_that_is_killed_leaves_the_last_words_to_the_next(serving, short_tmp, monkeypatch, mode):
    monkeypatch.setenv("PYTHONPATH", TASK_MODULES)
    flags = ["--tasks", "last_words_tasks", "--mode", mode]
    server = serving(*flags)
    ws = server.client()
    run = ws.enqueue(Call("f.last", "abort", str(short_tmp / "never")), retry=1)
    wait_for(lambda: ws.run(run.id).stdout == b"first\n", 30)
    server.end(signal.SIGKILL)
    assert attempt_of(serving(*flags).client(), run).stdout == b"first\n"


@pytest.fixture
def end(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", TASK_MODULES)
    made = Scripted(tmp_path, ["last_words_tasks"])
    yield made
    made.close()


def text(event, token):
    """{stream: (what the parent found, how much of it was left out)}."""
    tapes = {}
    for stream, at, data in event.printed.get(token, ()):
        tapes.setdefault(stream, Tape(OUTPUT_MAX)).add_at(at, data)
    return {stream: tape.text() for stream, tape in tapes.items()}


@pytest.mark.parametrize("mode", ["thread", "async"])
def test_f13_what_is_written_to_shared_descriptors_is_told_of_each_run_and_goes_on(tmp_path, monkeypatch, capfd, mode):
    monkeypatch.setenv("PYTHONPATH", TASK_MODULES)
    end = Scripted(tmp_path, ["last_words_tasks"], mode=mode, concurrency=2)
    try:
        before = end.give("f.last", "nothing")
        end.until(lambda: end.heartbeats, "what the first has printed")
        killer = end.give("f.last", "abort")
        end.until(lambda: end.gone, "the exit")
        last = b"C library says: assertion failed\n"
        mark = b"wheelsched: written to descriptor 2 by any of the 2 runs in this process:\n"
        assert text(end.gone[0], killer)["stderr"][0] == b"to stderr\n" + mark + last, "since it was entered"
        assert text(end.gone[0], before)["stderr"][0] == b"to stderr\n" + mark + last + last
        assert text(end.gone[0], killer)["stdout"] == (b"first\nfinal words\n", 0)
        said = []
        wait_for(lambda: said.append(capfd.readouterr().err) or "".join(said).count(last.decode()) == 2, 30)
    finally:
        end.close()


@pytest.mark.parametrize("how", WAYS)
def test_f13_much_output_is_cut_as_ever(end, how):
    token = end.give("f.much", how, 20_000)
    end.until(lambda: end.gone, "the exit")
    data, cut = text(end.gone[0], token)["stdout"]
    whole = b"".join([*(b"python %d\n" % i for i in range(20_000)), *(b"child %d\n" % (i + 1) for i in range(20_000))])
    assert data.startswith(whole[:HALF])
    assert data.endswith(b"child 19999\nchild 20000\n")
    assert 0 < cut == len(whole) - (len(data) - len(f"\n[... {cut} bytes left out ...]\n"))


def test_f13_nothing_of_the_run_before_is_among_the_last_words(end):
    end.idle()
    before, killer, behind = end.give("f.says", "before"), end.give("f.dies"), end.give("f.says", "behind")
    end.until(lambda: end.gone, "the exit")
    assert end.gone[0].started_token == killer
    assert end.gone[0].printed == {}
    assert before in end.ended or end.gone[0].ended[before].result["stdout"] == b"before\n"
    assert behind not in end.gone[0].printed


def test_f13_who_still_holds_the_descriptors_holds_up_nobody(end, tmp_path):
    path = tmp_path / "pid"
    token = end.give("f.left", "abort", str(path))
    begun = time.monotonic()
    end.until(lambda: end.gone, "the exit")
    pid = int(path.read_text())
    try:
        assert b"last\n" in text(end.gone[0], token)["stderr"][0]
        assert time.monotonic() - begun < 60
    finally:
        os.kill(pid, signal.SIGKILL)


def test_f13_a_process_gives_all_its_descriptors_back(end):
    def count():
        return len(list(Path("/proc/self/fd").iterdir()))

    end.idle()
    before = count()
    os.kill(end.executor.pid, signal.SIGKILL)
    end.until(lambda: end.gone, "the exit")
    end.spawn()
    end.idle()
    assert count() == before


# The area itself

def area():
    return bytearray(ALONE_BYTES)


@given(st.lists(st.tuples(st.integers(0, 3 * HALF), st.booleans()), max_size=12), st.booleans())
def test_f13_the_area_holds_what_a_tape_holds(steps, taken):
    memory = area()
    said = LastWords(memoryview(memory), HALF)
    tape = Tape(OUTPUT_MAX)
    if taken:
        said.add(b"of the run before")
        said.taken(6)
    for i, (n, staged) in enumerate(steps):
        data = bytes([97 + i]) * n
        if staged:
            for at in range(0, n, len(said.stage)):
                piece = data[at : at + len(said.stage)]
                said.expect()[: len(piece)] = piece
                said.add(piece, staged=True)
        else:
            said.add(data)
        tape.add(data)
    assert read(memory, HALF, 7).text() == tape.text()


def test_f13_a_death_between_any_two_steps_loses_nothing_and_doubles_nothing():
    for staged in (False, True):
        for before in (b"", b"some\n", b"x" * HALF, b"y" * (3 * HALF)):
            check_each_step(before, b"last words\n", staged=staged)


class Watched:
    """A view whose owner sees the memory before each write."""

    def __init__(self, view, look):
        self._view, self._look = view, look

    def __len__(self):
        return len(self._view)

    def __getitem__(self, at):
        return self._view[at]

    def __setitem__(self, at, value):
        self._look()
        self._view[at] = value
        self._look()


def check_each_step(before, data, *, staged):
    memory = area()
    said = LastWords(memoryview(memory), HALF)
    said.add(before)
    seen = []
    for name in ("_head", "_first", "_last", "stage"):
        setattr(said, name, Watched(getattr(said, name), lambda: seen.append(read(memory, HALF, 7))))
    if staged:
        said.expect()[: len(data)] = data
    said.add(data, staged=staged)
    with_all, without = Tape(OUTPUT_MAX), Tape(OUTPUT_MAX)
    without.add(before)
    with_all.add(before)
    with_all.add(data)
    for tape in seen:
        assert tape.total in (len(before), len(before) + len(data))
        kept = tape.text()[0]
        assert kept.startswith(before[:HALF])
        assert kept.endswith(data if tape.total > len(before) else before[-100:])
        assert len(kept) >= min(OUTPUT_MAX - 64, len(before)) - len(data)
    assert [tape.total for tape in seen] == sorted(tape.total for tape in seen)
    assert seen[-1].text() == with_all.text()
    if staged:
        arrived = next(i for i, tape in enumerate(seen) if tape.total > len(before))
        assert all(tape.total > len(before) for tape in seen[arrived:])


def test_f13_what_was_taken_is_of_the_run_that_it_was_taken_for_only():
    memory = area()
    said = LastWords(memoryview(memory), HALF)
    said.add(b"mine\n")
    said.taken(7)
    assert read(memory, HALF, 7).text() == (b"mine\n", 0)
    assert read(memory, HALF, 8).text() == (b"", 0)
    said.add(b"next\n")
    assert read(memory, HALF, 8).text() == (b"next\n", 0)


def test_f13_rubbish_in_the_area_ends_nobody():
    for word in range(4):
        for value in (-(2**63), -1, 1, 2**40, 2**63 - 1):
            memory = area()
            with memoryview(memory)[:HEAD_BYTES].cast("q") as head:
                head[word] = value
            tape = read(memory, HALF, 7)
            assert all(0 <= at < 2**62 and len(data) <= OUTPUT_MAX for at, data in tape.pieces())

"""The server's log: a line for each run that dies and each worker that is refused, and a count where there are thousands."""

from __future__ import annotations

import re
from contextlib import suppress

import numpy as np
import pytest

from tests.rigs.engine import FAILED, Bench
from tests.rigs.server import wait_for
from wheelsched import Call, FailedPreconditionError, Retry
from wheelsched.engine.notices import LINE_MAX, TEXTS_MAX
from wheelsched.engine.outbox import Outbox
from wheelsched.engine.turn import Effects
from wheelsched.protocol.redact import MARK
from wheelsched.server.rationed import LINES_MAX, SPAN_US, Rationed


@pytest.fixture
def bench():
    notices = []
    with Bench("2026-01-01T00:00:00Z") as b:
        step = b.engine.step

        def kept(now, inputs):
            effects = step(now, inputs)
            if effects.notices:
                notices.append(effects.notices)
            return effects

        b.engine.step = kept
        b.notices = notices
        yield b


def dead(b, calls, message="m", **policies):
    for call in calls:
        b.client.enqueue(call, retry=Retry(attempts=1), **policies)
    leases = b.lease(n=len(calls))
    at = np.full(len(leases), b.now_us, "<i8").tobytes()
    b.call(50, ("finish", {
        "id": b"".join(x[0] for x in leases), "token": np.array([x[1] for x in leases], "<i8").tobytes(), "outcome": bytes([FAILED] * len(leases)),
        "started_us": at, "ended_us": at, "result": [[i, {"type": "shop.CardError", "message": message}] for i in range(len(leases))],
    }))


def test_n_b10_a_dead_run_is_told_with_its_job_attempts_and_first_line(bench):
    run = bench.client.enqueue(Call("t"), retry=Retry(attempts=2, backoff=1))
    bench.finish(bench.lease(), FAILED, error="ValueError")
    assert not bench.notices, "it is tried again"
    bench.advance(3)
    bench.finish(bench.lease(), FAILED, error="ValueError")
    (told,) = bench.notices
    assert (told.died, told.deaths) == (1, [f"run {run.id} of ~t is dead after 2 attempts: ValueError: m"])


def test_n_b10_of_an_error_there_is_one_line(bench):
    dead(bench, [Call("t")], "\n  no such card\nTraceback: x\n")
    assert bench.notices[0].deaths[0].endswith("after 1 attempt: shop.CardError: no such card")
    dead(bench, [Call("t")], "x" * 5_000)
    assert len(bench.notices[1].deaths[0]) < LINE_MAX + 120


def test_n_b10_what_is_redacted_is_in_no_line(bench):
    secret = "s3cr\\et'value"
    call = Call("t", 7, {"Password": [secret]}, password=secret, number=4711)
    dead(bench, [call], f"refused: {secret} {secret!r} 4711 b", redact=["password", "number"])
    (line,) = bench.notices[0].deaths
    assert "s3cr" not in line
    assert "4711" not in line.partition("CardError")[2]
    assert line.endswith(f'shop.CardError: refused: {MARK} "{MARK}" {MARK} b')
    dead(bench, [Call("t", "hidden")], "no hidden", redact=["0"])
    assert bench.notices[1].deaths[0].endswith(f"no {MARK}")
    dead(bench, [Call("t", "plain")], "no plain")
    assert bench.notices[2].deaths[0].endswith("no plain")


def test_n_b10_of_thousands_the_first_have_a_text_and_all_are_counted(bench):
    dead(bench, [Call("t", i) for i in range(100)])
    (told,) = bench.notices
    assert (told.died, len(told.deaths)) == (100, TEXTS_MAX)


def test_n_b10_a_refused_worker_is_told(bench):
    with suppress(FailedPreconditionError):
        bench.call(70, ("hello", {"version": 99, "role": "worker", "name": "old", "tasks": {}}))
    with suppress(FailedPreconditionError):
        bench.call(71, ("hello", {"version": 99, "role": "client", "name": "old"}))
    (told,) = bench.notices
    assert told.refused == 1
    assert re.fullmatch(r"a worker 'old' of the user with the uid \d+ was refused: protocol version 99: this server speaks 1", told.refusals[0])


def test_n_b10_a_log_is_given_a_few_lines_and_a_count():
    said = []
    lines = Rationed(said.append, "{n} more")
    for i in range(1_000):
        lines.add([f"{i} {k}" for k in range(10)], 10, i)
    assert said == [f"0 {k}" for k in range(LINES_MAX)]
    assert lines.wake_us() == SPAN_US
    lines.look(SPAN_US - 1)
    assert len(said) == LINES_MAX
    lines.look(SPAN_US)
    assert said[LINES_MAX:] == ["9,990 more"]
    lines.look(3 * SPAN_US)
    lines.add(["next"], 1, 3 * SPAN_US)
    assert said[LINES_MAX + 1 :] == ["next"], "a new span"
    lines.add([], 0, 3 * SPAN_US)
    lines.look(3 * SPAN_US, end=True)
    assert len(said) == LINES_MAX + 2, "nothing is left to count"
    for n in range(20):
        lines.add([str(n)], 1, 3 * SPAN_US + 5)
    lines.look(3 * SPAN_US + 6, end=True)
    assert said[-1] == "10 more"


def test_n_b10_what_is_told_is_not_lost_between_turns():
    outbox = Outbox(1)
    for _ in range(2):
        effects = Effects(seq=5)
        effects.notices.refused, effects.notices.refusals = 1, ["a"]
        outbox.add(effects, 0)
    assert sum(effects.notices.refused for effects in outbox.durable(5, 0)) == 2


def test_n_b10_the_log_of_a_server(serving):
    server = serving()
    runs = [server.client().enqueue(Call("t.once", True), retry=Retry(attempts=1)) for _ in range(LINES_MAX + 5)]
    for run in runs:
        wait_for(lambda run=run: run.refresh().final)
    wait_for(lambda: server.log.read_text().count(" is dead after ") == LINES_MAX)
    server.end()
    log = server.log.read_text()
    assert re.search(r"^\S+Z ERROR wheelsched: run [0-9a-f]{32} of ~t\.once is dead after 1 attempt: ValueError: ", log, re.MULTILINE), log
    assert log.count(" is dead after ") == LINES_MAX
    assert "5 more runs have died since the first of these lines" in log

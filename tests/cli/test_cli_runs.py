"""The command line about runs: enqueue, run get, wait, cancel, list, and what a backfill says of the runs it makes."""

from __future__ import annotations

import json
import re
from fractions import Fraction

import msgpack
import pytest

from tests.rigs.cli import NOON_US, RUN_ID, Scripted, page, wire_job, wire_run
from tests.rigs.client import FakeServer
from wheelsched.model import errors
from wheelsched.model.payloads import Ext, Exts
from wheelsched.protocol.frames import encode_value


@pytest.fixture
def server(short_tmp):
    scripted = Scripted(short_tmp)
    with FakeServer(scripted.path, scripted.handle):
        yield scripted


def test_enqueue_and_wait(server):
    value = b"\x93\x01\x02\x03"
    server.answers |= {"enqueue": wire_run("queued"), "wait": wire_run(result={"value": value})}
    assert server("enqueue", "t", "--wait").stdout == "[1, 2, 3]\n"
    assert json.loads(server("enqueue", "t", "--wait", "-o", "json").stdout)["output"] == [1, 2, 3]
    server.answers["wait"] = wire_run("dead", result={"type": "ValueError", "message": "no", "traceback": ""})
    done = server("enqueue", "t", "--wait")
    assert done.exit_code == 7
    assert "ValueError: no" in done.stderr
    server.answers |= {"wait": wire_run("running"), "run": wire_run("running")}
    assert server("enqueue", "t", "--wait", "--wait-timeout", "50ms").exit_code == 8


def test_run_wait_get_cancel(server):
    error = {"type": "ValueError", "message": "no", "traceback": "Traceback\n  line", "stdout": b"hello\x1b[31m\x07\n", "stdout_cut": 5}
    attempt = {"attempt": 1, "token": 7, "worker": "w1", "started_us": NOON_US, "ended_us": NOON_US + 5_000}
    attempt |= {"outcome": "failed", "result": error}
    server.answers |= {"run": wire_run("dead", result=error, attempts=[attempt]), "cancel": wire_run("cancelled"), "get": wire_job()}
    assert server("run", "wait", RUN_ID).exit_code == 7
    text = server("run", "get", RUN_ID).stdout
    for part in ("failed on w1, token 7, took 5 ms", "Traceback", "(5 bytes left out)", "2026-11-29 13:00:00 +01:00"):
        assert part in text
    assert not set(text) & {"\x1b", "\x07"}
    assert json.loads(server("run", "get", RUN_ID, "-o", "json").stdout)["attempts"][0]["outcome"] == "failed"
    waiting = {"reason": "queue q is paused", "rank": 3, "expected_us": 1_795_957_200_000_000}
    server.answers["run"] = wire_run("queued", waiting=waiting)
    text = server("run", "get", RUN_ID).stdout
    for part in ("queue q is paused", "place in its queue  3", "expected to start", "2026-11-29 14:00:00 +01:00"):
        assert part in text
    told = json.loads(server("run", "get", RUN_ID, "-o", "json").stdout)["waiting"]
    assert told == {"reason": "queue q is paused", "rank": 3, "expected_at": "2026-11-29T13:00:00.000000Z"}
    assert "cancelled" in server("run", "cancel", RUN_ID).stdout
    server.answers |= {"runs": page(), "get": errors.NotFoundError("no job nonsense")}
    assert server("run", "get", "nonsense").exit_code == 3
    done = server("run", "wait", RUN_ID, "--timeout", "0s")
    assert (done.exit_code, done.stderr.rstrip().partition(" after ")[2]) == (8, "0 s: queue q is paused")


def test_a_value_of_a_type_of_the_users_own_is_shown_as_it_is_on_the_wire(server):
    data = encode_value([Fraction(1, 3)], "x", Exts([Ext(7, Fraction, str, Fraction)]))
    server.answers |= dict.fromkeys(("run", "wait", "enqueue", "trigger"), wire_run(result={"value": data})) | {"get": wire_job()}
    for verb in (("run", "get", RUN_ID), ("run", "wait", RUN_ID), ("enqueue", "t", "--wait"), ("job", "trigger", "a", "--wait")):
        done = server(*verb)
        assert (done.exit_code, '[{"ext": 7, "value": "1/3"}]' in done.stdout) == (0, True), done.output
        assert json.loads(server(*verb, "-o", "json").stdout)["output"] == [{"ext": 7, "value": "1/3"}]


def test_run_list(server):
    skipped = wire_run("skipped", reason="overlap", count=3, started_us=None)
    server.answers |= {"runs": page(wire_run(), skipped), "get": errors.NotFoundError("gone")}
    done = server("run", "list", "a", "--state", "dead", "--since", "2026-01-01T00:00:00Z", "--limit", "2")
    assert "overlap (3 occurrences)" in done.stdout
    assert "1 ms" in done.stdout
    args = server.args("runs")
    assert (args["job"], args["state"], args["since_us"], args["limit"]) == ("default/a", "dead", 1_767_225_600_000_000, 3)
    assert len([v for v, _ in server.asked if v == "get"]) == 1, "the zone of a job is asked for once"


def test_what_a_run_was_called_with_and_why(server):
    cause = {"reason": "success", "job": "c/a", "run_id": "ab" * 16, "value": encode_value(b"\xff", "x"), "error": None}
    payload = msgpack.packb([["x" * 2_000], {"to": "eu"}, {"trace": "1", "cause": cause}], use_bin_type=True)
    server.answers |= {"run": wire_run("queued", payload=payload), "get": wire_job()}
    page_ = server("run", "get", RUN_ID).stdout
    for part in ('args       ["xxx', '{"to": "eu"}', '{"trace": "1"}', f"success of c/a, run {'ab' * 16}"):
        assert part in page_, page_
    assert max(map(len, page_.splitlines())) < 1_100
    told = json.loads(server("run", "get", RUN_ID, "-o", "json").stdout)
    assert (told["args"], told["kwargs"], told["headers"]) == (["x" * 2_000], {"to": "eu"}, {"trace": "1"})
    assert (told["cause"]["run_id"], told["cause"]["output"]) == ("ab" * 16, "/w==")
    for words, text in (
        ({"reason": "group", "group": "g", "members": 3, "succeeded": 2, "failed": 1, "cancelled": 0},
         "its group of 3 runs has ended: 2 succeeded, 1 failed"),
        ({"reason": "missed", "job": "c/a", "jobs": 3, "count": 2, "from_us": NOON_US, "until_us": NOON_US},
         "2 missed occurrences of c/a and of 2 other jobs"),
    ):
        server.answers["run"] = wire_run("queued", payload=msgpack.packb([[], {}, {"cause": words}]))
        page_ = server("run", "get", RUN_ID).stdout
        assert text in page_, page_
        assert not [line for line in page_.splitlines() if line.startswith(("args", "kwargs", "headers"))]


def test_since_when_an_attempt_runs(server):
    attempt = {"attempt": 2, "token": 7, "worker": "w8", "started_us": None, "ended_us": None, "outcome": None, "result": None}
    server.answers |= {"run": wire_run("leased", attempts=[attempt]), "get": wire_job()}
    assert "attempt 2  leased on w8, token 7" in server("run", "get", RUN_ID).stdout
    server.answers["run"] = wire_run("running", attempts=[{**attempt, "started_us": NOON_US}])
    assert re.search(r"attempt 2  running on w8 for .+, token 7", server("run", "get", RUN_ID).stdout)


@pytest.mark.parametrize(
    ("forgotten", "dry", "said"),
    [
        (1, [], "1 of them is older than history is kept (`retention`): if a run of that time was made before, it runs again"),
        (5, ["--dry-run"], "5 of them are older than history is kept (`retention`): if a run of that time was made before, it would run again"),
        (0, [], None),
    ],
)
def test_s1_a_backfill_beyond_history_is_told(server, forgotten, dry, said):
    answer = {"count": 7, "existing": 0, "total": 7, "first_us": NOON_US, "last_us": NOON_US, "ids": [], "forgotten": forgotten}
    server.answers |= {"get": wire_job(), "backfill": answer}
    span = ["job", "backfill", "a", "--since", "2026-11-29T13:00:00Z", "--until", "2026-11-30T12:00:00Z"]
    told = [line.strip() for line in server(*span, *dry).stdout.splitlines()[3:]]
    assert told == ([said] if said else [])
    assert json.loads(server(*span, *dry, "-o", "json").stdout)["forgotten"] == forgotten

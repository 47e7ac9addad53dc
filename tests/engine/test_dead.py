"""Dead letters: filters, redrive at a rate, discard, export."""

from __future__ import annotations

import io
import json
from datetime import timedelta

import msgpack
import numpy as np
import pytest

from tests.rigs.client import RUN_ID, T0, T0_US, Driven, FakeServer, answering, run_raw
from tests.rigs.engine import CALL, FAILED, Bench
from wheelsched import Call, Client, Every, Retry
from wheelsched.engine import sweeps
from wheelsched.engine.endings import end_attempts
from wheelsched.journal.recover import recover
from wheelsched.model.errors import FailedPreconditionError, InvalidArgumentError
from wheelsched.protocol import frames
from wheelsched.verbs import dead


@pytest.fixture
def b():
    with Bench("2026-03-02T00:00:00Z") as bench:
        bench.hello(tasks=("t", "u"))
        yield bench


def die(b, *errors, call=CALL, **more):
    """A dead letter of each of these errors, one second after another."""
    runs = []
    for error in errors:
        runs.append(b.client.enqueue(call, retry=1, **more))
        b.finish(b.lease(), FAILED, error=error)
        assert runs[-1].refresh().state == "dead"
        b.advance(1)
    return runs


def ids(runs):
    return [r.id for r in runs]


def test_each_filter_finds_its_own(b):
    timeouts = die(b, "requests.exceptions.Timeout", "app.Timeout")
    value, = die(b, "ValueError", namespace="eu")
    other, = die(b, "ValueError", call=Call("u", 1), queue="slow")
    ws = b.client
    assert ids(ws.dead()) == ids([*timeouts, value, other])
    assert ids(ws.dead(error="Timeout")) == ids(timeouts)
    assert ids(ws.dead(error="requests.Timeout")) == ids(timeouts[:1])
    assert ids(ws.dead(error="*E*")) == ids([value, other])
    assert ids(ws.dead(namespace="eu")) == ids([value])
    assert ids(ws.dead("eu/*")) == ids([value])
    assert ids(ws.dead(task="u")) == ids(ws.dead(queue="slow")) == ids([other])
    assert ids(ws.dead(since=value.ended_at)) == ids([value, other])
    assert ids(ws.dead(until=value.ended_at)) == ids(timeouts)
    assert ids(ws.dead(error="ValueError", task="t", limit=1)) == ids([value])
    assert ws.redrive(error="Timeout", dry_run=True) == 2
    assert ws.discard(error="ValueError", queue="slow") == 1
    assert ws.redrive("*", limit=2) == 2
    assert ids(ws.dead()) == ids([value])
    assert {r.refresh().state for r in timeouts} == {"queued"}
    assert ws.redrive(error="Timeout") == 0


def test_a_page_looks_at_a_piece(b, monkeypatch):
    monkeypatch.setattr(dead, "PIECE", 3)
    runs = die(b, *["A"] * 7, "B", *["A"] * 3)
    assert ids(b.client.dead(error="B")) == [runs[7].id], "behind two empty pages"
    assert ids(b.client.dead()) == ids(runs)
    found = []
    for letter in b.client.dead(error="A"):
        found.append(letter.id)
        assert b.client.discard(ids=[letter.id]) == 1
    assert found == [r.id for r in runs if r.id != runs[7].id], "who discards while reading misses none"


def test_many_are_changed_in_pieces_and_the_newly_dead_are_left_alone(b, monkeypatch):
    monkeypatch.setattr(dead, "PIECE", 4)
    die(b, "A", "B", "A", "A", "B", "A")
    late = b.client.enqueue(CALL, retry=1)
    b.lease()
    go_on, turns = sweeps.go_on, []

    def watched(engine):
        go_on(engine)
        if not turns:  # while the sweep goes on, another one dies
            rows, at = engine.state.runs.find(bytes.fromhex(late.id)), np.full(1, b.now_us, np.int64)
            said = {"type": "A", "message": ""}
            end_attempts(engine, rows, np.full(1, FAILED, np.uint8), at, at, {0: msgpack.packb(said)}, {0: said})
        turns.append(engine.state.runs.list_len(dead.DEAD_LETTERS))

    monkeypatch.setattr(sweeps, "go_on", watched)
    assert b.client.redrive(error="A") == 4
    assert turns == [4, 3], "piece after piece"
    assert [r.error.type for r in b.client.dead()] == ["B", "B", "A"]
    assert [r.id for r in b.client.dead(error="A")] == [late.id]
    assert b.client.discard("*", limit=1) == 1
    assert b.client.discard("*") == 2
    assert list(b.client.dead()) == []


def test_after_a_redrive_the_waits_begin_anew_too(b):
    run = b.client.enqueue(CALL, retry=Retry(attempts=4, backoff="10s", factor=10))
    waits = []
    for _ in range(7):
        b.finish(b.lease(), FAILED)
        if run.refresh().state == "dead":
            assert b.client.redrive("*") == 1
        else:
            waits.append((run.next_at - b.now) / timedelta(seconds=1))
            b.advance(waits[-1] + 1)
    assert [next(d for d in (10, 100, 1_000) if d <= wait <= 1.5 * d) for wait in waits] == [10, 100, 1_000] * 2


def test_a_rate_holds_over_the_pieces(b, monkeypatch):
    monkeypatch.setattr(dead, "PIECE", 2)
    runs = die(b, *["A"] * 5)
    assert b.client.redrive(error="A", rate="1/s") == 5
    assert [r.refresh().next_at and (r.next_at - b.now) / timedelta(seconds=1) for r in runs] == [None, 1, 2, 3, 4]


def test_a_redrive_at_a_rate_survives_a_crash(b):
    runs = die(b, *["A"] * 5)
    began = b.now
    assert b.client.redrive("*", rate="2/m") == 5
    states = [(r.refresh().state, r.next_at and (r.next_at - began) / timedelta(seconds=1)) for r in runs]
    assert states == [("queued", None)] + [("retry_wait", 30.0 * i) for i in range(1, 5)]
    assert recover(b.journal).digest() == b.engine.state.digest()
    b.advance(31)
    assert [r.refresh().state for r in runs] == ["queued"] * 2 + ["retry_wait"] * 3
    b.crash()
    b.advance(30)
    assert [r.refresh().state for r in runs] == ["queued"] * 3 + ["retry_wait"] * 2
    told = [(e.kind, e.reason) for e in b.client.events("oldest", timeout=0, kinds=["run.*"]) if e.run_id == runs[1].id][-2:]
    assert told == [("run.redriven", "redrive"), ("run.queued", None)]
    b.hello(tasks=("t",))
    assert b.client.cancel(runs[4].id).state == "cancelled", "one that waits for its turn can be cancelled"
    lease = b.lease()
    assert {x[2] for x in lease} == {2}, "it goes on counting"
    b.finish(lease, FAILED, error="A")
    assert [r.refresh().state for r in runs[:3]] == ["dead"] * 3, "one attempt anew"


def test_the_same_request_joins_its_sweep(b, monkeypatch):
    monkeypatch.setattr(dead, "PIECE", 1)
    die(b, "A", "A", "A")
    args = {"rid": b"r" * 16, "match": "*"}
    assert b.call(60, ("redrive", args)) == {"count": 3}
    assert b.call(61, ("redrive", args)) == {"count": 3}, "a repeat is answered as the first was"
    assert b.engine.state.runs.list_len(dead.DEAD_LETTERS) == 0


@pytest.mark.parametrize(("wrong", "error", "said"), [
    ({}, InvalidArgumentError, "filter"), ({"match": "*", "ids": []}, InvalidArgumentError, "ids, or a filter"),
    ({"match": "*", "rate": "fast"}, InvalidArgumentError, "rate"), ({"match": "*", "rate": "0/s"}, InvalidArgumentError, "rate"),
    ({"match": "*", "rate": 5}, InvalidArgumentError, "rate"), ({"match": "*", "rate": "1/300d"}, InvalidArgumentError, "366 days"),
    ({"match": "*", "limit": 0}, InvalidArgumentError, "limit"), ({"match": "*", "dry_run": 1}, InvalidArgumentError, "dry_run"),
    ({"error": "x" * 201}, InvalidArgumentError, "error"), ({"since_us": "x"}, InvalidArgumentError, "since_us"),
    ({"match": 5}, InvalidArgumentError, "match"), ({"ids": ["x"]}, InvalidArgumentError, "run id"),
    ({"ids": [[]]}, InvalidArgumentError, "run id"), ({"ids": [{}]}, InvalidArgumentError, "run id"),
])
def test_what_can_not_be_asked(b, wrong, error, said):
    die(b, "A", "A")
    with pytest.raises(error, match=said):
        b.call(60, ("redrive", {"rid": b"q" * 16, **wrong}))
    assert b.engine.state.runs.list_len(dead.DEAD_LETTERS) == 2
    assert not b.engine.sweeps


@pytest.mark.parametrize("ask", [
    lambda ws: ws.redrive(), lambda ws: ws.redrive("*", ids=["0" * 32]), lambda ws: ws.redrive("*", rate="much"),
    lambda ws: ws.discard(ids=["0" * 32], limit=5), lambda ws: ws.dead(namespace="a b"), lambda ws: ws.dead(since="yesterday"),
])
def test_the_client_checks_first(b, ask):
    with pytest.raises(InvalidArgumentError):
        ask(b.client)


@pytest.mark.parametrize("verb", ["redrive", "discard"])
def test_an_id_in_the_place_of_a_pattern_is_told(b, verb):
    """It would find nothing, and the answer 0 would be taken for "nothing to do"."""
    with pytest.raises(InvalidArgumentError, match=r"is a run's id, .* give ids=\[\.\.\.\]"):
        getattr(b.client, verb)("0123456789abcdef" * 2)


def test_open_runs_are_no_letters(b):
    run = b.client.enqueue(CALL)
    with pytest.raises(FailedPreconditionError, match="no dead letters"):
        b.client.redrive(ids=[run.id])


def test_a_backfilled_run_comes_back_at_its_rate(b):
    b.put("j", Every("60s"), retry=Retry(1), catchup="skip", overlap="allow")
    b.advance(200)
    while lease := b.lease():
        b.finish(lease, FAILED, error="A")
    letters = list(b.client.dead("j"))
    assert len(letters) >= 2
    assert b.client.redrive("j", rate="1/s") == len(letters)
    b.advance(len(letters))
    assert {r.refresh().state for r in letters} == {"queued"}


def test_an_export_has_all_of_a_letter(b):
    die(b, "shop.Broke", call=Call("t", "eu", b"\1", full=True))
    out = io.StringIO()
    assert b.client.export_dead(out, error="Broke") == 1
    letter = json.loads(out.getvalue())
    assert (letter["state"], letter["args"], letter["kwargs"]) == ("dead", ["eu", "AQ=="], {"full": True})
    assert letter["error"]["type"] == letter["attempts"][0]["error"]["type"] == "shop.Broke"
    assert b.client.export_dead(out, error="Other") == 0
    die(b, "shop.Late", call=Call("t", password="secret"), redact=["password"])
    out = io.StringIO()
    assert b.client.export_dead(out, error="Late") == 1
    assert json.loads(out.getvalue())["kwargs"] == {"password": "[redacted]"}
    assert len(list(b.client.dead())) == 2, "none is changed"


@pytest.mark.parametrize("make", [Client, Driven], ids=["sync", "async"])
def test_both_clients_ask_alike(make, short_tmp):
    path, out = str(short_tmp / "s"), io.StringIO()
    letter = {name: [of] for name, of in {**run_raw("dead"), "payload": frames.encode_payload((1,), {})}.items()}
    steps = [
        (
            lambda ws: list(ws.dead("default/a*", 5, error="a.B", task="t", queue="q", namespace="n", since=T0, until=T0)),
            {"columns": {}, "after": None}, "dead",
            {"match": "a*", "error": "a.B", "task": "t", "queue": "q", "namespace": "n", "since_us": T0_US, "until_us": T0_US,
             "after": None, "limit": 5}, [],
        ),
        (
            lambda ws: ws.redrive(error="a.B", rate="5/m", limit=7, dry_run=True), {"count": 2}, "redrive",
            {"error": "a.B", "rate": "5/m", "limit": 7, "dry_run": True}, 2,
        ),
        (lambda ws: ws.redrive(ids=[RUN_ID], rate="5/m"), {"count": 1}, "redrive", {"ids": [RUN_ID], "rate": "5/m"}, 1),
        (lambda ws: ws.discard(until=T0), {"count": 1}, "discard", {"until_us": T0_US}, 1),
        (
            lambda ws: ws.export_dead(out, "x"), {"columns": letter, "after": None}, "dead",
            {"match": "x", "payload": True, "after": None, "limit": 1000}, 1,
        ),
    ]
    seen = []
    with FakeServer(path, answering([answer for _, answer, *_ in steps], seen)), make(path) as ws:
        assert [ask(ws) for ask, *_ in steps] == [result for *_, result in steps]
    for request, (_, _, verb, args, _) in zip(seen, steps, strict=True):
        request.args.pop("rid", None)
        assert (request.verb, request.args) == (verb, args)
    assert json.loads(out.getvalue())["args"] == [1]


def test_a_letter_that_is_named_twice_is_one(b):
    die(b, "A")
    [letter] = [run.id for run in b.client.dead()]
    assert b.call(60, ("redrive", {"rid": b"q" * 16, "ids": [letter, letter.upper(), letter]})) == {"count": 1}

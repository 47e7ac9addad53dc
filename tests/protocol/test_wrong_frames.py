"""What a peer of another making may send: refused in words on the one side of each limit, taken on the other."""

from __future__ import annotations

import numpy as np
import pytest

from tests.rigs.engine import Bench, ask_put
from wheelsched import Every, InvalidArgumentError, Manual
from wheelsched.engine.connected import Session
from wheelsched.engine.retries import check_result
from wheelsched.engine.roles import shown
from wheelsched.model.nouns import DELAY_MAX_US, Outcome
from wheelsched.protocol.frames import encode_payload


@pytest.fixture
def b():
    return Bench(start="2026-03-02T00:00:00Z")


def refused(b, verb, args, text, conn=50):
    with pytest.raises(InvalidArgumentError, match=text):
        b.call(conn, (verb, {"rid": bytes(16), **args}))


@pytest.mark.parametrize(("name", "good", "bad"), [
    ("queues", [[], ["q"] * 100, ["n" * 200]], ["q", None, ["q"] * 101, ["n" * 201], ["q", 3]]),
    ("credits", [0, 1, 65_536], [-1, 65_537, True, "1", 1.0, None]),
    ("wait_us", [0], [-1, True, "1", 0.5]),
])
def test_a_lease_request(b, name, good, bad):
    b.hello()
    plain = {"queues": [], "credits": 1, "wait_us": 0}
    for value in good:
        assert b.call(50, ("lease", {**plain, name: value}))["n"] == 0
    for value in bad:
        refused(b, "lease", {**plain, name: value}, f"lease: {name} is")


def test_a_hello(b):
    plain = {"version": 1, "role": "worker", "name": "w", "tasks": {}}
    for tasks in (None, [], "t", {"t": 1}, {"t": {}, "u": None}):
        refused(b, "hello", {**plain, "tasks": tasks}, "hello: tasks is a map")
    refused(b, "hello", {**plain, "tasks": {f"t{i}": {} for i in range(10_001)}}, "hello: tasks is a map")
    for wrong in ({"role": "boss"}, {"name": 3}, {"name": "n" * 201}):
        refused(b, "hello", {**plain, **wrong}, "hello: role is")
    assert b.call(50, ("hello", {**plain, "name": "n" * 200}))


def report(b, **wrong):
    """A completion of one run, with something wrong in it."""
    [(run, token, _)] = b.lease()
    at = np.array([b.now_us], "<i8").tobytes()
    return {"id": run, "token": np.array([token], "<i8").tobytes(), "outcome": bytes([Outcome.FAILED]), "started_us": at, "ended_us": at,
            "result": [[0, {"type": "E", "message": "m"}]], **wrong}


def test_a_completion(b):
    b.put("j", Manual())
    b.client.trigger("j")
    b.hello()
    plain = report(b)
    for pair in ([], [0], [0, {}, 1], ["0", {}], [-1, {}], [1, {}], {"0": {}}):
        refused(b, "finish", {**plain, "result": [pair]}, r"result is a list of \[row, map\]")
    refused(b, "finish", {**plain, "result": {}}, r"result is a list of \[row, map\]")
    for name in ("started_us", "ended_us"):
        for at in (-1, 2**62):
            refused(b, "finish", {**plain, name: np.array([at], "<i8").tobytes()}, f"finish: {name} is in microseconds")
    snoozed = {**plain, "outcome": bytes([Outcome.SNOOZED])}
    refused(b, "finish", {**snoozed, "result": []}, "snoozed")
    assert b.runs("j")[0].state in ("leased", "running"), "nothing of it was taken"
    assert b.call(50, ("finish", {**snoozed, "result": [[0, {"snooze_us": 1_000_000}]]}))["verdict"] == b"\x01"


@pytest.mark.parametrize(("name", "most"), [("retry_us", DELAY_MAX_US), ("snooze_us", DELAY_MAX_US), ("cpu_us", 2**62), ("max_rss", 2**62)])
def test_numbers_of_a_result(name, most):
    for value in (None, 0, most):
        check_result({name: value}, Outcome.FAILED)
    for value in (-1, most + 1, True, "1", 1.5):
        with pytest.raises(InvalidArgumentError, match=f"finish: {name} is a whole number"):
            check_result({name: value}, Outcome.FAILED)


def test_what_makes_an_identity(b):
    call = {"given": ask_put()["given"], "payload": encode_payload((1,), {})}
    for unique in ([], "task", ["task", "colour"], ["colour"], {"task": 1}):
        refused(b, "enqueue", {**call, "unique": unique}, "unique: ")


def test_a_map_that_looks_like_a_run_and_is_none():
    for told in ({"attempts": 3}, {"stale": 1}, {"seq": 3}, {"seq": 3, "token": 5}, {"token": b"123"}):
        assert shown(["watch"], told) == told
    assert shown(["watch"], {"seq": 3, "token": b"123"}) == {"seq": 3, "token": b"\0\0\0"}


def test_which_worker_is_ready():
    assert Session(1, 0, 1, "w", "external").ready
    assert not Session(1, 0, 0, "w", "external").ready
    assert not Session(1, 0, 1, "w", "external", lost=True).ready
    assert not Session(1, 0, 1, "w", "pool").ready, "of the pool, without a task yet"
    assert Session(1, 0, 1, "w", "pool", tasks=frozenset(["t"])).ready


def test_put_many_with_lists_that_do_not_fit(b):
    one = ask_put("a", Every("60s"))
    plain = {"names": ["a", "b"], "payload": [one["payload"]] * 2, "given": [one["given"]], "which": np.zeros(2, "<u4").tobytes()}
    for wrong in ({"names": "ab"}, {"names": ["a"]}, {"payload": one["payload"]}, {"given": one["given"]}, {"names": None}):
        refused(b, "put_many", {**plain, **wrong}, "put_many: names, payload and given are lists", conn=1)


def test_a_part_of_a_group_with_lists_that_do_not_fit(b):
    call = ask_put("a", Manual())
    plain = {"batch": 0, "payload": [call["payload"]], "given": [call["given"]], "which": np.zeros(1, "<u4").tobytes()}
    for wrong in ({"given": call["given"]}, {"payload": call["payload"]}, {"which": b""}, {"payload": []}):
        refused(b, "group", {**plain, **wrong}, "group: given and payload are lists", conn=1)
    refused(b, "group", {**plain, "which": np.ones(1, "<u4").tobytes()}, "which names a row", conn=1)

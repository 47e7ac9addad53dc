"""Both clients against a scripted server over a real Unix socket; one suite for the two."""

from __future__ import annotations

import itertools
import os
from datetime import timedelta
from pathlib import Path

import pytest

from tests.rigs.client import HELLO, RUN_ID, T0, T0_US, Driven, FakeServer, answering, job_raw, run_raw
from wheelsched import (
    Call,
    Client,
    DeadlineExceededError,
    Every,
    FailedPreconditionError,
    InternalError,
    InvalidArgumentError,
    Manual,
    NotFoundError,
    PayloadError,
    PermissionDeniedError,
    RunFailed,
    RunTimeout,
    UnavailableError,
    default_socket_path,
)
from wheelsched.client import client
from wheelsched.client.requests import Ask, Session
from wheelsched.model.nouns import US
from wheelsched.protocol import frames, verbs


@pytest.fixture(params=[Client, Driven], ids=["sync", "async"])
def make(request):
    return request.param


@pytest.fixture
def path(short_tmp):
    return str(short_tmp / "s")


def every_verb():
    """(what is called, the answer, the verb and the arguments that the specification wants)."""
    call = Call("t", 1, a=2)
    payload = frames.encode_payload((1,), {"a": 2})
    run, job = run_raw(), job_raw(result="created")
    return [
        (
            lambda ws: ws.put("x", call, Every("30s", anchor=T0), timeout="5m", note="n", version=3),
            job,
            "put",
            {
                "name": "default/x",
                "given": {"task": "t", "schedule": {"kind": "every", "every_us": 30 * US}, "timeout_us": 300 * US},
                "param_us": T0_US + 544,
                "payload": payload,
                "paused": None,
                "note": "n",
                "version": 3,
            },
        ),
        (
            lambda ws: ws.enqueue(call, delay="10m", key="k", retry=1),
            run,
            "enqueue",
            {
                "given": {"task": "t", "retry": {"attempts": 1, "backoff_us": 10 * US, "factor": 2.0, "cap_us": 3600 * US, "not_on": []}},
                "payload": payload,
                "namespace": "default",
                "key": "k",
                "delay_us": 600 * US,
            },
        ),
        (
            lambda ws: ws.enqueue(call, at=T0, namespace="b"),
            run,
            "enqueue",
            {"given": {"task": "t"}, "payload": payload, "namespace": "b", "key": None, "at_us": T0_US + 544},
        ),
        (lambda ws: ws.get("a/b"), job, "get", {"name": "a/b"}),
        (lambda ws: ws.next("x", 5), [T0_US], "next", {"name": "default/x", "n": 5}),
        (lambda ws: ws.pause("x", note="why"), job, "pause", {"name": "default/x", "note": "why"}),
        (lambda ws: ws.resume("x", catchup="all"), job, "resume", {"name": "default/x", "catchup": "all"}),
        (lambda ws: ws.delete("x"), job, "delete", {"name": "default/x"}),
        (lambda ws: ws.trigger("x", key="k"), run, "trigger", {"name": "default/x", "key": "k"}),
        (lambda ws: ws.run(RUN_ID), run, "run", {"id": RUN_ID}),
        (lambda ws: ws.cancel(RUN_ID), run, "cancel", {"id": RUN_ID}),
        (
            lambda ws: ws.cancel(match="default/a*", state="queued", queue="q"), {"count": 3}, "cancel_many",
            {"match": "a*", "state": "queued", "task": None, "queue": "q", "namespace": None, "dry_run": False},
        ),
        (lambda ws: ws.redrive(match="billing/*"), {"count": 2}, "redrive", {"match": "billing/*"}),
        (lambda ws: ws.discard(ids=[RUN_ID]), {"count": 1}, "discard", {"ids": [RUN_ID]}),
        (lambda ws: ws.stats(), {"runs": 1}, "stats", {}),
        (
            lambda ws: list(ws.jobs("default/a*", state="active", limit=5)),
            {"columns": {}, "after": None},
            "jobs",
            {"match": "a*", "state": "active", "after": None, "limit": 5},
        ),
        (
            lambda ws: list(ws.runs("x", "dead", since=T0, skipped=True)),
            {"columns": {}, "after": None},
            "runs",
            {"job": "default/x", "state": "dead", "since_us": T0_US, "until_us": None, "task": None, "queue": None, "namespace": None,
             "skipped": True, "late": False, "newest": False, "after": None, "limit": 1000},
        ),
        (lambda ws: list(ws.dead()), {"columns": {}, "after": None}, "dead", {"match": None, "after": None, "limit": 1000}),
    ]


def test_every_verb_asks_as_the_specification_says(make, path):
    steps = every_verb()
    seen, got = [], []
    with FakeServer(path, answering([answer for _, answer, _, _ in steps], seen)), make(path) as ws:
        got = [ask(ws) for ask, _, _, _ in steps]
    rids = set()
    for request, (_, _, verb, args) in zip(seen, steps, strict=True):
        if verb in verbs.MUTATING:
            rids.add(request.args.pop("rid"))
        assert (request.verb, request.args) == (verb, args)
    assert len(rids) == sum(verb in verbs.MUTATING for _, _, verb, _ in steps)
    assert all(len(rid) == 16 for rid in rids)
    assert (got[0].name, got[0].result, got[0].args, got[0].kwargs) == ("x", "created", [1], {"a": 2})
    assert (got[1].id, got[1].job) == (RUN_ID, "x")
    assert got[4] == [T0]
    assert got[11:15] == [3, 2, 1, {"runs": 1}]


@pytest.mark.parametrize(
    ("ask", "error"),
    [
        (lambda ws: ws.put("a b", Call("t"), Manual()), InvalidArgumentError),
        (lambda ws: ws.put("x", print, Manual()), InvalidArgumentError),
        (lambda ws: ws.put("x", Call("t"), None), InvalidArgumentError),
        (lambda ws: ws.put("x", Call("t"), "* * * * *"), InvalidArgumentError),
        (lambda ws: ws.put("x", Call("t"), Manual(), paused=1), InvalidArgumentError),
        (lambda ws: ws.put("x", Call("t"), Manual(), version=True), InvalidArgumentError),
        (lambda ws: ws.put("x", Call("t"), Manual(), note="n" * 1001), InvalidArgumentError),
        (lambda ws: ws.put("x", Call("t", object()), Manual()), PayloadError),
        (lambda ws: ws.put("x", Call("t"), Manual(), overlpa="skip"), InvalidArgumentError),
        (lambda ws: ws.enqueue(Call("t"), delay="1s", at=T0), InvalidArgumentError),
        (lambda ws: ws.enqueue(Call("t"), key=""), InvalidArgumentError),
        (lambda ws: ws.enqueue(Call("t"), namespace="a/b c"), InvalidArgumentError),
        (lambda ws: ws.enqueue(Call("t"), max_runs=3), InvalidArgumentError),
        (lambda ws: ws.resume("x", catchup="earliest"), InvalidArgumentError),
        (lambda ws: ws.jobs(state="dead"), InvalidArgumentError),
        (lambda ws: ws.runs(state="active"), InvalidArgumentError),
        (lambda ws: ws.runs(limit=-1), InvalidArgumentError),
        (lambda ws: ws.run("12"), NotFoundError),
        (lambda ws: ws.redrive(), InvalidArgumentError),
        (lambda ws: ws.discard("*", ids=[RUN_ID]), InvalidArgumentError),
        (lambda ws: ws.next("x", 0), InvalidArgumentError),
        (lambda ws: ws.get("x", timeout="soon"), InvalidArgumentError),
    ],
)
def test_what_the_caller_got_wrong_is_told_without_a_server(make, path, ask, error):
    with make(path) as ws, pytest.raises(error):
        ask(ws)


def test_no_server_is_told_at_once_with_advice(make, path):
    with make(path) as ws, pytest.raises(UnavailableError, match="start one with `wheelsched serve`") as caught:
        ws.get("x")
    assert path in str(caught.value)


def test_only_the_server_can_ask_to_come_back_later():
    session = Session("test", "/p", 30)
    first = session.begin(Ask("get", {}, lambda value: value))
    session.not_connected(FileNotFoundError(2, "No such file"), 0.0)
    assert (first.answered, first.wants_retry) == (True, False)
    session.connected()
    session.received(frames.encode_ok(2, HELLO))
    second = session.begin(Ask("get", {}, lambda value: value))
    session.received(frames.encode_error(second.id, UnavailableError("draining")))
    assert (second.answered, second.wants_retry) == (True, True)
    assert session.again(second, 5.0)
    assert (second.answered, second.give_up_at, session.idle) == (False, 35.0, False)
    session.lost(6.0)
    session.not_connected(ConnectionRefusedError(111, "refused"), 7.0)
    assert not second.answered  # it has met a server: the budget counts
    assert session.patience(second, 34.0, None) == 1.0
    assert session.patience(second, 34.0, 34.5) == 0.5
    with pytest.raises(DeadlineExceededError):
        session.patience(second, 34.5, 34.5)
    with pytest.raises(UnavailableError, match="within 30 s"):
        session.patience(second, 35.0, None)
    session.connected()
    session.received(frames.encode_ok(4, HELLO))
    assert session.patience(second, 99.0, None) is None  # a connection stands: it may take as long as it takes


def test_what_is_dropped_before_a_new_connection_is_not_sent_again():
    session = Session("test", "/p", 30)
    first, second = (session.begin(Ask("get", {"name": name}, lambda value: value)) for name in "ab")
    for hello_id in (3, 4):
        session.connected()
        session.took(len(session.next_chunk()))
        session.received(frames.encode_ok(hello_id, HELLO))
        if hello_id == 3:
            assert session.took(len(first.frame)) is first
            session.lost(0.0)
    session.drop(first)
    assert bytes(session.next_chunk()) == second.frame


def test_what_is_half_sent_is_sent_to_its_end():
    session = Session("test", "/p", 30)
    first, second = (session.begin(Ask("get", {"name": name}, lambda value: value)) for name in "ab")
    session.connected()
    session.took(len(session.next_chunk()))
    session.received(frames.encode_ok(3, HELLO))
    session.took(3)
    session.drop(first)
    session.drop(second)
    assert bytes(session.next_chunk()) == first.frame[3:]
    assert session.took(len(first.frame) - 3) is first
    assert not session.wants_to_send


def test_a_lost_connection_sends_the_same_bytes_again(make, path):
    seen = []

    def handle(peer, number):
        peer.hello()
        request = peer.read()
        seen.append((number, request))
        if number == 2:
            peer.ok(request, job_raw())

    with FakeServer(path, handle), make(path) as ws:
        assert ws.pause("x").name == "x"
    assert [number for number, _ in seen] == [0, 1, 2]
    assert len({request.args["rid"] for _, request in seen}) == 1
    assert len({request.id for _, request in seen}) == 1


def test_a_lost_connection_is_made_again_between_calls(make, path):
    def handle(peer, number):
        peer.hello()
        peer.ok(peer.read(), job_raw(version=number))

    with FakeServer(path, handle), make(path) as ws:
        assert [ws.get("x").version for _ in range(3)] == [0, 1, 2]


def test_a_server_that_is_going_away_is_asked_again_with_the_same_rid(make, path):
    seen = []
    with FakeServer(path, answering([UnavailableError("draining"), UnavailableError("draining"), job_raw()], seen)), make(path) as ws:
        ws.delete("x")
    assert len({request.args["rid"] for request in seen}) == 1
    assert len(seen) == 3


def test_the_retry_budget_ends(make, path):
    def handle(peer, number):
        peer.hello()
        peer.read()
        Path(path).unlink(missing_ok=True)

    with FakeServer(path, handle), make(path, retry_for=0.2) as ws, pytest.raises(UnavailableError, match="may have been done"):
        ws.delete("x")


def test_without_a_retry_budget_nothing_is_sent_twice(make, path):
    seen = []

    def handle(peer, number):
        peer.hello()
        seen.append(peer.read())

    with FakeServer(path, handle) as server, make(path, retry_for=0) as ws:
        with pytest.raises(UnavailableError):
            ws.delete("x")
        assert server.connections == len(seen) == 1


def test_the_retry_budget_may_not_outlast_the_memory_of_the_server(make, path):
    with pytest.raises(InvalidArgumentError, match="retry_for"):
        make(path, retry_for=601).close()


def test_a_deadline_and_a_late_answer(make, path):
    def handle(peer, number):
        peer.hello()
        late = peer.read()
        request = peer.read()
        peer.ok(late, job_raw(version=1))
        peer.ok(request, job_raw(version=2))
        peer.read()

    with FakeServer(path, handle), make(path) as ws:
        with pytest.raises(DeadlineExceededError, match="get: no answer"):
            ws.get("x", timeout=0.05)
        assert ws.get("x").version == 2


def test_a_server_that_hangs_before_hello(make, path):
    silent = FakeServer(path, lambda peer, number: (peer.read(), peer.read()))
    with silent, make(path, timeout="50ms") as ws, pytest.raises(DeadlineExceededError):
        ws.get("x")


def test_a_refused_hello_is_told(make, path):
    def handle(peer, number):
        peer.error(peer.read(), PermissionDeniedError("user 1000 may not"))
        peer.read()

    with FakeServer(path, handle), make(path) as ws, pytest.raises(PermissionDeniedError, match="user 1000 may not"):
        ws.get("x")


@pytest.mark.parametrize(
    "rubbish",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"\0\0\0\1\xc1",
        b"\0\0\0\2\x91\x01",
        frames.encode_frame([2, "fine", 1]),
        frames.encode_frame([2, "error", "no map"]),
        frames.encode_frame([2, "error", {"code": []}]),
        b"\xff\xff\xff\xff",
        frames.encode_error(0, InvalidArgumentError("malformed frame")),
    ],
)
def test_rubbish_from_the_peer_ends_the_call_and_the_connection(make, path, rubbish):
    def handle(peer, number):
        peer.hello()
        request = peer.read()
        if number == 0:
            peer.sock.sendall(rubbish)
            peer.read()
        else:
            peer.ok(request, job_raw())

    with FakeServer(path, handle), make(path) as ws:
        with pytest.raises(InvalidArgumentError):
            ws.get("x")
        assert ws.get("x").name == "x"


@pytest.mark.parametrize("answer", [None, 3, [1], {}])
def test_answers_of_another_shape_are_the_servers_fault(make, path, answer):
    with FakeServer(path, answering([answer] * 3, [])), make(path) as ws:
        if answer != {}:
            with pytest.raises(InternalError):
                ws.get("x")
        with pytest.raises(InternalError):
            ws.redrive("*")
        with pytest.raises(InternalError):
            list(ws.dead())


def test_a_closed_client_says_so(make, path):
    with make(path) as ws:
        ws.close()
        with pytest.raises(FailedPreconditionError, match="closed"):
            ws.get("x")


# listings


def test_listings_page_by_themselves(make, path):
    seen = []
    pages = [
        {"columns": {"name": ["a", "b"], "state": ["active", "paused"]}, "after": 7},
        {"columns": {}, "after": 9},
        {"columns": {"name": ["c"], "state": ["active"]}, "after": None},
    ]
    with FakeServer(path, answering(pages * 2 + pages[:1] * 2, seen)), make(path) as ws:
        listing = ws.jobs()
        for _ in range(2):  # each iteration begins anew
            assert [(job.name, job.state) for job in listing] == [("a", "active"), ("b", "paused"), ("c", "active")]
        assert [job.name for job in ws.jobs(limit=2)] == ["a", "b"]
        assert list(ws.jobs(limit=0)) == []
        assert [job.name for job in ws.jobs(limit=1)] == ["a"]  # though the server sends more
    assert [request.args["after"] for request in seen] == [None, 7, 9, None, 7, 9, None, None]
    assert [request.args["limit"] for request in seen] == [1000] * 6 + [2, 1]


def test_a_listing_at_a_prompt_and_the_clock_of_the_server(make, path, monkeypatch):
    monkeypatch.setitem(HELLO, "clock_offset_us", -3_600_000_000)
    with FakeServer(path, answering([{}], [])), make(path) as ws:
        client = getattr(ws, "client", ws)
        assert "Listing of dead: not asked for yet" in repr(client.dead())
        assert ws.clock_offset == timedelta(0)
        ws.stats()
        assert ws.clock_offset == -timedelta(hours=1)


def test_a_listing_that_does_not_move_on_ends(make, path):
    with FakeServer(path, answering([{"columns": {}, "after": 1}] * 2, [])), make(path) as ws, pytest.raises(InternalError):
        list(ws.runs())


# runs


def value(x):
    return {"value": frames.encode_value(x)}


def test_result_waits_until_the_run_is_final(make, path):
    seen = []
    answers = [run_raw("queued"), run_raw("running"), run_raw("succeeded", result=value({"n": 1})), run_raw("dead")]
    with FakeServer(path, answering(answers, seen)), make(path) as ws:
        run = ws.enqueue(Call("t"))
        assert run.result() == {"n": 1}
        assert run.state == "succeeded"
        assert run.result(timeout=0) == {"n": 1}  # final: nothing is asked
        assert run.refresh().state == "dead"
    assert [request.verb for request in seen] == ["enqueue", "wait", "wait", "run"]


def test_result_of_a_run_that_went_wrong(make, path):
    error = {"type": "ValueError", "message": "boom", "traceback": "tb"}
    for state, result, text in (("dead", error, "ValueError: boom"), ("cancelled", None, "cancelled"), ("skipped", None, "overlap")):
        raw = run_raw(state, result=result, reason="overlap" if state == "skipped" else None)
        where = path + state
        answers = [raw, raw] if state == "dead" else [raw]  # a dead letter may have been sent back: it is asked for again
        with FakeServer(where, answering(answers, [])), make(where) as ws, pytest.raises(RunFailed, match=text) as caught:
            ws.run(RUN_ID).result()
        assert caught.value.detail["state"] == state
        assert caught.value.detail["error"] == ("ValueError: boom" if result else None)


def test_result_in_time_or_not(make, path):
    with (
        FakeServer(path, answering(itertools.repeat(run_raw("running")), [])),
        make(path) as ws,
        pytest.raises(RunTimeout, match="is running"),
    ):
        ws.run(RUN_ID).result(timeout="50ms")


def test_a_wait_that_gives_up_says_what_is_waited_for(make, path):
    queued = run_raw("queued", waiting={"reason": "no worker serves task t", "rank": 1, "expected_us": None})
    seen = []
    with (
        FakeServer(path, answering(itertools.chain([run_raw("queued")] * 2, itertools.repeat(queued)), seen)),
        make(path) as ws,
        pytest.raises(RunTimeout, match=r"is queued after 0.05 s: no worker serves task t$") as caught,
    ):
        ws.run(RUN_ID).result(timeout="50ms")
    assert caught.value.detail["waiting"] == "no worker serves task t"


def test_a_run_that_ends_at_the_last_moment_has_ended(make, path):
    with FakeServer(path, answering([run_raw("queued"), run_raw("succeeded", result=value(5))], [])), make(path) as ws:
        assert ws.run(RUN_ID).result(timeout=0) == 5


def test_a_run_that_moved_to_history_is_looked_up(make, path):
    seen = []
    stub, final = {"id": RUN_ID}, run_raw("succeeded", result=value(5))
    answers = [stub, final, run_raw("queued"), stub, final, run_raw("queued"), NotFoundError("no open run"), final]
    with FakeServer(path, answering(answers, seen)), make(path) as ws:
        assert ws.enqueue(Call("t"), key="k").result() == 5
        assert ws.trigger("x").result() == 5
        assert ws.trigger("x").result() == 5
    assert [request.verb for request in seen] == ["enqueue", "run", "trigger", "wait", "run", "trigger", "wait", "run"]


# paths and views


def test_default_socket_path(monkeypatch):
    monkeypatch.setenv("WHEELSCHED_SOCKET", "/a/b")
    assert default_socket_path() == "/a/b"
    with Client() as ws:
        assert ws.path == "/a/b"
    monkeypatch.delenv("WHEELSCHED_SOCKET")
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/7")
    assert client.default_socket_path() == "/run/user/7/wheelsched/wheelsched.sock"
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    monkeypatch.setenv("HOME", "/somewhere/u")
    assert default_socket_path() == "/somewhere/u/.wheelsched/wheelsched.sock"


def test_a_path_the_kernel_can_not_take(make):
    with pytest.raises(InvalidArgumentError, match="107"):
        make("/x" * 60)


def test_a_socket_of_somebody_else(make, path):
    if os.getuid() == 0:
        pytest.skip("root may open every socket")
    with FakeServer(path, lambda peer, number: None), make(path) as ws:
        Path(path).chmod(0)
        with pytest.raises(PermissionDeniedError):
            ws.get("x")

"""Both clients against a scripted server over a real Unix socket; one suite for the two."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from fake_server import HELLO, FakeServer

from wheelsched import (
    AlreadyExistsError,
    AsyncClient,
    At,
    Call,
    Client,
    Cron,
    DeadlineExceededError,
    Every,
    FailedPreconditionError,
    InternalError,
    InvalidArgumentError,
    Job,
    Manual,
    NotFoundError,
    Overlap,
    PayloadError,
    PermissionDeniedError,
    Retry,
    RunFailed,
    RunTimeout,
    UnavailableError,
    WheelschedError,
    client,
    default_socket_path,
    protocol,
)
from wheelsched.aclient import AsyncListing, AsyncRun
from wheelsched.model import FRAME_JOBS_MAX, NEVER, US
from wheelsched.session import Ask, Session
from wheelsched.views import Attempt, JobInfo, PutResults, RunInfo, plain, rfc3339

RUN_ID = "0123456789abcdef" * 2
T0 = datetime(2026, 11, 29, 8, 30, 0, 123456, tzinfo=UTC)
T0_US = int(T0.timestamp()) * US + 123456


class DrivenRun:
    """An AsyncRun whose coroutines are run to their end."""

    def __init__(self, run, loop):
        self._run, self._loop = run, loop

    def result(self, timeout=None):
        return self._loop.run_until_complete(self._run.result(timeout))

    def refresh(self):
        self._loop.run_until_complete(self._run.refresh())
        return self

    def __getattr__(self, name):
        return getattr(self._run, name)


class Driven:
    """An AsyncClient with the face of a Client."""

    def __init__(self, *args, **kwargs):
        self.client = AsyncClient(*args, **kwargs)
        self.loop = asyncio.new_event_loop()

    def __getattr__(self, name):
        method = getattr(self.client, name)
        if not callable(method):
            return method

        def call(*args, **kwargs):
            result = method(*args, **kwargs)
            if asyncio.iscoroutine(result):
                result = self.loop.run_until_complete(result)
            if isinstance(result, AsyncListing):
                return DrivenListing(result, self.loop)
            return DrivenRun(result, self.loop) if isinstance(result, AsyncRun) else result

        return call

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.loop.run_until_complete(self.client.close())
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.close()


class DrivenListing:
    def __init__(self, listing, loop):
        self._listing, self._loop = listing, loop

    def __iter__(self):
        async def read():
            return [item async for item in self._listing]

        return iter(self._loop.run_until_complete(read()))


@pytest.fixture(params=[Client, Driven], ids=["sync", "async"])
def make(request):
    return request.param


@pytest.fixture
def path():
    # a Unix socket's path has at most 107 bytes
    with tempfile.TemporaryDirectory(prefix="ws") as folder:
        yield str(Path(folder, "s"))


def run_raw(state="succeeded", **more):
    return {
        "id": RUN_ID, "job": "default/x", "trigger": "manual", "task": "t", "queue": "default", "scheduled_us": T0_US, "created_us": T0_US,
        "queued_us": T0_US, "started_us": None, "ended_us": None, "next_us": None, "state": state, "reason": None, "attempt": 0, "token": None,
        "worker": None, "result": None, "missed": 0, "until_us": None, "count": None, "attempts": [], **more,
    }


def job_raw(**more):
    return {
        "name": "x", "state": "active", "spec": {"task": "t", "queue": "default", "schedule": {"kind": "manual"}}, "param_us": NEVER,
        "payload": protocol.encode_payload((1,), {"a": 2}), "version": 1, "note": "", "next_us": NEVER, "cursor_us": None, "active": 0,
        "created_us": T0_US, "updated_us": T0_US, **more,
    }


def answering(answers, seen):
    """A handler that gives one answer after another and keeps the requests."""
    rest = iter(answers)

    def handle(peer, number):
        peer.hello()
        while (request := peer.read()) is not None:
            seen.append(request)
            answer = next(rest)
            if isinstance(answer, WheelschedError):
                peer.error(request, answer)
            else:
                peer.ok(request, answer)

    return handle


def test_every_verb_asks_as_the_specification_says(make, path):
    call = Call("t", 1, a=2)
    payload = protocol.encode_payload((1,), {"a": 2})
    run, job = run_raw(), job_raw(result="created")
    steps = [
        (lambda ws: ws.put("x", call, Every("30s", anchor=T0), timeout="5m", note="n", version=3), job, "put", {
            "name": "default/x", "given": {"task": "t", "schedule": {"kind": "every", "every_us": 30 * US}, "timeout_us": 300 * US},
            "param_us": T0_US + 544, "payload": payload, "paused": None, "note": "n", "version": 3}),
        (lambda ws: ws.enqueue(call, delay="10m", key="k", retry=1), run, "enqueue", {
            "given": {"task": "t", "retry": {"attempts": 1, "backoff_us": 10 * US, "factor": 2.0, "cap_us": 3600 * US, "not_on": []}},
            "payload": payload, "namespace": "default", "key": "k", "delay_us": 600 * US}),
        (lambda ws: ws.enqueue(call, at=T0, namespace="b"), run, "enqueue",
            {"given": {"task": "t"}, "payload": payload, "namespace": "b", "key": None, "at_us": T0_US + 544}),
        (lambda ws: ws.get("a/b"), job, "get", {"name": "a/b"}),
        (lambda ws: ws.next("x", 5), [T0_US], "next", {"name": "default/x", "n": 5}),
        (lambda ws: ws.pause("x", note="why"), job, "pause", {"name": "default/x", "note": "why"}),
        (lambda ws: ws.resume("x", catchup="all"), job, "resume", {"name": "default/x", "catchup": "all"}),
        (lambda ws: ws.delete("x"), job, "delete", {"name": "default/x"}),
        (lambda ws: ws.trigger("x", key="k"), run, "trigger", {"name": "default/x", "key": "k"}),
        (lambda ws: ws.run(RUN_ID), run, "run", {"id": RUN_ID}),
        (lambda ws: ws.cancel(RUN_ID), run, "cancel", {"id": RUN_ID}),
        (lambda ws: ws.redrive(match="billing/*"), {"count": 2}, "redrive", {"match": "billing/*"}),
        (lambda ws: ws.discard(ids=[RUN_ID]), {"count": 1}, "discard", {"ids": [RUN_ID]}),
        (lambda ws: ws.stats(), {"runs": 1}, "stats", {}),
        (lambda ws: list(ws.jobs("default/a*", state="active", limit=5)), {"columns": {}, "after": None}, "jobs",
            {"match": "a*", "state": "active", "after": None, "limit": 5}),
        (lambda ws: list(ws.runs("x", "dead", since=T0, skipped=True)), {"columns": {}, "after": None}, "runs",
            {"job": "default/x", "state": "dead", "since_us": T0_US, "until_us": None, "skipped": True, "after": None, "limit": 1000}),
        (lambda ws: list(ws.dead()), {"columns": {}, "after": None}, "dead", {"match": None, "after": None, "limit": 1000}),
    ]
    seen, got = [], []
    with FakeServer(path, answering([answer for _, answer, _, _ in steps], seen)), make(path) as ws:
        got = [ask(ws) for ask, _, _, _ in steps]
    rids = set()
    for request, (_, _, verb, args) in zip(seen, steps, strict=True):
        if verb in protocol.MUTATING:
            rids.add(request.args.pop("rid"))
        assert (request.verb, request.args) == (verb, args)
    assert len(rids) == sum(verb in protocol.MUTATING for _, _, verb, _ in steps)
    assert all(len(rid) == 16 for rid in rids)
    assert (got[0].name, got[0].result, got[0].args, got[0].kwargs) == ("x", "created", [1], {"a": 2})
    assert (got[1].id, got[1].job) == (RUN_ID, "x")
    assert got[4] == [T0]
    assert got[11:14] == [2, 1, {"runs": 1}]


@pytest.mark.parametrize(("ask", "error"), [
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
    (lambda ws: ws.run("12"), InvalidArgumentError),
    (lambda ws: ws.redrive(), InvalidArgumentError),
    (lambda ws: ws.discard("*", ids=[RUN_ID]), InvalidArgumentError),
    (lambda ws: ws.next("x", 0), InvalidArgumentError),
    (lambda ws: ws.get("x", timeout="soon"), InvalidArgumentError),
])
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
    session.received(protocol.encode_ok(2, HELLO))
    second = session.begin(Ask("get", {}, lambda value: value))
    session.received(protocol.encode_error(second.id, UnavailableError("draining")))
    assert (second.answered, second.wants_retry) == (True, True)
    assert session.again(second, 5.0)
    assert (second.answered, second.give_up_at, session.idle) == (False, 35.0, False)
    session.lost(6.0)
    session.not_connected(ConnectionRefusedError(111, "refused"), 7.0)
    assert not second.answered  # it has met a server: the budget counts
    assert session.give_up(second, 34.9) is None
    assert isinstance(session.give_up(second, 35.0), UnavailableError)


def test_what_is_half_sent_is_sent_to_its_end():
    session = Session("test", "/p", 30)
    first, second = (session.begin(Ask("get", {"name": name}, lambda value: value)) for name in "ab")
    session.connected()
    session.took(len(session.next_chunk()))
    session.received(protocol.encode_ok(3, HELLO))
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
    with FakeServer(path, lambda peer, number: (peer.read(), peer.read())), make(path, timeout="50ms") as ws:
        with pytest.raises(DeadlineExceededError):
            ws.get("x")


def test_a_refused_hello_is_told(make, path):
    def handle(peer, number):
        peer.error(peer.read(), PermissionDeniedError("user 1000 may not"))
        peer.read()

    with FakeServer(path, handle), make(path) as ws, pytest.raises(PermissionDeniedError, match="user 1000 may not"):
        ws.get("x")


@pytest.mark.parametrize("rubbish", [
    b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\0\0\0\1\xc1", b"\0\0\0\2\x91\x01", protocol.encode_frame([2, "fine", 1]),
    protocol.encode_frame([2, "error", "no map"]), protocol.encode_frame([2, "error", {"code": []}]), b"\xff\xff\xff\xff",
    protocol.encode_error(0, InvalidArgumentError("malformed frame")),
])
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


# put_many


def jobs(n, payload=1):
    return [Job(f"n{i}", Call("t", payload), At(T0)) for i in range(n)]


def put_all(request):
    return {"result": bytes([i % 3 for i in range(len(request.args["names"]))])}


def test_put_many_splits_into_frames_and_lists_every_job(make, path):
    seen = []

    def handle(peer, number):
        peer.hello()
        while (request := peer.read()) is not None:
            seen.append(request)
            peer.ok(request, put_all(request))

    n = 2 * FRAME_JOBS_MAX + 7
    with FakeServer(path, handle), make(path) as ws:
        results = ws.put_many(jobs(n))
        many = ws.put_many([Job("a/b", Call("t", 1), Cron("0 0 * * *"), queue="q"), Job("c", Call("t", 2), Every("5s", anchor=T0))])
        none = ws.put_many([])
    assert [len(request.args["names"]) for request in seen] == [FRAME_JOBS_MAX, FRAME_JOBS_MAX, 7, 2]
    args = seen[0].args
    assert args["given"] == [{"task": "t", "schedule": {"kind": "at"}}]
    assert (args["which"], len(args["payload"])) == (bytes(4 * FRAME_JOBS_MAX), FRAME_JOBS_MAX)
    assert args["param_us"] == (T0_US + 544).to_bytes(8, "little") * FRAME_JOBS_MAX
    args = seen[3].args
    assert (args["names"], args["which"]) == (["a/b", "default/c"], b"\0\0\0\0\1\0\0\0")
    assert [given["schedule"]["kind"] for given in args["given"]] == ["cron", "every"]
    assert args["given"][0]["queue"] == "q"
    assert args["param_us"] == NEVER.to_bytes(8, "little") + (T0_US + 544).to_bytes(8, "little")
    assert [protocol.decode_payload(payload)[0] for payload in args["payload"]] == [[1], [2]]
    words = ("unchanged", "created", "updated")
    expected = [(f"n{i}", words[i % FRAME_JOBS_MAX % 3]) for i in range(n)]
    assert list(results) == expected
    assert [results[i] for i in (0, 9_999, 10_000, -1)] == [expected[i] for i in (0, 9_999, 10_000, -1)]
    assert results[9_998:10_002] == expected[9_998:10_002]
    assert sum(results.counts().values()) == len(results) == n
    assert list(many) == [("a/b", "unchanged"), ("c", "created")]
    assert len(none) == 0


def test_put_many_keeps_frames_below_their_limit_whatever_the_payloads(make, path):
    rng = random.Random(7)
    sizes = [rng.choice([0, 10, 1_000, 100_000, 262_000]) for _ in range(60)]
    seen = []

    def handle(peer, number):
        peer.hello()
        while (request := peer.read()) is not None:  # the reader refuses frames over the limit
            seen.append(request)
            peer.ok(request, put_all(request))

    with FakeServer(path, handle), make(path) as ws:
        results = ws.put_many(Job(f"n{i}", Call("t", b"x" * size), Manual(), priority=i % 10) for i, size in enumerate(sizes))
    assert [name for name, _ in results] == [f"n{i}" for i in range(60)]
    payloads = [payload for request in seen for payload in request.args["payload"]]
    assert [len(protocol.decode_payload(payload)[0][0]) for payload in payloads] == sizes
    for request in seen:
        which = memoryview(request.args["which"]).cast("I")
        for name, row in zip(request.args["names"], which, strict=True):
            assert request.args["given"][row]["priority"] == int(name.removeprefix("default/n")) % 10


def test_put_many_has_four_frames_under_way(make, path):
    most = []

    def handle(peer, number):
        peer.hello()
        waiting = [peer.read() for _ in range(4)]  # hangs unless four are sent without an answer
        most.append(len(waiting))
        for _ in range(2):
            peer.ok(waiting[0], put_all(waiting.pop(0)))
            waiting.append(peer.read())
        for request in waiting:
            peer.ok(request, put_all(request))
        peer.read()

    with FakeServer(path, handle), make(path) as ws:
        assert len(ws.put_many(jobs(6 * FRAME_JOBS_MAX))) == 6 * FRAME_JOBS_MAX
    assert most == [4]


def test_put_many_survives_a_lost_connection(make, path):
    rids = []

    def handle(peer, number):
        peer.hello()
        for turn in itertools.count():
            request = peer.read()
            if request is None:
                return
            rids.append((number, request.args["rid"], len(request.args["names"])))
            if number == 0 and turn == 2:
                return  # the third frame's answer never comes
            peer.ok(request, put_all(request))

    with FakeServer(path, handle), make(path) as ws:
        results = ws.put_many(jobs(5 * FRAME_JOBS_MAX))
    assert [name for name, _ in results] == [f"n{i}" for i in range(5 * FRAME_JOBS_MAX)]
    assert len({rid for _, rid, _ in rids}) == 5
    third = rids[2][1]
    assert [number for number, rid, _ in rids if rid == third] == [0, 1]


def test_put_many_tells_what_was_refused_and_what_was_done(make, path):
    def handle(peer, number):
        peer.hello()
        for turn in itertools.count():
            request = peer.read()
            if request is None:
                return
            if turn == 1:
                peer.error(request, AlreadyExistsError("no", jobs=[[3, "why"]]))
            else:
                peer.ok(request, put_all(request))

    with FakeServer(path, handle), make(path) as ws, pytest.raises(AlreadyExistsError) as caught:
        ws.put_many(jobs(9 * FRAME_JOBS_MAX))
    assert caught.value.detail["jobs"] == [[FRAME_JOBS_MAX + 3, "why"]]
    # the frames under way when the answer came were decided as well
    assert caught.value.detail["accepted"] in (3 * FRAME_JOBS_MAX, 4 * FRAME_JOBS_MAX)


@pytest.mark.parametrize(("bad", "error", "text"), [
    (Job("a b", Call("t"), Manual()), InvalidArgumentError, "A-Z"),
    (Job("x", Call("t", {"k": [object()]}), Manual()), PayloadError, r"args\[0\]\.k\[0\]"),
    (Job("x", Call("t", 2**63), Manual()), PayloadError, "int64"),
    (Job("x", Call("t", "\ud800"), Manual()), PayloadError, "surrogates"),
    (Job("x", Call("t", "x" * 300_000), Manual()), PayloadError, "262144"),
    (Job("x", Call("t"), None), InvalidArgumentError, "schedule"),
    (Job("x", Call("t"), "* * * * *"), InvalidArgumentError, "schedule"),
    (Job("x", "t", Manual()), InvalidArgumentError, "call"),
    (Job(3, Call("t"), Manual()), InvalidArgumentError, "name"),
    (Job("x", Call("t"), Manual(), priorty=3), InvalidArgumentError, "'priority'"),
    (Job("x", Call("t"), Manual(), note="n"), InvalidArgumentError, "put alone"),
    (Job("x", Call("t"), Manual(), priority=True), InvalidArgumentError, "priority"),
    ("x", InvalidArgumentError, "Job"),
])
def test_put_many_names_the_job_that_can_not_be_sent(make, path, bad, error, text):
    def handle(peer, number):
        peer.hello()
        while (request := peer.read()) is not None:
            peer.ok(request, put_all(request))

    good = [Job(f"g{i}", Call("t"), Manual(), priority=1) for i in range(FRAME_JOBS_MAX + 1)]
    with FakeServer(path, handle), make(path) as ws, pytest.raises(error, match=text) as caught:
        ws.put_many([*good, bad])
    assert (caught.value.detail["row"], caught.value.detail["accepted"]) == (FRAME_JOBS_MAX + 1, FRAME_JOBS_MAX)


def test_a_column_that_does_not_fit_is_refused():
    for column in (b"\1", b"\1\1\1", b"\1\3"):
        with pytest.raises(InternalError):
            PutResults().add(["default/a", "default/b"], column)


# listings


def test_listings_page_by_themselves(make, path):
    seen = []
    pages = [
        {"columns": {"name": ["a", "b"], "state": ["active", "paused"]}, "after": 7}, {"columns": {}, "after": 9},
        {"columns": {"name": ["c"], "state": ["active"]}, "after": None},
    ]
    with FakeServer(path, answering(pages * 2 + pages[:1], seen)), make(path) as ws:
        listing = ws.jobs()
        for _ in range(2):  # each iteration begins anew
            assert [(job.name, job.state) for job in listing] == [("a", "active"), ("b", "paused"), ("c", "active")]
        assert [job.name for job in ws.jobs(limit=2)] == ["a", "b"]
        assert list(ws.jobs(limit=0)) == []
    assert [request.args["after"] for request in seen] == [None, 7, 9, None, 7, 9, None]
    assert [request.args["limit"] for request in seen] == [1000] * 6 + [2]


def test_a_listing_that_does_not_move_on_ends(make, path):
    with FakeServer(path, answering([{"columns": {}, "after": 1}] * 2, [])), make(path) as ws, pytest.raises(InternalError):
        list(ws.runs())


# runs


def value(x):
    return {"value": protocol.encode_value(x)}


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
        with FakeServer(where, answering([raw], [])), make(where) as ws, pytest.raises(RunFailed, match=text) as caught:
            ws.run(RUN_ID).result()
        assert caught.value.detail["state"] == state
        assert caught.value.detail["error"] == ("ValueError: boom" if result else None)


def test_result_in_time_or_not(make, path):
    with FakeServer(path, answering(itertools.repeat(run_raw("running")), [])), make(path) as ws, pytest.raises(RunTimeout, match="is running"):
        ws.run(RUN_ID).result(timeout="50ms")


def test_a_run_that_moved_to_history_is_looked_up(make, path):
    seen = []
    stub, final = {"id": RUN_ID}, run_raw("succeeded", result=value(5))
    answers = [stub, final, run_raw("queued"), stub, final, run_raw("queued"), NotFoundError("no open run"), final]
    with FakeServer(path, answering(answers, seen)), make(path) as ws:
        assert ws.enqueue(Call("t"), key="k").result() == 5
        assert ws.trigger("x").result() == 5
        assert ws.trigger("x").result() == 5
    assert [request.verb for request in seen] == ["enqueue", "run", "trigger", "wait", "run", "trigger", "wait", "run"]


# many at once


def shuffled(peer, number):
    """Answers eight at a time in another order."""
    rng = random.Random(number)
    peer.hello()
    while True:
        waiting = [peer.read() for _ in range(8)]
        if waiting[0] is None:
            return
        rng.shuffle(waiting)
        for request in waiting:
            peer.ok(request, job_raw(name=request.args["name"]))


def test_threads_share_a_connection_and_get_their_own_answers(path):
    with FakeServer(path, shuffled) as server, Client(path) as ws:
        wrong = []

        def work(k):
            for i in range(50):
                if ws.get(f"{k}/{i}").name != f"{k}/{i}":
                    wrong.append((k, i))

        threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not any(thread.is_alive() for thread in threads)
        assert (wrong, server.connections) == ([], 1)


def test_coroutines_share_a_connection_and_get_their_own_answers(path):
    async def main():
        async with AsyncClient(path) as ws:
            for _ in range(10):
                names = [f"n/{i}" for i in range(40)]
                assert [job.name for job in await asyncio.gather(*(ws.get(name) for name in names))] == names

    with FakeServer(path, shuffled) as server:
        asyncio.run(main())
        assert server.connections == 1


def test_a_cancelled_coroutine_leaves_the_others_alone(path):
    cancelled = threading.Event()

    def handle(peer, number):
        peer.hello()
        first, second = peer.read(), peer.read()
        peer.ok(second, job_raw(name="b"))
        assert cancelled.wait(10)
        peer.ok(first, job_raw(name="a"))
        peer.ok(peer.read(), job_raw(name="c"))
        peer.read()

    async def main():
        async with AsyncClient(path) as ws:
            first = asyncio.create_task(ws.get("a"))
            await asyncio.sleep(0)
            second = asyncio.create_task(ws.get("b"))
            await second
            first.cancel()
            with pytest.raises(asyncio.CancelledError):
                await first
            cancelled.set()
            assert (await ws.get("c")).name == "c"

    with FakeServer(path, handle):
        asyncio.run(main())


def test_close_ends_what_another_thread_waits_for(path):
    asked = threading.Event()

    def handle(peer, number):
        peer.hello()
        peer.read()
        asked.set()
        peer.read()

    caught = []

    def work(ws):
        try:
            ws.get("x")
        except UnavailableError as e:
            caught.append(e)

    with FakeServer(path, handle), Client(path) as ws:
        thread = threading.Thread(target=work, args=(ws,))
        thread.start()
        assert asked.wait(10)
        ws.close()
        thread.join(10)
        assert not thread.is_alive()
    assert "closed" in str(caught[0])


def test_a_server_that_answers_before_it_reads_on_is_no_deadlock(path):
    begun, big = threading.Event(), "x" * (8 << 20)

    def handle(peer, number):
        peer.hello()
        stats = peer.read()
        assert peer.sock.recv(4)  # the first of a frame; the rest fills the socket
        begun.set()
        peer.ok(stats, {"big": big})  # can't be sent unless the client reads while it writes
        peer.reader.feed(b"")
        rest = peer.sock.recv(1 << 20)
        while rest:
            rest = peer.sock.recv(1 << 20)

    got = []
    with FakeServer(path, handle), Client(path, retry_for=0) as ws:
        reader = threading.Thread(target=lambda: got.append(ws.stats()))
        reader.start()

        def write():
            with pytest.raises(WheelschedError):
                ws.put_many([Job(f"n{i}", Call("t", b"x" * 200_000), Manual()) for i in range(20)], timeout=5)

        writer = threading.Thread(target=write)
        writer.start()
        reader.join(30)
        assert got == [{"big": big}]
        assert begun.is_set()
        ws.close()
        writer.join(30)
        assert not writer.is_alive()


def test_a_forked_child_makes_a_connection_of_its_own(path):
    script = """
import os, sys
from wheelsched import Client
ws = Client(sys.argv[1])
first = ws.get("x").version
child = os.fork()
if child == 0:
    os._exit(10 + ws.get("x").version)
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
print(first, status, ws.get("x").version)
ws.close()
"""

    def handle(peer, number):
        peer.hello()
        while (request := peer.read()) is not None:
            peer.ok(request, job_raw(version=number))

    with FakeServer(path, handle):
        done = subprocess.run([sys.executable, "-c", script, path], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.split() == ["0", "11", "0"], done.stderr


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
    monkeypatch.setenv("HOME", "/home/u")
    assert default_socket_path() == "/home/u/.wheelsched/wheelsched.sock"


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


def test_times_and_values_for_json():
    assert rfc3339(T0) == "2026-11-29T08:30:00.123456Z"
    assert rfc3339(T0.replace(microsecond=0) + timedelta(0)) == "2026-11-29T08:30:00.000000Z"
    assert rfc3339(None) is None
    assert plain({"a": [T0, b"\xff", (1, None)]}) == {"a": ["2026-11-29T08:30:00.123456Z", "/w==", [1, None]]}


def test_a_run_as_values_and_as_json():
    result = {"value": protocol.encode_value([1, b"\xff"]), "stdout": b"hi\xff", "stderr": b"", "stdout_cut": 5, "stderr_cut": 0}
    failed = {"type": "ValueError", "message": "boom", "traceback": "tb"}
    attempts = [
        {"attempt": 1, "token": 8, "worker": "w1", "started_us": T0_US, "ended_us": T0_US + 1, "outcome": "failed", "result": failed},
        {"attempt": 2, "token": 9, "worker": "w2", "started_us": T0_US, "ended_us": None, "outcome": None, "result": None},
    ]
    run = RunInfo(run_raw("succeeded", result=result, attempts=attempts, next_us=NEVER, id=bytes.fromhex(RUN_ID)))
    assert (run.id, run.final, run.output, run.stdout, run.stdout_cut, run.error) == (RUN_ID, True, [1, b"\xff"], b"hi\xff", 5, None)
    assert (run.scheduled_at, run.next_at, run.started_at) == (T0, None, None)
    assert [(a.attempt, a.outcome, a.started_at, str(a.error)) for a in run.attempts] == [(1, "failed", T0, "ValueError: boom"), (2, None, T0, "None")]
    assert isinstance(run.attempts[0], Attempt)
    shown = json.loads(json.dumps(run.to_dict()))
    assert (shown["scheduled_at"], shown["next_at"], shown["output"], shown["stdout"]) == (rfc3339(T0), None, [1, "/w=="], "hi\ufffd")
    assert shown["attempts"][0]["error"] == failed
    with pytest.raises(PayloadError):
        _ = RunInfo(run_raw(result={"value": b"\xc1"})).output


def test_a_job_as_values_and_as_json():
    spec = {"task": "t", "queue": "q", "schedule": {"kind": "every", "every_us": 30 * US}}
    job = JobInfo(job_raw(name="default/x", spec=spec, param_us=T0_US + 544))
    assert (job.name, job.task, job.queue, job.next_at, job.created_at) == ("x", "t", "q", None, T0)
    assert job.schedule == Every("30s", anchor=T0)
    assert (job.args, job.kwargs) == ([1], {"a": 2})
    shown = json.loads(json.dumps(job.to_dict()))
    assert (shown["name"], shown["created_at"], shown["next_at"], shown["spec"]) == ("x", rfc3339(T0), None, spec)


def test_policies_in_their_short_and_long_forms_are_one():
    assert Overlap("skip").to_wire() == {"policy": "skip", "max": None}
    assert Retry(attempts=2).to_wire()["attempts"] == 2

"""put_many of both clients: frames, pipelining, what was refused and what was done."""

from __future__ import annotations

import itertools
import random

import pytest

from tests.rigs.client import T0, T0_US, Driven, FakeServer
from wheelsched import AlreadyExistsError, At, Call, Client, Cron, Every, InternalError, InvalidArgumentError, Job, Manual, PayloadError
from wheelsched.client.put_many import Bulk, PutResults
from wheelsched.model.nouns import FRAME_JOBS, NEVER
from wheelsched.protocol import frames


@pytest.fixture(params=[Client, Driven], ids=["sync", "async"])
def make(request):
    return request.param


@pytest.fixture
def path(short_tmp):
    return str(short_tmp / "s")


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

    n = 2 * FRAME_JOBS + 7
    with FakeServer(path, handle), make(path) as ws:
        results = ws.put_many(jobs(n))
        many = ws.put_many([Job("a/b", Call("t", 1), Cron("0 0 * * *"), queue="q"), Job("c", Call("t", 2), Every("5s", anchor=T0))])
        none = ws.put_many([])
    assert [len(request.args["names"]) for request in seen] == [FRAME_JOBS, FRAME_JOBS, 7, 2]
    args = seen[0].args
    assert args["given"] == [{"task": "t", "schedule": {"kind": "at"}}]
    assert (args["which"], len(args["payload"])) == (bytes(4 * FRAME_JOBS), FRAME_JOBS)
    assert args["param_us"] == (T0_US + 544).to_bytes(8, "little") * FRAME_JOBS
    args = seen[3].args
    assert (args["names"], args["which"]) == (["a/b", "default/c"], b"\0\0\0\0\1\0\0\0")
    assert [given["schedule"]["kind"] for given in args["given"]] == ["cron", "every"]
    assert args["given"][0]["queue"] == "q"
    assert args["param_us"] == NEVER.to_bytes(8, "little") + (T0_US + 544).to_bytes(8, "little")
    assert [frames.decode_payload(payload)[0] for payload in args["payload"]] == [[1], [2]]
    words = ("unchanged", "created", "updated")
    expected = [(f"n{i}", words[i % FRAME_JOBS % 3]) for i in range(n)]
    assert list(results) == expected
    assert [results[i] for i in (0, FRAME_JOBS - 1, FRAME_JOBS, -1)] == [expected[i] for i in (0, FRAME_JOBS - 1, FRAME_JOBS, -1)]
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
    assert [len(frames.decode_payload(payload)[0][0]) for payload in payloads] == sizes
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
        assert len(ws.put_many(jobs(6 * FRAME_JOBS))) == 6 * FRAME_JOBS
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
        results = ws.put_many(jobs(5 * FRAME_JOBS))
    assert [name for name, _ in results] == [f"n{i}" for i in range(5 * FRAME_JOBS)]
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
        ws.put_many(jobs(9 * FRAME_JOBS))
    assert caught.value.detail["jobs"] == [[FRAME_JOBS + 3, "why"]]
    # the frames under way when the answer came were decided as well
    assert caught.value.detail["accepted"] in (3 * FRAME_JOBS, 4 * FRAME_JOBS)


@pytest.mark.parametrize(
    ("bad", "error", "text"),
    [
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
    ],
)
def test_put_many_names_the_job_that_can_not_be_sent(make, path, bad, error, text):
    def handle(peer, number):
        peer.hello()
        while (request := peer.read()) is not None:
            peer.ok(request, put_all(request))

    good = [Job(f"g{i}", Call("t"), Manual(), priority=1) for i in range(FRAME_JOBS + 1)]
    with FakeServer(path, handle), make(path) as ws, pytest.raises(error, match=text) as caught:
        ws.put_many([*good, bad])
    assert (caught.value.detail["row"], caught.value.detail["accepted"]) == (FRAME_JOBS + 1, FRAME_JOBS)


def test_unions_and_lists_of_names_are_read_once_for_all_their_jobs():
    bulk = Bulk()
    many = [Job(f"j{i}", Call("t"), [Every("1h"), Cron("0 0 * * *")], calendar=["b", "a"]) for i in range(300)]
    many.append(Job("other", Call("t"), [Every("2h"), Cron("0 0 * * *")], calendar=["b", "a"]))
    (ask,) = bulk.asks(many)
    assert len(bulk._cache) == 2
    assert [g["schedule"]["of"][0]["schedule"]["every_us"] for g in ask.args["given"]] == [3_600_000_000, 7_200_000_000]
    assert ask.args["given"][0]["calendar"] == ["a", "b"]


def test_a_column_that_does_not_fit_is_refused():
    for column in (b"\1", b"\1\1\1", b"\1\3"):
        with pytest.raises(InternalError):
            PutResults().add(["default/a", "default/b"], column)

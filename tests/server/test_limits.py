"""What requests make a server keep: each limit refuses one past it with its name, others go on, and what was kept is given back."""

from __future__ import annotations

import re
import resource
from pathlib import Path

import pytest

import wheelsched
from tests.rigs.engine import Bench
from tests.rigs.server import Serving
from wheelsched import Call, Every, InvalidArgumentError, ResourceExhaustedError
from wheelsched.engine import turn
from wheelsched.engine.quotas import ANSWER_BYTES, PARTS_MAX, Answers, Quotas, size_of
from wheelsched.engine.turn import Disconnect, Incoming
from wheelsched.model.nouns import ROLES
from wheelsched.protocol import limits
from wheelsched.protocol.frames import Request, encode_payload, parse_reply
from wheelsched.protocol.limits import LIMITS, Limit
from wheelsched.server import headroom
from wheelsched.server.event_readers import Readers
from wheelsched.server.forecasts import Forecasts
from wheelsched.server.headroom import Headroom
from wheelsched.server.keeper import Keeper
from wheelsched.server.reload import Reload
from wheelsched.simulator import simulator

PAYLOAD = encode_payload((), {})
NEVER = (2**63 - 1).to_bytes(8, "little")


def test_t9_the_manual_has_the_table():
    page = Path(wheelsched.__file__).with_name("manual") / "limits.md"
    assert limits.table() in page.read_text(encoding="utf-8")


def test_t9_every_limit_of_a_user_leaves_room_for_others():
    for one in LIMITS.values():
        known = [value for value in (one.connection, one.user, one.server) if value is not None]
        assert known == sorted(known)
        assert one.user is None or one.server is None or one.user < one.server, one


@pytest.mark.parametrize("scope", ["connection", "user", "server"])
def test_t9_one_past_a_limit(scope):
    for name, one in LIMITS.items():
        most = getattr(one, scope)
        if most is not None:
            limits.check(name, **{scope: most})
            with pytest.raises(ResourceExhaustedError, match=f"limit {name}: ") as refused:
                limits.check(name, **{scope: most + 1})
            assert refused.value.detail == {"limit": name, "scope": scope, "most": most}


def test_t9_quotas_are_given_back():
    quotas = Quotas()

    def of(conn, uid):
        return Incoming(conn, Request(1, "x", {}), uid)

    for conn in range(50):
        for _ in range(4):
            quotas.take("forecasts", of(conn, conn // 8))  # each its 4, each user its 32 but the last
            if (conn, _) == (15, 3):
                break
        if conn == 15:
            break
    with pytest.raises(ResourceExhaustedError, match="forecasts: 64 for the server"):
        quotas.take("forecasts", of(99, 99))
    quotas.leave(3)
    with pytest.raises(ResourceExhaustedError, match="forecasts: 4 for a connection"):
        quotas.take("forecasts", of(4, 0))
    quotas.take("forecasts", of(16, 0), 4)
    with pytest.raises(ResourceExhaustedError, match="forecasts: 32 for a user"):
        quotas.take("forecasts", of(17, 0))
    quotas.give("forecasts", 4, 2)
    quotas.take("forecasts", of(18, 5), 2)
    for conn in range(20):
        quotas.leave(conn)
        quotas.give("forecasts", conn)  # of one that has left: nothing
    assert not quotas._of_user
    assert not +quotas._all


def test_t9_the_size_of_what_is_kept():
    assert size_of(["x" * 1_000] * 3) > 3_000
    assert size_of({"notes": ["é" * 1_000], "given": [{"task": "t", "retry": {"errors": {"E": {}}}}]}) > 1_000
    assert size_of([{}] * 1_000) > 60_000, "small on the wire, large in memory"
    with pytest.raises(InvalidArgumentError, match="lists and maps"):
        size_of([[]] * (PARTS_MAX + 1))


@pytest.fixture
def sim(monkeypatch):
    with Bench(start="2026-01-01T00:00:00Z") as made:
        made.uids = {}
        monkeypatch.setattr(simulator, "Incoming", lambda conn, request, uid, found=None: turn.Incoming(
            conn, request, made.uids.get(conn, uid), found, frozenset({"worker"} if conn in made.uids else ROLES)))
        made.put("j", Every("1h"))
        yield made


def small(monkeypatch, name, *, connection=None, user=None, server=None):
    """From now on a limit has these values."""
    one = LIMITS[name]
    monkeypatch.setitem(LIMITS, name, Limit(name, one.what, connection, user, server, one.advice, one.size))


def refused(name, scope="connection"):
    return pytest.raises(ResourceExhaustedError, match=rf"limit {name}: .* for {limits.SCOPES[scope]} ")


def staging(verb, note=""):
    args = {"batch": 1, "given": [{"task": "t", "schedule": {"kind": "manual"}}], "which": b"\0\0\0\0", "payload": [PAYLOAD]}
    return args if verb == "group_part" else {**args, "names": ["n"], "param_us": NEVER, "notes": [note]}


@pytest.mark.parametrize("verb", ["stage", "group_part"])
def test_t9_what_is_staged(sim, monkeypatch, verb):
    """Notes and all other text count, not payloads alone."""
    size = size_of({**staging(verb)})
    small(monkeypatch, "staged_bytes", connection=int(2.5 * size), user=int(4.5 * size), server=int(6.5 * size))
    sim.uids = {1: 1, 2: 1, 3: 1, 4: 2, 5: 2, 6: 3}
    for conn in (1, 1, 2, 2, 4, 4):
        sim.call(conn, (verb, staging(verb)))
    with refused("staged_bytes", "user"):
        sim.call(3, (verb, staging(verb)))
    with refused("staged_bytes", "server"):
        sim.call(6, (verb, staging(verb)))
    with refused("staged_bytes"):
        sim.call(1, (verb, staging(verb)))  # and what it had is dropped
    sim.call(6, (verb, staging(verb)))
    sim.call(3, (verb, staging(verb)))
    for conn in range(1, 7):
        sim._step([Disconnect(conn)])
    assert not sim.engine.quotas._of_user
    if verb == "stage":
        with refused("staged_bytes"):
            sim.call(1, (verb, staging(verb, "x" * 10 * size)))
    sim.put("other")


def test_t9_what_is_staged_is_given_back_by_its_apply(sim, monkeypatch):
    small(monkeypatch, "staged_bytes", connection=size_of(staging("stage")) * 3 // 2)
    for n in range(5):
        sim.call(1, ("stage", staging("stage")), ("apply", {"batch": 1, "rid": sim.rid(n), "jobs": 1}))
        sim.call(1, ("group_part", staging("group_part")), ("group", {
            **staging("group_part"), "rid": sim.rid(100 + n), "then": {"which": 0, "payload": PAYLOAD}, "members": 2,
        }))
    assert not sim.engine.quotas._of_user


def test_t9_batches(sim, monkeypatch):
    small(monkeypatch, "staged_batches", connection=2)
    for batch in (1, 2, 1):
        sim.call(1, ("stage", {**staging("stage"), "batch": batch}))
    with refused("staged_batches"):
        sim.call(1, ("stage", {**staging("stage"), "batch": 3}))
    sim.call(2, ("stage", {**staging("stage"), "batch": 3}))


def test_t9_lease_requests(sim):
    wait = ("lease", {"credits": 1, "wait_us": 10**12})
    for conn in (100, 101):
        sim.hello(conn)
    most = LIMITS["waiting_leases"].connection
    sim._step([turn.Incoming(100, Request(n, *wait), 0) for n in range(1, most + 1)])
    assert len(sim.engine.seekers) == most
    with refused("waiting_leases"):
        sim.call(100, wait)
    sim._step([turn.Incoming(101, Request(1, *wait), 0)])
    assert len(sim.engine.seekers) == most + 1, "others are not refused"
    sim._step([Disconnect(100)])
    assert len(sim.engine.seekers) == 1
    for queues in (["q"] * 101, ["q" * 201], "q"):
        with pytest.raises(InvalidArgumentError, match="lease: queues"):
            sim.call(101, ("lease", {"credits": 1, "queues": queues}))


def test_t9_waits(sim, monkeypatch):
    small(monkeypatch, "waits", connection=2, user=3, server=10)
    run = sim.client.trigger("j")
    wait = ("wait", {"id": run.id, "timeout_us": 10**9})
    sim._step([turn.Incoming(conn, Request(n, *wait), 0) for conn, n in ((1, 1), (1, 2), (2, 1))])
    with refused("waits"):
        sim.call(1, wait)
    with refused("waits", "user"):
        sim.call(3, wait)
    sim.uids[4] = 4
    sim._step([turn.Incoming(4, Request(1, *wait), 4)])
    sim._step([Disconnect(2)])
    sim._step([turn.Incoming(3, Request(1, *wait), 0)])
    assert sum(map(len, sim.engine.waiters.values())) == 4
    sim.client.cancel(run.id)
    assert not sim.engine.waiters
    assert not sim.engine.quotas._of_user


def test_t9_remembered_answers_are_refused_never_forgotten(sim, monkeypatch):
    small(monkeypatch, "remembered_answers", user=6_000, server=10**9)
    done = []
    with refused("remembered_answers", "user"):
        for n in range(100):
            sim.call(7, ("pause" if n % 2 else "resume", {"name": "j", "rid": sim.rid(n)}))
            done.append(n)
    assert 1 < len(done) < 20
    first = sim.call(7, ("resume", {"name": "j", "rid": sim.rid(0)}))
    assert first["name"] == "j", "a repeat is answered as ever"
    sim.uids[8] = 8
    sim.call(8, ("pause", {"name": "j", "rid": sim.rid(1_000)}))
    sim.advance("15m")
    assert sim.engine.answers.size == sum(len(reply) + ANSWER_BYTES for _, reply in sim.engine.state.replies.values()) == 0
    sim.call(7, ("pause", {"name": "j", "rid": sim.rid(1_001)}))
    small(monkeypatch, "remembered_answers", server=sim.engine.answers.size)
    with refused("remembered_answers", "server"):
        sim.call(9, ("pause", {"name": "j", "rid": sim.rid(1_002)}))
    assert Answers(sim.engine.state.replies.values()).size == sim.engine.answers.size, "as after a restart"


def test_t9_idempotency_keys(sim, monkeypatch):
    small(monkeypatch, "idempotency_keys", server=2)
    for key in ("a", "b", None):
        sim.client.enqueue(Call("t"), key=key)
    for ask in (lambda: sim.client.enqueue(Call("t"), key="c"), lambda: sim.client.trigger("j", key="c")):
        with refused("idempotency_keys", "server"):
            ask()


def test_t9_announced_and_served_tasks(sim, monkeypatch):
    small(monkeypatch, "announced_tasks", user=4, server=6)
    small(monkeypatch, "served_tasks", connection=4, user=5, server=100)
    sim.uids = {1_000: 1, 1_001: 1, 1_002: 2, 1_003: 1}
    sim.hello(1_000, tasks=("a", "b", "c"))
    with refused("served_tasks"):
        sim.hello(1_003, tasks=tuple("hijkl"))
    with refused("served_tasks", "user"):
        sim.hello(1_001, tasks=("d", "e", "f"))
    with refused("announced_tasks", "user"):
        sim.hello(1_001, tasks=("d", "e"))
    assert {1_001, 1_003}.isdisjoint(sim.engine.sessions), "who was refused is no worker"
    sim.hello(1_002, tasks=("x", "y"))  # others go on
    sim._step([Disconnect(1_000)])
    sim.advance("60s")
    sim.hello(1_001, tasks=("d", "e"))  # what nobody serves goes
    assert {t for t, by in sim.engine.state.announcers.items() if t != "t"} == {"d", "e", "x", "y"}
    assert sim.engine.state.announced.keys() == sim.engine.state.announcers.keys()
    small(monkeypatch, "announced_bytes", user=100)
    with refused("announced_bytes", "user"):
        sim.hello(1_002, tasks=("z",), redact=["field" * 10, "other" * 10])


def test_t9_a_thousand_hellos_leave_what_is_served(sim, monkeypatch):
    small(monkeypatch, "announced_tasks", user=200, server=1_000)
    for n in range(40):
        sim.hello(1_000, tasks=tuple(f"n{n}.{i}" for i in range(99)))
    assert len(sim.engine.state.announced) <= 201


# What the server keeps beside the engine


def test_t9_readers_of_events():
    class Nothing:
        durable_seq = 0

        def replay(self, after):
            return iter(())

    with Bench(start="2026-01-01T00:00:00Z") as sim:
        keeper = Keeper.__new__(Keeper)
        keeper.journal = Nothing()
        readers = Readers(sim.engine.state, keeper, print)
        few = LIMITS["event_readers"]

        def add(conn, uid):
            return readers.add(conn, Request(1, "events", {"wait_us": 10**9}), 0, frozenset(), uid)

        assert {add(1, 1) for _ in range(few.connection)} == {None}
        assert "limit event_readers: 32 for a connection" in str(parse_reply(add(1, 1)[4:]).error)
        for conn in range(2, 2 + few.user // few.connection - 1):
            assert {add(conn, 1) for _ in range(few.connection)} == {None}
        assert "for a user" in str(parse_reply(add(99, 1)[4:]).error)
        assert add(99, 2) is None
        readers.drop(1)
        assert add(98, 1) is None


def test_t9_forecasts_and_reloads(sim):
    forecasts = Forecasts(sim.engine, print)
    args = {"for_us": 3_600_000_000, "bucket_us": 60_000_000, "queue": None, "more": ["x" * 1_000] * 900}
    most = LIMITS["forecasts"].connection
    for n in range(most):
        assert forecasts.add(1, Request(n + 1, "forecast", args), 1) is None
    assert "limit forecasts: 4 for a connection" in str(parse_reply(forecasts.add(1, Request(9, "forecast", args), 1)[4:]).error)
    assert forecasts.add(2, Request(9, "forecast", args), 1) is None
    assert all("more" not in asked.args for asked in forecasts._waiting)
    assert parse_reply(forecasts.add(3, Request(9, "forecast", {**args, "queue": "q" * 10**6}), 1)[4:]).error.code == "invalid_argument"
    forecasts.drop(1)
    assert len(forecasts) == 1
    assert forecasts.add(1, Request(9, "forecast", args), 1) is None
    reload = Reload(sim.engine, lambda: 0, lambda *_: None, print)
    replies = []
    sim.engine.reply = lambda conn, frame: replies.append(parse_reply(frame[4:]).error)
    for n in range(LIMITS["reloads"].connection + 1):
        reload.ask(turn.Incoming(1, Request(n + 1, "reload", {}), 0))
    assert [e.detail["limit"] for e in replies] == ["reloads"]


# The server as a whole


def test_t9_scarce_memory_is_told(monkeypatch):
    monkeypatch.setattr(headroom.resource, "getrlimit", lambda _: (2**30, 2**30))
    some = Headroom()
    assert some._judge(2**30 - headroom.ROOM, 0) == ""
    assert "address space" in some._judge(2**30 - headroom.ROOM + 1, 0)
    some._most = 100
    assert "limit memory: the server has" in some._judge(0, 101)
    assert some.full(0) == some.full(1)
    some.close()


@pytest.mark.parametrize("size", [20_000, 200_000])
def test_t9_a_server_whose_memory_is_used_up_refuses_and_goes_on(short_tmp, size):
    """Under RLIMIT_AS: no traceback, no death."""
    server = Serving(short_tmp, workers=0)
    try:
        ws = server.client()
        pages = int(Path(f"/proc/{server.process.pid}/statm").read_text().split()[0])
        limit = pages * resource.getpagesize() + headroom.ROOM + 64 * 1024 * 1024
        resource.prlimit(server.process.pid, resource.RLIMIT_AS, (limit, limit))
        payload, many = "x" * size, 4_000_000 // size  # of the larger ones, a snapshot copies as many bytes at once as are kept back
        with pytest.raises(ResourceExhaustedError, match="limit memory: the address space"):
            for n in range(100):
                ws.enqueue_many([Call("t.echo", f"{n}{i}{payload}") for i in range(many)], timeout=60)
        assert ws.stats()["queued"] > 100
        ws.queue_pause("default")  # what calms is taken
        assert ws.queue_purge("default") > 100
        assert server.process.poll() is None
        assert not re.search("Traceback", server.log.read_text())
    finally:
        assert server.end() == 0
        for one in server.open:
            one.close()

"""Whose word counts about a run: the worker that holds its lease, and nobody else's, whatever token they know."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgpack
import numpy as np
import pytest

import wheelsched
from tests.rigs.engine import FAILED, OK, Bench
from tests.rigs.server import Serving, wait_for
from wheelsched import Call, FailedPreconditionError, InvalidArgumentError, PermissionDeniedError
from wheelsched.engine import turn
from wheelsched.engine.heartbeats import answer_at_once
from wheelsched.engine.roles import shown as as_shown
from wheelsched.engine.turn import Disconnect
from wheelsched.model.nouns import ROLES
from wheelsched.protocol.frames import Request, parse_reply
from wheelsched.simulator import simulator
from wheelsched.simulator.simulator import Simulator
from wheelsched.state import records
from wheelsched.state.state import State

STRANGER = 54_321
OTHER = 54_322


class Users(Bench):
    """Each connection from 1,000 on is of the uid that `uids` says, with the role `worker` alone; others are the server's own user's."""

    def __init__(self, **options):
        self.uids = {}
        self.known = simulator.Incoming
        super().__init__(**options)

    def incoming(self, conn, request, uid, found=None):
        if conn not in self.uids:
            return turn.Incoming(conn, request, 0, found)
        return turn.Incoming(conn, request, self.uids[conn], found, frozenset({"worker", "admin"}))

    def greet(self, conn, uid, secret=None, tasks=("t",), **options):
        if uid:
            self.uids[conn] = uid
        return self.call(conn, ("hello", {
            "version": 1, "role": "worker", "name": "w", "tasks": dict.fromkeys(tasks, options), **({"secret": secret} if secret else {}),
        }))

    def drop(self, conn):
        self._step([Disconnect(conn)])


@pytest.fixture
def sim(monkeypatch):
    made = Users(start="2026-01-01T00:00:00Z")
    monkeypatch.setattr(simulator, "Incoming", made.incoming)
    with made:
        yield made
        state = State()
        for _, body in made.journal.replay(0):
            state.apply(*records.decode(body))
        assert state.digest() == made.engine.state.digest()


def beat(sim, conn, leases, **more):
    return sim.call(conn, ("heartbeat", {
        "id": b"".join(x[0] for x in leases), "token": np.array([x[1] for x in leases], "<i8").tobytes(), "started": bytes([1] * len(leases)),
        "progress": [[0, "forged"]], **more,
    }))


@pytest.mark.parametrize("uid", [0, STRANGER, OTHER])
def test_t5_a_forged_completion_is_stale_and_changes_nothing(sim, uid):
    """Of the server's own user too: it is the connection that counts."""
    run = sim.client.enqueue(Call("t", 1))
    sim.greet(1_000, STRANGER)
    leases = sim.lease(1_000)
    assert len(leases) == 1
    sim.greet(1_001, uid, b"s" * 16)
    before = sim.engine.state.digest()
    for outcome in (OK, FAILED, 7):
        assert sim.finish(leases, outcome, conn=1_001) == [2]
    told = beat(sim, 1_001, leases, checkpoint=[[0, msgpack.packb("evil")]], output=[[0, {"stdout": [0, b"evil"]}]])
    assert told == {"cancel": [], "stale": [0]}
    assert sim.engine.state.digest() == before, "not even a trace with the run, whose places are for workers that held it"
    shown = sim.client.run(run.id)
    assert (shown.state, shown.progress, shown.attempts[0].stdout, shown.stale) == ("leased", None, b"", [])
    assert sim.finish(leases, conn=1_000) == [1]
    assert sim.client.run(run.id).state == "succeeded"


def test_t5_a_heartbeat_without_a_turn_is_the_holders_alone(sim):
    sim.client.enqueue(Call("t", 1))
    sim.greet(1_000, STRANGER)
    ((run_id, token, _),) = sim.lease(1_000)
    sim.greet(1_001, OTHER)
    args = {"id": run_id, "token": np.array([token], "<i8").tobytes(), "started": b"\1", "progress": [[0, "x"]]}
    now = turn.Now(sim.now_us, sim.mono_us)
    assert answer_at_once(sim.engine, sim.incoming(1_001, Request(1, "heartbeat", args), 0), now, ()) is None
    assert not sim.engine.running.beats
    assert answer_at_once(sim.engine, sim.incoming(1_000, Request(1, "heartbeat", args), 0), now, ())


def test_t5_a_strangers_heartbeat_renews_nobodys_lease(sim):
    sim.client.enqueue(Call("t", 1))
    sim.greet(1_000, STRANGER, b"a" * 32)
    leases = sim.lease(1_000)
    sim.greet(1_001, OTHER)
    sim.drop(1_000)
    for _ in range(6):
        sim.advance("3s")
        assert beat(sim, 1_001, leases)["stale"] == [0]
    assert sim.runs()[0].attempts[0].outcome == "lost"


@pytest.mark.parametrize("crash", [False, True])
def test_t5_a_worker_that_comes_back_is_known_by_its_user_and_secret(sim, crash):
    ids = [sim.client.enqueue(Call("t", n)).id for n in range(3)]
    sim.greet(1_000, STRANGER, b"a" * 32)
    leases = sim.lease(1_000)
    sim.advance("2s")
    if crash:
        sim.crash("1s")
    else:
        sim.drop(1_000)
    for conn, uid, secret in ((1_001, OTHER, b"a" * 32), (1_002, STRANGER, b"b" * 32), (1_003, STRANGER, None), (1_004, 0, b"a" * 32)):
        sim.greet(conn, uid, secret)
        assert sim.finish(leases[:1], conn=conn) == [2]
        assert beat(sim, conn, leases)["stale"] == [0, 1, 2]
    sim.greet(1_005, STRANGER, b"a" * 32)
    assert beat(sim, 1_005, leases)["stale"] == []
    sim.work(leases, 20, conn=1_005)  # beyond the lease of the worker that it was
    assert sim.finish(leases, conn=1_005) == [1, 1, 1]
    assert {sim.client.run(i).state for i in ids} == {"succeeded"}
    assert sim.finish(leases, conn=1_005) == [1, 1, 1], "a repeat is answered as the first was"


@pytest.mark.parametrize("crash", [False, True])
def test_t5_a_worker_without_a_secret_is_known_by_its_user_once_its_connection_is_gone(sim, crash):
    sim.client.enqueue(Call("t", 1))
    sim.greet(1_000, STRANGER)
    leases = sim.lease(1_000)
    sim.greet(1_001, STRANGER)
    assert sim.finish(leases, conn=1_001) == [2], "the connection that holds it is there"
    if crash:
        sim.crash()
    else:
        sim.drop(1_000)
    for conn, uid, secret in ((1_002, OTHER, None), (1_003, STRANGER, b"c" * 16)):
        sim.greet(conn, uid, secret)
        assert sim.finish(leases, conn=conn) == [2]
    sim.greet(1_004, STRANGER)
    assert sim.finish(leases, conn=1_004) == [1]


def test_t5_a_zombie_is_answered_stale_and_told_with_its_run(sim):
    run = sim.client.enqueue(Call("t", 1), retry=5)
    sim.greet(1_000, STRANGER, b"z" * 16)
    old = sim.lease(1_000)
    sim.advance("30s")
    assert sim.finish(old, conn=1_000) == [2]  # the same connection, taken back
    sim.greet(1_001, STRANGER, b"z" * 16)
    assert sim.finish(old, FAILED, conn=1_001) == [2]
    assert [s["outcome"] for s in sim.client.run(run.id).stale] == ["succeeded", "failed"]


def test_t5_what_a_hello_may_not_say(sim):
    for secret in (b"short", "text" * 8, b"x" * 65, 7):
        with pytest.raises(InvalidArgumentError, match="secret"):
            sim.call(1_000, ("hello", {"version": 1, "role": "worker", "name": "w", "tasks": {"t": {}}, "secret": secret}))
    sim.call(1_001, ("hello", {"version": 1, "role": "client", "name": "c"}))
    sim.greet(1_002, STRANGER, b"a" * 16)
    for conn, secret in ((1_001, None), (1_002, b"b" * 16), (1_002, None)):  # a client, another worker
        with pytest.raises(FailedPreconditionError, match="connect anew"):
            sim.greet(conn, sim.uids.get(conn, 0), secret)
    sim.greet(1_002, STRANGER, b"a" * 16, tasks=("t", "u"))


# Who is shown tokens


def test_t5_tokens_are_shown_to_those_with_all_roles_alone(sim, monkeypatch):
    run = sim.client.enqueue(Call("t", 1), key="k", retry=5)
    sim.greet(1_000, STRANGER)
    (lease,) = sim.lease(1_000)
    sim.finish([lease], FAILED, conn=1_000)
    sim.advance("60s")
    sim.heartbeat([], 1_000)
    (second,) = sim.lease(1_000)
    sim.uids[7] = OTHER
    rid = iter(range(10**6, 2 * 10**6))
    given = {"task": "t"}
    payload = sim.engine.state.runs.blobs(0)[0]
    asks = {
        "enqueue": {"given": given, "payload": payload, "key": "k", "namespace": "default"}, "cancel": {"id": run.id},
    }
    for verb, args in asks.items():
        for conn, tokens in ((7, {None}), (8, {lease[1], second[1]})):
            told = sim.call(conn, (verb, {"rid": sim.rid(next(rid)), **args}))
            assert {told["token"], *(a["token"] for a in told["attempts"])} <= tokens, verb
            assert (told["token"] is None) == (conn == 7), verb
    told, reply = {}, sim.engine.reply

    def heard(conn, frame):
        told.setdefault(conn, []).append(parse_reply(frame[4:]).result.get("token"))
        reply(conn, frame)

    monkeypatch.setattr(sim.engine, "reply", heard)
    waits = [("wait", {"id": run.id, "timeout_us": us}) for us in (10**6, 10**10)]  # one until its time is over, one until the run ends
    for conn in (7, 8):
        sim._step([sim.incoming(conn, Request(10**6 + n, *wait), 0) for n, wait in enumerate(waits)])
    sim.advance("2s")
    sim.finish([second], conn=1_000)
    assert (told[7], told[8]) == ([None, None], [second[1], second[1]])


def test_t5_columns_and_events_without_tokens():
    with Simulator("2026-01-01T00:00:00Z", tasks={"t": lambda: 1}) as sim:
        sim.client.enqueue(Call("t"))
        sim.advance("1s")
        few, everything = frozenset({"admin", "worker", "http"}), frozenset(ROLES)
        for verb, args in (("runs", {}), ("run", {"id": sim.runs()[0].id}), ("events", {"since": "oldest"}), ("dead", {}), ("stats", {})):
            told = sim.ask(verb, args)
            assert as_shown(everything, told) is told
            bare = as_shown(few, told)
            assert bare.keys() == told.keys()
            if verb == "runs":
                assert told["columns"]["token"][0] is not None
                assert bare["columns"]["token"] == [None]
                assert [a["token"] for a in bare["columns"]["attempts"][0]] == [None]
            if verb == "run":
                assert (bare["token"], [a["token"] for a in bare["attempts"]]) == (None, [None])
            if verb == "events":
                assert any(np.frombuffer(told["token"], "<i8"))
                assert not any(np.frombuffer(bare["token"], "<i8"))
                assert len(bare["token"]) == len(told["token"])
    assert as_shown(few, {"weights": {"token": 1}, "name": "q"}) == {"weights": {"token": 1}, "name": "q"}


# What is announced


def test_t5_the_pools_announcements_stay(sim, monkeypatch):
    monkeypatch.setattr(sim._inline, "announced", lambda: {"shop.charge": {"queue": "shop", "timeout_us": 60_000_000}})
    sim.crash()
    told = sim.greet(1_000, STRANGER, tasks=("shop.charge", "mine"), queue="evil", timeout_us=1_000_000)
    assert told["ignored"] == ["shop.charge"]
    run = sim.client.enqueue(Call("shop.charge"))
    assert (run.queue, sim.client.enqueue(Call("mine")).queue) == ("shop", "evil")
    sim.crash()
    sim.greet(1_001, 0, tasks=("shop.charge",), queue="other")  # nor by another worker of its own user
    assert sim.client.enqueue(Call("shop.charge")).queue == "shop"
    monkeypatch.setattr(sim._inline, "announced", dict)
    sim.crash()
    monkeypatch.setattr(sim._inline, "announced", lambda: {"something.else": {}})
    sim.crash()  # the pool's code has it no more
    assert "ignored" not in sim.greet(1_002, STRANGER, tasks=("shop.charge",), queue="new")
    assert sim.client.enqueue(Call("shop.charge")).queue == "new"


def test_t5_a_user_changes_its_own_announcements_and_those_of_one_that_is_gone(sim):
    sim.greet(1_000, STRANGER, tasks=("a",), queue="first")
    sim.greet(1_001, STRANGER, tasks=("a",), queue="second")
    assert sim.greet(1_002, OTHER, tasks=("a",), queue="third")["ignored"] == ["a"]
    assert "ignored" not in sim.greet(1_003, OTHER, tasks=("a",), queue="second"), "the same is no quarrel"
    assert sim.client.enqueue(Call("a")).queue == "second"
    sim.drop(1_000)
    sim.drop(1_001)
    sim.greet(1_002, OTHER, tasks=("a",), queue="third")
    assert sim.client.enqueue(Call("a")).queue == "third"
    sim.greet(1_004, 0, tasks=("a",), queue="own")
    assert sim.client.enqueue(Call("a")).queue == "own"
    assert sim.greet(1_002, OTHER, tasks=("a",), queue="third")["ignored"] == ["a"]


@pytest.mark.parametrize("task", ["command", "http"])
def test_t5_serving_the_builtin_tasks_needs_their_role(sim, task):
    with pytest.raises(PermissionDeniedError, match=f"serving the task `{task}` needs the role '{task}'"):
        sim.greet(1_000, STRANGER, tasks=("t", task), queue="evil", timeout_us=1_000_000)
    assert 1_000 not in sim.engine.sessions
    sim.greet(1_001, 0, tasks=(task,))


# A real server

FORGE = """
import os, socket, struct, sys, msgpack
os.setgroups([]); os.setgid(65533); os.setuid(65534)
s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); n = 0
def ask(verb, args):
    global n
    n += 1
    body = msgpack.packb([n, verb, args], use_bin_type=True)
    s.sendall(struct.pack(">I", len(body)) + body)
    head = s.recv(4, socket.MSG_WAITALL)
    return msgpack.unpackb(s.recv(struct.unpack(">I", head)[0], socket.MSG_WAITALL))[1:]
print(ask("hello", {"version": 1, "role": "worker", "name": "evil", "tasks": {"x": {}}})[0])
print(ask("run", {"id": sys.argv[2]})[1]["token"])
print(set(ask("runs", {})[1]["columns"]["token"]))
kind, got = ask("finish", {"id": bytes.fromhex(sys.argv[2]), "token": struct.pack("<q", int(sys.argv[3])), "outcome": b"\\1",
                           "started_us": bytes(8), "ended_us": bytes(8), "result": [[0, {"value": msgpack.packb("forged")}]]})
print(kind, list(got["verdict"]) if kind == "ok" else got["code"])
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")
@pytest.mark.parametrize(("flags", "said"), [
    (("--grant", "worker=65534"), ["ok", "None", "{None}", "ok [2]"]), ((), ["error", "None", "{None}", "error failed_precondition"]),
])
def test_t5_another_user_forges_nothing(short_tmp, flags, said):
    short_tmp.chmod(0o755)
    (short_tmp / "config.toml").write_text("socket_mode = 0o666\n")
    server = Serving(short_tmp, "--config", str(short_tmp / "config.toml"), *flags)
    ws = server.client()
    try:
        run = ws.enqueue(Call("t.gate", str(short_tmp / "gate")))
        wait_for(lambda: ws.run(run.id).state == "running")
        token = ws.run(run.id).token
        env = {**os.environ, "PYTHONPATH": str(Path(wheelsched.__file__).resolve().parents[1])}
        done = subprocess.run([sys.executable, "-c", FORGE, server.socket, run.id, str(token)], capture_output=True, text=True, check=False, env=env)
        assert done.stdout.splitlines() == said, done.stderr
        (short_tmp / "gate").touch()
        assert run.result(timeout=30) is None
    finally:
        server.end()
        for one in server.open:
            one.close()

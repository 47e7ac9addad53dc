"""Roles: who may define commands and requests, hold triggering, be a worker; decided by user and group."""

from __future__ import annotations

import grp
import os
import pwd
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import wheelsched
from tests.rigs.engine import Bench
from tests.rigs.server import Serving
from wheelsched import At, Call, Command, Cron, Every, Http, Job, Manual, PermissionDeniedError, WheelschedError
from wheelsched.model.errors import ConfigError, error_from_wire
from wheelsched.model.nouns import ROLES
from wheelsched.server.config import load
from wheelsched.server.connections import peer
from wheelsched.server.grants import Grants

STRANGER = 54_321


def test_the_grants_of_an_operator():
    own = os.geteuid()
    plain = Grants({})
    assert plain.roles(STRANGER, {STRANGER}) == {"admin", "worker"}
    assert Grants({}, shared=True).roles(STRANGER, ()) == {"admin"}
    assert Grants({"worker": ["54321"]}, shared=True).roles(STRANGER, ()) == {"admin", "worker"}
    assert Grants({}, shared=True).roles(own, ()) == set(ROLES)
    assert plain.roles(own, ()) == plain.roles(0, ()) == set(ROLES)
    group = grp.getgrall()[-1]
    user = pwd.getpwnam("nobody")
    some = Grants({"command": ["54321", f"%{group.gr_name}"], "admin": ["nobody"], "worker": []})
    assert some.roles(STRANGER, ()) == {"command"}
    assert some.roles(1, {7, group.gr_gid}) == {"command"}
    assert some.roles(user.pw_uid, {65_000}) == {"admin"}
    for wrong in (["nobody-at-all"], ["%no-such-group"]):
        with pytest.raises(ConfigError, match="role http: there is no"):
            Grants({"http": wrong})


def test_the_configuration():
    config = load({"data": "d", "socket": "s", "roles": {"http": ["a"], "command": ["%b", "c"]}})
    assert config.roles == (("command", ("%b", "c")), ("http", ("a",)))
    for wrong in ({"root": ["a"]}, {"http": "a"}, ["a"], {"http": [1]}):
        with pytest.raises(ConfigError, match="roles"):
            load({"data": "d", "socket": "s", "roles": wrong})


def test_the_kernel_tells_who_the_peer_is():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        uid, gids = peer(ours)
    assert uid == os.geteuid()
    assert {os.getegid(), *os.getgroups()} == gids


@pytest.fixture
def sim():
    with Bench(start="2026-01-01T00:00:00Z") as made:
        made.client.put("there", Command(["true"]), Manual())
        yield made


def without(sim, monkeypatch, *missing):
    """From now on everybody lacks these roles."""
    from wheelsched.engine import turn
    from wheelsched.simulator import simulator

    def incoming(conn, request, uid, found=None):
        return turn.Incoming(conn, request, STRANGER, found, frozenset(ROLES) - set(missing))

    monkeypatch.setattr(simulator, "Incoming", incoming)


DEFINING = {
    "put": lambda ws, call: ws.put("a", call, Every("1h")),
    "put_many": lambda ws, call: ws.put_many([Job("a", Call("t"), At("2026-02-01T00:00:00Z")), Job("b", call, At("2026-02-01T00:00:00Z"))]),
    "apply": lambda ws, call: ws.apply([Job("a", Call("t"), Cron("0 0 * * *")), Job("b", call, Manual())]),
    "enqueue": lambda ws, call: ws.enqueue(call),
    "enqueue_many": lambda ws, call: ws.enqueue_many([Call("t"), call]),
    "group": lambda ws, call: ws.group([Call("t"), call], then=Call("t")),
    "group then": lambda ws, call: ws.group([Call("t")], then=call),
    "group in parts": lambda ws, call: ws.group([call, *(Call("t", "x" * 200_000) for _ in range(6))], then=Call("t")),
}


@pytest.mark.parametrize("verb", DEFINING)
@pytest.mark.parametrize(("role", "call"), [("command", Command(["id"])), ("http", Http("GET", "https://a.example/"))])
def test_defining_needs_the_role(sim, monkeypatch, verb, role, call):
    without(sim, monkeypatch, role)
    with pytest.raises(PermissionDeniedError, match=rf"task `{role}` needs the role '{role}', .* uid {STRANGER} .*--grant {role}={STRANGER}"):
        DEFINING[verb](sim.client, call)
    assert [j.name for j in sim.client.jobs()] == ["there"]
    without(sim, monkeypatch)
    DEFINING[verb](sim.client, call)


def test_what_is_there_may_be_used(sim, monkeypatch):
    without(sim, monkeypatch, "command", "http", "admin")
    assert sim.client.trigger("there").state == "queued"
    sim.client.pause("there")
    sim.client.put("other", Call("t"), Every("1h"))


def test_admin_and_worker(sim, monkeypatch):
    without(sim, monkeypatch, "admin", "worker")
    for ask in (lambda ws: ws.hold("x"), lambda ws: ws.release(), lambda ws: ws.queue("q", concurrency=1), lambda ws: ws.queue_purge("q")):
        with pytest.raises(PermissionDeniedError, match="role 'admin'"):
            ask(sim.client)
    with pytest.raises(WheelschedError, match="being a worker needs the role 'worker'"):
        sim.hello()
    assert not any(w.kind == "external" for w in sim.engine.state.workers.values())
    assert error_from_wire("permission_denied", "x").code == "permission_denied"


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")
def test_another_user_of_a_real_server(short_tmp):
    """By SO_PEERCRED: uid 65534 may put a plain job, and a command only when it is granted."""
    ask = (
        "import os, sys; os.setgroups([]); os.setgid(65533); os.setuid(65534)\n"
        "from wheelsched import Client, Command, Call, Manual, PermissionDeniedError\n"
        "ws = Client(sys.argv[1]); ws.put('plain', Call('t.echo', 1), Manual())\n"
        "try: ws.put('c', Command(['true']), Manual()); print('put')\n"
        "except PermissionDeniedError as e: print('denied', 'uid 65534' in str(e))\n"
    )
    short_tmp.chmod(0o755)
    (short_tmp / "config.toml").write_text("socket_mode = 0o666\n")
    root = str(Path(wheelsched.__file__).resolve().parents[1])
    said = []
    for more in ((), ("--grant", "command=%65533"), ("--grant", "command=1,65534")):
        server = Serving(short_tmp, "--config", str(short_tmp / "config.toml"), "--allow-commands", *more)
        server.client()
        done = subprocess.run([sys.executable, "-c", "import wheelsched, wheelsched.client.client, wheelsched.schedules.schedule\n" + ask, server.socket],
                              capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": root})
        said.append(done.stdout.strip() or done.stderr)
        server.end()
        for one in server.open:
            one.close()
    assert said == ["denied True", "put", "put"]

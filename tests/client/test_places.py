"""A client finds the server where it is, and one that doesn't answer is told within 5 seconds."""

from __future__ import annotations

import asyncio
import signal
import socket
import threading

import pytest
from click.testing import CliRunner

from wheelsched import AsyncClient, Client, UnavailableError, default_socket_path
from wheelsched.cli.root import cli
from wheelsched.client import places


@pytest.fixture
def nowhere(short_tmp, monkeypatch):
    """A machine on which no server is at any of the known places."""
    for name in ("WHEELSCHED_SOCKET", "WHEELSCHED_DATA", "XDG_RUNTIME_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(short_tmp))
    monkeypatch.setattr(places, "_SYSTEM", str(short_tmp / "run.sock"))
    monkeypatch.setattr(places.os, "geteuid", lambda: 4_000_000_000)
    return short_tmp


def listening(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    sock = socket.socket(socket.AF_UNIX)
    sock.bind(str(path))
    sock.listen(4)
    return sock


def test_n_b6_the_first_place_with_a_server_is_taken(nowhere, monkeypatch):
    home, system, runtime = nowhere / ".wheelsched" / "wheelsched.sock", nowhere / "run.sock", nowhere / "xdg"
    assert places.find_socket() == default_socket_path() == str(home)
    with listening(system):
        assert places.find_socket() == str(system)
        with Client() as ws:
            assert ws.path == str(system)
        assert AsyncClient().path == str(system)
        with listening(home):
            assert places.find_socket() == str(home)
        assert places.find_socket() == str(system), "a socket file that nobody listens at is none"
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
        assert places.find_socket() == str(system)
        with listening(runtime / "wheelsched" / "wheelsched.sock"):
            assert places.find_socket() == str(runtime / "wheelsched" / "wheelsched.sock")
        monkeypatch.setenv("WHEELSCHED_SOCKET", "/a/b")
        assert places.find_socket() == "/a/b", "what is said counts"


def test_n_b6_the_error_names_what_was_tried_and_where_one_is(nowhere):
    home, system = nowhere / ".wheelsched" / "wheelsched.sock", nowhere / "run.sock"
    with Client() as ws, pytest.raises(UnavailableError) as caught:
        ws.stats()
    for part in (f"no server at {home}", "start one with `wheelsched serve`", "--socket", "WHEELSCHED_SOCKET", str(system)):
        assert part in str(caught.value)
    with listening(system), Client("/nowhere/s") as ws, pytest.raises(UnavailableError, match=f"one answers at {system}: give that, --socket {system}"):
        ws.stats()


def test_n_b6_a_socket_may_be_written_as_a_url(nowhere, monkeypatch):
    assert Client("unix:///tmp/x").path == "/tmp/x"
    monkeypatch.setenv("WHEELSCHED_SOCKET", "unix:///tmp/y")
    assert Client().path == AsyncClient().path == default_socket_path() == "/tmp/y"


def test_n_b24_the_lock_names_the_socket(serving, nowhere, monkeypatch):
    server = serving("--mode", "thread", workers=0)
    server.client()
    lock = (server.folder / "data" / "lock").read_text()
    assert f"\nsocket {server.socket}\n" in lock
    assert lock.startswith("pid ")
    monkeypatch.setenv("WHEELSCHED_DATA", str(server.folder / "data"))
    with Client() as ws:
        assert ws.stats()["pid"] == server.process.pid
    assert asyncio.run(_asked()) == server.process.pid


async def _asked():
    async with AsyncClient() as ws:
        return (await ws.stats())["pid"]


def run(*args):
    return CliRunner().invoke(cli, list(args), catch_exceptions=False)


def test_n_b22_a_server_that_hangs_is_told_with_its_pid(serving):
    server = serving(workers=0)
    server.client()
    assert run("--socket", server.socket, "health").exit_code == 0
    server.process.send_signal(signal.SIGSTOP)
    try:
        for verb in ("health", "status", "top"):
            done = run("--socket", server.socket, verb, "--timeout", "300ms")
            assert (done.exit_code, done.stderr) == (
                5, f"wheelsched: no answer from pid {server.process.pid} within 300 ms: it hangs, or is stopped\n")
        done = run("--socket", server.socket, "health", "--wait", "1s", "--timeout", "300ms")
        assert done.exit_code == 5
        done = run("--socket", server.socket, "--timeout", "200ms", "queue", "list")
        assert done.exit_code == 8
        assert "may have been done" not in done.stderr, "a question does nothing"
        assert "may have been done" in run("--socket", server.socket, "job", "pause", "x", "--timeout", "200ms").stderr
    finally:
        server.process.send_signal(signal.SIGCONT)
    assert run("--socket", server.socket, "health", "--wait", "20s").exit_code == 0
    assert run("--socket", server.socket, "--timeout", "20s", "job", "put", "x", "--manual", "t", "--timeout", "5m").exit_code == 0


def test_n_b22_health_waits_for_a_server_that_comes(serving, short_tmp):
    done = []
    path = str(short_tmp / "late")
    assert run("--socket", path, "health", "--wait", "300ms").exit_code == 5
    server = serving(workers=0)
    waiter = threading.Thread(target=lambda: done.append(run("--socket", server.socket, "health", "--wait", "60s")))
    waiter.start()
    waiter.join(90)
    assert done[0].exit_code == 0

"""The listening socket: its file is lost and comes back, floods of connections come and go, descriptors run out."""

import os
import resource
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.rigs.server import answer, wait_for
from wheelsched import Call, Client, Retry
from wheelsched.model.nouns import NEVER
from wheelsched.server.grants import Grants
from wheelsched.server.listener import LOOK_EVERY_US, Listener
from wheelsched.server.peers import READ_LEAST, TURN_BYTES, Peers


@pytest.fixture
def listener(short_tmp):
    made = Listener(str(short_tmp / "x" / "s"), 0o600, None)
    yield made
    made.close()


@pytest.fixture
def peers(listener):
    said = []
    made = Peers(listener, Grants({}), 1, lambda text, _level=None: said.append(text))
    made.said = said
    made.watch(listener.fileno())
    made.watch(listener.notes)
    yield made
    for connection in list(made.by_fd.values()):
        made.remove(connection)
    made.epoll.close()


def noted(peers):
    """Does the kernel tell of the file?"""
    return any(fd == peers.listener.notes for fd, _ in peers.epoll.poll(0))


def connect(path):
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(10)
    sock.connect(path)
    return sock


# Its file


def remove(path):
    Path(path).unlink()


def rename(path):
    Path(path).rename(path + ".old")


def rename_folder(path):
    Path(path).parent.rename(Path(path).parent.with_name("old"))


def replace(path):
    Path(path).unlink()
    with socket.socket(socket.AF_UNIX) as other:  # a dead one
        other.bind(path)


@pytest.mark.parametrize("lose", [remove, rename, replace, lambda path: shutil.rmtree(Path(path).parent)], ids=["unlink", "rename", "replace", "rmtree"])
def test_w5_a_lost_socket_file_is_noted_at_once_and_made_again(peers, lose):
    path = peers.listener.path
    early = connect(path)  # in the backlog when the file goes
    assert not noted(peers)
    assert peers.listener.wake_us() == NEVER, "an idle server is not woken to look for its file"
    lose(path)
    assert noted(peers)
    peers.keep_socket(1, noted=True)
    assert Path(path).stat().st_mode & 0o777 == 0o600
    assert len(peers.by_fd) == 1, "who came before is let in"
    assert "was gone: it is made again" in peers.said[0]
    late = connect(path)
    assert any(fd == peers.listener.fileno() for fd, _ in peers.epoll.poll(1))
    peers.accept(2)
    assert len(peers.by_fd) == 2
    assert not noted(peers)
    lose(path)
    assert noted(peers), "the new one is watched too"
    early.close()
    late.close()


def test_w5_a_lost_folder_is_seen_within_a_minute_of_turns(peers):
    path = peers.listener.path
    rename_folder(path)  # of which the kernel tells nothing
    peers.keep_socket(LOOK_EVERY_US - 1, noted=False)
    assert not Path(path).exists()
    peers.keep_socket(LOOK_EVERY_US, noted=False)
    connect(path).close()


def test_w5_nothing_is_done_about_a_file_that_is_there(peers):
    Path(peers.listener.path).chmod(0o660)
    assert noted(peers)
    before = peers.listener.fileno()
    peers.keep_socket(1, noted=True)
    assert (peers.listener.fileno(), peers.said) == (before, [])


def test_w5_what_can_not_be_made_again_is_said_once_and_tried_each_minute(peers):
    path = peers.listener.path
    Path(path).unlink()
    Path(path).touch()  # somebody's file is not removed
    for i in range(1, 4):
        peers.keep_socket(i * LOOK_EVERY_US, noted=noted(peers))
        assert peers.listener.wake_us() == (i + 1) * LOOK_EVERY_US
    assert len(peers.said) == 1
    assert "can't be made again" in peers.said[0]
    Path(path).unlink()
    peers.keep_socket(4 * LOOK_EVERY_US, noted=False)
    connect(path).close()
    assert peers.listener.wake_us() == NEVER


def test_w5_another_servers_socket_is_left_alone(peers):
    path = peers.listener.path
    Path(path).unlink()
    other = Listener(path, 0o600, None)
    peers.keep_socket(1, noted=True)
    assert "another server listens there" in peers.said[0]
    connect(path).close()
    assert peers.listener.wake_us() < NEVER
    other.close()


def test_w5_without_inotify_it_looks_once_a_minute(short_tmp, monkeypatch):
    monkeypatch.setattr("wheelsched.server.listener._inotify", lambda: -1)
    listener = Listener(str(short_tmp / "s"), 0o600, None)
    assert listener.wake_us() == LOOK_EVERY_US
    Path(listener.path).unlink()
    assert not listener.lost(LOOK_EVERY_US - 1, noted=False)
    assert listener.lost(LOOK_EVERY_US, noted=False)
    listener.close()


def test_w5_a_server_is_reached_again_and_those_connected_stay(serving):
    server = serving(workers=0)
    ws = server.client()
    Path(server.socket).unlink()
    wait_for(lambda: Path(server.socket).exists())
    assert ws.stats()["connections"] >= 1
    with Client(server.socket) as other:
        assert other.stats()["pid"] == server.process.pid
    assert "was gone: it is made again" in server.log.read_text()


# Who may come


def refusal(sock):
    number, how, error = answer(sock)
    assert (number, how, error["code"]) == (0, "error", "resource_exhausted")
    assert answer(sock) is None
    return error["message"]


def test_t4_one_user_has_so_many_connections_and_no_more(peers, monkeypatch):
    peers.most, peers.most_of_user = 6, 3
    uid = [1_000]
    monkeypatch.setattr("wheelsched.server.peers.peer", lambda sock: (uid[0], set()))
    socks = []

    def come(n):
        come = [connect(peers.listener.path) for _ in range(n)]
        socks.extend(come)
        peers.accept(0)
        return come

    come(3)
    assert "user 1000 has 3 connections" in refusal(come(1)[0])
    uid[0] = os.geteuid()
    come(3)  # the server's own user has all there is
    assert "has 6 connections" in refusal(come(1)[0])
    uid[0] = 1_000
    gone = next(c for c in peers.by_fd.values() if c.uid == 1_000)
    assert peers.remove(gone)
    assert not peers.remove(gone)
    come(1)
    assert peers.of_user == {1_000: 3, os.geteuid(): 3}
    assert len(peers.said) == 1, "a flood doesn't fill the log"
    for sock in socks:
        sock.close()


def test_t4_without_a_descriptor_who_comes_is_told_so_and_nothing_spins(peers):
    path = peers.listener.path
    socks = [connect(path) for _ in range(5)]
    held = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = max(int(entry.name) for entry in Path("/proc/self/fd").iterdir())
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (used + 1, held[1]))
        fillers = []
        while True:
            try:
                fillers.append(os.open("/dev/null", os.O_RDONLY))
            except OSError:
                break
        for turn in range(5):
            peers.accept(turn)
        assert not peers.by_fd
        assert not any(fd == peers.listener.fileno() for fd, _ in peers.epoll.poll(0)), "the backlog is empty, so nothing wakes the loop"
    finally:
        for fd in fillers:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, held)
    assert all("no descriptor is left" in refusal(sock) for sock in socks)
    late = connect(path)
    peers.accept(9)
    assert len(peers.by_fd) == 1
    for sock in (*socks, late):
        sock.close()


def test_t4_a_share_of_what_is_read_is_everybodys(peers):
    assert peers.share(1) == peers.share(4) == 256 * 1024
    assert peers.share(8) * 8 == TURN_BYTES
    assert peers.share(10_000) == READ_LEAST


FLOODER = """
import os, socket, sys, time
uid, path, n = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
os.setgroups([]); os.setgid(uid); os.setuid(uid)
socks = []
for _ in range(n):
    s = socket.socket(socket.AF_UNIX)
    s.connect(path)
    socks.append(s)
print("there", flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user")
def test_t4_strangers_take_no_descriptors_from_workers_and_go_in_a_moment(serving, short_tmp):
    def few():
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))

    short_tmp.chmod(0o755)
    (short_tmp / "config").write_text("socket_mode = 511\n")
    server = serving("--config", str(short_tmp / "config"), preexec=few)
    ws = server.client()
    flood = subprocess.Popen([sys.executable, "-c", FLOODER, "1234", server.socket, "400"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert flood.stdout.readline() == b"there\n"
    run = ws.enqueue(Call("t.die"), retry=Retry(attempts=1))
    wait_for(lambda: run.refresh().state == "dead")
    assert ws.enqueue(Call("t.echo", 5)).result(timeout=60) == 5, "another worker has started"
    assert ws.stats()["connections"] < 256
    with Client(server.socket) as other:
        assert other.stats()["pid"] == server.process.pid
    flood.communicate()
    wait_for(lambda: ws.stats()["connections"] < 10)
    assert server.process.poll() is None

"""A disk that doesn't answer: what goes on meanwhile, and when the server gives up."""

import mmap
import os
import shutil
import struct
import subprocess

import msgpack
import numpy as np
import pytest

from tests.rigs.engine import CALL, Bench
from tests.rigs.places import TESTS
from tests.rigs.server import answer, wait_for
from wheelsched import Call
from wheelsched.engine.heartbeats import answer_at_once
from wheelsched.engine.outbox import AHEAD_MAX, Outbox
from wheelsched.engine.turn import Effects, Incoming, Now
from wheelsched.model.nouns import NEVER
from wheelsched.protocol.frames import Request, encode_request

HANG = 5  # mode of shims/fsyncshim.c


class Disk:
    """Hangs the syncs of a process that was started with `env`."""

    def __init__(self, folder):
        gcc = shutil.which("gcc")
        if gcc is None:
            pytest.skip("the fault shim needs gcc")
        source = TESTS / "shims" / "fsyncshim.c"
        subprocess.run([gcc, "-O2", "-shared", "-fPIC", "-o", folder / "shim.so", source, "-ldl"], check=True, capture_output=True)
        (folder / "ctl").write_bytes(bytes(4096))
        with (folder / "ctl").open("r+b") as file:
            self._page = mmap.mmap(file.fileno(), 4096)
        self.env = {"LD_PRELOAD": str(folder / "shim.so"), "FS_CTL": str(folder / "ctl"), "FS_MATCH": "data.mdb"}

    def hang(self, seconds):
        """The next sync."""
        self._page[:20] = struct.pack("=5i", HANG, 0, 1, seconds * 1000, 0)

    @property
    def hangs(self):
        """Has it begun?"""
        return struct.unpack_from("=i", self._page, 16)[0] > 0


class External:
    """A worker that speaks for itself."""

    def __init__(self, sock):
        self.sock, self.number = sock, 0

    def ask(self, verb, args):
        self.number += 1
        self.sock.sendall(encode_request(self.number, verb, args))
        number, how, result = answer(self.sock)
        assert (number, how) == (self.number, "ok"), result
        return result

    def beat(self, got):
        return self.ask("heartbeat", {"id": got["id"], "token": got["token"], "started": bytes([1]) * got["n"]})


@pytest.mark.slow
def test_t8_heartbeats_are_answered_while_a_sync_hangs_and_no_lease_is_lost(serving, tmp_path):
    disk = Disk(tmp_path)
    server = serving("--lease", "2s", env=disk.env)
    ws = server.client()
    run = ws.enqueue(Call("x.held"), timeout="1h")
    worker = External(server.connect())
    worker.ask("hello", {"version": 1, "role": "worker", "name": "x", "tasks": {"x.held": {}}})
    got = worker.ask("lease", {"queues": [], "credits": 1, "wait_us": 30_000_000})
    assert got["n"] == 1
    disk.hang(8)
    other = server.connect()
    for i in range(2 * AHEAD_MAX):  # more than may be decided ahead of the disk
        other.sendall(encode_request(1 + i, "put", {"rid": os.urandom(16), "name": f"p{i}", "given": {"task": "t.echo", "schedule": {
            "kind": "manual"}}, "payload": msgpack.packb([[], {}]), "param_us": NEVER}))
        if i == 0:
            wait_for(lambda: disk.hangs)
        assert worker.beat(got) == {"cancel": [], "stale": []}
    beats = 0
    other.setblocking(False)

    def acknowledged():
        try:
            return bool(other.recv(1))
        except BlockingIOError:
            return False

    while not acknowledged():  # nothing is acknowledged before it is on disk
        assert worker.beat(got) == {"cancel": [], "stale": []}
        beats += 1
        wait_for(lambda: True)
    assert beats
    assert worker.beat(got)["stale"] == []
    assert run.refresh().attempt == 1
    assert run.state == "running"
    verdict = worker.ask("finish", {"id": got["id"], "token": got["token"], "outcome": bytes([1]), "started_us": bytes(8), "ended_us": bytes(8)})
    assert verdict["verdict"] == b"\x01"


@pytest.mark.slow
def test_t8_a_server_whose_disk_is_silent_for_too_long_ends_with_the_cause(serving, tmp_path):
    disk = Disk(tmp_path)
    server = serving("--sync-timeout", "1s", env=disk.env)
    ws = server.client()
    wait_for(lambda: ws.stats()["workers"])
    disk.hang(30)
    sock = server.connect()
    sock.sendall(encode_request(1, "hold", {"rid": os.urandom(16), "note": ""}))
    assert server.process.wait(20) == 70
    assert "has not finished a commit for 1s (--sync-timeout)" in server.log.read_text()


# What such an answer tells


@pytest.fixture
def b():
    with Bench("2026-03-02T00:00:00Z") as bench:
        bench.hello()
        yield bench


def beat(b, leases, conn=50, undurable=(), **more):
    args = {"id": b"".join(x[0] for x in leases), "token": np.array([x[1] for x in leases], "<i8").tobytes(),
            "started": bytes([1] * len(leases)), **more}
    now = Now(b.engine.now.wall_us, b.engine.now.mono_us + 3_000_000)
    frame = answer_at_once(b.engine, Incoming(conn, Request(1, "heartbeat", args), 0), now, frozenset(undurable))
    return frame if frame is None else msgpack.unpackb(frame[4:])[2]


def test_t8_a_heartbeat_without_a_record_renews_the_lease_and_changes_no_state(b):
    b.client.enqueue(CALL)
    lease = b.lease()
    before = b.engine.state.digest(), b.engine.state.meta.seq
    until = b.engine.sessions[50].lease_until_us
    assert beat(b, lease, progress=[[0, "half"]]) == {"cancel": [], "stale": []}
    assert b.engine.sessions[50].lease_until_us > until
    assert (b.engine.state.digest(), b.engine.state.meta.seq) == before
    assert [r.progress for r in b.client.runs()] == ["half"]


def test_t8_what_is_not_durable_is_not_told(b):
    run = b.client.enqueue(CALL)
    lease = b.lease()
    b.client.cancel(run.id)
    assert beat(b, lease, undurable=[lease[0][1]]) == {"cancel": [], "stale": []}
    assert beat(b, lease) == {"cancel": [0], "stale": []}


def test_t8_what_needs_a_record_or_is_stale_has_to_wait(b):
    b.client.enqueue(CALL)
    lease = b.lease()
    assert beat(b, lease, checkpoint=[[0, b"\xc0"]]) is None
    assert beat(b, lease, started=b"") is None  # told in its turn what is wrong
    assert beat(b, lease, conn=51) is None
    assert b.finish(lease) == [1]
    assert beat(b, lease) is None
    b.client.enqueue(CALL)
    lease = b.lease()
    b.advance("11s")
    assert b.engine.sessions[50].lost
    assert beat(b, lease) is None


def effects(seq, **more):
    return Effects(seq=seq, **more)


def test_t8_the_outbox_counts_how_long_the_disk_is_silent():
    box = Outbox(30)
    assert box.wake_us() == NEVER
    box.add(effects(5, replies=[(1, b"a")]), 100)
    box.add(effects(6, cancels=[(1, 77, False)]), 110)
    assert (box.wake_us(), box.asked_to_end()) == (130, {77})
    assert [e.seq for e in box.durable(5, 120)] == [5]
    assert box.wake_us() == 150  # it did something
    assert [e.seq for e in box.durable(6, 125)] == [6]
    assert (box.wake_us(), bool(box)) == (NEVER, False)


def test_t8_questions_never_fill_the_outbox():
    box = Outbox(30)
    for i in range(3 * AHEAD_MAX):
        box.add(effects(5, replies=[(i, b"")]), 100)
    assert not box.full
    assert [len(e.replies) for e in box.durable(5, 100)] == [3 * AHEAD_MAX]
    for i in range(AHEAD_MAX):
        box.add(effects(6 + i), 100)
    assert box.full

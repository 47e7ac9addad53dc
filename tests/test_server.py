"""The real server from outside: bad input, bad luck, two of it, full disks, drains."""

import os
import resource
import signal
import socket
import struct
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgpack
import pytest

from wheelsched import At, Call, Client, Every, Manual, Retry, RunFailed
from wheelsched.errors import InvalidArgumentError, StorageFullError, UnavailableError, UnimplementedError
from wheelsched.protocol import FRAME_MAX, encode_request

TASKS = """
import os, time
from wheelsched import current_run, task

@task("t.echo")
def echo(x):
    return x

@task("t.sleep")
def sleep(s):
    time.sleep(s)
    return current_run().attempt

@task("t.die")
def die():
    os._exit(7)
"""


class Serving:
    """One server process on a folder with a short name."""

    def __init__(self, folder: Path, *flags: str, workers=1, preexec=None, env=None):
        self.folder = folder
        self.socket = str(folder / "s")
        (folder / "server_tasks.py").write_text(TASKS)
        self.log = folder / "log"
        self.open = []
        paths = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "wheelsched", "serve", "--data", str(folder / "data"), "--socket", self.socket, "--workers", str(workers),
                 "--tasks", "server_tasks", *flags],
                stdout=log, stderr=log, preexec_fn=preexec, env=dict(os.environ, PYTHONPATH=os.pathsep.join(paths), **(env or {})),
            )

    def client(self, **options):
        until = time.monotonic() + 30
        while True:
            client = Client(self.socket, **options)
            self.open.append(client)
            try:
                client.stats()
            except UnavailableError:
                assert self.process.poll() is None, self.log.read_text()
                assert time.monotonic() < until, self.log.read_text()
                time.sleep(0.02)  # another process comes up
            else:
                return client

    def connect(self):
        sock = socket.socket(socket.AF_UNIX)
        self.open.append(sock)
        sock.settimeout(10)
        sock.connect(self.socket)
        return sock

    def end(self, number=signal.SIGTERM):
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(40)


@pytest.fixture
def serving(short_tmp):
    made = []

    def start(*flags, **options):
        made.append(Serving(short_tmp, *flags, **options))
        return made[-1]

    yield start
    for server in made:
        server.end(signal.SIGKILL)
        for thing in server.open:
            thing.close()


def answer(sock):
    """The next reply, or None when the server closed the connection."""
    head = b""
    while len(head) < 4:
        data = sock.recv(4 - len(head))
        if not data:
            return None
        head += data
    body = b""
    while len(body) < struct.unpack(">I", head)[0]:
        data = sock.recv(65_536)
        assert data
        body += data
    return msgpack.unpackb(body)


def frame(body):
    return struct.pack(">I", len(body)) + body


NESTED = b"\x91" * 5_000 + b"\xc0"
RUBBISH = {
    "random": frame(os.urandom(300)),
    "empty": frame(b""),
    "not a request": frame(msgpack.packb({"a": 1})),
    "verb is no text": frame(msgpack.packb([1, 2, {}])),
    "args is no map": frame(msgpack.packb([1, "get", []])),
    "id 0": frame(msgpack.packb([0, "get", {}])),
    "id is no int": frame(msgpack.packb([True, "get", {}])),
    "huge id": frame(msgpack.packb([2**64 - 1, "get", {}])),
    "nested": frame(NESTED),
    "not UTF-8": frame(b"\x93\x01\xa3\xff\xfe\xfd\x80"),
    "a million items": frame(b"\x93\x01\xa3get\xdd\x00\x0f\x42\x40" + b"\xc0" * 1_000_000),
    "declared but absent": frame(b"\x93\x01\xa3get\xdd\xff\xff\xff\xff"),
    "extension": frame(b"\x93\x01\xa3get\x81\xa1x\xc7\x04\x05abcd"),
    "int keys": frame(msgpack.packb([1, "get", {1: 2}])),
    "too large": struct.pack(">I", FRAME_MAX + 1) + b"x",
    "4 GiB": struct.pack(">I", 2**32 - 1),
}


def test_rubbish_ends_its_connection_and_nobody_else_notices(serving):
    server = serving()
    ws = server.client()
    other = server.connect()
    other.sendall(encode_request(1, "hello", {"version": 1, "role": "client", "name": "x"}))
    assert answer(other)[1] == "ok"
    for name, data in RUBBISH.items():
        sock = server.connect()
        sock.sendall(data)
        reply = answer(sock)
        assert reply is not None, name
        assert reply[1] == "error", name
        assert reply[2]["code"] == "invalid_argument", (name, reply)
        assert answer(sock) is None, name
    other.sendall(encode_request(2, "stats", {}))
    assert answer(other)[:2] == [2, "ok"]
    assert ws.stats()["jobs"] == 0


BAD_REQUESTS = [
    ("nothing", {}, "unimplemented"),
    ("get", {}, "invalid_argument"),
    ("get", {"name": 5}, "invalid_argument"),
    ("get", {"name": "no/such"}, "not_found"),
    ("get", {"name": "a/" + "x" * 129}, "invalid_argument"),
    ("get", {"name": "../../etc/passwd\n"}, "invalid_argument"),
    ("put", {"name": "a"}, "invalid_argument"),
    ("put", {"rid": b"1234", "name": "a"}, "invalid_argument"),
    ("put", {"rid": bytes(16), "name": "a", "given": 7, "payload": b"\x92\x90\x80"}, "invalid_argument"),
    ("put", {"rid": bytes(16), "name": "a", "given": {"task": "t"}, "payload": b"\x92\x90\x80"}, "invalid_argument"),
    ("put", {"rid": bytes(16), "name": "a", "given": {"task": "t", "schedule": {"kind": "at"}}, "payload": b"\xc1"}, "invalid_argument"),
    ("put", {"rid": bytes(16), "name": "a", "given": {"task": "t", "schedule": {"kind": "at"}}, "payload": b"\x92\x90\x80",
             "param_us": 2**62}, "invalid_argument"),
    ("put", {"rid": bytes(16), "name": "a", "given": {"task": "t", "schedule": {"kind": "at"}}, "payload": b"\x92\x90\x80",
             "param_us": -1}, "invalid_argument"),
    ("put", {"rid": bytes(16), "name": "a", "given": {"task": "t", "schedule": {"kind": "every", "every_us": 1}}, "payload": b"\x92\x90\x80"},
     "invalid_argument"),
    ("put", {"rid": bytes(16), "name": "a", "given": {"task": "t", "schedule": {"kind": "at"}, "timeout_us": float("nan")},
             "payload": b"\x92\x90\x80"}, "invalid_argument"),
    ("put_many", {"rid": bytes(16), "names": ["a"], "payload": [], "given": []}, "invalid_argument"),
    ("put_many", {"rid": bytes(16), "names": [], "payload": [], "given": []}, "invalid_argument"),
    ("put_many", {"rid": bytes(16), "names": ["a"], "payload": [b"\x92\x90\x80"], "given": [{"task": "t", "schedule": {"kind": "manual"}}],
                  "which": b"\x01\0\0\0", "param_us": bytes(8)}, "invalid_argument"),
    ("runs", {"state": "happy"}, "invalid_argument"),
    ("runs", {"limit": 0}, "invalid_argument"),
    ("runs", {"after": "x"}, "invalid_argument"),
    ("runs", {"since_us": "x"}, "invalid_argument"),
    ("runs", {"job": 5}, "invalid_argument"),
    ("jobs", {"state": "x"}, "invalid_argument"),
    ("jobs", {"match": 5}, "invalid_argument"),
    ("dead", {"match": 5}, "invalid_argument"),
    ("run", {"id": "zz"}, "invalid_argument"),
    ("run", {"id": "00" * 16}, "not_found"),
    ("wait", {"id": "00" * 16}, "not_found"),
    ("cancel", {"rid": bytes(16), "id": "00" * 16}, "not_found"),
    ("redrive", {"rid": bytes(16)}, "invalid_argument"),
    ("lease", {"credits": 1}, "failed_precondition"),
    ("finish", {}, "failed_precondition"),
    ("heartbeat", {}, "failed_precondition"),
    ("hello", {"version": 99}, "failed_precondition"),
    ("hello", {"version": 1, "role": "king"}, "invalid_argument"),
]


def test_bad_requests_are_refused_by_code_and_store_nothing(serving):
    server = serving()
    server.client()
    sock = server.connect()
    for number, (verb, args, code) in enumerate(BAD_REQUESTS, 1):
        sock.sendall(encode_request(number, verb, args))
        reply = answer(sock)
        assert reply is not None, (verb, args)
        assert reply[:2] == [number, "error"], (verb, args, reply)
        assert reply[2]["code"] == code, (verb, args, reply)
    sock.sendall(encode_request(1_000, "stats", {}))
    assert answer(sock)[2]["jobs"] == 0


def test_bad_frames_of_a_worker_are_refused(serving):
    server = serving(workers=0)
    server.client()
    sock = server.connect()
    sock.sendall(encode_request(1, "hello", {"version": 1, "role": "worker", "name": "w", "tasks": {"t": {}}}))
    assert answer(sock)[1] == "ok"
    row = {"id": bytes(16), "token": bytes(8), "outcome": b"\x01", "started_us": bytes(8), "ended_us": bytes(8), "result": []}
    bad = [row | change for change in (
        {"id": b"x"}, {"token": b"x"}, {"outcome": b""}, {"outcome": b"\x09"}, {"outcome": b"\0"}, {"started_us": None}, {"result": [[1, {}]]},
        {"result": [[0, 5]]}, {"result": {}}, {"result": [[0, {"value": bytes(10**6 // 2)}]]},
    )]
    for number, args in enumerate(bad, 2):
        sock.sendall(encode_request(number, "finish", args))
        reply = answer(sock)
        assert reply[:2] == [number, "error"], (args, reply)
        assert reply[2]["code"] == "invalid_argument", reply
    sock.sendall(encode_request(100, "finish", row))
    assert answer(sock)[2] == {"verdict": b"\x02"}, "a completion of nothing is stale"


def test_what_is_not_done_yet_is_refused_by_name(serving):
    ws = serving(workers=0).client()
    with pytest.raises(UnimplementedError, match="jitter"):
        ws.put("a", Call("t"), Every("1m"), jitter="10s")
    assert list(ws.jobs()) == []


def test_a_client_that_never_finishes_its_frame_harms_nobody(serving):
    server = serving()
    ws = server.client()
    half = [server.connect() for _ in range(50)]
    for sock in half:
        sock.sendall(struct.pack(">I", 1_000) + b"x")
    assert ws.enqueue(Call("t.echo", 1)).result(timeout=10) == 1
    assert ws.stats()["connections"] >= 51


def test_a_client_that_never_reads_is_dropped(serving, monkeypatch):
    server = serving(workers=0)
    ws = server.client()
    ws.put_many([])
    for i in range(200):
        ws.put(f"x/{i}", Call("t.echo", "y" * 10_000), Manual())
    deaf = server.connect()
    deaf.settimeout(0.5)
    sent = 0
    try:
        for _ in range(3_000):
            deaf.sendall(encode_request(1, "jobs", {"limit": 1_000}))
            sent += 1
    except OSError:
        pass
    assert ws.stats()["jobs"] == 200
    rss = int(Path(f"/proc/{server.process.pid}/statm").read_text().split()[1]) * 4096
    assert rss < 1_500_000_000, f"{sent} requests made it {rss} bytes"


def test_the_second_server_is_refused_and_harms_nothing(serving, short_tmp):
    first = serving()
    ws = first.client()
    second = Serving(short_tmp)
    assert second.process.wait(30) == 75
    assert f"in use by another server (pid {first.process.pid})" in first.log.read_text()
    assert ws.enqueue(Call("t.echo", 5)).result(timeout=10) == 5


def test_a_dead_socket_is_removed_and_a_file_is_left_alone(serving, short_tmp):
    stale = socket.socket(socket.AF_UNIX)
    stale.bind(str(short_tmp / "s"))
    stale.close()
    server = serving(workers=0)
    server.client()
    server.end()
    assert not (short_tmp / "s").exists()
    (short_tmp / "s").write_text("mine")
    refused = serving(workers=0)
    assert refused.process.wait(30) == 78
    assert (short_tmp / "s").read_text() == "mine"


def test_bad_configurations_end_with_78_and_one_line(short_tmp):
    for flags in (["--workers", "-1"], ["--tasks", "no such"], ["--clock-offset", "soon"], ["--config", "/nonexistent.toml"]):
        done = subprocess.run(
            [sys.executable, "-m", "wheelsched", "serve", "--data", str(short_tmp / "d"), "--socket", str(short_tmp / "s"), *flags],
            capture_output=True, text=True, timeout=60, check=False,
        )
        assert done.returncode == 78, (flags, done)
        assert len(done.stderr.strip().splitlines()) == 1, done.stderr


def test_tasks_that_can_not_be_imported_end_the_start_with_78(serving, short_tmp):
    (short_tmp / "broken.py").write_text("import nothing_of_this_name\n")
    server = serving("--tasks", "broken")
    assert server.process.wait(40) == 78
    assert "nothing_of_this_name" in server.log.read_text()


def test_sigterm_lets_runs_end_and_the_rest_wait(serving):
    server = serving()
    ws = server.client()
    slow = ws.enqueue(Call("t.sleep", 1.0))
    wait_for(lambda: ws.run(slow.id).state == "running")
    later = [ws.enqueue(Call("t.echo", i)) for i in range(5)]
    assert server.end() == 0
    again = serving()
    ws = again.client()
    assert ws.run(slow.id).attempt == 1
    assert ws.run(slow.id).state == "succeeded"
    assert [ws.run(r.id).result(timeout=20) for r in later] == list(range(5))
    assert [ws.run(r.id).attempt for r in later] == [1] * 5


def test_a_second_sigterm_stops_at_once(serving):
    server = serving()
    ws = server.client()
    slow = ws.enqueue(Call("t.sleep", 30), retry=Retry(attempts=2, backoff="100ms"))
    wait_for(lambda: ws.run(slow.id).state == "running")
    server.process.send_signal(signal.SIGTERM)
    wait_for(lambda: "draining" in server.log.read_text())
    begun = time.monotonic()
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(15) == 0
    assert time.monotonic() - begun < 10
    ws = serving(workers=0).client()
    run = ws.run(slow.id)
    assert [a.outcome for a in run.attempts] == ["interrupted"]
    assert run.state in ("retry_wait", "queued")


def wait_for(condition, seconds=20):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)  # another process gets there


def test_a_worker_that_dies_costs_its_run_one_attempt_and_the_others_none(serving):
    ws = serving(workers=1).client()
    poison = ws.enqueue(Call("t.die"), retry=Retry(attempts=3, backoff="50ms", cap="50ms"))
    others = [ws.enqueue(Call("t.echo", i)) for i in range(50)]
    with pytest.raises(RunFailed, match="worker"):
        poison.result(timeout=30)
    poison.refresh()
    assert poison.state == "dead"
    assert [a.outcome for a in poison.attempts] == ["lost"] * 3
    assert [r.result(timeout=20) for r in others] == list(range(50))
    for r in others:
        r.refresh()
        assert r.attempt == 1
    assert [d.id for d in ws.dead()] == [poison.id]


def test_a_task_that_nobody_knows_waits_visibly(serving):
    ws = serving().client()
    run = ws.enqueue(Call("t.unknown"))
    assert ws.stats()["unserved_tasks"] == {"t.unknown": 1}
    assert ws.enqueue(Call("t.echo", 1)).result(timeout=10) == 1
    assert ws.run(run.id).state == "queued"


def test_enqueued_runs_are_listed_by_their_reserved_job_which_nobody_may_put(serving):
    ws = serving(workers=0).client()
    run = ws.enqueue(Call("t.echo", 1))
    assert run.job == "~t.echo"
    assert [r.id for r in ws.runs(run.job)] == [run.id]
    with pytest.raises(InvalidArgumentError, match="reserved"):
        ws.put("~t.echo", Call("t.echo"), Manual())
    with pytest.raises(InvalidArgumentError, match="reserved"):
        ws.put_many([ws_job("default/~x", datetime.now(UTC))])


def test_kill_9_between_put_and_due_loses_nothing(serving):
    server = serving()
    ws = server.client()
    at = datetime.now(UTC) + timedelta(seconds=1.5)
    ws.put_many([ws_job(f"n/{i}", at) for i in range(2_000)])
    server.end(signal.SIGKILL)
    again = serving()
    ws = again.client()
    wait_for(lambda: ws.stats()["counters"]["succeeded"] == 2_000, 40)
    runs = list(ws.runs(limit=None))
    assert len({r.id for r in runs}) == len(runs) == 2_000
    assert {r.job for r in runs} == {f"n/{i}" for i in range(2_000)}


def ws_job(name, at):
    from wheelsched import Job

    return Job(name, Call("t.echo", name), At(at))


def test_descriptors_that_run_out_slow_nobody_down_for_long(serving):
    limit = lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))  # noqa: E731
    server = serving(workers=1, preexec=limit)
    ws = server.client()
    crowd = []
    for _ in range(60):
        try:
            crowd.append(server.connect())
        except OSError:
            break
    before = cpu(server.process.pid)
    time.sleep(1)  # a window to measure what it burns
    assert cpu(server.process.pid) - before < 0.5
    assert ws.enqueue(Call("t.echo", 1)).result(timeout=20) == 1
    for sock in crowd:
        sock.close()
    assert server.client().enqueue(Call("t.echo", 2)).result(timeout=20) == 2


def cpu(pid):
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_an_idle_server_sleeps(serving):
    """Jobs far ahead, none due: the process is not scheduled at all."""
    server = serving(workers=0)
    ws = server.client()
    ws.put_many([ws_job(f"n/{i}", datetime.now(UTC) + timedelta(days=9)) for i in range(5_000)])
    ws.close()
    time.sleep(0.5)  # let it settle
    before = switches(server.process.pid)
    time.sleep(2)  # a window to count in
    assert switches(server.process.pid) - before <= 2


def switches(pid):
    total = 0
    for status in Path(f"/proc/{pid}/task").glob("*/status"):
        for line in status.read_text().splitlines():
            if line.startswith("voluntary_ctxt_switches"):
                total += int(line.split()[1])
    return total


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small tmpfs takes root")
def test_a_full_disk_refuses_commands_and_recovers_by_itself(serving, short_tmp):
    data = short_tmp / "data"
    data.mkdir(mode=0o700)
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(data)], capture_output=True, check=False).returncode:
        pytest.skip("no tmpfs can be mounted here")
    try:
        config = short_tmp / "c.toml"
        config.write_text("reserve_bytes = 2097152\n")
        server = serving("--config", str(config))
        ws = server.client()
        (data / "filler").write_bytes(bytes(8 * 2**20))
        stored = []
        with pytest.raises(StorageFullError, match="free space"):
            for i in range(5_000):
                ws.put(f"x/{i}", Call("t.echo", "y" * 20_000), Manual())
                stored.append(f"x/{i}")
        assert server.process.poll() is None
        assert {j.name for j in ws.jobs(limit=None)} == set(stored)
        (data / "filler").unlink()
        wait_for(lambda: puts(ws))
        server.end(signal.SIGKILL)
        again = serving("--config", str(config))
        assert {j.name for j in again.client().jobs(limit=None)} == {*stored, "after"}
        again.end(signal.SIGKILL)
    finally:
        subprocess.run(["umount", "-l", str(data)], check=True)


def puts(ws):
    try:
        ws.put("after", Call("t.echo", 1), Manual())
    except StorageFullError:
        return False
    return True

"""The real server from outside: bad input, bad luck, two of it, full disks, drains."""

import os
import re
import signal
import struct
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgpack
import pytest

from tests.rigs.server import answer, wait_for, ws_job
from wheelsched import At, Call, Every, Manual, Retry
from wheelsched.model.errors import FailedPreconditionError
from wheelsched.protocol.frames import FRAME_MAX, encode_request


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
    ("jobs", {"after": 2**63}, "invalid_argument"),
    ("dead", {"after": -1}, "invalid_argument"),
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


@pytest.mark.parametrize("verb", ["jobs", "dead", "runs"])
def test_no_position_of_a_page_ends_the_server(serving, verb):
    server = serving(workers=0)
    ws = server.client()
    sock = server.connect()
    positions = [0, 1, 2**31, 2**32 - 1, 2**32, 2**62, 2**63 - 1, [0, 0], [2**31, 2**62], [-1, 2**62, 2**62], [-1, 0, 0], [0], [-1, 0], [5, 2**64 - 1],
                 "x", {}]
    asked = [{"after": position, **more} for position in positions for more in ({}, {"newest": True})]
    for number, args in enumerate(asked, 1):
        sock.sendall(encode_request(number, verb, args))
        reply = answer(sock)
        assert reply is not None, args
        assert reply[1] == "ok" or reply[2]["code"] == "invalid_argument", (args, reply)
    assert ws.stats()["jobs"] == 0


def test_what_a_decorator_says_holds_from_the_first_moment_of_a_restart(serving):
    """A put before any worker has said hello resolves as it did before."""
    server = serving(workers=1)
    ws = server.client()
    assert ws.enqueue(Call("t.echo", 1)).result(timeout=20) == 1
    first = ws.put("a", Call("t.once"), Every("1h"))
    assert first.spec["retry"]["attempts"] == 1
    server.end(signal.SIGKILL)
    again = serving(workers=0).client()
    assert again.put("a", Call("t.once"), Every("1h")).result == "unchanged"


def test_discarding_while_reading_misses_none(serving):
    ws = serving().client()
    assert ws.enqueue(Call("t.echo", 1)).result(timeout=20) == 1  # the worker has said what its tasks want
    for _ in range(30):
        ws.enqueue(Call("t.once", fail=True))
    wait_for(lambda: ws.stats()["dead_letters"] == 30)
    pages = ws.dead()
    for letter in pages:
        ws.discard(ids=[letter.id])
    assert list(ws.dead()) == []


def test_an_earlier_instant_than_what_was_decided_is_refused_aloud(serving):
    ws = serving().client()
    ws.put("a", Call("t.echo", 1), At(datetime.now(UTC)))
    wait_for(lambda: ws.get("a").state == "finished")
    assert ws.put("a", Call("t.echo", 1), At(ws.get("a").schedule.instant)).result == "unchanged"
    with pytest.raises(FailedPreconditionError, match="another name"):
        ws.put("a", Call("t.echo", 1), At(datetime.now(UTC) - timedelta(days=1)))
    with pytest.raises(FailedPreconditionError, match="another name"):
        ws.put_many([ws_job("fresh", datetime.now(UTC)), ws_job("a", datetime.now(UTC) - timedelta(days=1))])
    assert [j.name for j in ws.jobs()] == ["a"]


@pytest.mark.slow
def test_a_data_directory_keeps_its_clock_offset(serving):
    server = serving("--clock-offset", "1h", workers=0)
    server.client()
    server.end()
    other = serving("--clock-offset=-29580316s", workers=0)
    assert other.process.wait(30) == 78
    text = other.log.read_text()
    assert "was made with --clock-offset=1h, not with --clock-offset=-342d8h45m16s; start it with --clock-offset=1h\n" in text
    other = serving(workers=0)
    assert other.process.wait(30) == 78
    assert "made with --clock-offset=1h, not without one" in other.log.read_text()
    serving("--clock-offset", "1h", workers=0).client()


def test_a_folder_that_can_not_be_used_is_told_in_one_line(short_tmp):
    (short_tmp / "file").write_text("x")
    done = subprocess.run(
        [sys.executable, "-m", "wheelsched", "serve", "--data", str(short_tmp / "file"), "--socket", str(short_tmp / "s")],
        capture_output=True, text=True, timeout=60, check=False,
    )
    assert done.returncode == 78, done
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr


def test_bad_frames_of_a_worker_are_refused(serving):
    server = serving(workers=0)
    server.client()
    sock = server.connect()
    sock.sendall(encode_request(1, "hello", {"version": 1, "role": "worker", "name": "w", "tasks": {"t": {}}}))
    assert answer(sock)[1] == "ok"
    row = {"id": bytes(16), "token": bytes(8), "outcome": b"\x01", "started_us": bytes(8), "ended_us": bytes(8), "result": []}
    bad = [row | change for change in (
        {"id": b"x"}, {"token": b"x"}, {"outcome": b""}, {"outcome": b"\x09"}, {"outcome": b"\0"}, {"started_us": None}, {"result": [[1, {}]]},
        {"started_us": b"\0\0\0\0\0\0\0\x80"}, {"ended_us": b"\xff\xff\xff\xff\xff\xff\xff\x3f"},
        {"result": [[0, 5]]}, {"result": {}}, {"result": [[0, {"value": 5}]]},
    )]
    for number, args in enumerate(bad, 2):
        sock.sendall(encode_request(number, "finish", args))
        reply = answer(sock)
        assert reply[:2] == [number, "error"], (args, reply)
        assert reply[2]["code"] == "invalid_argument", reply
    sock.sendall(encode_request(100, "finish", row))
    assert answer(sock)[2] == {"verdict": b"\x02"}, "a completion of nothing is stale"


def test_a_hung_task_of_the_pool_is_ended_by_its_heartbeat_timeout(serving):
    ws = serving(workers=1).client()
    run = ws.enqueue(Call("t.sleep", 1000), heartbeat_timeout="500ms", retry=Retry(5, errors={"wheelsched.TimedOut": 1}))
    wait_for(lambda: run.refresh().state == "dead")
    assert [a.outcome for a in run.attempts] == ["timed_out"]
    assert run.error.type == "wheelsched.TimedOut"
    assert re.fullmatch(r"no heartbeat for 0\.5 s, and it did not end when told to \(worker \d+ was ended by SIGTERM\)", run.error.message)
    assert run.attempts[0].started_at is not None
    assert run.attempts[0].ended_at - run.attempts[0].started_at >= timedelta(milliseconds=500)
    assert ws.enqueue(Call("t.echo", 1)).result(timeout=30) == 1


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


def test_a_repeated_completion_is_answered_as_the_first_was_when_the_run_is_history_too(serving):
    """The answer was lost with the server or the connection; meanwhile the run has left the table."""
    server = serving(workers=0)
    ws = server.client()
    numbers = iter(range(1, 1_000))

    def ask(sock, verb, **args):
        sock.sendall(encode_request(next(numbers), verb, args))
        _, status, told = answer(sock)
        assert status == "ok", told
        return told

    def hello():
        sock = server.connect()
        ask(sock, "hello", version=1, role="worker", name="raw", tasks={"x": {}})
        return sock

    def finish(sock, run_id, token, outcome):
        columns = {"token": struct.pack("<q", token), "outcome": bytes([outcome]), "started_us": bytes(8), "ended_us": bytes(8)}
        return ask(sock, "finish", id=run_id, **columns, result=[])["verdict"][0]

    run = ws.enqueue(Call("x"), retry=Retry(attempts=2, backoff="1ms", cap="1ms"))
    run_id, tokens = bytes.fromhex(run.id), []
    sock = hello()
    for outcome in (2, 1):
        batch = ask(sock, "lease", queues=[], credits=1, wait_us=10_000_000)
        tokens += struct.unpack("<q", batch["token"])
        assert finish(sock, run_id, tokens[-1], outcome) == 1
    assert ws.run(run.id).state == "succeeded"
    for again in ("as it is", "after a restart"):
        if again == "after a restart":
            server.end(signal.SIGKILL)
            server = serving(workers=0)
            server.client()
            sock = hello()
        assert [finish(sock, run_id, tokens[0], 2), finish(sock, run_id, tokens[1], 1)] == [1, 1], again
        assert [finish(sock, run_id, tokens[0], 1), finish(sock, run_id, tokens[1], 2)] == [2, 2], again
        assert finish(sock, bytes(16), tokens[1], 1) == 2, again

"""A worker in plain Python, standard library alone, written from wheelsched/manual/protocol.md and nothing else.

    python foreign_worker.py SOCKET [--credits N] [--concurrency N] [--queues a,b]

What it does is printed as JSON lines. Whatever it would have to know and that page does not say is a fault of the page. (So this
file imports nothing of ours, and no MessagePack package: a team that ports it to its language reads all of it here.)
"""

import argparse
import contextlib
import json
import queue
import select
import signal
import socket
import struct
import sys
import threading
import time
import traceback
from datetime import UTC, datetime, timedelta

SUCCEEDED, FAILED, TIMED_OUT, CANCELLED, NOT_STARTED = 1, 2, 3, 6, 7
ACCEPTED = 1
NEVER = 2**63 - 1
VALUE_MAX = 128 * 1024  # there is always room for half of it, and for all when little was printed
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

# -- MessagePack ------------------------------------------------------------------------------------------------------


def pack(value):
    """The value as MessagePack."""
    if value is None:
        return b"\xc0"
    if isinstance(value, bool):
        return b"\xc3" if value else b"\xc2"
    if isinstance(value, int):
        if 0 <= value < 128:
            return bytes([value])
        return struct.pack(">Bq", 0xD3, value)
    if isinstance(value, float):
        return struct.pack(">Bd", 0xCB, value)
    if isinstance(value, str):
        data = value.encode()
        return struct.pack(">BI", 0xDB, len(data)) + data
    if isinstance(value, (bytes, bytearray)):
        return struct.pack(">BI", 0xC6, len(value)) + bytes(value)
    if isinstance(value, (list, tuple)):
        return struct.pack(">BI", 0xDD, len(value)) + b"".join(map(pack, value))
    if isinstance(value, dict):
        return struct.pack(">BI", 0xDF, len(value)) + b"".join(pack(k) + pack(v) for k, v in value.items())
    if isinstance(value, datetime):
        us = (value - EPOCH) // timedelta(microseconds=1)
        return struct.pack(">BBbIq", 0xC7, 12, -1, us % 1_000_000 * 1000, us // 1_000_000)
    raise TypeError(f"{type(value).__name__} has no place in a payload")


def returned(value):
    """What is told of a value: it, or a mark where it can't be kept. The run has succeeded either way."""
    try:
        data = pack(value)
    except Exception as exc:
        return {"left_out": {"type": type(value).__name__, "bytes": None, "why": str(exc)}}
    if len(data) > VALUE_MAX:
        return {"left_out": {"type": type(value).__name__, "bytes": len(data), "why": f"over {VALUE_MAX} bytes"}}
    return {"value": data}


SIZES = {0xC4: "B", 0xC5: "H", 0xC6: "I", 0xC7: "B", 0xC8: "H", 0xC9: "I", 0xD9: "B", 0xDA: "H", 0xDB: "I",
         0xDC: "H", 0xDD: "I", 0xDE: "H", 0xDF: "I"}


class Reader:
    """Values read from MessagePack, one after the other."""

    def __init__(self, data):
        self.data, self.at = memoryview(data), 0

    def take(self, n):
        if self.at + n > len(self.data):
            raise ValueError("MessagePack ends in the middle of a value")
        self.at += n
        return self.data[self.at - n : self.at]

    def number(self, form):
        return struct.unpack(">" + form, self.take(struct.calcsize(form)))[0]

    def value(self):
        b = self.number("B")
        if b < 0x80 or b >= 0xE0:
            return b if b < 0x80 else b - 256
        if b < 0x90:
            return self.map(b & 15)
        if b < 0xA0:
            return self.list(b & 15)
        if b < 0xC0:
            return str(self.take(b & 31), "utf-8")
        if b in (0xC0, 0xC2, 0xC3):
            return {0xC0: None, 0xC2: False, 0xC3: True}[b]
        if b in (0xCA, 0xCB) or 0xCC <= b <= 0xD3:
            return self.number({0xCA: "f", 0xCB: "d"}.get(b) or "BHIQbhiq"[b - 0xCC])
        if 0xD4 <= b <= 0xD8:
            return self.ext(1 << (b - 0xD4))
        size = self.number(SIZES[b])
        if b <= 0xC6:
            return bytes(self.take(size))
        if b <= 0xC9:
            return self.ext(size)
        if b <= 0xDB:
            return str(self.take(size), "utf-8")
        return self.list(size) if b <= 0xDD else self.map(size)

    def list(self, n):
        return [self.value() for _ in range(n)]

    def map(self, n):
        return {self.value(): self.value() for _ in range(n)}

    def ext(self, n):
        code, data = self.number("b"), bytes(self.take(n))
        if code != -1:
            raise ValueError(f"extension type {code}")
        if n == 4:
            seconds, nanos = struct.unpack(">I", data)[0], 0
        elif n == 8:
            both = struct.unpack(">Q", data)[0]
            seconds, nanos = both & (1 << 34) - 1, both >> 34
        else:
            nanos, seconds = struct.unpack(">Iq", data)
        return EPOCH + timedelta(seconds=seconds, microseconds=nanos // 1000)


def unpack(data):
    return Reader(data).value()


def column(numbers, form):
    return struct.pack(f"<{len(numbers)}{form}", *numbers)


def numbers(data, form):
    return struct.unpack(f"<{len(data) // struct.calcsize('<' + form)}{form}", data)


def now_us():
    return time.time_ns() // 1000


def say(event, **fields):
    print(json.dumps({"event": event, **fields}), flush=True)


# -- the tasks --------------------------------------------------------------------------------------------------------


def echo(run, *args, **kwargs):
    return [list(args), kwargs]


def facts(run):
    run.write("a line\n")
    return {"id": run.id.hex(), "job": run.job, "attempt": run.attempt, "token": run.token, "scheduled_us": run.scheduled_us,
            "missed": run.missed, "task": run.task, "queue": run.queue, "headers": run.headers}


def fail(run, times):
    if run.attempt <= times:
        raise ValueError(f"attempt {run.attempt} of {run.job} fails")
    return run.attempt


def sleep(run, seconds, first=False):
    """Sleep, and stop when told to; with `first` the first attempt only."""
    if first and run.attempt > 1:
        return f"attempt {run.attempt}"
    run.progress = "asleep"
    if run.stop.wait(seconds):
        raise Stopped
    return "slept"


class Stopped(Exception):
    """The run was told to stop, and did."""


TASKS = {"foreign.echo": echo, "foreign.facts": facts, "foreign.fail": fail, "foreign.sleep": sleep}


# -- the worker -------------------------------------------------------------------------------------------------------


class Run:
    """One attempt that this worker holds."""

    def __init__(self, batch, i):
        spec = batch["specs"][numbers(batch["spec"], "I")[i]]
        self.id = batch["id"][16 * i : 16 * i + 16]
        self.token = numbers(batch["token"], "q")[i]
        self.attempt = numbers(batch["attempt"], "I")[i]
        self.scheduled_us = numbers(batch["scheduled_us"], "q")[i]
        self.missed = numbers(batch["missed"], "I")[i]
        self.task, self.timeout_us, self.queue = spec["task"], spec["timeout_us"], spec["queue"]
        self.job = str(self.cut(batch["job"], batch["job_end"], i), "utf-8")
        self.args, self.kwargs, *rest = unpack(self.cut(batch["payload"], batch["payload_end"], i))
        self.headers = rest[0] if rest else {}
        self.stop = threading.Event()
        self.cancelled = self.timed_out = False
        self.progress = self.told = ""
        self.output = b""
        self.started_us = self.ended_us = self.deadline = 0

    @staticmethod
    def cut(data, ends, i):
        ends = (0, *numbers(ends, "I"))
        return data[ends[i] : ends[i + 1]]

    def write(self, text):
        self.output += text.encode()

    def execute(self):
        """-> outcome, result."""
        try:
            outcome, result = SUCCEEDED, returned(TASKS[self.task](self, *self.args, **self.kwargs))
        except BaseException as exc:
            outcome = TIMED_OUT if self.timed_out else CANCELLED if self.cancelled else FAILED
            result = {"type": type(exc).__name__, "message": str(exc), "traceback": traceback.format_exc()}
        return outcome, {**result, "stdout": self.output} if self.output else result


class Worker:
    """One connection, and threads that execute the runs it brings."""

    def __init__(self, path, queues, room, concurrency):
        self.path, self.queues, self.room, self.concurrency = path, queues, room, concurrency
        self.waiting, self.running, self.unanswered = [], [], []  # runs; runs; (run, outcome, result) without a verdict
        self.ended = queue.SimpleQueue()
        self.stopping = False
        self.wake, self.woken = socket.socketpair()
        self.wake.setblocking(False)
        self.socket = None

    def terminate(self, *_):
        self.stopping = True
        self.poke()

    def poke(self):
        with contextlib.suppress(BlockingIOError):  # it is awake
            self.wake.send(b"x")

    # -- the wire

    def connect(self):
        """Until it is there: a server that starts again takes a moment."""
        while not (self.stopping and not self.running):
            try:
                self.socket = socket.socket(socket.AF_UNIX)
                self.socket.connect(self.path)
                self.data, self.asked, self.number, self.leasing = b"", {}, 0, True
                self.send("hello", version=1, role="worker", name="foreign", tasks={name: {} for name in TASKS})
                while "hello" in self.asked.values():
                    self.read()
                break
            except OSError as exc:
                say("away", reason=str(exc))
                time.sleep(0.1)
        self.send_unanswered(self.unanswered)
        self.beat()

    def send(self, verb, **args):
        self.number += 1
        self.asked[self.number] = verb
        body = pack([self.number, verb, args])
        self.socket.sendall(struct.pack(">I", len(body)) + body)
        return self.number

    def read(self):
        data = self.socket.recv(1 << 20)
        if not data:
            raise ConnectionError("the server closed the connection")
        self.data += data
        while len(self.data) >= 4:
            size = struct.unpack(">I", self.data[:4])[0]
            if len(self.data) < 4 + size:
                break
            number, status, answer = unpack(self.data[4 : 4 + size])
            self.data = self.data[4 + size :]
            verb = self.asked.pop(number)
            if isinstance(verb, tuple):
                verb, rows = verb
                getattr(self, "on_" + verb)(rows, self.checked(status, answer))
            else:
                getattr(self, "on_" + verb)(self.checked(status, answer))

    @staticmethod
    def checked(status, answer):
        if status == "ok":
            return answer
        if answer["code"] in ("unavailable", "storage_full", "resource_exhausted", "failed_precondition"):
            raise ConnectionError(answer["message"])  # from the beginning: hello, and what was not answered
        raise SystemExit(f"the server refused it: {answer}")

    # -- what the server says

    def on_hello(self, answer):
        self.beat_s = answer["heartbeat_us"] / 1e6
        say("hello", worker=answer["worker"], instance=answer["instance"].hex(), generation=answer["generation"])

    def on_lease(self, answer):
        for i in range(answer["n"]):
            self.waiting.append(Run(answer, i))
        if answer.get("stop"):
            say("server_stops")
            self.leasing = False  # until the next connection

    def on_finish(self, sent, answer):
        for (run, outcome, _), verdict in zip(sent, answer["verdict"], strict=True):
            say("verdict", run=run.id.hex(), token=run.token, outcome=outcome, accepted=verdict == ACCEPTED)
        self.unanswered = [entry for entry in self.unanswered if entry not in sent]

    def on_heartbeat(self, runs, answer):
        for kind in ("cancel", "stale"):
            for row in answer[kind]:
                run = runs[row]
                if not run.stop.is_set():
                    say(kind, run=run.id.hex(), token=run.token)
                run.cancelled = True
                run.stop.set()
                if run in self.waiting:
                    self.waiting.remove(run)
                    if kind == "cancel":
                        self.finish([(run, CANCELLED, None)])

    # -- what it says

    def lease(self):
        room = self.room - len(self.waiting) - len(self.running)
        if room > 0 and self.leasing and not self.stopping and "lease" not in self.asked.values():
            self.send("lease", queues=self.queues, credits=room, wait_us=500_000)

    def beat(self):
        self.next_beat = time.monotonic() + self.beat_s
        runs = self.running + self.waiting
        sparse = [[i, run.progress] for i, run in enumerate(runs) if run.progress != run.told]
        for run in runs:
            run.told = run.progress
        number = self.send("heartbeat", id=b"".join(run.id for run in runs), token=column([run.token for run in runs], "q"),
                           started=bytes(run.started_us > 0 for run in runs), progress=sparse)
        self.asked[number] = ("heartbeat", runs)

    def finish(self, entries):
        self.unanswered += entries
        self.send_unanswered(entries)

    def send_unanswered(self, entries):
        entries = list(entries)
        if not entries:
            return
        number = self.send(
            "finish", id=b"".join(run.id for run, _, _ in entries), token=column([run.token for run, _, _ in entries], "q"),
            outcome=bytes(outcome for _, outcome, _ in entries), started_us=column([run.started_us for run, _, _ in entries], "q"),
            ended_us=column([run.ended_us for run, _, _ in entries], "q"),
            result=[[i, result] for i, (_, _, result) in enumerate(entries) if result is not None])
        self.asked[number] = ("finish", entries)

    # -- the loop

    def start(self):
        while self.waiting and len(self.running) < self.concurrency and not self.stopping:
            run = self.waiting.pop(0)
            self.running.append(run)
            run.started_us = now_us()
            run.deadline = time.monotonic() + run.timeout_us / 1e6
            say("start", run=run.id.hex(), job=run.job, token=run.token, attempt=run.attempt)
            threading.Thread(target=self.thread, args=[run], daemon=True).start()

    def thread(self, run):
        outcome, result = run.execute()
        run.ended_us = max(now_us(), run.started_us)
        self.ended.put((run, outcome, result))
        self.poke()

    def collect(self):
        done = []
        while not self.ended.empty():
            done.append(self.ended.get())
            self.running.remove(done[-1][0])
        if self.stopping and self.waiting:
            done += [(run, NOT_STARTED, None) for run in self.waiting]
            self.waiting = []
        if done:
            self.finish(done)

    def turn(self):
        self.start()
        self.lease()
        until = min([self.next_beat, *(run.deadline for run in self.running if not run.timed_out)])
        for ready in select.select([self.socket, self.woken], [], [], max(0, until - time.monotonic()))[0]:
            if ready is self.woken:
                ready.recv(4096)
            else:
                self.read()
        self.collect()
        now = time.monotonic()
        for run in self.running:
            if run.deadline <= now and not run.timed_out:
                run.timed_out = True
                run.stop.set()
        if self.next_beat <= now:
            self.beat()

    def work(self):
        signal.signal(signal.SIGTERM, self.terminate)
        self.connect()
        while not self.stopping or self.running or self.waiting or self.unanswered or "lease" in self.asked.values():
            try:
                self.turn()
            except OSError as exc:
                say("away", reason=str(exc))
                self.socket.close()
                self.connect()
        say("bye")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("socket")
    parser.add_argument("--queues", type=lambda text: text.split(","), default=[])
    parser.add_argument("--credits", type=int, default=4)
    parser.add_argument("--concurrency", type=int, default=2)
    args = parser.parse_args()
    Worker(args.socket, args.queues, args.credits, args.concurrency).work()
    sys.exit(0)

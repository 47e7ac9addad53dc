"""The server's end of one executor, scripted: leases what a test gives, collects completions, keeps the pool's timers."""

from __future__ import annotations

import os
import select
import time
from pathlib import Path

import msgpack
import numpy as np

from wheelsched.model.errors import WheelschedError
from wheelsched.model.nouns import NEVER, Outcome
from wheelsched.pool.pool import Pool
from wheelsched.process.contract import Allowed
from wheelsched.protocol import frames
from wheelsched.server.connections import Connection

BOOT = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
FIRST = 5 << 32  # tokens of generation 5
HOUR_US = 3_600_000_000
USED = ("cpu_us", "max_rss")  # see test_usage; a slow machine may measure any run


class Scripted:
    """A pool with one executor. Rows wait in `queue` until the executor asks; `ended` is {token: (outcome, start, end, result)}."""

    def __init__(self, folder, modules=(), *, generation=5, offset_us=0, allow_commands=False, allow_http=False, allowed=None, **options):
        allowed = allowed or Allowed(commands=allow_commands, http=allow_http)
        self.pool = Pool(workers_dir=folder / "workers", modules=modules, generation=generation, boot_id=BOOT, allowed=allowed, **options)
        self.offset_us = offset_us
        self.worker = 0
        self.attempt = 1  # of all runs
        self.queue = []
        self.silences = {}
        self.refusing = None  # what heartbeats with a checkpoint are answered: an error, or "stale"
        self.seekers = []
        self.grants = []
        self.hello = None
        self.ended = {}
        self.finishes = []
        self.heartbeats = []
        self.gone = []
        self.next_token = FIRST + 1
        self.stopping = False
        self.spawn()

    def spawn(self):
        self.worker += 1
        self.seekers = []
        if self.worker > 1:
            self.connection.close()
        self.executor = self.pool.spawn(self.worker)
        assert self.pool.started() == [self.executor], self.pool.starts.lines()
        self.connection = Connection(self.worker, self.executor.sock, os.getuid(), frozenset(), trusted=True)

    def give(self, task, *args, timeout_us=HOUR_US, silence_us=NEVER, beside=None, **kwargs):
        """One run; its token."""
        token = self.next_token
        self.next_token += 1
        self.silences[token] = silence_us
        self.queue.append((token, task, timeout_us, msgpack.packb([list(args), kwargs, *([beside] if beside else [])], datetime=True)))
        return token

    def give_many(self, n, task, *args, timeout_us=HOUR_US):
        return [self.give(task, *args, timeout_us=timeout_us) for _ in range(n)]

    def _grant(self, credits_):
        rows, self.queue = self.queue[:credits_], self.queue[credits_:]
        self.grants.append(len(rows))
        tokens = np.array([r[0] for r in rows], np.int64)
        self.pool.sent(
            self.worker, tokens, np.array([r[2] for r in rows], np.int64), np.array([self.silences[r[0]] for r in rows], np.int64)
        )
        specs = sorted({(r[1], r[2]) for r in rows})
        n = len(rows)
        return {
            "n": n, "id": b"".join(t.to_bytes(16, "big") for t in tokens.tolist()), "token": tokens.tobytes(),
            "attempt": np.full(n, self.attempt, np.uint32).tobytes(), "scheduled_us": np.full(n, 1_800_000_000_000_000, np.int64).tobytes(),
            "missed": np.full(n, 3, np.uint32).tobytes(), "spec": np.array([specs.index((r[1], r[2])) for r in rows], np.uint32).tobytes(),
            "specs": [{"task": name, "timeout_us": timeout, "queue": "default"} for name, timeout in specs],
            "job": b"default/job" * n, "job_end": (11 * np.arange(1, n + 1)).astype(np.uint32).tobytes(),
            "payload": b"".join(r[3] for r in rows), "payload_end": np.cumsum([len(r[3]) for r in rows]).astype(np.uint32).tobytes(),
            "last_result": [[0, msgpack.packb({"seen": 7})]], "checkpoint": [[0, msgpack.packb({"page": 6})]], "lease_us": 10_000_000,
        }

    def _answer(self, request):
        args = request.args
        if request.verb == "hello":
            self.hello = args
            self.pool.began(self.worker)
            return {"version": 1, "clock_offset_us": self.offset_us, "worker": self.worker, "lease_us": 1, "heartbeat_us": 1}
        if request.verb == "heartbeat":
            self.heartbeats.append(args)
            if args["checkpoint"] and isinstance(self.refusing, Exception):
                raise self.refusing
            return {"cancel": [], "stale": [0] if args["checkpoint"] and self.refusing else []}
        assert request.verb == "finish", request
        tokens, outcomes = np.frombuffer(args["token"], np.int64), args["outcome"]
        start, end = np.frombuffer(args["started_us"], np.int64), np.frombuffer(args["ended_us"], np.int64)
        results = {i: {k: v for k, v in result.items() if k not in USED} or None for i, result in args["result"]}
        assert args["id"] == b"".join(t.to_bytes(16, "big") for t in tokens.tolist())
        self.finishes.append((time.monotonic(), tokens.tolist(), list(outcomes)))
        for i, token in enumerate(tokens.tolist()):
            assert token not in self.ended, "reported twice"
            self.ended[token] = (outcomes[i], int(start[i]), int(end[i]), results.get(i))
        self.pool.finished(self.worker, tokens)
        return {"verdict": b"\1" * len(tokens)}

    def step(self, wait_s):
        """Wait for something, and serve it."""
        now = time.monotonic_ns() // 1_000
        wake = self.pool.wake_at_mono_us()
        if wake != NEVER:
            wait_s = min(wait_s, max(0, (wake - now) / 1e6))
        poll = select.poll()
        poll.register(self.pool.fileno(), select.POLLIN)
        fd = self.connection.fileno()
        if fd >= 0:
            poll.register(fd, select.POLLIN | (select.POLLOUT if self.connection.writable_wanted else 0))
        poll.poll(wait_s * 1_000 + 1)
        if fd >= 0:
            self.connection.flush()
            if not self.connection.read(0):
                self._serve()
                self.connection.close()
                self.pool.hung_up(self.worker)
        for event in self.pool.poll(time.monotonic_ns() // 1_000):
            if self.connection.fileno() >= 0:
                self.connection.read_all(0)
            self.gone.append(event)
        self._serve()

    def _serve(self):
        while self.connection.waiting:
            taken = self.connection.take(self.connection.urgent or self.connection.others)
            if taken is None:
                continue
            request = taken[0]
            if request.verb == "lease":
                self.seekers.append(request)
            else:
                try:
                    self.connection.send(frames.encode_ok(request.id, self._answer(request)))
                except WheelschedError as e:
                    self.connection.send(frames.encode_error(request.id, e))
        while self.seekers and (self.queue or self.stopping):
            request = self.seekers.pop(0)
            reply = self._grant(request.args["credits"]) if self.queue else {"n": 0, "stop": True}
            self.connection.send(frames.encode_ok(request.id, reply))

    def until(self, condition, what="the condition", limit_s=30):
        """Serve until the condition holds; fails after the limit."""
        end = time.monotonic() + limit_s
        while not condition():
            left = end - time.monotonic()
            assert left > 0, f"{what} did not come about; ended {self.ended}, gone {self.gone}"
            self.step(min(left, 0.05))

    def finish(self, *tokens, limit_s=30):
        """Serve until these have ended; what they ended with."""
        self.until(lambda: all(t in self.ended for t in tokens), f"the end of {tokens[:5]}", limit_s)
        return [self.ended[t] for t in tokens]

    def ended_for_good(self, *calls):
        """Give these calls (task, *args) and serve until each has ended; one that was handed back is given again. What they ended with."""
        tokens = [self.give(*call) for call in calls]
        while back := [i for i, ended in enumerate(self.finish(*tokens)) if ended[0] == Outcome.NOT_STARTED]:
            for i in back:
                tokens[i] = self.give(*calls[i])
        return [self.ended[token] for token in tokens]

    def idle(self):
        """Serve until the executor has asked for work."""
        self.until(lambda: self.seekers, "a lease request")

    def close(self):
        self.pool.stop()
        self.pool.close()
        if self.connection.fileno() >= 0:
            self.connection.close()


def alive(pid):
    """Is it a process, and more than a zombie?"""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except (FileNotFoundError, ProcessLookupError):
        return False
    return text.rpartition(")")[2].split()[0] not in "ZX"


def wait_for(condition, what, limit_s=30):
    """For what no descriptor tells of: files and foreign processes."""
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end, f"{what} did not come about"
        time.sleep(0.01)


def value(ended):
    """What a run that succeeded has returned."""
    assert ended[0] == Outcome.SUCCEEDED, ended
    return msgpack.unpackb(ended[3]["value"], timestamp=3)


def withheld(end):
    """The answers to `finish`, which the executor gets only when a test sends them; how to send one."""
    held, verbs = [], {}
    answer, send = end._answer, end.connection.send

    def answering(request):
        verbs[request.id] = request.verb
        return answer(request)

    def sending(frame):
        if verbs.get(frames.parse_reply(frame[4:]).id) == "finish":
            held.append(frame)
        else:
            send(frame)

    end._answer, end.connection.send = answering, sending
    return held, send

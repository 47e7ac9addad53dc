"""A simulator without tasks of its own, where a test plays clients and external workers."""

from __future__ import annotations

from datetime import UTC, datetime

import numpy as np

from wheelsched import Call, Every
from wheelsched.engine.turn import Incoming
from wheelsched.model.nouns import Outcome
from wheelsched.protocol import frames
from wheelsched.protocol.definition import given_from_api
from wheelsched.protocol.frames import encode_payload
from wheelsched.simulator.simulator import Simulator
from wheelsched.state import records

CALL = Call("t", 1)
OK, FAILED, TIMED_OUT, NOT_STARTED = Outcome.SUCCEEDED, Outcome.FAILED, Outcome.TIMED_OUT, Outcome.NOT_STARTED


class Bench(Simulator):
    """A simulator without tasks of its own, where the test plays clients and external workers."""

    def rid(self, number):
        return number.to_bytes(16, "little")

    def hello(self, conn=50, tasks=("t",), **options):
        return self.call(conn, ("hello", {"version": 1, "role": "worker", "name": "w", "tasks": dict.fromkeys(tasks, options)}))

    def lease(self, conn=50, n=100, wait_us=0, queues=()):
        """[(run id, token, attempt)] of one lease request; a worker that was silent for too long says hello first."""
        if conn not in self.engine.sessions:
            self.hello(conn)
        got = self.call(conn, ("lease", {"queues": list(queues), "credits": n, "wait_us": wait_us}))
        if not got["n"]:
            return []
        ids = [got["id"][i : i + 16] for i in range(0, len(got["id"]), 16)]
        return list(zip(ids, np.frombuffer(got["token"], "<i8").tolist(), np.frombuffer(got["attempt"], "<u4").tolist(), strict=True))

    def finish(self, leases, outcome=OK, conn=50, error=None):
        """Report; the verdicts."""
        n = len(leases)
        at = np.full(n, self.now_us, "<i8").tobytes()
        result = [[i, {"type": error or "E", "message": "m"}] for i in range(n)] if outcome in (FAILED, TIMED_OUT) else []
        return list(self.call(conn, ("finish", {
            "id": b"".join(x[0] for x in leases), "token": np.array([x[1] for x in leases], "<i8").tobytes(), "outcome": bytes([outcome] * n),
            "started_us": at, "ended_us": at, "result": result,
        }))["verdict"])

    def heartbeat(self, leases, conn=50):
        return self.call(conn, ("heartbeat", {
            "id": b"".join(x[0] for x in leases), "token": np.array([x[1] for x in leases], "<i8").tobytes(),
            "started": bytes(len(leases)), "progress": [],
        }))

    def work(self, leases, seconds, conn=50):
        """Time passes while a worker is busy: it beats its heart. The last answer."""
        answer = None
        for _ in range(0, seconds, 5):
            self.advance(min(5, seconds))
            answer = self.heartbeat(leases, conn)
        return answer

    def put(self, name="j", schedule=None, call=CALL, **policies):
        return self.client.put(name, call, schedule or Every("60s"), **policies)

    def states(self, job="j"):
        return [r.state for r in self.runs(job)]


class Recorded(Bench):
    """A bench that keeps the records of its turns: (kind, fields)."""

    def __init__(self, start):
        self.records = []
        super().__init__(start)

    def _step(self, inputs):
        super()._step(inputs)
        self.records += map(records.decode, self._effects.records)

    def of(self, kind):
        return [fields for name, fields in self.records if name == kind]


class Waiting(Bench):
    """A bench that keeps what a waiter is answered."""

    number = None
    answer = None

    def wait_for(self, run):
        self._last_id += 1
        self.number = self._last_id
        frame = frames.encode_request(self.number, "wait", {"id": run.id, "timeout_us": 2**50})
        (body,) = frames.FrameReader(frames.FRAME_MAX).feed(frame)
        self._step([Incoming(1, frames.parse_request(body), 0, None)])

    def _step(self, inputs):
        super()._step(inputs)
        self.answer = self._answers.get((1, self.number), self.answer)


def at(text):
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def ask_put(name="j", schedule=None, **more):
    """Arguments of the verb put."""
    given, param_us = given_from_api(CALL, schedule or Every("60s"), {})
    return {"name": name, "given": given, "param_us": param_us, "payload": encode_payload((1,), {}), **more}


def fold(b):
    """Housekeeping moves what is finished to history."""
    b.advance("61s")
    b.advance("61s")

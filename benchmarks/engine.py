"""CPU time of the engine for each run: put, due, lease, finish, fold; a spike, and runs that come one at a time.

The real engine in this process, without sockets and without a disk; it is fed frames as a server reads them. Time is that of this
thread, so that others on the machine count as little as they can. Caches and clock rates are shared all the same: every few milliseconds
a loop of known cost runs, and each figure is also given in passes of that loop. Compare this ratio between two versions.
"""

from __future__ import annotations

import time
from collections import defaultdict
from datetime import UTC, datetime
from typing import Any

import numpy as np

from wheelsched.client.put_many import Bulk
from wheelsched.engine import peers
from wheelsched.engine.engine import Engine
from wheelsched.engine.housekeeping import Housekeeping
from wheelsched.engine.turn import Effects, Incoming, Now
from wheelsched.model.jobs import Job
from wheelsched.model.nouns import NEVER, Call, Outcome
from wheelsched.protocol import frames
from wheelsched.schedules.schedule import At
from wheelsched.schedules.zonedata import VERSION as ZONE_VERSION
from wheelsched.schedules.zonedata import load_zone
from wheelsched.schedules.zones import Zones
from wheelsched.state import history
from wheelsched.state.state import State
from wheelsched.verbs import jobs

NAME = "engine"
DESCRIPTION = "CPU time of the engine a run, alone in one process: in ns, and in passes of a loop of known cost"

START_US = 1_900_000_000_000_000
HOUR_US = 3_600_000_000
CLIENT, WORKERS = 1, (10, 11)
CREDITS = 16_384
REPORTED = 8_192  # completions in one frame, as many as a worker sends
PASSES = 2_000
FRESH_NS = 5_000_000  # after so much work the loop runs again; not before each turn, which would find cold caches
TASK = "bench.none"


def known_cost() -> float:
    """ns of one pass of a loop that does what Python does: look up, add, store."""
    seen = dict.fromkeys(range(256), 0)
    begun = time.thread_time_ns()
    for i in range(PASSES):
        seen[i & 255] += i
    return (time.thread_time_ns() - begun) / PASSES


class _Folding(Housekeeping):
    """Knows what it took."""

    ns = 0

    def go_on(self, core: Any) -> None:
        begun = time.thread_time_ns()
        super().go_on(core)
        self.ns += time.thread_time_ns() - begun


class Bench:
    """An engine with a client and two workers of the pool, and what each kind of step has taken."""

    def __init__(self) -> None:
        self.state = State()
        self.wall_us, self.mono_us, self.requests = START_US, 1_000_000, 0
        self.engine = Engine(self.state, Zones(load_zone), history.pack, Now(START_US, self.mono_us), verbs=jobs.VERBS,
                             zone_version=ZONE_VERSION, boot_id="bench", server="bench")
        self.folding = self.engine._housekeeping = _Folding(self.mono_us)
        self.engine.lease_us = NEVER // 2
        self.ns: defaultdict[str, int] = defaultdict(int)
        self.passes: defaultdict[str, float] = defaultdict(float)
        self.journal_bytes = 0
        self.cost, self.since = known_cost(), 0
        for conn in WORKERS:
            peers.add_worker(self.engine, conn, f"pool-{conn}", "pool")
        hello = {"version": frames.VERSION, "name": "bench"}
        self.turn("hello", [self.request(conn, "hello", {**hello, "role": "worker", "tasks": {TASK: {}}}) for conn in WORKERS])
        self.turn("hello", [self.request(CLIENT, "hello", {**hello, "role": "client"})])

    def request(self, conn: int, verb: str, args: dict[str, Any]) -> Incoming:
        """As a server reads one from its socket."""
        self.requests += 1
        return Incoming(conn, frames.parse_request(frames.encode_request(self.requests, verb, args)[4:]), 0)

    def turn(self, what: str, inputs: list[Incoming]) -> Effects:
        """One step, counted as `what`; what it folded counts as such."""
        if self.since > FRESH_NS:
            self.cost, self.since = known_cost(), 0
        self.mono_us += 1_000
        self.wall_us += 1_000
        folded = self.folding.ns
        begun = time.thread_time_ns()
        effects = self.engine.step(Now(self.wall_us, self.mono_us), inputs)
        took, folded = time.thread_time_ns() - begun, self.folding.ns - folded
        self.since += took
        for kind, ns in ((what, took - folded), ("fold", folded)):
            self.ns[kind] += ns
            self.passes[kind] += ns / self.cost
        self.journal_bytes += sum(map(len, effects.records))
        return effects

    def put(self, name: str, n: int, due_us: int) -> None:
        """Jobs that are due once, at one instant."""
        call, at = Call(TASK), At(datetime.fromtimestamp(due_us / 1e6, UTC))
        for ask in Bulk().asks(Job(f"bench/{name}-{i:08d}", call, at) for i in range(n)):
            self.turn("put", [self.request(CLIENT, ask.verb, {**ask.args, "rid": self.requests.to_bytes(16, "big")})])

    def lease(self, what: str, conn: int) -> list[Any]:
        """What a worker is granted."""
        effects = self.turn(what, [self.request(conn, "lease", {"queues": [], "credits": CREDITS, "wait_us": 0})])
        return self.granted(effects)

    def granted(self, effects: Effects) -> list[Any]:
        """The batches in the replies of a turn."""
        results = [frames.parse_reply(frame[4:]).result for _, frame in effects.replies]
        return [result for result in results if isinstance(result, dict) and result.get("n")]

    def finish(self, what: str, conn: int, batch: dict[str, Any]) -> None:
        """A worker reports its batch."""
        for a in range(0, batch["n"], REPORTED):
            n = min(REPORTED, batch["n"] - a)
            at = np.arange(self.wall_us, self.wall_us + n, dtype="<i8").tobytes()
            self.turn(what, [self.request(conn, "finish", {
                "id": batch["id"][16 * a : 16 * (a + n)], "token": batch["token"][8 * a : 8 * (a + n)],
                "outcome": bytes([Outcome.SUCCEEDED]) * n, "started_us": at, "ended_us": at, "result": [],
            })])


def spike(bench: Bench, n: int) -> None:
    """All due in one millisecond, then leased and finished by two workers in turn."""
    due_us = START_US + HOUR_US
    bench.put("spike", n, due_us)
    bench.wall_us = due_us
    while bench.state.meta.folded + len(bench.state.runs) < n:
        bench.turn("due", [])
    done = 0
    while done < n:
        for conn in WORKERS:
            for batch in bench.lease("lease", conn):
                bench.finish("finish", conn, batch)
                done += batch["n"]


def alone(bench: Bench, n: int) -> None:
    """One at a time, with a worker that waits: due and granted in one turn, finished in the next, and a turn in which nothing happens."""
    first_us = bench.wall_us + HOUR_US
    call = Call(TASK)
    asks = Bulk().asks(Job(f"bench/alone-{i:08d}", call, At(datetime.fromtimestamp((first_us + i * 50_000) / 1e6, UTC))) for i in range(n))
    for ask in asks:
        bench.turn("put, alone", [bench.request(CLIENT, ask.verb, {**ask.args, "rid": bench.requests.to_bytes(16, "big")})])
    for i in range(n):
        bench.turn("ask, alone", [bench.request(WORKERS[0], "lease", {"queues": [], "credits": 1, "wait_us": NEVER})])
        bench.wall_us = first_us + i * 50_000
        (batch,) = bench.granted(bench.turn("due and lease, alone", []))
        bench.turn("empty turn", [])
        bench.finish("finish, alone", WORKERS[0], batch)


def run(smoke: bool = False) -> list[dict[str, Any]]:
    """The rows; `smoke` is a small size that only shows that it works."""
    n, single = (5_000, 20) if smoke else (200_000, 2_000)
    bench = Bench()
    spike(bench, n)
    rows = _rows(bench, n, ("put", "due", "lease", "finish", "fold"))
    for figure, unit in ((bench.ns, "ns"), (bench.passes, "passes")):
        total = sum(figure[what] for what in ("due", "lease", "finish", "fold"))
        rows.append({"name": f"all but put, {unit}", "value": total / n, "unit": unit, "n": n})
    rows.append({"name": "journal, put included", "value": bench.journal_bytes / n, "unit": "B/run", "n": n})
    alone(bench, single)
    rows += _rows(bench, single, ("due and lease, alone", "empty turn", "finish, alone"))
    return rows


def _rows(bench: Bench, n: int, kinds: tuple[str, ...]) -> list[dict[str, Any]]:
    rows = []
    for what in kinds:
        rows.append({"name": what, "value": bench.ns[what] / n, "unit": "ns", "n": n})
        rows.append({"name": f"{what}, in passes", "value": bench.passes[what] / n, "unit": "passes", "n": n})
    return rows

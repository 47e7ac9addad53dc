"""A seeded world around the production engine, keeper and records: clients that repeat themselves, workers that die, a disk that
forgets what was not synced, clocks that jump. One `World` is one seed; it asserts as it goes.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from dataclasses import dataclass, field
from types import SimpleNamespace

import msgpack
import numpy as np

from tests.sim.chains import alarm_jobs_of
from tests.sim.definitions import TASKS
from tests.sim.judge import Judge
from tests.sim.oracle import zone_data
from wheelsched.engine import peers
from wheelsched.engine.engine import Engine
from wheelsched.engine.turn import Disconnect, Incoming, Now, WorkerGone
from wheelsched.journal import recover as journal_recover
from wheelsched.journal.memory import MemoryJournal
from wheelsched.model.nouns import CLOCK_STEP_US, NEVER, US, Outcome, RunState
from wheelsched.protocol import frames, verbs
from wheelsched.schedules.zones import Zones
from wheelsched.server.keeper import Keeper
from wheelsched.state import history, records
from wheelsched.state.past import unpack_past
from wheelsched.state.state import State
from wheelsched.verbs import jobs

START_US = 1_767_225_600 * US  # 2026-01-01
CHANGES_US = [  # of the wall clock, in the zones of sim_definitions.ZONES
    1_774_746_000 * US,  # 2026-03-29T01:00Z, Berlin: 02:00 is 03:00
    1_792_890_000 * US,  # 2026-10-25T01:00Z, Berlin: 03:00 is 02:00
    1_772_953_200 * US,  # 2026-03-08T07:00Z, New York
    1_793_512_800 * US,  # 2026-11-01T06:00Z, New York
    1_775_314_800 * US,  # 2026-04-04T15:00Z, Lord Howe: half an hour
    1_791_041_400 * US,  # 2026-10-03T15:30Z, Lord Howe
]



@dataclass
class Grant:
    """A lease as its worker got it."""

    run_id: bytes
    entered: bool = False


@dataclass
class Worker:
    """A virtual worker. Executes in token order; `started` is what its started file would say."""

    conn: int
    kind: str
    id: int = 0
    held: dict[int, Grant] = field(default_factory=dict)
    started: int = -1
    asking: int = 0  # lease requests under way
    frozen: bool = False
    gone: bool = False


@dataclass
class Command:
    """A client's request; `answers` are those of its repeats too."""

    verb: str
    args: dict
    answer: object = None
    done: bool = False


class World:
    """Everything outside of the engine, drawn from one seed."""

    def __init__(self, seed, *, check_each=False, recover=None):
        self.seed = seed
        self.rng = random.Random(seed)
        self.rare = random.Random(~seed)  # of what workers rarely say: the rest of a seed's story is drawn as ever
        self.recover = recover or journal_recover.recover
        self.check_each = check_each
        self.change_us = self.rng.choice(CHANGES_US) if self.rng.random() < 0.4 else None
        before = self.rng.choice([2 * 3_600, 5_400, 3_000, 600]) * US
        self.start_us = START_US if self.change_us is None else self.change_us - before
        self.wall_us, self.mono_us, self.boot = self.start_us, 1_000 * US, 1
        self.version = "z1"
        self.config = SimpleNamespace(snapshot_bytes=self.rng.choice([2_000, 20_000, 2**40]), retention_us=2**60, data="sim", reserve_bytes=2**26)
        self.journal = MemoryJournal()
        self.judge = Judge(self.version)
        self.judge.alarm_jobs = alarm_jobs_of(seed)
        self.log: list[bytes] = []  # bodies of all durable records
        self.unsynced: deque[list[bytes]] = deque()
        self.durable_tokens: set[int] = set()
        self.blocks_read = 0
        self.folded: dict[bytes, tuple] = {}  # what history blocks say
        self.acked_rids: dict[bytes, Command] = {}
        self.acked_runs: set[bytes] = set()
        self.accepted: dict[tuple[bytes, int], int] = {}  # (run id, token) -> outcome of an accepted completion
        self.entered: Counter = Counter()
        self.entered_tokens: set[int] = set()
        self.last_token = 0
        self.numbers = 0
        self.conns = 10
        self.workers: list[Worker] = []
        self.zombies: list[tuple[bytes, int]] = []  # leases of workers that were given up
        self.commands: list[Command] = []
        self.stats: Counter = Counter()
        self.boot_up()

    # The server

    def boot_up(self, proofs=None):
        """A process starts from what is durable."""
        st = self.recover(self.journal)
        behind = st.meta.at_us - self.wall_us > CLOCK_STEP_US
        zones = Zones(lambda name, version=self.version: zone_data(name, version))
        self.engine = Engine(st, zones, history.pack, self.now(), verbs=jobs.VERBS, boot_id=str(self.boot), zone_version=self.version,
                             alarm_jobs=alarm_jobs_of(self.seed))
        self.keeper = Keeper(self.journal, st, self.config)
        self.outbox: deque = deque()
        self.inputs: list = []
        self.open: dict[tuple[int, int], tuple] = {}
        self.again = True
        self.wake_wall_us = self.wake_mono_us = 0
        for worker, known in list(st.workers.items()):
            if known.kind == "pool":
                self.engine.lose(WorkerGone(worker, (proofs or {}).get(worker), Outcome.LOST, "server ended"))
            else:
                self.engine.adopt(worker)
        if behind:
            self.inputs.append(self.clock_back())
        self.client = self.connect()
        self.request(self.client, "hello", {"version": 1, "role": "client", "name": "c"}, None)

    def connect(self):
        """A new connection number."""
        self.conns += 1
        return self.conns

    def now(self):
        """Both clocks."""
        return Now(self.wall_us, self.mono_us)

    def pass_time(self, us):
        """Both clocks go on."""
        self.wall_us += us
        self.mono_us += us

    def set_back(self, us):
        """Somebody sets the wall clock back."""
        self.wall_us -= us

    def clock_back(self):
        """What the server tells its engine of that."""
        return self.keeper.clock_back(self.wall_us)

    def request(self, conn, verb, args, then):
        """Queue a request; `then(reply)` when its answer is let out."""
        self.numbers += 1
        (body,) = frames.FrameReader(frames.FRAME_MAX).feed(frames.encode_request(self.numbers, verb, args))
        self.inputs.append(Incoming(conn, frames.parse_request(body), 0))
        self.open[conn, self.numbers] = (verb, then)

    def step(self):
        """One turn, handed to the journal; nothing of it gets out yet."""
        inputs, self.inputs = self.inputs, []
        inputs = [self.looked_up(i) if isinstance(i, Incoming) and verbs.BY_NAME[i.request.verb].history else i for i in inputs]
        effects = self.engine.step(self.now(), inputs)
        self.again = effects.again
        self.wake_wall_us, self.wake_mono_us = effects.wake_wall_us, effects.wake_mono_us
        if effects.records or effects.replies or effects.granted or self.keeper.busy:
            self.keeper.submit(effects)
            self.unsynced.append(list(effects.records))
            self.outbox.append((effects.seq, effects))
        if self.check_each:
            self.engine.state.check()
        self.stats["steps"] += 1

    def looked_up(self, item):
        """With what history holds for it, as the server does."""
        return Incoming(item.conn, item.request, item.uid, self.keeper.look_for(item.request.verb, item.request.args))

    def sync(self, n=None):
        """The disk makes the oldest batches durable; the judge reads them."""
        for _ in range(len(self.unsynced) if n is None else min(n, len(self.unsynced))):
            self.journal.sync(1)
            self.made_durable(self.unsynced.popleft())
        self.act()

    def made_durable(self, bodies):
        for body in bodies:
            self.log.append(body)
            self.judge.feed(body)
            kind, f = records.decode(body)
            if kind == "GRANT":
                self.durable_tokens.update(range(f["token"], f["token"] + len(f["run"])))
        self.judge.batch_end()
        assert not self.judge.given_back & self.entered_tokens, "an attempt was given back though user code was entered"

    def act(self):
        """Let out what is durable, as the server does."""
        durable = self.keeper.poll()
        while self.outbox and self.outbox[0][0] <= durable:
            _, effects = self.outbox.popleft()
            for conn, frame in effects.replies:
                (body,) = frames.FrameReader(frames.REPLY_MAX).feed(frame)
                reply = frames.parse_reply(body)
                verb, then = self.open.pop((conn, reply.id))
                if reply.error is not None:
                    assert reply.error.code != "internal", reply.error
                    self.stats["refused"] += 1
                if then:
                    then(reply)

    def crash(self, *, reboot=False, back_us=0, down_us=0, version=None):
        """kill -9, or a power cut: what was not synced survives as a prefix of any length."""
        self.stats["crashes"] += 1
        waiting = list(self.unsynced)
        before = self.journal.durable_seq
        self.journal = self.journal.crash(self.rng)
        kept = self.journal.durable_seq - before
        for bodies in waiting:
            if kept >= len(bodies):
                kept -= len(bodies)
                self.made_durable(bodies)
            else:
                assert kept == 0, "half a batch got to disk"
                break
        self.unsynced.clear()
        proofs = {}
        for w in self.workers:
            if w.kind == "pool":
                proofs[w.id] = w.started
                self.give_up(w)
        if reboot:
            self.boot += 1
            self.mono_us = 1
            proofs = {}
        self.pass_time(down_us)
        self.set_back(back_us)
        self.version = version or self.version
        self.workers = [w for w in self.workers if not w.gone]
        self.boot_up(proofs)
        for w in self.workers:
            w.asking = 0
            self.greet(w)
        if self.rng.random() < 0.5:
            self.audit()

    # Clients

    def command(self, verb, args):
        """A new command of a client."""
        cmd = Command(verb, {**args, "rid": self.rng.randbytes(16)} if verb in verbs.MUTATING else args)
        if verb in verbs.MUTATING:
            self.commands.append(cmd)
        self.send(cmd)

    def send(self, cmd):
        """Send it, perhaps not for the first time."""
        self.request(self.client, cmd.verb, cmd.args, lambda reply: self.answered(cmd, reply))

    def answered(self, cmd, reply):
        """The client reads its answer: from now on it relies on it."""
        if reply.error is not None:
            return
        self.stats["acked " + cmd.verb] += 1
        if cmd.verb not in verbs.MUTATING or cmd.args.get("dry_run"):
            return
        assert cmd.args["rid"] in self.judge.replied, f"{cmd.verb} was answered, and no durable record says so"
        known = [msgpack.unpackb(answer, raw=False) for answer in self.judge.answers[cmd.args["rid"]]]
        assert reply.result in known, f"{cmd.verb} repeated with its rid: another answer"
        if not cmd.done:
            cmd.done, cmd.answer = True, reply.result
        if cmd.verb in ("enqueue", "trigger"):
            self.acked_runs.add(bytes.fromhex(reply.result["id"]))
        if cmd.verb == "group":
            ids = reply.result["id"]
            self.acked_runs |= {bytes.fromhex(reply.result["run"]["id"]), *(ids[i : i + 16] for i in range(0, len(ids), 16))}
        self.acked_rids[cmd.args["rid"]] = cmd

    # Workers

    def spawn(self, kind):
        """A pool executor, or an external worker that connects."""
        w = Worker(self.connect(), kind)
        if kind == "pool":
            w.id = peers.add_worker(self.engine, w.conn, "p", "pool")
        self.workers.append(w)
        self.greet(w)

    def greet(self, w):
        if w.kind == "external":
            w.conn = self.connect()
            w.id = 0

        def named(reply):
            w.id = reply.result["worker"]

        self.request(w.conn, "hello", {"version": 1, "role": "worker", "name": "w", "tasks": {t: {} for t in TASKS}}, named)

    def give_up(self, w):
        """Its process is gone; what it held may still be reported by a twin of it."""
        self.zombies += [(g.run_id, token) for token, g in w.held.items()]
        w.held.clear()
        w.gone = True

    def lease(self, w):
        """Ask for runs."""
        w.asking += 1
        credit = self.rng.choice([1, 3, 50])
        wait = self.rng.choice([0, 2 * US, NEVER])

        def leased(reply):
            w.asking -= 1
            if reply.error is not None or not reply.result["n"]:
                return
            r = reply.result
            tokens = np.frombuffer(r["token"], "<i8").tolist()
            for i, token in enumerate(tokens):
                assert token in self.durable_tokens, "a run left before its lease was durable"
                assert token > self.last_token, f"token {token} after {self.last_token}"
                self.last_token = token
                w.held[token] = Grant(r["id"][16 * i : 16 * i + 16])
            self.stats["granted"] += len(tokens)

        self.request(w.conn, "lease", {"queues": [], "credits": credit, "wait_us": wait}, leased)

    def enter(self, w):
        """User code of the next run in token order begins."""
        for token in sorted(w.held):
            if not w.held[token].entered:
                w.held[token].entered = True
                w.started = token
                self.entered_tokens.add(token)
                self.entered[w.held[token].run_id] += 1
                return

    def report(self, w, *, picks, outcome=None, keep=False):
        """Finish some of what it holds."""
        rows = []
        for token in picks:
            g = w.held[token]
            if not g.entered:
                out = Outcome.NOT_STARTED
            else:
                out = outcome or self.rng.choice([1, 1, 1, 1, 2, 2, 3])
                if not outcome and self.rare.random() < 0.05:
                    out = self.rare.choice([6, 8])
            rows.append((g.run_id, token, int(out)))
            if not keep:
                del w.held[token]
        self.finish(w.conn, rows, sure=w.kind == "pool")

    def finish(self, conn, rows, *, sure):
        """A frame of completions. `sure`: the worker lives and holds the leases, so they must be accepted."""
        if not rows:
            return
        said = {2: {"type": "E", "message": "x"}, 3: {"type": "E", "message": "x"}, 6: {"reason": "no"}, 8: {"snooze_us": 5 * US, "reason": "busy"}}
        result = [[i, said[out]] for i, (_, _, out) in enumerate(rows) if out in said]
        if result and self.rare.random() < 0.1:
            result[0][1] = {**result[0][1], "retry_us": self.rare.choice([0, 3, 400]) * US, "bases": ["pkg.Base"]}
        at = np.full(len(rows), self.wall_us, "<i8").tobytes()
        args = {
            "id": b"".join(r[0] for r in rows), "token": np.array([r[1] for r in rows], "<i8").tobytes(),
            "outcome": bytes(r[2] for r in rows), "started_us": at, "ended_us": at, "result": result,
        }

        def judged(reply):
            if reply.error is not None:
                assert not sure, reply.error
                return
            for (run_id, token, out), verdict in zip(rows, reply.result["verdict"], strict=True):
                assert verdict in (1, 2)
                assert verdict == 1 or not sure, "a living worker's completion was refused"
                self.stats["accepted" if verdict == 1 else "stale"] += 1
                if verdict == 1 and out != Outcome.NOT_STARTED:
                    had = self.accepted.setdefault((run_id, token), out)
                    assert had == out, f"two outcomes accepted for token {token}: {had} and {out}"

        self.request(conn, "finish", args, judged)

    def heartbeat(self, w):
        """Renew the lease of an external worker."""
        tokens = sorted(w.held)

        def told(reply):
            if reply.error is None:
                for i in reply.result["stale"]:
                    w.held.pop(tokens[i], None)

        args = {"id": b"".join(w.held[t].run_id for t in tokens), "token": np.array(tokens, "<i8").tobytes(),
                "started": bytes(len(tokens)), "progress": []}
        self.request(w.conn, "heartbeat", args, told)

    def die(self, w, *, proof):
        """A worker's process ends; its pool knows how far it got, or does not."""
        self.workers.remove(w)
        if w.kind == "pool":
            self.inputs.append(WorkerGone(w.id, w.started if proof else None, Outcome.LOST, "died"))
        else:
            self.inputs.append(Disconnect(w.conn))
        self.give_up(w)

    # Audits

    def audit(self):
        """What must hold at any instant."""
        self.check_replay()
        self.check_acked()
        self.stats["audits"] += 1

    def check_replay(self):
        """What is durable gives the live state, by its records and by a snapshot."""
        live = self.engine.state
        replayed = self.recover(self.journal)
        for bodies in self.unsynced:
            for body in bodies:
                replayed.apply(*records.decode(body))
        for body in self.engine.effects.records:
            replayed.apply(*records.decode(body))
        assert replayed.digest() == live.digest(), "replay differs from the live state"
        for one in (live, replayed):
            assert sorted(one.created.rows()[0].tolist()) == one.runs.slots(), "a run is in no listing, or one that has left is"
        live.check()
        if self.keeper._pieces is None:
            pieces = [p for part in live.copy(self.rng.choice([1, 2**30])) for p in part]
            loaded = State.load(iter(pieces))
            assert loaded.digest() == live.digest(), "a snapshot read back differs"
            loaded.check()

    def everything(self):
        """run id -> (state, attempts) over history and table; each run is in one of them, once."""
        live = self.engine.state
        for number, data in history.of_runs(self.journal.history_blocks(self.blocks_read)):
            block = history.Block(data)
            for row in block.rows(list(range(block.n))):
                run_id = bytes.fromhex(row["id"])
                ledger = row["state"] == "skipped" or self.folded.get(run_id, ("skipped",))[0] == "skipped"  # decided anew, the clock went back
                assert run_id not in self.folded or ledger, f"run {row['id']} is in history twice"
                if row["state"] == "skipped" and run_id in self.folded:
                    continue
                self.folded[run_id] = (row["state"], {a["token"]: a["outcome"] for a in row["attempts"]})
            self.blocks_read = number + 1
        found = dict(self.folded)
        rows = np.array(live.runs.slots(), np.uint32)
        for row, f in zip(rows.tolist(), live.runs.gather(rows) if len(rows) else (), strict=True):
            run_id = int(f["id_high"]).to_bytes(8, "big") + int(f["id_low"]).to_bytes(8, "big")
            ledger = f["state"] == RunState.SKIPPED or found.get(run_id, ("skipped",))[0] == "skipped"
            assert run_id not in found or ledger or self.unsynced, f"run {run_id.hex()} is in history and in the table"
            if f["state"] == RunState.SKIPPED and run_id in found:
                continue
            attempts = {a[1]: Outcome(a[5]).name.lower() for a in unpack_past(live.runs.blobs(row)[2])[0]}
            if f["outcome"]:
                attempts[int(f["token"])] = Outcome(int(f["outcome"])).name.lower()
            found[run_id] = (RunState(int(f["state"])).name.lower(), attempts)
        return found

    def check_acked(self):
        """Nothing that a client or worker was told is lost."""
        replies = self.engine.state.replies
        for rid, cmd in self.acked_rids.items():
            assert rid in replies or rid in self.judge.forgotten or self.unsynced, f"acknowledged {cmd.verb} is lost"
        if self.unsynced:
            return  # history on disk lags behind the table
        found = self.everything()
        for run_id in self.acked_runs:
            assert run_id in found, f"acknowledged run {run_id.hex()} is lost"
        for (run_id, token), out in self.accepted.items():
            assert run_id in found, f"run {run_id.hex()} is lost with an accepted completion"
            _, attempts = found[run_id]
            assert attempts.get(token) == Outcome(out).name.lower(), f"an accepted completion of {run_id.hex()} is lost: {attempts}"


__all__ = ["US", "World"]

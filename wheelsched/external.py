"""`wheelsched worker`: executors outside of the server, under a supervisor that relays their requests.

The supervisor holds one connection an executor. It gives requests numbers of its own, so that it can answer for an executor
that died: what had ended in it is reported, what it was in is lost (or timed out, or cancelled), what it had not entered is
handed back. It sends the heartbeats, counts each lease from before the request that renewed it, and kills an executor whose
lease it can't trust any more. When the server goes away it connects again and repeats what was not answered.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import time
from collections import deque
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from . import process, protocol
from .builtin import Allowed
from .errors import UnavailableError
from .executors import Starts
from .messages import say
from .model import DRAIN_US, NEVER, Outcome, format_duration
from .pool import EXIT_US, Pool
from .worker_folder import GENERATION, WorkerFolder, end_leftovers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .executors import Executor, Exited

RECONNECT_US: Final = 200_000
DISTRUST: Final = 5  # a lease is given up when a fifth of it is left
TOLD_MAX: Final = 10  # names of tasks, numbers of workers, in the line that says that it joined
FINISH_ROWS_MAX: Final = 2_000  # rows of one frame, each with a result
_STOP: Final = {"n": 0, "stop": True}
_WITHDRAW: Final = {"queues": [], "credits": 0, "wait_us": 0}


class Stream:
    """A non-blocking stream of frames with an unbounded send buffer; both ends bound what is in flight."""

    def __init__(self, sock: socket.socket, limit: int) -> None:
        sock.setblocking(False)
        self.sock = sock
        self.open = True
        self._reader = protocol.FrameReader(limit)
        self._out: deque[memoryview] = deque()

    def send(self, frame: bytes) -> None:
        """Send what the socket takes, keep the rest."""
        self._out.append(memoryview(frame))
        self.flush()

    def flush(self) -> None:
        """Send what was kept."""
        try:
            while self._out and self.open:
                sent = self.sock.send(self._out[0])
                self._out[0] = self._out[0][sent:]
                if not len(self._out[0]):
                    self._out.popleft()
        except BlockingIOError:
            return
        except ConnectionError:
            self.close()

    def read(self) -> list[bytes]:
        """The bodies that are there; closes at the end of the stream."""
        bodies: list[bytes] = []
        while self.open:
            try:
                data = self.sock.recv(1 << 18)
            except BlockingIOError:
                break
            except ConnectionError:
                data = b""
            if not data:
                self.close()
            bodies += self._reader.feed(data)
        return bodies

    @property
    def events(self) -> int:
        """What to poll for."""
        return select.POLLIN | (select.POLLOUT if self._out else 0)

    def close(self) -> None:
        """At most once."""
        if self.open:
            self.open = False
            self.sock.close()


@dataclass(slots=True)
class Sent:
    """A request that the server has not answered."""

    verb: str
    args: dict[str, Any]
    executor: int  # worker number in the pool of who asked; 0: the supervisor
    id: int  # the number it had there
    at_us: int  # monotonic, before it was sent


class Completion(NamedTuple):
    """What the supervisor reports of a run that its executor can't report."""

    token: int
    id: bytes
    outcome: int = int(Outcome.NOT_STARTED)
    started_us: int = 0
    ended_us: int = 0
    result: dict[str, Any] | None = None


@dataclass(slots=True)
class Slot:
    """One executor and its connection."""

    number: int
    executor: Executor
    down: Stream
    up: Stream | None = None
    hello: dict[str, Any] | None = None  # the server's answer
    tasks: dict[str, Any] | None = None
    greeting: int = 0  # the executor's hello that waits for the server's
    unanswered: dict[int, Sent] = field(default_factory=dict)
    parked: list[Sent] = field(default_factory=list)  # lease requests for the next connection
    held: dict[int, bytes] = field(default_factory=dict)  # token -> run id
    trust_us: int = NEVER  # monotonic; when the leases can't be relied upon
    beat_us: int = NEVER
    connect_us: int = 0
    begun: bool = False  # this executor has said hello
    ended: bool = False

    @property
    def open(self) -> bool:
        """Is there a report that was not answered, or a lease request that may be answered with runs, which want to be handed back?"""
        return any(r.verb == "finish" or (r.verb == "lease" and self.up is not None) for r in self.unanswered.values())


class Supervisor:
    """Runs until a signal: SIGTERM and SIGINT drain, a second one ends at once."""

    def __init__(
        self, path: str, modules: Sequence[str], *, queues: Sequence[str] = (), concurrency: int = 1, allowed: Allowed | None = None,
        name: str = "", mode: str = "process", max_runs: int = 0, max_rss: int = 0, drain_us: int = DRAIN_US,
        exit_us: int = EXIT_US,
    ) -> None:
        """`path`: the server's socket; `queues`: names, none for all. `concurrency`: runs at a time, each in an executor of its own
        in mode "process", together in one in "thread" and "async". `max_runs`, `max_rss`, `exit_us`: as for Pool.
        `drain_us`: how long what runs has to end after the first signal; then it is interrupted.
        """
        self.path = path
        self.queues = list(queues)
        self.name = name or f"{socket.gethostname()}:{os.getpid()}"
        allowed = replace(allowed or Allowed(), socket=str(Path(path).absolute()))  # tasks and commands are clients of this server
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        for line in end_leftovers(boot):
            self._say(line)
        self._folder = WorkerFolder()
        self.pool = Pool(workers_dir=self._folder.path, modules=modules, allowed=allowed, generation=GENERATION, boot_id=boot,
                         mode=mode, concurrency=concurrency, max_runs=max_runs, max_rss=max_rss, exit_us=exit_us)
        self._told = False
        count = concurrency if mode == "process" else 1
        at_a_time = "one run at a time in each" if mode == "process" else f"{mode}, {concurrency} runs at a time"
        self.running = f"{count} process{'' if count == 1 else 'es'}, {at_a_time}"
        self._last_id = 0
        self._last_worker = 0
        self.stopping = 0
        self.failed = False
        self._starts = Starts(self.pool)
        self._drain_us = drain_us
        self._drain_until_us = NEVER
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.slots = [self._slot(n) for n in range(count)]

    def _spawn(self) -> tuple[Executor, Stream]:
        self._last_worker += 1
        executor = self.pool.spawn(self._last_worker)
        return executor, Stream(executor.sock, protocol.REPLY_MAX)

    def _slot(self, number: int) -> Slot:
        return Slot(number, *self._spawn())

    # Life

    def run(self) -> int:
        """Serve; the exit code: 0 after a drain, 1 when a task module can't be imported."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._signal)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        try:
            while not self._finished():
                self._turn()
        finally:
            self._end()
        return 1 if self.failed else 0

    def _signal(self, *_: Any) -> None:
        self.stopping += 1

    def _finished(self) -> bool:
        if self.failed or self.stopping > 1:
            return True
        if not self.stopping:
            return False
        if self._drain_until_us == NEVER:
            self._drain_until_us = _mono_us() + self._drain_us
            self._say(f"draining: what runs has {format_duration(self._drain_us)} to end; a second signal stops at once")
            for slot in self.slots:
                self._drain(slot)
        return all(s.ended and not s.open for s in self.slots) or _mono_us() >= self._drain_until_us

    def _drain(self, slot: Slot) -> None:
        """Tell the executor to stop after what it holds; runs that still come are handed back."""
        slot.ended = slot.hello is None
        for sent in [*slot.unanswered.values(), *slot.parked]:
            if sent.verb == "lease" and sent.executor == slot.executor.worker:
                slot.down.send(protocol.encode_ok(sent.id, _STOP))
                sent.executor = 0
        slot.parked.clear()
        if slot.up is not None and slot.open:
            self._request(slot, Sent("lease", _WITHDRAW, 0, 0, 0))

    def _end(self) -> None:
        """End what still runs, and say so."""
        for event in self.pool.stop():
            self._settle(next(s for s in self.slots if s.executor.worker == event.worker), event)
        for slot in self.slots:
            if slot.up is not None:
                slot.up.sock.setblocking(slot.up.open)  # a last blocking flush: nothing else is to be done
                slot.up.flush()
                slot.up.close()
            slot.down.close()
        self.pool.close()
        self._folder.close()

    def _turn(self) -> None:
        now = _mono_us()
        poll = select.poll()
        poll.register(self._wake_read, select.POLLIN)
        poll.register(self.pool.fileno(), select.POLLIN)
        wake = min(self.pool.wake_at_mono_us(), self._drain_until_us)
        for slot in self.slots:
            for stream in (slot.down, slot.up):
                if stream is not None and stream.open:
                    poll.register(stream.sock, stream.events)
            if slot.up is None and slot.tasks is not None:
                wake = min(wake, slot.connect_us)
            wake = min(wake, slot.beat_us, slot.trust_us if slot.held else NEVER)
        poll.poll(None if wake == NEVER else max(0, wake - now) / 1_000 + 1)
        if select.select([self._wake_read], [], [], 0)[0]:
            os.read(self._wake_read, 64)
        for slot in self.slots:
            self._serve(slot)
        for event in self.pool.poll(_mono_us()):
            self._gone(next(s for s in self.slots if s.executor.worker == event.worker), event)

    def _serve(self, slot: Slot) -> None:
        if slot.down.open:
            slot.down.flush()
            for body in slot.down.read():
                self._from_executor(slot, protocol.parse_request(body))
            if not slot.down.open:
                self.pool.hung_up(slot.executor.worker)
        up, now = slot.up, _mono_us()
        if up is not None:
            up.flush()
            for body in up.read():
                self._from_server(slot, protocol.parse_reply(body))
            if not up.open:
                slot.up, slot.beat_us, slot.connect_us = None, NEVER, now + RECONNECT_US
                self._say(f"executor {slot.number}: the server is gone; trying again")
        if slot.up is None and slot.tasks is not None and now >= slot.connect_us:
            self._connect(slot)
        if now >= slot.beat_us:
            self._beat(slot, now)
        if slot.held and now >= slot.trust_us:
            slot.trust_us = NEVER
            self._say(f"executor {slot.number}: no word from the server, its leases can't be trusted: killed")
            process.signal_group(slot.executor.pid, signal.SIGKILL)

    def _say(self, message: str) -> None:
        say(f"worker: {message}")

    # Requests and answers

    def _request(self, slot: Slot, sent: Sent) -> None:
        self._last_id += 1
        slot.unanswered[self._last_id] = sent
        sent.at_us = _mono_us()
        if slot.up is not None:
            slot.up.send(protocol.encode_request(self._last_id, sent.verb, sent.args))

    def _connect(self, slot: Slot) -> None:
        """Connect, say hello, repeat what was not answered."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            sock.connect(self.path)
        except OSError as e:
            sock.close()
            slot.connect_us = _mono_us() + RECONNECT_US
            if slot.hello is None and not isinstance(e, ConnectionError | FileNotFoundError):
                raise UnavailableError(f"{self.path}: {e.strerror}") from e
            return
        slot.up = Stream(sock, protocol.REPLY_MAX)
        repeated = ("finish",) if self.stopping else ("lease", "finish")
        again = [s for s in slot.unanswered.values() if s.verb in repeated or _keeps(s)] + slot.parked
        slot.unanswered, slot.parked = {}, []
        hello = {"version": protocol.VERSION, "role": "worker", "name": f"{self.name}-{slot.number}", "tasks": slot.tasks}
        self._request(slot, Sent("hello", hello, 0, 0, 0))
        for sent in again:
            self._request(slot, sent)

    def _joined(self, slot: Slot) -> None:
        """Say so: once for all slots, and of each that has a server again."""
        assert slot.hello is not None
        if self._told:
            self._say(f"executor {slot.number}: the server is back; it is w{slot.hello.get('worker')} there")
        elif all(s.hello is not None for s in self.slots):
            self._told = True
            names = sorted(task for task in slot.tasks or () if not task.startswith("wheelsched."))
            told = ", ".join(names[:TOLD_MAX]) + (f" and {len(names) - TOLD_MAX} more" if len(names) > TOLD_MAX else "")
            numbers = ", ".join(f"w{s.hello.get('worker')}" for s in self.slots[:TOLD_MAX] if s.hello is not None)
            self._say(
                f"joined {self.path} as {numbers};"
                f" {self.running}; queues: {', '.join(self.queues) or 'all'}; tasks: {told or 'none'}"
            )

    def _from_executor(self, slot: Slot, request: protocol.Request) -> None:
        worker, args = slot.executor.worker, request.args
        if request.verb == "hello":
            slot.tasks, slot.begun = args["tasks"], True
            if self._starts.tries and all(s.begun for s in self.slots):
                self._say(self._starts.over())
            if slot.hello is not None:  # a new executor in an old slot
                slot.down.send(protocol.encode_ok(request.id, slot.hello))
            else:
                slot.greeting = request.id
            return
        if request.verb == "lease":
            args["queues"] = self.queues
            if self.stopping:
                slot.down.send(protocol.encode_ok(request.id, _STOP))
                return
        elif request.verb == "finish":
            tokens = np.frombuffer(args["token"], np.int64)
            self.pool.finished(worker, tokens)
            for token in tokens.tolist():
                slot.held.pop(token, None)
        sent = Sent(request.verb, args, worker, request.id, 0)
        if slot.up is None and request.verb == "heartbeat" and not _keeps(sent):
            slot.down.send(protocol.encode_ok(request.id, {"cancel": [], "stale": []}))
        else:
            self._request(slot, sent)

    def _from_server(self, slot: Slot, reply: protocol.Reply) -> None:
        sent = slot.unanswered.pop(reply.id)
        alive = sent.executor == slot.executor.worker and slot.down.open
        if reply.error is not None:
            if not _keeps(sent):
                raise reply.error
            if alive:  # user code waits for it
                slot.down.send(protocol.encode_error(sent.id, reply.error))
            return
        result = reply.result
        if sent.verb == "hello":
            slot.hello = result
            self.pool.lease_us = int(result["lease_us"])
            slot.beat_us = sent.at_us + int(result["heartbeat_us"])
            slot.trust_us = sent.at_us + _trust_us(result)
            self._joined(slot)
            if slot.greeting and slot.down.open:
                slot.down.send(protocol.encode_ok(slot.greeting, result))
            slot.greeting = 0
            return
        if sent.verb == "lease":
            if result["n"]:
                self._granted(slot, sent, result, alive=alive)
            elif alive and result.get("stop"):
                slot.parked.append(sent)  # the server is stopping: the executor waits for the next one
            elif alive:
                self._request(slot, sent)  # it was silent for so long that its request was dropped
            return
        if sent.verb == "heartbeat":
            assert slot.hello is not None
            slot.trust_us = max(slot.trust_us if slot.trust_us != NEVER else 0, sent.at_us + _trust_us(slot.hello))
            tokens = np.frombuffer(sent.args["token"], np.int64).tolist()
            for row in [*result["cancel"], *result["stale"]]:
                if tokens[row] in slot.held:
                    self.pool.cancel(slot.executor.worker, tokens[row])
            for row in result["stale"]:  # another worker's by now: what it still comes to is reported by the executor alone
                slot.held.pop(tokens[row], None)
        if alive:
            slot.down.send(protocol.encode_ok(sent.id, result))

    def _granted(self, slot: Slot, sent: Sent, result: dict[str, Any], *, alive: bool) -> None:
        tokens = np.frombuffer(result["token"], np.int64)
        if not alive:
            self._finish(slot, [Completion(t, result["id"][16 * i : 16 * i + 16]) for i, t in enumerate(tokens.tolist())])
            return
        spec = np.frombuffer(result["spec"], np.uint32)
        timeouts = np.array([s["timeout_us"] for s in result["specs"]], np.int64)[spec]
        silences = None
        if any("heartbeat_timeout_us" in s for s in result["specs"]):
            silences = np.array([s.get("heartbeat_timeout_us", NEVER) for s in result["specs"]], np.int64)[spec]
        self.pool.sent(slot.executor.worker, tokens, timeouts, silences)
        for i, token in enumerate(tokens.tolist()):
            slot.held[token] = result["id"][16 * i : 16 * i + 16]
        slot.down.send(protocol.encode_ok(sent.id, result))

    def _beat(self, slot: Slot, now: int) -> None:
        """Renew the lease; tell what was entered. An idle worker beats too."""
        assert slot.hello is not None
        slot.beat_us = now + int(slot.hello["heartbeat_us"])
        started = slot.executor.started if slot.executor.worker in self.pool.executors else 0
        held = sorted(slot.held.items())
        self._request(slot, Sent("heartbeat", {
            "id": b"".join(i for _, i in held), "token": np.array([t for t, _ in held], np.int64).tobytes(),
            "started": bytes(t <= started for t, _ in held), "progress": [],
        }, 0, 0, 0))

    # Deaths

    def _gone(self, slot: Slot, event: Exited) -> None:
        for body in slot.down.read():  # what it said last counts
            self._from_executor(slot, protocol.parse_request(body))
        slot.down.close()
        self._settle(slot, event)
        if event.can_not_import:
            self.failed = True
        slot.ended = bool(self.stopping)
        if not self.failed and (event.status or not self.stopping):
            self._say(event.text if slot.begun or self.stopping else self._starts.failed(event))
        if self.stopping or self.failed:
            return
        slot.parked.clear()
        slot.executor, slot.down = self._spawn()
        slot.begun = False

    def _settle(self, slot: Slot, event: Exited) -> None:
        """Answer for a dead executor."""
        lost = {"type": "wheelsched.WorkerLost", "message": event.text, "traceback": ""}
        started, now = event.started_token or 0, _mono_us()
        wall_us = time.time_ns() // 1_000 + (0 if slot.hello is None else int(slot.hello["clock_offset_us"]))
        rows = []
        for token, run_id in sorted(slot.held.items()):
            if token in event.ended:
                rows.append(Completion(token, run_id, *event.ended[token]))
            elif token <= started:
                call = event.call_of(token)
                known = call or token
                outcome, error = event.outcomes.get(known, int(Outcome.LOST)), event.errors.get(known, lost)
                begun = wall_us - (now - event.begun_us[known]) if known in event.begun_us else 0
                result = {"traceback": "", **error, **({"together": True} if call else {})}
                rows.append(Completion(token, run_id, outcome, begun, wall_us, result))
            else:
                rows.append(Completion(token, run_id))
        slot.held.clear()
        self._finish(slot, rows)

    def _finish(self, slot: Slot, completions: list[Completion]) -> None:
        for at in range(0, len(completions), FINISH_ROWS_MAX):
            rows = completions[at : at + FINISH_ROWS_MAX]
            self._request(slot, Sent("finish", {
                "id": b"".join(r.id for r in rows), "token": np.array([r.token for r in rows], np.int64).tobytes(),
                "outcome": bytes(r.outcome for r in rows), "started_us": np.array([r.started_us for r in rows], np.int64).tobytes(),
                "ended_us": np.array([r.ended_us for r in rows], np.int64).tobytes(),
                "result": [[i, r.result] for i, r in enumerate(rows) if r.result],
            }, 0, 0, 0))


def _keeps(sent: Sent) -> bool:
    """Is it a heartbeat with a checkpoint, whose answer user code waits for?"""
    return sent.verb == "heartbeat" and bool(sent.args.get("checkpoint"))


def _trust_us(hello: dict[str, Any]) -> int:
    """For how long a lease is relied upon, from before the request that renewed it."""
    lease_us = int(hello["lease_us"])
    return lease_us - lease_us // DISTRUST


def _mono_us() -> int:
    return time.monotonic_ns() // 1_000

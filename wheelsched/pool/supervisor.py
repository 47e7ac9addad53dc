"""`wheelsched worker`: executors outside of the server, under a supervisor that relays their requests.

The supervisor holds one connection an executor. It gives requests numbers of its own, so that it can answer for an executor
that died: what had ended in it is reported, what it was in is lost (or timed out, or cancelled), what it had not entered is
handed back. It sends the heartbeats, counts each lease from before the request that renewed it, and kills an executor whose
lease it can't trust any more. When the server goes away it connects again and repeats what was not answered. At SIGHUP it replaces its
executors one after another, by ones that read the code anew (`rolling`).
"""

from __future__ import annotations

import errno
import os
import select
import signal
import socket
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ..model.errors import UnavailableError, WheelschedError
from ..model.nouns import DRAIN_US, NEVER, START_US, Outcome, format_duration
from ..process import processes
from ..process.contract import Allowed
from ..process.stderr import INFO, WARNING, say
from ..protocol import frames
from .folder import GENERATION, WorkerFolder, end_leftovers
from .pool import EXIT_US, Pool
from .rolling import Rolling
from .slots import Completion, Sent, Slot, Stream, connected

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .handle import Exited

RECONNECT_US: Final = 200_000
DISTRUST: Final = 5  # a lease is given up when a fifth of it is left
TOLD_MAX: Final = 10  # names of tasks, numbers of workers, in the line that says that it joined
FORWARDED_ROWS_MAX: Final = 2_000  # rows of one frame, each with a result
_STOP: Final = {"n": 0, "stop": True}
_HOPELESS: Final = frozenset({errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.ENOTSOCK, errno.EPROTOTYPE})
_WITHDRAW: Final = {"queues": [], "credits": 0, "wait_us": 0}


class Reload(Rolling):
    """The one that SIGHUP asks for."""

    def __init__(self, supervisor: Supervisor) -> None:
        super().__init__(supervisor.hire, supervisor.retire, supervisor.pool.kill, supervisor.say)
        self._supervisor = supervisor

    def is_there(self, worker: int) -> bool:
        """As for Rolling."""
        return any(s.begun for s in self._supervisor.slots if s.executor.worker == worker)

    def is_leaving(self, worker: int) -> bool:
        """As for Rolling."""
        return any(s.leaving for s in self._supervisor.slots if s.executor.worker == worker)

    def over(self, fresh: int) -> None:
        """As for Rolling."""
        self._log(f"reload: {fresh} {'executor has' if fresh == 1 else 'executors have'} the new code")

    def refused(self, why: str, short: str, left: int, fresh: int) -> None:  # noqa: ARG002
        """As for Rolling."""
        self._log(f"reload: the old code goes on in {left} of {left + fresh} executors: {why}", WARNING)


class Supervisor:
    """Runs until a signal: SIGTERM and SIGINT drain, a second one ends at once; SIGHUP has its executors replaced."""

    def __init__(
        self, path: str, modules: Sequence[str], *, queues: Sequence[str] = (), concurrency: int = 1, allowed: Allowed | None = None,
        name: str = "", mode: str = "process", max_runs: int = 0, max_rss: int = 0, drain_us: int = DRAIN_US,
        exit_us: int = EXIT_US, start_us: int = START_US,
    ) -> None:
        """`path`: the server's socket; `queues`: names, none for all. `concurrency`: runs at a time, each in an executor of its own
        in mode "process", together in one in "thread" and "async". `max_runs`, `max_rss`, `exit_us`, `start_us`: as for
        Pool.
        `drain_us`: how long what runs has to end after the first signal; then it is interrupted.
        """
        self.path = path
        self.queues = list(queues)
        self.name = name or f"{socket.gethostname()}:{os.getpid()}"
        allowed = replace(allowed or Allowed(), socket=str(Path(path).absolute()))  # tasks and commands are clients of this server
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        for line in end_leftovers(boot):
            self.say(line)
        self._folder = WorkerFolder()
        self.pool = Pool(workers_dir=self._folder.path, modules=modules, allowed=allowed, generation=GENERATION, boot_id=boot,
                         mode=mode, concurrency=concurrency, max_runs=max_runs, max_rss=max_rss, exit_us=exit_us, start_us=start_us)
        self._told = False
        count = concurrency if mode == "process" else 1
        at_a_time = "one run at a time in each" if mode == "process" else f"{mode}, {concurrency} runs at a time"
        self.running = f"{count} process{'' if count == 1 else 'es'}, {at_a_time}"
        self._last_id = 0
        self._last_worker = 0
        self.stopping = 0
        self.failed = False
        self._drain_us = drain_us
        self._drain_until_us = NEVER
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.slots: list[Slot] = []
        self._reload = Reload(self)
        for _ in range(count):
            self.hire(at_once=False)

    def hire(self, *, at_once: bool = True) -> int:
        """A slot more, with an executor of its own; its worker number in the pool. `at_once`: as for Pool.spawn."""
        taken = {slot.number for slot in self.slots}
        number = next(n for n in range(len(taken) + 1) if n not in taken)
        self._last_worker += 1
        self.slots.append(Slot(number, self.pool.spawn(self._last_worker, at_once=at_once), Stream(None, frames.FRAME_MAX)))
        self._connect_started()
        return self._last_worker

    def retire(self, worker: int) -> None:
        """Have the executor take no more runs: it ends when it has finished what it has."""
        slot = self._slot_of(worker)
        slot.leaving = True
        self._drain(slot)

    def _slot_of(self, worker: int) -> Slot:
        return next(s for s in self.slots if s.executor.worker == worker)

    def _connect_started(self) -> None:
        for executor in self.pool.started():
            self._slot_of(executor.worker).down = Stream(executor.sock, frames.FRAME_MAX)

    # Life

    def run(self) -> int:
        """Serve; the exit code: 0 after a drain, 1 when a task module can't be imported at the start."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._signal)
        self.pool.reaper.watch()
        signal.signal(signal.SIGHUP, lambda *_: self._reload.want())
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
            self.say(f"draining: what runs has {format_duration(self._drain_us)} to end; a second signal stops at once")
            for slot in self.slots:
                self._drain(slot)
        return all(s.ended and not s.open for s in self.slots) or _mono_us() >= self._drain_until_us

    def _drain(self, slot: Slot) -> None:
        """Tell the executor to stop after what it holds; runs that still come are handed back."""
        slot.ended = slot.hello is None
        for sent in [*slot.unanswered.values(), *slot.parked]:
            if sent.verb == "lease" and sent.executor == slot.executor.worker:
                slot.down.send(frames.encode_ok(sent.id, _STOP))
                sent.executor = 0
        slot.parked.clear()
        if slot.up is not None and slot.open:
            self._request(slot, Sent("lease", _WITHDRAW, 0, 0, 0))

    def _end(self) -> None:
        """End what still runs, and say so."""
        for event in self.pool.stop():
            self._settle(self._slot_of(event.worker), event)
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
            wake = min(wake, slot.beat_us, slot.trust_us if slot.held else NEVER, slot.down.half_until_us)
        poll.poll(None if wake == NEVER else max(0, wake - now) / 1_000 + 1)
        if select.select([self._wake_read], [], [], 0)[0]:
            os.read(self._wake_read, 64)
        for slot in self.slots:
            self._serve(slot)
        for event in self.pool.poll(_mono_us()):
            self._gone(self._slot_of(event.worker), event)
        for token, text in self.pool.stacks():
            self._tell_stack(token, text)
        if not self.stopping:
            self._reload.roll([slot.executor.worker for slot in self.slots])
        self._connect_started()
        for slot in [s for s in self.slots if s.leaving and s.ended and not s.open]:
            if slot.up is not None:
                slot.up.close()
            self.slots.remove(slot)
        for line in self.pool.starts.lines():
            self.say(line, WARNING)

    def _serve(self, slot: Slot) -> None:
        up, now = slot.up, _mono_us()
        if slot.down.open:
            slot.down.flush()
            self._hear(slot)
            if now >= slot.down.half_until_us:
                self._misused(slot, "it began a frame and did not end it")
            if not slot.down.open:
                self.pool.hung_up(slot.executor.worker)
        if up is not None:
            up.flush()
            for body in up.read():
                self._from_server(slot, frames.parse_reply(body))
            if not up.open:
                slot.up, slot.beat_us, slot.connect_us = None, NEVER, now + RECONNECT_US
                self.say(f"executor {slot.number}: the server is gone; trying again", WARNING)
        if slot.up is None and slot.tasks is not None and now >= slot.connect_us:
            self._connect(slot)
        if now >= slot.beat_us:
            self._beat(slot, now)
        if slot.held and now >= slot.trust_us:
            slot.trust_us = NEVER
            self.say(f"executor {slot.number}: no word from the server, its leases can't be trusted: killed", WARNING)
            processes.signal_group(slot.executor.pid, signal.SIGKILL)

    def say(self, message: str, level: int = INFO) -> None:
        """Log it."""
        say(f"worker: {message}", level)

    # Requests and answers

    def _hear(self, slot: Slot) -> None:
        """Take what the executor asks. User code has its socket, so anything may come."""
        try:
            for body in slot.down.read():
                self._from_executor(slot, frames.parse_request(body))
        except (WheelschedError, LookupError, TypeError, ValueError) as e:
            self._misused(slot, str(e))

    def _misused(self, slot: Slot, why: str) -> None:
        self.pool.kill(slot.executor.worker, f", because {why}: user code has written to its socket")
        slot.down.close()

    def _request(self, slot: Slot, sent: Sent) -> None:
        self._last_id += 1
        slot.unanswered[self._last_id] = sent
        sent.at_us = _mono_us()
        if slot.up is not None:
            slot.up.send(frames.encode_request(self._last_id, sent.verb, sent.args))

    def _connect(self, slot: Slot) -> None:
        """Connect, say hello, repeat what was not answered."""
        try:
            sock = connected(self.path)
        except OSError as e:
            slot.connect_us = _mono_us() + RECONNECT_US
            if slot.hello is None and e.errno in _HOPELESS:
                raise UnavailableError(f"{self.path}: {e.strerror}") from e
            return
        slot.up = Stream(sock, frames.REPLY_MAX)
        repeated = ("finish",) if self.stopping or slot.leaving else ("lease", "finish")
        again = [s for s in slot.unanswered.values() if s.verb in repeated or _keeps(s) or _last_words(s)] + slot.parked
        slot.unanswered, slot.parked = {}, []
        hello = {"version": frames.VERSION, "role": "worker", "name": f"{self.name}-{slot.number}", "tasks": slot.tasks}
        self._request(slot, Sent("hello", hello | {"secret": slot.secret}, 0, 0, 0))
        for sent in again:
            self._request(slot, sent)

    def _joined(self, slot: Slot) -> None:
        """Say so: once for all slots, and of each that has a server again."""
        assert slot.hello is not None
        if self._told:
            self.say(f"executor {slot.number}: the server is back; it is w{slot.hello.get('worker')} there")
        elif all(s.hello is not None for s in self.slots):
            self._told = True
            names = sorted(task for task in slot.tasks or () if not task.startswith("wheelsched."))
            told = ", ".join(names[:TOLD_MAX]) + (f" and {len(names) - TOLD_MAX} more" if len(names) > TOLD_MAX else "")
            numbers = ", ".join(f"w{s.hello.get('worker')}" for s in self.slots[:TOLD_MAX] if s.hello is not None)
            self.say(
                f"joined {self.path} as {numbers};"
                f" {self.running}; queues: {', '.join(self.queues) or 'all'}; tasks: {told or 'none'}"
            )
            ignored = {task for s in self.slots if s.hello is not None for task in s.hello.get("ignored", ())}
            if ignored:
                some = ", ".join(sorted(ignored)[:TOLD_MAX])
                self.say(f"the options of these tasks are as workers of another user announced them, not as they are here: {some}")

    def _from_executor(self, slot: Slot, request: frames.Request) -> None:
        worker, args = slot.executor.worker, request.args
        frames.check_executor(request.verb, greeted=slot.begun)
        if request.verb == "hello":
            slot.tasks, slot.begun = dict(args["tasks"]), True
            self.pool.began(worker)
            if slot.hello is not None:  # a new executor in an old slot
                slot.down.send(frames.encode_ok(request.id, slot.hello))
            else:
                slot.greeting = request.id
            return
        if request.verb == "lease":
            args["queues"] = self.queues
            if self.stopping or slot.leaving:
                slot.down.send(frames.encode_ok(request.id, _STOP))
                return
        elif request.verb == "finish":
            tokens = np.frombuffer(args["token"], np.int64)
            if len(args["id"]) != 16 * len(tokens):
                raise ValueError("its finish has no id for each token")
            self.pool.finished(worker, tokens)
            for token in tokens.tolist():
                slot.held.pop(token, None)
        sent = Sent(request.verb, args, worker, request.id, 0)
        if slot.up is None and request.verb == "heartbeat" and not _keeps(sent):
            slot.down.send(frames.encode_ok(request.id, {"cancel": [], "stale": []}))
        else:
            self._request(slot, sent)

    def _from_server(self, slot: Slot, reply: frames.Reply) -> None:
        sent = slot.unanswered.pop(reply.id)
        alive = sent.executor == slot.executor.worker and slot.down.open
        if reply.error is not None:
            if not sent.executor:
                raise reply.error
            if _keeps(sent) and alive:  # user code waits for it
                slot.down.send(frames.encode_error(sent.id, reply.error))
            elif not _keeps(sent):
                self._refused(slot, sent, reply.error, alive=alive)
            return
        result = reply.result
        if sent.verb == "hello":
            slot.hello = result
            self.pool.lease_us = int(result["lease_us"])
            slot.beat_us = sent.at_us + int(result["heartbeat_us"])
            slot.trust_us = sent.at_us + _trust_us(result)
            self._joined(slot)
            if slot.greeting and slot.down.open:
                slot.down.send(frames.encode_ok(slot.greeting, result))
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
            for row in result.get("stack", ()):
                if tokens[row] in slot.held and not self.pool.ask_stack(slot.executor.worker, tokens[row]):
                    self._tell_stack(tokens[row], "its process has not begun it, or is about to end")
            for row in result["stale"]:  # another worker's by now: what it still comes to is reported by the executor alone
                slot.held.pop(tokens[row], None)
        if alive:
            slot.down.send(frames.encode_ok(sent.id, result))

    def _refused(self, slot: Slot, sent: Sent, error: WheelschedError, *, alive: bool) -> None:
        """A request of an executor that ours never make. Runs that it was about to report are held until its end is told."""
        if sent.verb == "finish":
            tokens = np.frombuffer(sent.args["token"], np.int64).tolist()
            slot.held |= {token: sent.args["id"][16 * i : 16 * i + 16] for i, token in enumerate(tokens)}
        if alive:
            self._misused(slot, f"the server refused its {sent.verb}: {error.message}")
        else:
            self.say(f"executor {slot.number}: the server refused its {sent.verb}: {error.message}", WARNING)

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
        slot.down.send(frames.encode_ok(sent.id, result))

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

    def _tell_stack(self, token: int, text: str) -> None:
        """Where a run is that the server has asked for."""
        for slot in self.slots:
            if token in slot.held:
                self._request(slot, Sent("heartbeat", {
                    "id": slot.held[token], "token": token.to_bytes(8, "little"), "started": b"\1", "progress": [], "stack": [[0, text]],
                }, 0, 0, 0))

    # Deaths

    def _gone(self, slot: Slot, event: Exited) -> None:
        if slot.down.open:
            self._hear(slot)  # what it said last counts
        slot.down.close()
        self._settle(slot, event)
        if event.can_not_import:
            self.failed = True
        leaving = self._reload.gone(event.worker, event.text, event.said)
        slot.leaving, slot.ended = slot.leaving or leaving, leaving or bool(self.stopping)
        if not event.told and (event.status or not self.stopping):
            self.say(event.text, WARNING if event.status else INFO)
        if slot.ended or self.failed:
            return
        slot.parked.clear()
        self._last_worker += 1
        slot.executor, slot.begun = self.pool.spawn(self._last_worker), False

    def _settle(self, slot: Slot, event: Exited) -> None:
        """Answer for a dead executor."""
        lost = {"type": "wheelsched.WorkerLost", "message": event.text, "traceback": ""}
        started, now = NEVER if event.started_token is None else event.started_token, _mono_us()
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
        self._tell_printed(slot, event)
        slot.held.clear()
        self._finish(slot, rows)

    def _tell_printed(self, slot: Slot, event: Exited) -> None:
        """What a dead executor's runs had printed, as it would have told it, before their ends are."""
        for token in event.printed.keys() & slot.held.keys() - event.ended.keys():
            for stream, at, data in event.printed[token]:
                self._request(slot, Sent("heartbeat", {
                    "id": slot.held[token], "token": token.to_bytes(8, "little"), "started": b"\1", "progress": [],
                    "output": [[0, {stream: [at, data]}]],
                }, 0, 0, 0))

    def _finish(self, slot: Slot, completions: list[Completion]) -> None:
        for at in range(0, len(completions), FORWARDED_ROWS_MAX):
            rows = completions[at : at + FORWARDED_ROWS_MAX]
            self._request(slot, Sent("finish", {
                "id": b"".join(r.id for r in rows), "token": np.array([r.token for r in rows], np.int64).tobytes(),
                "outcome": bytes(r.outcome for r in rows), "started_us": np.array([r.started_us for r in rows], np.int64).tobytes(),
                "ended_us": np.array([r.ended_us for r in rows], np.int64).tobytes(),
                "result": [[i, r.result] for i, r in enumerate(rows) if r.result],
            }, 0, 0, 0))


def _keeps(sent: Sent) -> bool:
    """Is it a heartbeat with a checkpoint, whose answer user code waits for?"""
    return sent.verb == "heartbeat" and bool(sent.args.get("checkpoint"))


def _last_words(sent: Sent) -> bool:
    """Does it tell what a dead executor's run had printed?"""
    return not sent.executor and bool(sent.args.get("output"))


def _trust_us(hello: dict[str, Any]) -> int:
    """For how long a lease is relied upon, from before the request that renewed it."""
    lease_us = int(hello["lease_us"])
    return lease_us - lease_us // DISTRUST


def _mono_us() -> int:
    return time.monotonic_ns() // 1_000

"""The loop: gather, decide, commit, act, sleep.

One thread decides and does all I/O but the commit, which the journal's own thread runs; what a step decided is acted upon
only when the journal says that it is on disk. An error from a commit ends the process at once; restart is the repair.
"""

from __future__ import annotations

import os
import secrets
import select
import signal
import time
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from ..engine import peers
from ..engine import roles as rights
from ..engine.heartbeats import answer_at_once
from ..engine.outbox import Outbox
from ..engine.turn import Disconnect, Incoming, WorkerGone
from ..model.errors import ResourceExhaustedError, StorageFullError, UnavailableError, WheelschedError
from ..model.nouns import NEVER, ROLES, US, format_duration
from ..process.stderr import ERROR, INFO, WARNING, say
from ..protocol import frames
from ..protocol.verbs import BY_NAME, EVENTS, FORECAST, READS, RELOAD, STACK, UNKNOWN
from ..reads import reads, waiting
from ..verbs import dead
from .answered import answered
from .clock import Clock, WallTimer
from .connections import READ_BYTES, Connection
from .event_readers import Readers
from .forecasts import Forecasts
from .headroom import Headroom
from .intake import Intake
from .lags import Histogram
from .peers import Peers
from .rationed import Rationed
from .reload import Reload
from .stacks import Stacks

if TYPE_CHECKING:
    from ..engine.engine import Engine
    from ..pool.handle import Exited
    from ..pool.pool import Pool
    from ..protocol.frames import Request
    from .config import Config
    from .grants import Grants
    from .keeper import Keeper
    from .listener import Listener

EXIT_MEMORY: Final = 71
EXIT_CONFIG: Final = 78  # the tasks can't be imported
EXIT_STORAGE: Final = 70
COMMIT_MS: Final = 1  # a short commit is waited for


class Server:
    """One data directory, one socket, one pool."""

    def __init__(self, config: Config, keeper: Keeper, engine: Engine, pool: Pool, listener: Listener, clock: Clock,
                 grants: Grants) -> None:
        self.config = config
        self.keeper = keeper
        self.engine = engine
        self.forecasts = Forecasts(engine, self._log)
        self.reload = Reload(engine, self._spawn_newcomer, pool.kill, self._log, lambda: pool.code_folder)
        self.stacks = Stacks(engine, pool)
        self.readers = Readers(engine.state, keeper, self._log)
        self.pool = pool
        self.listener = listener
        self.clock = clock
        self.timer = WallTimer()
        self.headroom = Headroom()
        self.peers = Peers(listener, grants, config.workers, self._log)
        self.deaths = Rationed(
            lambda text: self._log(text, ERROR), "{n} more runs have died since the first of these lines: `wheelsched dead list` has all"
        )
        self.refusals = Rationed(
            lambda text: self._log(text, WARNING), "{n} more workers were refused since the first of these lines, or again and again"
        )
        self.intake = Intake()
        self.pool_connections: dict[int, int] = {}  # worker -> connection number
        self.outbox = Outbox(config.sync_timeout_us)
        self.durable = keeper.journal.durable_seq
        self.inputs: list[Any] = []
        self.lags = {name: Histogram() for name in ("queued", "start", "done")}
        self.stopping = 0  # how many signals asked for it
        self.drain_until_us = NEVER
        self.exit_code = 0
        self.was_full = ""
        self.again = False
        self.wake_mono_us = 0
        self.now = clock.now()
        self.started_us = self.now.mono_us
        engine.instance = secrets.token_bytes(16)
        self._committed = select.poll()
        self._committed.register(keeper.fileno(), select.POLLIN)
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    # Life

    def run(self) -> int:
        """Serve until a signal; SIGTERM and SIGINT drain, a second one stops at once. The exit code."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._signal)
        self.pool.reaper.watch()
        signal.signal(signal.SIGHUP, lambda *_: self.reload.want())
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        for fd in (self.listener.fileno(), self.timer.fileno(), self.keeper.fileno(), self.pool.fileno(), self._wake_read):
            self.peers.watch(fd)
        if self.listener.notes >= 0:
            self.peers.watch(self.listener.notes)
        for _ in range(self.config.workers):
            self._spawn()
        try:
            while not self._finished():
                self._turn()
            self._stop()
        except MemoryError:  # what was decided last may be half done: as after a failed commit, restart is the repair
            self._log("out of memory: the server ends here. What it acknowledged is on disk. Give it more memory and start it again", ERROR)
            return EXIT_MEMORY
        return self.exit_code

    def _signal(self, *_: Any) -> None:
        self.stopping += 1

    def _finished(self) -> bool:
        if not self.stopping:
            return False
        if self.drain_until_us == NEVER:
            self.engine.draining = True
            self.drain_until_us = self.clock.now().mono_us + self.config.drain_us
            self.again = True
            left = format_duration(self.config.drain_us)
            self._log(f"draining: no new runs are started, what runs has {left} to end; a second signal stops at once")
        # Its session ends with an executor's process, so also with its `on_stop`.
        alive = any(s.kind == "pool" and s.tasks for s in self.engine.sessions.values())
        return self.stopping > 1 or not (alive or self.outbox or self.again) or self.clock.now().mono_us >= self.drain_until_us

    def _stop(self) -> None:
        """End the pool; what it was in is interrupted. Then the last commit, and the socket goes."""
        for event in self.pool.stop():
            self._lose(event)
        self.now = self.clock.look()[0]
        self._step()
        while self.outbox:
            now = self.clock.now().mono_us
            select.select([self.keeper.fileno()], [], [], max(0.0, (self.outbox.wake_us() - now) / US))
            self._act()
            self._end_if_hung()
        for lines in (self.deaths, self.refusals):
            lines.look(self.now.mono_us, end=True)
        self.pool.close()
        self.listener.close()
        for connection in list(self.peers.by_fd.values()):
            self._drop(connection)
        self.keeper.close()
        self.headroom.close()
        self._log("stopped")

    def _log(self, message: str, level: int = INFO) -> None:
        say(message, level)

    # One turn

    def _turn(self) -> None:
        events = self._sleep()
        self._gather(events)
        asked = self._asked(events)
        if self.outbox.full:
            self._beats()
            self.again |= asked  # the timer's event, say, comes once
        elif asked:
            self._step()
            self._await_commit()
        self._act()
        self._end_if_hung()
        self._look_after_taken()
        self._tell()

    def _asked(self, events: list[tuple[int, int]]) -> bool:
        """Is there anything to decide? A wake that tells only that a commit has finished asks for nothing."""
        due = not events or self.now.mono_us >= self.wake_mono_us
        return due or self._unfinished() or any(fd != self.keeper.fileno() for fd, _ in events)

    def _unfinished(self) -> bool:
        """Is the next turn to begin at once?"""
        return bool(self.again or self.inputs or self.keeper.busy or self.intake)

    def _await_commit(self) -> None:
        """Wait a moment for a short commit with nothing else to do: its effects then go out in this turn, without a wake and another look
        at everything.
        """
        if not self._unfinished() and self.outbox.brief(self.keeper.poll()):
            self._committed.poll(COMMIT_MS)

    def _sleep(self) -> list[tuple[int, int]]:
        """Wait for a readable descriptor, a due time or a deadline."""
        now = self.clock.now().mono_us
        deadline = min(
            self.wake_mono_us, self.pool.wake_at_mono_us(), self.drain_until_us, self.peers.wake_us(), self.keeper.wake_at_us(now),
            self.readers.wake_us(), self.listener.wake_us(), self.deaths.wake_us(), self.refusals.wake_us(),
            self.stacks.wake_us(),
        )
        if self.config.clock_check_us:
            deadline = min(deadline, now + self.config.clock_check_us)
        if self.outbox.full:  # nothing is decided until the disk has caught up; what workers need goes on
            deadline = min(self.pool.wake_at_mono_us(), self.drain_until_us, self.peers.wake_us())
            ready = False
        else:
            ready = self._unfinished()
        deadline = min(deadline, self.outbox.wake_us())
        timeout = 0.0 if ready else -1.0 if deadline == NEVER else max(0.0, (deadline - now) / US)
        return self.peers.epoll.poll(timeout)

    def _gather(self, events: list[tuple[int, int]]) -> None:
        now, step, slept = self.clock.look()
        self.now = now  # the step decides by this reading: a clock set in between is judged as a step first, in the next turn
        if step > 0 or slept:
            self.engine.missed_before_us = now.wall_us
            self._log(f"the clock went {(step + slept) / US:.1f} s ahead: what was due meanwhile is a misfire", WARNING)
        if step < 0:
            self._log(f"the clock was set back by {-step / US:.1f} s", WARNING)
            self.inputs.append(self.keeper.clock_back(now.wall_us))
        noted = False
        share = self.peers.share(sum(fd in self.peers.by_fd for fd, _ in events))
        for fd, mask in events:
            if fd == self.listener.fileno():
                self.peers.accept(now.mono_us)
            elif fd == self.listener.notes:
                noted = True
            elif fd == self.timer.fileno():
                self.timer.drain()
            elif fd == self._wake_read:
                os.read(self._wake_read, 64)
            elif fd in self.peers.by_fd:
                self._serve(self.peers.by_fd[fd], mask, share)
        self._pool_events(now.mono_us)
        self.again |= self.stacks.look(now.mono_us)
        self.peers.keep_socket(now.mono_us, noted=noted)
        for connection in self.peers.overdue(now.mono_us):
            connection.fault = "it began a frame and did not end it"
            self._drop(connection)

    def _step(self) -> None:
        now, engine = self.now, self.engine
        inputs, self.inputs = self.inputs, []
        lookups: list[tuple[Connection, Request]] = []
        full = self._storage(now.mono_us)
        engine.no_room = bool(self.keeper.storage.exhausted)
        self._beats()
        for connection, request in chain(self.intake.urgent(), self.intake.others()):
            self._take(connection, request, full, inputs, lookups)
        self.reload.step(list(self.pool_connections), stopping=bool(self.stopping))
        effects = engine.step(now, inputs)
        for connection, request in lookups:
            effects.replies.append((connection.number, self._look_up(request, connection.roles)))
        if self.forecasts:
            effects.replies += self.forecasts.piece(now.wall_us, self._refusal("") if self.stopping else None)
        self.again = effects.again or bool(self.forecasts) or self.reload.arrived
        for worker in self.pool.coming():
            session = engine.sessions.get(self.pool_connections[worker])
            if session is not None and session.ready:
                self.pool.began(worker)
        self.wake_mono_us = effects.wake_mono_us
        self.timer.set(NEVER if effects.wake_wall_us == NEVER else effects.wake_wall_us - self.clock.offset_us)
        if effects.records or effects.history or self.keeper.busy:
            self.keeper.submit(effects)
        elif not effects.replies:
            return
        self.outbox.add(effects, now.mono_us)  # answers without a record wait for what they tell to be durable

    def _beats(self) -> None:
        """Answer the heartbeats that need no record, before anything else and whatever the disk does."""
        undurable = self.outbox.asked_to_end()
        for connection, request in self.intake.heartbeats():
            cmd = Incoming(connection.number, request, connection.uid, None, connection.roles)
            frame = answer_at_once(self.engine, cmd, self.now, undurable)
            if frame is not None:
                self.intake.answered(connection)
                self._after(connection, connection.send(frame))

    def _end_if_hung(self) -> None:
        if self.clock.now().mono_us >= self.outbox.wake_us():
            after = format_duration(self.config.sync_timeout_us)
            self._log(
                f"the storage at {self.config.data} has not finished a commit for {after} (--sync-timeout): what is on disk is not known,"
                " so the process ends. What was not acknowledged may have been done; start it anew when the disk answers", ERROR
            )
            os._exit(EXIT_STORAGE)

    def _take(
        self, connection: Connection, request: Request, full: str, inputs: list[Any], lookups: list[tuple[Connection, Request]]
    ) -> None:
        """One request whose turn it is, to whoever answers it."""
        verb, engine = BY_NAME.get(request.verb, UNKNOWN), self.engine
        if verb.answered_by == EVENTS:
            frame = self.readers.add(connection.number, request, self.now.mono_us, connection.roles, connection.uid)
            if frame is not None:
                engine.reply(connection.number, frame)
        elif verb.answered_by == RELOAD:
            self.reload.ask(Incoming(connection.number, request, connection.uid, None, connection.roles))
        elif verb.answered_by == STACK:
            frame = answered(request.id, verb.name, lambda: self._ask_stack(connection, request), self._log)
            if frame is not None:
                engine.reply(connection.number, frame)
        elif verb.answered_by == FORECAST:
            frame = self.forecasts.add(connection.number, request, connection.uid)
            if frame is not None:
                engine.reply(connection.number, frame)
        elif verb.answered_by == READS or (verb.name == "wait" and self._folded(request)):
            lookups.append((connection, request))
        elif (verb.mutating and (self.stopping or engine.no_room or (full and not verb.calming))) or (
                full and verb.name == "heartbeat" and request.args.get("checkpoint")):
            engine.reply(connection.number, frames.encode_error(request.id, self._refusal(self.keeper.storage.exhausted or full)))
        elif verb.growing and (scarce := self.headroom.full(self.now.mono_us)):
            engine.reply(connection.number, frames.encode_error(request.id, ResourceExhaustedError(scarce, limit="memory")))
        else:
            # an executor of the pool repeats nothing: it dies with its connection
            needed = verb.history or (verb.name == "finish" and not connection.trusted)
            found = self.keeper.look_for(verb.name, request.args) if needed else None
            inputs.append(Incoming(connection.number, request, connection.uid, found, connection.roles))

    def _storage(self, now_us: int) -> str:
        """Why new commands are refused; told in the log once, and once more when it is over."""
        before, full = self.was_full, self.keeper.full(now_us)
        self.was_full = full
        if bool(full) != bool(before):
            self._log(full or "there is room on the storage again: new commands are accepted", ERROR if full else INFO)
        elif bool(self.keeper.storage.exhausted) != self.engine.no_room:
            exhausted = self.keeper.storage.exhausted
            self._log(exhausted or "there is a little room on the storage again: runs are started", ERROR if exhausted else INFO)
        return full

    def _refusal(self, full: str) -> WheelschedError:
        if full:
            return StorageFullError(full)
        left = format_duration(max(0, self.drain_until_us - self.clock.now().mono_us) // US * US) if self.drain_until_us != NEVER else "0s"
        return UnavailableError(
            f"the server is stopping: it takes nothing new while what runs ends, for up to {left}; this was not done: repeat it when the"
            " next one is up", stopping=True,
        )

    def _act(self) -> None:
        """Send what is durable."""
        durable = self.durable = self.keeper.poll()
        now = self.clock.now()
        for effects in self.outbox.durable(durable, now.mono_us):
            for granted in effects.granted:
                self.pool.sent(*granted)
            for worker, tokens in effects.finished:
                self.pool.finished(worker, tokens)
            for worker, token, at_once in effects.cancels:
                self.pool.cancel(worker, token, at_once=at_once)
            for number, frame in effects.replies:
                connection = self.peers.by_number.get(number)
                if connection is not None:
                    self._after(connection, connection.send(frame))
            for name, instants in effects.lags:
                self.lags[name].add(now.wall_us - instants)
            for lags in effects.start_lags:
                self.lags["start"].add(lags)
            self.deaths.add(effects.notices.deaths, effects.notices.died, now.mono_us)
            self.refusals.add(effects.notices.refusals, effects.notices.refused, now.mono_us)
        for lines in (self.deaths, self.refusals):
            lines.look(now.mono_us)

    def _tell(self) -> None:
        """Events to those who read them: only durable records are read, so they go out at once."""
        for number, frame in self.readers.serve(self.durable, self.clock.now().mono_us, stopping=self.stopping > 0):
            connection = self.peers.by_number.get(number)
            if connection is not None:
                self._after(connection, connection.send(frame))

    # Connections

    def _serve(self, connection: Connection, mask: int, share: int) -> None:
        alive = True
        if mask & (select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR) and connection.readable:
            alive = connection.read(self.now.mono_us, READ_BYTES if connection.trusted else share)
            self.intake.add(connection)
        if alive and mask & select.EPOLLOUT:
            alive = connection.flush()
        if alive and mask & (select.EPOLLHUP | select.EPOLLERR) and not mask & select.EPOLLIN:
            alive = False
        self._after(connection, alive)

    def _after(self, connection: Connection, alive: bool) -> None:
        """Drop a connection that is gone, or watch it for what it can do now."""
        if alive:
            self.peers.look_after(connection)
        else:
            self._drop(connection)

    def _look_after_taken(self) -> None:
        """Those from whom a turn has taken requests have room for others."""
        touched = list(self.intake.touched.values())
        self.intake.touched.clear()
        for connection in touched:
            alive = connection.refill(self.now.mono_us) and (connection.writable_wanted or not connection.closing)
            if alive:
                self.intake.add(connection)
            self._after(connection, alive)

    def _drop(self, connection: Connection) -> None:
        left = connection.left()
        if not self.peers.remove(connection):
            return
        self.intake.drop(connection)
        self.forecasts.drop(connection.number)
        self.reload.drop(connection.number)
        self.stacks.drop(connection.number)
        self.readers.drop(connection.number)
        # A completion that was sent before the peer went counts; other requests of nobody are dropped.
        self.inputs += [Incoming(connection.number, r, connection.uid, None, connection.roles) for r in left]
        if not connection.trusted:
            self.inputs.append(Disconnect(connection.number))
            return
        for worker, number in self.pool_connections.items():  # the pool tells when it has ended
            if number == connection.number and connection.fault:
                self.pool.kill(worker, f", because {connection.fault}: user code has written to its socket")
            elif number == connection.number:
                self.pool.hung_up(worker)

    # The pool

    def _spawn(self, *, at_once: bool = False) -> int:
        """One more process; its worker's number. `at_once`: whatever became of those before it."""
        number = self.peers.new_number()
        worker = peers.add_worker(self.engine, number, f"pool-{number}", "pool")
        self.pool_connections[worker] = number
        self.pool.spawn(worker, at_once=at_once)
        self._add_started()
        self.again = True
        return worker

    def _spawn_newcomer(self) -> int:
        """For a reload."""
        return self._spawn(at_once=True)

    def _add_started(self) -> None:
        """Connections to the processes that there are now."""
        for executor in self.pool.started():
            assert executor.sock is not None
            number = self.pool_connections[executor.worker]
            self.peers.add(Connection(number, executor.sock, os.geteuid(), frozenset(ROLES), trusted=True))

    def _pool_events(self, now_us: int) -> None:
        for event in self.pool.poll(now_us):
            if not event.told and (event.status or not self.stopping):
                self._log(event.text, WARNING if event.status else INFO)
            self._lose(event)
            if event.can_not_import:
                self.exit_code = EXIT_CONFIG
                self.stopping = 2
            if not self.reload.gone(event.worker, event.text, event.said) and not self.stopping:
                self._spawn()
        self._add_started()
        for line in self.pool.starts.lines():
            self._log(line, WARNING)

    def _lose(self, event: Exited) -> None:
        """An executor is gone: what it reported before it died comes first."""
        connection = self.peers.by_number.get(self.pool_connections.pop(event.worker))
        if connection is not None:
            connection.read_all(self.clock.now().mono_us)
            self._drop(connection)
        self.inputs.append(WorkerGone(
            event.worker, event.started_token, event.outcome, event.text, event.outcomes, event.calls, event.ended, event.errors,
            self._wall(event.begun_us), event.printed,
        ))

    def _wall(self, mono_us: dict[int, int]) -> dict[int, int]:
        """Instants of the monotonic clock on the wall clock."""
        now = self.clock.now()
        return {token: now.wall_us - (now.mono_us - at) for token, at in mono_us.items()}

    # Questions that may need history

    def _folded(self, request: Request) -> bool:
        try:
            run_id = bytes.fromhex(str(request.args.get("id")))
        except ValueError:
            return False
        return len(run_id) == 16 and self.engine.state.find_run(run_id) is None

    def _look_up(self, request: Request, roles: frozenset[str]) -> bytes:
        def ask() -> bytes:
            return frames.encode_ok(request.id, rights.shown(roles, self._answer(request.verb, request.args)))

        frame = answered(request.id, request.verb, ask, self._log)
        assert frame is not None
        return frame

    def _ask_stack(self, connection: Connection, request: Request) -> bytes | None:
        self.engine.running.see(self.pool.running(), self._wall(self.pool.since()))
        run = self.keeper.run(self.engine.state, request.args, self.engine.running)
        self.stacks.ask(connection.number, connection.uid, request.id, run, self.now.mono_us)
        return None

    def _answer(self, verb: str, args: dict[str, Any]) -> Any:
        state = self.engine.state
        self.engine.running.see(self.pool.running(), self._wall(self.pool.since()))
        if verb == "jobs":
            return reads.jobs_page(self.engine, args)
        if verb == "dead":
            return dead.page(self.engine, args)
        if verb == "stats":
            return self._stats()
        if verb == "runs":
            return self.keeper.runs_page(state, args, self.engine.running)
        return waiting.told(self.engine, self.keeper.run(state, args, self.engine.running))

    def _stats(self) -> dict[str, Any]:
        now = self.clock.now()
        return reads.counts(self.engine) | {
            "lag_ms": {name: h.summary() for name, h in self.lags.items()}, **self.peers.stats(),
            "lag_histograms": {name: h.cumulative() for name, h in self.lags.items()},
            "uptime_s": round((now.mono_us - self.started_us) / US, 3), "now_us": now.wall_us, "clock_offset_us": self.clock.offset_us,
            "pid": os.getpid(), "server": self.engine.server, "data": self.config.data, "cpu_s": round(time.process_time(), 3),
            "start_failure": self.pool.starts.failure(), "slow_starts": self.pool.starts.slow(now.mono_us),
            "reload_failure": self.reload.failure, **self.keeper.stats(),
        }


"""The real engine on a virtual clock and a journal in memory, for users' tests and for ours.

    with Simulator(start="2026-01-01T00:00:00Z", modules=["shop.tasks"]) as sim:
        sim.client.put("report", send_report.call("eu"), Cron("0 6 * * *", tz="Europe/Berlin"))
        sim.advance(to="2026-01-03T00:00:00Z")
        assert [run.state for run in sim.runs("report")] == ["succeeded", "succeeded"]

Nothing here reads a clock, starts a thread or opens a socket. Requests and completions are encoded and parsed as on the wire. Due tasks
run one after another inside `advance`, as one worker would run them; they take no virtual time unless they call
`advance` themselves, which also lets their timeout pass. Hooks of the modules are called as in a worker: `on_start` before the first run,
and again after a crash, `on_stop` when the Simulator is closed. There is no event loop: a coroutine may await others, and that is all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ..client.client import BaseClient, Run
from ..client.verbs import WAIT_S_MAX, Verbs, call_seconds, outcome, unfinished
from ..engine import peers
from ..engine.alarms import AlarmJobs
from ..engine.engine import Engine
from ..engine.turn import ClockBack, Effects, Incoming, Now, WorkerGone
from ..journal.memory import Batch, MemoryJournal
from ..journal.recover import recover
from ..model.errors import DeadlineExceededError, InternalError, InvalidArgumentError
from ..model.nouns import MS, NEVER, US, Outcome, parse_duration, parse_instant, parse_job_name, to_datetime
from ..protocol import frames
from ..protocol.verbs import BY_NAME, ENGINE, MUTATING, RELOAD, UNKNOWN
from ..schedules.zonedata import VERSION as ZONE_VERSION
from ..schedules.zonedata import load_zone
from ..schedules.zones import Zones
from ..state import history
from ..tasks.hooks import load_hooks
from ..tasks.tasks import ATTRIBUTE, Handler, load_exts, load_tasks
from ..verbs import jobs
from .reads import look_up
from .worker import WORKER, Inline

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from datetime import datetime
    from types import TracebackType
    from typing import Self

    from ..client.requests import Ask
    from ..client.views_events import EventPage
    from ..model.payloads import Ext
    from .transport import SimAsyncClient

__all__ = ["SimClient", "SimRun", "Simulator"]

T = TypeVar("T")

CLIENT: Final = 1  # connection numbers
STEPS_MAX: Final = 1_000_000  # of one instant: more is a task that enqueues itself without a delay
ANY: Final = object()


class SimRun(Run):
    """A run whose `result` waits in virtual time."""

    __slots__ = ()

    def result(self, timeout: Any = None) -> Any:
        """Advance until it ends, and give the return value. RunFailed, RunTimeout; without a timeout, when nothing is left to happen."""
        assert isinstance(self._client, SimClient)
        sim = self._client.sim
        seconds = call_seconds(timeout, None)
        end = NEVER if seconds is None else sim.now_us + round(seconds * US)
        sim.advance(0)
        self.refresh()
        while not self.final:
            if not sim.next_event(end):
                raise unfinished(self, "and nothing more happens in time")
            self.refresh()
        return outcome(self)


class SimClient(BaseClient):
    """The client's face on a Simulator: the same verbs, answers and errors."""

    def __init__(self, sim: Simulator) -> None:
        super().__init__(sim.exts)
        self._verbs: Verbs[Run] = Verbs(lambda raw: SimRun(raw, self), sim.exts)
        self.sim = sim
        self._rids = 0

    def _now_us(self) -> int:
        return self.sim.now_us

    def _do(self, ask: Ask[T], timeout: Any) -> T:
        call_seconds(timeout, None)
        args = ask.args
        if ask.verb in MUTATING:
            self._rids += 1
            args = {**args, "rid": self._rids.to_bytes(16, "big")}
        return ask.decode(self.sim.ask(ask.verb, args))

    def wait_run(self, run_id: str, seconds: float) -> Run:
        """A run when it is final, or as it is after so many virtual seconds (at most 20)."""
        end = self.sim.now_us + round(min(seconds, WAIT_S_MAX) * US)
        self.sim.advance(0)
        run = self.run(run_id)
        while not run.final and self.sim.next_event(end):
            run = self.run(run_id)
        return run

    def _event_page(self, ask: Ask[EventPage], wait_s: float) -> EventPage:
        """Events, or none after so many virtual seconds."""
        end = self.sim.now_us + round(wait_s * US)
        self.sim.advance(0)
        page: EventPage = self._do(ask, None)
        while not page.events and self.sim.next_event(end):
            ask.args["since"] = page.position
            page = self._do(ask, None)
        return page if page.events or not self.sim.idle else replace(page, last=True)

    def close(self) -> None:
        """Nothing to close."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


class Simulator:
    """A scheduler of one's own. `start`: aware datetime or RFC 3339 text; `modules`: where tasks are, as names or modules;
    `tasks`: further ones, as {name: function} or functions marked with `@task`; `ext`: types
    that arguments and results may hold, beside those in the modules; `on_dead`, `on_missed`: names of jobs, as `serve` takes them.
    """

    def __init__(self, start: Any = "2026-01-01T00:00:00Z", modules: str | ModuleType | Iterable[str | ModuleType] = (), *,
                 tasks: Mapping[str, Callable[..., Any]] | Iterable[Callable[..., Any]] = (), ext: Iterable[Ext] = (),
                 on_dead: str = "", on_missed: str = "") -> None:
        """InvalidArgumentError for a start without a time zone; ImportError for a module that can't be imported."""
        self.now_us = parse_instant(start, "start")  # the wall clock
        self._mono_us = 0
        self.journal = MemoryJournal()
        given: Iterable[str | ModuleType] = [modules] if isinstance(modules, str | ModuleType) else modules
        names = [m if isinstance(m, str) else m.__name__ for m in given]
        found = _collected(names, tasks)
        self.exts = load_exts(names, ext)
        self.client = SimClient(self)
        self._inline = Inline(self, found, load_hooks(names))
        self._last_id = 0
        self._answers: dict[tuple[int, int], Any] = {}
        self._effects = Effects()
        self._alarm_jobs = AlarmJobs(*(name and parse_job_name(name) for name in (on_dead, on_missed)))
        self.engine = self._boot()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    @property
    def async_client(self) -> SimAsyncClient:
        """A client for asyncio: the face of AsyncClient on this simulator."""
        from .transport import SimAsyncClient  # noqa: PLC0415 - for who tests coroutines

        return SimAsyncClient(self)

    def close(self) -> None:
        """Give everything back. Later calls raise FailedPreconditionError."""
        try:
            self._inline.stop()
        finally:
            self.journal.close()

    @property
    def now(self) -> datetime:
        """The virtual wall clock, aware, in UTC."""
        now = to_datetime(self.now_us)
        assert now is not None
        return now

    @property
    def mono_us(self) -> int:
        """The virtual monotonic clock, microseconds."""
        return self._mono_us

    # Time

    def advance(self, seconds: Any = None, *, to: Any = None) -> None:
        """Let time pass, from event to event, running what is due. `seconds` is a duration, `to` an instant that is not past.

        Inside a task it is the task that takes so long: other runs wait, and its timeout or a cancel ends it right here.
        """
        if (seconds is None) == (to is None):
            raise InvalidArgumentError("advance: give seconds or to=, one of them")
        end = self.now_us + parse_duration(seconds, "seconds") if to is None else parse_instant(to, "to")
        if end < self.now_us:
            raise InvalidArgumentError(f"advance: {to} is past; step_clock sets the clock back")
        while self.next_event(end):
            pass
        self._inline.check()

    def next_event(self, end_us: int) -> bool:
        """Settle the present, then jump to the next event not later than `end_us`, and settle that. False: there was none, and
        time stands at `end_us` (where it was, for NEVER).
        """
        self._settle(end_us)
        at = min(self._next_us(), self._inline.limit_us())
        if at <= end_us and at != NEVER:
            self._jump(at)
            self._inline.check()
            self._settle(end_us)
            return True
        if end_us != NEVER:
            self._jump(end_us)
            self._settle(end_us)
        return False

    def step_clock(self, seconds: float) -> None:
        """Somebody sets the wall clock, forward or (negative) backward, as the server notices it. No other time passes."""
        self.now_us += round(seconds * US)
        if seconds >= 0:
            self.engine.missed_before_us = self.now_us
            self._step([])
        else:
            blocks = history.of_runs(self.journal.history_blocks())
            fired = [pair for _, data in blocks for pair in history.Block(data).fired_after(self.now_us)]
            self._step([ClockBack(fired, history.dropped(self.journal.history_blocks(), self.engine.state))])

    def crash(self, down: Any = 0) -> None:
        """The process ends as by kill -9, stays away for `down` (a duration), and starts again from what is durable.

        The task that runs is lost with it: what it still does changes nothing.
        """
        started = self._inline.killed()
        self.journal = self.journal.crash()
        self._answers.clear()
        self._jump(self.now_us + parse_duration(down, "down"))
        self.engine = self._boot(started)

    def _boot(self, started: int = -1) -> Engine:
        state = recover(self.journal)
        engine = Engine(
            state, Zones(load_zone), history.pack, Now(self.now_us, self._mono_us), verbs=jobs.VERBS,
            zone_version=ZONE_VERSION, boot_id="simulated", server="wheelsched simulator", alarm_jobs=self._alarm_jobs,
        )
        engine.retention_us = NEVER // 2  # history is kept whole
        for worker, known in list(state.workers.items()):
            if known.kind == "pool":
                engine.lose(WorkerGone(worker, started, Outcome.LOST, "worker lost: the server was ended"))
            else:
                engine.adopt(worker)
        peers.add_worker(engine, WORKER, "simulated", "pool")
        self.engine = engine
        self._hello(WORKER, role="worker", tasks=self._inline.announced())
        self._hello(CLIENT, role="client")
        return engine

    def _hello(self, conn: int, **fields: Any) -> None:
        self.call(conn, ("hello", {"version": frames.VERSION, "name": "simulated", **fields}))

    @property
    def idle(self) -> bool:
        """Is nothing left to happen?"""
        return self._next_us() == NEVER

    def _next_us(self) -> int:
        mono = self._effects.wake_mono_us
        return min(self._effects.wake_wall_us, NEVER if mono == NEVER else self.now_us + mono - self._mono_us)

    def _jump(self, to_us: int) -> None:
        if to_us > self.now_us:
            self._mono_us += to_us - self.now_us
            self.now_us = to_us

    def _settle(self, end_us: int) -> None:
        """Do all that is due now. A task may take the time beyond `end_us`; then no other one is begun."""
        for _ in range(STEPS_MAX):
            self._step([])
            if not self._inline.work(end_us) and not self._effects.again:
                return
        raise InternalError(f"{STEPS_MAX} steps at {self.now} and no end: is there a task that enqueues itself without a delay?")

    def _step(self, inputs: list[Any]) -> None:
        effects = self._effects = self.engine.step(Now(self.now_us, self._mono_us), inputs)
        seq = self.journal.append(Batch(records=effects.records, history=effects.history))
        assert seq == effects.seq, f"journal at {seq}, state at {effects.seq}"
        for conn, frame in effects.replies:
            (body,) = frames.FrameReader(frames.REPLY_MAX).feed(frame)
            reply = frames.parse_reply(body)
            self._answers[conn, reply.id] = reply
        for _, token, at_once in effects.cancels:
            self._inline.cancel(token, at_once=at_once)

    # Requests

    def call(self, conn: int, *requests: tuple[str, dict[str, Any]]) -> Any:
        """One turn with these requests, in the wire's format; the result of the last, or its error."""
        inputs = []
        for verb, args in requests:
            self._last_id += 1
            (body,) = frames.FrameReader(frames.FRAME_MAX).feed(frames.encode_request(self._last_id, verb, args))
            known = BY_NAME.get(verb, UNKNOWN)
            found = history.look_for(self.journal.history_blocks(), verb, args) if known.history else None
            inputs.append(Incoming(conn, frames.parse_request(body), 0, found))
        self._step(inputs)
        while (conn, self._last_id) not in self._answers and (self.engine.sweeps or self.engine.postponed):
            self._step([])
        reply = self._answers.pop((conn, self._last_id), None)
        self._answers.clear()
        if reply is None:
            raise DeadlineExceededError("there is no answer in this turn")
        if reply.error is not None:
            raise reply.error
        return reply.result

    def ask(self, verb: str, args: dict[str, Any]) -> Any:
        """A client's question, answered at once. The errors of the server."""
        if BY_NAME.get(verb, UNKNOWN).answered_by in (ENGINE, RELOAD):
            return self.call(CLIENT, (verb, args))
        self._step([])
        return look_up(self.engine, self.journal, verb, args, self.now_us, self.engine.running.see(*self._inline.running()))

    # What tests ask

    def runs(self, job: str | None = None, state: str | None = None, *, skipped: bool = False) -> list[Run]:
        """All runs of a job (or a glob of names), by nominal time; with `skipped`, also the occurrences that made none."""
        return sorted(self.client.runs(job, state, skipped=skipped), key=lambda run: (run.scheduled_at, run.created_at))

    def enqueued(self, task: str | None = None, *, job: str | None = None, args: Any = ANY, kwargs: Any = ANY, queue: str | None = None,
                 at: Any = None) -> list[Run]:
        """Open runs (scheduled, queued, waiting to be retried or running) that fit; `at`: their nominal time."""
        self._step([])
        at_us = None if at is None else -(-parse_instant(at, "at") // MS) * MS
        name = None if job is None else parse_job_name(job)
        found = []
        for run in self.client.runs(name):
            row = None if run.final else self.engine.state.find_run(bytes.fromhex(run.id))
            if row is None or (task is not None and run.task != task) or (queue is not None and run.queue != queue):
                continue
            have_args, have_kwargs = frames.decode_payload(self.engine.state.runs.blobs(row)[0], self.exts.decode)
            if (args is ANY or have_args == list(args)) and (kwargs is ANY or have_kwargs == dict(kwargs)) \
                    and (at_us is None or run.scheduled_at == to_datetime(at_us)):
                found.append(run)
        return found

    def assert_enqueued(self, task: str | None = None, *, count: int | None = None, **wanted: Any) -> list[Run]:
        """AssertionError unless an open run fits (see `enqueued`), or just `count` of them; gives them back."""
        found = self.enqueued(task, **wanted)
        told = self._told(task, wanted)
        assert found if count is None else len(found) == count, f"{len(found)} open runs {told}; open are: {self._shown()}"
        return found

    def refute_enqueued(self, task: str | None = None, **wanted: Any) -> None:
        """AssertionError when an open run fits (see `enqueued`)."""
        found = self.enqueued(task, **wanted)
        assert not found, f"{len(found)} open runs {self._told(task, wanted)}: {found}"

    def _told(self, task: str | None, wanted: Mapping[str, Any]) -> str:
        return "with " + (", ".join(f"{k}={v!r}" for k, v in {"task": task, **wanted}.items() if v is not None) or "anything")

    def _shown(self) -> str:
        return ", ".join(f"{run.task} ({run.job}, {run.state})" for run in self.enqueued()[:20]) or "none"


def _collected(modules: list[str], tasks: Mapping[str, Callable[..., Any]] | Iterable[Callable[..., Any]]) -> dict[str, Handler]:
    found = load_tasks(modules)
    if isinstance(tasks, Mapping):
        found |= {name: Handler(name, function, {}) for name, function in tasks.items()}
    else:
        for function in tasks:
            made = getattr(function, ATTRIBUTE, None)
            if not isinstance(made, Handler):
                raise InvalidArgumentError(f"tasks: {function!r} is not marked with @task; give {{name: function}}")
            found[made.name] = made.around(function)
    return found

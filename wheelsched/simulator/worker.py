"""The one worker inside a Simulator: it leases a run, executes it on the spot, and reports it."""

from __future__ import annotations

from contextlib import ExitStack
from contextvars import copy_context
from dataclasses import dataclass
from struct import pack
from types import CoroutineType
from typing import TYPE_CHECKING, Any, Final, Protocol

from ..model.errors import FailedPreconditionError
from ..model.nouns import KILL_GRACE_US, NEVER, US, Outcome
from ..tasks.hooks import failure_of, surround
from ..tasks.returned import of_batch, returned
from ..tasks.tasks import Batch, Handler, check_kept, current_run, enter_run
from ..tasks.verdicts import error_result, trace_of, verdict

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..engine.engine import Engine
    from ..model.payloads import Exts
    from ..tasks.hooks import Hooks

WORKER: Final = 2  # its connection number
_LEASE: Final = {"queues": [], "credits": 1, "wait_us": 0}


class Host(Protocol):
    """The simulator, as far as its worker needs it."""

    @property
    def now_us(self) -> int:
        """The virtual wall clock."""

    @property
    def mono_us(self) -> int:
        """The virtual monotonic clock."""

    @property
    def exts(self) -> Exts:
        """Users' types in payloads."""

    @property
    def engine(self) -> Engine:
        """The engine of now: a crash makes another."""

    def call(self, conn: int, *requests: tuple[str, dict[str, Any]]) -> Any:
        """The answer to the last of the requests."""


class Ended(BaseException):
    """Ends a task whose timeout is over, or that was cancelled; user code should not catch it."""


@dataclass(slots=True)
class Held:
    """The run that is executed."""

    token: int
    limit_us: int  # monotonic
    outcome: Outcome = Outcome.TIMED_OUT  # of a run that is ended at its limit
    lost: bool = False  # the server crashed meanwhile
    cancelled: bool = False
    begun_us: int = 0  # wall clock
    silence_us: int = NEVER  # heartbeat_timeout
    beat_us: int = 0  # monotonic; its own last heartbeat, or its start

    def end_us(self) -> int:
        """Monotonic instant at which it is ended."""
        return min(self.limit_us, self.beat_us + self.silence_us)

    def why(self) -> str:
        """Why it is ended, when it is."""
        silent = not self.cancelled and self.beat_us + self.silence_us < self.limit_us
        return f"timed out: no heartbeat for {self.silence_us / US:g} s" if silent else "the simulator ended it"


class Simulated(Batch):
    """The one run of a lease, as user code sees it."""

    def __init__(self, reply: dict[str, Any], sim: Host) -> None:
        super().__init__(reply)
        self.exts = sim.exts
        self._sim = sim
        self._started_us = sim.now_us
        silence_us = self.specs[0].get("heartbeat_timeout_us", NEVER)
        self.held = Held(self.tokens[0], sim.mono_us + self.specs[0]["timeout_us"], begun_us=sim.now_us, silence_us=silence_us,
                         beat_us=sim.mono_us)

    def started_us(self, _row: int) -> int:
        """When it was entered."""
        return self._started_us

    def cancelled(self, _row: int) -> bool:
        """Shall it end?"""
        return self.held.cancelled

    def heartbeat(self, _row: int, text: str, checkpoint: bytes | None) -> None:
        """Tell the engine."""
        self.held.beat_us = self._sim.mono_us
        answer = self._sim.call(WORKER, ("heartbeat", {
            "id": self.ids, "token": self.token_column, "started": b"\1", "progress": [[0, text]],
            "checkpoint": [] if checkpoint is None else [[0, checkpoint]],
        }))
        if checkpoint is not None:
            check_kept(answer)


class Inline:
    """One worker inside the simulator: leases a run, executes it on the spot, reports it."""

    def __init__(self, sim: Host, tasks: dict[str, Handler], hooks: Hooks) -> None:
        self._sim = sim
        self._tasks = tasks
        self._hooks = hooks
        self._begun = False  # were the start hooks called?
        self._held: Held | None = None
        self._next: dict[str, Any] | None = None  # leased with the report of the run before

    def announced(self) -> dict[str, dict[str, Any]]:
        """The tasks as a worker's hello names them."""
        return {name: task.wire() for name, task in self._tasks.items()}

    def running(self) -> tuple[dict[int, int], dict[int, int]]:
        """Token of the run that is executed -> worker; and -> when it was entered."""
        if self._held is None:
            return {}, {}
        return {self._held.token: self._sim.engine.sessions[WORKER].worker}, {self._held.token: self._held.begun_us}

    def limit_us(self) -> int:
        """Wall instant at which the run that is executed is ended."""
        return NEVER if self._held is None else self._sim.now_us + max(0, self._held.end_us() - self._sim.mono_us)

    def check(self) -> None:
        """Called from within a task: end it when its time is over."""
        if self._held is not None and not self._held.lost and self._sim.mono_us >= self._held.end_us():
            raise Ended

    def cancel(self, token: int, *, at_once: bool) -> None:
        """Ask a run to end: cooperatively, then by force after the grace time, or at once."""
        if self._held is not None and self._held.token == token:
            self._held.cancelled = True
            self._held.outcome = Outcome.CANCELLED
            self._held.limit_us = min(self._held.limit_us, self._sim.mono_us + (0 if at_once else KILL_GRACE_US))

    def killed(self) -> int:
        """The worker dies with its server; the largest token whose user code was entered."""
        self._next = None
        self._begun = False
        if self._held is None:
            return -1
        token = self._held.token
        self._held.lost, self._held = True, None
        return token

    def stop(self) -> None:
        """The worker ends in good order. What a stop hook raises, is raised."""
        if self._begun:
            self._begun = False
            self._call(*reversed(self._hooks.stop))

    def _call(self, *hooks: Callable[[], Any]) -> None:
        for function in hooks:
            if failure := failure_of(function, _awaited):
                raise FailedPreconditionError(failure)

    def work(self, end_us: int) -> bool:
        """Execute one run, if one is ready, no task is under way, and it is not later than `end_us`."""
        if self._held is not None or not self._tasks or self._sim.now_us > end_us:
            return False
        reply, self._next = self._next or self._sim.call(WORKER, ("lease", _LEASE)), None
        if not reply["n"]:
            return False
        if not self._begun:
            self._begun = True
            self._call(*self._hooks.start)
        started_us = self._sim.now_us
        batch = Simulated(reply, self._sim)
        held = self._held = batch.held
        number = Outcome.INTERRUPTED
        result: dict[str, Any] = {}
        try:
            number, result = copy_context().run(self._execute, batch, held)
        finally:  # also when a KeyboardInterrupt or a test's failure goes through
            if not held.lost:
                self._held = None
                report = {
                    "id": batch.ids, "token": batch.token_column, "outcome": bytes([number]), "started_us": pack("<q", started_us),
                    "ended_us": pack("<q", self._sim.now_us), "result": [[0, result]] if result else [],
                }
                if self._sim.now_us <= end_us:
                    self._next = self._sim.call(WORKER, ("finish", report), ("lease", _LEASE))
                else:
                    self._sim.call(WORKER, ("finish", report))
        return True

    def _execute(self, batch: Simulated, held: Held) -> tuple[Outcome, dict[str, Any]]:
        task = self._tasks[batch.specs[0]["task"]]
        value: Any = None
        enter_run((batch, 0))
        try:
            with ExitStack() as stack:
                surround(stack, self._hooks.around, batch, [0])
                if task.batch:
                    (value,) = of_batch(_awaited(task.function([current_run()])), 1)
                else:
                    args, kwargs = batch.arguments(0)
                    value = _awaited(task.function(*args, **kwargs))
        except Ended:
            return held.outcome, {"type": f"wheelsched.{held.outcome.name.title().replace('_', '')}", "message": held.why()}
        except (Exception, SystemExit) as e:  # noqa: BLE001 - whatever user code raises fails this run, and only this run
            return ended_by(e)
        else:
            failed = task.batch and issubclass(type(value), BaseException)
            return ended_by(value) if failed else (Outcome.SUCCEEDED, returned(value, batch.exts))


def _awaited(value: Any) -> Any:
    """What a coroutine gives, without an event loop: it may await other coroutines, and give way, but not wait for something."""
    if type(value) is not CoroutineType:  # isinstance would ask the value, and that may raise
        return value
    try:
        while value.send(None) is None:
            pass
    except StopIteration as done:
        return done.value
    value.close()
    raise FailedPreconditionError("a coroutine waits for something, and a Simulator has no event loop: real time does not pass there")


def ended_by(error: BaseException) -> tuple[Outcome, dict[str, Any]]:
    """Outcome and result of a task that raised."""
    outcome, result = verdict(error)
    if outcome == Outcome.FAILED:
        result |= error_result(error, trace_of(error))
    return outcome, result

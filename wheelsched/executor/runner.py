"""User code's side of an executor: enter runs in token order, keep what they return, print and raise.

The hot path is `Runner.execute`: about 0.5 µs a run beyond user code.
"""

from __future__ import annotations

import os
import time
from contextlib import ExitStack
from contextvars import copy_context
from itertools import islice
from types import CoroutineType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import msgpack

from ..model.nouns import Outcome
from ..model.payloads import NO_EXTS
from ..process import processes
from ..process.usage import MEASURED_NS
from ..tasks.hooks import surround
from ..tasks.returned import of_batch, returned
from ..tasks.tasks import Batch, Handler, RunContext, enter_run
from ..tasks.verdicts import error_result, trace_of, verdict
from .surroundings import SLOW_NS, forget_loop

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from ..process.kept import Kept
    from ..process.usage import Meter
    from .loops import RunLoop
    from .outputs import Captures
    from .surroundings import Surroundings

_OUR_FRAMES: Final = (__name__, f"{__package__}.crew")  # that lead to user code: of no use in a traceback
LOOK_S: Final = 0.05  # how often a coroutine's run looks whether it was told to end


class Reports(Protocol):
    """The executor's end of its socket, as far as a runner reports over it."""

    offset_ns: int  # wall clock minus monotonic clock

    def heartbeat(self, runner: Runner, work: Work, row: int, text: str, checkpoint: bytes | None, /) -> None:
        """Send progress of a row; a checkpoint waits for its answer."""

    def unanswered(self, numbers: Iterable[int], /) -> bool:
        """Whether one of these requests has no answer yet."""


class Work(Batch):
    """A batch in hand: which rows are entered, how they ended, what was reported."""

    def __init__(self, reply: dict[str, Any], runner: Runner) -> None:
        super().__init__(reply)
        self.exts = runner.exts
        self._runner = runner
        self.rows: Iterator[int] = iter(range(self.n))  # who takes a row from it has it: atomic, so two threads may
        self.done = 0  # rows below have ended
        self.reported = 0  # rows below were sent
        self.handed_back = 0  # rows from the end that were handed back
        self.begun_ns = [0] * self.n
        self.ended_ns: list[int] | memoryview = [0] * self.n
        self.outcome: bytearray | memoryview = bytearray([Outcome.SUCCEEDED]) * self.n
        self.results: dict[int, dict[str, Any]] = {}
        self.kept: Kept | None = None
        self._make_room: Callable[[Work, int], None]

    def keep_in(self, kept: Kept, make_room: Callable[[Work, int], None]) -> None:
        """Have what ends outlive this process. `make_room` reports the rows below one, and returns when the server has answered."""
        kept.begin(self.token_column, time.monotonic_ns(), self._runner.wire.offset_ns)
        self.kept, self._make_room, self.ended_ns, self.outcome = kept, make_room, kept.ended_ns, kept.outcome

    def keep(self, row: int) -> None:
        """A row's run is over and has given something: before it counts as ended, that is put where it outlives this process."""
        if self.kept is None or row not in self.results:
            return
        result = self.results[row]
        if not self.kept.put(row, result):
            self._make_room(self, row)
            self.kept.forget(row)
            kept = self.kept.put(row, result)
            assert kept, "a result of bounded size has room in an empty log"

    def started_us(self, row: int) -> int:
        """As for Batch."""
        return (self.begun_ns[row] + self._runner.wire.offset_ns) // 1_000

    def cancelled(self, row: int) -> bool:
        """As for Batch."""
        return self._runner.told_to_end(self.tokens[row], asking=True)

    def heartbeat(self, row: int, text: str, checkpoint: bytes | None) -> None:
        """As for Batch."""
        self._runner.heartbeat(self, row, text, checkpoint)


class Entered(NamedTuple):
    """Rows that one call of user code is for: one, or those of a batch handler."""

    work: Work
    rows: list[int]
    made: Handler


def group_of(work: Work, first: int, made: Handler) -> list[int]:
    """The rows that one call takes, taken from `work.rows`: `first`, and of a batch handler those of the same task behind it.

    A run whose last attempt ended with its process gets a call of its own: if it was the cause, it takes nobody along again.
    """
    end, alone = first + 1, work.alone
    more = made.batch and first not in alone
    while more and end < work.n and end not in alone and work.specs[work.spec_of[end]]["task"] == made.name:
        end += 1
    return [first, *islice(work.rows, end - first - 1)]


class Runner:
    """Runs the rows of batches, one at a time, and tells a place of the started file which."""

    def __init__(self, file: processes.StartedFile, words: memoryview, outputs: Captures, wire: Reports) -> None:
        """`words`: of the place; `wire`: where progress goes."""
        self.file = file
        self.words = words
        self.outputs = outputs
        self.wire = wire
        self.tasks: dict[str, Handler] = {}
        self.around: Sequence[Callable[[RunContext], Any]] = ()  # middleware
        self.exts = NO_EXTS
        self.meter: Meter | None = None  # where one run at a time makes a process's use that run's
        self.progress_ns = 0  # when some was sent
        self.asked = 0  # the token whose user code has learnt that it was told to end
        self.surroundings: Surroundings | None = None  # where one run at a time has the process for itself
        self._skips_seen = 0
        self._skipped: set[int] = set()
        self._loop: RunLoop | None = None

    def execute(self, work: Work, quick_ns: int) -> None:
        """The hot path: every row in token order. A call of at most `quick_ns` has printed nothing and was not told to end."""
        words, outputs, now = self.words, self.outputs, time.monotonic_ns
        tokens, ends, payload, spec_of = work.tokens, work.payload_end, work.payload, work.spec_of
        begun, ended, results = work.begun_ns, work.ended_ns, work.results
        unpack, enter, hook, copied = msgpack.unpackb, enter_run, self.exts.decode, copy_context
        made = [self.tasks[spec["task"]] for spec in work.specs]
        functions = [None if self.around or one.batch else one.function for one in made]
        mono, started, skips = processes.W_MONO_NS, processes.W_STARTED, processes.W_SKIPS
        seen = -1 if self._skipped else self._skips_seen
        call: list[Any]
        if self.meter is not None:
            self.meter.begin()
        if self.surroundings is not None:
            self.surroundings.due = True
        t = over = now()
        start = 0
        for row in work.rows:
            function = functions[spec_of[row]]
            if function is None:
                t = self._run_group(work, row, made[spec_of[row]])
                continue
            begun[row] = t
            words[mono] = t  # before the token: a reader that sees this token never sees an earlier time with it
            words[started] = tokens[row]
            if words[skips] != seen and self._skip(work, row):
                work.done = row + 1
                continue
            enter((work, row))
            try:
                start = ends[row - 1] if row else 0
                if ends[row] - start == 3:  # [[], {}]
                    entered = now()
                    inside = copied()  # what user code sets there is gone with the run
                    value = inside.run(function)
                else:
                    # args, kwargs, perhaps headers
                    call = unpack(payload[start : ends[row]], raw=False, strict_map_key=True, timestamp=3, ext_hook=hook)
                    entered = now()
                    inside = copied()
                    value = inside.run(function, *call[0], **call[1])
                if value is not None and type(value) is CoroutineType:
                    value = inside.run(self._awaited, work, row, value)
                over = t = now()
                took = t - entered
                if value is not None:
                    self._returned(work, row, value)
            except BaseException as e:  # noqa: BLE001 - whatever user code raises ends this run, and this run only
                self._failed(work, row, e)
                over = t = now()
                took = t - begun[row]
            if took > quick_ns:
                self._settle(work, row, row + 1, took)
            if results and row in results:
                work.keep(row)
                t = now()
            ended[row] = over  # last: should a run behind it end this process, this one has ended
            work.done = row + 1
        if self.surroundings is not None and self.surroundings.due:
            self._put_right(self.surroundings)
        if work.done and outputs.waiting:
            self._settle(work, work.done - 1, work.done, 0)
            work.keep(work.done - 1)

    def _skip(self, work: Work, row: int) -> bool:
        """A cancel came before this row was entered: it ends without user code."""
        count = self.file.words[processes.W_SKIPS]
        if count != self._skips_seen:
            self._skips_seen, self._skipped = count, self.file.skips()
        token = work.tokens[row]
        if token not in self._skipped:
            if self._skipped and token > max(self._skipped):
                self._skipped = set()
            return False
        work.outcome[row] = Outcome.CANCELLED
        work.ended_ns[row] = work.begun_ns[row]
        return True

    def _run_group(self, work: Work, first: int, made: Handler) -> int:
        """One call, from row `first` on, with all that there may be around it; the time afterwards."""
        rows = group_of(work, first, made)
        self.mark(work, rows, batch=made.batch)
        entered = Entered(work, [row for row in rows if not self.left_out(work, row)], made)
        self.call(entered)
        self.words[processes.W_FIRST] = 0
        work.done = rows[-1] + 1
        return time.monotonic_ns()

    def call(self, entered: Entered) -> None:
        """Marked rows, from user code's first instruction to the end of what it leads to."""
        if entered.rows:
            copy_context().run(self._call, entered)
            self.conclude(entered)

    def _call(self, entered: Entered) -> None:
        work, row = entered.work, entered.rows[-1]
        enter_run((work, entered.rows[0]))
        try:
            with ExitStack() as stack:
                surround(stack, self.around, work, entered.rows)
                value = self.invoke(entered)
                self.keep(entered, self._awaited(work, row, value) if type(value) is CoroutineType else value)
        except BaseException as e:  # noqa: BLE001 - whatever user code raises ends these runs, and these runs only
            self.fail(entered, e)

    async def coroutine(self, entered: Entered) -> None:
        """As `call`, of a coroutine function that somebody else's loop runs; what it raises, is raised."""
        try:
            with ExitStack() as stack:
                surround(stack, self.around, entered.work, entered.rows)
                try:
                    value = await self.invoke(entered)
                except BaseException as e:
                    self.raised(e)
                    raise
                self.keep(entered, value)
        except (SystemExit, KeyboardInterrupt) as e:  # asyncio would have it end the loop, and all that runs there
            self.fail(entered, e)

    def mark(self, work: Work, rows: list[int], *, batch: bool) -> None:
        """Show that these rows, of one call, are in user code from now on."""
        words, now = self.words, time.monotonic_ns()
        words[processes.W_FIRST] = work.tokens[rows[0]] if batch else 0
        words[processes.W_MONO_NS] = now
        words[processes.W_STARTED] = work.tokens[rows[-1]]
        for row in rows:
            work.begun_ns[row] = now

    def left_out(self, work: Work, row: int) -> bool:
        """Ask after `mark`: was this row cancelled before? Then it is over."""
        return (self.file.words[processes.W_SKIPS] != self._skips_seen or bool(self._skipped)) and self._skip(work, row)

    def invoke(self, entered: Entered) -> Any:
        """Call user code; what it gives, which may be a coroutine. What it raises, and what can't be called, is raised."""
        work, function = entered.work, entered.made.function
        try:
            if entered.made.batch:
                return function([RunContext(work, row) for row in entered.rows])
            args, kwargs = work.arguments(entered.rows[0])
            return function(*args, **kwargs)
        except BaseException as e:
            self.raised(e)
            raise

    def raised(self, error: BaseException) -> None:
        """User code raises this, and what is around it comes next."""

    def keep(self, entered: Entered, value: Any) -> None:
        """What user code gave, for each of the rows. NotRetried for what is no outcome of a batch."""
        work, rows = entered.work, entered.rows
        if not entered.made.batch:
            if value is not None:
                self._returned(work, rows[0], value)
            return
        for row, one in zip(rows, of_batch(value, len(rows)), strict=True):
            if issubclass(type(one), BaseException):
                self._failed(work, row, one)
            elif one is not None:
                self._returned(work, row, one)

    def fail(self, entered: Entered, error: BaseException) -> None:
        """User code raised this."""
        for row in entered.rows:
            self._failed(entered.work, row, error)

    def conclude(self, entered: Entered) -> None:
        """User code is over: when, its output, and whether it was told to end."""
        work, rows = entered.work, entered.rows
        now = time.monotonic_ns()
        self._settle(work, rows[0], rows[-1] + 1, now - work.begun_ns[rows[0]])
        for row in rows:
            work.keep(row)
            work.ended_ns[row] = now

    def _awaited(self, work: Work, row: int, value: Any) -> Any:
        """The result of a run's coroutine. A run that is told to end is cancelled, once."""
        import asyncio  # noqa: PLC0415 - only for tasks that are coroutines

        token = work.tokens[row]

        async def watched() -> Any:
            task, loop = asyncio.ensure_future(value), asyncio.get_running_loop()

            def look() -> None:
                if task.done():
                    return
                if not self.told_to_end(token):
                    loop.call_later(LOOK_S, look)
                elif task.cancel("this run was told to end"):
                    self.asked = token

            timer = loop.call_later(LOOK_S, look)
            try:
                return await task
            finally:
                timer.cancel()

        return self.await_(watched())

    def await_(self, value: Any) -> Any:
        """The result of a coroutine, in a copy of the context of who calls; one event loop serves all, runs and hooks."""
        if self._loop is None:
            from .loops import RunLoop  # noqa: PLC0415 - as above

            self._loop = RunLoop(self._tell)
        return self._loop.run(value)

    def _tell(self, text: str) -> None:
        """Say something to the run in hand, or to the one that has just ended: it is in its stderr."""
        self.outputs.captures[1].write(text.encode("utf-8", "backslashreplace"))

    def _put_right(self, surroundings: Surroundings, took_ns: int = SLOW_NS) -> None:
        if told := surroundings.put_right(took_ns):
            self._tell(told)

    @property
    def loop(self) -> Any:
        """The event loop of `await_`, if there is one yet."""
        return None if self._loop is None else self._loop.loop

    def _returned(self, work: Work, row: int, value: Any) -> None:
        """Keep what a run returned, or a mark in its place."""
        work.results[row] = returned(value, self.exts)

    def _failed(self, work: Work, row: int, error: BaseException) -> None:
        trace = trace_of(error)
        while trace is not None and trace.tb_frame.f_globals.get("__name__") in _OUR_FRAMES:
            trace = trace.tb_next
        work.outcome[row], result = verdict(error)
        if work.outcome[row] == Outcome.FAILED:
            result |= error_result(error, trace)
        if result:
            work.results[row] = result
        else:
            work.results.pop(row, None)

    def heartbeat(self, work: Work, row: int, text: str, checkpoint: bytes | None) -> None:
        """User code of this row says that it goes on."""
        self._beat(work.tokens[row])
        self.wire.heartbeat(self, work, row, text, checkpoint)
        self._beat(work.tokens[row])  # what it waited for is no silence

    def _beat(self, token: int) -> None:
        """Have the parent see when."""
        words = self.words
        if token == words[processes.W_STARTED] or 0 < words[processes.W_FIRST] <= token <= words[processes.W_STARTED]:
            words[processes.W_BEAT_NS] = time.monotonic_ns()

    def told_to_end(self, token: int, *, asking: bool = False) -> bool:
        """Was this token's run told to end? With `asking` it is user code that asks, and then knows."""
        words = self.words
        told = words[processes.W_CANCEL]
        first, last = words[processes.W_FIRST], words[processes.W_STARTED]
        hit = told == token or (told == last and 0 < first <= token <= last)  # of a batch handler: all its runs
        if hit and asking:
            self.asked = token
        return hit

    def _timed_out(self, work: Work, row: int) -> str:
        silent_us = self.words[processes.W_SILENT_US] if self.told_to_end(work.tokens[row]) else 0
        timeout_us = work.specs[work.spec_of[row]]["timeout_us"]
        return f"timed out: no heartbeat for {silent_us / 1e6:g} s" if silent_us else f"timed out after {timeout_us / 1e6:g} s"

    def _settle(self, work: Work, start: int, end: int, took_ns: int) -> None:
        """After a run that was not over at once: its output, and whether it was told to end."""
        if self.meter is not None and took_ns >= MEASURED_NS:
            self._measure(self.meter, work, start, end)
        if self.surroundings is not None:
            self._put_right(self.surroundings, took_ns)
        forget_loop()
        self.outputs.install()
        if self.outputs.waiting:
            output = self.outputs.take()
            if output:
                work.results.setdefault(start, {}).update(output)
        cut_short = False
        for row in range(start, end):
            timeout_us = work.specs[work.spec_of[row]]["timeout_us"]
            late = work.outcome[row] == Outcome.FAILED and took_ns >= timeout_us * 1_000
            if late or self.told_to_end(work.tokens[row]):
                cut_short |= self._end_as_told(work, row, Outcome.TIMED_OUT if late else self.words[processes.W_WHY])
                if work.outcome[row] == Outcome.TIMED_OUT and end - start > 1:
                    work.results[row]["together"] = True  # nobody knows whose time it was
        if cut_short and self.words is self.file.words:  # one run at a time, so what is younger was started by this one
            processes.kill_younger(self.file.mark, work.begun_ns[start], os.getpgrp())

    @staticmethod
    def _measure(meter: Meter, work: Work, start: int, end: int) -> None:
        """What a call has used; its rows share the CPU time."""
        used = meter.take(work.begun_ns[start])
        used["cpu_us"] //= end - start
        for row in range(start, end):
            work.results.setdefault(row, {}).update(used)

    def _end_as_told(self, work: Work, row: int, why: int) -> bool:
        """A timeout is a timeout; a run that was cancelled and still ended well, without having asked, has succeeded: False."""
        if why == Outcome.CANCELLED and work.outcome[row] == Outcome.SUCCEEDED and self.asked != work.tokens[row]:
            return False
        work.outcome[row] = why
        for name in ("snooze_us", "retry_us", "reason", "retry", "bases"):  # what it raised counts no more
            work.results.get(row, {}).pop(name, None)
        if why == Outcome.TIMED_OUT:
            result = work.results.setdefault(row, {})
            result.pop("value", None)
            result.pop("left_out", None)
            result.setdefault("traceback", "")
            result |= {"type": "wheelsched.TimedOut", "message": self._timed_out(work, row)}
            work.results[row] = result
        return True

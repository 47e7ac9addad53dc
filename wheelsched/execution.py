"""User code's side of an executor: enter runs in token order, keep what they return, print and raise.

The hot path is `Runner.execute`: about 0.5 µs a run beyond user code.
"""

from __future__ import annotations

import io
import os
import select
import sys
import threading
import time
import traceback
from itertools import islice
from types import CoroutineType
from typing import TYPE_CHECKING, Any, Final

import msgpack

from . import process, protocol
from .errors import PayloadError
from .model import ERROR_TEXT_MAX, OUTPUT_MAX, Outcome
from .tasks import Batch, NotRetried, RunContext, Task, enter_run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType

PIPE_BYTES: Final = 1024 * 1024
_CALIBRATION_NS_MAX: Final = 50_000_000


class Work(Batch):
    """A batch in hand: which rows are entered, how they ended, what was reported."""

    def __init__(self, reply: dict[str, Any], runner: Runner) -> None:
        super().__init__(reply)
        self._runner = runner
        self.rows: Iterator[int] = iter(range(self.n))  # who takes a row from it has it: atomic, so two threads may
        self.done = 0  # rows below have ended
        self.reported = 0  # rows below were sent
        self.handed_back = 0  # rows from the end that were handed back
        self.begun_ns = [0] * self.n
        self.ended_ns = [0] * self.n
        self.outcome = bytearray([Outcome.SUCCEEDED]) * self.n
        self.results: dict[int, dict[str, Any]] = {}

    def started_us(self, row: int) -> int:
        """As for Batch."""
        return (self.begun_ns[row] + self._runner.offset_ns) // 1_000

    def cancelled(self, row: int) -> bool:
        """As for Batch."""
        return self._runner.told_to_end(self.tokens[row], asking=True)

    def heartbeat(self, row: int, text: str, checkpoint: bytes | None) -> None:
        """As for Batch."""
        self._runner.heartbeat(self, row, text, checkpoint)


class Outputs:
    """Descriptors 1 and 2, and sys.stdout and sys.stderr, of this process.

    What Python prints goes to memory. What is written to the descriptors (by children, by C) goes through pipes that a
    thread empties, so that a writer is never held up for long.
    """

    def __init__(self) -> None:
        self.log = os.fdopen(os.dup(2), "w", encoding="utf-8", errors="backslashreplace", buffering=1)
        self.captures = (process.Capture(1), process.Capture(2))
        self._lock = threading.Lock()
        self._poll = select.poll()
        self.pipes = (self._pipe(1), self._pipe(2))
        self.quick_ns = self._calibrate()
        self.install()

    def _pipe(self, fd: int) -> int:
        import fcntl  # noqa: PLC0415 - once

        read, write = os.pipe2(os.O_CLOEXEC)
        try:
            fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        except PermissionError:
            self.log.write("wheelsched: executor: output pipes of the default size only\n")
        os.set_blocking(read, False)
        os.dup2(write, fd)
        os.close(write)
        self._poll.register(read, select.POLLIN)
        return read

    def _calibrate(self) -> int:
        """Most of the time of the quickest write to a pipe: a call that took less has written to no descriptor, nor printed."""
        best = _CALIBRATION_NS_MAX
        for _ in range(50):
            start = time.monotonic_ns()
            os.write(1, b".")
            best = min(best, time.monotonic_ns() - start)
        self.collect()
        for capture in self.captures:
            capture.take()
        return best * 3 // 4

    def install(self) -> None:
        """Give Python code its streams, again if a run closed or replaced them."""
        for name, capture in zip(("stdout", "stderr"), self.captures, strict=True):
            stream = getattr(sys, name)
            if stream is None or stream.closed or getattr(stream, "buffer", None) is not capture:
                setattr(sys, name, io.TextIOWrapper(capture, "utf-8", "backslashreplace", write_through=True))

    @property
    def waiting(self) -> bool:
        """Is there output that nobody took? One system call."""
        return self.captures[0].dirty or self.captures[1].dirty or bool(self._poll.poll(0))

    def collect(self) -> None:
        """Take what the pipes hold. `dirty` is set before the read, so whoever sees neither has seen the truth."""
        for fd, capture in zip(self.pipes, self.captures, strict=True):
            capture.dirty = True
            with self._lock:
                process.drain(fd, capture)

    def take(self) -> dict[str, Any]:
        """What was written since the last call, as entries of a result map."""
        self.collect()
        found: dict[str, Any] = {}
        for name, capture in zip(("stdout", "stderr"), self.captures, strict=True):
            data, cut = capture.take()
            if data:
                found[name] = data
            if cut:
                found[f"{name}_cut"] = cut
        return found


def error_result(error: BaseException, trace: TracebackType | None) -> dict[str, Any]:
    """{type, message, traceback} of what user code raised, each text capped; the traceback keeps its end. NotRetried: retry False."""
    cls = type(error)
    name = cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"
    try:
        message = str(error)
    except Exception as e:  # noqa: BLE001 - user code's __str__ may raise anything
        message = f"<no text: {type(e).__name__} in __str__>"
    try:
        text = "".join(traceback.format_exception(cls, error, trace))
    except Exception as e:  # noqa: BLE001 - as above, and memory may be out
        text = f"<no traceback: {type(e).__name__}>"
    found: dict[str, Any] = {
        "type": _text(name[:200]), "message": _text(message[:ERROR_TEXT_MAX]), "traceback": _text(text[-ERROR_TEXT_MAX:]),
    }
    return found | {"retry": False} if isinstance(error, NotRetried) else found


def _text(value: str) -> str:
    """Without lone surrogates, which UTF-8 can't hold."""
    return value.encode("utf-8", "backslashreplace").decode()


class Runner:
    """Runs the rows of batches, one at a time, and tells the started file which."""

    def __init__(self, file: process.StartedFile, outputs: Outputs, heartbeat: Callable[[Work, int, str, bytes | None], None]) -> None:
        """`heartbeat` sends a row's progress and checkpoint."""
        self.file = file
        self.words = file.words
        self.outputs = outputs
        self.heartbeat = heartbeat
        self.tasks: dict[str, Task] = {}
        self.offset_ns = 0  # wall clock of the server minus monotonic clock
        self._asked = 0  # the token whose user code has learnt that it was told to end
        self._skips_seen = 0
        self._skipped: set[int] = set()
        self._loop: Any = None

    def execute(self, work: Work) -> None:
        """The hot path: every row in token order."""
        words, outputs, now = self.words, self.outputs, time.monotonic_ns
        quick_ns = outputs.quick_ns
        tokens, ends, payload, spec_of = work.tokens, work.payload_end, work.payload, work.spec_of
        begun, ended = work.begun_ns, work.ended_ns
        unpack, enter = msgpack.unpackb, enter_run
        made = [self.tasks[spec["task"]] for spec in work.specs]
        functions = [None if one.batch else one.function for one in made]
        mono, started, skips = process.W_MONO_NS, process.W_STARTED, process.W_SKIPS
        seen = -1 if self._skipped else self._skips_seen
        call: list[Any]
        t, start = now(), 0
        for row in work.rows:
            function = functions[spec_of[row]]
            if function is None:
                t = self._run_group(work, row, made[spec_of[row]])
                continue
            begun[row] = t
            words[mono] = t  # before the token: a reader that sees this token never sees an earlier time with it
            words[started] = tokens[row]
            if words[skips] != seen and self._skip(work, row):
                continue
            enter((work, row))
            try:
                start = ends[row - 1] if row else 0
                if ends[row] - start == 3:  # [[], {}]
                    entered = now()
                    value = function()
                else:
                    call = unpack(payload[start : ends[row]], raw=False, strict_map_key=True, timestamp=3)  # args, kwargs, perhaps headers
                    entered = now()
                    value = function(*call[0], **call[1])
                if value is not None and type(value) is CoroutineType:
                    value = self._awaited(value)
                ended[row] = t = now()
                took = t - entered
                if value is not None:
                    self._returned(work, row, value)
                    t = now()
            except BaseException as e:  # noqa: BLE001 - whatever user code raises ends this run, and this run only
                self._failed(work, row, e)
                ended[row] = t = now()
                took = t - begun[row]
            if took > quick_ns:
                self._settle(work, row, row + 1, took)
            work.done = row + 1
        if work.done and outputs.waiting:
            self._settle(work, work.done - 1, work.done, 0)

    def _skip(self, work: Work, row: int) -> bool:
        """A cancel came before this row was entered: it ends without user code."""
        if self.words[process.W_SKIPS] != self._skips_seen:
            self._skips_seen, self._skipped = self.words[process.W_SKIPS], self.file.skips()
        token = work.tokens[row]
        if token not in self._skipped:
            if self._skipped and token > max(self._skipped):
                self._skipped = set()
            return False
        work.outcome[row] = Outcome.CANCELLED
        work.ended_ns[row] = work.begun_ns[row]
        work.done = row + 1
        return True

    def _run_group(self, work: Work, first: int, made: Task) -> int:
        """Rows of one batch handler, from `first` on; the time afterwards."""
        end = first + 1
        while end < work.n and work.specs[work.spec_of[end]]["task"] == made.name:
            end += 1
        rows = [first, *islice(work.rows, end - first - 1)]
        words = self.words
        start = time.monotonic_ns()
        words[process.W_FIRST] = work.tokens[first]
        words[process.W_MONO_NS] = start
        words[process.W_STARTED] = work.tokens[rows[-1]]
        for row in rows:
            work.begun_ns[row] = start
        entered = [row for row in rows if not (words[process.W_SKIPS] != self._skips_seen or self._skipped) or not self._skip(work, row)]
        work.done = first
        enter_run((work, first))
        try:
            values = made.function([RunContext(work, row) for row in entered])
            if not isinstance(values, list | tuple) or len(values) != len(entered):
                got = f"{len(values)} of them" if isinstance(values, list | tuple) else type(values).__name__
                raise TypeError(f"a batch handler returns a list with one outcome for each of its {len(entered)} runs, not {got}")  # noqa: TRY301
            for row, value in zip(entered, values, strict=True):
                if isinstance(value, BaseException):
                    self._failed(work, row, value)
                elif value is not None:
                    self._returned_one(work, row, value)
        except BaseException as e:  # noqa: BLE001 - as for a single run
            for row in entered:
                self._failed(work, row, e)
        end_ns = time.monotonic_ns()
        for row in entered:
            work.ended_ns[row] = end_ns
        self._settle(work, first, rows[-1] + 1, end_ns - start)
        words[process.W_FIRST] = 0
        work.done = rows[-1] + 1
        return time.monotonic_ns()

    def _awaited(self, value: Any) -> Any:
        """The result of a coroutine; one event loop serves all runs."""
        if self._loop is None:
            import asyncio  # noqa: PLC0415 - only for tasks that are coroutines

            self._loop = asyncio.Runner()
        return self._loop.run(value)

    def _returned(self, work: Work, row: int, value: Any) -> None:
        """Keep what a run returned. PayloadError for what can't be kept."""
        data = protocol.encode_value(value, "return value")
        if len(data) > OUTPUT_MAX:
            raise PayloadError(f"return value of {len(data)} bytes: at most {OUTPUT_MAX} are kept; store it elsewhere and return its key")
        work.results[row] = {"value": data}

    def _returned_one(self, work: Work, row: int, value: Any) -> None:
        try:
            self._returned(work, row, value)
        except PayloadError as e:
            self._failed(work, row, e)

    def _failed(self, work: Work, row: int, error: BaseException) -> None:
        trace = error.__traceback__
        work.outcome[row] = Outcome.FAILED
        work.results[row] = error_result(error, trace.tb_next if trace is not None else None)  # without our own frame

    def told_to_end(self, token: int, *, asking: bool = False) -> bool:
        """Was this token's run told to end? With `asking` it is user code that asks, and then knows."""
        words = self.words
        told = words[process.W_CANCEL]
        first, last = words[process.W_FIRST], words[process.W_STARTED]
        hit = told == token or (told == last and 0 < first <= token <= last)  # of a batch handler: all its runs
        if hit and asking:
            self._asked = token
        return hit

    def _settle(self, work: Work, start: int, end: int, took_ns: int) -> None:
        """After a run that was not over at once: its output, and whether it was told to end."""
        self.outputs.install()
        if self.outputs.waiting:
            output = self.outputs.take()
            if output:
                work.results.setdefault(start, {}).update(output)
        for row in range(start, end):
            timeout_us = work.specs[work.spec_of[row]]["timeout_us"]
            late = work.outcome[row] == Outcome.FAILED and took_ns >= timeout_us * 1_000
            if late or self.told_to_end(work.tokens[row]):
                self._end_as_told(work, row, Outcome.TIMED_OUT if late else self.words[process.W_WHY])

    def _end_as_told(self, work: Work, row: int, why: int) -> None:
        """A timeout is a timeout; a run that was cancelled and still ended well, without having asked, has succeeded."""
        if why == Outcome.CANCELLED and work.outcome[row] == Outcome.SUCCEEDED and self._asked != work.tokens[row]:
            return
        work.outcome[row] = why
        if why == Outcome.TIMED_OUT:
            result = work.results.setdefault(row, {})
            result.pop("value", None)
            result.setdefault("traceback", "")
            result |= {"type": "wheelsched.TimedOut", "message": f"timed out after {work.specs[work.spec_of[row]]['timeout_us'] / 1e6:g} s"}
            work.results[row] = result

"""An executor from inside: lease, run, report, over one stream socket that its parent handed down.

    python -m wheelsched.worker FD STARTED_FILE PARENT_PID FLAGS MODULE...

One run at a time, in token order. While a batch is executed the next one is on its way, and a thread looks every 50 ms
whether finished runs should be reported and, when the run in hand turns out slow, hands the runs behind it back.
Exit codes: 0 told to stop, or the parent's end was closed; 3 a module can't be imported; 4 refused by the server.
"""

from __future__ import annotations

import faulthandler
import gc
import io
import os
import select
import socket
import subprocess
import sys
import threading
import time
import traceback
from array import array
from collections import deque
from importlib import import_module
from itertools import islice
from types import CoroutineType
from typing import TYPE_CHECKING, Any, Final

import msgpack

from . import process, protocol
from .errors import PayloadError, WheelschedError
from .model import ERROR_TEXT_MAX, NEVER, OUTPUT_MAX, Outcome
from .tasks import Batch, RunContext, Task, builtin_tasks, current_run, enter_run, load_tasks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType

EXIT_IMPORT: Final = 3
EXIT_REFUSED: Final = 4
BATCH_NS: Final = 50_000_000  # work that one batch should hold, and how long a report may wait
CREDITS_START: Final = 64
CREDITS_MAX: Final = 16_384
FINISH_ROWS_MAX: Final = 8_192  # rows of one finish frame: under 350 KB without results
FINISH_RESULT_BYTES: Final = 256 * 1024  # results of one frame, and one more
PROGRESS_NS: Final = 100_000_000
PIPE_BYTES: Final = 1024 * 1024
_NOT_RUN: Final = bytes([Outcome.NOT_STARTED])


class Work(Batch):
    """A batch in hand: which rows are entered, how they ended, what was reported."""

    def __init__(self, reply: dict[str, Any], executor: Executor) -> None:
        super().__init__(reply)
        self._executor = executor
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
        return (self.begun_ns[row] + self._executor.offset_ns) // 1_000

    def cancelled(self, row: int) -> bool:
        """As for Batch."""
        return self._executor.told_to_end(self.tokens[row], asking=True)

    def heartbeat(self, row: int, text: str) -> None:
        """As for Batch."""
        self._executor.heartbeat(self, row, text)


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
        """Half the time of the quickest write to a pipe: a run that took less has written to no descriptor."""
        best = BATCH_NS
        for _ in range(50):
            start = time.monotonic_ns()
            os.write(1, b".")
            best = min(best, time.monotonic_ns() - start)
        self.collect()
        for capture in self.captures:
            capture.take()
        return best // 2

    def install(self) -> None:
        """Give Python code its streams, again if a run closed or replaced them."""
        for name, capture in zip(("stdout", "stderr"), self.captures, strict=True):
            stream = getattr(sys, name)
            if stream is None or stream.closed or getattr(stream, "buffer", None) is not capture:
                setattr(sys, name, io.TextIOWrapper(capture, "utf-8", "backslashreplace", write_through=True))  # type: ignore[type-var]

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
    """{type, message, traceback} of what user code raised, each text capped; the traceback keeps its end."""
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
    return {"type": _text(name[:200]), "message": _text(message[:ERROR_TEXT_MAX]), "traceback": _text(text[-ERROR_TEXT_MAX:])}


def _text(value: str) -> str:
    """Without lone surrogates, which UTF-8 can't hold."""
    return value.encode("utf-8", "backslashreplace").decode()


class Executor:
    """Leases, runs and reports until told to stop."""

    def __init__(self, sock: socket.socket, file: process.StartedFile, outputs: Outputs, name: str) -> None:
        self.sock = sock
        self.file = file
        self.words = file.words
        self.outputs = outputs
        self.name = name
        self.tasks: dict[str, Task] = {}
        self.credits = CREDITS_START
        self.ready: deque[Work] = deque()
        self.work: Work | None = None  # in hand
        self.stopping = False
        self.stale = 0
        self.offset_ns = 0  # wall clock of the server minus monotonic clock
        self.clock_offset_us = 0
        self._reader = protocol.FrameReader(protocol.REPLY_MAX)
        self._pending: dict[int, str] = {}
        self._last_id = 0
        self._sending = threading.Lock()
        self._reading = threading.Lock()
        self._progress_ns = 0
        self._asked = 0  # the token whose user code has learnt that it was told to end
        self._skips_seen = 0
        self._skipped: set[int] = set()
        self._runner: Any = None
        self._wake_read, self._wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._watcher_awake = False

    # Wire

    def _request(self, verb: str, args: dict[str, Any]) -> bytes:
        """A frame; call with `_sending` held."""
        self._last_id += 1
        self._pending[self._last_id] = verb
        return protocol.encode_request(self._last_id, verb, args)

    def _lease(self) -> bytes:
        return self._request("lease", {"queues": [], "credits": self.credits, "wait_us": NEVER})

    @property
    def outstanding(self) -> int:
        """Lease requests without an answer."""
        return list(self._pending.values()).count("lease")

    def hello(self) -> None:
        """Introduce this worker. What the server refuses is raised."""
        tasks = {name: made.wire() for name, made in self.tasks.items()}
        with self._sending:
            self.sock.sendall(self._request("hello", {"version": protocol.VERSION, "role": "worker", "name": self.name, "tasks": tasks}))
        while self._pending:
            if not self._receive():
                raise SystemExit(0)
        self._set_offset()

    def _set_offset(self) -> None:
        self.offset_ns = time.time_ns() - time.monotonic_ns() + self.clock_offset_us * 1_000

    def _receive(self, flags: int = 0) -> bool:
        """Read once and act on the replies. False at the end of the stream."""
        try:
            data = self.sock.recv(1 << 20, flags)
        except BlockingIOError:
            return True
        except ConnectionError:
            return False
        for body in self._reader.feed(data):
            self._answered(protocol.parse_reply(body))
        return bool(data)

    def _answered(self, reply: protocol.Reply) -> None:
        if reply.error is not None:
            raise reply.error
        verb = self._pending.pop(reply.id)
        if verb == "hello":
            self.clock_offset_us = int(reply.result["clock_offset_us"])
        elif verb == "lease":
            self.stopping = self.stopping or bool(reply.result.get("stop"))
            if reply.result["n"]:
                self.ready.append(Work(reply.result, self))
        elif verb == "finish":
            self.stale += reply.result["verdict"].count(2)

    # Life

    def run(self) -> int:
        """Until told to stop or the other end closes; the exit code."""
        self.hello()
        threading.Thread(target=self._watch, name="wheelsched-watch", daemon=True).start()
        while True:
            if not self.ready:
                if not self.outstanding:
                    if self.stopping:
                        return 0
                    with self._sending:
                        self.sock.sendall(self._lease())
                with self._reading:
                    if not self._receive():
                        return 0
                continue
            work = self._pop()
            if work is not None:
                self._take_on(work)

    def _pop(self) -> Work | None:
        try:
            return self.ready.popleft()
        except IndexError:  # the watching thread handed it back
            return None

    def _take_on(self, work: Work) -> None:
        """Execute a batch with the next one on its way, report it, and learn how many runs fit."""
        full = work.n >= self.credits and self.credits > 1
        if full and not self.outstanding and not self.stopping:
            with self._sending:
                self.sock.sendall(self._lease())
        self._set_offset()
        start = time.monotonic_ns()
        self.work = work
        if (work.n > 1 or self.outstanding) and not self._watcher_awake:
            self._watcher_awake = True
            os.write(self._wake_write, b"w")
        self._execute(work)
        self.words[process.W_MONO_NS] = 0
        enter_run(None)
        self.work = None
        took = time.monotonic_ns() - start
        self._learn(work.done, took, full=full)
        again = not self.outstanding and not self.stopping and not self.ready
        self._report(work, work.done, ask=again)

    def _learn(self, n: int, took_ns: int, *, full: bool) -> None:
        fit = max(1, n) * BATCH_NS // max(1, took_ns)
        if fit < self.credits:
            self.credits = max(1, fit)
        elif full or self.credits < CREDITS_START:
            self.credits = min(self.credits * 2, fit, CREDITS_MAX)

    # Reports

    def _report(self, work: Work, upto: int, *, ask: bool = False) -> None:
        """Send the outcomes of rows below `upto` that were not sent; with `ask` the next lease request, in the same write."""
        with self._sending:
            frames = []
            while work.reported < upto:
                start = work.reported
                end = min(upto, start + FINISH_ROWS_MAX)
                results: list[Any] = []
                size = 0
                if work.results:
                    for row in range(start, end):
                        result = work.results.pop(row, None)
                        if result is not None:
                            results.append([row - start, result])
                            size += _size(result)
                        if size > FINISH_RESULT_BYTES:
                            end = row + 1
                            break
                frames.append(self._finish(work, start, end, results))
                work.reported = end
            if ask:
                frames.append(self._lease())
            if frames:
                self.sock.sendall(b"".join(frames))

    def _finish(self, work: Work, start: int, end: int, results: list[Any]) -> bytes:
        offset = self.offset_ns
        begun, ended = _column(work.begun_ns[start:end], offset), _column(work.ended_ns[start:end], offset)
        return self._request("finish", {
            "id": work.ids[16 * start : 16 * end], "token": work.token_column[8 * start : 8 * end],
            "outcome": bytes(work.outcome[start:end]), "started_us": begun, "ended_us": ended, "result": results,
        })

    def _hand_back(self, work: Work, rows: list[int]) -> None:
        """Rows that nobody entered, and now nobody will, back to the server."""
        if not rows:
            return
        zero = bytes(8 * len(rows))
        start, end = rows[0], rows[-1] + 1
        assert end - start == len(rows)
        work.handed_back += len(rows)
        with self._sending:
            self.sock.sendall(self._request("finish", {
                "id": work.ids[16 * start : 16 * end], "token": work.token_column[8 * start : 8 * end],
                "outcome": _NOT_RUN * len(rows), "started_us": zero, "ended_us": zero, "result": [],
            }))

    def heartbeat(self, work: Work, row: int, text: str) -> None:
        """Send progress of a row, unless something was sent a moment ago."""
        now = time.monotonic_ns()
        if now - self._progress_ns < PROGRESS_NS:
            return
        self._progress_ns = now
        with self._sending:
            self.sock.sendall(self._request("heartbeat", {
                "id": work.ids[16 * row : 16 * row + 16], "token": work.token_column[8 * row : 8 * row + 8], "started": b"\1",
                "progress": [[0, text]],
            }))

    # The watching thread

    def _watch(self) -> None:
        try:
            self._watch_on()
        except ConnectionError:
            return  # the main thread meets it too
        except BaseException as e:
            self.outputs.log.write(f"wheelsched: executor: the watching thread failed: {type(e).__name__}: {e}\n")
            os._exit(EXIT_REFUSED)

    def _watch_on(self) -> None:
        """Empty the output pipes as they fill; during a batch look every 50 ms."""
        poll = select.poll()
        for fd in (*self.outputs.pipes, self._wake_read):
            poll.register(fd, select.POLLIN)
        seen: tuple[Work | None, int] = (None, 0)
        due = 0
        while True:
            now = time.monotonic_ns()
            wait = max(0, due - now) / 1e6 if self._watcher_awake else None
            ready = [fd for fd, _ in poll.poll(wait)]
            if self._wake_read in ready:
                os.read(self._wake_read, 64)
                due = time.monotonic_ns() + BATCH_NS
            if any(fd in ready for fd in self.outputs.pipes):
                self.outputs.collect()
            if not self._watcher_awake or time.monotonic_ns() < due:
                continue
            due = time.monotonic_ns() + BATCH_NS
            work = self.work
            if work is None and seen[0] is None:
                self._watcher_awake = False
                continue
            if work is not None:
                self._report(work, work.done)
                if seen == (work, work.done):
                    self._relieve(work)
            seen = (work, 0 if work is None else work.done)

    def _relieve(self, work: Work) -> None:
        """The run in hand is slow: hand back what waits behind it, also what is still in the socket."""
        self._hand_back(work, list(work.rows))
        if self.outstanding and self._reading.acquire(blocking=False):
            try:
                self._receive(socket.MSG_DONTWAIT)
            finally:
                self._reading.release()
        while self.work is work and (behind := self._pop()) is not None:
            self.credits = 1
            self._hand_back(behind, list(behind.rows))

    # Runs

    def _execute(self, work: Work) -> None:
        """The hot path: every row in token order."""
        words, outputs, now = self.words, self.outputs, time.monotonic_ns
        captures, quick_ns = outputs.captures, outputs.quick_ns
        out, err = captures
        tokens, ends, payload, spec_of = work.tokens, work.payload_end, work.payload, work.spec_of
        begun, ended = work.begun_ns, work.ended_ns
        unpack = msgpack.unpackb
        made = [self.tasks[spec["task"]] for spec in work.specs]
        functions = [None if one.batch else one.function for one in made]
        mono, started, skips = process.W_MONO_NS, process.W_STARTED, process.W_SKIPS
        t = now()
        for row in work.rows:
            function = functions[spec_of[row]]
            if function is None:
                t = self._run_group(work, row, made[spec_of[row]])
                continue
            begun[row] = t
            words[mono] = t  # before the token: a reader that sees this token never sees an earlier time with it
            words[started] = tokens[row]
            if (words[skips] != self._skips_seen or self._skipped) and self._skip(work, row):
                continue
            enter_run((work, row))
            start = ends[row - 1] if row else 0
            try:
                if ends[row] - start == 3:  # [[], {}]
                    value = function()
                else:
                    args, kwargs = unpack(payload[start : ends[row]], raw=False, strict_map_key=True, timestamp=3)
                    value = function(*args, **kwargs)
                if value is not None:
                    self._returned(work, row, value)
            except BaseException as e:  # noqa: BLE001 - whatever user code raises ends this run, and this run only
                self._failed(work, row, e)
            ended[row] = end = now()
            if end - t > quick_ns or out.dirty or err.dirty:
                self._settle(work, row, row + 1, end - t)
                end = now()
            t = end
            work.done = row + 1
        if work.done and outputs.waiting:
            self._settle(work, work.done - 1, work.done, 0)

    def _skip(self, work: Work, row: int) -> bool:
        """A cancel came before this row was entered: it ends without user code."""
        if self.words[process.W_SKIPS] != self._skips_seen:
            self._skips_seen, self._skipped = self.words[process.W_SKIPS], self.file.skips()
        token = work.tokens[row]
        if token not in self._skipped:
            if token > max(self._skipped):
                self._skipped = set()
            return False
        work.outcome[row] = Outcome.CANCELLED
        work.ended_ns[row] = work.begun_ns[row]
        work.done = row + 1
        return True

    def _run_group(self, work: Work, first: int, made: Task) -> int:
        """Rows of one batch handler, from `first` on; the time afterwards."""
        spec, end = work.spec_of[first], first + 1
        while end < work.n and work.spec_of[end] == spec:
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

    def _returned(self, work: Work, row: int, value: Any) -> None:
        """Keep what a run returned; a coroutine is run first. PayloadError for what can't be kept."""
        if type(value) is CoroutineType:
            if self._runner is None:
                import asyncio  # noqa: PLC0415 - only for tasks that are coroutines

                self._runner = asyncio.Runner()
            value = self._runner.run(value)
        if value is None:
            return
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
        if self.outputs.waiting:
            self.outputs.install()
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

    # Commands

    def run_command(self, argv: list[str], *, cwd: str | None, env: dict[str, str], user: str | None) -> int:
        """Run a program in a group of its own that the started file names; its exit code."""
        words, token = self.words, current_run().token
        words[process.W_COMMAND] = token  # before there is a child: a later start then looks for its mark
        try:
            proc = subprocess.Popen(  # noqa: S603 - no shell; the operator allowed commands
                argv, cwd=cwd, env={**env, process.MARK: self.file.mark}, user=user, process_group=0, stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0,
            )
            words[process.W_COMMAND_BEGUN] = process.begun_ticks(proc.pid)
            words[process.W_COMMAND_PGID] = proc.pid
            return process.supervise(proc, *self.outputs.captures, lambda: self.told_to_end(token))
        finally:
            words[process.W_COMMAND_PGID] = 0
            words[process.W_COMMAND] = 0


def _column(instants_ns: list[int], offset_ns: int) -> bytes:
    return array("q", [(t + offset_ns) // 1_000 for t in instants_ns]).tobytes()


def _size(result: dict[str, Any]) -> int:
    return 64 + sum(len(v) for v in result.values() if isinstance(v, bytes | str))


def main(argv: list[str]) -> int:
    """Entry of an executor process; the exit code."""
    fd, path, parent, flags, *modules = argv
    process.die_with_parent(int(parent))
    file = process.StartedFile(path)
    words = file.words
    words[process.W_PID] = os.getpid()
    words[process.W_PGID] = os.getpgid(0)
    words[process.W_BEGUN] = process.begun_ticks(os.getpid())
    sock = socket.socket(fileno=int(fd))
    sock.setblocking(True)
    os.set_inheritable(sock.fileno(), False)
    outputs = Outputs()
    faulthandler.enable(outputs.log)
    executor = Executor(sock, file, outputs, f"pool-{words[process.W_WORKER]}")
    module = ""
    try:
        for module in modules:
            import_module(module)
        executor.tasks = load_tasks(modules) | builtin_tasks(executor, allow_commands="c" in flags, allow_http="h" in flags)
    except BaseException as e:  # noqa: BLE001 - the import of a user's module may raise anything
        outputs.log.write("".join(traceback.format_exception(e)))
        outputs.log.write(f"wheelsched: executor: the task module {module} can't be imported: {type(e).__name__}: {e}\n")
        return EXIT_IMPORT
    for text in outputs.take().values():
        outputs.log.write(text.decode("utf-8", "replace") if isinstance(text, bytes) else "")
    gc.freeze()
    try:
        return executor.run()
    except ConnectionError:
        return 0
    except WheelschedError as e:
        outputs.log.write(f"wheelsched: executor: refused by the server: {e}\n")
        return EXIT_REFUSED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

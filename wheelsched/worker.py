"""An executor from inside: lease, run, report, over one stream socket that its parent handed down.

    python -m wheelsched.worker FD STARTED_FILE PARENT_PID ALLOWED MODULE...

One run at a time, in token order. While a batch is executed the next one is on its way, and a thread looks every 50 ms
whether finished runs should be reported and, when the run in hand turns out slow, hands the runs behind it back.
Exit codes: 0 told to stop, or the parent's end was closed; 3 a module can't be imported; 4 refused by the server.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import select
import socket
import sys
import threading
import time
import traceback
from array import array
from collections import deque
from importlib import import_module
from typing import Any, Final

from . import process, protocol
from .builtin import Allowed, builtin_tasks
from .errors import UnavailableError, WheelschedError
from .execution import Outputs, Runner, Work
from .model import NEVER, Outcome
from .tasks import check_kept, enter_run, load_tasks

EXIT_IMPORT: Final = 3
EXIT_REFUSED: Final = 4
BATCH_NS: Final = 50_000_000  # work that one batch should hold, and how long a report may wait
CREDITS_START: Final = 64
CREDITS_MAX: Final = 16_384
FINISH_ROWS_MAX: Final = 8_192  # rows of one finish frame: under 350 KB without results
FINISH_RESULT_BYTES: Final = 256 * 1024  # results of one frame, and one more
PROGRESS_NS: Final = 100_000_000
READ_WAIT_S: Final = 0.02
_NOT_RUN: Final = bytes([Outcome.NOT_STARTED])


class Executor:
    """Leases, runs and reports until told to stop."""

    def __init__(self, sock: socket.socket, file: process.StartedFile, outputs: Outputs, name: str) -> None:
        self.sock = sock
        self.words = file.words
        self.outputs = outputs
        self.name = name
        self.runner = Runner(file, outputs, self.heartbeat)
        self.credits = CREDITS_START
        self.ready: deque[Work] = deque()
        self.work: Work | None = None  # in hand
        self.stopping = False
        self.stale = 0
        self.clock_offset_us = 0
        self._reader = protocol.FrameReader(protocol.REPLY_MAX)
        self._pending: dict[int, str] = {}
        self._awaited: dict[int, protocol.Reply | None] = {}  # requests whose replies user code waits for
        self._last_id = 0
        self._sending = threading.Lock()
        self._reading = threading.Lock()
        self._progress_ns = 0
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
        tasks = {name: made.wire() for name, made in self.runner.tasks.items()}
        with self._sending:
            self.sock.sendall(self._request("hello", {"version": protocol.VERSION, "role": "worker", "name": self.name, "tasks": tasks}))
        while self._pending:
            if not self._receive():
                raise SystemExit(0)
        self._set_offset()

    def _set_offset(self) -> None:
        self.runner.offset_ns = time.time_ns() - time.monotonic_ns() + self.clock_offset_us * 1_000

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
        verb = self._pending.pop(reply.id, "")
        if reply.id in self._awaited:
            self._awaited[reply.id] = reply
            return
        if reply.error is not None:
            raise reply.error
        if verb == "hello":
            self.clock_offset_us = int(reply.result["clock_offset_us"])
        elif verb == "lease":
            self.stopping = self.stopping or bool(reply.result.get("stop"))
            if reply.result["n"]:
                self.ready.append(Work(reply.result, self.runner))
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
        self.runner.execute(work)
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
        offset = self.runner.offset_ns
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

    def heartbeat(self, work: Work, row: int, text: str, checkpoint: bytes | None) -> None:
        """Send progress of a row, unless something was sent a moment ago. A checkpoint is always sent, and its answer waited for."""
        now = time.monotonic_ns()
        if checkpoint is None and now - self._progress_ns < PROGRESS_NS:
            return
        self._progress_ns = now
        args = {
            "id": work.ids[16 * row : 16 * row + 16], "token": work.token_column[8 * row : 8 * row + 8], "started": b"\1",
            "progress": [[0, text]], "checkpoint": [] if checkpoint is None else [[0, checkpoint]],
        }
        with self._sending:
            frame = self._request("heartbeat", args)
            number = self._last_id
            if checkpoint is not None:
                self._awaited[number] = None
            self.sock.sendall(frame)
        if checkpoint is not None:
            reply = self._wait_for(number)
            if reply.error is not None:
                raise reply.error
            check_kept(reply.result)

    def _wait_for(self, number: int) -> protocol.Reply:
        """The reply to one request, read by this thread or by another. UnavailableError when the stream ends."""
        try:
            while (reply := self._awaited[number]) is None:
                if self._reading.acquire(timeout=READ_WAIT_S):  # another thread that reads may get our answer
                    try:
                        if self._awaited[number] is None and not self._receive():
                            raise UnavailableError("the checkpoint is not kept: the connection to the server has ended")
                    finally:
                        self._reading.release()
            return reply
        finally:
            del self._awaited[number]

    # The watching thread

    def _watch(self) -> None:
        try:
            self._watch_on()
        except ConnectionError:
            return  # the main thread meets it too
        except BaseException as e:  # noqa: BLE001 - said, and then the process ends
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


def _column(instants_ns: list[int], offset_ns: int) -> bytes:
    return array("q", [(t + offset_ns) // 1_000 for t in instants_ns]).tobytes()


def _size(result: dict[str, Any]) -> int:
    return 64 + sum(len(v) for v in result.values() if isinstance(v, bytes | str))


def main(argv: list[str]) -> int:
    """Entry of an executor process; the exit code."""
    fd, path, parent, allowed, *modules = argv
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
        executor.runner.tasks = load_tasks(modules) | builtin_tasks(executor.runner, Allowed.from_text(allowed))
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

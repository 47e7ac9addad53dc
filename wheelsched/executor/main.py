"""An executor from inside: lease, run, report, over one stream socket that its parent handed down.

    python -m wheelsched.executor.main FD STARTED_FILE PARENT_PID ALLOWED MODE WEAR SAID_BEFORE PIPES MODULE...

In mode `process` one run at a time, in token order; `crew` has the other modes. While a batch is executed the next one is on its
way, and a thread looks every 50 ms whether finished runs should be reported and, when the run in hand turns out slow or the batch
far too long, hands the runs behind it back.
Exit codes: 0 told to stop, worn out, or the parent's end was closed; 3 a module can't be imported; 4 refused by the server; 5 an
`on_start` failed. Nobody goes by them, as user code may exit with any: the started file tells why an executor could not begin.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import select
import signal
import socket
import sys
import threading
import time
from collections import deque
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, TextIO

from ..model.errors import UnavailableError, WheelschedError
from ..process import processes
from ..process.contract import Allowed
from ..process.kept import ROWS_MAX
from ..process.usage import Meter
from ..process.wear import Wear
from ..tasks.hooks import Hooks, failure_of, load_hooks
from ..tasks.tasks import enter_run, load_exts, load_tasks
from ..tasks.verdicts import error_result, trace_of
from .builtin import builtin_tasks
from .forks import guard, leave_if_child
from .link import FINISH_RESULT_BYTES, FINISH_ROWS_MAX, Teller, Wire, result_size
from .outputs import Outputs
from .packages import no_tasks
from .runner import Runner, Work
from .stacks import Stacks, Where, where_in
from .surroundings import Surroundings

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..model.payloads import Exts
    from ..process.kept import Kept
    from ..protocol import frames as protocol
    from ..tasks.tasks import Handler
    from .crew import Crew

EXIT_IMPORT: Final = 3
EXIT_REFUSED: Final = 4
EXIT_HOOK: Final = 5
BATCH_NS: Final = 50_000_000  # work that one batch should hold, and how long a report may wait
CREDITS_START: Final = 64
READ_WAIT_S: Final = 0.02
LEAVE_S: Final = 2.0  # for threads of user code and `atexit`, after the last run and the stop hooks
LOOKS_LEFT: Final = 4  # a batch that will take more than so many looks, at the pace of the last one, is too much


class Executor(Wire):
    """Leases, runs and reports until told to stop."""

    def __init__(self, sock: socket.socket, file: processes.StartedFile, outputs: Outputs, log: TextIO, name: str, wear: Wear) -> None:
        super().__init__(sock, name)
        self.file = file
        self.wear = wear
        self.log = log
        self.words = file.words
        self.kept = deque(file.kept)  # the first is the next batch's
        self.outputs = outputs
        self.runner = Runner(file, file.words, outputs, self)
        self.runner.meter = Meter()
        self.runners = [self.runner]
        self.credits = CREDITS_START
        self.ready: deque[Work] = deque()
        self.work: Work | None = None  # in hand
        self.worn = ""  # why it is to be replaced
        self._reading = threading.Lock()
        self._wake_read, self._wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._watcher_awake = False
        self._teller = Teller(outputs.captures)
        for capture in outputs.captures:
            capture.notify = self._wake

    def use(self, tasks: dict[str, Handler], hooks: Hooks, exts: Exts) -> None:
        """The tasks that this executor serves, and the types that they know. What their import has printed is nobody's."""
        self.runner.tasks, self.runner.around, self.runner.exts = tasks, hooks.around, exts
        self._tell()

    def keep(self, surroundings: Surroundings) -> None:
        """What each run is to find, from now on."""
        self.runner.surroundings = surroundings

    def hook(self, function: Callable[[], Any]) -> str:
        """Call a hook; what came of it as `failure_of` tells. What it prints is nobody's."""
        failure = failure_of(function, self.runner.await_)
        leave_if_child(told=failure)
        self._tell()
        return failure

    def _tell(self) -> None:
        for text in self.outputs.take().values():
            self.log.write(text.decode("utf-8", "replace") if isinstance(text, bytes) else "")

    def granted(self, reply: dict[str, Any]) -> None:
        """As for Wire."""
        self.ready.append(Work(reply, self.runner))

    def where(self, token: int) -> Where | None:
        """Where the run of a token is; None when it is in no run of it."""
        words = self.words
        last = words[processes.W_STARTED]
        if not words[processes.W_MONO_NS] or not (words[processes.W_FIRST] or last) <= token <= last:
            return None
        return where_in(threading.main_thread().ident, self.runner.loop)

    def forked(self) -> list[Any]:
        """This is a child of a fork now: no row is left to it. The event loops that it may be in."""
        if self.work is not None:
            deque(self.work.rows, maxlen=0)
        return [self.runner.loop] if self.runner.loop is not None else []

    # Life

    def run(self) -> int:
        """Until told to stop, worn out, or the other end closes; the exit code. What is held and was not entered then, the started
        file tells the parent.
        """
        self.hello(self.runner.tasks)
        threading.Thread(target=self._watch, name="wheelsched-watch", daemon=True).start()
        while True:
            if not self.ready:
                if not self.outstanding:
                    if self.stopping:
                        return 0
                    with self.sending:
                        self.sock.sendall(self.lease(self.wear.left(self.credits)))
                with self._reading:
                    if not self.receive():
                        return 0
                continue
            work = self._pop()
            if work is not None:
                self._take_on(work)
                if self.worn:
                    self.file.text = self.worn
                    return 0

    def _pop(self) -> Work | None:
        try:
            return self.ready.popleft()
        except IndexError:  # the watching thread handed it back
            return None

    def _take_on(self, work: Work) -> None:
        """Execute a batch with the next one on its way, report it, and learn how many runs fit."""
        full = work.n >= self.credits and self.credits > 1
        self.wear.runs += work.n
        more = self.wear.left(self.credits)
        if full and more and not self.outstanding and not self.stopping:
            with self.sending:
                self.sock.sendall(self.lease(more))
        self.set_offset()
        start = time.monotonic_ns()
        if self.kept:
            self._until_answered(self.kept[0])
            work.keep_in(self.kept[0], self._make_room)
            self.kept.rotate()
        self.work = work
        if work.n > 1 or self.outstanding:
            self._wake()
        self.runner.execute(work, self.outputs.quick_ns)
        self.words[processes.W_MONO_NS] = 0
        enter_run(None)
        self.work = None
        took = time.monotonic_ns() - start
        self._learn(work.done, took, full=full)
        self.wear.runs -= work.n - work.done  # what was handed back
        self.worn = self.wear.why()
        again = not self.outstanding and not self.stopping and not self.ready and not self.worn
        self._report(work, work.done, ask=again)

    def _learn(self, n: int, took_ns: int, *, full: bool) -> None:
        fit = max(1, n) * BATCH_NS // max(1, took_ns)
        if fit < self.credits:
            self.credits = max(1, fit)
        elif full or self.credits < CREDITS_START:
            self.credits = min(self.credits * 2, fit, ROWS_MAX)

    # Reports

    def _report(self, work: Work, upto: int, *, ask: bool = False) -> None:
        """Send the outcomes of rows below `upto` that were not sent; with `ask` the next lease request, in the same write."""
        with self.sending:
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
                            size += result_size(result)
                        if size > FINISH_RESULT_BYTES:
                            end = row + 1
                            break
                frames.append(self.finish(
                    work.ids[16 * start : 16 * end], work.token_column[8 * start : 8 * end], bytes(work.outcome[start:end]),
                    work.begun_ns[start:end], list(work.ended_ns[start:end]), results,
                ))
                work.reported = end
                if work.kept is not None:
                    work.kept.reports.append(self._last_id)
            if ask:
                frames.append(self.lease(self.wear.left(self.credits)))
            if frames:
                self.sock.sendall(b"".join(frames))

    def _make_room(self, work: Work, upto: int) -> None:
        """Report the rows below `upto`, and wait until the server has answered for them all."""
        assert work.kept is not None
        self.words[processes.W_MONO_NS] = 0  # user code has returned: however long the server takes, no run has timed out
        self._report(work, upto)
        self._until_answered(work.kept)

    def _until_answered(self, kept: Kept) -> None:
        """Wait until the server has answered all reports of this area's rows. ConnectionError at the end of the stream."""
        while self.unanswered(kept.reports):
            with self._reading:
                if self.unanswered(kept.reports) and not self.receive():
                    raise ConnectionError("the connection to the server has ended")

    def _hand_back(self, work: Work, rows: list[int]) -> None:
        """Rows that nobody entered, and now nobody will, back to the server."""
        if not rows:
            return
        start, end = rows[0], rows[-1] + 1
        assert end - start == len(rows)
        work.handed_back += len(rows)
        with self.sending:
            self.sock.sendall(self.not_run(work.ids[16 * start : 16 * end], work.token_column[8 * start : 8 * end]))

    def reply_to(self, number: int) -> protocol.Reply:
        """As for Wire: read by this thread, or by another."""
        while (reply := self.awaited[number]) is None:
            if self._reading.acquire(timeout=READ_WAIT_S):  # another thread that reads may get our answer
                try:
                    if self.awaited[number] is None and not self.receive():
                        raise UnavailableError("the checkpoint is not kept: the connection to the server has ended")
                finally:
                    self._reading.release()
        return reply

    # The watching thread

    def _wake(self) -> None:
        """There is something to look after: a batch, or a run that prints."""
        if not self._watcher_awake:
            self._watcher_awake = True
            os.write(self._wake_write, b"w")

    def _watch(self) -> None:
        try:
            self._watch_on()
        except ConnectionError:
            return  # the main thread meets it too
        except BaseException as e:  # noqa: BLE001 - said, and then the process ends
            self.log.write(f"wheelsched: executor: the watching thread failed: {type(e).__name__}: {e}\n")
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
                self._wake()
            if not self._watcher_awake or time.monotonic_ns() < due:
                continue
            due = time.monotonic_ns() + BATCH_NS
            work = self.work
            if work is None and seen[0] is None:
                self._watcher_awake = False
                if self.work is None:
                    continue
                self._watcher_awake = True  # it came while we went to sleep
            if work is not None:
                self._report(work, work.done)
                left, moved = work.n - work.done - work.handed_back, work.done - seen[1]
                if seen[0] is work and left > LOOKS_LEFT * moved:  # in hand for several looks more: others may have them sooner
                    self._relieve(work)
                self._tell_output(work)
            seen = (work, 0 if work is None else work.done)

    def _tell_output(self, work: Work) -> None:
        """What the run in hand has printed so far, the first run of a batch handler's call for all of them."""
        words = self.words
        token = words[processes.W_FIRST] or words[processes.W_STARTED]
        news = self._teller.news(token, words[processes.W_MONO_NS])
        if news and token == (words[processes.W_FIRST] or words[processes.W_STARTED]) and token in work.tokens:  # still in hand: its output
            self.tell_output(work, work.tokens.index(token), news)

    def _relieve(self, work: Work) -> None:
        """The run in hand is slow, or all of them: hand back what waits behind it, also what is still in the socket."""
        self._hand_back(work, list(work.rows))
        if self.outstanding and self._reading.acquire(blocking=False):
            try:
                self.receive(socket.MSG_DONTWAIT)
            finally:
                self._reading.release()
        while self.work is work and (behind := self._pop()) is not None:
            self.credits = 1
            self._hand_back(behind, list(behind.rows))


def _executor(mode: str, sock: socket.socket, file: processes.StartedFile, log: TextIO, wear: Wear, pipes: str) -> Executor | Crew:
    """Of this mode: "process" (one run at a time), "thread" or "async" (as many as the file has places)."""
    name = f"pool-{file.words[processes.W_WORKER]}"
    if mode == "process":
        return Executor(sock, file, Outputs(file, pipes), log, name, wear)
    from .crew import Crew  # noqa: PLC0415 - and with it asyncio, for the modes that need it

    if mode == "thread":
        return Crew(sock, file, log, name, wear, loop=None, pipes=pipes)
    import asyncio  # noqa: PLC0415

    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    return Crew(sock, file, log, name, wear, loop=loop, pipes=pipes)


def main(argv: list[str]) -> int:
    """Entry of an executor process; the exit code. `said_before`: the sum of what the executor before said of why it could not begin;
    `pipes`: see `Launcher`.
    """
    fd, path, parent, allowed, mode, wear, said_before, pipes, *modules = argv
    processes.die_with_parent(int(parent))
    file = processes.StartedFile(path)
    words = file.words
    processes.set_name(f"wheelsched-w{words[processes.W_WORKER]}")
    words[processes.W_PID] = os.getpid()
    words[processes.W_PGID] = os.getpgid(0)
    words[processes.W_BEGUN] = processes.begun_ticks(os.getpid())
    sock = socket.socket(fileno=int(fd))
    sock.setblocking(True)
    os.set_inheritable(sock.fileno(), False)
    log = os.fdopen(os.dup(2), "w", encoding="utf-8", errors="backslashreplace", buffering=1)
    faulthandler.enable(log)
    permits = Allowed.from_text(allowed)
    if permits.socket:
        os.environ["WHEELSCHED_SOCKET"] = permits.socket  # a Client() in a task is a client of the server that runs it
    surroundings = Surroundings()
    executor = _executor(mode, sock, file, log, Wear.from_text(wear), pipes)
    guard(executor)
    module = ""
    try:
        for module in modules:
            import_module(module)
        hooks = load_hooks(modules)
        for module in modules:
            if not load_tasks([module]) and not any(load_hooks([module])):
                log.write(f"wheelsched: executor: {no_tasks(module)}\n")
        executor.use(load_tasks(modules) | builtin_tasks(executor.runner, permits, surroundings), hooks, load_exts(modules))
    except BaseException as e:  # noqa: BLE001 - the import of a user's module may raise anything
        leave_if_child(e)
        told = error_result(e, trace_of(e))
        file.text = f"the task module {module} can't be imported: {type(e).__name__}: {told['message']}"
        if processes.text_sum(file.text) != said_before:
            log.write(told["traceback"])
            log.write(f"wheelsched: executor: {file.text}\n")
        words[processes.W_IMPORT] = 1
        return _leaving(sock, EXIT_IMPORT)
    leave_if_child()
    gc.freeze()
    for function in hooks.start:
        failure = executor.hook(function)
        if failure:
            file.text = f"on_start {failure.splitlines()[-1]}"
            if processes.text_sum(file.text) != said_before:
                log.write(f"{failure}\n")
            return _leaving(sock, EXIT_HOOK)
    surroundings.settle()
    executor.keep(surroundings)
    asked = socket.socket(fileno=int(pipes.split(",")[-1]))
    os.set_inheritable(asked.fileno(), False)
    Stacks(asked, executor.where)
    try:
        code = _serve(executor, log)
    finally:
        _hang_up(sock)
    _stopped(executor, hooks, log)
    return _leaving(sock, code)


def _serve(executor: Executor | Crew, log: TextIO) -> int:
    try:
        return executor.run()
    except ConnectionError:
        return 0
    except WheelschedError as e:
        log.write(f"wheelsched: executor: refused by the server: {e}\n")
        return EXIT_REFUSED
    except BaseException as e:
        leave_if_child(e)
        raise


def _hang_up(sock: socket.socket) -> None:
    """Tell the parent that this process takes no more runs and is about to exit: from now on its time is counted (pool.EXIT_US)."""
    with suppress(OSError):
        sock.shutdown(socket.SHUT_WR)


def _leaving(sock: socket.socket, code: int) -> int:
    """The exit code; threads that user code has left hold up the end of this process for no longer than LEAVE_S."""
    _hang_up(sock)
    end = threading.Timer(LEAVE_S, os._exit, [code])
    end.daemon = True
    end.start()
    return code


def _stopped(executor: Executor | Crew, hooks: Hooks, log: TextIO) -> None:
    """Call the stop hooks. A SIGTERM that comes meanwhile says only what is known: the SIGKILL after it comes in its time."""
    if hooks.stop:
        signal.signal(signal.SIGTERM, lambda *_: None)
    for function in reversed(hooks.stop):
        failure = executor.hook(function)
        if failure:
            log.write(f"{failure}\nwheelsched: executor: on_stop {failure.splitlines()[-1]}\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

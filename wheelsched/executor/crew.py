"""An executor that has several runs in user code at a time: in threads, or as coroutines on one event loop.

One thread speaks with the server, enters runs in token order into free places of the started file, and reports them as they end.
Mode "thread": each place has a thread. Mode "async": coroutines share the main thread's event loop, plain functions run in the
places' threads. What Python code prints belongs to the run whose context prints it; what is written to descriptors 1 and 2 (by
children, by C) and by code that belongs to no run can't be told apart, and goes to the worker's own output. Of the descriptors that is
kept, too, in case the process dies (see `last_words`).
"""

from __future__ import annotations

import asyncio
import inspect
import io
import os
import select
import sys
import threading
import time
from collections import deque
from contextvars import copy_context
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final, TextIO, cast

from ..model.errors import InvalidArgumentError
from ..model.nouns import Ended
from ..process import processes
from ..tasks.hooks import Hooks, failure_of
from ..tasks.tasks import enter_run, entered_run
from .forks import leave_if_child
from .link import FINISH_RESULT_BYTES, FINISH_ROWS_MAX, Teller, Wire, result_size
from .loops import finish, stays
from .outputs import Captures, PassedOn
from .runner import Entered, Runner, Work, group_of
from .stacks import Where, where_in

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Sequence

    from ..model.payloads import Exts
    from ..process.last_words import LastWords
    from ..process.wear import Wear
    from ..protocol import frames as protocol
    from ..tasks.tasks import Handler
    from .surroundings import Surroundings

LOOK_NS: Final = 50_000_000  # how often runs are looked after while any is in user code; also how long one may wait behind slow ones
LEARNED_MAX: Final = 4_096


class CrewWork(Work):
    """A batch whose rows are in several places."""

    def __init__(self, reply: dict[str, Any], gate: Runner) -> None:
        super().__init__(reply, gate)
        self.places: dict[int, Place] = {}  # row -> where it is in user code
        self.open = self.n  # rows that have not ended; those handed back never do
        self.granted_ns = time.monotonic_ns()
        self._log, self._wire = gate.file.log, gate.wire

    def keep(self, row: int) -> None:
        """As for Work: another run can end this process before the report is sent, or the server before it has answered."""
        now, offset = time.monotonic_ns(), self._wire.offset_ns
        started_us, ended_us = (self.begun_ns[row] + offset) // 1_000, (now + offset) // 1_000
        self._log.put(
            self.tokens[row], Ended(self.outcome[row], started_us, ended_us, self.results.get(row, {})), self._wire.unanswered,
        )

    def cancelled(self, row: int) -> bool:
        """As for Batch."""
        place = self.places.get(row)
        return place is not None and place.runner.told_to_end(self.tokens[row], asking=True)

    def heartbeat(self, row: int, text: str, checkpoint: bytes | None) -> None:
        """As for Batch."""
        place = self.places.get(row)
        if place is not None:  # else the run is over, and whoever tells of it has outlived it
            place.runner.heartbeat(self, row, text, checkpoint)


class Place:
    """Room for one run at a time, or one call of a batch handler."""

    def __init__(self, crew: Crew, words: memoryview, said: Sequence[LastWords]) -> None:
        self.words = words
        self.said = said
        self.output = Captures(words, said)
        self.teller = Teller(self.output.captures)
        self.runner = Runner(crew.file, words, self.output, crew)
        self.rows: list[int] = []  # what the call stands for, cancelled ones included
        self.entered: Entered | None = None
        self.told = False  # a coroutine that it shall end
        self.task: asyncio.Task[None] | None = None  # of mode "async": the whole, and user code's part of it
        self.user: asyncio.Future[Any] | None = None
        self.calls: SimpleQueue[Entered] | None = None  # for the thread, once there is one
        self.thread: threading.Thread | None = None


def place_here() -> Place | None:
    """Where the run is whose context this code has; None outside of runs, and when that run has ended."""
    entered = entered_run()
    return None if entered is None else cast("CrewWork", entered[0]).places.get(entered[1])


class Routed(io.TextIOBase):
    """`sys.stdout` or `sys.stderr` of a crew: each run prints into its own capture, what belongs to no run to the worker's output."""

    encoding = "utf-8"
    errors = "backslashreplace"

    def __init__(self, which: int, log: TextIO) -> None:
        self._which = which
        self._log = log

    @property
    def buffer(self) -> Any:
        """The binary stream of the run that asks."""
        place = place_here()
        return self._log.buffer if place is None else place.output.captures[self._which]

    def write(self, text: str) -> int:
        """Print."""
        stream = self.buffer
        stream.write(text.encode("utf-8", "backslashreplace"))
        stream.flush()
        return len(text)

    def writable(self) -> bool:
        """Yes."""
        return True

    def fileno(self) -> int:
        """The descriptor that children inherit."""
        return self._which + 1

    def close(self) -> None:
        """Stay open: it is every run's."""


class Here:
    """The Runner of the place whose run asks; for built-in tasks, which are bound to one object for the whole executor."""

    def __init__(self, crew: Crew) -> None:
        self._crew = crew

    def __getattr__(self, name: str) -> Any:
        place = place_here()
        return getattr(self._crew.gate if place is None else place.runner, name)


class Crew(Wire):
    """Leases, enters and reports until told to stop."""

    def __init__(
        self, sock: socket.socket, file: processes.StartedFile, log: TextIO, name: str, wear: Wear, *,
        loop: asyncio.AbstractEventLoop | None, pipes: str,
    ) -> None:
        """`loop`: of mode "async"; `pipes`: see `Launcher`."""
        super().__init__(sock, name)
        self.file = file
        self.wear = wear
        self.worn = ""  # why it is to be replaced: it takes no more runs
        self.loop = loop
        self.gate = Runner(file, file.words, Captures(), self)
        self.runner = cast("Runner", Here(self))
        self.places = [Place(self, words, said) for words, said in zip(file.places, file.said, strict=True)]
        self.runners = [self.gate, *(place.runner for place in self.places)]
        self.free = deque(self.places)
        self.waiting: deque[CrewWork] = deque()
        self.ended: deque[Place] = deque()  # other threads put them here, and then write to the pipe
        self.learned = 0  # how many runs one batch may hold, if that is more than there are free places
        self._coroutines: frozenset[str] = frozenset()
        self._log = log
        self._surroundings: Surroundings | None = None
        self._entered_ns = 0
        self._replied = threading.Condition()
        self._wake_read, self._wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        PassedOn(file, pipes)
        sys.stdout, sys.stderr = (cast("TextIO", Routed(which, log)) for which in (0, 1))

    def use(self, tasks: dict[str, Handler], hooks: Hooks, exts: Exts) -> None:
        """The tasks that this executor serves, and the types that they know. InvalidArgumentError for hooks that it can't call."""
        for runner in self.runners:
            runner.tasks, runner.around, runner.exts = tasks, hooks.around, exts
        if self.loop is not None:
            self._coroutines = frozenset(name for name, made in tasks.items() if inspect.iscoroutinefunction(made.function))
            return
        for function in (*hooks.start, *hooks.stop):
            if inspect.iscoroutinefunction(function):
                raise InvalidArgumentError(f"{function.__qualname__}: in mode thread each thread has an event loop of its own, so on_start "
                                           "and on_stop are plain functions; make it one, or choose mode async")

    def hook(self, function: Callable[[], Any]) -> str:
        """Call a hook; what came of it as `failure_of` tells."""
        failure = failure_of(function, self._awaited_hook)
        leave_if_child(told=failure)
        return failure

    def _awaited_hook(self, coroutine: Any) -> None:
        assert self.loop is not None, "use() refuses coroutine functions in mode thread"
        finish(self.loop, self.loop.create_task(coroutine))

    def keep(self, surroundings: Surroundings) -> None:
        """What runs are to find where no other one is."""
        self._surroundings = surroundings

    def where(self, token: int) -> Where | None:
        """As for Executor."""
        for place in self.places:
            entered, user = place.entered, place.user
            if entered is not None and token in [entered.work.tokens[row] for row in entered.rows]:
                if isinstance(user, asyncio.Task):
                    return Where(threading.main_thread().ident, [user])
                return where_in(None if place.thread is None else place.thread.ident, place.runner.loop)
        return None

    def forked(self) -> list[Any]:
        """This is a child of a fork now. The event loops that it may be in."""
        return [loop for loop in (self.loop, *(runner.loop for runner in self.runners)) if loop is not None]

    def granted(self, reply: dict[str, Any]) -> None:
        """As for Wire."""
        self.waiting.append(CrewWork(reply, self.gate))

    def reply_to(self, number: int) -> protocol.Reply:
        """As for Wire: the thread that speaks with the server reads it."""
        with self._replied:
            while (reply := self.awaited[number]) is None:
                self._replied.wait()
        return reply

    def _answered(self, reply: protocol.Reply) -> None:
        super()._answered(reply)
        if self.awaited:
            with self._replied:
                self._replied.notify_all()

    # Life

    def run(self) -> int:
        """Until told to stop or the other end closes; the exit code."""
        if self.loop is None:
            self._serve()
            return 0
        loop, failed, over = self.loop, [], []

        def serve() -> None:
            try:
                self._serve()
            except BaseException as e:  # noqa: BLE001 - raised again in the main thread
                failed.append(e)
            over.append(True)
            loop.call_soon_threadsafe(loop.stop)

        threading.Thread(target=copy_context().run, args=(serve,), name="wheelsched-crew", daemon=True).start()
        while not over:
            try:
                loop.run_forever()
            except (SystemExit, KeyboardInterrupt) as e:
                if not stays(loop, e):
                    raise
        if failed:
            raise failed[0]
        return 0

    def _serve(self) -> None:
        self.hello(self.gate.tasks)
        poll = select.poll()
        poll.register(self.sock, select.POLLIN)
        poll.register(self._wake_read, select.POLLIN)
        while True:
            self._collect()
            self.worn = self.worn or self.wear.why()
            self._enter()
            busy = len(self.free) < len(self.places)
            if (self.stopping or self.worn) and not self.waiting and not busy:
                self.file.text = self.worn
                return
            self._ask()
            ready = [fd for fd, _ in poll.poll(LOOK_NS // 1_000_000 if busy or self.ended else None)]
            if self._wake_read in ready:
                os.read(self._wake_read, 65_536)
            if self.sock.fileno() in ready and not self.receive():
                return
            if busy:
                self._look()

    def _ask(self) -> None:
        """For as many runs as there are free places, or for more when such a batch was over at once."""
        if self.free and not self.waiting and not self.outstanding and not self.stopping and not self.worn:
            with self.sending:
                self.sock.sendall(self.lease(self.wear.left(max(len(self.free), self.learned))))

    def _enter(self) -> None:
        """Rows in token order into free places. When worn out, hand them back."""
        while self.worn and self.waiting:
            self._hand_back(self.waiting.popleft())
        if not self.waiting or not self.free or self.file.log.tight(self.unanswered):
            return
        self.set_offset()
        self._entered_ns = time.monotonic_ns()
        while self.waiting and self.free and self.wear.left(1):
            work = self.waiting[0]
            row = next(work.rows, None)
            if row is None:
                self.waiting.popleft()
            else:
                self._enter_row(work, row)

    def _enter_row(self, work: CrewWork, row: int) -> None:
        made = self.gate.tasks[work.specs[work.spec_of[row]]["task"]]
        rows = group_of(work, row, made)
        self.wear.runs += len(rows)
        place = self.free.popleft()
        for said, shared in zip(place.said, self.file.shared, strict=False):
            said.since(shared)
        place.runner.mark(work, rows, batch=made.batch)
        self.file.words[processes.W_STARTED] = work.tokens[rows[-1]]
        entered = Entered(work, [r for r in rows if not self.gate.left_out(work, r)], made)
        place.rows, place.entered, place.told = rows, entered, False
        for r in entered.rows:
            work.places[r] = place
        for r in set(rows).difference(entered.rows):
            work.keep(r)
        if not entered.rows:
            self.ended.append(place)
        elif made.name in self._coroutines:
            assert self.loop is not None
            self.loop.call_soon_threadsafe(self._begin, place, entered)
        else:
            if place.calls is None:
                place.calls = SimpleQueue()
                run, args = copy_context().run, (self._thread, place, place.calls)  # what on_start has set is there in all modes
                place.thread = threading.Thread(target=run, args=args, name="wheelsched-run", daemon=True)
                place.thread.start()
            place.calls.put(entered)

    # User code

    def _thread(self, place: Place, calls: SimpleQueue[Entered]) -> None:
        while True:
            place.runner.call(calls.get())
            self._over(place)

    def _begin(self, place: Place, entered: Entered) -> None:
        place.task = asyncio.ensure_future(self._awaited(place, entered))

    async def _awaited(self, place: Place, entered: Entered) -> None:
        """One call of a coroutine. It has a task of its own, so that a cancel ends user code and nothing else."""
        enter_run((entered.work, entered.rows[0]))
        try:
            place.user = asyncio.ensure_future(place.runner.coroutine(entered))
            await place.user
        except BaseException as e:  # noqa: BLE001 - as in Runner.call
            place.runner.fail(entered, e)
        place.user = None
        place.runner.conclude(entered)
        if self._surroundings is not None and not any(other.user for other in self.places):
            self._surroundings.put_signals_right()
        self._over(place)

    def _over(self, place: Place) -> None:
        self.ended.append(place)
        os.write(self._wake_write, b"e")

    # Looking after what is in user code

    def _look(self) -> None:
        """Tell what runs print, and coroutines to end; hand back what waits behind slow runs."""
        for place in self.places:
            entered = place.entered
            if entered is not None and entered.rows:
                self._tell_output(place, entered)
            if place.user is None or entered is None or place.told or not place.runner.told_to_end(entered.work.tokens[entered.rows[-1]]):
                continue
            place.told = True
            assert self.loop is not None
            self.loop.call_soon_threadsafe(self._cancel, place, entered)
        if self.waiting and not self.free and time.monotonic_ns() - self._entered_ns > LOOK_NS:
            self.learned = 0
            while self.waiting:
                self._hand_back(self.waiting.popleft())

    def _tell_output(self, place: Place, entered: Entered) -> None:
        work, row = entered.work, entered.rows[0]
        news = place.teller.news(work.tokens[row], work.begun_ns[row])
        if news:
            self.tell_output(work, row, news)

    def _cancel(self, place: Place, entered: Entered) -> None:
        if place.entered is entered and place.user is not None and place.user.cancel("this run was told to end"):
            place.runner.asked = entered.work.tokens[entered.rows[-1]]

    def _hand_back(self, work: CrewWork) -> None:
        rows = list(work.rows)
        if not rows:
            return
        start, end = rows[0], rows[-1] + 1
        with self.sending:
            self.sock.sendall(self.not_run(work.ids[16 * start : 16 * end], work.token_column[8 * start : 8 * end]))

    # Reports

    def _collect(self) -> None:
        """Free the places of what has ended, report it, and learn how many runs fit into a batch."""
        ended: list[tuple[CrewWork, int]] = []
        while self.ended:
            place = self.ended.popleft()
            assert place.entered is not None
            work = cast("CrewWork", place.entered.work)
            place.words[processes.W_MONO_NS] = place.words[processes.W_FIRST] = 0
            place.entered = place.task = None
            self.free.append(place)
            for row in place.rows:
                work.places.pop(row, None)
                ended.append((work, row))
            work.open -= len(place.rows)
            if not work.open:
                self._learn(work)
        if ended and self._surroundings is not None and len(self.free) == len(self.places):
            self._log.write(self._surroundings.put_process_right())
        for start in range(0, len(ended), FINISH_ROWS_MAX):
            self._report(ended[start : start + FINISH_ROWS_MAX])

    def _learn(self, work: CrewWork) -> None:
        took = time.monotonic_ns() - work.granted_ns
        if took < LOOK_NS // 2:
            self.learned = min(LEARNED_MAX, 2 * max(self.learned, work.n))
        elif took > LOOK_NS:
            self.learned //= 2

    def _report(self, ended: list[tuple[CrewWork, int]]) -> None:
        frames: list[bytes] = []
        at = 0
        with self.sending:
            while at < len(ended):
                results: list[Any] = []
                size, first = 0, at
                while at < len(ended) and size <= FINISH_RESULT_BYTES:
                    work, row = ended[at]
                    result = work.results.pop(row, None)
                    if result is not None:
                        results.append([at - first, result])
                        size += result_size(result)
                    at += 1
                rows = ended[first:at]
                frames.append(self.finish(
                    b"".join(w.ids[16 * r : 16 * r + 16] for w, r in rows), b"".join(w.token_column[8 * r : 8 * r + 8] for w, r in rows),
                    bytes(w.outcome[r] for w, r in rows), [w.begun_ns[r] for w, r in rows], [w.ended_ns[r] for w, r in rows], results,
                ))
                self.file.log.reported([w.tokens[r] for w, r in rows], self._last_id)
            if frames:
                self.sock.sendall(b"".join(frames))

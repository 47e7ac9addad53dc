"""An executor's end of its socket: requests out, answers in, what a run reports while it lasts."""

from __future__ import annotations

import threading
import time
from array import array
from typing import TYPE_CHECKING, Any, Final

from ..model.nouns import NEVER, Outcome
from ..model.tape import STREAMS
from ..protocol import frames
from ..tasks.tasks import check_kept

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterable, Mapping, Sequence

    from ..process.processes import Capture
    from ..tasks.tasks import Handler
    from .runner import Runner, Work

PROGRESS_NS: Final = 100_000_000
TELL_NS: Final = 250_000_000  # how long a run lasts before its output is told, and from then to then
READ_BYTES: Final = 1 << 20
FINISH_ROWS_MAX: Final = 8_192  # rows of one finish frame: under 350 KB without results
FINISH_RESULT_BYTES: Final = 256 * 1024  # results of one frame, and one more


class Teller:
    """What a place has told of the output of the run in it. Used by one thread."""

    def __init__(self, captures: Sequence[Capture]) -> None:
        self._captures = captures
        self._token = 0
        self._seen = [0, 0]
        self._due_ns = 0

    def news(self, token: int, begun_ns: int) -> dict[str, Any]:
        """What this run, entered then, has printed and nobody told, as an entry of `output` in a heartbeat; empty: nothing, or not yet."""
        now = time.monotonic_ns()
        if token != self._token:
            self._token, self._seen, self._due_ns = token, [0, 0], begun_ns + TELL_NS
        found: dict[str, Any] = {}
        if now < self._due_ns or not any(capture.dirty for capture in self._captures):
            return found
        self._due_ns = now + TELL_NS
        for i, capture in enumerate(self._captures):
            at, data = capture.since(self._seen[i])
            if data:
                found[STREAMS[i]] = [at, data]
                self._seen[i] = at + len(data)
        return found


class Wire:
    """What every kind of executor does with its socket. `sending` is held for each write, `receive` is called by one thread at a time."""

    def __init__(self, sock: socket.socket, name: str) -> None:
        self.sock = sock
        self.name = name
        self.stopping = False
        self.stale = 0
        self.clock_offset_us = 0
        self.offset_ns = 0  # wall clock of the server minus monotonic clock
        self.sending = threading.Lock()
        self._reader = frames.FrameReader(frames.REPLY_MAX)
        self._room = memoryview(bytearray(READ_BYTES))  # for what is read: new room for each reply takes longer than to read it
        self._pending: dict[int, str] = {}
        self.awaited: dict[int, frames.Reply | None] = {}  # requests whose replies user code waits for
        self._last_id = 0

    def granted(self, reply: dict[str, Any]) -> None:
        """Runs have come."""
        raise NotImplementedError

    def reply_to(self, number: int) -> frames.Reply:
        """Wait for the reply to an awaited request. UnavailableError when the stream ends."""
        raise NotImplementedError

    def request(self, verb: str, args: dict[str, Any]) -> bytes:
        """A frame; call with `sending` held."""
        self._last_id += 1
        self._pending[self._last_id] = verb
        return frames.encode_request(self._last_id, verb, args)

    def lease(self, credits_: int) -> bytes:
        """A frame that asks for runs; call with `sending` held."""
        return self.request("lease", {"queues": [], "credits": credits_, "wait_us": NEVER})

    def finish(
        self, ids: bytes, tokens: bytes, outcome: bytes, begun_ns: Sequence[int], ended_ns: Sequence[int], results: list[Any]
    ) -> bytes:
        """A frame that reports runs; call with `sending` held. `results`: sparse."""
        return self.request("finish", {
            "id": ids, "token": tokens, "outcome": outcome, "started_us": _instants(begun_ns, self.offset_ns),
            "ended_us": _instants(ended_ns, self.offset_ns), "result": results,
        })

    def not_run(self, ids: bytes, tokens: bytes) -> bytes:
        """A frame that hands runs back that nobody entered and now nobody will; call with `sending` held."""
        zero = bytes(len(tokens))
        return self.request("finish", {
            "id": ids, "token": tokens, "outcome": bytes([Outcome.NOT_STARTED]) * (len(tokens) // 8), "started_us": zero, "ended_us": zero,
            "result": [],
        })

    def unanswered(self, numbers: Iterable[int]) -> bool:
        """Has one of these requests no answer yet?"""
        return any(number in self._pending for number in numbers)

    @property
    def outstanding(self) -> int:
        """Lease requests without an answer."""
        return list(self._pending.values()).count("lease")

    def hello(self, tasks: Mapping[str, Handler]) -> None:
        """Introduce this worker. What the server refuses is raised."""
        announced = {name: made.wire() for name, made in tasks.items()}
        with self.sending:
            self.sock.sendall(self.request("hello", {"version": frames.VERSION, "role": "worker", "name": self.name, "tasks": announced}))
        while self._pending:
            if not self.receive():
                raise SystemExit(0)
        self.set_offset()

    def set_offset(self) -> None:
        """Look how the clocks stand to each other."""
        self.offset_ns = time.time_ns() - time.monotonic_ns() + self.clock_offset_us * 1_000

    def receive(self, flags: int = 0) -> bool:
        """Read once and act on the replies. False at the end of the stream."""
        try:
            n = self.sock.recv_into(self._room, 0, flags)
        except BlockingIOError:
            return True
        except ConnectionError:
            return False
        for body in self._reader.feed(self._room[:n]):
            self._answered(frames.parse_reply(body))
        return n > 0

    def _answered(self, reply: frames.Reply) -> None:
        verb = self._pending.pop(reply.id, "")
        if reply.id in self.awaited:
            self.awaited[reply.id] = reply
            return
        if reply.error is not None:
            raise reply.error
        if verb == "hello":
            self.clock_offset_us = int(reply.result["clock_offset_us"])
        elif verb == "lease":
            self.stopping = self.stopping or bool(reply.result.get("stop"))
            if reply.result["n"]:
                self.granted(reply.result)
        elif verb == "finish":
            self.stale += reply.result["verdict"].count(2)

    def heartbeat(self, runner: Runner, work: Work, row: int, text: str, checkpoint: bytes | None) -> None:
        """Send progress of a row, unless its runner sent some a moment ago. A checkpoint is always sent, and its answer waited for."""
        now = time.monotonic_ns()
        if checkpoint is None and now - runner.progress_ns < PROGRESS_NS:
            return
        runner.progress_ns = now
        args = {
            "id": work.ids[16 * row : 16 * row + 16], "token": work.token_column[8 * row : 8 * row + 8], "started": b"\1",
            "progress": [[0, text]], "checkpoint": [] if checkpoint is None else [[0, checkpoint]],
        }
        with self.sending:
            frame = self.request("heartbeat", args)
            number = self._last_id
            if checkpoint is not None:
                self.awaited[number] = None
            self.sock.sendall(frame)
        if checkpoint is not None:
            try:
                reply = self.reply_to(number)
            finally:
                del self.awaited[number]
            if reply.error is not None:
                raise reply.error
            check_kept(reply.result)

    def tell_output(self, work: Work, row: int, output: dict[str, Any]) -> None:
        """Send what a row has printed. It is no heartbeat of the run's own."""
        with self.sending:
            self.sock.sendall(self.request("heartbeat", {
                "id": work.ids[16 * row : 16 * row + 16], "token": work.token_column[8 * row : 8 * row + 8], "started": b"\1",
                "progress": [], "checkpoint": [], "output": [[0, output]],
            }))


def _instants(monotonic_ns: Sequence[int], offset_ns: int) -> bytes:
    """The column of these instants by the server's wall clock."""
    return array("q", [(t + offset_ns) // 1_000 for t in monotonic_ns]).tobytes()


def result_size(result: dict[str, Any]) -> int:
    """About how many bytes a result takes in a frame."""
    return 64 + sum(len(v) for v in result.values() if isinstance(v, bytes | str))

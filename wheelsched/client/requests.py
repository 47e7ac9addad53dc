"""One client's open requests across connections, sans-IO: the clients drive this and add but sockets and waiting.

A request is encoded once. When a connection is lost, what is still open goes out again on the next one with the same
bytes, so with the same `rid`: the server does it once. Time (`now`, seconds, monotonic) is an argument.
"""

from __future__ import annotations

import os
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from ..model.errors import DeadlineExceededError, InvalidArgumentError, PermissionDeniedError, UnavailableError, WheelschedError
from ..protocol.frames import REPLY_MAX, VERSION, FrameReader, encode_request, parse_reply
from ..protocol.verbs import MUTATING
from .places import advice

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..protocol.frames import Reply

__all__ = ["PIPELINE_MAX", "Ask", "Open", "Session", "backoff_s", "connect_error"]

T = TypeVar("T")

PIPELINE_MAX: Final = 4  # frames of put_many under way
RETRY_FOR_S_MAX: Final = 500  # the server remembers a rid for 600 s
_BACKOFF_S: Final = 0.02
_BACKOFF_S_MAX: Final = 1.0


def backoff_s(failures: int) -> float:
    """Seconds to wait after so many failures in a row: none, 0.02, then doubled each time, at most 1."""
    return min(_BACKOFF_S * 2.0 ** min(failures - 1, 10), _BACKOFF_S_MAX) if failures else 0.0


def _retry_seconds(value: float) -> float:
    """Seconds of the retry budget. InvalidArgumentError beyond what the server remembers."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= RETRY_FOR_S_MAX:
        raise InvalidArgumentError(f"retry_for: 0 to {RETRY_FOR_S_MAX} seconds are allowed, not {value!r}")
    return float(value)


@dataclass(frozen=True, slots=True)
class Ask(Generic[T]):
    """What to ask of the server, and how to read its answer. `row`: of the first job in a frame of put_many."""

    verb: str
    args: dict[str, Any]
    decode: Callable[[Any], T]
    row: int = 0


class Open(Generic[T]):
    """A request that was begun. `answered` turns true once; then `result()` gives the value or raises the error."""

    __slots__ = ("_error", "_value", "answered", "ask", "frame", "give_up_at", "id", "sent", "unavailable", "wants_retry")

    def __init__(self, request_id: int, ask: Ask[T], frame: bytes) -> None:
        self.id = request_id
        self.ask = ask
        self.frame = frame
        self.answered = False
        self.sent = False  # on the present connection
        self.wants_retry = False  # the server answered that it is going away
        self.unavailable = 0  # times the server asked to come back later
        self.give_up_at: float | None = None  # end of the retry budget, once a connection was lost
        self._value: Any = None
        self._error: WheelschedError | None = None

    def answer(self, value: Any, error: WheelschedError | None, *, by_server: bool) -> None:
        """Settle it."""
        self._value, self._error = value, error
        self.wants_retry = by_server and isinstance(error, UnavailableError)
        self.answered = True

    @property
    def why_again(self) -> str:
        """Why the server wants to be asked again."""
        return "" if self._error is None else self._error.message

    def result(self) -> T:
        """The decoded answer, or the error that it is."""
        if self._error is not None:
            raise self._error
        return self.ask.decode(self._value)


def connect_error(path: str, error: OSError) -> WheelschedError:
    """The error of a connection that can't be made, with advice."""
    if isinstance(error, FileNotFoundError | ConnectionRefusedError):
        return UnavailableError(f"no server at {path}: {advice(path)}", path=path)
    if isinstance(error, PermissionError):
        return PermissionDeniedError(f"the socket {path} may not be used by this user: {error.strerror}", path=path)
    return UnavailableError(f"no connection to {path}: {error.strerror or error}", path=path)


def _repeat(ask: Ask[Any]) -> str:
    """How a command that may have been done is done once."""
    keyless = ask.verb in ("enqueue", "trigger", "group") and ask.args.get("key") is None
    return ": give it a key (--key), then a repeat is harmless" if keyless else ""


class Session:
    """Requests in, bytes out; bytes in, answers out. The driver makes connections when `connect_at` has come."""

    def __init__(self, name: str, path: str, retry_for: float) -> None:
        self._name = name
        self._path = path
        self._retry_for = _retry_seconds(retry_for)
        self._last_id = 0
        self._open: dict[int, Open[Any]] = {}
        self._out: deque[tuple[Open[Any], memoryview]] = deque()  # with what is left to send of it
        self._reader = FrameReader(REPLY_MAX)
        self._hello: Open[Any] | None = None
        self._failures = 0  # connections in a row that brought no answer
        self._met = False  # a server has answered hello once
        self.connect_at = 0.0  # no earlier than this
        self.ready = False
        self.server: dict[str, Any] = {}  # its last hello

    @property
    def wants_to_send(self) -> bool:
        """Whether `next_chunk` has something."""
        return bool(self._out)

    @property
    def idle(self) -> bool:
        """Whether nothing waits for an answer."""
        return not self._open

    def begin(self, ask: Ask[T]) -> Open[T]:
        """A new open request, to be sent once there is a connection. InvalidArgumentError when it is too large."""
        self._last_id += 1
        args = {**ask.args, "rid": os.urandom(16)} if ask.verb in MUTATING else ask.args
        opened = Open(self._last_id, ask, encode_request(self._last_id, ask.verb, args))
        self._register(opened)
        return opened

    def again(self, opened: Open[Any], now: float) -> bool:
        """Send a request that was answered `unavailable` once more, unless its retry budget is over."""
        if opened.give_up_at is None:
            opened.give_up_at = now + self._retry_for
        if now >= opened.give_up_at:
            return False
        opened.answered = False
        opened.unavailable += 1
        self._register(opened)
        return True

    def drop(self, opened: Open[Any]) -> None:
        """Forget a request: nobody waits for it. It is not sent any more, unless it is half sent."""
        if self._open.pop(opened.id, None) is not None and not opened.sent:
            self._out = deque(item for item in self._out if item[0] is not opened or len(item[1]) < len(opened.frame))

    def patience(self, opened: Open[Any], now: float, end: float | None) -> float | None:
        """Seconds that may be waited for an answer before asking this again; None: as long as it takes.

        DeadlineExceededError at `end`; UnavailableError when there is no connection and the retry budget is over.
        """
        give_up_at = None if self.ready else opened.give_up_at
        if give_up_at is not None and now >= give_up_at:
            raise UnavailableError(
                f"no answer from {self._path}: the connection was lost and not made again within {self._retry_for:g} s; "
                f"{opened.ask.verb} may have been done{_repeat(opened.ask)}",
                path=self._path,
            )
        if end is not None and now >= end:
            done = f"; it may have been done{_repeat(opened.ask)}" if opened.ask.verb in MUTATING else ""
            message = f"{opened.ask.verb}: no answer from {self._path} in time{done}"
            raise DeadlineExceededError(message, path=self._path)
        return min((at - now for at in (give_up_at, end) if at is not None), default=None)

    def connected(self) -> None:
        """A new connection stands: hello goes first, everything open after the answer to it."""
        self._reader = FrameReader(REPLY_MAX)
        self._last_id += 1
        args = {"version": VERSION, "role": "client", "name": self._name}
        ask: Ask[Any] = Ask("hello", args, lambda value: value)
        self._hello = Open(self._last_id, ask, encode_request(self._last_id, "hello", args))
        self._out = deque([(self._hello, memoryview(self._hello.frame))])
        self.ready = False

    def not_connected(self, error: OSError, now: float) -> list[Open[Any]]:
        """No connection could be made. The very first call is answered at once, and so is what waiting can't help."""
        found = connect_error(self._path, error)
        if not self._met or not isinstance(found, UnavailableError):
            return self.fail_all(found)
        self.lost(now)
        return []

    def lost(self, now: float) -> None:
        """The connection is gone; from now on the retry budget of everything open runs."""
        self.ready = False
        self._hello = None
        self._out.clear()
        self.connect_at = now + backoff_s(self._failures)
        self._failures += 1
        for opened in self._open.values():
            opened.sent = False
            if opened.give_up_at is None:
                opened.give_up_at = now + self._retry_for

    def fail_all(self, error: WheelschedError) -> list[Open[Any]]:
        """Answer everything open with one error."""
        failed = list(self._open.values())
        self._open.clear()
        for opened in failed:
            opened.answer(None, error, by_server=False)
        return failed

    def next_chunk(self) -> memoryview:
        """The bytes to send next; say with `took` how many of them went out."""
        return self._out[0][1]

    def took(self, n: int) -> Open[Any] | None:
        """So many bytes of `next_chunk` were taken by the kernel. The request that is sent now in full, if one is."""
        opened, chunk = self._out[0]
        if n < len(chunk):
            self._out[0] = (opened, chunk[n:])
            return None
        self._out.popleft()
        opened.sent = True
        return opened

    def received(self, data: bytes) -> list[Open[Any]]:
        """Bytes of the server; returns what they answered. A WheelschedError ends the connection: the peer doesn't
        speak this protocol, or refuses ours.
        """
        answered = []
        for body in self._reader.feed(data):
            reply = parse_reply(body)
            if self._hello is not None and reply.id == self._hello.id:
                self._greeted(reply)
                continue
            if reply.id == 0:
                raise reply.error or InvalidArgumentError("the server's answer has the id 0")
            opened = self._open.pop(reply.id, None)
            if opened is not None:  # else its caller went away
                opened.answer(reply.result, reply.error, by_server=True)
                answered.append(opened)
            self._failures = 0
        return answered

    def _greeted(self, reply: Reply) -> None:
        self._hello = None
        if reply.error is not None:
            raise reply.error
        if not isinstance(reply.result, dict):
            raise InvalidArgumentError("the server's answer to hello is no map")
        self.server = reply.result
        self.ready = self._met = True
        for opened in self._open.values():  # a dict keeps the order in which they were begun
            self._out.append((opened, memoryview(opened.frame)))

    def _register(self, opened: Open[Any]) -> None:
        opened.sent = False
        self._open[opened.id] = opened
        if self.ready:
            self._out.append((opened, memoryview(opened.frame)))

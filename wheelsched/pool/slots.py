"""What a worker outside of the server keeps of each of its executors: the two streams, what was asked and not answered, what is held."""

from __future__ import annotations

import os
import select
import socket
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ..model.nouns import NEVER, US, Outcome
from ..protocol import frames

if TYPE_CHECKING:
    from .handle import Executor

HALF_FRAME_US: Final = 60 * US


class Stream:
    """A non-blocking stream of frames with an unbounded send buffer; both ends bound what is in flight."""

    def __init__(self, sock: socket.socket | None, limit: int) -> None:
        """Without a socket it is a closed one."""
        self.open = sock is not None
        self._reader = frames.FrameReader(limit)
        self._heard_us = NEVER  # monotonic; when a frame came that is not complete
        if sock is not None:
            sock.setblocking(False)
            self.sock = sock
        self._out: deque[memoryview] = deque()
        self._deaf = False  # the peer takes nothing more

    def send(self, frame: bytes) -> None:
        """Send what the socket takes, keep the rest. A peer that is gone is no error: what it sent before is still to be read."""
        self._out.append(memoryview(frame))
        self.flush()

    def flush(self) -> None:
        """Send what was kept."""
        try:
            while self._out and self.open:
                sent = self.sock.send(self._out[0])
                self._out[0] = self._out[0][sent:]
                if not len(self._out[0]):
                    self._out.popleft()
        except BlockingIOError:
            return
        except ConnectionError:
            self._out.clear()
            self._deaf = True

    def read(self) -> list[bytes]:
        """The bodies that are there; closes at the end of the stream. InvalidArgumentError for what is no frame."""
        bodies: list[bytes] = []
        while self.open:
            try:
                data = self.sock.recv(1 << 18)
            except BlockingIOError:
                if self._deaf:
                    self.close()
                break
            except ConnectionError:
                data = b""
            if not data:
                self.close()
            bodies += self._reader.feed(data)
            self._heard_us = _mono_us() if self._reader.pending else NEVER
        return bodies

    @property
    def half_until_us(self) -> int:
        """When it has been silent for too long in the middle of a frame (monotonic)."""
        return NEVER if self._heard_us == NEVER or not self.open else self._heard_us + HALF_FRAME_US

    @property
    def events(self) -> int:
        """What to poll for."""
        return select.POLLIN | (select.POLLOUT if self._out else 0)

    def close(self) -> None:
        """At most once."""
        if self.open:
            self.open = False
            self.sock.close()


@dataclass(slots=True)
class Sent:
    """A request that the server has not answered."""

    verb: str
    args: dict[str, Any]
    executor: int  # worker number in the pool of who asked; 0: the supervisor
    id: int  # the number it had there
    at_us: int  # monotonic, before it was sent


class Completion(NamedTuple):
    """What the supervisor reports of a run that its executor can't report."""

    token: int
    id: bytes
    outcome: int = int(Outcome.NOT_STARTED)
    started_us: int = 0
    ended_us: int = 0
    result: dict[str, Any] | None = None


@dataclass(slots=True)
class Slot:
    """One executor and its connection."""

    number: int
    executor: Executor
    down: Stream
    up: Stream | None = None
    hello: dict[str, Any] | None = None  # the server's answer
    tasks: dict[str, Any] | None = None
    greeting: int = 0  # the executor's hello that waits for the server's
    unanswered: dict[int, Sent] = field(default_factory=dict)
    parked: list[Sent] = field(default_factory=list)  # lease requests for the next connection
    held: dict[int, bytes] = field(default_factory=dict)  # token -> run id
    trust_us: int = NEVER  # monotonic; when the leases can't be relied upon
    beat_us: int = NEVER
    connect_us: int = 0
    begun: bool = False  # this executor has said hello
    leaving: bool = False  # another one is in its place: it takes no more runs
    ended: bool = False
    secret: bytes = field(default_factory=lambda: os.urandom(32))  # by which the server knows it again after a reconnect

    @property
    def open(self) -> bool:
        """Is there a report that was not answered, or a lease request that may be answered with runs, which want to be handed back?"""
        return any(r.verb == "finish" or (r.verb == "lease" and self.up is not None) for r in self.unanswered.values())


def connected(path: str) -> socket.socket:
    """A connection to the server's socket. OSError."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        sock.connect(path)
    except OSError:
        sock.close()
        raise
    return sock


def _mono_us() -> int:
    return time.monotonic_ns() // 1_000

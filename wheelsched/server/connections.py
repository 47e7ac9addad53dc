"""Unix socket connections of the server: bounded buffers in both directions, peers' ids."""

from __future__ import annotations

import contextlib
import errno
import socket
import struct
import sys
from collections import deque
from typing import TYPE_CHECKING, Final

from ..engine.costs import verb_of
from ..model.errors import InvalidArgumentError
from ..protocol.frames import FRAME_MAX, FrameReader, check_executor, encode_error, parse_request
from ..protocol.verbs import WORKERS

if TYPE_CHECKING:
    from ..protocol.frames import Request

READ_BYTES: Final = 256 * 1024
_PIECE: Final = 64 * 1024  # Python gets room for all that may come before it reads, and more than this from the kernel, which is slow
OUT_MAX: Final = 128 * 1024 * 1024  # unsent bytes of one connection; a client that never reads is dropped here
OUT_PAUSE: Final = 1024 * 1024  # unsent bytes at which nothing more is taken from it but what is urgent, until it reads
_LEFT_READS: Final = 256  # more than a socket holds: who still writes then is not gone
PENDING_MAX: Final = 1_000  # requests of one connection that wait for their turn; it is not read from meanwhile
PENDING_BYTES_MAX: Final = 2 * 1024 * 1024  # of them
_SO_PEERGROUPS: Final = 59  # the socket module has no name for it
_GROUPS_MAX: Final = 65_536  # the kernel's limit of a process
HALF_FRAME_US: Final = 60_000_000  # a frame must be complete after this long


class Connection:
    """One stream, non-blocking. The server reads requests from it and hands it frames.

    Requests stay as they came until their turn: what a flood of them costs is paid when they are taken, by the connection's share.
    """

    def __init__(self, number: int, sock: socket.socket, uid: int, roles: frozenset[str], *, trusted: bool = False) -> None:
        """`trusted`: an executor of our own pool. What it sends is checked like any other's: user code has its socket."""
        sock.setblocking(False)
        self.number = number
        self.sock = sock
        self.uid = uid
        self.roles = roles
        self.trusted = trusted
        self.urgent: deque[bytes] = deque()  # of workers, taken in each turn, or a lease is judged while the report that saves it lies here
        self.others: deque[bytes] = deque()
        self.served_us = 0  # its place in the order of turns: see Intake
        self.closing = False  # close when all is sent
        self.half_since_us = 0  # monotonic; since when a frame has been incomplete
        self.fault = ""  # why it is dropped
        self._gone = False  # it takes nothing more
        self._greeted = False
        self._reader = FrameReader(FRAME_MAX)
        self._waiting_bytes = 0
        self._more = False  # complete frames may be in the reader
        self._out: deque[memoryview] = deque()
        self._out_bytes = 0

    def fileno(self) -> int:
        """For the selector."""
        return self.sock.fileno()

    @property
    def waiting(self) -> bool:
        """Do requests wait for their turn?"""
        return bool(self.urgent or self.others)

    @property
    def readable(self) -> bool:
        """May more be read? Not while requests pile up, nor after an error."""
        return not self.closing and len(self.urgent) + len(self.others) < PENDING_MAX and self._waiting_bytes < PENDING_BYTES_MAX

    @property
    def clogged(self) -> bool:
        """Does it ask faster than it reads the answers?"""
        return self._out_bytes > OUT_PAUSE

    @property
    def writable_wanted(self) -> bool:
        """Is something unsent?"""
        return bool(self._out)

    def read(self, mono_us: int, most: int = READ_BYTES) -> bool:
        """Read what is there, up to `most` bytes, and cut it into requests. False when the peer is gone."""
        data = self._receive(most)
        return data is None or (bool(data) and self._take(data, mono_us))

    def read_all(self, mono_us: int) -> None:
        """Read to the end what a peer sent before it was gone."""
        self._gone = True
        for _ in range(_LEFT_READS):
            data = self._receive(READ_BYTES)
            if not data or not self._take(data, mono_us) or self.closing:
                return

    def refill(self, mono_us: int) -> bool:
        """Requests that were read but had no room. False when the connection ends."""
        return not self._more or not self.readable or self._take(b"", mono_us)

    def _receive(self, most: int) -> bytes | None:
        """Bytes; none of them at the end; None when there is nothing now."""
        try:
            data = self.sock.recv(min(most, _PIECE))
            if len(data) < _PIECE or most <= _PIECE:
                return data
        except (BlockingIOError, InterruptedError):
            return None
        except OSError:
            return b""
        with contextlib.suppress(OSError):  # whatever it is, the next read meets it
            data += self.sock.recv(most - _PIECE)
        return data

    def _take(self, data: bytes, mono_us: int) -> bool:
        room = sys.maxsize if self.trusted or self._gone else max(0, PENDING_MAX - len(self.urgent) - len(self.others))
        try:
            bodies = self._reader.feed(data, room)
            if self.trusted:
                for body in bodies:
                    self._greeted = check_executor(verb_of(body), greeted=self._greeted)
        except InvalidArgumentError as e:
            return self._refuse(e)
        for body in bodies:
            (self.urgent if verb_of(body) in WORKERS else self.others).append(body)
            self._waiting_bytes += len(body)
        self._more = len(bodies) == room
        if not self._reader.pending or self._more:
            self.half_since_us = 0
        elif not self.half_since_us or self.trusted:  # its parent may have been frozen meanwhile: its silence counts
            self.half_since_us = mono_us
        return True

    def take(self, waiting: deque[bytes]) -> tuple[Request, int] | None:
        """The next request of `urgent` or `others`, and the size of its frame. None for rubbish, which ends the connection."""
        body = waiting.popleft()
        self._waiting_bytes -= len(body)
        try:
            return parse_request(body), len(body)
        except InvalidArgumentError as e:
            self._refuse(e)
            return None

    def look(self, waiting: deque[bytes]) -> Request | None:
        """The next request without taking it; None for rubbish."""
        try:
            return parse_request(waiting[0])
        except InvalidArgumentError:
            return None

    def left(self) -> list[Request]:
        """Of what waits the completions: they were sent before the peer went, so they count; also those that nobody has read yet."""
        if self._gone:
            self.read_all(0)
        bodies, found = [body for body in self.urgent if verb_of(body) == "finish"], []
        self.urgent.clear()
        self.others.clear()
        for body in bodies:
            with contextlib.suppress(InvalidArgumentError):  # nobody is left to be told
                found.append(parse_request(body))
        return found

    def _refuse(self, error: InvalidArgumentError) -> bool:
        """Tell it, and close when that is sent. False when all is sent."""
        self.fault = self.fault or error.message
        self.others.clear()
        self.send(encode_error(0, error))
        self.closing = True
        return self._out_bytes > 0 and not self.trusted

    def send(self, frame: bytes) -> bool:
        """Send now what the socket takes, keep the rest. False when the peer is gone or reads nothing."""
        self._out.append(memoryview(frame))
        self._out_bytes += len(frame)
        return self.flush() and self._out_bytes <= OUT_MAX

    def flush(self) -> bool:
        """Send what is kept. False when the peer is gone, or all is sent and the connection was to be closed."""
        try:
            while self._out:
                sent = self.sock.send(self._out[0])
                self._out_bytes -= sent
                if sent == len(self._out[0]):
                    self._out.popleft()
                else:
                    self._out[0] = self._out[0][sent:]
        except (BlockingIOError, InterruptedError):
            return True
        except OSError:
            self._gone = True
            return False
        return not self.closing

    def close(self) -> None:
        """Close the stream."""
        self.sock.close()


def peer(sock: socket.socket) -> tuple[int, set[int]]:
    """(user id, group ids) of the peer when it connected, by SO_PEERCRED and SO_PEERGROUPS."""
    _, uid, gid = struct.unpack("3I", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    try:
        groups = sock.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, 4 * _GROUPS_MAX)
    except OSError:  # an old kernel, or more groups than there is room for
        groups = b""
    return uid, {gid, *struct.unpack(f"{len(groups) // 4}I", groups)}


def out_of_descriptors(error: OSError) -> bool:
    """Is this the error of a full descriptor table?"""
    return error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

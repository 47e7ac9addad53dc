"""The socket under Client: many threads, one connection, one lock.

Who waits for an answer also does the work: one of the waiting threads polls and reads for all, hands out what came,
and passes the role on when its own answer is there. The lock is never held while waiting.
"""

from __future__ import annotations

import os
import select
import socket
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ..model.errors import FailedPreconditionError, UnavailableError, WheelschedError
from .requests import Session, backoff_s

if TYPE_CHECKING:
    from collections.abc import Callable

    from .requests import Ask, Open

__all__ = ["CONNECT_S", "Transport"]

T = TypeVar("T")

CONNECT_S: Final = 5.0  # a full backlog makes a connect wait
_RECEIVE: Final = 256 * 1024


class _Link:
    """One connection, and who is using its descriptor."""

    __slots__ = ("gone", "polling", "reading", "sock", "writing")

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.reading = False
        self.writing = False
        self.polling = 0
        self.gone = False

    def end(self) -> None:
        """Wake who polls it; the last of them closes the descriptor, so that its number isn't reused under them."""
        if not self.gone:
            self.gone = True
            with suppress(OSError):  # the peer may have been faster: only the waking matters
                self.sock.shutdown(socket.SHUT_RDWR)
        if not self.polling:
            self.sock.close()


class Transport:
    """Sends what is asked and waits for answers; reconnects and sends again. Safe for threads, and after fork."""

    def __init__(self, path: str, name: str, retry_for: float) -> None:
        self._make_session: Callable[[], Session] = lambda: Session(name, path, retry_for)
        self.path = path
        self.on_wait: Callable[[str], None] | None = None  # told why, when a request has to wait for the next server
        self._closed = False
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._cond = threading.Condition()
        self._session = self._make_session()
        self._link: _Link | None = None
        self._connecting = False

    def _enter(self) -> None:
        """Be in this process: in a forked child the parent's connection is not ours to use or to shut down, nor is its lock."""
        if self._pid != os.getpid():
            if self._link is not None:
                self._link.sock.close()
            self._reset()

    @property
    def server(self) -> dict[str, Any]:
        """What the server said of itself when the connection was made; empty before that."""
        return self._session.server

    def begin(self, ask: Ask[T]) -> Open[T]:
        """Start a request; `finish` or `drop` must follow. FailedPreconditionError when the client is closed."""
        self._enter()
        with self._cond:
            if self._closed:
                raise FailedPreconditionError("this client is closed; make a new one")
            return self._session.begin(ask)

    def flush(self, opened: Open[Any], timeout: float | None) -> None:
        """Wait until all of a request is with the kernel. Errors as `finish`."""
        self._enter()
        with self._cond:
            self._until(opened, timeout, flush=True)

    def finish(self, opened: Open[T], timeout: float | None) -> T:
        """The answer. The server's error; DeadlineExceededError after `timeout` seconds; UnavailableError when the
        retry budget ended without a connection.
        """
        self._enter()
        with self._cond:
            end = None if timeout is None else time.monotonic() + timeout
            while True:
                self._until(opened, None if end is None else end - time.monotonic(), flush=False)
                if not opened.wants_retry or not self._later(opened, end):
                    return opened.result()

    def drop(self, opened: Open[Any]) -> None:
        """Nobody waits for this any more."""
        self._enter()
        with self._cond:
            self._session.drop(opened)

    def close(self) -> None:
        """End the connection; what other threads wait for fails with UnavailableError."""
        self._enter()
        with self._cond:
            self._closed = True
            self._session.fail_all(UnavailableError("the client was closed"))
            self._lose()
            self._cond.notify_all()

    def _later(self, opened: Open[Any], end: float | None) -> bool:
        """The server is going away: wait a little, then ask again. False when there is no time left for that."""
        if opened.unavailable == 0 and self.on_wait is not None:
            self.on_wait(opened.why_again)
        now = time.monotonic()
        until = now + backoff_s(opened.unavailable + 1)
        if end is not None and until >= end:
            return False
        while now < until and not self._closed:
            self._cond.wait(until - now)
            now = time.monotonic()
        return not self._closed and self._session.again(opened, now)

    def _until(self, opened: Open[Any], timeout: float | None, *, flush: bool) -> None:
        end = None if timeout is None else time.monotonic() + timeout
        try:
            while not opened.answered and not (flush and opened.sent):
                now = time.monotonic()
                self._turn(now, self._session.patience(opened, now, end))
        except BaseException:
            self._session.drop(opened)
            raise

    def _turn(self, now: float, seconds: float | None) -> None:
        """One step: connect, send, or poll and read; or wait for the thread that does. The lock is held around it."""
        link, session = self._link, self._session
        if link is None:
            pause = session.connect_at - now
            if self._connecting or pause > 0:
                waits = [s for s in (seconds, None if self._connecting else pause) if s is not None]
                self._cond.wait(min(waits, default=None))
            else:
                self._connect(seconds)
            return
        if session.wants_to_send and self._send(link):
            return
        reading, writing = not link.reading, session.wants_to_send and not link.writing
        if not reading and not writing:
            self._cond.wait(seconds)
            return
        self._poll(link, seconds, reading=reading, writing=writing)
        if link.gone:
            link.end()
        elif reading:
            self._receive(link)
        self._cond.notify_all()

    def _poll(self, link: _Link, seconds: float | None, *, reading: bool, writing: bool) -> None:
        """Wait, without the lock, until the socket is ready for a role that this thread takes."""
        poll = select.poll()
        poll.register(link.sock, (select.POLLIN if reading else 0) | (select.POLLOUT if writing else 0))
        link.reading, link.writing = link.reading or reading, link.writing or writing
        link.polling += 1
        self._cond.release()
        try:
            poll.poll(None if seconds is None else max(0.0, seconds) * 1_000 + 1)
        finally:
            self._cond.acquire()
            link.polling -= 1
            link.reading, link.writing = link.reading and not reading, link.writing and not writing

    def _send(self, link: _Link) -> bool:
        """Send what the kernel takes at once. Whether anything changed."""
        before = self._session.next_chunk()
        try:
            while self._session.wants_to_send:
                self._session.took(link.sock.send(self._session.next_chunk()))
        except BlockingIOError:
            return self._session.next_chunk() is not before
        except OSError:
            self._lose()
        return True

    def _receive(self, link: _Link) -> None:
        try:
            data = link.sock.recv(_RECEIVE)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._lose()
            return
        try:
            self._session.received(data)
        except UnavailableError:  # in answer to hello: it is going away
            self._lose()
        except WheelschedError as e:
            self._session.fail_all(e)
            self._lose()

    def _connect(self, seconds: float | None) -> None:
        self._connecting = True
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        error: OSError | None = None
        self._cond.release()
        try:
            sock.settimeout(CONNECT_S if seconds is None else max(0.001, min(CONNECT_S, seconds)))
            sock.connect(self.path)
            sock.setblocking(False)
        except OSError as e:
            error = e
        except BaseException:
            sock.close()
            raise
        finally:
            self._cond.acquire()
            self._connecting = False
            self._cond.notify_all()
        if error is None and not self._closed:
            self._link = _Link(sock)
            self._session.connected()
            return
        sock.close()
        if error is not None:
            self._session.not_connected(error, time.monotonic())

    def _lose(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.end()
            self._session.lost(time.monotonic())

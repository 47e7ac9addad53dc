"""The asyncio transport of AsyncClient: one connection at a time, made again by itself. Native: no thread.

A connection belongs to the event loop and to the process in which it was made. In a new loop, when the one before is closed or idle, and
in a forked child, another one is made; two loops at the same time are refused.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from typing import TYPE_CHECKING, Any, TypeVar

from ..model.errors import FailedPreconditionError, UnavailableError, WheelschedError
from .requests import Session, backoff_s
from .transport import CONNECT_S

if TYPE_CHECKING:
    from collections.abc import Callable

    from .requests import Ask, Open

__all__ = ["AsyncTransport"]

T = TypeVar("T")


class _Link(asyncio.Protocol):
    """One connection; hands everything to its owner while it is the owner's."""

    def __init__(self, owner: AsyncTransport, sock: socket.socket) -> None:
        self._owner = owner
        self.sock = sock
        self.transport: asyncio.Transport | None = None
        self.paused = False
        self.gone = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self._owner.received(self, data)

    def pause_writing(self) -> None:
        self.paused = True

    def resume_writing(self) -> None:
        self.paused = False
        self._owner.flush()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the reason changes nothing
        self.gone = True
        self._owner.lost(self)

    def end(self) -> None:
        """Drop it; `connection_lost` follows and finds it no longer the owner's."""
        if self.transport is not None:
            self.transport.abort()


class AsyncTransport:
    """Sends what is asked and waits for answers; reconnects and sends again by itself."""

    def __init__(self, path: str, name: str, retry_for: float) -> None:
        self._make_session: Callable[[], Session] = lambda: Session(name, path, retry_for)
        self.path = path
        self._closed = False
        self._reset()

    def _reset(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pid = os.getpid()
        self._session = self._make_session()
        self._link: _Link | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._waiters: dict[Open[Any], asyncio.Future[None]] = {}

    def _enter(self) -> None:
        """Be in the running loop and in this process. FailedPreconditionError while another loop is using the client."""
        loop = asyncio.get_running_loop()
        if self._loop is loop and self._pid == os.getpid():
            return
        if self._pid != os.getpid():  # a forked child: the parent's connection is not ours to shut down
            if self._link is not None:
                self._link.sock.close()
            self._reset()
        elif self._loop is not None:
            if not self._loop.is_closed() and (self._loop.is_running() or self._waiters):
                raise FailedPreconditionError(
                    "this AsyncClient is in use in another event loop: make one AsyncClient for each loop, in the loop that uses it"
                )
            self._leave(self._loop)
        self._loop = loop

    def _leave(self, loop: asyncio.AbstractEventLoop) -> None:
        """Give up a connection in a loop that does not run."""
        link, task = self._link, self._connecting
        self._reset()  # first: what ends now is nobody's any more
        if not loop.is_closed():
            if task is not None:
                task.cancel()
            if link is not None:
                link.end()
        elif link is not None:
            link.sock.close()  # its transport can do nothing without its loop

    @property
    def server(self) -> dict[str, Any]:
        """What the server said of itself when the connection was made; empty before that."""
        return self._session.server

    def begin(self, ask: Ask[T]) -> Open[T]:
        """Start a request; `finish` or `drop` must follow. FailedPreconditionError when the client is closed, or in use in another loop."""
        if self._closed:
            raise FailedPreconditionError("this client is closed; make a new one")
        self._enter()
        opened = self._session.begin(ask)
        self.flush()
        return opened

    async def sent(self, opened: Open[Any], seconds: float | None) -> None:
        """Wait until all of a request is with the transport. Errors as `finish`."""
        await self._until(opened, seconds, flush=True)

    async def finish(self, opened: Open[T], seconds: float | None) -> T:
        """As Transport.finish."""
        end = None if seconds is None else time.monotonic() + seconds
        while True:
            await self._until(opened, None if end is None else end - time.monotonic(), flush=False)
            if not opened.wants_retry:
                return opened.result()
            pause = backoff_s(opened.unavailable + 1)
            if end is not None and time.monotonic() + pause >= end:
                return opened.result()
            await asyncio.sleep(pause)
            if self._closed or not self._session.again(opened, time.monotonic()):
                return opened.result()
            self.flush()

    def drop(self, opened: Open[Any]) -> None:
        """Nobody waits for this any more."""
        self._session.drop(opened)

    async def close(self) -> None:
        """End the connection; what others wait for fails with UnavailableError. FailedPreconditionError: see `begin`."""
        self._enter()
        self._closed = True
        self._session.fail_all(UnavailableError("the client was closed"))
        self._wake_all()
        task, self._connecting = self._connecting, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
        link, self._link = self._link, None
        if link is not None:
            link.end()
            await asyncio.sleep(0)  # the loop closes the descriptor in its next turn

    def flush(self) -> None:
        """Hand the transport what it takes."""
        link = self._link
        if link is None or link.transport is None:
            return
        while self._session.wants_to_send and not link.paused:
            chunk = self._session.next_chunk()
            link.transport.write(chunk)
            self._wake(self._session.took(len(chunk)))

    def received(self, link: _Link, data: bytes) -> None:
        """Bytes of the server."""
        if link is not self._link:
            return
        try:
            for opened in self._session.received(data):
                self._wake(opened)
        except UnavailableError:  # in answer to hello: it is going away
            self.lost(link)
        except WheelschedError as e:
            self._session.fail_all(e)
            self.lost(link)
        self.flush()

    def lost(self, link: _Link) -> None:
        """A connection is gone, or is given up."""
        if link is self._link:
            self._link = None
            link.end()
            self._session.lost(time.monotonic())
            self._wake_all()

    def _wake(self, opened: Open[Any] | None) -> None:
        waiter = None if opened is None else self._waiters.get(opened)
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def _wake_all(self) -> None:
        for opened in list(self._waiters):
            self._wake(opened)

    async def _until(self, opened: Open[Any], seconds: float | None, *, flush: bool) -> None:
        end = None if seconds is None else time.monotonic() + seconds
        try:
            while not opened.answered and not (flush and opened.sent):
                wait_s = self._session.patience(opened, time.monotonic(), end)
                if self._link is None and self._connecting is None:
                    self._connecting = asyncio.create_task(self._connect())
                waiter = self._waiters[opened] = asyncio.get_running_loop().create_future()
                await asyncio.wait([waiter], timeout=wait_s)
        except BaseException:
            self._session.drop(opened)
            raise
        finally:
            self._waiters.pop(opened, None)

    async def _connect(self) -> None:
        session, me = self._session, asyncio.current_task()
        try:
            await asyncio.sleep(max(0.0, session.connect_at - time.monotonic()))
            async with asyncio.timeout(CONNECT_S):
                link = await self._linked()
        except OSError as e:
            session.not_connected(e, time.monotonic())
        else:
            if not self._closed and self._session is session:
                self._link = link
                session.connected()
            if self._link is not link or link.gone:
                self.lost(link)
                link.end()
        finally:
            if self._connecting is me:
                self._connecting = None
        if self._session is session:
            self.flush()
            self._wake_all()

    async def _linked(self) -> _Link:
        loop, sock = asyncio.get_running_loop(), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.setblocking(False)
            await loop.sock_connect(sock, self.path)
            return (await loop.create_unix_connection(lambda: _Link(self, sock), sock=sock))[1]
        except BaseException:
            sock.close()
            raise

"""AsyncClient: the face of Client for asyncio, native: no thread.

    async with AsyncClient() as ws:
        run = await ws.enqueue(Call("net.ping", "a.example"))
        await run.result(timeout=30)
        async for job in ws.jobs("billing/*"): ...

The same names, arguments, errors and promises as in `client`. One AsyncClient belongs to one event loop.
"""

# ruff: noqa: ASYNC109 - the timeouts are part of the face shared with Client

from __future__ import annotations

import asyncio
import os
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from .bulk import put_many_flow
from .client import RETRY_FOR_S, TIMEOUT_S, WAIT_GRACE_S, default_socket_path
from .errors import FailedPreconditionError, NotFoundError, RunTimeout, UnavailableError, WheelschedError
from .session import Session, backoff_s
from .transport import CONNECT_S, check_path
from .verbs import WAIT_S_MAX, Verbs, call_seconds, outcome
from .views import RunInfo

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
    from datetime import datetime
    from types import TracebackType
    from typing import Self

    from .model import Call, Job
    from .session import Ask, Open
    from .verbs import Pages
    from .views import JobInfo, PutResults

__all__ = ["AsyncClient", "AsyncListing", "AsyncRun"]

T = TypeVar("T")


class AsyncRun(RunInfo):
    """A run, with the means to ask about it again."""

    __slots__ = ("_client",)

    def __init__(self, raw: dict[str, Any], client: AsyncClient) -> None:
        super().__init__(raw)
        self._client = client

    async def refresh(self) -> Self:
        """As Run.refresh."""
        self._become(await self._client.run(self.id))
        return self

    async def result(self, timeout: Any = None) -> Any:
        """As Run.result."""
        seconds = call_seconds(timeout, None)
        end = None if seconds is None else time.monotonic() + seconds
        if self.state == "dead":
            await self.refresh()  # a dead letter may have been sent back meanwhile
        while not self.final:
            left = None if end is None else end - time.monotonic()
            if left is not None and left <= 0:
                raise RunTimeout(f"run {self.id} of {self.job} is {self.state} after {seconds:g} s", state=self.state)
            wait_s = WAIT_S_MAX if left is None else min(left, WAIT_S_MAX)
            self._become(await self._client.wait_run(self.id, wait_s))
        return outcome(self)


class AsyncListing(Generic[T]):
    """An asynchronous iterable that asks for page after page as it is read; each iteration begins anew."""

    def __init__(self, ask: Callable[[Ask[list[T]]], Awaitable[list[T]]], pages: Callable[[], Pages[T]]) -> None:
        self._ask = ask
        self._pages = pages

    async def __aiter__(self) -> AsyncIterator[T]:
        pages = self._pages()
        while (ask := pages.next_ask()) is not None:
            for item in await self._ask(ask):
                yield item


class _Link(asyncio.Protocol):
    """One connection; hands everything to its owner while it is the owner's."""

    def __init__(self, owner: _AsyncTransport) -> None:
        self._owner = owner
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


class _AsyncTransport:
    """Sends what is asked and waits for answers; reconnects and sends again by itself."""

    def __init__(self, path: str, name: str, retry_for: float) -> None:
        self.path = path
        self._session = Session(name, path, retry_for)
        self._link: _Link | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._waiters: dict[Open[Any], asyncio.Future[None]] = {}
        self._closed = False

    def begin(self, ask: Ask[T]) -> Open[T]:
        """Start a request; `finish` or `drop` must follow. FailedPreconditionError when the client is closed."""
        if self._closed:
            raise FailedPreconditionError("this client is closed; make a new one")
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
        """End the connection; what others wait for fails with UnavailableError."""
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
        try:
            await asyncio.sleep(max(0.0, self._session.connect_at - time.monotonic()))
            async with asyncio.timeout(CONNECT_S):
                _, link = await asyncio.get_running_loop().create_unix_connection(lambda: _Link(self), self.path)
        except OSError as e:
            self._session.not_connected(e, time.monotonic())
        else:
            if not self._closed:
                self._link = link
                self._session.connected()
            if self._closed or link.gone:
                self.lost(link)
                link.end()
        finally:
            self._connecting = None
        self.flush()
        self._wake_all()


class AsyncClient:
    """The client of a server on this machine, for asyncio. Arguments as Client's; every method is as Client's."""

    def __init__(self, path: str | os.PathLike[str] | None = None, *, timeout: Any = TIMEOUT_S, retry_for: float = RETRY_FOR_S) -> None:
        self._verbs: Verbs[AsyncRun] = Verbs(lambda raw: AsyncRun(raw, self))
        self._timeout = call_seconds(timeout, None)
        self._transport = _AsyncTransport(
            check_path(default_socket_path() if path is None else path), f"asyncio client {os.getpid()}", retry_for
        )

    @property
    def path(self) -> str:
        """The socket's path."""
        return self._transport.path

    async def close(self) -> None:
        """End the connection. Calls after that raise FailedPreconditionError."""
        await self._transport.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    async def put(
        self,
        name: str,
        call: Call,
        schedule: Any,
        *,
        paused: bool | None = None,
        note: str = "",
        version: int | None = None,
        call_timeout: Any = None,
        **policies: Any,
    ) -> JobInfo:
        """As Client.put."""
        return await self._do(self._verbs.put(name, call, schedule, policies, paused=paused, note=note, version=version), call_timeout)

    async def put_many(self, jobs: Iterable[Job], *, timeout: Any = None) -> PutResults:
        """As Client.put_many."""
        flow = put_many_flow(jobs)
        step: Callable[[], tuple[str, Any]] = partial(next, flow)
        while True:
            try:
                what, value = step()
            except StopIteration as stop:
                results: PutResults = stop.value
                return results
            try:
                if what == "start":
                    value = await self._start(value, timeout)
                elif what == "finish":
                    value = await self._transport.finish(value, call_seconds(timeout, self._timeout))
                else:
                    self._transport.drop(value)
                step = partial(flow.send, value)
            except WheelschedError as e:
                step = partial(flow.throw, e)

    async def enqueue(
        self,
        call: Call,
        *,
        delay: Any = None,
        at: Any = None,
        key: str | None = None,
        namespace: str = "default",
        call_timeout: Any = None,
        **policies: Any,
    ) -> AsyncRun:
        """As Client.enqueue."""
        run = await self._do(self._verbs.enqueue(call, policies, delay=delay, at=at, key=key, namespace=namespace), call_timeout)
        return run if run.known else await self.run(run.id, timeout=call_timeout)

    async def get(self, name: str, *, timeout: Any = None) -> JobInfo:
        """As Client.get."""
        return await self._do(self._verbs.get(name), timeout)

    def jobs(
        self, match: str | None = None, state: str | None = None, limit: int | None = None, *, timeout: Any = None
    ) -> AsyncListing[JobInfo]:
        """As Client.jobs."""
        return self._listing(self._verbs.jobs(match, state, limit), timeout)

    async def next(self, name: str, n: int = 1, *, timeout: Any = None) -> list[datetime]:
        """As Client.next."""
        return await self._do(self._verbs.next(name, n), timeout)

    async def pause(self, name: str, note: str = "", *, timeout: Any = None) -> JobInfo:
        """As Client.pause."""
        return await self._do(self._verbs.pause(name, note), timeout)

    async def resume(self, name: str, catchup: str | None = None, *, timeout: Any = None) -> JobInfo:
        """As Client.resume."""
        return await self._do(self._verbs.resume(name, catchup), timeout)

    async def delete(self, name: str, *, timeout: Any = None) -> JobInfo:
        """As Client.delete."""
        return await self._do(self._verbs.delete(name), timeout)

    async def trigger(self, name: str, key: str | None = None, *, timeout: Any = None) -> AsyncRun:
        """As Client.trigger."""
        run = await self._do(self._verbs.trigger(name, key), timeout)
        return run if run.known else await self.run(run.id, timeout=timeout)

    async def run(self, run_id: str, *, timeout: Any = None) -> AsyncRun:
        """As Client.run."""
        return await self._do(self._verbs.run(run_id), timeout)

    async def wait_run(self, run_id: str, seconds: float) -> AsyncRun:
        """As Client.wait_run."""
        try:
            run = await self._do(self._verbs.wait(run_id, seconds), seconds + WAIT_GRACE_S)
        except NotFoundError:
            return await self.run(run_id)
        return run if run.known else await self.run(run_id)

    def runs(
        self,
        job: str | None = None,
        state: str | None = None,
        since: Any = None,
        until: Any = None,
        *,
        skipped: bool = False,
        limit: int | None = None,
        timeout: Any = None,
    ) -> AsyncListing[AsyncRun]:
        """As Client.runs."""
        return self._listing(self._verbs.runs(job, state, since=since, until=until, skipped=skipped, limit=limit), timeout)

    async def cancel(self, run_id: str, *, timeout: Any = None) -> AsyncRun:
        """As Client.cancel."""
        return await self._do(self._verbs.cancel(run_id), timeout)

    def dead(self, match: str | None = None, limit: int | None = None, *, timeout: Any = None) -> AsyncListing[AsyncRun]:
        """As Client.dead."""
        return self._listing(self._verbs.dead(match, limit), timeout)

    async def redrive(self, match: str | None = None, *, ids: Iterable[str] | None = None, timeout: Any = None) -> int:
        """As Client.redrive."""
        return await self._do(self._verbs.redrive(match, ids), timeout)

    async def discard(self, match: str | None = None, *, ids: Iterable[str] | None = None, timeout: Any = None) -> int:
        """As Client.discard."""
        return await self._do(self._verbs.discard(match, ids), timeout)

    async def stats(self, *, timeout: Any = None) -> dict[str, Any]:
        """As Client.stats."""
        return await self._do(self._verbs.stats(), timeout)

    def _listing(self, pages: Callable[[], Pages[T]], timeout: Any) -> AsyncListing[T]:
        return AsyncListing(lambda ask: self._do(ask, timeout), pages)

    async def _do(self, ask: Ask[T], timeout: Any) -> T:
        return await self._transport.finish(self._transport.begin(ask), call_seconds(timeout, self._timeout))

    async def _start(self, ask: Ask[Any], timeout: Any) -> Any:
        opened = self._transport.begin(ask)
        await self._transport.sent(opened, call_seconds(timeout, self._timeout))
        return opened

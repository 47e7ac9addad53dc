"""AsyncClient: the face of Client for asyncio, native: no thread.

    async with AsyncClient() as ws:
        run = await ws.enqueue(Call("net.ping", "a.example"))
        await run.result(timeout=30)
        async for job in ws.jobs("billing/*"): ...

The same names, arguments, errors and promises as in `client`. An AsyncClient is used in one event loop at a time: in a later loop, and in
a forked child, it connects anew; beside a loop that is using it any other is refused.
"""

# ruff: noqa: ASYNC109 - the timeouts are part of the face shared with Client

from __future__ import annotations

import os
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, cast, overload

from ..model.errors import NotFoundError, WheelschedError
from ..model.nouns import R_co
from ..model.payloads import NO_EXTS, Exts
from ..model.policies import tells_policies
from . import verbs_queues
from .async_client_runs import AsyncRunCalls
from .async_transport import AsyncTransport
from .bounds import span
from .client import RETRY_FOR_S, TIMEOUT_S, WAIT_GRACE_S, clock_offset, user_name
from .places import check_path, find_socket
from .put_many import put_many_flow
from .values import RunInfo
from .verbs import WAIT_S_MAX, Verbs, call_seconds, outcome, unfinished
from .verbs_dead import AsyncDeadVerbs
from .verbs_events import AsyncEventVerbs
from .verbs_jobs import AsyncJobVerbs
from .verbs_logs import AsyncLogVerbs
from .verbs_time import TimeVerbs

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterable, Mapping
    from datetime import datetime, timedelta
    from types import TracebackType
    from typing import Self, Unpack

    from ..model.jobs import Job, Policies
    from ..model.nouns import Call
    from ..model.payloads import Ext
    from ..model.policies import Overlap
    from ..model.typed import CalendarFields, Duration, Instant, Moment, OverlapWord, QueueSettings, Schedules
    from .apply import Applied
    from .columns import Columns
    from .put_many import PutResults
    from .requests import Ask
    from .values import JobInfo
    from .verbs import Pages
    from .views_forecast import Forecast
    from .views_queues import QueueInfo
    from .views_time import Backfill, Calendar, Hold, JobChange, Reloaded, TzDiff, Why

__all__ = ["AsyncClient", "AsyncListing", "AsyncRun"]

T = TypeVar("T")


class AsyncRun(RunInfo, Generic[R_co]):
    """As Run."""

    __slots__ = ("_client",)

    def __init__(self, raw: dict[str, Any], client: AsyncClient) -> None:
        super().__init__(raw, getattr(client, "exts", NO_EXTS))  # one that nobody asks again about has no client
        self._client = client

    async def refresh(self) -> Self:
        """As Run.refresh."""
        self._become(await self._client.run(self.id))
        return self

    async def result(self, timeout: Duration | None = None) -> R_co:
        """As Run.result."""
        seconds = call_seconds(timeout, None)
        end = None if seconds is None else time.monotonic() + seconds
        if self.state == "dead":
            await self.refresh()  # a dead letter may have been sent back meanwhile
        while not self.final:
            left = None if end is None else end - time.monotonic()
            if left is not None and left <= 0:
                await self.refresh()  # for what it waits
                if self.final:
                    break
                raise unfinished(self, f"after {seconds:g} s")
            wait_s = WAIT_S_MAX if left is None else min(left, WAIT_S_MAX)
            self._become(await self._client.wait_run(self.id, wait_s))
        value: R_co = outcome(self)
        return value


class AsyncListing(Generic[T]):
    """An asynchronous iterable that asks for page after page as it is read; each iteration begins anew."""

    def __init__(self, ask: Callable[[Ask[list[T]]], Awaitable[list[T]]], pages: Callable[[], Pages[T]]) -> None:
        self._ask = ask
        self._pages = pages

    def __repr__(self) -> str:
        return f"<AsyncListing of {self._pages().verb}: not asked for yet; iterate over it with `async for`, or await it for a list>"

    def __await__(self) -> Generator[Any, None, list[T]]:
        """All of it, as a list."""
        return self._all().__await__()

    async def _all(self) -> list[T]:
        return [item async for item in self]

    async def __aiter__(self) -> AsyncIterator[T]:
        pages = self._pages()
        while (ask := pages.next_ask()) is not None:
            for item in await self._ask(ask):
                yield item

    async def page(self, after: Any = None, limit: int = 100) -> tuple[list[T], Any]:
        """As Listing.page."""
        pages = self._pages()
        return await self._ask(pages.turn_to(after, limit)), pages.after

    async def columns(self) -> Columns:
        """As Listing.columns."""
        from .columns import PackedPages  # noqa: PLC0415 - it loads numpy

        ask = cast("Callable[[Ask[list[Any]]], Awaitable[list[Any]]]", self._ask)
        pages, parts = PackedPages(self._pages()), []
        while (question := pages.next_ask()) is not None:
            parts += await ask(question)
        return pages.columns(parts)

    async def to_pandas(self) -> Any:
        """As Listing.to_pandas."""
        return (await self.columns()).to_pandas()


class AsyncClient(AsyncRunCalls, AsyncJobVerbs, AsyncEventVerbs, AsyncDeadVerbs, AsyncLogVerbs):
    """The client of a server on this machine, for asyncio. Arguments as Client's; every method is as Client's."""

    def __init__(
        self, path: str | os.PathLike[str] | None = None, *, timeout: Duration | None = TIMEOUT_S, retry_for: float = RETRY_FOR_S,
        ext: Iterable[Ext] = (),
    ) -> None:
        self.exts = Exts(ext)
        self._verbs: Verbs[AsyncRun[Any]] = Verbs(lambda raw: AsyncRun(raw, self), self.exts)
        self._times: TimeVerbs[AsyncRun[Any]] = TimeVerbs(self._verbs.read_run)
        self._timeout = call_seconds(timeout, None)
        self._transport = AsyncTransport(
            check_path(find_socket() if path is None else path), f"asyncio client {os.getpid()}", retry_for
        )

    @property
    def path(self) -> str:
        """The socket's path."""
        return self._transport.path

    @property
    def clock_offset(self) -> timedelta:
        """As Client.clock_offset."""
        return clock_offset(self._transport.server)

    async def close(self) -> None:
        """End the connection. Calls after that raise FailedPreconditionError."""
        await self._transport.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    @tells_policies(jobs=True)
    async def put(
        self,
        name: str,
        call: Call,
        schedule: Schedules,
        *,
        paused: bool | None = None,
        note: str = "",
        version: int | None = None,
        call_timeout: Duration | None = None,
        **policies: Unpack[Policies],
    ) -> JobInfo:
        """As Client.put."""
        return await self._do(self._verbs.put(name, call, schedule, policies, paused=paused, note=note, version=version), call_timeout)

    async def put_many(self, jobs: Iterable[Job], *, timeout: Duration | None = None) -> PutResults:
        """As Client.put_many."""
        return await self._carry_out(put_many_flow(jobs, self.exts), timeout)

    async def get(self, name: str, *, timeout: Duration | None = None) -> JobInfo:
        """As Client.get."""
        return await self._do(self._verbs.get(name), timeout)

    @overload
    def jobs(
        self, match: str | None = ..., state: str | None = ..., limit: int | None = ..., *, columns: Literal[False] = ...,
        timeout: Duration | None = ...,
    ) -> AsyncListing[JobInfo]: ...
    @overload
    def jobs(
        self, match: str | None = ..., state: str | None = ..., limit: int | None = ..., *, columns: Literal[True],
        timeout: Duration | None = ...,
    ) -> Awaitable[Columns]: ...
    def jobs(
        self, match: str | None = None, state: str | None = None, limit: int | None = None, *, columns: bool = False,
        timeout: Duration | None = None,
    ) -> AsyncListing[JobInfo] | Awaitable[Columns]:
        """As Client.jobs."""
        listing = self._listing(self._verbs.jobs(match, state, limit), timeout)
        return listing.columns() if columns else listing

    async def next(self, name: str, n: int = 1, *, timeout: Duration | None = None) -> list[datetime]:
        """As Client.next."""
        return await self._do(self._verbs.next(name, n), timeout)

    async def pause(self, name: str, note: str = "", *, timeout: Duration | None = None) -> JobInfo:
        """As Client.pause."""
        return await self._do(self._verbs.pause(name, note), timeout)

    async def resume(self, name: str, catchup: str | None = None, *, timeout: Duration | None = None) -> JobInfo:
        """As Client.resume."""
        return await self._do(self._verbs.resume(name, catchup), timeout)

    async def delete(self, name: str, *, timeout: Duration | None = None) -> JobInfo:
        """As Client.delete."""
        return await self._do(self._verbs.delete(name), timeout)

    async def trigger(self, name: str, key: str | None = None, *, timeout: Duration | None = None) -> AsyncRun:
        """As Client.trigger."""
        run = await self._do(self._verbs.trigger(name, key), timeout)
        return run if run.known else (await self.run(run.id, timeout=timeout)).answers(run)

    async def run(self, run_id: str, *, timeout: Duration | None = None) -> AsyncRun:
        """As Client.run."""
        return await self._do(self._verbs.run(run_id), timeout)

    async def wait_run(self, run_id: str, seconds: float) -> AsyncRun:
        """As Client.wait_run."""
        try:
            run = await self._do(self._verbs.wait(run_id, seconds), seconds + WAIT_GRACE_S)
        except NotFoundError:
            return await self.run(run_id)
        return run if run.known else await self.run(run_id)

    @overload
    def runs(
        self, job: str | None = ..., state: str | None = ..., since: Moment | None = ..., until: Moment | None = ..., *,
        task: str | None = ..., queue: str | None = ..., namespace: str | None = ..., skipped: bool = ..., late: bool = ...,
        newest: bool = ..., limit: int | None = ..., columns: Literal[False] = ..., timeout: Duration | None = ...,
    ) -> AsyncListing[AsyncRun]: ...
    @overload
    def runs(
        self, job: str | None = ..., state: str | None = ..., since: Moment | None = ..., until: Moment | None = ..., *,
        task: str | None = ..., queue: str | None = ..., namespace: str | None = ..., skipped: bool = ..., late: bool = ...,
        newest: bool = ..., limit: int | None = ..., columns: Literal[True], timeout: Duration | None = ...,
    ) -> Awaitable[Columns]: ...
    def runs(
        self,
        job: str | None = None,
        state: str | None = None,
        since: Moment | None = None,
        until: Moment | None = None,
        *,
        task: str | None = None,
        queue: str | None = None,
        namespace: str | None = None,
        skipped: bool = False,
        late: bool = False,
        newest: bool = False,
        limit: int | None = None,
        columns: bool = False,
        timeout: Duration | None = None,
    ) -> AsyncListing[AsyncRun] | Awaitable[Columns]:
        """As Client.runs."""
        pages = self._verbs.runs(
            job, state, **span(since, until, self._now_us), task=task, queue=queue, namespace=namespace, skipped=skipped, late=late,
            newest=newest, limit=limit,
        )
        listing = self._listing(pages, timeout)
        return listing.columns() if columns else listing

    async def stats(self, *, timeout: Duration | None = None) -> dict[str, Any]:
        """As Client.stats."""
        return await self._do(self._verbs.stats(), timeout)

    async def forecast(
        self, span: Duration = "24h", bucket: Duration = "1m", queue: str | None = None, *, timeout: Duration | None = None
    ) -> Forecast:
        """As Client.forecast."""
        return await self._do(self._verbs.forecast(span, bucket, queue), timeout)

    async def apply(
        self, jobs: Iterable[Job], prune: str | None = None, dry_run: bool = False, *, calendars: Mapping[str, Any] | None = None,
        timeout: Duration | None = None,
    ) -> Applied:
        """As Client.apply."""
        return await self._carry_out(self._verbs.apply(jobs, prune, dry_run, self._times.calendar_wires(calendars)), timeout)

    async def _carry_out(self, flow: Generator[tuple[str, Any], Any, T], timeout: Any) -> T:
        step: Callable[[], tuple[str, Any]] = partial(next, flow)
        while True:
            try:
                what, value = step()
            except StopIteration as stop:
                result: T = stop.value
                return result
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

    async def why(self, name: str, scheduled_at: Instant, *, timeout: Duration | None = None) -> Why:
        """As Client.why."""
        return await self._do(self._times.why(name, scheduled_at), timeout)

    async def skip(self, name: str, scheduled_at: Instant, *, undo: bool = False, timeout: Duration | None = None) -> Why:
        """As Client.skip."""
        return await self._do(self._times.skip(name, scheduled_at, undo), timeout)

    async def move(self, name: str, scheduled_at: Instant, to: Instant, *, timeout: Duration | None = None) -> AsyncRun:
        """As Client.move."""
        run = await self._do(self._times.move(name, scheduled_at, to), timeout)
        return run if run.known else await self.run(run.id, timeout=timeout)

    async def backfill(
        self,
        name: str,
        since: Instant,
        until: Instant,
        *,
        dry_run: bool = False,
        only: str = "missing",
        overlap: OverlapWord | Overlap | None = None,
        backwards: bool = False,
        timeout: Duration | None = None,
    ) -> Backfill:
        """As Client.backfill."""
        ask = self._times.backfill(name, since, until, dry_run=dry_run, only=only, overlap=overlap, backwards=backwards)
        return await self._do(ask, timeout)

    async def history(self, name: str, limit: int = 100, *, timeout: Duration | None = None) -> list[JobChange]:
        """As Client.history."""
        return await self._do(self._times.history(name, limit, user_name), timeout)

    async def calendar(self, name: str, *, timeout: Duration | None = None, **definition: Unpack[CalendarFields]) -> Calendar:
        """As Client.calendar."""
        ask = self._times.calendar_put(name, definition) if definition else self._times.calendar_get(name)
        return await self._do(ask, timeout)

    async def calendars(self, *, timeout: Duration | None = None) -> list[Calendar]:
        """As Client.calendars."""
        return await self._do(self._times.calendars(), timeout)

    async def calendar_delete(self, name: str, *, timeout: Duration | None = None) -> str:
        """As Client.calendar_delete."""
        return await self._do(self._times.calendar_delete(name), timeout)

    async def hold(self, note: str = "", *, timeout: Duration | None = None) -> Hold:
        """As Client.hold."""
        return await self._do(self._times.hold(note), timeout)

    async def release(self, *, timeout: Duration | None = None) -> Hold:
        """As Client.release."""
        return await self._do(self._times.release(), timeout)

    async def reload(self, *, timeout: Duration | None = "10m") -> Reloaded:
        """As Client.reload."""
        return await self._do(self._times.reload(), timeout)

    async def tzdiff(self, *, timeout: Duration | None = None) -> TzDiff:
        """As Client.tzdiff."""
        return await self._do(self._times.tzdiff(), timeout)

    async def queue(self, name: str, *, timeout: Duration | None = None, **settings: Unpack[QueueSettings]) -> QueueInfo:
        """As Client.queue."""
        return await self._do(verbs_queues.queue_ask(name, settings), timeout)

    async def queues(self, *, timeout: Duration | None = None) -> list[QueueInfo]:
        """As Client.queues."""
        return await self._do(verbs_queues.queues_ask(), timeout)

    async def queue_pause(self, name: str, *, timeout: Duration | None = None) -> QueueInfo:
        """As Client.queue_pause."""
        return await self._do(verbs_queues.queue_pause(name), timeout)

    async def queue_resume(self, name: str, *, timeout: Duration | None = None) -> QueueInfo:
        """As Client.queue_resume."""
        return await self._do(verbs_queues.queue_resume(name), timeout)

    async def queue_purge(self, name: str, *, timeout: Duration | None = None) -> int:
        """As Client.queue_purge."""
        return await self._do(verbs_queues.queue_purge(name), timeout)

    def _listing(self, pages: Callable[[], Pages[T]], timeout: Any) -> AsyncListing[T]:
        return AsyncListing(lambda ask: self._do(ask, timeout), pages)

    def _now_us(self) -> int:
        return time.time_ns() // 1_000 + round(self.clock_offset.total_seconds() * 1e6)

    async def _do(self, ask: Ask[T], timeout: Any) -> T:
        return await self._transport.finish(self._transport.begin(ask), call_seconds(timeout, self._timeout))

    async def _start(self, ask: Ask[Any], timeout: Any) -> Any:
        opened = self._transport.begin(ask)
        await self._transport.sent(opened, call_seconds(timeout, self._timeout))
        return opened

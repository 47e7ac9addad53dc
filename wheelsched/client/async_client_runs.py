"""As `client_runs`, for asyncio."""

# ruff: noqa: ASYNC109 - the timeouts are part of the face shared with Client

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, TypeVar, overload

from ..model.policies import tells_policies
from . import verbs_runs
from .bounds import coming
from .bulk_runs import enqueue_many_flow, group_flow
from .views_runs import Group

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable
    from typing import Unpack

    from ..model.jobs import Enqueue, RunPolicies
    from ..model.nouns import Call
    from ..model.typed import Duration, Moment, Unique
    from .async_client import AsyncRun
    from .requests import Ask
    from .verbs import Verbs
    from .views_runs import EnqueueResults, Stack

__all__ = ["AsyncRunCalls"]

T = TypeVar("T")
R = TypeVar("R")


class AsyncRunCalls(ABC):
    """The same methods as client_runs.RunCalls."""

    _verbs: Verbs[AsyncRun[Any]]

    @abstractmethod
    async def _do(self, ask: Ask[T], timeout: Any) -> T:
        """The answer to a question."""

    @abstractmethod
    def _now_us(self) -> int:
        """As Client._now_us."""

    @abstractmethod
    async def _carry_out(self, flow: Generator[tuple[str, Any], Any, T], timeout: Any) -> T:
        """The result of a flow of questions."""

    @abstractmethod
    async def run(self, run_id: str, *, timeout: Duration | None = None) -> AsyncRun:
        """As Client.run."""

    @tells_policies(jobs=False)
    async def enqueue(
        self,
        call: Call[R],
        *,
        delay: Duration | None = None,
        at: Moment | None = None,
        key: str | None = None,
        unique: Unique | None = None,
        namespace: str = "default",
        call_timeout: Duration | None = None,
        **policies: Unpack[RunPolicies],
    ) -> AsyncRun[R]:
        """As Client.enqueue."""
        ask = verbs_runs.enqueue(
            self._verbs.read_run, call, policies, delay=delay, at=coming(at, "at", self._now_us), key=key, unique=unique,
            namespace=namespace, exts=self._verbs.exts,
        )
        run = await self._do(ask, call_timeout)
        return run if run.known else (await self.run(run.id, timeout=call_timeout)).answers(run)

    async def enqueue_many(self, calls: Iterable[Enqueue | Call], *, timeout: Duration | None = None) -> EnqueueResults:
        """As Client.enqueue_many."""
        return await self._carry_out(enqueue_many_flow(calls, self._verbs.exts), timeout)

    @tells_policies(jobs=False)
    async def group(
        self,
        calls: Iterable[Call],
        *,
        then: Call[R],
        when: str = "finished",
        key: str | None = None,
        namespace: str = "default",
        call_timeout: Duration | None = None,
        **policies: Unpack[RunPolicies],
    ) -> Group[AsyncRun[R]]:
        """As Client.group."""
        flow = group_flow(
            self._verbs.next_batch, self._verbs.read_run, calls, then, policies, when=when, key=key, namespace=namespace,
            exts=self._verbs.exts,
        )
        made = await self._carry_out(flow, call_timeout)
        return made if made.run.known else Group(await self.run(made.run.id, timeout=call_timeout), made.ids, made.existing)

    async def stack(self, run_id: str | AsyncRun, *, timeout: Duration | None = None) -> Stack:
        """As Client.stack."""
        return await self._do(verbs_runs.stack(run_id), timeout)

    @overload
    async def cancel(self, run_id: str | AsyncRun, *, timeout: Duration | None = None) -> AsyncRun: ...
    @overload
    async def cancel(
        self, run_id: None = None, *, match: str | None = None, state: str | None = None, task: str | None = None, queue: str | None = None,
        namespace: str | None = None, dry_run: bool = False, timeout: Duration | None = None,
    ) -> int: ...
    async def cancel(
        self, run_id: str | AsyncRun | None = None, *, match: str | None = None, state: str | None = None, task: str | None = None,
        queue: str | None = None, namespace: str | None = None, dry_run: bool = False, timeout: Duration | None = None,
    ) -> AsyncRun | int:
        """As Client.cancel."""
        filters = {"match": match, "state": state, "task": task, "queue": queue, "namespace": namespace}
        if run_id is not None:
            return await self._do(verbs_runs.cancel(self._verbs.read_run, run_id, filters, dry_run=dry_run), timeout)
        return await self._do(verbs_runs.cancel_many(filters, dry_run=dry_run), timeout)

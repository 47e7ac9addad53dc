"""The part of the client's face that makes and ends runs; `client.BaseClient` is built on it."""

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
    from .client import Run
    from .requests import Ask
    from .verbs import Verbs
    from .views_runs import EnqueueResults, Stack

__all__ = ["RunCalls"]

T = TypeVar("T")
R = TypeVar("R")


class RunCalls(ABC):
    """enqueue, enqueue_many, group, cancel. How a question reaches a server is left to `_do` and `_carry_out`."""

    _verbs: Verbs[Run[Any]]

    @abstractmethod
    def _do(self, ask: Ask[T], timeout: Any) -> T:
        """The answer to a question."""

    @abstractmethod
    def _now_us(self) -> int:
        """The server's wall clock, as far as it is known."""

    @abstractmethod
    def _carry_out(self, flow: Generator[tuple[str, Any], Any, T], timeout: Any) -> T:
        """The result of a flow of questions."""

    @abstractmethod
    def run(self, run_id: str, *, timeout: Duration | None = None) -> Run:
        """A run. NotFoundError."""

    @tells_policies(jobs=False)
    def enqueue(
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
    ) -> Run[R]:
        """Run a call once: now, after `delay` (a duration) or at an instant. The same `key` gives the same run:
        `existing` says so, and `differs` that it has other arguments.

        A delay ends at an instant of the wall clock: where that is set back by an hour, the run waits for an hour more.

        `unique`: while an open run of the same namespace, task and fields is there, give that one and make none (`run.existing` tells).
        Fields: "args" (positional and by name), "queue", "concurrency_key", "task" (it alone); True is ("args",). A run that has ended,
        in whatever way, is in nobody's way.
        """
        ask = verbs_runs.enqueue(
            self._verbs.read_run, call, policies, delay=delay, at=coming(at, "at", self._now_us), key=key, unique=unique,
            namespace=namespace, exts=self._verbs.exts,
        )
        run = self._do(ask, call_timeout)
        return run if run.known else self.run(run.id, timeout=call_timeout).answers(run)

    def enqueue_many(self, calls: Iterable[Enqueue | Call], *, timeout: Duration | None = None) -> EnqueueResults:
        """Enqueue `Enqueue(call, key=..., ...)` or calls alone, in frames of at most 10,000 and 1 MiB, each atomic and durable.

        The result has the id of each call's run in the order given, and whether it was there before. On an error the frames before it
        are done: `detail["accepted"]` counts their calls, `detail["runs"]` has [row, message] of those refused.
        """
        return self._carry_out(enqueue_many_flow(calls, self._verbs.exts), timeout)

    @tells_policies(jobs=False)
    def group(
        self,
        calls: Iterable[Call],
        *,
        then: Call[R],
        when: str = "finished",
        key: str | None = None,
        namespace: str = "default",
        call_timeout: Duration | None = None,
        **policies: Unpack[RunPolicies],
    ) -> Group[Run[R]]:
        """Make a run of each call, and one of `then` that waits until they have ended: all of them in one commit, 1 to 10,000 members.

        `then` has the counts in `current_run().cause`: {reason "group", group, members, succeeded, failed, cancelled}. A member has ended
        with its first final state; a dead letter counts as failed, whatever becomes of it. `when`: "finished", or "succeeded": then it is
        cancelled (reason "group", and its `on_failure` is called) unless all succeeded. Policies are of all runs, but `expires_after` of
        the members alone, and `on_success`, `on_failure`, `on_dead` of `then` alone. The same `key` gives the same group for 24 h, and at
        least until `then` has ended, with no ids of members.
        """
        flow = group_flow(
            self._verbs.next_batch, self._verbs.read_run, calls, then, policies, when=when, key=key, namespace=namespace,
            exts=self._verbs.exts,
        )
        made = self._carry_out(flow, call_timeout)
        return made if made.run.known else Group(self.run(made.run.id, timeout=call_timeout), made.ids, made.existing)

    def stack(self, run_id: str | Run, *, timeout: Duration | None = None) -> Stack:
        """Where a run is in its code now: its stack, that of its process's other threads, and what it awaits. Nothing is done to the run,
        which goes on. Of a `command`: its processes, as the kernel tells of them. No values of variables are told.

        NotFoundError; FailedPreconditionError when no worker is in it now, or when its worker can't tell.
        """
        return self._do(verbs_runs.stack(run_id), timeout)

    @overload
    def cancel(self, run_id: str | Run, *, timeout: Duration | None = None) -> Run: ...
    @overload
    def cancel(
        self, run_id: None = None, *, match: str | None = None, state: str | None = None, task: str | None = None, queue: str | None = None,
        namespace: str | None = None, dry_run: bool = False, timeout: Duration | None = None,
    ) -> int: ...
    def cancel(
        self, run_id: str | Run | None = None, *, match: str | None = None, state: str | None = None, task: str | None = None,
        queue: str | None = None, namespace: str | None = None, dry_run: bool = False, timeout: Duration | None = None,
    ) -> Run | int:
        """End a run: at once when it waits, cooperatively and then by force when it runs. NotFoundError.

        Without a run id: all open runs of jobs that `match` the glob, in a `state` (scheduled, queued, retry_wait, leased, running), of a
        task, a queue, a namespace: how many. Runs made meanwhile are left alone. `dry_run`: only count them.
        """
        filters = {"match": match, "state": state, "task": task, "queue": queue, "namespace": namespace}
        if run_id is not None:
            return self._do(verbs_runs.cancel(self._verbs.read_run, run_id, filters, dry_run=dry_run), timeout)
        return self._do(verbs_runs.cancel_many(filters, dry_run=dry_run), timeout)

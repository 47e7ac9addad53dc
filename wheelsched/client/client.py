"""Client: the synchronous face of a wheelsched server, over its Unix socket.

    with Client() as ws:
        ws.put("ping", Call("net.ping", "a.example"), Every("30s"))

Connects when first used, reconnects by itself and sends what was open again with the same request id, so that the
server does it once. Safe for threads. `timeout=` is a duration and bounds one call (for listings and put_many: one page, one
frame); in `put` and `enqueue`, where `timeout` is the job's policy, it is named `call_timeout=`.

Every method raises InvalidArgumentError or PayloadError for what the caller passed, UnavailableError without a server,
DeadlineExceededError after the timeout, and the error that the server answers.
"""

from __future__ import annotations

import os
import pwd
import time
from abc import abstractmethod
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, TypeVar, cast, overload

from ..model.errors import NotFoundError, WheelschedError
from ..model.nouns import R_co
from ..model.payloads import NO_EXTS, Exts
from ..model.policies import tells_policies
from . import verbs_queues
from .bounds import span
from .client_runs import RunCalls
from .places import check_path, default_socket_path, find_socket
from .put_many import put_many_flow
from .transport import Transport
from .values import RunInfo
from .verbs import WAIT_S_MAX, Verbs, call_seconds, outcome, unfinished
from .verbs_dead import DeadVerbs
from .verbs_events import EventVerbs
from .verbs_jobs import JobVerbs
from .verbs_logs import LogVerbs
from .verbs_time import TimeVerbs

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
    from datetime import datetime
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

__all__ = ["BaseClient", "Client", "Listing", "Run", "clock_offset", "default_socket_path", "user_name"]

T = TypeVar("T")

TIMEOUT_S: Final = 60.0
RETRY_FOR_S: Final = 30.0
WAIT_GRACE_S: Final = 10.0  # for the answer to a `wait` whose time is over


def user_name(uid: int) -> str | None:
    """The name of a user of this machine; None for a uid that has none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return None


def clock_offset(hello: Mapping[str, Any]) -> timedelta:
    """Of a server's answer to hello; zero when it has none."""
    return timedelta(microseconds=hello.get("clock_offset_us") or 0)


class Run(RunInfo, Generic[R_co]):
    """A run, with the means to ask about it again; `R_co` is what its task returns."""

    __slots__ = ("_client",)

    def __init__(self, raw: dict[str, Any], client: BaseClient) -> None:
        super().__init__(raw, getattr(client, "exts", NO_EXTS))  # one that nobody asks again about has no client
        self._client = client

    def refresh(self) -> Self:
        """Ask the server again; the same object, brought up to date."""
        self._become(self._client.run(self.id))
        return self

    def result(self, timeout: Duration | None = None) -> R_co:
        """Wait for its end and give the return value. `timeout`: a duration; None waits as long as it takes.

        ResultNotKept when it succeeded and its value could not be kept. RunFailed when it ended otherwise (`detail` has `state`, `error`,
        `reason`), RunTimeout when it is not final in time (`detail` has `state`, `reason`, `waiting`: what it waits for, if it does).
        """
        seconds = call_seconds(timeout, None)
        end = None if seconds is None else time.monotonic() + seconds
        if self.state == "dead":
            self.refresh()  # a dead letter may have been sent back meanwhile
        while not self.final:
            left = None if end is None else end - time.monotonic()
            if left is not None and left <= 0:
                self.refresh()  # for what it waits
                if self.final:
                    break
                raise unfinished(self, f"after {seconds:g} s")
            wait_s = WAIT_S_MAX if left is None else min(left, WAIT_S_MAX)
            self._become(self._client.wait_run(self.id, wait_s))
        value: R_co = outcome(self)
        return value


class Listing(Generic[T]):
    """An iterable that asks for page after page as it is read; each iteration begins anew."""

    def __init__(self, ask: Callable[[Ask[list[T]]], list[T]], pages: Callable[[], Pages[T]]) -> None:
        self._ask = ask
        self._pages = pages

    def __repr__(self) -> str:
        return f"<Listing of {self._pages().verb}: not asked for yet; iterate over it, or list(...) it>"

    def __iter__(self) -> Iterator[T]:
        pages = self._pages()
        while (ask := pages.next_ask()) is not None:
            yield from self._ask(ask)

    def page(self, after: Any = None, limit: int = 100) -> tuple[list[T], Any]:
        """One page by hand, for who shows pages: at most `limit` rows, perhaps none, and where the next one begins, None after the last.

        `after`: what the page before gave, None for the first. The position is the server's own: keep it as it is.
        """
        pages = self._pages()
        return self._ask(pages.turn_to(after, limit)), pages.after

    def columns(self) -> Columns:
        """All of a listing of runs or jobs as numpy arrays by name: tens of times faster than its rows. See `Columns`."""
        from .columns import PackedPages  # noqa: PLC0415 - it loads numpy

        ask = cast("Callable[[Ask[list[Any]]], list[Any]]", self._ask)
        pages, parts = PackedPages(self._pages()), []
        while (question := pages.next_ask()) is not None:
            parts += ask(question)
        return pages.columns(parts)

    def to_pandas(self) -> Any:
        """The same as a DataFrame. FailedPreconditionError without pandas."""
        return self.columns().to_pandas()


class BaseClient(RunCalls, JobVerbs, EventVerbs, DeadVerbs, LogVerbs):
    """Every verb of a client; how a question reaches a server is left to `_do`."""

    def __init__(self, exts: Exts) -> None:
        self.exts = exts
        self._verbs: Verbs[Run[Any]] = Verbs(lambda raw: Run(raw, self), exts)
        self._times: TimeVerbs[Run[Any]] = TimeVerbs(lambda raw: self._verbs.read_run(raw))  # noqa: PLW0108 - the `_verbs` of a subclass

    @abstractmethod
    def _do(self, ask: Ask[T], timeout: Any) -> T:
        """The answer to a question."""

    def _start(self, ask: Ask[Any], timeout: Any) -> Any:  # noqa: ARG002 - for those who can begin before they finish
        """Begin a question; what `_finish` and `_drop` take."""
        return ask

    def _finish(self, handle: Any, timeout: Any) -> Any:
        """The answer to a question that was begun."""
        return self._do(handle, timeout)

    def _drop(self, handle: Any) -> None:
        """Nobody waits for this any more."""

    @tells_policies(jobs=True)
    def put(
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
        """Create or change a job by name; the answer has `result` and the resolved `spec`.

        `paused`: None leaves a job as it is (a new one is active), True and False pause and resume it.

        `version`: only if the job still is at that one, else AlreadyExistsError. InvalidArgumentError for a policy that
        the server doesn't know.
        """
        return self._do(self._verbs.put(name, call, schedule, policies, paused=paused, note=note, version=version), call_timeout)

    def put_many(self, jobs: Iterable[Job], *, timeout: Duration | None = None) -> PutResults:
        """Put many jobs, in frames of at most 10,000 jobs and 1 MiB, each atomic and durable. The result lists all.

        On an error the frames before it are done: `detail["accepted"]` counts their jobs, `detail["jobs"]` has
        [row, message] of those refused.
        """
        return self._carry_out(put_many_flow(jobs, self.exts), timeout)

    def get(self, name: str, *, timeout: Duration | None = None) -> JobInfo:
        """A job. NotFoundError."""
        return self._do(self._verbs.get(name), timeout)

    @overload
    def jobs(
        self, match: str | None = ..., state: str | None = ..., limit: int | None = ..., *, columns: Literal[False] = ...,
        timeout: Duration | None = ...,
    ) -> Listing[JobInfo]: ...
    @overload
    def jobs(
        self, match: str | None = ..., state: str | None = ..., limit: int | None = ..., *, columns: Literal[True],
        timeout: Duration | None = ...,
    ) -> Columns: ...
    def jobs(
        self, match: str | None = None, state: str | None = None, limit: int | None = None, *, columns: bool = False,
        timeout: Duration | None = None,
    ) -> Listing[JobInfo] | Columns:
        """Jobs whose name matches the glob, in any state or in one. `limit`: how many in all; None is all.

        `columns`: all of them at once, as numpy arrays by name (see `Columns`).
        """
        listing = self._listing(self._verbs.jobs(match, state, limit), timeout)
        return listing.columns() if columns else listing

    def next(self, name: str, n: int = 1, *, timeout: Duration | None = None) -> list[datetime]:
        """Up to n coming nominal times of a job, in UTC. NotFoundError."""
        return self._do(self._verbs.next(name, n), timeout)

    def pause(self, name: str, note: str = "", *, timeout: Duration | None = None) -> JobInfo:
        """Hold a job's occurrences until `resume`. NotFoundError."""
        return self._do(self._verbs.pause(name, note), timeout)

    def resume(self, name: str, catchup: str | None = None, *, timeout: Duration | None = None) -> JobInfo:
        """Go on. `catchup`: skip, latest or all of what was missed; None: skip, but a one-time job runs. NotFoundError."""
        return self._do(self._verbs.resume(name, catchup), timeout)

    def delete(self, name: str, *, timeout: Duration | None = None) -> JobInfo:
        """End a job; a tombstone keeps what was decided. Its runs that no worker has are cancelled, `cancelled` in the answer: none of them
        starts any more. Those that a worker has go on, `active` in the answer, and are not retried. NotFoundError.
        """
        return self._do(self._verbs.delete(name), timeout)

    def trigger(self, name: str, key: str | None = None, *, timeout: Duration | None = None) -> Run:
        """Run a job now. The same `key` gives the same run. NotFoundError, FailedPreconditionError when it is busy."""
        run = self._do(self._verbs.trigger(name, key), timeout)
        return run if run.known else self.run(run.id, timeout=timeout).answers(run)

    def run(self, run_id: str, *, timeout: Duration | None = None) -> Run:
        """A run. NotFoundError."""
        return self._do(self._verbs.run(run_id), timeout)

    def wait_run(self, run_id: str, seconds: float) -> Run:
        """A run when it is final, or as it is after so many seconds."""
        try:
            run = self._do(self._verbs.wait(run_id, seconds), seconds + WAIT_GRACE_S)
        except NotFoundError:  # not open any more: history may have it
            return self.run(run_id)
        return run if run.known else self.run(run_id)

    @overload
    def runs(
        self, job: str | None = ..., state: str | None = ..., since: Moment | None = ..., until: Moment | None = ..., *,
        task: str | None = ..., queue: str | None = ..., namespace: str | None = ..., skipped: bool = ..., late: bool = ...,
        newest: bool = ..., limit: int | None = ..., columns: Literal[False] = ..., timeout: Duration | None = ...,
    ) -> Listing[Run]: ...
    @overload
    def runs(
        self, job: str | None = ..., state: str | None = ..., since: Moment | None = ..., until: Moment | None = ..., *,
        task: str | None = ..., queue: str | None = ..., namespace: str | None = ..., skipped: bool = ..., late: bool = ...,
        newest: bool = ..., limit: int | None = ..., columns: Literal[True], timeout: Duration | None = ...,
    ) -> Columns: ...
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
    ) -> Listing[Run] | Columns:
        """Runs, oldest first, or with `newest` those first: of a job or a glob of names, in a state, nominal times from `since` to `until`,
        of a task, a queue, a namespace.

        `skipped`: with the occurrences that made no run. `late`: only the runs that are marked late (see `late_after` of put).
        `columns`: all of them at once, as numpy arrays by name (see `Columns`).
        """
        pages = self._verbs.runs(
            job, state, **span(since, until, self._now_us), task=task, queue=queue, namespace=namespace, skipped=skipped, late=late,
            newest=newest, limit=limit,
        )
        listing = self._listing(pages, timeout)
        return listing.columns() if columns else listing

    def stats(self, *, timeout: Duration | None = None) -> dict[str, Any]:
        """Counters, lag percentiles, workers, queues, tasks nobody serves."""
        return self._do(self._verbs.stats(), timeout)

    def forecast(
        self, span: Duration = "24h", bucket: Duration = "1m", queue: str | None = None, *, timeout: Duration | None = None
    ) -> Forecast:
        """An exact histogram of the starts of the next `span`, by queue (or those that the glob matches), a count for each `bucket`.

        Durations in whole seconds: `span` up to 31 days, at most 100,000 buckets.
        """
        return self._do(self._verbs.forecast(span, bucket, queue), timeout)

    def apply(
        self, jobs: Iterable[Job], prune: str | None = None, dry_run: bool = False, *, calendars: Mapping[str, Any] | None = None,
        timeout: Duration | None = None,
    ) -> Applied:
        """Put all these jobs (`Job` objects; only the command line reads files) in one commit, at most 200,000; their policies may have
        `note` and `paused` too.

        `prune`: delete the jobs that match this pattern and are not among them, as `delete` does. `dry_run`: only tell what would be done.
        `calendars`: {name: what `calendar` takes} to put in the same commit, before the jobs.
        InvalidArgumentError lists every fault as [row, message] in `detail["jobs"]`; then nothing was changed.
        """
        return self._carry_out(self._verbs.apply(jobs, prune, dry_run, self._times.calendar_wires(calendars)), timeout)

    def _carry_out(self, flow: Generator[tuple[str, Any], Any, T], timeout: Any) -> T:
        """The steps of a flow of several questions, to its result."""
        step: Callable[[], tuple[str, Any]] = partial(next, flow)
        while True:
            try:
                what, value = step()
            except StopIteration as stop:
                result: T = stop.value
                return result
            try:
                if what == "start":
                    value = self._start(value, timeout)
                elif what == "finish":
                    value = self._finish(value, timeout)
                else:
                    self._drop(value)
                step = partial(flow.send, value)
            except WheelschedError as e:
                step = partial(flow.throw, e)

    def why(self, name: str, scheduled_at: Instant, *, timeout: Duration | None = None) -> Why:
        """What became of the occurrence of a job at a nominal time, or will become. NotFoundError: no such job or occurrence.

        `scheduled_at`, here and below: an aware datetime (of any zone) or RFC 3339 text with its offset. A time on the job's clock is
        `datetime(2026, 11, 30, 2, tzinfo=ZoneInfo("Europe/Berlin"))`.
        """
        return self._do(self._times.why(name, scheduled_at), timeout)

    def skip(self, name: str, scheduled_at: Instant, *, undo: bool = False, timeout: Duration | None = None) -> Why:
        """Leave out one coming occurrence of a job; `undo` takes that back. What will become of it, as `why` tells it.

        NotFoundError: no such job; FailedPreconditionError: it is decided already, or no occurrence is due then.
        """
        return self._do(self._times.skip(name, scheduled_at, undo), timeout)

    def move(self, name: str, scheduled_at: Instant, to: Instant, *, timeout: Duration | None = None) -> Run:
        """Run one coming occurrence of a job at another instant. The run, scheduled for `to`. Errors as `skip`."""
        run = self._do(self._times.move(name, scheduled_at, to), timeout)
        return run if run.known else self.run(run.id, timeout=timeout)

    def backfill(
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
        """Make runs for a job's past occurrences with nominal times from `since` to `until`, both included.

        `only`: "missing" leaves alone those that have a run, "failed" runs again those whose run ended badly, too, as `redrive` does: the
        same runs with the arguments that they have (`run_ids` has the new ones alone). Run ids are
        f(job, nominal time), as the schedule's are, so nothing is made twice. `overlap` instead of the job's own policy:
        "buffer_all" (one after another) or Overlap("allow", max=N) (N side by side). `backwards`: newest first. `dry_run`:
        make nothing, tell what would be made. NotFoundError, ResourceExhaustedError (how many it would be, and the limit).
        """
        ask = self._times.backfill(name, since, until, dry_run=dry_run, only=only, overlap=overlap, backwards=backwards)
        return self._do(ask, timeout)

    def history(self, name: str, limit: int = 100, *, timeout: Duration | None = None) -> list[JobChange]:
        """Who changed a job, when, from what to what, newest first. NotFoundError."""
        return self._do(self._times.history(name, limit, user_name), timeout)

    def calendar(self, name: str, *, timeout: Duration | None = None, **definition: Unpack[CalendarFields]) -> Calendar:
        """Create or change a calendar that jobs can name, or read it when no definition is given. NotFoundError.

        `mode`: "exclude" (nothing runs at these instants) or "include" (only at these); `tz`; `dates` ("2026-12-25"), `yearly`
        ("12-25"), `weekdays` ("sat"), `windows` (from and to, instants), `daily` (from and to, times of day, perhaps on some weekdays).
        """
        ask = self._times.calendar_put(name, definition) if definition else self._times.calendar_get(name)
        return self._do(ask, timeout)

    def calendars(self, *, timeout: Duration | None = None) -> list[Calendar]:
        """All calendars, with how many jobs name each."""
        return self._do(self._times.calendars(), timeout)

    def calendar_delete(self, name: str, *, timeout: Duration | None = None) -> str:
        """End a calendar; its name. NotFoundError, FailedPreconditionError while a job names it."""
        return self._do(self._times.calendar_delete(name), timeout)

    def hold(self, note: str = "", *, timeout: Duration | None = None) -> Hold:
        """Let no schedule and no delay trigger anything until `release`. What is queued goes on; `enqueue` and `trigger` still run.

        A second one leaves the first as it is.
        """
        return self._do(self._times.hold(note), timeout)

    def release(self, *, timeout: Duration | None = None) -> Hold:
        """Trigger again; what came due meanwhile is decided by each job's policies. `missed` jobs did."""
        return self._do(self._times.release(), timeout)

    def reload(self, *, timeout: Duration | None = "10m") -> Reloaded:
        """Have the server's own workers import the task code anew, one after another; what they have in hand they finish on the old code.
        Answers when all have it. FailedPreconditionError when a new process can't begin, within 60 s: then the old ones go on.
        """
        return self._do(self._times.reload(), timeout)

    def tzdiff(self, *, timeout: Duration | None = None) -> TzDiff:
        """Which jobs' next time the last change of the zone data moved."""
        return self._do(self._times.tzdiff(), timeout)

    def queue(self, name: str, *, timeout: Duration | None = None, **settings: Unpack[QueueSettings]) -> QueueInfo:
        """Set limits of a queue, those that are given (None takes one away), or read it when none is. NotFoundError.

        `concurrency`: runs leased at once; `rate` ("100/s", "5/m") and `burst` (tokens): leases in time; `key_concurrency` (1 unless
        set) and `key_rate`: the same for each concurrency key; `weights` ({namespace: 1 to 1,000}, others have 1; all at once): shares
        of the leases between namespaces that have runs of equal priority.
        """
        return self._do(verbs_queues.queue_ask(name, settings), timeout)

    def queues(self, *, timeout: Duration | None = None) -> list[QueueInfo]:
        """All queues that have settings or that a definition names."""
        return self._do(verbs_queues.queues_ask(), timeout)

    def queue_pause(self, name: str, *, timeout: Duration | None = None) -> QueueInfo:
        """Let no worker have a run of a queue until `queue_resume`; what is leased goes on."""
        return self._do(verbs_queues.queue_pause(name), timeout)

    def queue_resume(self, name: str, *, timeout: Duration | None = None) -> QueueInfo:
        """Go on with a queue."""
        return self._do(verbs_queues.queue_resume(name), timeout)

    def queue_purge(self, name: str, *, timeout: Duration | None = None) -> int:
        """Cancel all runs of a queue that wait, also for an instant or a retry; what is leased goes on. How many. NotFoundError."""
        return self._do(verbs_queues.queue_purge(name), timeout)

    def _listing(self, pages: Callable[[], Pages[T]], timeout: Any) -> Listing[T]:
        return Listing(lambda ask: self._do(ask, timeout), pages)


class Client(BaseClient):
    """The client of a server on this machine.

    `path`: its socket (`unix://` may stand before it); None for $WHEELSCHED_SOCKET, or the first of the places where servers put theirs
    at which one answers: $XDG_RUNTIME_DIR, ~/.wheelsched, what the lock of a data directory names, /run/wheelsched.

    `timeout`: of each call, a duration. `retry_for`: seconds in which a lost connection is made again (0: never; at most 500); a first call
    without a server fails at once.
    `ext`: types of the user's own that arguments and results may hold.
    """

    def __init__(
        self, path: str | os.PathLike[str] | None = None, *, timeout: Duration | None = TIMEOUT_S, retry_for: float = RETRY_FOR_S,
        ext: Iterable[Ext] = (),
    ) -> None:
        super().__init__(Exts(ext))
        self._timeout = call_seconds(timeout, None)
        self._transport = Transport(check_path(find_socket() if path is None else path), f"python client {os.getpid()}", retry_for)

    @property
    def path(self) -> str:
        """The socket's path."""
        return self._transport.path

    @property
    def clock_offset(self) -> timedelta:
        """How far the server's clock is set off from this machine's (`serve --clock-offset`); zero until a first call was answered."""
        return clock_offset(self._transport.server)

    def close(self) -> None:
        """End the connection. Calls after that raise FailedPreconditionError."""
        self._transport.close()

    def tell_waiting(self, tell: Callable[[str], None]) -> None:
        """Have `tell` called with the reason when a call has to wait because the server is going away."""
        self._transport.on_wait = tell

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _now_us(self) -> int:
        return time.time_ns() // 1_000 + round(self.clock_offset.total_seconds() * 1e6)

    def _do(self, ask: Ask[T], timeout: Any) -> T:
        seconds = call_seconds(timeout, self._timeout)
        return self._transport.finish(self._transport.begin(ask), seconds)

    def _start(self, ask: Ask[Any], timeout: Any) -> Any:
        opened = self._transport.begin(ask)
        self._transport.flush(opened, call_seconds(timeout, self._timeout))
        return opened

    def _finish(self, handle: Any, timeout: Any) -> Any:
        return self._transport.finish(handle, call_seconds(timeout, self._timeout))

    def _drop(self, handle: Any) -> None:
        self._transport.drop(handle)

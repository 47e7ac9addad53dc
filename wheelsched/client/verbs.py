"""The verbs as questions: checks what a user passed, builds the request's arguments, reads the answer. No I/O.

`Verbs` is shared by the clients; `make_run` and so on give each client its own kind of Run.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from ..model.errors import InternalError, InvalidArgumentError, NotFoundError, ResultNotKept, RunFailed, RunTimeout
from ..model.nouns import (
    CATCHUPS,
    GLOB_MAX,
    INSTANT_MAX_US,
    KEY_MAX,
    MS,
    NOTE_MAX,
    US,
    Call,
    JobState,
    RunState,
    display_name,
    parse_duration,
    parse_instant,
    parse_job_name,
    parse_task_name,
    to_datetime,
)
from ..model.payloads import NO_EXTS
from ..protocol.checks import check_name
from ..protocol.definition import given_from_api
from ..protocol.frames import encode_payload
from .apply import apply_flow, differences
from .requests import Ask
from .values import JobInfo, RunInfo, rfc3339
from .views_forecast import Forecast, forecast_from_wire

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable
    from datetime import datetime

    from ..model.jobs import Job
    from ..model.payloads import Exts
    from .apply import Applied

__all__ = [
    "WAIT_S_MAX", "Pages", "Verbs", "as_map", "call_seconds", "checked_call", "checked_filters", "checked_glob", "checked_key",
    "checked_limit", "checked_paused", "checked_run_id", "checked_text", "checked_version", "checked_word", "field_of",
    "instant_of_enqueue", "outcome", "unfinished",
]

T = TypeVar("T")
R = TypeVar("R", bound=RunInfo)

WAIT_S_MAX: Final = 20.0  # one `wait` request; longer waits are several
PAGE: Final = 1_000
_NEXT_MAX: Final = 1_000
_RESUME: Final = tuple(word for word in CATCHUPS if word != "earliest")
_JOB_STATES: Final = tuple(state.name.lower() for state in JobState)
_RUN_STATES: Final = (*(state.name.lower() for state in RunState), "running")


def call_seconds(timeout: Any, default: float | None) -> float | None:
    """Seconds of a `timeout=` argument: a duration, None for the client's default. InvalidArgumentError otherwise."""
    return default if timeout is None else parse_duration(timeout, "timeout") / US


def checked_text(value: Any, what: str, limit: int) -> str:
    """Text of at most `limit` characters. InvalidArgumentError otherwise."""
    if not isinstance(value, str) or len(value) > limit:
        given = f"{len(value)} characters" if isinstance(value, str) else type(value).__name__
        raise InvalidArgumentError(f"{what}: text of at most {limit} characters is wanted, not {given}")
    return value


def checked_key(value: Any) -> str | None:
    """An idempotency key, or None. InvalidArgumentError otherwise."""
    if value is None:
        return None
    if value == "":
        raise InvalidArgumentError("key: the empty text is no key; leave it out")
    return checked_text(value, "key", KEY_MAX)


def instant_of_enqueue(at: Any) -> int:
    """Microseconds of an enqueue's instant, in whole milliseconds."""
    return min(-(-parse_instant(at, "at") // MS) * MS, INSTANT_MAX_US)


def checked_word(value: Any, what: str, allowed: tuple[str, ...]) -> str | None:
    """One of the words, or None. InvalidArgumentError names them."""
    if value is not None and value not in allowed:
        raise InvalidArgumentError(f"{what}: {str(value)[:60]!r} is not one of {', '.join(allowed)}")
    return value if value is None else str(value)


def checked_run_id(value: Any) -> str:
    """A run id, from a run too. InvalidArgumentError for what is no text, NotFoundError for a text that can be none."""
    text = value.id if isinstance(value, RunInfo) else value
    if not isinstance(text, str):
        raise InvalidArgumentError(f"run id: text is wanted, not {type(text).__name__}")
    if len(text) != 32 or not set(text) <= set("0123456789abcdef"):  # no run has it, so it is as unknown as any other
        raise NotFoundError(f"no run {text[:60]!r}: a run id has 32 hexadecimal digits")
    return text


def checked_glob(value: Any) -> str | None:
    """A pattern over names as they are shown, where the namespace `default` is left out; `*` matches any text."""
    return None if value is None else display_name(checked_text(value, "match", GLOB_MAX))


def checked_filters(task: Any, queue: Any, namespace: Any) -> dict[str, str | None]:
    """The names that runs are chosen by, None for any. InvalidArgumentError for what can't be one."""
    return {
        "task": None if task is None else parse_task_name(task), "queue": None if queue is None else check_name(queue, "queue"),
        "namespace": None if namespace is None else parse_job_name(f"{namespace}/x").partition("/")[0],
    }


def _job_or_glob(value: Any) -> str | None:
    if isinstance(value, str) and not set(value) & set("*?["):
        return parse_job_name(value)
    return checked_glob(value)


def checked_limit(value: Any) -> int | None:
    """How many rows in all, None for all. InvalidArgumentError otherwise."""
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
        raise InvalidArgumentError(f"limit: a whole number from 0 on or None (all) is wanted, not {str(value)[:60]}")
    return value


def checked_version(value: Any) -> int | None:
    """The version that a job is to be at, or None. InvalidArgumentError otherwise."""
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63):
        raise InvalidArgumentError(f"version: a whole number from 0 on is wanted, not {str(value)[:60]}")
    return value


def checked_paused(value: Any) -> bool | None:
    """True, False or None. InvalidArgumentError otherwise."""
    if value is not None and not isinstance(value, bool):
        raise InvalidArgumentError(f"paused: True, False or None is wanted, not {str(value)[:60]}")
    return value


def checked_call(call: Any) -> Call:
    """A Call. InvalidArgumentError otherwise."""
    if not isinstance(call, Call):
        hint = "; use its .call(...)" if callable(call) else ""
        raise InvalidArgumentError(f"call: Call(...) or a task's .call(...) is wanted, not {type(call).__name__}{hint}")
    return call


def field_of(result: Any, name: str, kind: type[T]) -> T:
    """A field of an answer. InternalError when the server's answer hasn't got it."""
    value = result.get(name) if isinstance(result, Mapping) else None
    if not isinstance(value, kind):
        raise InternalError(f"the server's answer has no {name}")
    return value


def as_map(result: Any) -> dict[str, Any]:
    """An answer that is a map. InternalError for any other."""
    if not isinstance(result, dict):
        raise InternalError(f"the server's answer is {type(result).__name__}, not a map")
    return result


def _instants(result: Any) -> list[datetime]:
    if not isinstance(result, list):
        raise InternalError("the server's answer is no list of instants")
    return [moment for us in result if (moment := to_datetime(us)) is not None]


class Pages(Generic[T]):
    """A listing as a series of questions: `next_ask` until it is None, `take` each answer."""

    def __init__(self, verb: str, args: dict[str, Any], limit: int | None, make: Callable[[dict[str, Any]], T]) -> None:
        self.verb = verb
        self.args = args
        self.left = limit  # rows that are still wanted; None: all
        self.size = PAGE  # rows to ask for at a time
        self._make = make
        self._after: Any = None
        self._ended = False

    @property
    def after(self) -> Any:
        """Where the next page begins; None after the last."""
        return self._after

    def turn_to(self, after: Any, limit: Any) -> Ask[list[T]]:
        """The question for the page at a position that `after` told, of at most so many rows; None is the first."""
        total = checked_limit(limit)
        if not total:
            raise InvalidArgumentError("limit: a whole number from 1 on is wanted")
        self._after, self.left = after, total
        return Ask(self.verb, {**self.args, "after": after, "limit": min(self.size, total)}, self._read)

    def next_ask(self) -> Ask[list[T]] | None:
        """The question for the next page, or None after the last."""
        if self._ended or self.left == 0:
            return None
        limit = self.size if self.left is None else min(self.size, self.left)
        return Ask(self.verb, {**self.args, "after": self._after, "limit": limit}, self._read)

    def _read(self, result: Any) -> list[T]:
        rows = self._rows(result)
        after = result.get("after")
        if after is not None and after == self._after:
            raise InternalError(f"the server's listing of {self.verb} doesn't move on")
        self._after, self._ended = after, after is None
        if self.left is not None:
            rows = rows[: self.left]
            self.left = max(0, self.left - self._count(rows))
        return [self._make(row) for row in rows]

    def _rows(self, result: Any) -> list[dict[str, Any]]:
        columns = field_of(result, "columns", dict)
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]

    def _count(self, rows: list[dict[str, Any]]) -> int:
        return len(rows)


class Verbs(Generic[R]):
    """Every verb as an Ask. Errors: InvalidArgumentError and PayloadError for what the caller passed."""

    def __init__(self, make_run: Callable[[dict[str, Any]], R], exts: Exts = NO_EXTS) -> None:
        self._make_run = make_run
        self.exts = exts
        self._batches = count(1)  # numbers of what is staged; each is used once on this client's connections

    def next_batch(self) -> int:
        """A number for what is sent in parts."""
        return next(self._batches)

    def read_run(self, result: Any) -> R:
        """The client's own kind of run, from the server's map."""
        return self._make_run(as_map(result))

    def _job(self, result: Any) -> JobInfo:
        return JobInfo(as_map(result), self.exts)

    def put(
        self, name: Any, call: Any, schedule: Any, policies: Mapping[str, Any], *, paused: Any, note: Any, version: Any
    ) -> Ask[JobInfo]:
        """A job by name."""
        call = checked_call(call)
        if schedule is None:
            raise InvalidArgumentError("schedule: Cron(...), Every(...), At(...) or Manual() is wanted, not None")
        given, param_us = given_from_api(call, schedule, policies)
        args = {
            "name": parse_job_name(name),
            "given": given,
            "param_us": param_us,
            "payload": encode_payload(call.args, call.kwargs, call.headers, exts=self.exts),
            "paused": checked_paused(paused),
            "note": checked_text(note, "note", NOTE_MAX),
            "version": checked_version(version),
        }
        return Ask("put", args, self.read_put)

    def read_put(self, result: Any) -> JobInfo:
        """A job that was put, with what changed of it."""
        raw = as_map(result)
        changes = raw.get("changes")
        try:
            told = {} if changes is None else {"differences": differences(changes["old"], changes["new"])}
        except (KeyError, TypeError, ValueError, AttributeError) as e:
            raise InternalError(f"the server's answer to put is malformed: {type(e).__name__}: {e}") from e
        return JobInfo({**raw, **told}, self.exts)

    def get(self, name: Any) -> Ask[JobInfo]:
        """One job."""
        return Ask("get", {"name": parse_job_name(name)}, self._job)

    def next(self, name: Any, n: Any) -> Ask[list[datetime]]:
        """Its next nominal times."""
        if isinstance(n, bool) or not isinstance(n, int) or not 1 <= n <= _NEXT_MAX:
            raise InvalidArgumentError(f"n: a whole number from 1 to {_NEXT_MAX} is wanted, not {str(n)[:60]}")
        return Ask("next", {"name": parse_job_name(name), "n": n}, _instants)

    def pause(self, name: Any, note: Any) -> Ask[JobInfo]:
        """Stop a job's occurrences."""
        return Ask("pause", {"name": parse_job_name(name), "note": checked_text(note, "note", NOTE_MAX)}, self._job)

    def resume(self, name: Any, catchup: Any) -> Ask[JobInfo]:
        """Go on."""
        return Ask("resume", {"name": parse_job_name(name), "catchup": checked_word(catchup, "catchup", _RESUME)}, self._job)

    def delete(self, name: Any) -> Ask[JobInfo]:
        """End a job."""
        return Ask("delete", {"name": parse_job_name(name)}, self._job)

    def trigger(self, name: Any, key: Any) -> Ask[R]:
        """Run a job now."""
        return Ask("trigger", {"name": parse_job_name(name), "key": checked_key(key)}, self.read_run)

    def run(self, run_id: Any) -> Ask[R]:
        """One run."""
        return Ask("run", {"id": checked_run_id(run_id)}, self.read_run)

    def wait(self, run_id: Any, seconds: float) -> Ask[R]:
        """One run, when it is final or the time is over."""
        return Ask("wait", {"id": checked_run_id(run_id), "timeout_us": max(0, round(seconds * US))}, self.read_run)

    def stats(self) -> Ask[dict[str, Any]]:
        """Counters."""
        return Ask("stats", {}, as_map)

    def forecast(self, span: Any, bucket: Any, queue: Any) -> Ask[Forecast]:
        """What will start when."""
        glob = None if queue is None else checked_text(queue, "queue", GLOB_MAX)
        args = {"for_us": parse_duration(span, "span"), "bucket_us": parse_duration(bucket, "bucket"), "queue": glob}
        return Ask("forecast", args, forecast_from_wire)

    def jobs(self, match: Any, state: Any, limit: Any) -> Callable[[], Pages[JobInfo]]:
        """Makes the pages of a listing of jobs."""
        args = {"match": checked_glob(match), "state": checked_word(state, "state", _JOB_STATES)}
        total = checked_limit(limit)
        return lambda: Pages("jobs", args, total, self._job)

    def runs(
        self, job: Any, state: Any, *, since: Any, until: Any, task: Any, queue: Any, namespace: Any, skipped: Any, late: Any, newest: Any,
        limit: Any
    ) -> Callable[[], Pages[R]]:
        """Makes the pages of a listing of runs."""
        args = {
            "job": _job_or_glob(job),
            "state": checked_word(state, "state", _RUN_STATES),
            "since_us": None if since is None else parse_instant(since, "since"),
            "until_us": None if until is None else parse_instant(until, "until"),
            **checked_filters(task, queue, namespace),
            "skipped": bool(skipped),
            "late": bool(late),
            "newest": bool(newest),
        }
        total = checked_limit(limit)
        return lambda: Pages("runs", args, total, self._make_run)

    def apply(
        self, jobs: Iterable[Job], prune: Any, dry_run: Any, calendars: Mapping[str, Any]
    ) -> Generator[tuple[str, Any], Any, Applied]:
        """Put many jobs and calendars in one commit; the steps of `apply_flow`."""
        return apply_flow(self.next_batch, jobs, prune, dry_run, calendars, self.exts)


def outcome(run: RunInfo) -> Any:
    """The return value of a final run. RunFailed when it did not succeed, ResultNotKept when it did and its value is not kept."""
    if run.state == "succeeded":
        mark = run.not_kept
        if mark is not None:
            raise ResultNotKept(f"run {run.id} of {run.job} succeeded, but {mark}", type=mark.type, bytes=mark.bytes, why=mark.why)
        return run.output
    error = run.error if run.state == "dead" else None  # what a cancelled run met before is not why it ended
    why = f": {error}" if error is not None else f": {run.reason}" if run.reason else ""
    after = f" after {run.attempt} attempt{'s'[: run.attempt != 1]}" if run.state == "dead" else ""
    detail = {"state": run.state, "error": None if error is None else str(error), "reason": run.reason}
    raise RunFailed(f"run {run.id} of {run.job} is {run.state}{after}{why}", **detail)


def unfinished(run: RunInfo, when: str) -> RunTimeout:
    """The error for a run that is not final `when` ("after 2 s"), with what it waits for, as far as the run tells."""
    waits = run.waiting.reason if run.waiting is not None else None
    why = f": {waits}" if waits else ""
    if run.state == "retry_wait" and run.next_at is not None:
        last = f": {run.reason}" if run.reason else f": {run.error}" if run.error is not None else ""
        why = f"; it is tried again at {rfc3339(run.next_at)}{last}"
    return RunTimeout(f"run {run.id} of {run.job} is {run.state} {when}{why}", state=run.state, reason=run.reason, waiting=waits)

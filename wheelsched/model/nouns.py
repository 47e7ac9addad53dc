"""The nouns: job, run, attempt, states, and the limits that bound them. Imports nothing of wheelsched but errors.

Instants are int64 microseconds since the epoch, UTC (`_us`); durations too. The wheel turns in milliseconds, so nominal
times are whole milliseconds. `NEVER` stands for "no such instant".

Lifecycle of a run, as data in `TRANSITIONS`:

    scheduled -> queued -> leased -> running -> succeeded
                   ^         |          |-----> retry_wait -> queued    (attempt failed, timed out or lost; attempts left)
                   |         |          |-----> dead                    (attempts exhausted: dead letter; see REDRIVE, SEND_BACK)
                   +---------+                                          (proof that user code was not entered)
    scheduled | queued | retry_wait | leased | running -> cancelled
    scheduled -> skipped                                                 (it only waited, and another took its place)

That user code was entered is known from the worker and not journaled, so on disk a running run is `leased`; readers are
shown `running`. An occurrence that makes no run is a ledger row in the state `skipped`, which nothing leaves.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import IntEnum
from types import GenericAlias
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple

from .errors import InvalidArgumentError, PayloadError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from typing_extensions import TypeVar

    from .typed import Duration

    R_co = TypeVar("R_co", covariant=True, default=Any)  # a Call whose task is known only by its name has a result of any type
else:
    from typing import TypeVar

    R_co = TypeVar("R_co", covariant=True)

NEVER: Final = 2**63 - 1
US: Final = 1_000_000
MS: Final = 1_000

# Limits. Each is enforced at the border with a stable code, and tested at the limit and one past it.
NAMESPACE_MAX: Final = 64
NAME_MAX: Final = 128  # of the part behind the slash
PAYLOAD_MAX: Final = 256 * 1024  # bytes of one encoded payload
PAYLOAD_DEPTH_MAX: Final = 32
OUTPUT_MAX: Final = 64 * 1024  # bytes kept of a return value, and of each of stdout and stderr
ERROR_TEXT_MAX: Final = 4 * 1024  # characters kept of an error with its traceback
CHECKPOINT_MAX: Final = 16 * 1024  # bytes of one encoded checkpoint
LAST_MAX: Final = 16 * 1024  # bytes of one encoded return value that the job's next run is handed
STACK_MAX: Final = 60 * 1024  # bytes of the stack of a run
PROGRESS_MAX: Final = 1_000  # characters of a run's progress
STALE_MAX: Final = 10  # refused completions that are kept of one run
REDIRECTS_MAX: Final = 10  # that one `http` follows
NOTE_MAX: Final = 1_000
KEY_MAX: Final = 200
EXPR_MAX: Final = 1_000  # characters of a cron expression
FRAME_JOBS_MAX: Final = 10_000
FRAME_JOBS: Final = 1_000  # jobs or runs that our clients put in one frame: as much as a server does in a few milliseconds
BATCH_MAX: Final = 65_536  # runs one record decides
RUN_FAULTS_MAX: Final = 100  # faults of a frame of runs that its refusal names
RESERVE_BYTES: Final = 64 << 20  # kept free for a full disk, given up then
INSTANT_MIN_US: Final = 0  # 1970
SERVER_UID: Final = 2**32 - 1  # who changed a job, when it was the server itself
INSTANT_MAX_US: Final = 253_402_300_799_999_000  # the last millisecond of the year 9999
EVERY_MIN_US: Final = 100 * MS
DURATION_MAX_US: Final = 100 * 366 * 86_400 * US
ATTEMPTS_MAX: Final = 1_000
PRIORITY_MAX: Final = 9
GROUP_MAX: Final = 10_000  # members
BACKFILL_MAX: Final = 100_000  # runs one backfill makes
QUEUES_MAX: Final = 10_000  # that have settings
CALENDARS_MAX: Final = 10_000
FAILURES_MAX: Final = 255  # of pause_after
DELAY_MAX_US: Final = 366 * 86_400 * US  # of RetryAfter and Snooze
SNOOZE_MIN_US: Final = 100 * MS  # a shorter one lasts as long
REASON_MAX: Final = 1_000  # characters of the reason of a snooze or a cancel
GLOB_MAX: Final = 400  # characters of a pattern over names
GLOB_STARS_MAX: Final = 10  # in it
ERROR_NAME_MAX: Final = 200  # characters of the name of an exception's type
ERROR_BASES_MAX: Final = 10  # base classes that are told of it

RETENTION_US: Final = 30 * 86_400 * US
TOMBSTONE_US: Final = 31 * 86_400 * US  # at least, and a day longer than the history of the name
KEY_TTL_US: Final = 24 * 3_600 * US
REQUEST_TTL_US: Final = 600 * US
DRAIN_US: Final = 30 * US  # how long open runs may take to end when a server or a worker is told to stop
LEASE_US: Final = 10 * US
SYNC_TIMEOUT_US: Final = 30 * US  # how long the disk may be silent before the server ends
START_US: Final = 60 * US  # how long a worker process has to say hello, its imports and `on_start` included
MODES: Final = ("process", "thread", "async")  # how an executor runs: one at a time, several in threads, several as coroutines
KILL_GRACE_US: Final = 1 * US
CLOCK_STEP_US: Final = 2 * US  # a step backward of more than this is a record


class JobState(IntEnum):
    """What becomes of a job's coming occurrences."""

    ACTIVE = 1
    PAUSED = 2
    FINISHED = 3  # no occurrence is left
    DELETED = 4  # a tombstone, kept for its cursor


class RunState(IntEnum):
    """Where a run stands; the numbers are in the journal and never change."""

    SCHEDULED = 1
    QUEUED = 2
    LEASED = 3
    RETRY_WAIT = 4
    SUCCEEDED = 5
    DEAD = 6
    CANCELLED = 7
    SKIPPED = 8


FINAL_STATES: Final = frozenset({RunState.SUCCEEDED, RunState.DEAD, RunState.CANCELLED, RunState.SKIPPED})
ACTIVE_STATES: Final = frozenset({RunState.QUEUED, RunState.LEASED, RunState.RETRY_WAIT})


class RunFlag:
    """Marks of a run; the numbers are those of _runrows.pxd. Plain numbers: an enum's are slow in listings."""

    CANCEL_ASKED: Final = 1  # of a lease: the worker is to end it
    DISCARDED: Final = 2  # a dead letter that was given up
    LATE: Final = 4
    ORPHANED: Final = 8  # its job was deleted while a worker had it: this attempt is the last
    SENT_BACK: Final = 16  # a person has sent it back
    TOLD: Final = 64  # a dead letter whose hooks were called


class Event(IntEnum):
    """What can happen to a run."""

    DUE = 1  # its instant or its turn has come
    GRANT = 2  # a worker was given the lease
    GIVE_BACK = 3  # proof that user code was not entered
    SUCCEED = 4
    RETRY = 5  # the attempt failed, attempts are left
    EXHAUST = 6  # the attempt failed, none is left
    CANCEL = 7
    REDRIVE = 8  # a person sends a dead letter back
    DISCARD = 9  # a person gives a dead letter up: it stays dead, and goes to history
    SUPERSEDE = 10  # a later occurrence or another definition takes the place of a run that only waited
    SPARE = 11  # the attempt ended and is not counted: it was snoozed, or ended with a batch handler that died
    REDRIVE_AT = 12  # as REDRIVE, at an instant: a bulk of dead letters is spread over time
    SEND_BACK = 13  # as both, and it waits for its turn in its job


TRANSITIONS: Final[dict[tuple[RunState, Event], RunState]] = {
    (RunState.SCHEDULED, Event.DUE): RunState.QUEUED,
    (RunState.SCHEDULED, Event.CANCEL): RunState.CANCELLED,
    (RunState.SCHEDULED, Event.SUPERSEDE): RunState.SKIPPED,
    (RunState.QUEUED, Event.GRANT): RunState.LEASED,
    (RunState.QUEUED, Event.CANCEL): RunState.CANCELLED,
    (RunState.LEASED, Event.GIVE_BACK): RunState.QUEUED,
    (RunState.LEASED, Event.SUCCEED): RunState.SUCCEEDED,
    (RunState.LEASED, Event.RETRY): RunState.RETRY_WAIT,
    (RunState.LEASED, Event.EXHAUST): RunState.DEAD,
    (RunState.LEASED, Event.CANCEL): RunState.CANCELLED,
    (RunState.LEASED, Event.SPARE): RunState.RETRY_WAIT,
    (RunState.RETRY_WAIT, Event.DUE): RunState.QUEUED,
    (RunState.RETRY_WAIT, Event.CANCEL): RunState.CANCELLED,
    (RunState.DEAD, Event.REDRIVE): RunState.QUEUED,
    (RunState.DEAD, Event.REDRIVE_AT): RunState.RETRY_WAIT,
    (RunState.DEAD, Event.SEND_BACK): RunState.SCHEDULED,
    (RunState.DEAD, Event.DISCARD): RunState.DEAD,
}


class Trigger(IntEnum):
    """What made a run; with the job it decides the run id."""

    SCHEDULE = 1
    BACKFILL = 2
    MANUAL = 3
    ENQUEUE = 4
    CHAIN = 5


class Outcome(IntEnum):
    """How an attempt ended."""

    SUCCEEDED = 1
    FAILED = 2
    TIMED_OUT = 3
    LOST = 4  # the worker died or its lease ran out
    INTERRUPTED = 5  # our own shutdown
    CANCELLED = 6
    NOT_STARTED = 7  # proof that user code was not entered: no attempt is spent
    SNOOZED = 8  # user code asked for another time: no attempt is spent


class Disposition(IntEnum):
    """What became of an occurrence."""

    FIRED = 1
    SKIPPED = 2
    COALESCED = 3
    SUPERSEDED = 4
    MOVED = 5
    TZDATA_MOVED = 6


class Reason(IntEnum):
    """Why an occurrence has no run of its own."""

    NONE = 0
    OVERLAP = 1
    MISFIRE = 2
    PAUSE = 3
    CALENDAR = 4
    DST_GAP = 5
    DST_OVERLAP = 6
    WINDOW = 7
    MAX = 8
    LIMIT = 9
    DELETED = 10
    MANUAL = 11
    EXPIRED = 12  # of a run: it was not started by its deadline
    DECIDED = 13  # before the clock was set back, and history has dropped what became of it
    GROUP = 20  # of a run: not all members of its group succeeded


HOOKS: Final = ("on_success", "on_failure", "on_dead")  # names of jobs to trigger when a run ends
BUILTIN_FLAGS: Final = {"command": "--allow-commands", "http": "--allow-http"}  # built-in tasks, and what lets a worker serve them
TASKS_TOLD_MAX: Final = 1_000  # tasks that one answer about them names
ROLES: Final = ("command", "http", "admin", "worker")
OPEN_ROLES: Final = ("admin", "worker")  # everybody's, until the operator names somebody; `worker` not on a shared socket
OVERLAPS: Final = ("skip", "allow", "buffer_one", "buffer_latest", "buffer_all", "cancel_other", "kill_other")
UNIQUE_FIELDS: Final = ("task", "args", "queue", "concurrency_key")  # of an enqueued run, what may make its identity
CATCHUPS: Final = ("latest", "earliest", "all", "skip")

_METHODS: Final = (
    "GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "QUERY", "PURGE", "PROPFIND", "PROPPATCH", "MKCOL", "COPY", "MOVE",
    "LOCK", "UNLOCK", "REPORT", "SEARCH",
)
_URL: Final = re.compile(r"https?://[^\s/?#]+", re.IGNORECASE)
_UNITS: Final = {"ms": MS, "s": US, "m": 60 * US, "h": 3_600 * US, "d": 86_400 * US}
_DURATION: Final = re.compile(r"(?:(\d+(?:\.\d+)?)(ms|s|m|h|d))", re.ASCII)
_NAMESPACE: Final = re.compile(r"[A-Za-z0-9._:-]{1,64}", re.ASCII)
_NAME: Final = re.compile(r"~?[A-Za-z0-9._:/-]{1,128}", re.ASCII)  # ~TASK is reserved for enqueued runs: readable, not to be put
_TASK: Final = re.compile(r"[A-Za-z0-9._:-]{1,100}", re.ASCII)
_RFC3339: Final = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:[Zz]|[+-](?:[01]\d|2[0-3]):[0-5]\d)", re.ASCII)


def parse_duration(value: Any, what: str = "duration") -> int:
    """Microseconds of a timedelta, a number of seconds, or text such as `250ms`, `90s`, `1h30m`, `2d`.

    Raises InvalidArgumentError for anything else, for a negative one and for more than 100 years.
    """
    if isinstance(value, timedelta):
        total = (value.days * 86_400 + value.seconds) * US + value.microseconds
    elif isinstance(value, int | float) and not isinstance(value, bool):
        if value != value or value in (float("inf"), float("-inf")):  # noqa: PLR0124 - NaN is the one that differs
            raise InvalidArgumentError(f"{what}: {value} is not a duration; give seconds or text such as '90s'")
        total = round(value * US)
    elif isinstance(value, str):
        text = value.strip()
        parts = _DURATION.findall(text)
        if not parts or "".join(n + u for n, u in parts) != text:
            raise InvalidArgumentError(
                f"{what}: {text[:60]!r} is not a duration; give numbers with units ms s m h d, such as '90s' or '1h30m'"
            )
        total = sum(round(float(n) * _UNITS[u]) for n, u in parts)
    else:
        raise InvalidArgumentError(f"{what}: a timedelta, seconds or text such as '90s' is wanted, not {type(value).__name__}")
    if not 0 <= total <= DURATION_MAX_US:
        raise InvalidArgumentError(f"{what}: {value!r} is out of range; 0 to 100 years are allowed")
    return total


def format_duration(us: int) -> str:
    """Text that `parse_duration` reads back: `1h30m`, `250ms`."""
    if us == 0:
        return "0s"
    out = []
    for unit in ("d", "h", "m", "s"):
        n, us = divmod(us, _UNITS[unit])
        if n:
            out.append(f"{n}{unit}")
    return "".join(out) + (f"{us / MS:g}ms" if us else "")


def parse_instant(value: Any, what: str = "time") -> int:
    """Microseconds since the epoch of an aware datetime or RFC 3339 text. Years 1970 to 9999.

    Raises InvalidArgumentError for a naive datetime, other types, and instants out of range.
    """
    if isinstance(value, str):
        if not _RFC3339.fullmatch(value):
            raise InvalidArgumentError(f"{what}: {value[:60]!r} is not RFC 3339; write it like 2026-11-29T08:30:00Z or with +01:00")
        try:
            value = datetime.fromisoformat(value.replace("z", "Z"))
        except ValueError as e:
            raise InvalidArgumentError(f"{what}: {value[:60]!r}: {e}") from None
    if not isinstance(value, datetime):
        raise InvalidArgumentError(f"{what}: an aware datetime or RFC 3339 text is wanted, not {type(value).__name__}")
    if value.utcoffset() is None:
        raise InvalidArgumentError(f"{what}: {value.isoformat()} has no time zone; add one, e.g. tzinfo=UTC or ZoneInfo('Europe/Berlin')")
    delta = value - datetime(1970, 1, 1, tzinfo=UTC)
    us = (delta.days * 86_400 + delta.seconds) * US + delta.microseconds
    if not INSTANT_MIN_US <= us <= INSTANT_MAX_US:
        raise InvalidArgumentError(f"{what}: {value.isoformat()} is out of range; 1970 to 9999 are allowed")
    return us


def to_datetime(us: int | None) -> datetime | None:
    """An aware UTC datetime with microseconds; None for None and NEVER."""
    if us is None or us == NEVER:
        return None
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=us)


def parse_job_name(name: Any) -> str:
    """The full id `namespace/name`; without a slash the namespace is `default`."""
    if not isinstance(name, str):
        raise InvalidArgumentError(f"job name: text is wanted, not {type(name).__name__}")
    namespace, slash, rest = name.partition("/")
    if not slash:
        namespace, rest = "default", name
    if not _NAMESPACE.fullmatch(namespace):
        raise InvalidArgumentError(
            f"job name {name[:200]!r}: the namespace before the first '/' is 1 to {NAMESPACE_MAX} characters of A-Z a-z 0-9 . _ : -"
        )
    if not _NAME.fullmatch(rest):
        raise InvalidArgumentError(
            f"job name {name[:200]!r}: the name is 1 to {NAME_MAX} characters of A-Z a-z 0-9 . _ : / -"
        )
    return f"{namespace}/{rest}"


def parse_task_name(name: Any, what: str = "task") -> str:
    """A task's or a queue's name."""
    if not isinstance(name, str) or not _TASK.fullmatch(name):
        raise InvalidArgumentError(f"{what} {str(name)[:120]!r}: 1 to 100 characters of A-Z a-z 0-9 . _ : - are allowed")
    return name


def unserved(task: str, served: Iterable[str] = ()) -> str:
    """Why runs of a task wait that no worker serves, for the operator. `served`: the tasks that one of them may have been meant for."""
    flag = BUILTIN_FLAGS.get(task)
    if flag is not None:
        return f"no worker serves task {task}: none runs with {flag}; start the server with it"
    from difflib import get_close_matches  # noqa: PLC0415 - for the few that are not served

    near = get_close_matches(task, [name for name in served if not name.startswith("wheelsched.")], 1, 0.7)
    return f"no worker serves task {task}" + (f"; did you mean {near[0]}?" if near else "")


def alarm_missing(hook: str, job: str) -> str:
    """Why a server's `on_dead` or `on_missed` tells nobody, for the operator."""
    what = "a run dies" if hook == "on_dead" else "an occurrence is missed"
    return f"{hook}: there is no job {job}, so nobody is told when {what}: put it (`wheelsched job put {job} --manual ...`)"


def counted(n: int, noun: str) -> str:
    """`1 run`, `2,000 runs`."""
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


def display_name(full: str) -> str:
    """The name as users gave it: the namespace `default` is left out, where that can be read back."""
    short = full.removeprefix("default/")
    return full if "/" in short else short


@dataclass(frozen=True, slots=True)
class Call(Generic[R_co]):
    """A task by name with its arguments; `R_co` is what the task returns.

    `options` are the decorator's values (`queue`, `timeout`, `retry`, `priority`).
    """

    task: str
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)

    if not TYPE_CHECKING:
        __class_getitem__ = classmethod(GenericAlias)  # Generic's own can't make a frozen one with slots: Call[int]("x")

    def __init__(self, task: str, /, *args: Any, **kwargs: Any) -> None:
        object.__setattr__(self, "task", parse_task_name(task))
        object.__setattr__(self, "args", args)
        object.__setattr__(self, "kwargs", kwargs)
        object.__setattr__(self, "options", {})
        object.__setattr__(self, "headers", {})

    def with_options(self, options: dict[str, Any]) -> Call[R_co]:
        """The same call carrying a decorator's values."""
        return self._with(dict(options), self.headers)

    def with_headers(self, headers: dict[str, str]) -> Call[R_co]:
        """The same call with these texts beside its arguments, such as a trace context: `current_run().headers` gives them back, unchanged
        in every attempt, and in the runs that the run's hooks (`on_success` and the like) trigger. They are no part of an identity
        (`unique`). What can't be is a PayloadError where the call is used: anything but texts, the name `cause`, more than 32 of them or
        8,192 characters in all.
        """
        return self._with(self.options, dict(headers))

    def _with(self, options: dict[str, Any], headers: dict[str, str]) -> Call[R_co]:
        call = Call(self.task, *self.args, **self.kwargs)
        object.__setattr__(call, "options", options)
        object.__setattr__(call, "headers", headers)
        return call


def Command(  # noqa: N802 - reads as a noun at the place of use
    argv: list[str], cwd: str | None = None, env: dict[str, str] | None = None, user: str | None = None,
    success_codes: tuple[int, ...] | list[int] = (0,), fatal_codes: tuple[int, ...] | list[int] = (), stdin: str | bytes | None = None,
    env_file: str | list[str] | None = None,
) -> Call[int]:
    """The built-in task `command`: an argv list, no shell. Off until the operator allows it.

    The program gets a few variables of its worker's environment (PATH, HOME, LANG, TZ and the like, and what the operator adds with
    --allow-env), then those of `env_file`, then `env`, then WHEELSCHED_RUN_ID, _JOB, _SCHEDULED_AT, _ATTEMPT, _TOKEN, _MISSED and
    _SOCKET. `user`: run as that user, with its groups and its home as the folder unless `cwd` is given; the worker must run as root for
    it. Exit codes: one of `success_codes` is a success, one of `fatal_codes` a failure that is not retried, any other (a signal is its
    negative number) one that is. What can't be started at all is not retried either.

    `env_file`: absolute paths of files with a NAME=value a line, for secrets. The worker reads them at each run, and nothing of them is
    kept; they belong to its user, the run's or root, and not anybody may read them. One with a - before its path need not be there.

    `stdin`: what it reads at its standard input. Without one, a run that a hook, an alarm or a group caused reads the cause there, as
    JSON, and has WHEELSCHED_CAUSE_JOB, _CAUSE_RUN_ID, _CAUSE_REASON and _CAUSE_ERROR; any other run reads nothing.
    """
    if isinstance(argv, str) or not argv or not all(isinstance(a, str) for a in argv):
        raise PayloadError("Command: argv is a list of strings, such as ['backup', '--all']; there is no shell")
    for name, codes in (("success_codes", success_codes), ("fatal_codes", fatal_codes)):
        fine = isinstance(codes, list | tuple | range)
        if not fine or not all(isinstance(c, int) and not isinstance(c, bool) and -64 <= c <= 255 for c in codes):
            raise PayloadError(f"Command: {name} is a list of exit codes from 0 to 255, or negative numbers of signals")
    if not isinstance(stdin, str | bytes | None):
        raise PayloadError("Command: stdin is text or bytes: what the program reads at its standard input")
    more: dict[str, Any] = {"fatal_codes": list(fatal_codes)} if fatal_codes else {}  # left out: a definition stays what it was
    if stdin is not None:
        more["stdin"] = stdin
    files = [env_file] if isinstance(env_file, str) else list(env_file or ())
    if not all(isinstance(file, str) and file.removeprefix("-").startswith("/") and "\0" not in file for file in files):
        raise PayloadError("Command: env_file is the absolute path of a file, or a list of them; a - before it: it need not be there")
    if files:
        more["env_file"] = files
    return Call("command", list(argv), cwd=cwd, env=dict(env or {}), user=user, success_codes=list(success_codes), **more)


def _check_request(method: Any, url: Any) -> None:
    """PayloadError for a method that there is not, and for what is no URL of the web."""
    if not isinstance(method, str) or method.upper() not in _METHODS:
        from difflib import get_close_matches  # noqa: PLC0415 - for a slip

        near = get_close_matches(str(method).upper(), _METHODS, 1)
        hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(_METHODS)}"
        raise PayloadError(f"Http: {str(method)[:40]!r} is no method: {hint}")
    if not isinstance(url, str) or not _URL.match(url):
        shown = str(url)[:60]
        hint = f", such as https://{shown}" if isinstance(url, str) and "://" not in url else ""
        raise PayloadError(f"Http: {shown!r} is no URL: http:// or https:// and a host are wanted{hint}")


def Http(  # noqa: N802 - reads as a noun at the place of use
    method: str, url: str, *, json: Any = None, body: bytes | str | None = None, headers: dict[str, str] | None = None,
    timeout: Duration | None = None, expect: list[int] | tuple[int, ...] | None = None, redirects: int = 0, sign: bool | None = None,
    max_body: int | None = None,
) -> Call[int]:
    """The built-in task `http`: one request. Off until the operator allows it; it needs the package urllib3 where workers run.

    Any of the statuses in `expect` (2xx) is a success; 408, 425, 429, 5xx and what fails on the way are retried, after the time that
    Retry-After asks for; nothing else is. `timeout`: a duration, no longer than the run's. `redirects`: how many are followed, 10 at
    most. `sign`: None signs when the operator has given keys, True insists on it. `max_body`: bytes of the response that are kept (16 KiB;
    at most 64 KiB). Addresses that are not public are refused unless the operator allows them. Secrets are best in headers: they are
    not shown in listings.

    In the path and query of the url, in headers and the body of a run that a hook, an alarm or a group caused, {cause.job},
    {cause.run_id}, {cause.reason} and {cause.error} stand for what it is about, escaped as the place asks for. Other braces stay.
    """
    _check_request(method, url)
    more: dict[str, Any] = {}  # what is not given is left out: a definition stays what it was
    if timeout is not None:
        more["timeout"] = format_duration(parse_duration(timeout, "timeout"))
    if expect is not None:
        if not isinstance(expect, list | tuple) or not all(isinstance(x, int) and 100 <= x <= 599 for x in expect):
            raise PayloadError("Http: expect is a list of statuses, such as [200, 404]")
        more["expect"] = list(expect)
    for name, value, high in (("redirects", redirects or None, REDIRECTS_MAX), ("max_body", max_body, OUTPUT_MAX)):
        if value is not None:
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= high:
                raise PayloadError(f"Http: {name} is a whole number from 0 to {high}, not {value!r}")
            more[name] = value
    if sign is not None:
        more["sign"] = bool(sign)
    return Call("http", method, url, json=json, body=body, headers=dict(headers or {}), **more)


class Ended(NamedTuple):
    """How a run ended, as its executor would have reported it. `result` may be empty."""

    outcome: int
    started_us: int  # of the server's wall clock; up to the µs when the run before it ended
    ended_us: int
    result: dict[str, Any]


@dataclass(frozen=True, slots=True)
class RunError:
    """Why an attempt failed: the exception's type, its text and the tail of its traceback."""

    type: str
    message: str
    traceback: str = ""

    def __str__(self) -> str:
        return f"{self.type}: {self.message}" if self.message else self.type


def format_offset(us: int) -> str:
    """A clock offset as `serve --clock-offset` takes it, exactly."""
    return ("-" if us < 0 else "") + format_duration(abs(us))

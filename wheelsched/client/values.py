"""What the server answers, as values: jobs, runs, attempts, results of put_many. No I/O.

Instants are aware datetimes in UTC with microseconds; None stands for "not yet" and "never".
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, cast

from ..model.errors import PayloadError
from ..model.nouns import FINAL_STATES, NEVER, US, RunError, display_name, to_datetime
from ..model.payloads import NO_EXTS, RAW, plain, rfc3339
from ..protocol.frames import decode_cause, decode_headers, decode_payload, decode_value
from ..schedules.schedule import as_written

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime
    from typing import Self

    from ..model.payloads import Exts
    from ..schedules.schedule import Schedule

__all__ = ["Attempt", "JobInfo", "NotKept", "RunInfo", "Waiting", "call_words", "plain", "rfc3339"]

T = TypeVar("T")

_FINAL: Final = frozenset(state.name.lower() for state in FINAL_STATES)


def call_words(payload: bytes) -> dict[str, Any]:
    """`args`, `kwargs` and, when there are any, `headers` and `cause` of a payload as JSON has them; one that can't be read says so
    instead.
    """
    try:
        args, kwargs = decode_payload(payload, RAW)
        headers, cause = decode_headers(payload), decode_cause(payload, RAW)
    except (PayloadError, ValueError, OverflowError) as e:
        return {"args": [f"({e})"], "kwargs": {}}
    headers.pop("cause", None)
    more = {"headers": headers, "cause": plain(cause)}
    return {"args": plain(args), "kwargs": plain(kwargs), **{name: value for name, value in more.items() if value}}


def _value(data: bytes, hook: Callable[[int, bytes], Any]) -> Any:
    try:
        return decode_value(data, hook)
    except PayloadError:
        raise
    except (ValueError, OverflowError) as e:
        raise PayloadError(f"the stored return value can't be read: {type(e).__name__}: {e}") from e


@dataclass(frozen=True, slots=True)
class NotKept:
    """In place of a return value that is not kept. The run succeeded all the same."""

    type: str  # of the value
    bytes: int | None  # its encoded size; None where that is not known, as for a value that no payload can hold
    why: str = ""

    def __str__(self) -> str:
        size = "" if self.bytes is None else f" of {self.bytes:,} bytes"
        return f"a value of type {self.type}{size} is not kept{f': {self.why}' if self.why else ''}"


class _Raw:
    """Holds one answer of the server."""

    __slots__ = ("_exts", "_raw")

    def __init__(self, raw: dict[str, Any], exts: Exts = NO_EXTS) -> None:
        self._raw = raw
        self._exts = exts


class _Field(Generic[T]):
    """A value of the answer as it came."""

    def __init__(self, key: str) -> None:
        self._key = key

    def __get__(self, view: _Raw, owner: type) -> T:
        return cast("T", view._raw.get(self._key))  # noqa: SLF001 - a view's own field


class _Time:
    """An instant of the answer as an aware datetime; None for "not yet" and "never"."""

    def __init__(self, key: str) -> None:
        self._key = key

    def __get__(self, view: _Raw, owner: type) -> datetime | None:
        return to_datetime(view._raw.get(self._key))  # noqa: SLF001 - a view's own field


class _HasResult(_Raw):
    """Reads the `result` map of a run or an attempt."""

    __slots__ = ()

    @property
    def _result(self) -> dict[str, Any]:
        return self._raw.get("result") or {}

    @property
    def output(self) -> Any:
        """The return value; None when there is none, NotKept(type, bytes, why) in place of one that is not kept. PayloadError when it can't
        be read.
        """
        data = self._result.get("value")
        return self.not_kept if data is None else _value(data, self._exts.decode)

    @property
    def not_kept(self) -> NotKept | None:
        """What stands in `output` in place of a return value that is not kept; None where there is none, or it is kept."""
        mark = self._result.get("left_out")
        return None if mark is None else NotKept(str(mark["type"]), mark["bytes"], str(mark["why"]))

    @property
    def plain_output(self) -> Any:
        """The return value as JSON has it: of a type of the user's, {"ext": its code, "value": ...}, which needs no Ext; in place of one
        that is not kept, {"not_kept": why, "type": ..., "bytes": ...}.
        """
        data, mark = self._result.get("value"), self.not_kept
        if data is not None:
            return plain(_value(data, RAW))
        return None if mark is None else {"not_kept": mark.why, "type": mark.type, "bytes": mark.bytes}

    @property
    def cpu(self) -> float | None:
        """CPU seconds, user and system, of user code and of the children that it waited for; runs of a batch handler share its time.
        None where it was not measured: below 1 ms, in an executor with several runs at a time, of an attempt that was killed.
        """
        value = self._result.get("cpu_us")
        return None if value is None else value / US

    @property
    def max_rss(self) -> int | None:
        """Bytes of memory that the process, or its largest child, held at most meanwhile; None as for `cpu`."""
        value = self._result.get("max_rss")
        return None if value is None else int(value)

    @property
    def stdout(self) -> bytes:
        """What was kept of standard output."""
        return bytes(self._result.get("stdout") or b"")

    @property
    def stderr(self) -> bytes:
        """What was kept of standard error."""
        return bytes(self._result.get("stderr") or b"")

    @property
    def stdout_cut(self) -> int:
        """Bytes of standard output that were left out."""
        return int(self._result.get("stdout_cut") or 0)

    @property
    def stderr_cut(self) -> int:
        """Bytes of standard error that were left out."""
        return int(self._result.get("stderr_cut") or 0)

    @property
    def error(self) -> RunError | None:
        """Why it failed; None when it didn't."""
        kind = self._result.get("type")
        if kind is None:
            return None
        return RunError(str(kind), str(self._result.get("message") or ""), str(self._result.get("traceback") or ""))

    def _result_dict(self) -> dict[str, Any]:
        error = self.error
        return {
            "output": self.plain_output,
            "stdout": self.stdout.decode("utf-8", "replace"),
            "stderr": self.stderr.decode("utf-8", "replace"),
            "stdout_cut": self.stdout_cut,
            "stderr_cut": self.stderr_cut,
            "error": None if error is None else asdict(error),
            "cpu": self.cpu,
            "max_rss": self.max_rss,
        }


class Attempt(_HasResult):
    """One execution of a run on a worker. `outcome` is None while it lasts."""

    __slots__ = ()

    attempt = _Field[int]("attempt")  # 1 is the first
    token = _Field["int | None"]("token")  # fencing token of its lease
    worker = _Field["int | str | None"]("worker")
    started_at = _Time("started_us")
    ended_at = _Time("ended_us")
    outcome = _Field["str | None"]("outcome")  # succeeded failed timed_out lost interrupted cancelled snoozed

    @property
    def reason(self) -> str | None:
        """What the task said when it cancelled or snoozed the run; None otherwise."""
        return self._result.get("reason")

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "attempt": self.attempt,
            "token": self.token,
            "worker": self.worker,
            "started_at": rfc3339(self.started_at),
            "ended_at": rfc3339(self.ended_at),
            "outcome": self.outcome,
            "reason": self.reason,
            **self._result_dict(),
        }

    def __repr__(self) -> str:
        return f"<Attempt {self.attempt} {self.outcome or 'open'}>"


@dataclass(frozen=True, slots=True)
class Waiting:
    """What holds back an open run that no worker has."""

    reason: str
    rank: int | None  # its place in its queue, 1 is next; None: not queued, or beyond the first 10,000
    expected_at: datetime | None  # a start, if all goes on as measured and nothing else comes; None: that can't be said

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {"reason": self.reason, "rank": self.rank, "expected_at": rfc3339(self.expected_at)}


class RunInfo(_HasResult):
    """A run as the server knew it when it answered. Final states: succeeded, dead, cancelled, skipped."""

    __slots__ = ()

    def _become(self, other: RunInfo) -> None:
        """Be brought up to date."""
        self._raw = other._raw

    @property
    def id(self) -> str:
        """32 hexadecimal digits."""
        value = self._raw["id"]
        return value.hex() if isinstance(value, bytes) else str(value)

    @property
    def job(self) -> str:
        """The job's name; `NAMESPACE/~TASK` for an enqueued run."""
        return display_name(self._raw["job"])

    @property
    def state(self) -> str:
        """scheduled, queued, leased, running, retry_wait, succeeded, dead, cancelled or skipped."""
        return str(self._raw["state"])

    @property
    def known(self) -> bool:
        """Whether there is more than the id: of a run that moved to history some answers have only that."""
        return "state" in self._raw

    @property
    def final(self) -> bool:
        """Whether nothing more will happen to it by itself."""
        return self.state in _FINAL

    @property
    def attempts(self) -> list[Attempt]:
        """Every attempt, oldest first; empty in listings that leave them out."""
        return [Attempt(raw, self._exts) for raw in self._raw.get("attempts") or ()]

    @property
    def stale(self) -> list[dict[str, Any]]:
        """Completions that were refused because their lease was over, the first ten: {token, worker, outcome, at}. Each means that
        the code of an attempt went on after the run had been handed to another worker, or had ended.
        """
        return [
            {"token": s["token"], "worker": s["worker"], "outcome": s["outcome"], "at": to_datetime(s["at_us"])}
            for s in self._raw.get("stale") or ()
        ]

    @property
    def waiting(self) -> Waiting | None:
        """What it waits for, as `Client.run` and `refresh` tell it; None for a run that a worker has or that has ended, and in listings."""
        raw = self._raw.get("waiting")
        return None if raw is None else Waiting(raw["reason"], raw["rank"], to_datetime(raw["expected_us"]))

    @property
    def _payload(self) -> bytes | None:
        return self._raw.get("payload")

    @property
    def args(self) -> list[Any] | None:
        """The arguments of its call, redacted ones hidden. None where they are not told: only `Client.run` and `refresh` ask for them, and
        they are not kept with runs that have gone to history. PayloadError when they can't be read, as for a type whose Ext is not known.
        """
        return None if self._payload is None else decode_payload(self._payload, self._exts.decode)[0]

    @property
    def kwargs(self) -> dict[str, Any] | None:
        """The keyword arguments, as `args`."""
        return None if self._payload is None else decode_payload(self._payload, self._exts.decode)[1]

    @property
    def headers(self) -> dict[str, str] | None:
        """What came with the call beside its arguments; None as for `args`."""
        return None if self._payload is None else {k: v for k, v in decode_headers(self._payload).items() if k != "cause"}

    @property
    def cause(self) -> dict[str, Any] | None:
        """Of a run that a hook has made, or that waited for a group: what `current_run().cause` is. None for others, and as for `args`."""
        return None if self._payload is None else decode_cause(self._payload, self._exts.decode)

    @property
    def existing(self) -> bool:
        """Of an answer to enqueue or trigger: whether the run was there before, by its key or identity, and none was made."""
        return bool(self._raw.get("existing"))

    def answers(self, answer: RunInfo) -> Self:
        """The same run, with what an answer that had nothing but its id has told: one that is in history is looked up."""
        self._raw["existing"] = answer.existing
        return self

    @property
    def late(self) -> bool:
        """Whether it is marked late: not started `late_after` after its nominal time."""
        return bool(self._raw.get("late"))

    trigger = _Field["str | None"]("trigger")  # schedule, backfill, manual, enqueue or chain
    task = _Field["str | None"]("task")  # The task's name
    queue = _Field["str | None"]("queue")  # The queue's name
    differs = _Field["bool | None"]("differs")  # of enqueue: the run of that key was there before and has other arguments than those given
    reason = _Field["str | None"]("reason")  # Why it was skipped, or expired; what the task said when it cancelled or snoozed the run
    attempt = _Field[int]("attempt")  # Number of the latest attempt; 0 before the first
    token = _Field["int | None"]("token")  # Fencing token of the latest lease
    worker = _Field["int | str | None"]("worker")  # Worker of the latest lease
    snoozed = _Field[int]("snoozed")  # How often the task has asked for another time; such attempts are not counted
    missed = _Field[int]("missed")  # Earlier occurrences that this run stands for as well
    count = _Field["int | None"]("count")  # Occurrences of a skipped range; None otherwise
    disposition = _Field["str | None"]("disposition")  # What became of its occurrence: see Why
    blocking = _Field["str | None"]("blocking")  # Id of the run that it gave way to
    progress = _Field["str | None"]("progress")  # What the open attempt told by its last heartbeat, or how far its group is; or None
    scheduled_at = _Time("scheduled_us")  # Its nominal time
    created_at = _Time("created_us")  # When it was recorded
    queued_at = _Time("queued_us")  # When it came into its queue
    started_at = _Time("started_us")  # When user code was entered, latest attempt
    ended_at = _Time("ended_us")  # When it ended
    next_at = _Time("next_us")  # When it will be queued (again)
    heartbeat_at = _Time("heartbeat_us")  # Of the open attempt's own last heartbeat; None: none, or unknown
    until = _Time("until_us")  # The last nominal time of a skipped range

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON: times as RFC 3339 text with microseconds and Z."""
        out: dict[str, Any] = {"id": self.id, "job": self.job}
        for name in (
            "trigger", "task", "queue", "state", "reason", "attempt", "snoozed", "token", "worker", "missed", "count", "late",
            "disposition", "blocking", "progress",
        ):
            out[name] = getattr(self, name)
        for name in ("scheduled_at", "created_at", "queued_at", "started_at", "ended_at", "next_at", "heartbeat_at", "until"):
            out[name] = rfc3339(getattr(self, name))
        out["waiting"] = None if self.waiting is None else self.waiting.to_dict()
        call = {} if self._payload is None else call_words(self._payload)
        out |= {name: call.get(name) for name in ("args", "kwargs", "headers", "cause")}
        stale = [{**s, "at": rfc3339(s["at"])} for s in self.stale]
        return {**out, **self._result_dict(), "stale": stale, "attempts": [attempt.to_dict() for attempt in self.attempts]}

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} of {self.job}: {self.state}>"


class JobInfo(_Raw):
    """A job as the server knew it when it answered."""

    __slots__ = ()

    state = _Field[str]("state")  # active, paused, finished or deleted
    spec = _Field["dict[str, Any]"]("spec")  # the resolved definition; durations and instants in microseconds
    version = _Field[int]("version")  # rises with every change; for put's compare-and-set
    note = _Field["str | None"]("note")
    pause_note = _Field["str | None"]("pause_note")  # why it is paused
    active = _Field[int]("active")  # its open runs
    param_us = _Field["int | None"]("param_us")  # the instant of its own of a schedule that has one: At, and the anchor of Every
    result = _Field["str | None"]("result")  # of put alone: created, updated or unchanged
    cancelled = _Field["int | None"]("cancelled")  # of delete alone: how many runs it cancelled; `active` runs, which a worker has, go on
    payload = _Field["bytes | None"]("payload")  # args, kwargs and headers as they are stored, redacted fields hidden
    said = _Field["str | None"]("said")  # of put alone: what else is to know of it
    changes = _Field["dict[str, tuple[str, str]] | None"]("differences")  # of put alone: {policy: (old, new)} as text, of an updated job
    warning = _Field["str | None"]("warning")  # of put alone: that no worker serves its task, so that its runs would wait
    next_at = _Time("next_us")
    cursor = _Time("cursor_us")  # the last nominal time that was decided
    created_at = _Time("created_us")
    updated_at = _Time("updated_us")

    @property
    def name(self) -> str:
        """The name; the namespace `default` is left out."""
        return display_name(self._raw["name"])

    @property
    def task(self) -> str:
        """The task's name."""
        return str(self._raw["spec"]["task"])

    @property
    def queue(self) -> str:
        """The queue's name."""
        return str(self._raw["spec"]["queue"])

    @property
    def schedule(self) -> Schedule | list[Schedule]:
        """The schedule as it would be written; a list for a union."""
        param_us = self._raw.get("param_us")
        return as_written(self._raw["spec"]["schedule"], NEVER if param_us is None else param_us)

    @property
    def args(self) -> list[Any]:
        """The call's arguments. PayloadError when they can't be read, as for a type whose Ext this client was not given."""
        return self._call[0]

    @property
    def kwargs(self) -> dict[str, Any]:
        """The call's keyword arguments. PayloadError as for `args`."""
        return self._call[1]

    @property
    def headers(self) -> dict[str, str]:
        """What each run gets beside its arguments; see `Call.with_headers`."""
        return decode_headers(self.payload) if self.payload else {}

    @property
    def _call(self) -> tuple[list[Any], dict[str, Any]]:
        return decode_payload(self.payload, self._exts.decode) if self.payload else ([], {})

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON: times as RFC 3339 text with microseconds and Z, durations of `spec` in microseconds."""
        out: dict[str, Any] = {"name": self.name}
        for name in ("state", "version", "note", "pause_note", "active", "result", "said", "warning", "spec"):
            out[name] = getattr(self, name)
        for name in ("next_at", "cursor", "created_at", "updated_at"):
            out[name] = rfc3339(getattr(self, name))
        kind = self._raw["spec"]["schedule"]["kind"]  # the instant is the job's own, and not in the shared spec
        if kind in ("at", "every"):
            schedule: Any = self.schedule
            out |= {"at": rfc3339(schedule.instant)} if kind == "at" else {"anchor": rfc3339(schedule.anchor)}
        if self.cancelled is not None:
            out["cancelled"] = self.cancelled
        if self.changes is not None:
            out["changes"] = {name: list(pair) for name, pair in self.changes.items()}
        return {**out, **(call_words(self.payload) if self.payload else {"args": [], "kwargs": {}})}

    def __repr__(self) -> str:
        return f"<Job {self.name}: {self.state}>"

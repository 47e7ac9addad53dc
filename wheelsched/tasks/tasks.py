"""Tasks: `@task` marks a function and keeps no registry; `current_run` is what user code sees of its run.

Importing this needs no server and no connection. The built-in tasks are in `builtin`.
"""

from __future__ import annotations

import sys
from contextvars import ContextVar
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Generic, ParamSpec, Protocol, TypeVar, cast, overload

from ..model.errors import FailedPreconditionError, FencedError, InvalidArgumentError, PayloadError
from ..model.nouns import CHECKPOINT_MAX, PRIORITY_MAX, PROGRESS_MAX, Call, display_name, parse_duration, parse_task_name, to_datetime
from ..model.payloads import NO_EXTS, Ext, Exts
from ..model.policies import Retry
from ..protocol import frames

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable
    from datetime import datetime
    from typing import Literal

    from ..model.nouns import RunError
    from ..model.typed import Duration

ATTRIBUTE: Final = "__wheelsched_task__"

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class Task(Protocol, Generic[P, R_co]):
    """A function that `@task` marked: it is called as before, and `.call()` makes a Call."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Call the plain function, here and now."""

    def call(self, *args: P.args, **kwargs: P.kwargs) -> Call[R_co]:
        """A Call of this task with these arguments. PayloadError when the function can't take them."""


class AsyncTask(Protocol, Generic[P, R_co]):
    """A coroutine function that `@task` marked; its run's result is what awaiting it gives."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R_co]:
        """As Task."""

    def call(self, *args: P.args, **kwargs: P.kwargs) -> Call[R_co]:
        """As Task."""


class BatchTask(Protocol):
    """A batch handler that `@task` marked: `.call()` takes the arguments of one run."""

    def __call__(self, runs: list[RunContext], /) -> Any:
        """As Task."""

    def call(self, *args: Any, **kwargs: Any) -> Call[Any]:
        """As Task."""


class _Mark(Protocol):
    """What `@task(...)` gives: it makes a task of a function."""

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncTask[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, R]: ...


class Handler:
    """What a decorator said about a function, with the function. `options` are as the user gave them."""

    __slots__ = ("batch", "function", "name", "options", "signature")

    def __init__(self, name: str, function: Callable[..., Any], options: dict[str, Any], *, batch: bool = False) -> None:
        """InvalidArgumentError for values that can't be."""
        self.name = parse_task_name(name)
        self.function = _checked(name, function)
        self.options = {**options, "redact": _fields(name, function, options["redact"])} if options.get("redact") else options
        self.batch = batch
        self.signature: Any = None
        self.wire()

    def around(self, function: Callable[..., Any]) -> Handler:
        """The task of this one's name that calls `function` instead: what another decorator has made of the marked function.

        InvalidArgumentError for one that can't be a task.
        """
        if function is self.function:
            return self
        made = Handler(self.name, function, {}, batch=self.batch)
        made.options = self.options
        return made

    def call(self, *args: Any, **kwargs: Any) -> Call:
        """A Call that carries the decorator's values. PayloadError when the function can't take these arguments."""
        if not self.batch:
            import inspect  # noqa: PLC0415 - only for who makes calls

            try:
                if self.signature is None:
                    self.signature = inspect.signature(self.function)
                self.signature.bind(*args, **kwargs)
            except TypeError as e:
                raise PayloadError(f"{self.name}: {e}") from None
        return Call(self.name, *args, **kwargs).with_options(self.options)

    def wire(self) -> dict[str, Any]:
        """The options as a worker announces them: queue, timeout_us, heartbeat_timeout_us, retry, priority, redact; only those given."""
        out: dict[str, Any] = {}
        for key, value in self.options.items():
            if key in ("timeout", "heartbeat_timeout"):
                out[f"{key}_us"] = parse_duration(value, key)
            elif key == "retry":
                out["retry"] = (Retry(attempts=value) if isinstance(value, int) else value).to_wire()
            elif key == "redact":
                out["redact"] = value
            elif key == "queue":
                out["queue"] = parse_task_name(value, "queue")
            elif isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= PRIORITY_MAX:
                raise InvalidArgumentError(f"priority: a whole number from 0 to {PRIORITY_MAX} is wanted, not {value!r}")
            else:
                out["priority"] = value
        return out


@overload
def task(name: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncTask[P, R]: ...
@overload
def task(name: Callable[P, R], /) -> Task[P, R]: ...
@overload
def task(
    name: str | None = None, *, queue: str | None = None, timeout: Duration | None = None, retry: Retry | int | None = None,
    priority: int | None = None, batch: Literal[False] = False, heartbeat_timeout: Duration | None = None,
    redact: str | Iterable[str] | None = None,
) -> _Mark: ...
@overload
def task(
    name: str | None = None, *, queue: str | None = None, timeout: Duration | None = None, retry: Retry | int | None = None,
    priority: int | None = None, batch: Literal[True], heartbeat_timeout: Duration | None = None,
    redact: str | Iterable[str] | None = None,
) -> Callable[[Callable[[list[Any]], Any]], BatchTask]: ...
def task(
    name: Any = None, *, queue: str | None = None, timeout: Duration | None = None, retry: Retry | int | None = None,
    priority: int | None = None, batch: bool = False, heartbeat_timeout: Duration | None = None, redact: str | Iterable[str] | None = None,
) -> Any:
    """Mark a function as the task `name`; it stays a plain function. InvalidArgumentError for values that can't be.

    Without a name (`@task`, `@task()`, `@task(queue="mail")`) the task is called `module.function`.

    `timeout` is a duration (timedelta, seconds, text), counted from the first instruction of each attempt. An attempt whose code
    calls no `current_run().heartbeat()` for `heartbeat_timeout` is ended as if by its timeout. With `batch=True` the function gets a
    list of runs and returns a list with one value a run; an Exception instance in that list fails that run alone. When it dies or times
    out, no attempt is spent, and each of its runs is called alone next. `redact`: parameters of the function,
    or keys of maps among its arguments, whose values no listing, history or diff shows.
    """
    given = {
        "queue": queue, "timeout": timeout, "heartbeat_timeout": heartbeat_timeout, "retry": retry, "priority": priority, "redact": redact,
    }
    options = {key: value for key, value in given.items() if value is not None}
    if retry is not None and (isinstance(retry, bool) or not isinstance(retry, int | Retry)):
        raise InvalidArgumentError(f"retry: a Retry or a number of attempts is wanted, not {type(retry).__name__}")
    bare = name if callable(name) else None

    def mark(function: Callable[..., Any]) -> Any:
        made = Handler(_name_of(function) if name is None or name is bare else name, function, options, batch=batch)
        setattr(function, ATTRIBUTE, made)
        function.call = made.call  # type: ignore[attr-defined]
        return function

    return mark if bare is None else mark(bare)


def _name_of(function: Any) -> str:
    """`module.function`, for a task that was given no name. Of a script's module, which is called __main__ where it is run, the name
    by which a worker imports it.
    """
    own, module = getattr(function, "__qualname__", None), getattr(function, "__module__", None)
    if not isinstance(own, str) or not isinstance(module, str):
        raise InvalidArgumentError(f"task: {function!r} has no name of its own: give it one, @task('name')")
    if module == "__main__":
        main = sys.modules[module]
        spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
        module = spec.name if spec is not None else file.rpartition("/")[2].removesuffix(".py") if file else module
    return f"{module.removesuffix('.__main__')}.{own.rpartition('<locals>.')[2]}"


def _checked(task_name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that does its work when it is called. InvalidArgumentError for a generator function, which does none of it."""
    import inspect  # noqa: PLC0415 - only for who makes tasks

    for made in (function, getattr(function, "__call__", None)):  # noqa: B004 - of an object that can be called, its method
        if inspect.isgeneratorfunction(made) or inspect.isasyncgenfunction(made):
            raise InvalidArgumentError(
                f"task {task_name}: {getattr(function, '__qualname__', function)} is a generator function, and calling it runs none of its"
                " code: return a list instead of yielding"
            )
    return function


def _fields(task_name: str, function: Callable[..., Any], given: Any) -> list[str]:
    """Names to redact, and the positions of the parameters that have these names: "0" is the first."""
    names = [given] if isinstance(given, str) else list(given)
    if not all(isinstance(name, str) and name for name in names):
        raise InvalidArgumentError(f"task {task_name}: redact: names of arguments are wanted, such as ('password',)")
    import inspect  # noqa: PLC0415 - only for tasks that hide something

    for i, parameter in enumerate(inspect.signature(function).parameters.values()):
        if parameter.name in names and parameter.kind is not parameter.KEYWORD_ONLY:
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                raise InvalidArgumentError(f"task {task_name}: redact: {parameter} is any number of arguments; name a single one")
            names.append(str(i))
    return names


def load_tasks(modules: Iterable[str]) -> dict[str, Handler]:
    """Import modules and collect the functions that are marked, as the module has them: with the decorators above `@task`, which take
    its mark over. What an import raises, it raises.

    InvalidArgumentError when two functions have one name, a function and a wrapper of it included.
    """
    found: dict[str, Handler] = {}
    for module in modules:
        for value in vars(import_module(module)).values():
            made = getattr(value, ATTRIBUTE, None)
            if not isinstance(made, Handler):
                continue
            if not callable(value):
                continue
            mine = made.around(value)
            other = found.setdefault(made.name, mine)
            if other.function is not mine.function:
                raise InvalidArgumentError(_two(other.function, mine.function, made.name))
    return found


def _two(one: Any, other: Any, name: str) -> str:
    """What to say of two functions that are to be one task."""
    both = " and ".join(f"{f.__module__}.{getattr(f, '__qualname__', type(f).__qualname__)}" for f in (one, other))
    if getattr(one, ATTRIBUTE) is not getattr(other, ATTRIBUTE):
        return f"task {name}: two functions have this name, {both}"
    return (f"task {name}: {both} are a marked function and a wrapper of it, which has its mark (functools.wraps copies it), and only one"
            f" of them can be the task: write @task above the other decorator, or delete {ATTRIBUTE} of the one that is not meant")


def load_exts(modules: Iterable[str], more: Iterable[Ext] = ()) -> Exts:
    """The Exts that are variables of modules, or in a tuple of Exts that is one (`STANDARD`), and more. InvalidArgumentError for two of one
    code or one type.
    """
    values = [value for module in modules for value in vars(import_module(module)).values()]
    many = [value for value in values if isinstance(value, tuple) and value and all(isinstance(one, Ext) for one in value)]
    return Exts([*(value for value in values if isinstance(value, Ext)), *(one for some in many for one in some), *more])


class Batch:
    """Runs as one lease reply brought them, still in columns. Rows are in token order; instants are int64 microseconds."""

    exts = NO_EXTS  # of the worker

    def __init__(self, reply: dict[str, Any]) -> None:
        n: int = reply["n"]
        self.n = n
        self.ids: bytes = reply["id"]
        self.token_column: bytes = reply["token"]
        self.tokens: list[int] = memoryview(self.token_column).cast("q").tolist()
        self.attempts = memoryview(reply["attempt"]).cast("I")
        self.scheduled_us = memoryview(reply["scheduled_us"]).cast("q")
        self.missed = memoryview(reply["missed"]).cast("I")
        self.spec_of: list[int] = memoryview(reply["spec"]).cast("I").tolist()
        self.specs: list[dict[str, Any]] = reply["specs"]
        self.payload: bytes = reply["payload"]
        self.payload_end: list[int] = memoryview(reply["payload_end"]).cast("I").tolist()
        self.job: bytes = reply["job"]
        self.job_end = memoryview(reply["job_end"]).cast("I")
        self.last_result: dict[int, Any] = dict(reply.get("last_result", []))
        self.last_error: dict[int, bytes] = dict(reply.get("last_error", []))
        self.checkpoints: dict[int, bytes] = dict(reply.get("checkpoint", []))
        self.alone = frozenset(reply.get("alone", ()))
        assert n == len(self.tokens) == len(self.spec_of) == len(self.payload_end) == len(self.job_end), "columns of one length"
        assert len(self.ids) == 16 * n, len(self.ids)

    def started_us(self, _row: int) -> int:
        """When a row was entered."""
        return 0

    def cancelled(self, _row: int) -> bool:
        """Shall this row's run end?"""
        return False

    def heartbeat(self, _row: int, _text: str, _checkpoint: bytes | None) -> None:
        """Report a row's progress, and keep its checkpoint if there is one."""

    def arguments(self, row: int) -> tuple[list[Any], dict[str, Any]]:
        """(args, kwargs) of a row, decoded anew. PayloadError when they can't be read."""
        return frames.decode_payload(self._payload(row), self.exts.decode)

    def headers(self, row: int) -> dict[str, Any]:
        """What came with a row's arguments; empty for most. PayloadError when it can't be read."""
        return frames.decode_headers(self._payload(row))

    def _payload(self, row: int) -> bytes:
        return self.payload[self.payload_end[row - 1] if row else 0 : self.payload_end[row]]


def check_kept(answer: dict[str, Any]) -> None:
    """FencedError when the answer to a heartbeat of one row says that its lease is over."""
    if answer["stale"]:
        raise FencedError(
            "the checkpoint is not kept: this attempt's lease is over, and the run may be at work elsewhere; stop and change nothing more"
        )


class RunContext:
    """What user code sees of its run. Everything is computed when it is asked for."""

    __slots__ = ("_arguments", "_batch", "_row")

    def __init__(self, batch: Batch, row: int) -> None:
        self._batch = batch
        self._row = row
        self._arguments: tuple[list[Any], dict[str, Any]] | None = None

    def __repr__(self) -> str:
        return f"<run {self.id} of {self.job}, attempt {self.attempt}>"

    @property
    def id(self) -> str:
        """The run's id, 32 hex digits; the same in every attempt: use it to make side effects idempotent."""
        return self._batch.ids[16 * self._row : 16 * self._row + 16].hex()

    @property
    def job(self) -> str:
        """The job's name."""
        start = self._batch.job_end[self._row - 1] if self._row else 0
        return display_name(self._batch.job[start : self._batch.job_end[self._row]].decode())

    @property
    def task(self) -> str:
        """The task's name."""
        return str(self._batch.specs[self._batch.spec_of[self._row]]["task"])

    @property
    def scheduled_at(self) -> datetime:
        """The nominal time, UTC."""
        return cast("datetime", to_datetime(self._batch.scheduled_us[self._row]))

    @property
    def started_at(self) -> datetime:
        """When this attempt was entered, UTC."""
        return cast("datetime", to_datetime(self._batch.started_us(self._row)))

    @property
    def attempt(self) -> int:
        """Number of this attempt; the first is 1."""
        return self._batch.attempts[self._row]

    @property
    def token(self) -> int:
        """The fencing token: it grows with every lease, so a store can refuse what an older attempt still writes. Keep it beside the
        data, and let each write name it:

            UPDATE account SET balance = :balance, fence = :token WHERE id = :id AND fence < :token
            -- no row changed: a newer attempt has written; stop
        """
        return self._batch.tokens[self._row]

    @property
    def missed(self) -> int:
        """How many earlier occurrences this run stands for (catch-up)."""
        return self._batch.missed[self._row]

    @property
    def headers(self) -> dict[str, str]:
        """What was given with the call beside its arguments (see `Call.with_headers`); the same in every attempt."""
        return {name: value for name, value in self._batch.headers(self._row).items() if name != "cause"}

    @property
    def cause(self) -> dict[str, Any] | None:
        """Of a run that another job's hook made, or that waited for a group, why, as a map with `reason`. None for any other run.

        "success", "failure", "dead" (on_success, on_failure, on_dead): {reason, job, run_id, output, error}: the run that ended, the
        value that it returned (one over 8 KiB, or one that is not kept, is None, with its size in bytes, None where that is not known, as
        `output_left_out`), {type, message} of its error or None.
        "group": {reason, group, members, succeeded, failed, cancelled}: how many of the members ended how; `group` is the run's own id.
        "missed", "late" (on_missed): {reason, job, jobs, count, from, until}: occurrences were not run, or runs had not started in time.
        `count` of them, with nominal times `from` ... `until` (aware datetimes), of `jobs` jobs; `job` is the name of the first:
        `Client.runs(skipped=True, late=True)` lists all.
        """
        return frames.read_cause(self._batch.headers(self._row).get("cause"), self._batch.exts.decode)

    @property
    def last_result(self) -> Any:
        """The value that the last run of the job to succeed returned; None when there is none, when it has more than 16 KiB, or when it is
        not kept.

        None for runs of `enqueue`, too: their job is only a name for all runs of a task. As of the lease of this attempt.
        """
        data = self._batch.last_result.get(self._row)
        return None if data is None else frames.decode_value(data, self._batch.exts.decode)

    @property
    def last_error(self) -> RunError | None:
        """Why the job's last attempt that ended failed (of the run before, or of this run): type and message, without a traceback.
        None when it succeeded, and for runs of `enqueue`.
        """
        from ..model.nouns import RunError  # noqa: PLC0415 - for those who ask

        data = self._batch.last_error.get(self._row)
        return None if data is None else RunError(*frames.decode_value(data))

    @property
    def args(self) -> list[Any]:
        """Positional arguments (for batch handlers)."""
        return self._decoded()[0]

    @property
    def kwargs(self) -> dict[str, Any]:
        """Keyword arguments (for batch handlers)."""
        return self._decoded()[1]

    def _decoded(self) -> tuple[list[Any], dict[str, Any]]:
        if self._arguments is None:
            self._arguments = self._batch.arguments(self._row)
        return self._arguments

    @property
    def timeout_us(self) -> int:
        """How long this attempt may take, in microseconds."""
        return int(self._batch.specs[self._batch.spec_of[self._row]]["timeout_us"])

    @property
    def cancelled(self) -> bool:
        """Shall this run end, because of a cancel or of its timeout? Ask now and then and return early: the kill follows."""
        return self._batch.cancelled(self._row)

    @property
    def checkpoint(self) -> Any:
        """The last value that an attempt of this run kept with `heartbeat(checkpoint=...)`; None when there is none."""
        data = self._batch.checkpoints.get(self._row)
        return None if data is None else frames.decode_value(data, self._batch.exts.decode)

    def heartbeat(self, progress: Any = "", checkpoint: Any = None) -> None:
        """Say that this run goes on (see `heartbeat_timeout`), with its progress as a text of at most 1,000 characters; an empty one
        leaves what was told before. At most ten a second are sent, others are dropped.

        `checkpoint` is a payload value of at most 16 KiB for the next attempt to go on from, as its `checkpoint`. Such a call is always
        sent and returns when the server has it on disk, a few milliseconds as a rule. It is forgotten when the run is over; a dead
        letter keeps it. PayloadError for what can't be kept; FencedError when this attempt no longer holds the run: stop then, another
        one may be at work.
        """
        data = None if checkpoint is None else frames.encode_value(checkpoint, "checkpoint", self._batch.exts)
        if data is not None and len(data) > CHECKPOINT_MAX:
            raise PayloadError(f"checkpoint of {len(data)} bytes: at most {CHECKPOINT_MAX} are kept; store it elsewhere and keep its key")
        self._batch.heartbeat(self._row, str(progress)[:PROGRESS_MAX], data)
        if data is not None:
            self._batch.checkpoints[self._row] = data


_current: ContextVar[tuple[Batch, int] | None] = ContextVar("wheelsched_run", default=None)
enter_run = _current.set  # (batch, row) before user code is entered, None after it; a tuple, because it is the hot path
entered_run = _current.get  # (batch, row), or None outside of runs


def current_run() -> RunContext:
    """The run that this code is part of. FailedPreconditionError outside of one."""
    entered = _current.get()
    if entered is None:
        raise FailedPreconditionError("current_run: this code is not part of a run; a worker calls it inside one")
    return RunContext(*entered)

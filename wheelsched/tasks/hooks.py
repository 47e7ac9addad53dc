"""User code around tasks: `@on_start` and `@on_stop` of an executor, `@middleware` around each run.

Like `@task` they mark plain functions and keep no registry; functions that are marked in the modules of a worker count, in the order of
these modules and within each in the order of its names.
"""

from __future__ import annotations

import inspect
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from ..model.errors import InvalidArgumentError
from .tasks import RunContext, enter_run
from .verdicts import error_result, trace_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from contextlib import ExitStack

    from .tasks import Batch

ATTRIBUTE: Final = "__wheelsched_hook__"

F = TypeVar("F", bound="Callable[..., Any]")


class Hooks(NamedTuple):
    """What the modules of a worker have marked; `around` makes context managers."""

    start: Sequence[Callable[[], Any]] = ()
    stop: Sequence[Callable[[], Any]] = ()
    around: Sequence[Callable[[RunContext], Any]] = ()


def on_start(function: F) -> F:
    """Call this function, without arguments, in each executor process of a worker before its first run: the place to open connections.

    It may be a coroutine function, which then shares the event loop of the coroutines among the tasks; mode thread, where each thread has
    a loop of its own, refuses it. If it raises, the process ends, and another one tries again, after a while that grows up to 30 s.
    """
    return _marked(function, "start")


def on_stop(function: F) -> F:
    """Call this function when an executor process ends in good order, after its last run: at a drain, a reload, a recycling. Those of a
    worker are called in reverse order, each whatever the others raise. It may be a coroutine function, as for `on_start`.

    All of them together have 10 s, then the process is ended (SIGTERM, SIGKILL 1 s later), and another one takes its place. After them it
    ends, within 2 s, whatever threads user code has left. Not called in a process that is killed, as at a timeout, and in one whose
    `on_start` failed. A server or worker that stops waits for these 10 s too, as long as its drain lasts.
    """
    return _marked(function, "stop")


def middleware(function: F) -> F:
    """Have this generator function around user code of each run: what is before its one `yield` runs before, the rest after.

        @middleware
        def traced(run):
            with tracer.start_as_current_span(run.task, context=extract(run.headers)):
                yield

    It gets what `current_run()` gives. What the run raises, it raises at the `yield`; one that catches it, and raises nothing, makes the
    run a success that returned nothing. What it raises itself fails the run, before the `yield` without user code. The first one is the
    outermost. Around a batch handler it is entered for each run of the call. It runs where the task does: around coroutines it may set
    context variables and must not block. A function that gives a context manager does as well. InvalidArgumentError for a coroutine
    function or an asynchronous generator.
    """
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise InvalidArgumentError(f"middleware {function.__qualname__}: a plain generator function is wanted, also around coroutines")
    return _marked(function, "around")


def _marked(function: F, kind: str) -> F:
    if not callable(function):
        raise InvalidArgumentError(f"a function is wanted, not {type(function).__name__}: write the decorator without brackets")
    setattr(function, ATTRIBUTE, kind)
    return function


def load_hooks(modules: Iterable[str]) -> Hooks:
    """Import modules and collect what is marked, each function once. What an import raises, it raises."""
    found: dict[str, list[Callable[..., Any]]] = {"start": [], "stop": [], "around": []}
    for module in modules:
        for value in vars(import_module(module)).values():
            kind = getattr(value, ATTRIBUTE, None) if inspect.isroutine(value) else None
            if kind in found and value not in found[kind]:
                found[kind].append(value)
    around = [contextmanager(made) if inspect.isgeneratorfunction(made) else made for made in found["around"]]
    return Hooks(found["start"], found["stop"], around)


def surround(stack: ExitStack, around: Sequence[Callable[[RunContext], Any]], batch: Batch, rows: Sequence[int]) -> None:
    """Enter the middleware of each of these rows, which are of one call; `stack` leaves it. What it raises, is raised."""
    if not around:
        return
    for row in rows:
        enter_run((batch, row))
        for made in around:
            stack.enter_context(made(RunContext(batch, row)))
    enter_run((batch, rows[0]))


def failure_of(function: Callable[[], Any], awaited: Callable[[Any], Any]) -> str:
    """Call a start or stop hook, whose coroutine `awaited` runs. Empty, or the traceback of what it raised; its name in the last line."""
    try:
        value = function()
        if inspect.iscoroutine(value):
            awaited(value)
    except BaseException as e:  # noqa: BLE001 - whatever user code raises is told by who called
        told = error_result(e, trace_of(e))
        return f"{told['traceback']}{function.__module__}.{function.__qualname__} failed: {type(e).__name__}: {told['message']}"
    return ""

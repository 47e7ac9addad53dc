"""The built-in tasks: which there are, and what the operator allows them. `command` and `http` have modules of their own."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from ..process.processes import W_DEAF
from ..tasks.tasks import Handler
from .command import command
from .surroundings import Surroundings

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..process.contract import Allowed
    from .runner import Runner

NOOP: Final = "wheelsched.noop"


def noop(*_: Any) -> None:
    """Do nothing, with any arguments; for benchmarks."""


def _deaf(runner: Runner, work: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call what can't heed a cancel, because it waits for others all the time: the pool doesn't ask it first."""
    words = runner.words
    words[W_DEAF] = 1
    try:
        return work(*args, **kwargs)
    finally:
        words[W_DEAF] = 0


def builtin_tasks(runner: Runner, allowed: Allowed, began: Surroundings | None = None) -> dict[str, Handler]:
    """The tasks that every worker has, and those that the operator allowed. Commands inherit what the worker `began` with (now, unless
    given).
    """
    found = {NOOP: Handler(NOOP, noop, {})}
    if allowed.commands:
        found["command"] = Handler("command", partial(command, runner, allowed, began or Surroundings()), {})
    if allowed.http:
        from .http import http  # noqa: PLC0415 - as above

        found["http"] = Handler("http", partial(_deaf, runner, partial(http, allowed)), {})
    return found

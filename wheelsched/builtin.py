"""The built-in tasks: which there are, and which the operator allowed. `command` and `http` have modules of their own."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from .builtin_command import command
from .builtin_http import http
from .tasks import Task

if TYPE_CHECKING:
    from .execution import Runner

NOOP: Final = "wheelsched.noop"


def noop(*_: Any) -> None:
    """Do nothing, with any arguments; for benchmarks."""


def builtin_tasks(runner: Runner, *, allow_commands: bool, allow_http: bool) -> dict[str, Task]:
    """The tasks that every worker has, and those that the operator allowed."""
    found = {NOOP: Task(NOOP, noop, {})}
    if allow_commands:
        found["command"] = Task("command", partial(command, runner), {})
    if allow_http:
        found["http"] = Task("http", http, {})
    return found

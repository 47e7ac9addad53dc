"""The built-in tasks: which there are, and what the operator allows them. `command` and `http` have modules of their own."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from .builtin_command import command
from .builtin_http import http
from .tasks import Task

if TYPE_CHECKING:
    from .execution import Runner

NOOP: Final = "wheelsched.noop"


@dataclass(frozen=True, slots=True)
class Allowed:
    """What the operator allows the built-in tasks; it travels to an executor as text. No secret is in it."""

    commands: bool = False
    http: bool = False
    env: tuple[str, ...] = ()  # names or globs of environment variables that commands get beside the usual ones
    socket: str = ""  # of the server, for commands that are clients too

    def to_text(self) -> str:
        """One line; what is as it is by default is left out."""
        return json.dumps({key: value for key, value in asdict(self).items() if value})

    @classmethod
    def from_text(cls, text: str) -> Allowed:
        """The same again."""
        values: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in json.loads(text).items()}
        return cls(**values)


def noop(*_: Any) -> None:
    """Do nothing, with any arguments; for benchmarks."""


def builtin_tasks(runner: Runner, allowed: Allowed) -> dict[str, Task]:
    """The tasks that every worker has, and those that the operator allowed."""
    found = {NOOP: Task(NOOP, noop, {})}
    if allowed.commands:
        found["command"] = Task("command", partial(command, runner, allowed), {})
    if allowed.http:
        found["http"] = Task("http", http, {})
    return found

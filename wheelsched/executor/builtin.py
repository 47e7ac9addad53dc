"""The built-in tasks: which there are, and what the operator allows them. `command` and `http` have modules of their own."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from ..process.processes import W_DEAF
from ..tasks.tasks import Task
from .command import command
from .surroundings import Surroundings

if TYPE_CHECKING:
    from collections.abc import Callable

    from .runner import Runner

NOOP: Final = "wheelsched.noop"


@dataclass(frozen=True, slots=True)
class Allowed:
    """What the operator allows the built-in tasks; it travels to an executor as text. No secret is in it."""

    commands: bool = False
    http: bool = False
    env: tuple[str, ...] = ()  # names or globs of environment variables that commands get beside the usual ones
    http_nets: tuple[str, ...] = ()  # networks that are not public and that `http` may connect to all the same
    http_secret_file: str = ""  # keys that requests are signed with; read at each request, so that a change needs no restart
    http_ca_file: str = ""  # certificates to trust beside the system's
    socket: str = ""  # of the server, for commands that are clients too

    def check(self) -> None:
        """ConfigError for networks and files that can't be used: better at a start than at the first request."""
        from .http import check_ca_file, read_secrets  # noqa: PLC0415 - http alone needs it, and executors start often
        from .network import networks  # noqa: PLC0415

        networks(self.http_nets)
        if self.http_secret_file:
            read_secrets(self.http_secret_file)
        if self.http_ca_file:
            check_ca_file(self.http_ca_file)

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


def _deaf(runner: Runner, work: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call what can't heed a cancel, because it waits for others all the time: the pool doesn't ask it first."""
    words = runner.words
    words[W_DEAF] = 1
    try:
        return work(*args, **kwargs)
    finally:
        words[W_DEAF] = 0


def builtin_tasks(runner: Runner, allowed: Allowed, began: Surroundings | None = None) -> dict[str, Task]:
    """The tasks that every worker has, and those that the operator allowed. Commands inherit what the worker `began` with (now, unless
    given).
    """
    found = {NOOP: Task(NOOP, noop, {})}
    if allowed.commands:
        found["command"] = Task("command", partial(command, runner, allowed, began or Surroundings()), {})
    if allowed.http:
        from .http import http  # noqa: PLC0415 - as above

        found["http"] = Task("http", partial(_deaf, runner, partial(http, allowed)), {})
    return found

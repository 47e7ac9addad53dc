"""What every verb shares: the global options before or after the verb, the client, and errors as exit codes."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import IO, TYPE_CHECKING, Any, Final

import click

from ..client.words import clean
from ..model.errors import RunFailed, RunTimeout, WheelschedError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..client.client import Client

EXIT_FAILED: Final = 1
EXIT_NOT_FOUND: Final = 3
EXIT_CONFLICT: Final = 4
EXIT_UNAVAILABLE: Final = 5
EXIT_RUN_FAILED: Final = 7
EXIT_TIMED_OUT: Final = 8
EXIT_CODES: Final = {
    "invalid_argument": 2, "not_found": 3, "already_exists": 4, "failed_precondition": 4, "fenced": 4, "unavailable": 5,
    "permission_denied": 6, "deadline_exceeded": EXIT_TIMED_OUT,
}


def exit_code(error: WheelschedError) -> int:
    """The exit code of an error that ends a verb."""
    if isinstance(error, RunFailed):
        return EXIT_RUN_FAILED
    if isinstance(error, RunTimeout):
        return EXIT_TIMED_OUT
    return EXIT_CODES.get(error.code, EXIT_FAILED)


class Failed(click.ClickException):
    """An error that ends the verb: its text on stderr, its code as the exit code."""

    def __init__(self, message: str, code: int = EXIT_FAILED) -> None:
        super().__init__(message)
        self.exit_code = code  # type: ignore[misc]  # click reads it from the instance

    def show(self, file: IO[Any] | None = None) -> None:  # noqa: ARG002 - the base class's face
        """One line, or a few, on stderr."""
        say(self.message)


@dataclass(slots=True)
class Shell:
    """The global options, and the client made from them."""

    socket: str | None = None
    output: str = "table"
    times: str = "job"
    timeout: str | None = None
    _client: Client | None = None

    @property
    def client(self) -> Client:
        """Connects at its first call; UnavailableError then, when no server is there."""
        if self._client is None:
            from ..client.client import Client  # noqa: PLC0415 - offline verbs need none

            if self.timeout is None:
                self._client = Client(self.socket)
            else:
                self._client = Client(self.socket, timeout=self.timeout, retry_for=self._patience_s)
            self._client.tell_waiting(lambda why: say(f"waiting for the next server, for {self.timeout or '30s'} (--timeout D): {why}"))
            click.get_current_context().find_root().call_on_close(self._client.close)
        return self._client

    @property
    def _patience_s(self) -> float:
        """For how long a verb waits for the next server."""
        from ..client.requests import RETRY_FOR_S_MAX  # noqa: PLC0415 - as above
        from ..model.nouns import US, parse_duration  # noqa: PLC0415

        return min(RETRY_FOR_S_MAX, parse_duration(self.timeout, "--timeout") / US)

    @property
    def now(self) -> datetime:
        """The server's time, as far as it is known: its clock may be set off from this machine's. For "in 3m"."""
        now = datetime.now(UTC)
        return now if self._client is None else now + self._client.clock_offset

    @property
    def table(self) -> bool:
        """Is the output for people?"""
        return self.output in ("table", "wide")

    @property
    def wide(self) -> bool:
        """Are all columns wanted, whatever the terminal's width?"""
        return self.output == "wide"


def shell() -> Shell:
    """The shell of the verb that runs."""
    return click.get_current_context().find_root().ensure_object(Shell)


def say(message: str) -> None:
    """A message for the person at the terminal; never data."""
    click.echo("wheelsched: " + "\n".join(clean(line) for line in message.split("\n")), err=True)


def _store(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    if value is not None:
        setattr(ctx.find_root().ensure_object(Shell), str(param.name), value)


_SOCKET: Final = ("The server's socket (WHEELSCHED_SOCKET, else wheelsched/wheelsched.sock in $XDG_RUNTIME_DIR,"
                  " else ~/.wheelsched/wheelsched.sock; what asks a server looks in /run/wheelsched, too).")


def _globals() -> list[click.Parameter]:
    shared: dict[str, Any] = {"callback": _store, "expose_value": False, "is_eager": True, "default": None}
    return [
        click.Option(["--socket"], metavar="PATH", help=_SOCKET, **shared),
        click.Option(["-o", "--output", "output"], type=click.Choice(["table", "wide", "json", "jsonl"]),
                     help="Form of the output; wide: tables with all columns.", **shared),
        click.Option(["--time", "times"], type=click.Choice(["job", "utc", "local"]), help="Zone in which tables show times.", **shared),
        click.Option(["--timeout"], metavar="D", help="How long the server has for one answer (1m).", **shared),
    ]


def _with_globals(own: list[click.Parameter]) -> list[click.Parameter]:
    """The parameters of a verb and the global ones. A verb with a --timeout of its own, a run's, takes the global one before the verb."""
    taken = {name for param in own for name in param.opts}
    return [*own, *(param for param in _globals() if not taken & set(param.opts))]


_ELSEWHERE: Final = {  # words of other tools
    "help": "--help", "version": "--version", "jobs": "job list", "ls": "job list", "list": "job list", "runs": "run list",
    "ps": "run list --state running", "logs": "run logs RUN", "log": "run logs RUN", "rm": "job delete NAME", "delete": "job delete NAME",
    "put": "job put NAME TASK", "add": "job put NAME TASK", "apply": "job apply -f FILE", "import": "job import", "pause": "job pause NAME",
    "resume": "job resume NAME", "trigger": "job trigger NAME", "next": "job next NAME", "why": "job why NAME TIME", "start": "serve",
    "queues": "queue list", "cancel": "run cancel RUN", "reload": "admin reload", "verify": "admin verify DIR", "info": "status",
}
_LONG: Final = 1_000  # characters of a verb's first sentence: never cut
_SETTINGS: Final = {"help_option_names": ["-h", "--help"], "max_content_width": 110}


class Verb(click.Command):
    """A verb that also takes the global options."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs["params"] = _with_globals(kwargs.get("params") or [])
        kwargs["context_settings"] = {**_SETTINGS, **(kwargs.get("context_settings") or {})}
        super().__init__(*args, **kwargs)


class Verbs(click.Group):
    """A group of verbs."""

    command_class = Verb
    group_class = type

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list of verbs, each with the whole of its first sentence."""
        found = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Verbs"):
            formatter.write_dl([(name, verb.get_short_help_str(_LONG)) for name, verb in found if verb is not None])

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs["params"] = _with_globals(kwargs.get("params") or [])
        kwargs["context_settings"] = {**_SETTINGS, **(kwargs.get("context_settings") or {})}
        super().__init__(*args, **kwargs)


class Root(Verbs):
    """The whole tree. A verb's module is loaded when the verb is used, so that each starts fast."""

    def __init__(self, *args: Any, verbs: dict[str, tuple[str, str]] | None = None, **kwargs: Any) -> None:
        """`verbs`: name -> (module and attribute, one line of help)."""
        super().__init__(*args, **kwargs)
        self._verbs = verbs or {}

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's face
        """In the order of the tree."""
        return list(self._verbs)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's face
        """Load a verb."""
        if cmd_name not in self._verbs:
            return None
        from importlib import import_module  # noqa: PLC0415 - used here alone

        module, _, attribute = self._verbs[cmd_name][0].partition(":")
        command = getattr(import_module(f"{__package__}.{module}"), attribute)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the verb. Usage errors; a word that other tools use is answered with ours."""
        if args and args[0] not in self._verbs and args[0] in _ELSEWHERE:
            raise click.UsageError(f"there is no verb {args[0]!r}: {ctx.info_name} {_ELSEWHERE[args[0]]}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's face
        """The list of verbs, without loading any."""
        with formatter.section("Verbs"):
            formatter.write_dl([(name, text) for name, (_, text) in self._verbs.items()])

    def invoke(self, ctx: click.Context) -> Any:
        """Run a verb; our own errors become exit codes."""
        try:
            return super().invoke(ctx)
        except WheelschedError as e:
            raise Failed(str(e), exit_code(e)) from e
        except UnicodeEncodeError as e:
            raise Failed(f"a text is not UTF-8: {e.object[:60]!r}", click.UsageError.exit_code) from e
        except BrokenPipeError:
            raise  # whoever read has enough: click ends without a word
        except OSError as e:
            raise Failed(f"{os.fsdecode(e.filename)}: {e.strerror}" if e.filename is not None else str(e)) from e


def words(values: Sequence[str]) -> str:
    """A list for a sentence."""
    return ", ".join(values)

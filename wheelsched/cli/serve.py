"""`wheelsched serve`: the configuration from file, environment and flags, and the server."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Any, Final

import click

from ..client.places import SCHEME, default_socket_path
from ..model.errors import ConfigError
from ..model.nouns import MODES, counted
from ..server.config import Config, load
from .output import show_one
from .shell import Failed, Verb, shell

EXIT_CONFIG: Final = 78
_ENVIRONMENT: Final = {
    "data": str, "workers": int, "mode": str, "concurrency": int, "max_runs": int, "max_rss": str,
    "tasks": list, "allow_commands": bool, "allow_http": bool,
    "allow_env": list, "redact": list, "hold": bool, "http_allow_net": list, "http_secret_file": str, "http_ca_file": str,
    "clock_offset": str, "clock_check": str, "lease": str, "drain": str,
    "sync_timeout": str, "start_timeout": str, "on_dead": str, "on_missed": str,
}
_WORDS: Final = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}


def default_data_path() -> str:
    """~/.wheelsched/data. ConfigError without a home."""
    try:
        return str(Path("~/.wheelsched/data").expanduser())
    except RuntimeError:
        raise ConfigError("this user has no home directory for the default data directory: give one (--data, WHEELSCHED_DATA)") from None


def _defaults(layers: list[dict[str, Any]]) -> dict[str, Any]:
    """Of what no layer has: who gives both paths needs no home."""
    paths = {"data": default_data_path, "socket": default_socket_path}
    return {key: path() for key, path in paths.items() if all(layer.get(key) is None for layer in layers)}


def _socket() -> str | None:
    """What --socket or the environment says; None: neither does."""
    given = shell().socket or os.environ.get("WHEELSCHED_SOCKET")
    return given.removeprefix(SCHEME) if given else None


def from_file(path: str) -> dict[str, Any]:
    """The table of a TOML file. ConfigError when it can't be read."""
    try:
        with Path(path).open("rb") as file:
            return tomllib.load(file)
    except OSError as e:
        raise ConfigError(f"configuration file {path}: {e.strerror}") from e
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as e:
        raise ConfigError(f"configuration file {path}: {e}") from e


def from_environment() -> dict[str, Any]:
    """The values of WHEELSCHED_DATA, _WORKERS, _TASKS (comma-separated), _ALLOW_COMMANDS and so on. ConfigError."""
    out: dict[str, Any] = {}
    for name, kind in _ENVIRONMENT.items():
        variable = f"WHEELSCHED_{name.upper()}"
        text = os.environ.get(variable)
        if not text:
            continue
        value: Any = text
        if kind is int:
            value = int(text) if text.isascii() and text.isdigit() else None
        elif kind is bool:
            value = _WORDS.get(text.lower())
        elif kind is list:
            value = [t for t in text.split(",") if t]
        if value is None:
            raise ConfigError(f"{variable}: {text[:60]!r} is no {'whole number' if kind is int else 'true or false'}")
        out[name] = value
    return out


def _granted(grants: tuple[str, ...]) -> dict[str, list[str]] | None:
    """Roles of `--grant command=ops,%wheel`. ConfigError."""
    found: dict[str, list[str]] = {}
    for text in grants:
        role, sign, names = text.partition("=")
        if not sign or not names:
            raise ConfigError(f"--grant {text[:60]!r}: ROLE=WHO is wanted, such as command=ops,%wheel")
        found.setdefault(role, []).extend(name for name in names.split(",") if name)
    return found or None


def _check(config: Config) -> None:
    """Say what a start would find. Exit 78 when it would not come up."""
    from ..server.check import check  # noqa: PLC0415 - the store's and the workers' rules, which no other verb loads

    found = check(config)
    if found.faults:
        raise Failed("\n".join(found.faults), EXIT_CONFIG)
    told = ", ".join(found.tasks) or "none but the built-in ones"
    result = {"data": config.data, "socket": config.socket, "workers": config.workers, "tasks": found.tasks}
    workers = counted(config.workers, "worker")
    lines = [f"a server with this configuration would start: data {config.data}, socket {config.socket}, {workers}", f"tasks: {told}"]
    show_one(shell(), result, lambda: lines)


@click.command(cls=Verb)
@click.option("--data", metavar="DIR", help="Data directory (~/.wheelsched/data). It does not move the socket: see --socket.")
@click.option("--tasks", multiple=True, metavar="MODULE", help="A Python module with tasks; may be repeated.")
@click.option("--workers", type=int, metavar="N", help="Worker processes of the pool (2).")
@click.option("--mode", type=click.Choice(MODES), help="A worker runs one task at a time (process), or several in threads or coroutines.")
@click.option("--concurrency", type=int, metavar="N", help="Runs at a time in each worker, in the modes thread and async (1).")
@click.option("--max-runs", type=int, metavar="N", help="Replace a worker process after so many runs, between two of them.")
@click.option("--max-rss", metavar="SIZE", help="Replace it when its memory has grown beyond this: 512m, 2g.")
@click.option("--config", "config_file", metavar="FILE", help="A TOML file with the same names; flags and environment win.")
@click.option("--allow-commands", is_flag=True, default=None, help="Allow the built-in task `command`.")
@click.option("--allow-http", is_flag=True, default=None, help="Allow the built-in task `http`.")
@click.option("--allow-env", multiple=True, metavar="NAME", help="A variable that commands get of this environment; PG* too; repeat it.")
@click.option("--grant", multiple=True, metavar="ROLE=WHO,...", help="Who has the role command, http, admin or worker: users, %groups.")
@click.option("--redact", multiple=True, metavar="FIELD", help="An argument, or key in one, of any job, not shown to anybody; repeat it.")
@click.option("--http-allow-net", multiple=True, metavar="NET", help="A network, not public, that `http` may reach: 10.0.0.0/8; repeat it.")
@click.option("--http-secret-file", metavar="FILE", help="Keys that `http` signs with: whsec_... one a line, newest first.")
@click.option("--http-ca-file", metavar="FILE", help="Certificates that `http` trusts beside the system's.")
@click.option("--on-dead", metavar="JOB", help="Trigger this job for each dead run of jobs and enqueues that name none of their own.")
@click.option("--on-missed", metavar="JOB", help="Trigger this job for missed and late occurrences of jobs that name none of their own.")
@click.option("--hold", is_flag=True, default=None, help="Start with all triggering held, until `admin release`.")
@click.option("--lease", metavar="D", help="How long a worker may be silent before its runs go to another one (10s).")
@click.option("--sync-timeout", metavar="D", help="How long the disk may be silent before the server ends with exit code 70 (30s).")
@click.option("--drain", metavar="D", help="How long what runs has to end after the first signal to stop (30s).")
@click.option("--start-timeout", metavar="D", help="How long a worker process has to come up, imports and on_start included (1m).")
@click.option("--clock-offset", metavar="D", help="Shift the wall clock, for tests and benchmarks.")
@click.option("--check", is_flag=True, help="Start nothing: say what a start would stumble over (exit 78), import the tasks included.")
@click.option("--clock-check", metavar="D", help="Look at the clock at least this often (0: trust the kernel's report of steps).")
def serve(config_file: str | None, grant: tuple[str, ...], check: bool, **flags: Any) -> None:
    """Run the server, until a signal stops it.

    The first signal drains: what runs has 30 s (--drain) to end, then it is interrupted and tried again. The second stops at once.

    Exit codes: 0 stopped, 65 the data directory is damaged, 70 the storage failed, 75 the data directory is locked, 78 bad configuration.
    """

    def read() -> Config:
        layers = [
            {} if config_file is None else from_file(config_file),
            from_environment(),
            {key: (value or None) if isinstance(value, tuple) else value for key, value in flags.items()},
            {"roles": _granted(grant)},
            {"socket": _socket()},
        ]
        return load(_defaults(layers), *layers)

    try:
        config = read()
    except ConfigError as e:
        raise Failed(e.message, EXIT_CONFIG) from e
    if check:
        _check(config)
        return
    from ..server.boot import serve as run  # noqa: PLC0415 - the engine and the store, which no other verb loads

    click.get_current_context().exit(run(config, read))

"""`serve --check`: what a start would stumble over, all of it, without a start. Nothing is changed, nothing is locked."""

from __future__ import annotations

import grp
import json
import os
import stat
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ..journal.files import check_owner, in_words
from ..model.errors import ConfigError
from ..model.nouns import US, format_duration
from ..process.contract import Allowed
from ..process.launch import module_argv, named_folder
from .grants import Grants

if TYPE_CHECKING:
    from collections.abc import Callable

    from .config import Config


class Checked(NamedTuple):
    """What a start would find."""

    faults: list[str]
    tasks: list[str]  # that its workers would serve


def allowed_of(config: Config) -> Allowed:
    """What built-in tasks may do."""
    return Allowed(
        commands=config.allow_commands, http=config.allow_http, env=config.allow_env, http_nets=config.http_allow_net,
        http_secret_file=config.http_secret_file, http_ca_file=config.http_ca_file, socket=str(Path(config.socket).absolute()),
    )


def check(config: Config) -> Checked:
    """Look at everything; nothing is raised for what is wrong."""
    allowed = allowed_of(config)
    parts: list[Callable[[], Any]] = [
        lambda: Allowed(http_nets=allowed.http_nets).check(), lambda: Allowed(http_secret_file=allowed.http_secret_file).check(),
        lambda: Allowed(http_ca_file=allowed.http_ca_file).check(),
        *(lambda role=role, names=names: Grants({role: names}, shared=config.shared) for role, names in config.roles),
        lambda: _data(Path(config.data)), lambda: _socket(Path(config.socket)), lambda: _group(config.socket_group),
    ]
    faults = []
    for part in parts:
        try:
            part()
        except ConfigError as e:
            faults.append(e.message)
        except OSError as e:
            faults.append(f"{e.filename or 'data'}: {in_words(e)}")
    tasks, more = _tasks(config)
    return Checked([*faults, *more], tasks)


def _data(path: Path) -> None:
    """It is there and ours, or can be made."""
    if path.exists():
        info = path.stat()
        if not stat.S_ISDIR(info.st_mode):
            raise ConfigError(f"data {path}: it is no directory")
        check_owner(path, info)
        if not os.access(path, os.W_OK | os.X_OK):
            raise ConfigError(f"data {path}: this user may not write there")
        return
    _can_make(path.absolute(), f"data {path}")


def _can_make(path: Path, what: str) -> None:
    above = next(folder for folder in path.parents if folder.exists())
    if not above.is_dir():
        raise ConfigError(f"{what}: {above} is no directory")
    if not os.access(above, os.W_OK | os.X_OK):
        raise ConfigError(f"{what}: it is not there, and this user may not write in {above}")


def _socket(path: Path) -> None:
    folder = path.absolute().parent
    if not folder.exists():
        if not folder.parent.exists():
            raise ConfigError(f"socket {path}: the folder {folder.parent} is not there: make it, or choose another path")
        _can_make(folder, f"socket {path}")
    elif not folder.is_dir():
        raise ConfigError(f"socket {path}: {folder} is no directory; choose another path")
    elif not os.access(folder, os.W_OK | os.X_OK):
        raise ConfigError(f"socket {path}: this user may not write in {folder}")
    if path.exists() and not path.is_socket():
        raise ConfigError(f"socket {path}: there is something else than a socket; remove it or choose another path")


def _group(name: str | None) -> None:
    if name is None:
        return
    try:
        number = grp.getgrnam(name).gr_gid
    except KeyError:
        raise ConfigError(f"socket_group: there is no group {name!r} on this machine") from None
    if os.geteuid() and number not in os.getgroups():
        raise ConfigError(f"socket_group: this user is no member of {name}, so it can't give the socket to it")


def _tasks(config: Config) -> tuple[list[str], list[str]]:
    """(tasks, faults) of the task modules, imported in a process as a worker would."""
    if not config.tasks:
        return [], []
    folder = named_folder()
    try:
        done = subprocess.run(  # noqa: S603 - our own interpreter
            [*module_argv("wheelsched.executor.tries"), *config.tasks], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=False,
            timeout=config.start_timeout_us / US, cwd=folder if Path(folder).is_dir() else None,
        )
        told = json.loads(done.stdout)
    except subprocess.TimeoutExpired:
        return [], [f"tasks: the import of {', '.join(config.tasks)} has not ended after {format_duration(config.start_timeout_us)}"]
    except ValueError:
        return [], [f"tasks: the import of {', '.join(config.tasks)} has ended its process (exit code {done.returncode})"]
    return told["tasks"], told["faults"]

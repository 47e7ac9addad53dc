"""The built-in task `command`: a program without a shell, in a process group of its own."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING, Final

from . import process
from .errors import PayloadError
from .tasks import RunContext, current_run

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .execution import Runner

_ENVIRONMENT: Final = ("PATH", "HOME", "LANG", "LANGUAGE", "TZ", "USER", "LOGNAME", "SHELL", "TMPDIR")


class CommandFailed(Exception):  # noqa: N818 - a name that reads well in a run's error
    """A command ended with a code that is not among its success codes, or by a signal."""

    __module__ = "wheelsched"  # what a run's error and a `not_on` say, wherever this class lives


def identity(run: RunContext) -> dict[str, str]:
    """What a command learns of its run, as environment variables."""
    return {
        "WHEELSCHED_RUN_ID": run.id, "WHEELSCHED_JOB": run.job, "WHEELSCHED_SCHEDULED_AT": run.scheduled_at.isoformat(),
        "WHEELSCHED_ATTEMPT": str(run.attempt), "WHEELSCHED_TOKEN": str(run.token),
    }


def command(
    runner: Runner, argv: list[str], cwd: str | None = None, env: dict[str, str] | None = None, user: str | None = None,
    success_codes: Iterable[int] = (0,),
) -> int:
    """Run a program without a shell, in a process group of its own; its exit code. CommandFailed for other codes.

    The environment is an allow-list, `env` and WHEELSCHED_RUN_ID, _JOB, _SCHEDULED_AT, _ATTEMPT, _TOKEN.
    """
    if not isinstance(argv, list) or not argv or not all(isinstance(a, str) for a in argv):
        raise PayloadError("command: argv is a list of texts, such as ['backup', '--all']; there is no shell")
    run = current_run()
    passed = {k: v for k, v in os.environ.items() if k in _ENVIRONMENT or k.startswith("LC_")}
    code = _supervised(runner, argv, cwd=cwd, env={**passed, **(env or {}), **identity(run)}, user=user)
    if code not in success_codes:
        raise CommandFailed(f"{argv[0]}: killed by signal {-code}" if code < 0 else f"{argv[0]}: exit code {code}")
    return int(code)


def _supervised(runner: Runner, argv: list[str], *, cwd: str | None, env: dict[str, str], user: str | None) -> int:
    """Run a program in a group of its own that the started file names; its exit code."""
    words, token = runner.words, current_run().token
    words[process.W_COMMAND] = token  # before there is a child: a later start then looks for its mark
    try:
        proc = subprocess.Popen(  # noqa: S603 - no shell; the operator allowed commands
            argv, cwd=cwd, env={**env, process.MARK: runner.file.mark}, user=user, process_group=0, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0,
        )
        words[process.W_COMMAND_BEGUN] = process.begun_ticks(proc.pid)
        words[process.W_COMMAND_PGID] = proc.pid
        return process.supervise(proc, *runner.outputs.captures, lambda: runner.told_to_end(token), words[process.W_GRACE_US])
    finally:
        words[process.W_COMMAND_PGID] = 0
        words[process.W_COMMAND] = 0

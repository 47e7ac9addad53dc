"""The built-in task `command`: a program without a shell, in a process group of its own.

A program that can't be started as it was asked for (no such program or folder, no right to it, an unknown user) is a failure that no
further attempt mends: NotRetried. What it writes goes into the run's output while it runs.
"""

from __future__ import annotations

import errno
import io
import os
import pwd
import subprocess
from contextlib import closing
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final

from ..process import processes
from ..tasks.tasks import RunContext, current_run
from ..tasks.verdicts import NotRetried
from .causes import as_json, cause_of, environment
from .env_files import variables

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ..process.contract import Allowed
    from .runner import Runner
    from .surroundings import Surroundings

INHERITED: Final = ("PATH", "HOME", "LANG", "LANGUAGE", "LC_*", "TZ", "USER", "LOGNAME", "SHELL", "TMPDIR")
_HOPELESS: Final = frozenset({
    errno.ENOENT, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.ENOEXEC, errno.E2BIG, errno.ELOOP, errno.ENAMETOOLONG, errno.EINVAL,
})


class CommandFailed(Exception):  # noqa: N818 - a name that reads well in a run's error
    """A command ended with a code that is not among its success codes, or by a signal."""

    __module__ = "wheelsched"  # what a run's error and a `not_on` say, wherever this class lives


class CommandRefused(NotRetried):
    """A command that can't be started as asked, or that ended with one of its fatal codes: it is not retried."""

    __module__ = "wheelsched"


def identity(run: RunContext) -> dict[str, str]:
    """What a command learns of its run, as environment variables."""
    return {
        "WHEELSCHED_RUN_ID": run.id, "WHEELSCHED_JOB": run.job, "WHEELSCHED_SCHEDULED_AT": run.scheduled_at.isoformat(),
        "WHEELSCHED_ATTEMPT": str(run.attempt), "WHEELSCHED_TOKEN": str(run.token), "WHEELSCHED_MISSED": str(run.missed),
    }


def command(
    runner: Runner, allowed: Allowed, began: Surroundings, argv: list[str], cwd: str | None = None, env: dict[str, str] | None = None,
    user: str | None = None, success_codes: Iterable[int] = (0,), fatal_codes: Iterable[int] = (), stdin: str | bytes | None = None,
    env_file: Iterable[str] = (),
) -> int:
    """Run a program without a shell, in a process group of its own; its exit code. See `Command`. What Python tasks have done to
    the process is nothing to it: it inherits what the worker `began` with. What caused the run it is told by its environment, and at its
    standard input unless there is a `stdin`.

    CommandFailed for codes that are not among `success_codes`, CommandRefused for `fatal_codes` and for what can't be started.
    """
    _check(argv, cwd, env, stdin, env_file)
    account = None if user is None else _account(user)
    names = (*INHERITED, *allowed.env)
    passed = {k: v for k, v in began.environ.items() if any(fnmatchcase(k, name) for name in names)}
    if allowed.socket:
        passed["WHEELSCHED_SOCKET"] = allowed.socket
    switch: dict[str, Any] = {}
    if account is not None:
        passed |= {"HOME": account.pw_dir, "USER": account.pw_name, "LOGNAME": account.pw_name, "SHELL": account.pw_shell or "/bin/sh"}
        cwd = cwd or (account.pw_dir if os.path.isdir(account.pw_dir) else "/")  # noqa: PTH112 - the path of a text
        if account.pw_uid != os.geteuid():
            groups = os.getgrouplist(account.pw_name, account.pw_gid)
            switch = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": groups}
    cause = cause_of(current_run())
    filed = variables(env_file, {os.geteuid(), *(() if account is None else (account.pw_uid,))})
    told = {**passed, **filed, **(env or {}), **identity(current_run()), **environment(cause)}
    text = as_json(cause) if stdin is None else stdin.encode() if isinstance(stdin, str) else stdin
    code = _supervised(runner, began, argv, cwd, told, text, switch)
    if code in success_codes:
        return int(code)
    how = f"{argv[0]}: killed by signal {-code}" if code < 0 else f"{argv[0]}: exit code {code}"
    if code in fatal_codes:
        raise CommandRefused(f"{how}, which is one of the fatal codes: not retried")
    raise CommandFailed(how)


def _check(argv: Any, cwd: Any, env: Any, stdin: Any, env_file: Any) -> None:
    """CommandRefused for what no program can be started with; a client of ours refuses most of it earlier."""
    if not isinstance(argv, list) or not argv or not argv[0] or not all(isinstance(a, str) and "\0" not in a for a in argv):
        raise CommandRefused("command: argv is a list of texts without NUL, such as ['backup', '--all']; there is no shell")
    if cwd is not None and (not isinstance(cwd, str) or not cwd or "\0" in cwd):
        raise CommandRefused("command: cwd is the path of a folder")
    for name, value in (env or {}).items():
        if not isinstance(name, str) or not name or "=" in name or "\0" in name or not isinstance(value, str) or "\0" in value:
            raise CommandRefused(f"command: env is a map of texts; the variable {str(name)[:100]!r} can't be set so")
    if not isinstance(stdin, str | bytes | None):
        raise CommandRefused("command: stdin is text or bytes")
    if not isinstance(env_file, list | tuple) or not all(isinstance(x, str) and x.removeprefix("-").startswith("/") for x in env_file):
        raise CommandRefused("command: env_file is a list of absolute paths")


def _account(user: str) -> pwd.struct_passwd:
    """The entry of the user to run as. CommandRefused when there is none, or when this process may not become that user."""
    try:
        account = pwd.getpwuid(int(user)) if user.isdigit() else pwd.getpwnam(user)
    except (KeyError, OverflowError):
        raise CommandRefused(f"command: there is no user {user!r} on this machine") from None
    if os.geteuid() not in (0, account.pw_uid):
        raise CommandRefused(
            f"command: user {user!r} is wanted, but this worker runs as uid {os.geteuid()}, and only root may change the user; run a worker"
            f" as {account.pw_name}, or leave `user` out"
        )
    return account


def _supervised(
    runner: Runner, began: Surroundings, argv: list[str], cwd: str | None, env: Mapping[str, str], text: bytes | None,
    switch: dict[str, Any],
) -> int:
    """Run a program in a group of its own that the started file names; its exit code."""
    words, token = runner.words, current_run().token
    words[processes.W_COMMAND] = token  # before there is a child: a later start then looks for its mark
    try:
        folder = began.folder_for(cwd)
        try:
            with began.first_signals(), closing(_input(text)) as source:
                proc = subprocess.Popen(  # noqa: S603 - no shell; the operator allowed commands
                    argv, cwd=folder, umask=began.first_umask, env={**env, processes.MARK: runner.file.mark}, process_group=0,
                    stdin=source, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0, **switch,
                )
        except OSError as e:
            raise _not_started(e, argv, cwd or "of the worker", folder) from e
        words[processes.W_COMMAND_BEGUN] = processes.begun_ticks(proc.pid)
        words[processes.W_COMMAND_PGID] = proc.pid
        reap = subprocess.Popen.wait if runner.meter is None else runner.meter.reap
        code = processes.supervise(proc, *runner.outputs.captures, lambda: runner.told_to_end(token), words[processes.W_GRACE_US], reap)
        if runner.told_to_end(token):
            processes.kill_command(token, runner.file.mark)
        return code
    finally:
        words[processes.W_COMMAND_PGID] = 0
        words[processes.W_COMMAND] = 0


def _input(text: bytes | None) -> io.FileIO:
    """What a program reads: a file of its own in memory, which nobody has to write to meanwhile; for no text, nothing."""
    if text is None:
        return io.FileIO(os.devnull)
    file = io.FileIO(os.memfd_create("stdin", os.MFD_CLOEXEC), "r+")
    left = memoryview(text)
    while left:
        left = left[file.write(left) :]
    file.seek(0)
    return file


def _not_started(error: OSError, argv: list[str], cwd: str, folder: str | None) -> Exception:
    """What to raise: CommandRefused, or CommandFailed for what may pass (no memory, no process, a program being written)."""
    why = error.strerror or str(error)
    if folder is not None and error.filename == folder and folder != argv[0]:
        text = f"{argv[0]}: the working directory {cwd} can't be entered: {why}"
    elif error.errno == errno.ENOENT:
        place = "" if "/" in argv[0] else " on the PATH of the worker"
        text = f"{argv[0]}: there is no such program{place} (or, of a script, its interpreter)"
    elif error.errno == errno.ENOEXEC:
        text = f"{argv[0]}: it is no program that this machine can run: a script begins with a line such as #!/bin/sh"
    else:
        text = f"{argv[0]}: it can't be started: {why}"
    return CommandRefused(text) if error.errno in _HOPELESS else CommandFailed(text)

"""One executor process made, with all that belongs to it, or nothing left of the attempt."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from . import asked, processes
from .started import SUFFIX, SeenFile
from .starts import CanNotStartError, why_not

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .contract import Allowed

_ROOT: Final = str(Path(__file__).resolve().parents[2])


def module_argv(module: str) -> list[str]:
    """As `python -m MODULE`, and the package is found wherever this process has found it; the working directory comes first."""
    code = ("import sys; root = sys.argv.pop(1); root in sys.path or sys.path.append(root); "
            f"from {module} import main; sys.exit(main(sys.argv[1:]))")
    return [sys.executable, "-c", code, _ROOT]


def named_folder() -> str:
    """The working folder by the name that it was entered by. `current` of a deployment is a link: after the next one it leads elsewhere,
    and the folder itself is the old one still.
    """
    named = os.environ.get("PWD", "")
    try:
        return named if named and Path(named).samefile(".") else str(Path.cwd())
    except OSError:
        return ""  # it is gone


def told_folder(named: str) -> str:
    """A folder that code is imported from, in words: with what it leads to, if it is a link."""
    real = os.path.realpath(named)
    return named if real == named else f"{named}, which is {real}"


class Launched(NamedTuple):
    """A process, the caller's end of its socket, its file, and a descriptor that is readable when it has ended.

    `outputs`: the reading ends of the pipes that are its descriptors 1 and 2. They are the executor's to read while it lives.
    """

    proc: subprocess.Popen[bytes]
    sock: socket.socket
    file: SeenFile
    pidfd: int
    outputs: list[int]
    asked: socket.socket  # our end of what its stacks are asked over


class Launcher:
    """Makes the processes of one pool, all alike."""

    def __init__(
        self, folder: Path, modules: Sequence[str], allowed: Allowed, *, mode: str, wear: str, places: int, generation: int, boot_id: str,
        grace_us: int,
    ) -> None:
        """`places`: runs at a time in each; 0 for one. `wear`: see `wear.Wear`."""
        self._folder = folder
        self._modules = list(modules)
        self._argv = [allowed.to_text(), mode, wear]
        self._places = places
        self._generation = generation
        self._boot_id = boot_id
        self._grace_us = grace_us
        self.code = named_folder()  # executors import from there, by its name

    def launch(self, worker: int, said: str) -> Launched:
        """A process for this worker number; `said`: see `Starts`. CanNotStartError, and then nothing of it is left."""
        path = self._folder / f"{self._generation}-{worker}{SUFFIX}"
        try:
            with ExitStack() as undo:
                made = self._make(worker, path, said, undo)
                undo.pop_all()
                return made
        except OSError as e:
            raise CanNotStartError(f"worker {worker} can't be started: {why_not(e, str(path))}") from e

    def _make(self, worker: int, path: Path, said: str, undo: ExitStack) -> Launched:
        path.unlink(missing_ok=True)
        undo.callback(path.unlink, missing_ok=True)
        self._write(worker, path)
        file = SeenFile(path)
        undo.callback(file.close)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        undo.callback(ours.close)
        asking, asked_there = asked.pair()
        undo.callback(asking.close)
        with theirs, asked_there, ExitStack() as passed:
            outputs, pipes = self._pipes(undo, passed)
            pipes.append(asked_there.fileno())
            argv = [*module_argv("wheelsched.executor.main"), str(theirs.fileno()), file.path, str(os.getpid()), *self._argv, said]
            proc = subprocess.Popen(  # noqa: S603 - our own interpreter
                [*argv, ",".join(map(str, pipes)), *self._modules], pass_fds=[theirs.fileno(), *pipes], stdin=subprocess.DEVNULL,
                start_new_session=True, env={**os.environ, processes.MARK: file.mark}, cwd=self.code if Path(self.code).is_dir() else None,
            )
        undo.callback(_end, proc)
        file.put(processes.W_BEGUN, processes.begun_ticks(proc.pid))
        file.put(processes.W_PGID, proc.pid)
        file.put(processes.W_PID, proc.pid)
        return Launched(proc, ours, file, os.pidfd_open(proc.pid), outputs, asking)

    def _pipes(self, undo: ExitStack, passed: ExitStack) -> tuple[list[int], list[int]]:
        """(the reading ends of the pipes for descriptors 1 and 2, what the executor gets of them: of each the reading and the writing end).

        The reading ends stay open here too: what an executor wrote last can be read when it is gone.
        """
        outputs: list[int] = []
        pipes: list[int] = []
        for _ in range(2):
            read, write = os.pipe2(os.O_CLOEXEC)
            undo.callback(os.close, read)
            passed.callback(os.close, write)
            os.set_blocking(read, False)
            outputs.append(read)
            pipes += [read, write]
        return outputs, pipes

    def _write(self, worker: int, path: Path) -> None:
        """The started file, complete before there is a process."""
        file = processes.StartedFile(path, create=True, places=self._places)
        file.words[processes.W_GENERATION] = self._generation
        file.words[processes.W_WORKER] = worker
        file.words[processes.W_MARK] = secrets.randbits(63)
        for words in file.places:
            words[processes.W_GRACE_US] = self._grace_us
        file.boot_id = self._boot_id
        file.close()


def _end(proc: subprocess.Popen[bytes]) -> None:
    processes.signal_group(proc.pid, signal.SIGKILL)
    proc.wait()

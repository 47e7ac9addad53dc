"""Children of `os.fork()` in user code: each is over where the user code is over that it was made in.

Such a child has the executor's memory, and would go on as a second executor: run the rest of the batch again under the same tokens, and
share the socket with its parent. Children that end by themselves (`os._exit`, an exec, those of multiprocessing) meet only the hook: it
closes the socket, and takes from the child what it could write of its parent's bookkeeping. No run pays for this: the hook changes what
the child's copy of the loops meets next.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NoReturn, Protocol

from ..model.errors import FailedPreconditionError
from ..tasks.verdicts import error_result, trace_of
from .runner import Runner

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterable

    from ..process.processes import StartedFile
    from .runner import Entered, Work

EXIT_RAISED: Final = 1
NO_LOOP: Final = "wheelsched: executor: a process forked in a coroutine can't go on in its parent's event loop: ended where it awaits\n"

_known: list[int] = []  # the process that is the executor


def leave(error: BaseException | None = None) -> NoReturn:
    """End this child: code 0; what a SystemExit says; or 1, with the traceback on stderr, when it raised anything else."""
    if error is None:
        os._exit(0)
    if type(error) is SystemExit and (error.code is None or type(error.code) is int):
        os._exit((error.code or 0) & 0xFF)
    _fail(error_result(error, trace_of(error))["traceback"])


def leave_if_child(error: BaseException | None = None, told: str = "") -> None:
    """In a child: end it, failed if something is told. For user code that is no run: imports and hooks."""
    if _known and os.getpid() not in _known:
        if told:
            _fail(f"{told}\n")
        leave(error)


def _fail(text: str) -> NoReturn:
    with suppress(OSError):
        os.write(2, text.encode())
    os._exit(EXIT_RAISED)


class Child(Runner):
    """What a Runner becomes in a child. Each method is where user code has ended, or where it would be entered once more."""

    def invoke(self, entered: Entered) -> NoReturn:  # noqa: ARG002 - middleware has forked
        """As for Runner."""
        leave()

    def raised(self, error: BaseException) -> NoReturn:
        """As for Runner."""
        leave(error)

    def keep(self, entered: Entered, value: Any) -> NoReturn:  # noqa: ARG002
        """As for Runner."""
        leave()

    def fail(self, entered: Entered, error: BaseException) -> NoReturn:  # noqa: ARG002
        """As for Runner."""
        leave(error)

    def conclude(self, entered: Entered) -> NoReturn:  # noqa: ARG002
        """As for Runner."""
        leave()

    def heartbeat(self, work: Work, row: int, text: str, checkpoint: bytes | None) -> NoReturn:  # noqa: ARG002
        """FailedPreconditionError: the connection is the parent's."""
        raise FailedPreconditionError("heartbeat: this process was forked from that of the run; let the run's own process tell of it")

    def _awaited(self, work: Work, row: int, value: Any) -> NoReturn:  # noqa: ARG002
        value.close()
        leave()

    def _returned(self, work: Work, row: int, value: Any) -> NoReturn:  # noqa: ARG002
        leave()

    def _failed(self, work: Work, row: int, error: BaseException) -> NoReturn:  # noqa: ARG002
        leave(error)

    def _settle(self, work: Work, start: int, end: int, took_ns: int) -> NoReturn:  # noqa: ARG002
        leave()


class Forking(Protocol):
    """An executor, as far as a child must be parted from it."""

    sock: socket.socket
    file: StartedFile

    @property
    def runners(self) -> Iterable[Runner]:
        """What calls user code in it."""

    def forked(self) -> list[Any]:
        """The event loops that a child has a copy of."""


def guard(executor: Forking) -> None:
    """Have children of this process know what they are. Once, before user code is imported."""
    _known.append(os.getpid())
    os.register_at_fork(after_in_child=lambda: _disarm(executor))


def _disarm(executor: Forking) -> None:
    executor.sock.close()
    for kept in executor.file.kept:
        with suppress(BufferError):
            kept.ended_ns.release()  # it is shared: a row that ended here would be one that has ended there
            kept.outcome.release()
    for runner in executor.runners:
        runner.__class__ = Child
    for loop in executor.forked():
        _end_in(loop)


def _end_in(loop: Any) -> None:
    """Whatever this loop would run next, it ends the process: its selector and what waits in it are the parent's."""
    import asyncio  # noqa: PLC0415 - who has a loop has it

    task = asyncio.current_task(loop)

    def end() -> None:
        if task is None or not task.done():
            _fail(NO_LOOP)
        leave(None if task.cancelled() else task.exception())

    ready = vars(loop).get("_ready")
    if ready is None:
        loop.stop()
    else:
        ready.appendleft(asyncio.Handle(end, (), loop))  # what was ready before is not of this process

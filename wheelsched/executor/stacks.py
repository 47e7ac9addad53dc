"""Where runs are in their code, for who asks from outside: a thread of its own answers, so no run notices.

Only a process whose code never gives the interpreter up can't answer: code in C that hangs and holds it.
"""

from __future__ import annotations

import sys
import threading
import traceback
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ..model.nouns import STACK_MAX

if TYPE_CHECKING:
    import asyncio
    import socket
    from types import FrameType

_OURS: Final = ("executor/main.py", "executor/crew.py", "executor/runner.py", "executor/loops.py", "tasks/hooks.py")  # lead to user code
_THREADS_MAX: Final = 20


class Where(NamedTuple):
    """Where a run is: in a thread, and perhaps in a coroutine of its event loop."""

    thread: int | None
    tasks: list[asyncio.Task[Any]]


def where_in(thread: int | None, loop: asyncio.AbstractEventLoop | None) -> Where:
    """In a thread that may run an event loop of the run's own."""
    tasks = [] if loop is None or not loop.is_running() else sys.modules["asyncio"].all_tasks(loop)
    return Where(thread, list(tasks))


class Stacks:
    """Answers each token that comes over a socket with the stack of its run."""

    def __init__(self, sock: socket.socket, find: Any) -> None:
        """`find`: Where a token's run is, or None."""
        self._sock = sock
        self._find = find
        threading.Thread(target=self._answer, name="wheelsched-stacks", daemon=True).start()

    def _answer(self) -> None:
        while len(data := self._sock.recv(8)) == 8:
            try:
                text = self._text(int.from_bytes(data, "little"))
            except Exception as e:  # noqa: BLE001 - what changes while one looks may raise anything, and is said
                text = f"the stack can't be read: {type(e).__name__}: {e}"
            self._sock.send(data + text.encode("utf-8", "backslashreplace")[:STACK_MAX])

    def _text(self, token: int) -> str:
        where: Where | None = self._find(token)
        if where is None:
            return "the run has just ended"
        frames = sys._current_frames()  # noqa: SLF001 - the one way to see other threads
        lines = [_coroutine(task) for task in where.tasks]
        frame = frames.get(where.thread or 0)
        if frame is not None:
            lines.append(f"The thread of its event loop:\n{_thread(frame)}" if lines else _thread(frame))
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        others = [(names.get(ident, "?"), frame) for ident, frame in frames.items() if ident != where.thread]
        others = [(name, frame) for name, frame in others if not name.startswith("wheelsched-") and not _serves(frame)]
        for name, frame in others[:_THREADS_MAX]:
            lines.append(f"Thread {name}:\n{_thread(frame)}")
        if len(others) > _THREADS_MAX:
            lines.append(f"and {len(others) - _THREADS_MAX} other threads")
        return "\n".join(line.rstrip("\n") for line in lines)


def _serves(frame: FrameType | None) -> bool:
    """Is it the thread that speaks with the server? In mode thread that is the main one."""
    while frame is not None:
        if frame.f_code.co_name == "_serve" and frame.f_code.co_filename.endswith("executor/crew.py"):
            return True
        frame = frame.f_back
    return False


def _thread(frame: FrameType) -> str:
    """The most recent call last, without what leads to user code."""
    found = traceback.extract_stack(frame)
    begin = 0
    while begin < len(found) - 1 and (found[begin].filename.endswith(_OURS) or found[begin].filename in ("<string>", threading.__file__)):
        begin += 1
    return "".join(traceback.format_list(found[begin:]))


def _coroutine(task: asyncio.Task[Any]) -> str:
    """Where a coroutine waits, through all those that it awaits."""
    at: Any = task.get_coro()
    found: list[traceback.FrameSummary] = []
    while at is not None:
        frame = getattr(at, "cr_frame", None) or getattr(at, "gi_frame", None) or getattr(at, "ag_frame", None)
        if frame is not None:
            found += traceback.StackSummary.extract([(frame, frame.f_lineno)])
        at = getattr(at, "cr_await", None) or getattr(at, "gi_yieldfrom", None) or getattr(at, "ag_await", None)
    mine = [one for one in found if not one.filename.endswith(_OURS)] or found
    return f"Coroutine {task.get_name()}:\n" + "".join(traceback.format_list(mine))

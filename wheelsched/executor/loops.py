"""Event loops of user code: what a task or a callback raises stays its own affair, and what a run leaves behind ends with it.

`asyncio` lets SystemExit and KeyboardInterrupt out of a loop, whatever task or callback they come from, and the tasks that wait there go on
in whatever is run next. Here a loop goes on: the exception stays with the task that raised it, and who awaits that task gets it, as any
other exception.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet

from ..tasks.tasks import entered_run
from ..tasks.verdicts import text_of

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

GRACE_S: Final = 1.0  # for tasks that a run has left to heed their cancel
NAMED_MAX: Final = 5  # of them in the line that tells of it
_RUN: Final = asyncio.Handle._run.__code__  # noqa: SLF001 - the frame that tells whose an exception is


def stays(loop: asyncio.AbstractEventLoop, error: BaseException) -> bool:
    """This came out of the loop: is it the affair of a task or of a callback, so that the loop can go on?"""
    if not isinstance(error, SystemExit | KeyboardInterrupt):
        return False
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code is not _RUN:
        trace = trace.tb_next
    if trace is None:
        return False
    callback = getattr(trace.tb_frame.f_locals["self"], "_callback", None)
    if not isinstance(getattr(callback, "__self__", None), asyncio.Task):  # a task keeps it for who awaits it
        loop.call_exception_handler({"message": f"a callback raised {type(error).__name__}", "exception": error})
    return True


def finish(loop: asyncio.AbstractEventLoop, task: asyncio.Task[Any]) -> Any:
    """Run the loop until this task of it is done; its result."""
    while not task.done():
        try:
            loop.run_until_complete(task)
        except BaseException as e:
            if not task.done() and not stays(loop, e):
                raise
    return task.result()


class RunLoop:
    """The event loop of one thread, which is in one run at a time, or in a hook. It is nobody's current loop outside of coroutines."""

    def __init__(self, tell: Callable[[str], object]) -> None:
        """`tell` takes what the run in hand shall be told."""
        self.loop: asyncio.AbstractEventLoop | None = None
        self._tell = tell
        self._made: WeakSet[asyncio.Task[Any]] = WeakSet()  # by runs

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """The result of a coroutine. The tasks that a run has made and not awaited are cancelled then; those of hooks go on."""
        if self.loop is None or self.loop.is_closed():
            self.loop = asyncio.new_event_loop()
            self.loop.set_task_factory(self._make)
        task = self.loop.create_task(coroutine)
        try:
            return finish(self.loop, task)
        finally:
            self._end_left(self.loop, task)

    def _make(self, loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(coroutine, loop=loop, **options)
        if entered_run() is not None:
            self._made.add(task)
        return task

    def _end_left(self, loop: asyncio.AbstractEventLoop, main: asyncio.Task[Any]) -> None:
        left = [task for task in self._made if not task.done()]
        self._made.clear()
        if not left or loop.is_closed():
            return
        for task in left:
            task.cancel("the run that made this task has ended")
        fault = ""
        try:
            finish(loop, loop.create_task(asyncio.wait(left, timeout=GRACE_S)))
        except BaseException as e:  # noqa: BLE001 - the run is over, and what it left has no say in how it ended
            fault = f" {type(e).__name__}: {text_of(e)}"
        self._made.clear()
        for task in left:
            if task.done() and not task.cancelled() and task.exception() is not None:
                loop.call_exception_handler({"message": "a task that was cancelled raised", "exception": task.exception(), "task": task})
        others = [task for task in left if task is not main]
        if others:
            self._tell(_told(others, sum(not task.done() for task in others)) + fault + "\n")


def _told(left: list[asyncio.Task[Any]], deaf: int) -> str:
    names = [str(getattr(task.get_coro(), "__qualname__", task.get_name())) for task in left]
    shown = ", ".join(names[:NAMED_MAX]) + (f" and {len(left) - NAMED_MAX} more" if len(left) > NAMED_MAX else "")
    tasks = "1 task that was" if len(left) == 1 else f"{len(left)} tasks that were"
    ignored = f" {deaf} did not heed it in {GRACE_S:g} s, and may go on in other runs." if deaf else ""
    return f"wheelsched: cancelled {tasks} still running when this run ended ({shown}): await what a run starts.{ignored}"

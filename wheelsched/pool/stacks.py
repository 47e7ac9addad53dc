"""Questions for the stacks of runs that executors are in: asked once, answered when the executor has, or when its time is over."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ..model.nouns import NEVER, US
from ..process import asked, processes

if TYPE_CHECKING:
    import select

    from .handle import Executor

WAIT_US: Final = 3 * US  # an executor has so long; it has a thread for this


class Stacks:
    """Those that are open, of one pool. Its epoll wakes the pool when one was answered."""

    def __init__(self, epoll: select.epoll) -> None:
        self._epoll = epoll
        self._open: dict[int, tuple[Executor, int]] = {}  # token -> executor, until when
        self._ready: list[tuple[int, str]] = []

    def ask(self, executor: Executor, token: int, now_us: int) -> None:
        """One more. A program of a `command` has no stack that we could read: the kernel tells of it."""
        if token in self._open:
            return
        place = next((place for place in executor.places if place.inside()[0] == token or _in_call(place.words, token)), None)
        command = 0 if place is None else place.words[processes.W_COMMAND_PGID]
        if command:
            self._ready.append((token, asked.group_in_kernel(command, executor.file.mark)))
        elif executor.asked is None or not asked.ask(executor.asked, token):
            self._ready.append((token, self._silent(executor)))
        else:
            if not any(other is executor for other, _ in self._open.values()):
                self._epoll.register(executor.asked.fileno(), 1)  # EPOLLIN
            self._open[token] = executor, now_us + WAIT_US

    def poll(self, now_us: int) -> list[tuple[int, str]]:
        """(token, text) of those that are over."""
        for executor in {id(one): one for one, _ in self._open.values()}.values():
            if executor.asked is not None:
                for token, text in asked.answers(executor.asked):
                    self._over(token, text)
        for token, (executor, until_us) in list(self._open.items()):
            if now_us >= until_us:
                self._over(token, self._silent(executor))
        found, self._ready = self._ready, []
        return found

    def gone(self, executor: Executor) -> None:
        """It has ended."""
        for token in [token for token, (other, _) in self._open.items() if other is executor]:
            self._over(token, "the process has ended meanwhile")

    def wake_us(self) -> int:
        """Monotonic; NEVER for none."""
        return 0 if self._ready else min((until for _, until in self._open.values()), default=NEVER)

    def watches(self, fd: int) -> bool:
        """Is it the descriptor of one that was asked?"""
        return any(one.asked is not None and one.asked.fileno() == fd for one, _ in self._open.values())

    def _over(self, token: int, text: str) -> None:
        found = self._open.pop(token, None)
        if found is None:
            return
        executor = found[0]
        self._ready.append((token, text))
        if executor.asked is not None and not any(other is executor for other, _ in self._open.values()):
            self._epoll.unregister(executor.asked.fileno())

    @staticmethod
    def _silent(executor: Executor) -> str:
        return (f"its process gives no stack: its code holds the interpreter, in C perhaps, or the process is stopped."
                f" {asked.in_kernel(executor.pid)}")


def _in_call(words: memoryview, token: int) -> bool:
    """Is it in one call of a batch handler with others?"""
    return 0 < words[processes.W_FIRST] <= token <= words[processes.W_STARTED]

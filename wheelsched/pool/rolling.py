"""New task code while the work goes on: processes are replaced one after another, those of a server's pool and of `wheelsched worker`.

A newcomer is started beside the old processes. When it has imported the code, opened what its hooks open and said hello, one of the old
ones is told to take no more runs: it ends when those it has are over, on the old code. A newcomer that can't begin, or not in its time,
ends the reload: the old processes that are left go on.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..process.stderr import Log



class Rolling:
    """The replacement that is under way, if one is."""

    def __init__(
        self, spawn: Callable[[], int], retire: Callable[[int], None], kill: Callable[[int, str], None], log: Log,
    ) -> None:
        """`spawn` starts one more process and gives its worker's number; `retire` has one take no more runs; `kill` ends one (its
        number, why).
        """
        self._spawn = spawn
        self._retire = retire
        self._kill = kill
        self._log = log
        self._old: deque[int] = deque()  # worker numbers of those that are to be replaced
        self._coming = 0  # number of the newcomer, 0 when there is none
        self._fresh = 0  # how many have been replaced
        self._wanted = False

    # What the two kinds of worker do in their own way

    def is_there(self, worker: int) -> bool:
        """Has this one said hello?"""
        raise NotImplementedError

    def is_leaving(self, worker: int) -> bool:
        """Was it told to take no more runs?"""
        raise NotImplementedError

    def over(self, fresh: int) -> None:
        """All are replaced."""
        raise NotImplementedError

    def refused(self, why: str, short: str, left: int, fresh: int) -> None:
        """The newcomer can't begin: why, and in short; `left` old ones go on, `fresh` were replaced."""
        raise NotImplementedError

    # What is the same

    def want(self) -> None:
        """Begin at the next `roll`; one that is under way begins again, since the code may have changed under it. For signal handlers
        too.
        """
        self._wanted = True

    def is_coming(self, worker: int) -> bool:
        """Is it the newcomer?"""
        return worker == self._coming

    @property
    def arrived(self) -> bool:
        """Has the newcomer said hello? Then `roll` has something to do."""
        return bool(self._coming) and self.is_there(self._coming)

    @property
    def due(self) -> bool:
        """Has `roll` something to do?"""
        return self._wanted or self.arrived

    @property
    def under_way(self) -> bool:
        """Is there one?"""
        return bool(self._old or self._coming)

    def roll(self, workers: list[int]) -> None:
        """Go on as far as one can now. `workers`: the numbers of all."""
        if self._wanted:
            self._wanted = False
            if self._coming:  # it may have the code of before
                self._part_with(self._coming, ", because a newer reload has begun")
            self._old, self._coming, self._fresh = deque(w for w in workers if not self.is_leaving(w)), 0, 0
            if not self._old:
                self.none()
                return
            n = len(self._old)
            self._log(f"reload: replacing {n} {'worker' if n == 1 else 'workers, one after another'}")
            self._coming = self._spawn()
        while self.arrived:
            self._fresh += 1
            arrived, self._coming = self._coming, 0
            # None is left when the last has died and was replaced meanwhile: then this one is too many.
            self._part_with(self._old.popleft() if self._old else arrived, ", because another one has taken its place")
            if self._old:
                self._coming = self._spawn()
            else:
                fresh = self._fresh
                self.clear()
                self.over(fresh)

    def none(self) -> None:
        """There is nothing to replace."""

    def _part_with(self, worker: int, because: str) -> None:
        """It takes no more runs. One that has not said hello asks for nothing, so nobody can tell it to stop."""
        self._retire(worker)
        if not self.is_there(worker):
            self._kill(worker, because)

    def gone(self, worker: int, text: str, said: str = "") -> bool:
        """A process has ended, and said so itself, unless that is empty. True: no other one shall take its place."""
        if self.is_leaving(worker):
            return True
        if worker in self._old:  # the one that takes its place has the new code already
            self._old.remove(worker)
        if worker != self._coming:
            return False
        left, fresh = len(self._old), self._fresh
        self.clear()
        self.refused(text, said or text, left, fresh)
        return True

    def clear(self) -> None:
        """None is under way any more."""
        self._old.clear()
        self._coming = self._fresh = 0

"""Lines of the log that could come by the thousand: a few in a minute, and a count of the others. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ..model.nouns import NEVER, US

if TYPE_CHECKING:
    from collections.abc import Callable

LINES_MAX: Final = 10  # in a span
SPAN_US: Final = 60 * US


class Rationed:
    """Lines of one kind. A span begins with its first line."""

    def __init__(self, log: Callable[[str], None], more: str) -> None:
        """`more`: what is said at the end of a span of so many others, with {n}."""
        self._log = log
        self._more = more
        self._lines = 0
        self._others = 0
        self._until_us = NEVER

    def add(self, texts: list[str], count: int, now_us: int) -> None:
        """`count` things have happened; `texts` are of the first of them."""
        if not count:
            return
        self.look(now_us)
        if self._until_us == NEVER:
            self._until_us = now_us + SPAN_US
        told = texts[: LINES_MAX - self._lines]
        for text in told:
            self._log(text)
        self._lines += len(told)
        self._others += count - len(told)

    def look(self, now_us: int, *, end: bool = False) -> None:
        """Tell how many others there were, when the span is over, or at the `end` of everything."""
        if now_us < self._until_us and not end:
            return
        if self._others:
            self._log(self._more.format(n=f"{self._others:,}"))
        self._lines = self._others = 0
        self._until_us = NEVER

    def wake_us(self) -> int:
        """When there is a count to tell; NEVER without one."""
        return self._until_us if self._others else NEVER

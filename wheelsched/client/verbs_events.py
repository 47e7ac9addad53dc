"""The verb events as questions, page after page, the streams that come of it, and the methods of the clients. No I/O."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ..model.errors import InvalidArgumentError
from ..model.nouns import GLOB_MAX, US, display_name
from .requests import Ask
from .verbs import WAIT_S_MAX, call_seconds, checked_limit, checked_text
from .views_events import EventPage

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator

    from .views_events import Event

__all__ = ["AsyncEventVerbs", "AsyncEvents", "EventPages", "EventVerbs", "Events"]

PAGE: Final = 4_096
GRACE_S: Final = 10.0  # for the answer to a wait that is over


class EventPages:
    """What to ask next. `position`: where the stream stands; None before the first answer of a stream from now on."""

    def __init__(self, since: Any, match: Any, kinds: Any, timeout: Any, limit: Any) -> None:
        """InvalidArgumentError for what can't be asked."""
        if since is not None and not isinstance(since, str):
            since = getattr(since, "position", None)  # an event
            if not isinstance(since, str):
                raise InvalidArgumentError("since: the position of an event, 'oldest' or None (from now on) is wanted")
        if isinstance(kinds, str):
            kinds = [kinds]
        self._kinds = None if kinds is None else [checked_text(kind, "kinds", GLOB_MAX) for kind in kinds]
        self._match = None if match is None else display_name(checked_text(match, "match", GLOB_MAX))
        self._timeout = call_seconds(timeout, None)
        self._left = checked_limit(limit)
        self._quiet = 0.0  # seconds without an event
        self._asked = 0.0
        self._over = self._left == 0
        self.position: str | None = since

    def next_ask(self) -> tuple[Ask[EventPage], float] | None:
        """The next question, and how many seconds the server may take over it; None at the end."""
        if self._over:
            return None
        self._asked = WAIT_S_MAX if self._timeout is None else min(WAIT_S_MAX, max(0.0, self._timeout - self._quiet))
        args = {
            "since": self.position, "match": self._match, "kinds": self._kinds,
            "limit": PAGE if self._left is None else min(PAGE, self._left), "wait_us": round(self._asked * US),
        }
        return Ask("events", args, EventPage.from_wire), self._asked

    def took(self, page: EventPage) -> list[Event]:
        """Take an answer; its events."""
        self.position = page.position
        self._quiet = 0.0 if page.events else self._quiet + self._asked * (not page.behind)
        silent = not page.events and not page.behind and self._timeout is not None and self._quiet >= self._timeout
        if self._left is not None:
            self._left -= len(page.events)
        self._over = page.last or self._left == 0 or silent
        return page.events


class Events:
    """A stream of events, an iterator. `position`: of the last one that was read; give it as `since` to go on later."""

    def __init__(self, ask: Callable[[Ask[EventPage], float], EventPage], pages: EventPages) -> None:
        self._ask = ask
        self._pages = pages
        self.position: str | None = pages.position

    def __iter__(self) -> Iterator[Event]:
        while (question := self._pages.next_ask()) is not None:
            for event in self._pages.took(self._ask(*question)):
                self.position = event.position
                yield event
            self.position = self._pages.position  # beyond what did not fit


class AsyncEvents:
    """As Events, to be read with `async for`."""

    def __init__(self, ask: Callable[[Ask[EventPage], float], Awaitable[EventPage]], pages: EventPages) -> None:
        self._ask = ask
        self._pages = pages
        self.position: str | None = pages.position

    async def __aiter__(self) -> AsyncIterator[Event]:
        while (question := self._pages.next_ask()) is not None:
            for event in self._pages.took(await self._ask(*question)):
                self.position = event.position
                yield event
            self.position = self._pages.position



def _now() -> Ask[EventPage]:
    return Ask("events", {"since": None, "wait_us": 0}, EventPage.from_wire)


class EventVerbs:
    """Of Client."""

    def _do(self, ask: Ask[Any], timeout: Any) -> Any:
        raise NotImplementedError

    def events(
        self, since: Any = None, match: str | None = None, kinds: Iterable[str] | None = None, *, timeout: Any = None,
        limit: int | None = None,
    ) -> Events:
        """Durable changes of state, as they come: what was decided after the position `since` (of an event, or text), from the `oldest`
        that is kept, or (None) from the first look at the stream on. A stream goes on over restarts of the server.

        `match`: only events of jobs whose names fit the glob. `kinds`: only these, such as "run.dead" or "run.*". `timeout`: end when
        nothing came for so long (a duration; None: never); `limit`: end after so many. FailedPreconditionError (`detail["oldest"]`)
        when what followed the position is not kept any more.
        """
        return Events(self._event_page, EventPages(since, match, kinds, timeout, limit))

    def event_position(self, *, timeout: Any = None) -> str:
        """The position of now: `events(since=...)` it has all that is decided from here on."""
        page: EventPage = self._do(_now(), timeout)
        return page.position

    def _event_page(self, ask: Ask[EventPage], wait_s: float) -> EventPage:
        page: EventPage = self._do(ask, wait_s + GRACE_S)
        return page


class AsyncEventVerbs:
    """Of AsyncClient."""

    async def _do(self, ask: Ask[Any], timeout: Any) -> Any:  # noqa: ASYNC109 - as in the client
        raise NotImplementedError

    def events(
        self, since: Any = None, match: str | None = None, kinds: Iterable[str] | None = None, *, timeout: Any = None,
        limit: int | None = None,
    ) -> AsyncEvents:
        """As Client.events."""
        return AsyncEvents(self._event_page, EventPages(since, match, kinds, timeout, limit))

    async def event_position(self, *, timeout: Any = None) -> str:  # noqa: ASYNC109
        """As Client.event_position."""
        page: EventPage = await self._do(_now(), timeout)
        return page.position

    async def _event_page(self, ask: Ask[EventPage], wait_s: float) -> EventPage:
        page: EventPage = await self._do(ask, wait_s + GRACE_S)
        return page

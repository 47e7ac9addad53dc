"""Asks the server for all browsers together: one connection, answers kept for a moment, no question without a limit and a timeout."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from ..model.errors import WheelschedError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ..client.async_client import AsyncClient, AsyncListing
    from ..client.views_forecast import Forecast

__all__ = ["SAMPLE_S", "Page", "Reader", "Sample", "Snapshot"]

T = TypeVar("T")

SAMPLE_S: Final = 5.0
_KEPT_S: Final = 2.0  # counters that all browsers share
_FORECAST_S: Final = 60.0
_FORECAST_WAIT_S: Final = 0.07
_QUESTIONS_MAX: Final = 100  # of one page: each looks at thousands of rows at most
_SEARCH_S: Final = 0.07
_LISTINGS_MAX: Final = 4  # at a time, of all browsers together


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The server's counters, and when they were read."""

    stats: dict[str, Any]
    read_at: float  # monotonic

    @property
    def now(self) -> datetime:
        """The server's clock, as of now."""
        since = timedelta(seconds=time.monotonic() - self.read_at)
        return datetime.fromtimestamp(0, UTC) + timedelta(microseconds=self.stats["now_us"]) + since


@dataclass(frozen=True, slots=True)
class Sample:
    """What the charts of the last hour are made of."""

    at: float  # monotonic
    generation: int
    queued: int
    leased: int
    counters: dict[str, int]


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """Some rows, where the next page begins, and whether the search stopped before it had found enough."""

    rows: list[T]
    after: Any
    looked_on: bool = False


class Reader:
    """Of one event loop. Errors: those of the client."""

    def __init__(self, client: AsyncClient, clock: Callable[[], float] = time.monotonic) -> None:
        self.client = client
        self.samples: deque[Sample] = deque(maxlen=round(3_600 / SAMPLE_S) + 1)
        self._clock = clock
        self._snapshot: Snapshot | None = None
        self._asking: asyncio.Task[Snapshot] | None = None
        self._forecast: tuple[float, Forecast] | None = None
        self._forecasting: asyncio.Task[None] | None = None
        self._listings = asyncio.Semaphore(_LISTINGS_MAX)

    async def snapshot(self) -> Snapshot:
        """The counters, at most two seconds old; who comes meanwhile waits for the same answer."""
        found = self._snapshot
        if found is not None and self._clock() - found.read_at < _KEPT_S:
            return found
        if self._asking is None or self._asking.done():
            self._asking = asyncio.ensure_future(self._ask())
        return await asyncio.shield(self._asking)

    async def _ask(self) -> Snapshot:
        stats = await self.client.stats()
        self._snapshot = Snapshot(stats, self._clock())
        return self._snapshot

    def forget(self) -> None:
        """Something was changed: the next look is a new one."""
        self._snapshot = self._asking = None

    async def sample(self) -> None:
        """Look again and again, for the charts; a server that is gone leaves a gap."""
        while True:
            try:
                found = await self.snapshot()
            except WheelschedError:
                found = None
            if found is not None:
                self.take(found)
            await asyncio.sleep(SAMPLE_S)

    def take(self, found: Snapshot) -> None:
        """Keep what the charts need of it."""
        s = found.stats
        self.samples.append(Sample(found.read_at, s["generation"], s["queued"], s["leased"], dict(s["counters"])))

    async def forecast(self) -> Forecast | None:
        """The starts of the next hour, up to a minute old; None while the first is being made. It is made in the background."""
        found = self._forecast
        if found is None or self._clock() - found[0] >= _FORECAST_S:
            if self._forecasting is None or self._forecasting.done():
                self._forecasting = asyncio.ensure_future(self._foresee())
            if found is None:
                await asyncio.wait([self._forecasting], timeout=_FORECAST_WAIT_S)
        return None if self._forecast is None else self._forecast[1]

    async def _foresee(self) -> None:
        try:
            self._forecast = (self._clock(), await self.client.forecast("1h", "1m", timeout="30s"))
        except WheelschedError:
            self._forecast = None  # the page says that there is none; the next one asks again

    async def rows(self, listing: Callable[[], AsyncListing[T]], after: Any, size: int) -> Page[T]:
        """A page of a listing. A search that finds little ends after 70 ms, with the place where it may go on."""
        found: list[T] = []
        end = self._clock() + _SEARCH_S
        async with self._listings:
            for _ in range(_QUESTIONS_MAX):
                rows, after = await listing().page(after, size - len(found))
                found += rows
                if after is None or len(found) >= size:
                    return Page(found, after)
                if self._clock() >= end:
                    break
        return Page(found, after, looked_on=True)

    async def ask(self, question: Awaitable[T]) -> T:
        """One question beside the counters."""
        async with self._listings:
            return await question

    async def close(self) -> None:
        """End what is under way, and the connection."""
        tasks = [task for task in (self._asking, self._forecasting) if task is not None and not task.done()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.client.close()

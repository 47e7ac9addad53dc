"""What runs print, read once or followed: pieces of it from answers about the run, and the methods of the clients. No I/O."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ..model.tape import STREAMS, unseen

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from .values import RunInfo

__all__ = ["AsyncLogVerbs", "Log", "LogReader", "LogVerbs"]

LOOK_S: Final = 0.25  # of a follower; a worker tells as often


@dataclass(frozen=True, slots=True)
class Log:
    """A piece of what an attempt printed. `stream`: stdout or stderr; `attempt`: 1 is the first; `worker`: where it ran."""

    attempt: int
    worker: str | None
    stream: str
    data: bytes

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {"attempt": self.attempt, "worker": self.worker, "stream": self.stream, "text": self.data.decode("utf-8", "replace")}


class LogReader:
    """Gives each piece once, however often it is in the answers."""

    def __init__(self) -> None:
        self._seen: dict[tuple[int | None, str], int] = {}  # (token of an attempt, stream) -> bytes

    def took(self, run: RunInfo) -> list[Log]:
        """What an answer has that those before had not, by attempts."""
        found = []
        for attempt in run.attempts:
            for stream in STREAMS:
                place = attempt.token, stream
                data, cut = getattr(attempt, stream), getattr(attempt, f"{stream}_cut")
                data, self._seen[place] = unseen(data, cut, self._seen.get(place, 0))
                if data:
                    found.append(Log(attempt.attempt, None if attempt.worker is None else str(attempt.worker), stream, data))
        return found


class LogVerbs(ABC):
    """Of Client."""

    @abstractmethod
    def run(self, run_id: str, *, timeout: Any = None) -> RunInfo:
        """A run. NotFoundError."""

    @abstractmethod
    def wait_run(self, run_id: str, seconds: float) -> RunInfo:
        """A run when it is final, or as it is after so many seconds."""

    def logs(self, run_id: str, *, follow: bool = False) -> Iterator[Log]:
        """What the attempts of a run printed, in pieces; that of the open one as far as its worker told it. NotFoundError.

        `follow`: on to the end of the run, over retries and restarts of the server. What is kept of a stream is 64 KiB, its beginning and
        its end; so whoever looks late, or reads slower than the run prints, finds a mark in place of what was left out.
        """
        reader = LogReader()
        run = self.run(run_id)
        yield from reader.took(run)
        while follow and not run.final:
            run = self.wait_run(run_id, LOOK_S)
            yield from reader.took(run)


class AsyncLogVerbs(ABC):
    """Of AsyncClient."""

    @abstractmethod
    async def run(self, run_id: str, *, timeout: Any = None) -> RunInfo:  # noqa: ASYNC109 - as in the client
        """As Client.run."""

    @abstractmethod
    async def wait_run(self, run_id: str, seconds: float) -> RunInfo:
        """As Client.wait_run."""

    async def logs(self, run_id: str, *, follow: bool = False) -> AsyncIterator[Log]:
        """As Client.logs."""
        reader = LogReader()
        run = await self.run(run_id)
        for piece in reader.took(run):
            yield piece
        while follow and not run.final:
            run = await self.wait_run(run_id, LOOK_S)
            for piece in reader.took(run):
                yield piece

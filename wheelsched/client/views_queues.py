"""What the verbs about queues answer."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from ..model.nouns import to_datetime
from .values import rfc3339

if TYPE_CHECKING:
    from datetime import datetime

__all__ = ["QueueInfo"]


@dataclass(frozen=True, slots=True)
class QueueInfo:
    """A queue. `settings` has those alone that were set: concurrency, key_concurrency, burst, rate, key_rate, weights."""

    name: str
    settings: dict[str, Any]
    queued: int  # runs that wait in it
    leased: int  # runs that a worker has
    oldest: datetime | None  # since when the one that waits longest does
    paused: bool

    @classmethod
    def from_wire(cls, raw: dict[str, Any]) -> QueueInfo:
        """Of the server's map."""
        return cls(raw["name"], raw["settings"], raw["queued"], raw["leased"], to_datetime(raw["oldest_us"]), raw["paused"])

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {**asdict(self), "oldest": rfc3339(self.oldest)}

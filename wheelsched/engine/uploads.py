"""What connections send in pieces, and the server keeps until the last one: jobs for `apply`, members for `group`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..model.errors import InvalidArgumentError
from ..model.nouns import GROUP_MAX

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(slots=True)
class Frame:
    """One staged frame, in columns."""

    rows: list[int]  # numbers of its jobs in the batch
    given: list[Any]
    names: list[Any]
    payloads: list[bytes]
    which: NDArray[np.uint32]
    param: NDArray[np.int64]
    notes: list[str]
    paused: list[bool | None]

    def only(self, good: list[int]) -> Frame:
        """The frame without some of its jobs."""
        if len(good) == len(self.names):
            return self
        return Frame(
            [self.rows[i] for i in good], self.given, [self.names[i] for i in good], [self.payloads[i] for i in good], self.which[good],
            self.param[good], [self.notes[i] for i in good], [self.paused[i] for i in good],
        )


@dataclass(slots=True)
class Staged:
    """What one batch has staged so far."""

    frames: list[Frame] = field(default_factory=list)
    jobs: int = 0
    size: int = 0  # bytes


@dataclass(slots=True)
class Part:
    """Members in columns."""

    given: list[Any]
    which: NDArray[np.uint32]
    payloads: list[bytes]


@dataclass(slots=True)
class Parts:
    """What a connection has sent for one group so far."""

    batch: int
    parts: list[Part] = field(default_factory=list)
    members: int = 0
    size: int = 0  # bytes

    def add(self, part: Part) -> None:
        """Some more. InvalidArgumentError beyond the limit."""
        self.members += len(part.payloads)
        if self.members > GROUP_MAX:
            raise InvalidArgumentError(f"group: {GROUP_MAX:,} members at most, not {self.members:,}")
        self.parts.append(part)

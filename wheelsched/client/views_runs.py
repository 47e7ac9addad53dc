"""What the verbs that make many runs answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar, overload

from ..model.errors import InternalError
from .values import RunInfo

__all__ = ["EnqueueResults", "Enqueued", "Group", "Stack"]

R = TypeVar("R", bound=RunInfo)


@dataclass(frozen=True, slots=True)
class Group(Generic[R]):
    """A group: `run` is the one that waits until the members have ended; its id is the group's."""

    run: R
    ids: list[str]  # of the members, in the order given; empty when the group was there before
    existing: bool  # the group was there before, by its key, and nothing was made


class Stack(NamedTuple):
    """Where a run is in its code."""

    id: str  # of the run
    job: str
    worker: str
    text: str  # the most recent call last; of a `command`, its processes as the kernel tells of them


class Enqueued(NamedTuple):
    """What became of one call."""

    id: str  # of its run, 32 hexadecimal digits
    existing: bool  # the run was there before, by its key or identity, and none was made


class EnqueueResults(Sequence[Enqueued]):
    """What enqueue_many did, call by call, in the order given."""

    def __init__(self) -> None:
        self._ids = bytearray()
        self._existing = bytearray()

    def add(self, ids: bytes, existing: bytes) -> None:
        """The results of one frame. InternalError when the server's columns don't fit."""
        if len(ids) != 16 * len(existing):
            raise InternalError(f"the server answered with {len(ids)} bytes of ids for {len(existing)} runs")
        self._ids += ids
        self._existing += existing

    @property
    def ids(self) -> list[str]:
        """The run ids."""
        return [self._ids[i : i + 16].hex() for i in range(0, len(self._ids), 16)]

    @property
    def made(self) -> int:
        """How many runs are new."""
        return self._existing.count(0)

    def __len__(self) -> int:
        return len(self._existing)

    @overload
    def __getitem__(self, index: int) -> Enqueued: ...
    @overload
    def __getitem__(self, index: slice) -> list[Enqueued]: ...
    def __getitem__(self, index: int | slice) -> Enqueued | list[Enqueued]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        existing = bool(self._existing[index])
        at = 16 * (index % len(self))
        return Enqueued(self._ids[at : at + 16].hex(), existing)

    def __repr__(self) -> str:
        return f"<EnqueueResults of {len(self)} calls: {self.made} runs made>"

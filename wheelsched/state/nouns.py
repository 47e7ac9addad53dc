"""Parts of the state: its small records, and the canonical bytes of definitions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgpack
import numpy as np

from ..model.nouns import RunFlag, RunState
from ..tables._runs import NO_ROW

if TYPE_CHECKING:
    from ..tables._runs import RunTable

IDENTITY: Final = b"unique\0"  # what the name of an identity begins with


class Line(NamedTuple):
    """What tells a ready line from the others."""

    queue: str
    priority: int
    namespace: str
    task: str
    backlog: bool  # what makes up for the past
    key: str  # concurrency key; empty: none
    job: str = ""  # full name of a job with a concurrency of its own
    job_most: int = 0  # that concurrency
    expires_us: int = -1  # deadline for a start, after the nominal time; negative: none


ANYBODY = -2  # uid of a worker that an older version has recorded, announcer of a task's options of which nobody is known
POOL, OWN_USER = -1, -3  # announcers: the server's own workers, others of its user; else a uid


@dataclass(slots=True)
class Worker:
    """One process that leases and executes, as the journal knows it."""

    name: str
    kind: str  # "pool" or "external"
    generation: int
    list_id: int
    uid: int = ANYBODY
    proof: bytes = b""  # of the secret of an external worker; empty: it told none


@dataclass(slots=True)
class Key:
    """A durable name of a run: an idempotency key, or an identity."""

    run_id: bytes
    at_us: int  # elapsed time
    others: bytes = b""  # of an identity: ids, joined, of earlier runs that have it too, or may have it again when they are sent back

    def holders(self, runs: RunTable, *, may: bool = False) -> bytes:
        """Ids of the open runs among these, joined, the latest first; with `may` the dead letters too."""
        ids = self.run_id + self.others
        rows = runs.find(ids)
        there = np.flatnonzero(rows != NO_ROW)
        fields = runs.gather(np.ascontiguousarray(rows[there]))
        keep = fields["state"] <= RunState.RETRY_WAIT
        if may:
            keep |= (fields["state"] == RunState.DEAD) & (fields["flags"] & RunFlag.DISCARDED == 0)
        return b"".join([ids[16 * i : 16 * i + 16] for i in there[keep].tolist()])


@dataclass(slots=True)
class Group:
    """A run that waits until others have ended; those know its number."""

    run_id: bytes
    members: int
    needs_all: bool  # it is cancelled unless all succeed
    succeeded: int = 0
    failed: int = 0  # dead letters
    cancelled: int = 0

    @property
    def left(self) -> int:
        """Members that are open."""
        return self.members - self.succeeded - self.failed - self.cancelled


@dataclass(slots=True)
class Meta:
    """What is not a row."""

    seq: int = 0
    at_us: int = 0
    generation: int = 0
    boot_id: str = ""
    zone_version: str = ""
    tokens: int = 0  # granted in this generation
    folded: int = 0
    groups: int = 0  # number of the latest group
    next_worker: int = 1
    recheck_us: int = -1  # nominal times up to here may have been decided before the clock went back
    held_us: int = -1  # since when all triggering is held; -1: it isn't
    hold_note: str = ""
    steps: list[tuple[int, int]] = field(default_factory=list)  # of the clock back: (rows in history then, new wall time)
    blocked: dict[tuple[int, int], None] = field(default_factory=dict)  # (job row, nominal): fired already, then the clock went back


def spec_bytes(wire: dict[str, Any]) -> bytes:
    """Canonical bytes of a definition: equal definitions are stored once."""
    data: bytes = msgpack.packb(ordered(wire), use_bin_type=True)
    return data


def ordered(value: Any) -> Any:
    """The same with the keys of maps in order."""
    return {k: ordered(value[k]) for k in sorted(value)} if isinstance(value, dict) else value


__all__ = ["ANYBODY", "IDENTITY", "OWN_USER", "POOL", "Group", "Key", "Line", "Meta", "Worker", "ordered", "spec_bytes"]

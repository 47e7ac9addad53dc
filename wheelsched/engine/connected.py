"""Who is connected, and what each of them waits for. Soft state: it begins anew with each start."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ..model.nouns import NEVER


@dataclass(slots=True)
class Session:
    """A connection that said hello."""

    conn: int
    uid: int
    worker: int = 0
    name: str = ""
    kind: str = "client"  # client, pool, external
    tasks: frozenset[str] = frozenset()
    lease_until_us: int = NEVER  # monotonic; external workers only
    lost: bool = False  # its lease ran out; it comes back when it says something
    own: bool = False  # of the server's own user, or of one with all roles
    proof: bytes = b""  # of the secret by which it is known again

    @property
    def ready(self) -> bool:
        """Is it a worker that has said hello, and is not lost? Those of the pool, who all serve some task, are here before they do."""
        return self.worker > 0 and not self.lost and (self.kind != "pool" or bool(self.tasks))


@dataclass(slots=True)
class Seeker:
    """A lease request that waits for runs."""

    conn: int
    request_id: int
    worker: int
    queues: frozenset[str]
    credits: int
    deadline_us: int  # monotonic


class Waiter(NamedTuple):
    """A client that waits for a run."""

    conn: int
    request_id: int
    deadline_us: int  # monotonic
    roles: frozenset[str]

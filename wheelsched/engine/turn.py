"""What goes into a turn of the engine and what comes out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..model.nouns import NEVER, ROLES

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ..model.nouns import Ended
    from ..model.tape import Piece
    from ..protocol.frames import Request
    from ..state.bygone import Spans


@dataclass(frozen=True, slots=True)
class Now:
    """Both clocks, in microseconds; and how long the machine has slept since it was booted, which the monotonic clock leaves out."""

    wall_us: int
    mono_us: int
    slept_us: int = 0

    @property
    def boot_us(self) -> int:
        """How long the machine has been up, asleep or not."""
        return self.mono_us + self.slept_us


@dataclass(frozen=True, slots=True)
class Incoming:
    """One request from a connection."""

    conn: int
    request: Request
    uid: int
    found: Any = None  # what history holds for it, looked up beforehand
    roles: frozenset[str] = frozenset(ROLES)  # of who sent it; in a simulated world everybody has all


class Later(Exception):  # noqa: N818 - nothing is wrong
    """A command has no room in this turn; `postponed` says what becomes of it."""


@dataclass(frozen=True, slots=True)
class WorkerGone:
    """A worker is gone for good. `started_token`: user code was entered for tokens up to this one; None: for all that it held."""

    worker: int
    started_token: int | None
    outcome: int  # model.Outcome of the run it was in
    reason: str
    outcomes: dict[int, int] = field(default_factory=dict)  # token -> model.Outcome of others that it was in; those left are lost
    calls: list[tuple[int, int]] = field(default_factory=list)  # (first, last token) of calls for several runs; `outcomes` has the last
    ended: dict[int, Ended] = field(default_factory=dict)  # token -> of what had ended in it, reported or not
    errors: dict[int, dict[str, str]] = field(default_factory=dict)  # token -> type and message of what it was in; else it was lost
    begun: dict[int, int] = field(default_factory=dict)  # token -> wall clock, when user code was entered, as far as that is known
    printed: dict[int, list[Piece]] = field(default_factory=dict)  # token -> what was captured of what it was in; see executors.Exited


@dataclass(frozen=True, slots=True)
class Disconnect:
    """A connection is gone; what it sent before comes first."""

    conn: int


@dataclass(frozen=True, slots=True)
class ClockBack:
    """The wall clock was set back."""

    fired: list[tuple[bytes, int]]  # (job key, nominal) of the runs in history that are later than the new now
    dropped: Spans  # of the nominal times of runs that history has dropped


@dataclass(slots=True)
class Notices:
    """What the log is told of a turn: how many, and texts of the first of them."""

    died: int = 0
    deaths: list[str] = field(default_factory=list)
    refused: int = 0
    refusals: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.died or self.refused)


@dataclass(slots=True)
class Effects:
    """What a step wants done. Replies wait until `seq` is durable."""

    records: list[bytes] = field(default_factory=list)
    history: list[bytes] = field(default_factory=list)
    replies: list[tuple[int, bytes]] = field(default_factory=list)
    # worker, tokens, timeouts, heartbeat timeouts (None: nobody has one)
    granted: list[tuple[int, NDArray[np.int64], NDArray[np.int64], NDArray[np.int64] | None]] = field(default_factory=list)
    finished: list[tuple[int, NDArray[np.int64]]] = field(default_factory=list)  # worker, tokens
    cancels: list[tuple[int, int, bool]] = field(default_factory=list)  # worker, token, at once (no cooperative step)
    lags: list[tuple[str, NDArray[np.int64]]] = field(default_factory=list)  # what, instants to compare with the durable time
    start_lags: list[NDArray[np.int64]] = field(default_factory=list)  # microseconds, as workers told
    notices: Notices = field(default_factory=Notices)
    again: bool = False  # more is due: call at once
    wake_wall_us: int = NEVER
    wake_mono_us: int = NEVER
    seq: int = 0

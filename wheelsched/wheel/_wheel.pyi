"""Hierarchical timing wheel: which ids are due, in order, without scanning.

Instants are int64 milliseconds since the epoch; any int64 but NEVER_MS (2**63 - 1), which means "not pending". Ids are uint32
given by the caller, from 0 to 2**32 - 2; memory is 12 bytes for each up to the highest of a group of 16,384, and about 5 for each
timer, so they should be dense.
"""

from typing import Final, final

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Buffer

NEVER_MS: Final[int]


@final
class Wheel:
    """Timers by id. One thread at a time: a call while another thread is in one raises RuntimeError.

    MemoryError leaves the wheel as it was, in every method.
    """

    def __new__(cls, now_ms: int) -> Wheel: ...
    def add(self, ids: Buffer, when_ms: Buffer) -> None:
        """Add timers: uint32[n], int64[n]. A pending id is moved, and counts as added anew; NEVER_MS cancels; an instant that is
        not after now is due at once. ValueError: lengths or item types differ from that, or an id is 2**32 - 1; nothing was added.
        """
    def add_one(self, id: int, when_ms: int) -> None:  # noqa: A002 - the name of the word
        """`add` for one timer. OverflowError: beyond uint32 or int64."""
    def cancel_one(self, id: int) -> bool:  # noqa: A002
        """True when it was pending."""
    def cancel(self, ids: Buffer) -> int:
        """Cancel uint32[n]; how many were pending. Unknown ids are fine."""
    def advance(self, now_ms: int, limit: int = 65536) -> NDArray[np.uint32]:
        """Ids due at or before now, in order of (instant, adding), no longer pending; at most `limit`, and fewer when that took
        long enough: call again until none are returned. Any jump ahead is fine. ValueError: now is before the last one, or
        limit is less than 1.
        """
    def next_due(self) -> int:
        """The earliest instant (milliseconds), NEVER_MS when nothing is pending. Exact, unless the earliest of more than 65,536
        timers close together was cancelled: then it may be too early, never too late.
        """
    def when(self, id: int) -> int | None:  # noqa: A002
        """The instant (milliseconds) of a timer; None when it is not pending."""
    def __contains__(self, id: object, /) -> bool: ...  # noqa: A002
    def __len__(self) -> int: ...
    @property
    def now_ms(self) -> int:
        """The last instant given to the constructor, `advance`, `rebuild` or `clear` (milliseconds)."""
    @property
    def nbytes(self) -> int:
        """Bytes of memory, those that were reserved but never touched left out."""
    def rebuild(self, now_ms: int) -> None:
        """The clock was set, back or forward: keep all timers and their order, start anew at now."""
    def clear(self, now_ms: int) -> None:
        """Forget all timers, give memory back, start anew at now."""
    def check(self) -> None:
        """AssertionError naming the invariant that is broken. Reads everything."""
    def pending(self) -> NDArray[np.uint32]:
        """All pending ids, ascending."""

"""What the attempts of a job leave for its next run: the value of the last success, and the error of the last attempt if that failed.

Part of the state. Runs of `enqueue` leave nothing: their job is only a name for all runs of a task.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgpack
import numpy as np

from ..model import plain
from ..model.nouns import LAST_MAX, REASON_MAX, RunFlag

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

_FAILED: Final = (plain.EVENT_RETRY, plain.EVENT_EXHAUST)
_NONE: Final = (b"", b"")


class Lasts:
    """By rows of the job table: (value, error), each encoded, empty for none. A value of more than LAST_MAX bytes is none."""

    def __init__(self) -> None:
        self.of: dict[int, tuple[bytes, bytes]] = {}
        self._known = np.zeros(0, np.bool_)  # by row: is it in `of`?

    def known(self, fields: Any) -> NDArray[np.bool_]:
        """Of which of these runs (columns job and trigger) the job has left something for them."""
        job = fields["job"]
        found = np.zeros(len(job), np.bool_)
        inside = (job < len(self._known)) & (fields["trigger"] != plain.TRIGGER_ENQUEUE)
        found[inside] = self._known[job[inside]]
        return found

    def ended(self, fields: Any, event: NDArray[np.uint8], results: dict[int, bytes]) -> None:
        """Attempts have ended, in this order. Cancelled and snoozed ones change nothing."""
        told = np.zeros(len(event), np.bool_)
        told[list(results)] = True
        job = fields["job"]
        changed = told | self.known(fields)
        if results:
            changed |= np.isin(job, job[told])
        orphaned = fields["flags"] & RunFlag.ORPHANED > 0  # what it leaves is not for a job that is put anew under its name
        for i in np.flatnonzero(changed & ~orphaned & (fields["trigger"] != plain.TRIGGER_ENQUEUE)).tolist():
            row = int(job[i])
            result = msgpack.unpackb(results[i], raw=False) if i in results else {}
            if event[i] == plain.EVENT_SUCCEED:
                value = result.get("value")
                self._set(row, value if isinstance(value, bytes) and len(value) <= LAST_MAX else b"", b"")
            elif event[i] in _FAILED and result:
                said: bytes = msgpack.packb([str(result.get("type", "")), str(result.get("message", ""))[:REASON_MAX]])
                self._set(row, self.of.get(row, _NONE)[0], said)

    def _set(self, row: int, value: bytes, error: bytes) -> None:
        if not value and not error:
            self.forget([row])
            return
        if row >= len(self._known):
            more = np.zeros(max(row + 1, 2 * len(self._known)), np.bool_)
            more[: len(self._known)] = self._known
            self._known = more
        self._known[row] = True
        self.of[row] = value, error

    def forget(self, rows: Iterable[int]) -> None:
        """Jobs are no more."""
        for row in rows:
            if self.of.pop(row, None) is not None:
                self._known[row] = False

    def take(self, entries: list[list[Any]]) -> None:
        """A piece of a snapshot."""
        for row, value, error in entries:
            self._set(row, value, error)


__all__ = ["Lasts"]

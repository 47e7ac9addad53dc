"""What leaves the state for history: finished runs, folded into blocks, and changes of jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ..model.nouns import US
from ..state import changelog
from . import forgetting
from .turn import Later

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .core import Core

FOLD_ROWS: Final = 4_096
CHANGES_KEPT_MAX: Final = 4_096  # changes of jobs that are kept in the state
HOUSEKEEPING_US: Final = 60 * US


class Housekeeping:
    """When what is done."""

    def __init__(self, mono_us: int) -> None:
        self.next_us = mono_us  # monotonic
        self._counted = self._changed = 0  # entries of state.changes that were counted, and how many changes they hold
        self._forgetting: Iterator[None] | None = None  # what is under way

    def go_on(self, core: Core) -> None:
        """One turn's share."""
        finished = core.state.runs.list_len(1)
        overdue = core.now.mono_us >= self.next_us
        if finished >= FOLD_ROWS or (finished and overdue):
            fold(core)
            core.effects.again |= finished > FOLD_ROWS
        entries = core.state.changes
        self._changed += sum(map(len, entries[self._counted :]))
        self._counted = len(entries)
        if self._changed >= CHANGES_KEPT_MAX or (self._changed and overdue):
            core.effects.history.append(changelog.pack(entries, core.state.elapsed.us))
            core.record("TOLD", {"count": len(entries)})
            self._counted = self._changed = 0
        if overdue:
            self.next_us = core.now.mono_us + HOUSEKEEPING_US
            self._forgetting = forgetting.forget(core)
        if self._forgetting is not None:
            if next(self._forgetting, self) is self:
                self._forgetting = None
            core.effects.again |= self._forgetting is not None


def behind(core: Core) -> bool:
    """Is more finished than one turn can move to history?"""
    return core.state.runs.list_len(1) > 2 * FOLD_ROWS


def fold(core: Core) -> None:
    """Move the oldest finished runs to history, one block of them."""
    rows = core.state.runs.peek(1, FOLD_ROWS)
    for sweep in core.sweeps:
        sweep.folded(core, rows)
    core.alarms.wheel.cancel(rows)
    core.deadlines.wheel.cancel(rows)
    core.effects.history.append(core.pack(core.state, rows))
    core.record("FOLD", {"count": len(rows)})


def fold_all(core: Core) -> None:
    """Move everything that is finished to history, now: what a backfill does again must not meet the ledger rows of the past.

    Later: it is more than a turn has room for. Housekeeping moves a block each turn.
    """
    if behind(core):
        raise Later
    while core.state.runs.list_len(1):
        fold(core)


__all__ = ["Housekeeping", "behind", "fold", "fold_all"]

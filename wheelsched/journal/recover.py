"""The state at the end of a journal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..model.errors import CorruptJournalError
from ..state.records import decode
from ..state.state import State

if TYPE_CHECKING:
    from .memory import Journal


def recover(journal: Journal) -> State:
    """The state at the end of a journal: the snapshot, then every record after it. CorruptJournalError for damage."""
    snapshot = journal.snapshot()
    state = State()
    if snapshot is not None:
        position, pieces = snapshot
        state = State.load(pieces)
        if state.meta.seq != position:
            raise CorruptJournalError(f"the snapshot is of record {state.meta.seq}, its place says {position}")
        state.trail.cut(state.meta.seq)
        state.trail.started(state.meta.seq, state.meta.generation)
    for seq, body in journal.replay(state.meta.seq):
        kind, fields = decode(body)
        state.apply(kind, fields)
        assert state.meta.seq == seq
    return state

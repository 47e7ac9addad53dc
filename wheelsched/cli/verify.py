"""Offline check of a data directory: the store, the replay, the invariants of the state, equal digests, and one run record for each
scheduled time of a job.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ..client.values import rfc3339
from ..journal.lmdb_journal import LmdbJournal
from ..model.errors import CorruptJournalError
from ..model.nouns import display_name, to_datetime
from ..server.boot import open_offline
from ..state import records
from ..state.doubles import doubled
from ..state.state import State

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["verify_directory"]

_PIECE_BYTES: Final = 4 * 1024 * 1024
_LISTED_MAX: Final = 100


def verify_directory(directory: str) -> dict[str, Any]:
    """What was looked at and `findings`, one line for each thing that is wrong; `ok` without any.

    LockedError when a server holds it, NotFoundError when there is none, ConfigError when it is no directory, OSError when it may not be
    read. CorruptJournalError when it can't be opened. Nothing is changed in it.
    """
    report: dict[str, Any] = {"directory": directory, "ok": False, "findings": []}
    findings: list[str] = report["findings"]
    with LmdbJournal.open(directory, read_only=True) as journal:
        findings += journal.verify()
        snapshot = journal.snapshot()
        report |= {"identity": journal.identity, "last_record": journal.last_seq, "snapshot_at": None if snapshot is None else snapshot[0]}
        if findings:
            return report
        report["replayed_from_start"] = bool(_whole(journal, findings, report))
    try:
        state = open_offline(directory)
    except CorruptJournalError as e:
        findings.append(e.message)
        return report
    digest = state.digest()
    report |= {"jobs": len(state.jobs), "runs": len(state.runs), "generation": state.meta.generation, "digest": digest}
    findings += _broken(state)
    if report.pop("whole_digest", digest) != digest:
        findings.append("the state by the snapshot and the state by all records differ")
    if open_offline(directory).digest() != digest:
        findings.append("two replays of the same records differ")
    if State.load(_copied(state)).digest() != digest:
        findings.append("a snapshot of the state, read back, differs from it")
    with LmdbJournal.open(directory, read_only=True) as journal:
        findings += _doubled(state, journal)
    report["ok"] = not findings
    return report


def _whole(journal: LmdbJournal, findings: list[str], report: dict[str, Any]) -> bool:
    """Replay every record since the store was made, if none was trimmed away. Puts the digest into the report."""
    try:
        bodies = journal.replay(0)
    except CorruptJournalError:
        return False  # trimmed: the snapshot stands for the first records
    state = State()
    for seq, body in bodies:
        kind, fields = records.decode(body)
        state.apply(kind, fields)
        if state.meta.seq != seq:
            findings.append(f"record {seq} is number {state.meta.seq} of the replay")
            return True
    report["whole_digest"] = state.digest()
    return True


def _broken(state: State) -> list[str]:
    try:
        state.check()
    except AssertionError as e:
        return [f"broken invariant: {e}"]
    return []


def _doubled(state: State, journal: LmdbJournal) -> list[str]:
    found = doubled(state, journal.history_blocks)
    listed = [(display_name(name), n, rfc3339(to_datetime(at))) for name, at, n in found[:_LISTED_MAX]]
    lines = [f"job {name}: {n} run records of {at}, where one may be" for name, n, at in listed]
    return lines + [f"and {len(found) - _LISTED_MAX} more such scheduled times"] * (len(found) > _LISTED_MAX)


def _copied(state: State) -> Iterator[bytes]:
    for pieces in state.copy(_PIECE_BYTES):
        yield from pieces

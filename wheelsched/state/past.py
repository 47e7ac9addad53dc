"""The past of a run, as it is kept in one byte string: MessagePack values behind each other, an array for each ended attempt and a
map for each completion that was refused. Pure.
"""

from __future__ import annotations

from typing import Any, Final

import msgpack

from ..model.nouns import Outcome

SNOOZES_KEPT: Final = 20  # of a run: the latest; a run may snooze for ever


def with_attempt(history: bytes, row: Any, started_us: int, ended_us: int, outcome: int, result: bytes) -> bytes:
    """One ended attempt behind the others; the oldest snoozes make room for the latest."""
    data: bytes = msgpack.packb(
        [int(row["attempt"]), int(row["token"]), int(row["worker"]), started_us, ended_us, outcome, result], use_bin_type=True
    )
    if outcome == Outcome.SNOOZED and row["snoozes"] >= SNOOZES_KEPT:
        kept = _entries(history)
        snoozes = [i for i, entry in enumerate(kept) if isinstance(entry, list) and entry[5] == Outcome.SNOOZED]
        for i in reversed(snoozes[: len(snoozes) - SNOOZES_KEPT + 1]):
            del kept[i]
        history = b"".join(msgpack.packb(entry, use_bin_type=True) for entry in kept)
    return history + data


def pack_stale(token: int, worker: int, outcome: int, at_us: int) -> bytes:
    """One refused completion."""
    data: bytes = msgpack.packb({"token": token, "worker": worker, "outcome": outcome, "at_us": at_us}, use_bin_type=True)
    return data


def _entries(data: bytes) -> list[Any]:
    unpacker = msgpack.Unpacker(raw=False)
    unpacker.feed(data)
    return list(unpacker)


def unpack_past(data: bytes) -> tuple[list[list[Any]], list[dict[str, Any]]]:
    """(attempts, refused completions) kept in `data`, each oldest first."""
    entries = _entries(data)
    return [entry for entry in entries if isinstance(entry, list)], [entry for entry in entries if isinstance(entry, dict)]

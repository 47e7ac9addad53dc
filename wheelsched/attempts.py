"""The past of a run, as it is kept in one byte string: MessagePack values behind each other, an array for each ended attempt and a
map for each completion that was refused. Pure.
"""

from __future__ import annotations

from typing import Any

import msgpack


def pack_attempt(row: Any, started_us: int, ended_us: int, outcome: int, result: bytes) -> bytes:
    """One ended attempt as it is kept behind the others."""
    data: bytes = msgpack.packb(
        [int(row["attempt"]), int(row["token"]), int(row["worker"]), started_us, ended_us, outcome, result], use_bin_type=True
    )
    return data


def pack_stale(token: int, worker: int, outcome: int, at_us: int) -> bytes:
    """One refused completion."""
    data: bytes = msgpack.packb({"token": token, "worker": worker, "outcome": outcome, "at_us": at_us}, use_bin_type=True)
    return data


def unpack_past(data: bytes) -> tuple[list[list[Any]], list[dict[str, Any]]]:
    """(attempts, refused completions) kept in `data`, each oldest first."""
    attempts: list[list[Any]] = []
    stale: list[dict[str, Any]] = []
    unpacker = msgpack.Unpacker(raw=False)
    unpacker.feed(data)
    for entry in unpacker:
        if isinstance(entry, list):
            attempts.append(entry)
        else:
            stale.append(entry)
    return attempts, stale

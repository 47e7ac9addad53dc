"""Ended attempts of a run, as they are kept in one byte string behind each other. Pure."""

from __future__ import annotations

from typing import Any

import msgpack


def pack_attempt(row: Any, started_us: int, ended_us: int, outcome: int, result: bytes) -> bytes:
    """One ended attempt as it is kept behind the others."""
    data: bytes = msgpack.packb(
        [int(row["attempt"]), int(row["token"]), int(row["worker"]), started_us, ended_us, outcome, result], use_bin_type=True
    )
    return data


def unpack_attempts(data: bytes) -> list[list[Any]]:
    """The attempts kept in `data`, oldest first."""
    unpacker = msgpack.Unpacker(raw=False)
    unpacker.feed(data)
    return list(unpacker)

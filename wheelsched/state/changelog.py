"""Who changed a job, when, from what to what: kept in the state until it goes to history, in columns. Pure.

One entry is one record's worth of changes. In history an entry is a block of its own kind, told by its first byte.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import msgpack
import numpy as np

from ..model.columns import decode_column, encode_column
from ..model.errors import CorruptJournalError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

KEY_SIZE: Final = 10
MARK: Final = b"\xc1"  # MessagePack never begins with it: a block of runs does not either
NO_SPEC: Final = 0xFFFFFFFF
VERSION: Final = 2
READABLE: Final = frozenset({1, 2})  # 2 added when the block was made
PAYLOAD_SHOWN: Final = 4_096  # bytes
SEEN, SKIP, UNDO, MOVE, BACKFILL = range(5)  # what: told by the old and the new side; or about single occurrences
_COLUMNS: Final = (
    ("what", "u1"), ("version", "<u4"), ("old_spec", "<u4"), ("old_param", "<i8"), ("old_state", "u1"), ("spec", "<u4"), ("param", "<i8"),
    ("state", "u1"),
)


@dataclass(slots=True)
class Changes:
    """The changes of one record: a row for each job in `keys`, 10 bytes a job. Old columns hold NO_SPEC where there was no job.

    What was done to single occurrences is told by `what` and the note; both sides are the same then. `payloads`: [row, old, new] where a
    job's payload changed; what is longer than PAYLOAD_SHOWN is left out (nil).
    """

    at_us: int
    uid: int
    keys: bytes
    columns: dict[str, NDArray[Any]]
    notes: list[list[Any]]  # [row, text]
    payloads: list[list[Any]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.keys) // KEY_SIZE

    def to_plain(self) -> list[Any]:
        """Plain data, which `from_plain` reads."""
        columns = [encode_column(np.ascontiguousarray(self.columns[name], dtype)) for name, dtype in _COLUMNS]
        return [self.at_us, self.uid, self.keys, columns, self.notes, self.payloads]

    @classmethod
    def from_plain(cls, data: list[Any]) -> Changes:
        """The entry again."""
        at_us, uid, keys, columns, notes, payloads = data
        decoded = {name: decode_column(column) for (name, _), column in zip(_COLUMNS, columns, strict=True)}
        return cls(at_us, uid, keys, decoded, notes, payloads)

    def of(self, key: bytes) -> list[dict[str, Any]]:
        """The rows of one job, as plain numbers; most often none or one."""
        found = []
        at = self.keys.find(key)
        while at >= 0:
            if at % KEY_SIZE == 0:
                row = at // KEY_SIZE
                values = {name: int(self.columns[name][row]) for name, _ in _COLUMNS}
                note = next((text for i, text in self.notes if i == row), "")
                payload = next(((old, new) for i, old, new in self.payloads if i == row), None)
                found.append({"at_us": self.at_us, "uid": self.uid, "note": note, "payload": payload, **values})
            at = self.keys.find(key, at + 1)
        return found


def pack(entries: Iterable[Changes], elapsed_us: int) -> bytes:
    """One block for history, made at that elapsed time."""
    data: bytes = msgpack.packb([VERSION, [entry.to_plain() for entry in entries], elapsed_us], use_bin_type=True)
    return MARK + data


def unpack(block: bytes) -> list[Changes]:
    """The entries of a block. CorruptJournalError for rubbish and for another version."""
    try:
        version, entries, *_ = msgpack.unpackb(block[len(MARK) :], raw=False)
    except (ValueError, TypeError) as e:
        raise CorruptJournalError(f"block of changes can't be read: {e}") from e
    if version not in READABLE:
        raise CorruptJournalError(f"block of changes of version {version}; this program reads up to {VERSION}")
    return [Changes.from_plain(entry) for entry in entries]


def made_us(block: bytes) -> int | None:
    """When a block was made, in elapsed time; None for an older one, which does not say."""
    made = msgpack.unpackb(block[len(MARK) :], raw=False)[2:]
    return int(made[0]) if made else None


def is_changes(block: bytes) -> bool:
    """Whether a block of history is one of changes, not of runs."""
    return block[:1] == MARK


__all__ = ["BACKFILL", "MOVE", "NO_SPEC", "PAYLOAD_SHOWN", "SEEN", "SKIP", "UNDO", "Changes", "is_changes", "made_us", "pack", "unpack"]

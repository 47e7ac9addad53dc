from typing_extensions import disjoint_base

@disjoint_base
class Rows:
    """Base of JobTable and RunTable: rows of one C struct in chunks of 4,096."""

    count: int
    def __len__(self) -> int: ...
    @property
    def nbytes(self) -> int:
        """Bytes of the chunks (byte strings not counted)."""
    @property
    def chunk_total(self) -> int:
        """How many chunks there are."""
    def dump(self, chunk: int) -> bytes:
        """Bytes of one chunk: used map, rows, byte strings; equal for equal content."""
    def copy_begin(self) -> None:
        """Start a snapshot of this instant; one at a time."""
    def copy_next(self, limit: int) -> list[tuple[int, bytes]]:
        """(chunk, bytes) pieces of about `limit` bytes; empty when the snapshot is complete.

        MemoryError when there was no room for a copy, also when a change wanted it: the snapshot is dropped.
        """
    def copy_drop(self) -> None:
        """End a snapshot, whole or not."""
    def slots(self, start: int = 0, limit: int = 0xFFFFFFFF) -> list[int]:
        """Rows in use from `start` on, ascending, at most `limit`."""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from typing_extensions import disjoint_base

from ._rows import Rows

JOB_DTYPE: Final[np.dtype[Any]]

@disjoint_base
class JobTable(Rows):
    """All jobs. Rows are numbered densely from 0. Instants in microseconds, keys of 10 bytes, names full and in UTF-8."""

    def __new__(cls) -> JobTable: ...
    def find(self, names: list[bytes], keys: bytes) -> NDArray[np.uint32]:
        """Rows by name; 2**32-1 where there is none."""
    def find_key(self, key: bytes) -> int | None:
        """Row by key."""
    def put(
        self, names: list[bytes], keys: bytes, payloads: list[bytes], spec: NDArray[np.uint32], param: NDArray[np.int64],
        next_us: NDArray[np.int64], cursor: NDArray[np.int64], state: NDArray[np.uint8], at: int,
    ) -> NDArray[np.uint32]:
        """Insert or replace by name; the rows."""
    def same(
        self, slots: NDArray[np.uint32], spec: NDArray[np.uint32], param: NDArray[np.int64], payloads: list[bytes]
    ) -> NDArray[np.uint8]:
        """1 where the job in that row has exactly this definition."""
    def gather(self, slots: NDArray[np.uint32]) -> NDArray[Any]:
        """Copies of rows as JOB_DTYPE. IndexError for a row not in use."""
    def names(self, slots: NDArray[np.uint32]) -> list[bytes]:
        """Full names."""
    def payload(self, slot: int) -> bytes:
        """The payload of one job. IndexError for a row not in use."""
    def set(
        self, slots: NDArray[np.uint32], state: NDArray[np.uint8], next_us: NDArray[np.int64], cursor: NDArray[np.int64], at: int
    ) -> None:
        """Change state, next nominal time, cursor; `at` >= 0 counts as an update."""
    def retime(
        self, slots: NDArray[np.uint32], state: NDArray[np.uint8], next_us: NDArray[np.int64], cursor: NDArray[np.int64],
        param: NDArray[np.int64],
    ) -> None:
        """Change state, next nominal time, cursor and anchor; no update of what was asked for."""
    def set_back(self, slots: NDArray[np.uint32], at: int) -> None:
        """The clock went back: what was changed later than `at` counts as of then."""
    def remove(self, slots: NDArray[np.uint32]) -> None:
        """Forget jobs that have no run rows."""
    def load(self, chunk: int, data: bytes) -> None:
        """Read back one dump. ValueError when it doesn't fit."""
    def check(self) -> None:
        """AssertionError naming the first broken invariant."""

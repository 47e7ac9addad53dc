from typing import Final

import numpy as np
from numpy.typing import NDArray
from typing_extensions import disjoint_base

from ._jobs import JobTable
from ._runturns import RunTurns

LONG: Final[int]

@disjoint_base
class RunIndex(RunTurns):
    """Finds runs by id, by job and time, and by token."""

    def __new__(cls, jobs: JobTable, moves: bytes) -> RunIndex: ...
    def exists(self, job: NDArray[np.uint32], nominal: NDArray[np.int64]) -> NDArray[np.uint8]:
        """1 where a row for that job and nominal time is there."""
    def check_index(self) -> None:
        """AssertionError naming the first run that is not found by id or token, or is where it should not be."""

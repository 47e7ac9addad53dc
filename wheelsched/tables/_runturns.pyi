from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from typing_extensions import disjoint_base

from ._jobs import JobTable
from ._rows import Rows

OWN: Final[int]
BACK: Final[int]
BEHIND: Final[int]
APART: Final[int]
RUN_DTYPE: Final[np.dtype[Any]]

@disjoint_base
class RunTurns(Rows):
    """Runs of one job: its chain, and its lines of those that wait for their turn."""

    passed: int
    def __new__(cls, jobs: JobTable, moves: bytes) -> RunTurns: ...
    def stand(self, slots: NDArray[np.uint32]) -> None:
        """Scheduled runs whose instant has come wait for their turn."""
    def step_out(self, slots: NDArray[np.uint32]) -> None:
        """Runs in line wait for an instant instead."""
    def lines_of(self, job: int) -> list[int]:
        """The lines of a job in which runs stand, ascending."""
    def heads(self, job: int, line: int, n: int) -> list[tuple[int, int]]:
        """The first n of a line, in order: (place, row)."""
    def in_line(self, job: int, line: int) -> NDArray[np.uint32]:
        """All rows of a line, in no order."""
    def turns(self, slots: NDArray[np.uint32]) -> list[int]:
        """Rows of the jobs behind these runs that have runs in line."""
    def jobs_in_line(self) -> list[int]:
        """Rows of all jobs that have runs in line."""
    def making_up(self, job: int) -> tuple[int, int, int]:
        """(waiting, active, active with a limit of their own) of a job's runs that make up for the past."""
    def any_makes_up(self) -> bool:
        """Whether any job has open runs that make up for the past."""
    def text_id(self, slot: int) -> str:
        """The run id as 32 hex digits."""
    def gather(self, slots: NDArray[np.uint32]) -> NDArray[Any]:
        """Copies of rows as RUN_DTYPE. IndexError for a row not in use."""
    def of_job(self, job: int) -> list[int]:
        """Rows of one job's runs, in no order."""
    def chained(self, job: int, ended: bool) -> NDArray[np.uint32]:
        """Rows of a job's runs that have ended, the latest first; or of those that are open and stand in no line."""
    def in_the_way(self, job: int) -> int | None:
        """Row of the run that keeps a job busy: its oldest open one, one that a worker may have before one that waits."""
    def check_turns(self) -> None:
        """AssertionError naming the first broken invariant of chains, lines and counts."""

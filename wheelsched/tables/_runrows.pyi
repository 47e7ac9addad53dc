
from typing_extensions import disjoint_base

from ._jobs import JobTable
from ._runindex import RunIndex

@disjoint_base
class RunRows(RunIndex):
    """The rows of all runs with their lists."""

    order: int
    left: list[tuple[int, int]]
    def __new__(cls, jobs: JobTable, moves: bytes) -> RunRows: ...
    def new_list(
        self, queue: int = ..., key: int = 0, job: int = 0, job_most: int = 0, group: int = 0, task: int = 0, priority: int = 0,
        backlog: bool = False, expires_us: int = -1,
    ) -> int:
        """Number of a new empty list. A ready line has a queue, and perhaps a key; `job`: the key that stands for a job with a
        concurrency of its own, `job_most`; `group`: its namespace in its queue; `expires_us`: the deadline for a start, after nominal."""
    def new_queue(self) -> int:
        """Number of a new queue, whose leases are counted."""
    def new_key(self) -> int:
        """Number of a new concurrency key, whose leases are counted. Key 0 is there: no key."""
    def leased(self, queue: int) -> int:
        """How many runs of a queue are leased."""
    def list_len(self, list_id: int) -> int:
        """How many runs are in a list."""
    def set_spec(self, spec: int, line: int, backlog: int, attempts: int, again: int = ..., again_backlog: int = ...) -> None:
        """Ready line, line of catch-up and backfill, and attempts of the runs of a spec; `again`: these lines for started ones."""
    def load(self, chunk: int, data: bytes) -> None:
        """Read back one dump; all chunks come before `rebuild`. ValueError when it doesn't fit."""
    def rebuild(self, worker_lists: dict[int, int]) -> None:
        """Put loaded runs into their lists; `worker_lists`: worker id -> list."""
    def check(self) -> None:
        """AssertionError naming the first broken invariant."""

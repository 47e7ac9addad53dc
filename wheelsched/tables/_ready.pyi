import numpy as np
from numpy.typing import NDArray
from typing_extensions import disjoint_base

from ._runrows import RunRows

@disjoint_base
class Ready:
    """Whose turn it is among the ready lines of a run table."""

    visit_us: int
    def __new__(cls, runs: RunRows, step_us: int) -> Ready: ...
    def weigh(self, group: int, weight: int) -> None:
        """The weight of a namespace in its queue; 1 unless it was told."""
    def look(
        self, tasks: NDArray[np.uint8], queues: NDArray[np.uint8], key_most: NDArray[np.int64], rated: NDArray[np.uint8],
        unlimited: bool = False,
    ) -> tuple[list[int], list[int], list[int]]:
        """Find lines: the queues that have such, keys under a rate, and the queue of each of these."""
    def queue_left(self, queue: int, left: int) -> None:
        """What the limits of a queue leave, after `look`."""
    def key_left(self, key: int, left: int) -> None:
        """What the rate of a key leaves, after `look`."""
    def take(
        self, wall_us: int, mono_us: int, credit: int, sharing: int, costs: NDArray[np.float64], budget: float,
    ) -> NDArray[np.uint32]:
        """Rows for one of `sharing` workers that ask, in the order in which they go."""
    def before(self, run: int, limit: int, wall_us: int) -> tuple[NDArray[np.uint32], bool]:
        """(rows that would be taken before this one, True), or (the first `limit`, False), after `look`."""

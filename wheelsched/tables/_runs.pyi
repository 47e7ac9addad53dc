from typing import Final

import numpy as np
from numpy.typing import NDArray

from ._runrows import RunRows

FINISHED: Final[int]
DEAD_LETTERS: Final[int]
NO_ROW: Final[int]

class RunTable(RunRows):
    """All runs that are open, dead letters, or finished and not yet folded. ValueError for an illegal transition: nothing changes."""

    def due(
        self, job: NDArray[np.uint32], nominal: NDArray[np.int64], state: NDArray[np.uint8], disposition: NDArray[np.uint8],
        reason: NDArray[np.uint8], until: NDArray[np.int64], count: NDArray[np.uint32], missed: NDArray[np.uint32], at: int,
    ) -> NDArray[np.uint32]:
        """One row for each decided occurrence; one that the same run blocks as the one before lengthens that one's row."""
    def enqueue(
        self, job: NDArray[np.uint32], ids: bytes, spec: NDArray[np.uint32], trigger: NDArray[np.uint8], nominal: NDArray[np.int64],
        due: NDArray[np.int64], state: NDArray[np.uint8], payloads: list[bytes], at: int,
    ) -> NDArray[np.uint32]:
        """Runs with ids and payloads of their own; an empty payload stands for the job's."""
    def wake(self, slots: NDArray[np.uint32], at: int) -> None:
        """Scheduled and waiting runs enter their ready lines."""
    def grant(self, slots: NDArray[np.uint32], worker: int, list_id: int, token: int, at: int) -> None:
        """Lease queued runs, tokens counting up; an attempt is spent."""
    def give_back(self, slots: NDArray[np.uint32]) -> None:
        """Leased runs return to their place unspent."""
    def finish(
        self, slots: NDArray[np.uint32], event: NDArray[np.uint8], outcome: NDArray[np.uint8], started: NDArray[np.int64],
        ended: NDArray[np.int64], due: NDArray[np.int64], results: dict[int, bytes], histories: dict[int, bytes],
    ) -> None:
        """End attempts."""
    def redrive(self, slots: NDArray[np.uint32], due: NDArray[np.int64], at: int) -> None:
        """Dead letters get all their attempts anew: at once, or from an instant later than `at` on."""
    def send_back(self, slots: NDArray[np.uint32], due: NDArray[np.int64], count: NDArray[np.uint32], at: int) -> None:
        """As `redrive`, and they wait for their turn: from now on (`due` negative), or from an instant on; `count` as of a backfill."""
    def change(self, slots: NDArray[np.uint32], event: int, at: int) -> None:
        """Cancel or discard."""
    def set_history(self, slot: int, history: bytes) -> None:
        """Replace what is packed of one run's past."""
    def ask_cancel(self, slots: NDArray[np.uint32]) -> None:
        """Mark leased runs as to be cancelled."""
    def supersede(self, slots: NDArray[np.uint32], disposition: NDArray[np.uint8], reason: NDArray[np.uint8], at: int) -> None:
        """Runs that only waited become ledger rows."""
    def rearm(self, slots: NDArray[np.uint32], due: NDArray[np.int64]) -> None:
        """Scheduled runs get another instant."""
    def let_go(self, slots: NDArray[np.uint32], payload: bytes, at: int) -> None:
        """A run whose group has ended enters its ready line with another payload; this is its nominal time."""
    def expire(self, slots: NDArray[np.uint32], at: int, reason: int = ...) -> None:
        """Runs that were not started by their deadline, or whose group did not succeed, are cancelled."""
    def mark(self, slots: NDArray[np.uint32], flag: int) -> None:
        """Runs that were not started in time, or whose hooks were called."""
    def withdraw(self, slots: NDArray[np.uint32], until: NDArray[np.int64], count: NDArray[np.uint32]) -> None:
        """Ledger rows beyond a clock that went back: shortened, or (count 0) taken away."""
    def fold(self, count: int) -> None:
        """Forget the oldest finished rows."""
    def find(self, ids: bytes) -> NDArray[np.uint32]:
        """Rows of run ids of 16 bytes each; NO_ROW where there is none."""
    def held(self, ids: bytes, tokens: NDArray[np.int64], worker: int = 0) -> tuple[NDArray[np.uint32], NDArray[np.uint8]]:
        """(rows, verdict): 1 held under that token (by `worker`, unless 0), 2 stale, 3 ended before under it, 4 another's."""
    def peek(self, list_id: int, limit: int, behind: int = 0) -> NDArray[np.uint32]:
        """The first rows of a list; those alone that entered it behind a place."""
    def ready(self) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """Ready lines that are not empty: rows list, waiting, leased of its queue, leased of its key, queue, key, leased of its job;
        and since when (in microseconds) the head of each has waited."""
    def blobs(self, slot: int) -> tuple[bytes, bytes, bytes]:
        """(payload, result, history) of one run."""
    def joined(self, slots: NDArray[np.uint32], what: str) -> tuple[bytes, NDArray[np.uint32]]:
        """A byte string of each run joined, and their ends: `what` is job, payload, result or history."""
    def ids(self, slots: NDArray[np.uint32]) -> bytes:
        """Run ids, 16 bytes each."""

"""What is known of open attempts beyond the records: soft state, in no digest, forgotten when an attempt ends and at a restart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from .model import NEVER

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(slots=True)
class Beat:
    """What an attempt has told of itself by heartbeats; there is one as soon as user code was entered."""

    run_id: bytes
    due_us: int = NEVER  # monotonic; when it has been silent for too long
    at_us: int | None = None  # wall clock of its own last heartbeat
    progress: str | None = None


class Live(dict[int, int]):
    """Token whose user code was entered -> its worker, as the pool sees it. `beats`: token -> what was told on the wire."""

    def __init__(self) -> None:
        super().__init__()
        self.beats: dict[int, Beat] = {}
        self.wake_us = NEVER  # monotonic; not later than the first `due_us`

    def see(self, running: dict[int, int]) -> Live:
        """What the pool sees now."""
        self.clear()
        self.update(running)
        return self

    def forget(self, tokens: NDArray[np.int64]) -> None:
        """These attempts have ended."""
        if self.beats:
            known = np.fromiter(self.beats, np.int64)
            for token in known[np.isin(known, tokens)].tolist():
                del self.beats[token]

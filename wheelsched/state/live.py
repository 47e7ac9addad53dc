"""What is known of open attempts beyond the records: soft state, in no digest, forgotten when an attempt ends and at a restart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgpack
import numpy as np

from ..model.nouns import NEVER, OUTPUT_MAX
from ..model.tape import Tape

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(slots=True)
class Beat:
    """What an attempt has told of itself by heartbeats; there is one as soon as user code was entered."""

    run_id: bytes
    seen_us: int  # wall clock, of the first of them
    over_us: int = NEVER  # monotonic; when its timeout is over, for the server
    due_us: int = NEVER  # when it has been silent for too long
    at_us: int | None = None  # wall clock of its own last heartbeat
    progress: str | None = None


OUTPUTS_MAX: Final = 64 * 1024 * 1024  # bytes of outputs from which on
OUTPUT_LEAST: Final = 1_024  # so many of each stream are kept


class Live(dict[int, int]):
    """Token whose user code was entered -> its worker, as the pool sees it. `beats`: token -> what was told on the wire. `outputs`:
    token -> what its run has printed so far, by stream.
    """

    def __init__(self) -> None:
        super().__init__()
        self.beats: dict[int, Beat] = {}
        self.outputs: dict[int, dict[str, Tape]] = {}
        self.since: dict[int, int] = {}  # token -> when user code was entered, wall clock; as far as that is known
        self.asked: dict[int, str | None] = {}  # token -> its stack, that somebody has asked for; None: not told yet
        self._limits = 0  # of the tapes, together
        self.wake_us = NEVER  # monotonic; not later than the first `over_us` and `due_us`

    def see(self, running: dict[int, int], since: dict[int, int]) -> Live:
        """What the pool sees now; `since` when (wall clock)."""
        self.clear()
        self.update(running)
        self.since = since
        return self

    def started_us(self, token: int) -> int:
        """When user code of an open attempt was entered; of an external worker's, when its heartbeat first said so. 0: not known."""
        beat = self.beats.get(token)
        return self.since.get(token, 0 if beat is None else beat.seen_us)

    def forget(self, tokens: NDArray[np.int64]) -> None:
        """These attempts have ended."""
        for token in self._printed(tokens):
            self._limits -= sum(tape.limit for tape in self.outputs.pop(token).values())
        if self.beats:
            known = np.fromiter(self.beats, np.int64)
            for token in known[np.isin(known, tokens)].tolist():
                del self.beats[token]

    def printed(self, token: int, output: dict[str, tuple[int, bytes]]) -> None:
        """An attempt has printed this: by stream, behind how many bytes."""
        tapes = self.outputs.setdefault(token, {})
        for stream, (at, data) in output.items():
            if stream not in tapes:
                tapes[stream] = Tape(OUTPUT_MAX if self._limits < OUTPUTS_MAX else OUTPUT_LEAST)
                self._limits += tapes[stream].limit
            tapes[stream].add_at(at, data)

    def output(self, token: int) -> dict[str, Any]:
        """What an attempt has printed so far, as entries of a result map."""
        found: dict[str, Any] = {}
        for stream, tape in self.outputs.get(token, {}).items():
            found[stream], cut = tape.text()
            if cut:
                found[f"{stream}_cut"] = cut
        return found

    def with_outputs(self, tokens: NDArray[np.int64], results: dict[int, bytes]) -> dict[int, bytes]:
        """Results by place, with the outputs of those attempts that ended without telling theirs: their worker is gone, or was killed."""
        known = self._printed(tokens)
        if not known:
            return results
        results = dict(results)
        for i in np.flatnonzero(np.isin(tokens, known)).tolist():
            told = msgpack.unpackb(results[i], raw=False) if i in results else {}
            output = self.output(int(tokens[i]))
            missing = {name: value for name, value in output.items() if name.removesuffix("_cut") not in told}
            if missing:
                results[i] = msgpack.packb({**told, **missing}, use_bin_type=True)
        return results

    def _printed(self, tokens: NDArray[np.int64]) -> list[int]:
        if not self.outputs:
            return []
        known = np.fromiter(self.outputs, np.int64)
        found: list[int] = known[np.isin(known, tokens)].tolist()
        return found

"""What has ended in an executor, perhaps unknown to the server, where it outlives the process: at the end of the started file.

A run can end the process that it is in. What that process had finished before is not run again for it: the parent reads
here how each run ended and what it gave. Rows are those of the batch in hand. A row counts once its end is written, which
happens last; a row's result lies in a log that the executor empties when it is full, by reporting what is in it.

A report that was sent is not one that the server has on disk: a server that is killed in between leaves the runs to the next
one, which looks here. So an area is written anew only when its reports were answered. Batches take two areas in turn: the
answers have come, as a rule, when it is an area's turn again.
"""

from __future__ import annotations

from typing import Any, Final

import msgpack

from ..model.nouns import Ended, Outcome

ROWS_MAX: Final = 16_384  # of a batch
RESULT_BYTES: Final = 256 * 1024  # of the log: any one result fits
HEAD_BYTES: Final = 64
AREA_BYTES: Final = HEAD_BYTES + ROWS_MAX * (8 + 8 + 1) + RESULT_BYTES
ENDED: Final = frozenset({Outcome.SUCCEEDED, Outcome.FAILED, Outcome.TIMED_OUT, Outcome.CANCELLED, Outcome.SNOOZED})
# Words of the head. FROM: reports of the rows below were answered, and their results may be gone from the log.
(K_ROWS, K_FROM, K_USED, K_BEGUN_NS, K_OFFSET_NS) = range(5)


class Kept:
    """One area, mapped by the executor and its parent."""

    def __init__(self, area: memoryview) -> None:
        """`area`: AREA_BYTES bytes."""
        at = [HEAD_BYTES, HEAD_BYTES + 8 * ROWS_MAX, HEAD_BYTES + 16 * ROWS_MAX, HEAD_BYTES + 17 * ROWS_MAX]
        self._words = area[: at[0]].cast("q")
        self._tokens = area[at[0] : at[1]].cast("q")
        self.ended_ns = area[at[1] : at[2]].cast("q")
        self.outcome = area[at[2] : at[3]]
        self._log = area[at[3] :]  # (row, result map), packed
        self._pack = msgpack.Packer(use_bin_type=True).pack
        self.reports: list[int] = []  # numbers of the requests that tell the server of these rows

    def begin(self, token_column: bytes, now_ns: int, offset_ns: int) -> None:
        """A batch is about to be executed: `ended_ns` and `outcome` are its columns now. `offset_ns` makes monotonic instants wall time."""
        words, n = self._words, len(token_column) // 8
        words[K_ROWS] = 0
        self.reports.clear()
        self.ended_ns[:n] = memoryview(bytes(8 * n)).cast("q")
        self._tokens[:n] = memoryview(token_column).cast("q")
        self.outcome[:n] = bytes([Outcome.SUCCEEDED]) * n
        words[K_FROM] = words[K_USED] = 0
        words[K_BEGUN_NS], words[K_OFFSET_NS] = now_ns, offset_ns
        words[K_ROWS] = n

    def put(self, row: int, result: dict[str, Any]) -> bool:
        """Keep a row's result; the last one counts. False when there is no room."""
        data = self._pack((row, result))
        start = self._words[K_USED]
        end = start + len(data)
        if end > RESULT_BYTES:
            return False
        self._log[start:end] = data
        self._words[K_USED] = end
        return True

    def forget(self, upto: int) -> None:
        """The server has answered the reports of the rows below: make room."""
        self.reports.clear()
        self._words[K_FROM] = upto
        self._words[K_USED] = 0

    def read(self) -> dict[int, Ended]:
        """{token: how it ended}; once the process is gone. Nothing when user code that wrote where it should not has spoilt it."""
        words = self._words
        n, used, offset_ns = words[K_ROWS], words[K_USED], words[K_OFFSET_NS]
        try:
            log = msgpack.Unpacker(raw=False)
            log.feed(self._log[:used])
            results = {int(row): dict(result) for row, result in log}
        except (TypeError, ValueError):
            return {}
        if log.tell() != used:
            return {}
        found = {}
        before = words[K_BEGUN_NS]
        for row in range(words[K_FROM], min(n, ROWS_MAX)):
            ended, outcome = self.ended_ns[row], self.outcome[row]
            if ended and outcome in ENDED:
                begun_us, ended_us = (before + offset_ns) // 1_000, (ended + offset_ns) // 1_000
                found[self._tokens[row]] = Ended(outcome, begun_us, ended_us, results.get(row, {}))
            before = ended or before
        return found

    def close(self) -> None:
        """Release the views; the file stays."""
        for view in (self._words, self._tokens, self.ended_ns, self.outcome, self._log):
            view.release()

"""The records about attempts: leases, endings, what is kept of them for later ones. `State` is built on it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..model import plain
from ..model.nouns import Event, Reason, RunFlag, RunState
from .last_results import Lasts
from .past import pack_stale, with_attempt
from .workers import WorkerRecords

if TYPE_CHECKING:
    from numpy.typing import NDArray


class AttemptRecords(WorkerRecords):
    """Part of State."""

    def __init__(self) -> None:
        super().__init__()
        self.checkpoints: dict[int, bytes] = {}  # run row -> what its next attempt goes on from; none for a run that is over
        self.lasts = Lasts()

    def next_token(self) -> int:
        """The next fencing token: 31 bits generation, 32 bits counter."""
        assert self.meta.tokens < 2**32, "the tokens of this generation are used up: restart"
        return self.meta.generation << 32 | self.meta.tokens

    def _grant(self, f: dict[str, Any]) -> None:
        assert f["token"] == self.next_token(), "tokens only grow"
        worker = self.workers[f["worker"]]
        self.runs.grant(f["run"], f["worker"], worker.list_id, f["token"], f["at"])
        self.meta.tokens += len(f["run"])

    def _finish(self, f: dict[str, Any]) -> None:
        results = dict(f["result"])
        retried = np.flatnonzero((f["event"] == plain.EVENT_RETRY) | (f["event"] == plain.EVENT_SPARE)).tolist()
        histories = {}
        if retried:
            rows = self.runs.gather(f["run"][retried])
            for i, row in zip(retried, rows, strict=True):
                history = self.runs.blobs(int(f["run"][i]))[2]
                histories[i] = with_attempt(
                    history, row, int(f["started"][i]), int(f["ended"][i]), int(f["outcome"][i]), results.get(i, b"")
                )
        self.runs.finish(f["run"], f["event"], f["outcome"], f["started"], f["ended"], f["due"], results, histories)
        self._drop_checkpoints(f["run"])
        if results or self.lasts.of:
            self.lasts.ended(self.runs.gather(f["run"]), f["event"], results)

    def _give_back(self, f: dict[str, Any]) -> None:
        self.runs.give_back(f["run"])

    def _stale(self, f: dict[str, Any]) -> None:
        for row, token, outcome in zip(f["run"].tolist(), f["token"].tolist(), f["outcome"].tolist(), strict=True):
            self.runs.set_history(row, self.runs.blobs(row)[2] + pack_stale(token, f["worker"], outcome, f["at"]))

    def _ask_cancel(self, f: dict[str, Any]) -> None:
        self.runs.ask_cancel(f["run"])

    def _runs(self, f: dict[str, Any]) -> None:
        rows = f["run"]
        if f["event"] == Event.REDRIVE:
            self._redrive({"at": f["at"], "run": rows, "due": np.full(len(rows), f["at"], np.int64)})
        else:
            self.runs.change(rows, f["event"], f["at"])
        self._drop_checkpoints(rows)

    def _deleted(self, f: dict[str, Any]) -> None:
        self.runs.expire(f["run"], f["at"], Reason.DELETED)
        self.runs.mark(f["held"], RunFlag.ORPHANED)
        self._drop_checkpoints(f["run"])

    def _redrive(self, f: dict[str, Any]) -> None:
        before = self.runs.gather(f["run"])
        self.runs.redrive(f["run"], f["due"], f["at"])
        self._keep_last(f["run"], before)

    def _send_back(self, f: dict[str, Any]) -> None:
        before = self.runs.gather(f["run"])
        self.runs.send_back(f["run"], f["due"], f["count"], f["at"])
        self._keep_last(f["run"], before)

    def _keep_last(self, rows: NDArray[np.uint32], before: NDArray[Any]) -> None:
        """The last attempt of dead letters that are sent back is one of those before."""
        for slot, row in zip(rows.tolist(), before, strict=True):
            _, result, history = self.runs.blobs(slot)
            times = int(row["started_us"]), int(row["ended_us"])
            self.runs.set_history(slot, with_attempt(history, row, *times, int(row["outcome"]), result))

    def _checkpoint(self, f: dict[str, Any]) -> None:
        self.checkpoints.update(zip(f["run"].tolist(), f["checkpoint"], strict=True))

    def _drop_checkpoints(self, rows: NDArray[np.uint32]) -> None:
        """Of runs that are over. A dead letter keeps its own: redriven, it goes on from there."""
        if self.checkpoints:
            known = rows[np.isin(rows, np.fromiter(self.checkpoints, np.uint32))]
            fields = self.runs.gather(known)
            kept = (fields["state"] == RunState.DEAD) & (fields["flags"] & RunFlag.DISCARDED == 0)
            for row in known[(fields["state"] > RunState.RETRY_WAIT) & ~kept].tolist():
                del self.checkpoints[row]

"""The records about workers: who is there, whose they are, what they announced of tasks. `State` is built on it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .nouns import ANYBODY, Worker

if TYPE_CHECKING:
    from ..tables._runs import RunTable
    from .nouns import Meta


class WorkerRecords:
    """Part of State."""

    runs: RunTable
    meta: Meta

    def __init__(self) -> None:
        self.workers: dict[int, Worker] = {}
        self.announced: dict[str, dict[str, Any]] = {}  # task -> its decorator's values, as a worker last told them
        self.announcers: dict[str, int] = {}  # task -> who told them: see announcements

    def _worker(self, f: dict[str, Any]) -> None:
        if f["gone"]:
            gone = self.workers.pop(f["id"])
            assert self.runs.list_len(gone.list_id) == 0, "a worker that is gone holds no lease"
            return
        self.workers[f["id"]] = Worker(f["name"], f["kind"], self.meta.generation, self.runs.new_list())
        self.meta.next_worker = max(self.meta.next_worker, f["id"] + 1)

    def _whose(self, f: dict[str, Any]) -> None:
        worker = self.workers[f["id"]]
        worker.uid, worker.proof = f["uid"], f["proof"]

    def _announce(self, f: dict[str, Any]) -> None:
        self._announced({"by": ANYBODY, "free": [], "gone": [], **f})

    def _announced(self, f: dict[str, Any]) -> None:
        self.announced.update(f["tasks"])
        self.announcers.update(dict.fromkeys(f["tasks"], f["by"]))
        self.announcers.update(dict.fromkeys(f["free"], ANYBODY))
        for task in f["gone"]:
            del self.announced[task], self.announcers[task]

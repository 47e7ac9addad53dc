"""How many active jobs name tasks that no worker serves. Soft."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from ..model.nouns import TASKS_TOLD_MAX, JobState

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..state.state import State
PIECE: Final = 20_000  # jobs that one question looks at


class JobCensus:
    """Counts the active jobs of each definition, a piece with each question: with many jobs the answer is a few questions old."""

    def __init__(self) -> None:
        self._counted: dict[int, int] = {}
        self._under_way: dict[int, int] = {}
        self._start = 0
        self._specs: dict[str, list[int]] = {}  # task -> its definitions, of the first so many
        self._known = 0

    def unserved(self, state: State, known: frozenset[str]) -> dict[str, int]:
        """{task: its active jobs} of the tasks that are not among the `known` ones."""
        for n in range(self._known, len(state.specs)):
            self._specs.setdefault(state.specs[n]["task"], []).append(n)
        self._known = len(state.specs)
        strange = [n for task, specs in self._specs.items() if task not in known for n in specs]
        if not strange:
            return {}
        self._look(state, np.array(strange, np.uint32))
        out: dict[str, int] = {}
        for spec, n in self._counted.items():
            task = state.specs[spec]["task"]
            if n and task not in known:
                out[task] = out.get(task, 0) + n
        return dict(sorted(out.items())[:TASKS_TOLD_MAX])

    def _look(self, state: State, specs: NDArray[np.uint32]) -> None:
        jobs = state.jobs
        rows = np.array(jobs.slots(self._start, PIECE), np.uint32)
        if len(rows):
            fields = jobs.gather(rows)
            picked = np.flatnonzero((fields["state"] == JobState.ACTIVE) & np.isin(fields["spec"], specs))
            names = jobs.names(np.ascontiguousarray(rows[picked])) if len(picked) else []
            for spec, name in zip(fields["spec"][picked].tolist(), names, strict=True):
                if b"/~" not in name:  # of runs of enqueue, which are counted where they wait
                    self._under_way[spec] = self._under_way.get(spec, 0) + 1
            self._start = int(rows[-1]) + 1
        if len(rows) < PIECE:
            self._counted, self._under_way, self._start = self._under_way, {}, 0

"""Which tasks the workers serve, and what is said of jobs whose task none of them does. Pure; nothing here is recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from ..model.nouns import BUILTIN_FLAGS, TASKS_TOLD_MAX, JobState, unserved

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from .engine import Engine

PIECE: Final = 20_000  # jobs that one question looks at


def served(engine: Engine) -> frozenset[str]:
    """The tasks that some worker serves."""
    return frozenset().union(*(s.tasks for s in engine.sessions.values() if not s.lost))


def any_ready(engine: Engine) -> bool:
    """Is any worker there?"""
    return any(session.ready for session in engine.sessions.values())


def remark(engine: Engine, task: str) -> str:
    """What is said of a job that is put while workers are there and none serves its task, or whose built-in task is off; empty: nothing.

    Without a worker nothing is said of other tasks: there the next one to come may serve all.
    """
    if any(task in session.tasks for session in engine.sessions.values() if not session.lost):
        return ""
    if task not in BUILTIN_FLAGS and not any_ready(engine):
        return ""
    return f"its runs wait: {unserved(task, served(engine))}"


def remarks(engine: Engine, tasks: Iterable[str]) -> list[list[str]]:
    """[task, remark] of those tasks of which something is to say, in order."""
    told = ([task, remark(engine, task)] for task in sorted(set(tasks)))
    return [pair for pair in told if pair[1]][:TASKS_TOLD_MAX]


class JobCensus:
    """Counts the active jobs of each definition, a piece with each question: with many jobs the answer is a few questions old."""

    def __init__(self) -> None:
        self._counted: dict[int, int] = {}
        self._under_way: dict[int, int] = {}
        self._start = 0
        self._specs: dict[str, list[int]] = {}  # task -> its definitions, of the first so many
        self._known = 0

    def unserved(self, engine: Engine) -> dict[str, int]:
        """{task: its active jobs} of the tasks that no worker serves; empty while no worker is there."""
        state, known = engine.state, served(engine)
        for n in range(self._known, len(state.specs)):
            self._specs.setdefault(state.specs[n]["task"], []).append(n)
        self._known = len(state.specs)
        strange = [n for task, specs in self._specs.items() if task not in known for n in specs]
        if not strange or not any_ready(engine):
            return {}
        self._look(engine, np.array(strange, np.uint32))
        out: dict[str, int] = {}
        for spec, n in self._counted.items():
            task = state.specs[spec]["task"]
            if n and task not in known:
                out[task] = out.get(task, 0) + n
        return dict(sorted(out.items())[:TASKS_TOLD_MAX])

    def _look(self, engine: Engine, specs: NDArray[np.uint32]) -> None:
        jobs = engine.state.jobs
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

"""Which tasks the workers serve, and what is said of jobs whose task none of them does. Pure; nothing here is recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..model.nouns import BUILTIN_FLAGS, TASKS_TOLD_MAX, unserved

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .core import Core


def served(core: Core) -> frozenset[str]:
    """The tasks that some worker serves."""
    return frozenset().union(*(s.tasks for s in core.sessions.values() if not s.lost))


def any_ready(core: Core) -> bool:
    """Is any worker there?"""
    return any(session.ready for session in core.sessions.values())


def remark(core: Core, task: str) -> str:
    """What is said of a job that is put while workers are there and none serves its task, or whose built-in task is off; empty: nothing.

    Without a worker nothing is said of other tasks: there the next one to come may serve all.
    """
    if any(task in session.tasks for session in core.sessions.values() if not session.lost):
        return ""
    if task not in BUILTIN_FLAGS and not any_ready(core):
        return ""
    return f"its runs wait: {unserved(task, served(core))}"


def remarks(core: Core, tasks: Iterable[str]) -> list[list[str]]:
    """[task, remark] of those tasks of which something is to say, in order."""
    told = ([task, remark(core, task)] for task in sorted(set(tasks)))
    return [pair for pair in told if pair[1]][:TASKS_TOLD_MAX]



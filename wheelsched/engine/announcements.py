"""What workers announce of tasks: the options of their decorators, which a call without them takes.

Durable: a put just after a restart must resolve to what it resolved to before, though no worker has said hello yet. What the server's own
pool announced nobody else changes; what a worker of some user announced, another user's changes when no worker of the first serves the task
any more. A worker whose options are not taken serves the task all the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ..model.errors import ResourceExhaustedError
from ..protocol.limits import check
from ..state.nouns import ANYBODY, OWN_USER, POOL, spec_bytes

if TYPE_CHECKING:
    from .connected import Session
    from .core import Core

TOLD_MAX: Final = 100  # names of tasks whose options were not taken, in the answer to a hello


def announce(core: Core, session: Session, tasks: dict[str, dict[str, Any]]) -> tuple[dict[str, Any], list[str]]:
    """(what is to be recorded, if anything; the tasks whose options differ from those that stay). Errors as `limits.check`."""
    state, by = core.state, _announcer(session)
    known, whose = state.announced, state.announcers
    taken = {task: _may(core, by, whose.get(task, ANYBODY)) for task in tasks}
    news = {task: options for task, options in tasks.items() if taken[task] and (known.get(task) != options or whose.get(task) != by)}
    free = _left_by_pool(core, tasks) if by == POOL else []
    gone = _room_for(core, by, news) if news and by != POOL else []
    fields = {"at": core.now.wall_us, "by": by, "tasks": news, "free": free, "gone": gone} if news or free else {}
    return fields, [task for task, options in tasks.items() if not taken[task] and known.get(task) != options]


def _room_for(core: Core, by: int, news: dict[str, dict[str, Any]]) -> list[str]:
    """Tasks whose options are forgotten to make room: those of nobody and of this announcer that no worker serves, the oldest first; none
    as long as there is room. ResourceExhaustedError when that is not enough.
    """
    state = core.state
    left = {task: whose for task, whose in state.announcers.items() if task not in news}
    gone: list[str] = []
    try:
        _check(state.announced, left, by, news)
    except ResourceExhaustedError:
        served: frozenset[str] = frozenset().union(*(s.tasks for s in core.sessions.values()))
        gone = [task for task, whose in left.items() if whose in (by, ANYBODY) and task not in served]
        _check(state.announced, {task: whose for task, whose in left.items() if whose not in (by, ANYBODY) or task in served}, by, news)
    return gone


def _check(announced: dict[str, dict[str, Any]], left: dict[str, int], by: int, news: dict[str, dict[str, Any]]) -> None:
    fresh = sum(_size(task, options) for task, options in news.items())
    sizes = {task: _size(task, announced[task]) for task in left}
    mine = [task for task, whose in left.items() if whose == by]
    check("announced_tasks", user=len(mine) + len(news), server=len(left) + len(news))
    check("announced_bytes", user=sum(sizes[task] for task in mine) + fresh, server=sum(sizes.values()) + fresh)


def _size(task: str, options: dict[str, Any]) -> int:
    return len(task) + len(spec_bytes(options))


def check_served(core: Core, conn: int, uid: int, tasks: int) -> None:
    """ResourceExhaustedError when connected workers would serve too many tasks; the server's own pool is not counted."""
    others = [s for s in core.sessions.values() if s.kind == "external" and s.conn != conn]
    check(
        "served_tasks", connection=tasks, user=tasks + sum(len(s.tasks) for s in others if s.uid == uid),
        server=tasks + sum(len(s.tasks) for s in others),
    )


def _announcer(session: Session) -> int:
    return POOL if session.kind == "pool" else OWN_USER if session.own else session.uid


def _may(core: Core, by: int, whose: int) -> bool:
    """May one announcer change what another announced? By rank: the pool, the server's own user, others; the last of equal rank while
    the one before serves nothing.
    """
    if whose in (by, ANYBODY) or by == POOL:
        return True
    if whose == POOL:
        return False
    return by == OWN_USER or not any(_announcer(s) == whose for s in core.sessions.values() if s.worker and not s.lost)


def _left_by_pool(core: Core, tasks: dict[str, dict[str, Any]]) -> list[str]:
    """Tasks that the pool announced once and serves no more: anybody may announce them."""
    served = frozenset(tasks).union(*(s.tasks for s in core.sessions.values() if s.kind == "pool"))
    return [task for task, whose in core.state.announcers.items() if whose == POOL and task not in served]


__all__ = ["TOLD_MAX", "announce", "check_served"]

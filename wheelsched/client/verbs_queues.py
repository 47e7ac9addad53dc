"""The verbs about queues, as questions. No I/O. Like `verbs`, shared by the clients."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any

from ..model.errors import InternalError, InvalidArgumentError, NotFoundError
from ..protocol.checks import QUEUE_SETTINGS, check_name, check_queue_settings
from .requests import Ask
from .verbs import as_map, field_of
from .views_queues import QueueInfo

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["queue_ask", "queue_pause", "queue_purge", "queue_resume", "queues_ask"]


def _queue(raw: Any) -> QueueInfo:
    for name, kind in (("name", str), ("settings", dict), ("queued", int), ("leased", int), ("paused", bool)):
        field_of(raw, name, kind)
    return QueueInfo.from_wire({"oldest_us": None, **as_map(raw)})


def _queues(result: Any) -> list[QueueInfo]:
    if not isinstance(result, list):
        raise InternalError(f"the server's answer is {type(result).__name__}, not a list")
    return [_queue(raw) for raw in result]


def queue_ask(name: Any, settings: Mapping[str, Any]) -> Ask[QueueInfo]:
    """Change the settings that are given (None takes one away); read the queue when there are none."""
    wanted = check_name(name, "queue")
    for key in settings:
        if key not in QUEUE_SETTINGS:
            near = difflib.get_close_matches(key, QUEUE_SETTINGS, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"{', '.join(QUEUE_SETTINGS)} are known"
            raise InvalidArgumentError(f"queue: {key[:60]!r} is unknown: {hint}")
    if not settings:
        return Ask("queues", {}, lambda result: _only(_queues(result), wanted))
    return Ask("queue_set", {"name": wanted, "settings": check_queue_settings(settings)}, _queue)


def _only(found: list[QueueInfo], name: str) -> QueueInfo:
    for queue in found:
        if queue.name == name:
            return queue
    raise NotFoundError(f"no queue {name}: nothing was set for it and no definition names it")


def queues_ask() -> Ask[list[QueueInfo]]:
    """All queues."""
    return Ask("queues", {}, _queues)


def queue_pause(name: Any) -> Ask[QueueInfo]:
    """Lease nothing from it."""
    return Ask("queue_pause", {"name": check_name(name, "queue")}, _queue)


def queue_resume(name: Any) -> Ask[QueueInfo]:
    """Lease from it again."""
    return Ask("queue_resume", {"name": check_name(name, "queue")}, _queue)


def queue_purge(name: Any) -> Ask[int]:
    """Cancel what waits in it."""
    return Ask("queue_purge", {"name": check_name(name, "queue")}, lambda result: field_of(result, "count", int))

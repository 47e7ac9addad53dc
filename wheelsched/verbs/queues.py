"""The verbs about queues: their settings, and what waits in them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ..engine.arguments import done
from ..model.errors import InvalidArgumentError, ResourceExhaustedError
from ..model.nouns import QUEUES_MAX
from ..protocol import frames
from ..protocol.checks import check_name, check_queue_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ..engine.core import Core
    from ..engine.turn import Incoming
    from ..state.state import State
_QUEUE: Final = 4  # row of RunTable.ready


def queue_set(core: Core, cmd: Incoming) -> bytes:
    """Change the settings that are given; nil takes one away."""
    name = _name(cmd)
    asked = check_queue_settings(cmd.request.args.get("settings"))
    return _change(core, cmd, name, {**core.state.queues.get(name, {}), **asked})


def queue_pause(core: Core, cmd: Incoming) -> bytes:
    """Lease nothing from a queue until it is resumed; what is leased goes on."""
    name = _name(cmd)
    return _change(core, cmd, name, {**core.state.queues.get(name, {}), "paused": True})


def queue_resume(core: Core, cmd: Incoming) -> bytes:
    """Lease from it again."""
    name = _name(cmd)
    return _change(core, cmd, name, {**core.state.queues.get(name, {}), "paused": None})


def _name(cmd: Incoming) -> str:
    return check_name(cmd.request.args.get("name"), "queue")


def _change(core: Core, cmd: Incoming, name: str, wanted: dict[str, Any]) -> bytes:
    old = core.state.queues.get(name, {})
    settings = {key: wanted[key] for key in sorted(wanted) if wanted[key] is not None}
    if "burst" in settings and "rate" not in settings:
        raise InvalidArgumentError("burst: it is what the bucket of a rate holds; give the rate too, or take the burst away with it")
    if name not in core.state.queues and len(core.state.queues) >= QUEUES_MAX:
        raise ResourceExhaustedError(f"{QUEUES_MAX:,} queues have settings; take them away from another first")
    if settings != old:
        core.record("QUEUE", {"at": core.now.wall_us, "uid": cmd.uid, "name": name, "settings": settings})
        core.limits.changed(name, old, core.now.mono_us)
    return done(core, cmd, _told(core.state, [name])[0])


def queues(core: Core, cmd: Incoming) -> bytes:
    """All queues that have settings or that a definition names."""
    names = sorted(core.state.queue_numbers.keys() | core.state.queues.keys())
    return frames.encode_ok(cmd.request.id, _told(core.state, names))


def _told(state: State, names: Iterable[str]) -> list[dict[str, Any]]:
    columns, since = state.runs.ready()
    out = []
    for name in names:
        number, settings = state.queue_numbers.get(name), state.queues.get(name, {})
        mine = np.zeros(len(since), np.bool_) if number is None else columns[_QUEUE] == number
        out.append({
            "name": name, "settings": {key: value for key, value in settings.items() if key != "paused"},
            "queued": int(columns[1][mine].sum()), "leased": 0 if number is None else state.runs.leased(number),
            "oldest_us": int(since[mine].min()) if mine.any() else None, "paused": bool(settings.get("paused")),
        })
    return out
VERBS: Final[dict[str, Callable[[Core, Incoming], bytes]]] = {
    "queue_set": queue_set, "queue_pause": queue_pause, "queue_resume": queue_resume, "queues": queues,
}

"""Groups: what becomes of the run that waits for the others, when the last of them has ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..model.nouns import RunState
from . import chains, waiters

if TYPE_CHECKING:
    from .core import Core


def end(core: Core) -> None:
    """Groups whose last member has ended in this turn."""
    for number in core.state.ended_groups():
        group = core.state.groups[number]
        row = core.state.find_run(group.run_id)
        rows = np.empty(0, np.uint32) if row is None else np.array([row], np.uint32)
        rows = rows[core.state.runs.gather(rows)["state"] == RunState.SCHEDULED]
        goes = not group.needs_all or group.succeeded == group.members
        payload = b""
        if len(rows) and goes:
            counts = {name: getattr(group, name) for name in ("members", "succeeded", "failed", "cancelled")}
            cause = {"reason": "group", "group": group.run_id.hex(), **counts}
            payload = chains.with_headers(core.state.runs.blobs(int(rows[0]))[0], {"cause": cause})
        core.record("GROUP_END", {"at": core.now.wall_us, "number": number, "run": rows, "payload": payload})
        if len(rows) and not goes:
            core.counters["cancelled"] += 1
            chains.ended(core, rows)
            waiters.end(core, rows)

"""Clients that wait for the end of a run: they are answered when it is final, or when their time is over."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..model.nouns import NEVER, RunState
from ..protocol import frames
from ..state import readable
from .roles import shown

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from .core import Core


def expire(core: Core) -> None:
    """Answer waits whose time is over with the run as it stands. They are looked through when the first may be due, not each turn."""
    if core.now.mono_us < core.waiters_due_us:
        return
    for run_id in [r for r, waiting in core.waiters.items() if any(w.deadline_us <= core.now.mono_us for w in waiting)]:
        keep = []
        for waiter in core.waiters.pop(run_id):
            if waiter.deadline_us > core.now.mono_us:
                keep.append(waiter)
            else:
                core.quotas.give("waits", waiter.conn)
                told = shown(waiter.roles, readable.run_or_stub(core.state, run_id, core.running))
                core.reply(waiter.conn, frames.encode_ok(waiter.request_id, told))
        if keep:
            core.waiters[run_id] = keep
    core.waiters_due_us = min((w.deadline_us for waiting in core.waiters.values() for w in waiting), default=NEVER)


def end(core: Core, rows: NDArray[np.uint32]) -> None:
    """Answer those who wait for runs that are final now."""
    if not core.waiters:
        return
    ids = core.state.runs.ids(rows)
    for i in [i for i in range(len(rows)) if ids[16 * i : 16 * i + 16] in core.waiters]:
        if core.state.runs.gather(rows[i : i + 1])["state"][0] > RunState.RETRY_WAIT:
            told = readable.run(core.state, int(rows[i]), core.running)
            for waiter in core.waiters.pop(ids[16 * i : 16 * i + 16], ()):
                core.quotas.give("waits", waiter.conn)
                core.reply(waiter.conn, frames.encode_ok(waiter.request_id, shown(waiter.roles, told)))


__all__ = ["end", "expire"]

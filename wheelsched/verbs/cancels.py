"""cancel: one run, or all that a filter finds. queue_purge: all of a queue that no worker holds.

What no worker holds ends at once; what is leased is asked to end through its worker. A filter may find millions of runs: see `sweeps`.
Runs that are made meanwhile are left alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ..engine.arguments import done, text
from ..engine.core import Sweep
from ..engine.overlap import cancel_rows
from ..engine.sweeps import PIECE, Chosen, is_dry, join
from ..model.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError
from ..model.nouns import GLOB_MAX, RunFlag, RunState
from ..protocol.checks import check_name
from ..state import readable
from .runs import run_row

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from ..engine.core import Core
    from ..engine.turn import Incoming

_OPEN: Final = {
    "scheduled": RunState.SCHEDULED, "queued": RunState.QUEUED, "leased": RunState.LEASED, "running": RunState.LEASED,
    "retry_wait": RunState.RETRY_WAIT,
}


def cancel(core: Core, cmd: Incoming) -> bytes:
    """Cancel a run: at once when no worker holds it, else through its worker."""
    row = run_row(core, cmd.request.args)
    rows = np.array([row], np.uint32)
    state = RunState(int(core.state.runs.gather(rows)[0]["state"]))
    if state <= RunState.RETRY_WAIT:
        _end(core, rows)
    elif state != RunState.CANCELLED:
        raise FailedPreconditionError(f"the run is {state.name.lower()} already")
    return done(core, cmd, readable.run(core.state, row, core.running))


def _end(core: Core, rows: NDArray[np.uint32]) -> None:
    """Cancel open runs: at once, or through their workers."""
    fields = core.state.runs.gather(rows)
    leased = fields["state"] == RunState.LEASED
    if leased.any():
        core.record("ASK_CANCEL", {"at": core.now.wall_us, "run": np.ascontiguousarray(rows[leased])})
        held = fields[leased]
        core.effects.cancels += [(w, t, False) for w, t in zip(held["worker"].tolist(), held["token"].tolist(), strict=True)]
    if not leased.all():
        cancel_rows(core, np.ascontiguousarray(rows[~leased]))


@dataclass(slots=True)
class CancelSweep(Sweep):
    """A cancel by filter."""

    chosen: Chosen
    state: RunState | None
    began_us: int
    leased: bool = True  # what workers hold, too
    at: int = field(default=0, init=False)  # the next row

    def piece(self, core: Core) -> bool:
        """As in Sweep."""
        slots = core.state.runs.slots(self.at, PIECE)
        if slots:
            rows = np.array(slots, np.uint32)
            rows = np.ascontiguousarray(rows[self.wants(core, core.state.runs.gather(rows))])
            self.at, self.count = slots[-1] + 1, self.count + len(rows)
            if len(rows) and not self.dry:
                _end(core, rows)
        return len(slots) == PIECE

    def wants(self, core: Core, fields: Any) -> NDArray[np.bool_]:
        """Which open runs the filter finds."""
        keep = (fields["state"] <= RunState.RETRY_WAIT) & (fields["created_us"] <= self.began_us)
        keep &= (fields["state"] != RunState.LEASED) | ((fields["flags"] & RunFlag.CANCEL_ASKED == 0) & self.leased)
        if self.state is not None:
            keep &= fields["state"] == self.state
        return self.chosen.among(core.state, fields, np.asarray(keep, np.bool_))


def cancel_many(core: Core, cmd: Incoming) -> bytes:
    """Cancel all open runs that a filter finds; with `dry_run` only count them. The answer comes when all are looked through."""
    args = cmd.request.args
    if join(core, cmd):
        return b""
    match, state, dry = text(args, "match", GLOB_MAX), text(args, "state", 20), is_dry(args)
    task, queue, namespace = (text(args, name, 100) for name in ("task", "queue", "namespace"))
    if state and state not in _OPEN:
        raise InvalidArgumentError(f"state: {state!r} is not one of {', '.join(_OPEN)}: other runs have ended")
    if not any((match, state, task, queue, namespace)):
        raise InvalidArgumentError("cancel: give match, state, task, queue or namespace; match '*' is all open runs")
    chosen = Chosen(match, task=task, queue=queue, namespace=namespace)
    core.sweeps.append(CancelSweep(cmd, dry, chosen, _OPEN[state] if state else None, core.now.wall_us))
    return b""


def queue_purge(core: Core, cmd: Incoming) -> bytes:
    """Cancel every open run of a queue that no worker holds. Answered as `cancel_many`."""
    if not join(core, cmd):
        name = check_name(cmd.request.args.get("name"), "queue")
        if name not in core.state.queue_numbers and name not in core.state.queues:
            raise NotFoundError(f"no queue {name}: nothing was set for it and no definition names it")
        chosen = Chosen("", queue=name)
        core.sweeps.append(CancelSweep(cmd, False, chosen, None, core.now.wall_us, leased=False))
    return b""


VERBS: Final[dict[str, Callable[[Core, Incoming], bytes]]] = {"cancel": cancel, "cancel_many": cancel_many, "queue_purge": queue_purge}

__all__ = ["VERBS"]

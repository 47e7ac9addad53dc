"""Commands that look through many runs: a piece of the rows a turn, so that the server serves others in between. One after another.

The answer comes after the last piece. A client that asks again with the same request id joins the sweep that is under way; one that a
crash ended begins anew then, and counts what was left.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ..model.errors import InvalidArgumentError, WheelschedError
from ..model.globs import glob
from ..model.nouns import display_name
from ..protocol import frames
from ..protocol.limits import check
from .arguments import done

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from ..state.state import State
    from .core import Core
    from .turn import Incoming

PIECE: Final = 4_096  # rows of a turn


def join(core: Core, cmd: Incoming) -> bool:
    """Is this request under way already? Then it is answered with the first."""
    users = [one.uid for sweep in core.sweeps for one in (sweep.first, *sweep.again)]
    conns = [one.conn for sweep in core.sweeps for one in (sweep.first, *sweep.again)]
    check("sweeps", connection=conns.count(cmd.conn) + 1, user=users.count(cmd.uid) + 1, server=len(users) + 1)
    for sweep in core.sweeps:
        if sweep.first.request.args["rid"] == cmd.request.args["rid"]:
            sweep.again.append(cmd)
            return True
    return False


def go_on(core: Core) -> None:
    """The next piece of the oldest sweep, and its answer after the last one."""
    sweep = core.sweeps[0]
    try:
        more = sweep.piece(core)
    except WheelschedError as e:
        core.sweeps.pop(0)
        for cmd in (sweep.first, *sweep.again):
            core.reply(cmd.conn, frames.encode_error(cmd.request.id, e))
    else:
        if not more:
            core.sweeps.pop(0)
            answer = sweep.answer()
            first = frames.encode_ok(sweep.first.request.id, answer) if sweep.dry else done(core, sweep.first, answer)
            core.reply(sweep.first.conn, first)
            for cmd in sweep.again:
                core.reply(cmd.conn, frames.encode_ok(cmd.request.id, answer))
    core.effects.again |= bool(core.sweeps)


def is_dry(args: dict[str, Any]) -> bool:
    """The argument dry_run."""
    dry = args.get("dry_run")
    if not isinstance(dry, bool | None):
        raise InvalidArgumentError("dry_run: true or false is wanted")
    return bool(dry)


class Chosen:
    """Runs by their job's name (a glob) and by task, queue and namespace: what is asked about each job and definition is asked once."""

    def __init__(self, match: str, **wire: str) -> None:
        """Empty texts choose all. `wire`: what a run's definition has to be."""
        self._match = None if not match or match == "*" else glob(match)
        self._wire = {name: value for name, value in wire.items() if value}
        self._specs: dict[int, bool] = {}
        self._jobs: dict[int, bool] = {}

    def among(self, state: State, fields: Any, keep: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Which of the runs that are kept so far are chosen, too."""
        if self._wire:
            keep = _each(fields["spec"], keep, self._specs, lambda specs: [self._fits(state.specs[n]) for n in specs])
        if self._match is not None:
            keep = _each(fields["job"], keep, self._jobs, lambda jobs: self._named(state, jobs))
        return keep

    def _fits(self, wire: dict[str, Any]) -> bool:
        return all(wire[name] == value for name, value in self._wire.items())

    def _named(self, state: State, jobs: list[int]) -> list[bool]:
        assert self._match is not None
        return [self._match(display_name(raw.decode())) for raw in state.jobs.names(np.array(jobs, np.uint32))]


def _each(column: NDArray[np.uint32], keep: NDArray[np.bool_], known: dict[int, bool], ask: Callable[[list[int]], list[bool]]
          ) -> NDArray[np.bool_]:
    """A question about each number of a column where `keep`, asked once for each distinct one of a sweep."""
    numbers, which = np.unique(column[keep], return_inverse=True)
    fresh = [n for n in numbers.tolist() if n not in known]
    known.update(zip(fresh, ask(fresh), strict=True))
    out = np.zeros(len(column), np.bool_)
    out[keep] = np.array([known[n] for n in numbers.tolist()], np.bool_)[which]
    return out

"""Commands that look through many runs: a piece of the rows a turn, so that the server serves others in between. One after another.

The answer comes after the last piece. A client that asks again with the same request id joins the sweep that is under way; one that a
crash ended begins anew then, and counts what was left.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from . import protocol
from .arguments import done
from .errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from .engine import Engine
    from .turn import Incoming

PIECE: Final = 4_096  # rows of a turn
GLOB_MAX: Final = 400


@dataclass(slots=True)
class Sweep:
    """A command that is under way. Soft: a crash ends it. With `dry` it only counts."""

    first: Incoming
    dry: bool
    count: int = field(default=0, init=False)
    again: list[Incoming] = field(default_factory=list, init=False)  # the same request, from other connections

    def piece(self, engine: Engine) -> bool:
        """Do the next piece. False after the last one."""
        raise NotImplementedError


def join(engine: Engine, cmd: Incoming) -> bool:
    """Is this request under way already? Then it is answered with the first."""
    for sweep in engine.sweeps:
        if sweep.first.request.args["rid"] == cmd.request.args["rid"]:
            sweep.again.append(cmd)
            return True
    return False


def go_on(engine: Engine) -> None:
    """The next piece of the oldest sweep, and its answer after the last one."""
    sweep = engine.sweeps[0]
    if not sweep.piece(engine):
        engine.sweeps.pop(0)
        answer = {"count": sweep.count}
        first = protocol.encode_ok(sweep.first.request.id, answer) if sweep.dry else done(engine, sweep.first, answer)
        engine.reply(sweep.first.conn, first)
        for cmd in sweep.again:
            engine.reply(cmd.conn, protocol.encode_ok(cmd.request.id, answer))
    engine.effects.again |= bool(engine.sweeps)


def is_dry(args: dict[str, Any]) -> bool:
    """The argument dry_run."""
    dry = args.get("dry_run")
    if not isinstance(dry, bool | None):
        raise InvalidArgumentError("dry_run: true or false is wanted")
    return bool(dry)


def each(column: NDArray[np.uint32], keep: NDArray[np.bool_], known: dict[int, bool], ask: Callable[[list[int]], list[bool]]
         ) -> NDArray[np.bool_]:
    """A question about each number of a column, asked once for each distinct one of a sweep."""
    numbers, which = np.unique(column[keep], return_inverse=True)
    fresh = [n for n in numbers.tolist() if n not in known]
    known.update(zip(fresh, ask(fresh), strict=True))
    out = np.zeros(len(column), np.bool_)
    out[keep] = np.array([known[n] for n in numbers.tolist()], np.bool_)[which]
    return out

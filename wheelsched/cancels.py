"""cancel: one run, or all that a filter finds.

What no worker holds ends at once; what is leased is asked to end through its worker. A filter may find millions of runs: they are looked
through in pieces of `PIECE` rows, one a turn, each with records of its own, so that the server serves others in between; the answer comes
after the last piece. Runs that are made meanwhile are left alone. A client that asks again with the same request id joins the sweep that
is under way; one that a crash ended begins anew then, and counts what was left.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from fnmatch import translate
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from . import protocol, reads
from .arguments import done, text
from .errors import FailedPreconditionError, InvalidArgumentError
from .model import RunState, display_name
from .overlap import cancel_rows
from .run_commands import run_row

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from .engine import Engine
    from .turn import Incoming

PIECE: Final = 4_096  # rows of a turn
_ASKED: Final = 1  # _runrows.CANCEL_ASKED
_GLOB_MAX: Final = 400
_OPEN: Final = {
    "scheduled": RunState.SCHEDULED, "queued": RunState.QUEUED, "leased": RunState.LEASED, "running": RunState.LEASED,
    "retry_wait": RunState.RETRY_WAIT,
}


def cancel(engine: Engine, cmd: Incoming) -> bytes:
    """Cancel a run: at once when no worker holds it, else through its worker."""
    row = run_row(engine, cmd.request.args)
    rows = np.array([row], np.uint32)
    state = RunState(int(engine.state.runs.gather(rows)[0]["state"]))
    if state <= RunState.RETRY_WAIT:
        _end(engine, rows)
    elif state != RunState.CANCELLED:
        raise FailedPreconditionError(f"the run is {state.name.lower()} already")
    return done(engine, cmd, reads.run(engine.state, row, engine.running))


def _end(engine: Engine, rows: NDArray[np.uint32]) -> None:
    """Cancel open runs: at once, or through their workers."""
    fields = engine.state.runs.gather(rows)
    leased = fields["state"] == RunState.LEASED
    if leased.any():
        engine.record("ASK_CANCEL", {"at": engine.now.wall_us, "run": np.ascontiguousarray(rows[leased])})
        held = fields[leased]
        engine.effects.cancels += [(w, t, False) for w, t in zip(held["worker"].tolist(), held["token"].tolist(), strict=True)]
    if not leased.all():
        cancel_rows(engine, np.ascontiguousarray(rows[~leased]))


@dataclass(slots=True)
class Sweep:
    """A cancel by filter that is under way. Soft: a crash ends it."""

    first: Incoming
    match: Callable[[str], Any] | None
    state: RunState | None
    task: str
    queue: str
    namespace: str
    dry: bool
    began_us: int
    at: int = 0  # the next row
    count: int = 0
    again: list[Incoming] = field(default_factory=list)  # the same request, from other connections
    specs: dict[int, bool] = field(default_factory=dict)
    jobs: dict[int, bool] = field(default_factory=dict)

    def wants(self, engine: Engine, fields: Any) -> NDArray[np.bool_]:
        """Which open runs the filter finds."""
        keep = (fields["state"] <= RunState.RETRY_WAIT) & (fields["created_us"] <= self.began_us)
        keep &= (fields["flags"] & _ASKED == 0) | (fields["state"] != RunState.LEASED)
        if self.state is not None:
            keep &= fields["state"] == self.state
        if self.task or self.queue or self.namespace:
            keep &= _each(fields["spec"], keep, self.specs, lambda numbers: [self._spec(engine.state.specs[n]) for n in numbers])
        if self.match is not None:
            keep &= _each(fields["job"], keep, self.jobs, lambda rows: self._names(engine, rows))
        return np.asarray(keep, np.bool_)

    def _spec(self, wire: dict[str, Any]) -> bool:
        return all(not wanted or wire[name] == wanted for name, wanted in
                   (("task", self.task), ("queue", self.queue), ("namespace", self.namespace)))

    def _names(self, engine: Engine, rows: list[int]) -> list[bool]:
        assert self.match is not None
        return [self.match(display_name(raw.decode())) is not None for raw in engine.state.jobs.names(np.array(rows, np.uint32))]


def _each(column: NDArray[np.uint32], keep: NDArray[np.bool_], known: dict[int, bool], ask: Callable[[list[int]], list[bool]]
          ) -> NDArray[np.bool_]:
    """A question about each number of a column, asked once for each distinct one."""
    numbers, which = np.unique(column[keep], return_inverse=True)
    fresh = [n for n in numbers.tolist() if n not in known]
    known.update(zip(fresh, ask(fresh), strict=True))
    out = np.zeros(len(column), np.bool_)
    out[keep] = np.array([known[n] for n in numbers.tolist()], np.bool_)[which]
    return out


def cancel_many(engine: Engine, cmd: Incoming) -> bytes:
    """Cancel all open runs that a filter finds; with `dry_run` only count them. The answer comes when all are looked through."""
    args = cmd.request.args
    for sweep in engine.sweeps:
        if sweep.first.request.args["rid"] == args["rid"]:
            sweep.again.append(cmd)
            return b""
    match, state, dry = text(args, "match", _GLOB_MAX), text(args, "state", 20), args.get("dry_run", False)
    task, queue, namespace = (text(args, name, 100) for name in ("task", "queue", "namespace"))
    if state and state not in _OPEN:
        raise InvalidArgumentError(f"state: {state!r} is not one of {', '.join(_OPEN)}: other runs have ended")
    if not any((match, state, task, queue, namespace)):
        raise InvalidArgumentError("cancel: give match, state, task, queue or namespace; match '*' is all open runs")
    if not isinstance(dry, bool):
        raise InvalidArgumentError("dry_run: true or false is wanted")
    pattern = None if not match or match == "*" else re.compile(translate(match)).match
    engine.sweeps.append(Sweep(cmd, pattern, _OPEN[state] if state else None, task, queue, namespace, dry, engine.now.wall_us))
    return b""


def go_on(engine: Engine) -> None:
    """The next piece of the oldest sweep, and its answer after the last one."""
    sweep = engine.sweeps[0]
    slots = engine.state.runs.slots(sweep.at, PIECE)
    if slots:
        rows = np.array(slots, np.uint32)
        rows = np.ascontiguousarray(rows[sweep.wants(engine, engine.state.runs.gather(rows))])
        sweep.at, sweep.count = slots[-1] + 1, sweep.count + len(rows)
        if len(rows) and not sweep.dry:
            _end(engine, rows)
    if len(slots) < PIECE:
        engine.sweeps.pop(0)
        answer = {"count": sweep.count}
        first = protocol.encode_ok(sweep.first.request.id, answer) if sweep.dry else done(engine, sweep.first, answer)
        engine.reply(sweep.first.conn, first)
        for cmd in sweep.again:
            engine.reply(cmd.conn, protocol.encode_ok(cmd.request.id, answer))
    engine.effects.again |= bool(engine.sweeps)


VERBS: Final[dict[str, Callable[[Engine, Incoming], bytes]]] = {"cancel": cancel, "cancel_many": cancel_many}

__all__ = ["VERBS", "Sweep", "go_on"]

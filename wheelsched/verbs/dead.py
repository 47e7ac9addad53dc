"""Dead letters: list, redrive, discard; by ids, or all that a filter finds (see `sweeps`). Who dies meanwhile is left alone.

What is sent back obeys its job's overlap policy: it is scheduled and waits for its turn, among the job's own runs and by nominal time. An
enqueued run waits for nobody. A redrive with a rate spreads the runs over time: each but the first waits for its instant before. The waits
are in the records: a restart goes on with them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import msgpack
import numpy as np

from ..engine.arguments import done, text, whole
from ..engine.core import Sweep
from ..engine.retries import fits
from ..engine.sweeps import PIECE, Chosen, is_dry, join
from ..model.errors import FailedPreconditionError, InvalidArgumentError
from ..model.globs import glob
from ..model.nouns import DELAY_MAX_US, FRAME_JOBS_MAX, GLOB_MAX, NEVER, Event, RunFlag, RunState, Trigger
from ..protocol.checks import parse_rate
from ..state import readable
from ..tables._runs import DEAD_LETTERS
from .runs import parse_run_id, run_row

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from ..engine.core import Core
    from ..engine.turn import Incoming
    from ..state.state import State

FILTERS: Final = ("match", "error", "task", "queue", "namespace", "since_us", "until_us")
_ERROR_MAX: Final = 200


class Letters:
    """A filter over dead letters. InvalidArgumentError for what can't be asked."""

    def __init__(self, args: dict[str, Any]) -> None:
        self._error = text(args, "error", _ERROR_MAX)
        self._error_glob = glob(self._error, "error") if set(self._error) & set("*?[") else None
        self._chosen = Chosen(text(args, "match", GLOB_MAX), **{name: text(args, name, 100) for name in ("task", "queue", "namespace")})
        self._since: int = whole(args, "since_us", 0, NEVER, 0) or 0
        until = whole(args, "until_us", 0, NEVER, NEVER)
        self._until = NEVER if until is None else until

    def select(self, state: State, rows: NDArray[np.uint32]) -> NDArray[np.uint32]:
        """Those of these dead letters that fit, in their order."""
        fields = state.runs.gather(rows)
        recent = np.asarray((fields["ended_us"] >= self._since) & (fields["ended_us"] < self._until), np.bool_)
        rows = np.ascontiguousarray(rows[self._chosen.among(state, fields, recent)])
        if self._error and len(rows):
            data, ends = state.runs.joined(rows, "result")
            begins = [0, *ends.tolist()]
            rows = rows[[self._of_error(data[begins[i] : begins[i + 1]]) for i in range(len(rows))]]
        return np.ascontiguousarray(rows)

    def _of_error(self, result: bytes) -> bool:
        kind = str(msgpack.unpackb(result, raw=False).get("type", "")) if result else ""
        if self._error_glob is not None:
            return self._error_glob(kind)
        return fits(self._error, kind.split(".")) > 0


@dataclass(slots=True)
class DeadSweep(Sweep):
    """A redrive or discard of all that a filter finds."""

    event: Event
    wanted: Letters
    spread: Spread
    left: int  # so many more at most
    end: int  # place of the last dead letter when it began
    at: int = field(default=0, init=False)  # place of the last one that was looked at

    def piece(self, core: Core) -> bool:
        """As in Sweep."""
        state = core.state
        rows = state.runs.peek(DEAD_LETTERS, PIECE, self.at)
        order = state.runs.gather(rows)["order"]
        last = int(order[-1]) if len(order) else self.end
        found = self.wanted.select(state, np.ascontiguousarray(rows[order <= np.uint64(self.end)]))[: self.left]
        self.at = last
        self.count, self.left = self.count + len(found), self.left - len(found)
        if len(found) and not self.dry:
            _settle(core, found, self.event, self.spread)
        return last < self.end and self.left > 0


class Spread:
    """Instants of a redrive, one after another at a rate; all of them now without one. InvalidArgumentError for what is no rate."""

    def __init__(self, rate: Any, most: int) -> None:
        """`most`: how many there may be."""
        self._count, self._per_us = (1, 0) if rate is None else parse_rate(rate, "rate")
        if self._count < 1:
            raise InvalidArgumentError(f"rate: {rate!r} is none; write it like '100/s', '5/m' or '10/30s'")
        if most * self._per_us // self._count > DELAY_MAX_US:
            raise InvalidArgumentError(f"rate: at {rate} the last of {most:,} dead letters would wait for over 366 days; give a limit, too")
        self._begun_us = -1
        self._given = 0

    def take(self, n: int, now_us: int) -> NDArray[np.int64]:
        """The next n."""
        if self._begun_us < 0:
            self._begun_us = now_us
        numbers = np.arange(self._given, self._given + n, dtype=np.int64)
        self._given += n
        return self._begun_us + numbers * self._per_us // self._count


def redrive(core: Core, cmd: Incoming) -> bytes:
    """Send dead letters back to their queues, with all their attempts anew."""
    return _begin(core, cmd, Event.REDRIVE)


def discard(core: Core, cmd: Incoming) -> bytes:
    """Give dead letters up: they leave the list for history, as dead."""
    return _begin(core, cmd, Event.DISCARD)


def _begin(core: Core, cmd: Incoming, event: Event) -> bytes:
    args = cmd.request.args
    if join(core, cmd):
        return b""
    ids, dry = args.get("ids"), is_dry(args)
    limit = whole(args, "limit", 1, NEVER, NEVER)
    filtered = any(args.get(name) not in (None, "") for name in FILTERS)
    if (ids is None) != filtered:
        raise InvalidArgumentError("give ids, or a filter (match, error, task, queue, namespace, since, until); match '*' is all of them")
    wanted = Letters(args)
    rows = core.state.runs.peek(DEAD_LETTERS, 2**31) if ids is None else _by_ids(core, ids)
    spread = Spread(args.get("rate") if event == Event.REDRIVE else None, min(len(rows), limit or NEVER))
    if ids is not None:
        if len(rows) and not dry:
            _settle(core, rows, event, spread)
        return done(core, cmd, {"count": len(rows)})
    end = int(core.state.runs.gather(rows[-1:])["order"][0]) if len(rows) else 0
    core.sweeps.append(DeadSweep(cmd, dry, event, wanted, spread, limit or NEVER, end))
    return b""


def _by_ids(core: Core, ids: Any) -> NDArray[np.uint32]:
    if not isinstance(ids, list) or len(ids) > FRAME_JOBS_MAX:
        raise InvalidArgumentError(f"ids: a list of at most {FRAME_JOBS_MAX} run ids is wanted")
    rows = np.array([run_row(core, {"id": i}) for i in dict.fromkeys(parse_run_id(i).hex() for i in ids)], np.uint32)
    fields = core.state.runs.gather(rows)
    if ((fields["state"] != RunState.DEAD) | (fields["flags"] & RunFlag.DISCARDED > 0)).any():
        raise FailedPreconditionError("some of these runs are no dead letters")
    return rows


def _settle(core: Core, rows: NDArray[np.uint32], event: Event, spread: Spread) -> None:
    now = core.now.wall_us
    if event == Event.DISCARD:
        core.record("RUNS", {"at": now, "event": int(event), "run": rows})
        return
    send_back(core, rows, spread.take(len(rows), now))


def send_back(core: Core, rows: NDArray[np.uint32], due: NDArray[np.int64], how: int | None = None) -> None:
    """Send dead letters back: now, or where `due` is later then. `how` they wait for their turn, as of a backfill; None: as ever."""
    now = core.now.wall_us
    fields = core.state.runs.gather(rows)
    later, free = due > now, fields["trigger"] == Trigger.ENQUEUE
    if free.any():
        core.record("REDRIVE", {"at": now, "run": np.ascontiguousarray(rows[free]), "due": due[free]})
        core.arm_retries(rows[free & later], due[free & later])
    if not free.all():
        count = np.where(fields["trigger"] == Trigger.BACKFILL, fields["count"], 0) if how is None else np.full(len(rows), how)
        core.record("SEND_BACK", {
            "at": now, "run": np.ascontiguousarray(rows[~free]), "due": np.where(later, due, -1)[~free],
            "count": np.ascontiguousarray(count[~free], np.uint32),
        })
        core.arm_delayed(rows[~free & later], due[~free & later])
        core.look_at(np.unique(fields["job"][~free]))


def page(core: Core, args: dict[str, Any]) -> dict[str, Any]:
    """A page of dead letters that fit, in the order in which they died; it may be empty and not the last. `after`: a place in that
    order, which stays when others leave it: whoever discards while reading misses none.
    """
    state = core.state
    start, limit = readable.page_of(args)
    wanted, with_payload = Letters(args), bool(args.get("payload"))
    rows = state.runs.peek(DEAD_LETTERS, PIECE, start)
    found = wanted.select(state, rows)
    last: int | None = None
    if len(found) > limit:
        found = found[:limit]
        last = int(found[-1])
    elif len(rows) == PIECE:
        last = int(rows[-1])
    shown = [readable.run(state, row, core.running) for row in found.tolist()]
    if with_payload:
        wires = [state.specs[number] for number in state.runs.gather(found)["spec"].tolist()]
        for one, row, wire in zip(shown, found.tolist(), wires, strict=True):
            one["payload"] = core.redaction.shown(state.runs.blobs(row)[0], state.announced, wire)
    after = None if last is None else int(state.runs.gather(np.array([last], np.uint32))["order"][0])
    return {"columns": readable.as_columns(shown), "after": after}


VERBS: Final[dict[str, Callable[[Core, Incoming], bytes]]] = {"redrive": redrive, "discard": discard}

__all__ = ["VERBS", "page", "send_back"]

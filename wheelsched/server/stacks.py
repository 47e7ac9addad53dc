"""Questions where a run is in its code: put to the pool, or to the worker outside with the answer to its next heartbeat."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from ..model.errors import FailedPreconditionError
from ..model.nouns import NEVER, US, RunState, display_name
from ..protocol import frames
from ..protocol.limits import check

if TYPE_CHECKING:
    from ..engine.engine import Engine
    from ..pool.pool import Pool

MARGIN_US: Final = 5 * US  # an external worker has so much more than the time between two of its heartbeats


class _Asked(NamedTuple):
    conn: int
    uid: int
    request: int
    run: dict[str, Any]
    worker: int
    token: int
    until_us: int


class Stacks:
    """Those that are open."""

    def __init__(self, engine: Engine, pool: Pool) -> None:
        self._engine = engine
        self._pool = pool
        self._open: list[_Asked] = []

    def ask(self, conn: int, uid: int, request: int, run: dict[str, Any], now_us: int) -> None:
        """`run`: as it is told. FailedPreconditionError when nobody is in it now."""
        state, run_id = self._engine.state, bytes.fromhex(run["id"])
        row = state.find_run(run_id)
        fields = None if row is None else state.runs.gather(np.array([row], np.uint32))[0]
        if fields is None or fields["state"] != RunState.LEASED:
            raise FailedPreconditionError(f"run {run['id']} of {display_name(run['job'])} is {run['state']}: no worker has it")
        check(
            "stacks", connection=sum(one.conn == conn for one in self._open) + 1, user=sum(one.uid == uid for one in self._open) + 1,
            server=len(self._open) + 1,
        )
        worker, token = int(fields["worker"]), int(fields["token"])
        known = state.workers.get(worker)
        if known is not None and known.kind == "pool":
            if not self._pool.ask_stack(worker, token):
                raise FailedPreconditionError(f"run {run['id']} waits in worker w{worker}, which has not begun it")
            until_us = NEVER
        else:
            self._engine.running.asked.setdefault(token, None)
            until_us = now_us + self._engine.lease_us * 3 // 10 + MARGIN_US
        self._open.append(_Asked(conn, uid, request, run, worker, token, until_us))

    def look(self, now_us: int) -> bool:
        """Answer what can be answered. True: something was."""
        if not self._open:
            return False
        told: dict[int, str] = dict(self._pool.stacks())
        told |= {token: text for token, text in self._engine.running.asked.items() if text is not None}
        before, left = self._open, []
        for one in before:
            if one.token in told:
                result = {"id": one.run["id"], "job": one.run["job"], "worker": one.run["worker"], "text": told[one.token]}
                self._engine.reply(one.conn, frames.encode_ok(one.request, result))
            elif now_us >= one.until_us:
                self._engine.reply(one.conn, frames.encode_error(one.request, FailedPreconditionError(
                    f"worker w{one.worker} has not told where run {one.run['id']} is: it has just ended, or its worker can't tell (an"
                    " older `wheelsched worker`, or one of another make)"
                )))
            else:
                left.append(one)
        self._open = left
        wanted = {one.token for one in left}
        self._engine.running.asked = {token: text for token, text in self._engine.running.asked.items() if token in wanted}
        return len(left) < len(before)

    def drop(self, conn: int) -> None:
        """That connection is gone."""
        self._open = [one for one in self._open if one.conn != conn]

    def wake_us(self) -> int:
        """Monotonic; NEVER for none."""
        return min((one.until_us for one in self._open), default=NEVER)

"""What a simulator answers from its state and journal, not in a turn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..model.errors import NotFoundError
from ..reads import reads, waiting
from ..reads.events import Pager, Wanted
from ..reads.forecast import forecast_now
from ..reads.reads import PAGE_MAX
from ..state import history, pages, readable
from ..verbs import dead
from ..verbs.runs import parse_run_id

if TYPE_CHECKING:
    from ..engine.engine import Engine
    from ..journal.memory import MemoryJournal
    from ..state.live import Live



def look_up(engine: Engine, journal: MemoryJournal, verb: str, args: dict[str, Any], now_us: int, running: Live
            ) -> dict[str, Any]:
    """The answer to one of these verbs, at once. The errors of the server."""
    state = engine.state
    if verb == "jobs":
        return reads.jobs_page(engine, args)
    if verb == "dead":
        return dead.page(engine, args)
    if verb == "forecast":
        return forecast_now(engine, args, now_us)
    if verb == "stats":
        return reads.counts(engine) | {"now_us": now_us}
    if verb == "events":
        return _events(engine, journal, args)
    if verb == "runs":
        return pages.runs_page(state, journal.history_blocks, args, running, min(args.get("limit") or PAGE_MAX, PAGE_MAX))
    return waiting.told(engine, _run(engine, journal, parse_run_id(args.get("id")), running))


def _run(engine: Engine, journal: MemoryJournal, run_id: bytes, running: Live) -> dict[str, Any]:
    row = engine.state.find_run(run_id)
    if row is not None:
        return readable.run(engine.state, row, running)
    for _, data in history.of_runs(journal.history_blocks(reverse=True)):
        block = history.Block(data)
        found = block.find(run_id)
        if found is not None:
            return block.rows([found])[0]
    raise NotFoundError(f"no run {run_id.hex()}")


def _events(engine: Engine, journal: MemoryJournal, args: dict[str, Any]) -> dict[str, Any]:
    base = journal.history_range()[1] - engine.state.trail.blocks

    def block(number: int) -> bytes | None:
        return next((data for n, data in journal.history_blocks(base + number) if n == base + number), None)

    pager, wanted = Pager(engine.state, journal.replay, block), Wanted(args)
    position = pager.begin(wanted, journal.durable_seq)
    result, position = pager.page(position, wanted)
    while not result["n"] and position[0] <= journal.durable_seq:
        result, position = pager.page(position, wanted)
    return result

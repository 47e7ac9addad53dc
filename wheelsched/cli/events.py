"""`wheelsched events`: changes of state as they come."""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING, Any

import click

from ..client.times import Times
from ..client.words import clean, cut
from .output import to_json
from .shell import Verb, say, shell

if TYPE_CHECKING:
    from ..client.views_events import Event


def _interrupted(*_: Any) -> None:
    raise KeyboardInterrupt


@click.command(cls=Verb)
@click.option("--since", metavar="P", help="Go on after this position, or from the `oldest` that is kept; without it, from now on.")
@click.option("--match", metavar="GLOB", help="Only events of jobs whose names fit.")
@click.option("--kind", "kinds", multiple=True, metavar="K", help="Only events of this kind, such as run.dead or 'run.*'; again for more.")
@click.option("--until-idle", metavar="D", help="End when nothing came for so long.")
@click.option("--limit", type=click.IntRange(1), metavar="N", help="End after so many.")
def events(since: str | None, match: str | None, kinds: tuple[str, ...], until_idle: str | None, limit: int | None) -> None:
    """Follow durable changes of state until interrupted: runs, jobs, queues, workers.

    The position of each event, its first column, is where `--since` goes on without losing or doubling one, also after a restart of the
    server. `-o jsonl` (as `-o json`) writes an object a line.
    """
    sh = shell()
    stream = sh.client.events(since, match, list(kinds) or None, timeout=until_idle, limit=limit)
    times = Times("utc" if sh.times == "job" else sh.times)
    signal.signal(signal.SIGTERM, _interrupted)  # as Ctrl-C
    try:
        for event in stream:
            click.echo(_line(event, times) if sh.table else to_json(event.to_dict()))
    except KeyboardInterrupt:
        if stream.position is not None:
            say(f"go on with --since {stream.position}")


def _line(e: Event, times: Times) -> str:
    told = [e.reason, e.outcome if e.outcome != e.reason else None, e.error and f"{e.error}: {e.message}", e.name, e.note]
    told += [f"attempt {e.attempt}" if e.attempt else None, e.worker, f"{e.count} occurrences" if e.count and e.until else None]
    told += [f"next {times.show(e.next_at)}" if e.next_at else None, json.dumps(e.settings) if e.settings else None]
    words = ", ".join(cut(str(x), 100) for x in told if x)
    parts = [e.position.ljust(14), times.show(e.at), e.kind.ljust(15), e.job or "-", e.run_id or "", words]
    return clean("  ".join(part for part in parts if part))

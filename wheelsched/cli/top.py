"""`wheelsched top`: what goes through the server, again and again."""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING, Any, Final

import click

from ..client.times import Times, span
from ..client.troubles import troubles
from ..client.words import clean, number
from ..model.nouns import US, parse_duration, to_datetime
from .output import pairs, to_json
from .shell import Verb, shell
from .status import lag_line, stats_now

if TYPE_CHECKING:
    from collections.abc import Iterator

LINES: Final = 15  # queues, and workers
_HOME: Final = "\x1b[H\x1b[J"


@click.command(cls=Verb)
@click.option("--interval", metavar="D", default="2s", show_default=True, help="How long from look to look; 100ms at least.")
@click.option("--count", type=click.IntRange(1), metavar="N", help="End after so many looks; without it, by Ctrl-C.")
def top(interval: str, count: int | None) -> None:
    """Show rates, queues and workers, again and again.

    Rates are of the time since the look before, so the first has none. `-o jsonl` (as `-o json`) writes an object for each look.
    """
    sh = shell()
    seconds = max(0.1, parse_duration(interval, "interval") / US)
    times = Times("utc" if sh.times == "job" else sh.times)
    terminal = sys.stdout.isatty()
    before: dict[str, Any] = {}
    never = threading.Event()
    try:
        for look in range(count or sys.maxsize):
            if look:
                never.wait(seconds)
            stats = stats_now(sh)
            rates = rates_of(before, stats)
            before = stats
            if not sh.table:
                click.echo(to_json({**stats, "per_second": rates}))
                continue
            lines = list(_page(stats, rates, times))
            click.echo((_HOME if terminal else "\n" if look else "") + "\n".join(lines))
    except KeyboardInterrupt:
        return


def rates_of(before: dict[str, Any], now: dict[str, Any]) -> dict[str, float]:
    """How often a second each counter rose from one answer to the other; empty for the first, and when the server began anew."""
    if before.get("generation") != now["generation"] or now["uptime_s"] <= before["uptime_s"]:
        return {}
    took = now["uptime_s"] - before["uptime_s"]  # not of the wall clock, which may be set
    counters = now["counters"] | {"commits": now["commits"]}
    old = before["counters"] | {"commits": before["commits"]}
    return {name: round((value - old.get(name, 0)) / took, 1) for name, value in counters.items()}


def _page(s: dict[str, Any], rates: dict[str, float], times: Times) -> Iterator[str]:
    state = clean("; ".join(troubles(s)) or "all is well")
    yield f"{s['server']}, up {span(s['uptime_s'])}, {times.show(to_datetime(s['now_us']))}: {state}"
    moving = ", ".join(f"{name} {value:,.1f}" for name, value in rates.items() if value)
    yield from pairs([
        ("runs", f"{number(s['queued'])} queued, {number(s['leased'])} leased, {number(s['dead_letters'])} dead letters"),
        ("per second", moving or ("nothing" if rates else "at the next look")),
        *((f"lag {name}", lag_line(lag)) for name, lag in s["lag_ms"].items() if lag.get("count")),
    ])
    busy = sorted(((n, q) for n, q in s["queues"].items() if q["queued"] or q.get("leased")), key=lambda x: (-x[1]["queued"], x[0]))
    yield from _section("queues", [(n, f"{number(q['queued'])} queued, {number(q.get('leased', 0))} leased") for n, q in busy])
    workers = sorted(s["workers"], key=lambda w: -w["leased"])
    yield from _section("workers", [(w["id"], f"{w['name']}, {w['kind']}, {number(w['leased'])} leased") for w in workers])


def _section(title: str, rows: list[tuple[str, str]]) -> Iterator[str]:
    yield ""
    yield title
    yield from ("  " + line for line in pairs(rows[:LINES]) or ["none"])
    if len(rows) > LINES:
        yield f"  and {number(len(rows) - LINES)} more"

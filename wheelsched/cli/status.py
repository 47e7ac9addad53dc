"""`wheelsched status` and `wheelsched health`."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import click

from ..client.places import server_pid
from ..client.times import span
from ..client.troubles import held_words, troubles
from ..client.words import clean, number, size
from ..model.errors import DeadlineExceededError, UnavailableError
from ..model.nouns import US, counted, format_offset, parse_duration
from .output import pairs, show_one
from .shell import EXIT_FAILED, EXIT_UNAVAILABLE, Failed, Verb, shell

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .shell import Shell

ANSWER_WITHIN: Final = "5s"
_LOOK_S: Final = 0.2


@click.command(cls=Verb)
def status() -> None:
    """Show what the server is doing. A server that doesn't answer within 5 s (--timeout): exit 5."""
    sh = shell()
    stats = stats_now(sh)
    show_one(sh, stats, lambda: _page(stats))


def stats_now(sh: Shell) -> dict[str, Any]:
    """The counters, within 5 s or what --timeout says. Failed (exit 5) when no answer comes: then it is known who doesn't give it."""
    limit = sh.timeout or ANSWER_WITHIN
    try:
        return sh.client.stats(timeout=limit)
    except DeadlineExceededError as e:
        pid = server_pid(sh.client.path)
        who = f"pid {pid}" if pid else f"the server at {sh.client.path}"
        raise Failed(f"no answer from {who} within {span(parse_duration(limit) / US)}: it hangs, or is stopped", EXIT_UNAVAILABLE) from e


def runs_told(cancelled: int, going_on: int) -> str:
    """`; 2 runs cancelled, 1 run goes on`: what became of the open runs of deleted jobs."""
    told = [f"{counted(cancelled, 'run')} cancelled"] if cancelled else []
    told += [f"{counted(going_on, 'run')} {'goes' if going_on == 1 else 'go'} on"] if going_on else []
    return f"; {', '.join(told)}" if told else ""


def lag_line(lag: dict[str, Any]) -> str:
    """`p50 0.4 ms, p99 1.2 ms, p99.9 3 ms, max 5 ms`."""
    names = {"p50": "p50", "p99": "p99", "p999": "p99.9", "max": "max"}
    return ", ".join(f"{shown} {span(lag[name] / 1000)}" for name, shown in names.items())


def _page(s: dict[str, Any]) -> Iterator[str]:
    now = datetime.fromtimestamp(0, UTC) + timedelta(microseconds=s["now_us"])
    offset = s["clock_offset_us"]
    if s.get("held"):
        yield held_words(s) + "; until then no schedule and no delay triggers anything"
        yield "what is queued goes on, and `enqueue` and `job trigger` still run"
    yield from pairs([
        ("server", f"{s['server']}, pid {s['pid']}, up {span(s['uptime_s'])}, generation {s['generation']}"),
        ("data", s["data"]),
        ("clock", f"{now:%Y-%m-%d %H:%M:%S}Z" + (f", set off by --clock-offset={format_offset(offset)}" if offset else "")),
        ("state", "; ".join(troubles(s)) or "all is well"),
        ("jobs", number(s["jobs"])),
        ("runs", f"{number(s['queued'])} queued, {number(s['leased'])} leased, {number(s['runs'])} in memory"),
        ("dead letters", number(s["dead_letters"])),
        ("counted", ", ".join(f"{n} {number(v)}" for n, v in s["counters"].items() if v) or "nothing yet"),
    ])
    lags = {n: lag for n, lag in s["lag_ms"].items() if lag.get("count")}
    if lags:
        yield from ("", "lag behind the scheduled time")
        yield from _indented([(n, f"{lag_line(lag)}  ({counted(lag['count'], 'run')})") for n, lag in lags.items()])
    yield from ("", "queues")
    yield from _indented([(n, _queue_line(q, paused=n in s.get("paused_queues", ()))) for n, q in sorted(s["queues"].items())])
    if s.get("held_back"):
        yield from ("", "held back by limits")
        yield from _indented([(h["task"], f"waiting: {counted(h['runs'], 'run')}: {clean(h['reason'])}") for h in s["held_back"]])
    yield from ("", "workers")
    yield from _indented([(w["id"], _worker_line(w)) for w in s["workers"]])
    if s["unserved_tasks"]:
        yield from ("", "tasks that no worker serves")
        yield from _indented([(t, f"waiting: {counted(n, 'run')}") for t, n in sorted(s["unserved_tasks"].items())])
    store, used = s["storage"], s["bytes"]
    yield ""
    yield from pairs([
        ("storage", f"{store['state']}: {size(store['used_bytes'])} used, {size(store['free_bytes'])} free"),
        ("journal", f"{size(s['journal_bytes'])} in {number(s['commits'])} commits since the start"),
        ("memory", ", ".join(f"{n} {size(v)}" for n, v in used.items())),
    ])


def _worker_line(w: dict[str, Any]) -> str:
    return f"{w['kind']}, {number(w['leased'])} leased" + ("" if w["ready"] else ", not there (yet): it has said no hello")


def _queue_line(q: dict[str, Any], *, paused: bool) -> str:
    leased = f", {number(q['leased'])} leased" if q.get("leased") else ""
    return f"{number(q['queued'])} queued{leased}" + (", PAUSED: `wheelsched queue resume` ends it" if paused else "")


def _indented(rows: list[tuple[str, str]]) -> list[str]:
    return ["  " + line for line in pairs(rows) or ["none"]]


@click.command(cls=Verb)
@click.option("--wait", "wait", metavar="D", help="Wait up to this long for a server with which all is well: for deploy scripts.")
def health(wait: str | None) -> None:
    """One line; exit 0 if all is well, 1 if not, 5 without a server, or when it doesn't answer within 5 s (--timeout)."""
    sh = shell()
    stats = stats_now(sh) if wait is None else _well_within(sh, parse_duration(wait, "--wait") / US)
    wrong = troubles(stats)
    ready = sum(w["ready"] for w in stats["workers"])
    line = "; ".join(wrong) or (
        f"ok: {counted(stats['jobs'], 'job')}, {number(stats['queued'])} queued, {counted(ready, 'worker')}"
    )
    show_one(sh, {"ok": not wrong, "troubles": wrong}, lambda: [line])
    if wrong:
        click.get_current_context().exit(EXIT_FAILED)


def _well_within(sh: Shell, seconds: float) -> dict[str, Any]:
    """The counters once all is well, or as they are when the time is over. UnavailableError, Failed: there is no answer even then."""
    end, never = time.monotonic() + seconds, threading.Event()
    while True:
        over = time.monotonic() >= end
        try:
            stats = stats_now(sh)
        except (UnavailableError, Failed):
            if over:
                raise
        else:
            if over or not troubles(stats):
                return stats
        never.wait(_LOOK_S)

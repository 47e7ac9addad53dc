"""`wheelsched bench`: midnight, latency."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from ...client.times import span
from ...client.words import number, size
from ..output import pairs, show_one
from ..shell import Failed, Verbs, shell
from ..status import lag_line
from .workbench import clean_up_on_sigterm

if TYPE_CHECKING:
    from collections.abc import Iterator

_MEMORY_RUNS: Final = 10_000  # with fewer the pages of the process weigh more than the jobs


@click.group(cls=Verbs)
def bench() -> None:
    """Measure a fresh server in a temporary folder."""


@bench.command()
@click.option("--runs", type=click.IntRange(1, 50_000_000), default=1_000_000, show_default=True, metavar="N", help="Due at one instant.")
@click.option("--mix", type=click.Choice(["oneshot", "real"]), default="oneshot", show_default=True,
              help="One-time jobs; or half of them recurring ones that meet at midnight UTC.")
@click.option("--workers", type=click.IntRange(1, 1024), default=2, show_default=True, metavar="N")
def midnight(runs: int, mix: str, workers: int) -> None:
    """Many runs due in the same second: how late they are queued, started and done. Exit 1 if one is lost or double."""
    from .midnight import midnight as measure  # noqa: PLC0415 - help needs none of it

    clean_up_on_sigterm()
    _show(measure(runs, mix, workers))


@bench.command()
@click.option("--runs", type=click.IntRange(1, 100_000), default=300, show_default=True, metavar="N")
@click.option("--workers", type=click.IntRange(1, 1024), default=2, show_default=True, metavar="N")
def latency(runs: int, workers: int) -> None:
    """Single runs at random times on an idle server: how late they start. Exit 1 if one is lost or double."""
    from .latency import latency as measure  # noqa: PLC0415 - help needs none of it

    clean_up_on_sigterm()
    _show(measure(runs, workers))


def _show(result: dict[str, Any]) -> None:
    show_one(shell(), result, lambda: _page(result))
    if result["duplicates"] or result["lost"]:
        raise Failed(f"{result['duplicates']} duplicates, {result['lost']} lost")


def _page(r: dict[str, Any]) -> Iterator[str]:
    m = r["machine"]
    mix = f" ({r['mix']}" + (f", {number(r['recurring'])} recurring)" if r["recurring"] else ")") if "mix" in r else ""
    yield from pairs([
        ("runs", f"{number(r['runs'])}{mix}, {r['workers']} workers"),
        ("scheduled at", r.get("scheduled_at", "")), ("clock offset", r.get("clock_offset") or ""),
        ("ingest", f"{span(r['ingest_s'])}, {number(round(r['runs'] / r['ingest_s']))} jobs/s, durable"),
        ("queued lag", lag_line(r["queued_lag_ms"])), ("start lag", lag_line(r["start_lag_ms"])), ("done lag", lag_line(r["done_lag_ms"])),
        ("drained in", f"{span(r['drain_s'])}, {number(round(r['runs_per_s'] or 0))} runs/s"),
        ("duplicates", number(r["duplicates"])), ("lost", number(r["lost"])),
        ("memory", f"{r['rss_bytes_per_job']} B a job" if r["runs"] >= _MEMORY_RUNS else ""),
        ("journal", f"{size(r['journal_bytes'])} in {number(r['fsyncs'])} syncs, {r['journal_bytes'] / r['runs']:.1f} B a run"),
        ("machine", f"{m['cpu']}, {m['cores']} cores, {size(m['memory_bytes'])}, load {m['load'][0]}"),
        ("", f"Linux {m['kernel']}, Python {m['python']}"),
        *(("DOUBT", note) for note in r["notes"]),
    ])

"""`wheelsched dead`: list, redrive, discard, export."""

from __future__ import annotations

from typing import IO, TYPE_CHECKING, Any, TypeVar

import click

from .output import show_one
from .run import SPAN_HELP, in_span, show_runs
from .run_names import HELP, find_id
from .shell import Verbs, say, shell

if TYPE_CHECKING:
    from collections.abc import Callable

F = TypeVar("F", bound="Callable[..., Any]")

_FILTERS = (
    click.option("--error", metavar="E", help="That died of this exception type (requests.Timeout), or of a glob ('*Timeout')."),
    click.option("--task", metavar="T", help="Of this task."),
    click.option("--queue", metavar="Q", help="Of this queue."),
    click.option("--namespace", metavar="NS", help="Of jobs in this namespace."),
    click.option("--since", metavar="T", help=f"Ended from here on: {SPAN_HELP}"),
    click.option("--until", metavar="T", help="Ended before this, or up to the end of this day."),
)


def _filtered(f: F) -> F:
    for option in reversed(_FILTERS):
        f = option(f)
    return f


@click.group(cls=Verbs)
def dead() -> None:
    """List, redrive, discard and export dead letters: runs out of attempts."""


@dead.command("list")
@click.argument("match", required=False)
@_filtered
@click.option("--limit", "-n", type=click.IntRange(0), metavar="N", help="How many in all.")
def list_(match: str | None, limit: int | None, **filters: Any) -> None:
    """List dead letters of jobs whose name matches a glob, in the order in which they died."""
    sh = shell()
    show_runs(sh, sh.client.dead(match, limit, **in_span(match, filters)), "no dead letters")


def _which(ids: tuple[str, ...], filters: dict[str, Any]) -> dict[str, Any]:
    given = {name: value for name, value in filters.items() if value is not None}
    if bool(ids) == bool(given.keys() - {"limit"}):
        raise click.UsageError("give run ids, or a filter such as --match with a glob of job names ('*' is all)")
    if ids and "limit" in given:
        raise click.UsageError("--limit goes with a filter, not with run ids")
    return {"ids": [find_id(text) for text in ids]} if ids else in_span(given.get("match"), given)


def _count(n: int, word: str, *, dry_run: bool) -> None:
    show_one(shell(), {"count": n}, lambda: [f"{n} would be {word}" if dry_run else f"{n} {word}"])


@dead.command(epilog=HELP)
@click.argument("run_ids", nargs=-1, metavar="[RUN]...")
@click.option("--match", metavar="GLOB", help="Of jobs whose name matches.")
@_filtered
@click.option("--limit", type=click.IntRange(1), metavar="N", help="The oldest N of them only.")
@click.option("--rate", metavar="N/D", help="One after another at this rate, such as 10/s or 5/m, and not all at once.")
@click.option("--dry-run", is_flag=True, help="Only count them.")
def redrive(run_ids: tuple[str, ...], rate: str | None, *, dry_run: bool, **filters: Any) -> None:
    """Queue dead letters again, with all their attempts anew."""
    which = _which(run_ids, filters)
    _count(shell().client.redrive(**which, rate=rate, dry_run=dry_run), "queued again", dry_run=dry_run)


@dead.command(epilog=HELP)
@click.argument("run_ids", nargs=-1, metavar="[RUN]...")
@click.option("--match", metavar="GLOB", help="Of jobs whose name matches.")
@_filtered
@click.option("--limit", type=click.IntRange(1), metavar="N", help="The oldest N of them only.")
@click.option("--dry-run", is_flag=True, help="Only count them.")
def discard(run_ids: tuple[str, ...], *, dry_run: bool, **filters: Any) -> None:
    """Give dead letters up: they go to the history."""
    _count(shell().client.discard(**_which(run_ids, filters), dry_run=dry_run), "discarded", dry_run=dry_run)


@dead.command()
@click.argument("match", required=False)
@_filtered
@click.option("--limit", "-n", type=click.IntRange(0), metavar="N", help="How many in all.")
@click.option("-f", "--file", "out", type=click.File("w", encoding="utf-8", lazy=True, atomic=True), default="-", help="Not to stdout.")
def export(match: str | None, limit: int | None, out: IO[str], **filters: Any) -> None:
    """Write dead letters with their arguments, a line of JSON each, whatever -o says; none is changed."""
    n = shell().client.export_dead(out, match, limit, **in_span(match, filters))
    say(f"{n} exported")

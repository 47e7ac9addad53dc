"""`wheelsched dead`: list, redrive, discard."""

from __future__ import annotations

import click

from .output import show_one
from .run import show_runs
from .shell import Verbs, shell


@click.group(cls=Verbs)
def dead() -> None:
    """List, redrive and discard dead letters: runs out of attempts."""


@dead.command("list")
@click.argument("match", required=False)
@click.option("--limit", type=click.IntRange(0), metavar="N", help="How many in all.")
def list_(match: str | None, limit: int | None) -> None:
    """List dead letters of jobs whose name matches a glob."""
    sh = shell()
    show_runs(sh, sh.client.dead(match, limit), "no dead letters")


def _which(ids: tuple[str, ...], match: str | None) -> dict[str, object]:
    if bool(ids) == (match is not None):
        raise click.UsageError("give run ids, or --match with a glob of job names ('*' is all)")
    return {"ids": list(ids)} if ids else {"match": match}


def _count(n: int, word: str) -> None:
    show_one(shell(), {"count": n}, lambda: [f"{n} {word}"])


@dead.command()
@click.argument("run_ids", nargs=-1, metavar="[RUN]...")
@click.option("--match", metavar="GLOB", help="Of jobs whose name matches.")
def redrive(run_ids: tuple[str, ...], match: str | None) -> None:
    """Queue dead letters again."""
    _count(shell().client.redrive(**_which(run_ids, match)), "queued again")  # type: ignore[arg-type]


@dead.command()
@click.argument("run_ids", nargs=-1, metavar="[RUN]...")
@click.option("--match", metavar="GLOB", help="Of jobs whose name matches.")
def discard(run_ids: tuple[str, ...], match: str | None) -> None:
    """Give dead letters up: they go to the history."""
    _count(shell().client.discard(**_which(run_ids, match)), "discarded")  # type: ignore[arg-type]

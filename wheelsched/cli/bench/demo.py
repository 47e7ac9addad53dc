"""`wheelsched demo`: the whole story in one command."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ...client.times import span
from ...client.words import number
from ...model.errors import WheelschedError
from ..output import to_json
from ..shell import Failed, Verb, shell
from ..tables import table
from .workbench import Folder, clean_up_on_sigterm

if TYPE_CHECKING:
    from collections.abc import Callable

    from .story import Story


@click.command(cls=Verb)
def demo() -> None:
    """The whole story in one command, in a temporary folder; exit 0 only if every promise held.

    A server with two workers runs cron, interval and one-time jobs. One job retries, one ends as a dead letter; a worker
    and then the server are killed with -9; 100,000 jobs are due at one instant. Every figure is measured.
    """
    from .story import Story  # noqa: PLC0415 - help needs none of it

    sh = shell()
    tell: Callable[[str], None] = click.echo if sh.table else _to_stderr
    clean_up_on_sigterm()
    with Folder() as folder:
        story = Story(Path(folder), tell)
        try:
            story.run()
        except WheelschedError as e:
            _fail(story, str(e))
    if sh.table:
        _verdict(story)
    else:
        click.echo(to_json(story.result))
    if not story.result["held"]:
        raise Failed("a promise was broken")


def _to_stderr(text: str) -> None:
    click.echo(text, err=True)


def _fail(story: Story, why: str) -> None:
    for line in story.server.lines:
        _to_stderr(f"        {line}")
    if not shell().table:
        click.echo(to_json({**story.result, "held": False, "error": why}))
    raise Failed(f"the story broke off: {why}")


def _verdict(story: Story) -> None:
    r = story.result
    click.echo("")
    table(["PROMISE", "MEASURED", "HELD"], [(p.text, p.measured, "yes" if p.held else "NO") for p in story.promises])
    click.echo("")
    click.echo(
        f"{number(r['runs'])} runs triggered, {r['retried']} retried, {r['dead']} dead, {r['duplicates']} duplicates, {r['lost']} lost,"
        f" {r['kills']} kills, recovery {span(r['recovery_s'])}, in {r['seconds']} s:"
        f" {'every promise held' if r['held'] else 'A PROMISE WAS BROKEN'}"
    )

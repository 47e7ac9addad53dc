"""`wheelsched cron`: explain, next, lint. Offline."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ..client.times import DST_LEGEND, Times, instant_text, relative
from ..model.errors import ScheduleError
from ..model.nouns import parse_instant, to_datetime
from ..schedules.expressions import describe
from ..schedules.lint import notes
from ..schedules.schedule import DST_OVERLAPS, GAPS, Cron
from .lint import lint
from .output import pairs, show_many, show_one
from .shell import Verbs, shell

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

F = TypeVar("F", bound="Callable[..., Any]")

EXPLAINED = 5  # coming times that `explain` shows


@click.group(cls=Verbs)
def cron() -> None:
    """Explain cron expressions, show their next times and find what is wrong, without a server."""


cron.add_command(lint)


def _flags(f: F) -> F:
    for option in reversed((
        click.option("--tz", default="UTC", metavar="Z", show_default=True, help="IANA zone."),
        click.option("--after", metavar="T", help="First times after this instant (RFC 3339; now)."),
        click.option("--seconds", type=click.Choice(["first", "last"]), default="first", show_default=True,
                     help="Where the sixth field stands."),
        click.option("--day-and", is_flag=True, help="Join the two day fields by AND."),
        click.option("--dst-gap", type=click.Choice(GAPS), help="Of a wall time that the clock skips."),
        click.option("--dst-overlap", type=click.Choice(DST_OVERLAPS), help="Of a wall time that the clock repeats."),
        click.option("--hash-id", metavar="JOB", help="The job's full name, for H."),
    )):
        f = option(f)
    return f


def _build(expr: str, flags: dict[str, Any]) -> tuple[Cron, datetime]:
    schedule = Cron(
        expr, tz=flags["tz"], dst_gap=flags["dst_gap"], dst_overlap=flags["dst_overlap"], day_or=not flags["day_and"],
        seconds=flags["seconds"], hash_id=flags["hash_id"],
    )
    after = datetime.now(UTC) if flags["after"] is None else to_datetime(parse_instant(flags["after"], "--after"))
    assert after is not None
    return schedule, after


@cron.command("next")
@click.argument("expr")
@_flags
@click.option("-n", "n", type=click.IntRange(0, 100_000), default=5, show_default=True, help="How many.")
def next_(expr: str, n: int, **flags: Any) -> None:
    """Show the next times of an expression.

    As JSON: a list of RFC 3339 instants in UTC.
    """
    sh = shell()
    schedule, after = _build(expr, flags)
    times, now = Times(sh.times), datetime.now(UTC)
    show_many(
        sh, schedule.next(after, n), instant_text, ["TIME", "IN"], lambda m: [times.show(m, schedule.tz), relative(m, now)], times,
        "it has no further time",
    )


@cron.command()
@click.argument("expr")
@_flags
def explain(expr: str, **flags: Any) -> None:
    """Say in words what an expression means, with its next times and what to watch for."""
    sh = shell()
    schedule, after = _build(expr, flags)
    words = describe(expr, flags["seconds"], not flags["day_and"])
    remarks = notes(schedule)
    coming: list[datetime] = []
    try:
        coming = schedule.next(after, EXPLAINED)
    except ScheduleError:
        if flags["hash_id"] is not None:
            raise
        remarks.append("its times depend on the job's name: give --hash-id NAMESPACE/NAME to see them")
    times = Times(sh.times)

    def page() -> Iterator[str]:
        now = datetime.now(UTC)
        yield words
        if coming:
            yield ""
            yield from pairs([("next" if m is coming[0] else " ", f"{times.show(m, schedule.tz)}  {relative(m, now)}") for m in coming])
        if remarks or times.marked:
            yield ""
            yield from pairs([("note", remark) for remark in remarks])
            if times.marked:
                yield DST_LEGEND

    data = {"expr": expr, "tz": schedule.tz, "description": words, "next": [instant_text(m) for m in coming], "notes": remarks}
    show_one(sh, data, page)

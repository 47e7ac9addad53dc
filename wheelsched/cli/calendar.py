"""`wheelsched calendar`: put, list, get, delete."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ..client.times import Times
from ..client.words import cut
from ..model.nouns import counted, to_datetime
from .output import pairs, show_many, show_one
from .shell import Verbs, shell

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..client.views_time import Calendar

_SHOWN = 60


@click.group(cls=Verbs)
def calendar() -> None:
    """Put, list, show and delete calendars: named sets of times that jobs leave out (or keep to), by `job put --calendar`."""


@calendar.command(epilog="wheelsched calendar put closed --tz Europe/Berlin --weekday sat --weekday sun --yearly 12-25 --daily 22:00-06:00")
@click.argument("name")
@click.option("--include", is_flag=True, help="Jobs run at these times only; without this flag they never run at them.")
@click.option("--tz", metavar="Z", help="IANA zone of dates, weekdays and times of day (UTC).")
@click.option("--date", "dates", multiple=True, metavar="YYYY-MM-DD", help="A whole day; may come several times, as all below.")
@click.option("--yearly", multiple=True, metavar="MM-DD", help="A day of every year.")
@click.option("--weekday", "weekdays", multiple=True, metavar="DAY", help="mon tue wed thu fri sat sun.")
@click.option("--window", "windows", multiple=True, nargs=2, metavar="FROM TO", help="From an instant to another (RFC 3339).")
@click.option("--daily", multiple=True, metavar="[DAYS ]HH:MM-HH:MM", help="Times of day: 22:00-06:00, 'sat,sun 08:00-12:00'.")
def put(name: str, include: bool, tz: str | None, **flags: Any) -> None:
    """Create a calendar, or replace it.

    The definition is given in full, nothing of a former one stays. Jobs that name it follow at once.
    """
    definition: dict[str, Any] = {"mode": "include" if include else "exclude", "tz": tz or "UTC"}
    definition |= {name: list(flags[name]) for name in ("dates", "yearly", "weekdays", "windows") if flags[name]}
    if flags["daily"]:
        definition["daily"] = [_daily(text) for text in flags["daily"]]
    if len(definition) == 2:
        raise click.UsageError("say which times: --date, --yearly, --weekday, --window or --daily")
    found = shell().client.calendar(name, **definition)
    what = "; ".join(calendar_lines(found.definition))
    show_one(shell(), found.to_dict(), lambda: [f"{found.name}: {what}, in {found.definition.get('tz')}; {_used(found)}"])


def _daily(text: str) -> dict[str, Any]:
    *days, hours = text.split()
    start, dash, end = hours.partition("-") if len(days) < 2 else ("", "", "")
    if not dash:
        raise click.BadParameter(f"{text!r}: write 22:00-06:00 or 'sat,sun 22:00-06:00'", param_hint="--daily")
    return {**({"weekdays": days[0].split(",")} if days else {}), "from": start, "to": end}


def _used(found: Calendar) -> str:
    return f"{counted(found.jobs, 'job')} name{'s' if found.jobs == 1 else ''} it"


@calendar.command("list")
def list_() -> None:
    """List the calendars."""
    sh = shell()

    def cells(c: Calendar) -> list[str]:
        times = cut("; ".join(calendar_lines(c.definition)), _SHOWN)
        return [c.name, str(c.definition.get("mode")), str(c.definition.get("tz")), str(c.jobs), times]

    heads = ["CALENDAR", "MODE", "ZONE", "JOBS#", "TIMES"]
    show_many(sh, sh.client.calendars(), lambda c: c.to_dict(), heads, cells, empty="no calendars")


@calendar.command()
@click.argument("name")
def get(name: str) -> None:
    """Show a calendar."""
    sh = shell()
    found = sh.client.calendar(name)
    what = "only these times run" if found.definition.get("mode") == "include" else "nothing runs at these times"
    show_one(sh, found.to_dict(), lambda: pairs([
        ("calendar", found.name), ("mode", f"{found.definition.get('mode')}: {what}"), ("zone", str(found.definition.get("tz"))),
        ("times", "\n".join(calendar_lines(found.definition))), ("jobs", _used(found)),
    ]))


def calendar_lines(d: Mapping[str, Any]) -> list[str]:
    """The times of a calendar's definition, one kind a line."""
    times = Times("utc")
    out = [f"{word}{', '.join(d[key])}" for key, word in (("dates", ""), ("yearly", "every year "), ("weekdays", "")) if d.get(key)]
    spans = ((to_datetime(w["from_us"]), to_datetime(w["to_us"])) for w in d.get("windows") or ())
    out += [f"from {times.show(first)} to {times.show(last)}" for first, last in spans]
    out += [f"{','.join(part.get('weekdays') or ['daily'])} {part['from']}-{part['to']}" for part in d.get("daily") or ()]
    return out


@calendar.command()
@click.argument("name")
def delete(name: str) -> None:
    """Delete a calendar that no job names."""
    gone = shell().client.calendar_delete(name)
    show_one(shell(), {"name": gone}, lambda: [f"{gone}: deleted"])

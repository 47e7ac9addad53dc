"""`wheelsched job` about times: why, skip, move, backfill, history."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, timedelta
from typing import TYPE_CHECKING, Any

import click

from ..client.times import Times, instant_text, is_wall, on_a_clock, parse_day, parse_moment, parse_wall, relative, schedule_zone
from ..client.words import number
from ..model.errors import InvalidArgumentError, NotFoundError
from ..model.nouns import counted, parse_job_name
from ..schedules.schedule import Cron
from .output import pairs, show_many, show_one
from .policies import overlap as overlap_of
from .shell import Verb, say, shell

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from ..client.times import Wall
    from ..client.views_time import Backfill, JobChange, Why

_TIME_HELP = (
    "TIME is when the schedule has it, as `job next` and the column SCHEDULED of `run list` show it: RFC 3339 (2026-03-29T01:30:00Z,"
    " 2026-03-29T03:30+02:00), a time on the job's own clock (2026-03-29T02:30), or a day (2026-03-29) on which the job has one."
)
_RANGE_HELP = "TIME is RFC 3339 (2026-03-29T01:30:00Z), a time on the job's own clock (2026-03-29T02:30), or a whole day (2026-03-29)."
_ON_A_DAY = 3  # of the occurrences of each schedule on a day, looked at
_CLOCK_CHANGE = ("dst_gap", "dst_overlap")
_SHOWN_IDS = 10  # of a backfill, on the terminal


def _zone(name: str, *texts: str) -> str:
    """The zone of a job; UTC for one that is gone, unless a time on its clock was given. NotFoundError then."""
    try:
        return schedule_zone(shell().client.get(name).spec["schedule"])
    except NotFoundError:
        if any(map(on_a_clock, texts)):
            raise
        return "UTC"


def _occurrence(name: str, text: str, tz: str) -> datetime:
    """The nominal time that is meant: an instant, a time on the job's clock, or the only one on a day of it."""
    day = parse_day(text, tz)
    if day is None:
        return parse_moment(text, tz)
    found = shell().client.get(name)
    what = found.schedule if isinstance(found.schedule, list) else [found.schedule]
    hashed = [replace(s, hash_id=parse_job_name(name)) if isinstance(s, Cron) else s for s in what]
    just_before = day[0] - timedelta(milliseconds=1)
    times = sorted({m.astimezone(UTC) for s in hashed for m in s.next(just_before, _ON_A_DAY) if m < day[1]})
    if len(times) == 1:
        return times[0]
    if not times:
        raise InvalidArgumentError(f"{found.name} has no occurrence on {text} ({tz}); `job next` shows the coming ones")
    shown = ", ".join(Times("job").show(m, tz) for m in times[: _ON_A_DAY - 1])
    raise InvalidArgumentError(f"{found.name} has more than one occurrence on {text} ({tz}): {shown} ...; say which")


@click.command(cls=Verb, epilog=_TIME_HELP)
@click.argument("name")
@click.argument("time")
def why(name: str, time: str) -> None:
    """Say what became of an occurrence, or will.

    Did it run, and in which run; if not, why not, and what took its place. Of a coming one: when it will run, or what keeps it from that.
    """
    sh = shell()
    tz = _zone(name, time)
    wall = parse_wall(time, tz) if is_wall(time) else None
    moment = wall.shifted if wall is not None and wall.clash else _occurrence(name, time, tz)
    answer = sh.client.why(name, moment)
    if wall is not None and wall.clash:
        say(_which(wall, answer, Times(sh.times), tz))
    _show_why(answer, tz)


def _which(wall: Wall, answer: Why, times: Times, tz: str) -> str:
    """What is answered about when the clock of the zone does not show the time asked about, or shows it twice."""
    if wall.end is None:
        return f"{wall.clash}; this is about the first, {times.show(wall.shifted, tz)}"
    if answer.reason in _CLOCK_CHANGE:
        return wall.clash
    end = instant_text(wall.end)
    return (
        f"{wall.clash}; {times.show(wall.shifted, tz)}, as long after the change, is a time of the schedule itself, and this is about that."
        f" What the clock skips runs at the end of the gap: `job why ... {end}`"
    )


def _show_why(answer: Why, tz: str) -> None:
    show_one(shell(), answer.to_dict(), lambda: _why_page(answer, tz))


def _why_page(w: Why, tz: str) -> Iterator[str]:
    times, now = Times(shell().times), shell().now
    at = "-" if w.at is None else f"{times.show(w.at, tz)}, {relative(w.at, now)}"
    several = w.count is not None and w.count > 1
    yield w.text
    yield ""
    yield from pairs([
        ("disposition", w.disposition + (f" ({w.reason})" if w.reason else "")),
        ("nominal time", "" if w.reason == "dst_gap" else times.show(w.scheduled_at, tz)),  # in a gap the clock shows another
        ("one of", f"{number(w.count or 0)} occurrences, up to {times.show(w.until, tz)}" if several else ""),
        (_at_means(w, now), at), ("run", w.run_id or ""), ("gave way to run", w.blocking or ""),
    ])


def _at_means(w: Why, now: datetime) -> str:
    """What the instant of an answer is."""
    if w.disposition == "pending":
        return "due" if w.reason else "will run"  # paused or held: perhaps not
    if w.at is None or w.at <= now:
        return "ran instead at" if w.reason in _CLOCK_CHANGE else "decided"
    return "runs at"


@click.command(cls=Verb, epilog=_TIME_HELP)
@click.argument("name")
@click.argument("time")
@click.option("--undo", is_flag=True, help="Take a skip back: let it run after all.")
def skip(name: str, time: str, undo: bool) -> None:
    """Leave out one coming occurrence of a job.

    All others stay. `--undo` takes it back, as long as its time has not come.
    """
    tz = _zone(name, time)
    _show_why(shell().client.skip(name, _occurrence(name, time, tz), undo=undo), tz)


@click.command(cls=Verb, epilog=_TIME_HELP)
@click.argument("name")
@click.argument("time")
@click.option("--to", required=True, metavar="TIME", help="When it runs instead.")
def move(name: str, time: str, to: str) -> None:
    """Run one coming occurrence at another time.

    Its run is made at once, waits for that time and keeps the time it had as its own (SCHEDULED). Until it starts it can be moved again,
    also back.
    """
    sh = shell()
    tz = _zone(name, time, to)
    target = parse_moment(to, tz, "--to")
    run = sh.client.move(name, _occurrence(name, time, tz), target)
    show_one(sh, run.to_dict(), lambda: [run.id])
    if sh.table:
        say(f"{run.job}: moved to {Times(sh.times).show(target, tz)}, {relative(target, sh.now)}; run is {run.state}")


@click.command(cls=Verb, epilog=_RANGE_HELP)
@click.argument("name")
@click.option("--since", required=True, metavar="TIME", help="Occurrences from here on, this one included.")
@click.option("--until", required=True, metavar="TIME", help="Up to here, this one included; not in the future.")
@click.option("--dry-run", is_flag=True, help="Make nothing; say what would be made.")
@click.option("--only", type=click.Choice(["missing", "failed"]), default="missing", show_default=True,
              help="Those without a run; or also the dead runs, again as they were made, with the same arguments.")
@click.option("--backwards", is_flag=True, help="The newest first.")
@click.option("--overlap", type=click.Choice(["buffer_all", "allow"]), help="One after another, or side by side (the job's own policy).")
@click.option("--max", "limit", type=click.IntRange(1), metavar="N", help="Of --overlap allow: at most so many side by side.")
def backfill(name: str, since: str, until: str, overlap: str | None, limit: int | None, **flags: Any) -> None:
    """Make runs for past occurrences that have none.

    What has a run is never run twice, as far back as history is kept (`retention`). Look first with --dry-run.
    """
    sh = shell()
    if limit is not None and overlap is None:
        raise click.UsageError("--max goes with --overlap")
    wanted = None if overlap is None else overlap_of(overlap if limit is None else f"{overlap}:{limit}")
    tz = _zone(name, since, until)
    first, last = parse_day(since, tz, "--since"), parse_day(until, tz, "--until")
    begin = first[0] if first is not None else parse_moment(since, tz, "--since")
    end = last[1] - timedelta(milliseconds=1) if last is not None else parse_moment(until, tz, "--until")
    done = sh.client.backfill(name, begin, end, overlap=wanted, **flags)
    show_one(sh, done.to_dict(), lambda: _backfilled(name, done, tz))


def _backfilled(name: str, b: Backfill, tz: str) -> Iterator[str]:
    times = Times(shell().times)
    if not b.total:
        yield f"{name}: the schedule has no occurrence in that range"
        return
    made = "would be made" if b.dry_run else "made"
    rest = f"; {number(b.existing)} {'has' if b.existing == 1 else 'have'} a run" if b.existing else ""
    yield f"{name}: {counted(b.count, 'run')} {made} of {counted(b.total, 'occurrence')}{rest}"
    yield f"  from {times.show(b.first, tz)}"
    yield f"  to   {times.show(b.last, tz)}"
    if b.forgotten:
        old = f"{number(b.forgotten)} of them {'is' if b.forgotten == 1 else 'are'} older than history is kept (`retention`)"
        yield f"  {old}: if a run of that time was made before, {'it would run' if b.dry_run else 'it runs'} again"
    if not b.dry_run:
        yield from (f"  {run_id}" for run_id in b.run_ids[:_SHOWN_IDS])
    if not b.dry_run and len(b.run_ids) > _SHOWN_IDS:
        yield f"  … `wheelsched run list {name}` has all of them"


@click.command(cls=Verb)
@click.argument("name")
@click.option("--limit", type=click.IntRange(1, 10_000), metavar="N", default=100, show_default=True, help="How many changes.")
def history(name: str, limit: int) -> None:
    """Show who changed a job, when and how, newest first.

    `-o json` has both definitions of each change in full.
    """
    sh = shell()
    tz, times = _zone(name), Times(sh.times)

    def cells(c: JobChange) -> list[str]:
        return [times.show(c.at, tz), who(c), c.what, "-" if c.version is None else str(c.version), _changed(c)]

    heads = ["TIME", "WHO", "WHAT", "VERSION#", "CHANGE"]
    show_many(sh, sh.client.history(name, limit), lambda c: c.to_dict(), heads, cells, times, "no changes")


def who(change: JobChange) -> str:
    """Who did it: a name of this machine, else the uid; the server when nobody asked for it."""
    return change.user or ("the server" if change.uid is None or change.uid < 0 else f"uid {change.uid}")


def _changed(c: JobChange) -> str:
    """`timeout: 5m -> 10m, jitter: none -> 30s (note)`; of a new job its schedule and task."""
    changes = c.changes
    if c.old is None:
        parts = [str(changes[name][1]) for name in ("schedule", "task") if name in changes]
    else:
        parts = [f"{name}: {_word(old)} -> {_word(new)}" for name, (old, new) in changes.items()]
    told = ", ".join(parts)
    return f"{told} ({c.note})" if told and c.note else told or c.note


def _word(value: Any) -> str:
    if value is None:
        return "none"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


VERBS = (why, skip, move, backfill, history)

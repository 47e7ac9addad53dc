"""`wheelsched job`: put, list, get, next, pause, resume, trigger, delete; its other verbs are in files of their own."""

from __future__ import annotations

import json
from datetime import UTC
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

import click

from ..client.times import DST_LEGEND, Times, instant_text, micros, relative, schedule_zone, span
from ..client.words import cut, number
from ..model.nouns import HOOKS, display_name
from ..schedules.schedule import At, Cron, Every
from .apply import apply_command
from .changed import show_put
from .importers.imports import import_group
from .job_change import VERBS as CHANGE_VERBS
from .job_many import delete, pause, resume, trigger
from .job_time import VERBS as TIME_VERBS
from .output import pairs, show_many, show_one
from .policies import PUT_HELP, call, payload_flags, policies, policy_flags, schedule, schedule_flags
from .shell import Verbs, say, shell
from .tables import Head, Tinted, brief

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from datetime import datetime

    from ..client.values import JobInfo
    from ..schedules.schedule import Schedule


_SORTED_MAX = 100_000


@click.group(cls=Verbs)
def job() -> None:
    """Put, list, inspect, explain, pause, resume, trigger, backfill, delete and import jobs."""


job.add_command(import_group)
for verb in (*TIME_VERBS, *CHANGE_VERBS):
    job.add_command(verb)
job.add_command(apply_command)


@job.command(epilog=PUT_HELP)
@click.argument("name")
@click.argument("task")
@click.argument("argv", nargs=-1)
@schedule_flags
@payload_flags
@policy_flags
@click.option("--paused", is_flag=True, help="Put it paused.")
@click.option("--note", default="", metavar="TEXT", help="Why it is there.")
@click.option("--version", type=click.IntRange(0), metavar="N", help="Only if the job is at this version (exit 4 if not); 0: it is new.")
def put(name: str, task: str, argv: tuple[str, ...], paused: bool, note: str, version: int | None, **flags: Any) -> None:
    """Create or change a job: it becomes just what is said here. `job set` changes what is named and leaves the rest.

    `job put NAME [flags] command -- ARGV...` is short for the command task.
    """
    sh = shell()
    work = call(task, flags, argv)
    when = schedule(sh, flags)
    show_put(sh.client.put(name, work, when, paused=True if paused else None, note=note, version=version, **policies(flags)))


@job.command("list")
@click.argument("match", required=False)
@click.option("--state", type=click.Choice(["active", "paused", "finished", "deleted"]))
@click.option("--limit", "-n", type=click.IntRange(0), metavar="N", help="How many in all.")
def list_(match: str | None, state: str | None, limit: int | None) -> None:
    """List jobs whose name matches a glob, sorted by name; behind them those that stand for runs of enqueue."""
    sh = shell()
    times = Times(sh.times)

    def cells(found: JobInfo) -> list[str]:
        soon = "-" if found.next_at is None else relative(found.next_at, sh.now)
        tz, note = zone_of(found), ("paused: " if found.pause_note else "") + (found.pause_note or found.note or "")
        colour = "yellow" if found.state == "paused" else ""
        return [
            found.name, Tinted(found.state, colour) if colour else found.state, found.task,
            describe_schedule(found) if sh.wide else cut(describe_schedule(found), 40),
            times.short(found.next_at, tz) if brief() else times.show(found.next_at, tz), soon, str(found.active),
            note if sh.wide else cut(note, 48),
        ]

    heads = [Head("NAME"), Head("STATE"), Head("TASK", rank=3, least=8), Head("SCHEDULE", least=10), Head("NEXT", rank=2), Head("IN"),
             Head("OPEN", right=True, rank=1), Head("NOTE", rank=4, least=8)]
    jobs = islice(_sorted(sh.client.jobs(match, state)), limit)
    show_many(sh, jobs, lambda j: j.to_dict(), heads, cells, times, "no jobs")


def _sorted(jobs: Iterable[JobInfo]) -> Iterator[JobInfo]:
    """By name, those of enqueue last. More than can be held are as they come."""
    waiting = iter(jobs)
    first = list(islice(waiting, _SORTED_MAX))
    if len(first) < _SORTED_MAX:
        return iter(sorted(first, key=lambda found: ("~" in found.name, found.name)))
    say(f"there are {number(_SORTED_MAX)} jobs or more: they are not sorted")
    return chain(first, waiting)


def zone_of(found: JobInfo) -> str:
    """The zone of a job's schedule; UTC when it has none."""
    return schedule_zone(found.spec["schedule"])


def describe_schedule(found: JobInfo) -> str:
    """A schedule as it would be typed; those of a union with semicolons between them."""
    what = found.schedule
    return "; ".join(map(_describe, what)) if isinstance(what, list) else _describe(what)


def _describe(what: Schedule) -> str:
    if isinstance(what, Cron):
        return f"{what.expr} {what.tz}" if what.tz != "UTC" else what.expr
    if isinstance(what, Every):
        return f"every {span(what.every_us / 1e6)}" + (" after completion" if what.after_completion else "")
    return "at " + _plain_time(what.instant) if isinstance(what, At) else "manual"


def _plain_time(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%SZ")


@job.command()
@click.argument("name")
def get(name: str) -> None:
    """Show a job."""
    sh = shell()
    found = sh.client.get(name)
    show_one(sh, found.to_dict(), lambda: _page(found, Times(sh.times)))


def _page(found: JobInfo, times: Times) -> Iterator[str]:
    now, tz, spec, shown = shell().now, zone_of(found), found.spec, found.to_dict()
    retry, overlap, catchup = spec["retry"], spec["overlap"], spec["catchup"]
    due = "-" if found.next_at is None else f"{times.show(found.next_at, tz)}, {relative(found.next_at, now)}"
    yield from pairs([
        ("job", found.name), ("state", found.state + (f" ({found.pause_note})" if found.pause_note else "")),
        ("note", "" if found.note == found.pause_note else found.note or ""),
        ("task", found.task),
        ("args", json.dumps(shown["args"], ensure_ascii=False) if shown["args"] else ""),
        ("kwargs", json.dumps(shown["kwargs"], ensure_ascii=False) if shown["kwargs"] else ""),
        ("headers", ", ".join(f"{name}={text}" for name, text in shown.get("headers", {}).items())),
        ("schedule", describe_schedule(found)), ("next", due), ("decided up to", times.show(found.cursor, tz)),
        ("open runs", str(found.active)), ("queue", f"{found.queue}, priority {spec['priority']}"), ("timeout", micros(spec["timeout_us"])),
        ("heartbeat timeout", micros(spec.get("heartbeat_timeout_us"))),
        ("retry", _rule(retry)), ("never retried", ", ".join(retry["not_on"])),
        *((f"after {name}", _rule(rule)) for name, rule in (retry.get("errors") or {}).items()),
        ("overlap", _policy(overlap)), ("catchup", _policy(catchup)),
        ("start", times.show(_instant(spec.get("start_us")), tz)), ("end", times.show(_instant(spec.get("end_us")), tz)),
        ("max runs", str(spec.get("max_runs") or "")), ("expires after", micros(spec.get("expires_after_us"))),
        ("concurrency", str(spec.get("concurrency") or "")),
        ("concurrency key", spec.get("concurrency_key") or ""), ("jitter", _jitter(spec.get("jitter"))),
        ("calendars", ", ".join(spec.get("calendar") or ())), ("late after", micros(spec.get("late_after_us"))),
        *((hook.replace("_", " "), f"triggers {display_name(spec[hook])}" if spec.get(hook) else "") for hook in ("on_missed", *HOOKS)),
        ("redacted", ", ".join(spec.get("redact") or ())),
        ("pause after", f"{spec['pause_after']} dead runs one after another" if spec.get("pause_after") else ""),
        ("version", str(found.version)),
        ("created", times.show(found.created_at, tz)), ("updated", times.show(found.updated_at, tz)),
    ])
    if times.marked:
        yield from ("", DST_LEGEND)


def _rule(retry: dict[str, Any]) -> str:
    if retry["attempts"] == 1:
        return "1 attempt"
    return f"{retry['attempts']} attempts, {micros(retry['backoff_us'])} x {retry['factor']:g}, at most {micros(retry['cap_us'])}"


def _instant(us: int | None) -> datetime | None:
    from ..model.nouns import to_datetime  # noqa: PLC0415 - for two rare lines

    return to_datetime(us)


def _policy(policy: dict[str, Any]) -> str:
    window = "" if policy.get("window_us") is None else f", window {micros(policy['window_us'])}"
    limit = "" if policy.get("max") is None else f", at most {policy['max']}"
    return f"{policy['policy']}{window}{limit}"


def _jitter(jitter: dict[str, Any] | None) -> str:
    if not jitter:
        return ""
    return micros(jitter["us"]) if jitter.get("percent") is None else f"{jitter['percent']:g} % of the period"


@job.command("next")
@click.argument("name")
@click.option("-n", "n", type=click.IntRange(1, 1000), default=5, show_default=True, help="How many.")
def next_(name: str, n: int) -> None:
    """Show a job's coming times."""
    sh = shell()
    found = sh.client.get(name)
    show_instants(sh.client.next(name, n), zone_of(found), "no coming time")
    if sh.table and found.spec.get("jitter"):
        say(f"jitter ({_jitter(found.spec['jitter'])}) puts each start off by a stable part of it: `job why {found.name} TIME` tells which")


def show_instants(instants: list[datetime], tz: str, empty: str) -> None:
    """Coming times, one a line; as JSON a list of RFC 3339 instants in UTC."""
    sh = shell()
    times, now = Times(sh.times), sh.now
    show_many(sh, instants, instant_text, ["TIME", "IN"], lambda m: [times.show(m, tz), relative(m, now)], times, empty)


job.add_command(pause)
job.add_command(resume)
job.add_command(delete)
job.add_command(trigger)

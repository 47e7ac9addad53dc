"""`wheelsched job apply -f jobs.toml`: a file of jobs, its plan, and one commit for all of it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from ..client.words import cut
from ..model.errors import InvalidArgumentError
from ..model.nouns import counted, display_name
from ..schedules.schedule import Cron
from ..schedules.words import given_words
from .calendar import calendar_lines
from .changed import difference_line
from .jobs_file import read_jobs_file, shown_path
from .output import show_one
from .policies import warn
from .shell import Failed, Verb, say, shell
from .status import runs_told

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ..client.apply import Applied
    from .jobs_file import JobsFile

EXIT_INVALID: Final = 2
_FAULTS_SHOWN: Final = 100


def read_text(file: Path) -> str:
    """The text of a file, or of standard input for `-`. Failed when it can't be read."""
    try:
        return sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")
    except UnicodeDecodeError as e:
        line, byte = e.object.count(b"\n", 0, e.start) + 1, e.object[e.start]
        raise Failed(f"{file}:{line}: byte 0x{byte:02x} is no UTF-8; convert the file, for example by `iconv -f latin1 -t utf-8`") from e
    except OSError as e:
        raise Failed(f"{file}: {e.strerror}") from e


@click.command("apply", cls=Verb)
@click.option("-f", "--file", "file", required=True, type=click.Path(dir_okay=False, allow_dash=True, path_type=Path), metavar="FILE",
              help="A TOML file of jobs; - is standard input.")
@click.option("--prune", metavar="PATTERN", help="Delete the jobs that match this glob and are not in the file.")
@click.option("--dry-run", is_flag=True, help="Show the plan and change nothing.")
def apply_command(file: Path, prune: str | None, dry_run: bool) -> None:
    """Make the server's jobs what a file says.

    All of it in one commit, or nothing. Shows + for a new job, ~ for a changed one with what changes, - for a deleted one. Jobs that are
    not in the file are left alone, unless they match --prune. Every fault of the file is listed; then nothing is changed.
    """
    sh = shell()
    found = read_jobs_file(read_text(file))
    if found.faults:
        raise Failed(_listed([f"{file}:{fault}" for fault in found.faults]), EXIT_INVALID)
    if prune is not None and not found.jobs:
        raise Failed(f"{file}: it has no jobs, so --prune would delete all that match; that is for `wheelsched job delete`", EXIT_INVALID)
    before = {c.name: c.definition for c in sh.client.calendars()} if found.calendars else {}
    try:
        done = sh.client.apply(found.jobs, prune, dry_run, calendars=found.calendars)
    except InvalidArgumentError as e:
        rows = e.detail.get("jobs")
        if not isinstance(rows, list):
            raise
        raise Failed(_listed([_server_fault(file, found, row, text) for row, text in rows]), EXIT_INVALID) from e
    show_one(sh, done.to_dict(), lambda: _plan(found, done, before))
    for task, warning in done.warnings:
        warn(task, warning)
    for name, text in done.said:
        say(f"{name}: {text}")
    for remark in _other_zones(found):
        say(remark)
    if sh.table:
        counts = ", ".join(f"{n} {what}" for what, n in done.counts().items())
        counts += f"; {counted(len(done.calendars), 'calendar')}" if done.calendars else ""
        counts += runs_told(done.cancelled, done.going_on)
        say(f"{'would be: ' if dry_run else ''}{counts}" if done else f"nothing to do: {done.unchanged} unchanged")


def _listed(lines: list[str]) -> str:
    """All faults, one a line."""
    more = [f"... and {len(lines) - _FAULTS_SHOWN} more"] if len(lines) > _FAULTS_SHOWN else []
    total = f"{len(lines)} fault{'s' if len(lines) > 1 else ''}; nothing was changed"
    return "\n".join([*lines[:_FAULTS_SHOWN], *more, total])


def _server_fault(file: Path, found: JobsFile, row: int, text: str) -> str:
    path: tuple[str | int, ...] = ("jobs", found.names[row], text.partition(":")[0])  # most messages begin with the name of a policy
    if path not in found.where:
        path = path[:2]
    return f"{file}:{found.where.get(path, found.lines[row])}: {shown_path(path)}: {text}"


def _plan(found: JobsFile, done: Applied, before: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """The plan's lines, in the order of their names."""
    jobs = {job.name.removeprefix("default/"): job for job in found.jobs} | {job.name: job for job in found.jobs}
    lines = []
    for name in done.created:
        job = jobs[name]
        lines.append((name, f"+ {name}  {job.call.task}  {cut(given_words(job.schedule), 80)}"))
    lines += [(name, difference_line(name, done.changes.get(name, {}))) for name in done.updated]
    lines += [(name, f"- {name}") for name in done.deleted]
    for name, result in sorted(done.calendars.items()):
        now = _calendar_words(_canonical(found.calendars[name]))
        if result == "created":
            yield f"+ calendar {name}  {cut(', '.join(now.values()), 80)}"
            continue
        old = _calendar_words(before.get(name, {}))
        yield difference_line(f"calendar {name}", {key: (old[key], now[key]) for key in now if old[key] != now[key]})
    for _, line in sorted(lines):
        yield line


def _canonical(given: Mapping[str, Any]) -> dict[str, Any]:
    """A calendar of the file as the server has it."""
    from ..schedules.calendars import calendar_from_api  # noqa: PLC0415 - heavy, and most files have none

    return calendar_from_api(**given)


def _other_zones(found: JobsFile) -> Iterator[str]:
    """A remark for each calendar of the file whose days are not those of jobs that name it."""
    for name, given in sorted(found.calendars.items()):
        zone = str(given.get("tz", "UTC"))
        jobs = [
            job for job in found.jobs
            if name in _named(job.policies.get("calendar")) and any(cron.tz != zone for cron in _crons(job.schedule))
        ]
        if jobs:
            yield f"calendar {name} has the days of {zone}; other zones: {cut(', '.join(display_name(job.name) for job in jobs), 100)}"


def _named(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else list(value or ())


def _crons(schedule: Any) -> list[Cron]:
    return [part for part in (schedule if isinstance(schedule, list) else [schedule]) if isinstance(part, Cron)]


def _calendar_words(definition: Mapping[str, Any]) -> dict[str, str]:
    """What a calendar says, for a plan."""
    times = "; ".join(calendar_lines(definition))
    return {"mode": str(definition.get("mode")), "tz": str(definition.get("tz")), "times": times}

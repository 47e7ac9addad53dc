"""`wheelsched cron lint FILE`: what is wrong and what is surprising in a crontab, a jobs file or a list of expressions. Offline."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from ..model.errors import WheelschedError
from ..model.nouns import counted, parse_instant, to_datetime
from ..schedules.expressions import ALIASES
from ..schedules.lint import dst_notes, notes, pile_up
from ..schedules.schedule import Cron
from .apply import read_text
from .importers.crontab import is_system, read_crontab
from .jobs_file import read_jobs_file
from .output import show_many
from .shell import Failed, Verb, say, shell
from .zone import machine_zone

if TYPE_CHECKING:
    from collections.abc import Iterator

_FORMS: Final = ("auto", "crontab", "system", "toml", "expressions")
_YEAR: Final = timedelta(days=366)
_LISTED: Final = 12
_WORD: Final = re.compile(
    r"(?:[\d*?,/#()~-]|[lwh]|jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec|sun|mon|tue|wed|thu|fri|sat)+", re.IGNORECASE | re.ASCII
)


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding. `kind`: error (it can't be used), never (it never fires) or a remark: field, dst, pile."""

    line: int
    kind: str
    what: str
    text: str

    @property
    def wrong(self) -> bool:
        """Is it more than a remark?"""
        return self.kind in ("error", "never")


@dataclass(frozen=True, slots=True)
class _Job:
    line: int
    what: str
    schedules: tuple[Cron, ...]


@click.command("lint", cls=Verb)
@click.argument("file", type=click.Path(dir_okay=False, allow_dash=True, path_type=Path))
@click.option("--form", type=click.Choice(_FORMS), default="auto", show_default=True,
              help="Of the file: a crontab, one with a user column, a jobs file, one expression a line.")
@click.option("--tz", metavar="Z", help="Zone of what names none (a crontab: this machine's; expressions: UTC).")
@click.option("--after", metavar="T", help="Look at the year after this instant (RFC 3339; now).")
def lint(file: Path, form: str, tz: str | None, after: str | None) -> None:
    """Find what is wrong or surprising in a file of schedules; - is standard input.

    Wrong: what can't be read and what never fires; then the exit code is 1. Remarks: steps with an unequal end, day-of-month
    OR day-of-week, times that a change of the clock skips or repeats within a year, and minutes in which many of the file's
    jobs start together.
    """
    sh = shell()
    text = read_text(file)
    start = datetime.now(UTC) if after is None else to_datetime(parse_instant(after, "--after"))
    assert start is not None
    if form == "auto":
        form = _form(file, text)
    findings: list[Finding] = []
    jobs = _jobs(text, form, tz, findings)
    for job in jobs:
        for schedule in job.schedules:
            findings += [Finding(job.line, "field", job.what, note) for note in notes(schedule)]
            findings += [Finding(job.line, "dst", job.what, note) for note in dst_notes(schedule, start, start + _YEAR)]
    findings += _piles(jobs, start)
    findings.sort(key=lambda f: f.line)
    name = "-" if str(file) == "-" else str(file)
    if sh.table:
        for f in findings:
            click.echo(f"{name}:{f.line}: {f.kind}: {f.what}: {f.text}")
    else:
        show_many(sh, findings, lambda f: {"file": name, **asdict(f), "wrong": f.wrong}, (), lambda _: ())
    wrong = sum(f.wrong for f in findings)
    say(f"{counted(len(jobs), 'schedule')} read as {form}: {wrong} wrong, {counted(len(findings) - wrong, 'remark')}")
    if wrong:
        raise Failed(f"{wrong} of {name} can't be used as they are")


def _form(file: Path, text: str) -> str:
    """What kind of file it is, by its name or its lines."""
    if file.suffix == ".toml" or re.search(r"^\s*\[\s*(jobs|defaults)\b", text, re.MULTILINE):
        return "toml"
    if is_system(file):
        return "system"
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    bare = sum(all(_WORD.fullmatch(word) for word in line.split()) or line.lower() in ALIASES for line in lines)
    return "expressions" if bare * 2 > len(lines) else "crontab"


def _jobs(text: str, form: str, tz: str | None, findings: list[Finding]) -> list[_Job]:
    if form == "toml":
        return _of_toml(text, findings)
    if form == "expressions":
        return list(_of_expressions(text, tz or "UTC", findings))
    return list(_of_crontab(text, tz or machine_zone(), findings, system=form == "system"))


def _of_toml(text: str, findings: list[Finding]) -> list[_Job]:
    found = read_jobs_file(text)
    findings += [Finding(f.line, "never" if "never fires" in f.text else "error", f.place or "file", f.text) for f in found.faults]
    out = []
    for job, line in zip(found.jobs, found.lines, strict=True):
        parts = job.schedule if isinstance(job.schedule, list) else [job.schedule]
        hashed = tuple(Cron(p.expr, p.tz, p.dst_gap, p.dst_overlap, p.day_or, p.seconds, job.name) for p in parts if isinstance(p, Cron))
        out.append(_Job(line, job.name, hashed))
    return out


def _of_expressions(text: str, tz: str, findings: list[Finding]) -> Iterator[_Job]:
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        try:
            yield _Job(number, line, (Cron(line, tz),))
        except WheelschedError as e:
            findings.append(Finding(number, "never" if "never fires" in e.message else "error", line, e.message))


def _of_crontab(text: str, tz: str, findings: list[Finding], *, system: bool) -> Iterator[_Job]:
    for entry in read_crontab(text, system=system, tz=tz):
        if entry.kind in ("error", "manual"):
            note = next((n.partition(": made a job")[0] for n in entry.notes if "never fires" in n), "; ".join(entry.notes))
            findings.append(Finding(entry.line, "never" if entry.kind == "manual" else "error", entry.text, note))
        elif entry.kind == "skipped":
            findings.append(Finding(entry.line, "field", entry.text, "; ".join(entry.notes)))
        elif entry.job is not None:
            schedule = entry.job.schedule
            yield _Job(entry.line, entry.text, (Cron(schedule.expr, schedule.tz, hash_id=entry.job.name),))


def _piles(jobs: list[_Job], start: datetime) -> Iterator[Finding]:
    for pile in pile_up([job.schedules for job in jobs], start):
        lines = [jobs[i].line for i in pile.jobs]
        shown = ", ".join(map(str, lines[:_LISTED])) + (", ..." if len(lines) > _LISTED else "")
        first = jobs[pile.jobs[0]]
        text = f"{len(lines)} of {len(jobs)} jobs start in the minute {pile.at:%Y-%m-%d %H:%MZ}, those of lines {shown}"
        yield Finding(first.line, "pile", first.what, f"{text}; H or jitter spreads them")

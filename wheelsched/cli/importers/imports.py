"""`wheelsched job import crontab | systemd | kubernetes | celery FILE...`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ...model.errors import UnimplementedError
from ...model.nouns import CATCHUPS, parse_job_name
from ...schedules.schedule import Cron
from ..apply import read_text
from ..policies import policies
from ..shell import Failed, Verb, Verbs, words
from ..zone import machine_zone
from . import celery, crontab, kubernetes, systemd
from .entries import Entry, carry_over, tell_others

if TYPE_CHECKING:
    from collections.abc import Callable

F = TypeVar("F", bound="Callable[..., Any]")


@click.group("import", cls=Verbs)
def import_group() -> None:
    """Import jobs from other schedulers' files.

    Each line that says something is shown with what became of it; what could not be carried over is told with its reason. Exit 1
    if a line could not be imported; the others are.
    """


def _flags(f: F) -> F:
    for option in reversed((
        click.option("--dry-run", is_flag=True, help="Only show what would be made."),
        click.option("--paused", is_flag=True, help="Put the jobs paused."),
        click.option("--queue", metavar="Q", help="Their queue."),
        click.option("--timeout", metavar="D", help="Of one run."),
        click.option("--overlap", metavar="W", help="While an earlier run is active."),
        click.option("--catchup", type=click.Choice(CATCHUPS), help="What is run of what was missed."),
        click.option("--redact", multiple=True, metavar="NAME", help="A variable not shown to anybody, beside what looks like a secret."),
        click.option("--retry-attempts", type=int, metavar="N", help="All attempts, the first included."),
        click.option("--on-dead", metavar="JOB", help="Trigger this job when a run is out of attempts: the alarm."),
    )):
        f = option(f)
    return f


_FILES = click.argument(
    "files", nargs=-1, required=True, metavar="FILE...", type=click.Path(dir_okay=False, allow_dash=True, path_type=Path)
)


def _given(flags: dict[str, Any]) -> dict[str, Any]:
    """The policies that the user chose."""
    if flags["on_dead"] is not None:
        parse_job_name(flags["on_dead"])  # a dry run says what is wrong with it, too
    names = ("queue", "timeout", "overlap", "catchup", "retry_attempts", "on_dead", "redact")
    return policies({name: flags[name] for name in names if flags[name] is not None})


def _zone(tz: str | None) -> str:
    """A zone that is there. ScheduleError."""
    zone = tz or machine_zone()
    Cron("0 0 * * *", tz=zone)
    return zone


@import_group.command("crontab", cls=Verb)
@_FILES
@click.option("--system/--no-system", default=None, help="With a user before the command, as in /etc/cron.d (told by the path).")
@click.option("--prefix", default="crontab/", show_default=True, metavar="NS/", help="Begins the names of the jobs.")
@click.option("--tz", metavar="Z", help="Zone of schedules without CRON_TZ (this machine's).")
@_flags
def import_crontab(files: tuple[Path, ...], system: bool | None, prefix: str, tz: str | None, **flags: Any) -> None:
    """Make a job of each line of crontabs, and say for each line what was made of it.

    The jobs behave as under cron: one attempt, no catch-up, overlapping allowed, 30 days at most; the flags change that. Each is a
    command task, [/bin/sh, -c, LINE], so the server must run with --allow-commands. A job is named after its command: a line that was
    changed is a new job when it is imported again, and the former one is told, to be deleted by hand.
    """
    zone, given = _zone(tz), _given(flags)
    entries: list[Entry] = []
    for file in files:
        form = crontab.is_system(file) if system is None else system
        found = crontab.read_crontab(read_text(file), system=form, prefix=prefix, tz=zone, on_dead=flags["on_dead"] or "")
        for entry in found if len(files) > 1 else ():
            entry.file = str(file)
        entries += found
    _unique(entries)
    carry_over(entries, crontab.POLICIES, given, dry=flags["dry_run"], paused=flags["paused"],
               advice=f"; schedules without CRON_TZ are read in {zone}")
    if not flags["dry_run"]:
        tell_others(entries, prefix)


def _unique(entries: list[Entry]) -> None:
    """The same name from two files would be one job: the later one is an error."""
    seen: dict[str, Entry] = {}
    for entry in entries:
        if entry.job is not None and seen.setdefault(entry.job.name, entry) is not entry:
            other = seen[entry.job.name]
            entry.notes.append(f"{entry.job.name} is already the job of {other.file}:{other.line}; choose another --prefix")
            entry.kind, entry.job = "error", None


@import_group.command("systemd", cls=Verb)
@click.argument("files", nargs=-1, required=True, metavar="FILE|DIR...", type=click.Path(allow_dash=True, path_type=Path))
@click.option("--prefix", default="systemd/", show_default=True, metavar="NS/", help="Begins the names of the jobs.")
@click.option("--tz", metavar="Z", help="Zone of OnCalendar= without one (this machine's).")
@_flags
def import_systemd(files: tuple[Path, ...], prefix: str, tz: str | None, **flags: Any) -> None:
    """Make a job of each .timer file, those of folders included, and the .service file beside it or in another of the folders.

    OnCalendar= becomes cron, several of them a union, OnUnitActiveSec= an interval, OnUnitInactiveSec= one after completion, ExecStart=
    the command. The jobs behave as under systemd: one attempt, no second run at once, catch-up by Persistent=.
    """
    zone = _zone(tz)
    entries: list[Entry] = []
    folders = [file for file in files if file.is_dir()]
    timers = [timer for file in files for timer in (sorted(file.glob("*.timer")) if file.is_dir() else [file])]
    if not timers:
        raise Failed(f"{words([str(file) for file in folders])}: no .timer file is there")
    for file in timers:
        places = [file.parent, *folders]
        entries += systemd.read_timer(str(file), read_text(file), lambda name, places=places: _unit(places, name), prefix=prefix, tz=zone)  # type: ignore[misc]
        for drop_in in sorted(file.parent.glob(f"{file.name}.d/*.conf")):
            entries.append(Entry(1, "dropped", drop_in.name, ["drop-ins are not read: merge it into the unit"], file=str(drop_in)))
    _unique(entries)
    carry_over(entries, systemd.POLICIES, _given(flags), dry=flags["dry_run"], paused=flags["paused"],
               advice=f"; times without a zone are read in {zone}")


def _unit(places: list[Path], name: str) -> tuple[str, str] | None:
    """(path, text) of a unit, from the first of these folders that has it; None when none has."""
    path = next((found for place in places if (found := place / Path(name).name).is_file()), None)
    return None if path is None else (str(path), read_text(path))


@import_group.command("kubernetes", cls=Verb)
@_FILES
@click.option("--prefix", metavar="NS/", help="Begins the names of the jobs (the manifest's namespace).")
@click.option("--tz", default="UTC", show_default=True, metavar="Z", help="Zone of schedules without timeZone: the controller's.")
@_flags
def import_kubernetes(files: tuple[Path, ...], prefix: str | None, tz: str, **flags: Any) -> None:
    """Make a job of each CronJob in YAML manifests; needs PyYAML, pip install PyYAML.

    The container's command runs beside the worker, without its image. The jobs behave as under the CronJob controller:
    concurrencyPolicy as overlap, startingDeadlineSeconds as the catch-up window, backoffLimit as attempts.
    """
    entries: list[Entry] = []
    for file in files:
        try:
            entries += kubernetes.read_manifests(str(file), read_text(file), prefix=prefix and prefix.rstrip("/"), tz=_zone(tz))
        except UnimplementedError as e:
            raise Failed(e.message) from e
    _unique(entries)
    carry_over(entries, kubernetes.POLICIES, _given(flags), dry=flags["dry_run"], paused=flags["paused"])


@import_group.command("celery", cls=Verb)
@_FILES
@click.option("--prefix", default="celery/", show_default=True, metavar="NS/", help="Begins the names of the jobs.")
@click.option("--tz", default="UTC", show_default=True, metavar="Z", help="Zone of crontab(...) without a timezone setting.")
@_flags
def import_celery(files: tuple[Path, ...], prefix: str, tz: str, **flags: Any) -> None:
    """Make a job of each entry of a beat_schedule in Python files, which are read and never run.

    Each calls the task of the same name, so workers need it. The jobs behave as under beat: one attempt, overlapping allowed, one
    run for what was missed.
    """
    entries: list[Entry] = []
    for file in files:
        entries += celery.read_beat(str(file), read_text(file), prefix=prefix, tz=_zone(tz))
    _unique(entries)
    carry_over(entries, celery.POLICIES, _given(flags), dry=flags["dry_run"], paused=flags["paused"])

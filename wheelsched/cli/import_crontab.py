"""`wheelsched job import crontab FILE`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from ..errors import DeadlineExceededError, PermissionDeniedError, UnavailableError, WheelschedError
from ..model import CATCHUPS
from ..schedule import Cron
from ..zonedata import zone_names
from .crontab import POLICIES, Entry, read_crontab
from .output import cut, show_many
from .policies import policies
from .shell import Failed, Verb, Verbs, say, shell

if TYPE_CHECKING:
    from collections.abc import Sequence

_ZONEINFO: Final = "/zoneinfo/"


@click.group("import", cls=Verbs)
def import_group() -> None:
    """Import jobs from other schedulers' files."""


def machine_zone() -> str:
    """The IANA zone of this machine, in which its cron reads crontabs; UTC when it can't be told."""
    for name in (os.environ.get("TZ", "").lstrip(":"), _linked_zone()):
        if name in zone_names():
            return name.removeprefix("Etc/") if name == "Etc/UTC" else name
    return "UTC"


def _linked_zone() -> str:
    target = os.path.realpath("/etc/localtime")
    return target.partition(_ZONEINFO)[2]


@import_group.command("crontab", cls=Verb)
@click.argument("file", type=click.Path(dir_okay=False, allow_dash=True, path_type=Path))
@click.option("--system", is_flag=True, help="The form of /etc/crontab and /etc/cron.d: with a user before the command.")
@click.option("--prefix", default="crontab/", show_default=True, metavar="NS/", help="Begins the names of the jobs.")
@click.option("--tz", metavar="Z", help="Zone of schedules without CRON_TZ (this machine's).")
@click.option("--dry-run", is_flag=True, help="Only show what would be made.")
@click.option("--paused", is_flag=True, help="Put the jobs paused.")
@click.option("--queue", metavar="Q", help="Their queue.")
@click.option("--timeout", metavar="D", help="Of one run (30d).")
@click.option("--overlap", metavar="W", help="While an earlier run is active (allow).")
@click.option("--catchup", type=click.Choice(CATCHUPS), help="What is run of what was missed (skip).")
@click.option("--retry-attempts", type=int, metavar="N", help="All attempts, the first included (1).")
def crontab(file: Path, **flags: Any) -> None:
    """Make a job of each line of a crontab, and say for each line what was made of it.

    The jobs behave as under cron: one attempt, no catch-up, overlapping allowed; the flags change that. Each is a command
    task, [/bin/sh, -c, LINE], so the server must run with --allow-commands. Exit 1 if a line could not be
    imported; the others are.
    """
    sh = shell()
    try:
        text = sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as e:
        raise Failed(f"{file}: {e.strerror if isinstance(e, OSError) else 'not UTF-8'}") from e
    tz = flags["tz"] or machine_zone()
    entries = read_crontab(text, system=flags["system"], prefix=flags["prefix"], tz=tz)
    given = {k: flags[k] for k in ("queue", "timeout", "overlap", "catchup", "retry_attempts") if flags[k] is not None}
    shared = {**POLICIES, **policies(given)}
    results: dict[str, str] = {} if flags["dry_run"] else _put(entries, shared, paused=flags["paused"])
    show_many(sh, entries, lambda e: _to_dict(e, results), ["LINE#", "RESULT", "JOB", "SCHEDULE", "NOTE"], lambda e: _cells(e, results),
              empty="no lines")
    _summary(entries, tz, dry=flags["dry_run"])


def _put(entries: Sequence[Entry], shared: dict[str, Any], *, paused: bool) -> dict[str, str]:
    """Put the jobs; name -> what happened. A job that the server refuses makes its line an error, and the others go on."""
    client = shell().client
    out = {}
    for entry in entries:
        job = entry.job
        if job is None:
            continue
        try:
            found = client.put(job.name, job.call, job.schedule, paused=True if paused else None, **shared)
        except (UnavailableError, DeadlineExceededError, PermissionDeniedError):
            raise
        except WheelschedError as e:
            entry.kind, entry.job = "error", None
            entry.notes.append(f"{job.name}: {e.message}")
        else:
            out[job.name] = found.result or "put"
    return out


def _schedule(entry: Entry) -> str:
    if entry.job is None:
        return ""
    schedule = entry.job.schedule
    return f"{schedule.expr} {schedule.tz}" if isinstance(schedule, Cron) else "manual"


def _result(entry: Entry, results: dict[str, str]) -> str:
    if entry.job is None:
        return entry.kind
    return results.get(entry.job.name, "would put")


def _cells(entry: Entry, results: dict[str, str]) -> list[str]:
    told = "; ".join(entry.notes)
    if entry.job is None:
        told = f"{cut(entry.text, 50)}: {told}"
    return [str(entry.line), _result(entry, results), "" if entry.job is None else entry.job.name, _schedule(entry), told]


def _to_dict(entry: Entry, results: dict[str, str]) -> dict[str, Any]:
    out: dict[str, Any] = {"line": entry.line, "kind": entry.kind, "result": _result(entry, results), "text": entry.text}
    out["notes"] = entry.notes
    if entry.job is not None:
        schedule = entry.job.schedule
        call = entry.job.call
        out |= {"job": entry.job.name, "argv": call.args[0], "env": call.kwargs["env"], "user": call.kwargs["user"]}
        out |= {"cron": schedule.expr, "tz": schedule.tz} if isinstance(schedule, Cron) else {"manual": True}
    return out


def _summary(entries: list[Entry], tz: str, *, dry: bool) -> None:
    jobs = sum(e.job is not None for e in entries)
    count = {kind: sum(e.kind == kind for e in entries) for kind in ("manual", "skipped", "error")}
    say(
        f"{jobs} jobs {'would be ' if dry else ''}put ({count['manual']} of them manual), {count['skipped']} lines left out,"
        f" {count['error']} lines in error; schedules without CRON_TZ are read in {tz}"
    )
    if jobs:
        say("each is a command task [/bin/sh, -c, LINE]: the server must run with --allow-commands")
    if count["error"]:
        raise Failed(f"{count['error']} lines could not be imported")

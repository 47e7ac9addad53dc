"""How runs are named on the command line: an id, a unique prefix of one, JOB (its last run), or JOB@TIME as the tables print it."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import TYPE_CHECKING, Final

from ..client.times import parse_day, parse_moment, schedule_zone
from ..model.errors import InvalidArgumentError, NotFoundError, WheelschedError
from ..model.nouns import MS
from .shell import EXIT_CONFLICT, EXIT_NOT_FOUND, Failed, Shell, shell
from .zone import machine_zone

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..client.client import Run

__all__ = ["HELP", "find_id", "find_run", "run_name"]

HELP: Final = "RUN is an id or a unique prefix of one, a JOB (its last run), or JOB@TIME as `run list` prints it."
_ID: Final = re.compile(r"[0-9a-f]{32}", re.ASCII)
_PREFIX: Final = re.compile(r"[0-9a-f]{4,31}", re.ASCII)
_STAMP_DIGITS: Final = 12  # of an id: milliseconds; for runs of a schedule the nominal time, for others when they were made
_SHOWN: Final = 10
_BESIDE: Final = re.compile(r"\s*\(.*\)$|\*")
_SPACED: Final = re.compile(r"\s+([+-]\d\d:\d\d)$", re.ASCII)


def run_name(run: Run, tz: str) -> str:
    """JOB@TIME, in a zone: what `find_run` takes."""
    moment = run.scheduled_at
    if moment is None:
        return run.id
    from ..schedules.zonedata import load_zone  # noqa: PLC0415 - as above
    from ..schedules.zones import Zones  # noqa: PLC0415 - for tables of runs

    local = moment.astimezone(Zones(load_zone).tzinfo(tz)) if tz != "UTC" else moment.astimezone(UTC)
    text = local.isoformat(timespec="milliseconds" if moment.microsecond // 1_000 else "seconds")
    return f"{run.job}@{text.replace('+00:00', 'Z') if tz == 'UTC' else text}"


def find_id(text: str) -> str:
    """The id of the run that is meant; a whole id is taken as it is. Errors as `find_run`."""
    return text if _ID.fullmatch(text) else find_run(text).id


def find_run(text: str) -> Run:
    """The run that is meant. Failed: there is none (exit 3), or there are several, which are listed (exit 4)."""
    sh = shell()
    if _ID.fullmatch(text):
        return sh.client.run(text)
    name, at, time = text.partition("@")
    if at:
        found = _at(sh, name, time)
        return _only(sh, text, found, f"no run of {name} is known for that time")
    by_id = _by_prefix(sh, text) if _PREFIX.fullmatch(text) else []
    last = _last(sh, text)
    if last is not None and all(run.id != last.id for run in by_id):
        by_id.append(last)
    return _only(sh, text, by_id, _nothing(sh, text))


def _only(sh: Shell, text: str, found: list[Run], nothing: str) -> Run:
    if len(found) == 1:
        return sh.client.run(found[0].id)
    if not found:
        raise Failed(f"{text}: {nothing}", EXIT_NOT_FOUND)
    lines = [f"  {run.id}  {run_name(run, 'UTC')}  {run.state}" for run in found[:_SHOWN]]
    more = [f"  and {len(found) - _SHOWN} more"] if len(found) > _SHOWN else []
    raise Failed("\n".join([f"{text}: there are several, give the id of one:", *lines, *more]), EXIT_CONFLICT)


def _nothing(sh: Shell, text: str) -> str:
    """Why there is no run."""
    if _PREFIX.fullmatch(text):
        return "no run has an id that begins so, and no job has that name"
    try:
        job = sh.client.get(text)
    except WheelschedError as e:
        return f"no run and no job has that name; {HELP}" if isinstance(e, NotFoundError | InvalidArgumentError) else e.message
    return f"the job has no run yet; it is {job.state}"


def _last(sh: Shell, job: str) -> Run | None:
    """The last run of a job: the newest that has begun, else the newest. None: there is no such job, or it has none."""
    if set(job) & set("*?[ "):
        raise Failed(f"{job}: one run is wanted, not those of a glob", EXIT_NOT_FOUND)
    try:
        newest = list(sh.client.runs(job, newest=True, limit=_SHOWN))
    except InvalidArgumentError:
        return None
    return next((run for run in newest if run.started_at is not None), next(iter(newest), None))


def _at(sh: Shell, job: str, time: str) -> list[Run]:
    """The runs of a job for a nominal time, which may be a second or a day. InvalidArgumentError."""
    text = _SPACED.sub(r"\1", _BESIDE.sub("", time).strip())
    tz = machine_zone() if sh.times == "local" else "UTC"
    if sh.times == "job" and not text.endswith(("Z", "z")):
        try:
            tz = schedule_zone(sh.client.get(job).spec["schedule"])
        except NotFoundError:
            tz = "UTC"  # it is gone, or stands for runs of enqueue
    day = parse_day(text, tz, "time")
    if day is not None:
        since, until = day
    else:
        since = parse_moment(text, tz, "time")
        until = since + (timedelta(milliseconds=1) if "." in text else timedelta(seconds=1))
    return list(islice(sh.client.runs(job, since=since, until=until), _SHOWN + 1))


def _by_prefix(sh: Shell, text: str) -> list[Run]:
    """The runs whose ids begin so. Ids begin with a time, so what may have one is looked for there: by nominal time, and of runs that
    were made for another time, which are those of enqueue, among all.
    """
    low = int(text[:_STAMP_DIGITS].ljust(_STAMP_DIGITS, "0"), 16)
    high = int(text[:_STAMP_DIGITS].ljust(_STAMP_DIGITS, "f"), 16) + 1
    begin, end = (datetime.fromtimestamp(0, UTC) + timedelta(microseconds=min(ms * MS, 253_402_300_799_000_000)) for ms in (low, high))
    found: dict[str, Run] = {}
    listings: tuple[Iterable[Run], ...] = (sh.client.runs(since=begin, until=end), sh.client.runs("*~*", newest=True))
    for listing in listings:
        for run in listing:
            if run.id.startswith(text):
                found[run.id] = run
            if len(found) > _SHOWN:
                return list(found.values())
    return list(found.values())

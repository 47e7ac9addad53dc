"""Reads crontab files: lines into jobs, each with what was made of it. No I/O.

cron's own rules: a line is blank, a comment, `NAME = value`, or a schedule and a command. In the command an unescaped `%` ends
it, and what follows is its standard input, further ones being line ends. A command is given to the shell ($SHELL, /bin/sh),
so the argv is [shell, "-c", command]. `CRON_TZ=` sets the zone of the schedules behind it; `TZ=` is only the commands'
environment, as in cron itself. A file of /etc/cron.d has the user's name before the command.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Final

from ...model.errors import WheelschedError
from ...model.jobs import Job
from ...model.nouns import NAME_MAX, Call, Command, parse_job_name
from ...model.policies import Retry
from ...schedules.expressions import ALIASES, can_match, parse
from ...schedules.schedule import Cron, Manual
from .entries import Entry

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["POLICIES", "Entry", "is_system", "read_crontab"]

# As cron runs it: each time once, whatever else runs, nothing made up later.
POLICIES: Final[dict[str, Any]] = {"overlap": "allow", "catchup": "skip", "retry": Retry(attempts=1), "timeout": "30d"}

_ASSIGNMENT: Final = re.compile(r"""\s*([A-Za-z_]\w*|"[^"]+"|'[^']+')\s*=\s*(.*?)\s*$""", re.ASCII)
_RANDOM: Final = re.compile(r"(\d+)?~(\d+)?")
_PERCENT: Final = re.compile(r"\\%|%")
_REDIRECTION: Final = re.compile(r"\d*[<>]+&?\s*\S*|(?<!\\)%.*")  # and standard input
_MINUTE_MAX: Final = 59
_HOUR_MAX: Final = 23
_SLUG_MAX: Final = 40
_STDIN: Final = 'printf "%s\\n" "$2" | "$0" -c "$1"'
_NOT_PASSED: Final = {
    "MAILFROM": "no mail is sent",
    "CONTENT_TYPE": "no mail is sent", "CONTENT_TRANSFER_ENCODING": "no mail is sent",
    "RANDOM_DELAY": "not taken over; --jitter spreads starts", "CRON_RANDOM_DELAY": "not taken over; --jitter spreads starts",
    "START_HOURS_RANGE": "anacron's, not taken over",
}


def is_system(path: PurePath) -> bool:
    """Is it /etc/crontab or in a folder cron.d? Those have a user's name before the command."""
    return path.parent.name == "cron.d" or path == PurePath("/etc/crontab")


@dataclass(slots=True)
class _Reader:
    """What earlier lines of the file set."""

    system: bool
    prefix: str
    tz: str
    on_dead: str
    env: dict[str, str] = field(default_factory=dict)
    names: dict[str, int] = field(default_factory=dict)


def read_crontab(text: str, *, system: bool = False, prefix: str = "crontab/", tz: str = "UTC", on_dead: str = "") -> list[Entry]:
    """The lines that say something, in order. `system`: with a user field, as in /etc/cron.d. `tz`: without CRON_TZ. `on_dead`: the job
    that is told of dead runs, if there is one.

    InvalidArgumentError for a prefix that can't begin a job's name.
    """
    parse_job_name(prefix + "x")
    reader = _Reader(system, prefix, tz, on_dead)
    return list(_entries(reader, text))


def _entries(reader: _Reader, text: str) -> Iterator[Entry]:
    for number, raw in enumerate(text.split("\n"), 1):
        line = raw.strip(" \t\r")
        if not line or line.startswith("#"):
            continue
        found = _ASSIGNMENT.fullmatch(line)
        if found and not line.startswith("@"):
            yield _assign(reader, number, line, found)
            continue
        try:
            yield _job_line(reader, number, line)
        except WheelschedError as e:
            yield Entry(number, "error", line, [e.message])


def _unquote(text: str) -> str:
    if len(text) >= 2 and text[0] == text[-1] and text[0] in "\"'":
        return text[1:-1]
    return text


def _assign(reader: _Reader, number: int, line: str, found: re.Match[str]) -> Entry:
    name, value = _unquote(found[1]), _unquote(found[2])
    if name == "CRON_TZ":
        try:
            Cron("0 0 * * *", tz=value)
        except WheelschedError as e:
            return Entry(number, "error", line, [f"{e.message}; the schedules behind it stay in {reader.tz}"])
        reader.tz = value
        return Entry(number, "env", line, [f"schedules from here on are in {value}"])
    if name == "MAILTO":
        return Entry(number, "env", line, [_mail(value, reader.on_dead)])
    if name in _NOT_PASSED:
        return Entry(number, "env", line, [_NOT_PASSED[name]])
    reader.env[name] = value
    if name == "TZ":
        return Entry(number, "env", line, [f"passed to the commands, as cron does; schedules follow CRON_TZ, here {reader.tz}"])
    return Entry(number, "env", line, ["the commands' shell" if name == "SHELL" else "passed to the commands"])


def _mail(to: str, on_dead: str) -> str:
    """What becomes of MAILTO: cron mails whatever a command prints, a job tells another one that it failed."""
    kept = "output is kept with each run, no mail is sent"
    if not to:
        return f"{kept}, as was wanted"
    if on_dead:
        return f"{kept}; a run that dies triggers {on_dead}, which may mail {to}"
    return f"{kept}; --on-dead JOB triggers a job when a run dies, which may mail {to}: see `wheelsched manual recipes`"


def _split(line: str, fields: int) -> tuple[list[str], str]:
    """So many blank-separated fields, and the rest."""
    parts = line.split(None, fields)
    return (parts[:fields], parts[fields]) if len(parts) > fields else (parts, "")


def _job_line(reader: _Reader, number: int, line: str) -> Entry:
    notes: list[str] = []
    quiet = line.startswith("-") and len(line) > 1
    if quiet:
        line = line[1:]
        notes.append("the leading '-' (no log) is dropped")
    fields, rest = _split(line, 1 if line.startswith("@") else 5)
    user = None
    if reader.system and rest:
        (user, *_), rest = _split(rest, 1)
    if not rest:
        missing = "no command" if not reader.system else "no user or no command"
        return Entry(number, "error", line, [f"{missing} behind the schedule"])
    if fields[0].lower() == "@reboot":
        return Entry(number, "skipped", line, ["a service has no boot: start it from systemd, or trigger a manual job"])
    expr = _without_random(fields, notes)
    schedule: Cron | Manual
    if not line.startswith("@") and not _fires(expr):
        schedule = Manual()
        notes.append(f"{expr!r} never fires: made a job that runs only when triggered")
    else:
        schedule = Cron(expr, tz=reader.tz)
    work = _command(reader, rest, user, notes)
    name = _name(reader, rest, user)
    kind = "manual" if isinstance(schedule, Manual) else "job"
    return Entry(number, kind, line, notes, Job(name, work, schedule))


def _fires(expr: str) -> bool:
    return expr in ALIASES or can_match(parse(expr))


def _without_random(fields: list[str], notes: list[str]) -> str:
    """The random `a~b` of cronie as H, which is drawn once from the job's name and stays."""
    out = []
    for text, last in zip(fields, (_MINUTE_MAX, _HOUR_MAX, 31, 12, 7), strict=False):
        found = _RANDOM.fullmatch(text)
        if not found:
            out.append(text)
            continue
        low, high = found[1] or "0", found[2] or str(last)
        out.append("H" if found[1] is None and found[2] is None else f"H({low}-{high})")
        notes.append(f"the random {text} became {out[-1]}: chosen by the job's name, the same each day")
    return " ".join(out)


def _command(reader: _Reader, text: str, user: str | None, notes: list[str]) -> Call:
    """The command task of a crontab command."""
    shell = reader.env.get("SHELL", "/bin/sh")
    parts, start = [""], 0
    for found in _PERCENT.finditer(text):
        parts[-1] += text[start : found.start()]
        start = found.end()
        if found[0] == "%":
            parts.append("")
        else:
            parts[-1] += "%"
    parts[-1] += text[start:]
    command = parts[0].strip()
    argv = [shell, "-c", command]
    if len(parts) > 1:
        argv = ["/bin/sh", "-c", _STDIN, shell, command, "\n".join(parts[1:])]
        notes.append("what follows % is the command's standard input")
    if user is not None:
        notes.append(f"runs as user {user}")
    env = {name: value for name, value in reader.env.items() if name != "SHELL"}
    return Command(argv, cwd=reader.env.get("HOME"), env=env, user=user)


def _name(reader: _Reader, command: str, user: str | None) -> str:
    """A name that stays when lines move or times change: the command's first words, and a hash of all of it."""
    digest = blake2b(f"{user or ''}\0{command}".encode(), digest_size=3, person=b"wheelsched.tab").hexdigest()
    bare = " ".join(part.rsplit("/", 1)[-1] for part in _REDIRECTION.sub(" ", command).split())
    slug = re.sub(r"[^A-Za-z0-9._]+", "-", bare)[:_SLUG_MAX].strip("-.") or "command"
    base = f"{reader.prefix}{slug}-{digest}"
    count = reader.names[base] = reader.names.get(base, 0) + 1
    full = base if count == 1 else f"{base}-{count}"
    return full[: len(reader.prefix) + NAME_MAX]

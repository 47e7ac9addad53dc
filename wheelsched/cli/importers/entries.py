"""What an importer found in files of another scheduler, line by line: shown, and put as jobs."""

from __future__ import annotations

import pwd
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from ...client.places import server_uid
from ...client.values import plain
from ...client.words import cut
from ...model.errors import DeadlineExceededError, PermissionDeniedError, UnavailableError, WheelschedError
from ...model.nouns import counted
from ...schedules.words import given_words
from ..output import show_many
from ..shell import Failed, say, shell
from .secrets import Hider, redacted, with_redact

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ...model.jobs import Job

_OTHERS: Final = 5  # named jobs that were not imported
KINDS: Final = ("job", "manual", "env", "dropped", "skipped", "error")


@dataclass(slots=True)
class Entry:
    """A line that says something. `kind`: job, manual (it never fires), env, dropped (a setting that a job lost), skipped (no job,
    on purpose), error (no job, though one was meant). `notes` are for the person; without a job they say why.
    """

    line: int
    kind: str
    text: str
    notes: list[str] = field(default_factory=list)
    job: Job | None = None
    file: str = ""


def carry_over(
    entries: Sequence[Entry], policies: Mapping[str, Any], given: Mapping[str, Any], *, dry: bool, paused: bool, advice: str = ""
) -> None:
    """Put the jobs, or only show what would be put, and tell of every line. `policies` are how the other scheduler runs jobs; those of
    an entry come before them, and `given`, the user's, before both. Failed at the end when a line was in error.
    """
    sh = shell()
    results: dict[int, str] = {} if dry else _put(entries, policies, given, paused=paused)
    heads = ["LINE", "RESULT", "JOB", "SCHEDULE", "NOTE"]
    hider = Hider(((e.text, e.job) for e in entries), given.get("redact") or ())
    show_many(sh, entries, lambda e: hider.plain(_to_dict(e, results, given)), heads,
              lambda e: [hider.text(cell) for cell in _cells(e, results)], empty="no lines")
    jobs = sum(e.job is not None for e in entries)
    count = {kind: sum(e.kind == kind for e in entries) for kind in KINDS}
    say(
        f"{counted(jobs, 'job')} {'would be ' if dry else ''}put ({count['manual']} of them manual),"
        f" {counted(count['dropped'], 'setting')} not carried over, {counted(count['skipped'], 'line')} left out,"
        f" {counted(count['error'], 'line')} in error{advice}"
    )
    if any(e.job is not None and e.job.call.task == "command" for e in entries):
        say("commands run as command tasks: the server must run with --allow-commands")
    hidden = sorted({name for e in entries if e.job is not None for name in redacted(e.job, ())})
    if hidden:
        say(f"{', '.join(hidden)}: taken for secrets, and redacted in these jobs; better is a file of the worker's: env_file")
    if told := _other_users(entries, dry=dry):
        say(told)
    if count["error"]:
        raise Failed(f"{counted(count['error'], 'line')} could not be imported")


def _other_users(entries: Sequence[Entry], *, dry: bool) -> str:
    """What is said of jobs that are to run as users that the server can't become, or that this machine doesn't have. Empty: nothing."""
    users = sorted({str(e.job.call.kwargs["user"]) for e in entries if e.job is not None and e.job.call.kwargs.get("user")})
    uid = None if dry or not users else server_uid(shell().client.path)
    if not users:
        return ""
    missing = [user for user in users if _uid_of(user) is None]
    barred = [user for user in users if uid not in (None, 0) and user not in missing and _uid_of(user) != uid]
    told = [f"this machine has no user {', '.join(missing)}"] if missing else []
    if barred:
        told.append(
            f"the server runs with the uid {uid}, which can't become {', '.join(barred)}: runs of these jobs fail, unless a worker with"
            " --allow-commands runs as root, or `user` is left out"
        )
    elif uid is None:
        told.append(f"to run as {', '.join(users)} a server, or a worker with --allow-commands, has to be root or that user")
    return "; ".join(told)


def _uid_of(user: str) -> int | None:
    try:
        return pwd.getpwnam(user).pw_uid
    except KeyError:
        return int(user) if user.isascii() and user.isdigit() else None


def _put(entries: Sequence[Entry], policies: Mapping[str, Any], given: Mapping[str, Any], *, paused: bool) -> dict[int, str]:
    """Put the jobs; id of the entry -> what happened. A job that the server refuses makes its line an error; the others go on."""
    client = shell().client
    out = {}
    for entry in entries:
        job = entry.job
        if job is None:
            continue
        merged = with_redact({**policies, **job.policies, **given}, job)
        note, held = merged.pop("note", ""), merged.pop("paused", None)
        try:
            found = client.put(job.name, job.call, job.schedule, paused=True if paused else held, note=note, **merged)
        except (UnavailableError, DeadlineExceededError, PermissionDeniedError):
            raise
        except WheelschedError as e:
            entry.kind, entry.job = "error", None
            entry.notes.append(f"{job.name}: {e.message}")
        else:
            out[id(entry)] = found.result or "put"
    return out


def tell_others(entries: Sequence[Entry], prefix: str) -> None:
    """Say which jobs of the server begin with the prefix and are in none of the files."""
    mine = {entry.job.name for entry in entries if entry.job is not None}
    others = [job.name for job in shell().client.jobs(f"{prefix}*") if job.name not in mine and job.state in ("active", "paused")]
    if others:
        shown = ", ".join(others[:_OTHERS]) + (", ..." if len(others) > _OTHERS else "")
        goes = "is not in what was imported and goes on" if len(others) == 1 else "are not in what was imported and go on"
        say(f"{counted(len(others), 'job')} {prefix}* {goes}; `wheelsched job delete` ends one: {shown}")


def _result(entry: Entry, results: dict[int, str]) -> str:
    if entry.job is None:
        return entry.kind
    return results.get(id(entry), "would put")


def _cells(entry: Entry, results: dict[int, str]) -> list[str]:
    told = "; ".join(entry.notes)
    if entry.job is None:
        told = f"{cut(entry.text, 50)}: {told}"
    name, when = ("", "") if entry.job is None else (entry.job.name, given_words(entry.job.schedule))
    return [f"{entry.file}:{entry.line}" if entry.file else str(entry.line), _result(entry, results), name, when, told]


def _to_dict(entry: Entry, results: dict[int, str], given: Mapping[str, Any]) -> dict[str, Any]:
    out: dict[str, Any] = {"file": entry.file} if entry.file else {}
    out |= {"line": entry.line, "kind": entry.kind, "result": _result(entry, results), "text": entry.text, "notes": entry.notes}
    job = entry.job
    if job is None:
        return out
    call, schedule = job.call, job.schedule
    names = redacted(job, given.get("redact") or ())
    shown = job.policies | ({"redact": names} if names else {})
    out |= {"job": job.name, "task": call.task}
    if call.task == "command":
        out |= {"argv": call.args[0], "env": call.kwargs["env"], "user": call.kwargs["user"]}
        if call.kwargs.get("env_file"):
            out["env_file"] = call.kwargs["env_file"]
    else:
        out |= {"args": plain(list(call.args)), "kwargs": plain(call.kwargs)}
    if hasattr(schedule, "expr"):
        out |= {"cron": schedule.expr, "tz": schedule.tz}
    elif entry.kind == "manual":
        out["manual"] = True
    return out | {"schedule": given_words(schedule), "policies": {k: _policy(v) for k, v in shown.items()}}


def _policy(value: Any) -> Any:
    return value if isinstance(value, str | int | float | bool | list) else str(value)

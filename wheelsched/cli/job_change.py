"""`wheelsched job set | edit | export`."""

from __future__ import annotations

import os
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

import click

from ..client.jobs_text import JobsText
from ..model.errors import WheelschedError
from ..model.nouns import Call, parse_job_name
from ..model.policies import Catchup, Retry
from ..schedules.schedule import Cron
from .changed import show_put
from .jobs_file import read_jobs_file
from .policies import NONE, call, change_flags, overlap, payload_flags, policies, schedule, schedule_flags
from .shell import Failed, Verb, say, shell

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..client.values import JobInfo
    from ..model.jobs import Job

EXIT_INVALID: Final = 2
_KINDS: Final = ("expr", "every", "at", "delay", "manual")
_ZONE: Final = ("tz", "dst_gap", "dst_overlap")
_HEAD: Final = """\
# The job as it is. Save and leave the editor, and what you changed is changed, nothing else; a policy that you delete is taken away.
# Leave without saving, and nothing happens.

"""


@click.command("set", cls=Verb, epilog="wheelsched job set billing/charge --timeout 10m --retry-attempts 5 --jitter none")
@click.argument("name")
@click.argument("task", required=False)
@click.argument("argv", nargs=-1)
@schedule_flags
@payload_flags
@change_flags
@click.option("--paused/--active", "paused", default=None, help="Pause it, or resume it.")
@click.option("--note", default="", metavar="TEXT", help="Why it is there.")
@click.option("--version", type=click.IntRange(0), metavar="N", help="Only if the job is at this version (exit 4 if not).")
def set_(name: str, task: str | None, argv: tuple[str, ...], paused: bool | None, note: str, version: int | None, **flags: Any) -> None:
    """Change what is named of a job, and nothing else.

    `none` takes a policy away: what is the rule without it holds. `--cron` keeps the zone, `--args` the other arguments, and
    `--retry-attempts` the waits. `job set NAME command -- ARGV...` gives it another command.
    """
    client = shell().client
    found = client.get(name)
    show_put(client.set(
        name, call=_call(found, task, argv, flags), schedule=_schedule(found, flags), paused=paused, note=note,
        version=found.version if version is None else version, **_policies(found, flags),
    ))


def _call(found: JobInfo, task: str | None, argv: tuple[str, ...], flags: dict[str, Any]) -> Call | None:
    """The call of the flags; what they don't name is the job's own."""
    if task is not None:
        return call(task, flags, argv)
    if flags["args"] is None and flags["kwargs"] is None and not flags["headers"]:
        return None
    made = call(found.task, flags | {"args": flags["args"] or "[]"})
    args = made.args if flags["args"] is not None else tuple(found.args)
    kwargs = made.kwargs if flags["kwargs"] is not None else found.kwargs
    return Call(found.task, *args, **kwargs).with_headers(made.headers if flags["headers"] else found.headers)


def _schedule(found: JobInfo, flags: dict[str, Any]) -> Any:
    """The schedule of the flags; the zone and its rules are the job's own unless they are named. Usage errors."""
    zone = {key: flags[key] for key in _ZONE if flags[key] is not None}
    had = found.schedule if isinstance(found.schedule, list) else [found.schedule]
    crons = [part for part in had if isinstance(part, Cron)]
    if any(flags[kind] for kind in _KINDS):
        if flags["expr"] and crons:
            flags = flags | {key: getattr(crons[0], key) for key in _ZONE if flags[key] is None}
        made = schedule(shell(), flags)
        parts = [_as_before(part, crons) for part in (made if isinstance(made, list) else [made])]
        return parts if isinstance(made, list) else parts[0]
    if flags["after_completion"]:
        raise click.UsageError("--after-completion goes with --every")
    if not zone:
        return None
    if not crons:
        raise click.UsageError(f"--tz, --dst-gap and --dst-overlap go with cron, and {found.name} has none: give --cron, too")
    changed = [replace(part, **zone) if isinstance(part, Cron) else part for part in had]
    return changed[0] if len(changed) == 1 else changed


def _as_before(part: Any, crons: list[Cron]) -> Any:
    """A new expression with what the old one had and flags can't say."""
    return replace(part, day_or=crons[0].day_or, seconds=crons[0].seconds) if isinstance(part, Cron) and crons else part


def _policies(found: JobInfo, flags: dict[str, Any]) -> dict[str, Any]:
    """The policies that the flags name; of `none`, None. What a policy has beside what is named of it stays."""
    gone = [name for name, value in flags.items() if value in (NONE, (NONE,))]
    plain = {name: value for name, value in flags.items() if name not in gone}
    out = policies({name: value for name, value in plain.items() if not name.startswith(("retry_", "catchup", "overlap"))})
    out |= {name: None for name in gone if not name.startswith(("retry_", "catchup_")) and name not in ("expr", "every", "at", "delay")}
    if plain.get("overlap") is not None:
        out["overlap"] = overlap(plain["overlap"])
    if any(flags[name] for name in flags if name.startswith("retry_")):
        out["retry"] = _retry(found.spec["retry"], flags)
    if "catchup" not in gone and any(flags[name] is not None for name in flags if name.startswith("catchup")):
        out["catchup"] = _catchup(found.spec["catchup"], flags)
    return out


def _retry(spec: Mapping[str, Any], flags: dict[str, Any]) -> Retry:
    named = {name: value for name, value in flags.items() if name.startswith("retry_") and value not in (None, (), NONE, (NONE,))}
    made = policies(named).get("retry", Retry())
    plain = Retry()
    had = _rule(spec)
    values = {}
    for part in ("attempts", "backoff", "cap", "not_on", "errors"):
        flag = {"errors": "retry_error"}.get(part, f"retry_{part}")
        named_so = flags[flag] not in (None, ())
        none = flags[flag] in (NONE, (NONE,))
        values[part] = getattr(plain if none else made, part) if named_so else getattr(had, part)
    return replace(had, **values)


def _rule(spec: Mapping[str, Any]) -> Retry:
    """A retry policy as it was given."""
    return Retry(
        spec["attempts"], f"{spec['backoff_us'] / 1_000:.3f}ms", spec["factor"], f"{spec['cap_us'] / 1_000:.3f}ms",
        tuple(spec.get("not_on", ())), {name: _rule(rule) for name, rule in (spec.get("errors") or {}).items()},
    )


def _catchup(spec: Mapping[str, Any], flags: dict[str, Any]) -> Catchup:
    word = flags["catchup"] or spec["policy"]
    same = word == spec["policy"]
    had: dict[str, Any] = {
        "window": f"{spec['window_us'] / 1_000:.3f}ms" if same and spec.get("window_us") is not None else None,
        "max": spec.get("max") if same else None,
    }
    for part in had:
        value = flags[f"catchup_{part}"]
        if value is not None:
            had[part] = None if value == NONE else value
    return Catchup(word, **had)


@click.command(cls=Verb)
@click.argument("name")
def edit(name: str) -> None:
    """Open a job in an editor ($VISUAL, $EDITOR), as a jobs file, and change what was changed there.

    Nothing is changed when somebody else has changed the job meanwhile (exit 4). A text that is refused is kept in a file.
    """
    sh = shell()
    found = sh.client.get(name)
    text = JobsText(finished=True)
    text.add(found)
    before = _HEAD + text.whole([])
    after = click.edit(before, extension=".toml")
    if after is None or after == before:
        say(f"{found.name}: nothing was changed")
        return
    try:
        old, new = _one(found, before), _one(found, after)
        changes = {key: new.policies.get(key) for key in (*old.policies, *new.policies) if old.policies.get(key) != new.policies.get(key)}
        note, paused = changes.pop("note", None), changes.pop("paused", None)
        if old.policies.get("paused") and paused is None and "paused" not in new.policies:
            paused = False
        call_, when = new.call if new.call != old.call else None, new.schedule if new.schedule != old.schedule else None
        if not (changes or note or call_ is not None or when is not None or paused is not None):
            say(f"{found.name}: nothing was changed")
            return
        done = sh.client.set(name, call=call_, schedule=when, note=note or "", paused=paused, version=found.version, **changes)
    except (Failed, WheelschedError):
        say(f"what you wrote is kept in {_kept(after)}")
        raise
    show_put(done)


def _one(found: JobInfo, text: str) -> Job:
    """The job of a jobs file that has this one alone. Failed otherwise."""
    read = read_jobs_file(text)
    if read.faults:
        raise Failed("\n".join([*map(str, read.faults), "nothing was changed"]), EXIT_INVALID)
    if len(read.jobs) != 1 or read.jobs[0].name != parse_job_name(found.name) or read.calendars:
        raise Failed(f"the job {found.name}, and no other, is wanted here: nothing was changed; for several, `job apply`", EXIT_INVALID)
    return read.jobs[0]


def _kept(text: str) -> str:
    """The path of a file with a text."""
    fd, path = tempfile.mkstemp(prefix="wheelsched-", suffix=".toml")
    with os.fdopen(fd, "w", encoding="utf-8") as file:
        file.write(text)
    return path


@click.command(cls=Verb)
@click.argument("match", required=False)
@click.option("-f", "--file", "out", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help="Not to stdout.")
@click.option("--finished", is_flag=True, help="With jobs that are finished: applied elsewhere, their instants may fire again.")
def export(match: str | None, out: Path | None, finished: bool) -> None:
    """Write jobs as a jobs file: `job apply -f` of it changes nothing here, and makes them elsewhere."""
    text = shell().client.export(match, finished=finished)
    if out is None:
        stream: IO[str] = sys.stdout
        stream.write(text)
        return
    out.write_text(text, encoding="utf-8")
    say(f"{text.count(chr(10) + '[jobs.') + text.startswith('[jobs.')} jobs in {out}")


VERBS: Final = (set_, edit, export)

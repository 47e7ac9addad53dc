"""`wheelsched job pause | resume | delete | trigger`: of one job, of several, and of all that match a glob."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

import click

from ..model.errors import WheelschedError
from ..model.nouns import counted
from .output import show_many, show_one
from .run import finish_wait, wait_flags
from .shell import EXIT_NOT_FOUND, Failed, Verb, exit_code, say, shell
from .status import runs_told

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ..client.client import Run
    from ..client.values import JobInfo

__all__ = ["delete", "pause", "resume", "trigger"]

_SHOWN: Final = 20
_GLOB: Final = frozenset("*?[")
_names = click.argument("names", nargs=-1, required=True, metavar="NAME|GLOB...")
_yes = click.option("--yes", "-y", is_flag=True, help="Ask no question. Wanted where stdin is no terminal, for a glob or several names.")


def _meant(patterns: tuple[str, ...], states: Iterable[str]) -> list[str]:
    """The jobs that names and globs stand for, each once; those of a glob in one of these states. Failed when a glob finds none."""
    client = shell().client
    found: dict[str, None] = {}
    for pattern in patterns:
        if not set(pattern) & _GLOB:
            found[client.get(pattern).name if len(patterns) > 1 else pattern] = None
            continue
        some = sorted(job.name for job in client.jobs(pattern) if job.state in states and "~" not in job.name)
        if not some:
            raise Failed(f"{pattern}: no {' or '.join(states)} jobs match", EXIT_NOT_FOUND)
        found |= dict.fromkeys(some)
    return list(found)


def _asked(names: list[str], patterns: tuple[str, ...], word: str, *, yes: bool) -> None:
    """Show what is about to be done to several jobs, and ask. Failed without an answer; nothing is done then."""
    if yes or (len(patterns) == 1 and not set(patterns[0]) & _GLOB):
        return
    shown = ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
    told = f"{word} {counted(len(names), 'job')}: {shown}"
    if not sys.stdin.isatty():
        raise Failed(f"would {told}; nothing was done: --yes does it", click.UsageError.exit_code)
    say(told)
    if not click.confirm("Go on?", err=True):
        raise Failed("nothing was done")


def _each(names: list[str], act: Callable[[str], Any], row: Callable[[Any], list[str]]) -> None:
    """Do it to one after another. What fails is told, the others go on; then the exit code is that of the first failure."""
    failed: list[WheelschedError] = []

    def one(name: str) -> Any:
        try:
            return act(name)
        except WheelschedError as e:
            if not failed:
                failed.append(e)
            say(f"{name}: {e.message}")
            return None

    done = (result for result in map(one, names) if result is not None)
    show_many(shell(), done, lambda r: r.to_dict(), ["JOB", "STATE"], row, empty="none was done")
    if failed:
        click.get_current_context().exit(exit_code(failed[0]))


def _carry_out(patterns: tuple[str, ...], states: tuple[str, ...], word: str, act: Callable[[str], JobInfo],
               told: Callable[[JobInfo], str], *, yes: bool) -> None:
    names = _meant(patterns, states)
    _asked(names, patterns, word, yes=yes)
    if len(patterns) == 1 and names == list(patterns):
        found = act(names[0])
        show_one(shell(), found.to_dict(), lambda: [f"{found.name}: {told(found)}"])
    else:
        _each(names, act, lambda j: [j.name, told(j)])


@click.command(cls=Verb)
@_names
@click.option("--note", default="", metavar="TEXT", help="Why.")
@_yes
def pause(names: tuple[str, ...], note: str, yes: bool) -> None:
    """Let the schedules of jobs trigger nothing until `resume`.

    Open runs go on, and `job trigger` still runs them. `resume` decides about what was missed. Of a quoted glob ('billing/*'): all active
    jobs that match. Of a glob or several names, what would be done is shown first, with a question.
    """
    client = shell().client
    _carry_out(names, ("active",), "pause", lambda one: client.pause(one, note), lambda _: "paused", yes=yes)


@click.command(cls=Verb)
@_names
@click.option("--catchup", type=click.Choice(["skip", "latest", "all"]), help="Of what was missed (skip; a one-time job runs now).")
@_yes
def resume(names: tuple[str, ...], catchup: str | None, yes: bool) -> None:
    """Go on with paused jobs, by name or by a quoted glob."""
    client = shell().client
    _carry_out(names, ("paused",), "resume", lambda one: client.resume(one, catchup), lambda j: f"resumed, {j.state}", yes=yes)


@click.command(cls=Verb)
@_names
@_yes
def delete(names: tuple[str, ...], yes: bool) -> None:
    """End jobs, by name or by a quoted glob; what was decided is kept.

    Their runs that no worker has are cancelled; what a worker has goes on, and is not retried.
    """
    client = shell().client
    states = ("active", "paused", "finished")
    _carry_out(names, states, "delete", client.delete, lambda j: "deleted" + runs_told(j.cancelled or 0, j.active), yes=yes)


@click.command(cls=Verb)
@_names
@click.option("--key", metavar="K", help="Idempotency key: the same key again gives the same run.")
@wait_flags
@_yes
def trigger(names: tuple[str, ...], key: str | None, wait: bool, wait_timeout: str | None, yes: bool) -> None:
    """Run jobs now, by name or by a quoted glob: then all that are active or paused."""
    sh = shell()
    found = _meant(names, ("active", "paused"))
    _asked(found, names, "trigger", yes=yes)
    if len(names) > 1 or found != list(names):
        if wait:
            raise click.UsageError("--wait goes with one job")
        _each(found, lambda one: sh.client.trigger(one, key), lambda r: [r.job, f"run {r.id} is {r.state}"])
        return
    run: Run = sh.client.trigger(found[0], key)
    if wait:
        finish_wait(run, wait_timeout)
    else:
        show_one(sh, run.to_dict(), lambda: [run.id])
        if sh.table:
            say(f"{run.job}: run is {run.state}")

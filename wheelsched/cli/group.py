"""`wheelsched group`: N runs, then one."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from ..model.nouns import Call
from .output import show_one
from .policies import call, enqueue_flags, payload_flags, policies, warn_unserved
from .run import finish_wait, wait_flags
from .shell import Verb, say, shell

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_KEYS = {"task": str, "args": list, "kwargs": dict}


@click.command(cls=Verb)
@click.argument("calls", type=click.File(encoding="utf-8"))
@click.argument("then")
@click.option("--when", type=click.Choice(["finished", "succeeded"]), default="finished", show_default=True,
              help="Succeeded: THEN is cancelled unless all members succeeded.")
@click.option("--key", metavar="K", help="Idempotency key: the same key again gives the same group.")
@click.option("--namespace", default="default", metavar="NS", show_default=True)
@payload_flags
@enqueue_flags
@wait_flags
def group(calls: Iterable[str], then: str, **flags: Any) -> None:
    """Run a task for each line of CALLS (a file, - for stdin), then the task THEN, once, when all of them have ended.

    A line is a JSON object: {"task": "pages.resize", "args": [1], "kwargs": {}}. --args and --kwargs are THEN's. All runs are made in one
    commit, or none. --wait waits for THEN.
    """
    sh = shell()
    members = list(_calls(calls))
    made = sh.client.group(
        members, then=call(then, flags), when=flags["when"], key=flags["key"], namespace=flags["namespace"], **policies(flags)
    )
    warn_unserved(then, *(member.task for member in members))
    if flags["wait"]:
        finish_wait(made.run, flags["wait_timeout"])
    else:
        show_one(sh, {"run": made.run.to_dict(), "ids": made.ids, "existing": made.existing}, lambda: [made.run.id])
        if sh.table:
            say(f"{made.run.job}: run is {made.run.state}, {'the group was there before' if made.existing else made.run.progress}")


def _calls(lines: Iterable[str]) -> Iterator[Call]:
    """The calls of the lines. Usage errors name the line."""
    for number, line in enumerate(lines, 1):
        try:
            given = json.loads(line) if line.strip() else None
        except (ValueError, RecursionError) as e:
            raise _bad(number, f"no JSON: {e or type(e).__name__}") from None
        if given is None:
            continue
        if not isinstance(given, dict) or "task" not in given or not all(isinstance(given[key], _KEYS.get(key, ())) for key in given):
            raise _bad(number, "an object of task (a text), and args (a list) and kwargs (an object) if there are any, is wanted")
        yield Call(given["task"], *given.get("args", ()), **given.get("kwargs", {}))


def _bad(number: int, why: str) -> click.BadParameter:
    return click.BadParameter(f"line {number}: {why}", param_hint="CALLS")


__all__ = ["group"]

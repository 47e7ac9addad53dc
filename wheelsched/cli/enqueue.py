"""`wheelsched enqueue`: run a task once."""

from __future__ import annotations

from typing import Any

import click

from .output import show_one
from .policies import ENQUEUE_HELP, call, enqueue_flags, instant, payload_flags, policies, warn_unserved
from .run import finish_wait, wait_flags
from .shell import Verb, say, shell


@click.command(cls=Verb, epilog=ENQUEUE_HELP)
@click.argument("task")
@click.argument("argv", nargs=-1)
@click.option("--in", "delay", metavar="D", help="After a delay.")
@click.option("--at", "at", metavar="T", help="At an instant (RFC 3339), or a time or day on the clock of --tz.")
@click.option("--tz", metavar="Z", help="IANA zone of an --at without an offset (UTC).")
@click.option("--key", metavar="K", help="Idempotency key: the same key again gives the same run.")
@click.option("--unique", "unique", is_flag=True, help="While an open run has the same task and arguments, give that one, make none.")
@click.option("--namespace", default="default", metavar="NS", show_default=True)
@payload_flags
@enqueue_flags
@wait_flags
def enqueue(task: str, argv: tuple[str, ...], **flags: Any) -> None:
    """Run a task once: now, after a delay or at an instant."""
    sh = shell()
    if flags["delay"] is not None and flags["at"] is not None:
        raise click.UsageError("give --in or --at, not both")
    work = call(task, flags, argv)
    run = sh.client.enqueue(
        work, delay=flags["delay"], at=None if flags["at"] is None else instant(flags["at"], flags["tz"]), key=flags["key"],
        unique=flags["unique"], namespace=flags["namespace"],
        **policies(flags),
    )
    warn_unserved(task)
    if run.differs:
        say(f"{run.job}: the run that the key (or --unique) stands for has OTHER arguments than these: nothing was enqueued")
    if flags["wait"]:
        finish_wait(run, flags["wait_timeout"])
    else:
        show_one(sh, run.to_dict(), lambda: [run.id])
        if sh.table:
            say(f"{run.job}: run is {run.state}{', and was there before' if run.existing else ''}")

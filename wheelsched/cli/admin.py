"""`wheelsched admin`: verify (offline), export --history, hold, release, reload, tzdiff."""

from __future__ import annotations

import os
from typing import Any

import click

from ..client.times import Times
from ..client.words import number
from ..model.errors import ConfigError, LockedError, NotFoundError, PermissionDeniedError, WheelschedError
from ..model.nouns import counted
from .history_rows import history_rows
from .output import pairs, show_one, to_json
from .serve import default_data_path
from .shell import Failed, Verbs, say, shell
from .tables import table


@click.group(cls=Verbs)
def admin() -> None:
    """Verify a data directory, export the history, hold and release all triggering, reload task code, show what new zone data moved."""


@admin.command()
@click.argument("directory", metavar="[DIR]", required=False)
def verify(directory: str | None) -> None:
    """Check every page and record of a data directory that no server holds: by default $WHEELSCHED_DATA, or ~/.wheelsched/data.

    Nothing in it is changed. The state is built twice, with the snapshot and from the records alone where they are all there, its
    invariants are checked and both must agree. Exit 1 with what was found.
    """
    from .verify import verify_directory  # noqa: PLC0415 - loads the engine and the store

    sh = shell()
    directory = directory or os.environ.get("WHEELSCHED_DATA") or default_data_path()
    report: dict[str, Any]
    try:
        report = verify_directory(directory)
    except (NotFoundError, ConfigError):
        raise
    except LockedError as e:
        raise LockedError(f"{e.message}: stop it first", path=directory) from e
    except PermissionError as e:
        raise PermissionDeniedError(f"{e.filename or directory}: {e.strerror}; look as the user who serves it, or as root") from e
    except OSError as e:
        raise Failed(f"{e.filename or directory} can't be read: {e.strerror or e}") from e
    except WheelschedError as e:
        report = {"directory": directory, "ok": False, "findings": [e.message]}
    told = {name: "none" if value is None else str(value) for name, value in report.items() if name not in ("findings", "ok")}
    shown = [(name.replace("_", " "), value) for name, value in told.items()]
    show_one(sh, report, lambda: [*pairs(shown), *(f"FOUND {line}" for line in report["findings"]), "ok" if report["ok"] else "damaged"])
    if not report["ok"]:
        raise Failed(f"{counted(len(report['findings']), 'finding')} in {directory}")


@admin.command()
@click.option("--history", is_flag=True, help="Runs, jobs and dead letters: all that there is to export, so it may be left out.")
@click.option("--output-file", "-f", "target", type=click.File("w", encoding="utf-8", lazy=False), default="-", help="Instead of stdout.")
def export(history: bool, target: Any) -> None:  # noqa: ARG001 - the only choice so far
    """Write the server's runs, jobs and dead letters as JSON Lines."""
    rows = 0
    for row in history_rows(shell().client):
        target.write(to_json(row) + "\n")
        rows += 1
    target.flush()
    say(f"{counted(rows, 'row')} exported")


@admin.command()
@click.option("--note", default="", metavar="TEXT", help="Why; shown by `status` until the release.")
def hold(note: str) -> None:
    """Stop all triggering until `admin release`.

    No schedule and no delay makes a run start. What is queued goes on, with its retries; `enqueue`, `job trigger` and `job backfill` still
    run at once. To have nothing run at all, stop the workers too (`serve --workers 0`). A second hold leaves the first as it is.
    """
    held = shell().client.hold(note)
    why = f" ({held.note})" if held.note else ""
    line = f"held since {Times('utc').show(held.since)}{why}: no schedule triggers anything until `wheelsched admin release`"
    show_one(shell(), held.to_dict(), lambda: [line])
    if note and note != held.note:
        say("it was held already, and its note stays; to change that, release and hold again")


@admin.command()
def release() -> None:
    """Trigger again, after `admin hold`.

    What came due meanwhile was missed: each job's catch-up policy decides about it.
    """
    done = shell().client.release()
    missed = done.missed or 0
    told = f"{number(missed)} job{'' if missed == 1 else 's'} came due meanwhile" if missed else "nothing came due meanwhile"
    show_one(shell(), done.to_dict(), lambda: [f"released; {told}"])


@admin.command()
def reload() -> None:
    """Have the server's workers import the task code anew.

    One after another, without a restart; runs that are under way finish on the old code. When a new process can't begin, because a module
    can't be imported or an `on_start` fails, or both take more than 60 s, the old ones go on and the exit code is 4. SIGHUP to the server
    does the same and logs it.
    Settings of the configuration file are not taken: those that have changed are named, and wait for a restart.
    Workers outside of the server (`wheelsched worker`) are not touched: start new ones, then stop the old by SIGTERM.
    """
    done = shell().client.reload()
    ends = "finishes what it has" if done.finishing == 1 else "finish what they have"
    rest = f", from {done.folder}" if done.folder else ""
    rest += f"; {number(done.finishing)} {ends} on the old one" if done.finishing else ""
    have = "has" if done.workers == 1 else "have"
    show_one(shell(), done.to_dict(), lambda: [f"{counted(done.workers, 'worker')} {have} the new code{rest}"])
    if done.settings:
        say(done.settings)


@admin.command()
def tzdiff() -> None:
    """Show whose next time new zone data moved.

    Those jobs whose next time became another one when the tzdata package last changed.
    """
    sh = shell()
    diff = sh.client.tzdiff()
    if not sh.table:
        show_one(sh, diff.to_dict(), list)
        return
    if diff.old is None or diff.new is None or diff.old == diff.new:
        say(f"the zone data has not changed (tzdata {diff.new or diff.old or 'unknown'})")
        return
    times = Times("utc")
    say(f"tzdata {diff.old} became {diff.new} at {times.show(diff.at)}: the next time of {number(diff.total)} jobs moved")
    table(["JOB", "WAS", "IS"], ([m.job, times.show(m.old), times.show(m.new)] for m in diff.moved), "no job's next time moved")
    if diff.total > len(diff.moved):
        say(f"the first {number(len(diff.moved))} of {number(diff.total)} are shown")

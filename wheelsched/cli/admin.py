"""`wheelsched admin`: verify (offline), export --history."""

from __future__ import annotations

from typing import Any

import click

from ..errors import LockedError, NotFoundError, WheelschedError
from .history_rows import history_rows
from .output import pairs, show_one, to_json
from .shell import Failed, Verbs, say, shell


@click.group(cls=Verbs)
def admin() -> None:
    """Verify a data directory, export the history."""


@admin.command()
@click.argument("directory", metavar="DIR")
def verify(directory: str) -> None:
    """Check every page and record of a data directory that no server holds.

    Then the state is built twice, with the snapshot and from the records alone where they are all there, its
    invariants are checked and both must agree. Exit 1 with what was found.
    """
    from .verify import verify_directory  # noqa: PLC0415 - loads the engine and the store

    sh = shell()
    report: dict[str, Any]
    try:
        report = verify_directory(directory)
    except (LockedError, NotFoundError):
        raise
    except WheelschedError as e:
        report = {"directory": directory, "ok": False, "findings": [e.message]}
    shown = [(name.replace("_", " "), str(value)) for name, value in report.items() if name not in ("findings", "ok")]
    show_one(sh, report, lambda: [*pairs(shown), *(f"FOUND {line}" for line in report["findings"]), "ok" if report["ok"] else "damaged"])
    if not report["ok"]:
        raise Failed(f"{len(report['findings'])} findings in {directory}")


@admin.command()
@click.option("--history", is_flag=True, help="Runs, jobs and dead letters.")
@click.option("--output-file", "-f", "target", type=click.File("w", encoding="utf-8", lazy=False), default="-", help="Instead of stdout.")
def export(history: bool, target: Any) -> None:
    """Write the server's runs, jobs and dead letters as JSON Lines."""
    if not history:
        raise click.UsageError("say what to export: --history")
    rows = 0
    for row in history_rows(shell().client):
        target.write(to_json(row) + "\n")
        rows += 1
    target.flush()
    say(f"{rows} rows exported")

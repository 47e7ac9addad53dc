"""The command line: a thin verb per file; every verb but serve, admin verify, manual and cron is a client call.

    wheelsched [--socket PATH] [-o table|json|jsonl] [--time job|utc|local] VERB ...

Exit codes: 0 ok, 1 failed, 2 usage, 3 not found, 4 conflict or fenced, 5 server unreachable, 6 permission denied,
7 the run failed, 8 timed out; `serve`: 65 data directory damaged, 70 storage failed, 75 data directory locked, 78 bad configuration.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> None:
    """Run one command line, by default the process's own, and exit with its code."""
    from .root import cli  # noqa: PLC0415 - workers load modules of this package, and need no command line for it

    cli.main(args=argv, prog_name="wheelsched")

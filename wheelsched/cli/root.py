"""The root of the command line: the tree of verbs."""

from __future__ import annotations

import click

from .shell import Root

VERBS = {
    "demo": ("bench.demo:demo", "The whole story in one command, in a temporary folder."),
    "serve": ("serve:serve", "Run the server."),
    "worker": ("worker:worker", "Run tasks for a server, outside of it."),
    "job": ("job:job", "Put, list, inspect, explain, pause, resume, trigger, backfill, delete and import jobs."),
    "calendar": ("calendar:calendar", "Put, list, show and delete calendars that block occurrences."),
    "enqueue": ("enqueue:enqueue", "Run a task once: now, after a delay or at an instant."),
    "group": ("group:group", "Run a task for each line of a file, then another one."),
    "run": ("run:run", "List, inspect, cancel, follow and wait for runs."),
    "dead": ("dead:dead", "List, redrive, discard and export dead letters."),
    "queue": ("queue:queue", "List, limit, pause, resume and purge queues."),
    "cron": ("cron:cron", "Explain and lint cron expressions, show their next times (offline)."),
    "forecast": ("forecast:forecast", "How many runs will start when: the coming peak, and who makes it."),
    "events": ("events:events", "Follow changes of state: runs, jobs, queues, workers."),
    "web": ("web:web", "Show a server in a browser; metrics for Prometheus."),
    "status": ("status:status", "What the server is doing: lags, queues, workers, storage."),
    "top": ("top:top", "Rates, queues and workers, again and again."),
    "health": ("status:health", "One line; exit 0 if all is well."),
    "admin": ("admin:admin", "Verify a data directory, export the history, hold and release all triggering, reload, tzdiff."),
    "manual": ("manual:manual", "Show a page of the manual, or the list of pages."),
    "bench": ("bench.bench:bench", "Measure a fresh server in a temporary folder."),
}


def _version(ctx: click.Context, param: click.Parameter, value: bool) -> None:  # noqa: ARG001 - click's face
    if value:
        from .. import __version__  # noqa: PLC0415 - reads package metadata

        click.echo(f"wheelsched {__version__}")
        ctx.exit()


@click.group(cls=Root, verbs=VERBS)
@click.option("--version", "-V", is_flag=True, expose_value=False, is_eager=True, callback=_version, help="Show the version.")
def cli() -> None:
    """A job scheduler in one process: cron, intervals and one-time jobs, durable and on time.

    Exit codes: 0 ok, 1 failed, 2 usage, 3 not found, 4 conflict or fenced, 5 server unreachable, 6 permission denied,
    7 the run failed, 8 timed out.
    """

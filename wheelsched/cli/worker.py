"""`wheelsched worker`: executors outside of the server, any number of them, of any user who may open its socket."""

from __future__ import annotations

from typing import Any

import click

from ..model.errors import ConfigError, UnavailableError
from ..model.nouns import MODES, parse_duration, parse_task_name
from ..process.stderr import WARNING, say
from ..server.config import CONCURRENCY_MAX, check_drain, check_start_timeout, parse_size, task_modules
from .shell import Failed, Verb, shell

EXIT_CONFIG = 78


@click.command(cls=Verb)
@click.option("--tasks", multiple=True, required=True, metavar="MODULE", help="A Python module with tasks; may be repeated.")
@click.option("--queues", metavar="A,B", default="", help="Take runs of these queues only (all).")
@click.option("--concurrency", type=click.IntRange(1, CONCURRENCY_MAX), default=1, show_default=True, help="How many runs at a time.")
@click.option("--mode", type=click.Choice(MODES), default="process", show_default=True,
              help="Runs in processes of their own, or together in one: in threads, or coroutines on one event loop.")
@click.option("--max-runs", type=click.IntRange(0), default=0, metavar="N", help="Replace a process after so many runs.")
@click.option("--max-rss", default="0", metavar="SIZE", help="Replace it when its memory has grown beyond this: 512m, 2g.")
@click.option("--drain", metavar="D", default="30s", help="How long what runs has to end after the first signal to stop (30s).")
@click.option("--start-timeout", metavar="D", default="1m", help="How long a process has to come up, imports and on_start included (1m).")
@click.option("--no-wait", is_flag=True, help="Exit with 5 when no server is there, instead of waiting for it.")
@click.option("--allow-commands", is_flag=True, help="Serve the built-in task `command`.")
@click.option("--allow-http", is_flag=True, help="Serve the built-in task `http`.")
@click.option("--allow-env", multiple=True, metavar="NAME", help="A variable that commands get of this environment; PG* too; repeat it.")
@click.option("--http-allow-net", multiple=True, metavar="NET", help="A network, not public, that `http` may reach: 10.0.0.0/8; repeat it.")
@click.option("--http-secret-file", metavar="FILE", default="", help="Keys that `http` signs with: whsec_... one a line, newest first.")
@click.option("--http-ca-file", metavar="FILE", default="", help="Certificates that `http` trusts beside the system's.")
def worker(
    tasks: tuple[str, ...], queues: str, concurrency: int, mode: str, max_runs: int, max_rss: str, drain: str, start_timeout: str,
    no_wait: bool, **allow: Any,
) -> None:
    """Run tasks for a server, until a signal stops it.

    The first signal drains: what runs has 30 s (--drain) to end, then it is interrupted and tried again. The second stops at once.

    SIGHUP has its processes replaced one after another, by ones that read the code anew. Waits for its server, now and when it restarts.

    Exit codes: 0 stopped, 5 no server, with --no-wait; 78 the tasks can't be imported at the start.
    """
    try:
        task_modules(tasks)
    except ConfigError as e:
        raise Failed(e.message, EXIT_CONFIG) from e
    names = [parse_task_name(q, "queue") for q in queues.split(",") if q]
    sh = shell()
    try:
        sh.client.stats()  # says at once, and well, that no server is there
    except UnavailableError as e:
        if no_wait:
            raise
        say(f"worker: {e.message}; waiting for it (--no-wait: exit with 5)", WARNING)
    from ..pool.supervisor import Supervisor  # noqa: PLC0415 - the pool, which no other verb loads
    from ..process.contract import Allowed  # noqa: PLC0415 - as below

    allowed = Allowed(
        allow["allow_commands"], allow["allow_http"], allow["allow_env"], allow["http_allow_net"], allow["http_secret_file"],
        allow["http_ca_file"],
    )
    try:
        allowed.check()
        rss = parse_size(max_rss, "max_rss")
        drain_us = check_drain(parse_duration(drain, "--drain"))
        start_us = check_start_timeout(parse_duration(start_timeout, "--start-timeout"))
    except ConfigError as e:
        raise Failed(e.message, EXIT_CONFIG) from e
    supervisor = Supervisor(
        sh.client.path, tasks, queues=names, concurrency=concurrency, mode=mode, allowed=allowed, max_runs=max_runs, max_rss=rss,
        drain_us=drain_us, start_us=start_us,
    )
    if supervisor.run():
        raise Failed("the worker could not go on: see above", EXIT_CONFIG)

"""`wheelsched web`: the dashboard and the metrics, in a process of its own that is a client of the server's socket."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final

import click

from ..model.errors import ConfigError
from .shell import EXIT_FAILED, Failed, Verb, say, shell

EXIT_CONFIG: Final = 78
_NEEDED: Final = ("jinja2", "prometheus_client", "starlette", "uvicorn")


@click.command(cls=Verb)
@click.option(
    "--listen",
    "address",
    metavar="ADDRESS:PORT",
    default="127.0.0.1:8420",
    show_default=True,
    help="An address of this machine: nobody is asked who they are. Port 0: a free one.",
)
@click.option("--base-path", metavar="PATH", default="", help="Where a proxy shows it: /jobs.")
@click.option("--host", "hosts", multiple=True, metavar="NAME", help="A name by which browsers call it, behind a proxy; may be repeated.")
@click.option(
    "--allow-actions", is_flag=True, help="Let whoever can open it run, pause, resume and cancel, and send back and discard dead letters."
)
def web(address: str, base_path: str, hosts: tuple[str, ...], allow_actions: bool) -> None:
    """Show a server in a browser: jobs, runs, dead letters, lags; /metrics is for Prometheus. Read-only without --allow-actions.

    It is a client of the server's socket, so it sees what the user who starts it may see. Exit codes: 0 stopped, 78 bad configuration.
    """
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        raise Failed(f"the dashboard needs {', '.join(missing)}, which is not installed: pip install 'wheelsched[web]'", EXIT_FAILED)
    from ..web import serving  # noqa: PLC0415 - an extra

    try:
        base = serving.parse_base(base_path)
        host, port = serving.parse_address(address)
        sock = serving.listen(host, port)
    except ConfigError as e:
        raise Failed(e.message, EXIT_CONFIG) from e
    from ..client.async_client import AsyncClient  # noqa: PLC0415 - as above
    from ..web.app import Settings, make_app  # noqa: PLC0415 - as above

    with sock:
        client = AsyncClient(shell().socket, timeout=shell().timeout or "5s", retry_for=0)
        app = make_app(client, Settings(base, frozenset(name.lower() for name in hosts), allow_actions))
        shown, number = f"[{host}]" if ":" in host else host, sock.getsockname()[1]
        serving.serve(app, sock, lambda: say(f"the dashboard of {client.path} is at http://{shown}:{number}{base}/"))

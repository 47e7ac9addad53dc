"""Binds the address and runs uvicorn: limits on headers, connections and on those who send or read slowly."""

from __future__ import annotations

import logging
import signal
import socket
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, Final

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from ..model.errors import ConfigError

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from .guard import Guard

__all__ = ["HEADERS_MAX", "listen", "parse_address", "parse_base", "serve"]

HEADERS_MAX: Final = 16 * 1024
_CONNECTIONS_MAX: Final = 256
_KEEP_ALIVE_S: Final = 5
_LOOK_S: Final = 3.0  # two looks: who has not sent a whole request by then is cut off
_ANSWER_S: Final = 60.0  # and who has not taken an answer
_BACKLOG: Final = 128


def parse_address(text: str) -> tuple[str, int]:
    """`127.0.0.1:8420`, `[::1]:8420`, `localhost:8420`. ConfigError for another form, and for an address beyond this machine."""
    host, sign, port = text.rpartition(":")
    name = host.strip("[]")
    if not sign or not name or not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise ConfigError(f"--listen {text[:80]!r}: ADDRESS:PORT is wanted, such as 127.0.0.1:8420 or [::1]:8420")
    if name != "localhost":
        try:
            inside = ip_address(name).is_loopback
        except ValueError:
            raise ConfigError(f"--listen {text[:80]!r}: an IP address or localhost is wanted, such as 127.0.0.1:8420") from None
        if not inside:
            raise ConfigError(
                f"--listen {text[:80]}: only addresses of this machine are allowed, 127.0.0.1 or [::1]: the dashboard asks nobody who"
                " they are."
                " Put a proxy that does before it, and name the proxy's host with --host; or reach it with `ssh -L 8420:127.0.0.1:8420`"
            )
    return name, int(port)


def parse_base(text: str) -> str:
    """`/jobs`; empty for the root. ConfigError."""
    base = text.rstrip("/")
    parts = base.split("/")
    if base and (
        not base.startswith("/")
        or len(base) > 200
        or any(p in ("", ".", "..") for p in parts[1:])
        or not base.isascii()
        or any(not (c.isalnum() or c in "/-_.") for c in base)
    ):
        raise ConfigError(f"--base-path {text[:80]!r}: a path such as /jobs is wanted")
    return base


def listen(host: str, port: int) -> socket.socket:
    """The socket. ConfigError when it can't be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
        sock.listen(_BACKLOG)
    except OSError as e:
        sock.close()
        raise ConfigError(f"--listen {host}:{port}: {e.strerror}; give another port: --listen 127.0.0.1:8421, or :0 for a free one") from e
    return sock


class Patient(H11Protocol):
    """HTTP/1.1 with an end to patience: for half a request, and for an answer that nobody takes."""

    _watch: asyncio.TimerHandle | None = None
    _seen: Any = None
    _answering_s = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        """Begin to watch."""
        super().connection_made(transport)
        self._watch = self.loop.call_later(_LOOK_S, self._look, True)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop watching."""
        if self._watch is not None:
            self._watch.cancel()
        super().connection_lost(exc)

    def _look(self, first: bool) -> None:
        cycle = self.cycle
        answering = cycle is not None and not cycle.response_complete
        same = cycle is self._seen and not first
        self._answering_s = self._answering_s + _LOOK_S if answering and same else 0.0
        if (same and not answering) or self._answering_s >= _ANSWER_S:
            self.transport.abort()
            return
        self._seen = cycle
        self._watch = self.loop.call_later(_LOOK_S, self._look, False)


class Announced(uvicorn.Server):
    """Says when it takes requests."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """As uvicorn's."""
        await super().startup(sockets)
        if self.started:
            self._ready()


def serve(app: Guard, sock: socket.socket, ready: Callable[[], None]) -> None:
    """Run until SIGINT or SIGTERM. `ready` is called once, when requests are taken."""
    logging.basicConfig(level=logging.WARNING, format="wheelsched: %(message)s")
    for number in (signal.SIGINT, signal.SIGTERM):  # uvicorn ends, and raises the signal again: it has done its work by then
        signal.signal(number, lambda *_: None)
    Announced(
        uvicorn.Config(
            app,
            http=Patient,
            ws="none",
            loop="asyncio",
            lifespan="on",
            log_level="warning",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            h11_max_incomplete_event_size=HEADERS_MAX,
            limit_concurrency=_CONNECTIONS_MAX,
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=3,
        ),
        ready,
    ).run(sockets=[sock])

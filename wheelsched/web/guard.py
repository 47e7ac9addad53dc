"""Looks at each request before any page does: host, method, sizes; and puts the same safe headers on every answer."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, MutableMapping

    Message = MutableMapping[str, Any]
    Receive = Callable[[], Awaitable[Message]]
    Send = Callable[[Message], Awaitable[None]]
    App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

__all__ = ["BODY_MAX", "HEADERS", "LOOPBACK", "Guard"]

LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})
BODY_MAX: Final = 64 * 1024
_URL_MAX: Final = 8_192
_CSP: Final = (
    "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none';"
    " frame-ancestors 'none'"
)
HEADERS: Final = (
    (b"content-security-policy", _CSP.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=()"),
)


_HOST: Final = re.compile(rb"(?:\[([0-9a-f:.]+)\]|([a-z0-9._-]+))(?::[0-9]{1,5})?")


def _host(raw: bytes) -> str:
    """The name in a Host header, without its port; empty for what is none."""
    found = _HOST.fullmatch(raw.strip().lower())
    return "" if found is None else (found[1] or found[2]).decode()


class Guard:
    """The application, behind the checks. `hosts`: the names by which a browser may call it; `posts`: paths that take a POST."""

    def __init__(self, app: App, hosts: frozenset[str], base: str = "", posts: frozenset[str] = frozenset()) -> None:
        self._app = app
        self._hosts = hosts
        self._base = base
        self._posts = posts

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            return  # a websocket: uvicorn is started without them

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                kept = [(k, v) for k, v in message.get("headers", ()) if k.lower() != b"server"]
                names = {k.lower() for k, _ in kept}
                kept += [pair for pair in HEADERS if pair[0] not in names]
                kept += [] if b"cache-control" in names else [(b"cache-control", b"no-store")]
                message = {**message, "headers": kept}
            await send(message)

        refused = self._refused(scope)
        if refused is not None:
            await _say(guarded, *refused)
            return
        path = scope["path"][len(self._base) :] or "/"
        await self._app({**scope, "path": path, "raw_path": path.encode(), "root_path": ""}, receive, guarded)

    def _refused(self, scope: MutableMapping[str, Any]) -> tuple[int, str, tuple[tuple[bytes, bytes], ...]] | None:
        """Status, text and headers of a refusal; None: it may pass."""
        headers: list[tuple[bytes, bytes]] = list(scope["headers"])
        hosts = [value for name, value in headers if name == b"host"]
        if len(hosts) != 1 or _host(hosts[0]) not in self._hosts:
            return 421, "this name is not served here: open the address that `wheelsched web` printed, or name it with --host", ()
        path: str = scope["path"]
        if len(path) + len(scope.get("query_string") or b"") > _URL_MAX:
            return 414, f"the address is longer than {_URL_MAX} characters", ()
        if not (path == self._base or path.startswith(f"{self._base}/")):
            return 404, f"the dashboard is at {self._base}/", ()
        allowed = ("GET", "HEAD", "POST") if path[len(self._base) :] in self._posts else ("GET", "HEAD")
        if scope["method"] not in allowed:
            return (
                405,
                "this dashboard is read-only" if "POST" not in allowed else "this is not done here",
                ((b"allow", ", ".join(allowed).encode()),),
            )
        lengths = [value for name, value in headers if name == b"content-length"]
        if lengths and (len(lengths) > 1 or not lengths[0].isdigit() or len(lengths[0]) > 9 or int(lengths[0]) > BODY_MAX):
            return 413, f"a request may have {BODY_MAX} bytes", ()
        return None


async def _say(send: Send, status: int, text: str, headers: tuple[tuple[bytes, bytes], ...]) -> None:
    body = f"{text}\n".encode()
    told = [
        (b"content-type", b"text/plain; charset=utf-8"),
        (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"),
        *headers,
    ]
    await send({"type": "http.response.start", "status": status, "headers": told})
    await send({"type": "http.response.body", "body": body})

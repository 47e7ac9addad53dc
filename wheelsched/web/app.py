"""The ASGI application: routes, templates, what is said when the server is gone."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route

from ..model.errors import WheelschedError
from .actions import COOKIE, Tokens, asked, carry_out, confirmed, form_of, same_origin
from .figures import FILTERS
from .guard import LOOPBACK, Guard
from .metrics import exposition
from .pages import PAGES, header
from .reader import Reader

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

    from starlette.requests import Request

    from ..client.async_client import AsyncClient

__all__ = ["Settings", "make_app"]

_HERE: Final = Path(__file__).parent
_STATIC: Final = {"style.css": "text/css", "live.js": "text/javascript", "icon.svg": "image/svg+xml"}
_BROWSER_BYTES: Final = 16
_PAGE_S: Final = 10.0  # the longest that a page may take
_STATUS: Final = {
    "not_found": 404,
    "invalid_argument": 400,
    "permission_denied": 403,
    "unavailable": 503,
    "deadline_exceeded": 503,
    "resource_exhausted": 503,
    "storage_full": 503,
    "failed_precondition": 409,
    "already_exists": 409,
    "fenced": 409,
}
_GONE: Final = ("unavailable", "deadline_exceeded")
_log = logging.getLogger("wheelsched.web")


@dataclass(frozen=True, slots=True)
class Settings:
    """How the dashboard is called. `hosts`: names, beside those of loopback, by which browsers may call it; `base`: `/jobs`, or empty."""

    base: str = ""
    hosts: frozenset[str] = frozenset()
    allow_actions: bool = False


def _here(request: Request) -> str:
    """The page that was asked for, to ask again: one of ours, whatever the address was."""
    query = request.url.query
    return request.url.path + (f"?{query}" if query else "") if request.url.path in PAGES else "/"


class Site:
    """The handlers."""

    def __init__(self, reader: Reader, settings: Settings) -> None:
        self.reader = reader
        self.settings = settings
        self.files = {name: (_HERE / "static" / name).read_bytes() for name in _STATIC}
        self.env = Environment(
            loader=FileSystemLoader(_HERE / "templates"), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
        )
        self.env.filters.update(FILTERS)
        self.tokens = Tokens()
        self.env.globals.update(base=settings.base, actions=settings.allow_actions, static={name: self._address(name) for name in _STATIC})

    def _address(self, name: str) -> str:
        """With the content's hash, so that a browser may keep it."""
        return f"{self.settings.base}/static/{name}?v={blake2b(self.files[name], digest_size=6).hexdigest()}"

    def routes(self) -> list[Route]:
        """Every address."""
        made = [Route(path, self._page(make, template), methods=["GET"]) for path, (make, template) in PAGES.items()]
        return [
            *made,
            *([Route("/ask", self.ask, methods=["GET"]), Route("/do", self.do, methods=["POST"])] if self.settings.allow_actions else []),
            Route("/static/{name}", self.static, methods=["GET"]),
            Route("/metrics", self.metrics, methods=["GET"]),
            Route("/health", self.health, methods=["GET"]),
        ]

    def _page(
        self, make: Callable[[Reader, Mapping[str, str]], Awaitable[dict[str, Any]]], template: str
    ) -> Callable[[Request], Awaitable[Response]]:
        async def handler(request: Request) -> Response:
            try:
                async with asyncio.timeout(_PAGE_S):
                    shown = await make(self.reader, request.query_params)
                    shot = await self.reader.snapshot()
            except WheelschedError as e:
                return await self.failed(e.code, e.message, request)
            except TimeoutError:
                return await self.failed("deadline_exceeded", f"the server has not answered within {_PAGE_S:g} s", request)
            return self.rendered(f"{template}.html", 200, page=template, top=header(shot), **shown)

        return handler

    def rendered(self, template: str, status: int, **shown: Any) -> Response:
        """A page."""
        return HTMLResponse(self.env.get_template(template).render(**shown), status)

    async def failed(self, code: str, message: str, request: Request) -> Response:
        """What went wrong, and what to do about it."""
        status, top = _STATUS.get(code, 500), None
        if code not in _GONE:
            with contextlib.suppress(WheelschedError):  # then the page is shown without the server's clock
                top = header(await self.reader.snapshot())
        return self.rendered(
            "failed.html",
            status,
            page="",
            title="Not found" if status == 404 else "The server does not answer" if code in _GONE else "That did not work",
            top=top or header(None),
            gone=code in _GONE,
            message=message,
            socket=self.reader.client.path,
            here=_here(request),
        )

    async def http_error(self, request: Request, error: Exception) -> Response:
        """An address that is not there."""
        status = error.status_code if isinstance(error, HTTPException) else 500
        if status == 404:
            return await self.failed("not_found", "there is no such page", request)
        return PlainTextResponse("this is not done here\n", status)

    async def bug(self, request: Request, error: Exception) -> Response:  # noqa: ARG002 - the face of starlette's handlers
        """A fault of the dashboard: the log has it, the page says so."""
        _log.error("bug: %s: %s", type(error).__name__, error, exc_info=error)
        return self.rendered(
            "failed.html",
            500,
            page="",
            title="That did not work",
            top=header(None),
            gone=False,
            here="/",
            message="the dashboard has a fault; its log says where",
            socket=self.reader.client.path,
        )

    async def ask(self, request: Request) -> Response:
        """The page on which an action is confirmed. It changes nothing."""
        browser = request.cookies.get(COOKIE, "")
        browser = browser if len(browser) == 2 * _BROWSER_BYTES and browser.isalnum() else secrets.token_hex(_BROWSER_BYTES)
        given = {name: request.query_params.getlist(name) for name in request.query_params}
        try:
            async with asyncio.timeout(_PAGE_S):
                what = await asked(self.reader, given)
                shot = await self.reader.snapshot()
        except WheelschedError as e:
            return await self.failed(e.code, e.message, request)
        except TimeoutError:
            return await self.failed("deadline_exceeded", f"the server has not answered within {_PAGE_S:g} s", request)
        once, token = self.tokens.make(browser, what)
        back = {"redrive": "/dead", "discard": "/dead", "cancel": "/runs"}.get(what.do, "/jobs")
        answer = self.rendered(
            "ask.html", 200, page="", still=True, title=what.title, top=header(shot), what=what, once=once, token=token, back=back
        )
        answer.set_cookie(COOKIE, browser, max_age=86_400, path=f"{self.settings.base}/", httponly=True, samesite="strict")
        return answer

    async def do(self, request: Request) -> Response:
        """Carry out what a form of `ask` says; nothing unless all of it is as it was shown."""
        try:
            async with asyncio.timeout(_PAGE_S):
                same_origin(request)
                form = await form_of(request)
                what = confirmed(form)
                once = self.tokens.check(request.cookies.get(COOKIE), form, what)
                done = await carry_out(self.reader, what, form, once)
                self.reader.forget()
                shot = await self.reader.snapshot()
        except WheelschedError as e:
            return await self.failed(e.code, e.message, request)
        except TimeoutError:
            return await self.failed("deadline_exceeded", "the server has not answered in time; look whether it was done", request)
        return self.rendered("done.html", 200, page="", still=True, title=done.text, top=header(shot), done=done)

    async def static(self, request: Request) -> Response:
        """Style, script, icon."""
        name = request.path_params["name"]
        if name not in self.files:
            return await self.failed("not_found", "there is no such file", request)
        return Response(self.files[name], media_type=_STATIC[name], headers={"cache-control": "public, max-age=604800"})

    async def metrics(self, request: Request) -> Response:
        """For Prometheus. 503 while the server does not answer: then the scrape counts as failed."""
        try:
            async with asyncio.timeout(_PAGE_S):
                body, kind = await exposition(self.reader, request.headers.get("accept", "")[:500])
        except (WheelschedError, TimeoutError) as e:
            return PlainTextResponse(f"# the server does not answer: {str(e).splitlines()[0] if str(e) else 'no answer in time'}\n", 503)
        return Response(body, media_type=kind)

    async def health(self, request: Request) -> Response:  # noqa: ARG002 - the face of all handlers
        """For a supervisor of the dashboard: whether it works and reaches its server."""
        try:
            async with asyncio.timeout(_PAGE_S):
                await self.reader.snapshot()
        except (WheelschedError, TimeoutError):
            return PlainTextResponse("the server does not answer\n", 503)
        return PlainTextResponse("ok\n")


def make_app(client: AsyncClient, settings: Settings | None = None) -> Guard:
    """The dashboard of a server, as an ASGI application. It closes the client when it ends."""
    settings = settings or Settings()
    reader = Reader(client)
    site = Site(reader, settings)

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        sampling = asyncio.ensure_future(reader.sample())
        try:
            yield
        finally:
            sampling.cancel()
            await asyncio.gather(sampling, return_exceptions=True)
            await reader.close()

    app = Starlette(routes=site.routes(), lifespan=lifespan, exception_handlers={HTTPException: site.http_error, Exception: site.bug})
    app.router.redirect_slashes = False
    return Guard(app, LOOPBACK | settings.hosts, settings.base, frozenset({"/do"}) if settings.allow_actions else frozenset())

"""The built-in task `http`: one request a run, by urllib3 (the extra `http`).

2xx is a success. 408, 425, 429 and 5xx are retried, after the time that `Retry-After` asks for; so is what fails on the way. Any other
status and what can't be sent as asked is not: HttpRefused. A request carries the run's id as `Idempotency-Key` and, when the operator has
given keys, is signed as Standard Webhooks (standardwebhooks.com) say.
"""

from __future__ import annotations

import base64
import hmac
import json as jsonlib
import re
import socket
import ssl
import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urljoin

from ..model.errors import InvalidArgumentError
from ..model.nouns import OUTPUT_MAX, REDIRECTS_MAX, US, parse_duration
from ..process.contract import networks, read_secrets
from ..tasks.tasks import current_run
from ..tasks.verdicts import NotRetried, RetryAfter
from .causes import asked_for, cause_of, in_body, in_header, in_url, texts
from .network import permitted

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..process.contract import Allowed

BODY_KEPT: Final = 16 * 1024  # bytes of a response kept as the run's output, unless `max_body` says otherwise
RETRY_AFTER_MAX_S: Final = 86_400.0
_AGAIN: Final = frozenset({408, 425, 429, *range(500, 600)})
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_OURS: Final = frozenset({
    "host", "content-length", "transfer-encoding", "connection", "webhook-id", "webhook-timestamp", "webhook-signature",
})
_PRIVATE: Final = ("authorization", "cookie", "proxy-authorization")  # not for another origin
_METHOD: Final = re.compile(r"[A-Za-z]{1,20}", re.ASCII)
_PORTS: Final = {"http": 80, "https": 443}
_INSTALL: Final = "http: the package urllib3 is missing where this worker runs: pip install urllib3"


class HttpFailed(Exception):  # noqa: N818 - a name that reads well in a run's error
    """No answer, or one that another attempt may mend."""

    __module__ = "wheelsched"  # what a run's error and a `not_on` say, wherever this class lives


class HttpPutOff(HttpFailed, RetryAfter):
    """The answer says by Retry-After when another attempt may mend it."""

    __module__ = "wheelsched"
    __qualname__ = "HttpFailed"  # to users and their rules it is one


class HttpRefused(NotRetried):
    """A status that no further attempt mends, or a request that can't or may not be sent: it is not retried."""

    __module__ = "wheelsched"


def signature(keys: list[bytes], message_id: str, timestamp: int, body: bytes) -> str:
    """The value of webhook-signature: one "v1,…" for each key."""
    signed = f"{message_id}.{timestamp}.".encode() + body
    return " ".join("v1," + base64.b64encode(hmac.digest(key, signed, sha256)).decode() for key in keys)


def retry_after_s(value: str | None, now_s: float) -> float | None:
    """Seconds that a Retry-After asks for, as a number or a date, up to a day. None for none and for nonsense."""
    if value is None:
        return None
    text = value.strip()
    if text.isascii() and text.isdigit():
        return min(float(text[:12]), RETRY_AFTER_MAX_S)
    try:
        at = parsedate_to_datetime(text)
    except ValueError:
        return None
    at = at if at.tzinfo else at.replace(tzinfo=UTC)
    return min(max(0.0, (at - datetime.fromtimestamp(now_s, UTC)).total_seconds()), RETRY_AFTER_MAX_S)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a request goes."""

    scheme: str
    host: str  # without brackets
    port: int
    target: str  # path and query

    @classmethod
    def of(cls, url: Any, what: str = "http: the url") -> Place:
        """HttpRefused for what is no http:// or https:// address, and for one with a user and a password. `what` it is, for the text."""
        from urllib3.exceptions import LocationParseError  # noqa: PLC0415 - the extra
        from urllib3.util import parse_url  # noqa: PLC0415

        try:
            found = parse_url(url) if isinstance(url, str) and len(url) <= 8_000 else None
        except LocationParseError:
            found = None
        if found is None or found.scheme not in _PORTS or not found.host:
            raise HttpRefused(f"{what} is no http:// or https:// address")
        if found.auth is not None:
            raise HttpRefused(f"{what} is an address with a user and a password in it: use the header Authorization")
        return cls(found.scheme, found.host.strip("[]"), found.port or _PORTS[found.scheme], found.request_uri)

    @property
    def origin(self) -> str:
        """scheme://host:port, the port only when it is not the usual one. All that messages say: paths and queries may be secrets."""
        return f"{self.scheme}://{self.netloc}"

    @property
    def netloc(self) -> str:
        """What goes into the header Host."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"


@dataclass(slots=True)
class Request:
    """What is sent; a redirect may change it."""

    method: str
    place: Place
    headers: dict[str, str]
    body: bytes
    sign: bool
    until_s: float  # monotonic


def http(
    allowed: Allowed, method: str, url: str, json: Any = None, body: bytes | str | None = None, headers: dict[str, str] | None = None,
    timeout: Any = None, expect: list[int] | None = None, redirects: int = 0, sign: bool | None = None, max_body: int = BODY_KEPT,
) -> int:
    """Send one request; the status. See `Http`. HttpFailed for what another attempt may mend, else HttpRefused.

    What caused the run stands for {cause.job} and the like in url, headers and body. The response's first `max_body` bytes become the run's
    output.
    """
    try:
        import urllib3  # noqa: F401, PLC0415 - the extra
    except ImportError:
        raise HttpRefused(_INSTALL) from None
    if not isinstance(method, str) or not _METHOD.fullmatch(method):
        raise HttpRefused(f"http: {str(method)[:40]!r} is no method")
    if json is not None and body is not None:
        raise HttpRefused("http: json or body is wanted, not both")
    sent = _headers(headers)
    if json is not None:
        sent.setdefault("content-type", "application/json")
    try:
        limit_us = current_run().timeout_us if timeout is None else parse_duration(timeout, "timeout")
        data = jsonlib.dumps(json).encode() if json is not None else body.encode() if isinstance(body, str) else bytes(body or b"")
    except (TypeError, ValueError, InvalidArgumentError) as e:
        raise HttpRefused(f"http: {e}") from None
    if sign and not allowed.http_secret_file:
        raise HttpRefused("http: sign is asked for, and the operator has given no key (--http-secret-file)")
    signs = bool(allowed.http_secret_file) if sign is None else sign
    url, sent, data = _with_cause(url, sent, data, None if json is None else "application/json")
    request = Request(method.upper(), Place.of(url), sent, data, signs, time.monotonic() + min(limit_us, current_run().timeout_us) / US)
    for _ in range(min(max(int(redirects), 0), REDIRECTS_MAX) + 1):
        status, answered = _exchange(allowed, request, min(max(int(max_body), 0), OUTPUT_MAX))
        if status in (expect or range(200, 300)):
            return status
        if status not in _REDIRECTS or not redirects:
            break
        _redirect(request, status, answered.get("location"))
    raise _verdict(request, status, answered, followed=bool(redirects))


def _with_cause(url: Any, sent: dict[str, str], data: bytes, form: str | None) -> tuple[Any, dict[str, str], bytes]:
    """A request with its placeholders filled, if something caused the run; `form` is the content type of `data`, if that is sure."""
    if not isinstance(url, str) or not asked_for(url, data, *sent.values()) or (cause := cause_of(current_run())) is None:
        return url, sent, data
    told = texts(cause)
    headers = {name: in_header(value, told) for name, value in sent.items()}
    return in_url(url, told), headers, in_body(data, form or sent.get("content-type"), told)


def _headers(given: Any) -> dict[str, str]:
    """Headers in lower case, with what is there by default. HttpRefused for those that are ours, and for what is no header."""
    sent = {"idempotency-key": current_run().id, "user-agent": "wheelsched", "accept-encoding": "identity"}
    for name, value in (given or {}).items():
        if not isinstance(name, str) or not isinstance(value, str) or not re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,200}", name):
            raise HttpRefused(f"http: headers is a map of texts; {str(name)[:100]!r} can't be sent so")
        if "\r" in value or "\n" in value or "\0" in value:
            raise HttpRefused(f"http: the value of the header {name} has a line break in it")
        if name.lower() in _OURS:
            raise HttpRefused(f"http: the header {name} is made by the task; leave it out")
        sent[name.lower()] = value
    return sent


def _redirect(request: Request, status: int, location: str | None) -> None:
    """Change a request to where a redirect points. What another origin must not see is dropped."""
    before = request.place
    if location is None:
        raise HttpRefused(f"{request.method} {before.origin}: {status} without a Location")
    request.place = _onward(before, location)
    if before.scheme == "https" and request.place.scheme == "http":
        raise HttpRefused(f"{request.method} {before.origin}: redirected from https to {request.place.origin}, which is not followed")
    if status == 303 or (status in (301, 302) and request.method == "POST"):
        request.method, request.body = "HEAD" if request.method == "HEAD" else "GET", b""
        request.headers.pop("content-type", None)
    if request.place.origin != before.origin:
        request.sign = False
        request.headers = {name: value for name, value in request.headers.items() if name not in _PRIVATE}


def _onward(before: Place, location: str) -> Place:
    """Where a redirect points. HttpRefused for what is no address."""
    what = f"{before.origin}: where it redirects to"
    try:
        return Place.of(urljoin(before.origin + before.target, location), what)
    except ValueError:  # of urljoin
        raise HttpRefused(f"{what} is no http:// or https:// address") from None


def _verdict(request: Request, status: int, answered: Mapping[str, str], *, followed: bool) -> Exception:
    """What to raise for a status that is no success."""
    text = f"{request.method} {request.place.origin}: {status}"
    if status in _REDIRECTS:
        try:
            where = _onward(request.place, answered["location"]).origin if "location" in answered else "nowhere"
        except HttpRefused:
            where = "what is no address"
        why = "one redirect too many" if followed else "redirects are not followed unless `redirects` says how many"
        return HttpRefused(f"{text}, to {where}: {why}")
    if status not in _AGAIN:
        return HttpRefused(f"{text}: not retried")
    wait_s = retry_after_s(answered.get("retry-after"), time.time())
    return HttpPutOff(wait_s, f"{text}, and not before {wait_s:g} s from now") if wait_s else HttpFailed(text)


def _addresses(allowed: Allowed, place: Place, shown: str) -> list[str]:
    """What a host's name stands for now, as far as it may be connected to."""
    try:
        found = socket.getaddrinfo(place.host, place.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as e:
        raise HttpFailed(f"{shown}: the name {place.host} can't be resolved: {getattr(e, 'strerror', None) or e}") from None
    texts = list(dict.fromkeys(str(info[4][0]) for info in found))
    nets = networks(allowed.http_nets)
    good = [text for text in texts if permitted(text, nets)]
    if not good:
        raise HttpRefused(
            f"{shown}: {place.host} is {'' if place.host == texts[0] else f'{texts[0]}, which is '}no public address;"
            f" the operator may allow it: --http-allow-net {texts[0]}"
        )
    return good


def _exchange(allowed: Allowed, request: Request, keep: int) -> tuple[int, dict[str, str]]:
    """Send the request to the first address that takes a connection; (status, headers in lower case). The body goes to the output."""
    from urllib3.exceptions import ConnectTimeoutError, HTTPError, NewConnectionError  # noqa: PLC0415 - the extra

    shown = f"{request.method} {request.place.origin}"
    headers = {**request.headers, "host": request.place.netloc}
    if request.sign:
        now_s, run_id = int(time.time()), current_run().id
        headers |= {
            "webhook-id": run_id, "webhook-timestamp": str(now_s),
            "webhook-signature": signature(read_secrets(allowed.http_secret_file), run_id, now_s, request.body),
        }
    failed: Exception | None = None
    for address in _addresses(allowed, request.place, shown):
        try:
            return _send(allowed, request, address, headers, keep)
        except (NewConnectionError, ConnectTimeoutError) as e:  # nothing was sent: the next address may do
            failed = e
        except (HTTPError, OSError, ValueError) as e:
            raise HttpFailed(f"{shown}: {_plainly(e)}") from None
    raise HttpFailed(f"{shown}: {_plainly(failed)}") from None


def _plainly(error: Exception | None) -> str:
    """An error of urllib3 in words, without its objects' addresses."""
    return re.sub(r"<[^>]*>:? ?|[\w.]*(?:Connection|Pool)\([^)]*\):? ?", "", str(error)) or type(error).__name__


def _send(allowed: Allowed, request: Request, address: str, headers: dict[str, str], keep: int) -> tuple[int, dict[str, str]]:
    """One exchange with one address. The name is used for TLS and the header Host alone: it is not looked up again."""
    import urllib3  # noqa: PLC0415 - the extra

    place = request.place
    left_s = _left(request)
    options: dict[str, Any] = {"timeout": urllib3.Timeout(total=left_s), "retries": False, "block": False, "maxsize": 1}
    pool: Any
    if place.scheme == "https":
        context = ssl.create_default_context()
        if allowed.http_ca_file:
            context.load_verify_locations(allowed.http_ca_file)
        pool = urllib3.HTTPSConnectionPool(address, place.port, ssl_context=context, server_hostname=place.host, **options)
    else:
        pool = urllib3.HTTPConnectionPool(address, place.port, **options)
    with pool:
        response = pool.urlopen(
            request.method, place.target, body=request.body or None, headers=headers, redirect=False, preload_content=False,
            assert_same_host=False,
        )
        try:
            out, kept = sys.stdout.buffer, 0
            while kept < keep and (data := response.read1(min(8_192, keep - kept), decode_content=False)):
                out.write(data)
                kept += len(data)
                _left(request)
            return int(response.status), {name.lower(): value for name, value in response.headers.items()}
        finally:
            response.close()  # what was not read is not wanted


def _left(request: Request) -> float:
    """Seconds that are left. TimeoutError when none are."""
    left_s = request.until_s - time.monotonic()
    if left_s <= 0:
        raise TimeoutError("the time is over before the answer was complete")
    return left_s

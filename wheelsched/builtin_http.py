"""The built-in task `http`: one request a run."""

from __future__ import annotations

from typing import Any, Final

from .errors import PayloadError
from .model import US
from .tasks import current_run

HTTP_BODY_MAX: Final = 16 * 1024  # bytes of a response kept as the run's output


class HttpFailed(Exception):  # noqa: N818 - a name that reads well in a run's error
    """A response that is not 2xx."""

    __module__ = "wheelsched"  # what a run's error and a `not_on` say, wherever this class lives


def http(method: str, url: str, json: Any = None, body: bytes | str | None = None, headers: dict[str, str] | None = None) -> int:
    """Send one request; the status. HttpFailed for anything but 2xx. `Idempotency-Key` is the run id.

    The response's first 16 KiB become the run's stdout. Redirects are followed as urllib does.
    """
    import sys  # noqa: PLC0415 - with the rest of what this task alone needs
    import urllib.error  # noqa: PLC0415
    import urllib.request  # noqa: PLC0415
    from json import dumps  # noqa: PLC0415

    if not url.startswith(("http://", "https://")):
        raise PayloadError(f"http: {url[:200]!r} is no http:// or https:// address")
    run = current_run()
    sent = {"Idempotency-Key": run.id, **(headers or {})}
    data = body.encode() if isinstance(body, str) else body
    if json is not None:
        data = dumps(json).encode()
        sent.setdefault("Content-Type", "application/json")
    request = urllib.request.Request(url, data=data, headers=sent, method=method.upper())  # noqa: S310 - checked above
    try:
        with urllib.request.urlopen(request, timeout=max(run.timeout_us, 1) / US) as response:  # noqa: S310
            sys.stdout.buffer.write(response.read(HTTP_BODY_MAX))
            return int(response.status)
    except urllib.error.HTTPError as e:
        sys.stdout.buffer.write(e.read(HTTP_BODY_MAX))
        raise HttpFailed(f"{method.upper()} {url}: {e.code} {e.reason}") from None

"""What caused a run, in the words that the built-in tasks hand on: variables and standard input of a command, placeholders of a request.

A text in them may come from anybody whose code failed. In a request each place has its own escape, so such a text ends no value, adds no
header and leads to no other host.
"""

from __future__ import annotations

import json
import os
import re
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, quote_plus

from ..model.errors import PayloadError
from ..model.payloads import RAW, plain
from ..protocol.frames import read_cause

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ..tasks.tasks import RunContext

NAMES: Final = ("job", "run_id", "reason", "error")  # empty where a cause has no such thing
URL_TEXT_MAX: Final = 300  # characters of a text that goes into an address: a long error must not make the whole too long
_PLACEHOLDER: Final = re.compile(rb"\{cause\.(job|run_id|reason|error)\}")
_HOST: Final = re.compile(rb"[^/?#]*//[^/?#]*")


def cause_of(run: RunContext) -> dict[str, Any] | None:
    """`run.cause` with values that JSON has; None for a run that nothing caused. One whose value can't be read is told without it."""
    stored: Any = run._batch.headers(run._row).get("cause")  # noqa: SLF001 - run.cause has the types of the worker's modules, JSON has no form of them
    try:
        found = read_cause(stored, RAW)
    except (PayloadError, ValueError, OverflowError):
        found = read_cause({**stored, "value": None}, RAW)
    return None if found is None else plain(found)


def texts(cause: Mapping[str, Any]) -> dict[str, str]:
    """The four things that are told by name."""
    error = cause.get("error") or {}
    said = ": ".join(part for part in (error.get("type"), error.get("message")) if part)
    return {"job": cause.get("job") or "", "run_id": cause.get("run_id") or "", "reason": cause["reason"], "error": said}


def environment(cause: Mapping[str, Any] | None) -> dict[str, str]:
    """WHEELSCHED_CAUSE_JOB and so on; none for no cause. In UTF-8 whatever the locale is, and without NUL, which no variable can hold."""
    if cause is None:
        return {}
    return {f"WHEELSCHED_CAUSE_{name.upper()}": os.fsdecode(text.replace("\0", "").encode()) for name, text in texts(cause).items()}


def as_json(cause: Mapping[str, Any] | None) -> bytes | None:
    """The whole cause, one line."""
    return None if cause is None else json.dumps(cause).encode() + b"\n"


def in_url(url: str, told: Mapping[str, str]) -> str:
    """An address with its placeholders filled; those in the host stay, since no text may choose where a request goes."""
    data = url.encode()
    host = _HOST.match(data)
    start = 0 if host is None else host.end()
    return (data[:start] + _filled(data[start:], told, lambda text: quote(text[:URL_TEXT_MAX], safe=""))).decode()


def in_header(value: str, told: Mapping[str, str]) -> str:
    """The value of a header, in printable ASCII: there is no other text that every server takes."""
    return _filled(value.encode(), told, lambda text: re.sub(r"[^ -~]", "?", " ".join(text.split()))).decode()


def in_body(body: bytes, content_type: str | None, told: Mapping[str, str]) -> bytes:
    """A body: escaped as JSON or as a form if it is one, by its type or, without a type, by what it is; else as it stands."""
    kind = (content_type or "").partition(";")[0].strip().lower()
    if kind == "application/json" or kind.endswith("+json") or (not kind and _is_json(body)):
        return _filled(body, told, lambda text: json.dumps(text)[1:-1])
    return _filled(body, told, quote_plus if kind == "application/x-www-form-urlencoded" else str)


def asked_for(*parts: str | bytes) -> bool:
    """Is there a placeholder in any of these?"""
    return any(_PLACEHOLDER.search(part.encode() if isinstance(part, str) else part) for part in parts)


def _is_json(body: bytes) -> bool:
    try:
        json.loads(body)
    except (ValueError, RecursionError):
        return False
    return True


def _filled(data: bytes, told: Mapping[str, str], escape: Callable[[str], str]) -> bytes:
    """In one pass: what is filled in is not read again."""
    return _PLACEHOLDER.sub(lambda found: escape(told[found[1].decode()]).encode(), data)


__all__ = ["NAMES", "as_json", "asked_for", "cause_of", "environment", "in_body", "in_header", "in_url", "texts"]

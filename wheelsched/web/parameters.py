"""What comes in a URL or a form, clamped: text of a known length, one of a few words, an opaque position. Pure."""

from __future__ import annotations

import binascii
import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from ..model.errors import InvalidArgumentError
from ..model.nouns import GLOB_MAX

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["NAME_MAX", "choice", "cursor", "glob", "position", "text"]

NAME_MAX: Final = 200
_CURSOR_MAX: Final = 400
_LISTED: Final = (2, 3)  # of runs: a block and a row, or -1 and a place in the table
_STARS_MAX: Final = 8


def text(given: Mapping[str, str], name: str, most: int = NAME_MAX) -> str | None:
    """A text of at most so many characters; None when it is missing or empty. InvalidArgumentError."""
    value = given.get(name, "").strip()
    if len(value) > most:
        raise InvalidArgumentError(f"{name}: at most {most} characters are allowed, not {len(value)}")
    if not value.isprintable():
        raise InvalidArgumentError(f"{name}: there are characters in it that can't be shown")
    return value or None


def glob(given: Mapping[str, str], name: str) -> str | None:
    """A pattern over names. A word without a star is looked for anywhere in the name. InvalidArgumentError."""
    value = text(given, name, GLOB_MAX - 2)
    if value is None or set(value) & set("*?["):
        if value is not None and value.count("*") > _STARS_MAX:
            raise InvalidArgumentError(f"{name}: at most {_STARS_MAX} stars are allowed")
        return value
    return f"*{value}*"


def choice(given: Mapping[str, str], name: str, allowed: tuple[str, ...]) -> str | None:
    """One of the words; None when it is missing or empty. InvalidArgumentError names them."""
    value = given.get(name, "")
    if value and value not in allowed:
        raise InvalidArgumentError(f"{name}: one of {', '.join(allowed)} is wanted")
    return value or None


def cursor(place: Any) -> str | None:
    """The server's position of the next page, for a URL."""
    return None if place is None else urlsafe_b64encode(json.dumps(place, separators=(",", ":")).encode()).decode().rstrip("=")


def position(given: Mapping[str, str], *, listed: bool = False, name: str = "after") -> Any:
    """The server's position, from a URL: a number, or `listed` numbers; None for the first page. InvalidArgumentError."""
    value = given.get(name, "")
    if not value:
        return None
    place: Any = None
    if len(value) <= _CURSOR_MAX:
        with suppress(ValueError, binascii.Error, RecursionError):  # what is no position is told below
            place = json.loads(urlsafe_b64decode(value + "=" * (-len(value) % 4)))
    parts: Any = place if listed else [place]
    if not isinstance(parts, list) or any(type(p) is not int or not -1 <= p < 2**62 for p in parts):
        parts = []
    if len(parts) not in (_LISTED if listed else (1,)) or (parts[0] < 0) != (len(parts) == 3):
        raise InvalidArgumentError(f"{name}: this is no page of a listing; begin again at the first")
    return place

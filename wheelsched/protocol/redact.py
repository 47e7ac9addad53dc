"""Redaction: argument fields whose values the server shows to nobody. Workers get them; listings, histories and diffs do not.

A field is named by a keyword argument, a header of the call or the key of a map at any depth within the arguments, in any case of
letters, or, in a job's own `redact`, by the position of a positional argument ("0" is the first). Users' own
types are looked into as they are on the wire. Pure.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import msgpack

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

MARK: Final = "[redacted]"  # what stands for a value
PACKED_MARK: Final[bytes] = msgpack.packb(MARK)
_UNREADABLE: Final[bytes] = msgpack.packb([[MARK], {}])
_HOUSE: Final = {"http": ("headers",)}  # task -> fields that are redacted whatever a job says
_POSITIONS: Final = {"command": ("argv",), "http": ("method", "url")}  # task -> names of its positional arguments
_NOTHING: Final[tuple[Any, ...]] = (None, "", [], {})  # tells nothing, and is shown


class Redaction:
    """What is shown of payloads, by the operator's names, each job's, and what workers announced of tasks."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        """`names`: fields of every job."""
        self._names = frozenset(name.casefold() for name in names)

    def names(self, announced: Mapping[str, Mapping[str, Any]], *wires: Mapping[str, Any]) -> frozenset[str]:
        """The fields that any of these definitions has redacted, or the decorators of their tasks as they were `announced` last: a
        definition made before that has none of theirs.
        """
        found = set(self._names)
        for wire in wires:
            task = wire["task"]
            found.update(_HOUSE.get(task, ()), wire.get("redact", ()), announced.get(task, {}).get("redact", ()))
        positions = [_POSITIONS.get(wire["task"], ()) for wire in wires] if found else ()
        return frozenset(found).union(str(i) for names in positions for i, name in enumerate(names) if name in found)

    def shown(self, payload: bytes, announced: Mapping[str, Mapping[str, Any]], wire: Mapping[str, Any], *more: Mapping[str, Any]) -> bytes:
        """A stored payload as anybody may see it: see `names`. One that can't be read is hidden as a whole, if anything is."""
        names = self.names(announced, wire, *more)
        if not names:
            return payload
        try:
            args, kwargs, *headers = msgpack.unpackb(payload, raw=False)
            shown = [[MARK if str(i) in names and arg not in _NOTHING else _hidden(arg, names) for i, arg in enumerate(args)],
                     *(_hidden(dict(part), names) for part in (kwargs, *headers))]
            data: bytes = msgpack.packb(shown)
        except (ValueError, TypeError, RecursionError, msgpack.exceptions.UnpackException):
            return _UNREADABLE
        return data

    def scrubbed(self, text: str, payload: bytes, announced: Mapping[str, Mapping[str, Any]], wire: Mapping[str, Any]) -> str:
        """A text that a run told, such as an error's, without the values that are hidden of its payload."""
        names = self.names(announced, wire)
        if not names:
            return text
        try:
            args, kwargs, *headers = msgpack.unpackb(payload, raw=False)
            values = {*_leaves([arg for i, arg in enumerate(args) if str(i) in names]), *_within([args, kwargs, *headers], names)}
        except (ValueError, TypeError, RecursionError, msgpack.exceptions.UnpackException):
            return MARK
        shown = sorted({form for value in values for form in (str(value), repr(value)[1:-1] if isinstance(value, str) else "") if form},
                       key=len, reverse=True)
        return re.sub("|".join(map(re.escape, shown)), MARK, text) if shown else text


def _within(value: Any, names: frozenset[str]) -> Iterator[Any]:
    """Texts and numbers of the fields of these names, at any depth."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _leaves(item) if str.casefold(key) in names else _within(item, names)
    elif isinstance(value, msgpack.ExtType):
        yield from _within(msgpack.unpackb(value.data, raw=False), names)
    elif isinstance(value, list):
        for item in value:
            yield from _within(item, names)


def _leaves(value: Any) -> Iterator[Any]:
    """Texts and numbers in a value."""
    if isinstance(value, msgpack.ExtType):
        value = msgpack.unpackb(value.data, raw=False)
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from _leaves(item)
    elif isinstance(value, bytes):
        yield value.decode("utf-8", "replace")
    elif isinstance(value, str | int | float) and not isinstance(value, bool):
        yield value


def _hidden(value: Any, names: frozenset[str]) -> Any:
    if isinstance(value, dict):
        return {key: MARK if str.casefold(key) in names and item not in _NOTHING else _hidden(item, names) for key, item in value.items()}
    if isinstance(value, msgpack.ExtType):  # a type of the user's: what it holds is a value as well
        return msgpack.ExtType(value.code, msgpack.packb(_hidden(msgpack.unpackb(value.data, raw=False), names)))
    return [_hidden(item, names) for item in value] if isinstance(value, list) else value


def mark_in(payload: bytes) -> bool:
    """Whether a value of the payload is the mark itself: what was shown of a job has come back as if it were the job's."""
    if PACKED_MARK not in payload:
        return False
    try:
        return _has_mark(msgpack.unpackb(payload, raw=False))
    except (ValueError, TypeError, RecursionError, msgpack.exceptions.UnpackException):
        return False  # unreadable: not this check's matter


def _has_mark(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_has_mark, value.values()))
    if isinstance(value, msgpack.ExtType):
        return _has_mark(msgpack.unpackb(value.data, raw=False))
    return any(map(_has_mark, value)) if isinstance(value, list) else bool(value == MARK)

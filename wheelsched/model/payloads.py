"""What payloads may hold: plain values, which come back with the type they had, and users' own types by an `Ext`. Pure.

None, bool, int64, float, str, bytes, list, dict with str keys, and aware datetimes (they come back in UTC). Whatever would come back
as something else is refused where it is given, with the path of the argument.
"""

from __future__ import annotations

import base64
import math
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

import msgpack

from .errors import InvalidArgumentError, PayloadError
from .nouns import PAYLOAD_DEPTH_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["NO_EXTS", "RAW", "Ext", "Exts", "pack", "plain", "rfc3339", "storable", "too_deep", "unpack"]

RAW: Final = msgpack.ExtType  # to decode by, for who only shows or checks: extension types stay what they are on the wire
_PLAIN: Final = (bool, int, float, str, bytes, list, dict, datetime)
_SCALARS: Final = frozenset({type(None), bool, float, bytes})
_CODE_MAX: Final = 127
_BASES: Final[tuple[tuple[type, Callable[[Any], Any]], ...]] = (  # what is left of a value without its own type
    (int, int.__int__), (float, float.__float__), (str, str.__str__), (bytes, bytes.__bytes__), (tuple, list), (list, list), (dict, dict),
)


@dataclass(frozen=True, slots=True)
class Ext:
    """A type that payloads and results may hold beside the plain ones:

        MONEY = Ext(7, Money, lambda m: [m.cents, m.currency], lambda value: Money(*value))

    `code`: 0 to 127, the number of MessagePack's extension type; it is stored, and stays the type's for good. `encode` makes a value
    that payloads can hold of an instance of just this type, `decode` the instance again. Clients are given it (`Client(ext=[MONEY])`);
    workers and simulators find it as a variable of the modules that tasks are in.
    """

    code: int
    type: type
    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]

    def __post_init__(self) -> None:
        """InvalidArgumentError for a code or a type that can't be."""
        if isinstance(self.code, bool) or not isinstance(self.code, int) or not 0 <= self.code <= _CODE_MAX:
            raise InvalidArgumentError(f"Ext: code: a whole number from 0 to {_CODE_MAX} is wanted, not {str(self.code)[:60]}")
        if not isinstance(self.type, type) or self.type in (*_PLAIN, type(None)):
            what = self.type.__name__ if isinstance(self.type, type) else str(self.type)[:60]
            raise InvalidArgumentError(f"Ext: type: a class is wanted that payloads don't hold by themselves, not {what}")
        if not callable(self.encode) or not callable(self.decode):
            raise InvalidArgumentError("Ext: encode and decode: functions of one argument are wanted")


class Exts:
    """The Exts of a client or a worker."""

    def __init__(self, exts: Iterable[Ext] = ()) -> None:
        """InvalidArgumentError for two of one code or one type."""
        self._by_code: dict[int, Ext] = {}
        self._by_type: dict[type, Ext] = {}
        for ext in exts:
            if not isinstance(ext, Ext):
                raise InvalidArgumentError(f"ext: Ext(code, type, encode, decode) is wanted, not {type(ext).__name__}")
            if self._by_code.setdefault(ext.code, ext) != ext or self._by_type.setdefault(ext.type, ext) != ext:
                raise InvalidArgumentError(f"ext: there are two of code {ext.code} or of {ext.type.__name__}")

    def find(self, kind: type) -> Ext | None:
        """That of a type; an Ext of Enum is that of all its kinds."""
        return self._by_type.get(kind) or (self._by_type.get(Enum) if issubclass(kind, Enum) else None)

    def decode(self, code: int, data: bytes) -> Any:
        """The value of an extension type, to decode by. PayloadError for a code that is not known here, and when `decode` fails."""
        ext = self._by_code.get(code)
        if ext is None:
            raise PayloadError(
                f"extension type {code} is not known here: give its Ext to the client (ext=[...]), or to a worker in a module of its tasks"
            )
        value = unpack(data, self.decode)
        try:
            return ext.decode(value)
        except Exception as e:
            raise PayloadError(f"extension type {code}: {ext.type.__name__} can't be made: {type(e).__name__}: {e}") from e


NO_EXTS: Final = Exts()


def storable(value: Any, path: str, exts: Exts = NO_EXTS, *, lenient: bool = False, depth: int = 0) -> Any:
    """The value as it is packed. PayloadError names the path of the first thing that can't be stored.

    `lenient`, for what a task returned, whose work is done: tuples become lists, and subclasses of plain types these types.
    """
    kind = type(value)
    if kind in _SCALARS:
        return value
    if kind is str:
        return _text(value, path)
    if kind is int:
        if not -(2**63) <= value < 2**63:
            raise PayloadError(f"{path}: {_short(value)} does not fit in int64; pass it as text")
        return value
    if depth > PAYLOAD_DEPTH_MAX:
        raise PayloadError(f"{path}: nested deeper than {PAYLOAD_DEPTH_MAX} levels")
    if kind is list:
        return [storable(item, f"{path}[{i}]", exts, lenient=lenient, depth=depth + 1) for i, item in enumerate(value)]
    if kind is dict:
        return {_key(key, path, lenient): storable(item, f"{path}.{key}", exts, lenient=lenient, depth=depth + 1)
                for key, item in value.items()}
    if kind is datetime:
        return _moment(value, path)
    if kind is RAW:  # of a payload that was decoded so, to be stored again
        return value
    ext = exts.find(kind)
    if ext is not None:
        try:
            made = ext.encode(value)
        except Exception as e:
            raise PayloadError(f"{path}: extension type {ext.code}: {kind.__name__} can't be encoded: {type(e).__name__}: {e}") from e
        return msgpack.ExtType(ext.code, pack(storable(made, path, exts, lenient=lenient, depth=depth + 1)))
    base = next(((base, make) for base, make in _BASES if isinstance(value, base)), None)
    if lenient and base is not None:
        return storable(base[1](value), path, exts, lenient=True, depth=depth)
    raise PayloadError(f"{path}: {_refusal(kind, None if base is None else base[0])}")


def pack(value: Any) -> bytes:
    """MessagePack of what `storable` made."""
    data: bytes = msgpack.packb(value, use_bin_type=True, datetime=True)
    return data


def unpack(data: bytes | memoryview, hook: Callable[[int, bytes], Any] = NO_EXTS.decode) -> Any:
    """The value of MessagePack; `hook` makes those of extension types. What msgpack raises for rubbish, and PayloadError."""
    return msgpack.unpackb(data, raw=False, strict_map_key=True, timestamp=3, ext_hook=hook)


def too_deep(value: Any) -> bool:
    """Whether a decoded value is nested deeper than payloads may be. For who can't trust the sender."""
    level = [value]
    for _ in range(PAYLOAD_DEPTH_MAX + 1):
        level = [x for v in level for x in (v.values() if type(v) is dict else v) if type(x) in (list, dict)]
        if not level:
            return False
    return True


def _short(value: int) -> str:
    return str(value) if abs(value) < 10**40 else f"a whole number of {value.bit_length():,} bits"


def _text(value: str, path: str) -> str:
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as e:
            raise PayloadError(f"{path}: text with lone surrogates can't be stored, since UTF-8 has none: {e}") from None
    return value


def _key(key: Any, path: str, lenient: bool) -> str:
    if type(key) is not str and not (lenient and isinstance(key, str)):
        shown = f"{_short(key)} is " if type(key) is int else "is "
        raise PayloadError(f"{path}: key {shown}{type(key).__name__}; keys must be text (str)")
    return _text(str.__str__(key), path)


def _moment(value: datetime, path: str) -> datetime:
    if value.utcoffset() is None:
        raise PayloadError(f"{path}: the datetime {value.isoformat()} has no time zone; add one")
    try:
        return value.astimezone(UTC)
    except OverflowError:
        raise PayloadError(f"{path}: the datetime {value.isoformat()} is outside of the years 1 to 9999 in UTC") from None


def _refusal(kind: type, base: type | None) -> str:
    if base is tuple:
        what = "a tuple" if kind is tuple else f"{kind.__name__}, a tuple,"
        return f"{what} would come back as a list; pass list(...), or give an Ext for the type"
    if base is not None:
        return f"{kind.__name__} would come back as a plain {base.__name__}; pass {base.__name__}(...), or give an Ext for the type"
    return (
        f"{kind.__name__} can't be stored; use None, bool, int, float, str, bytes, list, dict or an aware datetime,"
        " or give an Ext for the type"
    )


def rfc3339(value: datetime | None) -> str | None:
    """RFC 3339 text in UTC with microseconds and Z, such as 2026-11-29T08:30:00.000000Z; None for None."""
    if value is None:
        return None
    return value.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def plain(value: Any) -> Any:
    """A payload value as JSON has it: datetimes as RFC 3339 text, bytes as base64 text, NaN and infinities as text,
    an extension type of the wire as {"ext": its code, "value": what it holds}.
    """
    if isinstance(value, RAW):
        try:
            return {"ext": value.code, "value": plain(unpack(value.data, RAW))}
        except (ValueError, TypeError, OverflowError):  # no client of ours made it
            return {"ext": value.code, "value": plain(value.data)}
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, datetime):
        return rfc3339(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value

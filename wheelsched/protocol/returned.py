"""Results of workers, as they are kept: cut to what there is room for.

A value that can't be kept (no payload, or too long) leaves a mark in its place: `left_out` in the result map, with the value's type, its
size in bytes when that is known, and why.
"""

from __future__ import annotations

from typing import Any, Final

import msgpack

from ..model.errors import InvalidArgumentError
from ..model.nouns import ERROR_NAME_MAX, ERROR_TEXT_MAX, OUTPUT_MAX, REASON_MAX
from ..model.payloads import RAW
from ..model.tape import STREAMS, Tape
from . import frames

__all__ = ["fitted", "mark", "too_long"]

_BYTES_MAX: Final = 2**62
_BIN_HEAD: Final = 4  # bytes by which the head of a long bin is longer than that of an empty one


def fitted(result: dict[str, Any], most: int) -> dict[str, Any]:
    """A result map of a worker in another language, cut to what is kept, which is at most so many bytes. A value gets the room that the
    rest leaves, which is 64 KiB and often more. InvalidArgumentError for bytes that are no MessagePack.
    """
    result = dict(result)
    data = result.pop("value", None)
    for name in STREAMS:
        if len(result.get(name) or b"") > OUTPUT_MAX:
            tape = Tape(OUTPUT_MAX)
            tape.add(result[name])
            result[name], cut = tape.text()
            result[f"{name}_cut"] = cut + result.get(f"{name}_cut", 0)
    for name, kept in (("type", slice(ERROR_NAME_MAX)), ("message", slice(ERROR_TEXT_MAX)), ("traceback", slice(-ERROR_TEXT_MAX, None))):
        if name in result:
            result[name] = result[name][kept]
    if result.get("left_out") is not None:
        result |= _checked_mark(result["left_out"])
    if data is None:
        return result
    kind, why = _read(data)
    room = most - len(msgpack.packb({**result, "value": b""}, use_bin_type=True)) - _BIN_HEAD
    why = why or (too_long(len(data), room) if len(data) > room else "")
    return result | (mark(kind, len(data), why) if why else {"value": data})


def mark(kind: str, size: int | None, why: str) -> dict[str, Any]:
    """What stands in a result map in place of a value."""
    return {"left_out": {"type": kind, "bytes": size, "why": why[:REASON_MAX]}}


def too_long(size: int, most: int) -> str:
    """Why a value of so many bytes is not kept."""
    return f"{size:,} bytes: at most {most:,} are kept; store it elsewhere and return its key"


def _read(data: bytes) -> tuple[str, str]:
    """(the type of an encoded value, why no payload can hold it; empty when one can). InvalidArgumentError for what is no MessagePack."""
    try:
        return type(frames.decode_value(data, RAW)).__name__, ""
    except (ValueError, TypeError, OverflowError, RecursionError, msgpack.exceptions.UnpackException) as e:
        fault = f"{type(e).__name__}: {e}"
    try:
        value = msgpack.unpackb(data, raw=True, strict_map_key=False, timestamp=0, ext_hook=RAW)
    except (ValueError, TypeError, RecursionError, msgpack.exceptions.UnpackException) as e:
        raise InvalidArgumentError(f"finish: the value of a result is no MessagePack value: {fault}") from e
    return {"bytes": "str"}.get(type(value).__name__, type(value).__name__), f"no payload can hold it: {fault}"


def _checked_mark(given: Any) -> dict[str, Any]:
    size = given.get("bytes") if isinstance(given, dict) else -1
    texts = [given.get(name, "") for name in ("type", "why")] if isinstance(given, dict) else []
    counted = size is None or (type(size) is int and 0 <= size < _BYTES_MAX)
    if not counted or not all(isinstance(text, str) for text in texts):
        raise InvalidArgumentError("finish: left_out of a result is a map of type (a text), bytes (a number or nil) and why (a text)")
    return mark(texts[0][:ERROR_NAME_MAX], size, texts[1])

"""Arguments and columns of requests, checked; and the memory that makes a repeated request harmless."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgpack
import numpy as np

from ..model.errors import InvalidArgumentError, PayloadError
from ..model.nouns import INSTANT_MAX_US, MS, NEVER, PAYLOAD_DEPTH_MAX, PAYLOAD_MAX
from ..model.payloads import RAW, too_deep
from ..protocol import frames
from ..protocol.limits import check
from ..protocol.redact import MARK, PACKED_MARK, mark_in
from .roles import shown

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .core import Core
    from .turn import Incoming

_ARRAY_OF_TWO: Final = 0x92  # first byte of a payload without headers


def remembered(core: Core, cmd: Incoming) -> bytes | None:
    """The answer to a request id that was seen before; None for a new one. InvalidArgumentError when there is none."""
    rid = cmd.request.args.get("rid")
    if not isinstance(rid, bytes) or len(rid) != 16:
        raise InvalidArgumentError(f"{cmd.request.verb}: rid, a bin of 16 bytes, is wanted: it makes a repeat harmless")
    seen = core.state.replies.get(rid)
    return None if seen is None else frames.encode_ok(cmd.request.id, msgpack.unpackb(seen[1], raw=False))


def check_room(core: Core, cmd: Incoming) -> None:
    """ResourceExhaustedError when there is no room to remember the answer, or the keys, of a new request."""
    core.answers.check(cmd.uid, core.now.mono_us)
    key = cmd.request.args.get("key")
    if key:
        check("idempotency_keys", server=len(core.state.keys) + (len(key) if isinstance(key, list) else 1))


def done(core: Core, cmd: Incoming, result: Any) -> bytes:
    """Remember the answer of a mutating verb, then send it."""
    result = shown(cmd.roles, result)
    reply = msgpack.packb(result, use_bin_type=True)
    core.record("REPLY", {"at": core.now.wall_us, "rid": cmd.request.args["rid"], "reply": reply})
    core.answers.add(cmd.uid, reply, core.now.mono_us)
    return frames.encode_ok(cmd.request.id, result)


def text(args: dict[str, Any], name: str, limit: int, default: str = "") -> str:
    """A text argument of at most `limit` characters."""
    value = args.get(name, default)
    if value is None:
        return default
    if not isinstance(value, str) or len(value) > limit:
        raise InvalidArgumentError(f"{name}: a text of at most {limit} characters is wanted")
    return value


def whole(args: dict[str, Any], name: str, low: int, high: int, default: int | None = None) -> int | None:
    """A whole number between two limits; None for nil, the default when it is left out."""
    value = args.get(name, default)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise InvalidArgumentError(f"{name}: a whole number from {low} to {high} is wanted, not {value!r}")
    return value


def payload_of(value: Any) -> bytes:
    """A checked payload."""
    fault = payload_fault(value)
    if fault is not None:
        raise InvalidArgumentError(fault)
    if any(map(too_deep, frames.decode_payload(value, RAW))):
        raise InvalidArgumentError(f"payload: nested deeper than {PAYLOAD_DEPTH_MAX} levels")
    return bytes(value)


def payload_fault(value: Any) -> str | None:
    """What is wrong with a payload, from the outside: it is decoded only when it seems to have headers. None: nothing."""
    if type(value) is bytes and 0 < len(value) <= PAYLOAD_MAX and value[0] == _ARRAY_OF_TWO and PACKED_MARK not in value:
        return None  # as nearly all are: many a million times
    if not isinstance(value, bytes) or not value:
        return "payload: a bin with the encoded [args, kwargs] is wanted"
    if len(value) > PAYLOAD_MAX:
        return f"payload of {len(value)} bytes: at most {PAYLOAD_MAX} are allowed"
    if mark_in(value):
        return f"payload: an argument is {MARK!r}, which is only what is shown instead of a redacted value; give the value itself"
    if value[0] != _ARRAY_OF_TWO:
        try:
            frames.check_headers(frames.decode_headers(value))
        except PayloadError as e:
            return e.message
    return None


def param_of(value: Any) -> int:
    """A checked param_us, in whole milliseconds."""
    if isinstance(value, bool) or not isinstance(value, int) or not (value == NEVER or 0 <= value <= INSTANT_MAX_US):
        raise InvalidArgumentError("param_us: microseconds since 1970, up to the year 9999, are wanted")
    return value if value == NEVER else -(-value // MS) * MS


def column(args: dict[str, Any], name: str, dtype: str, n: int | None = None) -> NDArray[Any]:
    """A column of a request as an array. InvalidArgumentError when its size is off."""
    data = args.get(name)
    size = np.dtype(dtype).itemsize
    if not isinstance(data, bytes) or len(data) % size or (n is not None and len(data) != n * size):
        raise InvalidArgumentError(f"{name}: a bin of {size} bytes a row is wanted")
    return np.frombuffer(data, dtype).copy()


def check_value(data: bytes, what: str) -> None:
    """InvalidArgumentError for bytes that are no MessagePack value: who gets them could not read them."""
    try:
        frames.decode_value(data, RAW)
    except (ValueError, TypeError, OverflowError, RecursionError, msgpack.exceptions.UnpackException) as e:
        raise InvalidArgumentError(f"{what} is no MessagePack value: {type(e).__name__}: {e}") from e

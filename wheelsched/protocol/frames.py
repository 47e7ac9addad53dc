"""The wire, sans-IO: frames, requests, replies, payloads, columns. Its specification is the page `protocol` of the manual."""

from __future__ import annotations

import struct
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgpack

from ..model.errors import InvalidArgumentError, PayloadError, WheelschedError, error_from_wire
from ..model.nouns import PAYLOAD_MAX, to_datetime
from ..model.payloads import NO_EXTS, RAW, pack, storable, unpack
from .verbs import WORKERS

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..model.payloads import Exts

VERSION: Final = 1
FRAME_MAX: Final = 1024 * 1024
REPLY_MAX: Final = 64 * 1024 * 1024
HEADERS_MAX: Final = 32
HEADERS_CHARS_MAX: Final = 8 * 1024  # names and values of a call's headers together
ITEMS_MAX: Final = 100_000
_LENGTH: Final = struct.Struct(">I")


@dataclass(frozen=True, slots=True)
class Request:
    """One request as it came in."""

    id: int
    verb: str
    args: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Reply:
    """One reply as it came in; `error` is None for "ok"."""

    id: int
    result: Any
    error: WheelschedError | None


class FrameReader:
    """Bytes in, bodies out. Holds at most one incomplete frame of `limit` bytes."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._buffer = bytearray()

    @property
    def pending(self) -> int:
        """Bytes that no body was made of yet."""
        return len(self._buffer)

    def feed(self, data: bytes | bytearray | memoryview, most: int = sys.maxsize) -> list[bytes]:
        """The bodies completed by `data`, in order, `most` of them; others stay. InvalidArgumentError for a frame over the limit."""
        buffer = self._buffer
        buffer += data
        bodies: list[bytes] = []
        at = 0
        while len(buffer) - at >= 4 and len(bodies) < most:
            (size,) = _LENGTH.unpack_from(buffer, at)
            if size > self._limit:
                raise InvalidArgumentError(f"frame of {size} bytes: at most {self._limit} are allowed; send fewer items a frame")
            if len(buffer) - at - 4 < size:
                break
            bodies.append(bytes(memoryview(buffer)[at + 4 : at + 4 + size]))
            at += 4 + size
        if at:
            del buffer[:at]
        return bodies


def encode_frame(body: Any, limit: int = REPLY_MAX) -> bytes:
    """A frame of one MessagePack value. InvalidArgumentError over the limit or for what MessagePack can't hold."""
    try:
        data: bytes = msgpack.packb(body, use_bin_type=True)
    except (TypeError, ValueError, OverflowError, RecursionError) as e:
        raise InvalidArgumentError(f"this can't be sent: {e}") from e
    if len(data) > limit:
        raise InvalidArgumentError(f"frame of {len(data)} bytes: at most {limit} are allowed; send fewer items a frame")
    return _LENGTH.pack(len(data)) + data


def decode_body(body: bytes) -> Any:
    """The MessagePack value of one body. InvalidArgumentError for anything malformed."""
    try:
        return msgpack.unpackb(
            body, raw=False, strict_map_key=True, max_array_len=ITEMS_MAX, max_map_len=ITEMS_MAX, max_ext_len=0
        )
    except (ValueError, TypeError, RecursionError, UnicodeDecodeError, msgpack.exceptions.UnpackException) as e:
        raise InvalidArgumentError(f"malformed frame: {type(e).__name__}: {str(e)[:200]}") from e


def encode_request(request_id: int, verb: str, args: Mapping[str, Any]) -> bytes:
    """A request's frame."""
    return encode_frame([request_id, verb, args], FRAME_MAX)


def encode_ok(request_id: int, result: Any) -> bytes:
    """The frame of a reply that all went well."""
    return encode_frame([request_id, "ok", result])


def encode_error(request_id: int, error: WheelschedError) -> bytes:
    """The frame of a refusal."""
    return encode_frame([request_id, "error", {"code": error.code, "message": str(error)[:4_000], "detail": error.detail}])


def parse_request(body: bytes) -> Request:
    """A checked Request. InvalidArgumentError for any other shape."""
    value = decode_body(body)
    if not isinstance(value, list) or len(value) != 3:
        raise InvalidArgumentError("a request is an array [id, verb, args]")
    request_id, verb, args = value
    if isinstance(request_id, bool) or not isinstance(request_id, int) or not 0 < request_id < 2**63:
        raise InvalidArgumentError("a request's id is a positive int64")
    if not isinstance(verb, str) or not isinstance(args, dict):
        raise InvalidArgumentError("a request is an array [id, verb, args] with a text and a map")
    return Request(request_id, verb, args)


def parse_reply(body: bytes) -> Reply:
    """A checked Reply. InvalidArgumentError when the peer doesn't speak this protocol."""
    try:
        value = msgpack.unpackb(body, raw=False, strict_map_key=True)
        request_id, kind, result = value
        if kind == "ok":
            return Reply(request_id, result, None)
        if kind == "error":
            return Reply(request_id, None, error_from_wire(result["code"], result["message"], result.get("detail")))
    except (ValueError, TypeError, KeyError, RecursionError, msgpack.exceptions.UnpackException) as e:
        raise InvalidArgumentError(f"the server's answer is malformed: {type(e).__name__}: {str(e)[:200]}") from e
    raise InvalidArgumentError(f"the server's answer has the unknown kind {str(kind)[:40]!r}")


def encode_value(value: Any, what: str = "value", exts: Exts = NO_EXTS, *, lenient: bool = False) -> bytes:
    """MessagePack of one payload value. PayloadError names the path of what can't be stored; `lenient`: see `payloads.storable`."""
    return pack(storable(value, what, exts, lenient=lenient))


def check_headers(headers: Any) -> dict[str, str]:
    """A copy of a call's headers. PayloadError for what can't be."""
    if not isinstance(headers, Mapping) or not all(isinstance(k, str) and k and isinstance(v, str) for k, v in headers.items()):
        raise PayloadError("headers: a map of names to texts is wanted")
    if "cause" in headers:
        raise PayloadError("headers: the name 'cause' is taken: it tells why a hook has made a run")
    size = sum(len(k) + len(v) for k, v in headers.items())
    if len(headers) > HEADERS_MAX or size > HEADERS_CHARS_MAX:
        raise PayloadError(f"headers: {len(headers)} of {size} characters; at most {HEADERS_MAX} of {HEADERS_CHARS_MAX} are allowed")
    return dict(headers)


def encode_payload(
    args: tuple[Any, ...] | list[Any], kwargs: Mapping[str, Any], headers: Mapping[str, str] | None = None, *, exts: Exts = NO_EXTS
) -> bytes:
    """The payload of a call. PayloadError names the path of what can't be stored, or says by how much it is too large."""
    parts = [storable(list(args), "args", exts), storable(dict(kwargs), "kwargs", exts)]
    if headers:
        parts.append(storable(check_headers(headers), "headers", lenient=True))
    data = pack(parts)
    if len(data) > PAYLOAD_MAX:
        raise PayloadError(f"payload of {len(data)} bytes: at most {PAYLOAD_MAX} are allowed; store large data elsewhere and pass its key")
    return data


def decode_value(data: bytes | memoryview, hook: Callable[[int, bytes], Any] = NO_EXTS.decode) -> Any:
    """The value that `encode_value` stored; `hook` makes those of extension types."""
    return unpack(data, hook)


def decode_payload(
    data: bytes | memoryview, hook: Callable[[int, bytes], Any] = NO_EXTS.decode
) -> tuple[list[Any], dict[str, Any]]:
    """(args, kwargs) of a stored payload. PayloadError when it isn't one."""
    args, kwargs, _ = _decoded(data, hook)
    return args, kwargs


def decode_headers(data: bytes | memoryview) -> dict[str, Any]:
    """The headers of a stored payload; empty when it has none. PayloadError when it isn't one."""
    return _decoded(data, RAW)[2]


def decode_cause(data: bytes | memoryview, hook: Callable[[int, bytes], Any] = NO_EXTS.decode) -> dict[str, Any] | None:
    """Why a hook has made the run of a stored payload, as `current_run().cause`; None when none has. PayloadError when it isn't one."""
    return read_cause(decode_headers(data).get("cause"), hook)


def read_cause(cause: Any, hook: Callable[[int, bytes], Any]) -> dict[str, Any] | None:
    """A cause as it is for people, from what it is among the headers."""
    if not isinstance(cause, dict):
        return None
    if "value" in cause:
        named = {key.replace("value", "output"): known for key, known in cause.items() if key != "value"}
        return {**named, "output": None if cause["value"] is None else decode_value(cause["value"], hook)}
    return {key.removesuffix("_us"): to_datetime(value) if key.endswith("_us") else value for key, value in cause.items()}


def _decoded(data: bytes | memoryview, hook: Callable[[int, bytes], Any]) -> tuple[list[Any], dict[str, Any], dict[str, Any]]:
    try:
        args, kwargs, *rest = unpack(data, hook)
    except PayloadError:
        raise
    except (ValueError, TypeError, OverflowError, RecursionError, msgpack.exceptions.UnpackException) as e:
        raise PayloadError(f"stored payload can't be read: {type(e).__name__}: {e}") from e
    headers = rest[0] if rest else {}
    if not isinstance(args, list) or not isinstance(kwargs, dict) or not isinstance(headers, dict) or len(rest) > 1:
        raise PayloadError("stored payload is not [args, kwargs] or [args, kwargs, headers]")
    return args, kwargs, headers


def check_executor(verb: str, *, greeted: bool) -> bool:
    """Has this executor said hello, with this request or before? InvalidArgumentError for a request that ours never make."""
    if verb not in WORKERS:
        raise InvalidArgumentError(f"it asked for {verb[:60]!r}, as no executor does" if verb else "what it sent is no request")
    if verb == "hello" and greeted:
        raise InvalidArgumentError("it said hello a second time")
    return greeted or verb == "hello"

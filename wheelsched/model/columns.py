"""Columns: arrays of numbers, and byte strings, in the shortest of a few codings. In records of the journal, in history, and in pages of
listings that clients take in columns.

A column of numbers is told by its first byte:

    0  constant    dtype u8 · count u32 · one value
    1  offsets     dtype u8 · count u32 · smallest value · width u8 · (value - smallest) in `width` bytes each
    2  steps       dtype u8 · count u32 · first value · step i64        an arithmetic progression

The dtype is 0 u8, 1 u32, 2 i64, 3 u64, 4 u16; all is little-endian. A column of byte strings: size u32 of the lengths · the lengths as a
column of numbers · the bytes joined.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from .errors import CorruptJournalError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

_DTYPES: Final = (np.dtype("u1"), np.dtype("<u4"), np.dtype("<i8"), np.dtype("<u8"), np.dtype("<u2"))
_CODE: Final = {d: i for i, d in enumerate(_DTYPES)}
_WIDTHS: Final[tuple[tuple[int, np.dtype[Any]], ...]] = (
    (1, np.dtype("u1")), (2, np.dtype("<u2")), (4, np.dtype("<u4")), (8, np.dtype("<u8")),
)
_COLUMN: Final = struct.Struct("<BBI")
_COUNT: Final = struct.Struct("<I")


def encode_column(values: NDArray[Any]) -> bytes:
    """One column in the shortest coding."""
    dtype = values.dtype
    code = _CODE[dtype]
    n = len(values)
    if n == 0:
        return _COLUMN.pack(0, code, 0) + b"\0" * dtype.itemsize
    if n == 1:  # the small record of a quiet server: no passes over the array
        return _COLUMN.pack(0, code, 1) + values.tobytes()
    low, high = values.min(), values.max()
    if low == high:
        return _COLUMN.pack(0, code, n) + bytes(low.tobytes())
    wide = values.view("<u8") if dtype.itemsize == 8 else values.astype("<u8")
    base = wide.dtype.type(int(low) & 0xFFFFFFFFFFFFFFFF)
    offsets = wide - base
    step = (int(wide[1]) - int(wide[0])) & 0xFFFFFFFFFFFFFFFF if n > 2 else 0
    if n > 2 and bool((np.diff(wide) == np.uint64(step)).all()):
        return _COLUMN.pack(2, code, n) + values[:1].tobytes() + struct.pack("<Q", step)
    span = int(high) - int(low)
    for width, narrow in _WIDTHS:
        if span < 1 << (8 * width):
            return b"".join((_COLUMN.pack(1, code, n), low.tobytes(), bytes([width]), offsets.astype(narrow).tobytes()))
    raise AssertionError("a span of 64 bits always fits")


def decode_column(data: bytes | memoryview) -> NDArray[Any]:
    """The array of one column. CorruptJournalError when it is malformed."""
    try:
        coding, code, n = _COLUMN.unpack_from(data)
        dtype: np.dtype[Any] = _DTYPES[code]
        at = _COLUMN.size
        first = np.frombuffer(data, dtype, 1, at)
        at += dtype.itemsize
        if coding == 0:
            return np.full(n, first[0], dtype)
        start = np.uint64(int(first[0]) & 0xFFFFFFFFFFFFFFFF)
        if coding == 2:
            (step,) = struct.unpack_from("<Q", data, at)
            wide = start + np.arange(n, dtype="<u8") * np.uint64(step)
        elif coding == 1:
            width = data[at]
            wide = np.frombuffer(data, dict(_WIDTHS)[width], n, at + 1).astype("<u8") + start
        else:
            raise CorruptJournalError(f"column of the unknown coding {coding}")
        return wide.view(dtype) if dtype.itemsize == 8 else wide.astype(dtype)
    except (struct.error, ValueError, IndexError, KeyError) as e:
        raise CorruptJournalError(f"malformed column: {e}") from e


def encode_blobs(values: Sequence[bytes]) -> bytes:
    """A column of byte strings."""
    lengths = encode_column(np.fromiter((len(v) for v in values), "<u4", len(values)))
    return _COUNT.pack(len(lengths)) + lengths + b"".join(values)


def decode_blobs(data: bytes | memoryview) -> list[bytes]:
    """The byte strings of one column. CorruptJournalError when lengths and bytes disagree."""
    data = bytes(data)
    if len(data) < _COUNT.size:
        raise CorruptJournalError("column of byte strings: too short")
    (size,) = _COUNT.unpack_from(data)
    ends = decode_column(data[4 : 4 + size]).astype(np.int64).cumsum().tolist()
    at = 4 + size
    if at + (ends[-1] if ends else 0) != len(data):
        raise CorruptJournalError("column of byte strings: lengths and bytes disagree")
    out = []
    start = at
    for end in ends:
        out.append(data[start : at + end])
        start = at + end
    return out


__all__ = ["decode_blobs", "decode_column", "encode_blobs", "encode_column"]

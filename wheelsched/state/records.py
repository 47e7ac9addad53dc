"""Format of journal records: frame, columns, and the list of kinds.

Frame (little-endian, HEADER_SIZE bytes): length of the body u32 · CRC-32 of all that follows u32 · VERSION u16 · 0 u16 ·
sequence number u64 · CRC of the record before u32. The chain of CRCs makes a missing, swapped or stale record visible, which
LMDB alone does not.

Body: MessagePack [kind, {field: value}]. A field is plain data, or a *column*: an extension (type 1) that holds an array of
numbers, one for each run or job of the batch, or of byte strings (type 2): see `model.columns`.

`VERSION` is raised by any change; readers of older versions stay.
"""

from __future__ import annotations

import struct
import zlib
from typing import Any, Final

import msgpack
import numpy as np

from ..model.columns import decode_blobs, decode_column, encode_blobs, encode_column
from ..model.errors import CorruptJournalError

VERSION: Final = 4
READABLE: Final = frozenset({1, 2, 3, 4})  # 2 added kinds from RETIME on, 3 from CHECKPOINT on, 4 from DELETED on
_HEADER: Final = struct.Struct("<IIHHQI")
HEADER_SIZE: Final = _HEADER.size
_AFTER_CRC: Final = struct.Struct("<HHQI")


def frame(seq: int, prev_crc: int, body: bytes) -> tuple[bytes, int]:
    """The framed record and its CRC, which the next record's frame carries."""
    tail = _AFTER_CRC.pack(VERSION, 0, seq, prev_crc)
    crc = zlib.crc32(body, zlib.crc32(tail))
    return _HEADER.pack(len(body), crc, VERSION, 0, seq, prev_crc) + body, crc


def unframe(data: bytes | memoryview, seq: int, prev_crc: int | None) -> tuple[bytes, int]:
    """(body, CRC) of the record `seq`. CorruptJournalError when anything differs; `prev_crc` None is not compared."""
    if len(data) < HEADER_SIZE:
        raise CorruptJournalError(f"record {seq}: {len(data)} bytes are too few for a header", seq=seq)
    length, crc, version, spare, found, prev = _HEADER.unpack_from(data)
    body = bytes(data[HEADER_SIZE:])
    if version not in READABLE:
        raise CorruptJournalError(f"record {seq}: format version {version}, this program reads up to {VERSION}", seq=seq)
    if length != len(body):
        raise CorruptJournalError(f"record {seq}: {len(body)} bytes where its header says {length}", seq=seq)
    if zlib.crc32(body, zlib.crc32(_AFTER_CRC.pack(version, spare, found, prev))) != crc:
        raise CorruptJournalError(f"record {seq}: the checksum differs", seq=seq)
    if found != seq:
        raise CorruptJournalError(f"record {seq}: its header says {found}", seq=seq)
    if prev_crc is not None and prev != prev_crc:
        raise CorruptJournalError(f"record {seq}: it does not follow the record before it", seq=seq)
    return body, crc


class Blobs(list[bytes]):
    """Marks a list of byte strings as a column when a record is encoded."""


def _pack_default(value: Any) -> msgpack.ExtType:
    if isinstance(value, np.ndarray):
        return msgpack.ExtType(1, encode_column(value))
    if isinstance(value, Blobs):
        return msgpack.ExtType(2, encode_blobs(value))
    raise TypeError(f"a record can't hold {type(value).__name__}")


def _unpack_ext(code: int, data: bytes) -> Any:
    if code == 1:
        return decode_column(data)
    if code == 2:
        return Blobs(decode_blobs(data))
    raise CorruptJournalError(f"extension of the unknown type {code}")


# kind -> (number, fields); * marks a column of numbers, + a column of byte strings. The numbers are on disk and never change.
# `at` is the wall clock of the decision. Instants in a record are absolute; what a schedule says next is carried, never evaluated again.
_SCHEMA: Final = {
    "START": (1, "generation boot_id wall mono zone_version server"),
    "SPEC": (2, "id wire"),
    "PUT": (3, "at uid name+ key payload+ spec* param* next* cursor* state* note"),
    "DUE": (4, "at job* nominal* next* cursor* job_state* state* disposition* reason* until* count* missed*"),
    "ENQUEUE": (5, "at uid job* id spec* trigger* nominal* due* state* payload+ key"),
    "WAKE": (6, "at run*"),
    "GRANT": (7, "at worker token run*"),
    "FINISH": (8, "at run* event* outcome* started* ended* due* result"),
    "GIVE_BACK": (9, "at run*"),
    "JOBS": (10, "at uid job* state* next* cursor* note"),
    "RUNS": (11, "at event run*"),
    "WORKER": (12, "at id name kind gone"),
    "FOLD": (13, "count"),
    "REPLY": (14, "at rid reply"),
    "FORGET": (15, "rid+ key+ job*"),
    "CLOCK": (16, "at job* cursor* next* state* blocked_job* blocked_at*"),
    "ASK_CANCEL": (17, "at run*"),
    "ANNOUNCE": (18, "at tasks"),
    "RETIME": (19, "at job* state* next* cursor* param*"),  # what a schedule says changed, not what was asked for
    "ZONES": (20, "at version name+ data+"),  # the zone data that schedules are evaluated with, as TZif
    "TZDIFF": (21, "at old new total name+ before* after*"),  # what other zone data moved
    "SUPERSEDE": (22, "at run* disposition* reason*"),
    "EXCEPT": (23, "at uid job* nominal* to*"),  # one occurrence: skipped (to SKIP), moved to an instant, or as ever (to AS_EVER)
    "CALENDAR": (24, "at uid name wire"),  # wire nil: removed
    "HOLD": (25, "at uid on note"),
    "LATE": (26, "at run*"),
    "WITHDRAW": (27, "at run* until* count*"),
    "TOLD": (28, "count"),  # so many entries of changes went to history
    "REARM": (29, "at run* due*"),  # moved occurrences that are moved again
    "EXPIRE": (30, "at run*"),
    "QUEUE": (31, "at uid name settings"),  # all settings that differ from the house's; an empty map: none
    "CHECKPOINT": (32, "at run* checkpoint+"),  # MessagePack values: what the next attempt goes on from
    "STALE": (33, "at run* token* outcome* worker"),  # completions that were refused
    "REDRIVE": (34, "at run* due*"),  # dead letters that are queued again: now, or at an instant that is later than `at`
    "CHAINED": (36, "at run*"),  # dead letters whose hooks were called
    "GROUP": (37, "at number run members succeeded"),  # the members are in the ENQUEUE before; `run` waits for them
    "GROUP_END": (38, "at number run* payload"),  # it is queued; without a payload it is cancelled
    "KEYED": (39, "at key+ id"),  # idempotency keys for runs that are there
    "DELETED": (40, "at run* held*"),  # their job was deleted: `run` are cancelled, `held` go on with the attempt that a worker has
    "ELAPSED": (41, "at boot_us"),  # a look at the clocks: the wall clock, and how long the machine has been up, asleep or not
    "RENEW": (42, "at job*"),  # finished jobs that were put again as they are: their names are remembered anew
    # dead letters that wait for their turn again: from now on (due < 0) or from an instant on; how, as `count` of a backfill's run
    "SEND_BACK": (43, "at run* due* count*"),
    "WHOSE": (44, "id uid proof"),  # of an external worker: whose it is, and by what it is known again
    "ANNOUNCED": (45, "at by tasks free gone"),  # as ANNOUNCE, which older versions wrote
    # with the CLOCK behind it: what these jobs had decided, up to `until`, counts as decided in the spans that history has dropped
    "DECIDED": (46, "at job* until* first* last*"),
}
KINDS: Final[dict[str, int]] = {name: number for name, (number, _) in _SCHEMA.items()}
NAMES: Final[dict[int, str]] = {number: name for name, number in KINDS.items()}
FIELDS: Final[dict[int, frozenset[str]]] = {
    number: frozenset(f.rstrip("*+") for f in fields.split()) for number, fields in _SCHEMA.values()
}


def encode_fields(fields: Any) -> bytes:
    """Plain data with columns in it, as a record's body has them."""
    data: bytes = msgpack.packb(fields, default=_pack_default, use_bin_type=True)
    return data


def decode_fields(data: bytes) -> Any:
    """What `encode_fields` made. ValueError or CorruptJournalError when it is malformed."""
    return msgpack.unpackb(data, ext_hook=_unpack_ext, raw=False, strict_map_key=True)


def encode(kind: str, fields: dict[str, Any]) -> bytes:
    """The body of one record. Asserts that exactly the fields of its kind are there."""
    number = KINDS[kind]
    assert fields.keys() == FIELDS[number], (kind, sorted(fields.keys() ^ FIELDS[number]))
    return encode_fields([number, fields])


def decode(body: bytes) -> tuple[str, dict[str, Any]]:
    """(kind, fields) of one body. CorruptJournalError when it is malformed or has other fields than its kind."""
    try:
        number, fields = decode_fields(body)
        wanted = FIELDS[number]
    except (ValueError, TypeError, KeyError, struct.error, msgpack.exceptions.UnpackException) as e:
        raise CorruptJournalError(f"malformed record: {type(e).__name__}: {e}") from e
    if not isinstance(fields, dict):
        raise CorruptJournalError(f"record {NAMES[number]}: a map of fields is wanted, not {type(fields).__name__}")
    if fields.keys() != wanted:
        raise CorruptJournalError(f"record {NAMES[number]}: fields {sorted(map(str, fields.keys() ^ wanted))} differ from its format")
    return NAMES[number], fields

"""The record format: round trips, every damage is noticed, and the bytes of a version never change.

`python -m tests.state.test_records` writes the golden file anew, after VERSION was raised.
"""

from __future__ import annotations

import struct
import sys
import zlib

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.rigs.places import TESTS
from wheelsched.model import columns
from wheelsched.model.errors import CorruptJournalError
from wheelsched.model.nouns import TRANSITIONS, Event, RunState
from wheelsched.reads import event_kinds
from wheelsched.state import records
from wheelsched.state.reused_rows import Trail

GOLDEN = TESTS / "golden" / "records_v4.bin"
OLDER = {"records_v1.bin": 18, "records_v2.bin": 31, "records_v3.bin": 38}  # how many kinds the versions before had


@given(st.integers(1, 2**64 - 1), st.integers(0, 2**32 - 1), st.binary(max_size=300))
def test_frames_round_trip(seq, prev, body):
    data, crc = records.frame(seq, prev, body)
    assert len(data) == records.HEADER_SIZE + len(body)
    assert records.unframe(data, seq, prev) == (body, crc)
    assert records.unframe(memoryview(data), seq, None) == (body, crc)


@given(st.binary(min_size=1, max_size=60), st.data())
def test_every_flipped_bit_is_noticed(body, data):
    framed, _ = records.frame(5, 77, body)
    bit = data.draw(st.integers(0, 8 * len(framed) - 1))
    broken = bytearray(framed)
    broken[bit // 8] ^= 1 << bit % 8
    with pytest.raises(CorruptJournalError) as e:
        records.unframe(bytes(broken), 5, 77)
    assert e.value.detail["seq"] == 5


@given(st.binary(max_size=60), st.data())
def test_every_cut_is_noticed(body, data):
    framed, _ = records.frame(5, 77, body)
    with pytest.raises(CorruptJournalError):
        records.unframe(framed[: data.draw(st.integers(0, len(framed) - 1))], 5, 77)
    with pytest.raises(CorruptJournalError):
        records.unframe(framed + b"\0", 5, 77)


def test_order_and_chain_are_noticed():
    data, _ = records.frame(5, 77, b"body")
    for seq, prev in ((4, 77), (6, 77), (5, 78)):
        with pytest.raises(CorruptJournalError):
            records.unframe(data, seq, prev)


def test_another_version_is_refused():
    body = b"body"
    tail = struct.pack("<HHQI", records.VERSION + 1, 0, 5, 77)
    data = struct.pack("<II", len(body), zlib.crc32(body, zlib.crc32(tail))) + tail + body
    with pytest.raises(CorruptJournalError, match="version"):
        records.unframe(data, 5, 77)


def bounded(data):
    """Reads a column of up to a million rows: a wild count would only show how much memory there is."""
    if len(data) >= 6 and int.from_bytes(bytes(data[2:6]), "little") > 1_000_000:
        raise CorruptJournalError("too long for a test")
    return read_column(data)


read_column = columns.decode_column


@given(st.binary(max_size=80))
def test_rubbish_is_no_column_and_no_record(data):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(records, "decode_column", bounded)
        patch.setattr(columns, "decode_column", bounded)
        for read in (bounded, columns.decode_blobs, records.decode):
            try:
                read(data)
            except CorruptJournalError:
                continue


@given(st.data())
def test_damaged_bodies_raise_nothing_else(data):
    """Behind a good checksum a body is trusted; even so, nonsense in it has one error."""
    body = records.encode(*data.draw(st.sampled_from(samples())))
    broken = bytearray(body)
    for _ in range(data.draw(st.integers(1, 4))):
        broken[data.draw(st.integers(0, len(broken) - 1))] = data.draw(st.integers(0, 255))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(records, "decode_column", bounded)
        try:
            records.decode(bytes(broken))
        except CorruptJournalError:
            return


@pytest.mark.parametrize("value", [None, 5, [], [13], [13, 5], [13, [1]], [99, {}], [[13], {}], [13, {b"count": 1}], [13, {"count": 1, b"x": 2}]])
def test_bodies_of_another_shape_are_refused(value):
    with pytest.raises(CorruptJournalError):
        records.decode(msgpack.packb(value))


def u1(*v):
    return np.array(v, "u1")


def u4(*v):
    return np.array(v, "<u4")


def i8(*v):
    return np.array(v, "<i8")


def samples():
    """One record of each kind, with fixed values; every coding of columns occurs."""
    at, never = 1_767_225_600_000_000, 2**63 - 1
    wire = {"task": "t", "schedule": {"kind": "every", "every_us": 60_000_000}, "queue": "default", "priority": 5, "namespace": "default"}
    run_id, rid = bytes(range(16)), bytes(range(16, 32))
    rows = u4(0, 3, 4)
    return [
        ("START", {"generation": 1, "boot_id": "b", "wall": at, "mono": 5, "zone_version": "2025b", "server": "wheelsched"}),
        ("SPEC", {"id": 0, "wire": wire}),
        ("PUT", {
            "at": at, "uid": 1000, "name": records.Blobs([b"default/a", b"default/b"]), "key": bytes(20), "payload": records.Blobs([b"\x92\x90\x80", b""]),
            "spec": u4(0, 0), "param": i8(at, never), "next": i8(at + 60_000_000, never), "cursor": i8(-1, -1), "state": u1(1, 2), "note": [[0, "n"]],
        }),
        ("DUE", {
            "at": at, "job": rows, "nominal": i8(at, at + 1_000, at + 2_000), "next": i8(at + 9, never, at), "cursor": i8(at, at, at),
            "job_state": u1(1, 3, 1), "state": u1(2, 1, 8), "disposition": u1(1, 1, 2), "reason": u1(0, 0, 1), "until": i8(0, -1, at),
            "count": u4(0, 0, 70_000), "missed": u4(0, 0, 0),
        }),
        ("ENQUEUE", {
            "at": at, "uid": 0, "job": u4(1), "id": run_id, "spec": u4(0), "trigger": u1(4), "nominal": i8(at), "due": i8(at), "state": u1(2),
            "payload": records.Blobs([b"\x92\x90\x80"]), "key": [[0, b"k"]],
        }),
        ("WAKE", {"at": at, "run": rows}),
        ("GRANT", {"at": at, "worker": 1, "token": 1 << 32, "run": rows}),
        ("FINISH", {
            "at": at, "run": rows, "event": u1(4, 5, 6), "outcome": u1(1, 2, 4), "started": i8(at, at + 1, at + 9), "ended": i8(at, at, 0),
            "due": i8(0, at + 10_000_000, 0), "result": [[1, b"\x80"]],
        }),
        ("GIVE_BACK", {"at": at, "run": rows}),
        ("JOBS", {"at": at, "uid": 1, "job": u4(1), "state": u1(2), "next": i8(never), "cursor": i8(at), "note": []}),
        ("RUNS", {"at": at, "event": 7, "run": rows}),
        ("WORKER", {"at": at, "id": 1, "name": "pool-1", "kind": "pool", "gone": False}),
        ("FOLD", {"count": 4_096}),
        ("REPLY", {"at": at, "rid": rid, "reply": b"\x80"}),
        ("FORGET", {"rid": records.Blobs([rid]), "key": records.Blobs([]), "job": u4()}),
        ("CLOCK", {
            "at": at, "job": u4(1), "cursor": i8(at), "next": i8(at + 1), "state": u1(1), "blocked_job": u4(1, 1), "blocked_at": i8(at, at + 7),
        }),
        ("ASK_CANCEL", {"at": at, "run": rows}),
        ("ANNOUNCE", {"at": at, "tasks": {"t.a": {"queue": "q", "retry": {"attempts": 1}}}}),
        ("RETIME", {"at": at, "job": u4(1, 7), "state": u1(1, 3), "next": i8(at + 5, never), "cursor": i8(at, -1), "param": i8(never, at)}),
        ("ZONES", {"at": at, "version": "2025b", "name": records.Blobs([b"Europe/Berlin"]), "data": records.Blobs([b"\x78\xda"])}),
        ("TZDIFF", {
            "at": at, "old": "2025a", "new": "2025b", "total": 2, "name": records.Blobs([b"default/a", b"default/b"]), "before": i8(at, at),
            "after": i8(at + 3_600_000_000, never),
        }),
        ("SUPERSEDE", {"at": at, "run": rows, "disposition": u1(3, 4, 4), "reason": u1(1, 0, 0)}),
        ("EXCEPT", {"at": at, "uid": 1000, "job": u4(1, 1, 1), "nominal": i8(at, at + 1, at + 2), "to": i8(-1, -2, at + 7)}),
        ("CALENDAR", {"at": at, "uid": 1000, "name": "off", "wire": {"mode": "exclude", "tz": "UTC", "dates": ["2026-12-25"]}}),
        ("HOLD", {"at": at, "uid": 0, "on": True, "note": "restore"}),
        ("LATE", {"at": at, "run": rows}),
        ("WITHDRAW", {"at": at, "run": rows, "until": i8(at, 0, 0), "count": u4(4, 0, 0)}),
        ("TOLD", {"count": 7}), ("REARM", {"at": at, "run": rows, "due": i8(at, at + 1, at + 2)}),
        ("EXPIRE", {"at": at, "run": rows}),
        ("QUEUE", {"at": at, "uid": 1000, "name": "mail", "settings": {"concurrency": 5, "rate": "100/s", "paused": True}}),
        ("CHECKPOINT", {"at": at, "run": u4(3, 4), "checkpoint": records.Blobs([b"\xa4page", b"\x07"])}),
        ("STALE", {"at": at, "run": u4(3, 4), "token": i8(1 << 32, (1 << 32) + 1), "outcome": u1(1, 2), "worker": 7}),
        ("REDRIVE", {"at": at, "run": rows, "due": i8(at, at + 1, at + 2)}),
        ("CHAINED", {"at": at, "run": rows}),
        ("GROUP", {"at": at, "number": 7, "run": b"r" * 16, "members": 3, "succeeded": True}),
        ("GROUP_END", {"at": at, "number": 7, "run": rows[:1], "payload": b"\x92\x90\x80"}),
        ("KEYED", {"at": at, "key": records.Blobs([b"enqueue\0a"]), "id": b"i" * 16}),
        ("DELETED", {"at": at, "run": rows, "held": u4(7)}),
        ("ELAPSED", {"at": at, "boot_us": 7_200_000_000}),
        ("RENEW", {"at": at, "job": u4(1, 5, 7)}),
        ("SEND_BACK", {"at": at, "run": rows, "due": i8(-1, -1, at + 2), "count": u4(0, 5, 0)}),
        ("WHOSE", {"id": 7, "uid": 1000, "proof": b"p" * 16}),
        ("ANNOUNCED", {"at": at, "by": 1000, "tasks": {"t.a": {"queue": "q"}}, "free": ["t.b"], "gone": ["t.c"]}),
        ("DECIDED", {"at": at, "job": u4(1, 7), "until": i8(at + 5, at + 9), "first": i8(0, at), "last": i8(at - 7, at + 3)}),
    ]


def same(a, b):
    if isinstance(a, np.ndarray):
        return isinstance(b, np.ndarray) and a.dtype == b.dtype and a.tolist() == b.tolist()
    return a == b


def golden():
    """All samples as one journal: framed, chained, each behind its length."""
    out, crc = [], 0
    for seq, (kind, fields) in enumerate(samples(), 1):
        data, crc = records.frame(seq, crc, records.encode(kind, fields))
        out.append(struct.pack("<I", len(data)) + data)
    return b"".join(out)


def test_there_is_a_sample_of_each_kind():
    assert [kind for kind, _ in samples()] == sorted(records.KINDS, key=records.KINDS.__getitem__)


def test_every_kind_is_told_by_events_or_left_out_for_a_reason():
    told = set(event_kinds._TELL) | {"PUT"}
    assert not told & set(event_kinds.NOT_TOLD)
    nowhere = set(records.KINDS) - told - set(event_kinds.NOT_TOLD)
    assert not nowhere, f"{nowhere}: say in event_kinds.py what is told of it (_TELL), or why nothing is (NOT_TOLD)"
    assert told | set(event_kinds.NOT_TOLD) == set(records.KINDS)


@pytest.mark.parametrize(("kind", "fields"), samples(), ids=[kind for kind, _ in samples()])
def test_events_of_each_kind_have_their_columns(kind, fields):
    told = event_kinds.tell(Trail(), 1, kind, fields)
    assert (told is None) == (kind in event_kinds.NOT_TOLD)
    if told is not None:
        n = len(told.kind)
        columns = (told.state, told.run, told.job, told.names, told.scheduled, told.token)
        assert all(column is None or len(column) == n for column in columns)
        assert all(isinstance(told.more(i), dict | None) for i in range(n) if told.more is not None)


def test_every_ending_of_an_attempt_has_a_kind_of_event():
    ends = {event for state, event in TRANSITIONS if state == RunState.LEASED} - {Event.GIVE_BACK}
    assert ends == set(event_kinds.ENDINGS)


@pytest.mark.parametrize(("kind", "fields"), samples(), ids=[kind for kind, _ in samples()])
def test_records_round_trip(kind, fields):
    found, back = records.decode(records.encode(kind, fields))
    assert found == kind
    assert back.keys() == fields.keys()
    for name, value in fields.items():
        assert same(value, back[name]), name


@pytest.mark.parametrize(("kind", "fields"), samples(), ids=[kind for kind, _ in samples()])
def test_missing_and_further_fields_are_refused(kind, fields):
    for wrong in ({**fields, "further": 1}, dict(list(fields.items())[1:])):
        with pytest.raises(AssertionError):
            records.encode(kind, wrong)
        body = msgpack.packb([records.KINDS[kind], wrong], default=records._pack_default, use_bin_type=True)
        with pytest.raises(CorruptJournalError):
            records.decode(body)


def test_golden_file_is_written_and_read_as_ever():
    """Byte for byte: journals on disk outlive the program that wrote them."""
    data = GOLDEN.read_bytes()
    assert golden() == data
    read(data, samples())


@pytest.mark.parametrize(("name", "kinds"), OLDER.items())
def test_journals_of_older_versions_are_read(name, kinds):
    read(GOLDEN.with_name(name).read_bytes(), samples()[:kinds])


def read(data, expected):
    at, crc = 0, 0
    for seq, (kind, fields) in enumerate(expected, 1):
        (size,) = struct.unpack_from("<I", data, at)
        body, crc = records.unframe(data[at + 4 : at + 4 + size], seq, crc)
        found, back = records.decode(body)
        assert found == kind
        assert all(same(value, back[name]) for name, value in fields.items())
        at += 4 + size
    assert at == len(data)


if __name__ == "__main__":
    GOLDEN.parent.mkdir(exist_ok=True)
    GOLDEN.write_bytes(golden())
    sys.stdout.write(f"{GOLDEN}: {GOLDEN.stat().st_size} bytes\n")

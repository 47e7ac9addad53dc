"""The wire against anything that bytes can be."""

from __future__ import annotations

import contextlib
import itertools
import random
import re
import struct
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgpack
import pytest
from hypothesis import given as examples
from hypothesis import strategies as st

import wheelsched
from wheelsched.model import errors
from wheelsched.model.errors import InvalidArgumentError, PayloadError, UnavailableError, WheelschedError, error_from_wire
from wheelsched.model.nouns import PAYLOAD_DEPTH_MAX, PAYLOAD_MAX
from wheelsched.protocol import frames, verbs
from wheelsched.protocol.frames import (
    FRAME_MAX,
    ITEMS_MAX,
    FrameReader,
    Reply,
    Request,
    decode_body,
    decode_headers,
    decode_payload,
    decode_value,
    encode_error,
    encode_frame,
    encode_ok,
    encode_payload,
    encode_request,
    encode_value,
    parse_reply,
    parse_request,
)

REQUESTS = [
    (i + 1, verb, args)
    for i, (verb, args) in enumerate(
        [
            ("hello", {"version": 1, "role": "client", "name": ""}),
            ("get", {"name": "default/é"}),
            ("put_many", {"names": ["a"] * 50, "which": b"\0" * 200}),
            ("stats", {}),
            ("wait", {"id": "0" * 32, "timeout_us": 2**63 - 1}),
        ]
    )
]
STREAM = b"".join(encode_request(*request) for request in REQUESTS)


def read_all(pieces):
    reader = FrameReader(FRAME_MAX)
    bodies = [body for piece in pieces for body in reader.feed(piece)]
    assert reader.pending == 0
    return [parse_request(body) for body in bodies]


def test_every_split_in_two_gives_the_same_requests():
    expected = [Request(*request) for request in REQUESTS]
    for at in range(len(STREAM) + 1):
        assert read_all([STREAM[:at], STREAM[at:]]) == expected


def test_byte_by_byte_gives_the_same_requests():
    assert read_all([STREAM[i : i + 1] for i in range(len(STREAM))]) == [Request(*request) for request in REQUESTS]


@examples(st.lists(st.integers(0, len(STREAM)), max_size=20))
def test_any_split_gives_the_same_requests(cuts):
    edges = [0, *sorted(cuts), len(STREAM)]
    pieces = [memoryview(STREAM)[a:b] for a, b in itertools.pairwise(edges)]
    assert read_all(pieces) == [Request(*request) for request in REQUESTS]


def test_a_frame_at_the_limit_and_one_past_it():
    reader = FrameReader(100)
    assert reader.feed(struct.pack(">I", 100) + bytes(100)) == [bytes(100)]
    with pytest.raises(InvalidArgumentError, match="frame of 101 bytes: at most 100"):
        reader.feed(struct.pack(">I", 101))
    room = FRAME_MAX - len(msgpack.packb([1, "x", {"a": bytes(70_000)}])) + 70_000
    assert len(encode_request(1, "x", {"a": bytes(room)})) == FRAME_MAX + 4
    with pytest.raises(InvalidArgumentError, match="send fewer items"):
        encode_request(1, "x", {"a": bytes(room + 1)})


def test_a_frame_over_the_limit_is_refused_before_it_is_buffered():
    reader = FrameReader(FRAME_MAX)
    with pytest.raises(InvalidArgumentError):
        reader.feed(b"\xff\xff\xff\xff")
    assert reader.pending <= 4


def test_an_empty_frame_is_malformed():
    (body,) = FrameReader(FRAME_MAX).feed(bytes(4))
    with pytest.raises(InvalidArgumentError, match="malformed"):
        parse_request(body)


BOMBS = {
    "nested 1,100": b"\x91" * 1_100 + b"\x01",
    "nested 1,000,000": b"\x91" * 1_000_000 + b"\x01",
    "maps nested": b"\x81\xa1k" * 5_000 + b"\x01",
    "array32 huge": b"\xdd\xff\xff\xff\xff",
    "map32 huge": b"\xdf\xff\xff\xff\xff",
    "bin32 huge": b"\xc6\xff\xff\xff\xff",
    "str32 huge": b"\xdb\xff\xff\xff\xff",
    "ext32 huge": b"\xc9\xff\xff\xff\xff\x05",
    "timestamp": b"\xd6\xff\xff\xff\xff\xff",
    "ext": b"\xd4\x05\x00",
    "NaN keys": b"\x82" + b"\xcb\x7f\xf8\0\0\0\0\0\1\1" + b"\xcb\x7f\xf8\0\0\0\0\0\2\2",
    "int key": b"\x81\1\1",
    "nil key": b"\x81\xc0\1",
    "array key": b"\x81\x91\1\1",
    "text that isn't UTF-8": b"\xa2\xff\xfe",
    "trailing": b"\1\2",
    "never used": b"\xc1",
    "cut": b"\x92\x01",
    "nothing": b"",
}


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_are_malformed(name):
    for body in (BOMBS[name], b"\x93\x01\xa3get" + BOMBS[name], b"\x93\x01\xa3get\x81\xa1a" + BOMBS[name]):
        with pytest.raises(InvalidArgumentError):
            parse_request(body)


def test_items_at_the_limit_and_one_past_it():
    head = b"\x93\x01\xa1x\x81\xa1a\xdd"
    assert len(parse_request(head + struct.pack(">I", ITEMS_MAX) + b"\1" * ITEMS_MAX).args["a"]) == ITEMS_MAX
    for n in (ITEMS_MAX + 1, 1_000_000):
        with pytest.raises(InvalidArgumentError, match="max_array_len"):
            parse_request(head + struct.pack(">I", n) + b"\1" * n)


@pytest.mark.parametrize(
    "value",
    [
        None,
        1,
        "x",
        [],
        [1, "get"],
        [1, "get", {}, 4],
        {"id": 1},
        [0, "get", {}],
        [-1, "get", {}],
        [2**63, "get", {}],
        [2**64 - 1, "get", {}],
        [True, "get", {}],
        [1.0, "get", {}],
        [float("nan"), "get", {}],
        ["1", "get", {}],
        [None, "get", {}],
        [1, b"get", {}],
        [1, 2, {}],
        [1, "get", []],
        [1, "get", None],
    ],
)
def test_requests_of_another_shape(value):
    with pytest.raises(InvalidArgumentError, match="a request"):
        parse_request(msgpack.packb(value))


def test_the_largest_id():
    assert parse_request(msgpack.packb([2**63 - 1, "get", {}])).id == 2**63 - 1


@examples(st.binary(max_size=200))
def test_rubbish_is_an_error_of_ours(data):
    for parse, kind in ((parse_request, Request), (parse_reply, Reply)):
        with contextlib.suppress(InvalidArgumentError):
            assert isinstance(parse(data), kind)


def test_damaged_requests_are_requests_or_errors_of_ours():
    seed = random.randrange(2**32)
    rng = random.Random(seed)
    fine = 0
    for _ in range(5_000):
        body = bytearray(encode_request(*rng.choice(REQUESTS))[4:])
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(len(body))
            body[at : at + rng.randint(0, 2)] = rng.randbytes(rng.randint(0, 2))
            if not body:
                break
        try:
            parse_request(bytes(body))
            fine += 1
        except InvalidArgumentError:
            pass
        except Exception as e:
            raise AssertionError(f"seed {seed}: {bytes(body)!r}") from e
    assert 0 < fine < 5_000, f"seed {seed}"


# replies


def test_replies_come_back_as_they_were():
    assert parse_reply(encode_ok(7, {"a": [1, b"\0"]})[4:]) == Reply(7, {"a": [1, b"\0"]}, None)
    reply = parse_reply(encode_error(7, UnavailableError("draining", until_us=5))[4:])
    assert (reply.id, reply.result, type(reply.error), str(reply.error)) == (7, None, UnavailableError, "draining")
    assert reply.error.detail == {"until_us": 5}


@pytest.mark.parametrize(
    "value",
    [
        None,
        [1],
        [1, "ok"],
        [1, "ok", 2, 3],
        [1, "fine", 2],
        [1, "error", None],
        [1, "error", {}],
        [1, "error", {"code": "x"}],
        [1, "error", {"code": [], "message": "m"}],
        [1, "error", {"code": "internal", "message": "m", "detail": 3}],
        "abc",
    ],
)
def test_replies_of_another_shape(value):
    with pytest.raises(InvalidArgumentError, match="the server's answer"):
        parse_reply(msgpack.packb(value))


def specification():
    return Path(wheelsched.__file__).with_name("manual").joinpath("protocol.md").read_text(encoding="utf-8")


def test_every_code_of_the_specification_has_its_error_and_comes_back():
    text = re.search(r"Codes: (.*?)\.\n", specification(), re.DOTALL).group(1)
    codes = text.split()
    classes = [getattr(errors, name) for name in errors.__all__ if name.endswith("Error")]
    assert {cls.code for cls in classes} == set(codes)
    for code in codes:
        error = error_from_wire(code, "m")
        again = parse_reply(encode_error(1, error)[4:]).error
        assert (error.code, type(again), str(again)) == (code, type(error), "m")
    assert error_from_wire("of tomorrow", "m").code == "internal"


def test_what_can_not_be_sent():
    for value in (object(), {1, 2}, 2**64, "\ud800"):
        with pytest.raises(InvalidArgumentError, match="can't be sent"):
            encode_request(1, "x", {"a": value})


def test_a_long_message_is_cut():
    assert len(str(parse_reply(encode_error(1, InvalidArgumentError("m" * 100_000))[4:]).error)) == 4_000


# payloads


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=20)
    | st.binary(max_size=20)
    | st.datetimes(min_value=datetime(1970, 1, 1), max_value=datetime(2500, 1, 1), timezones=st.just(UTC)),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=20,
)


@examples(st.lists(VALUES, max_size=4), st.dictionaries(st.text(max_size=5), VALUES, max_size=4))
def test_payloads_come_back_as_they_were(args, kwargs):
    assert decode_payload(encode_payload(args, kwargs)) == (args, kwargs)


def test_datetimes_come_back_in_utc():
    berlin = datetime(2026, 7, 1, 12, 0, 0, 5, tzinfo=UTC).astimezone()
    assert decode_value(encode_value([1, [2], berlin])) == [1, [2], berlin]
    assert decode_value(encode_value(berlin)).utcoffset() == timedelta(0)


@pytest.mark.parametrize(
    ("args", "kwargs", "path"),
    [
        ((object(),), {}, r"args\[0\]: object"),
        (([1, {"k": {1, 2}}],), {}, r"args\[0\]\[1\]\.k: set"),
        ((), {"a": {1: 2}}, r"kwargs\.a: key 1"),
        ((2**63,), {}, r"args\[0\]: 9223372036854775808"),
        ((-(2**63) - 1,), {}, r"args\[0\]: -"),
        ((datetime(2026, 1, 1),), {}, "no time zone"),
        ((1j,), {}, r"args\[0\]: complex"),
        ((b"", bytearray(1)), {}, r"args\[1\]: bytearray"),
        ((), {"s": "\ud800"}, "surrogates"),
    ],
)
def test_what_can_not_be_stored_is_named_by_its_path(args, kwargs, path):
    with pytest.raises(PayloadError, match=path):
        encode_payload(args, kwargs)


def nested(levels):
    value = 1
    for _ in range(levels):
        value = [value]
    return value


def test_depth_far_below_and_far_past_the_limit():
    assert decode_payload(encode_payload((nested(PAYLOAD_DEPTH_MAX - 2),), {}))[0] == [nested(PAYLOAD_DEPTH_MAX - 2)]
    for levels in (PAYLOAD_DEPTH_MAX + 1, 100_000):
        with pytest.raises(PayloadError, match="nested deeper"):
            encode_payload((nested(levels),), {})
    loop = []
    loop.append(loop)
    with pytest.raises(PayloadError, match="nested deeper"):
        encode_payload((loop,), {})


def test_size_at_the_limit_and_one_past_it():
    room = PAYLOAD_MAX - len(encode_payload((bytes(100_000),), {})) + 100_000
    assert len(encode_payload((bytes(room),), {})) == PAYLOAD_MAX
    with pytest.raises(PayloadError, match=f"at most {PAYLOAD_MAX}"):
        encode_payload((bytes(room + 1),), {})


@pytest.mark.parametrize(
    "data", [b"", b"\xc1", b"\x01", b"\x92\x01\x80", b"\x92\x90\x90", b"\x93\x90\x80\x01", b"\x94\x90\x80\x80\x80", b"\x91" * 2_000, b"\x92\x90\x81\x01\x01"]
)
def test_a_stored_payload_that_is_none(data):
    with pytest.raises(PayloadError):
        decode_payload(data)
    with pytest.raises(PayloadError):
        decode_headers(data)


def test_headers_of_a_payload():
    data = encode_payload((1,), {"a": 2}, {"trace": "é"})
    assert (decode_payload(data), decode_headers(data)) == (([1], {"a": 2}), {"trace": "é"})
    plain = encode_payload((1,), {"a": 2})
    assert encode_payload((1,), {"a": 2}, {}) == plain
    assert decode_headers(plain) == {}
    for headers, why in (({"cause": "x"}, "taken"), ({"a": object()}, "names to texts"), ({"a": "\ud800"}, "surrogates")):
        with pytest.raises(PayloadError, match=rf"headers.*{why}"):
            encode_payload((), {}, headers)


def test_floats_that_are_no_numbers_are_values():
    assert decode_value(encode_value([float("inf"), -0.0]))[0] == float("inf")
    assert decode_value(encode_value(float("nan"))) != decode_value(encode_value(float("nan")))


def test_the_specification_names_every_verb_that_changes_something():
    text = specification()
    changing = set(re.findall(r"^ *(\w+) +rid\b(?!-)", text, re.MULTILINE)) | set(re.findall(r"(?:  )(\w+) +rid\b", text))
    assert changing == set(verbs.MUTATING)


def test_errors_are_of_one_family():
    assert all(issubclass(getattr(errors, name), WheelschedError) for name in errors.__all__ if name[0].isupper())


def test_frames_are_length_and_body():
    assert encode_frame([1]) == b"\0\0\0\2\x91\1"
    assert decode_body(b"\x91\1") == [1]
    assert Path(frames.__file__).name == "frames.py"

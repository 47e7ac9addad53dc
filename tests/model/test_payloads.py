"""Payloads: a value comes back as what it was, type and all, or it is refused where it is given. Users' own types by an Ext."""

from __future__ import annotations

import asyncio
import io
import json
import math
import uuid
from collections import OrderedDict
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum
from fractions import Fraction
from typing import NamedTuple

import msgpack
import pytest
from hypothesis import given as examples
from hypothesis import strategies as st

from tests.rigs.engine import Bench
from tests.rigs.server import Serving
from wheelsched import (
    AsyncClient,
    Call,
    Client,
    Enqueue,
    Every,
    Ext,
    InvalidArgumentError,
    Job,
    Manual,
    PayloadError,
    ResultNotKept,
    RunFailed,
    current_run,
    task,
)
from wheelsched.client.put_many import Bulk
from wheelsched.model.nouns import PAYLOAD_DEPTH_MAX, PAYLOAD_MAX
from wheelsched.model.payloads import NO_EXTS, RAW, Exts
from wheelsched.protocol.frames import decode_payload, decode_value, encode_payload, encode_value
from wheelsched.simulator.simulator import Simulator


class Point(NamedTuple):
    """A tuple with names."""

    x: object
    y: object


class Text(str):
    """Some framework's own."""

    __slots__ = ()


class Float(float):
    """As numpy's is."""


class Level(IntEnum):
    HIGH = 3


class Colour(Enum):
    RED = "r"


class Moment(datetime):
    """As a test library's is."""


ZONES = st.sampled_from([UTC, timezone(timedelta(hours=14)), timezone(timedelta(hours=-12, minutes=-30, seconds=-7))])
LEAVES = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.binary(max_size=5)
    | st.text(st.characters(categories=["Cs", "L"]), max_size=3)  # with lone surrogates
    | st.datetimes(timezones=ZONES) | st.datetimes() | st.dates() | st.times() | st.decimals() | st.fractions() | st.uuids() | st.timedeltas()
    | st.complex_numbers() | st.sampled_from([Level.HIGH, Colour.RED, Text("x"), Float(1), Point(1, 2), Moment(2026, 1, 1, tzinfo=UTC)])
    | st.sampled_from([bytearray(b"x"), memoryview(b"x"), range(3), ..., object(), int, {1, 2}, frozenset(), OrderedDict(a=1)])
    | st.integers(2**63 - 2, 2**64 + 2) | st.integers(-(2**63) - 2, -(2**63) + 2)
)
KEYS = st.text(max_size=3) | st.integers(0, 3) | st.sampled_from(["\ud800", Text("k"), None, 1.5, b"k", (1, 2)])
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=2) | st.tuples(inner, inner) | st.tuples(),
    max_leaves=6,
)


def storable(value):
    """Whether a payload holds it: said once more, and simply."""
    kind = type(value)
    if kind in (list, dict):
        keys = list(value) if kind is dict else []
        return all(type(key) is str and storable(key) for key in keys) and all(map(storable, value.values() if kind is dict else value))
    if kind is int:
        return -(2**63) <= value < 2**63
    if kind is str:
        return not any("\ud800" <= c <= "\udfff" for c in value)
    if kind is datetime:
        if value.tzinfo is None:
            return False
        naive, offset = value.replace(tzinfo=None), value.utcoffset()
        return timedelta(0) <= naive - offset - datetime.min if naive < datetime(9000, 1, 1) else datetime.max - naive >= -offset
    return value is None or kind in (bool, float, bytes)


def same(a, b):
    """Equal, with equal types all the way down."""
    if type(a) is not type(b):
        return False
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, float):
        return (a == b and math.copysign(1, a) == math.copysign(1, b)) or (math.isnan(a) and math.isnan(b))
    return a == b


@examples(st.lists(VALUES, max_size=3), st.dictionaries(st.text("ab", max_size=2), VALUES, max_size=2))
def test_it_comes_back_exactly_or_is_refused_with_its_path(args, kwargs):
    fine = storable(args) and storable(kwargs)
    for encode in (lambda: encode_payload(args, kwargs), lambda: Bulk(NO_EXTS).payload(Call("t", *args, **kwargs))):
        try:
            data = encode()
        except PayloadError as e:
            assert not fine
            assert str(e).startswith(("args[", "kwargs.")), e
        else:
            assert fine
            back_args, back_kwargs = decode_payload(data)
            assert same(back_args, args)
            assert same(back_kwargs, kwargs)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ((1, 2), "a tuple would come back as a list; pass list"),
        (Point(1, 2), "Point, a tuple, would come back as a list"),
        (Level.HIGH, "Level would come back as a plain int; pass int"),
        (Float(1), "plain float"),
        (Text("a"), "plain str"),
        (OrderedDict(), "plain dict"),
        (Decimal(1), "Decimal can't be stored; .* or give an Ext"),
        (date(2026, 1, 1), "date can't be stored"),
        (datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=1))), "outside of the years 1 to 9999"),
        (datetime(9999, 12, 31, 23, tzinfo=timezone(timedelta(hours=-2))), "outside of the years 1 to 9999"),
        ({"k": {1: 2}}, r"\.k: key 1 is int; keys must be text"),
        ({"\ud800": 1}, "surrogates"),
        (["ok", "\udcff"], r"args\[0\]\[1\]: text with lone surrogates"),
    ],
)
def test_what_a_refusal_says(value, says):
    with pytest.raises(PayloadError, match=says) as caught:
        encode_payload([value], {})
    assert isinstance(caught.value, TypeError)


def test_a_number_too_long_to_print():
    with pytest.raises(PayloadError, match=r"args\[0\]: a whole number of 16,610 bits does not fit in int64"):
        encode_payload([10**5_000], {})
    with pytest.raises(PayloadError, match="a whole number of 16,610 bits is int; keys must be text"):
        encode_payload([{10**5_000: 1}], {})


@examples(st.datetimes(timezones=ZONES))
def test_instants_to_the_microsecond_over_all_years(moment):
    if storable(moment):
        assert decode_value(encode_value(moment)) == moment
        assert decode_value(encode_value(moment)).utcoffset() == timedelta(0)


# Users' own types

MONEY = Ext(7, Decimal, str, Decimal)
POINT = Ext(0, Point, lambda p: {"x": p.x, "y": p.y}, lambda value: Point(**value))
PATH = Ext(127, uuid.UUID, lambda u: u.bytes, lambda value: uuid.UUID(bytes=value))
ALL = Exts([MONEY, POINT, PATH, MONEY])


@task("echo", redact="secret")
def echo(value, secret=None):
    """What it is given, and what it is."""
    run = current_run()
    run.heartbeat("x", checkpoint=value)
    return [value, run.args if run.kwargs else type(value).__name__, run.checkpoint]


OWN = st.recursive(st.decimals(allow_nan=False) | st.uuids() | st.integers(0, 9), lambda inner: st.lists(inner, max_size=2) | st.builds(Point, inner, inner))


@examples(OWN)
def test_own_types_within_own_types(value):
    data = encode_payload([value], {"k": value}, exts=ALL)
    back = decode_payload(data, ALL.decode)
    assert back == ([value], {"k": value})
    assert repr(back) == repr(([value], {"k": value}))
    if "ExtType" in repr(decode_payload(data, RAW)):
        with pytest.raises(PayloadError, match="not known here"):
            decode_payload(data)


def test_on_the_wire_it_is_an_extension_type_that_holds_messagepack():
    data = encode_value(Point(Decimal("1.5"), 2), "v", ALL)
    assert msgpack.unpackb(data) == msgpack.ExtType(0, msgpack.packb({"x": msgpack.ExtType(7, msgpack.packb("1.5")), "y": 2}))


def test_an_ext_that_is_none():
    for code in (-1, 128, 1.0, True, "1"):
        with pytest.raises(InvalidArgumentError, match="from 0 to 127"):
            Ext(code, Decimal, str, Decimal)
    for kind in (int, str, dict, datetime, type(None), "Decimal", Decimal(1)):
        with pytest.raises(InvalidArgumentError, match="Ext: type"):
            Ext(1, kind, str, Decimal)
    with pytest.raises(InvalidArgumentError, match="functions"):
        Ext(1, Decimal, str, None)
    for two in ([MONEY, Ext(7, Fraction, str, Fraction)], [MONEY, Ext(8, Decimal, str, Decimal)]):
        with pytest.raises(InvalidArgumentError, match="there are two"):
            Exts(two)
    with pytest.raises(InvalidArgumentError, match="is wanted, not type"):
        Client("/nowhere", ext=[Decimal])


def test_what_goes_wrong_in_an_ext_is_told():
    def fails(_):
        raise KeyError("no")

    with pytest.raises(PayloadError, match=r"args\[0\]: extension type 1: Fraction can't be encoded: KeyError"):
        encode_payload([Fraction(1)], {}, exts=Exts([Ext(1, Fraction, fails, fails)]))
    with pytest.raises(PayloadError, match=r"args\[0\]: object can't be stored"):
        encode_payload([Fraction(1)], {}, exts=Exts([Ext(1, Fraction, lambda _: object(), fails)]))
    with pytest.raises(PayloadError, match="nested deeper"):
        encode_payload([Fraction(1)], {}, exts=Exts([Ext(1, Fraction, lambda it: [it], fails)]))
    with pytest.raises(PayloadError, match="extension type 7: Decimal can't be made: InvalidOperation"):
        decode_value(msgpack.packb(msgpack.ExtType(7, msgpack.packb("x"))), ALL.decode)


def test_in_a_simulator():
    with Simulator("2026-01-01T00:00:00Z", modules=[__name__]) as sim:  # the Exts are variables of this module
        ws, value = sim.client, Point(Decimal("1.50"), [uuid.UUID(int=5)])
        ws.put("a", echo.call(value), Manual())
        assert ws.get("a").args == [value]
        first = ws.trigger("a")
        assert first.result() == [value, "Point", value]
        assert ws.run(first.id).attempts[0].output[0] == value
        ws.put_many([Job("b", echo.call(value), Manual())])
        ws.apply([Job("c", echo.call(value), Manual())])
        assert ws.enqueue(echo.call(value, secret=Decimal(2))).result()[0] == value
        assert ws.enqueue_many([echo.call(value)]).made == 1
        ws.group([echo.call(value)], then=echo.call(value))
        assert sim.enqueued("echo", args=[value])
        assert all(ws.get(name).args == [value] for name in "abc")
        shown = {"ext": 0, "value": {"x": {"ext": 7, "value": "1.50"}, "y": [{"ext": 127, "value": "AAAAAAAAAAAAAAAAAAAABQ=="}]}}
        assert ws.get("a").to_dict()["args"] == [shown]
        assert ws.run(first.id).to_dict()["output"][0] == shown
        ws.put("a", echo.call(Decimal(1), secret=Decimal(2)), Manual())
        assert ws.get("a").kwargs == {"secret": "[redacted]"}
        ws.put("d", Call("echo", Point(1, [Point(2, 3)])), Manual(), redact="y")
        assert ws.get("d").args == [Point(1, "[redacted]")]
        with pytest.raises(InvalidArgumentError, match="give the value itself"):
            ws.put("d", Call("echo", *ws.get("d").args), Manual())
        assert next(iter(ws.history("a"))).changes["args"] == ([shown], [{"ext": 7, "value": "1"}])
        changes = ws.apply([Job("a", echo.call(Decimal(3)), Manual())], dry_run=True).changes["a"]
        assert changes["arguments"][1] == "({'ext': 7, 'value': '3'})"
        with pytest.raises(RunFailed, match="positional"):
            ws.enqueue(Call("echo", 1, 2, 3, Decimal(4)), retry=1).result()
        ws.export_dead(out := io.StringIO())
        assert json.loads(out.getvalue())["args"] == [1, "[redacted]", 3, {"ext": 7, "value": "4"}]
        one = ws.enqueue(echo.call(value), unique=True, delay="1h")
        assert ws.enqueue(echo.call(value), unique=True, delay="1h").id == one.id


def test_what_a_task_returns_is_kept_as_plain_as_need_be():
    values = [(1, Point(1, 2)), Level.HIGH, Text("é"), Float(0.5), OrderedDict(a=(Level.HIGH,)), {Text("k"): 1}]
    kept = [[1, [1, 2]], 3, "é", 0.5, {"a": [3]}, {"k": 1}]
    with Simulator("2026-01-01T00:00:00Z", tasks={"t": lambda i: values[i], "bad": lambda: Fraction(1)}) as sim:
        for i, value in enumerate(kept):
            got = sim.client.enqueue(Call("t", i)).result()
            assert same(got, value), got
        with pytest.raises(ResultNotKept, match="return value: Fraction can't be stored"):
            sim.client.enqueue(Call("bad"), retry=1).result()


def raw(sim, payload, **more):
    return sim.call(1, ("enqueue", {"rid": msgpack.packb(sim.now_us)[-8:] * 2, "given": {"task": "t"}, "payload": payload, **more}))


def test_payloads_of_other_clients():
    with Bench("2026-01-01T00:00:00Z") as sim:
        deep = b"\x92\x91" + b"\x91" * 480 + b"\x90\x80"
        for payload in (deep, b"\x92\x91\xd4\xff\x00\x80", b"\x92\x91\xd4\x80\x00\x80", b"\xc1", bytes(PAYLOAD_MAX + 1)):
            for unique in (None, ["args"]):
                with pytest.raises((PayloadError, InvalidArgumentError)):
                    raw(sim, payload, unique=unique)
        near = b"\x92" + b"\x91" * PAYLOAD_DEPTH_MAX + b"\x90\x80"
        assert raw(sim, near, unique=["args"])["state"] == "queued"


RUBBISH = [
    b"\x92\xc1", b"\x92\x90", b"\x92\x01\x02", b"\x92\x91\x01\x81\x01\x02", b"\x92" + b"\x91" * 600, b"\x92\x91\xd4\x05\xc1\x80",
    b"\x92\x90\x80\x00",
]


@pytest.mark.parametrize("rubbish", RUBBISH)
def test_payload_03_one_bad_payload_stops_nothing_else(monkeypatch, rubbish):
    with Simulator("2026-01-01T00:00:00Z", tasks={"t": lambda *a, **k: "done"}) as sim:
        ws = sim.client
        with monkeypatch.context() as patch:
            patch.setattr(Bulk, "payload", lambda self, call: rubbish)
            ws.put_many([Job("bad", Call("t"), Every("1m"), retry=1), Job("hidden", Call("t"), Manual(), redact="x")])
        ws.put_many([Job("good", Call("t", 1), Every("1m")), Job("alarm", Call("t"), Manual())])
        sim.advance("61s")
        assert {run.job: run.state for run in ws.runs()} == {"bad": "dead", "good": "succeeded"}
        shown = {job.name: job.to_dict()["args"] for job in ws.jobs()}
        assert (shown["good"], shown["alarm"], shown["hidden"], len(shown["bad"])) == ([1], [], ["[redacted]"], 1)
        ws.export_dead(out := io.StringIO())
        assert json.loads(out.getvalue())["job"] == "bad"
        ws.apply([Job("bad", Call("t", 2), Manual())], dry_run=True)
        ws.put("bad", Call("t", 2), Manual())
        assert len([change.to_dict() for change in ws.history("bad")]) == 2
        assert ws.trigger("bad").result() == "done", "it can be repaired"
        sim.crash()
        assert ws.redrive(match="*") == 1
        sim.advance("1s")
        assert len(list(ws.dead())) == 1


def test_payload_02_a_task_that_is_gone():
    with Simulator("2026-01-01T00:00:00Z", tasks={"here": lambda: "fine"}) as sim:
        ws = sim.client
        ws.put_many([Job("old", Call("gone.after.a.deploy"), Every("1m")), Job("new", Call("here"), Every("1m"))])
        sim.crash()
        sim.advance("61s")
        assert {run.job: run.state for run in ws.runs()} == {"old": "queued", "new": "succeeded"}
        assert ws.stats()["unserved_tasks"] == {"gone.after.a.deploy": 1}
        assert ws.put("old", Call("here"), Every("1m")).result == "updated", "it can be repaired"
        assert ws.get("old").state == "active"


def test_over_a_real_server_with_both_clients(short_tmp, monkeypatch):
    (short_tmp / "own.py").write_text(
        "from decimal import Decimal\nfrom wheelsched import Ext, task, current_run\nMONEY = Ext(7, Decimal, str, Decimal)\n"
        "@task('own.double')\ndef double(x):\n    current_run().heartbeat('', checkpoint=x)\n    return [x * 2, current_run().checkpoint]\n"
        "@task('own.batch', batch=True)\ndef batch(runs):\n    return [run.args[0] * 3 for run in runs]\n"
        "@task('own.alien', redact='x')\ndef alien(x):\n    return x\n"
    )
    for flags in ((), ("--mode", "thread", "--concurrency", "2")):
        server = Serving(short_tmp, "--tasks", "own", "--redact", "PIN", *flags, workers=1)
        ws = server.client(ext=[MONEY])
        run = ws.enqueue(Call("own.double", Decimal("1.1")))
        assert run.result(timeout=30) == [Decimal("2.2"), Decimal("1.1")]
        assert ws.enqueue(Call("own.batch", Decimal("1.1"))).result(timeout=30) == Decimal("3.3")
        with monkeypatch.context() as patch:
            patch.setattr(Bulk, "payload", lambda self, call: RUBBISH[call.args[0]])
            bad = ws.enqueue_many([Enqueue(Call("own.alien", i), retry=1) for i in range(len(RUBBISH))])
        assert all(ws.wait_run(run_id, 20).state == "dead" for run_id in bad.ids)
        made = ws.put("hidden", Call("own.alien", 1, pin=2, pan=3), Manual())
        assert (made.args, made.kwargs) == (["[redacted]"], {"pin": "[redacted]", "pan": 3}), "by what the worker announced, and the server"
        alien = server.client(ext=[Ext(5, Fraction, str, Fraction)]).enqueue(Call("own.alien", Fraction(1, 2)), retry=1)
        with pytest.raises(RunFailed, match="extension type 5 is not known here"):
            alien.result(timeout=30)
        with pytest.raises(PayloadError, match="extension type 7 is not known here"):
            _ = server.client().run(run.id).output
        assert server.client().run(run.id).to_dict()["output"] == [{"ext": 7, "value": "2.2"}, {"ext": 7, "value": "1.1"}]

        async def both(path=server.socket, run_id=run.id):
            async with AsyncClient(path, ext=[MONEY]) as aws:
                await aws.put("j", Call("own.double", Decimal(1)), Manual())
                assert (await aws.get("j")).args == [Decimal(1)]
                return (await aws.run(run_id)).output

        assert asyncio.run(both()) == [Decimal("2.2"), Decimal("1.1")]
        server.end()
        for one in server.open:
            one.close()

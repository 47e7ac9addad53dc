"""The ready-made Exts: values come back as they were, in arguments, results and hooks, and equal ones are equal payloads."""

from __future__ import annotations

import enum
import subprocess
import sys
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from uuid import UUID

import pytest

from wheelsched import Call, Client, Manual, PayloadError, task
from wheelsched.ext import STANDARD
from wheelsched.model.payloads import Exts
from wheelsched.protocol.frames import decode_payload, encode_payload
from wheelsched.simulator.simulator import Simulator

EXTS = Exts(STANDARD)


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


class Level(enum.IntEnum):
    LOW = 1


class Word(enum.StrEnum):
    YES = "yes"


class Held:
    class Inner(enum.Enum):
        A = "a"


VALUES = [
    date(2026, 2, 28), time(3, 4, 5, 6), time(3, 4, tzinfo=timezone(timedelta(hours=2))), timedelta(days=-3, seconds=5, microseconds=7),
    Decimal("9.99"), Decimal("-0.00"), Decimal("1E+400"), Decimal("sNaN"), UUID(int=2**100 + 5), Colour.RED, Level.LOW, Word.YES, Held.Inner.A, (), (1, (2, [3])),
    set(), {1, 2, 3}, {"a", 1, None, (1, 2)}, frozenset({Decimal(1), date(2026, 1, 1)}), {"k": [Decimal("1.10"), {UUID(int=1): 1}.popitem()]},
    datetime(2026, 1, 1, tzinfo=UTC),
]


@task("ext.same", retry=1)
def same(value):
    return value


@pytest.mark.parametrize("value", VALUES, ids=range(len(VALUES)))
def test_n_b14_values_come_back_as_they_were(value):
    (back,), kwargs = decode_payload(encode_payload([value], {"k": value}, exts=EXTS), EXTS.decode)
    for found in (back, kwargs["k"]):
        assert type(found) is type(value)
        assert str(found) == str(value) if "sNaN" in repr(value) else found == value


@pytest.mark.wheelsched(modules=[__name__])
def test_n_b14_a_module_of_tasks_that_has_standard_gives_and_takes_them(wheelsched):
    for value in (Decimal("9.99"), (1, 2), {3, 4}, Colour.BLUE, date(2026, 1, 2)):
        run = wheelsched.client.enqueue(same.call(value))
        assert run.result() == value
    with Client(ext=STANDARD) as ws:
        assert ws.put("j", same.call((Decimal(1), {1})), Manual()).args == [(Decimal(1), {1})]
        assert ws.enqueue(same.call(Decimal("0.1"))).result() == Decimal("0.1")
    with Client() as ws, pytest.raises(PayloadError, match="extension type 113 is not known here"):
        ws.enqueue(Call("ext.same", 1)).result()
        _ = ws.run(wheelsched.client.enqueue(same.call(Decimal(1))).id).args


def test_n_b14_equal_sets_are_equal_payloads_in_every_process():
    code = ("from wheelsched.ext import STANDARD; from wheelsched.model.payloads import Exts; from wheelsched.protocol.frames import encode_payload;"
            "print(encode_payload([{'a', 'b', 'c', 1, 2.5, None}], {}, exts=Exts(STANDARD)).hex())")
    found = {subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, env={"PYTHONHASHSEED": seed}).stdout for seed in "123"}
    assert len(found) == 1


def test_n_b14_a_payload_imports_nothing():
    data = encode_payload([Colour.RED], {}, exts=EXTS).replace(b"test_ext", b"tomllib8")
    with pytest.raises(PayloadError, match="tomllib8 is not imported here"):
        decode_payload(data, EXTS.decode)
    other = encode_payload([Colour.RED], {}, exts=EXTS).replace(b"Colour", b"Client")
    with pytest.raises(PayloadError, match="is no Enum"):
        decode_payload(other, EXTS.decode)


def test_n_b14_a_named_tuple_is_not_taken_for_a_tuple():
    import collections

    with pytest.raises(PayloadError, match="give an Ext for the type"):
        encode_payload([collections.namedtuple("P", "x")(1)], {}, exts=EXTS)  # noqa: PYI024 - the plain kind


def test_n_b14_two_modules_may_both_have_it():
    with Simulator(modules=[__name__], ext=STANDARD) as sim:
        assert sim.client.enqueue(same.call((1,))).result() == (1,)

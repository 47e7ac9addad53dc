"""On each run's way arrays are compared with plain numbers: of an enum's member numpy asks the class for methods, which is slow."""

import enum
import sys

import pytest

from tests.rigs.engine import CALL, FAILED, OK, Bench, at
from wheelsched import At

LATER = "2026-03-02T00:00:00Z"


@pytest.mark.skipif(not hasattr(enum.EnumType, "__getattr__"), reason="this Python looks members up itself, and quickly")
def test_no_array_is_compared_with_a_member_of_an_enum_on_a_runs_way(monkeypatch):
    asked = []
    look_up = enum.EnumType.__getattr__

    def note(cls, name):
        if name.startswith("__array"):
            asked.append((cls.__name__, name, sys._getframe(1).f_code.co_filename, sys._getframe(1).f_lineno))
        return look_up(cls, name)

    with Bench(LATER) as b:
        monkeypatch.setattr(enum.EnumType, "__getattr__", note)
        for i in range(3):
            b.client.put(f"j{i}", CALL, At(at("2026-03-02T00:00:01")))
        b.advance(2)
        leases = b.lease()
        assert len(leases) == 3
        b.finish(leases[:2], OK)
        b.finish(leases[2:], FAILED)
        b.advance(120)  # what is finished goes to history
        assert b.engine.state.meta.folded == 2
        monkeypatch.undo()
    assert asked == [], "compare with model.plain there"

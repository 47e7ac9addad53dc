"""A machine that was off for long: what is stored on the first day after it is as old as it is, when that absence comes to count."""

from __future__ import annotations

import pytest

from tests.sim.kept import DAY, KEYED, Kept, at
from tests.sim.world import US


def soon(world):
    """A one-time schedule that is due in ten minutes."""
    return at(world, (world.wall_us - world.start_us) // (60 * US) + 10)


@pytest.mark.parametrize("off_days", [2, 100])
@pytest.mark.parametrize("hours", [1, 23])
def test_s2_the_first_day_after_a_long_absence_is_remembered_in_full(off_days, hours):
    w = Kept(7)
    w.days(1)
    w.crash(reboot=True, down_us=off_days * DAY * US)
    w.spawn("pool")
    w.days(hours / 24)
    once = soon(w)
    w.put("once", once)
    w.put("gone", once)
    w.days(1 / 24)
    w.ask("delete", name="gone")
    key = w.ask("enqueue", **KEYED)
    w.days(23 / 24)
    assert w.ask("enqueue", **KEYED)["id"] == key["id"]
    made = {r[2] for r in w.records()}
    w.days(4)
    assert made <= {r[2] for r in w.records()}, "history was dropped too early"
    w.days(25)
    assert w.put("gone", once)["state"] == "finished"
    assert w.put("once", once)["result"] == "unchanged"
    assert [r[0] for r in w.records()].count("once") <= 1
    assert not w.doubled()


def test_s2_what_was_stored_in_1970_is_as_old_as_it_is():
    """The battery was dead, and the clock was set right some minutes after the start."""
    w = Kept(30)
    w.days(1)
    w.crash(reboot=True, back_us=w.wall_us, down_us=100 * DAY * US)
    w.spawn("pool")
    w.turn()
    key = w.ask("enqueue", **KEYED)
    w.pass_time(300 * US)
    w.wall_us += w.start_us
    w.turn()
    w.days(0.9)
    assert w.ask("enqueue", **KEYED)["id"] == key["id"]
    w.days(0.2)
    w.days(0.1)
    assert not w.engine.state.keys or w.ask("enqueue", **KEYED)["id"]

"""Seeded stories of months stay green, and turn red when something is forgotten before its time, or runs twice after it."""

from __future__ import annotations

import pytest

from tests.sim.months import DAY_US, lasting
from wheelsched.engine import forgetting
from wheelsched.server import keeper
from wheelsched.state.elapsed import Elapsed


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 3, 5, 6, 9, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in (10, 13))])
def test_s2_months(seed):
    lasting(seed)


def names_a_day_early(patch):
    """Finished jobs and tombstones are forgotten a day too early."""
    patch.setattr(forgetting, "TOMBSTONE_US", forgetting.TOMBSTONE_US - DAY_US)
    patch.setattr(forgetting, "DAY_US", 0)


def by_the_wall_clock(patch):
    """What the wall clock says is believed."""
    patch.setattr(forgetting, "elapsed_us", lambda engine: engine.now.wall_us)


def absences_make_older(patch):
    """What is stored after an absence is as old as the absence."""
    patch.setattr(Elapsed, "read", lambda _, stamp: stamp)


@pytest.mark.parametrize("sabotage", [names_a_day_early, by_the_wall_clock, absences_make_older])
def test_s2_sabotage_turns_it_red(sabotage, monkeypatch):
    sabotage(monkeypatch)
    with pytest.raises(AssertionError, match="forgotten"):
        lasting(1)


@pytest.mark.parametrize("seed", [3, 5])
def test_what_history_has_dropped_runs_twice_when_nobody_knows_of_it(seed, monkeypatch):
    monkeypatch.setattr(keeper.history, "dropped", lambda *_: [])
    with pytest.raises(AssertionError, match="a second run record"):
        lasting(seed)

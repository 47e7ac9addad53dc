"""The world of the simulator where a turn has room for a few rows only: what is decided piece by piece is cut short, crossed and crashed
at every place, and no turn decides more than its piece.
"""

from __future__ import annotations

from collections import Counter

import pytest

from tests.sim import world as sim_world
from tests.sim.seeds import simulate
from wheelsched.engine import catchup, due
from wheelsched.engine.turn import Incoming
from wheelsched.model.nouns import RunState
from wheelsched.state import records
from wheelsched.verbs import cancels, dead, occurrences

CATCH_UP, SWEEP = 3, 5
# A change of a job, a calendar or the hold first settles what was due by what held before, whole: up to a catch-up of any length.
SETTLING = frozenset({"put", "put_many", "apply", "pause", "resume", "delete", "calendar_put", "calendar_delete", "move", "release", "hold"})


def caught_up(bodies):
    """{job row: runs by schedule that the records of a turn have made}."""
    made = Counter()
    for kind, f in map(records.decode, bodies):
        if kind == "DUE":
            made.update(job for job, state in zip(f["job"].tolist(), f["state"].tolist(), strict=True) if state != RunState.SKIPPED)
    return made


@pytest.fixture
def small(monkeypatch):
    """Small pieces, and the largest that a turn made, in a list."""
    for module, most in ((catchup, CATCH_UP), (due, CATCH_UP), (occurrences, SWEEP), (cancels, SWEEP), (dead, SWEEP)):
        monkeypatch.setattr(module, "PIECE", most)
    real, most = sim_world.World.step, [0]

    def step(world):
        asked = {i.request.verb for i in world.inputs if isinstance(i, Incoming)}
        before = len(world.unsynced)
        real(world)
        for bodies in list(world.unsynced)[before:]:
            for job, n in caught_up(bodies).items():
                # What does not fill a piece is followed by another; and one occurrence is never left alone.
                assert asked & SETTLING or n <= 2 * (CATCH_UP + 1), f"job {job}: {n} runs by schedule in one turn"
                most[0] = max(most[0], n)

    monkeypatch.setattr(sim_world.World, "step", step)
    return most


@pytest.mark.slow
@pytest.mark.parametrize("seed", [10, 30, 31, 36])  # they catch up more than a piece
def test_t3_no_turn_decides_more_than_its_piece(small, seed):
    simulate(seed)
    assert small[0] > CATCH_UP, f"seed {seed}: nothing was caught up in pieces"

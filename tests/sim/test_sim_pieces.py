"""The world of the simulator where a turn has room for a few rows only: what is decided piece by piece is cut short, crossed and crashed
at every place, and no turn decides more than its piece.
"""

from __future__ import annotations

from collections import Counter

import pytest

from tests.sim import world as sim_world
from tests.sim.seeds import simulate
from wheelsched.engine import catchup, due
from wheelsched.model.nouns import SERVER_UID, RunState
from wheelsched.state import records
from wheelsched.verbs import cancels, dead, occurrences

CATCH_UP, SWEEP = 3, 5


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
    monkeypatch.setattr(due, "ROOM", CATCH_UP)
    for module, most in ((catchup, CATCH_UP), (due, CATCH_UP), (occurrences, SWEEP), (cancels, SWEEP), (dead, SWEEP)):
        monkeypatch.setattr(module, "PIECE", most)
    real, most = sim_world.World.step, [0]

    def step(world):
        before = len(world.unsynced)
        real(world)
        for bodies in list(world.unsynced)[before:]:
            if any(kind == "JOBS" and f["uid"] == SERVER_UID for kind, f in map(records.decode, bodies)):
                continue  # pause_after decides all that its job owes in the turn of the report
            for job, n in caught_up(bodies).items():
                # A piece of the turn, and one of a command about the job. What does not fill one is followed by another; and one
                # occurrence is never left alone.
                assert n <= 4 * (CATCH_UP + 1), f"job {job}: {n} runs by schedule in one turn"
                most[0] = max(most[0], n)

    monkeypatch.setattr(sim_world.World, "step", step)
    return most


@pytest.mark.slow
@pytest.mark.parametrize("seed", [10, 30, 36, 41])  # they catch up more than a piece
def test_t3_no_turn_decides_more_than_its_piece(small, seed):
    simulate(seed)
    assert small[0] > CATCH_UP, f"seed {seed}: nothing was caught up in pieces"

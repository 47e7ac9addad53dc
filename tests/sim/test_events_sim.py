"""Events in the seeded world: what a reader is told at once is what another is told much later, of rows that others have by then."""

from __future__ import annotations

import pytest

from tests.sim.seeds import Actor
from wheelsched.client.views_events import EventPage
from wheelsched.model.errors import FailedPreconditionError
from wheelsched.reads.events import Pager, Wanted


class Reader:
    """Reads on when something is durable; begins anew where the world says so."""

    def __init__(self, world, limit):
        self.world = world
        self.limit = limit
        self.position = "oldest"
        self.told = {}
        self.gaps = 0

    def read(self):
        world = self.world
        pager = Pager(world.engine.state, world.journal.replay, world.keeper.block)
        while True:
            wanted = Wanted({"since": self.position, "limit": self.limit})
            try:
                raw, after = pager.page(pager.begin(wanted, world.journal.durable_seq), wanted)
            except FailedPreconditionError as e:
                assert "not kept" in e.message, e
                self.position = e.detail["oldest"]
                self.gaps += 1
                continue
            page = EventPage.from_wire(raw)
            self.position = page.position
            for event in page.events:
                assert event.position not in self.told, event
                self.told[event.position] = event
            if after[0] > world.journal.durable_seq:
                return


def story(seed, actions=150):
    actor = Actor(seed)
    world = actor.world
    live = Reader(world, 7)
    synced = world.sync

    def sync(n=None):
        synced(n)
        live.read()

    world.sync = sync
    actor.run(actions)
    live.read()
    late = Reader(world, None)
    late.read()
    return world, live, late


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(16))
def test_who_reads_late_is_told_the_same(seed):
    world, live, late = story(seed)
    assert late.told
    assert late.told.keys() <= live.told.keys() or live.gaps
    for position, event in late.told.items():
        if position in live.told:
            assert event == live.told[position]

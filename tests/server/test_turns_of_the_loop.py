"""What a turn of the server's loop does: it decides when something asks for that, and what is on disk goes out at once."""

import os
import select

import pytest

from wheelsched.engine.outbox import AHEAD_MAX, BRIEF_BYTES, Outbox
from wheelsched.engine.turn import Effects, Now
from wheelsched.model.nouns import NEVER
from wheelsched.server.server import Server

TIMER, SOCKET = 1_001, 1_002


class Journal:
    """The keeper of a server, whose commits end when the test says."""

    def __init__(self):
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.durable, self.busy = 0, False

    def fileno(self):
        return self.fd

    def poll(self):
        try:
            os.eventfd_read(self.fd)
        except BlockingIOError:
            return self.durable
        return self.durable

    def commit(self, seq):
        self.durable = seq
        os.eventfd_write(self.fd, 1)


class Loop(Server):
    """A server's loop alone: what wakes it and what it decides are the test's."""

    def __init__(self, journal):
        self.keeper = journal
        self.outbox, self.intake, self.inputs, self.again = Outbox(NEVER), [], [], False
        self.now, self.wake_mono_us = Now(0, 0), NEVER
        self.events, self.decided, self.did, self.seq = [], [], [], 0
        self._committed = select.poll()
        self._committed.register(journal.fileno(), select.POLLIN)

    def turn(self, *events):
        """What the loop did in a turn that these descriptors began."""
        self.events, self.did = [(fd, select.POLLIN) for fd in events], []
        self._turn()
        return self.did

    def _sleep(self):
        return self.events

    def _gather(self, events):
        pass

    def _step(self):
        self.did.append("step")
        self.again = False
        for size in self.decided:
            self.seq += 1
            self.outbox.add(Effects(records=[bytes(size)], seq=self.seq, lags=[("queued", None)]), 0)
        self.decided = []

    def _beats(self):
        self.did.append("beats")

    def _act(self):
        self.did += [f"act on {effects.seq}" for effects in self.outbox.durable(self.keeper.poll(), 0)]

    def _end_if_hung(self):
        pass

    def _look_after_taken(self):
        pass

    def _tell(self):
        pass


@pytest.fixture
def journal():
    it = Journal()
    yield it
    os.close(it.fd)


def test_a_wake_that_only_tells_of_a_commit_decides_nothing(journal):
    loop = Loop(journal)
    loop.decided = [10, 10]  # two turns' worth: nobody waits for these
    assert loop.turn(SOCKET) == ["step"]
    journal.commit(2)
    assert loop.turn(journal.fd) == ["act on 1", "act on 2"]
    assert loop.turn(journal.fd, TIMER) == ["step"]
    assert loop.turn() == ["step"], "it is due: the deadline ended the sleep"


@pytest.mark.parametrize("what", ["again", "inputs", "intake", "busy", "due"])
def test_a_commit_beside_something_that_waits_does_not_hide_it(journal, what):
    loop = Loop(journal)
    journal.commit(0)
    assert loop.turn(journal.fd) == []
    if what == "busy":
        journal.busy = True
    elif what == "due":
        loop.now, loop.wake_mono_us = Now(5, 5), 5
    else:
        setattr(loop, what, True if what == "again" else ["something"])
    assert loop.turn(journal.fd) == ["step"]


def test_what_woke_the_loop_while_the_disk_was_behind_is_decided_when_it_has_caught_up(journal):
    loop = Loop(journal)
    loop.decided = [10] * AHEAD_MAX
    assert loop.turn(SOCKET) == ["step"]
    assert loop.turn(TIMER) == ["beats"], "the timer tells it once"
    journal.commit(1)
    assert loop.turn(journal.fd) == ["beats", "act on 1"]
    journal.commit(AHEAD_MAX)
    assert loop.turn(journal.fd)[0] == "step"


def test_a_short_commit_is_waited_for_and_acted_on_in_the_same_turn(journal):
    loop = Loop(journal)
    loop.decided = [10]
    polled = loop._committed

    class Disk:
        """Ends the commit while the loop waits."""

        asked = 0

        def poll(self, timeout_ms):
            self.asked += 1
            assert timeout_ms <= 1
            journal.commit(loop.seq)
            return polled.poll(timeout_ms)

    disk = loop._committed = Disk()
    assert loop.turn(SOCKET) == ["step", "act on 1"]
    assert disk.asked == 1
    for decided, again in (([BRIEF_BYTES], False), ([10, 10], False), ([], False), ([10], True)):  # long, several, none, more to do
        before = loop.seq
        loop.decided, loop.inputs = decided, ["something"] if again else []
        assert loop.turn(SOCKET) == ["step"]
        assert disk.asked == 1
        loop.inputs = []
        journal.commit(loop.seq)
        assert loop.turn(journal.fd) == [f"act on {seq}" for seq in range(before + 1, loop.seq + 1)]


def test_a_commit_that_takes_longer_than_a_moment_wakes_the_loop(journal):
    loop = Loop(journal)
    loop.decided = [10]
    assert loop.turn(SOCKET) == ["step"]
    journal.commit(1)
    assert loop.turn(journal.fd) == ["act on 1"]

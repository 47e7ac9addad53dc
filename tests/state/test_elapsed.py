"""Time that has really passed: what the boot clock measures, and what the wall clock claims of the rest once it has stood for a day."""

from __future__ import annotations

import pytest

from wheelsched.model.nouns import US
from wheelsched.state.elapsed import Elapsed

MINUTE, HOUR, DAY = 60 * US, 3_600 * US, 86_400 * US
START = 1_772_409_600 * US


class Machine:
    """A machine with three clocks: what has really passed, its wall clock, and its boot clock; and a server on it that looks at them."""

    def __init__(self):
        self.real = self.boot_us = 0
        self.wall_us = START
        self.boot = 1
        self.clock = Elapsed()
        self.clock.prepare(self.wall_us)
        self.look()

    def look(self):
        self.clock.look(self.wall_us, self.boot_us, str(self.boot))
        self.check()

    def check(self):
        assert self.clock.at(self.boot_us) == self.clock.us
        assert self.clock.claims == sorted(self.clock.claims)

    def up(self, us, every=HOUR):
        """The server runs, and looks now and then."""
        while us:
            part = min(us, every)
            us -= part
            self.away(part)
            self.look()

    def away(self, us):
        """The machine is up, the server is not, or has nothing to do."""
        self.real += us
        self.wall_us += us
        self.boot_us += us

    def set(self, us):
        """Somebody sets the clock."""
        self.wall_us += us
        self.look()

    def off(self, us, wrong=0, boot_us=20 * US):
        """The machine is off, and its clock is wrong by so much when it is on again."""
        self.real += us
        self.wall_us += us + wrong
        self.boot += 1
        self.boot_us = boot_us
        self.look()

    @property
    def missing(self):
        """How much the clock is behind what has really passed."""
        return self.real - (self.clock.us - START)


@pytest.fixture
def m():
    return Machine()


def test_it_measures(m):
    m.up(3 * DAY)
    m.away(5 * DAY)  # restarts and suspends included: the boot clock goes on
    m.look()
    assert m.missing == 0


@pytest.mark.parametrize("step", [2 * US, HOUR, 25 * HOUR, 365 * DAY, -365 * DAY])
def test_a_step_of_a_clock_that_runs_changes_nothing_however_long_it_stands(m, step):
    m.up(40 * DAY)
    m.set(step)
    m.up(50 * DAY)
    assert m.missing == 0
    m.set(-step)
    m.up(50 * DAY)
    assert m.missing == 0


def test_steps_one_after_another(m):
    for _ in range(20):
        m.set(DAY)
        m.up(HOUR)
        m.set(-DAY)
        m.up(HOUR)
    assert m.missing == 0


def test_time_that_the_machine_was_off_counts_after_a_day(m):
    m.up(DAY)
    m.off(10 * DAY)
    assert m.missing > 10 * DAY - MINUTE
    m.up(DAY - HOUR)
    assert m.missing > 10 * DAY - MINUTE
    m.up(2 * HOUR)
    assert m.missing == 0
    assert m.clock.claims == []


def test_between_two_looks_it_tells_what_the_next_look_finds(m):
    m.off(10 * DAY)
    m.away(DAY - US)
    assert m.clock.at(m.boot_us) == m.clock.us + DAY - US
    m.away(US)
    soon = m.clock.at(m.boot_us)
    m.look()
    assert soon == m.clock.us
    assert m.missing == 0


@pytest.mark.parametrize("wrong", [2 * DAY, 365 * DAY])
@pytest.mark.parametrize("stands", [US, 20 * HOUR])
def test_a_machine_that_starts_with_a_clock_that_is_ahead(m, wrong, stands):
    m.up(DAY)
    m.off(HOUR, wrong)
    m.up(stands)
    m.set(-wrong)
    assert 0 <= m.missing <= HOUR
    m.up(3 * DAY)
    assert m.missing == 0


def test_a_clock_that_is_ahead_at_a_start_is_believed_after_a_day_and_never_doubly(m):
    m.off(HOUR, 100 * DAY)
    m.up(2 * DAY)
    assert m.missing == -100 * DAY
    m.set(-100 * DAY)  # that was too late
    m.up(2 * DAY)
    m.off(HOUR, 100 * DAY)
    m.up(HOUR)
    m.set(-100 * DAY)
    m.up(2 * DAY)
    assert m.missing == -100 * DAY


def test_a_dead_battery(m):
    """It starts in 1970, and is set right by hours or months."""
    m.up(DAY)
    m.off(60 * DAY, -START)
    m.up(HOUR)
    m.set(START)
    m.up(DAY - HOUR)
    assert m.missing > 59 * DAY
    m.up(2 * HOUR)
    assert m.missing == 0
    m.off(HOUR, -START)  # and again, this time for longer than a day: nothing is known of the hour
    m.up(3 * DAY)
    m.set(START)
    m.up(3 * DAY)
    assert 0 < m.missing <= HOUR
    m.off(7 * DAY)
    m.up(3 * DAY)
    assert 0 < m.missing <= HOUR, "what went before does not stand in the way"


def test_a_new_store_on_a_machine_with_a_dead_battery_was_away_from_nothing():
    m = Machine()
    m.up(MINUTE)
    m.set(56 * 365 * DAY)
    m.up(5 * DAY)
    assert m.missing == 0


@pytest.mark.parametrize("life", [MINUTE, HOUR])
def test_a_machine_that_restarts_all_the_time_forgets_some_day(m, life):
    for _ in range(2 * DAY // life):
        m.up(life, every=10 * US if life == MINUTE else HOUR)
        m.off(30 * US)
    assert len(m.clock.claims) < 300
    assert 0 <= m.missing < 2 * DAY


def test_an_idle_server_that_is_restarted_with_its_machine_every_minute(m):
    """No look but that of each start."""
    for _ in range(6 * DAY // MINUTE):
        m.off(MINUTE, boot_us=15 * US)
    assert 0 <= m.missing < 5 * DAY


def test_a_machine_that_is_on_for_an_hour_a_day(m):
    for _ in range(100):
        m.up(HOUR)
        m.off(23 * HOUR)
    assert 0 <= m.missing < 26 * DAY


def test_data_that_move_to_a_machine_that_has_been_up_for_long(m):
    m.off(MINUTE, wrong=0, boot_us=300 * DAY)
    assert 0 <= m.missing <= MINUTE
    m.off(MINUTE, wrong=2 * DAY, boot_us=300 * DAY)
    assert m.missing >= 0, "and whose clock is wrong"


def test_a_boot_clock_that_begins_anew_under_the_same_boot_id(m):
    m.up(10 * DAY)
    m.boot -= 1
    m.off(HOUR)
    assert 0 <= m.missing <= HOUR


def test_it_survives_a_snapshot(m):
    m.off(10 * DAY)
    m.up(3 * HOUR)
    assert Elapsed.from_plain(m.clock.to_plain()) == m.clock


def test_a_program_that_had_no_such_clock():
    clock = Elapsed()
    clock.prepare(START)  # its last record
    clock.look(START + 10 * DAY, 5 * US, "b")
    assert START <= clock.us <= START + 5 * US, "how long it was away is a claim"
    clock.look(START + 11 * DAY, DAY + 5 * US, "b")
    assert clock.us == START + 11 * DAY

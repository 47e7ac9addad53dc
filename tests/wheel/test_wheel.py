"""The timing wheel against a dict and a sort: random histories, all small cases at level borders, limits, memory."""

from __future__ import annotations

import itertools
import os
import resource
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import assume, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.rigs.wheel_oracle import NEVER_MS, DumbWheel
from wheelsched.wheel import _wheel
from wheelsched.wheel._wheel import Wheel

UNITS = [1 << shift for shift in (0, 13, 27, 36, 45, 54)]  # milliseconds of a unit, per level
NOW = 1_796_000_000_000
LOWEST, HIGHEST = -(2**63), 2**63 - 2
YEAR_9999 = 253_402_300_799_999
TEN_THOUSAND_YEARS = 10_000 * 366 * 86_400_000
IDS = st.integers(0, 40) | st.sampled_from([16_383, 16_384, 70_000])


def u32(values) -> np.ndarray:
    return np.array(values, np.uint32)


def i64(values) -> np.ndarray:
    return np.array(values, np.int64)


def drain(wheel: Wheel, now: int, limit: int = 65_536) -> list[int]:
    out: list[int] = []
    while len(due := wheel.advance(now, limit)):
        assert len(due) <= limit
        out += due.tolist()
    return out


@st.composite
def instants(draw, now: int) -> int:
    """An instant that matters: about now, at the border of a unit, or extreme."""
    unit = draw(st.sampled_from(UNITS))
    at = draw(
        st.sampled_from([now, now - 1, now + 1, YEAR_9999, 0, LOWEST, HIGHEST])
        | st.integers(now - 20_000, now + 40_000)
        | st.builds(lambda k, d: (now // unit + k) * unit + d, st.integers(0, 3), st.integers(-1, 1))
    )
    return min(max(at, LOWEST), HIGHEST)


class Machine(RuleBasedStateMachine):
    """Everything one can do to a wheel, beside the dumb one."""

    @initialize(now=st.sampled_from([NOW, 0, -1, (1 << 27) - 1, (1 << 36) - 1, 1 << 45, LOWEST]))
    def start(self, now: int) -> None:
        self.now = now
        self.wheel, self.dumb = Wheel(now), DumbWheel(now)

    @rule(data=st.data(), ids=st.lists(IDS, max_size=60))
    def add(self, data, ids: list[int]) -> None:
        few = data.draw(st.lists(instants(self.now) | st.just(NEVER_MS), min_size=1, max_size=4))
        when = [few[i % len(few)] for i in data.draw(st.permutations(range(len(ids))))]
        self.wheel.add(u32(ids), i64(when))
        self.dumb.add(ids, when)

    @rule(data=st.data(), start=st.integers(0, 100), count=st.integers(1, 200))
    def add_crowd(self, data, start: int, count: int) -> None:
        """Many at one instant: more than a chunk."""
        ids = list(range(start, start + count))
        when = [data.draw(instants(self.now))] * count
        self.wheel.add(u32(ids), i64(when))
        self.dumb.add(ids, when)

    @rule(data=st.data(), timer=IDS)
    def add_one(self, data, timer: int) -> None:
        when = data.draw(instants(self.now) | st.just(NEVER_MS))
        self.wheel.add_one(timer, when)
        self.dumb.add([timer], [when])

    @rule(ids=st.lists(IDS | st.integers(0, 300), max_size=200))
    def cancel(self, ids: list[int]) -> None:
        assert self.wheel.cancel(u32(ids)) == self.dumb.cancel(ids)

    @rule(step=st.integers(2, 5), offset=st.integers(0, 4))
    def thin(self, step: int, offset: int) -> None:
        """Cancel most, so that chunks are merged."""
        ids = [timer for i, timer in enumerate(self.dumb.pending()) if i % step != offset]
        assert self.wheel.cancel(u32(ids)) == self.dumb.cancel(ids) == len(ids)

    @rule(timer=IDS)
    def cancel_one(self, timer: int) -> None:
        assert self.wheel.cancel_one(timer) is bool(self.dumb.cancel([timer]))

    def advance_to(self, now: int, limit: int, calls: int) -> None:
        self.now = now
        for _ in range(calls):
            got = self.wheel.advance(now, limit).tolist()
            assert len(got) <= limit
            assert got == self.dumb.advance(now, len(got) or 1)

    @rule(
        jump=st.just(0) | st.integers(0, 30_000) | st.sampled_from(UNITS[1:5]) | st.integers(0, TEN_THOUSAND_YEARS),
        limit=st.sampled_from([1, 3, 65_536]), calls=st.integers(1, 3),
    )
    def advance(self, jump: int, limit: int, calls: int) -> None:
        self.advance_to(min(self.now + jump, HIGHEST), limit, calls)

    @rule(level=st.integers(0, 5), ahead=st.integers(1, 3), off=st.integers(-1, 1), limit=st.sampled_from([2, 65_536]))
    def advance_to_border(self, level: int, ahead: int, off: int, limit: int) -> None:
        at = (self.now // UNITS[level] + ahead) * UNITS[level] + off
        self.advance_to(min(max(at, self.now), HIGHEST), limit, 2)

    @precondition(lambda self: self.dumb.timers)
    @rule(off=st.integers(-1, 1))
    def advance_to_next_due(self, off: int) -> None:
        self.advance_to(min(max(self.dumb.next_due() + off, self.now), HIGHEST), 65_536, 2)

    @rule(data=st.data())
    def rebuild(self, data) -> None:
        now = data.draw(instants(self.now))
        self.now = now
        self.wheel.rebuild(now)
        self.dumb.rebuild(now)

    @rule(data=st.data())
    def clear(self, data) -> None:
        assume(data.draw(st.integers(0, 9)) == 0)
        self.now = data.draw(instants(self.now))
        self.wheel.clear(self.now)
        self.dumb.clear(self.now)

    @invariant()
    def same(self) -> None:
        if not hasattr(self, "wheel"):
            return
        self.wheel.check()
        assert self.wheel.next_due() == self.dumb.next_due()
        assert self.wheel.pending().tolist() == self.dumb.pending()
        assert len(self.wheel) == len(self.dumb.timers)
        assert self.wheel.now_ms == self.now
        for timer in (0, 40, 16_384, 99_999):
            assert self.wheel.when(timer) == self.dumb.when(timer)
            assert (timer in self.wheel) is (timer in self.dumb.timers)

    def teardown(self) -> None:
        if hasattr(self, "wheel"):
            assert drain(self.wheel, max(self.now, HIGHEST), 7) == self.dumb.due(HIGHEST)
            self.wheel.check()
            assert len(self.wheel) == 0


TestMachine = Machine.TestCase
TestMachine.settings = settings(stateful_step_count=30)


@pytest.mark.parametrize("level", range(1, 6))
def test_all_small_cases_at_level_borders(level: int) -> None:
    """Every subset of the instants around borders, seen from before, on and behind them, in one jump and in steps."""
    unit = UNITS[level]
    border = (NOW // unit + 2) * unit if level < 5 else unit
    points = [border - 1, border, border + 1, border + UNITS[level - 1], border + unit - 1, border + unit]
    starts = [border - unit - 1, border - 1, border]
    for start, count in itertools.product(starts, range(len(points) + 1)):
        for chosen in itertools.combinations(points, count):
            order = chosen[::-1]
            for stops in ([points[-1]], [border - 1, border, border + 1, points[-1]], [border + 1, border + unit - 1, points[-1]]):
                wheel, dumb = Wheel(start), DumbWheel(start)
                for owner, make in ((wheel, (u32, i64)), (dumb, (list, list))):
                    owner.add(make[0](range(count)), make[1](order))
                for stop in stops:
                    if stop >= wheel.now_ms:
                        assert wheel.next_due() == dumb.next_due()
                        assert drain(wheel, stop) == dumb.advance(stop, 99), (start, chosen, stops)
                        wheel.check()
                    wheel.add_one(99, stop + 1)  # the same instant, added later
                    dumb.add([99], [stop + 1])


@pytest.mark.parametrize("gap", [100, 5_000, 20_000, 200_000_000, 10**11, 10**14])
def test_order_of_adding_survives_handing_down(gap: int) -> None:
    """Timers of one instant added from further and further near come out in that order."""
    wheel, due = Wheel(NOW), NOW + gap
    for i in range(40):
        wheel.add_one(i, due)
        assert drain(wheel, NOW + gap * i // 40) == []
        wheel.check()
    assert wheel.next_due() == due
    assert drain(wheel, due) == list(range(40))


def test_nothing_wakes_an_idle_server_early() -> None:
    """Sleeping until next_due() finds something due each time."""
    rng = np.random.default_rng(7)
    wheel = Wheel(NOW)
    when = NOW + rng.integers(0, 40 * 365 * 86_400_000, 500)
    wheel.add(np.arange(500, dtype=np.uint32), when)
    wakes = 0
    while (at := wheel.next_due()) != NEVER_MS:
        assert drain(wheel, at)
        wakes += 1
    assert wakes == len(set(when.tolist()))


def test_a_cancelled_minimum_in_a_crowd_is_never_late() -> None:
    wheel = Wheel(NOW)
    n = 100_000
    when = NOW + 10**10 + np.arange(n, dtype=np.int64)
    wheel.add(np.arange(n, dtype=np.uint32), when)
    wheel.cancel_one(0)
    assert wheel.next_due() <= when[1]
    for _ in range(7):  # a level at most for each early wake-up
        at = wheel.next_due()
        if len(due := wheel.advance(at, 1)):
            break
    assert due.tolist() == [1]


def test_a_million_random_timers() -> None:
    rng = np.random.default_rng(1)
    n = 1_000_000
    wheel = Wheel(NOW)
    ids = rng.permutation(n).astype(np.uint32)
    when = NOW + rng.integers(-1_000, 86_400_000, n)
    wheel.add(ids, when)
    wheel.check()
    assert wheel.nbytes <= 20 * n
    gone = ids[:300_000]
    assert wheel.cancel(gone) == len(gone)
    wheel.check()
    order = np.argsort(when[300_000:], kind="stable")
    assert wheel.next_due() == when[300_000:].min()
    parts = [wheel.advance(NOW)]
    for now in range(NOW, NOW + 86_400_000, 7_200_000):
        while len(due := wheel.advance(now)):
            parts.append(due)
        wheel.check()
    while len(due := wheel.advance(NOW + 86_400_000)):
        parts.append(due)
    assert np.array_equal(np.concatenate(parts), ids[300_000:][order])
    assert len(wheel) == 0


def test_memory_follows_the_number_of_timers() -> None:
    """Cancelling all but a few leaves no thin chunks behind: 26 ids fill a chunk, and one in 40 stays."""
    wheel, n = Wheel(NOW), 40_000
    ids = np.arange(n, dtype=np.uint32)
    for turn in range(20):
        fresh = ids + np.uint32(turn * n)
        wheel.add(fresh, np.full(n, NOW + 10**9 + turn, np.int64))
        if turn == 0:
            size = wheel.nbytes
        wheel.cancel(fresh[fresh % 40 != 0])
        wheel.check()
    assert len(wheel) == 20 * n // 40
    records = 12 * 20 * n
    assert wheel.nbytes <= size + records + 20 * (n // 40) * 24


@pytest.mark.parametrize("backwards", [False, True])
def test_thin_neighbours_of_different_instants_are_merged(backwards: bool) -> None:
    """Each chunk of 26 had one instant; what remains of both lies in one chunk that has two."""
    wheel, dumb, n = Wheel(NOW), DumbWheel(NOW), 52
    ids = list(range(n))
    when = [NOW + 10**9 + (timer >= 26) for timer in ids]
    wheel.add(u32(ids), i64(when))
    dumb.add(ids, when)
    gone = [timer for timer in ids if timer % 26 >= 5]
    for timer in gone[::-1] if backwards else gone:
        wheel.cancel_one(timer)
        dumb.cancel([timer])
        wheel.check()
    for at in (NOW + 10**9, NOW + 10**9 + 1):
        assert drain(wheel, at) == dumb.advance(at, 99)
        wheel.check()


@pytest.mark.parametrize("level", [1, 2, 3])
@pytest.mark.parametrize("stop", ["in steps", "a jump in", "a jump over"])
def test_a_unit_handed_down_in_part(level: int, stop: str) -> None:
    """More timers in a unit than one advance hands down early: part is below, the rest waits, and later ones join it."""
    unit = UNITS[level]
    first = (NOW // unit + 2) * unit
    start = first - 2 * unit
    rng = np.random.default_rng(level)
    n = 30_000
    when = first + rng.integers(1, unit, n)
    when[0] = first  # the earliest is the first to be handed down
    wheel, dumb = Wheel(start), DumbWheel(start)
    ids = list(range(n))
    wheel.add(u32(ids), when)
    dumb.add(ids, when.tolist())
    now = first - unit  # from here on the unit is near enough to be handed down
    for i in range(2):
        assert drain(wheel, now + i) == []
        wheel.check()
        late = [n + i, n + 10 + i]  # one for an instant of a timer that may be below, one for one that may wait
        at = [int(when[1]), int(when[-1])]
        wheel.add(u32(late), i64(at))
        dumb.add(late, at)
        earliest = dumb.next_due()
        gone = [timer for timer, (instant, _) in dumb.timers.items() if instant == earliest]
        assert wheel.cancel(u32(gone)) == dumb.cancel(gone)
        assert wheel.next_due() == dumb.next_due()
        wheel.check()
    stops = {"in steps": range(first, first + unit + 1, unit // 8), "a jump in": [first + unit // 3, first + unit],
             "a jump over": [first + unit]}[stop]
    for at in stops:
        assert drain(wheel, at) == dumb.advance(at, n + 99), (level, stop, at - first)
        wheel.check()
    assert len(wheel) == 0


def test_arguments_are_checked() -> None:
    wheel = Wheel(NOW)
    wheel.add(u32([1]), i64([NOW + 5]))
    with pytest.raises(ValueError, match="length"):
        wheel.add(u32([1, 2]), i64([NOW]))
    with pytest.raises(ValueError, match="mismatch"):
        wheel.add(i64([1]), i64([NOW]))
    with pytest.raises(ValueError, match="contiguous"):
        wheel.add(u32([1, 2, 3, 4])[::2], i64([NOW, NOW]))
    with pytest.raises(ValueError, match="not an id"):
        wheel.add(u32([7, 2**32 - 1]), i64([NOW, NOW]))
    with pytest.raises(ValueError, match="not an id"):
        wheel.add_one(2**32 - 1, NOW)
    with pytest.raises(OverflowError):
        wheel.add_one(2**32, NOW)
    with pytest.raises(OverflowError):
        wheel.add_one(1, 2**63)
    with pytest.raises(ValueError, match="back"):
        wheel.advance(NOW - 1)
    with pytest.raises(ValueError, match="limit"):
        wheel.advance(NOW, 0)
    assert wheel.pending().tolist() == [1]
    assert (wheel.when(1), wheel.when(7), wheel.now_ms) == (NOW + 5, None, NOW)
    wheel.check()


def test_buffers_of_any_kind() -> None:
    from array import array

    wheel = Wheel(NOW)
    frozen = u32([3, 1])
    frozen.flags.writeable = False
    wheel.add(frozen, array("q", [NOW, NOW]))
    wheel.add(memoryview(array("I", [9])), i64([NOW]))
    wheel.add(u32([]), i64([]))
    assert wheel.cancel(u32([])) == 0
    due = wheel.advance(NOW)
    assert due.dtype == np.uint32
    assert due.tolist() == [3, 1, 9]
    assert wheel.advance(NOW).dtype == np.uint32


def test_never_is_the_same_everywhere() -> None:
    assert _wheel.NEVER_MS == NEVER_MS
    wheel = Wheel(NOW)
    assert wheel.next_due() == NEVER_MS
    wheel.add_one(4, HIGHEST)
    assert wheel.next_due() == HIGHEST
    wheel.add_one(4, NEVER_MS)
    assert (wheel.next_due(), len(wheel), wheel.when(4)) == (NEVER_MS, 0, None)


@pytest.mark.parametrize("now", [HIGHEST, HIGHEST - 1, HIGHEST - UNITS[2], NEVER_MS])
def test_never_is_no_instant_even_at_the_end_of_time(now: int) -> None:
    wheel = Wheel(now)
    wheel.add_one(3, NEVER_MS)  # an id that no memory was ever made for
    wheel.add(u32([1, 2]), i64([HIGHEST, NEVER_MS]))
    wheel.check()
    assert wheel.pending().tolist() == [1]
    assert wheel.next_due() == HIGHEST
    assert drain(wheel, NEVER_MS) == [1]


OUT_OF_MEMORY = """
import resource, sys
import numpy as np
from wheelsched.wheel._wheel import Wheel
NOW = {now}
wheel = Wheel(NOW)
wheel.add(np.arange(1000, dtype=np.uint32), NOW + np.arange(1000, dtype=np.int64) * 3_000_000)
ids = np.arange(20_000_000, dtype=np.uint32) * 200
when = np.full(20_000_000, NOW + 5, np.int64)
size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (size + 64 * 2**20, size + 64 * 2**20))
for _ in range(2):
    try:
        wheel.add(ids, when)
    except MemoryError as e:
        print("refused:", e)
    wheel.check()
    assert len(wheel) == 1000 and wheel.when(7) == NOW + 21_000_000 and wheel.next_due() == NOW
wheel.add_one(5, NOW)
assert wheel.advance(NOW + 3_000_000).tolist() == [0, 5, 1]
wheel.check()
"""


@pytest.mark.skipif(not hasattr(resource, "RLIMIT_AS") or sys.platform != "linux", reason="needs RLIMIT_AS")
@pytest.mark.skipif("asan" in os.environ.get("LD_PRELOAD", ""), reason="a sanitizer needs the address space")
def test_out_of_memory_leaves_the_wheel_as_it_was() -> None:
    done = subprocess.run([sys.executable, "-c", OUT_OF_MEMORY.format(now=NOW)], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("refused: no memory") == 2

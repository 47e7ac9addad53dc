"""Clocks that are set while the real server runs: through a library that shifts CLOCK_REALTIME, and `--clock-check` to notice."""

import shutil
import time

import numpy as np
import pytest

from tests.rigs.clock import Shift
from tests.rigs.server import Serving, wait_for
from wheelsched import Call, Client, Every
from wheelsched.model.nouns import NEVER, US
from wheelsched.server.clock import Clock, WallTimer
from wheelsched.server.lags import Histogram


@pytest.fixture
def world(short_tmp):
    if shutil.which("gcc") is None:
        pytest.skip("no gcc to build the clock shim")
    shift = Shift(short_tmp)
    server = Serving(short_tmp, "--clock-check", "50ms", env=shift.env)
    ws = server.client()
    yield ws, shift, server
    server.process.kill()
    server.process.wait()
    for thing in server.open:
        thing.close()
    shift.map.close()


def nominals(ws: Client, job):
    return [r.scheduled_at for r in ws.runs(job, limit=None)]


def no_doubles(ws, job):
    times = nominals(ws, job)
    assert len(times) == len(set(times)), times
    return times


def test_a_step_ahead_is_a_misfire_and_the_grid_goes_on(world):
    ws, shift, server = world
    ws.put("tick", Call("t.echo", 1), Every("1s"), overlap="allow")  # an open run must not be in the way of the catch-up run
    wait_for(lambda: len(nominals(ws, "tick")) >= 1)
    shift.set(3_600)
    wait_for(lambda: any(r.missed > 3_000 for r in ws.runs("tick")))
    count = len(nominals(ws, "tick"))
    wait_for(lambda: len(nominals(ws, "tick")) > count)
    no_doubles(ws, "tick")
    assert "ahead" in server.log.read_text()


@pytest.mark.parametrize("back", [10, 3_600])
def test_a_step_back_doubles_nothing_and_silences_nothing(world, back):
    ws, shift, server = world
    ws.put("tick", Call("t.echo", 1), Every("500ms", anchor="2020-01-01T00:00:00Z"))
    wait_for(lambda: len(nominals(ws, "tick")) >= 2)
    before = nominals(ws, "tick")
    shift.set(-back)
    count = len(before)
    wait_for(lambda: len(nominals(ws, "tick")) >= count + 3)
    times = no_doubles(ws, "tick")
    assert min(times) < min(before), "it fires at the new clock's times"
    assert "set back" in server.log.read_text()


def test_there_and_back_again(world):
    """A clock that was wrong for a moment silences no job for a year, and what ran meanwhile runs no second time."""
    ws, shift, _ = world
    ws.put("tick", Call("t.echo", 1), Every("500ms", anchor="2020-01-01T00:00:00Z"), overlap="allow")
    wait_for(lambda: len(nominals(ws, "tick")) >= 2)
    shift.set(365 * 86_400)
    wait_for(lambda: any(r.missed for r in ws.runs("tick")))
    shift.set(0)
    count = len(nominals(ws, "tick"))
    wait_for(lambda: len(nominals(ws, "tick")) >= count + 3)
    no_doubles(ws, "tick")


def test_a_step_ends_no_lease_and_no_timeout(world):
    ws, shift, _ = world
    run = ws.enqueue(Call("t.sleep", 1.5), timeout="20s")
    wait_for(lambda: ws.run(run.id).state == "running")
    shift.set(86_400)
    time.sleep(0.3)  # let the server see it
    shift.set(-86_400)
    assert run.result(timeout=20) == 1


def test_the_timer_fires_at_its_instant_and_can_be_set_again():
    timer = WallTimer()
    try:
        import select

        poll = select.poll()
        poll.register(timer.fileno(), select.POLLIN)
        assert poll.poll(0) == []
        timer.set(time.time_ns() // 1000 + 20_000)
        assert poll.poll(5_000)
        timer.drain()
        timer.set(NEVER)
        assert poll.poll(0) == []
        timer.set(-5)
        assert poll.poll(5_000), "an instant in the past is now"
    finally:
        timer.close()


def test_the_clock_tells_no_step_when_there_is_none():
    clock = Clock(offset_us=-5 * US)
    for _ in range(5):
        now, step, slept = clock.look()
        assert (step, slept) == (0, 0)
    assert abs(now.wall_us - (time.time_ns() // 1000 - 5 * US)) < US


def test_histogram_quantiles_are_within_two_percent():
    rng = np.random.default_rng(1)
    for scale in (50, 5_000, 5_000_000):
        values = (rng.exponential(scale, 20_000) + 1).astype(np.int64)
        histogram = Histogram()
        for part in np.array_split(values, 7):
            histogram.add(part)
        for q in (0.5, 0.99, 0.999):
            true = np.quantile(values, q)
            assert histogram.quantile(q) * 1000 == pytest.approx(true, rel=0.04), (scale, q)
        assert histogram.summary()["max"] == values.max() / 1000
        assert histogram.count == len(values)
    assert Histogram().summary()["p99"] == 0


def test_the_cumulative_counts_of_lags_are_two_percent_near():
    rng = np.random.default_rng(5)
    lags = (10 ** rng.uniform(0, 9, 50_000)).astype(np.int64)
    histogram = Histogram()
    for part in np.array_split(lags, 7):
        histogram.add(part)
    told = histogram.cumulative()
    assert told["sum_s"] == pytest.approx(lags.sum() / 1e6)
    assert [n for _, n in told["le"]] == sorted(n for _, n in told["le"])
    for edge, n in told["le"]:
        assert (lags <= edge * 0.96e6).sum() <= n <= (lags <= edge * 1.02e6).sum()
    histogram.add(np.array([-50, 0], np.int64))  # early ones count as none
    assert histogram.cumulative()["sum_s"] == told["sum_s"]
    assert [n for _, n in Histogram().cumulative()["le"]] == [0] * len(told["le"])

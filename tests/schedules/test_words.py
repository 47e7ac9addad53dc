"""A schedule is written in one way, wherever people read it."""

from __future__ import annotations

import pytest

from wheelsched import At, Call, Cron, Every, Manual
from wheelsched.schedules.words import given_words, instant_words, schedule_words
from wheelsched.simulator.simulator import Simulator

SCHEDULES = [
    (Cron("0 2 * * *", tz="Europe/Berlin", dst_gap="skip", day_or=False), "0 2 * * * Europe/Berlin dst_gap=skip day_or=false"),
    (Cron("*/5 * * * *"), "*/5 * * * *"),
    (Every("90s"), "every 1m30s"),
    (Every("1h", after_completion=True), "every 1h after completion"),
    (At("2026-12-24T18:00:00Z"), "at 2026-12-24T18:00:00Z"),
    (At("2026-12-24T18:00:00.0004Z"), "at 2026-12-24T18:00:00.001000Z"),
    (Manual(), "manual"),
    ([Cron("0 0 * * *"), Every("90s")], "0 0 * * * | every 1m30s"),
]


@pytest.mark.parametrize(("given", "words"), SCHEDULES)
def test_a_plan_and_a_history_say_the_same(given, words):
    assert given_words(given) == words
    with Simulator(start="2026-12-01T00:00:00Z") as sim:
        sim.client.put("j", Call("t"), Cron("1 1 1 1 *"))
        assert sim.client.set("j", schedule=given).changes["schedule"] == ("1 1 1 1 *", words)
        new = sim.client.history("j")[0].changes["schedule"][1]
        assert " | ".join(part.partition(" from ")[0] for part in new.split(" | ")) == words


def test_what_may_be_left_out():
    wire = Cron("0 2 * * *", tz="Europe/Berlin").to_wire()
    assert schedule_words(wire, zone=False) == "0 2 * * *"
    assert schedule_words(At("2026-12-24T18:00:00Z").to_wire()) == "once"
    every = Every("5m", anchor="2026-12-01T00:00:00Z")
    assert schedule_words(every.to_wire(), every.param_us()) == "every 5m from 2026-12-01T00:00:00Z"
    assert schedule_words(every.to_wire(), every.param_us(), anchor=False) == "every 5m"
    assert instant_words(None) == "none"

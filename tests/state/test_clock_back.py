"""A clock that is set back further than history is kept: what history has dropped does not run again, and says so."""

from __future__ import annotations

from datetime import datetime

import msgpack
import numpy as np
import pytest

from tests.rigs.engine import Bench, fold
from tests.sim.kept import DAY, WORK, YEAR, Kept
from wheelsched import At, Catchup, Cron, Every
from wheelsched.journal.memory import Batch
from wheelsched.model.errors import FailedPreconditionError
from wheelsched.model.nouns import US, to_datetime
from wheelsched.protocol.definition import given_from_api
from wheelsched.protocol.frames import encode_payload
from wheelsched.state.bygone import APART_US, SPANS_MAX, merged, spans_of, within
from wheelsched.state.history import Block, of_runs
from wheelsched.state.state import State

HOUR_US, DAY_US = 3_600 * US, DAY * US


def put(world, name, schedule, **policies):
    given, param = given_from_api(WORK, schedule, policies)
    return world.ask("put", name=name, given=given, param_us=param, payload=encode_payload((), {}))


def back(world, days):
    world.set_back(round(days * DAY_US))
    world.inputs.append(world.clock_back())
    world.turn()


def ahead(world, days):
    world.wall_us += round(days * DAY_US)
    world.engine.missed_before_us = world.wall_us
    world.turn()


def told(world, name):
    """Nominal times of a job's runs, and of the occurrences that its ledger rows tell of with the reason `decided`."""
    job = world.judge.jobs[f"default/{name}".encode()]
    return sorted(at for at, n in job.runs.items() if n), sorted(at for at, fate in job.fates.items() if fate[1] == "decided")


def every(world, hours, since, until):
    return list(range(world.start_us + round(since * DAY_US) + hours * HOUR_US, world.start_us + round(until * DAY_US) + 1, hours * HOUR_US))


@pytest.mark.parametrize("crash", [False, True])
def test_what_history_has_dropped_does_not_run_again(crash):
    w = Kept(2)
    w.put("tick", Every("6h"))
    w.days(10)
    back(w, 5)  # of these days history has the last two
    if crash:
        w.crash()
        w.spawn("pool")
    w.check_replay()
    w.put("new", Every("6h"))
    w.days(7)
    runs, decided = told(w, "tick")
    assert runs == every(w, 6, 0, 12), "each time once, and the job goes on where it was"
    assert set(decided) <= set(runs)
    assert decided[0] == every(w, 6, 5, 12)[0]
    assert 8 <= len(decided) <= 16, "those of three days; the others are in history"
    assert not told(w, "new")[1]
    assert len(told(w, "new")[0]) == 28, "a job that had decided nothing runs"
    assert not w.engine.state.bygone.lost, "all are past it"
    w.check_replay()
    w.judge.verdict(w.wall_us)


@pytest.mark.parametrize(("catchup", "made"), [
    (Catchup("all", window="90d"), 12), ("all", 4), (Catchup("all", window="30h"), 5), (Catchup("all", window="90d", max=3), 3), ("latest", 1), ("earliest", 1), ("skip", 0),
])
@pytest.mark.parametrize("pieces", [False, True])
def test_catch_up_leaves_it_out(monkeypatch, catchup, made, pieces):
    if pieces:
        for module in ("engine.catchup", "engine.due"):
            monkeypatch.setattr(f"wheelsched.{module}.PIECE", 2)
    w = Kept(2)
    put(w, "tick", Every("6h"), catchup=catchup)
    w.days(10)
    back(w, 5)
    w.days(0.5)
    ahead(w, 7.6)
    w.days(1)
    runs, decided = told(w, "tick")
    assert runs[:40] == every(w, 6, 0, 10)
    late = [at for at in runs[40:] if at <= w.start_us + 13 * DAY_US]
    assert len(late) == made, "`max` and `window` count what may run"
    assert min(late, default=w.wall_us) > w.start_us + 10 * DAY_US
    assert len(decided) >= 8
    w.check_replay()
    w.judge.verdict(w.wall_us)


def test_a_clock_that_was_a_year_ahead_for_longer_than_history_silences_no_year():
    w = Kept(1)
    w.put("tick", Every("6h"))
    w.days(3)
    ahead(w, YEAR / DAY)
    w.days(4)
    back(w, YEAR / DAY)
    w.days(3)
    runs, decided = told(w, "tick")
    now = w.start_us + 10 * DAY_US
    assert [at for at in runs if w.start_us + 7 * DAY_US < at <= now] == every(w, 6, 7, 10)
    assert not [at for at in decided if at > w.start_us + 7 * DAY_US]
    ahead(w, YEAR / DAY - 8)
    w.days(4)
    runs, decided = told(w, "tick")
    assert decided[-1] > now + (YEAR // DAY - 8) * DAY_US, "these times ran when they came first"
    w.days(4)
    assert told(w, "tick")[0][-1] > w.wall_us - 6 * HOUR_US
    w.check_replay()


def test_it_goes_back_once_more_and_the_marks_go_with_the_job():
    w = Kept(1)
    w.put("tick", Every("6h"))
    w.put("gone", Every("6h"))
    w.days(8)
    back(w, 6)
    w.days(2)
    back(w, 3)
    w.ask("delete", name="gone")
    w.put("gone", Every("6h"))
    w.days(8)
    for name in ("tick", "gone"):
        assert told(w, name)[0] == every(w, 6, 0, 9)
    w.check_replay()


def test_a_delay_after_completion_goes_on_at_once():
    w = Kept(1)
    w.put("after", Every("6h", after_completion=True))
    w.days(8)
    before = len(told(w, "after")[0])
    back(w, 6.001)
    w.days(3)
    runs, decided = told(w, "after")
    assert len(runs) >= before + 11
    assert not decided


# What is told, and what is refused


@pytest.fixture
def b():
    """Six days of a job `j` at midnight and one of `once`, all dropped; then the clock is set back by five days."""
    with Bench("2026-03-02T00:00:00Z") as bench:
        bench.put(schedule=Cron("0 0 * * *"))
        bench.put("once", At("2026-03-04T12:00:00Z"))
        for _ in range(6):
            bench.advance("1d")
            bench.hello()
            bench.finish(bench.lease())
        fold(bench)
        bench.journal.append(Batch(drop_history=bench.journal.history_range()[1]))
        bench.step_clock(-5 * DAY)
        yield bench


def us(text):
    return round(datetime.fromisoformat(text).timestamp()) * US


def test_everybody_says_the_same_of_it(b):
    ahead_of_it, first = to_datetime(us("2026-03-04T00:00Z")), to_datetime(us("2026-03-09T00:00Z"))
    assert b.client.next("j", 2) == [first, to_datetime(us("2026-03-10T00:00Z"))]
    assert b.client.get("j").next_at == first
    fate = b.client.why("j", ahead_of_it)
    assert (fate.disposition, fate.reason) == ("skipped", "decided")
    assert "before the clock was set back" in fate.text
    for ask in (lambda: b.client.skip("j", ahead_of_it), lambda: b.client.move("j", ahead_of_it, first)):
        with pytest.raises(FailedPreconditionError, match="decided before the clock was set back"):
            ask()
    with pytest.raises(FailedPreconditionError, match="choose another name"):
        b.put("once", At("2026-03-04T06:00:00Z"))
    b.put("once", At("2026-03-08T12:00:00Z"))
    assert list(b.client.forecast("8d", bucket="1d").counts) == [0, 0, 0, 0, 0, 1, 1, 1, 1]


def test_a_ledger_row_tells_of_it_and_nobody_is_alarmed(b):
    b.put("alarm", Cron("0 0 1 1 *"))
    b.put(schedule=Cron("0 0 * * *"), on_missed="alarm")
    b.advance("4d")
    skipped = list(b.client.runs("j", skipped=True))
    assert [r.reason for r in skipped] == ["decided"] * 4
    assert b.client.why("j", to_datetime(us("2026-03-05T00:00Z"))).reason == "decided"
    assert not list(b.client.runs("alarm"))
    assert not list(b.client.runs("j"))
    b.advance("2d")
    assert [r.scheduled_at for r in b.client.runs("j")] == [to_datetime(us("2026-03-09T00:00Z"))]


def test_max_runs_counts_none_of_it(b):
    b.put("few", Cron("0 0 * * *"), max_runs=8)
    b.advance("1d")
    assert len(list(b.client.runs("few"))) == 1


# What is kept


def test_a_snapshot_has_it(b):
    live = b.engine.state
    assert live.bygone.lost
    loaded = State.load(piece for part in live.copy(1) for piece in part)
    assert loaded.digest() == live.digest()
    assert loaded.bygone.of(live.find_job(b"default/j")) == live.bygone.of(live.find_job(b"default/j")) != []
    loaded.bygone.mark(np.array([0], np.uint32), np.array([2**50]), [(1, 2)])
    assert loaded.digest() != live.digest()


def test_spans_are_joined_and_bounded():
    assert spans_of(np.array([5, 1, 3])) == [(1, 5)]
    far = 3 * APART_US
    assert spans_of(np.array([far, 1, far + 5, 3])) == [(1, 3), (far, far + 5)]
    assert merged([(far, far + 5), (1, 3), (2, 9)]) == [(1, 9), (far, far + 5)]
    assert merged([(1, 3), (3 + APART_US, 4 + APART_US)]) == [(1, 4 + APART_US)]
    many = [(n * n * far, n * n * far + 1) for n in range(1, SPANS_MAX + 3)]
    joined = merged(many)
    assert len(joined) == SPANS_MAX
    assert joined[0] == (many[0][0], many[2][1]), "the nearest are made one"
    assert joined[1:] == many[3:]
    at = np.array([0, 1, 9, 10, far - 1, far, far + 5, far + 6])
    assert within([(1, 9), (far, far + 5)], at).tolist() == [False, True, True, False, False, True, True, False]
    assert not within([], at).any()


def test_what_older_programs_wrote_is_read_and_tells_too_much_rather_than_too_little(b):
    live = b.engine.state
    first, *others = [piece for part in live.copy(1 << 20) for piece in part]
    small = msgpack.unpackb(first[1:], raw=False, strict_map_key=True)
    del small["bygone"]
    older = State.load(iter([b"S" + msgpack.packb(small), *(piece for piece in others if piece[:1] != b"D")]))
    assert older.bygone.folded == [(0, live.meta.at_us)]
    assert not older.bygone.lost
    older.check()


def test_a_block_of_an_older_program_may_have_any_time_before_it():
    with Bench("2026-03-02T00:00:00Z") as bench:
        bench.put(schedule=Cron("0 0 * * *"))
        for _ in range(3):
            bench.advance("1d")
            bench.hello()
            bench.finish(bench.lease())
            fold(bench)
        blocks = [Block(data) for _, data in of_runs(bench.journal.history_blocks())]
        assert [block.before for block in blocks] == [[], *([(us("2026-03-03T00:00Z"), us(f"2026-03-0{day}T00:00Z"))] for day in (3, 4))]
        older = [msgpack.unpackb(data, raw=False) for _, data in of_runs(bench.journal.history_blocks())]
        for block in older:
            del block["before"]
        assert [Block(msgpack.packb(block)).before for block in older] == [[], *([(0, block.ended_us)] for block in blocks[1:])]

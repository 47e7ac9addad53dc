"""Commands about jobs that are catching up: no turn is long, the order of a connection is kept, nothing is lost, done twice or half done."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.rigs.engine import Bench, ask_put
from wheelsched import Catchup, Cron, Every
from wheelsched.engine import catchup, due, housekeeping
from wheelsched.engine.turn import Disconnect, Incoming
from wheelsched.model.errors import WheelschedError
from wheelsched.protocol import frames
from wheelsched.protocol.limits import LIMITS
from wheelsched.state import records

START = "2026-03-02T00:00:00Z"
OWED = 400  # occurrences, one a second
PIECE = 40  # of a turn, in these tests


class Stepped(Bench):
    """One turn at a time: requests of several connections go in, the answers of that turn come out."""

    def __init__(self, start):
        super().__init__(start)
        self.asked, self.rows = {}, []  # verbs by connection and number; rows of DUE records, a number each turn

    def turn(self, *requests):
        """[(connection, verb, result or code of the error)] of the answers. Each request: (connection, verb, arguments)."""
        inputs = []
        for conn, verb, args in requests:
            self._last_id += 1
            self.asked[conn, self._last_id] = verb
            (body,) = frames.FrameReader(frames.FRAME_MAX).feed(frames.encode_request(self._last_id, verb, args))
            inputs.append(Incoming(conn, frames.parse_request(body), 0, None))
        self.step(inputs)
        answers = [(*key, reply) for key, reply in self._answers.items() if key in self.asked]
        self._answers.clear()
        return [(conn, self.asked.pop((conn, number)), r.error.code if r.error else r.result) for conn, number, r in answers]

    def step(self, inputs):
        self._step(inputs)
        self.rows.append(sum(len(f["job"]) for kind, f in map(records.decode, self._effects.records) if kind == "DUE"))

    def until_answered(self, *requests, most=60, wanted=0):
        """Turns until all are answered; the answers in their order."""
        got = self.turn(*requests)
        for _ in range(most):
            if len(got) == (wanted or len(requests)):
                return got
            got += self.turn()
        raise AssertionError(f"{len(got)} of {len(requests)} answers after {most} turns")


@pytest.fixture
def b(monkeypatch):
    """A server that was down while a job owed OWED occurrences, each of which is to run; its catch-up has not begun."""
    for place, name in ((catchup, "PIECE"), (due, "PIECE"), (due, "ROOM")):
        monkeypatch.setattr(place, name, PIECE)
    with Stepped(START) as bench:
        bench.put("j", Every("1s", anchor=bench.now), catchup=Catchup("all", max=1_000), overlap="allow")
        bench.put("other", Cron("0 0 1 1 *"))
        bench.crash(down=f"{OWED}s")
        bench.hello()
        yield bench
        bench.engine.state.check()


def changed(schedule=None, name="j", rid=1):
    return ask_put(name, schedule or Every("1h"), rid=bytes([rid] * 16))


def nominal_times(b, name="j"):
    return sorted(r.scheduled_at for r in b.runs(name))


@pytest.mark.parametrize(("verb", "args"), [
    ("put", changed()),
    ("put", changed() | {"keep": True}),
    ("pause", {"name": "j", "rid": bytes([1] * 16)}),
    ("delete", {"name": "j", "rid": bytes([1] * 16)}),
    ("trigger", {"name": "j", "rid": bytes([1] * 16)}),
    ("get", {"name": "j"}),
])
def test_a_command_about_a_job_that_catches_up_makes_no_turn_long(b, verb, args):
    ((_, _, answer),) = b.until_answered((1, verb, args))
    assert isinstance(answer, dict), answer
    assert max(b.rows) <= 4 * PIECE, b.rows
    assert len(b.rows) > 2
    runs = [r for r in b.runs("j") if r.trigger == "schedule"]
    assert len({r.scheduled_at for r in runs}) == len(runs)
    owed = OWED - len([r for r in runs if r.scheduled_at <= b.now])
    assert owed <= 1, f"{owed} occurrences are missing"  # what is due in the very turn is the next one


def test_what_a_connection_sends_behind_it_keeps_its_order(b):
    got = b.until_answered(
        (1, "put", changed()), (1, "pause", {"name": "other", "rid": b"2" * 16}), (1, "get", {"name": "j"}), (2, "get", {"name": "other"}),
    )
    assert [(conn, verb) for conn, verb, _ in got] == [(2, "get"), (1, "put"), (1, "pause"), (1, "get")]
    assert got[0][2]["state"] == "active"  # another connection's is answered at once, and sees nothing of what waits
    assert got[3][2]["version"] == got[1][2]["version"] == 2


def test_what_a_worker_tells_and_asks_for_never_waits(b):
    (run_id, token, _), *_ = b.lease(n=1)
    beat = {"id": run_id, "token": np.array([token], "<i8").tobytes(), "started": b"\1", "progress": []}
    got = b.turn((50, "put", changed()), (50, "heartbeat", beat))
    assert [verb for _, verb, _ in got] == ["heartbeat"]
    assert b.engine.postponed


def test_a_repeat_with_the_same_rid_has_the_same_answer_and_nothing_is_done_twice(b):
    b.turn((1, "put", changed()))
    b.step([Disconnect(1)])
    first, second = b.until_answered((2, "put", changed()), wanted=2)
    assert first[2] == second[2]
    assert b.client.get("j").version == 2


def test_a_crash_ends_one_that_waits(b):
    b.turn((1, "put", changed()))
    b.crash()
    assert not b.engine.postponed
    assert b.client.get("j").version == 1
    b.advance("1s")
    assert len(nominal_times(b)) >= OWED


def test_one_of_a_connection_that_has_gone_is_done_all_the_same(b):
    b.turn((1, "put", changed()))
    b.step([Disconnect(1)])
    for _ in range(20):
        b.step([])
    assert not b.engine.postponed
    assert b.client.get("j").version == 2


def test_what_comes_due_while_it_waits_makes_it_wait_no_longer(b):
    """Turns may take so long that a second passes in each."""
    got = b.turn((1, "put", changed()))
    for _ in range(OWED // PIECE + 3):
        b._jump(b.now_us + 5_000_000)
        got += b.turn()
    assert [verb for _, verb, _ in got] == ["put"]


def test_a_clock_that_jumps_meanwhile_makes_no_turn_long(b):
    b.turn((1, "put", changed()))
    b._jump(b.now_us + 600_000_000)
    b.rows.clear()
    ((_, _, answer),) = b.until_answered(wanted=1)
    assert answer["version"] == 2
    assert max(b.rows) <= 4 * PIECE, b.rows


def staged(b, *names, **args):
    frame = changed() | {"names": list(names), "payload": [changed()["payload"]] * len(names), "given": [changed()["given"]],
                         "which": bytes(4 * len(names)), "param_us": np.full(len(names), changed()["param_us"], "<i8").tobytes()}
    for key in ("name", "rid"):
        frame.pop(key)
    return [(1, "stage", frame), (1, "apply", {"jobs": len(names), "rid": b"3" * 16, **args})]


@pytest.mark.parametrize(("names", "args"), [(["j"], {}), (["k"], {"prune": "j"}), (["j", "k"], {"prune": "*"})])
def test_apply_waits_with_all_that_is_staged(b, names, args):
    got = b.until_answered(*staged(b, *names, **args))
    assert got[0][2] == {"staged": len(names)}
    answer = got[1][2]
    assert sorted([*answer["created"], *answer["updated"]]) == sorted(names)
    assert max(b.rows) <= 4 * PIECE, b.rows
    assert len(b.rows) > 3
    assert len(nominal_times(b)) >= OWED - 1
    assert b.engine.quotas.of("staged_bytes", 1) == b.engine.quotas.of("postponed_bytes", 1) == 0


def test_apply_of_a_connection_that_has_gone_changes_nothing(b):
    b.turn(*staged(b, "j"))
    b.step([Disconnect(1)])
    for _ in range(20):
        b.step([])
    assert not b.engine.postponed
    assert not b.engine.staged
    assert b.client.get("j").version == 1


def test_a_calendar_of_such_a_job_waits_too(b):
    b.client.calendar("c", dates=["2030-01-01"])
    b.put("k", Every("1s", anchor=b.now), catchup=Catchup("all", max=1_000), overlap="allow", calendar="c")
    b.crash(down=f"{OWED}s")
    b.rows.clear()
    b.call(1, ("get", {"name": "other"}))
    wire = {**b.engine.state.calendars["c"], "dates": ["2030-01-02"]}
    ((_, _, answer),) = b.until_answered((1, "calendar_put", {"name": "c", "calendar": wire, "rid": b"5" * 16}))
    assert answer["jobs"] == 1
    assert max(b.rows) <= 4 * PIECE, b.rows


def test_what_waits_is_limited_in_bytes(b, monkeypatch):
    monkeypatch.setitem(LIMITS, "postponed_bytes", replace(LIMITS["postponed_bytes"], connection=10_000))
    got = b.turn((1, "put", changed()), *[(1, "put", changed(name=f"x{i}", rid=i + 10)) for i in range(20)])
    assert [verb for _, verb, _ in got]
    assert {answer for _, _, answer in got} == {"resource_exhausted"}
    for _ in range(20):
        got += b.turn()
    assert len(got) == 21
    assert b.engine.quotas.of("postponed_bytes", 1) == 0


@pytest.mark.parametrize("due_jobs", [3, 300])
def test_many_due_jobs_of_a_frame_are_decided_together(due_jobs):
    """At midnight a frame of jobs is put that are all due: one batch, not one by one."""
    with Stepped(START) as b:
        names = [f"n{i}" for i in range(due_jobs)]
        for name in names:
            b.put(name, Every("60s", anchor=b.now))
        b._jump(b.now_us + 60_000_000)
        b.engine.now = b.engine.now.__class__(b.now_us, b._mono_us)
        b.engine.room = due.ROOM
        rows = np.array([b.engine.state.find_job(f"default/{name}".encode()) for name in names], np.uint32)
        due.decide_jobs(b.engine, rows)
        kinds = [records.decode(r)[0] for r in b.engine.effects.records]
        assert kinds.count("DUE") == 1
        b.step([])
        assert len(b.runs()) == due_jobs


def test_move_and_backfill_wait_while_history_takes_in_what_is_finished(b, monkeypatch):
    b.advance("1s")
    monkeypatch.setattr(housekeeping, "FOLD_ROWS", 8)
    b.finish(b.lease(n=100))
    assert housekeeping.behind(b.engine)
    at = b.client.get("other").next_at
    args = {"name": "other", "at_us": int(at.timestamp()) * 1_000_000, "to_us": b.now_us + 10_000_000, "rid": b"6" * 16}
    got = b.until_answered((1, "move", args))
    assert isinstance(got[0][2], dict), got
    assert len(b.rows) > 3


def test_an_error_is_answered_when_its_turn_comes(b):
    got = b.until_answered((1, "put", changed() | {"version": 7}))
    assert got[0][2] == "already_exists"
    with pytest.raises(WheelschedError):
        b.client.get("nope")

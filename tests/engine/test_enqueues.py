"""enqueue with an identity, enqueue_many, cancel by filter."""

from __future__ import annotations

import pytest

from tests.rigs.engine import FAILED, OK, Bench, at
from wheelsched import Call, Enqueue, FailedPreconditionError, InvalidArgumentError, Manual, NotFoundError, PayloadError
from wheelsched.engine.turn import Incoming
from wheelsched.model.nouns import FRAME_JOBS, FRAME_JOBS_MAX, KEY_MAX
from wheelsched.protocol.frames import Request
from wheelsched.state.state import State
from wheelsched.verbs import cancels

ARGS = ({"a": [1, {"x": 1, "y": 2}], "b": 2}, {"b": 2, "a": [1, {"y": 2, "x": 1}]})  # the same in another order


def loaded(sim):
    """The state through a snapshot."""
    return State.load(iter([piece for part in sim.engine.state.copy(1 << 20) for piece in part]))


# unique


def test_one_open_run_of_an_identity_and_a_new_one_when_it_has_ended():
    sim = Bench()
    first = sim.client.enqueue(Call("t", 1, k=ARGS[0]), unique=True)
    assert not first.existing
    for _ in range(2):
        again = sim.client.enqueue(Call("t", 1, k=ARGS[1]), unique=("args",), delay="1h")
        assert (again.id, again.existing, again.state) == (first.id, True, "queued")
        sim.crash()
        assert loaded(sim).digest() == sim.engine.state.digest()
    leases = sim.lease()
    assert sim.client.enqueue(Call("t", 1, k=ARGS[0]), unique=True).id == first.id
    sim.finish(leases, OK)
    assert not (fresh := sim.client.enqueue(Call("t", 1, k=ARGS[0]), unique=True)).existing
    assert fresh.id != first.id


@pytest.mark.parametrize(("unique", "same"), [
    ("task", {"args", "queue", "concurrency_key", "priority"}), (("args",), {"queue", "concurrency_key", "priority"}),
    (("args", "queue"), {"concurrency_key", "priority"}), (["concurrency_key"], {"args", "queue", "priority"}),
])
def test_the_named_fields_make_the_identity(unique, same):
    sim = Bench()
    first = sim.client.enqueue(Call("t", 1), queue="q", concurrency_key="k", unique=unique)
    others = {
        "args": (Call("t", 2), {}), "queue": (Call("t", 1), {"queue": "p"}), "concurrency_key": (Call("t", 1), {"concurrency_key": "l"}),
        "priority": (Call("t", 1), {"priority": 9}),
    }
    for field, (call, other) in others.items():
        run = sim.client.enqueue(call, unique=unique, **{"queue": "q", "concurrency_key": "k", **other})
        assert run.existing == (field in same), field
        assert (run.id == first.id) == (field in same)
    assert not sim.client.enqueue(Call("u", 1), queue="q", concurrency_key="k", unique=unique).existing
    assert not sim.client.enqueue(Call("t", 1), queue="q", concurrency_key="k", unique=unique, namespace="team").existing
    assert not sim.client.enqueue(Call("t", 1), queue="q", concurrency_key="k").existing


def test_types_of_arguments_count():
    sim = Bench()
    for value in (1, 1.0, True, "1", b"1", None, [1], at("2026-01-01")):
        assert not sim.client.enqueue(Call("t", value), unique=True).existing, value
        assert sim.client.enqueue(Call("t", value), unique=True).existing, value


def test_an_identity_is_free_however_the_run_ended_and_a_redriven_one_holds_it_again():
    sim = Bench()

    def ask():
        return sim.client.enqueue(Call("t"), unique=True, retry=1, expires_after="1h", delay="1s")

    first = ask()
    sim.client.cancel(first.id)
    second = ask()
    assert not second.existing
    sim.advance("2h")
    assert second.refresh().reason == "expired"
    third = ask()
    assert not third.existing
    sim.advance(2)
    sim.finish(sim.lease(), FAILED)
    sim.advance(120)  # what is forgotten meanwhile is not this
    sim.client.redrive("*")
    assert third.refresh().state == "queued"
    assert ask().id == third.id
    sim.finish(sim.lease(), FAILED)
    fourth = ask()
    assert not fourth.existing
    sim.client.redrive("*")
    assert ask().id == fourth.id  # two are open now, since a person wanted that


def test_identities_that_nobody_can_hold_are_forgotten():
    sim = Bench()
    for n in range(3):
        sim.client.enqueue(Call("t", n), unique=True)
    sim.finish(sim.lease(n=2), OK)
    assert len(sim.engine.state.keys) == 3
    sim.advance(130)
    sim.client.enqueue(Call("t"))
    assert len(sim.engine.state.keys) == 1
    sim.crash()
    assert len(sim.engine.state.keys) == 1


def test_key_and_identity_together():
    sim = Bench()
    first = sim.client.enqueue(Call("t"), unique=True)
    second = sim.client.enqueue(Call("t"), unique=True, key="k")
    assert (second.id, second.existing) == (first.id, True)
    sim.finish(sim.lease(), OK)
    assert sim.client.enqueue(Call("t"), unique=True, key="k").id == first.id, "the key is spent by the run that it was answered with"
    sim.crash()
    assert sim.client.enqueue(Call("t"), unique=True, key="k").id == first.id
    third = sim.client.enqueue(Call("t"), unique=True, key="l")
    assert not third.existing
    assert sim.client.enqueue(Call("t"), key="l").existing


@pytest.mark.parametrize("wrong", [(), "colour", ["args", 1], 5])
def test_what_is_no_identity_is_refused(wrong):
    with pytest.raises(InvalidArgumentError, match="unique: True or some of task, args, queue, concurrency_key"):
        Bench().client.enqueue(Call("t"), unique=wrong)


# enqueue_many


def test_many_in_one_commit_with_a_result_for_each():
    sim = Bench()
    old = sim.client.enqueue(Call("t", 0), key="a")
    made, real = [], sim.journal.append
    sim.journal.append = lambda batch: made.append(len(batch.records)) or real(batch)
    results = sim.client.enqueue_many([
        Enqueue(Call("t", 0), key="a"), Call("t", 1), Enqueue(Call("t", 2), delay="1h", key="b"), Enqueue(Call("t", 9), key="b"),
        Enqueue(Call("u"), at="2026-03-01T00:00:00Z", namespace="team", queue="q"), Enqueue(Call("t", 5), unique=True),
        Enqueue(Call("t", 5), unique=True, key="c"), Enqueue(Call("t", 6), key="c"),
    ])
    assert sum(n > 0 for n in made) == 1
    assert [x.existing for x in results] == [True, False, False, True, False, False, True, True]
    assert results[0].id == old.id
    assert results[2].id == results[3].id
    assert results.ids[5:] == [results[5].id] * 3
    assert (len(results), results.made) == (8, 4)
    runs = {run.id: run for run in sim.runs()}
    assert len(runs) == 5
    late = runs[results[4].id]
    assert (late.job, late.queue, late.state, late.scheduled_at) == ("team/~u", "q", "scheduled", at("2026-03-01"))
    assert runs[results[2].id].state == "scheduled"
    before = sim.engine.state.digest()
    assert loaded(sim).digest() == before
    sim.crash()
    again = sim.client.enqueue_many([Enqueue(Call("t", 7), key=k) for k in "abc"])
    assert [x.id for x in again] == [old.id, results[2].id, results[5].id]
    assert results[-1] == results[7]
    assert results[1:3] == [results[1], results[2]]


def test_frames_are_split_and_empty_is_nothing():
    sim = Bench()
    assert len(sim.client.enqueue_many([])) == 0
    asked, real = [], sim.ask
    sim.ask = lambda verb, args: asked.append(len(args["payload"])) or real(verb, args)
    results = sim.client.enqueue_many(Call("t", n) for n in range(FRAME_JOBS + 1))
    assert asked == [FRAME_JOBS, 1]
    assert len(set(results.ids)) == FRAME_JOBS + 1
    asked.clear()
    sim.client.enqueue_many(Call("t", "x" * 200_000) for _ in range(11))
    assert asked == [5, 5, 1]


def test_a_fault_refuses_its_whole_frame_and_says_where():
    sim = Bench()
    with pytest.raises(InvalidArgumentError, match="call 1: key") as e:
        sim.client.enqueue_many([Call("t"), Enqueue(Call("t"), key="x" * (KEY_MAX + 1))])
    assert e.value.detail["row"] == 1
    with pytest.raises(PayloadError, match="call 0"):
        sim.client.enqueue_many([Call("t", object())])
    with pytest.raises(InvalidArgumentError, match="Enqueue"):
        sim.client.enqueue_many(["t"])
    calls = [Enqueue(Call("t")) for _ in range(FRAME_JOBS_MAX)] + [Call("t"), Enqueue(Call("t"), on_dead="nowhere")]
    with pytest.raises(InvalidArgumentError, match="there is no job nowhere") as e:
        sim.client.enqueue_many(calls)
    assert e.value.detail["accepted"] == FRAME_JOBS_MAX
    assert [row for row, _ in e.value.detail["runs"]] == [FRAME_JOBS_MAX + 1]
    assert len(sim.runs()) == FRAME_JOBS_MAX


@pytest.mark.parametrize("change", [
    {"which": b"\1\0\0\0"}, {"which": b""}, {"payload": []}, {"payload": [b""]}, {"payload": ["x"]}, {"at_us": b"\xff" * 8}, {"delay_us": b""},
    {"key": ["x" * 201]}, {"key": [1]}, {"key": []}, {"given": [1]}, {"given": None}, {"unique": [["x"]]}, {"namespace": ["a b"]},
    {"namespace": []}, {"unique": None},
])
def test_malformed_frames_are_refused(change):
    sim = Bench()
    never = (2**63 - 1).to_bytes(8, "little")
    args = {"rid": sim.rid(1), "given": [{"task": "t"}], "namespace": ["default"], "unique": [None], "which": b"\0" * 4,
            "payload": [b"\x92\x90\x80"], "at_us": never, "delay_us": never, "key": None}
    if change == {"key": []}:
        change = {"key": [None, None]}
    with pytest.raises(InvalidArgumentError):
        sim.call(1, ("enqueue_many", {**args, **change}))
    assert sim.runs() == []
    got = sim.call(1, ("enqueue_many", args))
    assert (len(got["id"]), got["existing"]) == (16, b"\0")
    assert sim.call(1, ("enqueue_many", args)) == got
    assert len(sim.runs()) == 1


# cancel by filter


def world():
    """Runs in every open state."""
    sim = Bench()
    sim.hello()
    for name in ("billing/a", "billing/b", "mail"):
        sim.put(name, Manual(), overlap="buffer_all")
    leased = sim.client.trigger("billing/a")
    (lease,) = sim.lease()
    sim.client.trigger("billing/a")  # waits for its turn
    sim.client.trigger("billing/b")
    sim.client.trigger("mail")
    sim.client.enqueue(Call("t"), delay="1h", queue="slow")
    sim.client.enqueue(Call("u"), namespace="team")
    return sim, leased, lease


@pytest.mark.parametrize(("filters", "found"), [
    ({"match": "*"}, 6), ({"match": "billing/*"}, 3), ({"match": "mail"}, 1), ({"state": "queued"}, 3), ({"state": "scheduled"}, 2),
    ({"state": "leased"}, 1), ({"state": "running"}, 1), ({"state": "retry_wait"}, 0), ({"task": "u"}, 1), ({"queue": "slow"}, 1),
    ({"namespace": "team"}, 1), ({"match": "billing/*", "state": "queued"}, 1), ({"match": "x*"}, 0), ({"namespace": "default", "task": "t"}, 2),
])
def test_all_that_the_filters_find_are_cancelled(filters, found, monkeypatch):
    monkeypatch.setattr(cancels, "PIECE", 2)
    sim, leased, lease = world()
    assert sim.client.cancel(**filters, dry_run=True) == found
    assert all(r.state != "cancelled" for r in sim.runs())
    assert sim.client.cancel(**filters) == found
    sim.finish([lease], FAILED)
    if "state" not in filters:  # what waited for its turn has it now
        assert sim.client.cancel(**filters) == 0
    ended = sum(r.state == "cancelled" for r in sim.runs())
    assert ended == found
    assert (leased.refresh().state == "cancelled") == ((filters.get("match", "*") in ("*", "billing/*") and
                                                      set(filters) <= {"match"}) or filters.get("state") in ("leased", "running"))
    assert loaded(sim).digest() == sim.engine.state.digest()


def test_what_waits_for_a_retry_is_cancelled_and_what_ended_is_left():
    sim = Bench()
    sim.client.enqueue(Call("t"))
    done = sim.client.enqueue(Call("t", 2), retry=1)
    sim.finish(sim.lease(), FAILED)
    assert sim.client.cancel(match="*") == 1
    assert done.refresh().state == "dead"
    sim.advance("1h")
    assert sim.lease() == []


def test_a_worker_is_asked_once_and_told_to_stop():
    sim, _, lease = world()
    assert sim.client.cancel(state="leased") == 1
    assert sim.client.cancel(state="leased") == 0
    assert sim.heartbeat([lease])["cancel"] == [0]


def test_others_are_served_between_the_pieces_and_their_runs_are_left_alone(monkeypatch):
    monkeypatch.setattr(cancels, "PIECE", 10)
    sim = Bench()
    sim.client.enqueue_many(Call("t", n) for n in range(95))
    sim._step([Incoming(60, Request(1, "cancel_many", {"rid": sim.rid(1), "match": "*"}), 0)])
    assert sim._effects.again
    sim.now_us += 1  # as in life: time goes on between turns
    args = {"rid": sim.rid(2), "given": {"task": "t"}, "payload": b"\x92\x90\x80", "namespace": "default"}
    sim._step([Incoming(61, Request(2, "enqueue", args), 0)])
    assert (61, 2) in sim._answers
    assert (60, 1) not in sim._answers
    for _ in range(10):
        sim._step([])
    assert sim._answers[60, 1].result == {"count": 95}
    assert [r.state for r in sim.runs()].count("queued") == 1


def test_a_repeat_joins_the_sweep_and_a_crash_leaves_it_to_be_begun_anew(monkeypatch):
    monkeypatch.setattr(cancels, "PIECE", 10)
    sim = Bench()
    sim.client.enqueue_many(Call("t", n) for n in range(30))
    args = {"rid": sim.rid(7), "match": "*"}
    assert sim.call(60, ("cancel_many", args), ("cancel_many", args)) == {"count": 30}
    assert sim.call(60, ("cancel_many", args)) == {"count": 30}
    assert sim.call(60, ("cancel_many", {**args, "rid": sim.rid(8)})) == {"count": 0}


@pytest.mark.parametrize("args", [{}, {"match": ""}, {"match": "*", "state": "dead"}, {"match": 1}, {"match": "*", "dry_run": 1}])
def test_a_filter_that_says_nothing_is_refused(args):
    sim = Bench()
    with pytest.raises(InvalidArgumentError):
        sim.call(1, ("cancel_many", {"rid": sim.rid(1), **args}))


def test_the_client_takes_an_id_or_filters():
    sim = Bench()
    run = sim.client.enqueue(Call("t"))
    for wrong in ({}, {"dry_run": True}, {"run_id": run.id, "match": "*"}, {"run_id": run.id, "dry_run": True}, {"state": "dead"}):
        with pytest.raises(InvalidArgumentError):
            sim.client.cancel(**wrong)
    assert sim.client.cancel(run).state == "cancelled"
    with pytest.raises(NotFoundError):
        sim.client.cancel("0" * 32)
    done = sim.client.enqueue(Call("t"))
    sim.finish(sim.lease(), OK)
    with pytest.raises(FailedPreconditionError, match="succeeded already"):
        sim.client.cancel(done.id)


def test_schedules_of_jobs_are_no_business_of_enqueue_many():
    with pytest.raises(InvalidArgumentError, match="goes with put"):
        Bench().client.enqueue_many([Enqueue(Call("t"), overlap="skip")])

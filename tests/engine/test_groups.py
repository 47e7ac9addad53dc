"""N runs, then one: all in one commit, and the one when the others have ended."""

from __future__ import annotations

import asyncio
import signal

import pytest

from tests.rigs.engine import FAILED, OK, Bench
from tests.rigs.server import wait_for
from wheelsched import (
    AsyncClient,
    Call,
    Cancel,
    FailedPreconditionError,
    InvalidArgumentError,
    Manual,
    ResourceExhaustedError,
    Retry,
    Snooze,
    current_run,
)
from wheelsched.engine.connected import Waiter
from wheelsched.engine.turn import Disconnect
from wheelsched.model.nouns import FRAME_JOBS_MAX, GROUP_MAX, ROLES
from wheelsched.protocol.frames import decode_headers
from wheelsched.simulator.simulator import Simulator
from wheelsched.state.records import decode
from wheelsched.state.state import State
from wheelsched.verbs import groups

THEN = Call("then", "x")


def cause(sim, run):
    row = sim.engine.state.find_run(bytes.fromhex(run.id))
    return decode_headers(sim.engine.state.runs.blobs(row)[0]).get("cause")


def counts(sim, run):
    found = cause(sim, run)
    assert (found["reason"], found["group"]) == ("group", run.id)
    return [found[name] for name in ("members", "succeeded", "failed", "cancelled")]


def loaded(sim):
    return State.load(iter([piece for part in sim.engine.state.copy(1 << 20) for piece in part]))


def made(n=3, **more):
    sim = Bench()
    sim.hello()
    return sim, sim.client.group([Call("t", i) for i in range(n)], then=THEN, **more)


def test_one_commit_makes_all_and_the_last_end_queues_the_one_behind():
    sim, batches = Bench(), []
    sim.hello()
    real = sim.journal.append
    sim.journal.append = lambda batch: batches.append([decode(r)[0] for r in batch.records]) or real(batch)
    group = sim.client.group([Call("t", i) for i in range(3)], then=THEN, queue="q")
    assert [kinds for kinds in batches if "GROUP" in kinds] == [kinds for kinds in batches if "ENQUEUE" in kinds]
    assert len([kinds for kinds in batches if "GROUP" in kinds]) == 1
    assert (group.existing, len(set(group.ids)), group.run.state, group.run.job, group.run.next_at) == (False, 3, "scheduled", "~then", None)
    assert {r.id for r in sim.runs("default/~t")} == set(group.ids)
    assert {r.queue for r in sim.runs()} == {"q"}
    leases = sim.lease()
    sim.advance(5)
    sim.finish(leases[:2], OK)
    assert group.run.refresh().state == "scheduled"
    assert group.run.progress == "waits for its group: 2 of 3 have ended"
    sim.finish(leases[2:], OK)
    assert group.run.refresh().progress is None
    (kinds,) = [kinds for kinds in batches if "GROUP_END" in kinds]
    assert kinds.index("FINISH") < kinds.index("GROUP_END")
    assert group.run.refresh().state == "queued"
    assert group.run.scheduled_at == sim.now
    assert counts(sim, group.run) == [3, 3, 0, 0]
    assert sim.engine.state.groups == {}


def test_the_task_behind_reads_how_they_ended():
    got = []

    def bad(_):
        raise ValueError

    with Simulator(tasks={"ok": lambda n: n, "bad": bad, "then": lambda word: got.append((word, current_run().cause)) or "done"}) as sim:
        group = sim.client.group([Call("ok", 1), Call("bad", 2), Call("ok", 3)], then=THEN, retry=1)
        assert group.run.result() == "done"
    assert got == [("x", {"reason": "group", "group": group.run.id, "members": 3, "succeeded": 2, "failed": 1, "cancelled": 0})]


def test_what_a_task_says_of_its_own_run_counts_too():
    """A snooze ends nothing and a cancel is one; neither is a failure that a hook is called for."""
    told = []

    def naps():
        if current_run().attempt == 1 and not told:
            told.append("slept")
            raise Snooze("1h")

    def leaves():
        raise Cancel("no need")

    tasks = {"naps": naps, "leaves": leaves, "then": lambda _: told.append(current_run().cause), "alarm": lambda: told.append("alarm")}
    with Simulator(tasks=tasks) as sim:
        sim.client.put("alarm", Call("alarm"), Manual())
        hooks = dict.fromkeys(("on_failure", "on_dead"), "alarm")
        sim.client.enqueue(Call("leaves"), **hooks)
        group = sim.client.group([Call("naps"), Call("leaves")], then=THEN, **hooks)
        sim.advance("30m")
        assert (told, group.run.refresh().state) == (["slept"], "scheduled")
        sim.advance("31m")
    assert told[1:] == [{"reason": "group", "group": group.run.id, "members": 2, "succeeded": 1, "failed": 0, "cancelled": 1}]


@pytest.mark.parametrize("crash", [False, True])
def test_every_kind_of_end_counts_once(crash):
    sim, group = made(6, retry=1, expires_after="1h")

    def between():
        if crash:
            sim.crash()
            sim.hello()
        again = loaded(sim)
        assert again.digest() == sim.engine.state.digest()
        assert (again.groups, again.group_of) == (sim.engine.state.groups, sim.engine.state.group_of)
        assert group.run.refresh().state == "scheduled"

    sim.client.cancel(group.ids[0])
    between()
    leases = sim.lease(n=4)
    sim.finish(leases[:1], FAILED)
    between()
    assert sim.client.redrive("*") == 1  # it was counted
    between()
    assert sim.finish(leases[1:3], OK) == sim.finish(leases[1:3], OK) == [1, 1]  # a repeat is no second end
    between()
    sim.client.cancel(leases[3][0].hex())
    assert group.run.refresh().state == "scheduled"  # its worker has it still
    sim.finish(leases[3:], FAILED)
    between()
    sim.advance("2h")  # the one that nobody had expires; the one that was sent back had its start
    assert group.run.refresh().state == "queued"
    assert counts(sim, group.run) == [6, 2, 1, 3]
    sim.crash()
    sim.finish(sim.lease(), OK)
    assert counts(sim, group.run) == [6, 2, 1, 3]
    assert len(sim.runs("default/~then")) == 1


@pytest.mark.parametrize("verb", ["redrive", "discard"])
def test_a_dead_letter_ends_its_membership_whatever_becomes_of_it(verb):
    sim, group = made(1, retry=1)
    sim.finish(sim.lease(), FAILED)
    assert group.run.refresh().state == "queued"
    assert getattr(sim.client, verb)("*") == 1
    sim.finish(sim.lease(), OK)
    assert counts(sim, group.run) == [1, 0, 1, 0]
    assert len(sim.runs("default/~then")) == 1


@pytest.mark.parametrize(("bad", "state"), [(False, "queued"), (True, "cancelled")])
def test_when_all_must_succeed(bad, state):
    sim = Bench()
    sim.put("alarm", Manual(), call=Call("u"))
    group = sim.client.group([Call("t", i) for i in range(2)], then=THEN, when="succeeded", retry=1)
    leases = sim.lease()
    sim.finish(leases[:1], FAILED if bad else OK)
    assert group.run.refresh().state == "scheduled"
    sim.finish(leases[1:], OK)
    assert (group.run.refresh().state, group.run.reason) == (state, "group" if bad else None)
    assert loaded(sim).digest() == sim.engine.state.digest()


def test_a_group_that_did_not_succeed_calls_on_failure_once():
    sim = Bench()
    sim.put("alarm", Manual(), call=Call("u"))
    group = sim.client.group([Call("t"), Call("t")], then=THEN, when="succeeded", on_failure="alarm", retry=1)
    sim.finish(sim.lease(n=1), FAILED)
    assert sim.runs("alarm") == []  # hooks are of the run behind, not of each member
    sim.finish(sim.lease(), OK)
    sim.crash()
    (alarm,) = sim.runs("alarm")
    found = cause(sim, alarm)
    assert (found["run_id"], found["error"]["type"]) == (group.run.id, "wheelsched.GroupFailed")


def test_a_waiter_is_answered_when_the_group_is_cancelled():
    sim, group = made(1, when="succeeded")
    sim.engine.waiters.setdefault(bytes.fromhex(group.run.id), []).append(Waiter(77, 5, 2**62, frozenset(ROLES)))
    sim.client.cancel(group.ids[0])
    assert sim.engine.waiters == {}


@pytest.mark.parametrize("crash", [False, True])
def test_the_run_that_waits_can_be_cancelled_and_the_members_go_on(crash):
    sim, group = made(2)
    sim.client.cancel(group.run.id)
    if crash:
        sim.crash()
    sim.finish(sim.lease(), OK)
    assert (group.run.refresh().state, group.run.reason) == ("cancelled", None)
    assert sim.engine.state.groups == {}


def test_several_are_open_at_once_and_each_has_its_own():
    sim = Bench()
    several = [sim.client.group([Call(task)], then=Call("then")) for task in ("a", "b", "c")]
    sim.crash()
    several.append(sim.client.group([Call("d")], then=Call("then"), when="succeeded"))
    for task, i, state in (("b", 1, "queued"), ("d", 3, "cancelled"), ("a", 0, "queued"), ("c", 2, "queued")):
        assert several[i].run.refresh().state == "scheduled"
        assert sim.client.cancel(task=task) == 1
        assert several[i].run.refresh().state == state
    made, cancelled = (sim.client.stats()["counters"][name] for name in ("created", "cancelled"))
    assert (made, cancelled) == (2, 5)  # since the start


def test_cancelling_all_members_by_a_filter_ends_the_group():
    sim, group = made(5)
    assert sim.client.cancel(task="t") == 5
    assert counts(sim, group.run.refresh()) == [5, 0, 0, 5]


def test_the_key_gives_the_same_group():
    sim, group = made(key="nightly")
    for _ in range(2):
        again = sim.client.group([Call("t")], then=THEN, key="nightly")
        assert (again.run.id, again.existing, again.ids) == (group.run.id, True, [])
        sim.crash()
    assert not sim.client.group([Call("t")], then=THEN, key="nightly", namespace="team").existing
    assert len(sim.runs()) == 6


def test_the_one_behind_starts_neither_by_time_nor_by_a_restart_nor_by_other_runs_of_its_task():
    sim, group = made(1)
    sim.hello(conn=51, tasks=("then",))
    sim.client.enqueue(THEN)
    (other,) = sim.lease(conn=51)
    sim.finish([other], OK, conn=51)
    sim.crash(down="10d")
    assert group.run.refresh().state == "scheduled"
    assert sim.client.group([Call("t")], then=THEN).run.state == "scheduled"


def test_ten_thousand_members_in_parts_and_one_more_is_refused():
    sim = Bench()
    asked, real = [], sim.ask
    sim.ask = lambda verb, args: asked.append(verb) or real(verb, args)
    group = sim.client.group([Call("t", "x" * 150) for _ in range(GROUP_MAX)], then=THEN)
    assert asked == ["group_part"] * 9 + ["group"]
    assert len(group.ids) == GROUP_MAX <= FRAME_JOBS_MAX
    assert sim.engine.parts == {}
    with pytest.raises(InvalidArgumentError, match=r"1 to 10,000 calls"):
        sim.client.group([Call("t")] * (GROUP_MAX + 1), then=THEN)
    sim.client.cancel(task="t")
    assert counts(sim, group.run) == [GROUP_MAX, 0, 0, GROUP_MAX]


def test_the_one_behind_has_a_frame_of_its_own_when_the_last_is_full():
    sim = Bench()
    asked, real = [], sim.ask
    sim.ask = lambda verb, args: asked.append(verb) or real(verb, args)
    group = sim.client.group([Call("t", "x" * 200_000) for _ in range(5)], then=Call("then", "x" * 200_000))
    assert asked == ["group_part", "group"]
    assert len(group.ids) == 5


def test_parts_that_were_lost_with_a_connection_are_sent_again():
    sim = Bench()
    real, lost = sim.ask, []

    def ask(verb, args):
        found = real(verb, args)
        if verb == "group_part" and not lost:
            lost.append(sim.engine.parts.clear())
        return found

    sim.ask = ask
    group = sim.client.group([Call("t", "x" * 200_000) for _ in range(7)], then=THEN)
    assert len(group.ids) == len(sim.runs("default/~t")) == 7
    assert lost


def test_parts_are_of_their_own_batch_and_go_with_the_connection():
    sim = Bench()
    one = {"given": [{"task": "t"}], "which": b"\0" * 4, "payload": [b"\x92\x90\x80"]}
    rest = {"given": [{"task": "then"}], "which": b"", "payload": [], "namespace": "default", "then": {"which": 0, "payload": b"\x92\x90\x80"}}
    assert [sim.call(60, ("group_part", {**one, "batch": batch}))["staged"] for batch in (1, 1, 2)] == [1, 2, 1]
    with pytest.raises(FailedPreconditionError, match="0 members"):
        sim.call(60, ("group", {**rest, "rid": sim.rid(1), "batch": 1, "members": 1}))
    sim.call(60, ("group_part", {**one, "batch": 3}))
    assert list(sim.engine.parts) == [60]
    sim._step([Disconnect(60)])
    assert sim.engine.parts == {}
    sim.call(60, ("group_part", {**one, "batch": 3}))
    made = sim.call(60, ("group", {**rest, "rid": sim.rid(2), "batch": 3, "members": 1}))
    assert len(made["id"]) == 16


def test_what_is_no_group_is_refused_and_nothing_made(monkeypatch):
    sim = Bench()
    for calls, more, text in (
        ([], {}, "1 to 10,000"), ([Call("t"), 5], {}, "call 1: a call is wanted"), ([Call("t")], {"then": None}, "then: a call"),
        ([Call("t")], {"when": "soon"}, "when: 'soon'"), ([Call("t")], {"overlap": "skip"}, "goes with put"), ([Call("t")], {"key": ""}, "key"),
    ):
        with pytest.raises(InvalidArgumentError, match=text):
            sim.client.group(calls, **{"then": THEN, **more})
    args = {"rid": sim.rid(1), "given": [{"task": "t"}, {"task": "then"}], "which": b"\0" * 4, "payload": [b"\x92\x90\x80"], "namespace": "default",
            "then": {"which": 1, "payload": b"\x92\x90\x80"}}
    for wrong in (
        {"given": [{"task": "a b"}, {"task": "then"}]}, {"given": 1}, {"which": b"\2\0\0\0"}, {"payload": [b""]}, {"payload": [1]}, {"then": 1},
        {"then": {**args["then"], "payload": b""}}, {"given": [{"task": "t"}, {"task": "then", "expires_after_us": 10**7}]},
        {"then": {**args["then"], "which": 2}}, {"then": {"payload": b"\x92\x90\x80"}}, {"then": {**args["then"], "which": -1}},
        {"when": "x"}, {"namespace": "a b"}, {"given": [], "which": b"", "payload": [], "members": 0},
    ):
        with pytest.raises(InvalidArgumentError):
            sim.call(1, ("group", {**args, **wrong}))
    monkeypatch.setattr(groups, "GROUPS_MAX", 1)
    assert sim.runs() == []
    first = sim.call(1, ("group", args))
    assert sim.call(1, ("group", args)) == first
    with pytest.raises(ResourceExhaustedError):
        sim.call(1, ("group", {**args, "rid": sim.rid(2)}))


async def again(socket):
    """With another client, and the same key."""
    async with AsyncClient(socket) as ws:
        group = await ws.group([Call("t.sleep", 0)], then=Call("t.echo", "other"), key="once")
        assert (group.existing, (await ws.run(group.run.id)).job) == (True, "~t.echo")
        return group.run.id


def test_one_behind_a_group_over_kills_of_the_server(serving):
    server = serving(workers=2)
    calls, soon = [Call("t.sleep", 0.02) for _ in range(60)], Retry(attempts=9, backoff="50ms", cap="50ms")
    group = server.client().group(calls, then=Call("t.echo", "all"), key="once", retry=soon)
    for few in (5, 30):
        ws = server.client()
        wait_for(lambda few=few, ws=ws: len(list(ws.runs(job="~t.sleep", state="succeeded"))) >= few, 60)
        server.end(signal.SIGKILL)
        server = serving(workers=2)
    ws = server.client()
    assert asyncio.run(again(server.socket)) == group.run.id
    behind = ws.run(group.run.id)
    assert behind.result(timeout=60) == "all"
    members = list(ws.runs(job="~t.sleep"))
    assert {r.id for r in members} == set(group.ids)
    assert {r.state for r in members} == {"succeeded"}
    assert behind.refresh().queued_at >= max(r.ended_at for r in members)
    assert [r.id for r in ws.runs(job="~t.echo")] == [behind.id]


@pytest.mark.parametrize(("bad", "end"), [(False, ("run.queued", "queued", "group")), (True, ("run.cancelled", "cancelled", "group"))])
def test_events_tell_of_the_one_behind(bad, end):
    sim, group = made(1, when="succeeded", retry=1)
    sim.finish(sim.lease(), FAILED if bad else OK)
    found = [e for e in sim.client.events("oldest", timeout=0) if e.run_id == group.run.id]
    assert [(e.kind, e.state, e.reason) for e in found] == [("run.created", "scheduled", "enqueue"), end]
    assert found[0].next_at is None

"""apply: many jobs in one commit. The engine's side in the simulator, the clients' side against a scripted server."""

from __future__ import annotations

import random

import pytest

from tests.rigs.client import Driven, FakeServer
from wheelsched import (
    At,
    Call,
    Client,
    Cron,
    Every,
    FailedPreconditionError,
    InternalError,
    InvalidArgumentError,
    Job,
    Manual,
    PayloadError,
    ResourceExhaustedError,
    Retry,
    UnavailableError,
)
from wheelsched.engine.turn import Disconnect
from wheelsched.model.nouns import FRAME_JOBS, FRAME_JOBS_MAX, NEVER
from wheelsched.protocol import frames
from wheelsched.simulator.simulator import CLIENT, Simulator
from wheelsched.verbs import apply as engine_apply

DAY = Cron("0 0 * * *")


@pytest.fixture
def sim():
    with Simulator("2026-01-01T12:00:00Z", tasks={"t": lambda *a, **k: None}) as it:
        yield it


def shape(sim):
    return {job.name: (job.state, job.version, job.note) for job in sim.client.jobs()}


def jobs(n, **policies):
    return [Job(f"a/j{i}", Call("t", i), DAY, **policies) for i in range(n)]


def test_created_changed_unchanged(sim):
    ws = sim.client
    first = ws.apply(jobs(3, note="n"))
    assert (first.created, first.updated, first.deleted, first.unchanged) == (("a/j0", "a/j1", "a/j2"), (), (), 0)
    assert first.dry_run is False
    before, digest = shape(sim), sim.engine.state.digest()
    again = ws.apply(jobs(3, note="n"))
    assert not again
    assert again.counts() == {"created": 0, "updated": 0, "deleted": 0, "unchanged": 3}
    assert shape(sim) == before
    assert sim.engine.state.digest() != digest  # the answer is remembered, and that is all
    changed = ws.apply([Job("a/j0", Call("t", 0), Cron("0 1 * * *"), timeout="5m", retry=Retry(attempts=1), note="m"), *jobs(3, note="n")[1:]])
    assert changed.updated == ("a/j0",)
    assert changed.changes["a/j0"] == {
        "schedule": ("0 0 * * *", "0 1 * * *"), "timeout": ("1h", "5m"), "note": ("n", "m"),
        "retry": ("attempts=3 backoff=10s factor=2 cap=1h", "attempts=1 backoff=10s factor=2 cap=1h"),
    }
    assert ws.get("a/j0").note == "m"


def test_a_dry_run_tells_all_and_records_nothing(sim):
    ws = sim.client
    ws.apply(jobs(3))
    seq, digest = sim.engine.state.meta.seq, sim.engine.state.digest()
    schedules = len(sim.engine.specs.schedules)
    plan = ws.apply([Job("a/j0", Call("t", 9), Cron("7 7 * * *")), Job("b/new", Call("t"), Every("30s"))], "a/*", dry_run=True)
    assert (plan.created, plan.updated, plan.deleted, plan.unchanged) == (("b/new",), ("a/j0",), ("a/j1", "a/j2"), 0)
    assert plan.changes["a/j0"]["arguments"] == ("(0)", "(9)")
    assert plan.dry_run is True
    assert (sim.engine.state.meta.seq, sim.engine.state.digest()) == (seq, digest)
    assert len(sim.engine.specs.schedules) == schedules
    assert sim.engine.staged[CLIENT] == {}
    real = ws.apply([Job("a/j0", Call("t", 9), Cron("7 7 * * *")), Job("b/new", Call("t"), Every("30s"))], "a/*")
    assert (real.created, real.updated, real.deleted, real.changes) == (plan.created, plan.updated, plan.deleted, plan.changes)
    assert {name: state for name, (state, _, _) in shape(sim).items()} == {
        "a/j0": "active", "a/j1": "deleted", "a/j2": "deleted", "b/new": "active",
    }


def test_a_dry_run_finds_what_a_real_one_finds(sim):
    ws = sim.client
    ws.put("a/once", Call("t"), At("2026-01-02T00:00:00Z"))
    sim.advance("2d")
    bad = [
        Job("a/once", Call("t"), At("2026-01-01T13:00:00Z")), Job("a/j", Call("t"), DAY), Job("default/a/../x", Call("t"), DAY, calendar="nope"),
        Job("~t", Call("t"), DAY), Job("a/j", Call("t"), DAY),
    ]
    bad[3] = Job("a/ok", Call("t"), DAY)
    said = []
    for dry in (True, False):
        with pytest.raises(InvalidArgumentError) as e:
            ws.apply(bad, dry_run=dry)
        said.append(e.value.detail)
    assert said[0] == said[1]
    assert [row for row, _ in said[0]["jobs"]] == [0, 2, 4]
    texts = dict(said[0]["jobs"])
    assert "earlier instant" in texts[0]
    assert "nope" in texts[2]
    assert "twice" in texts[4]
    assert set(shape(sim)) == {"a/once"}


def test_nothing_is_half_applied(sim):
    ws = sim.client
    ws.apply(jobs(2))
    before = shape(sim)
    with pytest.raises(InvalidArgumentError, match="nothing was changed"):
        ws.apply([Job("a/j0", Call("t", 5), DAY), Job("z/z", Call("t"), DAY), Job("z/z", Call("t"), DAY)], "*")
    assert shape(sim) == before


def test_one_step_records_all_of_it(sim):
    batches = []
    append = sim.journal.append

    def watched(batch):
        batches.append(len(batch.records))
        return append(batch)

    sim.journal.append = watched
    sim.client.put("a/old", Call("t"), DAY)
    del batches[:]
    n = 2 * FRAME_JOBS_MAX + 5
    done = sim.client.apply([Job(f"a/{i}", Call("t", i), At("2026-02-01T00:00:00Z")) for i in range(n)], "a/*")
    assert (len(done.created), done.deleted) == (n, ("a/old",))
    assert len([count for count in batches if count]) == 1  # one transaction


def test_prune_needs_its_pattern_and_leaves_enqueued_runs_names(sim):
    ws = sim.client
    ws.enqueue(Call("t"), delay="1h")
    ws.put("x", Call("t"), DAY)
    ws.apply(jobs(3))
    assert ws.apply(jobs(1)).deleted == ()
    assert ws.apply(jobs(1), "b/*").deleted == ()
    assert ws.apply(jobs(1), "a/j1").deleted == ("a/j1",)
    assert ws.apply(jobs(1), "default/x").deleted == ("x",)
    assert ws.apply(jobs(1), "*").deleted == ("a/j2",)
    assert ws.apply([], "a/*").deleted == ("a/j0",)
    assert ws.apply([], "*").deleted == ()


def test_a_deleted_job_has_its_waiting_runs_cancelled_and_can_come_back(sim):
    ws = sim.client
    ws.apply(jobs(1))
    ws.apply([], "a/*")
    back = ws.apply(jobs(1))
    assert back.created == ("a/j0",)
    assert ws.get("a/j0").state == "active"


def test_paused_and_notes(sim):
    ws = sim.client
    ws.apply([Job("a", Call("t"), DAY, paused=True, note="why"), Job("b", Call("t"), DAY), Job("c", Call("t"), DAY, paused=False)])
    assert shape(sim) == {"a": ("paused", 1, "why"), "b": ("active", 1, ""), "c": ("active", 1, "")}
    ws.pause("b")
    ws.pause("c")
    done = ws.apply([Job("a", Call("t"), DAY), Job("b", Call("t"), DAY), Job("c", Call("t"), DAY, paused=False)])
    assert (done.updated, done.unchanged) == (("c",), 2)  # no word about it leaves it as it is
    assert done.changes["c"] == {"paused": ("true", "false")}
    assert {name: row[0] for name, row in shape(sim).items()} == {"a": "paused", "b": "paused", "c": "active"}
    ws.put("f", Call("t"), At("2026-01-01T12:00:01Z"))
    sim.advance("1m")
    assert ws.get("f").state == "finished"
    same = [Job("f", Call("t"), At("2026-01-01T12:00:01Z"), paused=True)]
    assert not ws.apply(same)  # what is finished can't be paused: nothing to do, each time


def test_a_repeated_apply_fires_nothing_again_and_keeps_grids(sim):
    ws = sim.client
    wanted = [Job("e", Call("t"), Every("10m")), Job("h", Call("t"), Cron("H H * * *")), Job("a", Call("t"), At("2026-01-01T12:30:00Z"))]
    ws.apply(wanted)
    first = {name: ws.next(name, 2) for name in ("e", "h", "a")}
    sim.advance("5m")
    assert not ws.apply(wanted)
    assert {name: ws.next(name, 2) for name in ("e", "h", "a")} == first
    sim.advance("1h")
    runs = len(sim.runs("a"))
    assert not ws.apply(wanted)
    assert (runs, len(sim.runs("a"))) == (1, 1)


def test_what_is_due_is_decided_before_it_changes(sim):
    ws = sim.client
    ws.apply([Job("e", Call("t"), Every("10m")), Job("d", Call("t"), Every("10m"))])
    sim.now_us += 600_000_000  # due, but no turn has come since
    sim._mono_us += 600_000_000
    ws.apply([Job("e", Call("t"), DAY)], "d")
    assert [len(sim.runs(name)) for name in ("e", "d")] == [1, 1]


def test_replay_gives_the_same_state(sim):
    rng = random.Random(5)
    ws = sim.client
    for _ in range(20):
        some = [Job(f"a/{i}", Call("t", rng.randrange(2)), rng.choice([DAY, Every("7m"), Manual(), Cron("H 3 * * *")]),
                    priority=rng.randrange(3), paused=rng.choice([None, True, False]), note=rng.choice(["", "x"]))
                for i in rng.sample(range(12), rng.randrange(1, 9))]
        plan = ws.apply(some, rng.choice([None, "a/*", "a/1*"]), dry_run=True)
        done = ws.apply(some, None if not plan.deleted else "a/*", dry_run=False)
        assert set(plan.created) == set(done.created)
        assert set(plan.updated) == set(done.updated)
        assert not ws.apply(some)
        sim.advance("20m")
    sim.engine.state.check()
    digest = sim.engine.state.digest()
    sim._step([])
    from wheelsched.server.boot import recover

    assert recover(sim.journal).digest() == digest == sim.engine.state.digest()


def test_calendars_come_with_their_jobs(sim):
    ws = sim.client
    wanted = [Job("a", Call("t"), DAY, calendar="holidays"), Job("b", Call("t"), DAY, calendar=["holidays", "nights"])]
    with pytest.raises(InvalidArgumentError) as e:
        ws.apply(wanted, calendars={"nights": {"daily": ["01:00-06:00"]}})
    assert [row for row, _ in e.value.detail["jobs"]] == [0, 1]
    assert ws.calendars() == []
    both = {"holidays": {"yearly": ["12-25"]}, "nights": {"daily": ["01:00-06:00"]}}
    seq = sim.engine.state.meta.seq
    assert ws.apply(wanted, dry_run=True, calendars=both).calendars == {"holidays": "created", "nights": "created"}
    assert (sim.engine.state.meta.seq, ws.calendars()) == (seq, [])
    done = ws.apply(wanted, calendars=both)
    assert (done.created, done.calendars) == (("a", "b"), {"holidays": "created", "nights": "created"})
    assert not ws.apply(wanted, calendars=both)
    changed = ws.apply(wanted, calendars={"holidays": {"yearly": ["12-25", "12-26"]}})
    assert (bool(changed), changed.unchanged, changed.calendars) == (True, 2, {"holidays": "updated"})
    assert {c.name: c.jobs for c in ws.calendars()} == {"holidays": 2, "nights": 1}


@pytest.mark.parametrize("calendars", [{"a b": {"yearly": ["12-25"]}}, {"a": {}}, {"a": {"yearly": ["13-45"]}}, {"a": {"dats": []}}, {"a": 3}, 3])
def test_calendars_that_are_none(sim, calendars):
    with pytest.raises(InvalidArgumentError):
        sim.client.apply(jobs(1), calendars=calendars)
    with pytest.raises(InvalidArgumentError):
        sim.call(CLIENT, ("stage", frame(["a"]))) and sim.call(CLIENT, ("apply", {"rid": rid(1), "jobs": 1, "calendars": calendars}))
    assert shape(sim) == {}


# Staging


def frame(names, **more):
    n = len(names)
    return {
        "given": [{"task": "t", "schedule": {"kind": "manual"}}], "names": names, "which": bytes(4 * n), "param_us": NEVER.to_bytes(8, "little") * n,
        "payload": [frames.encode_payload((), {})] * n, "notes": [""] * n, "paused": [None] * n, **more,
    }


def rid(n):
    return n.to_bytes(16, "big")


def test_staged_frames_go_with_their_connection_and_their_batch(sim):
    assert sim.call(CLIENT, ("stage", frame(["a"], batch=1))) == {"staged": 1}
    assert sim.call(CLIENT, ("stage", frame(["b", "c"], batch=1))) == {"staged": 3}
    assert sim.call(CLIENT, ("stage", frame(["x"], batch=2))) == {"staged": 1}
    assert sim.call(CLIENT, ("apply", {"rid": rid(1), "batch": 2, "jobs": 1}))["created"] == ["x"]
    sim._step([Disconnect(CLIENT)])
    assert CLIENT not in sim.engine.staged
    with pytest.raises(FailedPreconditionError) as e:
        sim.call(CLIENT, ("apply", {"rid": rid(2), "batch": 1, "jobs": 3}))
    assert e.value.detail == {"staged": 0}
    assert set(shape(sim)) == {"x"}


def test_an_apply_sent_again_is_answered_as_the_first_was(sim):
    sim.call(CLIENT, ("stage", frame(["a"], batch=1)))
    first = sim.call(CLIENT, ("apply", {"rid": rid(1), "batch": 1, "jobs": 1}))
    assert sim.call(CLIENT, ("apply", {"rid": rid(1), "batch": 1, "jobs": 1})) == first
    assert first["created"] == ["a"]


def test_limits(sim, monkeypatch):
    monkeypatch.setattr(engine_apply, "STAGED_JOBS_MAX", 3)
    assert sim.call(CLIENT, ("stage", frame(["a", "b", "c"]))) == {"staged": 3}
    with pytest.raises(ResourceExhaustedError):
        sim.call(CLIENT, ("stage", frame(["d"])))
    assert sim.engine.staged[CLIENT] == {}  # the batch is given up


@pytest.mark.parametrize(
    "wrong",
    [{"names": "a"}, {"names": []}, {"names": ["a"] * (FRAME_JOBS_MAX + 1)}, {"payload": []}, {"payload": ["text"]}, {"which": b"\1\0\0\0"},
     {"which": b""}, {"param_us": b""}, {"given": []}, {"notes": [3]}, {"notes": []}, {"paused": [3]}, {"paused": []}, {"batch": -1}, {"batch": "x"}],
)
def test_what_is_no_frame(sim, wrong):
    with pytest.raises(InvalidArgumentError):
        sim.call(CLIENT, ("stage", frame(["a"]) | wrong))
    assert not any(sim.engine.staged.values())


@pytest.mark.parametrize("wrong", [{"dry_run": 1}, {"prune": ""}, {"prune": 3}, {"prune": "x" * 401}, {"jobs": -1}, {"batch": True}])
def test_what_is_no_apply(sim, wrong):
    with pytest.raises(InvalidArgumentError):
        sim.call(CLIENT, ("apply", {"rid": rid(1), **wrong}))


@pytest.mark.parametrize(
    ("wrong", "what"),
    [({"names": [3]}, "text is wanted"), ({"names": ["~t"]}, "reserved"), ({"payload": [b""]}, "payload"), ({"notes": ["x" * 1_001]}, "note"),
     ({"param_us": b"\xff" * 8}, "param_us"), ({"given": [{"task": "t", "schedule": {"kind": "at"}}]}, "instant"), ({"given": [3]}, "map"),
     ({"given": [{"task": "t", "schedule": {"kind": "manual"}, "nope": 1}]}, "nope")],
)
def test_what_is_wrong_with_a_job(sim, wrong, what):
    sim.call(CLIENT, ("stage", frame(["a"]) | wrong))
    with pytest.raises(InvalidArgumentError) as e:
        sim.call(CLIENT, ("apply", {"rid": rid(1), "jobs": 1}))
    [[row, text]] = e.value.detail["jobs"]
    assert row == 0
    assert what in text
    assert shape(sim) == {}


# The clients


@pytest.fixture(params=[Client, Driven], ids=["sync", "async"])
def make(request):
    return request.param


@pytest.fixture
def path(short_tmp):
    return str(short_tmp / "s")


ANSWER = {"created": ["a/j0"], "updated": [], "unchanged": 0, "deleted": [], "changes": [], "calendars": {}}


def test_frames_of_the_clients(make, path):
    rng = random.Random(3)
    sizes = [rng.choice([0, 100, 200_000]) for _ in range(40)]
    seen = []

    def handle(peer, number):
        peer.hello()
        while (request := peer.read()) is not None:  # the reader refuses frames over the limit
            seen.append(request)
            peer.ok(request, {"staged": 1} if request.verb == "stage" else ANSWER)

    wanted = [Job(f"n{i}", Call("t", b"x" * size), Manual(), priority=i % 10, note="é" * (i * 25)) for i, size in enumerate(sizes)]
    many = [Job(f"n{i}", Call("t"), Manual(), paused=i % 2 == 0) for i in range(FRAME_JOBS + 1)]
    with FakeServer(path, handle), make(path) as ws:
        ws.apply(wanted, "a/*")
        ws.apply(many, dry_run=True)
    first = [r.args for r in seen if r.verb == "stage" and r.args["batch"] == 1]
    assert [name for args in first for name in args["names"]] == [f"default/n{i}" for i in range(40)]
    assert [note for args in first for note in args["notes"]] == ["é" * (i * 25) for i in range(40)]
    second = [r.args for r in seen if r.verb == "stage" and r.args["batch"] == 2]
    assert [len(args["names"]) for args in second] == [FRAME_JOBS, 1]
    assert second[0]["paused"][:2] == [True, False]
    asked = [r.args for r in seen if r.verb == "apply"]
    assert [(a["batch"], a["jobs"], a["prune"], a["dry_run"]) for a in asked] == [(1, 40, "a/*", False), (2, FRAME_JOBS + 1, None, True)]
    assert len(asked[0]["rid"]) == 16


def test_after_a_lost_connection_all_is_staged_again(make, path):
    seen = []

    def handle(peer, number):
        peer.hello()
        staged = 0
        while (request := peer.read()) is not None:
            seen.append((number, request.verb, request.args["batch"]))
            if request.verb == "stage":
                staged += len(request.args["names"])
                peer.ok(request, {"staged": staged})
            elif number == 0:
                return  # the connection is lost with the question
            elif staged != request.args["jobs"]:
                peer.error(request, FailedPreconditionError("stage them again", staged=staged))
            else:
                peer.ok(request, ANSWER)

    with FakeServer(path, handle), make(path) as ws:
        assert ws.apply(jobs(1)).created == ("a/j0",)
    assert seen == [(0, "stage", 1), (0, "apply", 1), (1, "apply", 1), (1, "stage", 2), (1, "apply", 2)]


def test_faults_are_found_before_anything_is_sent(make, path):
    wrong = [Job("ok", Call("t"), DAY), Job("a b", Call("t"), DAY), Job("x", Call("t"), DAY, priorty=3), Job("y", Call("t", object()), DAY),
             Job("z", "t", DAY), Job("n", Call("t"), DAY, note=3), Job("p", Call("t"), DAY, paused=3), Job("s", Call("t"), None), 7]
    with make(path) as ws:
        with pytest.raises(InvalidArgumentError) as e:
            ws.apply(wrong)
        assert [row for row, _ in e.value.detail["jobs"]] == list(range(1, 9))
        assert "did you mean 'priority'" in e.value.detail["jobs"][1][1]
        for prune, dry in (("", False), (3, False), (None, 1)):
            with pytest.raises(InvalidArgumentError):
                ws.apply([], prune, dry)
        with pytest.raises(UnavailableError):
            ws.apply([])


@pytest.mark.parametrize("answer", [{}, {**ANSWER, "created": 3}, {**ANSWER, "changes": [{}]}, None, 3])
def test_an_answer_that_is_none(make, path, answer):
    def handle(peer, number):
        peer.hello()
        while (request := peer.read()) is not None:
            peer.ok(request, {"staged": 1} if request.verb == "stage" else answer)

    with FakeServer(path, handle), make(path) as ws, pytest.raises(InternalError):
        ws.apply(jobs(1))


def test_payload_errors_name_the_argument():
    from wheelsched.client.apply import check_job

    with pytest.raises(PayloadError, match=r"args\[0\]"):
        check_job(Job("a", Call("t", object()), DAY))

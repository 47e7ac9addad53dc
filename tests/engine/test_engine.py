"""The engine verb by verb: requests in the wire's format, a virtual clock, workers played by the test."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tests.rigs.engine import CALL, Bench, ask_put, at
from wheelsched import At, Call, Catchup, Cron, Every, Job, Manual, Overlap
from wheelsched.model.errors import (
    AlreadyExistsError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    UnimplementedError,
    WheelschedError,
)
from wheelsched.model.nouns import NEVER, US, Disposition, RunState
from wheelsched.protocol.definition import given_from_api
from wheelsched.protocol.frames import encode_payload
from wheelsched.protocol.verbs import MUTATING
from wheelsched.state.history import Block, of_runs


@pytest.fixture
def b():
    with Bench("2026-03-02T00:00:00Z") as bench:
        yield bench


# Requests


def test_a_remembered_rid_is_answered_as_at_first_and_does_nothing(b):
    first = b.ask("put", ask_put(rid=b.rid(1)))
    seq = b.engine.state.meta.seq
    assert b.ask("put", ask_put("another", rid=b.rid(1))) == first
    assert b.engine.state.meta.seq == seq
    b.crash()
    assert b.ask("put", ask_put(rid=b.rid(1))) == first
    b.advance("11m")
    assert b.ask("put", ask_put("another", rid=b.rid(1)))["name"] == "another", "forgotten after ten minutes"


@pytest.mark.parametrize("verb", sorted(MUTATING))
@pytest.mark.parametrize("rid", [None, b"short", "text", 5])
def test_a_mutating_verb_without_a_rid_is_refused(b, verb, rid):
    with pytest.raises(InvalidArgumentError, match="rid"):
        b.ask(verb, {**ask_put(), "rid": rid})


def test_errors_are_not_remembered(b):
    with pytest.raises(NotFoundError):
        b.ask("pause", {"name": "j", "rid": b.rid(1)})
    b.put()
    assert b.ask("pause", {"name": "j", "rid": b.rid(1)})["state"] == "paused"


@pytest.mark.parametrize(("verb", "args", "error"), [
    ("nonsense", {}, UnimplementedError),
    ("get", {"name": 5}, InvalidArgumentError),
    ("get", {"name": "none"}, NotFoundError),
    ("put", ask_put(payload=b""), InvalidArgumentError),
    ("put", ask_put(payload=b"\xc1"), WheelschedError),
    ("put", ask_put(payload=bytes(300_000)), InvalidArgumentError),
    ("put", ask_put(given=None), InvalidArgumentError),
    ("put", ask_put(given={"task": "t"}), InvalidArgumentError),
    ("put", ask_put(given={"task": "t", "schedule": {"kind": "at"}}, param_us=NEVER), InvalidArgumentError),
    ("put", ask_put(param_us=-1), InvalidArgumentError),
    ("put", ask_put(param_us=2**62), InvalidArgumentError),
    ("put", ask_put(paused=1), InvalidArgumentError),
    ("put", ask_put(note="x" * 1_001), InvalidArgumentError),
    ("put", ask_put("default/~t"), InvalidArgumentError),
    ("put", ask_put("a b"), InvalidArgumentError),
    ("enqueue", {"given": 5, "payload": encode_payload((), {})}, InvalidArgumentError),
    ("enqueue", {"payload": encode_payload((), {})}, InvalidArgumentError),
    ("enqueue", {"given": {"task": "t"}, "payload": encode_payload((), {}), "at_us": 1, "delay_us": 1}, InvalidArgumentError),
    ("enqueue", {"given": {"task": "t"}, "payload": encode_payload((), {}), "key": "k" * 201}, InvalidArgumentError),
    ("resume", {"name": "j", "catchup": "earliest"}, InvalidArgumentError),
    ("resume", {"name": "j", "catchup": ["skip"]}, InvalidArgumentError),
    ("trigger", {"name": "none"}, NotFoundError),
    ("delete", {"name": "none"}, NotFoundError),
    ("cancel", {"id": "xyz"}, InvalidArgumentError),
    ("cancel", {"id": "0" * 32}, NotFoundError),
    ("wait", {"id": None}, InvalidArgumentError),
    ("redrive", {}, InvalidArgumentError),
    ("redrive", {"match": "*", "ids": []}, InvalidArgumentError),
    ("discard", {"ids": "no list"}, InvalidArgumentError),
    ("discard", {"ids": ["0" * 32]}, NotFoundError),
    ("lease", {"credits": 1}, FailedPreconditionError),
    ("finish", {}, FailedPreconditionError),
    ("heartbeat", {}, FailedPreconditionError),
    ("jobs", {"match": 5}, InvalidArgumentError),
    ("jobs", {"state": "odd"}, InvalidArgumentError),
    ("runs", {"job": 5}, InvalidArgumentError),
    ("runs", {"state": ["dead"]}, InvalidArgumentError),
    ("runs", {"since_us": "x"}, InvalidArgumentError),
    ("dead", {"match": 5}, InvalidArgumentError),
])
def test_refusals(b, verb, args, error):
    seq = b.engine.state.meta.seq
    with pytest.raises(error) as e:
        b.ask(verb, {"rid": b.rid(9), **args} if verb in MUTATING else args)
    assert e.value.code != "internal"
    assert b.engine.state.meta.seq <= seq + 1, "nothing was stored, but perhaps a definition"
    assert not list(b.client.jobs())


@pytest.mark.parametrize("args", [
    {"id": b"x"}, {"outcome": b"\0"}, {"outcome": b"\x08"}, {"result": None}, {"result": 5}, {"result": [[0]]}, {"result": [[1, {}]]},
    {"result": [[0, {"x": "y" * 300_000}]]}, {"started_us": b""}, {"token": b"123"},
])
def test_malformed_completions_are_refused_and_change_nothing(b, args):
    b.hello()
    b.client.enqueue(CALL)
    (lease,) = b.lease()
    at_us = b.now_us.to_bytes(8, "little")
    good = {"id": lease[0], "token": lease[1].to_bytes(8, "little"), "outcome": b"\1", "started_us": at_us, "ended_us": at_us, "result": []}
    with pytest.raises(InvalidArgumentError):
        b.call(50, ("finish", {**good, **args}))
    assert b.finish([lease]) == [1]


def test_a_later_request_of_a_turn_is_not_hurt_by_a_malformed_one(b):
    given, _ = given_from_api(CALL, None, {})
    good = {"given": given, "payload": encode_payload((), {})}
    with pytest.raises(InvalidArgumentError):
        b.call(1, ("enqueue", {**good, "rid": b.rid(1)}), ("enqueue", {"given": [], "rid": b.rid(2), "payload": b"x"}))
    assert len(b.runs()) == 1


# put


def test_put_same_changed_and_same_again(b):
    first = b.put(note="n")
    assert (first.result, first.version, first.next_at) == ("created", 1, b.now + timedelta(seconds=60))
    b.advance("30s")
    same = b.put()
    assert (same.result, same.version, same.next_at, same.note) == ("unchanged", 1, first.next_at, "n")
    changed = b.put(schedule=Every("45s"))
    assert (changed.result, changed.version, changed.next_at) == ("updated", 2, b.now + timedelta(seconds=45))
    other_args = b.put(call=Call("t", 2), schedule=Every("45s"))
    assert (other_args.result, other_args.next_at) == ("updated", changed.next_at), "an unchanged period keeps its grid"
    assert b.put(call=Call("t", 2), schedule=Every("45s"), priority=7).result == "updated"


def test_a_re_created_job_never_fires_a_decided_time(b):
    b.hello()
    b.put(schedule=Cron("* * * * *"))
    b.advance("2m")
    assert b.finish(b.lease()) == [1]
    b.client.delete("j")
    with pytest.raises(NotFoundError):
        b.client.get("j")
    with pytest.raises(FailedPreconditionError, match="decided"):
        b.put(schedule=At(b.now))  # that nominal time is decided, and the answer says so
    b.put(schedule=Cron("* * * * *"))
    b.advance("2m")
    nominal = [r.scheduled_at for r in b.runs("j", skipped=True)]
    assert len(nominal) == len(set(nominal))


def test_version_is_compare_and_set(b):
    with pytest.raises(AlreadyExistsError) as e:
        b.put(version=1)
    assert e.value.detail["version"] == 0
    assert b.put(version=0).version == 1
    with pytest.raises(AlreadyExistsError):
        b.put(version=0)
    assert b.put(schedule=Every("5s"), version=1).version == 2


def test_put_paused_pauses_and_resumes(b):
    assert b.put(paused=True).state == "paused"
    b.advance("5m")
    assert b.runs("j") == []
    assert b.put(paused=None).result == "unchanged"
    assert b.put(paused=False).state == "active"
    assert [(r.reason, r.count) for r in b.runs("j", "skipped")] == [("pause", 5)]
    assert b.put(paused=False).result == "unchanged"
    assert b.put(paused=True).state == "paused"


def test_put_many_is_atomic(b):
    jobs = [Job("a", CALL, Every("5s")), Job("b", CALL, Every("5s")), Job("a", CALL, Every("9s"))]
    with pytest.raises(InvalidArgumentError) as e:
        b.client.put_many(jobs)
    assert e.value.detail["jobs"][0][0] == 2
    assert not list(b.client.jobs())
    assert b.client.put_many(jobs[:2]).counts() == {"unchanged": 0, "created": 2, "updated": 0}
    jobs[1].schedule = Every("6s")
    assert list(b.client.put_many(jobs[:2])) == [("a", "unchanged"), ("b", "updated")]
    given, _ = given_from_api(CALL, Every("5s"), {})
    for wrong in ({"which": b"\5\0\0\0"}, {"names": ["x", "y"]}, {"payload": [b""]}, {"param_us": b""}, {"given": []}, {"names": ["a b"]}):
        args = {"rid": b.rid(7), "given": [given], "names": ["x"], "which": bytes(4), "param_us": NEVER.to_bytes(8, "little"), "payload": [b"\x92\x90\x80"]}
        with pytest.raises(InvalidArgumentError):
            b.ask("put_many", {**args, **wrong})
    assert len(list(b.client.jobs())) == 2


def test_next_and_get(b):
    b.put(schedule=Cron("*/20 * * * *"))
    assert b.client.next("j", 3) == [at("2026-03-02T00:20"), at("2026-03-02T00:40"), at("2026-03-02T01:00")]
    b.put("once", At(at("2026-03-05T00:00")))
    assert b.client.next("once", 3) == [at("2026-03-05T00:00")]
    assert b.client.get("once").args == [1]
    b.put("by-hand", Manual())
    assert b.client.next("by-hand", 3) == []
    for n in (0, 1_001, True, "1"):
        with pytest.raises(InvalidArgumentError):
            b.ask("next", {"name": "j", "n": n})
    assert b.client.get("by-hand").state == "active"


# pause, resume, catch-up


@pytest.mark.parametrize(("catchup", "nominal", "skipped"), [
    (None, [], [("pause", 3)]), ("skip", [], [("pause", 3)]), ("latest", [13], [("misfire", 2)]), ("all", [11, 12, 13], []),
])
def test_resume(b, catchup, nominal, skipped):
    b.put(schedule=Cron("* * * * *"))
    b.advance(to="2026-03-02T00:10:30Z")
    done = len(b.runs("j", skipped=True))
    b.client.pause("j", note="why")
    assert b.client.get("j").note == "why"
    b.advance("3m")
    b.client.cancel(b.runs("j")[0].id)
    resumed = b.client.resume("j", catchup=catchup)
    assert resumed.state == "active"
    assert resumed.next_at == at("2026-03-02T00:14")
    rows = b.runs("j", skipped=True)[done:]
    assert [r.scheduled_at.minute for r in rows if r.state != "skipped"] == nominal
    assert [(r.reason, r.count) for r in rows if r.state == "skipped"] == skipped
    assert b.client.resume("j").version == resumed.version, "an active job is left alone"


def test_pause_twice_loses_nothing(b):
    b.put(schedule=Cron("* * * * *"))
    b.client.pause("j")
    b.advance("2m")
    b.client.pause("j", note="again")
    b.advance("2m")
    b.client.resume("j")
    assert sum(r.count for r in b.runs("j", "skipped")) == 4
    b.put("once", At(b.now))
    b.advance(0)
    with pytest.raises(FailedPreconditionError, match="finished"):
        b.client.pause("once")


@pytest.mark.parametrize(("catchup", "runs", "skipped"), [
    ("latest", [(10, 9)], [("misfire", 9)]), ("earliest", [(1, 9)], [("misfire", 9)]), ("skip", [], [("misfire", 10)]),
    ("all", [(i, 0) for i in range(1, 11)], []), (Catchup("all", max=3), [(8, 0), (9, 0), (10, 0)], [("max", 7)]),
    (Catchup("latest", window="150s"), [(10, 2)], [("window", 7), ("misfire", 2)]), (Catchup("skip", window="150s"), [], [("window", 7), ("misfire", 3)]),
])
def test_catch_up_policies(b, catchup, runs, skipped):
    b.put(schedule=Cron("* * * * *"), catchup=catchup)
    b.crash(down="10m30s")
    b.advance(0)
    rows = b.runs("j", skipped=True)
    assert [(r.scheduled_at.minute, r.missed) for r in rows if r.state != "skipped"] == runs
    assert [(r.reason, r.count) for r in rows if r.state == "skipped"] == skipped
    assert b.client.get("j").next_at == at("2026-03-02T00:11")
    b.hello()
    order = []
    while leases := b.lease():
        assert len(leases) == 1, "one after another"
        order += leases
        b.finish(leases)
    assert len(order) == len(runs)


# overlap, max_runs


@pytest.mark.parametrize(("overlap", "states", "reasons"), [
    ("skip", ["queued"], ["overlap"] * 4), ("allow", ["queued"] * 5, []), (Overlap("allow", 2), ["queued"] * 2, ["overlap"] * 3),
    ("buffer_one", ["queued", "scheduled"], ["overlap"] * 3), (Overlap("buffer_all", 3), ["queued"] + ["scheduled"] * 3, ["overlap"]),
])
def test_overlap(b, overlap, states, reasons):
    b.put(overlap=overlap)
    b.advance("5m")
    assert b.states() == states
    assert [r.reason for r in b.runs("j", "skipped")] == reasons
    b.hello()
    b.finish(b.lease())
    still = b.states()
    assert still.count("queued") == (1 if "scheduled" in states else 0), "the next in turn"


@pytest.mark.parametrize(("overlap", "disposition"), [
    ("skip", Disposition.SKIPPED), ("buffer_one", Disposition.COALESCED), (Overlap("buffer_all", 1), Disposition.COALESCED),
    (Overlap("buffer_all", 2), Disposition.SKIPPED), (Overlap("allow", 1), Disposition.SKIPPED),
])
def test_an_occurrence_beyond_the_one_place_to_wait_is_coalesced(b, overlap, disposition):
    b.put(overlap=overlap)
    b.advance("4m")
    b.advance("2m")  # housekeeping moves them to history
    found = set()
    for _, data in of_runs(b.journal.history_blocks()):
        block = Block(data)
        found |= set(block["disposition"][block["state"] == RunState.SKIPPED].tolist())
    assert found == {disposition}


def test_a_window_takes_only_misfires(b):
    """The turn after a stall comes late: what became due since the stall ended is late too, but no misfire, and decided once."""
    b.put(schedule=Cron("* * * * *"), catchup=Catchup("latest", window="60s"))
    b._jump(b.now_us + 150 * US)
    b.engine.missed_before_us = b.now_us
    b._jump(b.now_us + 600 * US)
    b.advance(0)
    rows = b.runs("j", skipped=True)
    assert sum(r.count or 1 for r in rows) == 12
    assert [(r.reason, r.count) for r in rows if r.reason == "window"] == [("window", 2)]


@pytest.mark.parametrize(("down", "reasons"), [("61m30s", ["window"]), ("60m30s", []), ("61m", [])])
def test_a_window_holds_for_a_single_misfire(b, down, reasons):
    b.put(schedule=Cron("0 * * * *"), catchup=Catchup("latest", window="1m"))
    b.crash(down=down)
    b.advance(0)
    assert [r.reason for r in b.runs("j", skipped=True) if r.state == "skipped"] == reasons
    assert len(b.runs("j")) == 1 - len(reasons)


def test_max_runs_counts_runs_and_not_what_was_skipped(b):
    b.put(max_runs=2)
    b.advance("3m")
    assert b.client.get("j").state == "active", "one run, two skipped"
    b.hello()
    b.finish(b.lease())
    b.advance("1m")
    assert b.client.get("j").state == "finished"
    assert len(b.runs("j")) == 2
    assert b.put(max_runs=2, note="changed").state == "finished"
    assert b.put(max_runs=3).state == "active"


def test_start_and_end(b):
    b.put(schedule=Cron("* * * * *"), start=at("2026-03-02T00:03"), end=at("2026-03-02T00:05"), overlap="allow")
    b.advance("10m")
    assert [r.scheduled_at.minute for r in b.runs("j")] == [3, 4, 5]
    assert b.client.get("j").state == "finished"


# trigger, enqueue


def test_trigger(b):
    b.put(schedule=Manual())
    run = b.client.trigger("j", key="k")
    assert (run.trigger, run.state, run.job) == ("manual", "queued", "j")
    assert b.client.trigger("j", key="k").id == run.id
    with pytest.raises(FailedPreconditionError) as e:
        b.client.trigger("j")
    assert e.value.detail["run_id"] == run.id
    b.put(schedule=Manual(), overlap="buffer_one")
    assert b.client.trigger("j").state == "scheduled"
    b.put(schedule=Manual(), overlap="allow")
    two = [b.client.trigger("j"), b.client.trigger("j")]
    assert len({r.id for r in two}) == 2


def test_enqueue(b):
    now = b.client.enqueue(CALL, key="k")
    assert (now.job, now.trigger, now.state) == ("~t", "enqueue", "queued")
    assert b.client.enqueue(Call("t", 5), key="k").id == now.id
    assert b.client.enqueue(CALL, key="k", namespace="team").id != now.id
    later = b.client.enqueue(CALL, delay="10s")
    assert (later.state, later.next_at) == ("scheduled", b.now + timedelta(seconds=10))
    past = b.client.enqueue(CALL, at=b.now - timedelta(days=1))
    assert past.state == "queued"
    b.advance("9999ms")
    assert later.refresh().state == "scheduled"
    b.advance("1ms")
    assert later.refresh().state == "queued"


def test_keys_are_forgotten_after_a_day_but_not_while_the_run_is_open(b):
    b.hello()
    open_run, done = b.client.enqueue(Call("other"), key="a"), b.client.enqueue(CALL, key="b")
    b.finish(b.lease())
    b.advance("23h")
    assert b.client.enqueue(CALL, key="b").id == done.id
    b.advance("2h")
    assert b.client.enqueue(CALL, key="b").id != done.id
    assert b.client.enqueue(Call("other"), key="a").id == open_run.id


def test_what_is_too_old_is_forgotten_in_pieces(monkeypatch):
    monkeypatch.setattr("wheelsched.engine.forgetting.KEYS_MAX", 10)
    monkeypatch.setattr("wheelsched.engine.forgetting.JOBS_MAX", 7)
    with Bench("2026-03-02T00:00:00Z") as b:
        b.hello()
        for i in range(35):
            b.client.enqueue(CALL, key=f"k{i}")
            b.put(f"j{i}", Manual())
            b.client.delete(f"j{i}")
        kept = b.put("kept", Manual())
        b.finish(b.lease())
        pieces, apply = [], b.engine.state.apply

        def record(kind, fields):
            if kind == "FORGET":
                pieces.append((len(fields["rid"]), len(fields["key"]), len(fields["job"])))
            return apply(kind, fields)

        monkeypatch.setattr(b.engine.state, "apply", record)
        assert len(b.engine.state.keys) == 35
        b.advance("25h")
        assert (b.engine.state.keys, len(b.engine.state.replies)) == ({}, 0)
        b.advance("31d")
        assert b.client.get("kept").version == kept.version
        assert len(b.engine.state.jobs) == 2, "kept, and that of the enqueued runs"
        assert sum(x[2] for x in pieces) == 35
        assert all(rids <= 10 and keys <= 10 and jobs <= 7 for rids, keys, jobs in pieces), pieces


def test_a_page_looks_at_no_more_than_so_much_and_the_listing_goes_on(b, monkeypatch):
    monkeypatch.setattr("wheelsched.reads.reads.PAGE_MAX", 2)
    for module in ("state.readable", "reads.reads"):
        monkeypatch.setattr(f"wheelsched.{module}.TOLD_MAX", 2)
        monkeypatch.setattr(f"wheelsched.{module}.LOOKED_AT_MAX", 4)
    monkeypatch.setattr("wheelsched.state.pages.BLOCKS_MAX", 2)
    monkeypatch.setattr("wheelsched.engine.housekeeping.FOLD_ROWS", 3)
    b.hello()
    for i in range(30):
        b.put(f"j{i}", Manual(), overlap="allow")
        b.client.trigger(f"j{i}")
        b.finish(b.lease())
    asked, ask = [], b.ask
    monkeypatch.setattr(b, "ask", lambda verb, args: asked.append(verb) or ask(verb, args))
    assert [j.name for j in b.client.jobs("j29")] == ["j29"]
    assert sorted(j.name for j in b.client.jobs()) == sorted(f"j{i}" for i in range(30))
    assert [r.job for r in b.client.runs("j29")] == ["j29"]
    assert [r.job for r in b.client.runs()] == [f"j{i}" for i in range(30)]
    assert asked.count("jobs") >= 8 + 15
    assert asked.count("runs") >= 5

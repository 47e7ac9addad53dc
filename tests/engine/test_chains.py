"""on_success, on_failure, on_dead: one chained run for each (run, hook), whatever happens in between."""

from __future__ import annotations

import numpy as np
import pytest

from tests.rigs.engine import FAILED, OK, Bench
from wheelsched import Call, Every, FailedPreconditionError, InvalidArgumentError, Job, Manual, Retry, current_run
from wheelsched.client.troubles import troubles
from wheelsched.engine.alarms import AlarmJobs
from wheelsched.journal.recover import recover
from wheelsched.protocol.frames import decode_headers
from wheelsched.simulator.simulator import Simulator
from wheelsched.state.records import decode

B = Call("b")


def chained(sim, job="b"):
    """The causes of a job's chained runs, oldest first."""
    runs = sim.engine.state.runs
    rows = [runs.find(bytes.fromhex(r.id))[0] for r in sim.runs(job) if r.trigger == "chain"]
    return [decode_headers(runs.blobs(int(row))[0])["cause"] for row in rows]


def bench(**policies):
    """A job `a` with these policies, and its targets b and c; only `t` is worked on."""
    sim = Bench()
    for name in "bc":
        sim.put(name, Manual(), call=B)
    sim.put("a", Manual(), **policies)
    return sim


def die(sim, leases=None):
    """The run of `a` fails with its last attempt."""
    leases = leases or sim.lease()
    sim.finish(leases, FAILED, error="Boom")
    return leases


def test_success_is_told_with_the_value_once_for_each_run():
    got = []

    def b():
        got.append((current_run().cause, current_run().job))

    def a(n):
        return {"n": n, "big": "x" * n}

    with Simulator(tasks={"a": a, "b": b}) as sim:
        sim.client.put("b", B, Manual())
        sim.client.put("a", Call("a", 3), Every("60s"), on_success="b")
        sim.advance(60)
        run = sim.runs("a")[0]
        assert got == [({"reason": "success", "job": "a", "run_id": run.id, "output": {"n": 3, "big": "xxx"}, "error": None}, "b")]
        sim.client.put("a", Call("a", 9_000), Every("60s"), on_success="b")
        sim.advance(60)
        cause = got[1][0]
        assert cause["output"] is None
        assert 9_000 < cause["output_left_out"] < 9_100
        assert [r.trigger for r in sim.runs("b")] == ["chain", "chain"]
        assert sim.client.get("a").spec["on_success"] == "default/b"


def test_an_attempt_that_is_retried_is_no_failure_and_the_last_one_is():
    sim = bench(on_success="b", on_failure="b", on_dead="c", retry=Retry(2, "1s"))
    run = sim.client.trigger("a")
    die(sim)
    assert chained(sim) == chained(sim, "c") == []
    sim.advance(5)
    die(sim)
    assert run.refresh().state == "dead"
    about = {"job": "a", "run_id": run.id, "value": None, "error": {"type": "Boom", "message": "m"}}
    assert chained(sim) == [{"reason": "failure", **about}]
    assert chained(sim, "c") == [{"reason": "dead", **about}]


def test_a_dead_letter_that_is_sent_back_is_told_of_once_and_its_success_too():
    sim = bench(on_success="b", on_dead="b", retry=1)
    run = sim.client.trigger("a")
    die(sim)
    for _ in range(2):
        sim.client.redrive("a")
        sim.crash()
        die(sim)
    assert [c["reason"] for c in chained(sim)] == ["dead"]
    sim.client.redrive("a")
    sim.finish(sim.lease(), OK)
    assert run.refresh().state == "succeeded"
    assert [c["reason"] for c in chained(sim)] == ["dead", "success"]


def test_a_dead_letter_of_which_nobody_was_told_is_told_of_when_it_dies_again():
    sim = bench(on_dead="b", on_failure="c", retry=1)
    for name in "bc":
        sim.client.delete(name)
    sim.client.trigger("a")
    die(sim)
    assert sim.client.stats()["counters"]["untold"] == 2
    for name in "bc":
        sim.put(name, Manual(), call=B)
    sim.crash()
    for _ in range(2):
        sim.client.redrive("a")
        die(sim)
    assert [c["reason"] for name in "bc" for c in chained(sim, name)] == ["dead", "failure"]


def test_repeats_stale_completions_and_crashes_make_no_second_one():
    sim = bench(on_success="b", on_dead="c", retry=1)
    sim.client.trigger("a")
    leases = sim.lease()
    assert sim.finish(leases, OK) == sim.finish(leases, OK) == [1]
    assert sim.finish(leases, FAILED) == [2]
    sim.crash()
    sim.hello()
    sim.finish(leases, OK)  # it may be in history by now
    assert len(chained(sim)) == 1
    assert chained(sim, "c") == []


def test_the_chained_run_is_in_the_commit_of_the_ending():
    sim = bench(on_success="b")
    sim.client.trigger("a")
    leases, made, real = sim.lease(), [], sim.journal.append
    sim.journal.append = lambda batch: made.append([decode(r)[0] for r in batch.records]) or real(batch)
    sim.finish(leases, OK)
    (kinds,) = [kinds for kinds in made if "FINISH" in kinds]
    assert kinds.index("FINISH") < kinds.index("ENQUEUE")


def test_a_cancel_is_no_failure_and_an_expired_run_is():
    sim = bench(on_failure="b", on_dead="c", expires_after="10s")
    sim.client.cancel(sim.client.trigger("a").id)
    assert chained(sim) == []
    run = sim.client.trigger("a")
    sim.advance(11)
    assert run.refresh().reason == "expired"
    (cause,) = chained(sim)
    assert (cause["reason"], cause["run_id"], cause["error"]["type"]) == ("failure", run.id, "wheelsched.Expired")
    assert chained(sim, "c") == []


def test_a_lost_worker_ends_a_run_as_any_failure():
    sim = bench(on_dead="b", retry=1)
    sim.client.trigger("a")
    sim.lease()
    sim.advance(11)
    (cause,) = chained(sim)
    assert cause["error"]["type"] == "wheelsched.WorkerLost"


def test_many_endings_of_one_frame_make_as_many_runs_with_ids_of_their_own():
    sim = bench(on_success="b", overlap="allow")
    ids = {sim.client.trigger("a").id for _ in range(20)}
    sim.finish(sim.lease(), OK)
    causes = chained(sim)
    assert {c["run_id"] for c in causes} == ids
    assert len(causes) == 20
    assert [r.state for r in sim.runs("b")] == ["queued"] * 20  # whatever the overlap policy of b says


def test_the_definition_that_the_run_was_made_with_counts():
    sim = bench(on_success="b")
    sim.client.trigger("a")
    sim.put("a", Manual(), on_success="c")
    sim.finish(sim.lease(), OK)
    assert (len(chained(sim)), len(chained(sim, "c"))) == (1, 0)


def test_a_paused_target_runs_and_a_deleted_one_is_counted():
    sim = bench(on_success="b")
    sim.client.pause("b")
    sim.client.trigger("a")
    sim.finish(sim.lease(), OK)
    assert len(chained(sim)) == 1
    sim.client.delete("b")
    sim.client.trigger("a")
    sim.finish(sim.lease(), OK)
    assert len(chained(sim)) == 1
    assert sim.client.stats()["counters"]["untold"] == 1


def test_a_job_that_was_deleted_meanwhile_still_tells_of_its_open_run():
    sim = bench(on_success="b")
    sim.client.trigger("a")
    leases = sim.lease()
    sim.client.delete("a")
    sim.finish(leases, OK)
    assert len(chained(sim)) == 1


def test_an_enqueued_run_has_hooks_too():
    sim = bench()
    run = sim.client.enqueue(Call("t"), on_success="b")
    sim.finish(sim.lease(), OK)
    (cause,) = chained(sim)
    assert (cause["job"], cause["run_id"]) == (run.job, run.id)
    with pytest.raises(FailedPreconditionError, match="there is no job nowhere"):
        sim.client.enqueue(Call("t"), on_dead="nowhere")


def test_chains_go_on_and_the_digest_of_a_replay_is_the_same():
    sim = bench()
    sim.put("c", Manual(), call=B)
    sim.put("b", Manual(), on_success="c")
    sim.put("a", Manual(), on_success="b")
    sim.client.trigger("a")
    for _ in range(2):
        sim.finish(sim.lease(), OK)
    assert chained(sim, "c")[0]["job"] == "b"
    before = sim.engine.state.digest()
    sim.crash()
    assert [r.state for r in sim.runs("c")] == ["queued"]
    assert before != sim.engine.state.digest()  # a START more


# Targets and cycles


def test_a_target_must_be_there_or_come_along():
    sim = bench()
    with pytest.raises(FailedPreconditionError, match="on_failure: there is no job later; put it first"):
        sim.put("a", Manual(), on_failure="later")
    jobs = [Job("x", B, Manual(), on_success="y"), Job("y", B, Manual(), on_dead="z"), Job("z", B, Manual())]
    assert dict(sim.client.put_many(jobs)) == dict.fromkeys("xyz", "created")
    with pytest.raises(InvalidArgumentError, match="reserved for enqueued runs"):
        sim.put("a", Manual(), on_success="~t")


@pytest.mark.parametrize("hook", ["on_success", "on_failure", "on_dead"])
def test_a_cycle_is_refused_with_its_path(hook):
    sim = bench(on_success="b")
    with pytest.raises(InvalidArgumentError, match="a -> a is a cycle"):
        sim.put("a", Manual(), **{hook: "a"})
    sim.put("b", Manual(), call=B, on_dead="c")
    with pytest.raises(InvalidArgumentError, match="c -> a -> b -> c is a cycle"):
        sim.put("c", Manual(), call=B, **{hook: "a"})
    assert hook not in sim.client.get("c").spec
    sim.put("a", Manual())
    sim.put("c", Manual(), call=B, **{hook: "a"})  # a names nobody any more


@pytest.mark.parametrize("how", ["put_many", "apply"])
def test_a_cycle_within_one_frame_is_refused_and_nothing_stored(how):
    sim = bench()
    jobs = [Job("n", B, Manual()), Job("x", B, Manual(), on_success="y"), Job("y", B, Manual(), on_success="z"),
            Job("z", B, Manual(), on_failure="x")]
    with pytest.raises(InvalidArgumentError, match="x -> y -> z -> x is a cycle") as e:
        getattr(sim.client, how)(jobs)
    assert [row for row, _ in e.value.detail["jobs"]] == [1]
    assert list(sim.client.jobs("[nxyz]")) == []
    jobs[3] = Job("z", B, Manual())
    getattr(sim.client, how)(jobs)
    with pytest.raises(InvalidArgumentError, match="z -> x -> y -> z is a cycle"):
        getattr(sim.client, how)([Job("z", B, Manual(), on_success="x")])
    # one frame may turn a chain around
    getattr(sim.client, how)([Job("x", B, Manual()), Job("y", B, Manual(), on_success="x"), Job("z", B, Manual(), on_success="y")])


def test_jobs_of_one_definition_are_each_looked_at():
    """The definition is resolved once for all that share it, and one of them names itself."""
    sim = bench()
    with pytest.raises(InvalidArgumentError, match="y -> y is a cycle"):
        sim.client.put_many([Job("x", B, Manual(), on_success="y"), Job("y", B, Manual(), on_success="y")])


def test_snapshots_keep_what_was_told():
    sim = bench(on_dead="b", retry=1)
    sim.client.trigger("a")
    die(sim)
    state = sim.engine.state
    pieces = [piece for part in state.copy(1 << 20) for piece in part]
    loaded = type(state).load(iter(pieces))
    assert loaded.digest() == state.digest()
    rows = np.array(loaded.runs.slots(), np.uint32)
    assert (loaded.runs.gather(rows)["flags"] & 64 > 0).sum() == 1


# A server's own alarms


def told(sim, job="ops/alarm"):
    return [(c["reason"], c["job"]) for c in chained(sim, job)]


def alarm_troubles(sim):
    """What `status` and `health` say of the server's alarms."""
    said = troubles({**sim.client.stats(), "storage": {"state": "ok"}, "draining": False})
    return [text.partition(",")[0] for text in said if text.startswith("on_")]


def everybody(*, hooks=("on_dead", "on_missed"), made=True, **more):
    """A bench whose server has the job ops/alarm for all."""
    sim = Bench(**dict.fromkeys(hooks, "ops/alarm"), **more)
    if made:
        sim.put("ops/alarm", Manual(), call=B, retry=1)
    for name in ("b", "next"):
        sim.put(name, Manual(), retry=1, **({"call": B} if name == "b" else {}))
    return sim


def test_n_a3_the_dead_runs_of_all_jobs_and_enqueues_are_told_to_the_servers_job():
    sim = everybody()
    sim.put("a", Manual(), retry=Retry(2, "1s"))
    sim.put("own", Manual(), retry=1, on_dead="b")
    sim.put("both", Manual(), retry=1, on_failure="b")
    for name in ("a", "own", "both"):
        sim.client.trigger(name)
    queued = sim.client.enqueue(Call("t"), retry=1)
    die(sim)
    assert told(sim) == [("dead", "both"), ("dead", "~t")]  # an on_failure may be a repair: it is no alarm
    assert sorted(told(sim, "b")) == [("dead", "own"), ("failure", "both")]
    assert chained(sim, "ops/alarm")[1] == {"reason": "dead", "job": "~t", "run_id": queued.id, "value": None, "error": {"type": "Boom", "message": "m"}}
    sim.advance(2)
    die(sim)
    assert told(sim)[2:] == [("dead", "a")]
    sim.client.redrive("a")
    die(sim)
    assert len(told(sim)) == 3  # as of on_dead: one dead letter is told of once


def test_n_a3_no_alarm_calls_itself_nor_another_for_ever():
    sim = everybody(hooks=("on_dead",))
    sim.put("a", Manual(), retry=1, on_success="next")
    sim.put("next", Manual(), retry=1, on_success="b")  # that it has a hook itself changes nothing
    sim.client.trigger("ops/alarm")
    sim.hello(51, tasks=("b",))
    die_of_b = [lambda: sim.finish(sim.lease(51), FAILED, 51, error="Boom")] * 2
    die_of_b[0]()
    assert told(sim) == []  # its own death, triggered by hand
    sim.client.trigger("a")
    sim.finish(sim.lease(), OK)
    die(sim)
    assert told(sim) == []  # a run that a hook made
    sim.client.trigger("next")
    die(sim)
    assert told(sim) == [("dead", "next")]  # the same job, by hand
    die_of_b[1]()
    assert told(sim) == [("dead", "next")]


def test_n_a3_a_death_at_a_start_is_told_too_and_a_replay_needs_no_flag():
    sim = everybody()
    sim.put("a", Manual(), retry=1)
    sim.client.trigger("a")
    sim.lease()
    sim.advance(11)  # its worker is lost
    assert told(sim) == [("dead", "a")]
    live = sim.engine.state.digest()
    assert recover(sim.journal).digest() == live
    sim._alarm_jobs = AlarmJobs()
    sim.crash()
    assert told(sim) == [("dead", "a")]
    assert sim.client.stats()["alarm_jobs"] == {}


def test_n_a3_a_job_that_is_not_there_is_a_trouble_and_loses_nothing():
    sim = everybody(made=False)
    sim.put("a", Manual(), retry=1)
    sim.put("m", Every("60s"), catchup="skip")
    sim.client.trigger("a")
    die(sim)
    sim.crash(down="5m")
    sim.advance(0)
    stats = sim.client.stats()
    assert stats["counters"]["untold"] == 1  # of this life: what was missed
    assert stats["dead_letters"] == 1
    assert stats["alarm_jobs"] == {hook: {"job": "ops/alarm", "exists": False} for hook in ("on_dead", "on_missed")}
    assert alarm_troubles(sim) == [f"{hook}: there is no job ops/alarm" for hook in ("on_dead", "on_missed")]
    sim.put("ops/alarm", Manual(), call=B)
    assert alarm_troubles(sim) == []
    sim.client.redrive("a")
    die(sim)
    assert told(sim) == [("dead", "a")]  # nobody was told before
    sim.client.delete("ops/alarm")
    assert len(alarm_troubles(sim)) == 2


def test_n_a3_missed_occurrences_of_all_jobs_are_told_to_the_servers_job():
    sim = everybody(hooks=("on_missed",))
    sim.put("ops/alarm", Every("60s"), call=B, catchup="skip")  # one that misses occurrences of its own
    sim.put("m", Every("60s"), catchup="skip")
    sim.put("own", Every("60s"), catchup="skip", on_missed="b")
    sim.crash(down="5m")
    sim.advance(0)
    (cause,) = chained(sim, "ops/alarm")
    assert (cause["reason"], cause["job"], cause["jobs"], cause["count"]) == ("missed", "m", 1, 4)
    assert told(sim, "b") == [("missed", "own")]
    sim.put("late", Every("1h"), late_after="10s")
    for name in ("m", "own", "ops/alarm"):
        sim.client.pause(name)
    sim.advance("1h")
    sim.advance(11)
    assert told(sim)[1:] == [("late", "late")]
    run = sim.client.enqueue(Call("t"), expires_after="10s")
    sim.client.pause("late")
    sim.advance(11)
    assert run.refresh().reason == "expired"
    assert told(sim)[2:] == [("missed", "~t")]


def test_n_a3_where_a_jobs_own_alarm_is_deleted_the_servers_is_told():
    sim = everybody()
    sim.put("gone", Manual(), call=B)
    sim.put("a", Every("60s"), retry=1, on_dead="gone", on_missed="gone", catchup="skip")
    sim.client.delete("gone")
    sim.client.trigger("a")
    die(sim)
    sim.crash(down="5m")
    sim.advance(0)
    assert told(sim) == [("dead", "a"), ("missed", "a")]
    assert sim.client.stats()["counters"]["untold"] == 0


def test_n_a3_an_alarm_tells_no_redacted_argument():
    sim = everybody()
    sim.put("a", Manual(), call=Call("t", password="m"), retry=1, redact=["password"])
    sim.client.trigger("a")
    die(sim)
    (cause,) = chained(sim, "ops/alarm")
    assert cause["error"] == {"type": "Boom", "message": "[redacted]"}


def test_n_a3_what_was_late_before_a_start_is_told_by_the_start():
    sim = everybody(hooks=("on_missed",))
    sim.put("late", Every("1h"), late_after="10s")
    sim.advance("1h")
    sim.crash(down="20s")
    sim.advance(0)
    assert told(sim) == [("late", "late")]

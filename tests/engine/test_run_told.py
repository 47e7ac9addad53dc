"""What `Client.run` tells of one run beyond a listing: its call, why a hook has made it, since when it runs."""

from __future__ import annotations

import numpy as np

from tests.rigs.engine import CALL, FAILED
from tests.rigs.server import wait_for
from wheelsched import Call, Manual, Retry, current_run
from wheelsched.model.nouns import US
from wheelsched.protocol.redact import Redaction
from wheelsched.simulator.simulator import Simulator


def test_the_call_of_an_open_run_and_of_a_dead_letter(b):
    b.engine.redaction = Redaction(["PIN"])
    call = Call("t", 1, {"pin": 7}, to="eu", password="p").with_headers({"trace": "a-1"})
    made = b.client.enqueue(call, redact=["password"], retry=1)
    assert (made.args, made.kwargs, made.headers, made.to_dict()["args"]) == (None, None, None, None), "only `run` tells it"
    shown = [1, {"pin": "[redacted]"}], {"to": "eu", "password": "[redacted]"}, {"trace": "a-1"}
    run = b.client.run(made.id)
    assert (run.args, run.kwargs, run.headers, run.cause) == (*shown, None)
    told = run.to_dict()
    assert (told["args"], told["kwargs"], told["headers"], told["cause"]) == (*shown, None)
    b.finish(b.lease(), FAILED)
    assert (run.refresh().state, run.args) == ("dead", shown[0])


def test_a_run_that_is_history_has_no_call_any_more():
    with Simulator("2026-03-02T00:00:00Z", tasks={"t": lambda x: x}) as sim:
        run = sim.client.enqueue(Call("t", 5))
        assert run.result() == 5
        sim.advance("1h")
        assert sim.engine.state.find_run(bytes.fromhex(run.id)) is None, "it is folded"
        assert (run.refresh().state, run.args, run.cause, run.to_dict()["args"]) == ("succeeded", None, None, None)


def test_why_a_hook_has_made_a_run(b):
    b.client.put("second", Call("t", "then"), Manual())
    b.client.put("c/first", CALL, Manual(), on_dead="second", retry=Retry(1))
    first = b.client.trigger("c/first")
    b.finish(b.lease(), FAILED)
    (second,) = b.client.runs(job="second")
    run = b.client.run(second.id)
    cause = {"reason": "dead", "job": "c/first", "run_id": first.id, "output": None, "error": {"type": "E", "message": "m"}}
    assert (run.args, run.headers, run.cause) == (["then"], {}, cause)
    assert run.to_dict()["cause"] == cause


def test_why_a_run_behind_a_group_has_begun(b):
    made = b.client.group([CALL, CALL], then=Call("t"))
    assert b.client.run(made.run.id).cause is None
    b.finish(b.lease())
    cause = b.client.run(made.run.id).cause
    assert (cause["reason"], cause["members"], cause["succeeded"]) == ("group", 2, 2)


def test_since_when_an_attempt_of_an_external_worker_runs(b):
    run = b.client.enqueue(CALL)
    ((run_id, token, _),) = b.lease()
    assert (run.refresh().state, run.started_at, run.attempts[0].started_at) == ("leased", None, None)
    b.advance(2)
    told_us = b.now_us
    for _ in range(2):  # the first heartbeat that says so counts
        b.call(50, ("heartbeat", {"id": run_id, "token": np.array([token], "<i8").tobytes(), "started": b"\1", "progress": []}))
        b.advance(3)
    assert run.refresh().state == "running"
    assert run.started_at == run.attempts[0].started_at
    assert run.started_at.timestamp() * US == told_us
    b.finish([(run_id, token, 1)])
    assert run.refresh().state == "succeeded"
    assert run.started_at.timestamp() * US == b.now_us, "as its completion tells"


def test_since_when_an_attempt_of_the_pool_runs(serving, short_tmp):
    ws = serving().client()
    run = ws.enqueue(Call("t.gate", str(short_tmp / "gate")))
    wait_for(lambda: run.refresh().state == "running")
    begun = run.attempts[0].started_at
    assert begun == run.started_at
    assert begun >= run.queued_at
    assert run.args == [str(short_tmp / "gate")]
    (short_tmp / "gate").touch()
    assert run.result(timeout=30) is None
    assert abs((run.refresh().started_at - begun).total_seconds()) < 5, "what its completion tells is the same"


def test_since_when_an_attempt_of_a_simulator_runs():
    seen = []

    def t():
        begun = current_run().started_at
        sim.advance("7m")
        (run,) = sim.client.runs(state="running")
        seen.append((sim.client.run(run.id).attempts[0].started_at, begun))

    with Simulator("2026-03-02T00:00:00Z", tasks={"t": t}) as sim:
        sim.client.enqueue(Call("t")).result()
    assert seen[0][0] == seen[0][1]

"""Answers as values and as JSON."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest

from tests.rigs.client import RUN_ID, T0, T0_US, job_raw, run_raw
from wheelsched import Every, Overlap, PayloadError, Retry
from wheelsched.client.values import Attempt, JobInfo, RunInfo, plain, rfc3339
from wheelsched.model.nouns import NEVER, US
from wheelsched.protocol import frames


def test_times_and_values_for_json():
    assert rfc3339(T0) == "2026-11-29T08:30:00.123456Z"
    assert rfc3339(T0.replace(microsecond=0) + timedelta(0)) == "2026-11-29T08:30:00.000000Z"
    assert rfc3339(None) is None
    assert plain({"a": [T0, b"\xff", (1, None)]}) == {"a": ["2026-11-29T08:30:00.123456Z", "/w==", [1, None]]}


def test_a_run_as_values_and_as_json():
    result = {"value": frames.encode_value([1, b"\xff"]), "stdout": b"hi\xff", "stderr": b"", "stdout_cut": 5, "stderr_cut": 0}
    failed = {"type": "ValueError", "message": "boom", "traceback": "tb"}
    attempts = [
        {"attempt": 1, "token": 8, "worker": "w1", "started_us": T0_US, "ended_us": T0_US + 1, "outcome": "failed", "result": failed},
        {"attempt": 2, "token": 9, "worker": "w2", "started_us": T0_US, "ended_us": None, "outcome": None, "result": None},
    ]
    run = RunInfo(run_raw("succeeded", result=result, attempts=attempts, next_us=NEVER, id=bytes.fromhex(RUN_ID)))
    assert (run.id, run.final, run.output, run.stdout, run.stdout_cut, run.error) == (RUN_ID, True, [1, b"\xff"], b"hi\xff", 5, None)
    assert (run.scheduled_at, run.next_at, run.started_at) == (T0, None, None)
    assert [(a.attempt, a.outcome, a.started_at, str(a.error)) for a in run.attempts] == [
        (1, "failed", T0, "ValueError: boom"),
        (2, None, T0, "None"),
    ]
    assert isinstance(run.attempts[0], Attempt)
    shown = json.loads(json.dumps(run.to_dict()))
    assert (shown["scheduled_at"], shown["next_at"], shown["output"], shown["stdout"]) == (rfc3339(T0), None, [1, "/w=="], "hi\ufffd")
    assert shown["attempts"][0]["error"] == failed
    with pytest.raises(PayloadError):
        _ = RunInfo(run_raw(result={"value": b"\xc1"})).output


def test_a_job_as_values_and_as_json():
    spec = {"task": "t", "queue": "q", "schedule": {"kind": "every", "every_us": 30 * US}}
    job = JobInfo(job_raw(name="default/x", spec=spec, param_us=T0_US + 544))
    assert (job.name, job.task, job.queue, job.next_at, job.created_at) == ("x", "t", "q", None, T0)
    assert job.schedule == Every("30s", anchor=T0)
    assert (job.args, job.kwargs) == ([1], {"a": 2})
    shown = json.loads(json.dumps(job.to_dict()))
    assert (shown["name"], shown["created_at"], shown["next_at"], shown["spec"]) == ("x", rfc3339(T0), None, spec)


def test_policies_in_their_short_and_long_forms_are_one():
    assert Overlap("skip").to_wire() == {"policy": "skip", "max": None}
    assert Retry(attempts=2).to_wire()["attempts"] == 2

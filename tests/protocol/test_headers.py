"""Headers of a call: through every way in, unchanged in every attempt and along chains, and refused where they can't be."""

from __future__ import annotations

import json

import msgpack
import pytest
from click.testing import CliRunner

from wheelsched import Call, Enqueue, InvalidArgumentError, Job, Manual, PayloadError, Retry, current_run
from wheelsched.cli.jobs_file import read_jobs_file
from wheelsched.cli.root import cli
from wheelsched.simulator.simulator import Simulator

TRACE = {"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "tracestate": "a=1"}


def world(seen, fails=0):
    left = [fails]

    def a(*args):
        seen.append(current_run().headers)
        if left[0]:
            left[0] -= 1
            raise ValueError("on purpose")

    return Simulator(tasks={"a": a, "b": lambda: seen.append((current_run().headers, current_run().cause["reason"]))})


def test_every_attempt_and_what_the_run_triggers_has_the_same():
    seen = []
    with world(seen, fails=2) as sim:
        sim.client.put("b", Call("b").with_headers({"team": "blue", "tracestate": "its own"}), Manual())
        sim.client.enqueue(Call("a", 1).with_headers(TRACE), on_success="b", retry=Retry(3, "1s"))
        sim.advance("1m")
        assert seen == [TRACE, TRACE, TRACE, ({"team": "blue", **TRACE}, "success")]


def test_jobs_and_bulk_verbs_carry_them():
    seen = []
    with world(seen) as sim:
        call = Call("a", 1).with_headers(TRACE)
        found = sim.client.put("one", call, Manual())
        assert (found.headers, found.to_dict()["headers"]) == (TRACE, TRACE)
        assert sim.client.put("one", call, Manual()).result == "unchanged"
        assert sim.client.put("one", Call("a", 1), Manual()).result == "updated"
        assert "headers" not in sim.client.get("one").to_dict()
        sim.client.put_many([Job("many", call, Manual())])
        applied = sim.client.apply([Job("one", call, Manual())])
        assert applied.changes["one"]["arguments"] == ("(1)", f"(1) traceparent={TRACE['traceparent']!r} tracestate='a=1'")
        for name in ("one", "many"):
            sim.client.trigger(name)
        sim.client.enqueue_many([Enqueue(call), Call("a").with_headers({"x": "y"})])
        sim.advance(1)
        assert sorted(map(str, seen)) == sorted(map(str, [TRACE, TRACE, TRACE, {"x": "y"}]))


def test_they_are_no_part_of_an_identity():
    with Simulator() as sim:
        first = sim.client.enqueue(Call("x", 1).with_headers({"a": "1"}), unique=True)
        assert sim.client.enqueue(Call("x", 1).with_headers({"a": "2"}), unique=True).id == first.id


@pytest.mark.parametrize(("headers", "why"), [
    ({"a": 1}, "a map of names to texts is wanted"), ({1: "a"}, "a map of names"), ({"": "a"}, "a map of names"),
    ({"cause": "mine"}, "'cause' is taken"), ({str(i): "" for i in range(33)}, "33 of 56 characters; at most 32 of 8192"),
    ({"a": "x" * 8_192}, "1 of 8193 characters"),
])
def test_what_can_not_be_is_refused_on_both_sides(headers, why):
    with Simulator() as sim:
        with pytest.raises(PayloadError, match=why):
            sim.client.enqueue(Call("x").with_headers(headers))
        payload = msgpack.packb([[], {}, headers])
        with pytest.raises((PayloadError, InvalidArgumentError), match=why if 1 not in headers else None):
            sim.ask("enqueue", {"rid": bytes(16), "given": {"task": "x"}, "payload": payload, "namespace": "default", "key": None})
        many = {
            "rid": b"b" * 16, "given": [{"task": "x"}], "namespace": ["default"], "unique": [None], "which": bytes(4), "payload": [payload],
            "at_us": msgpack.packb(2**63 - 1)[:0:-1], "delay_us": msgpack.packb(2**63 - 1)[:0:-1], "key": None,
        }
        with pytest.raises((PayloadError, InvalidArgumentError), match=why if 1 not in headers else None):
            sim.ask("enqueue_many", many)
        one = {"name": "default/x", "given": {"task": "x", "schedule": {"kind": "manual"}}, "param_us": 2**63 - 1, "payload": payload}
        with pytest.raises((PayloadError, InvalidArgumentError)):
            sim.ask("put", {**one, "rid": b"p" * 16, "paused": None, "note": "", "version": None})
        assert not list(sim.client.runs())


def test_files_of_jobs_have_them():
    found = read_jobs_file('[jobs.a]\ntask = "t"\nmanual = true\nheaders = {team = "blue"}')
    assert found.jobs[0].call.headers == {"team": "blue"}
    wrong = read_jobs_file('[jobs.a]\ntask = "t"\nmanual = true\nheaders = {team = 7}').faults
    assert [(f.line, f.place, f.text) for f in wrong] == [(4, "jobs.a.headers", "a map of names to texts is wanted")]


def test_the_command_line_takes_them(serving):
    server = serving(workers=0)
    with server.client() as ws:
        argv = ["--socket", server.socket, "-o", "json", "job", "put", "a", "t", "--manual", "--header", "team=blue", "--header", "b=c=d"]
        out = CliRunner().invoke(cli, argv)
        assert out.exit_code == 0, out.output
        assert json.loads(out.stdout)["headers"] == ws.get("a").headers == {"team": "blue", "b": "c=d"}
        assert CliRunner().invoke(cli, [*argv[:-1], "nonsense"]).exit_code == 2
        assert "b=c=d" in CliRunner().invoke(cli, ["--socket", server.socket, "job", "get", "a"]).stdout

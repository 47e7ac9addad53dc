"""What caused a run, as commands and requests are told it."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from tests.rigs.executor import Scripted
from wheelsched import Command, Http, PayloadError
from wheelsched.client.values import call_words
from wheelsched.executor.causes import in_body, in_header, in_url
from wheelsched.process.contract import Allowed
from wheelsched.protocol.frames import encode_payload, encode_value
from wheelsched.tasks.tasks import enter_run

EVIL = 'Boom: "a"\r\nX-Evil: 1\0 {cause.job} &b=ü/../'
DEAD = {"reason": "dead", "job": "shop/charge", "run_id": "ab" * 16, "value": None, "error": {"type": "Boom", "message": EVIL[6:]}}
GROUP = {"reason": "group", "group": "cd" * 16, "members": 2, "succeeded": 1, "failed": 1, "cancelled": 0}
MISSED = {"reason": "missed", "job": "j", "jobs": 2, "count": 3, "from_us": 0, "until_us": 1_500_000}
TOLD = {"job": "shop/charge", "run_id": "ab" * 16, "reason": "dead", "error": EVIL}
SHOW = "for n in JOB RUN_ID REASON ERROR; do eval printf '%s:%s\\\\n' $n \\\"\\${WHEELSCHED_CAUSE_$n-unset}\\\"; done; cat"


@pytest.fixture
def end(tmp_path):
    one = Scripted(tmp_path, allowed=Allowed(commands=True, env=("WHEELSCHED_*",)))
    yield one
    one.close()


def shown(end, argv, cause=None, **more):
    """The output of a command that has succeeded."""
    beside = None if cause is None else {"cause": cause}
    ended = end.finish(end.give("command", argv, beside=beside, **more))[0]
    assert ended[0] == 1, ended
    return (ended[3] or {}).get("stdout", b"").decode()


def test_n_a3_a_command_is_told_what_caused_it(end):
    text = shown(end, ["sh", "-c", SHOW], DEAD)
    *_, whole = text.splitlines()
    error = EVIL.replace("\0", "")
    assert text.startswith(f"JOB:shop/charge\nRUN_ID:{'ab' * 16}\nREASON:dead\nERROR:{error}\n")
    assert json.loads(whole) == {"reason": "dead", "job": "shop/charge", "run_id": "ab" * 16, "output": None, "error": DEAD["error"]}
    value = {**DEAD, "reason": "success", "value": encode_value({"n": [1, b"\xff"]}), "error": None}
    told = shown(end, ["sh", "-c", SHOW], value)
    assert "REASON:success\nERROR:\n{" in told
    assert json.loads(told.splitlines()[-1])["output"] == {"n": [1, "/w=="]}
    for unreadable in (b"\xc1", b"", encode_value(1) * 2):
        assert json.loads(shown(end, ["cat"], {**value, "value": unreadable}))["output"] is None


def test_n_a3_a_group_and_missed_occurrences_are_causes_too(end):
    told = shown(end, ["sh", "-c", SHOW], GROUP).splitlines()
    assert told[:4] == ["JOB:", "RUN_ID:", "REASON:group", "ERROR:"]
    assert json.loads(told[4]) == GROUP
    told = shown(end, ["sh", "-c", SHOW], MISSED).splitlines()
    assert told[:4] == ["JOB:j", "RUN_ID:", "REASON:missed", "ERROR:"]
    assert json.loads(told[4]) == {
        "reason": "missed", "job": "j", "jobs": 2, "count": 3, "from": "1970-01-01T00:00:00.000000Z", "until": "1970-01-01T00:00:01.500000Z",
    }


def test_n_a3_what_nothing_caused_is_told_nothing(end):
    assert shown(end, ["sh", "-c", SHOW]).splitlines() == ["JOB:unset", "RUN_ID:unset", "REASON:unset", "ERROR:unset"]


def test_n_a3_a_standard_input_that_was_given_comes_first(end):
    big = "ü" * 100_000
    assert shown(end, ["wc", "-c"], stdin=big).strip() == "200000"
    assert shown(end, ["true"], stdin=big) == ""  # one that reads nothing holds nobody up
    assert shown(end, ["cat"], DEAD, stdin="") == ""
    assert shown(end, ["cat"], DEAD, stdin=b"mine") == "mine"
    assert shown(end, ["sh", "-c", "echo $WHEELSCHED_CAUSE_JOB"], DEAD, stdin="x", env={"WHEELSCHED_CAUSE_JOB": "no"}) == "shop/charge\n"
    refused = end.finish(end.give("command", ["cat"], stdin=7))[0]
    assert (refused[3]["message"], refused[3]["retry"]) == ("command: stdin is text or bytes", False)
    assert Command(["a"], stdin="").kwargs["stdin"] == ""
    assert "stdin" not in Command(["a"]).kwargs
    with pytest.raises(PayloadError, match="stdin is text or bytes"):
        Command(["a"], stdin=["b"])


def test_n_a3_placeholders_are_escaped_for_the_place():
    body = '{"text": "{cause.error}", "of": ["{cause.job}", {"{cause.reason}": "{other}{cause.job"}]}'
    made = {"text": EVIL, "of": ["shop/charge", {"dead": "{other}{cause.job"}]}
    for kind in (None, "application/json; charset=utf-8", "Application/Problem+JSON"):
        assert json.loads(in_body(body.encode(), kind, TOLD)) == made
    assert in_body(b"job={cause.job}&e={cause.error}", "application/x-www-form-urlencoded", TOLD).startswith(b"job=shop%2Fcharge&e=Boom%3A+%22a%22%0D%0A")
    assert in_body(b"{cause.job} is {cause.reason}: {x} {cause.nothing}", None, TOLD) == b"shop/charge is dead: {x} {cause.nothing}"
    assert in_body(b"\xff{cause.error}", "application/json", {**TOLD, "error": '"'}) == b'\xff\\"'
    assert in_header("{cause.error}", TOLD) == 'Boom: "a" X-Evil: 1? {cause.job} &b=?/../'
    assert in_url("https://h/{cause.job}/{x}?e={cause.error}&r={cause.reason}", {**TOLD, "error": 'a&b="ü'}) == (
        "https://h/shop%2Fcharge/{x}?e=a%26b%3D%22%C3%BC&r=dead"
    )
    for url in ("https://{cause.job}/x", "https://{cause.error}", "https://a.{cause.job}?x", "https://{cause.error}@h/"):
        assert in_url(url, TOLD) == url  # no text chooses the host
    assert len(in_url("https://h/?{cause.error}", {**TOLD, "error": "\U0001f600" * 1_000})) < 8_000


def test_n_a3_a_request_has_its_placeholders_filled(monkeypatch):
    module = pytest.importorskip("wheelsched.executor.http")
    pytest.importorskip("urllib3")
    sent = []
    monkeypatch.setattr(module, "_exchange", lambda allowed, request, keep: sent.append(request) or (200, {}))
    call = Http("POST", "https://h/{cause.job}", json={"a": "{cause.error}", "b": "{}"}, headers={"X-Why": "{cause.reason}", "content-type": "text/x"})
    for headers in ({"cause": DEAD}, {}):
        batch = SimpleNamespace(ids=bytes(16), specs=[{"timeout_us": 10_000_000}], spec_of=[0], headers=lambda _, found=headers: found)
        enter_run((batch, 0))
        try:
            module.http(Allowed(http=True), *call.args, **call.kwargs)
        finally:
            enter_run(None)
    told, plain = sent
    assert (told.place.target, told.headers["x-why"], json.loads(told.body)) == ("/shop%2Fcharge", "dead", {"a": EVIL, "b": "{}"})
    assert (plain.headers["x-why"], json.loads(plain.body)) == ("{cause.reason}", {"a": "{cause.error}", "b": "{}"})


def test_n_a3_the_cause_reads_as_in_run_get(end):
    payload = encode_payload((), {})
    assert call_words(b"\x93" + payload[1:] + b"\x81\xa5cause" + encode_value(MISSED))["cause"] == json.loads(shown(end, ["cat"], MISSED))

"""Every verb against every role: what needs one is refused without it and changes nothing; what needs none is not refused."""

from __future__ import annotations

import pytest

from tests.rigs.engine import Bench
from wheelsched import Call, Every, Manual, PermissionDeniedError, WheelschedError
from wheelsched.engine import leases, turn
from wheelsched.model.nouns import ROLES
from wheelsched.protocol import verbs
from wheelsched.protocol.definition import given_from_api
from wheelsched.protocol.frames import encode_payload
from wheelsched.simulator import simulator
from wheelsched.verbs import jobs

UID = 54_321
PAYLOAD = encode_payload((), {})
WHICH, PARAM = b"\0\0\0\0", (2**63 - 1).to_bytes(8, "little")


def given(task, *, job=True):
    return given_from_api(Call(task), Manual() if job else None, {})[0]


def defining(task):
    """Requests that define what runs, with a task."""
    job, call = given(task), given(task, job=False)
    return {
        "put": {"name": "n", "given": job, "param_us": 2**63 - 1, "payload": PAYLOAD},
        "put_many": {"given": [given("t"), job], "names": ["n"], "which": WHICH, "param_us": PARAM, "payload": [PAYLOAD]},
        "stage": {"batch": 1, "given": [given("t"), job], "names": ["n"], "which": WHICH, "param_us": PARAM, "payload": [PAYLOAD]},
        "enqueue": {"given": call, "payload": PAYLOAD},
        "enqueue_many": {"given": [call], "namespace": ["default"], "unique": [None], "which": WHICH, "payload": [PAYLOAD], "at_us": PARAM, "delay_us": PARAM},
        "group": {"given": [call], "which": WHICH, "payload": [PAYLOAD], "then": {"which": 0, "payload": PAYLOAD}},
        "group_part": {"batch": 1, "given": [call], "which": WHICH, "payload": [PAYLOAD]},
    }


HELLO = {"version": 1, "role": "worker", "name": "w"}
NEEDS = [  # role, verb, arguments
    *((role, verb, args) for role in ("command", "http") for verb, args in defining(role).items()),
    *((role, "hello", {**HELLO, "tasks": {"t": {}, role: {"timeout_us": 1_000_000}}}) for role in ("command", "http")),
    ("worker", "hello", {**HELLO, "tasks": {"t": {}}}),
    ("admin", "hold", {"note": "x"}), ("admin", "release", {}), ("admin", "queue_pause", {"name": "default"}),
    ("admin", "queue_set", {"name": "q", "settings": {"concurrency": 1}}), ("admin", "queue_resume", {"name": "default"}),
    ("admin", "queue_purge", {"name": "default"}),
]
OPEN = [  # verbs that need no role
    *defining("t").items(), ("hello", {"version": 1, "role": "client", "name": "c"}), ("get", {"name": "there"}), ("next", {"name": "there", "n": 1}),
    ("pause", {"name": "there"}), ("resume", {"name": "there"}), ("trigger", {"name": "there"}), ("delete", {"name": "there"}),
    ("cancel", {"id": "0" * 32}), ("cancel_many", {"match": "*"}), ("redrive", {"match": "*"}), ("discard", {"match": "*"}),
    ("skip", {"name": "there", "at_us": 10**15}), ("move", {"name": "there", "at_us": 10**15, "to_us": 10**15}),
    ("why", {"name": "there", "at_us": 10**15}), ("backfill", {"name": "there", "since_us": 0, "until_us": 1}), ("history", {"name": "there"}),
    ("calendar_put", {"name": "c", "calendar": {"mode": "exclude", "dates": ["2026-12-25"]}}), ("calendar_delete", {"name": "c"}),
    ("calendars", {}), ("queues", {}), ("tzdiff", {}), ("apply", {"jobs": 0}), ("wait", {"id": "0" * 32}),
]
WORKERS = {"lease": {"credits": 1}, "finish": {"id": b"", "token": b""}, "heartbeat": {"id": b"", "token": b""}}  # need a worker's hello


@pytest.fixture
def sim(monkeypatch):
    with Bench(start="2026-01-01T00:00:00Z") as made:
        made.roles = frozenset(ROLES)
        made.client.put("there", Call("t"), Every("1h"))

        def incoming(conn, request, uid, found=None):
            return turn.Incoming(conn, request, UID, found, made.roles)

        monkeypatch.setattr(simulator, "Incoming", incoming)
        yield made


def ask(sim, verb, args):
    return sim.call(60, (verb, {"rid": sim.rid(1), **args} if verb in verbs.MUTATING else args))


@pytest.mark.parametrize(("role", "verb", "args"), NEEDS, ids=[f"{verb}-{role}" for role, verb, _ in NEEDS])
def test_t5_what_needs_a_role(sim, role, verb, args):
    before = sim.engine.state.digest()
    for roles in (frozenset(ROLES) - {role}, frozenset()):
        sim.roles = roles
        with pytest.raises(PermissionDeniedError, match=rf"needs the role '\w+', .*uid {UID} .*--grant \w+={UID}"):
            ask(sim, verb, args)
        assert sim.engine.state.digest() == before
        assert not sim.engine.sessions.get(60)
    sim.roles = frozenset({role, "worker"}) if verb == "hello" else frozenset({role})
    ask(sim, verb, args)


@pytest.mark.parametrize(("verb", "args"), OPEN, ids=[verb for verb, _ in OPEN])
def test_t5_what_needs_none(sim, verb, args):
    sim.roles = frozenset()
    try:
        ask(sim, verb, args)
    except WheelschedError as e:
        assert e.code in ("not_found", "failed_precondition", "invalid_argument"), e


@pytest.mark.parametrize("verb", WORKERS)
@pytest.mark.parametrize("greeted", [False, True])
def test_t5_a_workers_verbs_need_a_workers_hello(sim, verb, greeted):
    if greeted:
        ask(sim, "hello", {"version": 1, "role": "client", "name": "c"})
    before = sim.engine.state.digest()
    with pytest.raises(WheelschedError, match="say hello with role 'worker' first") as refused:
        ask(sim, verb, WORKERS[verb])
    assert refused.value.code == "failed_precondition"
    assert sim.engine.state.digest() == before


def test_t5_the_tables_here_have_every_verb():
    known = {*jobs.VERBS, *leases.VERBS, *verbs.MUTATING}
    assert known == {verb for _, verb, _ in NEEDS} | {verb for verb, _ in OPEN} | WORKERS.keys()

"""Redaction: the values of named argument fields reach workers, and nobody else, whichever way they ask."""

from __future__ import annotations

import io
import json

import msgpack
import pytest
from click.testing import CliRunner
from hypothesis import given as examples
from hypothesis import strategies as st

from tests.rigs.engine import FAILED, Bench
from wheelsched import Call, Command, Every, Http, InvalidArgumentError, Job, Manual, task
from wheelsched.cli.bench.workbench import ServerProcess
from wheelsched.cli.root import cli
from wheelsched.journal.recover import recover
from wheelsched.model.errors import ConfigError
from wheelsched.protocol.frames import encode_payload
from wheelsched.protocol.redact import MARK, Redaction, mark_in
from wheelsched.server.config import load
from wheelsched.simulator.simulator import Simulator

SECRET = "s3cret-value"
CALL = Call("t", "first", {"Token": SECRET, "id": 7}, user="joe", PassWord=SECRET, deep=[[{"token": [SECRET], "note": "n"}]], none=None)
FIELDS = ["password", "TOKEN", "none"]
SEEN = []


class Witness(Simulator):
    """It looks for the secret in everything that the server answers."""

    answers = 0

    def ask(self, verb, args):
        found = super().ask(verb, args)
        self.answers += 1
        assert SECRET.encode() not in msgpack.packb(found), (verb, found)
        return found


@pytest.fixture
def sim():
    SEEN.clear()
    with Witness("2026-01-01T00:00:00Z", tasks={"t": lambda *a, **k: SEEN.append((a, k))}) as it:
        yield it


def test_a_job_that_hides_fields(sim):
    made = sim.client.put("a", CALL, Manual(), redact=FIELDS)
    assert made.spec["redact"] == ["none", "password", "token"]
    for job in (made, sim.client.get("a"), *sim.client.jobs(), sim.client.pause("a"), sim.client.resume("a")):
        assert job.args == ["first", {"Token": MARK, "id": 7}]
        assert job.kwargs == {"user": "joe", "PassWord": MARK, "deep": [[{"token": MARK, "note": "n"}]], "none": None}
    assert sim.client.put("a", CALL, Manual(), redact=["none", "Token", "PASSWORD"]).result == "unchanged"
    sim.client.trigger("a")
    sim.advance("1s")
    assert [(CALL.args, CALL.kwargs)] == SEEN, "workers get it"
    sim.client.delete("a")
    assert sim.client.history("a")
    assert sim.answers > 5


def test_headers_of_a_call(sim):
    made = sim.client.put("a", Call("t").with_headers({"Auth": SECRET, "trace": "1"}), Manual(), redact="auth")
    assert made.headers == {"Auth": MARK, "trace": "1"}
    with pytest.raises(InvalidArgumentError, match="give the value itself"):
        sim.client.put("a", Call("t").with_headers(made.headers), Manual())


def changed(sim, name="a"):
    """What the newest change in a job's history says."""
    return next(iter(sim.client.history(name))).changes


def test_histories_and_differences(sim):
    ws = sim.client
    ws.put("a", Call("t", password=SECRET, x=1), Manual(), redact="password")
    ws.put("a", Call("t", password=SECRET + "2", x=2), Manual(), redact="password")
    assert changed(sim) == {"kwargs": ({"password": MARK, "x": 1}, {"password": MARK, "x": 2})}
    ws.put("a", Call("t", password=SECRET + "3", x=2), Manual(), redact="password")
    assert changed(sim) == {"arguments": ("(not shown)", "(not shown, but others)")}
    ws.put("a", Call("t", password="x"), Manual())
    assert changed(sim)["kwargs"] == ({"password": MARK, "x": 2}, {"password": MARK}), "what an old definition hid stays hidden"

    ws.put("a", Call("t", password=SECRET, x=2), Manual(), redact="password")
    jobs = [Job("a", Call("t", password=SECRET + "4", x=2), Manual(), redact="password")]
    shown = f"(password='{MARK}', x=2)"
    assert ws.apply(jobs, dry_run=True).changes["a"] == {"arguments": (shown, f"{shown} with another value in a redacted field")}
    jobs = [Job("a", Call("t", x=3), Manual())]  # who takes the field away doesn't see what was in it
    assert ws.apply(jobs, dry_run=True).changes["a"] == {"arguments": (shown, "(x=3)"), "redact": ("password", "none")}
    assert not ws.apply([Job("a", Call("t", password=SECRET, x=2), Manual(), redact="password")])


def test_the_servers_own_names(sim):
    sim.engine.redaction = Redaction(["Password", "TOKEN"])
    sim.client.put("a", CALL, Manual())
    assert sim.client.get("a").kwargs["PassWord"] == MARK
    assert load({"data": "d", "socket": "s", "redact": ["a"]}).redact == ("a",)
    with pytest.raises(ConfigError, match="redact: a list of names"):
        load({"data": "d", "socket": "s", "redact": "a"})


def test_a_task_that_hides_its_parameters(sim):
    @task("t", redact=("key", "secret", "token"))
    def hides(user, key, *, secret=""):
        """Its parameters have positions."""

    assert hides.__wheelsched_task__.wire() == {"redact": ["key", "secret", "token", "1"]}
    made = sim.client.put("a", hides.call("joe", SECRET, secret=SECRET), Manual(), redact="more")
    assert (made.args, made.kwargs) == (["joe", MARK], {"secret": MARK})
    assert made.spec["redact"] == ["1", "key", "more", "secret", "token"], "it adds up"
    sim.client.put_many([Job("b", hides.call("joe", key=SECRET), Every("1h"))])
    assert sim.client.get("b").kwargs == {"key": MARK}
    sim.call(50, ("hello", {"version": 1, "role": "worker", "name": "w", "tasks": {"u": {"redact": ["Key", "1"]}}}))
    made = sim.client.put("c", Call("u", 1, SECRET, more=2), Manual(), redact="more")
    assert (made.args, made.kwargs) == ([1, MARK], {"more": MARK}), "a bare Call has what a worker announced"
    for wrong in (("args",), ("kw",)):
        with pytest.raises(InvalidArgumentError, match="any number of arguments"):
            task("t", redact=wrong)(lambda *args, **kw: None)
    with pytest.raises(InvalidArgumentError, match="names of arguments"):
        task("t", redact=(1,))(lambda x: None)


def test_what_was_put_before_a_worker_announced_the_task():
    with Bench("2026-01-01T00:00:00Z") as b:
        ws, early = b.client, Call("u", 1, SECRET, Key=SECRET, more=2)
        for number in (9, 1):
            ws.put("a", Call("u", number, SECRET, Key=SECRET, more=2), Manual())
        ws.enqueue(early, retry=1)
        b.hello(49, ("u",))
        assert ws.get("a").kwargs == early.kwargs, "nobody has said yet what is to be hidden"
        b.finish(b.lease(conn=49), FAILED, conn=49)
        b.hello(50, ("u",), redact=["key", "1"])
        for job in (ws.get("a"), *ws.jobs("a"), ws.pause("a"), ws.resume("a")):
            assert (job.args, job.kwargs) == ([1, MARK], {"Key": MARK, "more": 2})
        assert SECRET not in "".join(str(change.changes) for change in ws.history("a"))
        out = io.StringIO()
        assert ws.export_dead(out) == 1
        assert (json.loads(out.getvalue())["args"], json.loads(out.getvalue())["kwargs"]) == ([1, MARK], {"Key": MARK, "more": 2})
        diff = ws.apply([Job("a", Call("u", 3, SECRET + "2"), Manual())], dry_run=True).changes["a"]
        assert diff["arguments"] == (f"(1, '{MARK}', Key='{MARK}', more=2)", f"(3, '{MARK}')")
        b.hello(51, ("u",), redact=["key"])
        assert ws.get("a").args == [1, SECRET], "what was announced last counts"
        assert recover(b.journal).digest() == b.engine.state.digest()


def test_built_in_tasks(sim):
    sim.client.put("web", Http("POST", "https://a.example/", headers={"X-Key": SECRET}, json={"a": 1}), Manual())
    web = sim.client.get("web")
    assert (web.args, web.kwargs) == (["POST", "https://a.example/"], {"headers": MARK, "json": {"a": 1}, "body": None})
    sim.client.put("plain", Http("GET", "https://a.example/"), Manual())
    assert sim.client.get("plain").kwargs["headers"] == {}
    sim.client.put("hook", Http("GET", "https://a.example/" + SECRET), Manual(), redact="url")
    assert sim.client.get("hook").args == ["GET", MARK]
    sim.client.put("dump", Command(["dump", SECRET], env={"PGPASSWORD": SECRET, "PGUSER": "u"}), Manual(), redact=["argv", "pgpassword"])
    dump = sim.client.get("dump")
    assert (dump.args, dump.kwargs["env"]) == ([MARK], {"PGPASSWORD": MARK, "PGUSER": "u"})


BACK = {
    "put": lambda ws, call: ws.put("a", call, Manual()),
    "put_many": lambda ws, call: ws.put_many([Job("b", call, Manual())]),
    "apply": lambda ws, call: ws.apply([Job("b", call, Manual())]),
    "enqueue": lambda ws, call: ws.enqueue(call),
    "enqueue_many": lambda ws, call: ws.enqueue_many([call]),
    "group": lambda ws, call: ws.group([call], then=Call("t")),
}


@pytest.mark.parametrize("verb", BACK)
def test_what_was_shown_does_not_come_back_as_a_value(sim, verb):
    sim.client.put("a", CALL, Manual(), redact=FIELDS)
    shown = sim.client.get("a")
    for call in (Call("t", *shown.args, **shown.kwargs), Call("t", MARK)):
        with pytest.raises(InvalidArgumentError, match="give the value itself"):
            BACK[verb](sim.client, call)
    BACK[verb](sim.client, Call("t", f"about {MARK}", **{MARK: 1}))


@pytest.mark.parametrize("wrong", [[], "", [""], ["x" * 201], [1], 7, [str(i) for i in range(101)]])
def test_names_that_are_none(sim, wrong):
    with pytest.raises(InvalidArgumentError, match="redact"):
        sim.client.put("a", Call("t"), Manual(), redact=wrong)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.floats() | st.text("ab", max_size=2) | st.binary(max_size=2),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "B", "é", "0"]), inner, max_size=3),
    max_leaves=12,
)


def fields_of(value):
    """Every (key, value) of the maps in a value."""
    if isinstance(value, dict):
        yield from value.items()
        value = list(value.values())
    for item in value if isinstance(value, list) else ():
        yield from fields_of(item)


@examples(st.lists(VALUES, max_size=3), st.dictionaries(st.sampled_from(["a", "B", "c"]), VALUES, max_size=3), st.sampled_from(["A", "b", "É", "0"]))
def test_any_payload(args, kwargs, name):
    shown = msgpack.unpackb(Redaction([name]).shown(encode_payload(args, kwargs), {}, {"task": "t"}))
    for key, value in (*fields_of(shown), *([("0", shown[0][0])] if args else ())):
        assert key.casefold() != name.casefold() or value in (MARK, None, "", [], {})
    assert Redaction().shown(b"whatever it is", {}, {"task": "t"}) == b"whatever it is"
    if not any(key.casefold() == name.casefold() for key, _ in fields_of([args, kwargs])) and name != "0":
        assert repr(shown) == repr([args, kwargs])


@examples(st.binary(max_size=40))
def test_a_payload_that_cannot_be_read_is_hidden(data):
    payload = b"\x92" + data + SECRET.encode()
    shown = Redaction(["a"]).shown(payload, {}, {"task": "t"})
    assert msgpack.unpackb(shown) is not None
    assert mark_in(payload) in (True, False)


@pytest.mark.parametrize("payload", [b"\x91" * 480 + b"\x90", b"\xc1", b"\x92\x90\x81\xc4\x01a\x01", b"\x01", b"\x92\x90\x90"])
def test_payloads_that_our_clients_never_make(payload):
    whole = b"\x93" + msgpack.packb(MARK) + payload + b"\x80"
    for data in (payload, whole):
        assert SECRET not in repr(msgpack.unpackb(Redaction(["a"]).shown(data, {}, {"task": "t"}), strict_map_key=False))
        mark_in(data)


def test_the_command_line(short_tmp):
    put = ["job", "put", "a", "demo.ok", "--manual", "--redact", "password", "--redact", "0", "--retry-attempts", "1"]
    (short_tmp / "jobs.toml").write_text(
        f'[jobs.a]\ntask = "demo.ok"\nmanual = true\nretry = 1\nredact = ["password", "0"]\nargs = ["{SECRET}9"]\nkwargs = {{password = "{SECRET}"}}\n'
    )
    told = []

    def run(*args, code=0):
        done = CliRunner().invoke(cli, ["--socket", server.socket, *args])
        assert done.exit_code == code, (args, done.output)
        told.append(done.output)
        return done.stdout

    with ServerProcess(short_tmp, workers=1, tasks=("wheelsched.cli.bench.demo_tasks",)) as server:
        run(*put, "--args", f'["{SECRET}"]', "--kwargs", f'{{"password": "{SECRET}", "user": "joe"}}', "-o", "json")
        run(*put, "--args", f'["{SECRET}2"]', "--kwargs", f'{{"password": "{SECRET}2", "user": "jim"}}')
        dead = json.loads(run("job", "trigger", "a", "--wait", "-o", "json", code=7))  # demo.ok takes no such arguments
        for verb in ("job get a", "job list", "job history a", f"run get {dead['id']}", "run list", "dead list", "status",
                     f"job apply -f {short_tmp}/jobs.toml --dry-run"):
            for form in ("table", "json"):
                run(*verb.split(), "-o", form)
        found = json.loads(run("job", "get", "a", "-o", "json"))
        run("admin", "export", "--history")
        run("run", "logs", dead["id"])
        assert json.loads(run("dead", "export"))["kwargs"] == {"password": MARK, "user": "jim"}
    assert (found["args"], found["kwargs"]) == ([MARK], {"password": MARK, "user": "jim"})
    assert SECRET not in "".join(told)
    assert "jim" in "".join(told)

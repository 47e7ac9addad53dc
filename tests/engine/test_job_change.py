"""A job is changed in what is named and nothing else, what changed is told, and an export reads back as what is there."""

from __future__ import annotations

import asyncio
import json
import stat
from datetime import UTC, datetime
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.rigs.engine import Bench
from wheelsched import (
    AlreadyExistsError,
    AsyncClient,
    At,
    Call,
    Catchup,
    Command,
    Cron,
    Every,
    Http,
    InvalidArgumentError,
    Job,
    Manual,
    NotFoundError,
    Overlap,
    Retry,
)
from wheelsched.cli.jobs_file import read_jobs_file
from wheelsched.cli.root import cli
from wheelsched.engine.turn import Incoming, Now
from wheelsched.protocol.frames import REPLY_MAX, FrameReader, Request, parse_reply
from wheelsched.simulator.simulator import Simulator

RICH = {
    "retry": Retry(7, backoff="1m30s", factor=3, cap="2h", not_on=("ValueError",), errors={"requests.Timeout": Retry(9, backoff="250ms")}),
    "timeout": "3h", "queue": "slow", "priority": 7, "overlap": Overlap("buffer_all", max=20), "catchup": Catchup("all", window="36h", max=50),
    "start": datetime(2026, 1, 1, tzinfo=UTC), "end": "2030-01-01T00:00:00.5Z", "max_runs": 900, "expires_after": "2h", "concurrency_key": 'eu "1"',
    "concurrency": 3, "jitter": "10%", "calendar": ["closed"], "heartbeat_timeout": "45s", "pause_after": 4, "late_after": "5m",
    "on_missed": "ops/alarm", "on_success": "ops/alarm", "on_failure": "ops/alarm", "on_dead": "ops/alarm",
}


def run(socket, *args, code=0, env=None, text=None):
    done = CliRunner().invoke(cli, ["--socket", socket, *args], catch_exceptions=False, env=env, input=text)
    assert done.exit_code == code, done.output
    return done


@pytest.fixture
def b():
    with Bench("2026-03-02T00:00:00Z") as bench:
        bench.client.put("ops/alarm", Call("tell"), Manual())
        bench.client.calendar("closed", dates=["2026-12-25"], tz="Europe/Berlin", windows=[("2026-05-01T00:00:00Z", "2026-05-02T00:00:00Z")],
                              daily=["22:00-06:00"])
        yield bench


def fitting(schedule):
    """All policies, as they go with a schedule: after_completion has no period that a part could be of, and no other run beside it."""
    rest = isinstance(schedule, Every) and schedule.after_completion
    return {k: v for k, v in RICH.items() if not rest or k not in ("jitter", "overlap", "catchup")}


def test_n_a4_a_put_tells_what_it_changed(b):
    first = b.client.put("j", Call("t", 1), Cron("0 4 * * *", tz="Europe/Berlin"), timeout="3h", retry=7, on_dead="ops/alarm")
    assert (first.result, first.changes) == ("created", None)
    again = b.client.put("j", Call("t", 1), Cron("0 4 * * *"))
    assert again.result == "updated"
    assert again.changes["schedule"] == ("0 4 * * * Europe/Berlin", "0 4 * * *")
    assert again.changes["timeout"] == ("3h", "1h")
    assert again.changes["on_dead"][0] == "ops/alarm"
    assert set(again.changes) == {"schedule", "timeout", "retry", "on_dead"}
    assert again.to_dict()["changes"]["timeout"] == ["3h", "1h"]
    done = b.client.apply([Job("j", Call("t", 1), Cron("0 4 * * *"), timeout="3h")], dry_run=True)
    assert done.changes == {"j": {"timeout": ("1h", "3h")}}  # one way to say it
    assert b.client.put("j", Call("t", 1), Cron("0 4 * * *")).changes is None
    assert b.client.put("j", Call("t", 2), Cron("0 4 * * *")).changes == {"arguments": ("(1)", "(2)")}
    b.client.delete("j")
    assert b.client.put("j", Call("t", 2), Cron("0 5 * * *")).changes is None  # it is new


@pytest.mark.parametrize("schedule", [
    Cron("0 4 * * *", tz="Europe/Berlin", dst_gap="skip", dst_overlap="both"), Every("90s"), Every("2h", anchor="2026-01-01T00:07:00Z"),
    Every("5m", after_completion=True), [Cron("0 6 * * *", tz="Asia/Tokyo"), Every("4h"), At("2026-09-01T00:00:00Z")],
    [Cron("0 6 * * *"), Cron("H 8 * * 1")],
])
def test_n_a4_set_changes_what_is_named_and_nothing_else(b, schedule):
    rich = fitting(schedule)
    before = b.client.put("j", Call("t", 1, k=[2]).with_headers({"a": "b"}), schedule, **rich, note="why")
    told = b.client.set("j", timeout="4h")
    assert told.changes == {"timeout": ("3h", "4h")}
    assert told.spec == {**before.spec, "timeout_us": 4 * 3_600_000_000}
    for name in ("param_us", "payload", "note", "next_us", "state"):
        assert told._raw[name] == before._raw[name], name
    assert b.client.set("j", timeout="4h").result == "unchanged"
    for name in rich.keys() - {"timeout"}:
        gone = b.client.set("j", **{name: None})
        assert len(gone.changes) == 1, (name, gone.changes)
        assert b.client.set("j", **{name: rich[name]}).spec == told.spec, name
    assert b.client.set("j", schedule=schedule).result == "unchanged"
    other = b.client.set("j", call=Call("u", 5))
    assert set(other.changes) == {"task", "arguments"}
    assert (other.task, other.args, other.headers, other.spec["timeout_us"]) == ("u", [5], {}, told.spec["timeout_us"])


def test_n_a4_set_of_a_one_time_job_keeps_its_instant(b):
    b.client.put("once", Call("t"), At("2026-03-02T05:00:00Z"))
    told = b.client.set("once", timeout="5m")
    assert told.next_at == datetime(2026, 3, 2, 5, tzinfo=UTC)
    assert b.client.set("once", schedule=At("2026-03-02T06:00:00Z")).changes == {"at": ("2026-03-02T05:00:00Z", "2026-03-02T06:00:00Z")}
    assert b.client.set("once", paused=True).state == "paused"
    assert b.client.set("once", note="later").state == "paused"
    assert b.client.set("once", paused=False).state == "active"


def test_n_a4_set_refuses_what_can_not_be(b):
    job = b.client.put("j", Call("t"), Cron("0 4 * * *"), jitter="10%")
    for wrong, match in (({}, "nothing is named"), ({"tiemout": "5m"}, "timeout"), ({"tiemout": None}, "timeout"), ({"schedule": Manual()}, "jitter")):
        with pytest.raises(InvalidArgumentError, match=match):
            b.client.set("j", **wrong)
    with pytest.raises(NotFoundError):
        b.client.set("nobody", timeout="1m")
    with pytest.raises(AlreadyExistsError, match="at version"):
        b.client.set("j", timeout="1m", version=job.version + 1)
    b.client.delete("j")
    with pytest.raises(NotFoundError):
        b.client.set("j", timeout="1m")
    assert b.client.put("j", Call("t"), Cron("0 4 * * *")).result == "created"


def test_n_a4_set_keeps_what_is_redacted(b):
    b.client.put("j", Call("t", password="hunter2", full=True), Manual(), redact=["password"])
    told = b.client.set("j", timeout="5m")
    assert set(told.changes) == {"timeout"}
    assert told.kwargs["password"] == "[redacted]"
    b.hello(tasks=("t",))
    b.client.trigger("j")
    row = b.engine.state.find_job(b"default/j")
    assert b"hunter2" in b.engine.state.jobs.payload(row)


def test_n_a4_set_of_a_command_needs_its_role(b):
    b.client.put("c", Command(["true"]), Manual())
    b.client.put("j", Call("t"), Manual())
    ask = {"name": "default/c", "given": {"timeout_us": 5_000_000}, "param_us": 2**63 - 1, "payload": None, "keep": True}

    def other(args, number):
        request = Request(number, "put", {**args, "rid": number.to_bytes(16, "big")})
        effects = b.engine.step(Now(b.now_us, b.mono_us), [Incoming(1, request, 4711, roles=frozenset({"admin"}))])
        [(_, frame)] = effects.replies
        [body] = FrameReader(REPLY_MAX).feed(frame)
        return parse_reply(body)

    assert other(ask, 7_001).error.code == "permission_denied"
    assert other(ask | {"name": "default/j"}, 7_002).result["result"] == "updated"


VALUES = [
    (Call("t"), "task alone"), (Call("t", 1, -2.5, 'ü"\\\n\x7f\x01', True, [1, [2]], {"a b": {"ü": []}}, x=datetime(2026, 1, 2, 3, 4, 5, 678, UTC)), "toml"),
    (Call("t", None, [b"\x00\xff"], k={"deep": None}), "payload"), (Call("t", float("inf"), 1e300, 5.0), "floats"),
    (Command(["sh", "-c", "echo 'x'"]), "short"), (Command(["x"], cwd="/", env={"A": "1"}, user="nobody", success_codes=[0, 3], fatal_codes=[9], stdin='a\n"b'), "long"),
    (Http("GET", "https://a.example/x"), "get"), (Http("POST", "https://a.example/", json={"a": [1, 2.5]}, timeout="9s", expect=[200], redirects=2, sign=True), "post"),
    (Http("POST", "https://a.example/", json={"a": None}), "null"), (Call("command", ["x"], env={"Z": "1"}), "by hand"),
    (Call("t", 1).with_headers({"traceparent": "00-1"}), "headers"),
]


@pytest.mark.parametrize(("call", "what"), VALUES, ids=[what for _, what in VALUES])
def test_n_a4_an_export_reads_back_as_what_is_there(b, call, what):
    b.client.put("x", call, Every("7m"), note="it's \"why\"")
    text = b.client.export("x")
    read = read_jobs_file(text)
    assert not read.faults, (text, read.faults)
    done = b.client.apply(read.jobs, calendars=read.calendars)
    assert (done.unchanged, done.created, done.updated) == (1, (), ()), (text, done.changes)


def test_n_a4_all_policies_and_schedules_read_back(b):
    for i, schedule in enumerate([
        Cron("0 4 * * *", tz="Europe/Berlin", dst_gap="skip", dst_overlap="both"), Cron("5,6 0 4 1 * mon", day_or=False, seconds="first"),
        Every("1d2h3m4s5ms"), Every("2h", anchor="2026-01-01T00:07:00.25Z"), Every("5m", after_completion=True),
        [Cron("0 6 * * *", tz="Asia/Tokyo"), Every("4h"), At("2026-09-01T00:00:00Z")], [Cron("0 6 * * *"), Cron("H 8 * * 1")],
        [Cron("0 6 * * *", tz="Asia/Tokyo"), Cron("H 8 * * 1")],
    ]):
        b.client.put(f"rich/j{i}", Call("t"), schedule, **fitting(schedule))
    b.client.put("a.b/c:d", Call("t"), At("2027-01-01T00:00:00Z"), jitter=None, catchup="skip", overlap="allow", paused=True)
    b.client.put("later", Call("t"), Manual(), retry=1)
    b.client.put("gone", Call("t"), Manual())
    b.client.delete("gone")
    b.client.enqueue(Call("t"))
    b.client.put("over", Call("t"), At("2026-03-02T00:00:01Z"))
    b.advance("1m")
    text = b.client.export()
    assert "gone" not in text
    assert "~" not in text
    assert text.startswith("# 1 finished job left out\n")
    read = read_jobs_file(text)
    assert not read.faults, read.faults
    assert list(read.calendars) == ["closed"]
    done = b.client.apply(read.jobs, calendars=read.calendars, dry_run=True)
    assert done.changes == {}
    assert (done.unchanged, done.changes, done.calendars, done.created) == (11, {}, {}, ()), text
    assert "over" in b.client.export(finished=True)
    with Simulator("2026-03-02T00:00:00Z") as sim:  # and elsewhere it makes the same
        assert len(sim.client.apply(read.jobs, calendars=read.calendars).created) == 11
        assert sim.client.export() == text.partition("\n\n")[2]


def test_n_a4_what_is_redacted_is_not_applied_by_mistake(b):
    b.client.put("j", Call("t", token="s3cr3t"), Manual(), redact=["token"])
    text = b.client.export("j")
    assert "s3cr3t" not in text
    assert "fill it in" in text
    with pytest.raises(InvalidArgumentError, match="redacted"):
        b.client.apply(read_jobs_file(text).jobs)


def test_n_a4_the_asyncio_client_has_them_too(serving):
    server = serving()
    server.client()

    async def there():
        async with AsyncClient(server.socket) as ws:
            await ws.put("j", Call("t"), Cron("0 4 * * *"))
            told = await ws.set("j", priority=9)
            return told.changes, await ws.export("j")

    changes, text = asyncio.run(there())
    assert changes == {"priority": ("5", "9")}
    assert "priority = 9" in text


def editor(folder, script):
    path = folder / "editor"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return {"EDITOR": str(path), "VISUAL": str(path), "TMPDIR": str(folder)}


def test_n_a4_the_command_line_sets_edits_and_exports(serving):
    server = serving("--allow-commands")
    server.client().put("ops/alarm", Call("t.echo", 1), Manual())
    s = server.socket
    run(s, "job", "put", "e/x", "--cron", "0 4 * * *", "--tz", "Europe/Berlin", "--retry-attempts", "7", "--timeout", "3h", "--on-dead", "ops/alarm",
        "command", "--", "/bin/true")
    told = run(s, "job", "set", "e/x", "--cron", "0 5 * * *").stdout
    assert "~ e/x  schedule: 0 4 * * * Europe/Berlin -> 0 5 * * * Europe/Berlin\n" in told
    told = run(s, "job", "set", "e/x", "--retry-backoff", "1m", "--catchup-window", "2h", "--tz", "Asia/Tokyo", "--jitter", "5m").stdout
    for part in ("0 5 * * * Europe/Berlin -> 0 5 * * * Asia/Tokyo", "backoff", "jitter: none -> 5m", "catchup"):
        assert part in told, told
    assert "timeout" not in told
    job = json.loads(run(s, "job", "get", "e/x", "-o", "json").stdout)
    assert (job["spec"]["retry"]["attempts"], job["spec"]["retry"]["backoff_us"]) == (7, 60_000_000)
    assert "jitter: 5m -> none" in run(s, "job", "set", "e/x", "--jitter", "none").stdout
    assert "arguments" in run(s, "job", "set", "e/x", "command", "--", "/bin/false").stdout
    assert "on_dead: ops/alarm -> none" in run(s, "job", "set", "e/x", "--on-dead", "none").stdout
    run(s, "job", "put", "k", "--manual", "t.echo", "--args", "[1]", "--kwargs", '{"a": 2}')
    assert "(1, a=2) -> (1, a=3)" in run(s, "job", "set", "k", "--kwargs", '{"a": 3}').stdout
    told = run(s, "job", "put", "e/x", "--cron", "0 4 * * *", "command", "--", "/bin/true").stdout
    for part in ("e/x: updated, active; next", "~ e/x", "timeout: 3h -> 1h", "Asia/Tokyo -> 0 4 * * *"):
        assert part in told, told
    run(s, "job", "set", "e/x", code=2)
    run(s, "job", "set", "k", "--tz", "Asia/Tokyo", code=2)
    run(s, "job", "set", "none", "--timeout", "1m", code=3)

    file = server.folder / "all.toml"
    run(s, "job", "export", "-f", str(file))
    assert run(s, "job", "export").stdout == file.read_text()
    assert "nothing to do: 3 unchanged" in run(s, "job", "apply", "-f", str(file)).stderr

    told = run(s, "job", "edit", "k", env=editor(server.folder, "true"))
    assert "k: nothing was changed" in told.stderr
    run(s, "job", "set", "e/x", "--timeout", "3h")
    env = editor(server.folder, 'sed -i "s/timeout = .*/timeout = \\"7m\\"/; s/0 4/0 9/" "$1"')
    told = run(s, "job", "edit", "e/x", env=env).stdout
    assert "timeout: 3h -> 7m" in told
    assert "0 4 * * * -> 0 9 * * *" in told
    env = editor(server.folder, 'sed -i "s/timeout = .*/tiemout = \\"7m\\"/" "$1"')
    told = run(s, "job", "edit", "e/x", env=env, code=2).stderr
    assert "did you mean 'timeout'?" in told
    kept = told[told.index("is kept in ") + 11 :].split()[0]
    assert "tiemout" in Path(kept).read_text()
    Path(kept).unlink()
    env = editor(server.folder, 'sed -i "/timeout = /d" "$1"')
    assert "timeout: 7m -> 1h" in run(s, "job", "edit", "e/x", env=env).stdout

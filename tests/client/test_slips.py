"""Slips that used to show late, or not at all, show where they are made."""

from __future__ import annotations

import asyncio
import json
from zoneinfo import ZoneInfo

import pytest
from click.testing import CliRunner

from wheelsched import AsyncClient, Call, Cron, Every, Http, Manual, PayloadError
from wheelsched.cli.importers import kubernetes
from wheelsched.cli.root import cli
from wheelsched.simulator.simulator import Simulator


@pytest.mark.parametrize(("method", "url", "told"), [
    ("PSOT", "https://a.example/hook", "did you mean POST"), ("", "https://a.example", "is no method"), (None, "https://a.example", "is no method"),
    ("POST", "example.com/hook", "such as https://example.com/hook"), ("POST", "ftp://a.example/", "is no URL"), ("POST", "https:///x", "is no URL"),
    ("POST", "", "is no URL"), ("POST", None, "is no URL"), ("POST", "https://", "is no URL"), ("POST", " https://a.example", "is no URL"),
])
def test_n_b18_a_request_that_can_not_be_is_refused_when_it_is_built(method, url, told):
    with pytest.raises(PayloadError, match=told):
        Http(method, url)


def test_n_b18_what_can_be_is_taken_and_the_simulator_can_fake_it():
    asked = []

    def fake(method, url, **more):
        asked.append((method, url, more["json"]))
        return 200

    assert Http("get", "HTTP://a.example:8080").args == ("get", "HTTP://a.example:8080")
    with Simulator(tasks={"http": fake}) as sim:
        assert sim.client.enqueue(Http("POST", "https://a.example/x", json={"a": 1})).result() == 200
    assert asked == [("POST", "https://a.example/x", {"a": 1})]
    done = CliRunner().invoke(cli, ["--socket", "/nowhere/s", "enqueue", "http", "--args", '["PSOT", "https://a.example"]'])
    assert done.exit_code != 0
    assert "did you mean POST" in done.output
    done = CliRunner().invoke(cli, ["--socket", "/nowhere/s", "job", "put", "x", "--manual", "http", "--args", '["POST"]'])
    assert done.exit_code == 2


def test_n_b25_a_key_used_again_with_other_arguments_is_told():
    with Simulator(tasks={"leaf": lambda x: x}) as sim:
        ws = sim.client
        first, same, other = (ws.enqueue(Call("leaf", x), key="z", delay="1h") for x in (3, 3, 4))
        assert (first.existing, same.existing, other.existing) == (False, True, True)
        assert [bool(run.differs) for run in (first, same, other)] == [False, False, True]
        assert other.id == first.id
        assert ws.enqueue(Call("leaf", 3), unique=True).differs is None


def test_n_b25_the_command_line_says_it(serving):
    server = serving(workers=0)
    server.client()

    def enqueue(args):
        done = CliRunner().invoke(cli, ["--socket", server.socket, "enqueue", "t.echo", "--args", args, "--key", "k"])
        assert done.exit_code == 0
        return done.stderr

    assert "OTHER" not in enqueue("[1]")
    assert "OTHER" not in enqueue("[1]")
    assert "has OTHER arguments than these: nothing was enqueued" in enqueue("[2]")


def test_n_b16_a_listing_can_be_awaited():
    async def use(sim):
        ws = sim.async_client
        for name in ("a", "b"):
            await ws.put(name, Call("t"), Manual())
        await ws.trigger("a")
        return [job.name for job in await ws.jobs()], [run.job for run in await ws.runs("a")], await ws.dead(), [j.name async for j in ws.jobs()]

    with Simulator(tasks={"t": int}) as sim:
        assert asyncio.run(use(sim)) == (["a", "b"], ["a"], [], ["a", "b"])
    assert "await it" in repr(AsyncClient("/nowhere/s").jobs())


def test_n_c1_a_zone_may_be_given_as_a_zoneinfo():
    given, named = Cron("0 2 * * *", tz=ZoneInfo("Europe/Berlin")), Cron("0 2 * * *", tz="Europe/Berlin")
    assert given == named
    assert given.to_wire() == named.to_wire()
    assert Every("1h") is not None


def test_n_c18_the_version_has_a_short_flag():
    assert CliRunner().invoke(cli, ["-V"]).output == CliRunner().invoke(cli, ["--version"]).output != ""


def test_n_c10_words_of_other_tools_are_answered_with_ours():
    for word, ours in (("jobs", "job list"), ("runs", "run list"), ("ps", "run list --state running"), ("rm", "job delete NAME"), ("help", "--help")):
        done = CliRunner().invoke(cli, [word])
        assert done.exit_code == 2
        assert ours in done.output, done.output
    for verb in (["job", "list"], ["run", "list"], ["dead", "list"]):
        assert "-n, --limit" in CliRunner().invoke(cli, [*verb, "--help"]).output.replace("--limit, -n", "-n, --limit")


def test_n_b7_importers_say_who_the_server_can_not_become(serving, tmp_path):
    server = serving("--allow-commands", workers=0)
    server.client()
    file = tmp_path / "crontab"
    file.write_text("0 4 * * * nobody /bin/true\n0 5 * * * wsnosuch /bin/true\n")

    def told(*more):
        done = CliRunner().invoke(cli, ["--socket", server.socket, "job", "import", "crontab", "--system", str(file), *more])
        assert done.exit_code == 0, done.output
        return done.stderr

    assert "this machine has no user wsnosuch" in told()
    assert "this machine has no user wsnosuch" in told("--dry-run")


def test_n_b7_a_server_that_is_not_root_can_become_nobody_else(monkeypatch):
    from wheelsched import Job
    from wheelsched.cli.importers import entries
    from wheelsched.model.nouns import Command

    class Found:
        class client:  # noqa: N801 - as the shell has it
            path = "/s"

    def told(uid, *users, dry=False):
        monkeypatch.setattr(entries, "shell", lambda: Found)
        monkeypatch.setattr(entries, "server_uid", lambda _: uid)
        some = [entries.Entry(1, "job", "", job=Job(f"j{i}", Command(["x"], user=user), Manual())) for i, user in enumerate(users)]
        return entries._other_users(some, dry=dry)

    assert told(0, "nobody") == ""
    assert "uid 4711, which can't become nobody" in told(4711, "nobody")
    assert told(4711) == ""
    assert "has to be root or that user" in told(None, "nobody", dry=True)


def test_n_c14_a_folder_of_timers_is_read(tmp_path):
    timers, services = tmp_path / "timers", tmp_path / "services"
    for folder in (timers, services):
        folder.mkdir()
    for name in ("a", "b"):
        (timers / f"{name}.timer").write_text(f"[Timer]\nOnCalendar=*-*-* 04:00:00\nUnit={name}.service\n")
    (services / "a.service").write_text("[Service]\nExecStart=/bin/true a\n")
    (timers / "b.service").write_text("[Service]\nExecStart=/bin/true b\n")
    done = CliRunner().invoke(cli, ["job", "import", "systemd", str(timers), str(services), "--dry-run", "--tz", "UTC", "-o", "json"])
    assert done.exit_code == 0, done.output
    jobs = {entry["job"]: entry["argv"] for entry in json.loads(done.stdout) if "job" in entry}
    assert jobs == {"systemd/a": ["/bin/true", "a"], "systemd/b": ["/bin/true", "b"]}
    done = CliRunner().invoke(cli, ["job", "import", "systemd", str(services), "--dry-run"])
    assert (done.exit_code, "no .timer file is there" in done.output) == (1, True)


def test_n_c13_no_limit_is_told_that_there_is_not():
    assert "10,000" not in str(kubernetes.__dict__)

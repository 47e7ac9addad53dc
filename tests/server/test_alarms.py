"""`serve --on-dead` and `--on-missed`: who is told of failures that nobody named a job for."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from tests.rigs.executor import wait_for
from wheelsched import Call, Command, Manual
from wheelsched.cli.root import cli
from wheelsched.model.errors import ConfigError
from wheelsched.server.config import load

BASE = {"data": "d", "socket": "s"}


def test_n_a3_the_configuration_names_jobs():
    config = load(BASE, {"on_dead": "ops/alarm"}, {"on_dead": None, "on_missed": "alarm"})
    assert (config.on_dead, config.on_missed) == ("ops/alarm", "default/alarm")
    assert load(BASE, {"on_dead": "ops/alarm"}, {"on_dead": ""}).on_dead == ""
    for wrong in ("a b", 7, True, ["x"], "/x", "ops/~t", "x\n"):
        with pytest.raises(ConfigError, match=r"on_missed: "):
            load(BASE, {"on_missed": wrong})


def test_n_a3_a_server_tells_its_job_of_a_dead_run(serving, short_tmp):
    config, told = short_tmp / "c.toml", short_tmp / "told"
    config.write_text('on_missed = "ops/late"\n')
    server = serving("--on-dead", "ops/alarm", "--config", str(config), "--allow-commands")
    ws = server.client()
    missing = ["on_dead: there is no job ops/alarm, so nobody is told when a run dies", "on_missed: there is no job ops/late, so"]
    assert all(text in server.log.read_text() for text in missing)
    health = CliRunner().invoke(cli, ["--socket", server.socket, "health"])
    assert health.exit_code == 1
    assert all(text in health.stdout for text in missing)
    ws.put("ops/alarm", Command(["sh", "-c", f"echo $WHEELSCHED_CAUSE_JOB $WHEELSCHED_CAUSE_ERROR > {told}.new; cat >> {told}.new; mv {told}.new {told}"]), Manual())
    ws.put("ops/late", Call("t.echo", 1), Manual())
    assert CliRunner().invoke(cli, ["--socket", server.socket, "health"]).exit_code == 0
    run = ws.enqueue(Call("t.once", fail=True), retry=1)
    wait_for(told.exists, "the alarm", 30)
    words, cause = told.read_text().splitlines()
    assert words == "~t.once ValueError: on purpose"
    assert json.loads(cause)["run_id"] == run.id
    out = CliRunner().invoke(cli, ["--socket", server.socket, "run", "list", "ops/alarm", "-o", "json"])
    assert [row["trigger"] for row in json.loads(out.stdout)] == ["chain"]

"""The command line in this process against a server that answers what a test says, and as a process against a real one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from click.testing import CliRunner

from wheelsched.cli.bench.workbench import ServerProcess
from wheelsched.cli.root import cli
from wheelsched.model.nouns import Call
from wheelsched.protocol.definition import check_given, given_from_api, resolve
from wheelsched.protocol.frames import encode_payload
from wheelsched.schedules.schedule import Cron

if TYPE_CHECKING:
    from pathlib import Path

NOON = datetime(2026, 11, 29, 12, tzinfo=UTC)
NOON_US = int(NOON.timestamp()) * 1_000_000
RUN_ID = "0123456789abcdef" * 2
TASKS = "wheelsched.cli.bench.demo_tasks"


def invoke(*args, text=None, env=None):
    return CliRunner().invoke(cli, list(args), input=text, env=env, catch_exceptions=False)


def wire_job(name="default/a", schedule=None, *, state="active", args=(), **policies):
    schedule = schedule or Cron("0 0 * * *", tz="Europe/Berlin")
    given_, param_us = given_from_api(Call("t"), schedule, policies)
    return {
        "name": name, "state": state, "spec": resolve(check_given(given_), None), "param_us": param_us, "payload": encode_payload(args, {}),
        "version": 1, "note": "why", "next_us": NOON_US, "cursor_us": None, "active": 0, "created_us": NOON_US, "updated_us": NOON_US,
    }


def wire_run(state="succeeded", **more):
    return {
        "id": RUN_ID, "job": "a", "trigger": "schedule", "task": "t", "queue": "default", "scheduled_us": NOON_US, "created_us": NOON_US,
        "queued_us": NOON_US, "started_us": NOON_US + 1_000, "ended_us": NOON_US + 3_000, "next_us": None, "state": state, "reason": None,
        "attempt": 1, "token": 7, "worker": "w1", "result": None, "missed": 0, "until_us": None, "count": None, "attempts": [], **more,
    }
STATS = {
    "jobs": 2, "runs": 3, "queued": 1, "leased": 1, "dead_letters": 0, "queues": {"default": {"queued": 1}}, "unserved_tasks": {},
    "generation": 4, "seq": 9, "folded": 0, "workers": [{"id": "w1", "name": "pool-2", "kind": "pool", "leased": 1, "ready": True}],
    "counters": {"created": 5, "succeeded": 2}, "draining": False, "bytes": {"jobs": 10, "runs": 20, "wheels": 30},
    "lag_ms": {"queued": {"count": 5, "p50": 0.4, "p99": 1.2, "p999": 2.0, "max": 3.0}, "start": {"count": 0}, "done": {"count": 0}},
    "connections": 1, "uptime_s": 12.5, "now_us": NOON_US, "clock_offset_us": 0, "pid": 1, "server": "wheelsched 0.1.0", "data": "/d",
    "cpu_s": 0.1, "storage": {"used_bytes": 4096, "free_bytes": 2**30, "state": "ok"}, "commits": 3, "journal_bytes": 700, "fsyncs": 3,
}


class Scripted:
    """A server that answers each verb with a value, an error, or what a function makes of the arguments."""

    def __init__(self, folder):
        self.path = str(folder / "s")
        self.answers = {"stats": STATS}
        self.asked = []

    def handle(self, peer, _number):
        if peer.hello() is None:
            return
        while (request := peer.read()) is not None:
            self.asked.append((request.verb, request.args))
            answer = self.answers[request.verb]
            answer = answer(request.args) if callable(answer) else answer
            if isinstance(answer, Exception):
                peer.error(request, answer)
            else:
                peer.ok(request, answer)

    def args(self, verb):
        return [a for v, a in self.asked if v == verb][-1]

    def __call__(self, *args, text=None):
        return invoke("--socket", self.path, *args, text=text)


def page(*rows):
    return {"columns": {k: [r[k] for r in rows] for k in rows[0]} if rows else {}, "after": None}


class Live:
    """A server, and the command line as a subprocess."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.server = ServerProcess(folder, workers=1, tasks=(TASKS,))
        self.said = []  # on stderr, by the last command

    def __call__(self, *args, code=0, text=None):
        env = {k: v for k, v in os.environ.items() if not k.startswith("WHEELSCHED_")} | {"WHEELSCHED_SOCKET": self.server.socket}
        done = subprocess.run(
            [sys.executable, "-m", "wheelsched", *args], env=env, input=text, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == code, (args, done.returncode, done.stdout, done.stderr)
        self.said = done.stderr.splitlines()
        return done.stdout

    def json(self, *args, code=0):
        return json.loads(self(*args, "-o", "json", code=code))

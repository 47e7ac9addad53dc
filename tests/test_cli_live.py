"""The command line against a real server: a process of its own in a short temporary folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from wheelsched.cli.latency import percentiles
from wheelsched.cli.midnight import name_of, recurring_at
from wheelsched.cli.workbench import ServerProcess

TASKS = "wheelsched.cli.demo_tasks"


class Live:
    """A server, and the command line as a subprocess."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.server = ServerProcess(folder, workers=1, tasks=(TASKS,))

    def __call__(self, *args, code=0, text=None):
        env = {k: v for k, v in os.environ.items() if not k.startswith("WHEELSCHED_")} | {"WHEELSCHED_SOCKET": self.server.socket}
        done = subprocess.run(
            [sys.executable, "-m", "wheelsched", *args], env=env, input=text, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == code, (args, done.returncode, done.stdout, done.stderr)
        return done.stdout

    def json(self, *args, code=0):
        return json.loads(self(*args, "-o", "json", code=code))


@pytest.fixture
def live(short_tmp):
    it = Live(short_tmp)
    with it.server:
        yield it


def test_a_day_in_the_life(live):
    assert live.json("job", "put", "night", "demo.ok", "--cron", "0 0 * * *", "--tz", "Europe/Berlin")["result"] == "created"
    assert live.json("job", "put", "night", "demo.ok", "--cron", "0 0 * * *", "--tz", "Europe/Berlin")["result"] == "unchanged"
    assert len(live.json("job", "next", "night", "-n", "3")) == 3
    run = live.json("job", "trigger", "night", "--wait", "--wait-timeout", "20s")
    assert (run["state"], run["trigger"], len(run["attempts"])) == ("succeeded", "manual", 1)
    assert "night" in live("job", "list")
    assert live.json("job", "pause", "night", "--note", "holiday")["state"] == "paused"
    assert live.json("job", "resume", "night")["state"] == "active"
    assert [r["id"] for r in live.json("run", "list", "night")] == [run["id"]]
    assert live.json("run", "get", run["id"])["state"] == "succeeded"
    live("run", "get", "0" * 32, code=3)
    assert live.json("job", "delete", "night")["state"] == "deleted"
    live("job", "get", "nothing", code=3)
    live("health")
    assert live.json("status")["counters"]["succeeded"] == 1


def test_enqueue_waits_and_tells_how_it_ended(live):
    run = live.json("enqueue", "demo.flaky", "--retry-attempts", "3", "--retry-backoff", "10ms", "--wait", "--wait-timeout", "20s")
    assert run["output"] == "done at attempt 3"
    assert [a["outcome"] for a in run["attempts"]] == ["failed", "failed", "succeeded"]
    live("enqueue", "demo.hopeless", "--retry-attempts", "1", "--wait", "--wait-timeout", "20s", code=7)
    letters = live.json("dead", "list")
    assert [r["error"]["message"] for r in letters] == ["this can never work"]
    assert live.json("dead", "discard", letters[0]["id"]) == {"count": 1}
    live("enqueue", "nobody.serves.this", "--wait", "--wait-timeout", "100ms", code=8)
    assert "nobody.serves.this" in live("health", code=1)
    assert "nobody.serves.this" in live("status")


def test_a_crontab_becomes_jobs(live):
    text = "CRON_TZ=Asia/Tokyo\n0 5 * * * backup\n0 0 31 2 * by-hand\n@reboot never\n"
    live("job", "import", "crontab", "-", text=text)
    found = {j["name"]: j["spec"] for j in live.json("job", "list", "crontab/*")}
    assert len(found) == 2
    kinds = {spec["schedule"]["kind"]: spec for spec in found.values()}
    assert kinds["cron"]["schedule"]["tz"] == "Asia/Tokyo"
    assert set(kinds) == {"cron", "manual"}
    assert "unchanged" in live("job", "import", "crontab", "-", text=text)


def test_export_and_verify(live):
    live("enqueue", "demo.ok", "--wait", "--wait-timeout", "20s")
    live("job", "put", "later", "demo.ok", "--in", "1h")
    rows = [json.loads(line) for line in live("admin", "export", "--history").splitlines()]
    assert [rows[0]["phase"], rows[-1]["phase"]] == ["begin", "end"]
    assert [(r["state"], r["trigger"]) for r in rows if r["type"] == "run"] == [("succeeded", "manual")]
    assert [r["def"]["schedule"]["kind"] for r in rows if r["type"] == "job" and r["job"] == "later"] == ["once"]
    data = str(live.folder / "data")
    live("admin", "verify", data, code=4)  # the server holds it
    live("serve", "--data", data, "--socket", str(live.folder / "other"), code=75)
    live.server.kill()
    report = live.json("admin", "verify", data)
    assert report["ok"] is True
    assert report["findings"] == []
    live("job", "list", code=5)


def test_verify_finds_damage(live):
    for i in range(20):
        live("job", "put", f"j{i}", "demo.ok", "--manual") if not i else None
    live("enqueue", "demo.ok", "--args", json.dumps(["x" * 3_000] * 10), "--wait", "--wait-timeout", "20s")
    live.server.kill()
    path = max((live.folder / "data").rglob("data.mdb"), key=lambda p: p.stat().st_size)
    data = path.read_bytes()
    at = data.find(b"x" * 1_000) + 500
    assert at > 500
    with path.open("r+b") as file:
        file.seek(at)
        file.write(b"y")
    report = live.json("admin", "verify", str(live.folder / "data"), code=1)
    assert report["ok"] is False
    assert report["findings"]
    live("admin", "verify", str(live.folder / "none"), code=3)


@pytest.mark.parametrize("mix", ["oneshot", "real"])
def test_bench_midnight_gives_the_fixed_object(mix):
    done = subprocess.run(
        [sys.executable, "-m", "wheelsched", "bench", "midnight", "--runs", "300", "--mix", mix, "--workers", "1", "-o", "json"],
        capture_output=True, text=True, timeout=120, check=False,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    for name in ("runs", "workers", "ingest_s", "drain_s", "runs_per_s", "rss_bytes_per_job", "fsyncs", "journal_bytes", "machine"):
        assert result[name], name
    for name in ("queued_lag_ms", "start_lag_ms", "done_lag_ms"):
        assert set(result[name]) == {"p50", "p99", "p999", "max"}
    assert (result["duplicates"], result["lost"], result["listed"]) == (0, 0, 300)
    assert (result["clock_offset"] is not None) == (mix == "real")
    assert result["recurring"] == (150 if mix == "real" else 0)
    if mix == "real":
        assert result["scheduled_at"].endswith("T00:00:00Z")


def test_bench_latency():
    done = subprocess.run(
        [sys.executable, "-m", "wheelsched", "bench", "latency", "--runs", "20", "-o", "json"],
        capture_output=True, text=True, timeout=120, check=False,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert (result["runs"], result["duplicates"], result["lost"]) == (20, 0, 0)
    assert result["start_lag_ms"]["p50"] > 0


@pytest.mark.slow
def test_the_demo_holds():
    done = subprocess.run([sys.executable, "-m", "wheelsched", "demo", "-o", "json"], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, (done.stdout, done.stderr)
    result = json.loads(done.stdout)
    assert result["held"] is True
    assert (result["duplicates"], result["lost"], result["dead"], result["kills"]) == (0, 0, 1, 2)
    assert result["runs"] > 120_000
    assert {"retried", "recovery_s", "queued_lag_ms"} <= set(result)


def test_recurring_jobs_of_the_real_mix_meet_once():
    due = datetime(2026, 11, 30, tzinfo=UTC)
    drawn = recurring_at(due, 500)
    assert len(drawn) == 500
    assert drawn == recurring_at(due, 500)
    assert len({c.expr for c in drawn}) > 20
    for cron in set(drawn):
        assert cron.next(due - timedelta(milliseconds=1), 1) == [due]
        assert cron.prev(due, 1)[0] < due - timedelta(minutes=4)
        assert cron.next(due, 1)[0] > due + timedelta(minutes=4)
    assert len(name_of(42)) == 24


def test_percentiles():
    assert percentiles([]) == {"p50": 0.0, "p99": 0.0, "p999": 0.0, "max": 0.0}
    assert percentiles([5.0]) == {"p50": 5.0, "p99": 5.0, "p999": 5.0, "max": 5.0}
    assert percentiles(range(1, 1001)) == {"p50": 500, "p99": 990, "p999": 999, "max": 1000}

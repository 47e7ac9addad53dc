"""The command line against a real server: a process of its own in a short temporary folder."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from importlib.resources import files

import numpy as np
import pytest

from tests.rigs.cli import Live
from tests.rigs.places import TESTS
from tests.rigs.server import wait_for
from wheelsched.cli import verify
from wheelsched.cli.bench import midnight
from wheelsched.cli.bench.latency import percentiles
from wheelsched.cli.bench.midnight import Plan, doubts, name_of, recurring_at
from wheelsched.cli.bench.workbench import Census, ServerProcess, poll
from wheelsched.cli.output import Progress
from wheelsched.cli.verify import verify_directory
from wheelsched.client.client import Client, Run
from wheelsched.journal.lmdb_journal import Batch, LmdbJournal
from wheelsched.model.errors import UnavailableError
from wheelsched.server.boot import open_offline
from wheelsched.state.history import pack
from wheelsched.state.state import State


@pytest.fixture
def live(short_tmp):
    it = Live(short_tmp)
    with it.server:
        yield it


@pytest.mark.slow
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


@pytest.mark.slow
def test_enqueue_and_group_wait_and_tell_how_it_ended(live, tmp_path):
    run = live.json("enqueue", "demo.flaky", "--retry-attempts", "3", "--retry-backoff", "10ms", "--wait", "--wait-timeout", "20s")
    assert run["output"] == "done at attempt 3"
    assert [a["outcome"] for a in run["attempts"]] == ["failed", "failed", "succeeded"]
    live("enqueue", "demo.hopeless", "--retry-attempts", "1", "--wait", "--wait-timeout", "20s", code=7)
    letters = live.json("dead", "list")
    assert [r["error"]["message"] for r in letters] == ["this can never work"]
    assert json.loads(live("dead", "export", "--error", "ValueError"))["args"] == []
    assert live.said == ["wheelsched: 1 exported"]
    assert live("dead", "redrive", "--task", "demo.hopeless", "--rate", "1/m", "--dry-run").split() == ["1", "would", "be", "queued", "again"]
    assert live.json("dead", "redrive", "--match", "nobody") == {"count": 0}
    assert live.json("dead", "discard", "--error", "*Error", "--limit", "1") == {"count": 1}
    calls = tmp_path / "calls.jsonl"
    calls.write_text('{"task": "demo.ok"}\n\n{"task": "demo.ok", "args": [], "kwargs": {}}\n')
    assert live.json("group", str(calls), "demo.ok", "--wait", "--wait-timeout", "20s")["state"] == "succeeded"
    one = live("group", str(calls), "demo.ok", "--key", "k").strip()
    assert (live("group", str(calls), "demo.ok", "--key", "k").strip(), live.said[-1]) == (one, live.said[-1])
    assert "there before" in live.said[-1]
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
    live("job", "put", "ops/mail", "demo.ok", "--manual")
    told = live("job", "import", "crontab", "-", "--on-dead", "ops/mail", text=f"MAILTO=me\n{text}")
    assert "a run that dies triggers ops/mail, which may mail me" in told  # test_n_a3: importers name the alarm
    assert {j["spec"]["on_dead"] for j in live.json("job", "list", "crontab/*")} == {"ops/mail"}
    assert "put it first" in live("job", "import", "crontab", "-", "--on-dead", "no/such", text=text, code=1)
    assert "job name" in live("job", "import", "crontab", "-", "--dry-run", "--on-dead", "a b", text=text, code=2) + live.said[-1]
    refused = live("job", "import", "crontab", "-", "--queue", "no such name", "--prefix", "b/", "-o", "json", text=text, code=1)
    assert [r["kind"] for r in json.loads(refused)] == ["env", "error", "error", "skipped"], "each line tells that it was refused"


@pytest.mark.slow
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


@pytest.mark.slow
def test_verify_finds_damage(live):
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


def test_s1_verify_reports_a_scheduled_time_with_two_run_records(live):
    live("job", "put", "twice", "demo.ok", "--at", "2000-01-01T00:00:00Z")
    wait_for(lambda: [r["state"] for r in live.json("run", "list", "twice")] == ["succeeded"], 30)
    live.server.kill()
    directory = str(live.folder / "data")
    assert live.json("admin", "verify", directory)["findings"] == []
    state = open_offline(directory)
    with LmdbJournal.open(directory) as journal:
        journal.append(Batch(history=[pack(state, np.array(state.runs.slots(), np.uint32))]))
    report = live.json("admin", "verify", directory, code=1)
    assert report["ok"] is False
    assert [(f, "twice" in f, "2000-01-01T00:00:00" in f) for f in report["findings"]] == [(report["findings"][0], True, True)]


@pytest.mark.slow
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


@pytest.mark.slow
def test_bench_latency():
    done = subprocess.run(
        [sys.executable, "-m", "wheelsched", "bench", "latency", "--runs", "20", "-o", "json"],
        capture_output=True, text=True, timeout=120, check=False,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert (result["runs"], result["duplicates"], result["lost"]) == (20, 0, 0)
    assert result["start_lag_ms"]["p50"] > 0


@pytest.mark.nightly  # `.ci/run` runs it by itself
def test_the_demo_holds():
    args = [sys.executable, "-m", "wheelsched", "demo", "-o", "json"]
    done = subprocess.run(args, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, (done.stdout, done.stderr)
    result = json.loads(done.stdout)
    assert result["held"] is True
    assert (result["duplicates"], result["lost"], result["dead"], result["kills"]) == (0, 0, 1, 2)
    assert result["runs"] > 120_000
    assert {"retried", "recovery_s", "queued_lag_ms"} <= set(result)


def run_row(number, job="a", at_ms=1_000, state="succeeded", **more):
    raw = {"id": f"{number:032x}", "job": job, "state": state, "scheduled_us": at_ms * 1_000, "trigger": "schedule", "attempt": 1}
    return Run({**raw, **more}, Client("/nowhere"))


def test_the_census_counts_what_is_double_and_what_is_lost():
    census = Census()
    for run in (run_row(1), run_row(1), run_row(2, "b", attempt=2), run_row(3, "c", state="dead"), run_row(4, at_ms=2_000)):
        census.add(run)
    assert (census.runs, census.retried, census.duplicates) == (4, 1, 0)
    assert census.lost(["a", "b", "c", "d"]) == 2
    census.add(run_row(5))
    assert census.duplicates == 1
    census.add(run_row(6, "b", trigger="manual"))
    census.add(run_row(7, "b", trigger="manual"))
    assert census.duplicates == 1, "only a schedule's times are of one run each"


def test_lags_that_cannot_be_are_doubted():
    fine = dict.fromkeys(("p50", "p99", "p999", "max"), 10.0)
    assert doubts({"lag_ms": {"queued": fine, "start": fine, "done": fine}}) == []
    told = doubts({"lag_ms": {"queued": fine, "start": {**fine, "max": 20.0}, "done": fine}})
    assert len(told) == 1
    assert "done_lag_ms max" in told[0]


def test_an_ingest_that_is_not_done_in_time_is_tried_again(monkeypatch, capsys):
    tried = []

    def measure(plan):
        tried.append(plan.lead_s)
        if len(tried) < 3:
            raise midnight._TooLateError(50, 5.0)
        return {"runs": plan.runs}

    monkeypatch.setattr(midnight, "_try", measure)
    assert midnight.midnight(100, "oneshot", 1) == {"runs": 100}
    assert tried == sorted(set(tried))
    assert capsys.readouterr().err.count("not done at T") == 2
    past = datetime.now(UTC) - timedelta(seconds=1)
    with Progress("x", 10) as bar, pytest.raises(midnight._TooLateError):
        list(midnight._jobs(Plan(10, "oneshot", 1, 0.0), past, past, [], bar))


def test_a_server_that_cannot_start_says_why(short_tmp):
    server = ServerProcess(short_tmp, workers=-1)
    with pytest.raises(UnavailableError, match="workers"):
        server.start()


def test_poll():
    answers = iter([False, False, True])
    assert poll(lambda: next(answers), 10)
    assert not poll(lambda: False, 0)


def test_verify_compares_digests_and_checks_invariants(live, monkeypatch):
    live("job", "put", "a", "demo.ok", "--every", "1h")
    live.server.kill()
    data = str(live.folder / "data")
    assert verify_directory(data)["ok"]
    real, calls = verify.open_offline, []

    def second_is_another(directory):
        calls.append(directory)
        return State() if len(calls) == 2 else real(directory)

    monkeypatch.setattr(verify, "open_offline", second_is_another)
    assert verify_directory(data)["findings"] == ["two replays of the same records differ"]
    monkeypatch.setattr(verify, "open_offline", lambda _: State())
    assert "the state by the snapshot and the state by all records differ" in verify_directory(data)["findings"]
    monkeypatch.setattr(verify, "open_offline", real)

    with monkeypatch.context() as patch:
        patch.setattr(verify.LmdbJournal, "verify", lambda _: ["page 3 is wrong"])
        assert verify_directory(data)["findings"] == ["page 3 is wrong"]

    def broken(self):
        raise AssertionError("row 3")

    monkeypatch.setattr(State, "check", broken)
    assert verify_directory(data)["findings"] == ["broken invariant: row 3"]


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


def test_the_corpus_of_the_package_is_that_of_the_benchmarks():
    beside = TESTS.parent / "benchmarks" / "crontab_corpus.txt"
    if not beside.is_file():
        pytest.skip("no benchmarks beside the tests")
    assert (files("wheelsched.cli.bench") / "corpus.txt").read_bytes() == beside.read_bytes()


def test_percentiles():
    assert percentiles([]) == {"p50": 0.0, "p99": 0.0, "p999": 0.0, "max": 0.0}
    assert percentiles([5.0]) == {"p50": 5.0, "p99": 5.0, "p999": 5.0, "max": 5.0}
    assert percentiles(range(1, 1001)) == {"p50": 500, "p99": 990, "p999": 999, "max": 1000}


@pytest.mark.slow
def test_a_file_of_jobs(live):
    cases = TESTS / "import_cases"
    plan = live("job", "apply", "-f", str(cases / "jobs.toml"), "--dry-run")
    assert plan.splitlines()[0] == "+ billing/charge  billing.charge  0 0 * * * Europe/Berlin"
    assert live.json("job", "list") == []
    assert live.json("job", "apply", "-f", str(cases / "jobs.toml"))["counts"] == {"created": 5, "updated": 0, "deleted": 0, "unchanged": 0}
    assert live("job", "apply", "-f", str(cases / "jobs.toml")) == ""
    text = (cases / "jobs.toml").read_text().replace('timeout = "5s"', 'timeout = "6s"').partition("[jobs.gift]")[0]
    changed = live("job", "apply", "-f", "-", "--prune", "*", text=text).splitlines()
    assert changed == ["- cleanup", "- gift", "~ ping  timeout: 5s -> 6s"]
    live("job", "apply", "-f", str(cases / "jobs_wrong.toml"), code=2)
    live("job", "apply", "-f", "-", "--prune", "*", code=2, text="")
    live("job", "apply", "-f", "-", code=2, text='[jobs.a]\ntask = "t"\ncron = "0 0 * * *"\ncalendar = "nowhere"\n')
    rows = live.json("job", "import", "systemd", str(cases / "systemd" / "backup.timer"))
    assert [(r["job"], r["result"]) for r in rows if "job" in r] == [("systemd/backup", "created")]
    assert live.json("job", "get", "systemd/backup")["spec"]["schedule"]["kind"] == "union"
    rows = live.json("job", "import", "celery", str(cases / "beat_schedule.py.txt"), code=1)
    assert {r["result"] for r in rows if "job" in r} == {"created"}

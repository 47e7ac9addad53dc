"""Importers of systemd timers, Kubernetes CronJobs and Celery's beat_schedule: what is carried over, and that all the rest is told."""

from __future__ import annotations

import json
import sys

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from tests.rigs.places import TESTS
from wheelsched import At, Catchup, Cron, Every, InvalidArgumentError, Manual, Retry, ScheduleError, UnimplementedError
from wheelsched.cli.importers import celery, kubernetes, systemd
from wheelsched.cli.importers.systemd_calendar import calendar, span_us
from wheelsched.cli.importers.unit_file import parse_exec, parse_unit, split_words
from wheelsched.cli.root import cli
from wheelsched.client.apply import check_job

CASES = TESTS / "import_cases"
BERLIN = "Europe/Berlin"


def timer(name, tz=BERLIN, **texts):
    """Entries of a timer among the cases, or of texts."""
    folder = CASES / "systemd"

    def load(unit):
        if unit in texts:
            return unit, texts[unit]
        path = folder / unit
        return (unit, path.read_text()) if path.is_file() else None

    text = texts[name] if name in texts else (folder / name).read_text()
    return systemd.read_timer(name, text, load, tz=tz)


def the_job(entries):
    [job] = [e.job for e in entries if e.job is not None]
    check_job(job)
    return job


def told(entries, kind="dropped"):
    return {(e.file, e.line) for e in entries if e.kind == kind}


# systemd: OnCalendar=


@pytest.mark.parametrize(
    ("text", "expr", "tz", "day_or"),
    [
        ("minutely", "* * * * *", BERLIN, True),
        ("hourly", "0 * * * *", BERLIN, True),
        ("daily", "0 0 * * *", BERLIN, True),
        ("Weekly UTC", "0 0 * * mon", "UTC", True),
        ("monthly America/New_York", "0 0 1 * *", "America/New_York", True),
        ("quarterly", "0 0 1 1,4,7,10 *", BERLIN, True),
        ("semiannually", "0 0 1 1,7 *", BERLIN, True),
        ("yearly", "0 0 1 1 *", BERLIN, True),
        ("Mon..Fri 09:00", "0 9 * * mon-fri", BERLIN, True),
        ("Sat,Sunday *-*-* 10:30:15", "15 30 10 * * sat,sun", BERLIN, True),
        ("Mon-Wed, 17:48", "48 17 * * mon-wed", BERLIN, True),
        ("Mon..Sun 1:2", "2 1 * * *", BERLIN, True),
        ("*-*-1..7 12:00 Asia/Tokyo", "0 12 1-7 * *", "Asia/Tokyo", True),
        ("Mon *-*-1..7 12:00", "0 12 1-7 * mon", BERLIN, False),
        ("Mon *-05~07/1", "0 0 L-6,L-5,L-4,L-3,L-2,L-1,L 5 mon", BERLIN, False),
        ("*-02~03", "0 0 L-2 2 *", BERLIN, True),
        ("*-*~1,3..5 23:59", "59 23 L,L-4,L-3,L-2 * *", BERLIN, True),
        ("*:0/15", "0/15 * * * *", BERLIN, True),
        ("*:*:0/10", "0/10 * * * * *", BERLIN, True),
        ("*-*-* *:00/1:00", "* * * * *", BERLIN, True),
        ("00..06/2:30", "30 0-6/2 * * *", BERLIN, True),
        ("2026-12-24 10:00:00", "0 0 10 24 12 * 2026", BERLIN, True),
        ("2026-12-24T10:00", "0 0 10 24 12 * 2026", BERLIN, True),
        ("26-12-24 10:00", "0 0 10 24 12 * 2026", BERLIN, True),
        ("Mon,Wed..Fri 2026..2028-1/3-* 00:00", "0 0 0 * 1/3 mon,wed-fri 2026-2028", BERLIN, True),
        ("03-05 08:05:40.0", "40 5 8 5 3 *", BERLIN, True),
        ("08:05:40", "40 5 8 * * *", BERLIN, True),
    ],
)
def test_calendar_expressions(text, expr, tz, day_or):
    assert calendar(text, BERLIN) == Cron(expr, tz, day_or=day_or)


def test_an_instant():
    assert calendar("@1395716396", "UTC") == At("2014-03-25T02:59:56Z")


@pytest.mark.parametrize(
    ("text", "what"),
    [("*:*:3.33/10.05", "fractions"), ("25:00", "hour 25"), ("*-13-01", "month 13"), ("*-*-0", "day 0"), ("foo", "no date"), ("", "empty"),
     ("Fri..Mon 10:00", "backwards"), ("10:00 Mars/Base", "known time zone"), ("10:00 10:00", "neither"), ("*-*-5..3", "backwards"),
     ("Foo 10:00", "no date"), ("Mon,Foo 10:00", "no weekday"), ("@12x", "whole seconds"), ("*:1/0", "no minute"), ("*:*..3", "no minute"),
     ("*-*~*", "no day"), ("2200-01-01", "year 2200"), ("1:2:3:4", "no time"), ("*-*", "")],
)
def test_calendar_expressions_that_are_refused(text, what):
    if not what:
        assert calendar(text, "UTC") == Cron("0 0 * * *")
        return
    with pytest.raises(InvalidArgumentError, match=what):
        calendar(text, "UTC")


def test_one_that_never_fires():
    with pytest.raises(ScheduleError, match="never fires"):
        calendar("*-02-30", "UTC")


@given(st.text(alphabet=st.sampled_from("0123456789*.,/:-~ MonTueUTCdaily@"), max_size=25))
def test_any_calendar_text_is_a_schedule_or_refused(text):
    try:
        found = calendar(text, "UTC")
    except (InvalidArgumentError, ScheduleError):
        return
    assert isinstance(found, Cron | At)


@pytest.mark.parametrize(
    ("text", "seconds"), [("5min 20s", 320), ("90", 90), ("1h30m", 5_400), ("2days", 172_800), ("1.5h", 5_400), ("1w 1ms", 604_800.001), ("1 M", 2_629_800)]
)
def test_time_spans(text, seconds):
    assert span_us(text) == round(seconds * 1_000_000)


@pytest.mark.parametrize("text", ["", "infinity", "3 lightyears", "-5s", "s"])
def test_no_time_spans(text):
    with pytest.raises(InvalidArgumentError):
        span_us(text)


# systemd: unit files


def test_settings_have_lines_and_continuations():
    settings, bad = parse_unit("[A]\nx = 1\n# c\ny=2 \\\n; comment inside\n 3\nz=\nrubbish\n[B]\nx=4")
    assert [tuple(s) for s in settings] == [("A", "x", "1", 2), ("A", "y", "2  3", 4), ("A", "z", "", 7), ("B", "x", "4", 10)]
    assert [line for line, _ in bad] == [8]
    assert parse_unit("x=1")[1][0][0] == 1


def test_words():
    assert split_words(r"""a "b c"  'd e' f\x20g "h\"i" j'k'l \t """) == ["a", "b c", "d e", "f g", 'h"i', "jkl", "\t"]
    assert split_words('""') == [""]
    with pytest.raises(InvalidArgumentError):
        split_words("'a")


def test_commands():
    env = {"A": "x y", "B": "z"}
    one = parse_exec("-/bin/a $A ${A} p${B}q $$A %%i %i \\; b", env, {"i": "eu"})
    assert [(c.argv, c.flags) for c in one] == [(["/bin/a", "x", "y", "x y", "pzq", "$A", "%i", "eu", ";", "b"], "-")]
    two = parse_exec("/bin/a 1 ; @/bin/b bee 2", env, {})
    assert [c.argv for c in two] == [["/bin/a", "1"], ["/bin/b", "2"]]
    assert parse_exec(":/bin/a $A", env, {})[0].argv == ["/bin/a", "$A"]
    assert "not set" in parse_exec("/bin/a $C", env, {})[0].notes[0]
    for text in ("/bin/a %h", "-", ""):
        with pytest.raises(InvalidArgumentError):
            parse_exec(text, env, {})


# systemd: whole timers


def test_a_timer_with_two_calendars_is_a_union():
    entries = timer("backup.timer")
    job = the_job(entries)
    assert job.name == "systemd/backup"
    assert job.schedule == [Cron("30 2 * * mon-fri", BERLIN), Cron("0 4 * * sat,sun", BERLIN)]
    assert job.policies == {"note": "Nightly backup of the data disk", "jitter": "15m", "catchup": "latest", "timeout": "2h"}
    assert job.call.args[0] == ["/usr/local/bin/backup", "--level", "9", "--to", "s3://bucket/data", "--exclude", "*.tmp", "--label", "100%"]
    assert job.call.kwargs == {
        "cwd": "/srv/data", "env": {"TARGET": "s3://bucket/data", "LEVEL": "9"}, "user": "backup", "success_codes": [0, 3],
        "env_file": ["-/etc/default/backup"],
    }
    lost = {("backup.timer", 8), ("backup.timer", 12)} | {("backup.service", n) for n in (4, 5, 13, 16, 18)}
    assert told(entries) == lost
    assert all(e.text and e.notes[0] for e in entries if e.kind == "dropped")


def test_n_a3_on_failure_says_how_a_job_is_told():
    entries = timer(
        "b.timer", **{"b.timer": "[Unit]\nOnFailure=x\n[Timer]\nOnCalendar=daily", "b.service": "[Unit]\nOnFailure=x\n[Service]\nExecStart=/b"}
    )
    assert [e.notes for e in entries if e.kind == "dropped"] == [["no unit is started from here: --on-dead JOB triggers a job when a run dies"]] * 2


def test_an_interval_and_several_commands():
    entries = timer("poll.timer")
    job = the_job(entries)
    assert job.schedule == Every("5m")
    assert job.call.args[0] == ["/bin/sh", "-c", "{ /usr/bin/poll --once || :; } && /usr/bin/poll-report && /bin/echo done"]
    assert job.policies == {"timeout": "1m30s"}
    assert told(entries) == {("poll.timer", 2), ("poll.timer", 7), ("mail-poll.service", 5)}


def test_after_completion_and_a_template():
    entries = timer("sync@eu.timer")
    job = the_job(entries)
    assert job.name == "systemd/sync-eu"
    assert job.schedule == Every("90s", after_completion=True)
    assert job.call.args[0] == ["/usr/bin/sync-region", "eu", "--unit", "sync@eu.service"]
    assert told(entries) == {("sync@eu.timer", 3)}


def test_timers_that_become_no_job_say_why():
    assert [(e.kind, e.line) for e in timer("boot.timer")] == [("skipped", 1), ("dropped", 2)]
    assert told(timer("broken.timer"), "error") == {("broken.timer", 2), ("broken.timer", 4)}
    assert all(e.job is None for e in timer("broken.timer"))
    assert "not beside" in timer("lonely.timer")[-1].notes[0]
    assert told(timer("never.timer"), "error") == {("never.service", 2)}
    assert timer("x.service", **{"x.service": ""})[0].kind == "error"
    assert "only a service" in timer("x.timer", **{"x.timer": "[Timer]\nUnit=x.target\nOnCalendar=daily"})[-1].notes[0]


def test_one_that_never_fires_becomes_manual():
    entries = timer("x.timer", **{"x.timer": "[Timer]\nOnCalendar=*-02-30\n", "x.service": "[Service]\nExecStart=/bin/true"})
    assert (entries[0].kind, entries[0].job.schedule) == ("manual", Manual())
    assert "never fires" in entries[0].notes[0]


def test_settings_taken_back_and_mixed_times():
    text = "[Timer]\nOnCalendar=hourly\nOnCalendar=\nOnCalendar=daily\nOnUnitActiveSec=1h\nOnUnitInactiveSec=3min\nPersistent=no\n"
    entries = timer("x.timer", **{"x.timer": text, "x.service": "[Service]\nType=notify\nExecStart=+/bin/true\nTimeoutStartSec=3\n"})
    job = the_job(entries)
    assert job.schedule == [Cron("0 0 * * *", BERLIN), Every("1h")]
    assert job.policies == {"catchup": "skip"}
    assert told(entries) == {("x.timer", 6), ("x.service", 2), ("x.service", 3), ("x.service", 4)}


# Kubernetes


@pytest.fixture
def manifests():
    pytest.importorskip("yaml", reason="PyYAML is not installed")
    return kubernetes.read_manifests("cronjobs.yaml", (CASES / "cronjobs.yaml").read_text())


def test_cron_jobs(manifests):
    jobs = {e.job.name: e for e in manifests if e.job is not None}
    for entry in jobs.values():
        check_job(entry.job)
    assert list(jobs) == ["billing/invoice-export", "default/heartbeat", "default/monthly", "default/by-hand"]
    export = jobs["billing/invoice-export"].job
    assert export.schedule == Cron("30 2 * * 1-5", "Europe/Paris")
    assert export.policies == {
        "overlap": "skip", "catchup": Catchup("latest", window=3600), "retry": Retry(attempts=3, backoff="10s", cap="6m"), "timeout": 1800,
    }
    assert export.call.args[0] == ["python", "-m", "export", "--bucket", "invoices", "--keep", "$(DATE)", "$(UNKNOWN)"]
    assert export.call.kwargs["env"] == {"BUCKET": "invoices"}
    beat = jobs["default/heartbeat"].job
    assert (beat.schedule, beat.policies) == (Every("1m30s"), {"overlap": "cancel_other", "paused": True})
    assert jobs["default/monthly"].job.schedule == Cron("0 6 1 * *", "America/New_York")
    assert (jobs["default/by-hand"].kind, jobs["default/by-hand"].job.schedule) == ("manual", Manual())


def test_what_cron_jobs_lose_is_told(manifests):
    dropped = {(e.line, e.text.partition(": ")[2]) for e in manifests if e.kind == "dropped"}
    assert {line for line, text in dropped if line < 35} == {6, 12, 13, 20, 23, 29, 31}
    assert (12, "spec.successfulJobsHistoryLimit") in dropped
    assert [(e.line, e.text) for e in manifests if e.kind == "skipped"] == [(34, "ConfigMap")]
    errors = {e.text.partition(":")[0]: (e.line, e.notes[0]) for e in manifests if e.kind == "error"}
    assert errors["entrypoint-only"][0] == 74
    assert "no command" in errors["entrypoint-only"][1]
    assert errors["wrong"][0] == 79
    assert "out of range" in errors["wrong"][1]


SKELETON = """
kind: CronJob
metadata: {{name: {name}}}
spec: {{schedule: "{schedule}", {more} jobTemplate: {{spec: {{template: {{spec: {{containers: [{{command: [a]}}]}}}}}}}}}}
"""


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("a: {{ .Values.x }}\nb: [", "no YAML"), ("- 1\n- 2", "no CronJob"), ("kind: CronJob", "metadata is missing"), ("kind: [a]", "text is wanted"),
        ("kind: CronJob\nmetadata: 3", "no map"), ("kind: CronJob\nmetadata: {}", "name is missing"), ("kind: CronJob\nmetadata: {name: a}", "spec is missing"),
        (SKELETON.format(name="a b", schedule="@daily", more=""), "job name"), (SKELETON.format(name="a", schedule="", more=""), "schedule is missing"),
        (SKELETON.format(name="a", schedule="@daily", more="concurrencyPolicy: Never,"), "not one of"),
        (SKELETON.format(name="a", schedule="@daily", more="startingDeadlineSeconds: soon,"), "whole number"),
        (SKELETON.format(name="a", schedule="@daily", more="timeZone: No/Where,"), "No/Where"),
        (SKELETON.format(name="a", schedule="@daily", more="").replace("[{command: [a]}]", "[]"), "one container"),
        (SKELETON.format(name="a", schedule="@daily", more="").replace("[a]", "[3]"), "list of texts"),
        ("\x00", "no YAML"),
    ],
)
def test_manifests_that_become_no_job(text, what):
    pytest.importorskip("yaml", reason="PyYAML is not installed")
    entries = kubernetes.read_manifests("f", text)
    assert all(e.job is None for e in entries)
    assert any(what in note for e in entries for note in e.notes), entries


def test_empty_documents_and_a_prefix():
    pytest.importorskip("yaml", reason="PyYAML is not installed")
    assert kubernetes.read_manifests("f", "---\n---\n# nothing\n") == []
    [entry] = kubernetes.read_manifests("f", SKELETON.format(name="a", schedule="@daily", more=""), prefix="old")
    assert entry.job.name == "old/a"
    with pytest.raises(InvalidArgumentError):
        kubernetes.read_manifests("f", "", prefix="no good")


def test_without_pyyaml_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(UnimplementedError, match=r"pip install PyYAML"):
        kubernetes.read_manifests("f", "")
    done = invoke("kubernetes", str(CASES / "cronjobs.yaml"))
    assert done.exit_code == 1
    assert "pip install PyYAML" in done.stderr


# Celery


def test_a_beat_schedule():
    entries = celery.read_beat("beat.py", (CASES / "beat_schedule.py.txt").read_text())
    jobs = {e.job.name.removeprefix("celery/"): e.job for e in entries if e.job is not None}
    for job in jobs.values():
        check_job(job)
    tz = "Europe/London"
    assert {name: job.schedule for name, job in jobs.items()} == {
        "refresh-prices": Every("5m"), "weekday-mornings": Cron("0 7,9-11 * * 1-5", tz), "payday": Cron("0 8 1-7 * 5", tz, day_or=False),
        "weekend": Cron("*/15 * * * 5-6,0-1", tz), "night-shift": Cron("0,30 22-23,0-4 * * *", tz), "cleanup": Every("90m"), "poll": Every("10s"),
        "evening": Cron("30 19 * * *", tz), "never": Manual(), "added": Cron("* * * * *", tz), "updated": Every("30s"),
    }
    prices = jobs["refresh-prices"]
    assert (prices.call.task, prices.call.args, prices.policies["queue"]) == ("shop.tasks.refresh", (16, "eur"), "prices")
    assert jobs["weekday-mornings"].call.kwargs == {"full": True, "timezone": "not a setting"}
    errors = {e.line: e.notes[0] for e in entries if e.kind == "error"}
    assert sorted(errors) == [30, 31, 33, 41]
    assert "sun" in errors[30]
    assert "without running" in errors[31]
    assert "no task" in errors[33]
    assert "add_periodic_task" in errors[41]
    assert {17, 27} <= {e.line for e in entries if e.kind == "dropped"}


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("x = 1", "no beat schedule"), ("def f(:", "no Python"), ("beat_schedule = make()", "written out"), ("beat_schedule = {'a': make()}", "written out"),
        ("beat_schedule = {f(): {}}", "without running"), ("beat_schedule = {'a': {1: 2}}", "no text"), ("beat_schedule = {'a': {'task': 't'}}", "no schedule"),
        ("beat_schedule = {'a': {'task': 't', 'schedule': 'daily'}}", "neither"), ("beat_schedule = {'a': {'task': 't', 'schedule': True}}", "neither"),
        ("beat_schedule = {'a': {'task': 't', 'schedule': crontab(minutes=1)}}", "not known"), ("beat_schedule = {'a': {'task': 't', 'schedule': 0.01}}", "allowed"),
        ("beat_schedule = {'a': {'task': 't', 'schedule': crontab(minute=61)}}", "out of range"), ("a = b\nb = a\nbeat_schedule = {'x': a}", "written out"),
        ("beat_schedule = {'a': {'task': 't', 'schedule': crontab(day_of_week='funday')}}", "funday"),
        ("beat_schedule = {'a': {'task': 't', 'schedule': crontab(minute=1.5)}}", "neither a number nor text"),
        ("beat_schedule = {'a': {'task': 't', 'schedule': 9 ** 9}}", "without running"), ("beat_schedule = {'a': {'task': 't', 'schedule': 1 / 0}}", "division"),
        ("beat_schedule = {'a': {'task': 't', 'schedule': 'x' * 10}}", "no number"), ("beat_schedule = {'a': {'task': 3, 'schedule': 5}}", "task"),
        ("beat_schedule = {'a': {'task': 't', 'schedule': 5, 'args': 3}}", "a list"), ("beat_schedule = {'a': {'task': 't', 'schedule': schedule()}}", "run_every"),
        ("beat_schedule = {'a b': {'task': 't', 'schedule': 5}, 'a-b': {'task': 't', 'schedule': 5}}", "another entry"),
        ("timezone = 'No/Where'\nbeat_schedule = {}", "No/Where"), ("timezone = f()\nbeat_schedule = {}", "read in UTC"),
    ],
)
def test_beat_schedules_that_are_refused(text, what):
    entries = celery.read_beat("f", text)
    errors = [note for e in entries if e.kind == "error" for note in e.notes]
    assert any(what in note for note in errors), entries


def test_a_file_is_never_run(tmp_path):
    text = f"open({str(tmp_path / 'made')!r}, 'w')\nbeat_schedule = {{'a': {{'task': 't', 'schedule': __import__('os').getpid()}}}}"
    assert celery.read_beat("f", text)[0].kind == "error"
    assert not (tmp_path / "made").exists()


def test_settings_in_other_places():
    for text in (
        "CELERY_BEAT_SCHEDULE: dict = {'a': {'task': 't', 'schedule': 5}}", "class Config:\n    beat_schedule = {'a': {'task': 't', 'schedule': 5}}",
        "app.conf.beat_schedule.update({'a': {'task': 't', 'schedule': 5}})", "CELERY = {'beat_schedule': {'a': {'task': 't', 'schedule': 5}}}",
        "x = {'a': {'task': 't', 'schedule': 5}}\nbeat_schedule = {**x}", "beat_schedule = {'a': {'task': 't', 'schedule': 5}}\napp.conf.beat_schedule = beat_schedule",
        "app.config['beat_schedule'] = {'a': {'task': 't', 'schedule': 5}}",
    ):
        assert [e.job.schedule for e in celery.read_beat("f", text)] == [Every("5s")], text


@given(st.text(alphabet=st.sampled_from("beat_schdul={}'task: 5,()[]*\n.crontab-+/"), max_size=60))
def test_any_text_of_python_gives_entries(tail):
    for entry in celery.read_beat("f", "beat_schedule = {'a': {'task': 't', 'schedule': 5}}\n" + tail):
        assert entry.job is not None or entry.notes


# The verbs


def invoke(*args):
    return CliRunner().invoke(cli, ["job", "import", *args], catch_exceptions=False)


def test_dry_runs_of_the_verbs():
    done = invoke("systemd", str(CASES / "systemd" / "backup.timer"), str(CASES / "systemd" / "poll.timer"), "--tz", "UTC", "--dry-run", "-o", "json")
    assert done.exit_code == 0, done.stderr
    rows = json.loads(done.stdout)
    assert [r["job"] for r in rows if r["kind"] == "job"] == ["systemd/backup", "systemd/poll"]
    assert all(r["file"] and r["line"] for r in rows)
    assert "settings not carried over" in done.stderr
    done = invoke("celery", str(CASES / "beat_schedule.py.txt"), "--dry-run")
    assert done.exit_code == 1
    assert f"{CASES / 'beat_schedule.py.txt'}:30" in done.stdout
    assert invoke("systemd", str(CASES / "systemd" / "backup.timer"), "--tz", "No/Where", "--dry-run").exit_code == 2


def test_drop_ins_are_told(tmp_path):
    (tmp_path / "a.timer").write_text("[Timer]\nOnCalendar=daily\n")
    (tmp_path / "a.service").write_text("[Service]\nExecStart=/bin/true\n")
    (tmp_path / "a.timer.d").mkdir()
    (tmp_path / "a.timer.d" / "local.conf").write_text("[Timer]\nPersistent=true\n")
    assert "drop-ins are not read" in invoke("systemd", str(tmp_path / "a.timer"), "--dry-run").stdout


def test_a_name_that_two_files_give_is_an_error(tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "x.timer").write_text("[Timer]\nOnCalendar=daily\n")
        (tmp_path / folder / "x.service").write_text("[Service]\nExecStart=/bin/true\n")
    done = invoke("systemd", str(tmp_path / "a" / "x.timer"), str(tmp_path / "b" / "x.timer"), "--dry-run")
    assert done.exit_code == 1
    assert "already the job of" in done.stdout


def test_files_of_cron_d_have_a_user():
    done = invoke("crontab", str(CASES / "cron.d" / "shop"), "--dry-run", "-o", "json")
    rows = json.loads(done.stdout)
    assert [(r["line"], r["kind"]) for r in rows] == [
        (2, "env"), (3, "env"), (4, "env"), (5, "job"), (6, "job"), (7, "skipped"), (8, "manual"), (9, "error"),
    ]
    assert [r["user"] for r in rows if "user" in r] == ["www-data", "root", "nobody"]
    assert rows[3]["argv"] == ["/bin/bash", "-c", "cd /srv/shop && php artisan schedule:run >> /dev/null 2>&1"]
    user = invoke("crontab", str(CASES / "cron.d" / "shop"), "--no-system", "--dry-run", "-o", "json")
    assert json.loads(user.stdout)[3]["argv"][2].startswith("www-data")

"""The command line's verbs about times, against a real server."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from tests.rigs.cli import Live


@pytest.fixture
def live(short_tmp):
    it = Live(short_tmp)
    with it.server:
        yield it


def text(moment):
    return moment.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


@pytest.mark.slow
def test_an_operators_questions(live):
    live("job", "put", "alarm", "demo.ok", "--manual")
    put = ["job", "put", "night", "demo.ok", "--cron", "0 0 * * *", "--cron", "30 2 * * *", "--tz", "Europe/Berlin"]
    made = live.json(*put, "--jitter", "1m", "--pause-after", "3", "--late-after", "5m", "--on-missed", "alarm", "--note", "first")
    assert (made["result"], made["version"], made["spec"]["on_missed"]) == ("created", 1, "default/alarm")
    live(*put, "--version", "7", code=4)
    assert live.json(*put, "--version", "1", "--timeout", "5m")["version"] == 2
    change, created = live.json("job", "history", "night")
    assert (created["what"], created["note"]) == ("create", "first")
    assert change["changes"]["timeout"] == {"old": "1h", "new": "5m"}
    assert "timeout: 1h -> 5m" in live("job", "history", "night")

    first, second, third = live.json("job", "next", "night", "-n", "3")
    assert live.json("job", "why", "night", first)["disposition"] == "pending"
    assert live.json("job", "skip", "night", first)["reason"] == "manual"
    assert live.json("job", "skip", "night", first, "--undo")["disposition"] == "pending"
    later = text(datetime.fromisoformat(second) + timedelta(minutes=7))
    assert live.json("job", "move", "night", second, "--to", later)["state"] == "scheduled"
    assert live.json("job", "why", "night", second)["disposition"] == "moved"
    local = datetime.fromisoformat(third).astimezone(UTC)
    live("job", "why", "night", text(local + timedelta(seconds=1)), code=3)
    live("job", "why", "night", "yesterday", code=2)


@pytest.mark.slow
def test_backfill_calendars_and_a_hold(live):
    anchored = (datetime.now(UTC) - timedelta(hours=5)).replace(minute=0, second=0, microsecond=0)
    live("calendar", "put", "freeze", "--window", text(anchored - timedelta(1)), text(anchored + timedelta(minutes=30)))
    live("job", "put", "h", "demo.ok", "--cron", "0 * * * *", "--calendar", "freeze")
    assert "1 job names it" in live("calendar", "get", "freeze")
    span = ["--since", text(anchored), "--until", text(anchored + timedelta(hours=3))]
    planned = live.json("job", "backfill", "h", *span, "--dry-run")
    assert (planned["count"], planned["dry_run"]) == (3, True)
    assert live.json("job", "backfill", "h", *span, "--overlap", "allow", "--max", "2")["run_ids"] == planned["run_ids"]
    assert live.json("job", "backfill", "h", *span)["existing"] == 3
    assert [live.json("run", "wait", run_id)["trigger"] for run_id in planned["run_ids"]] == ["backfill"] * 3
    live("calendar", "delete", "freeze", code=4)

    live("admin", "hold", "--note", "deploy")
    assert live("status").startswith("HELD (deploy)")
    live("health", code=1)
    assert live.json("admin", "release")["held"] is False
    live("health")
    live("admin", "tzdiff")
    assert live.json("run", "list", "--late", "--skipped") == []


JOBS = """[calendars.holidays]
yearly = ["12-25"]
[jobs.night]
task = "demo.ok"
cron = "0 0 * * *"
tz = "Europe/Berlin"
calendar = "holidays"
"""


@pytest.mark.slow
def test_a_changed_calendar_in_a_plan(live):
    assert live("job", "apply", "-f", "-", text=JOBS).splitlines() == [
        "+ calendar holidays  exclude, UTC, every year 12-25", "+ night  demo.ok  0 0 * * * Europe/Berlin",
    ]
    assert live.said == [
        "wheelsched: calendar holidays has the days of UTC; other zones: night",
        "wheelsched: 1 created, 0 updated, 0 deleted, 0 unchanged; 1 calendar",
    ]
    other = "[defaults]\ntz = 'Europe/Berlin'\n" + JOBS.replace('"12-25"', '"12-25", "12-26"')
    assert live("job", "apply", "-f", "-", "--dry-run", text=other).splitlines() == [
        "~ calendar holidays  tz: UTC -> Europe/Berlin; times: every year 12-25 -> every year 12-25, 12-26",
    ]
    live("job", "apply", "-f", "-", text=other)
    assert len(live.said) == 1, "the zones agree"
    night = datetime.now(UTC).year + 1
    assert live.json("job", "why", "night", f"{night}-12-26T00:00")["reason"] == "calendar"
    assert live.json("job", "why", "night", f"{night}-12-26")["reason"] == "calendar"
    assert live.json("job", "why", "night", f"{night}-12-27")["disposition"] == "pending"


def test_a_crontab_line_that_was_changed_and_imported_again(live):
    live("job", "import", "crontab", "-", text="0 3 * * * /bin/backup --all\n")
    assert not any("go on" in line for line in live.said)
    old = live.json("job", "list", "crontab/*")[0]["name"]
    live("job", "import", "crontab", "-", text="0 3 * * * /bin/backup --most\n")
    assert f"wheelsched: 1 job crontab/* is not in what was imported and goes on; `wheelsched job delete` ends one: {old}" in live.said


@pytest.mark.slow
def test_a_moved_run_and_a_file_of_the_past(live):
    live("job", "put", "five", "demo.ok", "--every", "5s")
    at = live.json("job", "next", "five", "-n", "20")[-1]  # a machine may be slow to get there
    to = (datetime.fromisoformat(at) + timedelta(minutes=5)).replace(microsecond=0)
    run = live.json("job", "move", "five", at, "--to", text(to))
    why = live.json("job", "why", "five", at)
    assert (why["disposition"], why["run_id"], datetime.fromisoformat(why["at"])) == ("moved", run["id"], to)
    assert f"moved to {to:%Y-%m-%d %H:%M:%S}Z" in live("run", "list", "five", "--state", "scheduled")
    live("job", "put", "past", "demo.ok", "--every", "1h", "--end", "2020-01-01T00:00:00Z")
    assert live.said == ["wheelsched: past has no time left to run at: what its schedule has is past, outside of start and end, or was decided before"]


def test_a_fault_that_the_server_finds_has_its_line_and_a_byte_too(live):
    live("job", "apply", "-f", "-", code=2, text='[jobs.b]\ntask = "t"\nmanual = true\n[jobs.a]\ntask = "t"\nevery = "1h"\non_missed = "nobody"\n')
    assert live.said[0].startswith("wheelsched: -:7: jobs.a.on_missed: on_missed: "), live.said
    (live.folder / "tab").write_bytes(b"# m\xfcde\n0 3 * * * /bin/true\n")
    live("job", "import", "crontab", str(live.folder / "tab"), code=1)
    assert "tab:1: byte 0xfc is no UTF-8" in live.said[0]

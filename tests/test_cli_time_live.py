"""The command line's verbs about times, against a real server."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from test_cli_live import Live


@pytest.fixture
def live(short_tmp):
    it = Live(short_tmp)
    with it.server:
        yield it


def text(moment):
    return moment.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


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

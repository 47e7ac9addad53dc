"""The command line without a server: cron verbs, times for people, tables."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import click
import pytest
from click.testing import CliRunner
from hypothesis import example, given
from hypothesis import strategies as st

from wheelsched.cli.output import Progress, pairs
from wheelsched.cli.root import cli
from wheelsched.cli.shell import exit_code
from wheelsched.client.times import Times, changes_today, instant_text, relative, span
from wheelsched.client.words import cut, size
from wheelsched.model import errors

NOON = datetime(2026, 11, 29, 12, tzinfo=UTC)
ZONES = ["Europe/Berlin", "America/St_Johns", "Australia/Lord_Howe", "America/Havana", "Africa/Cairo", "America/Asuncion"]


def invoke(*args):
    return CliRunner().invoke(cli, list(args), catch_exceptions=False)


# Cron, offline


def test_cron_next_is_a_list_of_utc_instants():
    done = invoke("cron", "next", "0 0 * * *", "--tz", "Europe/Berlin", "--after", "2026-11-29T12:00:00Z", "-n", "2", "-o", "json")
    assert json.loads(done.stdout) == ["2026-11-29T23:00:00Z", "2026-11-30T23:00:00Z"]
    assert json.loads(invoke("cron", "next", "0 0 * * *", "-n", "0", "-o", "json").stdout) == []
    past = invoke("cron", "next", "0 0 0 1 1 * 2020", "--after", "2026-01-01T00:00:00Z", "-o", "json")
    assert json.loads(past.stdout) == []


@pytest.mark.parametrize("expr", ["0 0 31 2 *", "* * * *", "61 * * * *", "x" * 10_000, "H H * * *"])
def test_cron_next_refuses(expr):
    done = invoke("cron", "next", expr)
    assert done.exit_code == 2
    assert done.stderr.startswith("wheelsched: cron")


def test_cron_explain_has_words_times_and_notes():
    done = invoke("cron", "explain", "*/7 2 13 * fri", "--tz", "Europe/Berlin", "-o", "json")
    data = json.loads(done.stdout)
    assert "Friday" in data["description"]
    assert len(data["next"]) == 5
    assert any("either is enough" in n for n in data["notes"])
    assert any("no multiple of 7" in n and "4" in n for n in data["notes"])
    table = invoke("cron", "explain", "30 2 * * *", "--tz", "Europe/Berlin", "--after", "2027-03-27T12:00:00Z").stdout
    assert "2027-03-28 03:00:00 +02:00* (01:00:00Z)" in table
    assert "clock changes" in table
    assert any("--hash-id" in n for n in json.loads(invoke("cron", "explain", "H * * * *", "-o", "json").stdout)["notes"])
    assert json.loads(invoke("cron", "explain", "H * * * *", "--hash-id", "a/b", "-o", "json").stdout)["next"]


def test_notes_are_silent_about_plain_expressions():
    for expr in ("0 0 * * *", "*/15 * * * *", "0 9 * * 1-5", "*/5 8-18 * * *"):
        assert json.loads(invoke("cron", "explain", expr, "-o", "json").stdout)["notes"] == [], expr


# Times and tables


def test_relative():
    for seconds, text in {
        0: "now", 45: "in 45s", -45: "45s ago", 180: "in 3m", 200: "in 3m 20s", 3_600: "in 1h", 90_061: "in 1d 1h", -7_260: "2h 1m ago",
    }.items():
        assert relative(datetime.fromtimestamp(seconds, UTC), datetime.fromtimestamp(0, UTC)) == text


def test_span():
    for seconds, text in {0.000_4: "0.4 ms", 0.012: "12 ms", 0.25: "250 ms", 1.5: "1.5 s", 99: "99 s", 250: "4m 10s", -1: "-1 s"}.items():
        assert span(seconds) == text


@given(st.datetimes(datetime(1990, 1, 1), datetime(2090, 1, 1)), st.sampled_from(ZONES))
@example(datetime(2026, 11, 1, 12), "America/Havana")  # 01:00 becomes 00:00
@example(datetime(2026, 10, 31, 12), "America/Havana")
@example(datetime(1998, 10, 25), "America/St_Johns")  # 00:01 becomes 23:01 of the day before
@example(datetime(1998, 10, 25, 12), "America/St_Johns")
@example(datetime(2026, 4, 24, 12), "Africa/Cairo")  # 00:00 becomes 01:00
@example(datetime(2026, 10, 29, 12), "Africa/Cairo")  # 24:00 becomes 23:00
@example(datetime(2026, 10, 30, 12), "Africa/Cairo")
def test_days_of_a_clock_change(moment, name):
    zone = ZoneInfo(name)
    moment = moment.replace(tzinfo=UTC).astimezone(zone)
    around = range(int(moment.timestamp()) - 90_000, int(moment.timestamp()) + 90_000, 900)
    first = next(t for t in around if datetime.fromtimestamp(t, UTC).astimezone(zone).date() == moment.date())
    day = [t for t in around if datetime.fromtimestamp(t, UTC).astimezone(zone).date() == moment.date()]
    offsets = {datetime.fromtimestamp(t, UTC).astimezone(zone).utcoffset() for t in (first - 900, *day)}
    assert changes_today(moment) == (len(offsets) > 1)


def test_show():
    times = Times("job")
    assert times.show(None) == "-"
    assert times.show(NOON) == "2026-11-29 12:00:00Z"
    assert times.show(NOON.replace(microsecond=5_000), "Asia/Kathmandu") == "2026-11-29 17:45:00.005 +05:45 (12:00:00.005Z)"
    assert times.show(NOON.replace(hour=23), "Asia/Tokyo") == "2026-11-30 08:00:00 +09:00 (2026-11-29 23:00:00Z)"
    assert not times.marked
    assert instant_text(NOON) == "2026-11-29T12:00:00Z"
    assert instant_text(NOON.replace(microsecond=120_000)) == "2026-11-29T12:00:00.120000Z"


def test_small_things_of_tables(capsys):
    assert cut("a\nb  c", 10) == "a b c"
    assert cut("x" * 20, 5) == "xxxx\N{HORIZONTAL ELLIPSIS}"
    assert size(812) == "812 B"
    assert size(3 * 2**30) == "3 GiB"
    assert pairs([("a", "1"), ("long", "x\ny"), ("none", "-")]) == ["a     1", "long  x", "      y"]
    with Progress("work", 10) as bar:
        bar.step(5)
    assert capsys.readouterr() == ("", ""), "no bar where stderr is no terminal"


def test_a_command_without_its_words_is_a_usage_error():
    from wheelsched.cli.policies import call

    none = {"args": None, "kwargs": None, "headers": ()}
    with pytest.raises(click.UsageError, match="missing"):
        call("command", none)
    assert call("command", none, ("echo",)).args == (["echo"],)


def test_what_a_task_says_moves_no_cursor_and_breaks_no_json(capsys):
    from wheelsched.cli.output import to_json
    from wheelsched.cli.shell import say
    from wheelsched.client.values import plain

    say("run failed: \x1b[2J\0 oops\nsecond line")
    err = capsys.readouterr().err
    assert "\x1b" not in err
    assert "\0" not in err
    assert err.endswith("second line\n")
    assert to_json(plain([float("nan"), float("-inf"), 1.5])) == '["nan","-inf",1.5]'


def test_the_exit_codes():
    wanted = {
        errors.InvalidArgumentError: 2, errors.ScheduleError: 2, errors.PayloadError: 2, errors.NotFoundError: 3,
        errors.AlreadyExistsError: 4,
        errors.FailedPreconditionError: 4, errors.FencedError: 4, errors.UnavailableError: 5, errors.PermissionDeniedError: 6,
        errors.RunFailed: 7, errors.RunTimeout: 8, errors.DeadlineExceededError: 8, errors.UnimplementedError: 1,
        errors.ResourceExhaustedError: 1, errors.StorageFullError: 1, errors.InternalError: 1,
    }
    assert {kind: exit_code(kind("x")) for kind in wanted} == wanted

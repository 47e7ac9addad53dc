"""Lint of schedules: what is remarked on one expression, on its nights of a clock change, on many together; and the verb."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from tests.rigs.places import TESTS
from wheelsched import Cron
from wheelsched.cli.root import cli
from wheelsched.schedules.lint import changes, dst_notes, notes, pile_up

CASES = TESTS / "import_cases"
START = datetime(2026, 1, 1, tzinfo=UTC)
YEAR = START + timedelta(days=366)


@pytest.mark.parametrize(
    ("expr", "what"),
    [
        ("*/7 * * * *", "last gap is 4 and not 7"), ("*/45 * * * *", "last gap is 15 and not 45"), ("0 */5 * * *", "last gap is 4 and not 5"),
        ("3/7 * * * *", "last gap is 4 and not 7"), ("0 0 * */5 *", "last gap is 2 and not 5"), ("*/90 * * * *", "past the end"),
        ("0 0 */2 * *", "anew each month"), ("0 0 13 * 5", "either is enough"), ("0 0 31 * *", "five months"), ("* 3 * * *", "every minute"),
    ],
)
def test_remarks(expr, what):
    assert [note for note in notes(Cron(expr)) if what in note], notes(Cron(expr))


@pytest.mark.parametrize(
    "expr", ["*/5 * * * *", "0 */6 * * *", "0 0 * * 1-5", "5/15 * * * *", "0 9/2 * * *", "0 0 L * *", "*/10 * * * * *", "* * * * *", "0 0 0 1 1 * 2026/3"]
)
def test_nothing_to_remark(expr):
    assert notes(Cron(expr)) == []


def test_changes_of_a_zone():
    found = changes("Europe/Berlin", START, YEAR)
    assert [(c.at, c.gap, f"{c.before:%H:%M}", f"{c.after:%H:%M}") for c in found] == [
        (datetime(2026, 3, 29, 1, tzinfo=UTC), True, "02:00", "03:00"), (datetime(2026, 10, 25, 1, tzinfo=UTC), False, "03:00", "02:00"),
    ]
    assert changes("UTC", START, YEAR) == []
    assert changes("Asia/Tokyo", START, YEAR) == []
    half = changes("Australia/Lord_Howe", START, YEAR)
    assert sorted(int((c.after - c.before).total_seconds()) for c in half) == [-1_800, 1_800]


@pytest.mark.parametrize(
    ("cron", "wanted"),
    [
        (Cron("30 2 * * *", "Europe/Berlin"), [("2026-03-29 02:30 does not exist", "once at 03:00"), ("2026-10-25 02:30 comes twice", "the first time only")]),
        (Cron("30 2 * * *", "Europe/Berlin", dst_gap="shift", dst_overlap="both"), [("2026-03-29", "as much later"), ("2026-10-25", "both times")]),
        (Cron("30 2 * * *", "Europe/Berlin", dst_gap="skip", dst_overlap="second"), [("2026-03-29", "nothing runs"), ("2026-10-25", "the second time")]),
        (Cron("*/15 2 * * *", "Europe/Berlin"), [("02:00, 02:15, 02:30 and 1 more does not exist", "nothing runs"), ("and 1 more comes twice", "both times")]),
        (Cron("*/15 * * * *", "Europe/Berlin"), []),
        (Cron("30 4 * * *", "Europe/Berlin"), []),
        (Cron("30 2 * * 1", "Europe/Berlin"), []),
        (Cron("15 2 * * *", "Australia/Lord_Howe"), [("2026-10-04 02:15 does not exist", "02:30")]),
        (Cron("30 2 * * *"), []),
        (Cron("H H * * *", "Europe/Berlin"), []),
    ],
)
def test_nights_of_a_clock_change(cron, wanted):
    found = dst_notes(cron, START, YEAR)
    assert len(found) == len(wanted), found
    for text, (what, fate) in zip(found, wanted, strict=True):
        assert what in text
        assert fate in text


@pytest.mark.slow
@given(
    st.sampled_from(["30 2 * * *", "0 1 * * *", "*/20 2 * * *", "15,45 1-3 * * *", "30 2 * * 0", "0 0 * * *", "59 1 25 10 *"]),
    st.sampled_from(["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Africa/Cairo", "America/Havana"]),
    st.sampled_from([None, "run_after", "shift", "skip"]), st.sampled_from([None, "first", "second", "both"]),
)
def test_remarks_agree_with_the_schedule_itself(expr, tz, gap, fold):
    """A wall time that is said to run nowhere, once or twice does so, by the schedule's own times."""
    cron = Cron(expr, tz, gap, fold)
    for change, text in zip(
        [c for c in changes(tz, START, YEAR) if any(f"{min(c.before, c.after):%Y-%m-%d}" in n for n in dst_notes(cron, START, YEAR))],
        dst_notes(cron, START, YEAR), strict=True,
    ):
        low, high = sorted((change.before, change.after))
        width = high - low
        near = [m for m in cron.next(change.at - width - timedelta(seconds=1), 200) if m < change.at + 2 * width]
        inside = [m for m in near if low <= m.replace(tzinfo=None) < high]
        if "nothing runs" in text:
            assert not inside
        elif change.gap:
            assert any(change.at <= m < change.at + width for m in near)
        else:
            walls = {m.replace(tzinfo=None) for m in inside}
            assert len(inside) == len(walls) * (2 if "both" in text else 1)


def test_a_pile_up_names_the_minute_and_the_jobs():
    jobs = [[Cron("0 0 * * *")] for _ in range(6)] + [[Cron("*/10 * * * *")], [Cron("0 1 * * *", "Europe/Berlin")], [Cron("30 3 * * *")], [Cron("H H * * *")]]
    [pile] = pile_up(jobs, START + timedelta(seconds=5))
    assert (pile.at, pile.jobs) == (START, (0, 1, 2, 3, 4, 5, 6, 7))
    assert pile_up(jobs[:4], START) == []
    assert pile_up([], START) == []
    assert pile_up([[Cron("* * * * *")]] * 10, START) == []  # every minute alike is no pile
    assert pile_up([[Cron("0 0 1 1 *"), Cron("0 12 1 1 *")]] * 5, START)[0].at == START


@pytest.mark.slow
def test_a_pile_up_is_that_of_brute_force():
    crons = ["*/7 3 * * *", "0 */2 * * 1-5", "30 4 1 * *", "0 4 * * *", "0 4 * * 6", "*/30 * * * *", "0 2-6 * * *", "0 4 * * *", "15 10 * * * *"]
    load = {}
    for i, expr in enumerate(crons):
        for minute in {m.replace(second=0) for m in Cron(expr).next(START - timedelta(microseconds=1), 100_000) if m < START + timedelta(days=7)}:
            load.setdefault(minute, []).append(i)
    pile = pile_up([[Cron(expr)] for expr in crons], START)[0]
    worst = max(len(of) for of in load.values())
    assert len(pile.jobs) == worst
    assert load[pile.at] == list(pile.jobs)


# The verb


def invoke(*args, text=None):
    return CliRunner().invoke(cli, ["cron", "lint", *args], input=text, catch_exceptions=False)


def found(*args, text=None):
    done = invoke(*args, "-o", "json", "--after", "2026-01-01T00:00:00Z", text=text)
    return done.exit_code, [(f["line"], f["kind"]) for f in json.loads(done.stdout)], done


def test_expressions_one_a_line():
    code, rows, done = found("-", text="# mine\n0 0 * * *\n\n61 * * * *\n0 0 31 2 *\n*/7 * * * *\n@daily\nCRON_TZ=UTC 0 0 * * *\n")
    assert code == 1
    assert rows == [(4, "error"), (5, "never"), (6, "field"), (8, "error")]
    assert "Manual()" in done.stdout
    assert "expressions" in done.stderr
    assert found("-", text="*/7 * * * *\n")[:2] == (0, [(1, "field")])
    assert found("-", text="0 0 * * *\n")[:2] == (0, [])
    assert found("-", "--tz", "Europe/Berlin", text="30 2 * * *\n")[:2] == (0, [(1, "dst"), (1, "dst")])


def test_a_crontab_and_one_of_the_system(tmp_path):
    text = "CRON_TZ=Europe/Berlin\n30 2 * * * backup --all\n0 0 31 2 * by-hand\n*/61 * * * * x\n@reboot y\nnonsense\n"
    code, rows, _ = found("-", text=text)
    assert code == 1
    assert rows == [(2, "dst"), (2, "dst"), (3, "never"), (4, "field"), (5, "field"), (6, "error")]
    code, rows, done = found(str(CASES / "cron.d" / "shop"))
    assert code == 1
    assert "read as system" in done.stderr
    assert {(8, "never"), (9, "error")} <= set(rows)
    lines = invoke(str(CASES / "cron.d" / "shop")).stdout.splitlines()
    assert all(line.startswith(f"{CASES / 'cron.d' / 'shop'}:") for line in lines)


def test_a_jobs_file():
    code, rows, done = found(str(CASES / "jobs_wrong.toml"))
    assert code == 1
    assert (14, "error") in rows
    code, rows, done = found(str(CASES / "jobs.toml"))
    assert (code, rows) == (0, [])
    assert found("-", text='[jobs.a]\ntask = "t"\ncron = "0 0 31 2 *"\n')[1] == [(3, "never")]


def test_many_jobs_in_a_minute():
    text = "".join(f"0 0 * * * job{i}\n" for i in range(20))
    code, rows, done = found("-", "--tz", "UTC", text=text)
    assert (code, rows) == (0, [(1, "pile")])
    assert "20 of 20 jobs start in the minute 2026-01-01 00:00Z" in done.stdout
    assert "..." in done.stdout


def test_a_file_that_cannot_be_read(tmp_path):
    assert invoke(str(tmp_path / "none")).exit_code == 1
    assert invoke("-", "--after", "soon", text="").exit_code == 2

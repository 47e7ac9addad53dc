"""Reading crontab files: every line is told what became of it."""

from __future__ import annotations

import json
import subprocess

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from wheelsched import Cron, InvalidArgumentError, Manual
from wheelsched.cli.importers.crontab import read_crontab
from wheelsched.cli.root import cli


def one(line, **options):
    entries = read_crontab(line, **options)
    assert len(entries) == 1, entries
    return entries[0]


def run_argv(entry, **env):
    call = entry.job.call
    return subprocess.run(call.args[0], env={**call.kwargs["env"], **env}, capture_output=True, text=True, check=False).stdout


def test_blank_lines_and_comments_say_nothing():
    assert read_crontab("\n   \n# a\n\t# b\n") == []


def test_a_plain_line():
    entry = one("*/5 1-3 * * mon  /usr/bin/backup --all\t2>&1", tz="Europe/Berlin")
    assert entry.kind == "job"
    assert entry.job.schedule == Cron("*/5 1-3 * * mon", tz="Europe/Berlin")
    assert entry.job.call.task == "command"
    assert entry.job.call.args == (["/bin/sh", "-c", "/usr/bin/backup --all\t2>&1"],)
    assert entry.job.name.startswith("crontab/backup-all-")


def test_names_stay_when_lines_move_and_times_change():
    a = one("0 1 * * * backup")
    b = read_crontab("# new\n\n5 2 * * 1 other\n30 4 * * * backup")[1]
    assert a.job.name == b.job.name
    twice = read_crontab("0 1 * * * backup\n0 2 * * * backup")
    assert twice[0].job.name == a.job.name
    assert twice[1].job.name == a.job.name + "-2"
    assert one("0 1 * * * backup --other").job.name != a.job.name


def test_system_form_has_a_user():
    entry = one("17 * * * * root cd / && run-parts /etc/cron.hourly", system=True, prefix="sys/")
    assert entry.job.call.kwargs["user"] == "root"
    assert entry.job.call.args[0][2] == "cd / && run-parts /etc/cron.hourly"
    assert entry.job.name.startswith("sys/cd-")
    assert any("root" in note for note in entry.notes)
    assert one("17 * * * * root", system=True).kind == "error"
    assert one("@daily root x", system=True).job.call.kwargs["user"] == "root"


def test_environment_lines_go_to_the_commands_behind_them():
    entries = read_crontab("0 0 * * * a\nPATH = /bin\nX='a b '\n0 0 * * * b\nX=2\n0 0 * * * c")
    env = [e.job.call.kwargs["env"] for e in entries if e.job]
    assert env == [{}, {"PATH": "/bin", "X": "a b "}, {"PATH": "/bin", "X": "2"}]
    assert [e.kind for e in entries] == ["job", "env", "env", "job", "env", "job"]


def test_shell_and_home():
    entry = read_crontab("SHELL=/bin/bash\nHOME=/srv\n0 0 * * * a")[2]
    assert entry.job.call.args[0][0] == "/bin/bash"
    assert entry.job.call.kwargs["cwd"] == "/srv"


def test_cron_tz_moves_the_schedules_and_tz_only_the_commands():
    entries = read_crontab("0 0 * * * a\nCRON_TZ=America/New_York\n0 0 * * * b\nTZ=Asia/Tokyo\n0 0 * * * c\nCRON_TZ=No/Where\n0 0 * * * d")
    jobs = [e.job for e in entries if e.job]
    assert [j.schedule.tz for j in jobs] == ["UTC", "America/New_York", "America/New_York", "America/New_York"]
    assert jobs[2].call.kwargs["env"] == {"TZ": "Asia/Tokyo"}
    assert entries[3].kind == "env"
    assert "CRON_TZ" in entries[3].notes[0]
    assert entries[5].kind == "error"
    assert "No/Where" in entries[5].notes[0]


def test_mail_is_said_not_to_be_sent():
    entry = one("MAILTO=root")
    assert entry.kind == "env"
    assert "no mail" in entry.notes[0]


def test_n_a3_mailto_says_which_job_is_told():
    (told,) = read_crontab('MAILTO="ops@example.org"', on_dead="ops/mail")
    assert told.notes == ["output is kept with each run, no mail is sent; a run that dies triggers ops/mail, which may mail ops@example.org"]
    assert "; --on-dead JOB triggers a job when a run dies, which may mail root: see" in one("MAILTO=root").notes[0]
    assert one('MAILTO=""').notes == ["output is kept with each run, no mail is sent, as was wanted"]


def test_percent_is_standard_input():
    entry = one("0 0 * * * cat; echo 100\\%%first%second\\%")
    assert run_argv(entry, PATH="/bin:/usr/bin") == "first\nsecond%\n100%\n"
    plain = one("0 0 * * * echo 5\\% \\a")
    assert plain.job.call.args[0] == ["/bin/sh", "-c", "echo 5% \\a"]


def test_the_exit_code_of_a_command_with_input_is_its_own():
    argv = one("0 0 * * * exit 3%x").job.call.args[0]
    assert subprocess.run(argv, env={"PATH": "/bin:/usr/bin"}, check=False, stderr=subprocess.DEVNULL).returncode == 3


def test_reboot_is_left_out_and_said():
    entry = one("@reboot start")
    assert (entry.kind, entry.job) == ("skipped", None)
    assert "boot" in entry.notes[0]


@pytest.mark.parametrize("expr", ["0 0 31 2 *", "0 0 30 2 *", "5 4 31 4,6,9,11 *"])
def test_a_line_that_never_fires_becomes_manual_and_says_so(expr):
    entry = one(f"{expr} x")
    assert entry.kind == "manual"
    assert entry.job.schedule == Manual()
    assert "never fires" in entry.notes[0]


@pytest.mark.parametrize(
    ("line", "expr"), [("0~59 3 * * * x", "H(0-59) 3 * * *"), ("~ ~ * * * x", "H H * * *"), ("5~ 1 * * * x", "H(5-59) 1 * * *"),
                       ("~10 1 * * * x", "H(0-10) 1 * * *")],
)
def test_random_times_become_h(line, expr):
    entry = one(line)
    assert entry.job.schedule.expr == expr
    assert any("random" in note for note in entry.notes)


@pytest.mark.parametrize(
    "line", ["61 * * * * x", "* * * * x y", "0 0 * * *", "@daily", "@every 5m x", "nonsense", "a b c d e f", "* * * * *"]
)
def test_what_cannot_be_read_is_an_error_of_its_line_alone(line):
    entries = read_crontab(f"0 1 * * * a\n{line}\n0 2 * * * b")
    assert [e.kind for e in entries] == ["job", "error", "job"]
    assert entries[1].line == 2
    assert entries[1].notes[0]


def test_carriage_returns_and_a_leading_dash():
    entries = read_crontab("-*/15 * * * * x\r\nA=1\r\n")
    assert entries[0].job.call.args[0][2] == "x"
    assert entries[0].job.schedule.expr == "*/15 * * * *"


def test_a_prefix_that_cannot_begin_a_name():
    with pytest.raises(InvalidArgumentError):
        read_crontab("", prefix="no spaces/")


@given(st.text(alphabet=st.sampled_from("*/0159,-~%\\ \t\n@#=\"'abHL_:rebot"), max_size=80), st.booleans())
def test_any_text_gives_entries(text, system):
    for entry in read_crontab(text, system=system):
        assert entry.kind in {"job", "manual", "env", "skipped", "error"}
        assert (entry.job is not None) == (entry.kind in {"job", "manual"})
        assert entry.job is not None or entry.notes


def invoke(*args, text=None):
    return CliRunner().invoke(cli, list(args), input=text, catch_exceptions=False)


def test_dry_run_shows_each_line_and_fails_for_those_in_error():
    text = "CRON_TZ=Europe/Berlin\n0 5 * * * a\n0 0 31 2 * b\n@reboot c\n61 0 * * * d\n"
    done = invoke("job", "import", "crontab", "-", "--dry-run", "--prefix", "old/", "-o", "json", text=text)
    assert done.exit_code == 1
    rows = json.loads(done.stdout)
    assert [(r["line"], r["kind"]) for r in rows] == [(1, "env"), (2, "job"), (3, "manual"), (4, "skipped"), (5, "error")]
    assert rows[1]["tz"] == "Europe/Berlin"
    assert rows[1]["argv"] == ["/bin/sh", "-c", "a"]
    assert "--allow-commands" in done.stderr
    table = invoke("job", "import", "crontab", "-", "--dry-run", "--tz", "Asia/Tokyo", text="0 5 * * * a\n")
    assert table.exit_code == 0
    assert "would put" in table.stdout
    assert "Asia/Tokyo" in table.stdout


def test_a_file_that_cannot_be_read(tmp_path):
    done = invoke("job", "import", "crontab", str(tmp_path / "none"), "--dry-run")
    assert done.exit_code == 1
    assert "No such file" in done.stderr
    (tmp_path / "bad").write_bytes(b"0 0 * * * \xff\n")
    assert "UTF-8" in invoke("job", "import", "crontab", str(tmp_path / "bad"), "--dry-run").stderr

"""What an operator is told: one sentence for what can't be used, no line in the log that is not the server's own."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
from click.testing import CliRunner

import wheelsched
from tests.rigs.server import wait_for
from wheelsched import Call, Client
from wheelsched.cli.root import cli
from wheelsched.model.errors import ConfigError
from wheelsched.process.stderr import harmless, say
from wheelsched.server.config import Config, load

ROOT = str(Path(wheelsched.__file__).resolve().parents[1])


def command(*argv, **env):
    """A verb as a process: (exit code, stdout, stderr)."""
    done = subprocess.run(
        [sys.executable, "-m", "wheelsched", *argv], capture_output=True, check=False, timeout=60, stdin=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": ROOT, **env},
    )
    return done.returncode, done.stdout.decode(), done.stderr.decode()


@pytest.mark.parametrize("text", ["x\nwheelsched: FAKE", "\x1b[2J", "a\rwheelsched: FAKE", "\x9b2J", "\u202egnal", "\x00\x07\x7f", "\udcff"])
def test_t10_no_text_of_others_forges_a_line_or_moves_a_cursor(text, capfd):
    said = harmless(text)
    assert all(c.isprintable() for line in said.split("\n") for c in line)
    assert not any(line.startswith("wheelsched") for line in said.split("\n"))
    say(f"note: {text}")
    lines = capfd.readouterr().err.splitlines()
    assert sum(" INFO wheelsched: " in line for line in lines if not line.startswith(" ")) == 1
    assert harmless("Zürich\t✓") == "Zürich\t✓"


def test_t10_a_note_that_would_forge_the_log_is_harmless(serving):
    server = serving(workers=0)
    server.client().hold("x\nwheelsched: FAKE\x1b[2J")
    server.end()
    server = serving(workers=0)
    server.client()
    log = server.log.read_text()
    assert "FAKE" in log
    assert "\x1b" not in log
    assert not any("FAKE" in line and line.startswith("wheelsched") for line in log.splitlines())


def test_t10_run_logs_is_harmless_on_a_terminal_and_raw_elsewhere(serving, short_tmp):
    (short_tmp / "loud.py").write_text('from wheelsched import task\n@task("loud")\ndef loud():\n    print("\\x1b[31mred\\x1b[2J")\n')
    server = serving("--tasks", "loud")
    ws = server.client()
    run = ws.enqueue(Call("loud"))
    run.result(timeout=60)
    wait_for(lambda: ws.run(run.id).attempts[0].stdout)
    assert command("--socket", server.socket, "run", "logs", run.id)[1] == "\x1b[31mred\x1b[2J\n"

    def on_terminal(*flags):
        ours, theirs = pty.openpty()
        subprocess.run([sys.executable, "-m", "wheelsched", "--socket", server.socket, "run", "logs", run.id, *flags], stdout=theirs, check=True,
                       stderr=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": ROOT}, timeout=60)
        os.close(theirs)
        text = os.read(ours, 4096).decode()
        os.close(ours)
        return text

    assert "\x1b" not in on_terminal()
    assert "red" in on_terminal()
    assert "\x1b[31mred\x1b[2J" in on_terminal("--raw")


@pytest.fixture
def homeless(monkeypatch):
    def expanduser(_):
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "expanduser", expanduser)
    for name in ("WHEELSCHED_SOCKET", "WHEELSCHED_DATA", "XDG_RUNTIME_DIR"):
        monkeypatch.delenv(name, raising=False)


def test_f11_without_a_home_one_line_asks_for_the_paths(homeless, tmp_path):
    for argv, code in ((["status"], 2), (["health"], 5), (["serve"], 78), (["serve", "--data", str(tmp_path / "d")], 78),
                       (["admin", "verify"], 2)):
        done = CliRunner().invoke(cli, argv)
        assert done.exit_code in {code, 2, 1}, done.output
        assert "no home directory" in done.output, argv
        assert done.output.count("\n") == 1
        assert "--socket" in done.output or "--data" in done.output
    with pytest.raises(ConfigError, match="WHEELSCHED_SOCKET"):
        Client()


def test_f11_with_both_paths_a_server_needs_no_home(homeless, tmp_path, short_tmp, monkeypatch):
    ran = []
    monkeypatch.setattr("wheelsched.server.boot.serve", lambda config, _: ran.append(config) or 0)
    done = CliRunner().invoke(cli, ["--socket", str(short_tmp / "s"), "serve", "--data", str(tmp_path / "d")])
    assert done.exit_code == 0, done.output
    assert (ran[0].data, ran[0].socket) == (str(tmp_path / "d"), str(short_tmp / "s"))
    (tmp_path / "c.toml").write_text(f'data = "{tmp_path}/d"\nsocket = "{short_tmp}/s"\n')
    assert CliRunner().invoke(cli, ["serve", "--config", str(tmp_path / "c.toml")]).exit_code == 0


NAMES = sorted({f.name for f in fields(Config)} - {"clock_offset_us", "clock_check_us", "retention_us", "drain_us", "lease_us"} | {
    "clock_offset", "clock_check", "retention", "drain", "lease"})


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("value", [5, -1, 2**80, 1.5, float("nan"), "x", "", "\udcff", "a\0b", True, [], [5], [[]], {}, {"a": 5}, {"admin": 5}])
def test_w12_a_configuration_of_wrong_types_is_told_in_words(name, value):
    try:
        load({"data": "d", "socket": "s"}, {name: value})
    except ConfigError as e:
        assert "\n" not in e.message
        assert name.partition("_")[0] in e.message


@pytest.mark.parametrize(("argv", "code", "word"), [
    (["serve", "--data", "{tmp}/d", "--socket", "{tmp}/" + "x" * 200], 78, "107"),
    (["serve", "--data", "{tmp}/d", "--socket", "{tmp}/file/s"], 78, "no directory"),
    (["serve", "--data", "{tmp}/d", "--socket", "/proc/none/s"], 78, "No such file"),
    (["serve", "--data", "{tmp}/d", "--socket", "{tmp}"], 78, "something else than a socket"),
    (["serve", "--data", "/proc/none", "--socket", "{tmp}/s"], 78, "No such file"),
    (["serve", "--config", "{tmp}/none"], 78, "No such file"),
    (["serve", "--config", "{tmp}"], 78, "Is a directory"),
    (["serve", "--config", "{tmp}/file"], 78, "line 1"),
    (["job", "apply", "-f", "{tmp}/none"], 1, "No such file"),
    (["job", "import", "systemd", "{tmp}/none"], 1, "No such file"),
    (["status", "--socket", "{tmp}/none"], 5, "no server"),
])
def test_w13_what_can_not_be_used_is_one_sentence(short_tmp, argv, code, word):
    (short_tmp / "file").write_text("= x")
    found, _, said = command(*[a.replace("{tmp}", str(short_tmp)) for a in argv])
    assert (found, word in said) == (code, True), said
    assert said.count("\n") == 1


def test_w15_arguments_that_are_no_utf_8(short_tmp):
    for argv in (["serve", "--data", str(short_tmp / "d"), "--socket", "\udcff"], ["job", "get", "\udcff", "--socket", str(short_tmp / "s")],
                 ["cron", "next", "\udcff"]):
        code, _, said = command(*argv)
        assert code in {2, 78}, said
        assert "Traceback" not in said
        assert said.count("\n") == 1


def test_w15_a_reader_that_has_enough_ends_a_verb_without_a_word(tmp_path):
    ours, theirs = os.pipe()
    os.close(ours)
    done = subprocess.run(
        [sys.executable, "-m", "wheelsched", "cron", "next", "* * * * *", "-n", "5000"], stdout=theirs, stderr=subprocess.PIPE, check=False,
        env={**os.environ, "PYTHONPATH": ROOT}, timeout=60,
    )
    os.close(theirs)
    assert b"Traceback" not in done.stderr
    assert done.returncode != 0 or done.stderr == b""

"""`serve --check`, and what a reload says of settings that it does not take."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import wheelsched
from tests.rigs.cli import invoke
from tests.rigs.server import wait_for
from wheelsched.model.errors import ConfigError
from wheelsched.server.check import check
from wheelsched.server.config import changed, load, restart_wanted
from wheelsched.server.listener import Listener

ROOT = str(Path(wheelsched.__file__).resolve().parents[1])
GOOD = "from wheelsched import task\nprint('hello from an import')\n@task('a.one')\ndef one(): ...\n@task('a.two')\ndef two(): ...\n"


@pytest.fixture
def place(short_tmp, monkeypatch):
    monkeypatch.chdir(short_tmp)
    monkeypatch.setenv("PWD", str(short_tmp))
    return short_tmp


def config(place, **more):
    return load({"data": str(place / "d"), "socket": str(place / "s"), **more})


def checked(place, *flags, **env):
    done = subprocess.run(
        [sys.executable, "-m", "wheelsched", "serve", "--check", "--data", str(place / "d"), "--socket", str(place / "s"), *flags],
        cwd=place, env={**os.environ, "PYTHONPATH": ROOT, "PWD": str(place), **env}, capture_output=True, text=True, check=False, timeout=60,
    )
    return done.returncode, done.stdout, done.stderr


def test_n_b11_a_check_names_the_tasks_and_starts_nothing(place):
    (place / "good.py").write_text(GOOD)
    code, out, said = checked(place, "--tasks", "good", "--workers", "3", "-o", "json")
    assert code == 0, said
    assert json.loads(out) == {"data": str(place / "d"), "socket": str(place / "s"), "workers": 3, "tasks": ["a.one", "a.two"]}
    assert sorted(p.name for p in place.iterdir() if p.name != "__pycache__") == ["good.py"], "nothing is made"
    code, out, _ = checked(place, "--tasks", "good")
    assert "would start" in out
    assert "tasks: a.one, a.two" in out


def test_n_b11_a_check_lists_all_faults(place):
    (place / "broken.py").write_text("import no_such_thing\n")
    (place / "empty.py").write_text("")
    (place / "d").write_text("a file")
    (place / "s").write_text("a file")
    code, out, said = checked(
        place, "--tasks", "broken", "--tasks", "empty", "--http-allow-net", "nonsense", "--http-secret-file", "/nowhere/keys",
        "--http-ca-file", "/nowhere/ca", "--grant", "admin=no-such-user", "--grant", "http=%no-such-group",
    )
    assert (code, out) == (78, "")
    for text in (
        "'nonsense' is no network", "http_secret_file /nowhere/keys", "http_ca_file /nowhere/ca", "no user 'no-such-user'", "no group 'no-such-group'",
        f"data {place}/d: it is no directory", f"socket {place}/s: there is something else than a socket",
        "the task module broken can't be imported: ModuleNotFoundError: No module named 'no_such_thing'", "the module empty has no function marked @task",
    ):
        assert text in said
    assert "Traceback" not in said


def test_n_b11_of_the_directory_and_the_socket(place):
    (place / "d").mkdir(mode=0o777)
    (place / "d").chmod(0o777)
    assert "others may write in it" in check(config(place)).faults[0]
    (place / "d").chmod(0o700)
    assert check(config(place)).faults == []
    assert "is not there: make it" in check(config(place, socket=str(place / "no" / "such" / "s"))).faults[0]
    assert check(config(place, socket=str(place / "no" / "s"))).faults == []
    assert "there is no group 'no-such'" in check(config(place, socket_group="no-such")).faults[0]
    (place / "file").write_text("")
    assert "is no directory" in check(config(place, data=str(place / "file" / "d"))).faults[0]


def test_n_b11_an_import_that_hangs_or_ends_the_process(place):
    (place / "hangs.py").write_text("import time; time.sleep(60)\n")
    (place / "ends.py").write_text("import os; os._exit(9)\n")
    assert "has not ended after 1s" in check(config(place, tasks=["hangs"], start_timeout="1s")).faults[0]
    assert "has ended its process (exit code 9)" in check(config(place, tasks=["ends"])).faults[0]


def test_n_b11_what_has_changed_by_its_name_in_the_file():
    old = load({"data": "d", "socket": "s"})
    new = load({"data": "d", "socket": "s", "workers": 3, "drain": "5m", "allow_http": True, "tasks": ["a", "b"], "socket_mode": 0o660,
                "roles": {"admin": ["ops"]}})
    assert changed(old, old) == []
    assert changed(old, new) == [
        "tasks (none, and a, b now)", "workers (2, and 3 now)", "allow_http (false, and true now)", "roles (none, and admin: ops now)",
        "socket_mode (0o600, and 0o660 now)", "drain (30s, and 5m now)",
    ]
    assert restart_wanted(old, lambda: old) == ""

    def broken():
        raise ConfigError("configuration file x: bad")

    assert restart_wanted(old, broken) == "the configuration could not be read again, and a restart would fail: configuration file x: bad"


def test_n_b11_a_reload_names_the_settings_that_it_does_not_take(serving, short_tmp):
    file = short_tmp / "config.toml"
    file.write_text("lease = '5s'\n")
    server = serving("--config", str(file))
    ws = server.client()
    assert ws.reload().settings == ""
    file.write_text("lease = '5s'\ndrain = '5m'\n")
    told = "changed since the start, and taken by a restart alone: drain (30s, and 5m now)"
    assert ws.reload().settings == told
    done = invoke("admin", "reload", "--socket", server.socket)
    assert done.exit_code == 0
    assert told in done.stderr
    file.write_text("drain = 'soon'\n")
    os.kill(server.process.pid, signal.SIGHUP)
    wait_for(lambda: "WARNING wheelsched: reload: the configuration could not be read again" in server.log.read_text())


def test_n_c20_a_socket_in_a_folder_that_is_not_there_makes_no_tree(short_tmp):
    with pytest.raises(ConfigError, match="is not there: make it, or choose another path"):
        Listener(str(short_tmp / "no" / "such" / "s"), 0o600, None)
    assert not (short_tmp / "no").exists()
    Listener(str(short_tmp / "one" / "s"), 0o600, None).close()
    assert (short_tmp / "one").stat().st_mode & 0o777 == 0o700

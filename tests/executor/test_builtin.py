"""The built-in task `command`: how it starts, what it gets, what its exit codes mean."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

from tests.rigs.engine import FAILED, Bench
from tests.rigs.executor import Scripted
from wheelsched import Command, NotRetried, PayloadError, Retry
from wheelsched.model.nouns import Outcome
from wheelsched.process.contract import Allowed

root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")


@pytest.fixture
def start(tmp_path):
    """Starts an executor with `command`."""
    made = []

    def begin(**allowed):
        made.append(Scripted(tmp_path, allowed=Allowed(commands=True, **allowed), kill_grace_us=200_000))
        return made[-1]

    yield begin
    for one in made:
        one.close()


def shown(ended):
    return ended[3].get("stdout", b"").decode().split("\n")[:-1]


def run_one(end, argv, **more):
    """One command, alone: what stands behind a slow run is handed back."""
    return end.finish(end.give("command", argv, **more))[0]


def refused(ended):
    """The message of a failure that is not retried."""
    assert (ended[0], ended[3]["type"], ended[3]["retry"]) == (Outcome.FAILED, "wheelsched.CommandRefused", False)
    return ended[3]["message"]


def test_what_can_not_be_started_says_why_and_is_not_retried(start, tmp_path):
    text, odd = tmp_path / "text", tmp_path / "odd"
    text.write_text("no shebang here\n")
    text.chmod(0o755)
    odd.write_text("#!/no/such/shell\n")
    odd.chmod(0o755)
    end = start()
    asked = [
        (["no-such-program-at-all"], {}, "no such program on the PATH"), (["/no/such"], {}, "there is no such program (or"),
        ([str(odd)], {}, "its interpreter"), ([str(text)], {}, "begins with a line such as #!/bin/sh"),
        (["/etc/passwd"], {}, "can't be started: Permission denied"), (["true"], {"cwd": str(tmp_path / "gone")}, "gone can't be entered"),
        (["true"], {"cwd": str(text)}, "text can't be entered: Not a directory"), (["true"], {"user": "nobody-at-all"}, "no user 'nobody-at-all'"),
        (["true", "a\0b"], {}, "argv is a list"), ([], {}, "argv is a list"), (["true"], {"env": {"A=B": "x"}}, "'A=B' can't be set"),
        (["true"], {"env": {"A": 1}}, "'A' can't be set"), (["true"], {"cwd": ""}, "cwd is the path"),
    ]
    for argv, more, wanted in asked:
        assert wanted in refused(run_one(end, argv, **more)), argv


def test_exit_codes_decide(start):
    end = start()
    ended = [run_one(end, ["sh", "-c", f"exit {code}"], success_codes=[0, 3], fatal_codes=[64, 65]) for code in (0, 3, 1, 64)]
    ended.append(run_one(end, ["sh", "-c", "kill -15 $$"], success_codes=[0, -15]))
    assert [e[0] for e in ended] == [1, 1, FAILED, FAILED, 1]
    assert (ended[2][3]["type"], ended[2][3].get("retry")) == ("wheelsched.CommandFailed", None)
    assert refused(ended[3]) == "sh: exit code 64, which is one of the fatal codes: not retried"


def test_the_environment_is_an_allow_list(start, monkeypatch):
    for name in ("PGHOST", "PGPASSWORD", "AWS_SECRET", "LC_TIME", "HTTP_PROXY", "PYTHONPATH", "WHEELSCHED_DATA"):
        monkeypatch.setenv(name, name.lower())
    end = start(env=("PG*", "HTTP_PROXY"), socket="/run/s")
    job = {"PGHOST": "mine", "WHEELSCHED_TOKEN": "0", "OWN": "1"}
    token = end.give("command", ["env"], env=job)
    found = dict(line.split("=", 1) for line in shown(end.finish(token)[0]))
    assert found["PGHOST"] == "mine"
    assert {k: found.get(k) for k in ("PGPASSWORD", "LC_TIME", "HTTP_PROXY", "OWN")} == {
        "PGPASSWORD": "pgpassword", "LC_TIME": "lc_time", "HTTP_PROXY": "http_proxy", "OWN": "1",
    }
    assert not {"AWS_SECRET", "PYTHONPATH", "WHEELSCHED_DATA"} & set(found)
    assert (found["WHEELSCHED_TOKEN"], found["WHEELSCHED_MISSED"], found["WHEELSCHED_SOCKET"]) == (str(token), "3", "/run/s")


@root
def test_root_runs_it_as_another_user_with_its_groups(start):
    end = start()
    account = pwd.getpwnam("nobody")
    script = "id -u; id -g; id -G; pwd; echo $HOME $USER $LOGNAME $SHELL"
    ended = [run_one(end, ["sh", "-c", script], user="nobody"), run_one(end, ["id", "-u"], user="65534")]
    uid, gid, home = account.pw_uid, account.pw_gid, account.pw_dir
    groups = " ".join(map(str, sorted(os.getgrouplist("nobody", gid))))
    folder = home if Path(home).is_dir() else "/"
    assert shown(ended[0]) == [str(uid), str(gid), groups, folder, f"{home} nobody nobody {account.pw_shell}"]
    assert shown(ended[1]) == ["65534"]


@root
def test_another_user_is_refused_to_whoever_is_not_root(start, monkeypatch, tmp_path):
    from wheelsched.executor import command

    monkeypatch.setattr(command.os, "geteuid", lambda: 1234)
    with pytest.raises(command.CommandRefused, match="this worker runs as uid 1234, and only root may change the user"):
        command._account("root")


@pytest.mark.slow
def test_many_children_beside_threads_that_log(start):
    """Case fork-01: no child is forked by Python code, so none inherits a lock that a thread holds."""
    end = start()
    assert {run_one(end, ["true"])[0] for _ in range(100)} == {Outcome.SUCCEEDED}


def test_the_noun_checks_what_it_can():
    assert Command(["a"]).kwargs == {"cwd": None, "env": {}, "user": None, "success_codes": [0]}
    assert Command(["a"], fatal_codes=(64,)).kwargs["fatal_codes"] == [64]
    for wrong in ({"success_codes": "0"}, {"fatal_codes": [256]}, {"success_codes": [True]}, {"fatal_codes": 3}):
        with pytest.raises(PayloadError, match="exit codes from 0 to 255"):
            Command(["a"], **wrong)


def test_a_failure_that_no_attempt_mends_is_a_dead_letter_at_once():
    with Bench(start="2026-01-01T00:00:00Z") as sim:
        sim.hello()
        sim.put(retry=Retry(attempts=5))
        sim.client.trigger("j")
        [lease] = sim.lease()
        sim.call(50, ("finish", {
            "id": lease[0], "token": lease[1].to_bytes(8, "little"), "outcome": bytes([FAILED]), "started_us": sim.now_us.to_bytes(8, "little"),
            "ended_us": sim.now_us.to_bytes(8, "little"), "result": [[0, {"type": "E", "message": "m", "retry": False}]],
        }))
        [run] = sim.runs("j")
        assert (run.state, len(run.attempts)) == ("dead", 1)
    assert issubclass(NotRetried, Exception)

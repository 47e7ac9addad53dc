"""What a built-in task says of a failure is the whole of it: no traceback of our own code stands above it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.rigs.executor import Scripted
from wheelsched.executor.command import CommandFailed
from wheelsched.tasks.verdicts import error_result, trace_of


def test_n_c12_a_command_that_fails_shows_no_code_of_ours(tmp_path):
    end = Scripted(tmp_path, allow_commands=True)
    try:
        for argv, said in ((["sh", "-c", "exit 2"], "sh: exit code 2"), (["/nowhere/x"], "/nowhere/x: there is no such program")):
            result = end.finish(end.give("command", argv))[0][3]
            assert result["message"].startswith(said)
            assert result["traceback"] == ""
    finally:
        end.close()


def test_n_c12_users_errors_keep_their_traceback():
    with pytest.raises(ValueError, match="x") as caught:
        raise ValueError("x")
    assert "test_told_whole.py" in error_result(caught.value, trace_of(caught.value))["traceback"]

    class Mine(CommandFailed):
        __module__ = "shop"

    with pytest.raises(Mine) as caught:
        raise Mine("x")
    assert "test_told_whole.py" in error_result(caught.value, trace_of(caught.value))["traceback"]


def test_n_c19_a_worker_process_has_a_name(tmp_path):
    end = Scripted(tmp_path)
    try:
        end.idle()
        assert Path(f"/proc/{end.executor.pid}/comm").read_text() == f"wheelsched-w{end.worker}\n"
    finally:
        end.close()

"""What --wait prints of a program: its output, its messages on stderr, and not its exit code 0."""

from __future__ import annotations

from tests.rigs.cli import invoke
from tests.rigs.server import wait_for
from wheelsched import Command


def test_n_c12_wait_prints_both_outputs_and_no_zero(serving):
    server = serving("--allow-commands")
    assert server.client().enqueue(Command(["true"])).result(timeout=30) == 0, "its worker is there"
    done = invoke("--socket", server.socket, "enqueue", "--wait", "command", "--", "sh", "-c", "echo out; echo err >&2")
    assert (done.exit_code, done.stdout, done.stderr) == (0, "out\n", "err\n")
    done = invoke("--socket", server.socket, "enqueue", "--wait", "command", "--", "sh", "-c", "echo err >&2; exit 3")
    assert (done.exit_code, done.stdout) == (7, "")
    assert done.stderr.startswith("err\n")
    assert "sh: exit code 3" in done.stderr
    run = server.client().enqueue(Command(["sh", "-c", "exit 4"]), retry=1)
    wait_for(lambda: run.refresh().final)
    page = invoke("--socket", server.socket, "run", "get", run.id).stdout
    assert "CommandFailed: sh: exit code 4" in page
    assert "Traceback" not in page

"""Behavioural scenarios from public reports, third part: what needs a real server with real processes."""

from __future__ import annotations

import pytest

from tests.rigs.executor import alive, wait_for
from wheelsched import Call

GRANDCHILD = """
trap '' TERM
echo $$ >>$1
sleep 1000
sleep 1000
"""


@pytest.fixture
def world(serving, tmp_path):
    """A server with one worker; `shell(script)` is a command whose $1 is the file of pids and $2 the script of the grandchild."""
    server = serving("--allow-commands", workers=1)
    server.note, server.ws = tmp_path / "note", server.client()
    script = tmp_path / "grandchild"
    script.write_text(GRANDCHILD)
    server.shell = lambda text: Call("command", ["/bin/sh", "-c", text, "sh", str(server.note), str(script)])
    return server


def ended(world, run, n):
    """Wait for `n` pids, the timeout of the run, the end of all processes, and the next run of the same worker."""
    wait_for(lambda: world.note.exists() and len(world.note.read_text().split()) >= n, "the processes")
    pids = [int(pid) for pid in world.note.read_text().split()]
    wait_for(lambda: run.refresh().state == "dead", "the timeout")
    assert [a.outcome for a in run.attempts] == ["timed_out"]
    wait_for(lambda: not any(map(alive, pids)), "the end of the processes")
    later = world.ws.enqueue(world.shell("echo next"))
    assert later.result(timeout=30) == 0
    assert later.refresh().worker == run.worker, "it was not replaced"


def test_timeout_01(world):
    """A shell and its grandchild, which heed no SIGTERM: none of the group lives on, and the worker's slot is free."""
    ended(world, world.ws.enqueue(world.shell("trap '' TERM; echo $$ >>$1; (/bin/sh $2 $1; sleep 1000)"), timeout="4s", retry=1), 2)


def test_timeout_02(world):
    """The grandchild holds stdout open, in a session of its own: nobody waits for the pipe to close."""
    ended(world, world.ws.enqueue(world.shell("echo $$ >>$1; setsid /bin/sh $2 $1 & wait; sleep 1000"), timeout="4s", retry=1), 2)

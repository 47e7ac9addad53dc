"""process/stderr.py: a stderr that nobody reads ends nothing and holds up nothing."""

from __future__ import annotations

import os
import re
import select
import socket

import pytest

from tests.rigs.server import wait_for
from wheelsched import Call, Retry
from wheelsched.process import stderr

LINE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z (INFO|WARNING|ERROR) wheelsched: ")


@pytest.fixture
def pipe():
    ends = list(os.pipe())
    yield ends
    for fd in ends:
        os.close(fd)


def test_a_full_pipe_loses_lines_and_says_so_later(pipe):
    read, write = pipe
    for i in range(3_000):
        stderr.say(f"{i} " + "x" * 90, fd=write)
    os.set_blocking(read, False)
    while data := os.read(read, 1 << 20) if select.select([read], [], [], 0)[0] else b"":
        assert LINE.match(data.decode()), data[:80]
    stderr.say("again", fd=write)
    told = os.read(read, 4_096).decode().splitlines()
    assert len(told) == 2
    assert told[0].endswith(" lines lost here: stderr took no more")
    assert LINE.sub("", told[1]) == "again"
    assert os.get_blocking(write), "others who write there are not to meet the flag"


def test_a_socket_that_nobody_reads():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        for _ in range(5_000):
            stderr.say("x" * 100, fd=ours.fileno())
        theirs.close()
        stderr.say("gone", fd=ours.fileno())
    stderr._lost[0] = 0


@pytest.mark.parametrize("reader", ["gone", "stuck"])
def test_a_server_goes_on(serving, short_tmp, reader):
    read, write = os.pipe()
    if reader == "stuck":
        os.set_blocking(write, False)
        while True:
            try:
                os.write(write, b"x" * 4_096)
            except BlockingIOError:
                break
        os.set_blocking(write, True)
    # the descriptor is in place before anything is said
    server = serving(preexec=lambda: os.dup2(write, 2))
    os.close(write)
    if reader == "gone":
        os.close(read)
    ws = server.client()
    run = ws.enqueue(Call("t.die"), retry=Retry(attempts=1))
    wait_for(lambda: ws.run(run.id).state == "dead", 60)
    assert ws.enqueue(Call("t.echo", 3)).result(60) == 3
    assert server.end() == 0
    if reader == "stuck":
        os.close(read)


def test_n_b10_a_line_has_its_time_and_level(pipe, monkeypatch):
    read, write = pipe
    monkeypatch.setenv("JOURNAL_STREAM", "1:2")  # the environment of somebody above, whose stderr was the journal's
    stderr.say("one\ntwo", stderr.WARNING, write)
    first, second = os.read(read, 4_096).decode().splitlines()
    assert LINE.match(first)[1] == "WARNING"
    assert (LINE.sub("", first), second) == ("one", "    two")
    for level, word in ((stderr.ERROR, "ERROR"), (stderr.INFO, "INFO")):
        stderr.say("x", level, write)
        assert LINE.match(os.read(read, 4_096).decode())[1] == word


def test_n_b10_under_the_journal_a_line_has_its_priority_and_no_time(pipe, monkeypatch):
    read, write = pipe
    found = os.fstat(write)
    monkeypatch.setenv("JOURNAL_STREAM", f"{found.st_dev}:{found.st_ino}")
    stderr.say("one\ntwo", stderr.ERROR, write)
    stderr.say("fine", fd=write)
    assert os.read(read, 4_096).decode() == "<3>wheelsched: one\n<3>    two\n<6>wheelsched: fine\n"

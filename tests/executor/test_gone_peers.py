"""What a peer sent before it was gone counts, although nobody takes what is sent to it any more."""

from __future__ import annotations

import os
import signal
import socket

import pytest

from tests.rigs.executor import Scripted
from tests.rigs.places import TASK_MODULES
from wheelsched.model.nouns import ROLES
from wheelsched.pool.slots import Stream
from wheelsched.process.started import SeenFile
from wheelsched.protocol import frames
from wheelsched.server.connections import Connection

ANSWER = frames.encode_ok(1, {})


def finish(number, n=1):
    zero = bytes(8 * n)
    return frames.encode_request(number, "finish", {
        "id": bytes(16 * n), "token": zero, "outcome": b"\1" * n, "started_us": zero, "ended_us": zero, "result": [],
    })


@pytest.fixture
def pair():
    ours, theirs = socket.socketpair()
    yield ours, theirs
    ours.close()
    theirs.close()


@pytest.mark.parametrize("unread", [False, True])
def test_a_worker_s_stream_reads_what_its_executor_said_last(pair, unread):
    """An executor reports its last run and is replaced; at that moment it is sent the answer to the report before."""
    ours, theirs = pair
    stream = Stream(ours, frames.FRAME_MAX)
    if unread:
        stream.send(ANSWER)
    theirs.sendall(finish(7))
    theirs.close()
    stream.send(ANSWER)
    stream.send(ANSWER)
    assert stream.open
    assert [frames.parse_request(body).id for body in stream.read()] == [7]
    assert stream.read() == []
    assert not stream.open


def test_a_stream_whose_peer_takes_nothing_more_ends_when_it_is_read(pair):
    ours, theirs = pair
    stream = Stream(ours, frames.FRAME_MAX)
    theirs.sendall(finish(7))
    theirs.shutdown(socket.SHUT_RD)
    stream.send(ANSWER)
    assert [frames.parse_request(body).id for body in stream.read()] == [7]
    assert not stream.open


@pytest.mark.parametrize("trusted", [False, True])
def test_a_server_s_connection_reads_the_completions_that_a_worker_sent_last(pair, trusted):
    ours, theirs = pair
    connection = Connection(1, ours, os.getuid(), frozenset(ROLES), trusted=trusted)
    theirs.sendall(frames.encode_request(1, "hello", {"tasks": {}}))
    assert connection.read(1)
    theirs.sendall(b"".join(finish(i + 2) for i in range(1_500 if trusted else 100)))
    theirs.close()
    assert not connection.send(ANSWER)
    assert [request.verb for request in connection.left()] == ["finish"] * (1_500 if trusted else 100)


def test_who_goes_on_to_write_and_takes_nothing_is_dropped(pair):
    ours, theirs = pair
    connection = Connection(1, ours, os.getuid(), frozenset(ROLES))
    theirs.setblocking(False)
    theirs.shutdown(socket.SHUT_RD)
    receive, calls = connection._receive, []

    def more(most):
        calls.append(most)
        with pytest.raises(BlockingIOError):
            while True:
                theirs.send(finish(2, 100))
        return receive(most)

    connection._receive = more
    assert not connection.send(ANSWER)
    connection.left()
    assert 0 < len(calls) < 1_000


def test_of_a_started_file_that_was_cut_short_what_is_still_there_counts(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", TASK_MODULES)
    end = Scripted(tmp_path, ["kept_tasks"])
    try:
        end.idle()
        tokens = []
        for what in ("first", "second", "third"):
            tokens.append(end.give("k.value", str(tmp_path / "notes"), what))
            end.finish(tokens[-1])
            end.idle()
        os.kill(end.executor.pid, signal.SIGSTOP)
        file = SeenFile(end.executor.file.path)
        assert sorted(file.ended) == tokens[1:]
        second = max(file._kept_at)
        os.truncate(file.path, second)
        assert sorted(file.ended) == [tokens[2]], "the third batch has taken the first area again"
        file.close()
    finally:
        end.close()

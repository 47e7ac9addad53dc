"""A scripted server in a thread, over a real Unix socket. Each connection is handled by a function of the test.

And AsyncClient with the face of Client, so that one suite tests both.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from datetime import UTC, datetime

from wheelsched import AsyncClient, WheelschedError
from wheelsched.client.async_client import AsyncListing, AsyncRun
from wheelsched.model.nouns import NEVER, US
from wheelsched.protocol import frames

HELLO = {"version": 1, "server": "fake", "instance": b"i" * 16, "generation": 1, "clock_offset_us": 0, "lease_us": 1, "heartbeat_us": 1}


class Peer:
    """One connection from the server's side."""

    def __init__(self, sock):
        self.sock = sock
        self.reader = frames.FrameReader(frames.FRAME_MAX)
        self.waiting = []

    def read(self):
        """The next request; None at the end of the connection."""
        while not self.waiting:
            data = self.sock.recv(1 << 18)
            if not data:
                return None
            self.waiting += self.reader.feed(data)
        return frames.parse_request(self.waiting.pop(0))

    def hello(self):
        request = self.read()
        if request is not None:
            assert request.verb == "hello"
            assert request.args["version"] == 1
            assert request.args["role"] == "client"
            self.ok(request, HELLO)
        return request

    def ok(self, request, result):
        self.sock.sendall(frames.encode_ok(request.id, result))

    def error(self, request, error):
        self.sock.sendall(frames.encode_error(request.id, error))


class FakeServer:
    """Accepts connections one after another or at once; `handle(peer, number)` runs in a thread for each.

    What a handler raises is raised again by `close`, so that an assertion in it fails the test.
    """

    def __init__(self, path, handle):
        self.path = str(path)
        self.handle = handle
        self.errors = []
        self.connections = 0
        self._threads = []
        self._socks = []
        self._open()

    def _open(self):
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.bind(self.path)
        self.listener.listen(64)
        self._spawn(self._accept, self.listener)

    def _spawn(self, function, *args):
        thread = threading.Thread(target=self._guarded, args=(function, *args), daemon=True)
        self._threads.append(thread)
        thread.start()

    def _guarded(self, function, *args):
        try:
            function(*args)
        except OSError:
            pass  # the client or the test closed it
        except BaseException as e:
            self.errors.append(e)

    def _accept(self, listener):
        while True:
            sock, _ = listener.accept()
            self._socks.append(sock)
            number, self.connections = self.connections, self.connections + 1  # before anybody can be answered
            self._spawn(self._serve, sock, number)

    def _serve(self, sock, number):
        try:
            self.handle(Peer(sock), number)
        finally:
            sock.close()

    def close(self):
        for sock in [self.listener, *self._socks]:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(10)
            assert not thread.is_alive(), "a handler of the fake server hangs"
        self.listener.close()
        if self.errors:
            raise self.errors[0]

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        if kind is None:
            self.close()
        else:
            with contextlib.suppress(BaseException):
                self.close()


RUN_ID = "0123456789abcdef" * 2
T0 = datetime(2026, 11, 29, 8, 30, 0, 123456, tzinfo=UTC)
T0_US = int(T0.timestamp()) * US + 123456


class DrivenRun:
    """An AsyncRun whose coroutines are run to their end."""

    def __init__(self, run, loop):
        self._run, self._loop = run, loop

    def result(self, timeout=None):
        return self._loop.run_until_complete(self._run.result(timeout))

    def refresh(self):
        self._loop.run_until_complete(self._run.refresh())
        return self

    def __getattr__(self, name):
        return getattr(self._run, name)


class Driven:
    """An AsyncClient with the face of a Client."""

    def __init__(self, *args, **kwargs):
        self.client = AsyncClient(*args, **kwargs)
        self.loop = asyncio.new_event_loop()

    def __getattr__(self, name):
        method = getattr(self.client, name)
        if not callable(method):
            return method

        def call(*args, **kwargs):
            result = method(*args, **kwargs)
            if asyncio.iscoroutine(result):
                result = self.loop.run_until_complete(result)
            if isinstance(result, AsyncListing):
                return DrivenListing(result, self.loop)
            return DrivenRun(result, self.loop) if isinstance(result, AsyncRun) else result

        return call

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.loop.run_until_complete(self.client.close())
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.close()


class DrivenListing:
    def __init__(self, listing, loop):
        self._listing, self._loop = listing, loop

    def __iter__(self):
        async def read():
            return [item async for item in self._listing]

        return iter(self._loop.run_until_complete(read()))


def run_raw(state="succeeded", **more):
    return {
        "id": RUN_ID,
        "job": "default/x",
        "trigger": "manual",
        "task": "t",
        "queue": "default",
        "scheduled_us": T0_US,
        "created_us": T0_US,
        "queued_us": T0_US,
        "started_us": None,
        "ended_us": None,
        "next_us": None,
        "state": state,
        "reason": None,
        "attempt": 0,
        "token": None,
        "worker": None,
        "result": None,
        "missed": 0,
        "until_us": None,
        "count": None,
        "attempts": [],
        **more,
    }


def job_raw(**more):
    return {
        "name": "x",
        "state": "active",
        "spec": {"task": "t", "queue": "default", "schedule": {"kind": "manual"}},
        "param_us": NEVER,
        "payload": frames.encode_payload((1,), {"a": 2}),
        "version": 1,
        "note": "",
        "next_us": NEVER,
        "cursor_us": None,
        "active": 0,
        "created_us": T0_US,
        "updated_us": T0_US,
        **more,
    }


def answering(answers, seen):
    """A handler that gives one answer after another and keeps the requests."""
    rest = iter(answers)

    def handle(peer, number):
        peer.hello()
        while (request := peer.read()) is not None:
            seen.append(request)
            answer = next(rest)
            if isinstance(answer, WheelschedError):
                peer.error(request, answer)
            else:
                peer.ok(request, answer)

    return handle

"""A scripted server in a thread, over a real Unix socket. Each connection is handled by a function of the test."""

from __future__ import annotations

import contextlib
import socket
import threading

from wheelsched import protocol

HELLO = {"version": 1, "server": "fake", "instance": b"i" * 16, "generation": 1, "clock_offset_us": 0, "lease_us": 1, "heartbeat_us": 1}


class Peer:
    """One connection from the server's side."""

    def __init__(self, sock):
        self.sock = sock
        self.reader = protocol.FrameReader(protocol.FRAME_MAX)
        self.waiting = []

    def read(self):
        """The next request; None at the end of the connection."""
        while not self.waiting:
            data = self.sock.recv(1 << 18)
            if not data:
                return None
            self.waiting += self.reader.feed(data)
        return protocol.parse_request(self.waiting.pop(0))

    def hello(self):
        request = self.read()
        if request is not None:
            assert request.verb == "hello"
            assert request.args["version"] == 1
            assert request.args["role"] == "client"
            self.ok(request, HELLO)
        return request

    def ok(self, request, result):
        self.sock.sendall(protocol.encode_ok(request.id, result))

    def error(self, request, error):
        self.sock.sendall(protocol.encode_error(request.id, error))


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
        except BaseException as e:  # noqa: BLE001 - shown by close
            self.errors.append(e)

    def _accept(self, listener):
        while True:
            sock, _ = listener.accept()
            self._socks.append(sock)
            self._spawn(self._serve, sock, self.connections)
            self.connections += 1

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

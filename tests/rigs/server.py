"""A real server process for a test, and how to speak with it."""

import os
import signal
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

import msgpack

from wheelsched import At, Call, Client, Job
from wheelsched.model.errors import UnavailableError

TASKS = """
import os, time
from wheelsched import Retry, current_run, task

@task("t.echo")
def echo(x):
    return x

@task("t.sleep")
def sleep(s):
    time.sleep(s)
    return current_run().attempt

@task("t.once", retry=Retry(attempts=1))
def once(fail=False):
    if fail:
        raise ValueError("on purpose")

@task("t.gate")
def gate(path):
    while not os.path.exists(path):
        time.sleep(0.01)

@task("t.die")
def die():
    os._exit(7)
"""


class Serving:
    """One server process on a folder with a short name."""

    def __init__(self, folder: Path, *flags: str, workers=1, preexec=None, env=None, paths=()):
        self.folder = folder
        self.socket = str(folder / "s")
        (folder / "server_tasks.py").write_text(TASKS)
        self.log = folder / "log"
        self.open = []
        paths = [str(folder), *paths, *filter(None, [os.environ.get("PYTHONPATH")])]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "wheelsched", "serve", "--data", str(folder / "data"), "--socket", self.socket, "--workers", str(workers),
                 "--tasks", "server_tasks", *flags],
                stdout=log, stderr=log, preexec_fn=preexec, env=dict(os.environ, PYTHONPATH=os.pathsep.join(paths), **(env or {})),
            )

    def client(self, **options):
        until = time.monotonic() + 30
        while True:
            client = Client(self.socket, **options)
            self.open.append(client)
            try:
                client.stats()
            except UnavailableError:
                assert self.process.poll() is None, self.log.read_text()
                assert time.monotonic() < until, self.log.read_text()
                time.sleep(0.02)  # another process comes up
            else:
                return client

    def connect(self):
        sock = socket.socket(socket.AF_UNIX)
        self.open.append(sock)
        sock.settimeout(10)
        sock.connect(self.socket)
        return sock

    def end(self, number=signal.SIGTERM):
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(40)


def answer(sock):
    """The next reply, or None when the server closed the connection."""
    head = b""
    while len(head) < 4:
        data = sock.recv(4 - len(head))
        if not data:
            return None
        head += data
    body = b""
    while len(body) < struct.unpack(">I", head)[0]:
        data = sock.recv(65_536)
        assert data
        body += data
    return msgpack.unpackb(body)


def wait_for(condition, seconds=20):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)  # another process gets there


def ws_job(name, at):
    return Job(name, Call("t.echo", name), At(at))

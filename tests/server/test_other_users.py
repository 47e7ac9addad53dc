"""A worker of another user than the server's: whom the socket's mode and the roles let in, and what the others are told."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import wheelsched
from tests.rigs.places import TASK_MODULES
from wheelsched import Call, NotFoundError

ROOT = str(Path(wheelsched.__file__).resolve().parents[1])
NOBODY = 65534
AS_NOBODY = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
# Of an interpreter in a folder that only root may enter: to enter folders and to read, which opens no socket.
READING = ["--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]


@pytest.fixture
def as_nobody():
    """Starts the worker's command as `nobody`."""
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("root and setpriv are needed to be another user")
    for prefix in (AS_NOBODY, [*AS_NOBODY, *READING]):
        env = {**os.environ, "PYTHONPATH": os.pathsep.join([TASK_MODULES, ROOT]), "PYTHONDONTWRITEBYTECODE": "1"}
        inner = [sys.executable, "-c", "import wheelsched.external, wear_tasks"]  # an executor is a child, too
        probe = [*prefix, sys.executable, "-c", f"import subprocess; subprocess.run({inner}, check=True)"]
        if subprocess.run(probe, env=env, cwd="/", capture_output=True, check=False).returncode == 0:
            break
    else:
        pytest.skip("another user can't run this interpreter")
    started = []
    with tempfile.TemporaryDirectory() as folder:
        os.chown(folder, NOBODY, NOBODY)
        env["TMPDIR"] = folder

        def start(socket):
            argv = [*prefix, sys.executable, "-m", "wheelsched", "--socket", socket, "worker", "--tasks", "wear_tasks"]
            started.append(subprocess.Popen(argv, env=env, cwd="/", stderr=subprocess.PIPE, text=True))
            return started[-1]

        yield start
        for process in started:
            process.kill()
            process.wait()
            process.stderr.close()


@pytest.fixture
def open_server(serving, short_tmp):
    """A server whose socket everybody may open."""

    def start(*flags):
        short_tmp.chmod(0o711)
        (short_tmp / "conf").write_text("socket_mode = 0o666\n")
        return serving("--config", str(short_tmp / "conf"), *flags, workers=0)

    return start


def test_a_worker_of_another_user_works_when_the_socket_lets_it_in(open_server, as_nobody):
    server = open_server("--grant", f"worker={NOBODY}")
    with server.client() as ws:
        worker = as_nobody(server.socket)
        pid = ws.enqueue(Call("w.pid")).result(timeout=60)
        assert Path(f"/proc/{pid}").stat().st_uid == NOBODY
        worker.terminate()
        worker.communicate()
        assert worker.returncode == 0


def test_one_whom_the_socket_keeps_out_is_told_so(open_server, as_nobody):
    server = open_server()
    with server.client() as ws:
        os.chmod(server.socket, 0o600)  # noqa: PTH101
        worker = as_nobody(server.socket)
        _, said = worker.communicate(timeout=60)
        assert (worker.returncode, f"the socket {server.socket} may not be used by this user" in said) == (6, True), said
        assert ws.stats()["workers"] == []


@pytest.mark.parametrize("flags", [(), ("--grant", "worker=root")])
def test_t5_one_without_the_role_is_told_so(open_server, as_nobody, flags):
    """On a socket that others may open nobody has it but who is named."""
    server = open_server(*flags)
    with server.client() as ws:
        worker = as_nobody(server.socket)
        _, said = worker.communicate(timeout=60)
        assert (worker.returncode, f"needs the role 'worker', which the user with the uid {NOBODY} has not" in said) == (6, True), said
        assert ws.stats()["workers"] == []
        with pytest.raises(NotFoundError):
            ws.get("nothing")  # the server goes on

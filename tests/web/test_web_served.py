"""`wheelsched web` as a process: its words, its limits, beside a real server and without one."""

import re
import shutil
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from importlib.util import find_spec

import pytest
from click.testing import CliRunner

from wheelsched import Call, Every
from wheelsched.cli.root import cli


@pytest.fixture
def dashboard(short_tmp):
    """Starts `wheelsched web` of the server at a socket; its port."""
    made = []

    def start(path, *flags):
        process = subprocess.Popen(
            [sys.executable, "-m", "wheelsched", "web", "--socket", str(path), "--listen", "127.0.0.1:0", *flags], stderr=subprocess.PIPE, text=True,
        )
        made.append(process)
        line = process.stderr.readline()
        found = re.search(r"http://127\.0\.0\.1:(\d+)", line)
        assert found, line
        return int(found[1])

    yield start
    for process in made:
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
        assert "Traceback" not in process.stderr.read()
        process.stderr.close()


def read(port, path="/"):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=20) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as e:
        with e:
            return e.code, e.read().decode()


@pytest.mark.slow
def test_beside_a_server_that_comes_and_goes(serving, dashboard, short_tmp):
    port = dashboard(short_tmp / "s")
    status, page = read(port)
    assert (status, "The server does not answer" in page) == (503, True)
    assert read(port, "/metrics")[0] == 503
    server = serving(workers=1)
    ws = server.client()
    ws.put("a/b", Call("t.echo", "x"), Every("1h"))
    ws.trigger("a/b").result(timeout=20)
    assert read(port, "/health")[0] == 200
    for path in ("/", "/jobs", "/job?name=a/b", "/runs", "/dead"):
        status, page = read(port, path)
        assert status == 200, page
    status, text = read(port, "/metrics")
    assert status == 200
    assert 'wheelsched_runs_total{result="succeeded"} 1.0' in text
    promtool = shutil.which("promtool")
    if promtool is not None:
        checked = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, text=True, timeout=20, check=False)
        assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")
    server.end(signal.SIGKILL)
    assert read(port, "/jobs")[0] == 503


@pytest.mark.slow
def test_half_a_request_and_long_headers(dashboard, short_tmp):
    port = dashboard(short_tmp / "none")
    with socket.create_connection(("127.0.0.1", port)) as slow, socket.create_connection(("127.0.0.1", port)) as long:
        slow.sendall(b"GET / HTTP/1.1\r\nHost: 127")
        long.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 40_000)
        long.settimeout(20)
        assert long.recv(100).startswith(b"HTTP/1.1 400")
        slow.settimeout(20)
        assert slow.recv(100) == b""  # it was cut off


@pytest.mark.parametrize(("flags", "said"), [
    (("--listen", "0.0.0.0:8420"), "only addresses of this machine"), (("--listen", "nonsense"), "ADDRESS:PORT"),
    (("--base-path", "jobs"), "a path such as /jobs"),
])
def test_what_can_not_be_served(flags, said):
    done = CliRunner().invoke(cli, ["web", *flags])
    assert done.exit_code == 78
    assert said in done.output


def test_without_the_extra_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr("wheelsched.cli.web.find_spec", lambda name: None if name == "starlette" else find_spec(name))
    done = CliRunner().invoke(cli, ["web"])
    assert done.exit_code == 1
    assert "needs starlette, which is not installed: pip install 'wheelsched[web]'" in done.output


def test_nothing_else_loads_what_the_extra_brings():
    code = "import sys, wheelsched, wheelsched.cli, wheelsched.client.async_client\nprint(*{'starlette', 'uvicorn', 'jinja2', 'prometheus_client'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.strip() == ""

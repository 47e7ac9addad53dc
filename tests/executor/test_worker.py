"""executor/main.py: a real executor process under a scripted server end."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

import wheelsched
from tests.rigs.executor import FIRST, Scripted, alive, value, wait_for
from tests.rigs.places import TASK_MODULES, TESTS
from wheelsched.model.nouns import ERROR_TEXT_MAX, OUTPUT_MAX, Outcome
from wheelsched.process.contract import Allowed
from wheelsched.process.processes import Capture

ROOT = str(Path(wheelsched.__file__).resolve().parents[1])


@pytest.fixture
def make(tmp_path, monkeypatch):
    """Makes a Scripted whose executor finds the tasks of the tests."""
    monkeypatch.setenv("PYTHONPATH", TASK_MODULES)
    made = []

    def start(modules=("worker_tasks",), **options):
        made.append(Scripted(tmp_path, modules, **options))
        return made[-1]

    yield start
    for end in made:
        end.close()


def test_hello_announces_tasks_with_their_options(make):
    end = make()
    end.idle()
    assert end.hello["role"] == "worker"
    assert end.hello["tasks"]["t.add"] == {
        "queue": "sums", "timeout_us": 600_000_000, "priority": 7,
        "retry": {"attempts": 5, "backoff_us": 30_000_000, "factor": 2.0, "cap_us": 3_600_000_000, "not_on": []},
    }
    assert end.hello["tasks"]["t.nothing"] == {}
    assert "wheelsched.noop" in end.hello["tasks"]
    assert "command" not in end.hello["tasks"]


def test_values_and_columns(make):
    end = make(offset_us=500_000_000)
    before = time.time_ns() // 1_000 + 500_000_000
    tokens = [end.give("t.add", 2, b=3), end.give("t.nothing", "x"), end.give("wheelsched.noop"), end.give("t.coroutine", "later")]
    ended = end.finish(*tokens)
    assert value(ended[0]) == 5
    assert ended[1][3] is None
    assert ended[2][3] is None
    assert value(ended[3]) == "later"
    times = [t for e in ended for t in e[1:3]]
    assert times == sorted(times)
    assert before - 2_000 <= times[0] <= times[-1] <= time.time_ns() // 1_000 + 500_000_000 + 2_000


def test_a_run_knows_itself(make):
    end = make()
    end.attempt = 2
    token = end.give("t.about")
    about = value(end.finish(token)[0])
    assert about["started_at"].timestamp() * 1e6 == pytest.approx(end.ended[token][1], abs=1)
    del about["started_at"]
    assert about == {
        "id": token.to_bytes(16, "big").hex(), "job": "job", "task": "t.about", "scheduled_at": datetime.fromtimestamp(1_800_000_000, UTC),
        "attempt": 2, "token": token, "missed": 3, "last_result": {"seen": 7}, "cancelled": False, "cause": None,
    }


def test_a_run_learns_its_cause_and_is_called_without_it(make):
    end = make()
    cause = {"job": "default/nightly", "reason": "missed", "from_us": 1, "until_us": 2, "count": 3}
    plain, told, summed = (end.give("t.about"), end.give("t.about", beside={"cause": cause}), end.give("t.add", 2, b=3, beside={"x": 1}))
    ended = end.finish(plain, told, summed)
    nominal = [datetime(1970, 1, 1, microsecond=us, tzinfo=UTC) for us in (1, 2)]
    learned = {"job": "default/nightly", "reason": "missed", "from": nominal[0], "until": nominal[1], "count": 3}
    assert [value(e)["cause"] for e in ended[:2]] == [None, learned]
    assert value(ended[2]) == 5


@pytest.mark.parametrize(
    ("kind", "name", "message"),
    [("lookup", "LookupError", "not there"), ("memory", "MemoryError", "no more"), ("exit", "SystemExit", "7"),
     ("interrupt", "KeyboardInterrupt", ""), ("long", "ValueError", "m" * ERROR_TEXT_MAX),
     ("no text", "worker_tasks.raise_.<locals>.SilentError", "<no text: RuntimeError in __str__>"),
     ("exit in text", "worker_tasks.raise_.<locals>.LeavingError", "<no text: SystemExit in __str__>"),
     ("no attributes", "worker_tasks.raise_.<locals>.ClosedError", "said")],
)
def test_what_user_code_raises_fails_that_run_only(make, kind, name, message):
    end = make()
    bad, good = end.give("t.raise", kind), end.give("t.add", 1)
    failed, fine = end.finish(bad, good)
    assert failed[0] == Outcome.FAILED
    assert failed[3]["type"] == name
    assert failed[3]["message"] == message
    assert len(failed[3]["traceback"]) <= ERROR_TEXT_MAX
    assert "runner.py" not in failed[3]["traceback"]  # our own frame is nobody's business
    assert value(fine) == 2
    assert not end.gone


def test_memory_error_of_an_allocation_fails_the_run_only(make):
    """Case crash-03."""
    end = make()
    bad, good = end.give("t.allocate"), end.give("t.add", 1)
    failed, fine = end.finish(bad, good)
    assert failed[3]["type"] in ("MemoryError", "OverflowError")
    assert value(fine) == 2


def test_arguments_that_do_not_fit_fail_the_run(make):
    end = make()
    failed, fine = end.finish(end.give("t.add", nonsense=1), end.give("t.add", 1))
    assert failed[3]["type"] == "TypeError"
    assert value(fine) == 2


@pytest.mark.parametrize(("kind", "text"), [("set", "set can't be stored"), ("large", "at most 65,536")])
def test_a_value_that_can_not_be_kept_leaves_a_mark(make, kind, text):
    end = make()
    left_out, fits = end.finish(end.give("t.value", kind), end.give("t.value", "fits"))
    assert left_out[0] == Outcome.SUCCEEDED
    assert text in left_out[3]["left_out"]["why"]
    assert value(fits) == b"x" * 65_000


@pytest.mark.parametrize("where", ["stdout", "stderr"])
@pytest.mark.parametrize("how", ["python", "raw", "child"])
def test_output_belongs_to_the_run_that_wrote_it(make, how, where):
    end = make()
    tokens = [end.give("t.nothing"), end.give("t.print", "one", where, how), end.give("t.nothing"), end.give("t.print", "two", where, how),
              end.give("t.nothing")]
    results = [e[3] for e in end.finish(*tokens)]
    assert results == [None, {where: b"one\n"}, None, {where: b"two\n"}, None]


@pytest.mark.parametrize("how", ["python", "raw"])
def test_output_is_capped_with_its_ends_kept(make, how):
    end = make()
    result = end.finish(end.give("t.print", "x" * 999, "stdout", how, 5_000))[0][3]
    total = 5_000 * 1_000
    out = result["stdout"]
    assert len(out) <= OUTPUT_MAX
    assert out.startswith(b"x" * 999 + b"\n")
    assert out.endswith(b"x" * 999 + b"\n")
    assert f"[... {result['stdout_cut']} bytes left out ...]".encode() in out
    kept = len(out) - len(f"\n[... {result['stdout_cut']} bytes left out ...]\n")
    assert kept + result["stdout_cut"] == total


def test_a_closed_stdout_is_given_again(make):
    end = make()
    shut, again = end.finish(end.give("t.close"), end.give("t.print", "here"))
    assert shut[0] == Outcome.SUCCEEDED
    assert again[3] == {"stdout": b"here\n"}


def test_a_forked_child_prints_too(make):
    end = make()
    assert end.finish(end.give("t.fork"))[0][3] == {"stdout": b"from the child\n"}


def test_batch_handlers(make):
    end = make()
    tokens = [end.give("t.batch", n) for n in range(5)]
    after = end.give("t.add", 1)
    ended = end.finish(*tokens, after)
    assert [value(e) for e in ended[:3]] == [0, 10, 20]
    assert [e[0] for e in ended[3:5]] == [Outcome.FAILED, Outcome.SUCCEEDED]
    assert ended[3][3]["message"] == "no 3"
    assert ended[4][3]["left_out"]["type"] == "set"
    assert len({e[1:3] for e in ended[:5]}) == 1
    assert value(ended[5]) == 2


def test_a_batch_handler_that_answers_for_another_number_fails_all(make):
    end = make()
    tokens = [end.give("t.batch_wrong", n) for n in range(3)]
    ended = end.finish(*tokens)
    assert [e[0] for e in ended] == [Outcome.FAILED] * 3
    assert all("one outcome for each of its 3 runs, not 1 of them" in e[3]["message"] for e in ended)


def test_progress_is_sent_and_thinned(make):
    end = make()
    token = end.give("t.progress")
    end.finish(token)
    assert [(h["progress"], h["token"]) for h in end.heartbeats] == [([[0, "half"]], token.to_bytes(8, "little"))]


def test_batches_grow_for_quick_runs(make):
    end = make()
    end.finish(*end.give_many(60_000, "wheelsched.noop"), limit_s=60)
    assert end.grants[0] == 64
    assert max(end.grants) >= 1_024, end.grants
    assert sum(end.grants) >= 60_000


def test_batches_shrink_for_slow_runs(make):
    end = make()
    end.finish(*end.give_many(12, "t.sleep", 0.03), limit_s=60)
    assert end.grants[0] == 12
    end.finish(*end.give_many(6, "t.sleep", 0.03), limit_s=60)
    assert max(end.grants[1:]) <= 2, end.grants


def test_a_slow_run_holds_nothing_back(make):
    """What ended before it is reported while it runs, and what waits behind it is handed back."""
    end = make()
    quick, slow = end.give("t.add", 1), end.give("t.sleep", 3)
    behind = end.give_many(3, "t.add", 1)
    end.finish(quick)
    end.until(lambda: all(t in end.ended for t in behind), "the return of the runs behind")
    assert slow not in end.ended
    assert [end.ended[t][0] for t in behind] == [Outcome.NOT_STARTED] * 3
    assert [end.ended[t][1:3] for t in behind] == [(0, 0)] * 3
    assert value(end.finish(slow)[0]) == "slept"


def test_a_batch_that_turns_out_too_long_is_handed_back_for_others(make):
    """Every run is slow, none so slow that a look meets the same one twice."""
    end = make()
    runs = end.give_many(40, "t.sleep", 0.04)
    end.finish(*runs)
    outcomes = [end.ended[t][0] for t in runs]
    assert end.grants[0] == 40
    done = outcomes.index(Outcome.NOT_STARTED)
    assert 1 <= done < 40
    assert outcomes == [Outcome.SUCCEEDED] * done + [Outcome.NOT_STARTED] * (40 - done)


def test_stop_ends_the_executor(make):
    end = make()
    end.finish(*end.give_many(10, "t.add", 1))
    end.stopping = True
    end.until(lambda: end.gone, "the exit")
    assert end.gone[0].status == 0
    assert end.gone[0].started_token == FIRST + 10


def test_end_of_the_stream_ends_the_executor(make):
    end = make()
    end.idle()
    end.connection.close()
    end.until(lambda: end.gone, "the exit")
    assert end.gone[0].status == 0
    assert end.gone[0].started_token == 0


def test_a_module_that_can_not_be_imported(make, tmp_path, capfd):
    end = make(modules=("worker_tasks", "no_such_module_here"))
    end.until(lambda: end.gone, "the exit")
    assert end.gone[0].can_not_import
    assert end.gone[0].status == 3
    line = capfd.readouterr().err.splitlines()[-1]
    assert line == (
        "wheelsched: executor: the task module no_such_module_here can't be imported: "
        "ModuleNotFoundError: No module named 'no_such_module_here'"
    )


def python(code):
    return [sys.executable, "-c", code]


@pytest.fixture
def commands(make):
    return make(allow_commands=True)


def test_command_runs_a_program_with_the_run_in_its_environment(commands, monkeypatch, tmp_path):
    commands.attempt = 2
    token = commands.give(
        "command", python("import os, sys; print(*sorted(k for k in os.environ if k.startswith(('WHEELSCHED', 'PRI', 'OWN')))); "
                          "print(os.environ['WHEELSCHED_RUN_ID'], os.environ['WHEELSCHED_JOB'], os.environ['WHEELSCHED_TOKEN'], "
                          "os.environ['WHEELSCHED_ATTEMPT'], os.environ['WHEELSCHED_SCHEDULED_AT'], os.getcwd(), os.environ['OWN']); "
                          "print(sys.stdin.read() == '', os.getpgid(0) == os.getpid()); print('bad', file=sys.stderr)"),
        env={"OWN": "x"}, cwd=str(tmp_path),
    )
    ended = commands.finish(token)[0]
    assert value(ended) == 0
    names, run, facts = ended[3]["stdout"].decode().splitlines()
    assert names == "OWN WHEELSCHED_ATTEMPT WHEELSCHED_EXECUTOR WHEELSCHED_JOB WHEELSCHED_MISSED WHEELSCHED_RUN_ID WHEELSCHED_SCHEDULED_AT WHEELSCHED_TOKEN"
    assert run == f"{token.to_bytes(16, 'big').hex()} job {token} 2 2027-01-15T08:00:00+00:00 {tmp_path} x"
    assert facts == "True True"
    assert ended[3]["stderr"] == b"bad\n"


def test_command_codes(commands):
    bad = commands.give("command", ["/bin/sh", "-c", "echo out; exit 3"])
    fine = commands.give("command", ["/bin/sh", "-c", "exit 3"], success_codes=[0, 3])
    signalled = commands.give("command", ["/bin/sh", "-c", "kill -9 $$"])
    missing = commands.give("command", ["/no/such/program"])
    text = commands.give("command", "echo hello")
    ended = commands.finish(bad, fine, signalled, missing, text)
    assert ended[0][0] == Outcome.FAILED
    assert ended[0][3]["type"] == "wheelsched.CommandFailed"
    assert (ended[0][3]["message"], ended[0][3]["stdout"]) == ("/bin/sh: exit code 3", b"out\n")
    assert value(ended[1]) == 3
    assert ended[2][3]["message"] == "/bin/sh: killed by signal 9"
    assert [e[3]["type"] for e in ended[3:]] == ["wheelsched.CommandRefused"] * 2
    assert [e[3].get("retry") for e in ended if e[0] == Outcome.FAILED] == [None, None, False, False]


def test_command_is_unknown_until_allowed(make):
    end = make()
    end.idle()
    assert "command" not in end.hello["tasks"]


def test_command_with_endless_output_keeps_memory_flat(commands):
    """Case output-01, with 200 MB."""
    commands.idle()
    status = Path(f"/proc/{commands.executor.pid}/status")

    def peak_kib():
        return int(next(line for line in status.read_text().splitlines() if line.startswith("VmHWM")).split()[1])

    before = peak_kib()
    ended = commands.finish(commands.give("command", ["/bin/sh", "-c", "echo first; head -c 200000000 /dev/zero; echo last"]))[0]
    assert value(ended) == 0
    out = ended[3]["stdout"]
    assert out.startswith(b"first\n")
    assert out.endswith(b"last\n")
    assert len(out) <= OUTPUT_MAX
    assert ended[3]["stdout_cut"] > 199_000_000
    assert peak_kib() - before < 20_000


def test_command_does_not_wait_for_a_grandchild_that_holds_its_pipes(commands, tmp_path):
    note = tmp_path / "pid"
    ended = commands.finish(commands.give("command", ["/bin/sh", "-c", f"sleep 1000 & echo $! >{note}; echo done"]))[0]
    assert value(ended) == 0
    assert ended[3]["stdout"] == b"done\n"
    os.kill(int(note.read_text()), 9)


@pytest.fixture
def web():
    """An HTTP server in a thread; its `seen` are the requests."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            self.server.seen.append((self.path, self.headers["Idempotency-Key"], self.headers["Content-Type"], self.headers["X-Own"], body))
            self.send_response(201 if self.path == "/ok" else 503)
            self.end_headers()
            self.wfile.write(b"answer of " + self.path.encode())

        def log_message(self, *args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.seen = []
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_http(make, web):
    pytest.importorskip("urllib3", reason="urllib3 is not installed")
    end = make(allowed=Allowed(http=True, http_nets=("127.0.0.1/32",)))
    url = f"http://127.0.0.1:{web.server_port}"
    fine = end.give("http", "POST", f"{url}/ok", json={"a": 1}, headers={"X-Own": "yes"})
    ended = end.finish(fine)  # alone: what stands behind a slow run is handed back
    ended += end.finish(end.give("http", "post", f"{url}/bad", body="text"))
    ended += end.finish(end.give("http", "GET", "file:///etc/passwd"))
    assert value(ended[0]) == 201
    assert ended[0][3]["stdout"] == b"answer of /ok"
    assert web.seen[0] == ("/ok", fine.to_bytes(16, "big").hex(), "application/json", "yes", b'{"a": 1}')
    assert ended[1][3]["type"] == "wheelsched.HttpFailed"
    assert "503" in ended[1][3]["message"]
    assert ended[1][3]["stdout"] == b"answer of /bad"
    assert (ended[2][3]["type"], ended[2][3]["retry"]) == ("wheelsched.HttpRefused", False)


def test_capture_keeps_everything_up_to_its_limit():
    for pieces in ([b"a" * 100], [b"ab"] * 50, [b"x" * 49, b"y", b"z" * 50]):
        capture = Capture(1, 100)
        for piece in pieces:
            capture.write(piece)
        assert capture.take() == (b"".join(pieces), 0)
        assert not capture.dirty
        assert capture.take() == (b"", 0)


def test_capture_counts_what_it_leaves_out():
    for size, piece in ((1_001, 1), (5_000, 7), (300_000, 4_096), (300_000, 65_536)):
        data = bytes(i % 251 for i in range(size))
        capture = Capture(1, 1_000)
        for i in range(0, size, piece):
            capture.add(data[i : i + piece])
        kept, cut = capture.take()
        head, tail = kept.split(f"\n[... {cut} bytes left out ...]\n".encode())
        assert len(kept) <= 1_000
        assert len(head) + len(tail) + cut == size
        assert data.startswith(head)
        assert data.endswith(tail)
        assert len(tail) > 400


def test_the_parent_s_death_ends_the_executor(make, tmp_path, monkeypatch):
    note = tmp_path / "note"
    code = (
        f"import sys; sys.path[:0] = [{TASK_MODULES!r}, {ROOT!r}, {str(TESTS.parent)!r}]\n"
        f"from pathlib import Path; from tests.rigs.executor import Scripted\n"
        f"end = Scripted(Path({str(tmp_path)!r}), ['worker_tasks'])\n"
        f"end.give('t.sleep', 1000, {str(note)!r})\n"
        f"end.until(lambda: Path({str(note)!r}).exists() and Path({str(note)!r}).read_text())\n"
        f"import os; os.kill(os.getpid(), 9)\n"
    )
    subprocess.run([sys.executable, "-c", code], timeout=60, check=False)
    pid = int(note.read_text())
    wait_for(lambda: not alive(pid), "the executor's end")

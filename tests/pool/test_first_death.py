"""The first death of the only worker, by any exit code and any signal, is a death like any other: the next process takes its place."""

from __future__ import annotations

import os
import signal
import traceback

import pytest

from tests.rigs.executor import Scripted, wait_for
from wheelsched import Call, Retry
from wheelsched.executor import main
from wheelsched.model.nouns import Outcome
from wheelsched.process import launch

STOPS = {signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU}
SIGNALS = sorted(set(map(int, signal.valid_signals())) - set(map(int, STOPS)))
TELLING = (0, 1, 2, 3, 65, 70, 75, 78, 126, 127, 128, 137, 255)  # codes that mean something to a server or a shell; all are tried in the full run


class Forked:
    """As Popen, without a new interpreter: the executor's code in a fork of this process, in a hundredth of the time."""

    def __init__(self, argv, *, pass_fds, stdin, start_new_session, env, **_):
        self.pid = os.fork()
        if self.pid:
            return
        code = 99
        try:
            os.setsid()
            os.environ.update(env)
            code = main.main(argv[argv.index("-c") + 3 :])
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)

    def wait(self):
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


@pytest.fixture
def end(tmp_path, monkeypatch):
    monkeypatch.setattr(launch.subprocess, "Popen", Forked)
    made = Scripted(tmp_path, ["worker_tasks"])
    yield made
    made.close()


def first_death(end, token):
    end.until(lambda: end.gone or token in end.ended, "the end of the run")
    if token in end.ended:
        return None
    (event,) = end.gone
    assert (event.started_token, event.outcome) == (token, Outcome.LOST)
    assert not event.can_not_import, "it has said hello, so its modules can be imported"
    assert not event.told
    assert end.pool.starts.failure() is None, "it had started"
    return event.status


@pytest.mark.parametrize("code", [pytest.param(n, marks=() if n in TELLING else pytest.mark.slow) for n in range(256)])
def test_t1_an_exit_code_that_user_code_chose(end, code):
    assert first_death(end, end.give("t.exit", code)) == code
    end.spawn()
    assert end.executor.pid, "the next one comes at once"


@pytest.mark.parametrize("number", SIGNALS)
def test_t1_a_signal(end, number):
    status = first_death(end, end.give("t.signal", number))
    assert status in (None, -number)
    if number in (signal.SIGTERM, signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT, signal.SIGUSR1):
        assert status == -number
        end.spawn()
        assert end.executor.pid


def test_t1_a_module_that_can_not_be_imported_is_told_by_the_started_file(tmp_path, monkeypatch):
    monkeypatch.setattr(launch.subprocess, "Popen", Forked)
    end = Scripted(tmp_path, ["no_module_of_this_name"])
    try:
        end.until(lambda: end.gone, "the end")
        assert end.gone[0].can_not_import
        assert end.gone[0].told
        assert "No module named 'no_module_of_this_name'" in end.gone[0].said
        end.pool.starts.ever = True  # as if one had come up before: not the start
        end.gone.clear()
        end.spawn()
        end.until(lambda: end.gone, "the end")
        assert not end.gone[0].can_not_import
    finally:
        end.close()


def test_t1_the_server_and_a_worker_go_on(serving, external, short_tmp):
    (short_tmp / "ends.py").write_text("import os\nfrom wheelsched import task\n@task('e.exit')\ndef f(code):\n    os._exit(code)\n")
    server = serving("--tasks", "ends", workers=1)
    ws = server.client()
    external("worker_tasks")
    once = Retry(attempts=1)
    runs = [ws.enqueue(Call(task, main.EXIT_IMPORT), retry=once) for task in ("e.exit", "t.exit")]
    wait_for(lambda: all(run.refresh().state == "dead" for run in runs), "the end of both")
    assert ws.enqueue(Call("t.add", 1)).result(timeout=60) == 2, "the worker goes on"
    assert ws.enqueue(Call("t.echo", 1)).result(timeout=60) == 1, "and so does the server"
    assert server.process.poll() is None

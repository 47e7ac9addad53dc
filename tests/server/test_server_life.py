"""The life of the real server: starts and stops, dying workers, kill -9, full disks, an idle night."""

import os
import resource
import signal
import socket
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.rigs.server import Serving, wait_for, ws_job
from wheelsched import At, Call, Enqueue, Manual, Retry, RunFailed
from wheelsched.model.errors import InvalidArgumentError, ResourceExhaustedError, StorageFullError


def test_the_second_server_is_refused_and_harms_nothing(serving, short_tmp):
    first = serving()
    ws = first.client()
    second = Serving(short_tmp)
    assert second.process.wait(30) == 75
    assert f"in use by another server (pid {first.process.pid})" in first.log.read_text()
    assert ws.enqueue(Call("t.echo", 5)).result(timeout=10) == 5


@pytest.mark.slow
def test_a_dead_socket_is_removed_and_a_file_is_left_alone(serving, short_tmp):
    stale = socket.socket(socket.AF_UNIX)
    stale.bind(str(short_tmp / "s"))
    stale.close()
    server = serving(workers=0)
    server.client()
    server.end()
    assert not (short_tmp / "s").exists()
    (short_tmp / "s").write_text("mine")
    refused = serving(workers=0)
    assert refused.process.wait(30) == 78
    assert (short_tmp / "s").read_text() == "mine"


def test_bad_configurations_end_with_78_and_one_line(short_tmp):
    for flags in (["--workers", "-1"], ["--tasks", "no such"], ["--clock-offset", "soon"], ["--config", "/nonexistent.toml"]):
        done = subprocess.run(
            [sys.executable, "-m", "wheelsched", "serve", "--data", str(short_tmp / "d"), "--socket", str(short_tmp / "s"), *flags],
            capture_output=True, text=True, timeout=60, check=False,
        )
        assert done.returncode == 78, (flags, done)
        assert len(done.stderr.strip().splitlines()) == 1, done.stderr


def test_tasks_that_can_not_be_imported_end_the_start_with_78(serving, short_tmp):
    (short_tmp / "broken.py").write_text("import nothing_of_this_name\n")
    server = serving("--tasks", "broken")
    assert server.process.wait(40) == 78
    assert "nothing_of_this_name" in server.log.read_text()


def test_a_long_run_holds_back_none_of_the_short_ones_that_came_with_it(serving, short_tmp):
    """They were leased in one batch with it: its worker gives them back, the other one executes them, and no attempt is spent."""
    ws = serving(workers=2).client()
    for run_id in ws.enqueue_many([Enqueue(Call("t.echo", i)) for i in range(300)]).ids:  # batches have grown
        ws.run(run_id).result(timeout=30)
    ws.queue_pause("default")
    gate = ws.enqueue(Call("t.gate", str(short_tmp / "open")))
    short = ws.enqueue_many([Enqueue(Call("t.echo", i)) for i in range(100)]).ids
    ws.queue_resume("default")
    runs = [ws.run(run_id) for run_id in short]
    assert [run.result(timeout=30) for run in runs] == list(range(100))
    assert ws.run(gate.id).state == "running"
    assert {run.attempt for run in runs} == {1}
    (short_tmp / "open").touch()
    assert gate.result(timeout=30) is None
    assert ws.run(gate.id).attempt == 1


def test_sigterm_lets_runs_end_and_the_rest_wait(serving):
    server = serving()
    ws = server.client()
    slow = ws.enqueue(Call("t.sleep", 1.0))
    wait_for(lambda: ws.run(slow.id).state == "running")
    later = [ws.enqueue(Call("t.echo", i)) for i in range(5)]
    assert server.end() == 0
    again = serving()
    ws = again.client()
    assert ws.run(slow.id).attempt == 1
    assert ws.run(slow.id).state == "succeeded"
    assert [ws.run(r.id).result(timeout=20) for r in later] == list(range(5))
    assert [ws.run(r.id).attempt for r in later] == [1] * 5


def test_a_second_sigterm_stops_at_once(serving):
    server = serving()
    ws = server.client()
    slow = ws.enqueue(Call("t.sleep", 30), retry=Retry(attempts=2, backoff="100ms"))
    wait_for(lambda: ws.run(slow.id).state == "running")
    server.process.send_signal(signal.SIGTERM)
    wait_for(lambda: "draining" in server.log.read_text())
    begun = time.monotonic()
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(15) == 0
    assert time.monotonic() - begun < 10
    ws = serving(workers=0).client()
    run = ws.run(slow.id)
    assert [a.outcome for a in run.attempts] == ["interrupted"]
    assert run.state in ("retry_wait", "queued")


@pytest.mark.slow
def test_a_drain_ends_when_its_time_is_over(serving):
    """Its time is 30 s without the option, and the wait here is shorter."""
    server = serving("--drain", "200ms")
    ws = server.client()
    slow = ws.enqueue(Call("t.sleep", 1000), retry=Retry(attempts=2, backoff="1h"))
    wait_for(lambda: ws.run(slow.id).state == "running")
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(25) == 0
    assert "draining: no new runs are started, what runs has 200ms to end" in server.log.read_text()
    run = serving(workers=0).client().run(slow.id)
    assert ([a.outcome for a in run.attempts], run.state) == (["interrupted"], "retry_wait")


def test_a_worker_that_dies_costs_its_run_one_attempt_and_the_others_none(serving):
    ws = serving(workers=1).client()
    poison = ws.enqueue(Call("t.die"), retry=Retry(attempts=3, backoff="50ms", cap="50ms"))
    others = [ws.enqueue(Call("t.echo", i)) for i in range(50)]
    with pytest.raises(RunFailed, match="worker"):
        poison.result(timeout=30)
    poison.refresh()
    assert poison.state == "dead"
    assert [a.outcome for a in poison.attempts] == ["lost"] * 3
    assert [r.result(timeout=20) for r in others] == list(range(50))
    for r in others:
        r.refresh()
        assert r.attempt == 1
    assert [d.id for d in ws.dead()] == [poison.id]


def test_a_task_that_nobody_knows_waits_visibly(serving):
    ws = serving().client()
    run = ws.enqueue(Call("t.unknown"))
    assert ws.stats()["unserved_tasks"] == {"t.unknown": 1}
    assert ws.enqueue(Call("t.echo", 1)).result(timeout=10) == 1
    assert ws.run(run.id).state == "queued"


def test_enqueued_runs_are_listed_by_their_reserved_job_which_nobody_may_put(serving):
    ws = serving(workers=0).client()
    run = ws.enqueue(Call("t.echo", 1))
    assert run.job == "~t.echo"
    assert [r.id for r in ws.runs(run.job)] == [run.id]
    with pytest.raises(InvalidArgumentError, match="reserved"):
        ws.put("~t.echo", Call("t.echo"), Manual())
    with pytest.raises(InvalidArgumentError, match="reserved"):
        ws.put_many([ws_job("default/~x", datetime.now(UTC))])


def test_a_run_is_found_by_its_id_long_after_it_was_folded(serving):
    """The id of an enqueued run begins with its creation, that of a scheduled one with its nominal time; blocks hold either."""
    server = serving()
    ws = server.client()
    delayed = ws.enqueue(Call("t.echo", 1), delay="1500ms")
    ws.put("soon", Call("t.echo", 2), At(datetime.now(UTC) + timedelta(seconds=0.3)))
    assert delayed.result(timeout=20) == 1
    wait_for(lambda: ws.stats()["counters"]["succeeded"] == 2)
    ids = {r.id: r.job for r in ws.runs(limit=None)}
    assert len(ids) == 2, ids
    assert server.end() == 0
    again = serving().client()
    wait_for(lambda: again.stats()["runs"] == 0, 90)  # housekeeping folds them into history
    for run_id, job in ids.items():
        run = again.run(run_id)
        assert (run.state, run.job) == ("succeeded", job)
    assert {r.id for r in again.runs(limit=None)} == set(ids)
    assert [r.id for r in again.runs(newest=True)] == [r.id for r in again.runs()][::-1]


def test_kill_9_between_put_and_due_loses_nothing(serving):
    server = serving()
    ws = server.client()
    at = datetime.now(UTC) + timedelta(seconds=1.5)
    ws.put_many([ws_job(f"n/{i}", at) for i in range(2_000)])
    server.end(signal.SIGKILL)
    again = serving()
    ws = again.client()
    wait_for(lambda: ws.stats()["counters"]["succeeded"] == 2_000, 40)
    runs = list(ws.runs(limit=None))
    assert len({r.id for r in runs}) == len(runs) == 2_000
    assert {r.job for r in runs} == {f"n/{i}" for i in range(2_000)}


def test_descriptors_that_run_out_slow_nobody_down_for_long(serving):
    limit = lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (44, 44))  # noqa: E731
    server = serving(workers=1, preexec=limit)
    ws = server.client()
    crowd = []
    for _ in range(60):
        try:
            crowd.append(server.connect())
        except OSError:
            break
    before = cpu(server.process.pid)
    time.sleep(1)  # a window to measure what it burns
    assert cpu(server.process.pid) - before < 0.5
    assert ws.enqueue(Call("t.echo", 1)).result(timeout=20) == 1
    for sock in crowd:
        sock.close()

    found = []

    def let_in():  # whoever comes before the server has seen them go is told so at once
        try:
            found.append(server.client())
        except ResourceExhaustedError:
            return False
        return True

    wait_for(let_in)
    assert found[0].enqueue(Call("t.echo", 2)).result(timeout=20) == 2


def cpu(pid):
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_an_idle_server_sleeps(serving):
    """Jobs far ahead, none due: the process is not scheduled at all."""
    server = serving(workers=0)
    ws = server.client()
    ws.put_many([ws_job(f"n/{i}", datetime.now(UTC) + timedelta(days=9)) for i in range(5_000)])
    ws.close()
    time.sleep(0.5)  # let it settle
    before = switches(server.process.pid)
    time.sleep(2)  # a window to count in
    assert switches(server.process.pid) - before <= 2


def switches(pid):
    total = 0
    for status in Path(f"/proc/{pid}/task").glob("*/status"):
        for line in status.read_text().splitlines():
            if line.startswith("voluntary_ctxt_switches"):
                total += int(line.split()[1])
    return total


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small tmpfs takes root")
def test_a_full_disk_refuses_commands_and_recovers_by_itself(serving, short_tmp):
    data = short_tmp / "data"
    data.mkdir(mode=0o700)
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(data)], capture_output=True, check=False).returncode:
        pytest.skip("no tmpfs can be mounted here")
    try:
        config = short_tmp / "c.toml"
        config.write_text("reserve_bytes = 2097152\n")
        server = serving("--config", str(config))
        ws = server.client()
        (data / "filler").write_bytes(bytes(8 * 2**20))
        stored = []
        with pytest.raises(StorageFullError, match="free space"):
            for i in range(5_000):
                ws.put(f"x/{i}", Call("t.echo", "y" * 20_000), Manual())
                stored.append(f"x/{i}")
        assert server.process.poll() is None
        assert {j.name for j in ws.jobs(limit=None)} == set(stored)
        (data / "filler").unlink()
        wait_for(lambda: puts(ws))
        server.end(signal.SIGKILL)
        again = serving("--config", str(config))
        assert {j.name for j in again.client().jobs(limit=None)} == {*stored, "after"}
        again.end(signal.SIGKILL)
    finally:
        subprocess.run(["umount", "-l", str(data)], check=True)


def puts(ws):
    try:
        ws.put("after", Call("t.echo", 1), Manual())
    except StorageFullError:
        return False
    return True

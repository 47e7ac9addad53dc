"""What attempts used: CPU time and memory, measured in executors, kept with each attempt."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta

import pytest

from wheelsched import Call, Command, Retry
from wheelsched.process.usage import Meter

MIB = 1024 * 1024
BURN = "import time\nwhile time.process_time() < 0.3: pass"
METERED = """
import json, time
from wheelsched.process.usage import Meter
meter = Meter()
idle = meter.take(time.monotonic_ns())
held = bytearray(b"x") * (64 << 20)
until = time.process_time() + 0.1
while time.process_time() < until:
    pass
used = meter.take(meter._at_ns)
del held
meter.begin()
print(json.dumps([idle, used, meter.take(meter._at_ns)]))
"""
TASKS = """
import time
from wheelsched import current_run, task

@task("u.burn")
def burn(seconds, megabytes=0):
    held = bytearray(b"x") * (megabytes << 20)
    until = time.process_time() + seconds
    while time.process_time() < until:
        pass
    if current_run().attempt == 1 and megabytes == 64:
        raise ValueError(len(held))

@task("u.sleep")
def sleep(seconds):
    time.sleep(seconds)

@task("u.batch", batch=True)
def batch(runs):
    burn(0.1 * len(runs))
    return [None] * len(runs)
"""


def burn(seconds):
    until = time.process_time() + seconds
    while time.process_time() < until:
        pass


def test_a_meter_tells_what_was_used_since():
    """In a fresh interpreter: a kernel that is short of memory takes pages of an old one away, whose peak then does not rise."""
    told = subprocess.run([sys.executable, "-c", METERED], capture_output=True, text=True, timeout=60, check=True).stdout
    idle, used, after = json.loads(told)
    assert used["cpu_us"] >= 90_000
    assert used["max_rss"] > idle["max_rss"] + 32 * MIB
    assert after["max_rss"] < used["max_rss"] - 32 * MIB, "the peak of one run is not that of the next"


def test_what_ran_before_is_taken_off():
    meter = Meter()
    burn(0.2)
    begun = time.monotonic_ns()
    burn(0.05)
    assert meter.take(begun)["cpu_us"] < 200_000


def test_children_count_with_those_that_waited_for_them():
    meter = Meter()
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024 + 200  # what a child has before its exec counts: that is ours
    with subprocess.Popen([sys.executable, "-c", f"x = bytearray(b'x') * ({most} << 20)\n{BURN}"]) as child:
        assert meter.reap(child) == 0
        assert child.poll() == 0
    used = meter.take(meter._at_ns)
    assert used["cpu_us"] >= 250_000
    assert used["max_rss"] > most * MIB
    with subprocess.Popen([sys.executable, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"]) as child:
        assert meter.reap(child) == -9
    assert meter.take(meter._at_ns)["max_rss"] < most * MIB


@pytest.mark.slow
def test_attempts_show_what_they_used(serving, short_tmp):
    (short_tmp / "usage_tasks.py").write_text(TASKS)
    server = serving("--tasks", "usage_tasks", "--allow-commands")
    ws = server.client()
    run = ws.enqueue(Call("u.burn", 0.2, 64), retry=Retry(2, 0))
    run.result(timeout=60)
    first, second = run.attempts
    assert (first.outcome, second.outcome) == ("failed", "succeeded")
    for one in (first, second):
        assert one.cpu >= 0.19
        assert one.max_rss > 64 * MIB
    assert (run.cpu, run.max_rss) == (second.cpu, second.max_rss)
    assert run.to_dict()["attempts"][0]["cpu"] == first.cpu
    quiet = ws.enqueue(Call("u.sleep", 0.05))
    quiet.result(timeout=60)
    assert quiet.cpu < 0.19
    assert quiet.max_rss < first.max_rss - 32 * MIB
    program = ws.enqueue(Command([sys.executable, "-c", BURN]))
    program.result(timeout=60)
    assert program.cpu >= 0.25
    nothing = ws.enqueue(Call("t.echo", 1))
    nothing.result(timeout=60)
    assert nothing.cpu is None or nothing.cpu < 0.19, "what is over at once is not measured"
    shown = subprocess.run(
        [sys.executable, "-m", "wheelsched", "--socket", server.socket, "run", "get", run.id], capture_output=True, text=True, check=True
    ).stdout
    assert shown.count("CPU ") == 2
    both = [ws.enqueue(Call("u.batch"), at=datetime.now(UTC) + timedelta(seconds=1)) for _ in range(2)]
    for one in both:
        one.result(timeout=60)
        assert one.cpu >= 0.09, "an even share of the call"

"""What the ledger costs: bytes of journal and of history for an occurrence, by what became of it.

The real engine on a virtual clock; the journal is the one in memory, whose records and blocks have the very bytes of the one on disk.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from wheelsched import Call, Cron, Every
from wheelsched.protocol.definition import given_from_api
from wheelsched.protocol.frames import encode_payload
from wheelsched.simulator.simulator import Simulator

NAME = "ledger"
DESCRIPTION = "bytes of journal and history an occurrence: fired, skipped by overlap, calendar, misfire and pause, backfilled"

START = "2026-03-02T00:00:00Z"


class _Counting(Simulator):
    """Counts the bytes that each step makes durable."""

    journal_bytes = 0
    history_bytes = 0

    def _step(self, inputs: list[Any]) -> None:
        super()._step(inputs)
        self.journal_bytes += sum(map(len, self._effects.records))
        self.history_bytes += sum(map(len, self._effects.history))


def _jobs(sim: _Counting, n: int, schedule: Any, **policies: Any) -> None:
    given, param = given_from_api(Call("t.none"), schedule, policies)
    for first in range(0, n, 10_000):
        size = min(10_000, n - first)
        sim.call(1, ("put_many", {
            "rid": first.to_bytes(16, "big"), "given": [given], "names": [f"bench/job-{first + i:08d}" for i in range(size)],
            "payload": [encode_payload((), {})] * size, "which": np.zeros(size, "<u4").tobytes(),
            "param_us": np.full(size, param, "<i8").tobytes(),
        }))


def _measured(name: str, occurrences: int, sim: _Counting) -> list[dict[str, Any]]:
    rows = []
    for what, size in (("journal", sim.journal_bytes), ("history", sim.history_bytes)):
        rows.append({"name": f"{name}, {what}", "value": size / occurrences, "unit": "B/occurrence", "n": occurrences})
    return rows


def _settle(sim: _Counting) -> None:
    """Two looks of housekeeping: what is finished goes to history."""
    sim.advance("61s")
    sim.advance("61s")


def _run(name: str, jobs: int, schedule: Any, minutes: int, story: Any, **policies: Any) -> list[dict[str, Any]]:
    def none() -> None:
        """Ends at once."""

    with _Counting(START, tasks={"t.none": none}) as sim:
        if "calendar" in policies:
            sim.client.calendar("closed", weekdays=["mon", "tue"])
        _jobs(sim, jobs, schedule, **policies)
        sim.advance(0)
        sim.journal_bytes = sim.history_bytes = 0
        story(sim, minutes)
        _settle(sim)
        return _measured(name, jobs * minutes, sim)


def _time(sim: _Counting, minutes: int) -> None:
    sim.advance(minutes * 60)


def _outage(sim: _Counting, minutes: int) -> None:
    sim.crash(down=minutes * 60)


def _pause(sim: _Counting, minutes: int) -> None:
    names = [job.name for job in sim.client.jobs()]
    for name in names:
        sim.client.pause(name)
    sim.advance(minutes * 60)
    for name in names:
        sim.client.resume(name)


def _backfill(sim: _Counting, minutes: int) -> None:
    for job in list(sim.client.jobs()):
        sim.client.backfill(job.name, "2026-03-01T00:00:30Z", f"2026-03-01T{minutes // 60:02d}:{minutes % 60:02d}:30Z")
    sim.advance(1)


def run(smoke: bool) -> list[dict[str, Any]]:
    """Rows of bytes an occurrence."""
    jobs, minutes = (20, 5) if smoke else (2_000, 30)
    every = Cron("* * * * *")
    rows = _run("fired, run and completed", jobs, every, minutes, _time)
    rows += _overlap(jobs, minutes)
    rows += _run("excluded by a calendar", jobs, every, minutes, _time, calendar="closed")
    rows += _run("missed in an outage, latest runs", jobs, every, minutes, _outage)
    rows += _run("skipped in a pause", 20 if smoke else 200, every, minutes, _pause)
    rows += _run("backfilled", 20 if smoke else 200, Cron("* * * * *"), minutes, _backfill, end="2026-03-02T00:00:00Z")
    return rows


def _overlap(jobs: int, minutes: int) -> list[dict[str, Any]]:
    """Nobody runs the first run of each job, so that all others are skipped."""
    with _Counting(START) as sim:
        _jobs(sim, jobs, Every("60s"))
        sim.advance("60s")
        sim.journal_bytes = sim.history_bytes = 0
        sim.advance(minutes * 60)
        _settle(sim)
        return _measured("skipped by overlap", jobs * (minutes + 2), sim)

"""Commits, long records and replay of the LMDB journal, beside bare writes with fdatasync in the same run."""
from __future__ import annotations

import os
import random
import select
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from wheelsched.journal.lmdb_journal import Batch, LmdbJournal, MemoryJournal

NAME = "journal"
DESCRIPTION = "small commit p50/p99 beside bare fdatasync; group commit; 1 MiB records; replay; file growth"

SEED = 20261129
SMALL = 200  # bytes: a record of one command


def row(name: str, value: float, n: int, unit: str) -> dict[str, Any]:
    return {"name": name, "value": value, "unit": unit, "n": n}


def percentiles(name: str, seconds: list[float]) -> list[dict[str, Any]]:
    """p50 and p99 in microseconds."""
    ordered = sorted(seconds)
    n = len(ordered)
    return [
        row(f"{name} p50", ordered[n // 2] * 1e6, n, "us"),
        row(f"{name} p99", ordered[min(n - 1, n * 99 // 100)] * 1e6, n, "us"),
    ]


def timed(work) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def small_commits(folder: Path, rng: random.Random, n: int) -> list[dict[str, Any]]:
    """append, submit-and-wait and the floor take turns, so that all three meet the same disk."""
    data = [rng.randbytes(SMALL) for _ in range(n)]
    floor, append, handed = [], [], []
    fd = os.open(folder / "floor", os.O_CREAT | os.O_WRONLY, 0o600)
    with LmdbJournal.open(folder / "small", reserve_bytes=0) as journal:
        def hand_over(body: bytes) -> None:
            last = journal.submit(Batch(records=[body]))
            while journal.poll() < last:
                select.select([journal.fileno()], [], [])

        def bare(body: bytes) -> None:
            os.write(fd, body)
            os.fdatasync(fd)

        for body in data:
            floor.append(timed(lambda b=body: bare(b)))
            append.append(timed(lambda b=body: journal.append(Batch(records=[b]))))
            handed.append(timed(lambda b=body: hand_over(b)))
    os.close(fd)
    rows = percentiles("fdatasync of 200 B (floor)", floor) + percentiles("append", append) + percentiles("submit and wait", handed)
    rows.append(row("append / floor, p50", rows[2]["value"] / rows[0]["value"], n, "ratio"))
    rows.append(row("submit and wait / floor, p50", rows[4]["value"] / rows[0]["value"], n, "ratio"))
    return rows


def grouped(folder: Path, rng: random.Random, n: int) -> list[dict[str, Any]]:
    """Many submitted batches of one small record, joined as they come."""
    data = [rng.randbytes(SMALL) for _ in range(n)]
    with LmdbJournal.open(folder / "grouped", reserve_bytes=0) as journal:
        def work() -> None:
            for body in data:
                last = journal.submit(Batch(records=[body]))
            while journal.poll() < last:
                select.select([journal.fileno()], [], [])

        return [row("group commit, batches of one record", n / timed(work), n, "records/s")]


def long_records(folder: Path, rng: random.Random, n: int, rounds: int) -> list[dict[str, Any]]:
    """1 MiB records, one a commit, and the same bytes written and synced bare, a round of each in turn."""
    body = rng.randbytes(1 << 20)
    ours, bare = [], []
    fd = os.open(folder / "floor_long", os.O_CREAT | os.O_WRONLY, 0o600)
    with LmdbJournal.open(folder / "long", reserve_bytes=0) as journal:
        def plain() -> None:
            for _ in range(n):
                os.write(fd, body)
                os.fdatasync(fd)

        def appended() -> None:
            for _ in range(n):
                journal.append(Batch(records=[body]))

        for _ in range(rounds):
            bare.append(n * len(body) / 1e6 / timed(plain))
            ours.append(n * len(body) / 1e6 / timed(appended))
    os.close(fd)
    rows = [
        row("1 MiB write + fdatasync (floor)", statistics.median(bare), n * rounds, "MB/s"),
        row("1 MiB records", statistics.median(ours), n * rounds, "MB/s"),
    ]
    rows.append(row("floor / 1 MiB records", rows[0]["value"] / rows[1]["value"], n * rounds, "ratio"))
    return rows


def replayed(folder: Path, rng: random.Random, n: int, rounds: int) -> list[dict[str, Any]]:
    """Small records read back and checked, from a warm cache; from memory the same."""
    bodies = [rng.randbytes(SMALL) for _ in range(n)]
    with LmdbJournal.open(folder / "replay", reserve_bytes=0) as journal:
        for at in range(0, n, 10_000):
            journal.append(Batch(records=bodies[at : at + 10_000]))
    opened = timed(lambda: LmdbJournal.open(folder / "replay", reserve_bytes=0).close())
    with LmdbJournal.open(folder / "replay", reserve_bytes=0) as journal:
        seconds = statistics.median(timed(lambda: sum(1 for _ in journal.replay(0))) for _ in range(rounds))
        verify = timed(journal.verify)
        stored = journal.usage().live_bytes / n - SMALL
    memory = MemoryJournal()
    memory.append(Batch(records=bodies))
    in_memory = statistics.median(timed(lambda: sum(1 for _ in memory.replay(0))) for _ in range(rounds))
    return [
        row("replay of 200 B records", n / seconds, n, "records/s"),
        row("replay, memory journal", n / in_memory, n, "records/s"),
        row("open and close", opened * 1e3, 1, "ms"),
        row("verify", verify * 1e3, n, "ms"),
        row("stored beyond the 200 B, records in batches", stored, n, "bytes"),
    ]


def growth(folder: Path, rng: random.Random, turns: int) -> list[dict[str, Any]]:
    """Records and snapshots come and are trimmed: the file against what lives in it."""
    with LmdbJournal.open(folder / "growth", reserve_bytes=0) as journal:
        for turn in range(turns):
            last = journal.append(Batch(records=[rng.randbytes(rng.choice([200, 3_000, 200_000])) for _ in range(10)]))
            if turn % 10 == 9:
                chunks = [rng.randbytes(130_000) for _ in range(20)]
                journal.append(Batch(snapshot_begin=last, snapshot=chunks, snapshot_end=True, trim_to=last - 50))
        usage = journal.usage()
    return [row("file / live bytes after trims", usage.map_used_bytes / usage.live_bytes, turns, "ratio")]


def run(smoke: bool = False) -> list[dict[str, Any]]:
    """The rows; `smoke` is a small size that only shows that it works."""
    rng = random.Random(SEED)
    rounds = 1 if smoke else 5
    with tempfile.TemporaryDirectory(prefix="wheelsched-bench-") as name:
        folder = Path(name)
        rows = small_commits(folder, rng, 50 if smoke else 3_000)
        rows += grouped(folder, rng, 200 if smoke else 50_000)
        rows += long_records(folder, rng, 3 if smoke else 100, rounds)
        rows += replayed(folder, rng, 1_000 if smoke else 200_000, rounds)
        rows += growth(folder, rng, 20 if smoke else 500)
    return rows

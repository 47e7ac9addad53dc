"""The timing wheel, per timer, random over a day at 1 ms and in a burst, beside heapq and sortedcontainers in the same run."""

from __future__ import annotations

import gc
import heapq
import importlib.util
import statistics
import time
from hashlib import blake2b
from typing import Any

import numpy as np

from wheelsched.wheel._wheel import Wheel

NAME = "wheel"
DESCRIPTION = "timing wheel: add, cancel, expire, burst, worst single advance, bytes; heapq and sortedcontainers"

SEED = 20261129
NOW_MS = 1_796_000_000_000
DAY_MS = 86_400_000
BATCH = 65_536


def nanoseconds(function: Any, n: int) -> float:
    """Nanoseconds per timer of one call."""
    gc.collect()
    start = time.perf_counter_ns()
    function()
    return (time.perf_counter_ns() - start) / n


def fill(wheel: Wheel, ids: Any, when: Any) -> None:
    """Add in batches, as the engine does."""
    for i in range(0, len(ids), BATCH):
        wheel.add(ids[i : i + BATCH], when[i : i + BATCH])


def empty(wheel: Wheel, ids: Any) -> None:
    """Cancel in batches."""
    for i in range(0, len(ids), BATCH):
        wheel.cancel(ids[i : i + BATCH])


def drain(wheel: Wheel, until_ms: int, out: list[Any]) -> None:
    """Take all due ids."""
    while len(due := wheel.advance(until_ms, BATCH)):
        out.append(due)


def walk(wheel: Wheel, until_ms: int, step_ms: int) -> tuple[float, float, float, int]:
    """Go to `until_ms` in steps: nanoseconds in total, the worst single advance in milliseconds (of this thread's processor
    time, and of the wall clock, which counts what other processes took), ids taken.
    """
    total = worst = worst_wall = taken = 0
    for now in range(wheel.now_ms + step_ms, until_ms + step_ms, step_ms):
        count = 1
        while count:
            cpu = time.thread_time_ns()  # a system call: kept out of what is timed
            start = time.perf_counter_ns()
            count = len(wheel.advance(now, BATCH))
            took = time.perf_counter_ns() - start
            cpu = time.thread_time_ns() - cpu
            total += took
            worst, worst_wall = max(worst, cpu), max(worst_wall, took)
            taken += count
    return total, worst / 1e6, worst_wall / 1e6, taken


def ours(n: int, rng: Any, rounds: int) -> list[dict[str, Any]]:
    """Rows of the wheel with n timers: medians of some rounds, and of all rounds the worst advance."""
    ids = np.arange(n, dtype=np.uint32)
    mixed = rng.permutation(ids)
    when = NOW_MS + rng.integers(0, DAY_MS, n)
    same = np.full(n, NOW_MS + DAY_MS // 2, np.int64)
    order = np.argsort(when, kind="stable")
    found: dict[tuple[str, str], list[float]] = {}

    def note(name: str, value: float, unit: str = "ns/timer") -> None:
        found.setdefault((name, unit), []).append(value)

    for _ in range(rounds):
        wheel = Wheel(NOW_MS)
        note("add, fresh memory", nanoseconds(lambda: fill(wheel, ids, when), n))  # noqa: B023 - called at once
        note("bytes", wheel.nbytes / n, "B/timer")
        note("move, random ids", nanoseconds(lambda: fill(wheel, mixed, when), n))  # noqa: B023
        note("cancel, random ids", nanoseconds(lambda: empty(wheel, mixed), n))  # noqa: B023
        assert len(wheel) == 0
        note("add", nanoseconds(lambda: fill(wheel, ids, when), n))  # noqa: B023
        out: list[Any] = []
        note("expire, one jump", nanoseconds(lambda: drain(wheel, NOW_MS + DAY_MS, out), n))  # noqa: B023
        assert np.array_equal(np.concatenate(out), order), "the order is wrong"
        for step in (1_000, 100_000):
            wheel = Wheel(NOW_MS)
            fill(wheel, ids, when)
            total, worst, wall, taken = walk(wheel, NOW_MS + DAY_MS, step)
            assert taken == n
            note(f"expire, steps of {step // 1000} s", total / n)
            note(f"worst single advance, steps of {step // 1000} s", worst, "ms cpu")
            note(f"worst single advance, steps of {step // 1000} s, wall", wall, "ms")
        wheel = Wheel(NOW_MS)
        note("burst, add", nanoseconds(lambda: fill(wheel, ids, same), n))  # noqa: B023
        total, worst, wall, taken = walk(wheel, NOW_MS + DAY_MS // 2, DAY_MS // 2)
        assert taken == n
        note("burst, expire", total / n)
        note("burst, worst single advance", worst, "ms cpu")
    rows = [
        {"name": name, "value": max(values) if "worst" in name else statistics.median(values), "unit": unit, "n": n}
        for (name, unit), values in found.items()
    ]
    digest = blake2b(order.astype(np.uint32).tobytes(), digest_size=3).digest()
    rows.append({"name": "order of expiry, first bytes of its hash", "value": float(int.from_bytes(digest, "big")), "unit": "", "n": n})
    return rows


def peers(n: int, rng: Any, rows: list[dict[str, Any]]) -> None:
    """heapq and SortedList on the same draw; a heap cannot cancel, so it marks and skips."""
    when = (NOW_MS + rng.integers(0, DAY_MS, n)).tolist()
    pairs = [(w, i) for i, w in enumerate(when)]
    heap: list[tuple[int, int]] = []
    found = {"add": ("heapq", nanoseconds(lambda: [heapq.heappush(heap, p) for p in pairs], n)),
             "expire, one jump": ("heapq", nanoseconds(lambda: [heapq.heappop(heap) for _ in range(n)], n))}
    theirs = [("heapq", name, value) for name, (_, value) in found.items()]
    if importlib.util.find_spec("sortedcontainers") is not None:
        from sortedcontainers import SortedList  # noqa: PLC0415 - may be absent

        few = pairs[: max(1, n // 5)]
        line: Any = SortedList()
        theirs.append(("SortedList", "add", nanoseconds(lambda: [line.add(p) for p in few], len(few))))
        half = few[::2]
        theirs.append(("SortedList", "cancel, random ids", nanoseconds(lambda: [line.remove(p) for p in half], len(half))))
        left = len(few) - len(half)
        theirs.append(("SortedList", "expire, one jump", nanoseconds(lambda: [line.pop(0) for _ in range(left)], left)))
    for peer, name, value in theirs:
        mine = next(r["value"] for r in rows if r["name"] == name)
        rows.append({"name": f"{peer}: {name}", "value": value, "unit": "ns/timer", "n": n, "peer": peer, "ratio": value / mine})


def run(smoke: bool = False) -> list[dict[str, Any]]:
    """The rows; `smoke` is a small size that only shows that it works."""
    rng = np.random.default_rng(SEED)
    if smoke:
        rows = ours(20_000, rng, 1)
        peers(20_000, rng, rows)
        return rows
    rows = ours(1_000_000, rng, 5)
    peers(1_000_000, rng, rows)
    return rows + ours(10_000_000, rng, 3)

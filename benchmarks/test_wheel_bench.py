"""pytest-benchmark of each wheel operation: `pytest benchmarks`."""

from __future__ import annotations

import numpy as np
import pytest

from wheelsched.wheel._wheel import Wheel

SEED = 20261129
N = 100_000
NOW_MS = 1_796_000_000_000
IDS = np.arange(N, dtype=np.uint32)


@pytest.fixture
def when() -> np.ndarray:
    return NOW_MS + np.random.default_rng(SEED).integers(0, 86_400_000, N)


def full(when: np.ndarray) -> Wheel:
    wheel = Wheel(NOW_MS)
    wheel.add(IDS, when)
    return wheel


def rounds(benchmark, function, setup) -> None:
    benchmark.pedantic(function, setup=lambda: ((setup(),), {}), rounds=10)


def test_add(benchmark, when) -> None:
    rounds(benchmark, lambda wheel: wheel.add(IDS, when), lambda: Wheel(NOW_MS))


def test_move(benchmark, when) -> None:
    rounds(benchmark, lambda wheel: wheel.add(IDS, when[::-1].copy()), lambda: full(when))


def test_cancel(benchmark, when) -> None:
    mixed = np.random.default_rng(SEED).permutation(IDS)
    rounds(benchmark, lambda wheel: wheel.cancel(mixed), lambda: full(when))


def test_expire(benchmark, when) -> None:
    def drain(wheel: Wheel) -> None:
        while len(wheel.advance(NOW_MS + 86_400_000)):
            continue

    rounds(benchmark, drain, lambda: full(when))


def test_add_one(benchmark) -> None:
    wheel = Wheel(NOW_MS)
    benchmark(wheel.add_one, 5, NOW_MS + 60_000)


def test_cancel_one(benchmark) -> None:
    wheel = Wheel(NOW_MS)
    benchmark(wheel.cancel_one, 5)


def test_idle_advance(benchmark, when) -> None:
    wheel = full(when + 86_400_000)
    benchmark(wheel.advance, NOW_MS)


def test_next_due(benchmark, when) -> None:
    wheel = full(when)
    benchmark(wheel.next_due)


def test_rebuild(benchmark, when) -> None:
    rounds(benchmark, lambda wheel: wheel.rebuild(NOW_MS - 5_000), lambda: full(when))

"""What most tests of the engine begin with."""

from __future__ import annotations

import pytest

from tests.rigs.engine import Bench


@pytest.fixture
def b():
    """A bench at the midnight before a Monday, with a worker that serves the task `t`; at the end its state is whole."""
    with Bench("2026-03-02T00:00:00Z") as bench:
        bench.hello()
        yield bench
        bench.engine.state.check()

"""pytest plugin: the fixture `wheelsched`, a Simulator for one test. Loads nothing until a test asks for it.

@pytest.mark.wheelsched(modules=["shop.tasks"], start="2026-03-29T00:00:00Z")
def test_report(wheelsched):
wheelsched.client.trigger("report")
wheelsched.advance(0)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .testing import Simulator


def pytest_configure(config: pytest.Config) -> None:
    """Name the mark."""
    config.addinivalue_line("markers", "wheelsched(modules=..., tasks=..., start=...): arguments of the fixture `wheelsched`")


@pytest.fixture(name="wheelsched")
def simulator(request: pytest.FixtureRequest) -> Iterator[Simulator]:
    """A Simulator with the arguments of the mark `wheelsched`."""
    from .testing import Simulator  # noqa: PLC0415 - a pytest run that needs no scheduler should not load one

    mark = request.node.get_closest_marker("wheelsched")
    options: dict[str, Any] = {} if mark is None else mark.kwargs
    with Simulator(**options) as sim:
        yield sim

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

    from .simulator import Simulator


def pytest_configure(config: pytest.Config) -> None:
    """Name the mark."""
    text = "wheelsched(modules=..., tasks=..., start=..., on_dead=..., connections=False): arguments of the fixture `wheelsched`"
    config.addinivalue_line("markers", text)


@pytest.fixture(name="wheelsched")
def simulator(request: pytest.FixtureRequest) -> Iterator[Simulator]:
    """A Simulator with the arguments of the mark `wheelsched`. Each Client() and AsyncClient() of the test is a client of it, and clients
    with another path are refused, unless the mark says `connections=True`.
    """
    from .simulator import Simulator  # noqa: PLC0415 - a pytest run that needs no scheduler should not load one
    from .transport import redirect  # noqa: PLC0415 - as above

    mark = request.node.get_closest_marker("wheelsched")
    options: dict[str, Any] = {} if mark is None else dict(mark.kwargs)
    connections = options.pop("connections", False)
    with Simulator(**options) as sim, pytest.MonkeyPatch.context() as patch:
        if not connections:
            redirect(sim, patch)
        yield sim

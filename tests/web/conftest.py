"""Fixtures of the dashboard's tests, which are skipped aloud where its extra is not installed."""

from importlib.util import find_spec

import pytest

from wheelsched.testing import Simulator

MISSING = [name for name in ("jinja2", "prometheus_client", "starlette", "uvicorn") if find_spec(name) is None]
collect_ignore_glob = ["test_*.py"] if MISSING else []


def pytest_report_header():
    return f"tests/web is SKIPPED: {', '.join(MISSING)} not installed: pip install 'wheelsched[web]'" if MISSING else None


@pytest.fixture
def sim():
    from tests.rigs.web import START, charge, report

    with Simulator(start=START, tasks={"shop.charge": charge, "shop.report": report}) as made:
        yield made


@pytest.fixture(scope="module")
def site():
    """One for all tests of a module that change nothing."""
    from tests.rigs.web import START, Site, charge, filled, report

    with Simulator(start=START, tasks={"shop.charge": charge, "shop.report": report}) as sim:
        filled(sim)
        with Site(sim) as made:
            yield made

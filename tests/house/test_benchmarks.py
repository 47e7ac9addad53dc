"""Every benchmark runs in smoke size and gives rows of the agreed form, so that none can rot."""

from __future__ import annotations

import importlib.util
import json
import math
import sys
from typing import TYPE_CHECKING

import pytest

from tests.rigs.places import TESTS

if TYPE_CHECKING:
    from pathlib import Path

HOME = TESTS.parent  # the benchmarks lie beside the tests, in a checkout and in a copy
pytestmark = pytest.mark.skipif(not (HOME / "benchmarks" / "__main__.py").is_file(), reason="no benchmarks beside the tests")
NAMES = sorted(p.stem for p in (HOME / "benchmarks").glob("*.py") if not p.stem.startswith(("_", "test_")))


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(HOME))
    from benchmarks import __main__

    return __main__


def check_rows(rows: list[dict]) -> None:
    assert rows
    for row in rows:
        assert {"name", "value", "unit", "n"} <= set(row) <= {"name", "value", "unit", "n", "peer", "ratio"}, row
        assert isinstance(row["name"], str)
        assert isinstance(row["unit"], str)
        assert math.isfinite(row["value"]), row
        assert row["n"] >= 1, row
    names = [(row["name"], row["n"]) for row in rows]
    assert len(set(names)) == len(names), "two rows of one name and size"


@pytest.mark.slow
@pytest.mark.parametrize("stem", NAMES)
def test_smoke(stem: str, runner, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    module = importlib.import_module(f"benchmarks.{stem}")
    assert (stem in sys.modules) or module.NAME in runner.discover()
    file = tmp_path / "out.json"
    assert runner.main([module.NAME, "--smoke", "-o", str(file)]) == 0
    out = capsys.readouterr().out
    result = json.loads(file.read_text())
    assert set(result) == {"machine", "smoke", "results"}
    assert list(result["results"]) == [module.NAME]
    assert result["smoke"] is True
    check_rows(result["results"][module.NAME])
    assert all(row["name"] in out for row in result["results"][module.NAME])
    assert module.DESCRIPTION in out


def test_an_unknown_name_is_refused(runner, capsys: pytest.CaptureFixture[str]) -> None:
    assert runner.main(["nothing", "--smoke"]) == 2
    assert "wheel" in capsys.readouterr().err

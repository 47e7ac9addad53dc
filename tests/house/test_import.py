"""`import wheelsched` in a user's program is light. Each question is asked in a fresh interpreter."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import wheelsched

# the interpreter asked finds the package that is tested, wherever that is
ENV = {**os.environ, "PYTHONPATH": str(Path(wheelsched.__file__).parents[1])}

HEAVY = (
    "numpy",
    "asyncio",
    "click",
    "croniter",
    "lmdb",
    "wheelsched.engine.engine",
    "wheelsched.state.state",
    "wheelsched.journal.lmdb_journal",
    "wheelsched.state.records",
)


def loaded_by(code):
    """Names of the modules that are there after `code`."""
    script = f"import sys\n{code}\nprint(' '.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True, env=ENV)
    return set(done.stdout.split())


def heavy_ones(modules):
    extensions = {name for name in modules if re.match(r"wheelsched\.(?:\w+\.)?_(?!_)", name)}
    return extensions | {name for name in HEAVY if name in modules}


def test_import_loads_nothing_heavy():
    modules = loaded_by("import wheelsched")
    assert heavy_ones(modules) == set()
    # nor any part of the package: each comes with the first use of a name
    assert {name for name in modules if name.startswith("wheelsched.")} == set()


PUT = """
from wheelsched import Client, Call, Every, UnavailableError
with Client('/nowhere') as ws:
    try: ws.put('x', Call('t', 1), Every('30s'))
    except UnavailableError: pass
"""


@pytest.mark.parametrize(
    "code",
    [
        "from wheelsched import Client, Call, Job, Retry, Catchup, Overlap, Command, Http, WheelschedError",
        "from wheelsched import At, Every, Manual, Cron\nAt('2026-11-29T08:30:00Z'); Every('30s'); Manual()",
        PUT,
    ],
)
def test_the_client_loads_nothing_heavy(code):
    assert heavy_ones(loaded_by(code)) == set()


def test_tasks_load_nothing_heavy():
    pytest.importorskip("wheelsched.tasks")
    modules = loaded_by("from wheelsched import task, current_run\n@task('a.b')\ndef f(): pass\nf.call()")
    assert heavy_ones(modules) == set()


def test_the_async_client_loads_no_more_than_asyncio():
    assert heavy_ones(loaded_by("from wheelsched import AsyncClient")) == {"asyncio"}


def test_every_public_name_is_there():
    assert sorted(wheelsched.__all__) == wheelsched.__all__
    for name in wheelsched.__all__:
        assert getattr(wheelsched, name) is not None, name
        assert name in dir(wheelsched)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'wheelsched' has no attribute 'Clinet'"):
        _ = wheelsched.Clinet
    with pytest.raises(ImportError):
        from wheelsched import Clinet  # noqa: F401


def test_the_version_is_that_of_the_package():
    pyproject = Path(wheelsched.__file__).parents[1] / "pyproject.toml"
    if not pyproject.exists():
        pytest.skip("no checkout: pyproject.toml is not beside the package")
    assert re.search(r'^version = "(.*)"$', pyproject.read_text(encoding="utf-8"), re.MULTILINE).group(1) == wheelsched.__version__

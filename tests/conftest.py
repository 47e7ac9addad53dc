"""What every test module shares: hypothesis profiles and a folder with a short name."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

import wheelsched
from tests.rigs.places import TASK_MODULES
from tests.rigs.server import Serving

sys.path.insert(0, TASK_MODULES)  # tests run tasks in their own process, too, by the names that workers know them by

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# No deadline and no too_slow check: a busy machine is not a bug. A failure prints the blob that repeats it.
# "ci" draws new examples at every run (derandomize=False) and keeps no database, so it depends on no earlier run.
_CALM = {"deadline": None, "print_blob": True, "derandomize": False, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("dev", max_examples=50, **_CALM)
settings.register_profile("ci", max_examples=50, database=None, **_CALM)
settings.register_profile("installed", max_examples=10, database=None, **_CALM)
settings.register_profile("long", max_examples=5_000, **_CALM)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))


def pytest_configure(config: pytest.Config) -> None:
    """Name the marks here too: the tests also run from a folder without pyproject.toml."""
    config.addinivalue_line("markers", "browser: drives Chromium; skipped aloud where there is none")
    config.addinivalue_line("markers", "slow: takes more than a few seconds; part of the full run")
    config.addinivalue_line("markers", "nightly: asks for longer what another test asks for some seconds; only with `-m nightly`")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the nightly tests out unless they are named."""
    if "nightly" in config.option.markexpr:
        return
    named = {arg.rpartition("::")[2] for arg in config.args}
    left_out = [item for item in items if item.get_closest_marker("nightly") and item.name not in named]
    items[:] = [item for item in items if item not in left_out]
    config.hook.pytest_deselected(items=left_out)


@pytest.fixture
def short_tmp() -> Iterator[Path]:
    """A fresh folder with a path of under 30 bytes, removed afterwards.

    The path of a Unix socket holds at most 107 bytes, and pytest's tmp_path alone may be longer.
    """
    folder = Path(tempfile.mkdtemp(prefix="ws", dir="/tmp" if os.access("/tmp", os.W_OK) else None))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


@pytest.fixture
def serving(short_tmp: Path) -> Iterator[Callable[..., Serving]]:
    """Starts servers on one short folder: `serving(*flags, workers=1)`; they are killed afterwards."""
    made = []

    def start(*flags, **options):
        made.append(Serving(short_tmp, *flags, **options))
        return made[-1]

    yield start
    for server in made:
        server.end(signal.SIGKILL)
        for thing in server.open:
            thing.close()


@pytest.fixture
def external(short_tmp: Path) -> Iterator[Callable[[str], None]]:
    """Starts external workers of the server of `serving`: `external(task module of tests/)`; they are killed afterwards."""
    made = []

    def start(module, **options):
        code = f"import sys; from wheelsched.pool.supervisor import Supervisor; sys.exit(Supervisor(sys.argv[1], [sys.argv[2]], **{options}).run())"
        paths = [TASK_MODULES, str(Path(wheelsched.__file__).resolve().parents[1])]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "TMPDIR": str(short_tmp)}
        made.append(subprocess.Popen([sys.executable, "-c", code, str(short_tmp / "s"), module], env=env))

    yield start
    for process in made:
        process.kill()
        process.wait()

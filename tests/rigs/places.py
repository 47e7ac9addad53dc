"""Where the files of the tests lie."""

from __future__ import annotations

import os
from pathlib import Path

import wheelsched

TESTS = Path(__file__).resolve().parents[1]
FOREIGN = TESTS / "rigs" / "foreign"  # workers in other languages
TASK_MODULES = str(TESTS / "rigs" / "tasks")  # on PYTHONPATH of servers and workers that the tests start
# PYTHONPATH of a file of the tests that is run as a script: the tests, and the package that is tested, wherever that is
SCRIPT_PATH = os.pathsep.join((str(TESTS.parent), str(Path(wheelsched.__file__).resolve().parents[1])))

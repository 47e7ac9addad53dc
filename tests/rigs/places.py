"""Where the files of the tests lie."""

from __future__ import annotations

from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
FOREIGN = TESTS / "rigs" / "foreign"  # workers in other languages
TASK_MODULES = str(TESTS / "rigs" / "tasks")  # on PYTHONPATH of servers and workers that the tests start

"""A change of a Cython file: its extension is built again, and its tests run in a new process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tests.mutants.changes import COMPILED

if TYPE_CHECKING:
    from tests.mutants.changes import Change

BUILD = """# one extension as setup.py builds them all for WHEELSCHED_CHECKED
import sys
import Cython.Build
import setuptools
name, all_of = f"wheelsched.{sys.argv.pop()}", Cython.Build.cythonize
Cython.Build.cythonize = lambda extensions, **how: all_of([e for e in extensions if e.name == name], force=True, **how)
sys.argv[1:] = ["-q", "build_ext", "--inplace", "--force"]
exec(compile(open("setup.py").read(), "setup.py", "exec"))
"""


def built(change: Change) -> str:
    """Which tests notice a change of a Cython file?"""
    path = Path(change.path)
    before = path.read_bytes()
    path.write_bytes(change.made(before))
    tests = [f"tests/{name}.py" for name in COMPILED[change.module]]
    try:
        for what, command in (("the compiler", ["-c", BUILD, change.module]), ("a test", ["-m", "pytest", "-qx", *tests])):
            if subprocess.run([sys.executable, *command], capture_output=True, check=False, timeout=600).returncode:
                return f"noticed by {what}"
    except subprocess.TimeoutExpired:
        return "noticed by the limit"
    finally:
        path.write_bytes(before)
    return "UNNOTICED"

"""The .pyi files say what the compiled extensions really are (mypy's stubtest)."""

from __future__ import annotations

import importlib.util
import os
import site
import subprocess
import sys
from pathlib import Path

import pytest

import wheelsched

PACKAGE = Path(wheelsched.__file__).parent
EXTENSIONS = sorted(".".join(stub.relative_to(PACKAGE.parent).with_suffix("").parts) for stub in PACKAGE.rglob("_*.pyi"))


@pytest.mark.slow
def test_stubs_match_extensions(tmp_path: Path) -> None:
    if importlib.util.find_spec("mypy") is None:
        pytest.skip("mypy is not installed (extra: lint)")
    assert EXTENSIONS, f"no stubs in {PACKAGE}"
    allowed = tmp_path / "allowed"
    # What Cython adds by itself: doctests, the table of C functions for cimport, methods of pickling. Not part of the face.
    allowed.write_text("wheelsched\\.\\w+\\._\\w+\\.__(test|pyx_capi)__\n.*\\.__(reduce|setstate)_cython__\n")
    config = tmp_path / "mypy.ini"  # only the stubs are judged here, not what the package imports beside them
    config.write_text("[mypy]\nfollow_imports = silent\nignore_missing_imports = True\n")
    # mypy does not follow an editable install, so a checkout must be the current folder; an installed package must not.
    installed = str(PACKAGE.parent) in {*site.getsitepackages(), site.getusersitepackages()}
    done = subprocess.run(
        [sys.executable, "-m", "mypy.stubtest", "--concise", "--mypy-config-file", str(config),
         "--allowlist", str(allowed), "--ignore-unused-allowlist", *EXTENSIONS],
        cwd=tmp_path if installed else PACKAGE.parent,
        env={**os.environ, "MYPY_CACHE_DIR": str(tmp_path / "cache"), "NO_COLOR": "1"},
        capture_output=True, text=True, timeout=300, check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr

"""Which tests reach a line: one run of the suite under coverage.py, with a context a test."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

COVERAGE = """[run]
source_pkgs = wheelsched
parallel = true
patch = subprocess, _exit
dynamic_context = test_function
context = ${PYTEST_CURRENT_TEST-}
data_file = DATA
disable_warnings = no-data-collected,module-not-imported,module-not-measured
"""
NOT_MAPPED = ("sim*", "crash*", "power_cut", "tidy", "stubs", "lint", "benchmarks")  # they reach everything, or nothing


def reach(copy: Path) -> dict[str, dict]:
    """{file: {line: its tests}}, and "took": {test: seconds}, by one run of the suite."""
    import coverage

    (copy / "coveragerc").write_text(COVERAGE.replace("DATA", str(copy / "coverage.data")))
    env = dict(os.environ, COVERAGE_PROCESS_START=str(copy / "coveragerc"))
    left_out = [f"--ignore-glob=tests/*/test_{name}.py" for name in NOT_MAPPED]
    run = [sys.executable, "-m", "coverage", "run", "--rcfile=coveragerc", "-m", "pytest", "-q", "-n", "auto", "-m", "not slow"]
    subprocess.run([*run, "--junitxml=times.xml", "tests", *left_out], cwd=copy, env=env, check=True)
    took: dict[str, float] = Counter()
    for name, test, seconds in re.findall(r'<testcase classname="(tests[.a-z_0-9]+)" name="(\w+)[^"]*" time="([\d.]+)"', (copy / "times.xml").read_text()):
        took[f"{name.replace('.', '/')}.py::{test}"] += float(seconds)
    data = coverage.Coverage(config_file=str(copy / "coveragerc"))
    data.combine()
    found: dict[str, dict] = {"took": took}
    for path in data.get_data().measured_files():
        lines = found[str(Path(path).relative_to(copy))] = {}
        for line, contexts in data.get_data().contexts_by_lineno(path).items():
            found_in = (re.match(r"(tests[./]\w+[./]test_\w+)(?:\.py::|\.)(test_\w+)", c) for c in contexts)
            names = {f"{m[1].replace('.', '/')}.py::{m[2]}" for m in found_in if m}
            lines[str(line)] = sorted(names & took.keys(), key=took.__getitem__)
    return found

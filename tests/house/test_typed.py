"""What a type checker tells the users of the package: `typed/accepted.py` and `typed/refused.py` as `mypy --strict` sees them."""

from __future__ import annotations

import importlib.util
import os
import re
import site
import subprocess
import sys
from pathlib import Path

import pytest

import wheelsched
from wheelsched.client.verbs_time import _CALENDAR
from wheelsched.model import typed
from wheelsched.model.jobs import JobFields, Policies, RunPolicies
from wheelsched.model.nouns import CATCHUPS, OVERLAPS, UNIQUE_FIELDS
from wheelsched.model.policies import _OF_JOBS, MEANINGS
from wheelsched.model.typed import CalendarFields, QueueSettings
from wheelsched.protocol.checks import QUEUE_SETTINGS
from wheelsched.protocol.definition import POLICIES

HERE = Path(__file__).parent / "typed"
PACKAGE = Path(wheelsched.__file__).parent
LINE = re.compile(r"^(accepted|refused)\.py:(\d+): (error|note): (.*)$", re.MULTILINE)


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """What mypy says: {file: {line: texts}}."""
    if importlib.util.find_spec("mypy") is None:
        pytest.skip("mypy is not installed (extra: lint)")
    folder = tmp_path_factory.mktemp("typed")
    for name in ("accepted.py", "refused.py"):
        (folder / name).write_text((HERE / name).read_text())
    # mypy does not follow an editable install, so a checkout is named; an installed package is found.
    installed = str(PACKAGE.parent) in {*site.getsitepackages(), site.getusersitepackages()}
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--follow-imports=silent", "--no-error-summary", "accepted.py", "refused.py"],
        cwd=folder, env={**os.environ, **({} if installed else {"MYPYPATH": str(PACKAGE.parent)}), "NO_COLOR": "1"},
        capture_output=True, text=True, timeout=300, check=False,
    )
    assert not done.stderr, done.stderr
    found = {"accepted": {}, "refused": {}}
    for file, line, kind, text in LINE.findall(done.stdout):
        found[file].setdefault(int(line), []).append(f"{kind}: {text}")
    assert found["accepted"], done.stdout
    return found


@pytest.mark.slow  # a type checker reads the package
def test_n_b15_strict_code_is_accepted_and_results_have_types(said) -> None:
    lines = (HERE / "accepted.py").read_text().splitlines()
    errors = [f"{n}: {text}" for n, texts in said["accepted"].items() for text in texts if text.startswith("error")]
    assert not errors, "\n".join(errors)
    for n, line in enumerate(lines, 1):
        if "reveal_type(" in line and "# " in line:
            wanted = line.rpartition("# ")[2]
            (told,) = said["accepted"][n]
            told = re.sub(r"\b(?:[a-z_]+\.)+", "", told.partition('"')[2].rstrip('"'))
            assert told == wanted, f"{n}: {line.strip()}: {told}"


@pytest.mark.slow  # as above; the same run of it
def test_n_b15_slips_are_refused(said) -> None:
    lines = (HERE / "refused.py").read_text().splitlines()
    wanted = [n for n, line in enumerate(lines, 1) if line.endswith("# no")]
    refused = {n for n, texts in said["refused"].items() if any(text.startswith("error") for text in texts)}
    assert sorted(refused) == wanted, [lines[n - 1].strip() for n in sorted(refused ^ set(wanted))]


def test_n_b15_the_types_have_the_names_that_are_checked() -> None:
    """The types say what the checks of values say, name by name and word by word."""
    names = list(MEANINGS)
    assert set(Policies.__annotations__) == set(POLICIES) == set(names)
    assert set(JobFields.__annotations__) == {*POLICIES, "note", "paused"}
    assert set(RunPolicies.__annotations__) == set(names[_OF_JOBS:])
    assert set(QueueSettings.__annotations__) == set(QUEUE_SETTINGS)
    assert set(CalendarFields.__annotations__) == set(_CALENDAR)
    assert set(typed.OverlapWord.__args__) == set(OVERLAPS)
    assert set(typed.CatchupWord.__args__) == set(CATCHUPS)
    assert set(typed._UniqueField.__args__) == set(UNIQUE_FIELDS)


def test_n_b15_a_call_and_a_run_can_be_named_with_what_they_return() -> None:
    call = wheelsched.Call[int]("x", 1)
    assert call == wheelsched.Call("x", 1)
    assert wheelsched.Run[int] is not None
    assert wheelsched.AsyncRun[str] is not None
    assert wheelsched.Task[[int], str] is not None

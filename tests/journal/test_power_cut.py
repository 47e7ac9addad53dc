"""Power cuts in the first seconds of a new data directory: each image that one could leave starts, and has what was acknowledged."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from tests.rigs import powercut
from tests.rigs.places import TESTS


@pytest.fixture(scope="module")
def shim(tmp_path_factory):
    """The library that logs what is written."""
    gcc = shutil.which("gcc")
    if gcc is None:
        pytest.skip("the log of writes needs gcc")
    built = tmp_path_factory.mktemp("shim") / "powercut.so"
    source = TESTS / "shims" / "powercut.c"
    subprocess.run([gcc, "-O2", "-shared", "-fPIC", "-o", built, source, "-ldl"], check=True, capture_output=True)
    return built


@pytest.mark.slow
@pytest.mark.parametrize("images", [20, pytest.param(150, marks=pytest.mark.nightly)])
def test_t2_every_image_of_a_power_cut_early_in_its_life_starts(short_tmp, shim, images):
    found = powercut.run_apart(short_tmp, shim, images, 1)
    assert found["bad"] == 0, found
    assert found["ok"] == images
    assert found["operations"] > 60

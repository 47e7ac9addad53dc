"""Help that shows how: the examples of `job put` and `enqueue` are commands that the parser takes."""

from __future__ import annotations

import shlex

import pytest

from tests.rigs.cli import invoke
from wheelsched.cli.policies import ENQUEUE_HELP, PUT_HELP

EXAMPLES = [line.strip() for text in (PUT_HELP, ENQUEUE_HELP) for line in text.splitlines() if line.startswith("  wheelsched ")]


@pytest.mark.parametrize(("verb", "text"), [(["job", "put"], PUT_HELP), (["enqueue"], ENQUEUE_HELP)])
def test_n_c11_help_has_examples_and_says_what_d_t_and_n_are(verb, text):
    shown = invoke(*verb, "--help").stdout
    for line in text.splitlines():
        assert line.replace("\b", "").strip() in shown
    assert "D is a duration: 250ms, 90s, 1h30m, 2d." in shown


@pytest.mark.parametrize("line", EXAMPLES)
def test_n_c11_each_example_gets_as_far_as_the_server(line, tmp_path):
    done = invoke("--socket", str(tmp_path / "none"), *shlex.split(line)[1:])
    assert done.exit_code == 5, f"{done.exit_code}: {done.stderr}"
    assert "no server at" in done.stderr

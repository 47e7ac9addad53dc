"""One table of verbs: every other list of them is compared with it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import wheelsched
from wheelsched.engine import leases
from wheelsched.model.nouns import ROLES
from wheelsched.protocol.verbs import BY_NAME, ENGINE, READS, TABLE
from wheelsched.verbs import jobs


def test_each_name_stands_once():
    assert len(BY_NAME) == len(TABLE)


def test_what_the_engine_answers_has_a_handler_and_nothing_else_has():
    assert {verb.name for verb in TABLE if verb.answered_by == ENGINE} == {*jobs.VERBS, *leases.VERBS}


@pytest.mark.parametrize("verb", TABLE, ids=lambda verb: verb.name)
def test_the_specification_names_it(verb):
    page = Path(wheelsched.__file__).with_name("manual") / "protocol.md"
    assert re.search(rf"\b{verb.name}\b", page.read_text(encoding="utf-8"))


@pytest.mark.parametrize("verb", TABLE, ids=lambda verb: verb.name)
def test_its_properties_fit_together(verb):
    assert not verb.role or verb.role in ROLES
    assert not (verb.calming and verb.growing), "what stops more keeps no more"
    assert not verb.calming or verb.mutating
    assert not verb.early or verb.worker
    assert verb.answered_by == ENGINE or not verb.mutating, "only a turn changes something"
    assert not verb.history or verb.answered_by == ENGINE
    assert verb.answered_by != READS or not verb.role

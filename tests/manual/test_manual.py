"""README and the manual: every page is listed, and every link leads somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

import wheelsched
from tests.rigs.places import TESTS
from wheelsched.cli.manual import pages
from wheelsched.cli.root import cli

MANUAL = Path(wheelsched.__file__).with_name("manual")
README = TESTS.parent / "README.md"
TOPICS = [page.topic for page in pages()]
needs_readme = pytest.mark.skipif(not README.is_file(), reason="no checkout here: only the tests were copied")


def invoke(*args):
    return CliRunner().invoke(cli, ["manual", *args])


def test_the_list_of_pages():
    done = invoke()
    assert done.exit_code == 0
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["TOPIC", *TOPICS]
    assert set(TOPICS) == {path.stem for path in MANUAL.iterdir()}


@pytest.mark.parametrize("topic", TOPICS)
def test_a_page_begins_with_its_title_and_one_line(topic):
    text = (MANUAL / f"{topic}.md").read_text(encoding="utf-8")
    title, about, _ = text.split("\n\n", 2)
    assert re.fullmatch(r"# \S.*", title)
    assert re.fullmatch(r"[^#`\n].{10,110}\.", about)
    assert invoke(topic.upper()).stdout.strip() == text.strip()


def test_a_page_that_is_not_there():
    for topic, meant in (("schedule", "perhaps schedules"), ("retries", "perhaps runs (section "), ("xyzzy", "the pages are operating, ")):
        done = invoke(topic)
        assert (done.exit_code, done.stdout) == (3, "")
        assert meant in done.stderr


@needs_readme
def test_readme_lists_every_page():
    assert re.findall(r"^\| \[([\w-]+)\]\(wheelsched/manual/\1\.md\) \|", README.read_text(encoding="utf-8"), re.MULTILINE) == TOPICS


def anchors(text):
    """The anchors that a reader of Markdown makes of the headings."""
    return {re.sub(r"[^\w\- ]", "", line).strip().lower().replace(" ", "-") for line in re.findall(r"^#+ (.+)$", text, re.MULTILINE)}


@pytest.mark.parametrize("path", [pytest.param(README, marks=needs_readme), *sorted(MANUAL.iterdir())], ids=lambda path: path.stem)
def test_every_link_leads_somewhere(path):
    for link in re.findall(r"\]\(([^)\s]+)\)", path.read_text(encoding="utf-8")):
        target, _, anchor = link.partition("#")
        found = path.parent / target if target else path
        assert found.is_file(), link
        assert not anchor or anchor in anchors(found.read_text(encoding="utf-8")), link

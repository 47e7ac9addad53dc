"""`wheelsched manual`: the pages of the manual, which come with the package."""

from __future__ import annotations

import re
from difflib import get_close_matches
from importlib.resources import files
from typing import TYPE_CHECKING, Final, NamedTuple

import click

from .output import show_many, show_one
from .shell import EXIT_NOT_FOUND, Failed, Verb, shell, words

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

# In the order in which somebody new reads them.
_ORDER: Final = (
    "operating", "web", "guarantees", "schedules", "queues", "tasks", "runs", "workers", "recipes", "jobs-files", "forecast", "testing",
    "limits", "reference", "protocol", "internals",
)
_SUFFIX: Final = ".md"
_MARKS: Final = re.compile(r"<!--.*?-->\n\n?", re.DOTALL)  # they tell the tests how a block is run


class Page(NamedTuple):
    """A page: its topic, its line in the list, its whole text (Markdown) without comments."""

    topic: str
    about: str
    text: str

    @property
    def headings(self) -> list[str]:
        """What a searching reader may look for."""
        return re.findall(r"^#+ (.+)$", self.text, re.MULTILINE)


def _page(path: Traversable) -> Page:
    text = _MARKS.sub("", path.read_text(encoding="utf-8"))
    return Page(path.name.removesuffix(_SUFFIX), " ".join(text.split("\n\n")[1].split()), text)


def pages() -> list[Page]:
    """All pages, in reading order."""
    found = [_page(path) for path in (files(__package__.partition(".")[0]) / "manual").iterdir() if path.name.endswith(_SUFFIX)]
    place = {topic: n for n, topic in enumerate(_ORDER)}
    return sorted(found, key=lambda page: (place.get(page.topic, len(place)), page.topic))


def _near(topic: str, known: list[Page]) -> str:
    """What may have been meant: pages of a similar name, then sections that have the word."""
    topics = [page.topic for page in known]
    near = get_close_matches(topic, topics, 3, 0.8)
    sections = [
        f"{page.topic} (section {heading!r})"
        for page in known for heading in page.headings[1:] if topic.lower().rstrip("s") in heading.lower()
    ]
    return f"perhaps {words([*near, *sections][:5])}" if near or sections else f"the pages are {words(topics)}"


@click.command(cls=Verb)
@click.argument("topic", required=False)
def manual(topic: str | None) -> None:
    """Show a page of the manual, or the list of pages.

    A page is shown a screen at a time on a terminal ($PAGER), as plain text elsewhere.

    As JSON: a list of {topic, about}, or one {topic, about, text}.
    """
    sh = shell()
    known = pages()
    if topic is None:
        show_many(sh, known, lambda page: {"topic": page.topic, "about": page.about}, ["TOPIC", "ABOUT"], lambda page: page[:2])
        return
    page = next((page for page in known if page.topic == topic.lower().removesuffix(_SUFFIX)), None)
    if page is None:
        raise Failed(f"the manual has no page {topic!r}: {_near(topic, known)}", EXIT_NOT_FOUND)
    if sh.table:
        click.echo_via_pager(page.text)
    else:
        show_one(sh, page._asdict(), list)

"""The code blocks of README and the manual, and the marks before them.

A mark is an HTML comment between the text and the block, which readers don't see:

    <!-- file: tasks.py -->               the block is this file; its tasks are served to the page's other blocks
    <!-- not run: why not -->             nothing runs it; it is still compiled, or parsed by the command line
    <!-- run by: tests/manual/test_fence.py -->  this test reads it from the page
    <!-- test-command -->                 .ci/run reads it from the page
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import NamedTuple

import click

import wheelsched
from tests.rigs.places import TESTS
from wheelsched.cli.root import cli

MANUAL = Path(wheelsched.__file__).with_name("manual")
README = TESTS.parent / "README.md"  # not there where only the tests were copied
_BLOCK = re.compile(r"(?:^<!-- *(?P<mark>[^>]*?) *-->\n\n?)?^```(?P<kind>\w+)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
_COMMAND = re.compile(r"^(?:\.venv/bin/)?wheelsched ")


class Block(NamedTuple):
    """A fenced block: its language, its mark ("" for none) and what the mark says, its text, and where it begins."""

    kind: str
    mark: str
    said: str
    text: str
    path: Path
    line: int

    @property
    def where(self) -> str:
        return f"{self.path.name}:{self.line}"


def sources() -> list[Path]:
    """README, where it is, and every page."""
    return [*([README] if README.is_file() else []), *sorted(MANUAL.iterdir())]


def blocks(path: Path) -> list[Block]:
    text = path.read_text(encoding="utf-8")
    found = []
    for m in _BLOCK.finditer(text):
        mark, _, said = (m["mark"] or "").partition(":")
        found.append(Block(m["kind"], mark.strip(), said.strip(), m["text"], path, text[: m.start("text")].count("\n") + 1))
    return found


def commands(block: Block) -> list[list[str]]:
    """Each call of wheelsched in a block of shell lines, as words; of a pipe only ours. Other lines are left out."""
    lines = block.text.replace("\\\n", " ").splitlines()
    parts = [part.strip() for line in lines for part in re.split(r" \| | && | > ", line)]
    return [shlex.split(part, comments=True)[1:] for part in parts if _COMMAND.match(part)]


def others(block: Block) -> list[str]:
    """Lines of a shell block that are more than one call of wheelsched."""
    lines = block.text.replace("\\\n", " ").splitlines()
    return [line for line in lines if line.strip() and not line.startswith("#") and (not _COMMAND.match(line) or re.search(r" \| | && | > ", line))]


def parse(words: list[str]) -> click.Command:
    """The verb that these words call. click's error for a verb or a flag that there is not."""
    command: click.Command = cli
    context, rest = cli.make_context("wheelsched", list(words)), []
    while isinstance(command, click.Group):
        rest = [*(getattr(context, "_protected_args", None) or []), *context.args]
        name, found, rest = command.resolve_command(context, rest)
        assert found is not None
        command = found
        context = command.make_context(name, rest, parent=context)
    context.close()  # files that its arguments name were opened
    return command


def spans(text: str) -> list[str]:
    """What stands in backticks in running text, blocks left out."""
    return re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL))

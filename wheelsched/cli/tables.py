"""Tables for people: aligned, as wide as the terminal, with colour for what is wrong. Into a pipe or a file in full and without colour."""

from __future__ import annotations

import os
import shutil
import sys
from itertools import chain, islice
from typing import TYPE_CHECKING, Final, NamedTuple

import click

from ..client.words import clean
from .shell import shell

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["Head", "Tinted", "brief", "fitted", "table"]

_MEASURED: Final = 1_000  # rows that decide the widths of a table; later ones may stick out
_GAP: Final = 2  # spaces between columns
_ELLIPSIS: Final = "\N{HORIZONTAL ELLIPSIS}"


class Head(NamedTuple):
    """A column. Where there is no room its cells are cut down to `least` characters (0: never), and columns of the highest `rank` are
    left out first (0: never).
    """

    title: str
    right: bool = False
    rank: int = 0
    least: int = 0


class Tinted(str):
    """A cell in a colour."""

    __slots__ = ("colour",)

    def __new__(cls, text: str, colour: str) -> Tinted:  # noqa: PYI034 - of a str
        """`colour`: as click names it."""
        made = super().__new__(cls, text)
        made.colour = colour
        return made

    colour: str


def coloured() -> bool:
    """Is colour wanted: on a terminal that can show it, unless NO_COLOR is set?"""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def brief() -> bool:
    """Are tables to fit a terminal? Not where stdout is none, or all columns are asked for."""
    return sys.stdout.isatty() and not shell().wide


def fitted(heads: Sequence[Head], widths: Sequence[int], room: int | None) -> list[tuple[int, int]]:
    """(column, width) of what is shown within so many characters: cells are cut, the last column first, then columns are left out."""
    kept = list(range(len(heads)))
    if room is None:
        return [(i, widths[i]) for i in kept]
    while True:
        now = {i: widths[i] for i in kept}
        excess = sum(now.values()) + _GAP * (len(kept) - 1) - room
        for i in reversed(kept):
            least = max(heads[i].least, len(heads[i].title))
            if excess > 0 and heads[i].least and now[i] > least:
                less = min(excess, now[i] - least)
                now[i] -= less
                excess -= less
        drop = max((i for i in kept if heads[i].rank), key=lambda i: heads[i].rank, default=None)
        if excess <= 0 or drop is None:
            return list(now.items())
        kept.remove(drop)


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: max(0, width - 1)] + _ELLIPSIS


def _cleaned(row: Sequence[str]) -> list[str]:
    return [cell if isinstance(cell, Tinted) else clean(cell) for cell in row]


def table(heads: Sequence[str | Head], rows: Iterable[Sequence[str]], empty: str = "none") -> None:
    """Aligned columns, two spaces between them. Numbers are right-aligned when the head ends with a `#`."""
    columns = [head if isinstance(head, Head) else Head(head.removesuffix("#"), head.endswith("#")) for head in heads]
    waiting = iter(rows)
    first = [_cleaned(row) for row in islice(waiting, _MEASURED)]
    if not first:
        click.echo(empty, err=True)
        return
    room, colour = shutil.get_terminal_size().columns if brief() else None, coloured()
    widths = [max(len(cell) for cell in column) for column in zip([c.title for c in columns], *first, strict=True)]
    shown = fitted(columns, widths, room)

    def line(row: Sequence[str]) -> str:
        parts = []
        for i, width in shown:
            text = _cut(row[i], width) if room is not None else row[i]
            padded = text.rjust(width) if columns[i].right else text.ljust(width) if i != shown[-1][0] else text
            cell = row[i]
            parts.append(click.style(padded, fg=cell.colour) if colour and isinstance(cell, Tinted) else padded)
        return (" " * _GAP).join(parts).rstrip()

    click.echo(line([column.title for column in columns]))
    for row in chain(first, (_cleaned(row) for row in waiting)):
        click.echo(line(row))

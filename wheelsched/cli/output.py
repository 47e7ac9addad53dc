"""Output: tables for people, JSON and JSON Lines for programs; a progress bar on a terminal's stderr."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from ..client.times import DST_LEGEND
from ..client.words import clean
from .tables import table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from types import TracebackType
    from typing import Self

    from ..client.times import Times
    from .shell import Shell
    from .tables import Head

T = TypeVar("T")

_BAR: Final = 30


def to_json(value: Any) -> str:
    """One line of JSON."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def show_one(sh: Shell, data: dict[str, Any], page: Callable[[], Iterable[str]]) -> None:
    """One thing: a page for people, or an object."""
    if sh.table:
        for line in page():
            click.echo(line)
    else:
        click.echo(to_json(data) if sh.output == "jsonl" else json.dumps(data, ensure_ascii=False, indent=2))


def show_many(
    sh: Shell, things: Iterable[T], to_dict: Callable[[T], Any], heads: Sequence[str | Head], cells: Callable[[T], Sequence[str]],
    times: Times | None = None, empty: str = "none",
) -> None:
    """A listing: an aligned table, one JSON array, or an object a line; written as it comes."""
    if sh.output == "jsonl":
        for thing in things:
            click.echo(to_json(to_dict(thing)))
    elif sh.output == "json":
        opened = False
        for thing in things:
            click.echo((",\n " if opened else "[") + to_json(to_dict(thing)), nl=False)
            opened = True
        click.echo("]" if opened else "[]")
    else:
        table(heads, (cells(thing) for thing in things), empty)
        if times is not None and times.marked:
            click.echo(f"\n{DST_LEGEND}")


def pairs(rows: Iterable[tuple[str, str]]) -> list[str]:
    """Aligned `name  value` lines; values of several lines stay in their column."""
    known = [(name, value) for name, value in rows if value not in ("", "-")]
    width = max((len(name) for name, _ in known), default=0)
    out = []
    for name, value in known:
        head, *rest = [clean(line) for line in value.splitlines()] or [""]
        out.append(f"{name.ljust(width)}  {head}")
        out += [" " * (width + 2) + line for line in rest]
    return out



class Progress:
    """A bar on stderr when that is a terminal; nothing at all otherwise."""

    def __init__(self, label: str, total: int) -> None:
        self._label = label
        self._total = max(total, 1)
        self._done = 0
        self._shown = -1
        self._live = sys.stderr.isatty()

    def __enter__(self) -> Self:
        self.to(0)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._live:
            click.echo("\r\x1b[K", err=True, nl=False)

    def step(self, n: int = 1) -> None:
        """So many more."""
        self.to(self._done + n)

    def to(self, done: int) -> None:
        """So many in all."""
        self._done = done
        share = min(1000, 1000 * done // self._total)
        if self._live and share != self._shown:
            self._shown = share
            bar = ("#" * (_BAR * share // 1000)).ljust(_BAR, ".")
            click.echo(f"\r{self._label} [{bar}] {share / 10:5.1f} % of {self._total:,}\x1b[K", err=True, nl=False)

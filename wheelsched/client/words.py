"""Figures and texts as people read them, on a terminal and in a browser. Pure."""

from __future__ import annotations

from typing import Final

__all__ = ["clean", "cut", "number", "size"]

_UNITS: Final = ("B", "KiB", "MiB", "GiB")


def clean(text: str) -> str:
    """Nothing that moves the cursor, colours the terminal or turns the order of letters around: what others stored is shown here."""
    return text if text.isprintable() else "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def cut(text: str, width: int) -> str:
    """At most so many characters, the last an ellipsis when something was cut. One line."""
    line = " ".join(text.split())
    return line if len(line) <= width else line[: width - 1] + "\N{HORIZONTAL ELLIPSIS}"


def number(value: int) -> str:
    """`1,234,567`."""
    return f"{value:,}"


def size(n: float) -> str:
    """`812 B`, `1.4 MiB`."""
    for unit in _UNITS:
        if n < 1024:
            return f"{n:.0f} {unit}" if unit == "B" else f"{n:.3g} {unit}"
        n /= 1024
    return f"{n:.3g} TiB"

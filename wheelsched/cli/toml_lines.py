"""Where things are in a TOML file: tomllib tells no lines. For text that tomllib has read, so it is known to be well-formed."""

from __future__ import annotations

import re
import tomllib
from typing import Final

__all__ = ["Path", "line_of", "toml_lines"]

Path = tuple[str | int, ...]

_BLANK: Final = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_BARE: Final = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)
_STRING: Final = re.compile(r'"""(?:[^"\\]|\\.|"(?!""))*"{3,5}|\'\'\'(?s:.*?)\'{3,5}|"(?:[^"\\\n]|\\.)*"|\'[^\'\n]*\'', re.DOTALL)
_SCALAR: Final = re.compile(r"[^,\]}\n#]*")


def toml_lines(text: str) -> dict[Path, int]:
    """Path of keys and places in lists -> number of its line, from 1 on."""
    return _Scanner(text).scan()


def line_of(lines: dict[Path, int], path: Path) -> int:
    """The line of a path, or of the nearest thing around it that has one; 1 for the whole file."""
    while path and path not in lines:
        path = path[:-1]
    return lines.get(path, 1)


class _Scanner:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.line = 1
        self.lines: dict[Path, int] = {}
        self.tables: dict[Path, int] = {}  # [[name]] -> how many of them so far

    def scan(self) -> dict[Path, int]:
        """Read all statements."""
        here: Path = ()
        while True:
            self._skip(_BLANK)
            if self.at >= len(self.text):
                return self.lines
            if self.text[self.at] == "[":
                here = self._header()
            else:
                self._pair(here)

    def _skip(self, pattern: re.Pattern[str]) -> str:
        found = pattern.match(self.text, self.at)
        taken = found[0] if found else ""
        self.line += taken.count("\n")
        self.at += len(taken)
        return taken

    def _header(self) -> Path:
        line, many = self.line, self.text.startswith("[[", self.at)
        self.at += 2 if many else 1
        path = self._key(())
        self.at = self.text.index("]", self.at) + (2 if many else 1)
        if many:
            n = self.tables[path] = self.tables.get(path, -1) + 1
            path = (*path, n)
        for end in range(1, len(path) + 1):
            self.lines.setdefault(path[:end], line)
        return path

    def _key(self, path: Path) -> Path:
        while True:
            self._skip(_BLANK)
            taken = self._skip(_BARE)
            path = (*path, taken or str(tomllib.loads("k=" + self._skip(_STRING))["k"]))
            self._skip(_BLANK)
            if self.text[self.at : self.at + 1] != ".":
                return path
            self.at += 1

    def _pair(self, here: Path) -> None:
        self._skip(_BLANK)
        line = self.line
        path = self._key(here)
        for n in range(len(here) + 1, len(path) + 1):
            self.lines.setdefault(path[:n], line)
        self.at = self.text.index("=", self.at) + 1
        self._value(path)

    def _value(self, path: Path) -> None:
        self._skip(_BLANK)
        first = self.text[self.at : self.at + 1]
        if first in ('"', "'"):
            self._skip(_STRING)
        elif first in ("[", "{"):
            self.at += 1
            end, n = ("]" if first == "[" else "}"), 0
            while True:
                self._skip(_BLANK)
                if self.text[self.at] == end:
                    self.at += 1
                    return
                if self.text[self.at] == ",":
                    self.at += 1
                elif first == "[":
                    self.lines.setdefault((*path, n), self.line)
                    self._value((*path, n))
                    n += 1
                else:
                    self._pair(path)
        else:
            self._skip(_SCALAR)

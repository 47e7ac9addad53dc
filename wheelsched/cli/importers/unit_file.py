"""Reads unit files of systemd: settings with their lines, and command lines. No I/O."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from ...model.errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Exec", "Setting", "parse_exec", "parse_unit", "split_words"]

_ESCAPES: Final = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", "s": " ", "\\": "\\", '"': '"', "'": "'"}
_HEX: Final = re.compile(r"x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|([0-7]{3})")
_VARIABLE: Final = re.compile(r"\$\$|\$\{([A-Za-z_]\w*)\}|\$([A-Za-z_]\w*)$", re.ASCII)
_SPECIFIER: Final = re.compile(r"%(.)")


class Setting(NamedTuple):
    """One `key=value`, continuation lines joined."""

    section: str
    key: str
    value: str
    line: int


@dataclass(slots=True)
class Exec:
    """One command line: its words, the flags in front of it (`-`, `@`, `:`, `+`, `!`), and what to say about it."""

    argv: list[str]
    flags: str
    notes: list[str] = field(default_factory=list)


def parse_unit(text: str) -> tuple[list[Setting], list[tuple[int, str]]]:
    """(settings in order, lines that are none with the reason)."""
    settings: list[Setting] = []
    bad: list[tuple[int, str]] = []
    section, held, start = "", "", 0
    for number, raw in enumerate(text.split("\n"), 1):
        line = raw.strip()
        if line.startswith(("#", ";")) or (not line and not held):
            continue
        start = start or number
        if line.endswith("\\"):
            held += line[:-1] + " "
            continue
        whole, held, first, start = held + line, "", start, 0
        if whole.startswith("[") and whole.endswith("]"):
            section = whole[1:-1]
            continue
        key, equals, value = whole.partition("=")
        if not equals or not section:
            bad.append((first, f"{whole[:60]!r} is no setting" if section else f"{whole[:60]!r} stands before any section"))
        else:
            settings.append(Setting(section, key.strip(), value.strip(), first))
    return settings, bad


def split_words(text: str) -> list[str]:
    """Words with the quotes and the escapes of unit files resolved. InvalidArgumentError for a quote without an end."""
    words: list[str] = []
    word, quote, at = None, "", 0
    while at < len(text):
        c = text[at]
        at += 1
        if c == "\\" and at < len(text):
            taken, at = _escape(text, at)
            word = (word or "") + taken
        elif quote:
            if c == quote:
                quote = ""
            else:
                word = (word or "") + c
        elif c in "\"'":
            quote, word = c, word or ""
        elif c.isspace():
            if word is not None:
                words.append(word)
            word = None
        else:
            word = (word or "") + c
    if quote:
        raise InvalidArgumentError(f"a {quote} has no end")
    return words if word is None else [*words, word]


def _escape(text: str, at: int) -> tuple[str, int]:
    """What stands for the escape at `at`, and where it ends. An unknown one stays as it is."""
    found = _HEX.match(text, at)
    if found:
        return chr(int(found[1] or found[2], 16) if not found[3] else int(found[3], 8)), found.end()
    c = text[at]
    return (_ESCAPES[c], at + 1) if c in _ESCAPES else ("\\" + c, at + 1)


def parse_exec(text: str, env: Mapping[str, str], specifiers: Mapping[str, str]) -> list[Exec]:
    """The commands of one ExecStart=, of which `;` parts several. Variables are those of Environment=, as far as it sets them.

    InvalidArgumentError for a specifier whose value is not known, and for an empty command.
    """
    out: list[Exec] = []
    for words in _commands(split_words(text)):
        flags = re.match(r"[@:+!|-]*", words[0])[0] if words else ""  # type: ignore[index]  # it matches anything
        argv = [words[0][len(flags) :], *words[1:]] if words else []
        if not argv or not argv[0]:
            raise InvalidArgumentError("a command is empty")
        made = Exec([], flags)
        for word in argv:
            made.argv += _expanded(_specified(word, specifiers), {} if ":" in flags else env, made.notes, raw=":" in flags)
        if "@" in flags and len(made.argv) > 1:
            made.notes.append(f"its process is not called {made.argv.pop(1)!r}")
        out.append(made)
    return out


def _commands(words: list[str]) -> list[list[str]]:
    out: list[list[str]] = [[]]
    for word in words:
        if word == ";":
            out.append([])
        else:
            out[-1].append(";" if word == "\\;" else word)
    return [words for words in out if words] or [[]]


def _specified(word: str, specifiers: Mapping[str, str]) -> str:
    def put(found: re.Match[str]) -> str:
        if found[1] == "%":
            return "%"
        if found[1] not in specifiers:
            raise InvalidArgumentError(f"the specifier %{found[1]} has no meaning here; write its value out")
        return specifiers[found[1]]

    return _SPECIFIER.sub(put, word)


def _expanded(word: str, env: Mapping[str, str], notes: list[str], *, raw: bool) -> list[str]:
    """The words that a word becomes. `$NAME` alone is split at blanks; a variable that is not set is empty."""
    if raw or "$" not in word:
        return [word]

    def value(name: str) -> str:
        if name not in env:
            notes.append(f"${name} is not set by Environment=: taken as empty")
        return env.get(name, "")

    alone = re.fullmatch(r"\$([A-Za-z_]\w*)", word, re.ASCII)
    if alone:
        return value(alone[1]).split()
    return [_VARIABLE.sub(lambda m: "$" if m[0] == "$$" else value(m[1]) if m[1] else m[0], word)]

"""Files with variables for commands, such as those of EnvironmentFile= of systemd: read at each run, and kept nowhere.

One NAME=value a line. A line that begins with # or ; is a comment, `export` before the name means nothing. A value may stand in quotes;
in double ones a backslash takes the meaning from a quote, a backslash, a dollar sign or a backtick. No error says what stands in a file.
"""

from __future__ import annotations

import os
import re
import stat
from typing import TYPE_CHECKING, Final

from ..tasks.verdicts import NotRetried

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

__all__ = ["EnvFileRefused", "variables"]

BYTES_MAX: Final = 64 * 1024
_LINE: Final = re.compile(r"(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.ASCII)
_DOUBLE: Final = re.compile(r'"((?:[^"\\]|\\.)*)"\s*')
_SINGLE: Final = re.compile(r"'([^']*)'\s*")
_ESCAPED: Final = re.compile(r'\\(["\\$`])')


class EnvFileRefused(NotRetried):
    """A file of variables that can't be used: the command is not started."""

    __module__ = "wheelsched"  # what a run's error says, wherever this class lives


def variables(paths: Iterable[str], uids: Collection[int]) -> dict[str, str]:
    """The variables of all these files, later ones winning. A path with a - before it need not be there. EnvFileRefused.

    `uids`: whose a file may be, beside root's.
    """
    found: dict[str, str] = {}
    for path in paths:
        data = _read(path.removeprefix("-"), uids, optional=path.startswith("-"))
        found |= _parsed(path.removeprefix("-"), data)
    return found


def _read(path: str, uids: Collection[int], *, optional: bool) -> bytes:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        if optional:
            return b""
        raise EnvFileRefused(f"env_file {path}: it is not there, on this worker") from None
    except OSError as e:
        raise EnvFileRefused(f"env_file {path}: {e.strerror}") from None
    try:
        info = os.fstat(fd)
        mode = f"{stat.S_IMODE(info.st_mode):04o}"
        if not stat.S_ISREG(info.st_mode):
            raise EnvFileRefused(f"env_file {path}: it is no file")
        if info.st_uid not in (0, *uids):
            raise EnvFileRefused(f"env_file {path}: it belongs to the user {info.st_uid}, who is neither root nor the user that runs this")
        if info.st_mode & 0o022:
            raise EnvFileRefused(f"env_file {path}: others may write in it (mode {mode}): `chmod 600 {path}`")
        if info.st_mode & 0o004:
            raise EnvFileRefused(f"env_file {path}: anybody may read it (mode {mode}): `chmod 600 {path}`, or 640 for a group")
        data = os.read(fd, BYTES_MAX + 1)
    finally:
        os.close(fd)
    if len(data) > BYTES_MAX:
        raise EnvFileRefused(f"env_file {path}: it has more than {BYTES_MAX} bytes")
    return data


def _parsed(path: str, data: bytes) -> dict[str, str]:
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise EnvFileRefused(f"env_file {path}: it is no text in UTF-8") from None
    found = {}
    for number, line in enumerate(text.split("\n"), 1):
        bare = line.strip()
        if not bare or bare[0] in "#;":
            continue
        parts = _LINE.fullmatch(bare)
        value = None if parts is None else _value(parts[2].strip())
        if parts is None or value is None or "\0" in value:
            raise EnvFileRefused(f"env_file {path}: line {number} is no NAME=value")
        found[parts[1]] = value
    return found


def _value(text: str) -> str | None:
    """Without its quotes; None for quotes that are not closed, or have something behind them."""
    if text[:1] == '"':
        quoted = _DOUBLE.fullmatch(text)
        return None if quoted is None else _ESCAPED.sub(r"\1", quoted[1])
    if text[:1] == "'":
        quoted = _SINGLE.fullmatch(text)
        return None if quoted is None else quoted[1]
    return text

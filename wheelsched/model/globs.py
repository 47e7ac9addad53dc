"""Patterns over names, as a shell's: `*`, `?` and `[...]`. Pure.

Whoever may ask may send any pattern, and each is held against thousands of names in one turn; so its length and its number of stars are
bounded, and no pattern takes more than some microseconds a name.
"""

from __future__ import annotations

import re
from fnmatch import translate
from typing import TYPE_CHECKING, Any, Final

from .errors import InvalidArgumentError
from .nouns import GLOB_MAX, GLOB_STARS_MAX

if TYPE_CHECKING:
    from collections.abc import Callable

_STARS: Final = re.compile(r"\*+")


def names_a_turn(pattern: str | None, most: int) -> int:
    """How many names one turn holds against a pattern: what follows a star is tried at each place of a name, so long parts cost more."""
    longest = max((len(part) for part in (pattern or "").split("*")[1:]), default=0)
    return max(1, most // (1 + longest // 8) ** 2)


def glob(pattern: Any, what: str = "match") -> Callable[[str], bool]:
    """Whether a name fits. InvalidArgumentError for no text, and for what would take too long."""
    if not isinstance(pattern, str):
        raise InvalidArgumentError(f"{what}: a text is wanted")
    if len(pattern) > GLOB_MAX:
        raise InvalidArgumentError(f"{what}: a pattern of {len(pattern):,} characters: at most {GLOB_MAX} are allowed")
    stars = len(_STARS.findall(pattern))
    if stars > GLOB_STARS_MAX:
        raise InvalidArgumentError(f"{what}: a pattern with {stars} stars: at most {GLOB_STARS_MAX} are allowed")
    found = re.compile(translate(pattern)).match
    return lambda name: found(name) is not None

"""Zone data of the tzdata package, and of nothing else: the system's own files may be of another version."""

from __future__ import annotations

from functools import cache
from typing import Final

from tzdata import IANA_VERSION

__all__ = ["VERSION", "load_zone", "zone_names"]

VERSION: Final[str] = IANA_VERSION


@cache
def zone_names() -> frozenset[str]:
    """Every zone name that tzdata has."""
    from importlib.resources import files  # noqa: PLC0415 - costs milliseconds, and most users never ask for a zone

    return frozenset((files("tzdata") / "zones").read_text(encoding="ascii").split())


@cache
def _load(name: str) -> bytes:
    from importlib.resources import files  # noqa: PLC0415 - see above

    return files("tzdata").joinpath("zoneinfo", *name.split("/")).read_bytes()


def load_zone(name: str) -> bytes | None:
    """The TZif bytes of a zone, or None for a name that tzdata's list doesn't have; no path is made of such a name."""
    return _load(name) if name in zone_names() else None

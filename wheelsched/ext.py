"""Ready-made Exts for types that applications have everywhere: `Client(ext=STANDARD)`, and `from wheelsched.ext import STANDARD` in a
module of tasks, where workers and simulators find it.

Codes 110 to 119 of the wire are theirs. A set is stored sorted, so that equal sets are equal payloads; aware datetimes need no Ext.
"""

from __future__ import annotations

import sys
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, Final
from uuid import UUID

from .model.payloads import Ext

__all__ = ["STANDARD"]


def _sorted(values: Any) -> list[Any]:
    """The items of a set, in an order that does not depend on the process."""
    return sorted(values, key=lambda value: (type(value).__name__, repr(value)))


def _span(value: timedelta) -> list[int]:
    return [value.days, value.seconds, value.microseconds]


def _member(value: Enum) -> list[str]:
    """A member by its names: what it is equal to may change, what it is called is what code means."""
    return [type(value).__module__, type(value).__qualname__, value.name]


def _of_names(names: list[str]) -> Enum:
    """A member again. Its module has to be imported already: a payload makes nobody import anything. LookupError, TypeError."""
    module, qualname, name = names
    found: Any = sys.modules.get(module)
    if found is None:
        raise LookupError(f"the module {module} is not imported here")
    for part in qualname.split("."):
        found = vars(found).get(part)
    if not isinstance(found, type) or not issubclass(found, Enum):
        raise TypeError(f"{module}.{qualname} is no Enum")
    return found[name]


STANDARD: Final = (
    Ext(110, date, date.isoformat, date.fromisoformat),
    Ext(111, time, time.isoformat, time.fromisoformat),
    Ext(112, timedelta, _span, lambda parts: timedelta(*parts)),
    Ext(113, Decimal, str, Decimal),
    Ext(114, UUID, lambda value: value.bytes, lambda data: UUID(bytes=data)),
    Ext(115, Enum, _member, _of_names),
    Ext(116, tuple, list, tuple),
    Ext(117, set, _sorted, set),
    Ext(118, frozenset, _sorted, frozenset),
)

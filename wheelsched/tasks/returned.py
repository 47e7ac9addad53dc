"""What user code has returned, as it is kept. Code that returned did its work: what it returned never makes its run fail, and so never
makes it run again.

A value that can't be kept (no payload, or too long) leaves a mark in its place, see `protocol/returned.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..model.nouns import OUTPUT_MAX
from ..model.payloads import NO_EXTS
from ..protocol import frames
from ..protocol.returned import mark, too_long
from .verdicts import NotRetried, text_of, type_name

if TYPE_CHECKING:
    from ..model.payloads import Exts


def returned(value: Any, exts: Exts = NO_EXTS) -> dict[str, Any]:
    """The entry of a result map for what a run has returned: the value, or the mark. Raises nothing, whatever code of the value's class
    or of its Ext raises.
    """
    if value is None:
        return {}
    try:
        data = frames.encode_value(value, "return value", exts, lenient=True)
    except BaseException as e:  # noqa: BLE001 - code of the value's own may raise anything, and memory may be out
        return mark(type_name(type(value)), None, text_of(e))
    return {"value": data} if len(data) <= OUTPUT_MAX else mark(type_name(type(value)), len(data), too_long(len(data), OUTPUT_MAX))


def of_batch(value: Any, n: int) -> list[Any]:
    """What a batch handler has returned, as one outcome for each of its `n` runs. NotRetried for anything else: it has returned, so
    calling it again would repeat the work of all of them.
    """
    kind = type(value)
    if issubclass(kind, list | tuple) and len(value) == n:
        return list(value)
    got = f"{len(value)} of them" if issubclass(kind, list | tuple) else type_name(kind)
    raise NotRetried(f"a batch handler returns a list with one outcome for each of its {n} runs, not {got}; it has returned, so these runs "
                     "are not tried again by themselves")

"""What guards a question that changes nothing: a bug in its answer ends this request, and not the server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..model.errors import BUGS, InternalError, WheelschedError
from ..process.stderr import ERROR
from ..protocol import frames

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..process.stderr import Log

__all__ = ["answered"]


def answered(request_id: int, what: str, ask: Callable[[], bytes | None], log: Log) -> bytes | None:
    """The frame that `ask` gives; None: not yet. An error of ours is its answer, and so is a bug, which is logged as well."""
    try:
        return ask()
    except WheelschedError as e:
        return frames.encode_error(request_id, e)
    except BUGS as e:
        log(f"bug: {what}: {type(e).__name__}: {e}", ERROR)
        return frames.encode_error(request_id, InternalError(f"{type(e).__name__}: {e}"))

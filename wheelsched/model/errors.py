"""Errors: one base class, one class per code of the wire, and who is at fault.

The codes are a closed list. Whatever else escapes from wheelsched is a bug in wheelsched.
"""

from __future__ import annotations

from typing import Any, ClassVar, Final

__all__ = [
    "AlreadyExistsError", "ConfigError", "CorruptJournalError", "DeadlineExceededError", "FailedPreconditionError",
    "FencedError", "InternalError", "InvalidArgumentError", "LockedError", "NotFoundError", "PayloadError",
    "PermissionDeniedError", "ResourceExhaustedError", "ResultNotKept", "RunFailed", "RunTimeout", "ScheduleError", "StorageFullError",
    "UnavailableError", "UnimplementedError", "WheelschedError", "error_from_wire",
]


class WheelschedError(Exception):
    """Base of every error raised on purpose. `code` is from the closed list of the wire; `detail` holds plain data."""

    code: ClassVar[str] = "internal"

    def __init__(self, message: str, /, **detail: Any) -> None:
        super().__init__(message)
        self.message = message
        self.detail = detail


class InvalidArgumentError(WheelschedError, ValueError):
    """The request can't be right, whatever the state of the server: the caller's fault."""

    code = "invalid_argument"


class ScheduleError(InvalidArgumentError):
    """A schedule that is malformed, never fires, or was asked about a naive datetime: the caller's fault."""


class PayloadError(WheelschedError, TypeError):
    """An argument that can't be stored; the message names the path to it: the caller's fault."""

    code = "invalid_argument"


class NotFoundError(WheelschedError, LookupError):
    """No such job, run or queue."""

    code = "not_found"


class AlreadyExistsError(WheelschedError):
    """A compare-and-set or a key met something that is there already."""

    code = "already_exists"


class FailedPreconditionError(WheelschedError):
    """Fine as such, but not in the present state (triggering a job that is busy, say)."""

    code = "failed_precondition"


class PermissionDeniedError(WheelschedError):
    """The peer may not do this."""

    code = "permission_denied"


class ResourceExhaustedError(WheelschedError):
    """A named limit is reached; the message says which and what to do."""

    code = "resource_exhausted"


class StorageFullError(WheelschedError):
    """The disk or the map is nearly full; nothing was done. Free space and repeat."""

    code = "storage_full"


class UnavailableError(WheelschedError, ConnectionError):
    """No server answers, or it is going away: repeat later."""

    code = "unavailable"


class DeadlineExceededError(WheelschedError, TimeoutError):
    """No answer in time. The command may have been done: repeat it with the same request id or key."""

    code = "deadline_exceeded"


class FencedError(WheelschedError):
    """A newer fencing token or epoch exists: whoever gets this must stop."""

    code = "fenced"


class UnimplementedError(WheelschedError, NotImplementedError):
    """This server doesn't know the verb or the policy."""

    code = "unimplemented"


class InternalError(WheelschedError):
    """A bug in wheelsched."""

    code = "internal"


class ConfigError(InvalidArgumentError):
    """A configuration that can't be used; `serve` exits with 78."""


class LockedError(FailedPreconditionError):
    """Another server owns the data directory; `serve` exits with 75."""


class CorruptJournalError(WheelschedError):
    """The journal is damaged. The message says where, and the command that looks closer; nothing was repaired silently."""

    code = "internal"


class RunFailed(WheelschedError):  # noqa: N818 - the name is part of the fixed face
    """`Run.result()`: the run ended, and not well. `detail` has `state` and `error`."""

    code = "failed_precondition"


class ResultNotKept(WheelschedError):  # noqa: N818 - the name is part of the fixed face
    """`Run.result()`: the run succeeded, but what it returned is not kept, because no payload can hold it or because it is too long.

    The run is never tried again for that. `type` is the value's type, `bytes` its encoded size, None where that is not known; `detail`
    has both, and `why`.
    """

    code = "failed_precondition"

    @property
    def type(self) -> str:
        """The type of the value."""
        return str(self.detail.get("type", ""))

    @property
    def bytes(self) -> int | None:
        """Its encoded size; None where that is not known."""
        size = self.detail.get("bytes")
        return None if size is None else int(size)


class RunTimeout(WheelschedError, TimeoutError):  # noqa: N818 - the name is part of the fixed face
    """`Run.result(timeout=)`: the run is not final yet."""

    code = "deadline_exceeded"


# What a bug of ours raises, beside errors of ours: it ends the request that met it, if nothing was recorded yet.
BUGS: Final = (AssertionError, LookupError, TypeError, ValueError, ArithmeticError, AttributeError)

_BY_CODE: dict[str, type[WheelschedError]] = {
    cls.code: cls
    for cls in (
        InvalidArgumentError, NotFoundError, AlreadyExistsError, FailedPreconditionError, PermissionDeniedError,
        ResourceExhaustedError, StorageFullError, UnavailableError, DeadlineExceededError, FencedError,
        UnimplementedError, InternalError,
    )
}


def error_from_wire(code: str, message: str, detail: dict[str, Any] | None = None) -> WheelschedError:
    """Build the error that a reply describes; an unknown code becomes InternalError and keeps its text."""
    cls = _BY_CODE.get(code)
    if cls is None:
        return InternalError(f"{code}: {message}", **(detail or {}))
    return cls(message, **(detail or {}))

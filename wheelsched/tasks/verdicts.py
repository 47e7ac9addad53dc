"""What a task says about its own run by raising: RetryAfter, Snooze, Cancel, NotRetried. Any other exception is a failure, but for
`sys.exit()` and `sys.exit(0)`, which end a run well. Pure.

    raise RetryAfter("90s", "429 Too Many Requests")     # failed; the next attempt not before 90 s
    raise Snooze("10m", "the file is not there yet")     # not failed, no attempt spent: tried again in 10 minutes
    raise Cancel("the customer is gone")                 # the run ends here, as cancelled
    raise NotRetried("no such account")                  # the run ends here, as a dead letter

In the list that a batch handler returns an instance of these is about its run alone.
"""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING, Any, Final

from ..model.errors import InvalidArgumentError
from ..model.nouns import (
    DELAY_MAX_US,
    ERROR_BASES_MAX,
    ERROR_NAME_MAX,
    ERROR_TEXT_MAX,
    REASON_MAX,
    Outcome,
    format_duration,
    parse_duration,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

__all__ = ["Cancel", "NotRetried", "RetryAfter", "Snooze", "error_result", "text_of", "trace_of", "type_name", "verdict"]

BUILTIN: Final = "wheelsched"  # the module that errors of built-in tasks say they are of
_PLAIN: Final = (Exception, BaseException, object)


class _Verdict(Exception):  # noqa: N818 - the subclasses read well where they are raised
    """Ends the attempt as its class says. `reason` is kept with the run, at most 1,000 characters."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = str(reason)[:REASON_MAX].encode("utf-8", "backslashreplace").decode()

    def __str__(self) -> str:
        return self.reason


class _Delayed(_Verdict):
    """With a delay: a timedelta, seconds, or text such as "90s"; at most 366 days. InvalidArgumentError for any other."""

    def __init__(self, delay: Any, reason: str = "") -> None:
        super().__init__(reason)
        self.delay_us = parse_duration(delay, "delay")
        if self.delay_us > DELAY_MAX_US:
            raise InvalidArgumentError(f"delay: at most {format_duration(DELAY_MAX_US)} are allowed, not {format_duration(self.delay_us)}")


class RetryAfter(_Delayed):
    """The attempt failed; the next one comes `delay` from now, or at most a tenth of it later, whatever the backoff and its cap say.

    An attempt is spent: when none is left the run is dead as after any other failure.
    """


class Snooze(_Delayed):
    """This is not the time: the run waits for `delay` (100 ms at least) and is tried again. No attempt is spent.

    A run may snooze without end; `run.snoozed` counts. While it waits it is active, in the state retry_wait, and its `timeout` counts
    anew with the next attempt. `expires_after` does not end it: it was started.
    """


class Cancel(_Verdict):
    """The run ends as cancelled, with the reason: it is not retried and is no dead letter."""


class NotRetried(Exception):  # noqa: N818 - raised by user code, where it reads as a verdict
    """Raise it, or a class derived from it, when no further attempt can mend a failure: the run is a dead letter at once."""


def verdict(error: BaseException) -> tuple[Outcome, dict[str, Any]]:
    """How an attempt that raised this ended, and what its result map says of it beside the error. Raises nothing: a verdict of user code
    whose class has spoilt what it says (by an `__init__` of its own) is a failure.
    """
    cls = type(error)  # isinstance would ask the object, and that may raise
    if issubclass(cls, SystemExit) and _left_well(error):
        return Outcome.SUCCEEDED, {}
    if issubclass(cls, NotRetried):
        return Outcome.FAILED, {"retry": False}
    if not issubclass(cls, _Verdict):
        return Outcome.FAILED, {}
    known = BaseException.__dict__["__dict__"].__get__(error)
    delay, reason = known.get("delay_us"), known.get("reason")
    because = {"reason": reason} if type(reason) is str and reason else {}
    if issubclass(cls, Cancel):
        return Outcome.CANCELLED, because
    if type(delay) is not int or not 0 <= delay <= DELAY_MAX_US:
        return Outcome.FAILED, {}
    return (Outcome.SNOOZED, {"snooze_us": delay, **because}) if issubclass(cls, Snooze) else (Outcome.FAILED, {"retry_us": delay})


def _left_well(error: BaseException) -> bool:
    """Of a SystemExit, does it end a program with code 0?"""
    code = SystemExit.__dict__["code"].__get__(error)
    return code is None or (isinstance(code, int) and int.__eq__(code, 0) is True)


def trace_of(error: BaseException) -> TracebackType | None:
    """Where it was raised. User code's class has no say in it."""
    found: TracebackType | None = BaseException.__dict__["__traceback__"].__get__(error)
    return found


def type_name(cls: type) -> str:
    """Full name of a type, whatever its metaclass says; those of builtins without their module."""
    return _asked(lambda: _name_of(cls), "<no name: {}>")


def text_of(error: BaseException) -> str:
    """What an exception says, at most ERROR_TEXT_MAX characters."""
    return _asked(lambda: str(error), "<no text: {} in __str__>")[:ERROR_TEXT_MAX]


def _name_of(cls: type) -> str:
    """Full name of a type as a result has it; those of builtins and of this house without their module."""
    if cls.__module__ == __name__:
        return f"wheelsched.{cls.__name__}"
    if cls.__module__ == InvalidArgumentError.__module__:
        return f"wheelsched.errors.{cls.__name__}"  # as in results of all versions
    return (cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}")[:ERROR_NAME_MAX]


def _bases_of(cls: type) -> dict[str, list[str]]:
    """The base classes by which a retry rule may know an exception, nearest first, as an entry of a result map; none for most."""
    found = [_name_of(base) for base in cls.__mro__[1:] if base not in _PLAIN and base.__module__ != __name__]
    return {"bases": found[:ERROR_BASES_MAX]} if found else {}


def error_result(error: BaseException, trace: TracebackType | None) -> dict[str, Any]:
    """{type, message, traceback} of what user code raised, each text capped; the traceback keeps its end. `bases`, if there are any.

    Raises nothing: code of the exception's class that does, whatever it raises, is told of in place of what it should have given.
    """
    cls = type(error)
    ours = cls.__dict__.get("__module__") == BUILTIN  # what a built-in task says is whole: where our code raised it tells nobody anything
    found = {
        "type": type_name(cls),
        "message": text_of(error),
        "traceback": "" if ours else _asked(
            lambda: "".join(traceback.format_exception(cls, error, trace)), "<no traceback: {}>")[-ERROR_TEXT_MAX:],
    }
    try:
        return found | _bases_of(cls)
    except BaseException:  # noqa: BLE001 - as in _asked
        return found


def _asked(text: Callable[[], str], missing: str) -> str:
    """A plain str that UTF-8 can hold, so without lone surrogates."""
    try:
        return str.encode(text(), "utf-8", "backslashreplace").decode()  # whatever a subclass of str says
    except BaseException as e:  # noqa: BLE001 - user code's __str__ and metaclasses may raise anything, and memory may be out
        return missing.format(type(e).__name__)

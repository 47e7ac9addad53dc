"""How a job's runs are retried, caught up with and kept apart, as users write it; checked when it is sent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar

from .errors import InvalidArgumentError
from .nouns import ATTEMPTS_MAX, CATCHUPS, OVERLAPS, US, parse_duration

if TYPE_CHECKING:
    from collections.abc import Callable

    from .typed import CatchupWord, Duration, OverlapWord

__all__ = ["MEANINGS", "Catchup", "Overlap", "Retry", "tells_policies"]

F = TypeVar("F", bound="Callable[..., Any]")

MEANINGS: Final = {  # policy -> what it is, and what it is when not given; the first ones are of jobs alone
    "overlap": 'while an earlier run is active: a word, or Overlap(word, max=N) ("skip")',
    "catchup": 'of what was missed: a word, or Catchup(word, window=, max=) ("latest")',
    "start": "no occurrence before this instant",
    "end": "no occurrence after this instant",
    "max_runs": "finished after so many runs",
    "jitter": 'spread starts over this long, or a part of the period such as "10%"',
    "calendar": "names of calendars that block occurrences: one, or a list",
    "late_after": "a run that has not started so long after its time is marked late",
    "on_missed": "name of a job to trigger when occurrences were not run, or a run is late",
    "pause_after": "pause the job after so many dead runs one after another",
    "queue": 'the ready line ("default")',
    "priority": "0 to 9, 9 first (5)",
    "timeout": 'of one attempt, from user code\'s first instruction ("1h")',
    "heartbeat_timeout": "an attempt that calls no heartbeat() for so long is ended",
    "retry": "Retry(...), or a number of attempts (3)",
    "expires_after": "not started any more so long after its time: cancelled",
    "concurrency_key": "one run of a key is leased at a time, or as its queue says",
    "concurrency": "runs of the job (enqueued: of the task in its namespace) that are leased at once",
    "redact": "names of argument fields that are shown to nobody",
    "on_success": "name of a job to trigger when a run succeeded",
    "on_failure": "name of a job to trigger when a run will not succeed: out of attempts, or expired",
    "on_dead": "name of a job to trigger when a run is a dead letter",
}
_OF_JOBS: Final = 10


def tells_policies(*, jobs: bool) -> Callable[[F], F]:
    """Add to a method's docstring what its `policies` are: all, or those of a single run."""

    def add(f: F) -> F:
        lines = [f"{name}: {text}" for name, text in list(MEANINGS.items())[0 if jobs else _OF_JOBS :]]
        title = 'Policies, by name (durations as timedelta, seconds or text such as "90s"):'
        if f.__doc__ is not None:
            f.__doc__ = "\n".join([f.__doc__.rstrip(), "", f"        {title}", "", *(f"            {line}" for line in lines), "        "])
        return f

    return add


@dataclass(frozen=True, slots=True)
class Retry:
    """How failures are retried. `attempts` counts all, the first included.

    The wait before attempt n+1 is drawn evenly from [d, 1.5 d], d = min(cap, backoff * factor**(n-1)); the draw is a
    stable hash of the run, so that replay and restart agree. `not_on` names exception types that are never retried.

    `errors` has rules of their own for some failures: {"requests.Timeout": Retry(attempts=8, backoff="1s"), "ValueError": Retry(1)}.
    The rule of the last failure decides whether and when there is another attempt; its `attempts` counts all attempts of the run,
    whatever they failed with. What a rule does not give is the house default, not this Retry's value.

    A name, here and in `not_on`, fits a type when its parts stand in the type's full name in that order and both end alike, as
    "requests.Timeout" and "Timeout" fit requests.exceptions.Timeout. The type comes first, then its base classes, nearest first; of
    names that fit one class that with the most parts counts. Failures without exception: wheelsched.TimedOut (it ran longer
    than its timeout, or sent no heartbeat for too long; also when its process had to be ended for that) and wheelsched.WorkerLost
    (its process ended otherwise, or its worker was not heard of for a lease).
    """

    attempts: int = 3
    backoff: Duration = "10s"
    factor: float = 2.0
    cap: Duration = "1h"
    not_on: tuple[str, ...] = ()
    errors: Mapping[str, Retry | int] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        """InvalidArgumentError says what is allowed."""
        self.to_wire()

    def to_wire(self) -> dict[str, Any]:
        """Checked plain data."""
        if isinstance(self.attempts, bool) or not isinstance(self.attempts, int) or not 1 <= self.attempts <= ATTEMPTS_MAX:
            raise InvalidArgumentError(f"retry attempts: a whole number from 1 to {ATTEMPTS_MAX} is wanted, not {self.attempts!r}")
        if isinstance(self.factor, bool) or not isinstance(self.factor, int | float) or not 1 <= self.factor <= 1_000:
            raise InvalidArgumentError(f"retry factor: a number from 1 to 1000 is wanted, not {self.factor!r}")
        wire: dict[str, Any] = {
            "attempts": self.attempts,
            "backoff_us": parse_duration(self.backoff, "retry backoff"),
            "factor": float(self.factor),
            "cap_us": parse_duration(self.cap, "retry cap"),
            "not_on": [self.not_on] if isinstance(self.not_on, str) else [str(n) for n in self.not_on],
        }
        if not isinstance(self.errors, Mapping):
            raise InvalidArgumentError("retry errors: names of exception types with a Retry(...) each are wanted")
        if self.errors:
            wire["errors"] = self._rules()
        return wire

    def _rules(self) -> dict[str, Any]:
        out = {}
        for name, given in self.errors.items():
            rule: Any = Retry(attempts=given) if isinstance(given, int) and not isinstance(given, bool) else given
            if not isinstance(name, str) or not isinstance(rule, Retry):
                raise InvalidArgumentError(f"retry errors: {str(name)[:60]!r}: a name and a Retry(...) or a number of attempts are wanted")
            if rule.not_on or rule.errors:
                raise InvalidArgumentError(f"retry errors: {name[:60]!r}: a rule has attempts, backoff, factor and cap, nothing else")
            out[name] = {key: value for key, value in rule.to_wire().items() if key != "not_on"}
        return out


@dataclass(frozen=True, slots=True)
class Catchup:
    """What a misfire does: `latest`, `earliest`, `all` or `skip`; `window` bounds how far back, `max` how many (`all`)."""

    policy: CatchupWord = "latest"
    window: Duration | None = None
    max: int | None = None

    def __post_init__(self) -> None:
        """InvalidArgumentError says what is allowed."""
        self.to_wire()

    def to_wire(self) -> dict[str, Any]:
        """Checked plain data."""
        if self.policy not in CATCHUPS:
            raise InvalidArgumentError(f"catchup: {self.policy!r} is not one of {', '.join(CATCHUPS)}")
        if self.max is not None and (isinstance(self.max, bool) or not isinstance(self.max, int) or not 1 <= self.max <= 1_000_000):
            raise InvalidArgumentError(f"catchup max: a whole number from 1 to 1000000 is wanted, not {self.max!r}")
        window = None if self.window is None else parse_duration(self.window, "catchup window")
        if self.policy == "all":
            return {"policy": "all", "window_us": 86_400 * US if window is None else window, "max": self.max or 1_000}
        return {"policy": self.policy, "window_us": window, "max": self.max}


@dataclass(frozen=True, slots=True)
class Overlap:
    """What an occurrence does that is due while an earlier run of its job is active; `max` goes with `allow`, `buffer_all`."""

    policy: OverlapWord = "skip"
    max: int | None = None

    def __post_init__(self) -> None:
        """InvalidArgumentError says what is allowed."""
        self.to_wire()

    def to_wire(self) -> dict[str, Any]:
        """Checked plain data."""
        if self.policy not in OVERLAPS:
            raise InvalidArgumentError(f"overlap: {self.policy!r} is not one of {', '.join(OVERLAPS)}")
        if self.max is not None and (isinstance(self.max, bool) or not isinstance(self.max, int) or not 1 <= self.max <= 1_000_000):
            raise InvalidArgumentError(f"overlap max: a whole number from 1 to 1000000 is wanted, not {self.max!r}")
        return {"policy": self.policy, "max": self.max}

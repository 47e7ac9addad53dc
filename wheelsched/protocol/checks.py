"""Checks of a definition's wire values: (value, name for messages) -> canonical value. They trust nobody.

InvalidArgumentError says what is wanted. `CHECKS` has one for each key of `given`; `check_together` knows what no value
shows alone.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from ..model.errors import InvalidArgumentError, ScheduleError
from ..model.nouns import (
    ATTEMPTS_MAX,
    CATCHUPS,
    DURATION_MAX_US,
    ERROR_NAME_MAX,
    INSTANT_MAX_US,
    INSTANT_MIN_US,
    KEY_MAX,
    MS,
    NEVER,
    OVERLAPS,
    PRIORITY_MAX,
    US,
    format_duration,
    parse_duration,
    parse_job_name,
    parse_task_name,
)
from ..schedules.schedule import UNION_MAX, check_union, schedule_from_wire

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = [
    "CHECKS", "QUEUE_SETTINGS", "check_instant", "check_name", "check_param_us", "check_queue_settings", "check_together",
    "check_union_size", "fields", "parse_rate",
]

JOB_CALENDARS_MAX: Final = 10  # of one job
PAUSE_AFTER_MAX: Final = 255
REDACTED_MAX: Final = 100  # names of a job
_COUNT_MAX: Final = 1_000_000
_RUNS_MAX: Final = 2**31 - 1
_NOT_ON_MAX: Final = 100
_RULE: Final = ("attempts", "backoff_us", "factor", "cap_us")  # of a retry policy, and of its rule for an error
_BUFFER_ALL_MAX: Final = 100  # house default of `buffer_all` without a max
_DAY_US: Final = 86_400 * US
QUEUE_SETTINGS: Final = ("concurrency", "rate", "burst", "key_concurrency", "key_rate", "weights")
WEIGHT_MAX: Final = 1_000
WEIGHTS_MAX: Final = 5_000  # namespaces of one queue
_NAMESPACE: Final = re.compile(r"[A-Za-z0-9._:-]{1,64}", re.ASCII)
_RATE: Final = re.compile(r"([1-9]\d{0,8})/(\d{0,6})(ms|s|m|h|d)", re.ASCII)


def _integer(value: Any, what: str, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise InvalidArgumentError(f"{what}: a whole number from {low} to {high} is wanted, not {str(value)[:60]}")
    return int(value)


def _text(value: Any, what: str, limit: int) -> str:
    if not isinstance(value, str) or not 1 <= len(value) <= limit:
        given = f"{len(value)} characters" if isinstance(value, str) else type(value).__name__
        raise InvalidArgumentError(f"{what}: text of 1 to {limit} characters is wanted, not {given}")
    return value


def fields(value: Any, what: str, names: tuple[str, ...]) -> dict[str, Any]:
    """A map with just these keys; a missing one is None."""
    if not isinstance(value, dict):
        raise InvalidArgumentError(f"{what}: a map is wanted, not {type(value).__name__}")
    for key in value:
        if key not in names:
            raise InvalidArgumentError(f"{what}: {str(key)[:60]!r} is unknown; {', '.join(names)} are known")
    return {name: value.get(name) for name in names}


def _duration(value: Any, what: str, low: int = MS) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidArgumentError(f"{what}: a whole number of microseconds is wanted, not {str(value)[:60]}")
    if not low <= value <= DURATION_MAX_US:
        given = f"{value} µs" if value < 0 or value > DURATION_MAX_US else format_duration(value)
        raise InvalidArgumentError(f"{what}: {format_duration(low)} to 100 years are allowed, not {given}")
    return int(value)


def _instant(value: Any, what: str) -> int:
    return _integer(value, f"{what} in µs since 1970", INSTANT_MIN_US, INSTANT_MAX_US)


def _priority(value: Any, what: str) -> int:
    return _integer(value, what, 0, PRIORITY_MAX)


def _many(value: Any, what: str) -> int:
    return _integer(value, what, 1, _RUNS_MAX)


def _key(value: Any, what: str) -> str:
    return _text(value, what, KEY_MAX)


def _retry(value: Any, what: str) -> dict[str, Any]:
    got = fields(value, what, (*_RULE, "not_on", "errors"))
    not_on = [] if got["not_on"] is None else got["not_on"]
    if not isinstance(not_on, list | tuple) or len(not_on) > _NOT_ON_MAX:
        raise InvalidArgumentError(f"retry not_on: a list of at most {_NOT_ON_MAX} names of exception types is wanted")
    errors = {} if got["errors"] is None else got["errors"]
    if not isinstance(errors, dict) or len(errors) > _NOT_ON_MAX:
        raise InvalidArgumentError(f"retry errors: a map of at most {_NOT_ON_MAX} names of exception types to their rules is wanted")
    rule = _retry_rule(got)
    out: dict[str, Any] = {**rule, "not_on": [_text(name, "retry not_on", ERROR_NAME_MAX) for name in not_on]}
    if errors:
        out["errors"] = {
            _text(name, "retry errors", ERROR_NAME_MAX): _retry_rule(fields(one, f"retry errors {str(name)[:60]!r}", _RULE))
            for name, one in sorted(errors.items(), key=str)
        }
    return out


def _retry_rule(got: dict[str, Any]) -> dict[str, Any]:
    factor = got["factor"]
    if isinstance(factor, bool) or not isinstance(factor, int | float) or not 1 <= factor <= 1_000:  # NaN fails too
        raise InvalidArgumentError(f"retry factor: a number from 1 to 1000 is wanted, not {str(factor)[:60]}")
    return {
        "attempts": _integer(got["attempts"], "retry attempts", 1, ATTEMPTS_MAX),
        "backoff_us": _duration(got["backoff_us"], "retry backoff", 0),
        "factor": float(factor),
        "cap_us": _duration(got["cap_us"], "retry cap", 0),
    }


def _overlap(value: Any, what: str) -> dict[str, Any]:
    got = fields(value, what, ("policy", "max"))
    policy, limit = got["policy"], got["max"]
    if policy not in OVERLAPS:
        raise InvalidArgumentError(f"overlap: {str(policy)[:60]!r} is not one of {', '.join(OVERLAPS)}")
    if limit is not None:
        limit = _integer(limit, "overlap max", 1, _COUNT_MAX)
        if policy not in ("allow", "buffer_all"):
            raise InvalidArgumentError(f"overlap max goes with allow and buffer_all, not with {policy}")
    return {"policy": policy, "max": _BUFFER_ALL_MAX if policy == "buffer_all" and limit is None else limit}


def _catchup(value: Any, what: str) -> dict[str, Any]:
    got = fields(value, what, ("policy", "window_us", "max"))
    policy, window, limit = got["policy"], got["window_us"], got["max"]
    if policy not in CATCHUPS:
        raise InvalidArgumentError(f"catchup: {str(policy)[:60]!r} is not one of {', '.join(CATCHUPS)}")
    if window is not None:
        window = _duration(window, "catchup window", 0)
    if limit is not None:
        limit = _integer(limit, "catchup max", 1, _COUNT_MAX)
        if policy != "all":
            raise InvalidArgumentError(f"catchup max goes with all, not with {policy}")
    if policy == "all":
        return {"policy": "all", "window_us": _DAY_US if window is None else window, "max": limit or 1_000}
    return {"policy": policy, "window_us": window, "max": None}


def _jitter(value: Any, what: str) -> dict[str, Any]:
    got = fields(value, what, ("us", "percent"))
    if (got["us"] is None) == (got["percent"] is None):
        raise InvalidArgumentError("jitter: either a duration or a percentage of the period is wanted")
    if got["us"] is not None:
        return {"us": _duration(got["us"], "jitter", 0)}
    percent = got["percent"]
    if isinstance(percent, bool) or not isinstance(percent, int | float) or not 0 <= percent <= 100:
        raise InvalidArgumentError(f"jitter: a percentage from 0 to 100 is wanted, not {str(percent)[:60]}")
    return {"percent": float(percent)}


def _one_schedule(wire: Any) -> dict[str, Any]:
    # `at` alone can't be built without its instant, which is no part of `given`
    param_us = INSTANT_MIN_US if isinstance(wire, dict) and wire.get("kind") == "at" else NEVER
    return schedule_from_wire(wire, param_us).to_wire()


def check_union_size(n: int) -> None:
    """A union has 2 to 100 schedules; ScheduleError for any other number of them."""
    if n == 0:
        raise ScheduleError("schedule: an empty list never fires; for a job that runs only when triggered use Manual()")
    if n == 1:
        raise ScheduleError("schedule: a list of one schedule is no union; give the schedule itself")
    if n > UNION_MAX:
        raise ScheduleError(f"schedule: {n} schedules in one list; at most {UNION_MAX} are allowed: make several jobs of them")


def _schedule(value: Any, what: str) -> dict[str, Any]:  # noqa: ARG001 - the face of a check
    if not isinstance(value, dict) or value.get("kind") != "union":
        return _one_schedule(value)
    if isinstance(value.get("of"), list):
        check_union_size(len(value["of"]))
    return {"kind": "union", "of": [{"schedule": wire, "param_us": param_us} for wire, param_us in check_union(value)]}


def check_name(value: Any, what: str) -> str:
    """A calendar's name: 1 to 100 characters of A-Z a-z 0-9 . _ : -"""
    return parse_task_name(value, what)


def _calendars(value: Any, what: str) -> list[str]:
    """Names, each once, in their order in the alphabet: what blocks does not depend on it."""
    if not isinstance(value, list | tuple):
        raise InvalidArgumentError(f"{what}: a name or a list of names is wanted, not {type(value).__name__}")
    if not 1 <= len(value) <= JOB_CALENDARS_MAX:
        raise InvalidArgumentError(f"{what}: a job has 1 to {JOB_CALENDARS_MAX} calendars, not {len(value)}")
    return sorted({check_name(name, what) for name in value})


def _redacted(value: Any, what: str) -> list[str]:
    """Names, each once, in small letters: what is hidden depends neither on their order nor on their case."""
    if not isinstance(value, list | tuple | set | frozenset) or not 1 <= len(value) <= REDACTED_MAX:
        raise InvalidArgumentError(f"{what}: 1 to {REDACTED_MAX} names of argument fields are wanted, such as ['password']")
    return sorted({_text(name, f"{what}: a name", KEY_MAX).casefold() for name in value})


def _target(value: Any, what: str) -> str:
    name = parse_job_name(value)
    if name.partition("/")[2].startswith("~"):
        raise InvalidArgumentError(f"{what}: {name[:120]} is reserved for enqueued runs; name a job that was put")
    return name


def _pause_after(value: Any, what: str) -> int:
    return _integer(value, what, 1, PAUSE_AFTER_MAX)


CHECKS: Final[dict[str, Callable[[Any, str], Any]]] = {
    "task": parse_task_name,
    "schedule": _schedule,
    "queue": parse_task_name,
    "priority": _priority,
    "timeout_us": _duration,
    "retry": _retry,
    "overlap": _overlap,
    "catchup": _catchup,
    "start_us": _instant,
    "end_us": _instant,
    "max_runs": _many,
    "expires_after_us": _duration,
    "concurrency_key": _key,
    "concurrency": lambda value, what: _integer(value, what, 1, _COUNT_MAX),
    "jitter": _jitter,
    "calendar": _calendars,
    "heartbeat_timeout_us": _duration,
    "pause_after": _pause_after,
    "late_after_us": _duration,
    "on_missed": _target,
    "redact": _redacted,
    "on_success": _target,
    "on_failure": _target,
    "on_dead": _target,
}


def parse_rate(value: Any, what: str) -> tuple[int, int]:
    """(count, microseconds) of a rate: `100/s`, `5/m`, `10/30s`."""
    found = _RATE.fullmatch(value) if isinstance(value, str) else None
    per_us = parse_duration(f"{found[2] or 1}{found[3]}", what) if found else 0
    if found is None or not per_us:
        raise InvalidArgumentError(f"{what}: {str(value)[:60]!r} is no rate; write it like '100/s', '5/m' or '10/30s'")
    return int(found[1]), per_us


def check_queue_settings(value: Any) -> dict[str, Any]:
    """Settings of a queue, those alone that are given; None takes one away, and so do weights of nobody."""
    given = value.keys() if isinstance(value, dict) else ()
    got = {key: setting for key, setting in fields(value, "queue settings", QUEUE_SETTINGS).items() if key in given}
    for key, setting in got.items():
        if setting is None:
            continue
        if key in ("rate", "key_rate"):
            parse_rate(setting, key)
        elif key == "weights":
            got[key] = _weights(setting) or None
        else:
            _integer(setting, key, 1, _COUNT_MAX)
    return got


def _weights(value: Any) -> dict[str, int]:
    if not isinstance(value, dict):
        raise InvalidArgumentError(f"weights: a map of namespaces is wanted, such as {{'billing': 3}}, not {type(value).__name__}")
    if len(value) > WEIGHTS_MAX:
        raise InvalidArgumentError(f"weights: {len(value):,} namespaces; at most {WEIGHTS_MAX:,} are allowed, others have weight 1")
    for name, weight in value.items():
        if not isinstance(name, str) or not _NAMESPACE.fullmatch(name):
            raise InvalidArgumentError(f"weights: {str(name)[:70]!r} is no namespace: 1 to 64 characters of A-Z a-z 0-9 . _ : - are one")
        _integer(weight, f"weights of {name}", 1, WEIGHT_MAX)
    return {name: value[name] for name in sorted(value)}


def check_param_us(schedule: Mapping[str, Any], param_us: Any) -> int:
    """The instant of `at`, the anchor of `every` (NEVER: none), NEVER for others; instants rounded up to 1 ms."""
    kind = schedule.get("kind")
    if param_us is None or (not isinstance(param_us, bool) and param_us == NEVER):
        if kind == "at":
            raise InvalidArgumentError("param_us: `at` needs its instant")
        return NEVER
    if kind not in ("at", "every"):
        raise InvalidArgumentError(f"param_us: {str(kind)[:60]} has none")
    return min(-(-_instant(param_us, "param_us") // MS) * MS, INSTANT_MAX_US)


def check_together(given: Mapping[str, Any]) -> None:
    """What no value shows alone: bounds in the wrong order, and policies that a schedule of this kind can't have."""
    start_us, end_us = given.get("start_us"), given.get("end_us")
    if start_us is not None and end_us is not None and end_us <= start_us:
        raise InvalidArgumentError("end: it must be later than start")
    if given.get("heartbeat_timeout_us") is not None and given.get("task") in ("command", "http"):
        raise InvalidArgumentError(f"heartbeat_timeout: {given['task']} has no heartbeats; give a timeout", policy="heartbeat_timeout")
    schedule, jitter = given.get("schedule") or {}, given.get("jitter") or {}
    kind = schedule.get("kind")
    if kind == "manual":
        for name, asked in (("jitter", any(jitter.values())), ("calendar", "calendar" in given)):
            if asked:
                raise InvalidArgumentError(f"{name}: a job that runs only when triggered has no times by itself; leave it out", policy=name)
    if jitter.get("percent") and (kind == "at" or schedule.get("after_completion")):
        whose = "a one-time run" if kind == "at" else "after_completion"
        raise InvalidArgumentError(f"jitter: a percentage is one of the period, and {whose} has none; give a duration", policy="jitter")
    if schedule.get("after_completion") and (given.get("catchup") or {}).get("policy") == "all":
        raise InvalidArgumentError(
            "catchup: with after_completion there is one coming time at most, so there is never more than one to catch up with;"
            " use latest, earliest or skip", policy="catchup",
        )


def check_instant(given: Mapping[str, Any], param_us: int) -> None:
    """ScheduleError for an `at` whose instant is not from `start` to `end`: it could never fire."""
    if (given.get("schedule") or {}).get("kind") != "at" or param_us == NEVER:
        return
    start_us, end_us = given.get("start_us"), given.get("end_us")
    if start_us is not None and param_us < start_us:
        raise ScheduleError("at: the instant is before start, so it could never fire; change one of them", policy="start")
    if end_us is not None and param_us > end_us:
        raise ScheduleError("at: the instant is after end, so it could never fire; change one of them", policy="end")

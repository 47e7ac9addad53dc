"""What a job is asked to be: the API's policies as the wire's `given`, the server's check, and the resolved `spec`.

`given` holds what the user asked for and nothing else. It is made by `given_from_api` in a client, checked again by
`check_given` in the server, and filled up by `resolve`: argument > decorator (as sent with the call) > decorator (as
announced by a worker) > house default. Policies that this version doesn't carry out are sent all the same and refused
by the server, so that an older server never ignores what a newer client asks for.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any, Final

from .errors import InvalidArgumentError, UnimplementedError
from .model import (
    ATTEMPTS_MAX,
    CATCHUPS,
    DURATION_MAX_US,
    INSTANT_MAX_US,
    INSTANT_MIN_US,
    KEY_MAX,
    MS,
    NEVER,
    OVERLAPS,
    PRIORITY_MAX,
    US,
    Catchup,
    Overlap,
    Retry,
    parse_duration,
    parse_instant,
    parse_task_name,
)
from .schedule import schedule_from_wire

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from .model import Call

__all__ = [
    "POLICIES",
    "UNIMPLEMENTED",
    "check_announced",
    "check_given",
    "check_param_us",
    "given_from_api",
    "refuse_unimplemented",
    "resolve",
]

# What the server refuses for now, by the name a user knows it by.
UNIMPLEMENTED: Final = frozenset(
    {
        "jitter",
        "calendar",
        "concurrency_key",
        "expires_after",
        "heartbeat_timeout",
        "pause_after",
        "union of schedules",
        "after_completion",
        "overlap buffer_latest",
        "overlap cancel_other",
        "overlap kill_other",
    }
)

_COUNT_MAX: Final = 1_000_000
_RUNS_MAX: Final = 2**31 - 1
_UNION_MAX: Final = 100
_NOT_ON_MAX: Final = 100
_ERROR_NAME_MAX: Final = 200
_BUFFER_ALL_MAX: Final = 100  # house default of `buffer_all` without a max
_DAY_US: Final = 86_400 * US
_RECURRING: Final = ("overlap", "catchup", "start_us", "end_us", "max_runs", "jitter", "calendar", "pause_after")
_PUT_ONLY: Final = ("note", "paused", "version")

_HOUSE: Final[dict[str, Any]] = {
    "queue": "default",
    "priority": 5,
    "timeout_us": 3_600 * US,
    "retry": {"attempts": 3, "backoff_us": 10 * US, "factor": 2.0, "cap_us": 3_600 * US, "not_on": []},
    "overlap": {"policy": "skip", "max": None},
    "catchup": {"policy": "latest", "window_us": None, "max": None},
    "start_us": None,
    "end_us": None,
    "max_runs": None,
    "expires_after_us": None,
    "concurrency_key": None,
}


# Checks of wire values: (value, name for messages) -> canonical value. They trust nobody.


def _integer(value: Any, what: str, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise InvalidArgumentError(f"{what}: a whole number from {low} to {high} is wanted, not {str(value)[:60]}")
    return int(value)


def _text(value: Any, what: str, limit: int) -> str:
    if not isinstance(value, str) or not 1 <= len(value) <= limit:
        given = f"{len(value)} characters" if isinstance(value, str) else type(value).__name__
        raise InvalidArgumentError(f"{what}: text of 1 to {limit} characters is wanted, not {given}")
    return value


def _fields(value: Any, what: str, names: tuple[str, ...]) -> dict[str, Any]:
    """A map with just these keys; a missing one is None."""
    if not isinstance(value, dict):
        raise InvalidArgumentError(f"{what}: a map is wanted, not {type(value).__name__}")
    for key in value:
        if key not in names:
            raise InvalidArgumentError(f"{what}: {str(key)[:60]!r} is unknown; {', '.join(names)} are known")
    return {name: value.get(name) for name in names}


def _duration(value: Any, what: str) -> int:
    return _integer(value, f"{what} in µs", MS, DURATION_MAX_US)


def _instant(value: Any, what: str) -> int:
    return _integer(value, f"{what} in µs since 1970", INSTANT_MIN_US, INSTANT_MAX_US)


def _priority(value: Any, what: str) -> int:
    return _integer(value, what, 0, PRIORITY_MAX)


def _many(value: Any, what: str) -> int:
    return _integer(value, what, 1, _RUNS_MAX)


def _key(value: Any, what: str) -> str:
    return _text(value, what, KEY_MAX)


def _retry(value: Any, what: str) -> dict[str, Any]:
    got = _fields(value, what, ("attempts", "backoff_us", "factor", "cap_us", "not_on"))
    factor = got["factor"]
    if isinstance(factor, bool) or not isinstance(factor, int | float) or not 1 <= factor <= 1_000:  # NaN fails too
        raise InvalidArgumentError(f"retry factor: a number from 1 to 1000 is wanted, not {str(factor)[:60]}")
    not_on = [] if got["not_on"] is None else got["not_on"]
    if not isinstance(not_on, list | tuple) or len(not_on) > _NOT_ON_MAX:
        raise InvalidArgumentError(f"retry not_on: a list of at most {_NOT_ON_MAX} names of exception types is wanted")
    return {
        "attempts": _integer(got["attempts"], "retry attempts", 1, ATTEMPTS_MAX),
        "backoff_us": _integer(got["backoff_us"], "retry backoff in µs", 0, DURATION_MAX_US),
        "factor": float(factor),
        "cap_us": _integer(got["cap_us"], "retry cap in µs", 0, DURATION_MAX_US),
        "not_on": [_text(name, "retry not_on", _ERROR_NAME_MAX) for name in not_on],
    }


def _overlap(value: Any, what: str) -> dict[str, Any]:
    got = _fields(value, what, ("policy", "max"))
    policy, limit = got["policy"], got["max"]
    if policy not in OVERLAPS:
        raise InvalidArgumentError(f"overlap: {str(policy)[:60]!r} is not one of {', '.join(OVERLAPS)}")
    if limit is not None:
        limit = _integer(limit, "overlap max", 1, _COUNT_MAX)
        if policy not in ("allow", "buffer_all"):
            raise InvalidArgumentError(f"overlap max goes with allow and buffer_all, not with {policy}")
    return {"policy": policy, "max": _BUFFER_ALL_MAX if policy == "buffer_all" and limit is None else limit}


def _catchup(value: Any, what: str) -> dict[str, Any]:
    got = _fields(value, what, ("policy", "window_us", "max"))
    policy, window, limit = got["policy"], got["window_us"], got["max"]
    if policy not in CATCHUPS:
        raise InvalidArgumentError(f"catchup: {str(policy)[:60]!r} is not one of {', '.join(CATCHUPS)}")
    if window is not None:
        window = _integer(window, "catchup window in µs", 0, DURATION_MAX_US)
    if limit is not None:
        limit = _integer(limit, "catchup max", 1, _COUNT_MAX)
        if policy != "all":
            raise InvalidArgumentError(f"catchup max goes with all, not with {policy}")
    if policy == "all":
        return {"policy": "all", "window_us": _DAY_US if window is None else window, "max": limit or 1_000}
    return {"policy": policy, "window_us": window, "max": None}


def _jitter(value: Any, what: str) -> dict[str, Any]:
    got = _fields(value, what, ("us", "percent"))
    if (got["us"] is None) == (got["percent"] is None):
        raise InvalidArgumentError("jitter: either a duration or a percentage of the period is wanted")
    if got["us"] is not None:
        return {"us": _integer(got["us"], "jitter in µs", 0, DURATION_MAX_US)}
    percent = got["percent"]
    if isinstance(percent, bool) or not isinstance(percent, int | float) or not 0 <= percent <= 100:
        raise InvalidArgumentError(f"jitter: a percentage from 0 to 100 is wanted, not {str(percent)[:60]}")
    return {"percent": float(percent)}


def _one_schedule(wire: Any) -> dict[str, Any]:
    # `at` alone can't be built without its instant, which is no part of `given`
    param_us = INSTANT_MIN_US if isinstance(wire, dict) and wire.get("kind") == "at" else NEVER
    return schedule_from_wire(wire, param_us).to_wire()


def _schedule(value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, dict) or value.get("kind") != "union":
        return _one_schedule(value)
    parts = _fields(value, what, ("kind", "of"))["of"]
    if not isinstance(parts, list) or not 1 <= len(parts) <= _UNION_MAX:
        raise InvalidArgumentError(f"schedule: a union has 1 to {_UNION_MAX} schedules")
    of = []
    for part in parts:
        got = _fields(part, what, ("schedule", "param_us"))
        wire = _one_schedule(got["schedule"])
        if wire.get("after_completion"):
            raise InvalidArgumentError("schedule: after_completion can't be part of a union")
        of.append({"schedule": wire, "param_us": check_param_us(wire, got["param_us"])})
    return {"kind": "union", "of": of}


_CHECKS: Final[dict[str, Callable[[Any, str], Any]]] = {
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
    "jitter": _jitter,
    "calendar": _key,
    "heartbeat_timeout_us": _duration,
    "pause_after": _many,
}


# What users write -> the wire's value


def _api_retry(value: Any, what: str) -> dict[str, Any]:
    if isinstance(value, int) and not isinstance(value, bool):
        value = Retry(attempts=value)
    if not isinstance(value, Retry):
        raise InvalidArgumentError(f"{what}: Retry(...) or a number of attempts is wanted, not {type(value).__name__}")
    if isinstance(value.not_on, str) or not all(isinstance(name, str) for name in value.not_on):
        raise InvalidArgumentError("retry not_on: names of exception types are wanted, such as ('ValueError',)")
    return value.to_wire()


def _api_overlap(value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, str | Overlap):
        raise InvalidArgumentError(f"{what}: a word or Overlap(...) is wanted, not {type(value).__name__}")
    wanted = Overlap(value) if isinstance(value, str) else value
    return wanted.to_wire()


def _api_catchup(value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, str | Catchup):
        raise InvalidArgumentError(f"{what}: a word or Catchup(...) is wanted, not {type(value).__name__}")
    wanted = Catchup(value) if isinstance(value, str) else value
    # the limits are left to the check, which knows which policy has which
    return wanted.to_wire() if wanted.policy == "all" else {**wanted.to_wire(), "max": wanted.max}


def _api_jitter(value: Any, what: str) -> dict[str, Any]:
    if isinstance(value, str) and value.strip().endswith("%"):
        try:
            return {"percent": float(value.strip()[:-1])}
        except ValueError:
            raise InvalidArgumentError(f"{what}: {value[:60]!r} is not a percentage; write it like '10%'") from None
    return {"us": parse_duration(value, what)}


def _same(value: Any, what: str) -> Any:  # noqa: ARG001 - the face of a converter
    return value


POLICIES: Final[dict[str, tuple[str, Callable[[Any, str], Any]]]] = {
    "queue": ("queue", _same),
    "priority": ("priority", _same),
    "timeout": ("timeout_us", parse_duration),
    "retry": ("retry", _api_retry),
    "overlap": ("overlap", _api_overlap),
    "catchup": ("catchup", _api_catchup),
    "start": ("start_us", parse_instant),
    "end": ("end_us", parse_instant),
    "max_runs": ("max_runs", _same),
    "expires_after": ("expires_after_us", parse_duration),
    "concurrency_key": ("concurrency_key", _same),
    "jitter": ("jitter", _api_jitter),
    "calendar": ("calendar", _same),
    "heartbeat_timeout": ("heartbeat_timeout_us", parse_duration),
    "pause_after": ("pause_after", _same),
}
_API_NAMES: Final = {key: name for name, (key, _) in POLICIES.items()}
_OPTIONS: Final = ("queue", "timeout", "retry", "priority")  # what a decorator may give
_OPTION_KEYS: Final = tuple(POLICIES[name][0] for name in _OPTIONS)


def _unknown_policy(name: str) -> InvalidArgumentError:
    if name in _PUT_ONLY:
        return InvalidArgumentError(f"{name} is no policy: it is an argument of put alone", policy=name)
    near = difflib.get_close_matches(name, POLICIES, 1)
    hint = f"did you mean {near[0]!r}?" if near else f"{', '.join(POLICIES)} are known"
    return InvalidArgumentError(f"unknown policy {name[:60]!r}: {hint}", policy=name[:60])


def _api_schedule(schedule: Any) -> tuple[dict[str, Any], int]:
    if isinstance(schedule, list | tuple):
        of = []
        for part in schedule:
            wire, param_us = _api_schedule(part)
            of.append({"schedule": wire, "param_us": param_us})
        return {"kind": "union", "of": of}, NEVER
    try:
        return schedule.to_wire(), schedule.param_us()
    except AttributeError:
        raise InvalidArgumentError(
            f"schedule: Cron(...), Every(...), At(...) or Manual() is wanted, not {type(schedule).__name__}"
        ) from None


def given_from_api(call: Call, schedule: Any, policies: Mapping[str, Any]) -> tuple[dict[str, Any], int]:
    """(`given`, `param_us`) of the wire: what was asked for, and only that. Argument > option of the call; None is
    "not given".

    `schedule` None (enqueue) leaves the key out; a list is a union. InvalidArgumentError for an unknown policy, with
    the nearest known name, and for values of the wrong type or out of range.
    """
    given: dict[str, Any] = {"task": call.task}
    param_us = NEVER
    if schedule is not None:
        wire, param_us = _api_schedule(schedule)
        given["schedule"] = _schedule(wire, "schedule") if wire.get("kind") == "union" else wire
    for name in call.options:
        if name not in _OPTIONS:
            raise InvalidArgumentError(f"a task's options are {', '.join(_OPTIONS)}; {name!r} is none of them")
    for name, value in {**call.options, **{k: v for k, v in policies.items() if v is not None}}.items():
        if value is None:
            continue
        known = POLICIES.get(name)
        if known is None:
            raise _unknown_policy(name)
        key, convert = known
        given[key] = _CHECKS[key](convert(value, name), name)
    _check_together(given)
    return given, param_us


def _check_together(given: Mapping[str, Any]) -> None:
    """What no value shows alone."""
    start_us, end_us = given.get("start_us"), given.get("end_us")
    if start_us is not None and end_us is not None and end_us <= start_us:
        raise InvalidArgumentError("end: it must be later than start")
    if "schedule" not in given:
        for key in _RECURRING:
            if key in given:
                name = _API_NAMES[key]
                raise InvalidArgumentError(f"{name} goes with put: an enqueued call runs once", policy=name)


def check_given(given: Any) -> dict[str, Any]:
    """A checked canonical copy of a `given` from the wire without nil values; one without `schedule` is an enqueue's.

    InvalidArgumentError for unknown keys, wrong types and ranges; UnimplementedError for what this version doesn't do.
    """
    if not isinstance(given, dict):
        raise InvalidArgumentError(f"given: a map is wanted, not {type(given).__name__}")
    out: dict[str, Any] = {}
    for key, value in given.items():
        check = _CHECKS.get(key) if isinstance(key, str) else None
        if check is None:
            raise InvalidArgumentError(f"given: {str(key)[:60]!r} is unknown; {', '.join(_CHECKS)} are known")
        if value is not None:
            out[key] = check(value, _API_NAMES.get(str(key), str(key)))
    if "task" not in out:
        raise InvalidArgumentError("given: the task is missing")
    _check_together(out)
    refuse_unimplemented(out)
    return out


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


def refuse_unimplemented(given: Mapping[str, Any]) -> None:
    """UnimplementedError naming the first policy of a checked `given` that this version doesn't carry out."""
    asked = [_API_NAMES.get(key, key) for key in given]
    schedule = given.get("schedule") or {}
    if schedule.get("kind") == "union":
        asked.append("union of schedules")
    if schedule.get("after_completion"):
        asked.append("after_completion")
    if "overlap" in given:
        asked.append(f"overlap {given['overlap']['policy']}")
    for name in asked:
        if name in UNIMPLEMENTED:
            raise UnimplementedError(f"{name}: this server doesn't know it yet; leave it out", policy=name)


def check_announced(options: Any) -> dict[str, Any]:
    """A checked copy of the options that a worker's hello announces for a task: queue, timeout_us, retry, priority."""
    got = _fields(options, "task options", _OPTION_KEYS)
    return {key: _CHECKS[key](value, _API_NAMES[key]) for key, value in got.items() if value is not None}


def resolve(given: Mapping[str, Any], announced: Mapping[str, Any] | None) -> dict[str, Any]:
    """The resolved definition of a checked `given`: given > announced (checked) > house default.

    Keys: task, schedule ({"kind": "at"} for an enqueue), queue, priority, timeout_us, retry {attempts, backoff_us,
    factor, cap_us, not_on}, overlap {policy, max}, catchup {policy, window_us, max}, start_us, end_us, max_runs,
    expires_after_us, concurrency_key. None: no such bound.
    """
    spec: dict[str, Any] = {"task": given["task"], "schedule": dict(given.get("schedule") or {"kind": "at"})}
    for key, house in _HOUSE.items():
        value = given.get(key)
        if value is None and announced is not None and key in _OPTION_KEYS:
            value = announced.get(key)
        if value is None:
            value = house
        spec[key] = _copied(value)
    return spec


def _copied(value: Any) -> Any:
    """A copy of plain data two levels deep, so that nobody holds a part of the house defaults."""
    if isinstance(value, dict):
        return {key: list(part) if isinstance(part, list) else part for key, part in value.items()}
    return value

"""What a job is asked to be: the API's policies as the wire's `given`, the server's check, and the resolved `spec`.

`given` holds what the user asked for and nothing else. It is made by `given_from_api` in a client, checked again by
`check_given` in the server, and filled up by `resolve`: argument > decorator (as sent with the call) > decorator (as
announced by a worker) > house default. What a server doesn't know it refuses, so that an older one never ignores what a
newer client asks for.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any, Final

from ..model.errors import InvalidArgumentError, ScheduleError
from ..model.nouns import HOOKS, NEVER, US, parse_duration, parse_instant
from ..model.policies import Catchup, Overlap, Retry
from .checks import CHECKS, check_instant, check_together, check_union_size, fields

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ..model.nouns import Call

__all__ = [
    "POLICIES",
    "check_announced",
    "check_given",
    "given_from_api",
    "resolve",
    "unknown_policy",
]

_RECURRING: Final = (
    "overlap", "catchup", "start_us", "end_us", "max_runs", "jitter", "calendar", "pause_after", "late_after_us", "on_missed",
)
_WHEN_SET: Final = (  # in a spec only then
    "jitter", "calendar", "pause_after", "late_after_us", "on_missed", "redact", *HOOKS, "heartbeat_timeout_us", "concurrency",
)
_NO_JITTER: Final = ({"us": 0}, {"percent": 0.0})
SERVER_KEYS: Final = ("namespace", "hash_id", "concurrency_of")  # what the server adds to a spec for itself
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


# What users write -> the wire's value


def _api_retry(value: Any, what: str) -> dict[str, Any]:
    if isinstance(value, int) and not isinstance(value, bool):
        value = Retry(attempts=value)
    if not isinstance(value, Retry):
        raise InvalidArgumentError(f"{what}: Retry(...) or a number of attempts is wanted, not {type(value).__name__}")
    if not isinstance(value.errors, dict):
        raise InvalidArgumentError("retry errors: names of exception types with a Retry(...) each are wanted")
    if isinstance(value.not_on, str) or not all(isinstance(name, str) for name in value.not_on):
        raise InvalidArgumentError("retry not_on: names of exception types are wanted, such as ('ValueError',)")
    return value.to_wire()


def _api_overlap(value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, str | Overlap):
        raise InvalidArgumentError(f"{what}: a word or Overlap(...) is wanted, not {type(value).__name__}")
    wanted = Overlap(value) if isinstance(value, str) else value  # type: ignore[arg-type]  # the word is checked with the rest
    return wanted.to_wire()


def _api_catchup(value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, str | Catchup):
        raise InvalidArgumentError(f"{what}: a word or Catchup(...) is wanted, not {type(value).__name__}")
    wanted = Catchup(value) if isinstance(value, str) else value  # type: ignore[arg-type]  # the word is checked with the rest
    # the limits are left to the check, which knows which policy has which
    return wanted.to_wire() if wanted.policy == "all" else {**wanted.to_wire(), "max": wanted.max}


def _api_jitter(value: Any, what: str) -> dict[str, Any]:
    if isinstance(value, str) and value.strip().endswith("%"):
        try:
            return {"percent": float(value.strip()[:-1])}
        except ValueError:
            raise InvalidArgumentError(f"{what}: {value[:60]!r} is not a percentage; write it like '10%'") from None
    return {"us": parse_duration(value, what)}


def _api_names(value: Any, what: str) -> Any:  # noqa: ARG001 - the face of a converter
    return [value] if isinstance(value, str) else value


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
    "concurrency": ("concurrency", _same),
    "jitter": ("jitter", _api_jitter),
    "calendar": ("calendar", _api_names),
    "heartbeat_timeout": ("heartbeat_timeout_us", parse_duration),
    "pause_after": ("pause_after", _same),
    "late_after": ("late_after_us", parse_duration),
    "on_missed": ("on_missed", _same),
    "redact": ("redact", _api_names),
    "on_success": ("on_success", _same),
    "on_failure": ("on_failure", _same),
    "on_dead": ("on_dead", _same),
}
_API_NAMES: Final = {key: name for name, (key, _) in POLICIES.items()}
_OPTIONS: Final = ("queue", "timeout", "heartbeat_timeout", "retry", "priority", "redact")  # what a decorator may give
_OPTION_KEYS: Final = tuple(POLICIES[name][0] for name in _OPTIONS)


def unknown_policy(name: str) -> InvalidArgumentError:
    """The error for a policy that there is not, with the nearest that there is."""
    if name in _PUT_ONLY:
        return InvalidArgumentError(f"{name} is no policy: it is an argument of put alone", policy=name)
    near = difflib.get_close_matches(name, POLICIES, 1)
    hint = f"did you mean {near[0]!r}?" if near else f"{', '.join(POLICIES)} are known"
    return InvalidArgumentError(f"unknown policy {name[:60]!r}: {hint}", policy=name[:60])


def _api_schedule(schedule: Any) -> tuple[dict[str, Any], int]:
    if isinstance(schedule, list | tuple):
        check_union_size(len(schedule))
        of = []
        for i, part in enumerate(schedule):
            if isinstance(part, list | tuple):
                raise ScheduleError(f"schedule: number {i + 1} of the list is a list in a list: put all schedules into one")
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
        given["schedule"] = CHECKS["schedule"](wire, "schedule") if wire.get("kind") == "union" else wire
    for name in call.options:
        if name not in _OPTIONS:
            raise InvalidArgumentError(f"a task's options are {', '.join(_OPTIONS)}; {name!r} is none of them")
    for name, value in {**call.options, **{k: v for k, v in policies.items() if v is not None}}.items():
        if value is None:
            continue
        known = POLICIES.get(name)
        if known is None:
            raise unknown_policy(name)
        key, convert = known
        given[key] = CHECKS[key](convert(value, name), name)
    if "redact" in given and call.options.get("redact") is not None:  # it only ever adds up
        given["redact"] = sorted({*given["redact"], *CHECKS["redact"](_api_names(call.options["redact"], "redact"), "redact")})
    _refuse_recurring(given)
    check_together(given)
    check_instant(given, param_us)
    return given, param_us


def _refuse_recurring(given: Mapping[str, Any]) -> None:
    """An enqueue's `given` has no policy that is about coming occurrences."""
    for key in () if "schedule" in given else _RECURRING:
        if key in given:
            name = _API_NAMES[key]
            raise InvalidArgumentError(f"{name} goes with put: an enqueued call runs once", policy=name)


def check_given(given: Any) -> dict[str, Any]:
    """A checked canonical copy of a `given` from the wire without nil values; one without `schedule` is an enqueue's.

    InvalidArgumentError for unknown keys, wrong types and ranges.
    """
    if not isinstance(given, dict):
        raise InvalidArgumentError(f"given: a map is wanted, not {type(given).__name__}")
    out: dict[str, Any] = {}
    for key, value in given.items():
        check = CHECKS.get(key) if isinstance(key, str) else None
        if check is None:
            raise InvalidArgumentError(f"given: {str(key)[:60]!r} is unknown; {', '.join(CHECKS)} are known")
        if value is not None:
            out[key] = check(value, _API_NAMES.get(str(key), str(key)))
    if "task" not in out:
        raise InvalidArgumentError("given: the task is missing")
    _refuse_recurring(out)
    check_together(out)
    return out


def check_announced(options: Any) -> dict[str, Any]:
    """A checked copy of the options that a worker's hello announces for a task: queue, timeout_us,
    heartbeat_timeout_us, retry, priority, redact.
    """
    got = fields(options, "task options", _OPTION_KEYS)
    return {key: CHECKS[key](value, _API_NAMES[key]) for key, value in got.items() if value is not None}


def resolve(given: Mapping[str, Any], announced: Mapping[str, Any] | None) -> dict[str, Any]:
    """The resolved definition of a checked `given`: given > announced (checked) > house default.

    Keys: task, schedule ({"kind": "at"} for an enqueue), queue, priority, timeout_us, retry {attempts, backoff_us,
    factor, cap_us, not_on}, overlap {policy, max}, catchup {policy, window_us, max}, start_us, end_us, max_runs,
    expires_after_us, concurrency_key. None: no such bound. Only when they were given: jitter {us} or {percent},
    calendar [names], pause_after, late_after_us, redact [names; those announced too], on_missed, on_success, on_failure,
    on_dead (full job names), heartbeat_timeout_us, concurrency; so what was resolved before stays equal.
    """
    spec: dict[str, Any] = {"task": given["task"], "schedule": dict(given.get("schedule") or {"kind": "at"})}
    for key, house in _HOUSE.items():
        value = given.get(key)
        if value is None and announced is not None and key in _OPTION_KEYS:
            value = announced.get(key)
        if value is None:
            value = house
        spec[key] = _copied(value)
    for key in _WHEN_SET:
        value = given.get(key)
        if announced is not None and key in _OPTION_KEYS:
            if value is None:
                value = announced.get(key)
            elif key == "redact":  # it only ever adds up
                value = sorted({*value, *announced.get(key, ())})
        if value is not None and value not in _NO_JITTER:
            spec[key] = _copied(value)
    return spec


def _copied(value: Any) -> Any:
    """A copy of plain data two levels deep, so that nobody holds a part of the house defaults."""
    if isinstance(value, list):
        return list(value)
    if isinstance(value, dict):
        return {key: list(part) if isinstance(part, list) else part for key, part in value.items()}
    return value

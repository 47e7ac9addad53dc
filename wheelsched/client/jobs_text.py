"""Jobs as the text of a jobs file, TOML: what `job apply` of it would put is what is there. Pure; the reader is the command line's."""

from __future__ import annotations

import base64
import json
import math
import re
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from ..model.errors import PayloadError, WheelschedError
from ..model.nouns import HOOKS, Command, Http, display_name, format_duration, to_datetime
from ..model.payloads import RAW
from ..protocol.definition import resolve
from ..protocol.frames import decode_headers, decode_payload, encode_payload
from ..protocol.redact import MARK, mark_in
from ..schedules.schedule import At, Cron, Every, check_union, schedule_from_wire
from .values import call_words, rfc3339

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ..schedules.schedule import Schedule
    from .values import JobInfo
    from .views_time import Calendar

__all__ = ["JobsText", "toml_value"]

EMPTY: Final = encode_payload((), {})
_BARE: Final = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)
_HOUSE: Final = resolve({"task": "x"}, None)
_ANNOUNCED: Final = ("queue", "priority", "timeout_us", "retry")  # what a decorator may say: left out, it would count again
_BUILTIN: Final = {"command": ("argv",), "http": ("method", "url")}  # task -> its positional arguments
_DURATIONS: Final = ("timeout", "heartbeat_timeout", "expires_after", "late_after")


def toml_value(value: Any) -> str:
    """A value in TOML. PayloadError for one that TOML has no form of: None, bytes, a type of the user's."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else str(value)
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007F")
    if isinstance(value, datetime):
        text = rfc3339(value)
        return str(text).replace(".000000Z", "Z")
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(toml_value, value))}]"
    if isinstance(value, dict):
        inside = ", ".join(f"{toml_key(key)} = {toml_value(item)}" for key, item in value.items())
        return f"{{{inside}}}"
    raise PayloadError(f"TOML has no {type(value).__name__}")


def toml_key(key: str) -> str:
    """A key in TOML."""
    return key if _BARE.fullmatch(key) else toml_value(key)


def _reads_back(task: str, made: dict[str, Any], payload: bytes) -> bool:
    """Would the short form of a built-in task make just this payload?"""
    try:
        call = (Command if task == "command" else Http)(**made)
        return encode_payload(call.args, call.kwargs, decode_headers(payload)) == payload
    except (WheelschedError, TypeError):
        return False


class JobsText:
    """Collects jobs, then gives the file."""

    def __init__(self, *, finished: bool) -> None:
        self._finished = finished
        self._jobs: list[tuple[str, list[str]]] = []
        self.calendars: set[str] = set()  # that the jobs name
        self.left_out = 0  # finished jobs

    def add(self, job: JobInfo) -> None:
        """Take a job; one that is deleted, or that stands for enqueued runs, is not told."""
        if job.state == "deleted" or job.name.rpartition("/")[2].startswith("~"):
            return
        if job.state == "finished" and not self._finished:
            self.left_out += 1
            return
        self.calendars.update(job.spec.get("calendar") or ())
        self._jobs.append((job.name, list(_lines(job))))

    def whole(self, calendars: Iterable[Calendar]) -> str:
        """The text of the file, sorted by names."""
        parts = [f"[jobs.{toml_key(name)}]\n" + "".join(f"{line}\n" for line in lines) for name, lines in sorted(self._jobs)]
        for calendar in sorted(calendars, key=lambda c: c.name):
            if calendar.name in self.calendars:
                lines = [f"{key} = {toml_value(_calendar(key, value))}\n" for key, value in calendar.definition.items() if value]
                parts.append(f"[calendars.{toml_key(calendar.name)}]\n" + "".join(lines))
        if self.left_out:
            parts.insert(0, f"# {self.left_out} finished job{'s'[: self.left_out != 1]} left out\n")
        return "\n".join(parts)


def _calendar(key: str, value: Any) -> Any:
    """An entry of a calendar as users write it."""
    if key != "windows":
        return value
    return [{"from": to_datetime(window["from_us"]), "to": to_datetime(window["to_us"])} for window in value]


def _lines(job: JobInfo) -> Iterator[str]:
    for key, value in (*_work(job), *_schedule(_given(job)), *_policies(job)):
        yield f"# {value}" if not key else f"{key} = {toml_value(value)}"
    if job.state == "paused":
        yield "paused = true"
    if job.note and job.note != job.pause_note:
        yield f"note = {toml_value(job.note)}"


def _work(job: JobInfo) -> Iterator[tuple[str, Any]]:
    """The task with its arguments; a comment where the key is empty."""
    payload = job.payload or EMPTY
    args, kwargs = decode_payload(payload, RAW)
    headers = decode_headers(payload)
    if mark_in(payload):
        yield "", f"what is {MARK} is not told: fill it in, or `job apply` refuses it"
    names = _BUILTIN.get(job.task)
    if names is not None and len(args) == len(names):
        said = {key: value for key, value in kwargs.items() if value is not None and (value != {} or key == "json")}
        if job.task == "command" and said.get("success_codes") == [0]:
            del said["success_codes"]
        made = dict(zip(names, args, strict=True)) | said
        work = [(job.task, args[0] if job.task == "command" and not said else made)]
        if not _reads_back(job.task, made, payload):
            names = None
    if names is None or len(args) != len(names):
        work = [("task", job.task), *((key, value) for key, value in (("args", args), ("kwargs", kwargs)) if value)]
    if headers:
        work.append(("headers", headers))
    try:
        for _, value in work:
            toml_value(value)
    except PayloadError:
        words = call_words(payload)
        yield "task", job.task
        yield "", f"args: {json.dumps(words['args'], ensure_ascii=False)}, kwargs: {json.dumps(words['kwargs'], ensure_ascii=False)}"
        yield "payload", base64.b64encode(payload).decode("ascii")
    else:
        yield from work


def _given(job: JobInfo) -> Schedule | list[Schedule]:
    """The schedule as it was given: an interval in a union has no anchor unless one was said."""
    wire = job.spec["schedule"]
    return [schedule_from_wire(member, own) for member, own in check_union(wire)] if wire["kind"] == "union" else job.schedule


def _schedule(what: Schedule | list[Schedule]) -> Iterator[tuple[str, Any]]:
    if isinstance(what, list):
        crons = [part for part in what if isinstance(part, Cron)]
        rules = [dict(_schedule(part)) for part in what]
        others = {tuple((key, value) for key, value in rule.items() if key != "cron") for rule in rules} if len(crons) == len(what) else ()
        if len(others) == 1:
            yield "cron", [cron.expr for cron in crons]
            yield from ((key, value) for key, value in rules[0].items() if key != "cron")
        else:
            yield "schedules", rules
    elif isinstance(what, Cron):
        yield "cron", what.expr
        plain = {"tz": "UTC", "dst_gap": None, "dst_overlap": None, "day_or": True, "seconds": "first"}
        yield from ((key, getattr(what, key)) for key, value in plain.items() if getattr(what, key) != value)
    elif isinstance(what, Every):
        yield "every", format_duration(what.every_us)
        if what.after_completion:
            yield "after_completion", True
        elif what.anchor is not None:
            yield "anchor", what.anchor
    elif isinstance(what, At):
        yield "at", what.instant
    else:
        yield "manual", True


def _policies(job: JobInfo) -> Iterator[tuple[str, Any]]:
    """Those that are not as they would be without a word."""
    spec = job.spec
    for key, value in spec.items():
        if key in ("task", "schedule") or value is None:
            continue
        if value == _HOUSE.get(key) and (key not in _ANNOUNCED or job.task in _BUILTIN):
            continue
        yield _policy(key, value)


def _policy(key: str, value: Any) -> tuple[str, Any]:
    name = key.removesuffix("_us")
    if name in _DURATIONS:
        return name, format_duration(value)
    if name in ("start", "end"):
        return name, to_datetime(value)
    if name == "retry":
        return name, _rule(value)
    if name == "overlap":
        return name, value["policy"] if value.get("max") is None else f"{value['policy']}:{value['max']}"
    if name == "catchup":
        window = {} if value.get("window_us") is None else {"window": format_duration(value["window_us"])}
        most = {} if value.get("max") is None else {"max": value["max"]}
        return name, {"policy": value["policy"], **window, **most} if window or most else value["policy"]
    if name == "jitter":
        return name, format_duration(value["us"]) if value.get("percent") is None else f"{value['percent']:g}%"
    if name in ("on_missed", *HOOKS):
        return name, display_name(value)
    return name, value


def _rule(retry: dict[str, Any]) -> dict[str, Any]:
    """A retry policy, or one of its rules by error."""
    out: dict[str, Any] = {"attempts": retry["attempts"], "backoff": format_duration(retry["backoff_us"]), "factor": retry["factor"],
                           "cap": format_duration(retry["cap_us"])}
    if retry.get("not_on"):
        out["not_on"] = retry["not_on"]
    if retry.get("errors"):
        out["errors"] = {name: _rule(rule) for name, rule in retry["errors"].items()}
    return out

"""Reads a jobs file, TOML, into jobs, and finds every fault in it at once, each with its line. No I/O.

    [defaults]                       # policies, tz, dst_gap, dst_overlap of all jobs below; tz also of the calendars
    queue = "reports"
    [jobs."billing/charge"]          # namespace/name
    task = "billing.charge"          # or command = ["argv", ...], or http = {method = "GET", url = "..."}
    args = ["eu"]
    kwargs = {full = true}
    headers = {team = "blue"}        # texts beside the arguments, for current_run().headers
    payload = "..."                  # instead of args and kwargs: what `job export` writes where TOML has no form of them
    cron = "0 0 * * *"               # or a list; or every, at, manual = true, schedules = [{cron = ...}, {every = ...}]: a union
    tz = "Europe/Berlin"
    retry = {attempts = 5, backoff = "30s", errors = {ValueError = {attempts = 1}}}      # or a number of attempts
    overlap = "buffer_all:20"        # or {policy = "buffer_all", max = 20}
    catchup = {policy = "latest", window = "24h"}    # or a word
    paused = false
    note = "why it is there"

    [calendars.holidays]             # as for `calendar put`: mode, tz, dates, yearly, weekdays, windows, daily
    yearly = ["12-25", "12-26"]

All other policies are as for `job put`. A default that can't go with a job's kind of schedule (jitter of a manual job) is left
out for that job.
"""

from __future__ import annotations

import base64
import difflib
import re
import tomllib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from ..client.apply import check_job
from ..model.errors import InvalidArgumentError, PayloadError, WheelschedError
from ..model.jobs import Job
from ..model.nouns import Call, Command, Http, parse_job_name
from ..model.payloads import RAW
from ..model.policies import Catchup, Overlap, Retry
from ..protocol.checks import check_name
from ..protocol.definition import POLICIES, given_from_api
from ..protocol.frames import check_headers, decode_headers, decode_payload
from ..schedules.schedule import At, Cron, Every, Manual
from .toml_lines import Path, line_of, toml_lines

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

__all__ = ["Fault", "JobsFile", "read_jobs_file", "shown_path"]

_ZONE: Final = ("tz", "dst_gap", "dst_overlap")
_CRON: Final = (*_ZONE, "day_or", "seconds")
_EVERY: Final = ("anchor", "after_completion")
_KINDS: Final = ("cron", "every", "at", "manual", "schedules")
_WORK: Final = ("task", "args", "kwargs", "payload", "command", "http", "headers")
_CALLS: Final = frozenset({"task", "command", "http"})
_OWN: Final = ("note", "paused")
_JOB_KEYS: Final = (*_WORK, *_KINDS, *_CRON, *_EVERY, *POLICIES, *_OWN)
_DEFAULT_KEYS: Final = (*POLICIES, *_ZONE, *_OWN)
_TOP: Final = ("defaults", "jobs", "calendars")
_CALENDAR_KEYS: Final = ("mode", "tz", "dates", "yearly", "weekdays", "windows", "daily")
_PART_KEYS: Final = ("cron", "every", "at", *_CRON, *_EVERY)
_COMMAND_KEYS: Final = ("argv", "cwd", "env", "user", "success_codes", "fatal_codes", "stdin", "env_file")
_HTTP_KEYS: Final = ("method", "url", "json", "body", "headers", "timeout", "expect", "redirects", "sign", "max_body")
_RULE_KEYS: Final = ("attempts", "backoff", "factor", "cap")
_RETRY_KEYS: Final = (*_RULE_KEYS, "not_on", "errors")
_SOMETIMES: Final = Cron("0 0 * * *")  # a schedule that goes with any policy
_BARE: Final = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)
_LINE: Final = re.compile(r"\s*\(at line (\d+), column \d+\)|\s*\(at end of document\)")
_LONG: Final = {"overlap": (Overlap, ("policy", "max")), "catchup": (Catchup, ("policy", "window", "max")), "retry": (Retry, _RETRY_KEYS)}


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong where. `place` is the key's path as in the file."""

    line: int
    place: str
    text: str

    def __str__(self) -> str:
        return f"{self.line}: {self.place}: {self.text}" if self.place else f"{self.line}: {self.text}"


@dataclass(slots=True)
class JobsFile:
    """What a file says: the jobs that are right, in order, with the lines where they begin; and all that is wrong."""

    jobs: list[Job] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)
    names: list[str] = field(default_factory=list)  # as they stand in the file
    where: dict[Path, int] = field(default_factory=dict)  # the line of everything
    faults: list[Fault] = field(default_factory=list)
    calendars: dict[str, dict[str, Any]] = field(default_factory=dict)
    tables: int = 0  # jobs that the file has, right or not


def read_jobs_file(text: str) -> JobsFile:
    """The jobs and all faults of a file's text."""
    out = JobsFile()
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as e:
        found = _LINE.search(str(e))
        line = int(found[1]) if found and found[1] else text.count("\n") + 1
        out.faults.append(Fault(line, "", f"no TOML: {_LINE.sub('', str(e))}"))
        return out
    except RecursionError:
        out.faults.append(Fault(1, "", "no TOML that can be read: values are nested too deep"))
        return out
    out.where = toml_lines(text)
    reader = _Reader(out, out.where)
    reader.read(data)
    out.faults.sort(key=lambda fault: fault.line)
    return out


def shown_path(path: Path) -> str:
    """A path as it stands in TOML: jobs."a/b".retry."""
    out = ""
    for part in path:
        if isinstance(part, int):
            out += f"[{part}]"
        else:
            out += ("." if out else "") + (part if _BARE.fullmatch(part) else f'"{part}"')
    return out


class _Reader:
    def __init__(self, out: JobsFile, lines: dict[Path, int]) -> None:
        self.out = out
        self.lines = lines
        self.defaults: dict[str, Any] = {}
        self.zone: dict[str, Any] = {}
        self.names: dict[str, str] = {}

    def fault(self, path: Path, text: str) -> None:
        self.out.faults.append(Fault(line_of(self.lines, path), shown_path(path), text))

    def read(self, data: dict[str, Any]) -> None:
        self.unknown((), data, _TOP)
        defaults, jobs = data.get("defaults", {}), data.get("jobs", {})
        calendars = data.get("calendars", {})
        if self.table(("defaults",), defaults):
            self.read_defaults(defaults)
        if self.table(("calendars",), calendars):
            for name, table in calendars.items():
                if self.table(("calendars", name), table):
                    self.read_calendar(name, {key: self.zone[key] for key in ("tz",) if key in self.zone} | table)
        if self.table(("jobs",), jobs):
            for name, table in jobs.items():
                self.out.tables += 1
                if self.table(("jobs", name), table):
                    self.read_job(name, table)

    def table(self, path: Path, value: Any) -> bool:
        """Is it a table? A fault if not."""
        if not isinstance(value, dict):
            self.fault(path, f"a table is wanted, not {_kind(value)}")
            return False
        return True

    def unknown(self, path: Path, table: Mapping[str, Any], known: Iterable[str]) -> set[str]:
        """A fault for each unknown key; the keys that were meant, as far as that can be told."""
        known = tuple(known)
        meant: set[str] = set()
        for key in table:
            if key not in known:
                near = difflib.get_close_matches(key, known, 1)
                hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known)}"
                self.fault((*path, key), f"unknown key; {hint}")
                meant.update(near)
        return meant

    def read_defaults(self, table: dict[str, Any]) -> None:
        path: Path = ("defaults",)
        self.unknown(path, table, _DEFAULT_KEYS)
        self.zone = {key: table[key] for key in _ZONE if key in table}
        if self.zone:
            try:
                Cron("0 0 * * *", **self.zone)
            except WheelschedError as e:
                self.fault((*path, next(iter(self.zone))), e.message)
                self.zone = {}
        self.defaults = self.policies(path, table)
        self.defaults |= {key: table[key] for key in _OWN if key in table}

    def read_calendar(self, name: str, table: dict[str, Any]) -> None:
        from ..schedules.calendars import calendar_from_api  # noqa: PLC0415 - heavy, and most files have none

        path: Path = ("calendars", name)
        if not self.unknown(path, table, _CALENDAR_KEYS) and set(table) <= set(_CALENDAR_KEYS):
            try:
                check_name(name, "calendar")
                calendar_from_api(**table)
            except (WheelschedError, TypeError) as e:
                where = next((key for key in table if f"calendar {key}" in str(e)), None)
                self.fault(path if where is None else (*path, where), str(e))
            else:
                self.out.calendars[name] = table

    def policies(self, path: Path, table: Mapping[str, Any]) -> dict[str, Any]:
        """The policies of a table, each checked alone."""
        out = {}
        for key in POLICIES:
            if key not in table:
                continue
            try:
                value = self.policy((*path, key), key, table[key])
                given_from_api(Call("x"), _SOMETIMES, {key: value})
            except (WheelschedError, TypeError) as e:
                self.fault((*path, key), str(e))
            else:
                out[key] = value
        for key in _OWN:
            if key in table:
                try:
                    check_job(Job("x", Call("x"), _SOMETIMES, **{key: table[key]}))
                except WheelschedError as e:
                    self.fault((*path, key), e.message)
        return out

    def policy(self, path: Path, key: str, value: Any) -> Any:
        """A policy as the client takes it."""
        if key in _LONG and isinstance(value, dict):
            make, known = _LONG[key]
            self.unknown(path, value, known)
            if isinstance(value.get("errors"), dict):
                value = {**value, "errors": {name: self._rule((*path, "errors", name), rule) for name, rule in value["errors"].items()}}
            return make(**{k: tuple(v) if isinstance(v, list) else v for k, v in value.items() if k in known})
        if key == "overlap" and isinstance(value, str) and ":" in value:
            word, _, limit = value.partition(":")
            if not (limit.isascii() and limit.isdigit()):
                raise InvalidArgumentError(f"overlap: {value[:60]!r}: a whole number is wanted behind the colon")
            return Overlap(word, max=int(limit))  # type: ignore[arg-type]  # the word is checked with the rest
        return value

    def _rule(self, path: Path, rule: Any) -> Any:
        """Of a retry policy, for one kind of error: a table or a number of attempts."""
        if not isinstance(rule, dict):
            return rule
        self.unknown(path, rule, _RULE_KEYS)
        return Retry(**{k: v for k, v in rule.items() if k in _RULE_KEYS})

    def read_job(self, name: str, table: dict[str, Any]) -> None:
        path: Path = ("jobs", name)
        before = len(self.out.faults)
        if table and all(isinstance(value, dict) for value in table.values()) and not set(table) & set(_JOB_KEYS):
            full = ".".join((name, next(iter(table))))
            self.fault(path, f'a name with dots must be quoted: [jobs."{full}"]')
            return
        meant = self.unknown(path, table, _JOB_KEYS)
        try:
            full = parse_job_name(name)
        except WheelschedError as e:
            self.fault(path, e.message)
            full = ""
        if full and self.names.setdefault(full, name) != name:
            self.fault(path, f"is the same job as {shown_path(('jobs', self.names[full]))}")
        call = None if meant & _CALLS else self.attempt(path, lambda: self.with_headers(path, table))
        schedule = None if meant & set(_KINDS) else self.attempt(path, lambda: self.schedule(path, table))
        own = self.policies(path, table) | {key: table[key] for key in _OWN if key in table}
        if len(self.out.faults) > before or call is None:
            return
        policies = {k: v for k, v in self.defaults.items() if k not in own and _fits(call, schedule, k, v)} | own
        job = Job(full, call, schedule, **policies)  # type: ignore[arg-type]  # check_job says that the schedule is missing
        try:
            check_job(job)
        except WheelschedError as e:
            self.fault(path, e.message)
        else:
            self.out.jobs.append(job)
            self.out.names.append(name)
            self.out.lines.append(line_of(self.lines, path))

    def attempt(self, path: Path, make: Callable[[], Any]) -> Any:
        try:
            return make()
        except _AtError as e:
            self.fault(e.path, e.text)
        except (WheelschedError, TypeError) as e:
            self.fault(path, str(e))
        return None

    def call(self, path: Path, table: Mapping[str, Any]) -> Call:
        kinds = [key for key in ("task", "command", "http") if key in table]
        if len(kinds) != 1:
            given = f"{' and '.join(kinds)} are given" if kinds else "none is given"
            raise InvalidArgumentError(f"one of task, command, http is wanted; {given}")
        kind, value = kinds[0], table[kinds[0]]
        if kind != "task":
            for key in ("args", "kwargs", "payload"):
                if key in table:
                    raise _AtError((*path, key), f"goes with task, not with {kind}")
            return self.command((*path, kind), value) if kind == "command" else self.http((*path, kind), value)
        if "payload" in table:
            return self.encoded(path, table)
        args, kwargs = table.get("args", []), table.get("kwargs", {})
        if not isinstance(args, list):
            self.fault((*path, "args"), f"a list is wanted, not {_kind(args)}")
            args = []
        if not isinstance(kwargs, dict):
            self.fault((*path, "kwargs"), f"a table is wanted, not {_kind(kwargs)}")
            kwargs = {}
        try:
            return Call(value, *args, **kwargs)
        except WheelschedError as e:
            raise _AtError((*path, "task"), e.message) from e

    def with_headers(self, path: Path, table: Mapping[str, Any]) -> Call:
        call = self.call(path, table)
        return call.with_headers(self.headers(path, table)) if "headers" in table else call

    def encoded(self, path: Path, table: Mapping[str, Any]) -> Call:
        """A call whose arguments TOML has no form of: base64 of the payload, as `job export` writes it."""
        for key in ("args", "kwargs"):
            if key in table:
                raise _AtError((*path, key), "goes without payload, which has all arguments")
        try:
            data = base64.b64decode(table["payload"], validate=True)
            args, kwargs = decode_payload(data, RAW)
            return Call(table["task"], *args, **kwargs).with_headers(decode_headers(data))
        except (WheelschedError, TypeError, ValueError, OverflowError) as e:
            raise _AtError((*path, "payload"), f"it is not what `job export` writes: {e}") from e

    def headers(self, path: Path, table: Mapping[str, Any]) -> dict[str, str]:
        try:
            return check_headers(table.get("headers", {}))
        except PayloadError as e:
            raise _AtError((*path, "headers"), e.message.removeprefix("headers: ")) from e

    def command(self, path: Path, value: Any) -> Call:
        if isinstance(value, str):
            raise _AtError(path, f"a list of words is wanted, there is no shell: command = {value.split()}")
        parts = value if isinstance(value, dict) else {"argv": value}
        self.unknown(path, parts, _COMMAND_KEYS)
        known = {k: v for k, v in parts.items() if k in _COMMAND_KEYS}
        if not isinstance(known.get("argv"), list):
            raise _AtError(path, "argv, a list of words, is wanted")
        if not isinstance(known.get("env", {}), dict) or not all(isinstance(v, str) for v in known.get("env", {}).values()):
            raise _AtError((*path, "env"), "a table of texts is wanted")
        for key in ("success_codes", "fatal_codes"):
            codes = known.get(key, [0])
            if not isinstance(codes, list) or not all(isinstance(c, int) and not isinstance(c, bool) for c in codes):
                raise _AtError((*path, key), "a list of whole numbers is wanted")
        for key in ("cwd", "user", "stdin"):
            if not isinstance(known.get(key, ""), str):
                raise _AtError((*path, key), f"text is wanted, not {_kind(known[key])}")
        files = known.get("env_file", [])
        if not isinstance(files, str) and not (isinstance(files, list) and all(isinstance(file, str) for file in files)):
            raise _AtError((*path, "env_file"), "the path of a file, or a list of them, is wanted")
        return Command(**known)

    def http(self, path: Path, value: Any) -> Call:
        if not isinstance(value, dict) or not all(isinstance(value.get(key), str) for key in ("method", "url")):
            raise _AtError(path, 'a table is wanted: {method = "GET", url = "https://..."}')
        self.unknown(path, value, _HTTP_KEYS)
        if value.keys() - set(_HTTP_KEYS):
            return Call("http", value["method"], value["url"])  # the unknown key is the fault; what it was meant for is not known
        return Http(**value)

    def schedule(self, path: Path, table: Mapping[str, Any]) -> Any:
        kinds = [key for key in _KINDS if key in table and not (key == "manual" and table[key] is False)]
        if len(kinds) != 1:
            given = f"{' and '.join(kinds)} are given" if kinds else "none is given"
            raise InvalidArgumentError(f"one of {', '.join(_KINDS)} is wanted; {given}; several schedules go into one list, schedules")
        kind = kinds[0]
        zoned = kind in ("cron", "schedules")
        for key in (*(() if zoned else _CRON), *(() if kind == "every" else _EVERY)):
            if key in table:
                raise _AtError((*path, key), f"goes with {'cron' if key in _CRON else 'every'}, not with {kind}")
        if kind == "schedules":
            zone = self.zone | {key: table[key] for key in _CRON if key in table}
            return self.union((*path, kind), table[kind], zone)
        return self.one(path, kind, table, self.zone)

    def union(self, path: Path, parts: Any, zone: Mapping[str, Any]) -> Any:
        if not isinstance(parts, list) or not parts:
            raise _AtError(path, 'a list of tables is wanted: [{cron = "0 6 * * 1-5"}, {every = "4h"}]')
        out = []
        for i, part in enumerate(parts):
            place: Path = (*path, i)
            if not self.table(place, part):
                continue
            self.unknown(place, part, _PART_KEYS)
            kinds = [key for key in ("cron", "every", "at") if key in part]
            if len(kinds) != 1:
                self.fault(place, "one of cron, every, at is wanted in each table")
                continue
            found = self.attempt(place, lambda part=part, kind=kinds[0], place=place: self.one(place, kind, part, zone))  # type: ignore[misc]
            out += found if isinstance(found, list) else [found]
        return out[0] if len(out) == 1 else out

    def one(self, path: Path, kind: str, table: Mapping[str, Any], zone: Mapping[str, Any]) -> Any:
        """A schedule; a list for a list of expressions."""
        value = table[kind]
        try:
            if kind == "cron":
                options = {**zone, **{key: table[key] for key in _CRON if key in table}}
                if isinstance(value, list) and value:
                    many = [Cron(expr, **options) for expr in value]
                    return many[0] if len(many) == 1 else many
                return Cron(value, **options)
            if kind == "every":
                return Every(value, **{key: table[key] for key in _EVERY if key in table})
            if kind == "at":
                return At(value)
        except WheelschedError as e:
            raise _AtError((*path, kind), e.message) from e
        if value is not True:
            raise _AtError((*path, "manual"), "true is wanted")
        return Manual()


class _AtError(Exception):
    """A fault with its place."""

    def __init__(self, path: Path, text: str) -> None:
        super().__init__(text)
        self.path = path
        self.text = text


def _fits(call: Any, schedule: Any, key: str, value: Any) -> bool:
    """Can a default go with this job? What can't go with any was told already."""
    if key in _OWN:
        return True
    try:
        given_from_api(call, schedule, {key: value})
    except WheelschedError:
        return False
    return True


def _kind(value: Any) -> str:
    """The type of a TOML value, for a message."""
    names = {"dict": "a table", "list": "a list", "str": "text", "int": "a number", "float": "a number", "bool": "true or false"}
    return names.get(type(value).__name__, f"a {type(value).__name__}")

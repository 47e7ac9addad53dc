"""Reads Celery's beat_schedule dictionaries out of Python files into jobs. The file is parsed, never run. No I/O.

Understood: `app.conf.beat_schedule = {...}`, `beat_schedule = ...`, `CELERY_BEAT_SCHEDULE`, `CELERYBEAT_SCHEDULE`, the same as argument of
`conf.update(...)` or key of a dictionary, `beat_schedule["name"] = {...}`, `beat_schedule.update({...})`; and `timezone`. Values are
literals, arithmetic of numbers, names of such values at the file's top, crontab(...), timedelta(...), schedule(...).
"""

from __future__ import annotations

import ast
import operator
import re
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from ...model.errors import InvalidArgumentError, ScheduleError, WheelschedError
from ...model.jobs import Job
from ...model.nouns import NAME_MAX, Call, parse_job_name
from ...model.policies import Retry
from ...schedules.schedule import Cron, Every, Manual
from .entries import Entry

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["POLICIES", "read_beat"]

# As beat sends them: each time once, whatever else runs; what was due while it was down is sent once.
POLICIES: Final[dict[str, Any]] = {"overlap": "allow", "catchup": "latest", "retry": Retry(attempts=1)}

_SCHEDULES: Final = ("beat_schedule", "CELERY_BEAT_SCHEDULE", "CELERYBEAT_SCHEDULE")
_ZONES: Final = ("timezone", "CELERY_TIMEZONE")
_FIELDS: Final = ("minute", "hour", "day_of_week", "day_of_month", "month_of_year")
_SPANS: Final = ("days", "seconds", "microseconds", "milliseconds", "minutes", "hours", "weeks")
_OPTIONS: Final = {
    "routing_key": "queues are by name: --queue", "exchange": "queues are by name: --queue", "priority": "the numbers differ: --priority",
    "expires": "a run waits for a worker as long as it takes",
    "countdown": "a start is put off by jitter, or by another schedule", "eta": "a job has a schedule",
}
_BOUNDS: Final = {"minute": (0, 59), "hour": (0, 23), "day_of_week": (0, 6), "day_of_month": (1, 31), "month_of_year": (1, 12)}
_OPERATORS: Final[dict[type, Callable[[Any, Any], Any]]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv, ast.FloorDiv: operator.floordiv,
}
_NAME: Final = re.compile(r"[a-z]{3,}", re.IGNORECASE)
_WRAP: Final = re.compile(r"(\d+)-(\d+)(/\d+)?")
_DAY_NAMES: Final = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_MONTH_NAMES: Final = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_NUMBER_MAX: Final = 10**12
_GRID: Final = "an interval keeps to its grid from the first put on; anchor sets it"


def read_beat(file: str, text: str, *, prefix: str = "celery/", tz: str = "UTC") -> list[Entry]:
    """The jobs of a file's beat schedules, and what could not be carried over. `tz`: without a `timezone` setting.

    InvalidArgumentError for a prefix that can't begin a job's name.
    """
    parse_job_name(prefix + "x")
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as e:
        return [Entry(getattr(e, "lineno", None) or 1, "error", "", [f"no Python: {getattr(e, 'msg', None) or e}"], file=file)]
    reader = _Reader(file, prefix, tz)
    try:
        reader.read(tree)
    except RecursionError:
        reader.tell(1, "error", "", "nested too deep")
    if not reader.entries:
        reader.tell(1, "error", "", f"no beat schedule is assigned in it: {', '.join(_SCHEDULES)} are looked for")
    reader.entries.sort(key=lambda e: e.line)
    return reader.entries


class _UnknownError(Exception):
    """A value that can't be told without running the file."""


class _Reader:
    def __init__(self, file: str, prefix: str, tz: str) -> None:
        self.file = file
        self.prefix = prefix
        self.tz = tz
        self.entries: list[Entry] = []
        self.names: dict[str, ast.expr] = {}
        self.used: set[str] = set()
        self.seen: list[ast.expr] = []
        self.depth = 0

    def tell(self, line: int, kind: str, text: str, *notes: str) -> None:
        self.entries.append(Entry(line, kind, text, list(notes), file=self.file))

    def read(self, tree: ast.Module) -> None:
        found: list[tuple[str, ast.expr, ast.AST]] = []
        for top in tree.body:
            if isinstance(top, ast.Assign) and len(top.targets) == 1 and isinstance(top.targets[0], ast.Name):
                self.names[top.targets[0].id] = top.value
        for node in ast.walk(tree):
            found += _settings(node)
        for name, value, where in found:
            if name in _ZONES:
                self.zone(value, where)
        for name, value, where in found:
            if name in _SCHEDULES:
                self.table(value, getattr(where, "lineno", 1))
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add_periodic_task":
                why = "add_periodic_task runs code to make its schedule: write it as an entry of beat_schedule, or `job put` it"
                self.tell(node.lineno, "error", ast.unparse(node)[:200], why)

    def zone(self, value: ast.expr, node: ast.AST) -> None:
        line = getattr(node, "lineno", 1)
        try:
            tz = self.value(value)
            Cron("0 0 * * *", tz)
        except _UnknownError as e:
            self.tell(line, "error", "timezone", f"{e}; schedules are read in {self.tz}")
        except WheelschedError as e:
            self.tell(line, "error", "timezone", f"{e.message}; schedules are read in {self.tz}")
        else:
            self.tz = tz
            self.tell(line, "env", f"timezone = {tz}", f"schedules are in {tz}")

    def table(self, value: ast.expr, line: int) -> None:
        """A whole beat schedule, or a part of it."""
        value = self.resolve(value)
        if any(value is other for other in self.seen):
            return  # the same dictionary under another name
        self.seen.append(value)
        if not isinstance(value, ast.Dict):
            self.tell(getattr(value, "lineno", line), "error", ast.unparse(value)[:200], "a dictionary that is written out is wanted")
            return
        for key, entry in zip(value.keys, value.values, strict=True):
            if key is None:
                self.table(entry, line)  # **other
                continue
            try:
                name = self.value(key)
            except _UnknownError as e:
                self.tell(key.lineno, "error", ast.unparse(key)[:200], str(e))
                continue
            self.entry(str(name), entry, key.lineno)

    def entry(self, name: str, node: ast.expr, line: int) -> None:
        node = self.resolve(node)
        if not isinstance(node, ast.Dict):
            self.tell(line, "error", name, "its entry is no dictionary that is written out")
            return
        parts: dict[str, ast.expr] = {}
        for key, value in zip(node.keys, node.values, strict=True):
            if isinstance(key, ast.Constant) and isinstance(key.value, str):
                parts[key.value] = value
            else:
                self.tell(line, "error", name, "a key of it is no text")
                return
        notes: list[str] = []
        before = len(self.entries)
        try:
            job = self.job(name, parts, notes)
        except (_UnknownError, InvalidArgumentError, TypeError) as e:
            del self.entries[before:]
            self.tell(line, "error", name, str(e))
            return
        except WheelschedError as e:
            del self.entries[before:]
            self.tell(line, "error", name, e.message)
            return
        self.entries.insert(before, Entry(line, "manual" if isinstance(job.schedule, Manual) else "job", name, notes, job, self.file))

    def job(self, name: str, parts: dict[str, ast.expr], notes: list[str]) -> Job:
        for key in ("task", "schedule"):
            if key not in parts:
                raise InvalidArgumentError(f"it has no {key}")
        args, kwargs = (self.value(parts[key]) if key in parts else empty for key, empty in (("args", []), ("kwargs", {})))
        if args is None:
            args = []
        if not isinstance(args, list | tuple):
            raise InvalidArgumentError("args: a list is wanted")
        task = self.value(parts["task"])
        call = Call(task, *args, **(kwargs or {}))
        policies: dict[str, Any] = {}
        for key, node in parts.items():
            if key == "options":
                self.options(name, node, policies)
            elif key == "relative":
                self.tell(node.lineno, "dropped", f"{name}: relative", _GRID)
            elif key not in ("task", "schedule", "args", "kwargs"):
                self.tell(node.lineno, "dropped", f"{name}: {key}", "it has no meaning for a job")
        schedule = self.schedule(parts["schedule"], notes)
        bare = re.sub(r"[^A-Za-z0-9._:-]+", "-", name).strip("-") or "job"
        full = f"{self.prefix}{bare}"[: len(self.prefix) + NAME_MAX]
        if full in self.used:
            raise InvalidArgumentError(f"another entry is already {full}")
        self.used.add(full)
        return Job(full, call, schedule, **policies)

    def options(self, name: str, node: ast.expr, policies: dict[str, Any]) -> None:
        """Options of apply_async: the queue and the expiry are carried over."""
        node = self.resolve(node)
        if not isinstance(node, ast.Dict):
            self.tell(node.lineno, "dropped", f"{name}: options", "they are no dictionary that is written out")
            return
        for key, value in zip(node.keys, node.values, strict=True):
            label = str(key.value) if isinstance(key, ast.Constant) else "**"
            try:
                plain = self.value(value)
            except _UnknownError as e:
                self.tell(value.lineno, "dropped", f"{name}: options {label}", str(e))
                continue
            if label == "queue" and isinstance(plain, str):
                policies["queue"] = plain
            elif label == "expires" and isinstance(plain, int | float | timedelta):
                policies["expires_after"] = plain
            else:
                why = _OPTIONS.get(label, "it has no meaning for a job")
                self.tell(value.lineno, "dropped", f"{name}: options {label}={plain!r}", why)

    def schedule(self, node: ast.expr, notes: list[str]) -> Any:
        node = self.resolve(node)
        kind = _called(node)
        if kind == "crontab":
            assert isinstance(node, ast.Call)
            return self.crontab(node, notes)
        if kind == "solar":
            raise InvalidArgumentError("solar(...) follows the sun: no cron expression does")
        if kind == "schedule":
            assert isinstance(node, ast.Call)
            given = self.keywords(node, ("run_every", "relative", "nowfun", "app"))
            if "run_every" not in given:
                raise InvalidArgumentError("schedule(...) has no run_every")
            if "relative" in given:
                self.tell(node.lineno, "dropped", "relative", _GRID)
            return self.every(self.value(given["run_every"]))
        return self.every(self.value(node))

    def every(self, value: Any) -> Every:
        if isinstance(value, bool) or not isinstance(value, int | float | timedelta):
            raise InvalidArgumentError(f"schedule: {value!r} is neither crontab(...), timedelta(...) nor a number of seconds")
        return Every(value)

    def keywords(self, node: ast.Call, order: tuple[str, ...]) -> dict[str, ast.expr]:
        """Arguments by name."""
        if len(node.args) > len(order) or any(isinstance(a, ast.Starred) for a in node.args):
            raise InvalidArgumentError(f"{ast.unparse(node)[:100]}: too many arguments")
        out = dict(zip(order, node.args, strict=False))
        for word in node.keywords:
            if word.arg not in order:
                raise InvalidArgumentError(f"{ast.unparse(node)[:100]}: {word.arg or '**'} is not known")
            out[word.arg] = word.value
        return out

    def crontab(self, node: ast.Call, notes: list[str]) -> Any:
        given = self.keywords(node, (*_FIELDS, "nowfun", "app", "tz"))
        for key in ("nowfun", "app"):
            if given.pop(key, None) is not None:
                self.tell(node.lineno, "dropped", key, "it has no meaning for a job")
        tz = str(self.value(given.pop("tz"))) if "tz" in given else self.tz
        texts = {name: _field(name, self.value(given[name])) if name in given else "*" for name in _FIELDS}
        expr = " ".join(texts[name] for name in ("minute", "hour", "day_of_month", "month_of_year", "day_of_week"))
        both = texts["day_of_month"] != "*" and texts["day_of_week"] != "*"
        try:
            return Cron(expr, tz, day_or=not both)
        except ScheduleError as e:
            if "never fires" not in e.message:
                raise
            notes.append(f"{expr!r} never fires: made a job that runs only when triggered")
            return Manual()

    def resolve(self, node: ast.expr) -> ast.expr:
        """What a name of the file's top stands for."""
        for _ in range(20):
            if not isinstance(node, ast.Name) or node.id not in self.names:
                return node
            node = self.names[node.id]
        return node  # they go in a circle

    def value(self, node: ast.expr) -> Any:
        """A literal, a timedelta, or arithmetic of them. _UnknownError for anything that would have to be run."""
        self.depth += 1
        try:
            if self.depth > 100:
                raise _UnknownError("it is nested too deep")
            return self._value(self.resolve(node))
        finally:
            self.depth -= 1

    def _value(self, node: ast.expr) -> Any:
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.List | ast.Tuple | ast.Set):
            return [self.value(item) for item in node.elts]
        if isinstance(node, ast.Dict) and all(key is not None for key in node.keys):
            return {self.value(k): self.value(v) for k, v in zip(node.keys, node.values, strict=True) if k is not None}
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return -self._number(node.operand)
        if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
            left, right = self._number(node.left), self._number(node.right)
            try:
                return _OPERATORS[type(node.op)](left, right)
            except (ArithmeticError, TypeError) as e:
                raise _UnknownError(f"{ast.unparse(node)[:100]}: {e}") from None
        if _called(node) == "timedelta":
            assert isinstance(node, ast.Call)
            try:
                return timedelta(**{name: self._number(part) for name, part in self.keywords(node, _SPANS).items()})
            except (OverflowError, TypeError) as e:
                raise _UnknownError(f"{ast.unparse(node)[:100]}: {e}") from None
        raise _UnknownError(f"{ast.unparse(node)[:100]} is not known without running the file")

    def _number(self, node: ast.expr) -> Any:
        value = self.value(node)
        if isinstance(value, timedelta):
            return value
        if isinstance(value, bool) or not isinstance(value, int | float) or not -_NUMBER_MAX < value < _NUMBER_MAX:
            raise _UnknownError(f"{ast.unparse(node)[:100]} is no number")
        return value


def _called(node: ast.AST) -> str:
    """The name of the function that is called, without its module."""
    if not isinstance(node, ast.Call):
        return ""
    return node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id if isinstance(node.func, ast.Name) else ""


def _named(node: ast.AST) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _settings(node: ast.AST) -> list[tuple[str, ast.expr, ast.AST]]:
    """(name, value, where) of the settings that a statement or a dictionary gives."""
    wanted = (*_SCHEDULES, *_ZONES)
    out: list[tuple[str, ast.expr, ast.AST]] = []
    if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            if _named(target) in wanted:
                out.append((_named(target), node.value, node))
            elif isinstance(target, ast.Subscript) and _named(target.value) in _SCHEDULES:
                out.append((_named(target.value), ast.Dict([target.slice], [node.value]), node))
            elif isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Constant) and target.slice.value in wanted:
                out.append((str(target.slice.value), node.value, node))
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "update":
        if _named(node.func.value) in _SCHEDULES:
            out += [(_named(node.func.value), arg, node) for arg in node.args]
        out += [(word.arg, word.value, node) for word in node.keywords if word.arg in wanted]
    elif isinstance(node, ast.Dict) and any(isinstance(key, ast.Constant) and key.value in _SCHEDULES for key in node.keys):
        out += [
            (key.value, value, value) for key, value in zip(node.keys, node.values, strict=True)
            if isinstance(key, ast.Constant) and key.value in wanted
        ]
    return out


def _field(name: str, value: Any) -> str:
    """A field of crontab(...) as a field of ours: numbers, texts, lists of them; ranges over the end in two."""
    if isinstance(value, list):
        return ",".join(_field(name, item) for item in value)
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise InvalidArgumentError(f"{name}: {value!r} is neither a number nor text")
    text = "".join(str(value).split()).lower()
    names = {"day_of_week": _DAY_NAMES, "month_of_year": _MONTH_NAMES}.get(name, ())
    first = 1 if name == "month_of_year" else 0

    def number(found: re.Match[str]) -> str:
        word = found[0][:3].lower()
        if word not in names:
            raise InvalidArgumentError(f"{name}: {found[0]!r} is not known")
        return str(names.index(word) + first)

    low, high = _BOUNDS[name]
    items = []
    for item in _NAME.sub(number, text).split(","):
        found = _WRAP.fullmatch(item)
        if found and int(found[1]) > int(found[2]):
            if found[3]:
                raise InvalidArgumentError(f"{name}: the range {item} runs over the end with a step")
            items += [f"{found[1]}-{high}", f"{low}-{found[2]}"]
        else:
            items.append(item)
    return ",".join(items)

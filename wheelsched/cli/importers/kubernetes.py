"""Reads CronJob manifests of Kubernetes into jobs; every field that a job can't have is told with its line. No I/O. Needs PyYAML."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from ...model.errors import ScheduleError, UnimplementedError, WheelschedError
from ...model.jobs import Job
from ...model.nouns import Command, parse_job_name
from ...model.policies import Catchup, Retry
from ...schedules.schedule import Cron, Every, Manual
from .entries import Entry

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

    from ...model.nouns import Call

__all__ = ["POLICIES", "read_manifests"]

# As the CronJob controller runs it: the latest of what was missed, overlapping, failed pods six times more.
POLICIES: Final[dict[str, Any]] = {
    "overlap": "allow", "catchup": "latest", "retry": Retry(attempts=7, backoff="10s", cap="6m"), "timeout": "30d",
}
_CONCURRENCY: Final = {"Allow": "allow", "Forbid": "skip", "Replace": "cancel_other"}
_PREFIX: Final = re.compile(r"(?:CRON_)?TZ=(\S+)\s+(.*)")
_REFERENCE: Final = re.compile(r"\$\$\(|\$\(([A-Za-z_][\w.-]*)\)")
_DROPPED: Final = {
    "successfulJobsHistoryLimit": "finished runs are kept as long as the server says (retention, 30 days)",
    "failedJobsHistoryLimit": "failed runs are kept as dead letters until a person decides",
    "ttlSecondsAfterFinished": "finished runs are kept 30 days",
    "parallelism": "a run is one process", "completions": "a run is one process",
    "completionMode": "a run is one process", "podFailurePolicy": "retry not_on names errors that are not retried",
    "backoffLimitPerIndex": "a run is one process", "podReplacementPolicy": "a run is one process", "manualSelector": "there are no pods",
    "restartPolicy": "a failed run follows the retry policy",
    "imagePullPolicy": "there are no images", "imagePullSecrets": "there are no images",
    "serviceAccountName": "the command runs as the worker's user", "serviceAccount": "the command runs as the worker's user",
    "volumes": "the command sees the worker's files", "volumeMounts": "the command sees the worker's files",
    "resources": "limits are not set up; wrap the command", "securityContext": "the command runs as the worker's user",
    "initContainers": "only the container's own command is run", "nodeSelector": "queues choose the worker: --queue",
    "affinity": "queues choose the worker: --queue", "tolerations": "queues choose the worker: --queue",
    "envFrom": "give the variables in the job's env", "labels": "jobs have none", "annotations": "jobs have none",
    "terminationGracePeriodSeconds": "a run that is ended is given a second, then SIGTERM, then SIGKILL",
}
_NO_FIELD: Final = "it has no meaning for a job"
_UNREAD: Final = ("apiVersion", "kind", "status")


class _StopError(Exception):
    """No job can be made; where and why."""

    def __init__(self, line: int, text: str, why: str) -> None:
        super().__init__(why)
        self.line = line
        self.text = text
        self.why = why


def _yaml() -> ModuleType:
    try:
        import yaml  # noqa: PLC0415 - an extra
    except ImportError:
        raise UnimplementedError("reading YAML needs PyYAML: pip install PyYAML") from None
    module: ModuleType = yaml
    return module


def read_manifests(file: str, text: str, *, prefix: str | None = None, tz: str = "UTC") -> list[Entry]:
    """The jobs of a file's documents, lists included. `prefix` stands for the manifest's namespace.

    UnimplementedError without PyYAML; InvalidArgumentError for a prefix that can't begin a job's name.
    """
    if prefix is not None:
        parse_job_name(f"{prefix}/x")
    yaml = _yaml()
    out: list[Entry] = []
    loader = None
    try:
        loader = yaml.SafeLoader(text)
        while loader.check_node():
            node = loader.get_node()
            for found in _objects(_Node(node, loader)):
                out += _Reader(file, prefix, tz).read(found)
    except (yaml.YAMLError, RecursionError) as e:
        mark = getattr(e, "problem_mark", None) or getattr(e, "context_mark", None)
        problem = getattr(e, "problem", None) or str(e) or "nested too deep"
        out.append(Entry(1 if mark is None else mark.line + 1, "error", "", [f"no YAML: {problem}"], file=file))
    except ValueError as e:  # a character or a date that YAML doesn't allow
        out.append(Entry(1, "error", "", [f"no YAML: {e}"], file=file))
    finally:
        if loader is not None:
            loader.dispose()
    return out


class _Node:
    """A YAML node: its line, its fields by name or its plain value."""

    def __init__(self, node: Any, loader: Any) -> None:
        self.node = node
        self.loader = loader

    @property
    def line(self) -> int:
        """From 1 on."""
        return int(self.node.start_mark.line) + 1

    @property
    def mapping(self) -> bool:
        """Has it fields?"""
        return bool(self.node.id == "mapping")

    def fields(self) -> dict[str, tuple[int, _Node]]:
        """Field -> (line of its name, value); nothing for what is no map."""
        if not self.mapping:
            return {}
        self.loader.flatten_mapping(self.node)  # `<<` merges
        pairs = [(key, value) for key, value in self.node.value if key.id == "scalar"]
        return {str(key.value): (int(key.start_mark.line) + 1, _Node(value, self.loader)) for key, value in pairs}

    def items(self) -> list[_Node]:
        """The items of a list; nothing for anything else."""
        return [_Node(item, self.loader) for item in self.node.value] if self.node.id == "sequence" else []

    def value(self) -> Any:
        """The plain value."""
        return self.loader.construct_object(self.node, deep=True)


def _objects(node: _Node) -> Iterator[_Node]:
    """A document's objects: itself, or the items of a List."""
    fields = node.fields()
    kind = fields["kind"][1].node.value if "kind" in fields else ""
    if isinstance(kind, str) and kind.endswith("List") and "items" in fields:
        for item in fields["items"][1].items():
            yield from _objects(item)
    elif node.node.id != "scalar" or node.node.value:
        yield node


class _Reader:
    """Reads one object."""

    def __init__(self, file: str, prefix: str | None, tz: str) -> None:
        self.file = file
        self.prefix = prefix
        self.tz = tz
        self.name = ""
        self.entries: list[Entry] = []
        self.notes: list[str] = []
        self.policies: dict[str, Any] = {}

    def drop(self, line: int, text: str, why: str) -> None:
        self.entries.append(Entry(line, "dropped", f"{self.name}: {text}", [why], file=self.file))

    def rest(self, fields: dict[str, tuple[int, _Node]], known: tuple[str, ...], path: str) -> None:
        """Report the fields that nobody reads."""
        for key, (line, _) in fields.items():
            if key not in known:
                self.drop(line, f"{path}{key}", _DROPPED.get(key, _NO_FIELD))

    def read(self, node: _Node) -> list[Entry]:
        fields = node.fields()
        try:
            kind = self.text(fields, "kind", "")
            if kind != "CronJob":
                what = kind or "a document without a kind"
                return [Entry(node.line, "skipped", what, [f"{what} is no CronJob"], file=self.file)]
            meta = self.need(fields, "metadata", node.line)
            self.name = self.text(meta, "name", "")
            job = self.job(fields, meta, node.line)
        except _StopError as e:
            return [Entry(e.line, "error", f"{self.name}: {e.text}", [e.why], file=self.file), *self.entries]
        kind = "manual" if isinstance(job.schedule, Manual) else "job"
        return [Entry(node.line, kind, f"CronJob {self.name}", self.notes, job, self.file), *self.entries]

    def need(self, fields: dict[str, tuple[int, _Node]], key: str, line: int) -> dict[str, tuple[int, _Node]]:
        if key not in fields:
            raise _StopError(line, key, f"{key} is missing")
        if not fields[key][1].mapping:
            raise _StopError(fields[key][0], key, f"{key} is no map")
        return fields[key][1].fields()

    def text(self, fields: dict[str, tuple[int, _Node]], key: str, default: str) -> str:
        if key not in fields:
            return default
        line, node = fields[key]
        if node.node.id != "scalar":
            raise _StopError(line, key, "text is wanted")
        return str(node.node.value)

    def number(self, fields: dict[str, tuple[int, _Node]], key: str, low: int) -> int | None:
        if key not in fields:
            return None
        line, node = fields[key]
        value = node.value()
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or value < low:
            raise _StopError(line, f"{key}: {value}", f"a whole number from {low} on is wanted")
        return value

    def job(self, fields: dict[str, tuple[int, _Node]], meta: dict[str, tuple[int, _Node]], line: int) -> Job:
        if not self.name:
            raise _StopError(line, "metadata", "the name is missing")
        self.rest(fields, (*_UNREAD, "metadata", "spec"), "")
        self.rest(meta, ("name", "namespace"), "metadata.")
        full = (self.prefix or self.text(meta, "namespace", "default")) + "/" + self.name
        spec = self.need(fields, "spec", line)
        try:
            parse_job_name(full)
            schedule = self.schedule(spec, line)
            self.spec(spec)
            call = self.template(spec, line)
            return Job(full, call, schedule, **self.policies)
        except WheelschedError as e:
            raise _StopError(line, "", e.message) from e

    def schedule(self, spec: dict[str, tuple[int, _Node]], line: int) -> Any:
        expr = self.text(spec, "schedule", "")
        if not expr:
            raise _StopError(line, "spec", "the schedule is missing")
        line = spec["schedule"][0]
        tz = self.text(spec, "timeZone", self.tz)
        found = _PREFIX.fullmatch(expr.strip())
        if found:
            tz, expr = found[1], found[2]
        try:
            if expr.startswith("@every "):
                return Every(expr.removeprefix("@every ").strip())
            return Cron(expr, tz)
        except ScheduleError as e:
            if "never fires" not in e.message:
                raise _StopError(line, f"schedule: {expr}", e.message) from e
            self.notes.append(f"{expr!r} never fires: made a job that runs only when triggered")
            return Manual()

    def spec(self, spec: dict[str, tuple[int, _Node]]) -> None:
        """The policies."""
        self.rest(
            spec, ("schedule", "timeZone", "concurrencyPolicy", "startingDeadlineSeconds", "suspend", "jobTemplate"), "spec.",
        )
        word = self.text(spec, "concurrencyPolicy", "Allow")
        if word not in _CONCURRENCY:
            raise _StopError(spec["concurrencyPolicy"][0], f"concurrencyPolicy: {word}", f"it is not one of {', '.join(_CONCURRENCY)}")
        self.policies["overlap"] = _CONCURRENCY[word]
        seconds = self.number(spec, "startingDeadlineSeconds", 0)
        if seconds is not None:
            self.policies["catchup"] = Catchup("latest", window=seconds)
        if "suspend" in spec and spec["suspend"][1].value() is True:
            self.policies["paused"] = True
            self.notes.append("suspended there: put paused")

    def template(self, spec: dict[str, tuple[int, _Node]], line: int) -> Call:
        outer = self.need(spec, "jobTemplate", line)
        self.rest(outer, ("spec",), "jobTemplate.")
        inner = self.need(outer, "spec", spec["jobTemplate"][0])
        self.rest(inner, ("backoffLimit", "activeDeadlineSeconds", "template"), "jobTemplate.spec.")
        limit = self.number(inner, "backoffLimit", 0)
        if limit is not None:
            self.policies["retry"] = Retry(attempts=min(limit + 1, 1_000), backoff="10s", cap="6m")
        seconds = self.number(inner, "activeDeadlineSeconds", 1)
        if seconds is not None:
            self.policies["timeout"] = seconds
            self.notes.append("activeDeadlineSeconds bounds each attempt here, not all of them together")
        template = self.need(inner, "template", outer["spec"][0])
        self.rest(template, ("spec",), "template.")
        pod = self.need(template, "spec", inner["template"][0])
        self.rest(pod, ("containers",), "template.spec.")
        containers = pod["containers"][1].items() if "containers" in pod else []
        if len(containers) != 1:
            at = pod["containers"][0] if "containers" in pod else line
            raise _StopError(at, "containers", f"one container is wanted, not {len(containers)}")
        return self.container(containers[0])

    def container(self, node: _Node) -> Call:
        fields = node.fields()
        self.rest(fields, ("name", "image", "command", "args", "env", "workingDir"), "container.")
        if "image" in fields:
            image = self.text(fields, "image", "")
            self.drop(fields["image"][0], f"image: {image}", "the command runs beside the worker: install it there")
        env = self.env(fields)
        words: dict[str, list[str]] = {}
        for key in ("command", "args"):
            if key in fields:
                value = fields[key][1].value()
                if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
                    raise _StopError(fields[key][0], key, "a list of texts is wanted")
                words[key] = [_expanded(word, env) for word in value]
        if not words.get("command"):
            raise _StopError(node.line, self.text(fields, "image", ""), "it has no command: what its image would run is not known here")
        cwd = self.text(fields, "workingDir", "") or None
        return Command([*words["command"], *words.get("args", [])], cwd=cwd, env=env)

    def env(self, fields: dict[str, tuple[int, _Node]]) -> dict[str, str]:
        out: dict[str, str] = {}
        for item in fields["env"][1].items() if "env" in fields else []:
            parts = item.fields()
            name = self.text(parts, "name", "")
            if not name or "valueFrom" in parts:
                self.drop(item.line, f"env {name}", "its value comes from the cluster: give it in the job's env")
            else:
                out[name] = _expanded(self.text(parts, "value", ""), out)
        return out


def _expanded(text: str, env: dict[str, str]) -> str:
    """`$(NAME)` of a known variable; others stay, as there."""
    def put(found: re.Match[str]) -> str:
        return "$(" if found[1] is None else env.get(found[1], found[0])

    return _REFERENCE.sub(put, text)

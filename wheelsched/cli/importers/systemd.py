"""Reads systemd timers and their services into jobs; every setting that a job can't have is told with its line. No I/O: a loader
gives the service's text.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from ...model.errors import InvalidArgumentError, ScheduleError, WheelschedError
from ...model.jobs import Job
from ...model.nouns import MS, Call, Command, format_duration, parse_job_name
from ...model.policies import Retry
from ...schedules.schedule import Every, Manual
from .entries import Entry
from .systemd_calendar import calendar, span_us
from .unit_file import Setting, parse_exec, parse_unit, split_words

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["POLICIES", "read_timer"]

# As systemd runs it: once each time, never twice at once, for as long as it takes.
POLICIES: Final[dict[str, Any]] = {"overlap": "skip", "catchup": "skip", "retry": Retry(attempts=1), "timeout": "30d"}

_TIMER: Final = {
    "AccuracySec": "occurrences are triggered at their time, to the millisecond; jitter spreads them",
    "OnBootSec": "a job knows no boot: `job trigger` from a unit that runs at boot",
    "OnStartupSec": "a job knows no boot: `job trigger` from a unit that runs at boot",
    "OnActiveSec": "a job is not activated: `enqueue --in` runs a task once after a delay",
    "WakeSystem": "a sleeping machine is not woken; what was missed follows the catch-up policy",
    "RemainAfterElapse": "a finished job stays listed",
    "FixedRandomDelay": "jitter is a stable offset of each occurrence, another one each time",
    "RandomizedOffsetSec": "H in a cron expression is a fixed offset by the job's name",
    "DeferReactivation": "an occurrence that is due while a run is active is skipped",
    "OnClockChange": "there is no such trigger",
    "OnTimezoneChange": "there is no such trigger",
}
_SERVICE: Final = {
    "PassEnvironment": "give the variables in the job's env",
    "ExecStartPre": "only ExecStart is run: put it into a script", "ExecStartPost": "only ExecStart is run: put it into a script",
    "ExecStop": "only ExecStart is run", "ExecStopPost": "only ExecStart is run: put it into a script",
    "ExecCondition": "only ExecStart is run: put the condition into a script", "ExecReload": "only ExecStart is run",
    "Restart": "a failed run follows the retry policy, here one attempt: --retry-attempts", "RestartSec": "see the retry policy",
    "Group": "the command runs with its user's own groups", "SupplementaryGroups": "the command runs with its user's own groups",
    "StandardOutput": "output is kept with each run", "StandardError": "output is kept with each run",
    "SyslogIdentifier": "output is kept with each run",
    "TimeoutStopSec": "a run that is ended is given a second, then SIGTERM, then SIGKILL",
}
_SANDBOX: Final = re.compile(
    r"Nice|CPU.*|IO.*|Memory.*|Tasks.*|Limit.*|OOM.*|Private.*|Protect.*|Restrict.*|ReadOnly.*|ReadWrite.*|Inaccessible.*|NoNewPrivileges"
    r"|SystemCall.*|Capability.*|Ambient.*|Slice|UMask|DynamicUser|StateDirectory.*|CacheDirectory.*|RuntimeDirectory.*|LogsDirectory.*"
    r"|ConfigurationDirectory.*|RootDirectory|Device.*|Lock.*|IP.*|Sched.*|Delegate|KillMode|KillSignal|BindPaths|TemporaryFileSystem"
)
_PRIVILEGED: Final = "+!|"
_INSTALL: Final = "a job is active once it is put; pause it with `job pause`"
_ON_FAILURE: Final = "no unit is started from here: --on-dead JOB triggers a job when a run dies"
_UNIT: Final = "units' dependencies and conditions are not known here"
_KNOWN_TIMER: Final = ("OnCalendar", "OnUnitActiveSec", "OnUnitInactiveSec", "RandomizedDelaySec", "Persistent", "Unit")
_PLAIN_TYPES: Final = ("oneshot", "simple", "exec", "idle")
_TRUE, _FALSE = ("1", "yes", "true", "on", "y", "t"), ("0", "no", "false", "off", "n", "f")


@dataclass(slots=True)
class _Timer:
    """One timer while it is read."""

    file: str
    name: str  # without .timer
    tz: str
    entries: list[Entry] = field(default_factory=list)
    schedules: list[Any] = field(default_factory=list)
    inactive: tuple[Setting, int] | None = None
    notes: list[str] = field(default_factory=list)
    policies: dict[str, Any] = field(default_factory=dict)
    service: str = ""
    line: int = 1
    never: bool = False

    def tell(self, kind: str, setting: Setting, why: str, file: str | None = None) -> None:
        """Report a setting."""
        self.entries.append(Entry(setting.line, kind, f"{setting.key}={setting.value}", [why], file=self.file if file is None else file))


def read_timer(
    file: str, text: str, load: Callable[[str], tuple[str, str] | None], *, prefix: str = "systemd/", tz: str = "UTC"
) -> list[Entry]:
    """The job of a timer, or why there is none, and what it lost. `load` gives (path, text) of a unit file beside it, or None.

    InvalidArgumentError for a prefix that can't begin a job's name.
    """
    parse_job_name(prefix + "x")
    base = file.rpartition("/")[2]
    if not base.endswith(".timer"):
        return [Entry(1, "error", base, ["a .timer file is wanted; its service is read from beside it"], file=file)]
    timer = _Timer(file, base.removesuffix(".timer"), tz)
    timer.service = f"{timer.name}.service"
    settings, bad = parse_unit(text)
    timer.entries += [Entry(line, "error", "", [why], file=file) for line, why in bad]
    for setting in _last_ones(settings):
        _timer_setting(timer, setting)
    call = _service_call(timer, load)
    schedule = _schedule(timer)
    if call is not None and schedule is not None and not any(e.kind == "error" for e in timer.entries):
        name = prefix + re.sub(r"[^A-Za-z0-9._:-]+", "-", timer.name)[:128]
        kind = "manual" if isinstance(schedule, Manual) else "job"
        job = Job(name, call, schedule, **timer.policies)
        timer.entries.insert(0, Entry(timer.line, kind, base, timer.notes, job, file))
    return timer.entries


def _last_ones(settings: list[Setting]) -> list[Setting]:
    """Settings that count: an empty value takes back those of the same key before it."""
    out: list[Setting] = []
    for setting in settings:
        if setting.value:
            out.append(setting)
        else:
            out = [s for s in out if (s.section, s.key) != (setting.section, setting.key)]
    return out


def _of_a_unit(setting: Setting) -> str:
    """Why a setting of no section of its own is not carried over."""
    return _INSTALL if setting.section == "Install" else _ON_FAILURE if setting.key == "OnFailure" else _UNIT


def _timer_setting(timer: _Timer, setting: Setting) -> None:
    key, value = setting.key, setting.value
    if setting.section == "Unit" and key == "Description":
        timer.policies["note"] = value[:1_000]
    elif setting.section != "Timer":
        timer.tell("dropped", setting, _of_a_unit(setting))
    elif key not in _KNOWN_TIMER:
        timer.tell("dropped", setting, _TIMER.get(key, "no such setting of a timer is known here"))
    else:
        try:
            _known_setting(timer, setting)
        except WheelschedError as e:
            if isinstance(e, ScheduleError) and "never fires" in e.message:
                timer.never = True
                timer.notes.append(f"{value!r} never fires")
            else:
                timer.tell("error", setting, e.message)


def _known_setting(timer: _Timer, setting: Setting) -> None:
    key, value = setting.key, setting.value
    if key == "OnCalendar":
        timer.schedules.append(calendar(value, timer.tz))
    elif key == "OnUnitActiveSec":
        timer.schedules.append(Every(format_duration(_whole_ms(value))))
    elif key == "OnUnitInactiveSec":
        timer.inactive = (setting, _whole_ms(value))
    elif key == "RandomizedDelaySec":
        if span_us(value):
            timer.policies["jitter"] = format_duration(_whole_ms(value))
    elif key == "Persistent":
        timer.policies["catchup"] = "latest" if _boolean(value) else "skip"
    else:
        timer.service = value
    if key.startswith("On") and timer.line == 1:
        timer.line = setting.line


def _whole_ms(text: str) -> int:
    return max(-(-span_us(text) // MS) * MS, MS)


def _boolean(text: str) -> bool:
    if text.lower() not in (*_TRUE, *_FALSE):
        raise InvalidArgumentError(f"{text!r} is neither yes nor no")
    return text.lower() in _TRUE


def _schedule(timer: _Timer) -> Any:
    """One schedule, or a list; None, told of, when there is none."""
    found = timer.schedules
    if timer.inactive is not None:
        setting, us = timer.inactive
        if found:
            timer.tell("dropped", setting, "an interval counted from the end of a run can't be joined with other times")
        else:
            found = [Every(format_duration(us), after_completion=True)]
    if found:
        return found[0] if len(found) == 1 else found
    if timer.never:
        timer.notes.append("made a job that runs only when triggered")
        return Manual()
    if not any(e.kind == "error" for e in timer.entries):
        timer.entries.insert(0, Entry(1, "skipped", f"{timer.name}.timer", ["no time of it can be a schedule"], file=timer.file))
    return None


# The service


def _service_call(timer: _Timer, load: Callable[[str], tuple[str, str] | None]) -> Call | None:
    if not timer.service.endswith(".service"):
        timer.entries.append(Entry(1, "error", f"Unit={timer.service}", ["only a service can be made a job"], file=timer.file))
        return None
    prefix, at, rest = timer.service.removesuffix(".service").partition("@")
    found = load(timer.service) or (load(f"{prefix}@.service") if at else None)
    if found is None:
        timer.entries.append(Entry(1, "error", timer.service, ["the service is not beside the timer: copy it there"], file=timer.file))
        return None
    file, text = found
    settings, bad = parse_unit(text)
    timer.entries += [Entry(line, "error", "", [why], file=file) for line, why in bad]
    settings = _last_ones(settings)
    specifiers = {"n": timer.service, "N": timer.service.removesuffix(".service"), "p": prefix, "i": rest, "I": rest.replace("-", "/")}
    service = _Service(timer, file, specifiers if at else {k: v for k, v in specifiers.items() if k not in "iI"})
    for setting in settings:
        service.take(setting)
    return service.call()


@dataclass(slots=True)
class _Service:
    """A timer's service while it is read."""

    timer: _Timer
    file: str
    specifiers: dict[str, str]
    kind: str = "simple"
    commands: list[Setting] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    env_files: list[str] = field(default_factory=list)
    cwd: str | None = None
    user: str | None = None
    codes: list[int] = field(default_factory=lambda: [0])
    limits: list[Setting] = field(default_factory=list)

    def drop(self, setting: Setting, why: str) -> None:
        """A setting that the job can't have."""
        self.timer.tell("dropped", setting, why, self.file)

    def take(self, setting: Setting) -> None:
        """Read one setting."""
        key, value = setting.key, setting.value
        if setting.section == "Unit" and key == "Description":
            self.timer.policies.setdefault("note", value[:1_000])
        elif setting.section != "Service":
            self.drop(setting, _of_a_unit(setting))
        elif key == "ExecStart":
            self.commands.append(setting)
        elif key == "Environment":
            self.environment(setting)
        elif key == "EnvironmentFile":
            self.env_file(setting)
        elif key == "WorkingDirectory" and value.startswith("/"):
            self.cwd = value
        elif key == "User":
            self.user = value
            self.timer.notes.append(f"runs as user {value}")
        elif key == "SuccessExitStatus":
            self.success(setting)
        elif key in ("TimeoutStartSec", "TimeoutSec", "RuntimeMaxSec"):
            self.limits.append(setting)
        elif key == "Type":
            self.kind = value
            if value not in _PLAIN_TYPES:
                self.drop(setting, "a run lasts as long as its process, whatever it announces")
        else:
            why = "limits and sandboxing are not set up; wrap the command" if _SANDBOX.fullmatch(key) else "it has no meaning for a job"
            self.drop(setting, _SERVICE.get(key, why))

    def environment(self, setting: Setting) -> None:
        """NAME=value words."""
        try:
            for word in split_words(setting.value):
                name, equals, value = word.partition("=")
                if equals:
                    self.env[name] = value.replace("%%", "%")
                else:
                    self.drop(setting, f"{word!r} has no value")
        except InvalidArgumentError as e:
            self.drop(setting, e.message)

    def env_file(self, setting: Setting) -> None:
        """A file that the worker reads at each run; the empty text takes back those before it."""
        path = setting.value.replace("%%", "%")
        if not path:
            self.env_files.clear()
        elif path.removeprefix("-").startswith("/") and not set(path) & set("*?["):
            self.env_files.append(path)
            self.timer.notes.append(f"{path.removeprefix('-')} is read by the worker at each run; not anybody may read it")
        else:
            self.drop(setting, "one path of a file is wanted: env_file of the command")

    def success(self, setting: Setting) -> None:
        """Exit codes; signals are reported."""
        for word in setting.value.split():
            if word.isdigit() and int(word) < 256:
                self.codes.append(int(word))
            else:
                self.drop(setting, f"{word}: only numbers of exit codes are known")

    def timeout(self) -> None:
        """What bounds a run: the start of a oneshot service is all of it."""
        keys = ("TimeoutStartSec", "TimeoutSec") if self.kind == "oneshot" else ("RuntimeMaxSec",)
        for setting in self.limits:
            if setting.key not in keys:
                self.drop(setting, f"it doesn't bound a run of a service of Type={self.kind}")
            elif setting.value not in ("infinity", "0"):
                try:
                    self.timer.policies["timeout"] = format_duration(_whole_ms(setting.value))
                except InvalidArgumentError as e:
                    self.drop(setting, e.message)

    def call(self) -> Call | None:
        """The command, or None, told of."""
        self.timeout()
        made = []
        for setting in self.commands:
            try:
                made += [(setting, command) for command in parse_exec(setting.value, self.env, self.specifiers)]
            except InvalidArgumentError as e:
                self.timer.tell("error", setting, e.message, self.file)
                return None
        if not made:
            self.timer.entries.append(Entry(1, "error", self.timer.service, ["it has no ExecStart"], file=self.file))
            return None
        for setting, command in made:
            self.timer.notes += command.notes
            if set(command.flags) & set(_PRIVILEGED):
                self.drop(setting, f"the {command.flags} in front of the command: it runs as its user, without other privileges")
        if len(made) == 1:
            argv, flags = made[0][1].argv, made[0][1].flags
            codes = list(range(256)) if "-" in flags else sorted(set(self.codes))
            if "-" in flags:
                self.timer.notes.append("any exit code counts as success")
            return Command(argv, cwd=self.cwd, env=self.env, user=self.user, success_codes=codes, env_file=self.env_files)
        script = " && ".join("{ " + shlex.join(c.argv) + " || :; }" if "-" in c.flags else shlex.join(c.argv) for _, c in made)
        self.timer.notes.append(f"its {len(made)} commands run one after another in one shell")
        argv, codes = ["/bin/sh", "-c", script], sorted(set(self.codes))
        return Command(argv, cwd=self.cwd, env=self.env, user=self.user, success_codes=codes, env_file=self.env_files)

"""One frozen Config, made from mappings; the command line reads the file, the environment and the flags."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final

from ..model.errors import ConfigError, WheelschedError
from ..model.nouns import (
    DRAIN_US,
    LEASE_US,
    MODES,
    RESERVE_BYTES,
    ROLES,
    START_US,
    SYNC_TIMEOUT_US,
    US,
    format_duration,
    format_offset,
    parse_duration,
    parse_job_name,
)

if TYPE_CHECKING:
    from collections.abc import Callable

WORKERS_MAX: Final = 1_024
CONCURRENCY_MAX: Final = 1_024
MAX_RSS_MIN: Final = 64 * 1024 * 1024  # a fresh worker needs half of it
SOCKET_PATH_MAX: Final = 107  # bytes; the kernel's limit for a Unix socket
LEASE_MIN_US: Final = US
LEASE_MAX_US: Final = 3_600 * US
DRAIN_MAX_US: Final = 7 * 86_400 * US  # what a poll's timeout can hold


@dataclass(frozen=True, slots=True)
class Config:
    """How one server runs. Durations in microseconds, sizes in bytes."""

    data: str
    socket: str
    tasks: tuple[str, ...] = ()
    workers: int = 2
    mode: str = "process"  # of model.MODES
    max_runs: int = 0  # after which a worker process is replaced; 0: never
    max_rss: int = 0  # bytes of its memory at which it is
    concurrency: int = 1  # runs at a time in each worker, in modes thread and async
    allow_commands: bool = False
    allow_http: bool = False
    allow_env: tuple[str, ...] = ()  # names or globs of variables that commands get of the environment beside the usual ones
    http_allow_net: tuple[str, ...] = ()  # networks that are not public and that `http` may connect to
    http_secret_file: str = ""  # keys that `http` signs with, whsec_… one a line
    http_ca_file: str = ""  # certificates to trust beside the system's
    roles: tuple[tuple[str, tuple[str, ...]], ...] = ()  # (role, users and %groups that have it beside the server's own user and root)
    redact: tuple[str, ...] = ()  # argument fields of any job whose values are not shown
    on_dead: str = ""  # full name of the job that is triggered for each dead run of those that name none
    on_missed: str = ""  # and for occurrences that were missed
    hold: bool = False  # start with all triggering held, until `admin release`
    map_size: int | None = None  # None: 4 TiB, less under an address space limit
    reserve_bytes: int = RESERVE_BYTES
    socket_mode: int = 0o600
    socket_group: str | None = None
    clock_offset_us: int = 0
    clock_check_us: int = 0
    snapshot_bytes: int = 64 * 1024 * 1024  # journal bytes after which a snapshot is taken
    retention_us: int = 30 * 86_400 * US
    drain_us: int = DRAIN_US  # how long open runs may take to end at a stop
    lease_us: int = LEASE_US  # how long a worker may be silent
    sync_timeout_us: int = SYNC_TIMEOUT_US  # how long the disk may be before the server ends
    start_timeout_us: int = START_US  # how long a worker process has to come up

    @property
    def shared(self) -> bool:
        """May others than the server's own user open the socket?"""
        return bool(self.socket_mode & 0o077) or self.socket_group is not None


_DURATIONS: Final = {
    "clock_offset": "clock_offset_us", "clock_check": "clock_check_us", "retention": "retention_us", "drain": "drain_us",
    "lease": "lease_us", "start_timeout": "start_timeout_us", "sync_timeout": "sync_timeout_us",
}
_LIMITS: Final = {
    "workers": (0, WORKERS_MAX), "max_runs": (0, 2**31), "concurrency": (1, CONCURRENCY_MAX),
    "map_size": (1024 * 1024, 2**46), "reserve_bytes": (0, 2**40), "socket_mode": (0, 0o777),
    "snapshot_bytes": (64 * 1024, 2**40),
}


def load(*layers: dict[str, Any]) -> Config:
    """The Config of several mappings, later ones winning; None counts as not given. ConfigError names what is wrong."""
    merged: dict[str, Any] = {}
    known = {f.name for f in fields(Config)} - set(_DURATIONS.values()) | set(_DURATIONS)
    for layer in layers:
        for key, value in layer.items():
            if key not in known:
                raise ConfigError(f"configuration: {key!r} is not known; known are {', '.join(sorted(known))}")
            if value is not None:
                merged[key] = value
    for key, target in _DURATIONS.items():
        if key in merged:
            merged[target] = _duration(key, merged.pop(key))
    if not LEASE_MIN_US <= merged.get("lease_us", LEASE_US) <= LEASE_MAX_US:
        raise ConfigError(f"lease: 1s to 1h are allowed, not {format_duration(merged['lease_us'])}")
    if not LEASE_MIN_US <= merged.get("sync_timeout_us", SYNC_TIMEOUT_US) <= LEASE_MAX_US:
        raise ConfigError(f"sync_timeout: 1s to 1h are allowed, not {format_duration(merged['sync_timeout_us'])}")
    check_drain(merged.get("drain_us", DRAIN_US))
    check_start_timeout(merged.get("start_timeout_us", START_US))
    for key, (low, high) in _LIMITS.items():
        if key in merged and (isinstance(merged[key], bool) or not isinstance(merged[key], int) or not low <= merged[key] <= high):
            raise ConfigError(f"{key}: a whole number from {low} to {high} is wanted, not {merged[key]!r}")
    if "max_rss" in merged:
        merged["max_rss"] = parse_size(merged["max_rss"], "max_rss")
    for key in ("data", "socket"):
        path = merged.get(key)
        if not isinstance(path, str) or not path or "\0" in path or path.encode("utf-8", "ignore").decode() != path:
            raise ConfigError(f"{key}: a path in UTF-8 is wanted")
    if len(merged["socket"].encode()) > SOCKET_PATH_MAX:
        size = len(merged["socket"].encode())
        raise ConfigError(f"socket: the path has {size} bytes; the kernel allows {SOCKET_PATH_MAX}: choose a shorter one")
    if merged.get("mode", "process") not in MODES:
        raise ConfigError(f"mode: one of {', '.join(MODES)} is wanted, not {str(merged['mode'])[:60]!r}")
    if merged.get("mode", "process") == "process" and merged.get("concurrency", 1) > 1:
        raise ConfigError("concurrency: in mode process each worker has one run at a time; raise workers, or choose mode thread or async")
    merged["tasks"] = task_modules(merged.get("tasks", ()))
    merged["allow_env"] = _texts("allow_env", merged.get("allow_env", ()), "names of environment variables, such as 'PG*'")
    merged["http_allow_net"] = _texts("http_allow_net", merged.get("http_allow_net", ()), "networks, such as '10.0.0.0/8'")
    merged["redact"] = _texts("redact", merged.get("redact", ()), "names of argument fields, such as 'password'")
    for key in ("on_dead", "on_missed"):
        merged[key] = _alarm_job(key, merged.get(key) or "")
    merged["roles"] = _roles(merged.get("roles", {}))
    for key in ("http_secret_file", "http_ca_file"):
        if not isinstance(merged.get(key, ""), str) or "\0" in merged.get(key, ""):
            raise ConfigError(f"{key}: a path is wanted")
    if not isinstance(merged.get("socket_group", ""), str):
        raise ConfigError("socket_group: the name of a group is wanted")
    for key in ("allow_commands", "allow_http", "hold"):
        if not isinstance(merged.get(key, False), bool):
            raise ConfigError(f"{key}: true or false is wanted")
    return Config(**merged)


def restart_wanted(config: Config, reread: Callable[[], Config]) -> str:
    """What to say at a reload of settings that were changed since the start: a reload brings new task code and no new settings."""
    try:
        found = changed(config, reread())
    except ConfigError as e:
        return f"the configuration could not be read again, and a restart would fail: {e.message}"
    if not found:
        return ""
    return f"changed since the start, and taken by a restart alone: {'; '.join(found)}"


def changed(old: Config, new: Config) -> list[str]:
    """The settings that differ, by the names that they have in a file, such as "workers (2, and 3 now)"."""
    found = []
    for field in fields(Config):
        before, now = getattr(old, field.name), getattr(new, field.name)
        if before != now:
            found.append(f"{field.name.removesuffix('_us')} ({_shown(field.name, before)}, and {_shown(field.name, now)} now)")
    return found


def _shown(name: str, value: Any) -> str:
    if name.endswith("_us"):
        return format_offset(value)
    if name == "roles":
        value = tuple(f"{role}: {', '.join(names)}" for role, names in value)
    if isinstance(value, tuple):
        return ", ".join(value) or "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    return "not set" if value in (None, "") else oct(value) if name == "socket_mode" else str(value)


def task_modules(names: Any) -> tuple[str, ...]:
    """Names of modules with tasks. ConfigError, also for the name of a file."""
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise ConfigError("tasks: names of Python modules are wanted, such as 'pkg.mod'")
    for name in names:
        if name.endswith(".py"):
            module = name.removeprefix("./").removesuffix(".py").replace("/", ".").lstrip(".")
            raise ConfigError(f"tasks: {name} is a file; give the module's name: {module}")
        if not name.replace(".", "_").isidentifier():
            raise ConfigError(f"tasks: {name[:60]!r} is no name of a Python module, such as 'pkg.mod'")
    return tuple(names)


def _alarm_job(key: str, value: Any) -> str:
    """The full name of a job; empty: none is wanted."""
    try:
        name = parse_job_name(value) if value != "" else ""
    except WheelschedError as e:
        raise ConfigError(f"{key}: {e.message}") from None
    if "/~" in name:
        raise ConfigError(f"{key}: {name[:120]} is reserved for enqueued runs; name a job that was put")
    return name


def _roles(value: Any) -> tuple[tuple[str, tuple[str, ...]], ...]:
    if not isinstance(value, dict):
        raise ConfigError('roles: a table is wanted, such as {command = ["ops", "%wheel"]}')
    for role in value:
        if role not in ROLES:
            raise ConfigError(f"roles: {str(role)[:60]!r} is not known; {', '.join(ROLES)} are")
    return tuple((role, _texts(f"roles {role}", names, "users, and groups with a % before, such as 'ops' or '%wheel'"))
                 for role, names in sorted(value.items()))


def _texts(key: str, value: Any, what: str) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, list | tuple) or not all(isinstance(x, str) and x for x in value):
        raise ConfigError(f"{key}: a list of {what} is wanted")
    return tuple(value)


def check_drain(us: int) -> int:
    """`us`, how long what runs has to end. ConfigError when that is too long."""
    if us > DRAIN_MAX_US:
        raise ConfigError(f"drain: up to {format_duration(DRAIN_MAX_US)} are allowed, not {format_duration(us)}")
    return us


def check_start_timeout(us: int) -> int:
    """`us`, how long a worker process has to come up. ConfigError when that can't be."""
    if not US <= us <= DRAIN_MAX_US:
        raise ConfigError(f"start_timeout: 1s to {format_duration(DRAIN_MAX_US)} are allowed, not {format_duration(us)}")
    return us


def parse_size(value: Any, what: str) -> int:
    """Bytes of a whole number, or of a text such as 512m or 2GiB (powers of 1,024). 0, or MAX_RSS_MIN and more. ConfigError."""
    found = re.fullmatch(r"([0-9]{1,15})([kmgt]?)(?:i?b)?", str(value).strip().lower())
    size = -1 if found is None or isinstance(value, bool) else int(found[1]) << 10 * " kmgt".index(found[2] or " ")
    if size and not MAX_RSS_MIN <= size <= 2**50:
        least = f"at least {MAX_RSS_MIN >> 20}m (0: no limit)"
        raise ConfigError(f"{what}: bytes are wanted, such as 512m or 2g, {least}, not {str(value)[:60]!r}")
    return size


def _duration(key: str, value: Any) -> int:
    negative = isinstance(value, str) and value.startswith("-") and key == "clock_offset"
    try:
        us = parse_duration(value[1:] if negative else value, key)
    except WheelschedError as e:
        raise ConfigError(str(e)) from None
    return -us if negative else us

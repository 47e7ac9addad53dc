"""wheelsched: a job-scheduler appliance.

The public names are loaded when they are first used, so that `import wheelsched` stays light.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .aclient import AsyncClient, AsyncRun
    from .bulk import PutResults
    from .client import Client, Run, default_socket_path
    from .errors import (
        AlreadyExistsError,
        ConfigError,
        CorruptJournalError,
        DeadlineExceededError,
        FailedPreconditionError,
        FencedError,
        InternalError,
        InvalidArgumentError,
        LockedError,
        NotFoundError,
        PayloadError,
        PermissionDeniedError,
        ResourceExhaustedError,
        ResultNotKept,
        RunFailed,
        RunTimeout,
        ScheduleError,
        StorageFullError,
        UnavailableError,
        UnimplementedError,
        WheelschedError,
    )
    from .hooks import middleware, on_start, on_stop
    from .model import Call, Command, Enqueue, Http, Job
    from .payloads import Ext
    from .policies import Catchup, Overlap, Retry
    from .schedule import At, Cron, Every, Manual
    from .staging import Applied
    from .tasks import current_run, task
    from .verbs_logs import Log
    from .verdicts import Cancel, NotRetried, RetryAfter, Snooze
    from .views import Attempt, JobInfo, RunError, Waiting
    from .views_events import Event
    from .views_queues import QueueInfo
    from .views_runs import Enqueued, EnqueueResults, Group
    from .views_time import Backfill, Calendar, Hold, JobChange, Reloaded, TzDiff, Why

__all__ = [
    "AlreadyExistsError",
    "Applied",
    "AsyncClient",
    "AsyncRun",
    "At",
    "Attempt",
    "Backfill",
    "Calendar",
    "Call",
    "Cancel",
    "Catchup",
    "Client",
    "Command",
    "ConfigError",
    "CorruptJournalError",
    "Cron",
    "DeadlineExceededError",
    "Enqueue",
    "EnqueueResults",
    "Enqueued",
    "Event",
    "Every",
    "Ext",
    "FailedPreconditionError",
    "FencedError",
    "Group",
    "Hold",
    "Http",
    "InternalError",
    "InvalidArgumentError",
    "Job",
    "JobChange",
    "JobInfo",
    "LockedError",
    "Log",
    "Manual",
    "NotFoundError",
    "NotKept",
    "NotRetried",
    "Overlap",
    "PayloadError",
    "PermissionDeniedError",
    "PutResults",
    "QueueInfo",
    "Reloaded",
    "ResourceExhaustedError",
    "ResultNotKept",
    "Retry",
    "RetryAfter",
    "Run",
    "RunError",
    "RunFailed",
    "RunTimeout",
    "ScheduleError",
    "Snooze",
    "StorageFullError",
    "TzDiff",
    "UnavailableError",
    "UnimplementedError",
    "Waiting",
    "WheelschedError",
    "Why",
    "__version__",
    "current_run",
    "default_socket_path",
    "middleware",
    "on_start",
    "on_stop",
    "task",
]

__version__ = "0.1.0"

_FROM = {
    "aclient": ("AsyncClient", "AsyncRun"),
    "client": ("Client", "Run", "default_socket_path"),
    "hooks": ("middleware", "on_start", "on_stop"),
    "model": ("Call", "Command", "Enqueue", "Http", "Job"),
    "payloads": ("Ext",),
    "policies": ("Catchup", "Overlap", "Retry"),
    "staging": ("Applied",),
    "schedule": ("At", "Cron", "Every", "Manual"),
    "tasks": ("current_run", "task"),
    "verbs_logs": ("Log",),
    "verdicts": ("Cancel", "NotRetried", "RetryAfter", "Snooze"),
    "views": ("Attempt", "JobInfo", "NotKept", "RunError", "Waiting"),
    "bulk": ("PutResults",),
    "views_events": ("Event",),
    "views_queues": ("QueueInfo",),
    "views_runs": ("EnqueueResults", "Enqueued", "Group"),
    "views_time": ("Backfill", "Calendar", "Hold", "JobChange", "Reloaded", "TzDiff", "Why"),
}
_MODULE = {name: module for module, names in _FROM.items() for name in names}


def __getattr__(name: str) -> Any:
    """Load a public name at its first use (PEP 562). AttributeError for any other."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_MODULE.get(name, 'errors')}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

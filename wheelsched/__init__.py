"""wheelsched: a job-scheduler appliance.

The public names are loaded when they are first used, so that `import wheelsched` stays light.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .client.apply import Applied
    from .client.async_client import AsyncClient, AsyncRun
    from .client.client import Client, Run, default_socket_path
    from .client.put_many import PutResults
    from .client.values import Attempt, JobInfo, Waiting
    from .client.verbs_logs import Log
    from .client.views_events import Event
    from .client.views_queues import QueueInfo
    from .client.views_runs import Enqueued, EnqueueResults, Group, Stack
    from .client.views_time import Backfill, Calendar, Hold, JobChange, Reloaded, TzDiff, Why
    from .model.errors import (
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
    from .model.jobs import Enqueue, Job, Policies, RunPolicies
    from .model.nouns import Call, Command, Http, RunError
    from .model.payloads import Ext
    from .model.policies import Catchup, Overlap, Retry
    from .schedules.schedule import At, Cron, Every, Manual, Schedule
    from .tasks.hooks import middleware, on_start, on_stop
    from .tasks.tasks import AsyncTask, BatchTask, RunContext, Task, current_run, task
    from .tasks.verdicts import Cancel, NotRetried, RetryAfter, Snooze

__all__ = [
    "AlreadyExistsError",
    "Applied",
    "AsyncClient",
    "AsyncRun",
    "AsyncTask",
    "At",
    "Attempt",
    "Backfill",
    "BatchTask",
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
    "Policies",
    "PutResults",
    "QueueInfo",
    "Reloaded",
    "ResourceExhaustedError",
    "ResultNotKept",
    "Retry",
    "RetryAfter",
    "Run",
    "RunContext",
    "RunError",
    "RunFailed",
    "RunPolicies",
    "RunTimeout",
    "Schedule",
    "ScheduleError",
    "Snooze",
    "Stack",
    "StorageFullError",
    "Task",
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
    "client.async_client": ("AsyncClient", "AsyncRun"),
    "client.client": ("Client", "Run", "default_socket_path"),
    "tasks.hooks": ("middleware", "on_start", "on_stop"),
    "model.jobs": ("Enqueue", "Job", "Policies", "RunPolicies"),
    "model.nouns": ("Call", "Command", "Http"),
    "model.payloads": ("Ext",),
    "model.policies": ("Catchup", "Overlap", "Retry"),
    "client.apply": ("Applied",),
    "schedules.schedule": ("At", "Cron", "Every", "Manual", "Schedule"),
    "tasks.tasks": ("AsyncTask", "BatchTask", "RunContext", "Task", "current_run", "task"),
    "client.verbs_logs": ("Log",),
    "tasks.verdicts": ("Cancel", "NotRetried", "RetryAfter", "Snooze"),
    "client.values": ("Attempt", "JobInfo", "NotKept", "RunError", "Waiting"),
    "client.put_many": ("PutResults",),
    "client.views_events": ("Event",),
    "client.views_queues": ("QueueInfo",),
    "client.views_runs": ("EnqueueResults", "Enqueued", "Group", "Stack"),
    "client.views_time": ("Backfill", "Calendar", "Hold", "JobChange", "Reloaded", "TzDiff", "Why"),
}
_MODULE = {name: module for module, names in _FROM.items() for name in names}


def __getattr__(name: str) -> Any:
    """Load a public name at its first use (PEP 562). AttributeError for any other."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_MODULE.get(name, 'model.errors')}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

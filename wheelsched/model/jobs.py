"""What users hand over for many jobs or runs at once, and the names of the policies that go with them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypedDict

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Unpack

    from .nouns import Call
    from .policies import Catchup, Overlap, Retry
    from .typed import CatchupWord, Duration, Instant, Moment, OverlapWord, Schedules, Unique

__all__ = ["Enqueue", "Job", "JobFields", "Policies", "RunPolicies"]


class RunPolicies(TypedDict, total=False):
    """The policies of a run: what `enqueue` takes by name. None is "not given"."""

    queue: str | None
    priority: int | None
    timeout: Duration | None
    heartbeat_timeout: Duration | None
    retry: Retry | int | None
    expires_after: Duration | None
    concurrency_key: str | None
    concurrency: int | None
    redact: str | Sequence[str] | None
    on_success: str | None
    on_failure: str | None
    on_dead: str | None


class Policies(RunPolicies, total=False):
    """The policies of a job: what `put` takes by name. None is "not given"; for `set` it takes the job's own away."""

    overlap: OverlapWord | Overlap | None
    catchup: CatchupWord | Catchup | None
    start: Instant | None
    end: Instant | None
    max_runs: int | None
    jitter: Duration | None  # or text such as "10%"
    calendar: str | Sequence[str] | None
    late_after: Duration | None
    on_missed: str | None
    pause_after: int | None


class JobFields(Policies, total=False):
    """What a Job takes by name: policies, and for `apply` its note and whether it is paused."""

    note: str | None
    paused: bool | None


@dataclass(slots=True)
class Enqueue:
    """One call for `enqueue_many`, with what `enqueue` takes: delay, at, key, unique, namespace and policies."""

    call: Call
    delay: Duration | None = None
    at: Moment | None = None
    key: str | None = None
    unique: Unique | None = None
    namespace: str = "default"
    policies: dict[str, Any] = field(default_factory=dict)

    def __init__(
        self, call: Call, *, delay: Duration | None = None, at: Moment | None = None, key: str | None = None, unique: Unique | None = None,
        namespace: str = "default", **policies: Unpack[RunPolicies],
    ) -> None:
        self.call, self.delay, self.at, self.key, self.unique, self.namespace = call, delay, at, key, unique, namespace
        self.policies = policies  # type: ignore[assignment]  # a TypedDict is a dict


@dataclass(slots=True)
class Job:
    """One job for `put_many`: a name, what to call, when, and policies as for `put`."""

    name: str
    call: Call
    schedule: Any  # Schedules
    policies: dict[str, Any] = field(default_factory=dict)

    def __init__(self, name: str, call: Call, schedule: Schedules, **policies: Unpack[JobFields]) -> None:
        self.name = name
        self.call = call
        self.schedule = schedule
        self.policies = policies  # type: ignore[assignment]  # a TypedDict is a dict

"""What the server answers about times that were or will be: Why, Backfill, JobChange, Calendar, Hold, TzDiff. No I/O.

Instants are aware datetimes in UTC with microseconds; None stands for "not known" and "never".
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

from ..model.nouns import HOOKS, NEVER, to_datetime
from ..protocol.definition import SERVER_KEYS
from ..schedules.words import schedule_words
from .policy_words import policy_words
from .values import call_words, rfc3339

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

__all__ = ["Backfill", "Calendar", "Hold", "JobChange", "TzDiff", "TzMove", "Why", "definition_words"]

_NO_CALL: Final = {"args": "(long)", "kwargs": "(long)"}


@dataclass(frozen=True, slots=True)
class Why:
    """What became of one occurrence, or will. `str()` of it is `text`.

    disposition: fired, skipped, coalesced, superseded, moved, tzdata_moved or pending; reason: overlap, misfire, pause,
    calendar, dst_gap, dst_overlap, window, max, limit, deleted, manual, or None.
    """

    disposition: str
    reason: str | None
    run_id: str | None  # of the run that it made, or that stands for it
    at: datetime | None  # when it was decided; pending: when it is due; moved, and taken by a clock change: when it runs instead
    text: str  # all of this in words
    scheduled_at: datetime | None = None  # its nominal time
    until: datetime | None = None  # last nominal time of the range that it is part of
    count: int | None = None  # occurrences of that range
    blocking: str | None = None  # id of the run that it gave way to

    @classmethod
    def from_wire(cls, raw: Mapping[str, Any]) -> Why:
        """Of the server's map; what is missing is None."""
        return cls(
            str(raw["disposition"]), raw.get("reason"), raw.get("run_id"), to_datetime(raw.get("at_us")), str(raw["text"]),
            to_datetime(raw.get("scheduled_us")), to_datetime(raw.get("until_us")), raw.get("count"), raw.get("blocking"),
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON: times as RFC 3339 text with microseconds and Z."""
        times = {"at": rfc3339(self.at), "scheduled_at": rfc3339(self.scheduled_at), "until": rfc3339(self.until)}
        return {**asdict(self), **times}

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Backfill:
    """What a backfill made; with `dry_run` what it would make."""

    count: int  # runs made
    existing: int  # occurrences that were left alone, because they have a run
    total: int  # occurrences in the range
    first: datetime | None  # nominal time of the range's first and last occurrence
    last: datetime | None
    run_ids: list[str] = field(default_factory=list)  # of the first 1,000
    dry_run: bool = False
    forgotten: int = 0  # of `count`: history has dropped the runs of that time (`retention`), so they may have run before

    @classmethod
    def from_wire(cls, raw: Mapping[str, Any], *, dry_run: bool) -> Backfill:
        """Of the server's map."""
        return cls(
            int(raw["count"]), int(raw["existing"]), int(raw["total"]), to_datetime(raw.get("first_us")), to_datetime(raw.get("last_us")),
            [str(run_id) for run_id in raw.get("ids") or ()], dry_run, int(raw.get("forgotten") or 0),
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {**asdict(self), "first": rfc3339(self.first), "last": rfc3339(self.last)}


def _readable(key: str, value: Any) -> Any:
    """A policy of a resolved definition as plain data: numbers, texts and lists as they are, a retry by its parts, the rest in words."""
    if key == "retry":
        waits = {name: policy_words(f"{name}_us", value[f"{name}_us"]) for name in ("backoff", "cap")}
        not_on = {"not_on": list(value["not_on"])} if value.get("not_on") else {}
        return {"attempts": value["attempts"], "backoff": waits["backoff"], "factor": value["factor"], "cap": waits["cap"], **not_on}
    if isinstance(value, list | tuple):
        return list(value)
    is_plain = not isinstance(value, dict) and not key.endswith("_us") and key not in ("on_missed", *HOOKS)
    return value if is_plain else policy_words(key, value)


def definition_words(side: Mapping[str, Any]) -> dict[str, Any]:
    """A definition {spec, param_us, state} as {policy: value}, named and written as users do; what is not set is left out.

    Durations are text such as `5m`, instants RFC 3339 text, the schedule is as `schedule_words` has it.
    """
    spec = side["spec"]
    out: dict[str, Any] = {"state": side["state"]} if side.get("state") is not None else {}
    out |= {"task": spec["task"], "schedule": schedule_words(spec["schedule"], side.get("param_us"))}
    for key, value in spec.items():
        if key not in ("task", "schedule", *SERVER_KEYS) and value is not None:
            out[key.removesuffix("_us")] = _readable(key, value)
    return out


@dataclass(frozen=True, slots=True)
class JobChange:
    """One change of a job. `old` and `new` are {spec, param_us, state} as the server keeps them; None: there was no job."""

    at: datetime | None
    uid: int | None  # who, by the socket's peer credentials; None or negative: the server itself
    user: str | None  # its name on this machine
    what: str
    version: int | None
    old: dict[str, Any] | None
    new: dict[str, Any] | None
    note: str = ""

    @property
    def changes(self) -> dict[str, tuple[Any, Any]]:
        """{policy: (old, new)} of what differs, written as by `definition_words`; None for what is not set."""
        old = {} if self.old is None else definition_words(self.old)
        new = {} if self.new is None else definition_words(self.new)
        if self.old is not None and self.new is not None and "payload" in self.new:
            for words, side in ((old, self.old), (new, self.new)):
                words.update(_call_words(side["payload"]))
            if all(old[name] == new[name] for name in _NO_CALL):
                old["arguments"], new["arguments"] = "(not shown)", "(not shown, but others)"
        names = [*old, *(name for name in new if name not in old)]
        return {name: (old.get(name), new.get(name)) for name in names if old.get(name) != new.get(name)}

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        changes = {name: {"old": old, "new": new} for name, (old, new) in self.changes.items()}
        return {**asdict(self), "at": rfc3339(self.at), "old": _side(self.old), "new": _side(self.new), "changes": changes}


def _call_words(payload: bytes | None) -> dict[str, Any]:
    """Arguments of a call as JSON has them; long ones were not kept."""
    if payload is None:
        return _NO_CALL
    return call_words(payload)


def _side(side: dict[str, Any] | None) -> dict[str, Any] | None:
    """A definition for JSON: a job without an instant of its own has none there, either."""
    if side is None:
        return None
    calls = _call_words(side["payload"]) if "payload" in side else {}
    rest = {name: value for name, value in side.items() if name != "payload"}
    return {**rest, **calls, "param_us": None if side.get("param_us") == NEVER else side.get("param_us")}


@dataclass(frozen=True, slots=True)
class Calendar:
    """A named calendar. `definition` has mode, tz, dates, yearly, weekdays, windows, daily, as the server keeps it."""

    name: str
    definition: dict[str, Any]
    jobs: int  # how many name it

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Hold:
    """Whether all triggering is held. `missed`: of `release`, the jobs that came due meanwhile."""

    held: bool
    since: datetime | None = None
    note: str = ""
    missed: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {**asdict(self), "since": rfc3339(self.since)}


@dataclass(frozen=True, slots=True)
class Reloaded:
    """What a reload of task code did."""

    workers: int  # processes that have the new code
    finishing: int  # those that finish, on the old code, the runs that they have
    folder: str = ""  # where the new code was imported from, in words
    settings: str = ""  # what of the configuration has changed and waits for a restart, in words

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class TzMove:
    """A job whose next time another version of the zone data moved. None: it has no coming time."""

    job: str
    old: datetime | None
    new: datetime | None


@dataclass(frozen=True, slots=True)
class TzDiff:
    """What the last change of the zone data did: versions of tzdata, when it was noticed, and whose next time moved."""

    old: str | None
    new: str | None
    at: datetime | None
    total: int  # jobs in all; `moved` has the first 10,000
    moved: list[TzMove]

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        moved = [{"job": m.job, "old": rfc3339(m.old), "new": rfc3339(m.new)} for m in self.moved]
        return {"old": self.old, "new": self.new, "at": rfc3339(self.at), "total": self.total, "moved": moved}

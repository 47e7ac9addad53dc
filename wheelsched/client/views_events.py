"""Events as values. No I/O."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal

from ..model.errors import InternalError
from ..model.nouns import to_datetime
from .values import rfc3339

if TYPE_CHECKING:
    from datetime import datetime

__all__ = ["Event", "EventPage"]

_COLUMNS: Final[dict[str, Literal["q", "I", "B"]]] = {
    "seq": "q", "row": "I", "at_us": "q", "kind": "B", "state": "B", "job": "I", "scheduled_us": "q", "attempt": "I", "token": "q",
    "worker": "I",
}
_NO_ID: Final = "0" * 32
_TIMES: Final = ("at", "scheduled_at", "next_at", "until")


@dataclass(slots=True)  # not frozen: there may be a million of them, and that makes each four times as dear
class Event:
    """A durable change of state. What a kind does not have is None. Kinds:

    run.       created queued leased succeeded failed (there will be another attempt) dead cancelling cancelled stale (a refused completion)
               skipped late discarded moved withdrawn
    job.       created updated paused resumed finished deleted retimed (other zone data or another calendar)
    others     occurrence.skipped .moved .restored, worker.joined .gone, queue.changed, calendar.changed, held, released, server.started,
               clock.set_back

    `position`: where to go on after it (`since=`). `at`: when it was decided. `state`: of the run, or of the job when there is no run,
    after it. `count`: occurrences of a skipped range up to `until`; the generation of a start. `name`: of a worker, queue or calendar.
    """

    position: str
    at: datetime
    kind: str
    job: str | None = None
    run_id: str | None = None
    scheduled_at: datetime | None = None
    state: str | None = None
    reason: str | None = None
    attempt: int | None = None
    token: int | None = None
    worker: str | None = None
    outcome: str | None = None
    error: str | None = None
    message: str | None = None
    next_at: datetime | None = None
    until: datetime | None = None
    count: int | None = None
    disposition: str | None = None
    name: str | None = None
    settings: dict[str, Any] | None = None
    note: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON, without what is None."""
        found = {name: value for name, value in asdict(self).items() if value is not None}
        return found | {name: rfc3339(found[name]) for name in _TIMES if name in found}


@dataclass(frozen=True, slots=True)
class EventPage:
    """Events, and where the next page begins. `behind`: there is more on disk that was not looked at; `last`: nothing can follow (of a
    simulator, where nothing is left to happen).
    """

    events: list[Event]
    position: str
    behind: bool = False
    last: bool = False

    @classmethod
    def from_wire(cls, raw: Any) -> EventPage:
        """Of the server's answer. InternalError for another."""
        try:
            return cls(_events(raw) if raw["n"] else [], raw["position"], bool(raw.get("behind")))
        except (TypeError, KeyError, ValueError, IndexError, AttributeError) as e:
            raise InternalError(f"the server's answer to events can't be read: {type(e).__name__}: {e}") from e


def _events(raw: dict[str, Any]) -> list[Event]:
    columns = [memoryview(raw[name]).cast(code).tolist() for name, code in _COLUMNS.items()]
    ids, jobs, kinds, states = raw["id"].hex(), [*raw["jobs"]], raw["kinds"], [state or None for state in raw["states"]]
    more, generations, generation = dict(raw["more"]), dict(raw["generations"]), 0
    instants: dict[int, Any] = {-1: None}  # the rows of a record share theirs
    found = []
    for i, (seq, row, at, kind, state, job, scheduled, attempt, token, worker) in enumerate(zip(*columns, strict=True)):
        generation = generations.get(i, generation)
        run_id = ids[32 * i : 32 * i + 32]
        for instant in (at, scheduled):
            if instant not in instants:
                instants[instant] = to_datetime(instant)
        event = Event(
            f"{generation}.{seq}.{row}", instants[at], kinds[kind], jobs[job] if job < len(jobs) else None,
            None if run_id == _NO_ID else run_id, instants[scheduled], states[state], None, attempt or None, token or None,
            f"w{worker}" if worker else None,
        )
        found.append(replace(event, **_extra(more[i])) if i in more else event)
    return found


_WORDS: Final = ("reason", "outcome", "error", "message", "count", "disposition", "name", "settings", "note")
_INSTANTS: Final = {"next_us": "next_at", "until_us": "until", "scheduled_us": "scheduled_at"}


def _extra(raw: dict[str, Any]) -> dict[str, Any]:
    """What a newer server tells beyond these is left out."""
    found: dict[str, Any] = {name: raw[name] for name in _WORDS if name in raw}
    found |= {name: to_datetime(raw[key]) for key, name in _INSTANTS.items() if key in raw}
    return found | ({"worker": f"w{raw['worker']}"} if "worker" in raw else {})

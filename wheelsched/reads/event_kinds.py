"""What each kind of record tells, in columns: the events of a record in their order. Pure.

Every kind of record is in `_TELL`, or in `NOT_TOLD` with the reason. An ending is told by what it led to: run.succeeded, run.failed (there
will be another attempt), run.snoozed, run.dead, run.cancelled. The run that a hook or `on_missed` makes is told as any other (run.created,
its reason `chain`), and so is a refused completion (run.stale). Told of by no event: progress, which is in no record; and what is in
NOT_TOLD.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgpack
import numpy as np

from ..model.nouns import NEVER, TRANSITIONS, Disposition, Event, JobState, Outcome, Reason, RunState, Trigger
from ..state.state import AS_EVER, SKIP

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from ..state.reused_rows import Trail

KINDS: Final = (  # in the order of their numbers on the wire of this server; a reply carries the names
    "run.created", "run.queued", "run.leased", "run.succeeded", "run.failed", "run.dead", "run.cancelled", "run.skipped", "run.late",
    "run.cancelling", "run.discarded", "run.moved", "run.withdrawn", "job.created", "job.updated", "job.paused", "job.resumed",
    "job.finished", "job.deleted", "job.retimed", "occurrence.skipped", "occurrence.moved", "occurrence.restored", "worker.joined",
    "worker.gone", "queue.changed", "calendar.changed", "held", "released", "server.started", "clock.set_back", "run.stale", "run.snoozed",
    "run.redriven",
)
NOT_TOLD: Final = {
    "SPEC": "the PUT or ENQUEUE that needs the definition is told",
    "FOLD": "runs go to history: they are what they were",
    "REPLY": "answers to requests, for those who ask again",
    "FORGET": "what is too old to be remembered",
    "ANNOUNCE": "the decorators' values, behind each worker.joined",
    "ANNOUNCED": "the same",
    "WHOSE": "a part of worker.joined that is nobody's business",
    "ZONES": "data; each job it moves is told as job.retimed",
    "TZDIFF": "a report; each job it moves is told as job.retimed",
    "TOLD": "changes of jobs go to history: they were told when they were made",
    "CHECKPOINT": "a value for the next attempt; the state of the run is what it was",
    "GROUP": "the ENQUEUE before it tells of the members and of the run that waits for them",
    "CHAINED": "a mark; the runs that were made are told",
    "KEYED": "further keys for runs that are there",
    "ELAPSED": "a look at the clocks",
    "DECIDED": "a part of clock.set_back; what comes of it is told as run.skipped",
    "RENEW": "an unchanged put changes nothing that is told of",
}
STATES: Final = ("", *(s.name.lower() for s in RunState), *(s.name.lower() for s in JobState))
NUMBER: Final = {kind: i for i, kind in enumerate(KINDS)}
_JOB_STATE: Final = len(RunState)  # added to a JobState: its place in STATES
_OF_JOB: Final = {
    JobState.ACTIVE: "job.resumed", JobState.PAUSED: "job.paused", JobState.FINISHED: "job.finished", JobState.DELETED: "job.deleted",
}
ENDINGS: Final = {  # what can happen to an attempt that ends
    Event.SUCCEED: "run.succeeded", Event.RETRY: "run.failed", Event.EXHAUST: "run.dead", Event.CANCEL: "run.cancelled",
    Event.SPARE: "run.snoozed",
}
_BY_HAND: Final = {Event.CANCEL: "run.cancelled", Event.REDRIVE: "run.queued", Event.DISCARD: "run.discarded"}
More = dict[str, Any]


@dataclass(slots=True)
class Told:
    """The events of one record. One of `run` (rows of the run table), `job` (rows of the job table) and `names` is there, or none."""

    at_us: int
    kind: NDArray[np.uint8]  # places in KINDS
    state: NDArray[np.uint8]  # places in STATES, after it
    run: NDArray[np.uint32] | None = None
    job: NDArray[np.uint32] | None = None
    names: list[bytes] | None = None  # of jobs
    ids: bytes | None = None  # 16 bytes a row, with `job`: of the runs that the record made
    scheduled: NDArray[np.int64] | None = None  # nominal times; with `job` and without `ids` the run ids follow from them
    token: NDArray[np.int64] | None = None
    worker: int = 0
    ended: tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.uint8]] | None = None  # start, end and outcome of attempts
    more: Callable[[int], More | None] | None = None  # what else there is of a row


def _all(n: int, kind: str, state: int = 0) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    return np.full(n, NUMBER[kind], np.uint8), np.full(n, state, np.uint8)


def _numbers(values: NDArray[np.uint8], names: dict[Any, str]) -> NDArray[np.uint8]:
    table = np.zeros(256, np.uint8)
    for value, name in names.items():
        table[int(value)] = NUMBER[name]
    return table[values]


def _due(f: dict[str, Any]) -> Told:
    """Runs and skipped occurrences, then jobs that have no occurrence left."""
    made = np.flatnonzero(f["state"])
    over = np.flatnonzero(f["job_state"] == JobState.FINISHED)
    state, nominal = f["state"][made], f["nominal"][made]
    skipped = state == RunState.SKIPPED
    kind = np.where(skipped, NUMBER["run.skipped"], NUMBER["run.created"]).astype(np.uint8)

    def more(i: int) -> More | None:
        if i >= len(made):
            return None
        row = made[i]
        if not skipped[i]:
            return {"next_us": int(f["until"][row])} if state[i] == RunState.SCHEDULED and f["until"][row] >= 0 else None
        return {
            "reason": Reason(int(f["reason"][row])).name.lower(), "disposition": Disposition(int(f["disposition"][row])).name.lower(),
            "until_us": int(f["until"][row]), "count": int(f["count"][row]),
        }

    finished = _all(len(over), "job.finished", _JOB_STATE + JobState.FINISHED)
    return Told(
        f["at"], np.concatenate([kind, finished[0]]), np.concatenate([state, finished[1]]),
        job=np.concatenate([f["job"][made], f["job"][over]]),
        scheduled=np.concatenate([nominal, np.full(len(over), -1, np.int64)]), more=more if (state != RunState.QUEUED).any() else None,
    )


def _enqueue(f: dict[str, Any]) -> Told:
    kind, _ = _all(len(f["job"]), "run.created")

    def more(i: int) -> More | None:
        trigger = {"reason": Trigger(int(f["trigger"][i])).name.lower()}
        known = f["state"][i] == RunState.SCHEDULED and 0 <= f["due"][i] < NEVER  # not of one that waits for its turn or its group
        return {**trigger, "next_us": int(f["due"][i])} if known else trigger

    return Told(f["at"], kind, f["state"], job=f["job"], ids=f["id"], scheduled=f["nominal"], more=more)


def _grant(f: dict[str, Any]) -> Told:
    return Told(f["at"], *_all(len(f["run"]), "run.leased", RunState.LEASED), run=f["run"], token=f["token"] + np.arange(len(f["run"])),
                worker=f["worker"])


def _stale(f: dict[str, Any]) -> Told:
    told = _runs("run.stale", 0)(f)
    told.token, told.worker = f["token"], f["worker"]
    told.more = lambda i: {"outcome": Outcome(int(f["outcome"][i])).name.lower()}
    return told


def _finish(f: dict[str, Any]) -> Told:
    after = np.zeros(256, np.uint8)
    for (state, event), target in TRANSITIONS.items():
        if state == RunState.LEASED:
            after[event] = target
    state = after[f["event"]]
    results = dict(f["result"])

    def more(i: int) -> More | None:
        outcome = int(f["outcome"][i])
        if outcome == Outcome.SUCCEEDED and state[i] == RunState.SUCCEEDED:
            return None
        told: More = {"outcome": Outcome(outcome).name.lower()}
        result = msgpack.unpackb(results[i], raw=False) if i in results else {}
        if "reason" in result:
            told["reason"] = str(result["reason"])
        if "type" in result:
            told |= {"error": str(result["type"]), "message": str(result.get("message", ""))}
        if state[i] == RunState.RETRY_WAIT:
            told["next_us"] = int(f["due"][i])
        return told

    well = bool((f["outcome"] == Outcome.SUCCEEDED).all() and (state == RunState.SUCCEEDED).all())
    ended = f["started"], f["ended"], f["outcome"]
    kind = _numbers(f["event"], ENDINGS)
    kind[(f["event"] == Event.SPARE) & (f["outcome"] != Outcome.SNOOZED)] = NUMBER["run.failed"]  # in a batch handler that died
    return Told(f["at"], kind, state, run=f["run"], ended=ended, more=None if well else more)


def _runs(name: str, state: int, reason: str | None = None) -> Callable[[dict[str, Any]], Told]:
    told = None if reason is None else {"reason": reason}
    return lambda f: Told(f["at"], *_all(len(f["run"]), name, state), run=f["run"], more=None if told is None else lambda _: told)


def _changed(f: dict[str, Any]) -> Told | None:
    """A command on runs: cancel, redrive, discard."""
    name = _BY_HAND.get(f["event"])
    if name is None:
        return None
    state = {Event.CANCEL: RunState.CANCELLED, Event.REDRIVE: RunState.QUEUED}.get(f["event"], RunState.DEAD)
    return _runs(name, state, "redrive" if f["event"] == Event.REDRIVE else None)(f)


def _group_end(f: dict[str, Any]) -> Told | None:
    """The run that waited for a group; none when it was cancelled before."""
    if not len(f["run"]):
        return None
    return _runs("run.queued", RunState.QUEUED, "group")(f) if f["payload"] else _runs("run.cancelled", RunState.CANCELLED, "group")(f)


def _redrive(f: dict[str, Any]) -> Told:
    now = f["due"] <= f["at"]
    kind = np.where(now, NUMBER["run.queued"], NUMBER["run.redriven"]).astype(np.uint8)
    state = np.where(now, RunState.QUEUED, RunState.RETRY_WAIT).astype(np.uint8)
    return Told(f["at"], kind, state, run=f["run"],
                more=lambda i: {"reason": "redrive"} if now[i] else {"reason": "redrive", "next_us": int(f["due"][i])})


def _send_back(f: dict[str, Any]) -> Told:
    return Told(f["at"], *_all(len(f["run"]), "run.redriven", RunState.SCHEDULED), run=f["run"],
                more=lambda i: {"reason": "redrive", **({"next_us": int(f["due"][i])} if f["due"][i] >= 0 else {})})


def _supersede(f: dict[str, Any]) -> Told:
    def more(i: int) -> More:
        return {
            "reason": Reason(int(f["reason"][i])).name.lower(), "count": 1,
            "disposition": Disposition(int(f["disposition"][i])).name.lower(),
        }

    return Told(f["at"], *_all(len(f["run"]), "run.skipped", RunState.SKIPPED), run=f["run"], more=more)


def _rearm(f: dict[str, Any]) -> Told:
    told = _runs("run.moved", RunState.SCHEDULED)(f)
    told.more = lambda i: {"next_us": int(f["due"][i])}
    return told


def _withdraw(f: dict[str, Any]) -> Told:
    told = _runs("run.withdrawn", RunState.SKIPPED)(f)
    told.more = lambda i: {"until_us": int(f["until"][i]), "count": int(f["count"][i])}
    return told


def _jobs(f: dict[str, Any]) -> Told:
    notes = dict(f["note"])
    return Told(
        f["at"], _numbers(f["state"], _OF_JOB), f["state"] + np.uint8(_JOB_STATE), job=f["job"],
        more=lambda i: {"note": notes[i]} if notes.get(i) else None,
    )


def _retime(f: dict[str, Any]) -> Told:
    kind, _ = _all(len(f["job"]), "job.retimed")
    kind[f["state"] == JobState.FINISHED] = NUMBER["job.finished"]
    return Told(f["at"], kind, f["state"] + np.uint8(_JOB_STATE), job=f["job"])


def _except(f: dict[str, Any]) -> Told:
    to = f["to"]
    numbers = [NUMBER["occurrence." + what] for what in ("restored", "skipped", "moved")]
    kind = np.select([to == AS_EVER, to == SKIP], numbers[:2], numbers[2]).astype(np.uint8)
    return Told(
        f["at"], kind, np.zeros(len(to), np.uint8), job=f["job"],
        more=lambda i: {"scheduled_us": int(f["nominal"][i]), **({"next_us": int(to[i])} if to[i] >= 0 else {})},
    )


def _one(kind: str, **more: Any) -> Told:
    at = more.pop("at")
    return Told(at, *_all(1, kind), more=lambda _: more)


def _put(f: dict[str, Any], fresh: NDArray[np.bool_]) -> Told:
    kind = np.where(fresh, NUMBER["job.created"], NUMBER["job.updated"]).astype(np.uint8)
    notes = dict(f["note"])
    return Told(
        f["at"], kind, f["state"] + np.uint8(_JOB_STATE), names=f["name"], more=lambda i: {"note": notes[i]} if notes.get(i) else None,
    )


_TELL: Final[dict[str, Callable[[dict[str, Any]], Told | None]]] = {
    "START": lambda f: _one("server.started", at=f["wall"], name=f["server"], count=f["generation"]),
    "DUE": _due, "ENQUEUE": _enqueue, "GRANT": _grant, "FINISH": _finish, "RUNS": _changed, "JOBS": _jobs, "RETIME": _retime,
    "SUPERSEDE": _supersede, "REARM": _rearm, "WITHDRAW": _withdraw, "EXCEPT": _except, "STALE": _stale, "REDRIVE": _redrive,
    "SEND_BACK": _send_back,
    "WAKE": _runs("run.queued", RunState.QUEUED), "GIVE_BACK": _runs("run.queued", RunState.QUEUED, "given_back"),
    "LATE": _runs("run.late", 0), "ASK_CANCEL": _runs("run.cancelling", RunState.LEASED),
    "DELETED": _runs("run.cancelled", RunState.CANCELLED, "deleted"), "GROUP_END": _group_end,
    "EXPIRE": _runs("run.cancelled", RunState.CANCELLED, "expired"),
    "WORKER": lambda f: _one("worker.gone" if f["gone"] else "worker.joined", at=f["at"], name=f["name"], worker=f["id"], note=f["kind"]),
    "QUEUE": lambda f: _one("queue.changed", at=f["at"], name=f["name"], settings=f["settings"]),
    "CALENDAR": lambda f: _one("calendar.changed", at=f["at"], name=f["name"], **({"note": "removed"} if f["wire"] is None else {})),
    "HOLD": lambda f: _one("held" if f["on"] else "released", at=f["at"], note=f["note"]),
    "CLOCK": lambda f: _one("clock.set_back", at=f["at"]),
}


def tell(trail: Trail, seq: int, kind: str, f: dict[str, Any]) -> Told | None:
    """The events of a record; None when it has none."""
    if kind == "PUT":
        return _put(f, trail.was_new(seq, len(f["state"])))
    return None if kind in NOT_TOLD else _TELL[kind](f)

"""apply on the client's side: jobs into frames that the server keeps, then one question that puts them all. No I/O."""

from __future__ import annotations

import sys
from array import array
from collections import deque
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

import msgpack

from ..model.errors import FailedPreconditionError, InternalError, InvalidArgumentError, WheelschedError
from ..model.jobs import Job
from ..model.nouns import FRAME_JOBS, NOTE_MAX, Call, parse_job_name
from ..model.payloads import NO_EXTS
from ..protocol.definition import POLICIES, given_from_api
from ..protocol.frames import FRAME_MAX, encode_payload
from ..schedules.words import instant_words, schedule_words
from .policy_words import policy_words
from .put_many import definition_key
from .requests import PIPELINE_MAX, Ask
from .values import call_words

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Mapping

    from ..model.payloads import Exts

__all__ = ["Applied", "apply_flow", "check_job", "differences"]

_FRAME_ROOM: Final = FRAME_MAX - 1_024  # the rest of the frame: verb, keys, lengths
_ROW_ROOM: Final = 4 + 8 + 3 + 5 + 5 + 1  # columns, the heads of name, payload and note, and `paused`
_FAULTS_MAX: Final = 1_000
_CACHE_MAX: Final = 10_000
_TRIES: Final = 5
_API_NAMES: Final = {key: name for name, (key, _) in POLICIES.items()}


@dataclass(frozen=True, slots=True)
class Applied:
    """What `apply` did, or with `dry_run` would do. `changes`: {name: {policy: (old, new)}} as text, of the first 1,000 updated.
    `calendars`: {name: "created" or "updated"}. `cancelled`: runs of the deleted jobs that no worker has; `going_on`: those that one has.
    """

    created: tuple[str, ...]
    updated: tuple[str, ...]
    deleted: tuple[str, ...]
    unchanged: int
    changes: dict[str, dict[str, tuple[str, str]]]
    calendars: dict[str, str]
    dry_run: bool
    cancelled: int = 0
    going_on: int = 0
    said: tuple[tuple[str, str], ...] = ()  # (name, what is to know of that new job)
    warnings: tuple[tuple[str, str], ...] = ()  # (task, that no worker serves it)

    def __bool__(self) -> bool:
        """Was anything to do?"""
        return bool(self.created or self.updated or self.deleted or self.calendars)

    def counts(self) -> dict[str, int]:
        """How many jobs of each fate."""
        return {
            "created": len(self.created), "updated": len(self.updated), "deleted": len(self.deleted), "unchanged": self.unchanged,
        }

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        out = asdict(self) | {"counts": self.counts()}
        out["changes"] = {name: {k: list(v) for k, v in pairs.items()} for name, pairs in self.changes.items()}
        return out


_Checked = tuple[str, dict[str, Any], bytes, int, bytes, str, bool | None]
_Cache = dict[Any, tuple[dict[str, Any], bytes, int]]


def check_job(job: Any, cache: _Cache | None = None, exts: Exts = NO_EXTS) -> _Checked:
    """(name, given, the same packed, param_us, payload, note, paused) of a job for `apply`, whose policies may have `note` and `paused`.

    `cache` keeps what jobs of one definition share. InvalidArgumentError and PayloadError for the first thing that is wrong.
    """
    if not isinstance(job, Job):
        raise InvalidArgumentError(f"apply takes Job(name, call, schedule, ...), not {type(job).__name__}")
    policies = dict(job.policies)
    note, paused = policies.pop("note", None), policies.pop("paused", None)
    note = "" if note is None else note
    if not isinstance(note, str) or len(note) > NOTE_MAX:
        raise InvalidArgumentError(f"note: text of at most {NOTE_MAX} characters is wanted")
    if paused is not None and not isinstance(paused, bool):
        raise InvalidArgumentError(f"paused: True, False or None is wanted, not {str(paused)[:60]}")
    if not isinstance(job.call, Call):
        raise InvalidArgumentError(f"call: Call(...) or a task's .call(...) is wanted, not {type(job.call).__name__}")
    if job.schedule is None:
        raise InvalidArgumentError("schedule: Cron(...), Every(...), At(...) or Manual() is wanted, not None")
    name = parse_job_name(job.name)
    key = definition_key(job.call, job.schedule, policies)
    found = None if cache is None else cache.get(key)
    if found is None:
        given, param_us = given_from_api(job.call, job.schedule, policies)
        found = given, msgpack.packb(given, use_bin_type=True), param_us
        if cache is not None and len(cache) < _CACHE_MAX:
            cache[key] = found
    return name, *found, encode_payload(job.call.args, job.call.kwargs, job.call.headers, exts=exts), note, paused


class _Frame:
    """The columns of one frame."""

    def __init__(self) -> None:
        self.given: list[dict[str, Any]] = []
        self.rows: dict[bytes, int] = {}  # packed `given` -> its row
        self.names: list[str] = []
        self.which = array("I")
        self.param_us = array("q")
        self.payloads: list[bytes] = []
        self.notes: list[str] = []
        self.paused: list[bool | None] = []
        self.room = _FRAME_ROOM

    def add(self, checked: _Checked) -> bool:
        """Take a job; False when there is no room for it."""
        name, given, packed, param_us, payload, note, paused = checked
        need = len(name) + len(payload) + 4 * len(note) + _ROW_ROOM + (0 if packed in self.rows else len(packed))
        if self.names and (need > self.room or len(self.names) == FRAME_JOBS):
            return False
        self.room -= need
        row = self.rows.setdefault(packed, len(self.given))
        if row == len(self.given):
            self.given.append(given)
        self.names.append(name)
        self.which.append(row)
        self.param_us.append(param_us)
        self.payloads.append(payload)
        self.notes.append(note)
        self.paused.append(paused)
        return True

    def args(self) -> dict[str, Any]:
        """The request's arguments but for the batch."""
        if sys.byteorder == "big":
            self.which.byteswap()
            self.param_us.byteswap()
        return {
            "given": self.given, "names": self.names, "which": self.which.tobytes(), "param_us": self.param_us.tobytes(),
            "payload": self.payloads, "notes": self.notes, "paused": self.paused,
        }


def _frames(jobs: Iterable[Job], exts: Exts) -> tuple[list[dict[str, Any]], int]:
    """All frames, and how many jobs are in them. InvalidArgumentError with every job that is wrong in detail["jobs"]."""
    frames, frame, n = [], _Frame(), 0
    faults: list[list[Any]] = []
    cache: _Cache = {}
    for job in jobs:
        try:
            checked = check_job(job, cache, exts)
        except WheelschedError as e:
            faults.append([n, f"job {str(getattr(job, 'name', '?'))[:200]!r}: {e.message}"])
        else:
            if not frame.add(checked):
                frames.append(frame.args())
                frame = _Frame()
                frame.add(checked)
        n += 1
    if faults:
        more = f"; {len(faults)} faults in all" if len(faults) > 1 else ""
        raise InvalidArgumentError(f"{faults[0][1]} (row {faults[0][0]}){more}", jobs=faults[:_FAULTS_MAX], faults=len(faults))
    if frame.names:
        frames.append(frame.args())
    return frames, n


def apply_flow(
    next_batch: Callable[[], int], jobs: Iterable[Job], prune: Any, dry_run: Any, calendars: Mapping[str, Any], exts: Exts
) -> Generator[tuple[str, Any], Any, Applied]:
    """The steps of `apply` for a client to carry out: ("start", Ask) -> a handle, ("finish", handle) -> its answer, ("drop", handle).

    What is staged goes with its connection. When that is lost, the server says so, and all is staged again.
    """
    if prune is not None and (not isinstance(prune, str) or not prune):
        raise InvalidArgumentError("prune: a pattern of job names is wanted, such as 'billing/*'")
    if not isinstance(dry_run, bool):
        raise InvalidArgumentError(f"dry_run: True or False is wanted, not {str(dry_run)[:60]}")
    frames, n = _frames(jobs, exts)
    args = {"jobs": n, "prune": None if prune is None else prune.removeprefix("default/"), "dry_run": dry_run, "calendars": dict(calendars)}
    for left in reversed(range(_TRIES)):
        batch = next_batch()
        window: deque[Any] = deque()
        try:
            for frame in frames:
                if len(window) == PIPELINE_MAX:
                    yield "finish", window.popleft()
                window.append((yield "start", Ask("stage", {**frame, "batch": batch}, _staged)))
            while window:
                yield "finish", window.popleft()
            handle = yield "start", Ask("apply", {**args, "batch": batch}, lambda result: _applied(result, dry_run=dry_run))
            applied: Applied = yield "finish", handle
        except FailedPreconditionError as e:
            if "staged" not in e.detail or not left:
                raise
        else:
            return applied
        finally:
            for handle in window:
                yield "drop", handle
    raise InternalError("unreachable")


def _staged(result: Any) -> int:
    count = result.get("staged") if isinstance(result, dict) else None
    if not isinstance(count, int):
        raise InternalError("the server's answer to stage has no count")
    return count


def _applied(result: Any, *, dry_run: bool) -> Applied:
    """Read the answer to apply. InternalError for one that isn't."""
    try:
        return Applied(
            tuple(result["created"]), tuple(result["updated"]), tuple(result["deleted"]), int(result["unchanged"]),
            {change["name"]: differences(change["old"], change["new"]) for change in result["changes"]},
            {str(k): str(v) for k, v in result["calendars"].items()}, dry_run,
            int(result.get("cancelled", 0)), int(result.get("going_on", 0)),
            tuple((str(name), str(text)) for name, text in result.get("said", ())),
            tuple((str(task), str(text)) for task, text in result.get("warnings", ())),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as e:
        raise InternalError(f"the server's answer to apply is malformed: {type(e).__name__}: {e}") from e


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """{policy: (old, new)} as text; a schedule and its instant or anchor are one."""
    out = {}
    for key in new:
        if key == "param_us":
            label = "schedule" if new.get("schedule", {}).get("kind") == "at" or old.get("schedule", {}).get("kind") == "at" else "anchor"
            if label == "schedule" or "schedule" not in new:
                continue
            out["anchor"] = (instant_words(old[key]), instant_words(new[key]))
        elif key == "schedule":
            before, after = (schedule_words(side[key], side.get("param_us"), anchor=False) for side in (old, new))
            out[key] = (before, after)
        elif key == "payload":
            shown = _payload(old[key]), _payload(new[key])
            out["arguments"] = shown if shown[0] != shown[1] else (shown[0], f"{shown[1]} with another value in a redacted field")
        else:
            out[_API_NAMES.get(key, key)] = (policy_words(key, old.get(key)), policy_words(key, new[key]))
    if "param_us" in new and "schedule" not in out and "anchor" not in out:
        out["at"] = (instant_words(old["param_us"]), instant_words(new["param_us"]))
    return out


def _payload(data: Any) -> str:
    if not isinstance(data, bytes):
        return str(data)
    words = call_words(data)
    shown = [repr(a) for a in words["args"]] + [f"{k}={v!r}" for k, v in words["kwargs"].items()]
    return f"({', '.join(shown)})" + "".join(f" {k}={v!r}" for k, v in words.get("headers", {}).items())

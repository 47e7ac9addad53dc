"""enqueue_many and group: many calls into frames of columns. No I/O.

What calls share (task, policies, options, namespace, identity) is made and sent once a frame, as `put_many` does it for put_many.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ..model.errors import FailedPreconditionError, InternalError, InvalidArgumentError, WheelschedError
from ..model.jobs import Enqueue
from ..model.nouns import FRAME_JOBS, GROUP_MAX, HOOKS, NEVER, UNIQUE_FIELDS, Call, parse_duration, parse_job_name
from ..protocol.definition import given_from_api
from ..protocol.frames import FRAME_MAX, encode_payload, encode_value
from .put_many import Bulk, definition_key, frames_flow, little
from .requests import Ask
from .values import RunInfo
from .verbs import checked_key, field_of, instant_of_enqueue
from .views_runs import EnqueueResults, Group

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Mapping

    from ..model.payloads import Exts

__all__ = ["checked_unique", "enqueue_many_flow", "group_flow"]

R = TypeVar("R", bound=RunInfo)
_TRIES: Final = 3
_FRAME_ROOM: Final = FRAME_MAX - 1_024  # the rest of the frame: verb, keys, lengths
_ROW_ROOM: Final = 4 + 8 + 8 + 5 + 3  # columns, and the heads of a payload and a key


def checked_unique(value: Any) -> list[str] | None:
    """Names of fields from what a user gave as `unique`: True is the arguments. None: no identity."""
    if value is None or value is False:
        return None
    names = ["args"] if value is True else [value] if isinstance(value, str) else value
    if not isinstance(names, list | tuple | set | frozenset) or not names or not all(name in UNIQUE_FIELDS for name in names):
        raise InvalidArgumentError(f"unique: True or some of {', '.join(UNIQUE_FIELDS)} are wanted, not {str(value)[:60]}")
    return sorted(set(names))


class _Frame:
    """The columns of one frame."""

    def __init__(self) -> None:
        self.kinds: list[tuple[dict[str, Any], str, list[str] | None]] = []  # given, namespace, unique
        self.rows: dict[Any, int] = {}
        self.which, self.at_us, self.delay_us = array("I"), array("q"), array("q")
        self.payloads: list[bytes] = []
        self.keys: list[str | None] = []
        self.room = _FRAME_ROOM

    def members(self) -> dict[str, Any]:
        """The columns of a group's members."""
        return {"given": [given for given, _, _ in self.kinds], "which": little(self.which, 4), "payload": self.payloads}

    def ask(self, end: int) -> Ask[tuple[bytes, bytes]]:
        """The question of this frame, whose last row is before `end`."""
        args = {
            "given": [given for given, _, _ in self.kinds], "namespace": [space for _, space, _ in self.kinds],
            "unique": [unique for _, _, unique in self.kinds], "which": little(self.which, 4), "payload": self.payloads,
            "at_us": little(self.at_us, 8), "delay_us": little(self.delay_us, 8), "key": self.keys if any(self.keys) else None,
        }
        return Ask("enqueue_many", args, _columns, end - len(self.payloads))


def _columns(result: Any) -> tuple[bytes, bytes]:
    ids, existing = (result.get(name) if isinstance(result, dict) else None for name in ("id", "existing"))
    if not isinstance(ids, bytes) or not isinstance(existing, bytes):
        raise InternalError("the server's answer to enqueue_many has no runs")
    return ids, existing


def _frames(calls: Iterable[Enqueue | Call], exts: Exts) -> Iterator[tuple[_Frame, int]]:
    """(frame, the row behind its last one), in order. InvalidArgumentError and PayloadError carry the row in detail["row"]."""
    bulk, frame, row = Bulk(exts), _Frame(), 0
    for item in calls:
        try:
            one = Enqueue(item) if isinstance(item, Call) else item
            if not isinstance(one, Enqueue) or not isinstance(one.call, Call):
                raise InvalidArgumentError(f"enqueue_many takes Enqueue(call, ...) or a call, not {type(item).__name__}")
            kind = (definition_key(one.call, None, one.policies), one.namespace, definition_key(one.call, one.unique, {}))
            key, payload = checked_key(one.key), bulk.payload(one.call)
            at_us, delay_us = _instants(one)
            need = len(payload) + 4 * len(key or "") + _ROW_ROOM
            made = None if kind in frame.rows else _kind(one)
            if need + (made[1] if made else 0) > frame.room or len(frame.payloads) == FRAME_JOBS:
                yield frame, row
                frame, made = _Frame(), _kind(one)
        except WheelschedError as e:
            raise type(e)(f"call {row}: {e.message}", **{**e.detail, "row": row}) from e
        if made is not None:
            frame.rows[kind] = len(frame.kinds)
            frame.kinds.append(made[0])
            frame.room -= made[1]
        frame.which.append(frame.rows[kind])
        frame.at_us.append(at_us)
        frame.delay_us.append(delay_us)
        frame.payloads.append(payload)
        frame.keys.append(key)
        frame.room -= need
        row += 1
    if frame.payloads:
        yield frame, row


def _instants(one: Enqueue) -> tuple[int, int]:
    if one.delay is not None and one.at is not None:
        raise InvalidArgumentError("enqueue: give a delay or an instant (at), not both")
    at_us = NEVER if one.at is None else instant_of_enqueue(one.at)
    return at_us, NEVER if one.delay is None else parse_duration(one.delay, "delay")


def _kind(one: Enqueue) -> tuple[tuple[dict[str, Any], str, list[str] | None], int]:
    """((given, namespace, unique), its room in a frame)."""
    parse_job_name(f"{one.namespace}/x")
    given, _ = given_from_api(one.call, None, one.policies)
    unique = checked_unique(one.unique)
    return (given, one.namespace, unique), len(encode_value([given, one.namespace, unique], "given", lenient=True))


def enqueue_many_flow(calls: Iterable[Enqueue | Call], exts: Exts) -> Generator[tuple[str, Any], Any, EnqueueResults]:
    """enqueue_many as steps for a client to carry out; see `put_many.frames_flow`."""
    return frames_flow((frame.ask(end) for frame, end in _frames(calls, exts)), EnqueueResults(), "runs")


def group_flow(
    next_batch: Callable[[], int], read: Callable[[Any], R], calls: Iterable[Call], then: Any, policies: Mapping[str, Any], *,
    when: Any, key: Any, namespace: str, exts: Exts
) -> Generator[tuple[str, Any], Any, Group[R]]:
    """The steps of `group`, as `put_many.frames_flow` has them. Members behind the first frame's are sent before it, and kept with the
    connection; when that is lost, the server says so, and all is sent again.
    """
    calls = list(calls)
    if not 1 <= len(calls) <= GROUP_MAX:
        raise InvalidArgumentError(f"group: 1 to {GROUP_MAX:,} calls are wanted, not {len(calls):,}")
    for i, call in enumerate(calls):
        if not isinstance(call, Call):
            raise InvalidArgumentError(f"call {i}: a call is wanted, not {type(call).__name__}: policies and the key are the group's")
    if not isinstance(then, Call):
        raise InvalidArgumentError(f"then: a call is wanted, not {type(then).__name__}")
    if when not in ("finished", "succeeded"):
        raise InvalidArgumentError(f"when: {str(when)[:60]!r} is not one of finished, succeeded")
    own = {name: value for name, value in policies.items() if name not in HOOKS}
    frames = [frame for frame, _ in _frames((Enqueue(call, namespace=namespace, **own) for call in calls), exts)]
    given, _ = given_from_api(then, None, {name: value for name, value in policies.items() if name != "expires_after"})
    payload = encode_payload(then.args, then.kwargs, then.headers, exts=exts)
    if frames[-1].room < len(payload) + len(encode_value(given, "then", lenient=True)) + _ROW_ROOM:
        frames.append(_Frame())
    members = frames[-1].members()
    args = {
        **members, "given": [*members["given"], given], "then": {"which": len(members["given"]), "payload": payload}, "when": when,
        "key": checked_key(key), "namespace": namespace, "members": len(calls),
    }
    for left in reversed(range(_TRIES)):
        batch = next_batch()
        try:
            for frame in frames[:-1]:
                handle = yield "start", Ask("group_part", {**frame.members(), "batch": batch}, lambda _: None)
                yield "finish", handle
            handle = yield "start", Ask("group", {**args, "batch": batch}, lambda result: _group(result, read))
            made: Group[R] = yield "finish", handle
        except FailedPreconditionError as e:
            if "staged" not in e.detail or not left:
                raise
        else:
            return made
    raise AssertionError("the last try returns or raises")


def _group(result: Any, read: Callable[[Any], R]) -> Group[R]:
    ids, existing = field_of(result, "id", bytes), field_of(result, "existing", bool)
    return Group(read(field_of(result, "run", dict)), [ids[i : i + 16].hex() for i in range(0, len(ids), 16)], existing)

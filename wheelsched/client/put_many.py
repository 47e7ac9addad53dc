"""put_many: many jobs into frames of columns, fast; and the flow of such frames. No I/O.

What jobs share is made once: the `given` map for each distinct (task, schedule, policies, options), and the payload
of a call used again and again. For a one-time job a name check, one MessagePack and two column entries are left.
"""

from __future__ import annotations

import re
import sys
from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar, overload

import msgpack

from ..model.errors import DeadlineExceededError, InternalError, InvalidArgumentError, UnavailableError, WheelschedError
from ..model.jobs import Job
from ..model.nouns import FRAME_JOBS, NAME_MAX, NAMESPACE_MAX, NEVER, PAYLOAD_MAX, Call, display_name, parse_job_name
from ..model.payloads import NO_EXTS
from ..protocol.definition import given_from_api
from ..protocol.frames import FRAME_MAX, encode_payload, encode_value
from ..schedules.schedule import At
from .requests import PIPELINE_MAX, Ask

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator

    from ..model.payloads import Exts

S = TypeVar("S", bound="Results")

__all__ = ["Bulk", "PutResults", "definition_key", "frames_flow", "little", "put_many_flow"]

_FULL_NAME: Final = re.compile(rf"[A-Za-z0-9._:-]{{1,{NAMESPACE_MAX}}}/[A-Za-z0-9._:/-]{{1,{NAME_MAX}}}", re.ASCII).fullmatch
_SCALARS: Final = frozenset({str, bytes, float, bool, type(None)})
_FRAME_ROOM: Final = FRAME_MAX - 1_024  # the rest of the frame: verb, keys, lengths
_ROW_ROOM: Final = 4 + 8 + 3 + 5  # columns, and the heads of a name and a payload
_CACHE_MAX: Final = 10_000
_AT: Final = "at"


class Results(Protocol):
    """What the answers to the frames are added to."""

    def add(self, *answer: Any) -> None:
        """One frame's."""

    def __len__(self) -> int:
        """Rows so far."""


class _Frame:
    """The columns of one frame."""

    __slots__ = ("given", "names", "param_us", "payloads", "room", "rows", "which")

    def __init__(self) -> None:
        self.given: list[dict[str, Any]] = []
        self.rows: dict[bytes, int] = {}  # packed `given` -> its row
        self.names: list[str] = []
        self.which = array("I")
        self.param_us = array("q")
        self.payloads: list[bytes] = []
        self.room = _FRAME_ROOM

    def row(self, given: dict[str, Any], packed: bytes) -> int:
        """The row of a `given` in this frame."""
        row = self.rows.get(packed)
        if row is None:
            row = self.rows[packed] = len(self.given)
            self.given.append(given)
            self.room -= len(packed)
        return row


class Bulk:
    """Splits jobs into questions of at most 10,000 jobs and 1 MiB, in order."""

    def __init__(self, exts: Exts = NO_EXTS) -> None:
        self._exts = exts
        self._pack = msgpack.Packer(use_bin_type=True, datetime=True).pack
        self._cache: dict[Any, tuple[dict[str, Any], bytes]] = {}
        self._last_call: Call | None = None
        self._last_payload = b""

    def asks(self, jobs: Iterable[Job]) -> Iterator[Ask[tuple[list[str], bytes, list[Any], list[Any]]]]:
        """The questions; each answer is (names, column of result codes).

        InvalidArgumentError and PayloadError name the job and carry its row in detail["row"].
        """
        row = 0
        frame = _Frame()
        rows: dict[Any, int] = {}  # key of a definition -> its row in this frame
        for job in jobs:
            try:
                name, call, key = self._read(job)
                payload = self._last_payload if call is self._last_call else self.payload(call)
                need = len(name) + len(payload) + _ROW_ROOM
                which = rows.get(key, -1)
                if which < 0:
                    given, packed = self._given(key, job)
                    need += len(packed)
                schedule = job.schedule
                param_us = NEVER if isinstance(schedule, list | tuple) else schedule.param_us()
            except WheelschedError as e:
                raise _named(e, job, row) from e
            if need > frame.room or len(frame.names) == FRAME_JOBS:
                yield _ask(frame, row)
                frame, rows = _Frame(), {}
                given, packed = self._given(key, job)
                which = -1
            if which < 0:
                which = rows[key] = frame.row(given, packed)
            frame.names.append(name)
            frame.which.append(which)
            frame.param_us.append(param_us)
            frame.payloads.append(payload)
            frame.room -= len(name) + len(payload) + _ROW_ROOM
            row += 1
        if frame.names:
            yield _ask(frame, row)

    def _read(self, job: Job) -> tuple[str, Call, Any]:
        """(full name, call, what tells its definition from others)."""
        if not isinstance(job, Job):
            raise InvalidArgumentError(f"put_many takes Job(name, call, schedule, ...), not {type(job).__name__}")
        name, call = job.name, job.call
        if not isinstance(name, str) or not _FULL_NAME(name):
            name = parse_job_name(name)
        if not isinstance(call, Call):
            raise InvalidArgumentError(f"call: Call(...) or a task's .call(...) is wanted, not {type(call).__name__}")
        schedule = job.schedule
        if type(schedule) is At:
            if not job.policies and not call.options:
                return name, call, call.task
            schedule = _AT
        elif schedule is None:
            raise InvalidArgumentError("schedule: Cron(...), Every(...), At(...) or Manual() is wanted, not None")
        return name, call, definition_key(call, schedule, job.policies)

    def payload(self, call: Call) -> bytes:
        """The call's payload. PayloadError names what can't be stored."""
        args, kwargs = call.args, call.kwargs
        if call.headers:
            return encode_payload(args, kwargs, call.headers, exts=self._exts)
        for value in (*args, *kwargs.values()) if kwargs else args:
            kind = type(value)
            if kind not in _SCALARS and (kind is not int or not -(2**63) <= value < 2**63):
                return encode_payload(args, kwargs, exts=self._exts)
        try:
            data: bytes = self._pack((args, kwargs))
        except ValueError:  # text that isn't UTF-8
            return encode_payload(args, kwargs, exts=self._exts)
        if len(data) > PAYLOAD_MAX:
            return encode_payload(args, kwargs, exts=self._exts)
        self._last_call, self._last_payload = call, data
        return data

    def _given(self, key: Any, job: Job) -> tuple[dict[str, Any], bytes]:
        """(`given`, its packed form), built once for each key."""
        found = self._cache.get(key)
        if found is None:
            given, _ = given_from_api(job.call, job.schedule, job.policies)
            if len(self._cache) >= _CACHE_MAX:
                self._cache.clear()
            found = self._cache[key] = (given, encode_value(given, "given", lenient=True))
        return found


def definition_key(call: Call, schedule: Any, policies: dict[str, Any]) -> Any:
    """What jobs of the same definition share; types count, since True == 1. What can't be hashed is on its own."""
    parts = [call.task, schedule]
    for values in (call.options, policies):
        parts.append(len(values))
        for name, value in values.items():
            parts += (name, type(value), value)
    for freeze in (tuple, _frozen):
        key = freeze(parts)
        try:
            hash(key)
        except TypeError:
            continue
        return key
    return object()


def _frozen(value: Any) -> Any:
    """Lists (unions, names of calendars) as tuples, which can be hashed."""
    return tuple(map(_frozen, value)) if isinstance(value, list | tuple) else value


def _named(error: WheelschedError, job: Any, row: int) -> WheelschedError:
    """The same error, saying which job it is about."""
    name = str(getattr(job, "name", "?"))[:200]
    detail = {**error.detail, "row": row}
    return type(error)(f"job {name!r} (row {row}): {error.message}", **detail)


def little(column: array[int], size: int) -> bytes:
    """The bytes of a column, little-endian."""
    if column.itemsize != size:
        raise InternalError(f"this platform's array({column.typecode!r}) has {column.itemsize} bytes, not {size}")
    if sys.byteorder == "big":
        column.byteswap()
    return column.tobytes()


def _ask(frame: _Frame, end: int) -> Ask[tuple[list[str], bytes, list[Any], list[Any]]]:
    """The question of one frame, whose last row is before `end`."""
    names = frame.names

    def read(result: Any) -> tuple[list[str], bytes, list[Any], list[Any]]:
        column = result.get("result") if isinstance(result, dict) else None
        if not isinstance(column, bytes):
            raise InternalError("the server's answer to put_many has no results")
        return names, column, list(result.get("said", ())), list(result.get("warnings", ()))

    args = {
        "given": frame.given,
        "names": names,
        "which": little(frame.which, 4),
        "param_us": little(frame.param_us, 8),
        "payload": frame.payloads,
    }
    return Ask("put_many", args, read, end - len(names))


def put_many_flow(jobs: Iterable[Job], exts: Exts = NO_EXTS) -> Generator[tuple[str, Any], Any, PutResults]:
    """put_many as steps; see `frames_flow`."""
    return frames_flow(Bulk(exts).asks(jobs), PutResults(), "jobs")


def frames_flow(asks: Iterator[Ask[Any]], results: S, listed: str) -> Generator[tuple[str, Any], Any, S]:
    """Frames as steps for a client to carry out, a few at a time: ("start", Ask) -> a handle, ("finish",
    handle) -> its answer, ("drop", handle). Errors are thrown in. After one, no further frame is begun, but the answers
    of those under way are taken, so that `detail["accepted"]` is right. `listed`: where an error's detail lists rows.
    """
    window: deque[tuple[int, Any]] = deque()
    failed: WheelschedError | None = None
    try:
        while True:
            ask = None
            if failed is None:
                try:
                    ask = next(asks, None)
                except WheelschedError as e:
                    failed = e
            if ask is None or len(window) == PIPELINE_MAX:
                if not window:
                    break
                row, handle = window.popleft()
                try:
                    results.add(*(yield "finish", handle))
                except (DeadlineExceededError, UnavailableError):
                    raise
                except WheelschedError as e:
                    failed = failed or _with_rows(e, row, listed)
            if ask is not None and failed is None:
                window.append((ask.row, (yield "start", ask)))
    except WheelschedError as e:
        for _, handle in window:
            yield "drop", handle
        failed = e
    if failed is not None:
        raise type(failed)(failed.message, **{**failed.detail, "accepted": len(results)}) from failed
    return results


def _with_rows(error: WheelschedError, first: int, listed: str) -> WheelschedError:
    """The same error, with rows counted over the whole list."""
    rows = error.detail.get(listed)
    if not isinstance(rows, list):
        return error
    return type(error)(error.message, **{**error.detail, listed: [[row + first, message] for row, message in rows]})


_PUT_RESULTS: Final = ("unchanged", "created", "updated")


class PutResults(Sequence[tuple[str, str]]):
    """What put_many did, job by job, in the order given: (name, "created" | "updated" | "unchanged"). `said`: (name, text) of those of
    which something else is to know. `warnings`: (task, text) of the tasks that no worker serves.
    """

    def __init__(self) -> None:
        self.said: list[tuple[str, str]] = []
        self.warnings: list[tuple[str, str]] = []
        self._starts: list[int] = []  # of each chunk, for finding a row
        self._chunks: list[tuple[list[str], bytes]] = []
        self._length = 0

    def add(self, names: list[str], column: bytes, said: Iterable[Any] = (), warnings: Iterable[Any] = ()) -> None:
        """The results of one frame. InternalError when the server's column doesn't fit."""
        if len(column) != len(names) or (column and max(column) >= len(_PUT_RESULTS)):
            raise InternalError(f"the server answered {len(names)} jobs with {len(column)} results or unknown ones")
        self._starts.append(self._length)
        self._chunks.append((names, column))
        self._length += len(names)
        self.said += [(display_name(names[row]), str(text)) for row, text in said]
        self.warnings += [pair for task, text in warnings if (pair := (str(task), str(text))) not in self.warnings]

    def counts(self) -> dict[str, int]:
        """How many of each: {"unchanged": n, "created": n, "updated": n}."""
        return {word: sum(column.count(code) for _, column in self._chunks) for code, word in enumerate(_PUT_RESULTS)}

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> tuple[str, str]: ...
    @overload
    def __getitem__(self, index: slice) -> list[tuple[str, str]]: ...
    def __getitem__(self, index: int | slice) -> tuple[str, str] | list[tuple[str, str]]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(self._length))]
        if not -self._length <= index < self._length:
            raise IndexError(f"row {index}: there are {self._length}")
        index %= self._length
        chunk = bisect_right(self._starts, index) - 1
        names, column = self._chunks[chunk]
        row = index - self._starts[chunk]
        return display_name(names[row]), _PUT_RESULTS[column[row]]

    def __iter__(self) -> Iterator[tuple[str, str]]:
        for names, column in self._chunks:
            for name, code in zip(names, column, strict=True):
                yield display_name(name), _PUT_RESULTS[code]

    def __repr__(self) -> str:
        counts = ", ".join(f"{n} {word}" for word, n in self.counts().items() if n)
        return f"<PutResults of {self._length} jobs: {counts}>"

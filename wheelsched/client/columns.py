"""Listings in columns, for who counts and plots many thousands: numpy arrays in place of objects. Loaded when asked for: it needs numpy."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ..model.columns import decode_blobs, decode_column, encode_blobs, encode_column
from ..model.errors import CorruptJournalError, FailedPreconditionError, InternalError, InvalidArgumentError
from ..model.nouns import NEVER, Disposition, JobState, Reason, RunFlag, RunState, Trigger, display_name
from .verbs import Pages, field_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from enum import IntEnum

    from numpy.typing import NDArray

__all__ = ["NONE_US", "Columns", "PackedPages"]

NONE_US: Final = -(2**63)
PAGE: Final = 16_384


class Columns(dict[str, "NDArray[Any]"]):
    """A listing as a dict of numpy arrays of one length, by name; the rows are in the listing's order.

    Names and states are object arrays in which equal texts are one object. Instants (`…_us`) are int64, microseconds since 1970 UTC;
    where there is none it is NONE_US, so that `.view("datetime64[us]")` has NaT there. Ids are arrays of 32 characters.
    """

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return len(next(iter(self.values())))

    def to_pandas(self) -> Any:
        """A DataFrame; instants are datetimes in UTC, their names end in `_at`. FailedPreconditionError without pandas."""
        try:
            pd: Any = importlib.import_module("pandas")  # no package of ours asks for it
        except ImportError as e:
            raise FailedPreconditionError("to_pandas needs pandas: pip install pandas") from e
        columns: dict[str, Any] = {}
        for name, values in self.items():
            if name.endswith("_us"):
                columns[name.removesuffix("us") + "at"] = pd.to_datetime(values.view("datetime64[us]"), utc=True)
            else:
                columns[name] = values.astype(object) if values.dtype.kind == "U" else values
        return pd.DataFrame(columns)


class PackedPages(Pages[dict[str, Any]]):
    """The same listing, asked for in columns: parts in place of rows."""

    def __init__(self, pages: Pages[Any]) -> None:
        """InvalidArgumentError for a listing that has no columns."""
        if pages.verb not in _READ:
            raise InvalidArgumentError(f"{pages.verb}: this listing has no columns")
        super().__init__(pages.verb, {**pages.args, "packed": True}, pages.left, lambda part: part)
        self.size = PAGE

    def _rows(self, result: Any) -> list[dict[str, Any]]:
        return field_of(result, "parts", list)

    def _count(self, rows: list[dict[str, Any]]) -> int:
        return sum(field_of(part, "n", int) for part in rows)

    def columns(self, parts: Iterable[dict[str, Any]]) -> Columns:
        """All parts as one. InternalError when they are malformed."""
        read, names = _READ[self.verb], _Names()
        try:
            read_parts = [read(part, names) for part in parts] or [read(_empty(), names)]
            return Columns({name: np.concatenate([part[name] for part in read_parts]) for name in read_parts[0]})
        except (CorruptJournalError, KeyError, TypeError, ValueError, IndexError, UnicodeDecodeError) as e:
            raise InternalError(f"the server's columns of {self.verb} are malformed: {type(e).__name__}: {e}") from e


class _Names:
    """Equal texts are one object, over all parts."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}

    def __call__(self, texts: Iterable[str], places: NDArray[Any]) -> NDArray[Any]:
        known = self._known
        table = np.array([known.setdefault(text, text) for text in texts] or [""], object)
        return np.asarray(table[places])


def _words(kind: type[IntEnum]) -> NDArray[Any]:
    """Names by number; None for numbers that have none, 0 among them."""
    table = np.full(256, None, object)
    for one in kind:
        table[int(one)] = one.name.lower()
    return table


_RUN_STATES, _TRIGGERS, _REASONS, _DISPOSITIONS, _JOB_STATES = map(_words, (RunState, Trigger, Reason, Disposition, JobState))
_REASONS[0] = _DISPOSITIONS[0] = None


def _instants(column: NDArray[Any], missing: NDArray[np.bool_]) -> NDArray[np.int64]:
    return np.where(missing, NONE_US, column).astype(np.int64)


def _counts(column: NDArray[Any]) -> NDArray[np.uint32]:
    return column.astype(np.uint32)


def _texts(part: dict[str, Any]) -> list[str]:
    return [display_name(raw.decode()) for raw in decode_blobs(part["names"])]


def _of_runs(part: dict[str, Any], names: _Names) -> dict[str, NDArray[Any]]:
    f = {name: decode_column(column) for name, column in part["columns"].items()}
    n, code, spec = part["n"], f["state"], decode_column(part["spec"])
    skipped = code == RunState.SKIPPED
    waits = np.isin(code, (RunState.SCHEDULED, RunState.RETRY_WAIT)) & (f["due_us"] >= 0) & (f["due_us"] < NEVER)
    state, started = _RUN_STATES[code], _instants(f["started_us"], f["started_us"] == 0)
    if entered := part.get("running"):
        state[entered] = "running"
        started[entered] = [at or before for at, before in zip(part["started"], started[entered].tolist(), strict=True)]
    out = {
        "id": np.frombuffer(part["id"].hex().encode("utf-32-le"), "<U32"), "job": names(_texts(part), decode_column(part["job"])),
        "task": names(part["tasks"], spec), "queue": names(part["queues"], spec), "state": state, "trigger": _TRIGGERS[f["trigger"]],
        "reason": _REASONS[f["reason"]], "disposition": _DISPOSITIONS[f["disposition"]], "scheduled_us": f["nominal_us"],
        "created_us": f["created_us"], "queued_us": _instants(f["queued_us"], f["queued_us"] == 0), "started_us": started,
        "ended_us": _instants(f["ended_us"], f["ended_us"] == 0), "next_us": _instants(f["due_us"], ~waits),
        "until_us": _instants(f["due_us"], ~skipped), "attempt": _counts(f["attempt"]), "worker": _counts(f["worker"]),
        "missed": _counts(f["missed"]), "count": _counts(np.where(skipped, f["count"], 0)), "snoozed": _counts(f["snoozes"]),
        "late": f["flags"] & RunFlag.LATE > 0,
    }
    return _of_one_length(out, n)


def _of_jobs(part: dict[str, Any], names: _Names) -> dict[str, NDArray[Any]]:
    f = {name: decode_column(column) for name, column in part["columns"].items()}
    spec = decode_column(part["spec"])
    out = {
        "name": names(_texts(part), np.arange(part["n"])), "task": names(part["tasks"], spec), "queue": names(part["queues"], spec),
        "state": _JOB_STATES[f["state"]], "next_us": _instants(f["next_us"], f["next_us"] == NEVER),
        "cursor_us": _instants(f["cursor_us"], f["cursor_us"] < 0), "active": _counts(f["active"]), "version": _counts(f["version"]),
        "created_us": f["created_us"], "updated_us": f["updated_us"],
    }
    return _of_one_length(out, part["n"])


def _of_one_length(out: dict[str, NDArray[Any]], n: int) -> dict[str, NDArray[Any]]:
    wrong = [name for name, column in out.items() if len(column) != n]
    if wrong:
        raise ValueError(f"{', '.join(wrong)}: not {n} rows")
    return out


def _empty() -> dict[str, Any]:
    """A part without rows, of either listing: a listing of nothing has its columns all the same."""
    none = encode_column(np.empty(0, np.uint32))
    codes, instants = encode_column(np.empty(0, np.uint8)), encode_column(np.empty(0, np.int64))
    columns = dict.fromkeys(("state", "trigger", "reason", "disposition", "flags"), codes)
    what = ("nominal", "created", "due", "queued", "started", "ended", "next", "cursor", "updated")
    columns |= dict.fromkeys((f"{name}_us" for name in what), instants)
    columns |= dict.fromkeys(("worker", "missed", "count", "attempt", "snoozes", "active", "version"), none)
    return {"n": 0, "columns": columns, "job": none, "spec": none, "names": encode_blobs([]), "tasks": [], "queues": [], "id": b""}


_READ: Final[dict[str, Callable[[dict[str, Any], _Names], dict[str, NDArray[Any]]]]] = {"runs": _of_runs, "jobs": _of_jobs}

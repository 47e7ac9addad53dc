"""The verbs about times that were or will be, as questions: why, skip, move, backfill, history, calendars, hold, tzdiff. No I/O.

Checks what a user passed, builds the request's arguments, reads the answer. Like `verbs`, shared by the clients.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from ..model.errors import InternalError, InvalidArgumentError, NotFoundError
from ..model.nouns import INSTANT_MAX_US, MS, NOTE_MAX, SERVER_UID, display_name, parse_instant, parse_job_name, to_datetime
from ..model.policies import Overlap
from ..protocol.checks import check_name
from .requests import Ask
from .values import RunInfo
from .verbs import as_map, checked_text, checked_word, field_of
from .views_time import Backfill, Calendar, Hold, JobChange, Reloaded, TzDiff, TzMove, Why

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["TimeVerbs"]

R = TypeVar("R", bound=RunInfo)

HISTORY_MAX: Final = 10_000  # changes one answer has
_DAY: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_CALENDAR: Final = ("mode", "tz", "dates", "yearly", "weekdays", "windows", "daily")
_ONLY: Final = ("missing", "failed")
_BACKFILL_OVERLAPS: Final = ("allow", "buffer_all")


def _nominal(value: Any, what: str) -> int:
    """Nominal times are whole milliseconds, rounded up."""
    if isinstance(value, str) and _DAY.fullmatch(value):
        raise InvalidArgumentError(
            f"{what}: {value} is a day, and an instant is wanted, such as next(name, 5) gives; `wheelsched job why` and `skip` take days"
        )
    return min(-(-parse_instant(value, what) // MS) * MS, INSTANT_MAX_US)


def _flag(value: Any, what: str) -> bool:
    if not isinstance(value, bool):
        raise InvalidArgumentError(f"{what}: True or False is wanted, not {str(value)[:60]}")
    return value


def _why(result: Any) -> Why:
    field_of(result, "disposition", str)
    field_of(result, "text", str)
    return Why.from_wire(as_map(result))


def _rows(result: Any) -> list[dict[str, Any]]:
    if not isinstance(result, list):
        raise InternalError(f"the server's answer is {type(result).__name__}, not a list")
    return [as_map(row) for row in result]


def _calendar(raw: Mapping[str, Any]) -> Calendar:
    return Calendar(field_of(raw, "name", str), field_of(raw, "calendar", dict), field_of(raw, "jobs", int))


def _hold(result: Any) -> Hold:
    return Hold(field_of(result, "held", bool), to_datetime(result.get("since_us")), str(result.get("note") or ""), result.get("missed"))


def _tzdiff(result: Any) -> TzDiff:
    columns = field_of(result, "columns", dict)
    rows = zip(columns.get("job", ()), columns.get("old_us", ()), columns.get("new_us", ()), strict=True)
    moved = [TzMove(display_name(job), to_datetime(old), to_datetime(new)) for job, old, new in rows]
    return TzDiff(result.get("old"), result.get("new"), to_datetime(result.get("at_us")), field_of(result, "total", int), moved)


def _overlap(value: Any) -> dict[str, Any] | None:
    if value is None:
        return None
    if not isinstance(value, str | Overlap):
        raise InvalidArgumentError(f"overlap: a word or Overlap(...) is wanted, not {type(value).__name__}")
    wire = (Overlap(value) if isinstance(value, str) else value).to_wire()  # type: ignore[arg-type]  # the word is checked with the rest
    if wire["policy"] not in _BACKFILL_OVERLAPS:
        raise InvalidArgumentError(
            f"overlap: a backfill goes one after another (buffer_all) or side by side (allow, max=N bounds it), not by {wire['policy']}"
        )
    return wire


class TimeVerbs(Generic[R]):
    """Each verb as an Ask. Errors: InvalidArgumentError for what the caller passed."""

    def __init__(self, read_run: Callable[[Any], R]) -> None:
        """`read_run`: makes the client's own kind of run from the server's map."""
        self._read_run = read_run

    def why(self, name: Any, scheduled_at: Any) -> Ask[Why]:
        """What became of an occurrence."""
        return Ask("why", {"name": parse_job_name(name), "at_us": _nominal(scheduled_at, "scheduled_at")}, _why)

    def skip(self, name: Any, scheduled_at: Any, undo: Any) -> Ask[Why]:
        """Leave a coming occurrence out, or take that back."""
        args = {"name": parse_job_name(name), "at_us": _nominal(scheduled_at, "scheduled_at"), "undo": _flag(undo, "undo")}
        return Ask("skip", args, _why)

    def move(self, name: Any, scheduled_at: Any, to: Any) -> Ask[R]:
        """Run a coming occurrence at another instant."""
        args = {"name": parse_job_name(name), "at_us": _nominal(scheduled_at, "scheduled_at"), "to_us": _nominal(to, "to")}
        return Ask("move", args, self._read_run)

    def backfill(self, name: Any, since: Any, until: Any, *, dry_run: Any, only: Any, overlap: Any, backwards: Any) -> Ask[Backfill]:
        """Runs for the occurrences of a range."""
        since_us, until_us = parse_instant(since, "since"), parse_instant(until, "until")
        if until_us <= since_us:
            raise InvalidArgumentError("backfill: until must be later than since")
        if only is None:
            raise InvalidArgumentError(f"only: one of {', '.join(_ONLY)} is wanted, not None")
        args = {
            "name": parse_job_name(name), "since_us": since_us, "until_us": until_us, "dry_run": _flag(dry_run, "dry_run"),
            "only": checked_word(only, "only", _ONLY), "overlap": _overlap(overlap), "backwards": _flag(backwards, "backwards"),
        }

        def read(result: Any) -> Backfill:
            for field in ("count", "existing", "total"):
                field_of(result, field, int)
            return Backfill.from_wire(as_map(result), dry_run=dry_run)

        return Ask("backfill", args, read)

    def history(self, name: Any, limit: Any, user_of: Callable[[int], str | None]) -> Ask[list[JobChange]]:
        """Who changed a job, when, from what to what. `user_of`: the name of a uid."""
        if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= HISTORY_MAX:
            raise InvalidArgumentError(f"limit: a whole number from 1 to {HISTORY_MAX} is wanted, not {str(limit)[:60]}")

        def read(raw: dict[str, Any]) -> JobChange:
            uid = raw.get("uid") if raw.get("uid") != SERVER_UID else None
            user = user_of(uid) if isinstance(uid, int) and uid >= 0 else None
            at, what, note = to_datetime(raw.get("at_us")), field_of(raw, "what", str), str(raw.get("note") or "")
            return JobChange(at, uid, user, what, raw.get("version"), raw.get("old"), raw.get("new"), note)

        return Ask("history", {"name": parse_job_name(name), "limit": limit}, lambda result: [read(raw) for raw in _rows(result)])

    def calendar_put(self, name: Any, definition: Mapping[str, Any]) -> Ask[Calendar]:
        """Create or change a calendar."""
        from ..schedules.calendars import calendar_from_api  # noqa: PLC0415 - with what evaluates it, for those alone who make one

        for key in definition:
            if key not in _CALENDAR:
                near = difflib.get_close_matches(key, _CALENDAR, 1)
                hint = f"did you mean {near[0]!r}?" if near else f"{', '.join(_CALENDAR)} are known"
                raise InvalidArgumentError(f"calendar: {key[:60]!r} is unknown: {hint}")
        args = {"name": check_name(name, "calendar"), "calendar": calendar_from_api(**definition)}
        return Ask("calendar_put", args, lambda result: _calendar(as_map(result)))

    def calendar_wires(self, calendars: Any) -> dict[str, Any]:
        """The wire forms of many calendars, {name: definition}, for `apply`."""
        if calendars is None:
            return {}
        if not isinstance(calendars, Mapping) or not all(isinstance(definition, Mapping) for definition in calendars.values()):
            raise InvalidArgumentError("calendars: a map of names to maps of what `calendar` takes is wanted")
        asks = [self.calendar_put(name, definition) for name, definition in calendars.items()]
        return {ask.args["name"]: ask.args["calendar"] for ask in asks}

    def calendar_get(self, name: Any) -> Ask[Calendar]:
        """One calendar."""
        wanted = check_name(name, "calendar")

        def read(result: Any) -> Calendar:
            for found in map(_calendar, _rows(result)):
                if found.name == wanted:
                    return found
            raise NotFoundError(f"no calendar {wanted}")

        return Ask("calendars", {}, read)

    def calendars(self) -> Ask[list[Calendar]]:
        """All calendars."""
        return Ask("calendars", {}, lambda result: [_calendar(raw) for raw in _rows(result)])

    def calendar_delete(self, name: Any) -> Ask[str]:
        """End a calendar."""
        return Ask("calendar_delete", {"name": check_name(name, "calendar")}, lambda result: field_of(result, "name", str))

    def hold(self, note: Any) -> Ask[Hold]:
        """Stop all triggering."""
        return Ask("hold", {"note": checked_text(note, "note", NOTE_MAX)}, _hold)

    def release(self) -> Ask[Hold]:
        """Go on triggering."""
        return Ask("release", {}, _hold)

    def reload(self) -> Ask[Reloaded]:
        """New task code."""
        return Ask("reload", {}, lambda result: Reloaded(
            field_of(result, "workers", int), field_of(result, "finishing", int), str(result.get("folder") or ""),
            str(result.get("settings") or "")))

    def tzdiff(self) -> Ask[TzDiff]:
        """What the last change of the zone data moved."""
        return Ask("tzdiff", {}, _tzdiff)

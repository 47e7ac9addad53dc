"""When a job runs: Cron, Every, At, Manual, for users and on the wire. The server's table of them is in table.py.

A schedule is checked in full when it is built. `next` and `prev` work offline, on the zone data of the tzdata package.
On the wire a schedule is plain data without what differs from job to job (the instant of At, the anchor of Every), so
that equal schedules are compiled once: see `to_wire` and `param_us`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from ..model.errors import InvalidArgumentError, ScheduleError
from ..model.nouns import DURATION_MAX_US, EVERY_MIN_US, INSTANT_MAX_US, MS, NEVER, parse_duration, parse_instant
from .expressions import can_match, check_text, day_table, parse, year_table
from .zonedata import load_zone
from .zones import Zones

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Literal

    from ..model.typed import Duration, Instant
    from ._cron import CronTable
    from .expressions import Masks

__all__ = ["At", "Cron", "Every", "Manual", "Schedule", "as_written", "check_union", "schedule_from_wire"]

GAPS: Final = ("run_after", "shift", "skip")
DST_OVERLAPS: Final = ("first", "second", "both")
UNION_MAX: Final = 100  # schedules in one union
ASK_MAX: Final = 1_000_000  # instants one call gives

_GAP_CODES: Final = {"skip": 0, "run_after": 1, "shift": 2}
_GAP_RULE: Final = 3  # run_after, but nothing is made up for a clock correction of 3 h and more
_OVERLAP_CODES: Final = {"first": 0, "second": 1, "both": 2}
_SHORTEST: Final = f"{EVERY_MIN_US // MS}ms"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
BEGIN_US: Final = -(2**63)
_MANUAL_ADVICE: Final = "it never fires; for a job that runs only when triggered use Manual()"
_NO_HASH_ID: Final = "H needs a hash_id here; the server takes the job's full name"


def _moment_us(value: Any, what: str) -> int:
    """Microseconds of an aware datetime of any year, or of RFC 3339 text."""
    if isinstance(value, datetime) and value.utcoffset() is not None:
        delta = value - _EPOCH
        return (delta.days * 86_400 + delta.seconds) * 1_000_000 + delta.microseconds
    try:
        return parse_instant(value, what)
    except InvalidArgumentError as e:
        raise ScheduleError(e.message) from None


def _whole_ms(us: int) -> int:
    """Rounded up: nominal times are whole milliseconds."""
    return -(-us // MS) * MS


def _word(value: Any, what: str, allowed: tuple[str, ...]) -> None:
    if value is not None and value not in allowed:
        raise ScheduleError(f"{what}: {str(value)[:60]!r} is not one of {', '.join(allowed)}, None (the default rule)")


def _walk(step: Callable[[int], int], from_us: int, n: int) -> list[int]:
    """Up to n instants, each the step from the one before."""
    if isinstance(n, bool) or not isinstance(n, int) or not 0 <= n <= ASK_MAX:
        raise ScheduleError(f"n: a whole number from 0 to {ASK_MAX} is wanted, not {str(n)[:60]}")
    found: list[int] = []
    while len(found) < n:
        from_us = step(from_us)
        if from_us == NEVER:
            break
        found.append(from_us)
    return found


def _utc(instants: list[int]) -> list[datetime]:
    return [_EPOCH + timedelta(microseconds=us) for us in instants]


@lru_cache(maxsize=1)
def _offline_zones() -> Zones:
    return Zones(load_zone)


@dataclass(frozen=True, slots=True)
class Cron:
    """A cron expression on the wall clock of a time zone.

    `dst_gap` (a skipped wall time): `run_after` the first instant after the gap, `shift` by the gap, or `skip`.
    `dst_overlap` (a repeated one): `first`, `second` or `both`. None is the rule of Vixie cron: a job whose minute or
    hour begins with `*` runs at every real instant that matches; any other runs once, after a gap and at the first of
    two, and a jump of 3 h or more counts as a corrected clock, for which nothing is made up.
    `day_or=False` joins the two day fields by AND. `seconds`: where the sixth field stands, `first` or `last`.
    `hash_id` stands for the job's name in H offline; the server takes the job's full name.

    ScheduleError when it is built: malformed, an unknown zone, or it never fires.
    """

    expr: str
    tz: str = "UTC"
    dst_gap: Literal["run_after", "shift", "skip"] | None = None
    dst_overlap: Literal["first", "second", "both"] | None = None
    day_or: bool = True
    seconds: Literal["first", "last"] = "first"
    hash_id: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.tz, str) and isinstance(getattr(self.tz, "key", None), str):  # a ZoneInfo, by its name
            object.__setattr__(self, "tz", self.tz.key)
        if self.hash_id is not None and not isinstance(self.hash_id, str):
            raise ScheduleError(f"hash_id: text is wanted, not {type(self.hash_id).__name__}")
        masks = masks_of(self.expr, self.seconds, self.day_or, self.hash_id, self.dst_gap, self.dst_overlap)
        _offline_zones().get(self.tz)
        # Dates decide whether it ever fires, unless years are given: then all times may lie in a gap; the table knows.
        if not can_match(masks):
            raise never_fires(self.expr, self.tz)
        if masks.years and not (masks.hashed and self.hash_id is None):
            table, index = _offline_table(self)
            if table.next_one(index, BEGIN_US) == NEVER:
                raise never_fires(self.expr, self.tz)

    def next(self, after: Any, n: int = 1) -> list[datetime]:
        """Up to n datetimes in the schedule's zone, strictly after `after`; shorter when there are no more.

        ScheduleError for a naive `after`, and for H without a hash_id.
        """
        table, index = self._compiled()
        return self._datetimes(_walk(lambda us: table.next_one(index, us), _moment_us(after, "after"), n))

    def prev(self, before: Any, n: int = 1) -> list[datetime]:
        """Up to n datetimes strictly before `before`, newest first. Errors as `next`."""
        table, index = self._compiled()
        return self._datetimes(_walk(lambda us: table.prev_one(index, us), _moment_us(before, "before"), n))

    def to_wire(self) -> dict[str, Any]:
        """Plain data; blanks in the expression are made single."""
        return {
            "kind": "cron", "expr": " ".join(self.expr.split()), "tz": self.tz, "dst_gap": self.dst_gap,
            "dst_overlap": self.dst_overlap, "day_or": self.day_or, "seconds": self.seconds,
        }

    def param_us(self) -> int:
        """NEVER: nothing of a cron schedule is per job."""
        return NEVER

    def _compiled(self) -> tuple[CronTable, int]:
        if self.hash_id is None and parse(self.expr, self.seconds, self.day_or).hashed:
            raise ScheduleError(f"cron expression {self.expr[:60]!r}: {_NO_HASH_ID}")
        return _offline_table(self)

    def _datetimes(self, instants: list[int]) -> list[datetime]:
        zone = _offline_zones().tzinfo(self.tz)
        return [(_EPOCH + timedelta(microseconds=us)).astimezone(zone) for us in instants]


def masks_of(
    expr: Any, seconds: Any, day_or: Any, hash_id: str | None, dst_gap: Any, dst_overlap: Any
) -> Masks:
    """The masks of an expression whose options are right as well; ScheduleError otherwise."""
    _word(dst_gap, "dst_gap", GAPS)
    _word(dst_overlap, "dst_overlap", DST_OVERLAPS)
    if not isinstance(day_or, bool):
        raise ScheduleError(f"day_or: True or False is wanted, not {str(day_or)[:60]}")
    check_text(expr, seconds)
    return parse(expr, seconds, day_or, hash_id)


def never_fires(expr: str, tz: str) -> ScheduleError:
    return ScheduleError(f"cron expression {expr[:60]!r} (tz {tz}): {_MANUAL_ADVICE}")


@lru_cache(maxsize=1024)
def _offline_table(cron: Cron) -> tuple[CronTable, int]:
    """A table with this one schedule."""
    from ._cron import CronTable  # noqa: PLC0415 - a user's program loads it with the first question

    table = CronTable()
    zone = _offline_zones().get(cron.tz)
    number = table.add_zone(zone.at_s, zone.offset_s, zone.cycle)
    masks = parse(cron.expr, cron.seconds, cron.day_or, cron.hash_id)
    return table, table.add(*columns(masks), number, *dst_codes(masks, cron.dst_gap, cron.dst_overlap))


def dst_codes(masks: Masks, dst_gap: str | None, dst_overlap: str | None) -> tuple[int, int]:
    """The numbers that `_cron` takes; None becomes the default rule."""
    gap = (0 if masks.wild else _GAP_RULE) if dst_gap is None else _GAP_CODES[dst_gap]
    return gap, _OVERLAP_CODES[("both" if masks.wild else "first") if dst_overlap is None else dst_overlap]


def columns(masks: Masks) -> tuple[int, int, int, bytes, int, bytes | None]:
    """The first arguments of `CronTable.add`."""
    return masks.seconds, masks.minutes, masks.hours, day_table(masks.days), masks.months, year_table(masks.years)


@dataclass(frozen=True, slots=True)
class Every:
    """A fixed grid: anchor + k * every, k = 1, 2, ... The shortest period is 100 ms; periods are whole milliseconds.

    Without an anchor the grid begins when the job is first put; offline it begins at the instant asked about. With
    `after_completion` the period is counted from the end of a run, so only one time is ever known ahead.
    ScheduleError when it is built: no duration, too short, an anchor that is naive.
    """

    every: Duration
    anchor: Instant | None = None
    after_completion: bool = False
    every_us: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        try:
            every_us = parse_duration(self.every, "every")
        except InvalidArgumentError as e:
            raise ScheduleError(e.message) from None
        if every_us < EVERY_MIN_US or every_us % MS:
            raise ScheduleError(f"every: {self.every!r} is given; allowed: whole milliseconds from {_SHORTEST} on")
        if not isinstance(self.after_completion, bool):
            raise ScheduleError(f"after_completion: True or False is wanted, not {str(self.after_completion)[:60]}")
        object.__setattr__(self, "every_us", every_us)
        object.__setattr__(self, "every", timedelta(microseconds=every_us))
        if self.anchor is not None:
            object.__setattr__(self, "anchor", _rounded(self.anchor, "anchor"))

    def next(self, after: Any, n: int = 1) -> list[datetime]:
        """Up to n datetimes in UTC strictly after; at most one with `after_completion`. ScheduleError if naive."""
        after_us = _moment_us(after, "after")
        anchor_us = after_us if self.anchor is None else self.param_us()
        found = _walk(lambda us: _every_next(self.every_us, anchor_us, us), after_us, n)
        if self.after_completion:
            found = [us for us in found if us == anchor_us + self.every_us]
        return _utc(found)

    def prev(self, before: Any, n: int = 1) -> list[datetime]:
        """Up to n datetimes strictly before `before`, newest first; none without an anchor. ScheduleError if naive."""
        before_us = _moment_us(before, "before")
        if self.anchor is None or self.after_completion:
            return []
        anchor_us = self.param_us()
        return _utc(_walk(lambda us: _every_prev(self.every_us, anchor_us, us), before_us, n))

    def to_wire(self) -> dict[str, Any]:
        """Plain data, without the anchor."""
        wire: dict[str, Any] = {"kind": "every", "every_us": self.every_us}
        if self.after_completion:
            wire["after_completion"] = True
        return wire

    def param_us(self) -> int:
        """The anchor in microseconds; NEVER when unset."""
        return NEVER if self.anchor is None else _moment_us(self.anchor, "anchor")


def _every_next(every_us: int, anchor_us: int, after_us: int) -> int:
    """The first of anchor + k * every, k >= 1, after `after`; NEVER beyond the year 9999."""
    if anchor_us == NEVER:
        return NEVER
    us = anchor_us + max((after_us - anchor_us) // every_us + 1, 1) * every_us
    return us if us <= INSTANT_MAX_US else NEVER


def _every_prev(every_us: int, anchor_us: int, before_us: int) -> int:
    """The last of anchor + k * every, k >= 1, before `before`; NEVER if there is none."""
    if anchor_us == NEVER:
        return NEVER
    k = (min(before_us, INSTANT_MAX_US + 1) - 1 - anchor_us) // every_us
    return anchor_us + k * every_us if k >= 1 else NEVER


def _rounded(value: Any, what: str) -> datetime:
    """An aware datetime or RFC 3339 text, years 1970 to 9999, rounded up to 1 ms, in UTC. ScheduleError otherwise."""
    try:
        return _EPOCH + timedelta(microseconds=_whole_ms(parse_instant(value, what)))
    except InvalidArgumentError as e:
        raise ScheduleError(e.message) from None


@dataclass(frozen=True, slots=True)
class At:
    """One instant, rounded up to 1 ms; it may lie in the past. ScheduleError when it is built from a naive datetime."""

    instant: Any

    def __post_init__(self) -> None:
        object.__setattr__(self, "instant", _rounded(self.instant, "at"))

    def next(self, after: Any, n: int = 1) -> list[datetime]:
        """The instant, in UTC, if it is after `after`. ScheduleError for a naive `after`."""
        at_us = self.param_us()
        return _utc(_walk(lambda us: at_us if at_us > us else NEVER, _moment_us(after, "after"), n))

    def prev(self, before: Any, n: int = 1) -> list[datetime]:
        """The instant, in UTC, if it is before `before`. ScheduleError for a naive `before`."""
        at_us = self.param_us()
        return _utc(_walk(lambda us: at_us if at_us < us else NEVER, _moment_us(before, "before"), n))

    def to_wire(self) -> dict[str, Any]:
        """Plain data, without the instant."""
        return {"kind": "at"}

    def param_us(self) -> int:
        """The instant in microseconds."""
        return _moment_us(self.instant, "at")


@dataclass(frozen=True, slots=True)
class Manual:
    """Never by itself: the job runs when it is triggered."""

    def next(self, after: Any, n: int = 1) -> list[datetime]:  # noqa: ARG002 - the same face as the others
        """Nothing. ScheduleError for a naive `after`."""
        _moment_us(after, "after")
        return []

    def prev(self, before: Any, n: int = 1) -> list[datetime]:  # noqa: ARG002 - the same face as the others
        """Nothing. ScheduleError for a naive `before`."""
        _moment_us(before, "before")
        return []

    def to_wire(self) -> dict[str, Any]:
        """Plain data."""
        return {"kind": "manual"}

    def param_us(self) -> int:
        """NEVER."""
        return NEVER


Schedule = Cron | Every | At | Manual

_WIRE_KEYS: Final[dict[str, dict[str, tuple[type, ...]]]] = {
    "cron": {
        "kind": (str,), "expr": (str,), "tz": (str,), "dst_gap": (str, type(None)), "dst_overlap": (str, type(None)),
        "day_or": (bool,), "seconds": (str,),
    },
    "every": {"kind": (str,), "every_us": (int,), "after_completion": (bool,)},
    "at": {"kind": (str,)},
    "manual": {"kind": (str,)},
}


def check_wire(wire: Any) -> str:
    """The kind of a wire form whose keys and types are right; ScheduleError names the key that isn't."""
    kind = wire.get("kind") if isinstance(wire, dict) else None
    keys = _WIRE_KEYS.get(kind) if isinstance(kind, str) else None
    if keys is None:
        raise ScheduleError(f"schedule: kind {str(kind)[:60]!r} is not one of {', '.join(_WIRE_KEYS)}")
    for key, value in wire.items():
        wanted = keys.get(key) if isinstance(key, str) else None
        if wanted is None:
            raise ScheduleError(f"schedule: {str(key)[:60]!r} is no part of kind {kind}; {', '.join(keys)} are")
        if type(value) not in wanted:
            raise ScheduleError(f"schedule: {key} of kind {kind} can't be {str(value)[:60]!r}")
    missing = [key for key in keys if key not in wire and key != "after_completion"]
    if missing:
        raise ScheduleError(f"schedule: kind {kind} lacks {', '.join(missing)}")
    if kind == "every" and not EVERY_MIN_US <= wire["every_us"] <= DURATION_MAX_US:
        raise ScheduleError(f"every: {wire['every_us']} µs is out of range; allowed: {_SHORTEST} to 100 years")
    return str(kind)


def schedule_from_wire(wire: dict[str, Any], param_us: int = NEVER) -> Schedule:
    """The schedule of `to_wire` and `param_us`, checked again in full. ScheduleError says what is wrong."""
    kind = check_wire(wire)
    if type(param_us) is not int or not (0 <= param_us <= INSTANT_MAX_US or param_us == NEVER):
        raise ScheduleError(f"schedule: instant {str(param_us)[:60]} µs is out of range; allowed: years 1970 to 9999")
    instant = None if param_us == NEVER else _EPOCH + timedelta(microseconds=param_us)
    if kind == "cron":
        return Cron(wire["expr"], wire["tz"], wire["dst_gap"], wire["dst_overlap"], wire["day_or"], wire["seconds"])
    if kind == "every":
        return Every(timedelta(microseconds=wire["every_us"]), instant, wire.get("after_completion", False))
    if kind == "at":
        if instant is None:
            raise ScheduleError("at: the instant is missing")
        return At(instant)
    return Manual()


def check_union(wire: Any) -> list[tuple[dict[str, Any], int]]:
    """The members of a union's wire form, {"kind": "union", "of": [{"schedule", "param_us"}]}, and their own instants.

    Checked in full, in canonical form. 1 to 100 members; one without an anchor of its own (NEVER) takes the job's.
    ScheduleError names the member; none may be a union, Manual or after_completion.
    """
    parts = wire.get("of") if isinstance(wire, dict) and wire.keys() == {"kind", "of"} else None
    if parts is None or wire["kind"] != "union" or not isinstance(parts, list | tuple) or not 1 <= len(parts) <= UNION_MAX:
        raise ScheduleError(f"schedule: a union is {{kind, of}} with a list of 1 to {UNION_MAX} schedules")
    members = []
    for number, part in enumerate(parts, 1):
        if not isinstance(part, dict) or part.keys() != {"schedule", "param_us"}:
            raise ScheduleError(f"schedule: member {number} of a union is {{schedule, param_us}}")
        member, param_us = part["schedule"], part["param_us"]
        kind = member.get("kind") if isinstance(member, dict) else None
        if kind in ("manual", "union") or (kind == "every" and member.get("after_completion")):
            what = "after_completion" if kind == "every" else kind
            raise ScheduleError(f"schedule: member {number} of a union: {what} can't be part of one")
        try:
            made = schedule_from_wire(member, param_us)
        except ScheduleError as e:
            raise ScheduleError(f"schedule: member {number} of a union: {e.message}") from None
        if kind == "cron" and param_us != NEVER:
            raise ScheduleError(f"schedule: member {number} of a union: cron has no instant of its own")
        members.append((made.to_wire(), made.param_us()))
    return members


def as_written(wire: dict[str, Any], param_us: int = NEVER) -> Schedule | list[Schedule]:
    """What a user would write for a wire form: one schedule, or the list of a union. ScheduleError as the checks."""
    if not isinstance(wire, dict) or wire.get("kind") != "union":
        return schedule_from_wire(wire, param_us)
    anchored = ((member, param_us if own == NEVER and member["kind"] == "every" else own) for member, own in check_union(wire))
    return [schedule_from_wire(member, own) for member, own in anchored]

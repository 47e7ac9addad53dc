"""What people get wrong about cron expressions: remarks on one, on its night of a clock change, and on many together. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

import numpy as np

from .expressions import MINUTE, MONTHDAY, WEEKDAY, YEAR, parse, split
from .schedule import Cron
from .zonedata import load_zone
from .zones import Zones

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from .expressions import Masks

__all__ = ["Change", "Pile", "changes", "dst_notes", "notes", "pile_up"]

_MINUTES: Final = 60
_DAY_FIELD_ENDS: Final = {29: "February mostly has no day 29", 30: "February has no day 30", 31: "five months have no day 31"}
_ALL_HOURS: Final = (1 << 24) - 1
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_CORRECTION_S: Final = 3 * 3_600  # a jump of so much is a corrected clock, for which the default rule makes nothing up
_NAMED: Final = 3  # skipped or repeated times that a remark names
_WEEK_MINUTES: Final = 7 * 24 * 60
_PILE_MIN: Final = 5  # fewer jobs in a minute are no pile-up
_PILES: Final = 3


@dataclass(frozen=True, slots=True)
class Change:
    """A change of a zone's clock: the instant, and the wall clock right before and right after."""

    at: datetime
    before: datetime  # naive
    after: datetime  # naive

    @property
    def gap(self) -> bool:
        """Are wall times skipped, and not repeated?"""
        return self.after > self.before


@dataclass(frozen=True, slots=True)
class Pile:
    """A minute in which many jobs start: its instant, and which of the jobs, as indices."""

    at: datetime
    jobs: tuple[int, ...]


def notes(schedule: Cron) -> list[str]:
    """What people get wrong about an expression like this one."""
    texts = dict(split(schedule.expr, schedule.seconds))
    masks = parse(schedule.expr, schedule.seconds, schedule.day_or, schedule.hash_id)
    day, week = texts[MONTHDAY], texts[WEEKDAY]
    out = []
    if day not in ("*", "?") and week not in ("*", "?"):
        out.append(
            "both day fields are given: a day must match both" if masks.days.both
            else "both day fields are given: a day that matches either is enough; day_or=False (--day-and) asks for both"
        )
    for field, text in texts.items():
        out += _uneven(field.name, text, field.low, field.high) if field not in (MONTHDAY, WEEKDAY, YEAR) else []
    out += _uneven_days(day)
    for last in (31, 30, 29):
        if masks.days.dom == 1 << (last - 1) and week in ("*", "?"):
            out.append(f"{_DAY_FIELD_ENDS[last]}; L is the last day of every month")
    if texts[MINUTE] == "*" and len(texts) == 5 and masks.hours != _ALL_HOURS:
        out.append("the minute is *: it fires every minute of each matching hour; 0 fires once an hour")
    return out


def _uneven(name: str, text: str, low: int, high: int) -> list[str]:
    """Steps that don't divide their field: the last gap is a short one. A start beyond the first step is a range of its own."""
    values = high - low + 1
    base, slash, digits = text.partition("/")
    step = int(digits) if slash and digits.isdigit() else 0
    first = low if base == "*" else int(base) if base.isdigit() else high
    if step < 2 or first - low >= step:
        return []
    if step > high - first:
        return [f"the step {step} is past the end of the {name} field: only {first} is left"]
    short = values - (high - first) // step * step
    if short == step:
        return []
    return [f"{values} is no multiple of {step}: the {name} count starts anew, so the last gap is {short} and not {step}"]


def _uneven_days(text: str) -> list[str]:
    """A step over days of the month, which differ in number."""
    base, slash, step = text.partition("/")
    if not slash or not step.isdigit() or int(step) < 2 or not (base == "*" or base.isdigit()):
        return []
    return [f"days are counted anew each month: */{step} is not every {step} days; a fixed interval is every={int(step)}d"]


def changes(tz: str, start: datetime, end: datetime) -> list[Change]:
    """The changes of a zone's clock after `start` and up to `end`. ScheduleError for an unknown zone."""
    zone = Zones(load_zone).get(tz)
    first, last = (int((moment - _EPOCH).total_seconds()) for moment in (start, end))
    at = np.frombuffer(zone.at_s, np.int64) if len(zone.at_s) else np.empty(0, np.int64)
    out = []
    for i in np.flatnonzero((at > first) & (at <= last)).tolist():
        moment = _EPOCH + timedelta(seconds=int(at[i]))
        naive = moment.replace(tzinfo=None)
        out.append(Change(moment, naive + timedelta(seconds=zone.offset_s[i]), naive + timedelta(seconds=zone.offset_s[i + 1])))
    return out


def dst_notes(schedule: Cron, start: datetime, end: datetime) -> list[str]:
    """Which of its wall times are skipped or repeated by a change of the clock between two instants, and what becomes of them.

    An expression that follows real time in every hour has none: nothing about it is surprising.
    """
    masks = parse(schedule.expr, schedule.seconds, schedule.day_or, schedule.hash_id)
    if (masks.hashed and schedule.hash_id is None) or (masks.wild and masks.hours == _ALL_HOURS and not _chosen(schedule)):
        return []
    wall = Cron(schedule.expr, "UTC", day_or=schedule.day_or, seconds=schedule.seconds, hash_id=schedule.hash_id)
    out = []
    for change in changes(schedule.tz, start, end):
        low, high = sorted((change.before, change.after))
        hit, n = _within(wall, low, high)
        if hit:
            what = _gap_fate(schedule, masks, change) if change.gap else _fold_fate(schedule, masks)
            times = ", ".join(f"{moment:%H:%M:%S}" if moment.second else f"{moment:%H:%M}" for moment in hit)
            more = f" and {n - len(hit)} more" if n > len(hit) else ""
            kind = "does not exist" if change.gap else "comes twice"
            out.append(f"{low:%Y-%m-%d} {times}{more} {kind} in {schedule.tz}: {what}")
    return out


def _chosen(schedule: Cron) -> bool:
    return schedule.dst_gap is not None or schedule.dst_overlap is not None


def _within(wall: Cron, low: datetime, high: datetime) -> tuple[list[datetime], int]:
    """The first of the wall times in [low, high), and how many there are (at most 100 are counted)."""
    found = wall.next(low.replace(tzinfo=UTC) - timedelta(microseconds=1), 100)
    inside = [moment for moment in found if moment < high.replace(tzinfo=UTC)]
    return inside[:_NAMED], len(inside)


def _gap_fate(schedule: Cron, masks: Masks, change: Change) -> str:
    fate = schedule.dst_gap
    if fate is None:
        length = (change.after - change.before).total_seconds()
        fate = "skip" if masks.wild or length >= _CORRECTION_S else "run_after"
    if fate == "run_after":
        return f"it runs once at {change.after:%H:%M}, the first instant after the gap"
    if fate == "shift":
        return f"it runs as much later as the clock jumps, from {change.after:%H:%M} on"
    return "nothing runs for it"


def _fold_fate(schedule: Cron, masks: Masks) -> str:
    fate = schedule.dst_overlap or ("both" if masks.wild else "first")
    return "it runs both times" if fate == "both" else f"it runs the {fate} time only"


def pile_up(schedules: Sequence[Sequence[Cron]], start: datetime) -> list[Pile]:
    """The worst minutes of the week from `start` on, worst first, each minute of a day once: at least 5 jobs, at most 3 minutes.

    `schedules`: of each job. Those with H but no hash id are left out: their times depend on the job's name.
    """
    begin = start.replace(second=0, microsecond=0)
    load = np.zeros(_WEEK_MINUTES, np.int64)
    minutes: dict[Cron, NDArray[np.int64]] = {}
    mine: list[NDArray[np.int64]] = []
    for crons in schedules:
        found = [minutes[cron] if cron in minutes else minutes.setdefault(cron, _minutes(cron, begin)) for cron in crons]
        mine.append(np.unique(np.concatenate(found)) if found else np.empty(0, np.int64))
        load[mine[-1]] += 1
    out: list[Pile] = []
    by_day = load.reshape(7, -1)
    for minute in np.argsort(-by_day.max(axis=0), kind="stable")[:_PILES].tolist():
        day = int(by_day[:, minute].argmax())
        at = day * 24 * _MINUTES + minute
        if load[at] < _PILE_MIN or load[at] <= _usual(load):
            break
        jobs = tuple(i for i, of in enumerate(mine) if len(of) and _has(of, at))
        out.append(Pile(begin + timedelta(minutes=at), jobs))
    return out


def _usual(load: NDArray[np.int64]) -> float:
    """What a busy minute has anyway: twice the average."""
    return 2 * float(load.mean())


def _has(values: NDArray[np.int64], value: int) -> bool:
    i = int(np.searchsorted(values, value))
    return i < len(values) and int(values[i]) == value


def _minutes(cron: Cron, begin: datetime) -> NDArray[np.int64]:
    """The minutes, counted from `begin`, of a week in which it fires."""
    if cron.hash_id is None and parse(cron.expr, cron.seconds, cron.day_or).hashed:
        return np.empty(0, np.int64)
    out: list[int] = []
    at = begin - timedelta(microseconds=1)
    end = begin + timedelta(minutes=_WEEK_MINUTES)
    while True:
        ahead = 500 if len(split(cron.expr, cron.seconds)) == 5 else 1
        found = [moment.astimezone(UTC) for moment in cron.next(at, ahead)]
        inside = [int((moment - begin).total_seconds()) // _MINUTES for moment in found if moment < end]
        out += inside
        if len(inside) < ahead:
            return np.unique(np.array(out, np.int64))
        at = begin + timedelta(minutes=out[-1] + 1) - timedelta(microseconds=1)

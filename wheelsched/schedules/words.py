"""A schedule in words, as one would type it: the one place that writes them, for plans, histories, listings and forecasts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..model.nouns import MS, NEVER, format_duration, to_datetime
from .schedule import At, Schedule

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["given_words", "instant_words", "schedule_words"]


def instant_words(us: int | None) -> str:
    """RFC 3339 in UTC, with a fraction only where there is one; `none` for None and NEVER."""
    moment = to_datetime(us)
    return "none" if moment is None else moment.isoformat().replace("+00:00", "Z")


def schedule_words(wire: Mapping[str, Any], param_us: int | None = NEVER, *, zone: bool = True, anchor: bool = True) -> str:
    """A schedule's wire form: `0 0 * * * Europe/Berlin`, `every 30s`, `at 2026-…Z`; the members of a union with ` | ` between.

    `param_us` is the instant of an `at`, or the anchor of an `every`; without one an `at` is `once`. `zone` and `anchor` may be left out.
    """
    kind = wire["kind"]
    instant = None if param_us in (None, NEVER) else instant_words(param_us)
    if kind == "union":
        return " | ".join(schedule_words(part["schedule"], part["param_us"], zone=zone, anchor=anchor) for part in wire["of"])
    if kind == "cron":
        words = [wire["expr"]]
        words += [wire["tz"]] if zone and wire["tz"] != "UTC" else []
        words += [f"{name}={wire[name]}" for name in ("dst_gap", "dst_overlap") if wire.get(name) is not None]
        words += ["day_or=false"] if wire.get("day_or") is False else []
        words += ["seconds=last"] if wire.get("seconds") == "last" else []
        return " ".join(words)
    if kind == "every":
        after = " after completion" if wire.get("after_completion") else ""
        return f"every {format_duration(wire['every_us'])}{after}" + (f" from {instant}" if anchor and instant else "")
    if kind == "at":
        return f"at {instant}" if instant else "once"
    return str(kind)


def given_words(given: Schedule | Sequence[Schedule]) -> str:
    """A schedule, or a list of them, as a user gave it. Instants are whole milliseconds, as the server keeps them."""
    if isinstance(given, list | tuple):
        return " | ".join(given_words(part) for part in given)
    assert isinstance(given, Schedule)
    return schedule_words(given.to_wire(), -(-given.param_us() // MS) * MS if isinstance(given, At) else NEVER)

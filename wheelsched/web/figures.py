"""Texts and instants for the templates: each instant with its zone, in UTC and from now. Pure."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import UTC
from typing import TYPE_CHECKING, Any, Final

from ..client.times import Times, instant_text, relative, span
from ..client.words import clean, cut, number, size
from ..model.nouns import NEVER, counted
from ..schedules.words import schedule_words

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from ..client.values import JobInfo

__all__ = ["FILTERS", "Clock", "When", "plain_json", "printed", "schedule_of"]

_ESCAPES: Final = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|[@-_])")
_JSON_MAX: Final = 20_000
_JSON_LINE: Final = 60


@dataclass(frozen=True, slots=True)
class When:
    """An instant as the pages show it."""

    iso: str
    shown: str  # in the job's zone with UTC beside, or in UTC
    short: str  # without UTC beside
    apart: str  # in 3m, 2h ago
    marked: bool  # that zone's clock changes on this day


class Clock:
    """Shows instants as of now, by the server's clock."""

    def __init__(self, now: datetime) -> None:
        self.now = now

    def __call__(self, moment: datetime | None, tz: str | None = None) -> When | None:
        """None for None."""
        if moment is None:
            return None
        times = Times("job")
        shown, short = times.show(moment, tz), times.short(moment, tz)
        return When(instant_text(moment), shown.replace("*", ""), short.replace("*", ""), relative(moment, self.now), times.marked)

    def day(self) -> str:
        """The header's clock: in UTC."""
        return self.now.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")


def printed(text: str) -> str:
    """What a program printed: without colours and what else moves a cursor, its lines and tabs kept."""
    plain = _ESCAPES.sub("", text).replace("\r\n", "\n")
    return "\n".join("\t".join(clean(part) for part in line.split("\t")) for line in plain.split("\n"))


def plain_json(value: Any) -> str:
    """A value as JSON for people; a long one is cut."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    if len(text) > _JSON_LINE:
        text = json.dumps(value, ensure_ascii=False, indent=2, default=str)
    return printed(text if len(text) <= _JSON_MAX else text[:_JSON_MAX] + "\n… cut: `wheelsched -o json` has all of it")


def schedule_of(job: JobInfo, *, brief: bool = False) -> str:
    """A job's schedule as one would say it; `brief`: without where the grid of an interval begins."""
    if brief and job.spec["schedule"]["kind"] == "every":
        return schedule_words(job.spec["schedule"])
    return schedule_words(job.spec["schedule"], NEVER if job.param_us is None else job.param_us)


def _seconds(value: float | None) -> str:
    return "-" if value is None else span(value)


def _lag(ms: float | None) -> str:
    return "-" if ms is None else span(ms / 1000)


FILTERS: Final[Mapping[str, Any]] = {
    "clean": lambda text: clean(str(text)),
    "printed": printed,
    "number": number,
    "size": size,
    "cut": lambda text, width: clean(cut(str(text), width)),
    "counted": counted,
    "seconds": _seconds,
    "lag": _lag,
    "as_json": plain_json,
}

"""Spans of occurrences: (first, last, count) of consecutive nominal times of one job. Ranges in the ledger are made of them. Pure."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from ..model.nouns import NEVER, Disposition, Reason

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from .definitions import SpecTable


STEPS_MAX: Final = 10_000


class Span(NamedTuple):
    """`n` consecutive nominal times from `first` to `last`, microseconds."""

    first: int
    last: int
    n: int


class Entry(NamedTuple):
    """A span with what became of it: one row of the ledger."""

    span: Span
    disposition: Disposition
    reason: Reason


def between(specs: SpecTable, spec: int, param: int, after: int, until: int) -> list[Span]:
    """The nominal times in (after, until], calendars not counted: one span, or none."""
    count, first, last = specs.counted(spec, param, after, until)
    return [Span(first, last, count)] if count else []


def free_and_excluded(specs: SpecTable, spec: int, param: int, after: int, until: int) -> tuple[list[Span], list[Span]]:
    """The nominal times in (after, until]: those that may run, and those that a calendar excludes."""
    if not specs.calendar[spec]:
        return between(specs, spec, param, after, until), []
    names, calendars = specs.names(spec), specs.calendars
    free: list[Span] = []
    excluded: list[Span] = []
    at, joined = specs.one(spec, param, after), False
    while at <= until and at < NEVER:
        end = calendars.blocked_until(names, at)
        blocked = end > at
        if not blocked:
            end = calendars.free_until(names, at)
        found = between(specs, spec, param, at - 1, min(end - 1, until))
        if blocked and joined and found:  # nothing that may run lies between two excluded stretches: one span
            last = excluded.pop()
            found = [Span(last.first, found[0].last, last.n + found[0].n)]
        (excluded if blocked else free).extend(found)
        joined = blocked
        at = NEVER if end == NEVER else specs.one(spec, param, end - 1)
    return free, excluded


def changed_away(specs: SpecTable, spec: int, param: int, after: int, until: int) -> list[Entry]:
    """What zone changes took away in (after, until]: ledger rows beside the schedule's own nominal times."""
    after, until = max(after, int(specs.start[spec]) - 1), min(until, int(specs.end[spec]))
    if until <= after:
        return []
    found = specs.schedules.dropped(int(specs.kind[spec]), int(specs.a[spec]), param, after, until)
    return [Entry(Span(first, last, count), Disposition.SKIPPED, Reason[reason.upper()]) for first, last, count, reason in found]


def without(specs: SpecTable, spec: int, param: int, spans: list[Span], taken: Iterable[int]) -> list[Span]:
    """The spans with some of their nominal times left out."""
    for at in sorted(taken):
        out: list[Span] = []
        for span in spans:
            if span.first <= at <= span.last:
                out += between(specs, spec, param, span.first - 1, at - 1) + between(specs, spec, param, at, span.last)
            else:
                out.append(span)
        spans = out
    return spans


def newest(specs: SpecTable, spec: int, param: int, spans: list[Span], most: int) -> list[int]:
    """The last `most` nominal times, oldest first: stepping back, so a long outage costs no walk through all of it."""
    found: list[int] = []
    for span in reversed(spans):
        at = span.last
        while span.first <= at < NEVER and len(found) < most:
            found.append(at)
            at = specs.before(spec, param, at)
    return found[::-1]


def times(specs: SpecTable, spec: int, param: int, spans: list[Span], *, backwards: bool = False) -> Iterator[int]:
    """The nominal times of spans, ascending or descending."""
    for span in reversed(spans) if backwards else spans:
        at = span.last if backwards else specs.one(spec, param, span.first - 1)
        while span.first <= at <= span.last:
            yield at
            at = specs.before(spec, param, at) if backwards else specs.one(spec, param, at)


def nth(specs: SpecTable, spec: int, param: int, spans: list[Span], n: int) -> int:
    """The n-th nominal time of spans that have as many, counted from 1: stepped to if it is near, else found by halving."""
    if n <= STEPS_MAX:
        return next(islice(times(specs, spec, param, spans), n - 1, None))
    for span in spans:
        if n <= span.n:
            low, high = span.first, span.last
            while low < high:
                middle = (low + high) // 2
                if specs.counted(spec, param, span.first - 1, middle)[0] >= n:
                    high = middle
                else:
                    low = middle + 1
            return low
        n -= span.n
    raise AssertionError("the spans have fewer")


def split(specs: SpecTable, spec: int, param: int, spans: list[Span], until: int) -> tuple[list[Span], list[Span]]:
    """The spans split: up to an instant (inclusive), and after it."""
    old: list[Span] = []
    new: list[Span] = []
    for span in spans:
        if span.last <= until:
            old.append(span)
        elif span.first > until:
            new.append(span)
        else:
            old += between(specs, spec, param, span.first - 1, until)
            new += between(specs, spec, param, until, span.last)
    return old, new

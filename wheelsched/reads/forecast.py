"""What will start when: an exact histogram of the coming starts, counted from the schedules in bulk. Pure.

`Forecast(core, args, now_us).pieces()` is a generator: each step is a piece of work of about a millisecond, so that a server takes one
between two turns and stalls for none; its value is the answer of the verb `forecast`. Each job is read once, when its row is looked at;
what changes after that is not seen.

Counted are the nominal times of active jobs from where each job stands, inside start, end and max_runs, moved by their jitter, without
those that a calendar excludes or a person skipped; runs that wait for an instant (delayed, jittered, moved, or to be retried); and what is
overdue, at once. What depends on how long runs will take is not foreseen: occurrences that overlap will skip, retries to come, and `every`
after completion beyond its known time.

Jobs that start alike are one line with a weight (forecast_lines.py). `every` is counted without asking the schedule: in units of
gcd(period, bucket) the jobs of one period differ only by their first unit. Other lines step from one occurrence to the next
(forecast_walk.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ..engine.decided import any_known, known
from ..model.errors import InvalidArgumentError
from ..model.nouns import GLOB_MAX, MS, NEVER, US, display_name, format_duration
from ..schedules.jitter import jitter
from ..schedules.table import KIND_EVERY, KIND_UNION
from ..schedules.words import schedule_words
from ._forecast import count_at, count_every
from .forecast_answer import HOUR_US, drain_us, peak_of, what_if
from .forecast_lines import DELAYED, RETRY, Census, Window
from .forecast_walk import UNLIMITED, WALK, Walk

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from numpy.typing import NDArray

    from ..engine.core import Core

ARGUMENTS: Final = ("for_us", "bucket_us", "queue")
BUCKETS_MAX: Final = 100_000
FOR_MAX_US: Final = 31 * 24 * HOUR_US
CELLS_MAX: Final = 1_000_000  # queues x buckets of one answer; the queues beyond are told as one
CONTRIBUTORS: Final = 10
OTHERS: Final = "(others)"  # no name of a queue
_WHAT: Final = {DELAYED: "delayed runs", RETRY: "retries"}
_BLOCK: Final = 4_096  # lines
_SLOW: Final = 256  # lines whose step costs some microseconds: unions, calendars
_STEPS: Final = 250_000  # of counting `every`, in one piece
_NAMES: Final = 500  # lines put into words in one piece


class Forecast:
    """One forecast on its way."""

    def __init__(self, core: Core, args: dict[str, Any], now_us: int) -> None:
        """InvalidArgumentError for a span, a bucket or a glob that can't be."""
        span, bucket_us, queue = check_forecast(args)
        self._core = core
        from_us = now_us // bucket_us * bucket_us
        self.window = Window(now_us, from_us, bucket_us, -(-(now_us + span - from_us) // bucket_us))
        self._census = Census(core, self.window, queue)
        self._known = self._census.known
        self._row = np.zeros(0, np.uint32)  # queue -> row of the histogram
        self._names: list[str] = []
        self._starts = np.zeros((0, 0), np.int64)
        self._work = np.zeros(self.window.buckets, np.float64)  # run time that begins in each bucket, microseconds
        self._hours = np.zeros((self.window.until_us - 1) // HOUR_US - from_us // HOUR_US + 1, np.int64)
        self._mean = np.zeros(0, np.float64)  # by task
        self._hits = np.zeros(_BLOCK, np.int64)  # of the peak, by line of the block that is looked at
        self._hits_from = self._peak_us = 0

    def pieces(self) -> Generator[None, None, dict[str, Any]]:
        """The work, in pieces; the answer."""
        yield from self._census.jobs()
        yield from self._census.runs()
        self._make_room()
        yield
        yield from self._count()
        total = self._starts.sum(axis=0)
        yield
        peak = peak_of(total, self.window.from_us, self.window.bucket_us)
        contributors: list[dict[str, Any]] = []
        if peak is not None:
            contributors = yield from self._contributors(peak["at_us"])
        return self._answer(total, peak, contributors)

    # Counting

    def _make_room(self) -> None:
        """The histogram: a row for each queue, the last for all that are too many. And the mean run time of each task."""
        most = max(CELLS_MAX // self.window.buckets, 2)
        names = list(self._known.queues)
        self._names = names if len(names) <= most else [*names[: most - 1], OTHERS]
        self._row = np.minimum(np.arange(max(len(names), 1)), max(len(self._names) - 1, 0)).astype(np.uint32)
        self._starts = np.zeros((max(len(self._names), 1), self.window.buckets), np.int64)
        measured = self._core.durations
        count = sum(n for n, _ in measured.values())
        mean = sum(n * us for n, us in measured.values()) / count if count else 0.0
        self._mean = np.array([measured[task][1] if task in measured else mean for task in self._known.tasks] or [0.0], np.float64)

    def _blocks(self) -> Iterator[tuple[int, tuple[NDArray[Any], ...]]]:
        for start in range(0, len(self._census.lines), _BLOCK):
            yield start, self._census.lines.slice(start, start + _BLOCK)

    def _grid(self, block: tuple[NDArray[Any], ...]) -> NDArray[np.int64]:
        """Which lines are a grid."""
        spec, x, _, n, _, _ = block
        return np.flatnonzero((n >= 0) & (x >= 0) & (self._core.specs.kind[spec] == KIND_EVERY))

    def _units(self, spec: NDArray[np.uint32]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(period, bucket) of grids in their own units."""
        period = self._core.specs.a[spec]
        unit = np.gcd(period, self.window.bucket_us)
        return period // unit, self.window.bucket_us // unit

    def _count(self) -> Iterator[None]:
        walks = self._walks(_Counting(self))
        for start, block in self._blocks():
            spec, _, y, n, weight, _ = block
            row, cost = self._row[self._known.queue[spec]], weight * self._mean[self._known.task[spec]]
            once = n < 0
            if once.any():
                at = self.window.from_us + y[once] * self.window.bucket_us
                self.count_at(at, row[once], weight[once], cost[once], np.zeros(len(at), np.uint8))
            grid = self._grid(block)
            if len(grid):
                every, bucket = self._units(spec[grid])
                piece = np.cumsum(np.minimum(n[grid], self.window.buckets)) // _STEPS
                for part in np.split(np.arange(len(grid)), np.flatnonzero(np.diff(piece)) + 1):
                    of = grid[part]
                    count_every(self._starts, self._work, every[part], bucket[part], y[of], n[of], row[of], weight[of], cost[of])
                    yield
            yield from self._walk(walks, start, block, self.window.until_us)
            yield
        for walk in walks:
            yield from walk.finish()

    def count_at(self, at: NDArray[np.int64], row: NDArray[np.uint32], weight: NDArray[np.int64], cost: NDArray[np.float64],
                 sharp: NDArray[np.uint8]) -> None:
        """Count instants into the histogram."""
        count_at(self._starts, self._work, self._hours, self.window.from_us, self.window.bucket_us, at, row, weight, cost, sharp)

    def hit(self, line: NDArray[np.int64], at: NDArray[np.int64]) -> None:
        """Count instants of lines, if they are in the peak."""
        inside = (at >= self._peak_us) & (at < self._peak_us + self.window.bucket_us)
        np.add.at(self._hits, line[inside] - self._hits_from, 1)

    # Walking

    def _walks(self, told: _Counting | _Hitting) -> tuple[Walk, ...]:
        """For lines that are alike: quick, slow; for jobs of their own: quick, slow."""
        step = self._step
        return Walk(step, told.plain, _BLOCK), Walk(step, told.plain, _SLOW), Walk(self._own_step, told.own, _BLOCK), Walk(
            self._own_step, told.own, _SLOW)

    def _step(self, lines: NDArray[Any], after: NDArray[np.int64]) -> NDArray[np.int64]:
        out = np.empty(len(lines), np.int64)
        kind, a, anchor = (np.ascontiguousarray(lines[name]) for name in ("kind", "a", "anchor"))
        self._core.specs.schedules.next_many(kind, a, anchor, after, out)
        return out

    def _own_step(self, lines: NDArray[Any], after: NDArray[np.int64]) -> NDArray[np.int64]:
        return self._core.specs.next(np.ascontiguousarray(lines["spec"]), np.ascontiguousarray(lines["anchor"]), after)

    def own_starts(self, lines: NDArray[Any], following: NDArray[np.int64]) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
        """Which occurrences make a run, and when those start: the rules of `due.decide`."""
        specs = self._core.specs
        spec, at = np.ascontiguousarray(lines["spec"]), np.ascontiguousarray(lines["at"])
        runs = ~specs.excluded(spec, at)
        if any_known(self._core):
            runs &= ~known(self._core, np.ascontiguousarray(lines["job"]), at)
        last = (following == NEVER) | (lines["left"] <= 1)
        period = np.where(last, 0, following - at)
        span = np.maximum(specs.jitter_us[spec], (period * specs.jitter_share[spec]).astype(np.int64))
        span = np.where(last, span, np.minimum(span, period - MS))
        return runs, at + jitter(np.ascontiguousarray(lines["key"]), at, span)

    def _walk(self, walks: tuple[Walk, ...], start: int, block: tuple[NDArray[Any], ...], end_us: int, begin_us: int = 0) -> Iterator[None]:
        """Step the lines of a block that have a schedule to before `end_us`; those that may begin in the middle, from `begin_us` on."""
        spec, x, y, n, weight, _ = block
        which = np.setdiff1d(np.flatnonzero(n >= 0), self._grid(block), assume_unique=True)
        if not len(which):
            return
        specs = self._core.specs
        spec, x = spec[which], x[which]
        lines = np.zeros(len(which), WALK)
        lines["kind"], lines["a"], lines["anchor"], lines["at"], lines["left"] = specs.kind[spec], specs.a[spec], x, y[which], n[which]
        lines["until"] = np.minimum(end_us - 1, specs.end[spec])
        lines["row"], lines["weight"] = self._row[self._known.queue[spec]], weight[which]
        lines["cost"] = weight[which] * self._mean[self._known.task[spec]]
        lines["sharp"], lines["line"], lines["spec"] = self._known.sharp[spec], start + which, spec
        own = x < 0
        if own.any():
            jobs = self._census.own(x[own])
            lines["anchor"][own], lines["key"][own], lines["job"][own] = jobs["param"], jobs["key"], jobs["row"]
        late = ~own & (lines["at"] < begin_us) & (lines["left"] == UNLIMITED)
        which_walk = 2 * own + ((lines["kind"] == KIND_UNION) | (specs.calendar[spec] > 0))
        for number, walk in enumerate(walks):
            rows = np.flatnonzero(which_walk == number)
            for k in range(0, len(rows), walk.size):
                part, jump = lines[rows[k : k + walk.size]], late[rows[k : k + walk.size]]
                if jump.any():
                    part["at"][jump] = walk.step(part[jump], np.full(int(jump.sum()), begin_us - 1, np.int64))
                yield from walk.feed(part)

    # Who makes the peak

    def _contributors(self, peak_us: int) -> Generator[None, None, list[dict[str, Any]]]:
        self._peak_us = peak_us
        bucket = (peak_us - self.window.from_us) // self.window.bucket_us
        groups: dict[tuple[str, str, str], list[int]] = {}
        walks = self._walks(_Hitting(self))
        for start, block in self._blocks():
            spec, _, y, n, weight, first = block
            hits, self._hits_from = self._hits, start
            hits[:] = 0
            hits[: len(spec)] = (n < 0) & (y == bucket)
            grid = self._grid(block)
            if len(grid):
                every, width = self._units(spec[grid])
                hits[grid] = _up_to((bucket + 1) * width, y[grid], every, n[grid]) - _up_to(bucket * width, y[grid], every, n[grid])
            yield from self._walk(walks, start, block, peak_us + self.window.bucket_us, peak_us)
            for walk in walks:
                yield from walk.finish()
            for i, line in enumerate(np.flatnonzero(hits[: len(spec)]).tolist()):
                group = groups.setdefault(self._group(int(spec[line]), int(n[line])), [0, 0, int(first[line])])
                group[0] += int(hits[line] * weight[line])
                group[1] += int(weight[line])
                if i % _NAMES == _NAMES - 1:
                    yield
            yield
        most = sorted(groups.items(), key=lambda item: (-item[1][0], item[0]))[:CONTRIBUTORS]
        return [self._contributor(key, *group) for key, group in most]

    def _group(self, spec: int, n: int) -> tuple[str, str, str]:
        """Namespace, schedule and zone of a line, in words."""
        wire = self._core.state.specs[spec]
        if n in _WHAT:
            return wire["namespace"], _WHAT[n], ""
        return wire["namespace"], _short(wire["schedule"]), wire["schedule"].get("tz", "")

    def _contributor(self, key: tuple[str, str, str], starts: int, jobs: int, first: int) -> dict[str, Any]:
        namespace, text, tz = key
        table, name = self._core.state.jobs, None
        if jobs == 1 and table.slots(first, 1) == [first]:
            name = display_name(table.names(np.array([first], np.uint32))[0].decode())
        return {"namespace": namespace, "schedule": text, "tz": tz, "starts": starts, "jobs": jobs, "job": name}

    # The answer

    def _answer(self, total: NDArray[np.int64], peak: dict[str, int] | None, contributors: list[dict[str, Any]]) -> dict[str, Any]:
        queues = []
        for name, counts in zip(self._names, self._starts, strict=False):
            starts = int(counts.sum())
            if starts:
                queues.append({"name": name, "starts": starts, "peak": peak_of(counts, self.window.from_us, self.window.bucket_us),
                               "counts": counts.astype("<i8").tobytes()})
        window, census = self.window, self._census
        return {
            "now_us": window.now_us, "from_us": window.from_us, "until_us": window.until_us, "bucket_us": window.bucket_us,
            "starts": int(total.sum()), "counts": total.astype("<i8").tobytes(), "peak": peak, "queues": queues,
            "held": self._core.state.meta.held_us >= 0, "jobs": census.active, "paused": census.paused,
            "delayed": census.waiting[DELAYED], "retries": census.waiting[RETRY], "contributors": contributors, "drain": self._drain(peak),
            "what_if": None if peak is None else what_if(total, self._hours, window.from_us, window.bucket_us),
        }

    def _drain(self, peak: dict[str, int] | None) -> dict[str, Any]:
        """How long after the begin of the peak's bucket everything that started is done, by the mean run time of each task."""
        state, measured = self._core.state, self._core.durations
        workers = len(state.workers)
        names = dict(zip(self._known.tasks, self._mean.tolist(), strict=False))
        waiting = sum(
            state.runs.list_len(line) * names.get(task, 0.0)
            for (queue, _, _, task, *_), line in state.lines.items() if queue in self._known.queues
        )
        told: dict[str, Any] = {
            "after_us": None, "inside": None, "workers": workers, "measured": sum(n for n, _ in measured.values()),
            "unmeasured": sorted(set(names) - set(measured))[:CONTRIBUTORS], "why": None,
        }
        if peak is None:
            told["why"] = "nothing starts"
        elif not told["measured"]:
            told["why"] = "no run measured yet"
        elif not workers:
            told["why"] = "there is no worker"
        else:
            bucket = (peak["at_us"] - self.window.from_us) // self.window.bucket_us
            told["after_us"], told["inside"] = drain_us(self._work, bucket, self.window.bucket_us, workers, waiting)
        return told


class _Counting:
    """Puts the occurrences of walks into the histogram."""

    def __init__(self, forecast: Forecast) -> None:
        self._forecast = forecast

    def plain(self, lines: NDArray[Any], _: NDArray[np.int64]) -> bool:
        """Lines that are alike."""
        self._forecast.count_at(*(np.ascontiguousarray(lines[name]) for name in ("at", "row", "weight", "cost", "sharp")))
        return True

    def own(self, lines: NDArray[Any], following: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Jobs of their own."""
        runs, at = self._forecast.own_starts(lines, following)
        lines = lines[runs]
        self._forecast.count_at(at[runs], *(np.ascontiguousarray(lines[name]) for name in ("row", "weight", "cost", "sharp")))
        return runs


class _Hitting:
    """Counts the occurrences of walks that are in the peak."""

    def __init__(self, forecast: Forecast) -> None:
        self._forecast = forecast

    def plain(self, lines: NDArray[Any], _: NDArray[np.int64]) -> bool:
        """Lines that are alike."""
        self._forecast.hit(lines["line"], lines["at"])
        return True

    def own(self, lines: NDArray[Any], following: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Jobs of their own."""
        runs, at = self._forecast.own_starts(lines, following)
        self._forecast.hit(lines["line"][runs], at[runs])
        return runs


def _short(wire: dict[str, Any]) -> str:
    """A schedule without its zone, of a union the first three: `0 7 * * *`, `every 30s`, `once`."""
    words = schedule_words({**wire, "of": wire["of"][:3]} if wire["kind"] == "union" else wire, zone=False, anchor=False)
    return f"{words} | {len(wire['of']) - 3} more" if len(wire.get("of", ())) > 3 else words


def _told(value: Any) -> str:
    is_duration = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    return format_duration(value) if is_duration else str(value)[:60]


def _up_to(end: NDArray[np.int64], first: NDArray[np.int64], every: NDArray[np.int64], n: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many of first, first + every, ... (n of them) are before `end`."""
    return np.asarray(np.clip(-((first - end) // every), 0, n), np.int64)


def check_forecast(args: dict[str, Any]) -> tuple[int, int, str | None]:
    """Span and bucket in microseconds, and the glob. InvalidArgumentError."""
    span, bucket, queue = (args.get(name) for name in ARGUMENTS)
    for name, value, high in (("span", span, FOR_MAX_US), ("bucket", bucket, 24 * HOUR_US)):
        if isinstance(value, bool) or not isinstance(value, int) or not US <= value <= high or value % US:
            raise InvalidArgumentError(f"forecast: the {name} is whole seconds from 1s to {format_duration(high)}, not {_told(value)}")
    assert isinstance(span, int)
    assert isinstance(bucket, int)
    if bucket > span:
        raise InvalidArgumentError(f"forecast: a bucket of {format_duration(bucket)} is longer than the span of {format_duration(span)}")
    if span // bucket >= BUCKETS_MAX:
        raise InvalidArgumentError(f"forecast: {span // bucket:,} buckets; at most {BUCKETS_MAX:,} are told: take longer buckets")
    if queue is not None and (not isinstance(queue, str) or len(queue) > GLOB_MAX):
        raise InvalidArgumentError(f"forecast: queue is a glob of names of queues, of at most {GLOB_MAX} characters")
    return span, bucket, queue


def forecast_now(core: Core, args: dict[str, Any], now_us: int) -> dict[str, Any]:
    """All pieces at once: for the simulator. InvalidArgumentError."""
    pieces = Forecast(core, args, now_us).pieces()
    while True:
        try:
            next(pieces)
        except StopIteration as done:
            answer: dict[str, Any] = done.value
            return answer

"""What a forecast counts: jobs and runs that start alike become lines with a weight. Pure; in bounded pieces.

A line is (spec, x, y, n). By the kind of its schedule:

    cron, union    y: the next nominal time; n: how many may come; x: the parameter of a union
    every          y: the next nominal time in units of gcd(period, bucket) from the first bucket on; n: how many come
    own            x < 0: a job with jitter, calendars or exceptions, alone; y, n as for cron, whatever the kind
    one start      n < 0 says what it is; y: its bucket
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ..engine.decided import jobs_known
from ..engine.definitions import NO_LIMIT
from ..model.globs import glob
from ..model.nouns import JobState, RunState
from ..schedules.table import KIND_CRON, KIND_EVERY, KIND_UNION
from ._forecast import Lines
from .forecast_walk import UNLIMITED

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from ..engine.core import Core

PLANNED, DELAYED, RETRY, OVERDUE = -1, -2, -3, -4  # `n` of a line that is one start
OWN: Final = np.dtype([("param", "<i8"), ("key", "<u8"), ("row", "<u4")])
_ROWS: Final = 2_048  # of a table, read in one piece
_NAMES: Final = 500  # definitions looked at in one piece
_UNKNOWN, _LEFT_OUT = -1, -2


@dataclass(frozen=True, slots=True)
class Window:
    """The buckets, whole ones; starts count from now on."""

    now_us: int
    from_us: int
    bucket_us: int
    buckets: int

    @property
    def until_us(self) -> int:
        """End of the last bucket."""
        return self.from_us + self.buckets * self.bucket_us


class Known:
    """What of the definitions matters here, by spec number: queue and task (numbers of their own), whether cron may be on the hour."""

    def __init__(self, core: Core, queue: str | None) -> None:
        self._wires = core.state.specs
        self._glob = None if queue is None else glob(queue, "queue")
        self.queue = np.full(len(self._wires) + 64, _UNKNOWN, np.int32)
        self.task = np.zeros(len(self.queue), np.int32)
        self.sharp = np.zeros(len(self.queue), np.uint8)
        self.queues: dict[str, int] = {}
        self.tasks: dict[str, int] = {}

    def learn(self, spec: NDArray[np.uint32]) -> Iterator[None]:
        """Look at those not seen before."""
        if not len(spec):
            return
        top = int(spec.max())
        if top >= len(self.queue):
            more = top + 1 - len(self.queue) + 64
            self.queue = np.concatenate((self.queue, np.full(more, _UNKNOWN, np.int32)))
            self.task = np.concatenate((self.task, np.zeros(more, np.int32)))
            self.sharp = np.concatenate((self.sharp, np.zeros(more, np.uint8)))
        fresh = np.unique(spec[self.queue[spec] == _UNKNOWN]).tolist()
        for i, number in enumerate(fresh):
            wire = self._wires[number]
            name = wire["queue"]
            if self._glob is not None and not self._glob(name):
                self.queue[number] = _LEFT_OUT
            else:
                self.queue[number] = self.queues.setdefault(name, len(self.queues))
                self.task[number] = self.tasks.setdefault(wire["task"], len(self.tasks))
                self.sharp[number] = wire["schedule"]["kind"] == "cron" and "hash_id" not in wire and "jitter" not in wire
            if i % _NAMES == _NAMES - 1:
                yield


class Census:
    """Reads jobs and runs, each once."""

    def __init__(self, core: Core, window: Window, queue: str | None) -> None:
        """`queue`: a glob; None for all."""
        self._core = core
        self.window = window
        self.known = Known(core, queue)
        self.lines = Lines(len(core.state.jobs) + len(core.state.runs))
        self.paused = self.active = 0
        self.waiting = {DELAYED: 0, RETRY: 0}
        self._own = np.zeros(max(len(core.state.jobs), 64), OWN)
        self._own_count = 0
        self._excepted = jobs_known(core)

    def jobs(self) -> Iterator[None]:
        """Read all jobs, in pieces."""
        jobs, start = self._core.state.jobs, 0
        while True:
            slots = jobs.slots(start, _ROWS)
            if not slots:
                return
            rows = np.array(slots, np.uint32)
            fields = jobs.gather(rows)
            start = slots[-1] + 1
            self.paused += int((fields["state"] == JobState.PAUSED).sum())
            near = (fields["state"] == JobState.ACTIVE) & (fields["next_us"] < self.window.until_us)
            rows, fields = rows[near], fields[near]
            yield from self.known.learn(fields["spec"])
            mine = self.known.queue[fields["spec"]] >= 0
            self.active += int(mine.sum())
            self._add_jobs(rows[mine], fields[mine])
            yield

    def _add_jobs(self, rows: NDArray[np.uint32], fields: NDArray[Any]) -> None:
        spec, param, at = (np.ascontiguousarray(fields[name]) for name in ("spec", "param_us", "next_us"))
        specs, window = self._core.specs, self.window
        most = specs.max_runs[spec].astype(np.int64)
        left = np.where(most == NO_LIMIT, UNLIMITED, most - fields["fired"])
        overdue = at < window.now_us
        if overdue.any():  # one start at once, then those to come
            here = np.full(int(overdue.sum()), (window.now_us - window.from_us) // window.bucket_us, np.int64)
            self.lines.add(spec[overdue], here * 0, here, np.full_like(here, OVERDUE), rows[overdue])
            at[overdue] = specs.next(spec[overdue], param[overdue], np.full_like(here, window.now_us - 1))
            left[overdue & (left < UNLIMITED)] -= 1
            keep = (at < window.until_us) & (left > 0)
            rows, fields, spec, param, at, left = rows[keep], fields[keep], spec[keep], param[keep], at[keep], left[keep]
        kind = specs.kind[spec]
        own = (specs.jitter_us[spec] > 0) | (specs.jitter_share[spec] > 0) | (specs.calendar[spec] > 0)
        if len(self._excepted):
            own |= np.isin(rows, self._excepted)
        grid = ~own & (kind == KIND_EVERY)
        once = ~own & ~grid & (kind != KIND_CRON) & (kind != KIND_UNION)
        x = np.where(kind == KIND_UNION, param, 0)
        if own.any():
            x[own] = self._alone(param[own], fields["key_low"][own], rows[own])
        y, n = at.copy(), left.copy()
        period = np.maximum(specs.a[spec], 1)
        last = np.minimum(window.until_us - 1, specs.end[spec])
        y[grid] = ((at - window.from_us) // np.gcd(period, window.bucket_us))[grid]
        n[grid] = np.minimum(left, (last - at) // period + 1)[grid]
        y[once], n[once] = ((at - window.from_us) // window.bucket_us)[once], PLANNED
        self.lines.add(spec, x, y, n, rows)

    def runs(self) -> Iterator[None]:
        """Read all runs that wait for an instant, in pieces."""
        runs, start = self._core.state.runs, 0
        while True:
            slots = runs.slots(start, _ROWS)
            if not slots:
                return
            start = slots[-1] + 1
            rows = np.array(slots, np.uint32)
            fields = runs.gather(rows)
            due = fields["due_us"]
            retry = fields["state"] == RunState.RETRY_WAIT
            near = ((retry | (fields["state"] == RunState.SCHEDULED)) & (due >= 0)) & (due < self.window.until_us)
            fields, due, retry = fields[near], due[near], retry[near]
            spec = np.ascontiguousarray(fields["spec"])
            yield from self.known.learn(spec)
            mine = self.known.queue[spec] >= 0
            what = np.where(retry, RETRY, DELAYED)[mine]
            for code in self.waiting:
                self.waiting[code] += int((what == code).sum())
            y = (np.maximum(due, self.window.now_us) - self.window.from_us) // self.window.bucket_us
            self.lines.add(spec[mine], np.zeros(len(what), np.int64), y[mine], what, np.ascontiguousarray(fields["job"][mine]))
            yield

    def _alone(self, param: NDArray[np.int64], key: NDArray[np.uint64], row: NDArray[np.uint32]) -> NDArray[np.int64]:
        """Keep what a job with a line of its own needs; the `x` of such lines."""
        n, more = self._own_count, len(param)
        if n + more > len(self._own):
            self._own = np.concatenate((self._own, np.zeros(max(len(self._own), more), OWN)))
        for name, column in (("param", param), ("key", key), ("row", row)):
            self._own[name][n : n + more] = column
        self._own_count += more
        return -1 - np.arange(n, n + more, dtype=np.int64)

    def own(self, x: NDArray[np.int64]) -> NDArray[Any]:
        """Of lines with a negative `x`: parameter, key and row of their job."""
        return self._own[-1 - x]

"""Queues: their settings, and how much they let a worker have.

    concurrency       at most so many runs of the queue are leased at once
    key_concurrency   at most so many of one concurrency key (1 unless set), within the queue
    rate, burst       a token bucket: a lease takes a token; `burst` is what it holds (a tenth of a second's tokens unless set, at least 1)
    key_rate          another one for each key
    weights           shares of its namespaces in the leases, among runs of equal priority (1 unless told); see `_ready`
    paused            nothing is leased; runs wait

A job's own `concurrency` counts like a key's: runs of that job that are leased at once. A run obeys the number it was made with; while
runs of one job with different numbers wait, the smallest counts for all.

What is leased is counted in the run table, so the first two are exact across kills and restarts. Buckets are soft and refilled on the
monotonic clock; a new one is empty, so a restart never adds to a rate. A limit holds back its own lines and stands in nobody else's way.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ..model.nouns import NEVER, US, counted, display_name
from ..protocol.checks import parse_rate
from ..tables._ready import Ready

if TYPE_CHECKING:

    from numpy.typing import NDArray

    from ..state.state import Line, State
    from .turn import Now

AGEING_US: Final = 300 * US  # waiting that lifts a run by one step of priority
_BUCKETS_MAX: Final = 10_000  # of keys; beyond it the full ones are forgotten
BATCH_US: Final = 2_000.0  # work of a batch while namespaces come and go
VISIT_US: Final = 60 * US  # so long after the last one
BESIDE_US: Final = 2.0  # what a run costs a worker beside user code
_MASKS_MAX: Final = 1_000
_ALL: Final = np.empty(0, np.uint8)
_FREE: Final = np.empty(0)


@dataclass(slots=True)
class Bucket:
    """Tokens. `count` units come in each microsecond and a token is `per_us` of them, so nothing is ever rounded."""

    count: int
    per_us: int
    size: int  # tokens
    since_us: int  # monotonic
    units: int = 0

    def tokens(self, now_us: int) -> int:
        """How many there are."""
        self.units = min(self.size * self.per_us, self.units + (now_us - self.since_us) * self.count)
        self.since_us = now_us
        return self.units // self.per_us

    def next_us(self, n: int = 1) -> int:
        """When there are so many, if there are fewer now."""
        return self.since_us + -(-(n * self.per_us - self.units) // self.count)


def _bucket(rate: str, burst: int | None, since_us: int) -> Bucket:
    count, per_us = parse_rate(rate, "rate")
    return Bucket(count, per_us, burst or max(1, count * US // (10 * per_us)), since_us)


class Limits:
    """The settings at work. Soft: made anew at a start."""

    def __init__(self, state: State, mono_us: int) -> None:
        self._state = state
        self._rates: dict[str, Bucket] = {}
        self._key_since: dict[str, int] = {}  # when the key buckets of a queue began to fill
        self._key_rates: dict[tuple[str, str], Bucket] = {}
        self._key_rates_max = _BUCKETS_MAX
        self._ready = Ready(state.runs, AGEING_US)
        self._masks: dict[frozenset[str], NDArray[np.uint8]] = {}
        self._queue_names: list[str] = []  # by number
        self._key_names: list[tuple[str, str]] = []
        self._key_most, self._rated = np.zeros(0, np.int64), np.zeros(0, np.uint8)  # by number of the queue
        self._stale = False  # these two are of other settings
        self._weighed = 0  # namespaces in queues whose weight was told
        self.wake_us = NEVER  # monotonic: when a token comes that somebody waits for
        for name in state.queues:
            self.changed(name, {}, mono_us)

    def changed(self, name: str, old: dict[str, Any], mono_us: int) -> None:
        """A queue has other settings. Buckets whose rate is the same stay."""
        new = self._state.queues.get(name, {})
        if any(old.get(key) != new.get(key) for key in ("rate", "burst")):
            self._rates.pop(name, None)
            if "rate" in new:
                self._rates[name] = _bucket(new["rate"], new.get("burst"), mono_us)
        if old.get("key_rate") != new.get("key_rate"):
            self._key_since.pop(name, None)
            if "key_rate" in new:
                self._key_since[name] = mono_us
            self._key_rates = {pair: bucket for pair, bucket in self._key_rates.items() if pair[0] != name}
        self._stale = True
        if old.get("weights") != new.get("weights"):
            for (queue, namespace), number in islice(self._state.group_numbers.items(), self._weighed):
                if queue == name:
                    self._ready.weigh(number, new.get("weights", {}).get(namespace, 1))

    def _key_bucket(self, queue: str, key: str, rate: str, mono_us: int) -> Bucket:
        bucket = self._key_rates.get((queue, key))
        if bucket is None:  # one that nobody asked for has filled all the while
            if len(self._key_rates) >= self._key_rates_max:
                self._key_rates = {pair: b for pair, b in self._key_rates.items() if b.tokens(mono_us) < b.size}
                self._key_rates_max = max(_BUCKETS_MAX, 2 * len(self._key_rates))
            bucket = self._key_rates[queue, key] = _bucket(rate, None, self._key_since[queue])
        return bucket

    def spend(self, queue: str, key: str | None, n: int, mono_us: int) -> None:
        """So many were leased."""
        buckets = [self._rates.get(queue)]
        rate = self._state.queues.get(queue, {}).get("key_rate")
        if key and rate is not None:
            buckets.append(self._key_bucket(queue, key, rate, mono_us))
        for bucket in buckets:
            if bucket is not None:
                bucket.tokens(mono_us)
                bucket.units -= n * bucket.per_us

    @property
    def any_rate(self) -> bool:
        """Does a lease cost a token anywhere?"""
        return bool(self._rates or self._key_since)

    # What may be leased

    def _left(self, name: str, number: int, settings: dict[str, Any], now_us: int) -> int:
        """What the limits of a queue leave; they may have been lowered. A token that is missing is waited for."""
        left = 0 if settings.get("paused") else settings.get("concurrency", NEVER) - self._state.runs.leased(number)
        bucket = self._rates.get(name)
        return max(0, left) if bucket is None or left <= 0 else min(left, self._tokens(bucket, now_us))

    def _tokens(self, bucket: Bucket, now_us: int) -> int:
        tokens = bucket.tokens(now_us)
        if tokens <= 0:
            self.wake_us = min(self.wake_us, bucket.next_us())
        return max(0, tokens)

    def _catch_up(self) -> None:
        """Numbers that definitions brought since the last pick."""
        state = self._state
        if len(self._queue_names) < len(state.queue_numbers) or self._stale:
            self._queue_names, self._stale = list(state.queue_numbers), False
            mine = [state.queues.get(name, {}) for name in self._queue_names]
            self._key_most = np.array([settings.get("key_concurrency", 1) for settings in mine], np.int64)
            self._rated = np.array(["key_rate" in settings for settings in mine], np.uint8)
        if len(self._key_names) < len(state.key_numbers):
            self._key_names += islice(state.key_numbers, len(self._key_names), None)
        if self._weighed < len(state.group_numbers):
            for (queue, namespace), number in islice(state.group_numbers.items(), self._weighed, None):
                self._ready.weigh(number, state.queues.get(queue, {}).get("weights", {}).get(namespace, 1))
            self._weighed = len(state.group_numbers)

    def _mask(self, names: frozenset[str], numbers: dict[str, int]) -> NDArray[np.uint8]:
        """1 for each of these tasks or queues, by number."""
        known = self._masks.get(names)
        if known is None or len(known) != len(numbers):
            if len(self._masks) >= _MASKS_MAX:
                self._masks.clear()
            known = self._masks[names] = np.zeros(len(numbers), np.uint8)
            known[[numbers[name] for name in names if name in numbers]] = 1
        return known

    def _look(self, tasks: frozenset[str], queues: frozenset[str], *, unlimited: bool = False) -> tuple[list[int], list[int], list[int]]:
        self._catch_up()
        state = self._state
        wanted = self._mask(queues, state.queue_numbers) if queues else _ALL
        return self._ready.look(self._mask(tasks, state.task_numbers), wanted, self._key_most, self._rated, unlimited)

    def pick(self, tasks: frozenset[str], queues: frozenset[str], credit: int, sharing: int, now: Now,
             means: dict[str, tuple[int, float]]) -> NDArray[np.uint32]:
        """Ready runs for one of `sharing` workers that ask, in their order (see `_ready`), as far as limits let them go.

        `means`: measured run times of tasks. While namespaces come and go beside one that always has runs, a batch has no more than a few
        milliseconds' work, so that whoever comes is soon served.
        """
        found, keys, owners = self._look(tasks, queues)
        if not found:
            return np.empty(0, np.uint32)
        for number in found:
            name = self._queue_names[number]
            settings = self._state.queues.get(name)
            if settings is not None:
                self._ready.queue_left(number, self._left(name, number, settings, now.mono_us))
        for key, owner in zip(keys, owners, strict=True):
            name = self._queue_names[owner]
            rate = self._state.queues[name]["key_rate"]
            self._ready.key_left(key, self._tokens(self._key_bucket(name, self._key_names[key - 1][1], rate, now.mono_us), now.mono_us))
        visited = 0 <= self._ready.visit_us > now.mono_us - VISIT_US
        return self._ready.take(now.wall_us, now.mono_us, credit, sharing, self._costs(means) if visited else _FREE, BATCH_US)

    def _costs(self, means: dict[str, tuple[int, float]]) -> NDArray[np.float64]:
        """What a run of each task costs, in microseconds: as measured, and what a worker does beside."""
        costs = np.zeros(len(self._state.task_numbers))
        for task, (_, mean) in means.items():
            costs[self._state.task_numbers[task]] = mean + BESIDE_US
        return costs

    # What is held back

    def _holding(self, name: str, now_us: int) -> str | None:
        """What holds back all runs of a queue now."""
        settings = self._state.queues.get(name, {})
        number = self._state.queue_numbers.get(name)
        concurrency, leased = settings.get("concurrency"), 0 if number is None else self._state.runs.leased(number)
        if settings.get("paused"):
            return f"queue {name} is paused"
        if concurrency is not None and leased >= concurrency:
            return f"queue {name} has {counted(leased, 'run')} leased, its concurrency is {concurrency}"
        bucket = self._rates.get(name)
        return f"queue {name} starts {settings['rate']}" if bucket is not None and bucket.tokens(now_us) <= 0 else None

    def held_back(self, now_us: int) -> list[dict[str, Any]]:
        """[{task, queue, runs, reason}]: runs that wait for a limit, not for a worker."""
        found: dict[tuple[str, str, str], int] = {}
        columns, _ = self._state.runs.ready()
        reasons: dict[str, str | None] = {}
        for line, waiting, _, key_leased, _, _, job_leased in columns.T.tolist():
            what = self._state.line_of[line]
            if what.queue not in reasons:
                reasons[what.queue] = self._holding(what.queue, now_us)
            reason = reasons[what.queue] or self._narrow(what, key_leased, job_leased, now_us, "their concurrency keys have")
            if reason is not None:
                place = what.task, what.queue, reason
                found[place] = found.get(place, 0) + waiting
        return [{"task": task, "queue": queue, "runs": n, "reason": reason} for (task, queue, reason), n in sorted(found.items())]

    def _narrow(self, line: Line, key_leased: int, job_leased: int, now_us: int, keys: str) -> str | None:
        """What holds back the runs of one key or job; `keys`: how a key is called."""
        if line.job and job_leased >= line.job_most:
            return f"job {display_name(line.job)} has {counted(job_leased, 'run')} leased, its concurrency is {line.job_most}"
        if not line.key:
            return None
        queue, settings = line.queue, self._state.queues.get(line.queue, {})
        most = settings.get("key_concurrency", 1)
        if key_leased >= most:
            return f"{keys} all that key_concurrency of queue {queue} allows ({most})"
        bucket = self._key_rates.get((queue, line.key))
        if bucket is not None and bucket.tokens(now_us) <= 0:
            return f"queue {queue} starts {settings['key_rate']} of a concurrency key"
        return None

    # What one run waits for, see `waiting`

    def ahead(self, row: int, tasks: frozenset[str], queue: str, most: int, wall_us: int) -> tuple[NDArray[np.uint32], bool]:
        """(the runs of these tasks that go before one in its queue, were there no limits; True), or (the first `most`, False)."""
        self._look(tasks, frozenset({queue}), unlimited=True)
        return self._ready.before(row, most, wall_us)

    def holds(self, line: Line, key_leased: int, job_leased: int, now_us: int) -> str | None:
        """What holds back one run of this line now, if it is a limit."""
        key = f"concurrency key {line.key!r} has"
        return self._holding(line.queue, now_us) or self._narrow(line, key_leased, job_leased, now_us, key)

    def token_in_us(self, line: Line, rank: int, key_rank: int, now_us: int) -> int:
        """How long until the rates let the run of this rank in its queue, and in its key, go."""
        waits = [0]
        for bucket, place in ((self._rates.get(line.queue), rank), (self._key_rates.get((line.queue, line.key)), key_rank)):
            if bucket is not None and bucket.tokens(now_us) < place:
                waits.append(bucket.next_us(place) - now_us)
        return max(waits)


__all__ = ["AGEING_US", "Limits"]

"""Queues: their settings, and how much they let a worker have.

    concurrency       at most so many runs of the queue are leased at once
    key_concurrency   at most so many of one concurrency key (1 unless set), within the queue
    rate, burst       a token bucket: a lease takes a token; `burst` is what it holds (a tenth of a second's tokens unless set, at least 1)
    key_rate          another one for each key
    paused            nothing is leased; runs wait

What is leased is counted in the run table, so the first two are exact across kills and restarts. Buckets are soft and refilled on the
monotonic clock; a new one is empty, so a restart never adds to a rate. A limit holds back its own lines and stands in nobody else's way.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from . import protocol
from .arguments import done
from .checks import check_name, check_queue_settings, parse_rate
from .errors import InvalidArgumentError, ResourceExhaustedError
from .model import BATCH_MAX, NEVER, PRIORITY_MAX, QUEUES_MAX, US, RunState
from .overlap import cancel_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from numpy.typing import NDArray

    from .engine import Engine
    from .state import State
    from .turn import Incoming, Now

AGEING_US: Final = 300 * US  # waiting that lifts a run by one step of priority
_BUCKETS_MAX: Final = 10_000  # of keys; beyond it the full ones are forgotten
_KEY, _QUEUE_LEASED, _KEY_LEASED, _QUEUE = 5, 2, 3, 4  # rows of RunTable.ready


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

    def next_us(self) -> int:
        """When there is one, if there is none now."""
        return self.since_us + -(-(self.per_us - self.units) // self.count)


def _bucket(rate: str, burst: int | None, since_us: int) -> Bucket:
    count, per_us = parse_rate(rate, "rate")
    return Bucket(count, per_us, burst or max(1, count * US // (10 * per_us)), since_us)


@dataclass(slots=True)
class Room:
    """What one limit leaves, for all lines under it."""

    left: int
    wanted: int = 0
    lines: int = 0  # that still ask in this round


@dataclass(slots=True)
class Choice:
    """A ready line that may give runs."""

    line: int
    most: int
    last: int  # when it was served, by count
    rooms: list[Room] = field(default_factory=list)
    take: int = 0


class Limits:
    """The settings at work. Soft: made anew at a start."""

    def __init__(self, state: State, mono_us: int) -> None:
        self._state = state
        self._rates: dict[str, Bucket] = {}
        self._key_since: dict[str, int] = {}  # when the key buckets of a queue began to fill
        self._key_rates: dict[tuple[str, str], Bucket] = {}
        self._key_rates_max = _BUCKETS_MAX
        self._served: dict[int, int] = {}  # line -> number of the last pick that took of it
        self._picks = 0
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

    def _room(self, bucket: Bucket | None, left: int, now_us: int) -> int:
        """What is left under a limit, which may have been lowered, and its rate; a missing token is waited for."""
        if bucket is None or left <= 0:
            return max(0, left)
        tokens = bucket.tokens(now_us)
        if tokens <= 0:
            self.wake_us = min(self.wake_us, bucket.next_us())
        return min(left, tokens)

    def _queue_room(self, name: str, leased: int, now_us: int) -> Room | None:
        settings = self._state.queues.get(name)
        if settings is None:
            return None
        if settings.get("paused"):
            return Room(0)
        concurrency = settings.get("concurrency")
        if concurrency is None and "rate" not in settings:
            return None
        return Room(self._room(self._rates.get(name), NEVER if concurrency is None else concurrency - leased, now_us))

    def _key_room(self, queue: str, key: str, leased: int, now_us: int) -> Room:
        settings = self._state.queues.get(queue, {})
        rate = settings.get("key_rate")
        bucket = None if rate is None else self._key_bucket(queue, key, rate, now_us)
        return Room(self._room(bucket, settings.get("key_concurrency", 1) - leased, now_us))

    def _unblocked(self) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """Ready lines but those whose key has no room: there may be very many of these."""
        columns, since = self._state.runs.ready()
        keyed = columns[_KEY] > 0
        if keyed.any():
            most = np.ones(len(self._state.queue_numbers), np.uint32)
            for name, settings in self._state.queues.items():
                if "key_concurrency" in settings and name in self._state.queue_numbers:
                    most[self._state.queue_numbers[name]] = settings["key_concurrency"]
            keep = ~keyed | (columns[_KEY_LEASED] < most[columns[_QUEUE]])
            columns, since = columns[:, keep], since[keep]
        return columns, since

    def pick(self, tasks: frozenset[str], queues: frozenset[str], credit: int, sharing: int, now: Now) -> NDArray[np.uint32]:
        """Ready runs for one of `sharing` workers that ask: by priority and age, what makes up for the past last, then even shares."""
        columns, since = self._unblocked()
        rooms: dict[str, Room | None] = {}
        keys: dict[int, Room] = {}
        ranks: dict[tuple[int, bool], list[Choice]] = {}
        total = 0
        for (line, waiting, leased, key_leased, _, key), at in zip(columns.T.tolist(), since.tolist(), strict=True):
            what = self._state.line_of[line]
            if what.task not in tasks or (queues and what.queue not in queues):
                continue
            choice = Choice(line, waiting, self._served.get(line, 0))
            if what.queue not in rooms:
                rooms[what.queue] = self._queue_room(what.queue, leased, now.mono_us)
            room = rooms[what.queue]
            if room is not None:
                if room.left <= 0:
                    continue
                choice.rooms.append(room)
            if key:
                if key not in keys:
                    keys[key] = self._key_room(what.queue, what.key, key_leased, now.mono_us)
                choice.rooms.append(keys[key])
            choice.most = min(waiting, *(r.left for r in choice.rooms)) if choice.rooms else waiting
            if choice.most <= 0:
                continue
            if room is None:
                total += choice.most
            else:
                room.wanted += choice.most
            age = max(0, now.wall_us - at) // AGEING_US
            ranks.setdefault((min(PRIORITY_MAX, what.priority + age), not what.backlog), []).append(choice)
        total += sum(min(room.left, room.wanted) for room in rooms.values() if room is not None)
        return self._take(ranks, min(credit, -(-total // sharing)))

    def _take(self, ranks: dict[tuple[int, bool], list[Choice]], credit: int) -> NDArray[np.uint32]:
        runs = self._state.runs
        self._picks += 1
        parts = []
        for rank in sorted(ranks, reverse=True):
            if credit <= 0:
                break
            lines = ranks[rank]
            credit = _share(lines, credit)
            for choice in sorted(lines, key=lambda c: c.take):  # a short part does not wait behind a long one
                if choice.take:
                    parts.append(runs.peek(choice.line, choice.take))
                    self._served[choice.line] = self._picks
        return np.concatenate(parts) if parts else np.empty(0, np.uint32)

    # What is held back

    def _holding(self, name: str, now_us: int) -> str | None:
        """What holds back all runs of a queue now."""
        settings = self._state.queues.get(name, {})
        number = self._state.queue_numbers.get(name)
        concurrency, leased = settings.get("concurrency"), 0 if number is None else self._state.runs.leased(number)
        if settings.get("paused"):
            return f"queue {name} is paused"
        if concurrency is not None and leased >= concurrency:
            return f"queue {name} has {leased} runs leased, its concurrency is {concurrency}"
        bucket = self._rates.get(name)
        return f"queue {name} starts {settings['rate']}" if bucket is not None and bucket.tokens(now_us) <= 0 else None

    def held_back(self, now_us: int) -> list[dict[str, Any]]:
        """[{task, queue, runs, reason}]: runs that wait for a limit, not for a worker."""
        found: dict[tuple[str, str, str], int] = {}
        columns, _ = self._state.runs.ready()
        reasons: dict[str, str | None] = {}
        for line, waiting, _, key_leased, _, key in columns.T.tolist():
            what = self._state.line_of[line]
            if what.queue not in reasons:
                reasons[what.queue] = self._holding(what.queue, now_us)
            reason = reasons[what.queue] or (self._key_reason(what.queue, what.key, key_leased, now_us) if key else None)
            if reason is not None:
                place = what.task, what.queue, reason
                found[place] = found.get(place, 0) + waiting
        return [{"task": task, "queue": queue, "runs": n, "reason": reason} for (task, queue, reason), n in sorted(found.items())]

    def _key_reason(self, queue: str, key: str, leased: int, now_us: int) -> str | None:
        settings = self._state.queues.get(queue, {})
        most = settings.get("key_concurrency", 1)
        if leased >= most:
            return f"their concurrency keys have all that key_concurrency of queue {queue} allows ({most})"
        bucket = self._key_rates.get((queue, key))
        if bucket is not None and bucket.tokens(now_us) <= 0:
            return f"queue {queue} starts {settings['key_rate']} of a concurrency key"
        return None


def _share(lines: list[Choice], credit: int) -> int:
    """Give each line an even share, in rounds: what one can't use goes to the others. What is left of the credit.

    Within a limit the lines share alike what it leaves; who was served longest ago comes first, so nobody is passed over twice.
    """
    asking = sorted(lines, key=lambda c: (c.last, c.most))
    while credit > 0 and asking:
        before = credit
        for choice in asking:
            for room in choice.rooms:
                room.lines += 1
        for k, choice in enumerate(asking):
            take = min(-(-credit // (len(asking) - k)), choice.most - choice.take)
            for room in choice.rooms:
                take = min(take, -(-room.left // room.lines))
                room.lines -= 1
            for room in choice.rooms:
                room.left -= take
            choice.take += take
            credit -= take
        if credit == before:
            break
        asking = [c for c in asking if c.take < c.most and all(room.left > 0 for room in c.rooms)]
    return credit


# Verbs


def queue_set(engine: Engine, cmd: Incoming) -> bytes:
    """Change the settings that are given; nil takes one away."""
    name = _name(cmd)
    asked = check_queue_settings(cmd.request.args.get("settings"))
    return _change(engine, cmd, name, {**engine.state.queues.get(name, {}), **asked})


def queue_pause(engine: Engine, cmd: Incoming) -> bytes:
    """Lease nothing from a queue until it is resumed; what is leased goes on."""
    name = _name(cmd)
    return _change(engine, cmd, name, {**engine.state.queues.get(name, {}), "paused": True})


def queue_resume(engine: Engine, cmd: Incoming) -> bytes:
    """Lease from it again."""
    name = _name(cmd)
    return _change(engine, cmd, name, {**engine.state.queues.get(name, {}), "paused": None})


def _name(cmd: Incoming) -> str:
    return check_name(cmd.request.args.get("name"), "queue")


def _change(engine: Engine, cmd: Incoming, name: str, wanted: dict[str, Any]) -> bytes:
    old = engine.state.queues.get(name, {})
    settings = {key: wanted[key] for key in sorted(wanted) if wanted[key] is not None}
    if "burst" in settings and "rate" not in settings:
        raise InvalidArgumentError("burst: it is what the bucket of a rate holds; give the rate too, or take the burst away with it")
    if name not in engine.state.queues and len(engine.state.queues) >= QUEUES_MAX:
        raise ResourceExhaustedError(f"{QUEUES_MAX:,} queues have settings; take them away from another first")
    if settings != old:
        engine.record("QUEUE", {"at": engine.now.wall_us, "uid": cmd.uid, "name": name, "settings": settings})
        engine.limits.changed(name, old, engine.now.mono_us)
    return done(engine, cmd, _told(engine.state, [name])[0])


def queue_purge(engine: Engine, cmd: Incoming) -> bytes:
    """Cancel every open run of a queue that no worker holds."""
    name, runs = _name(cmd), engine.state.runs
    specs = [spec for spec, wire in engine.state.specs.items() if wire["queue"] == name]
    slots = np.array(runs.slots(), np.uint32) if specs else np.empty(0, np.uint32)
    count = 0
    for start in range(0, len(slots), BATCH_MAX):
        rows = slots[start : start + BATCH_MAX]
        fields = runs.gather(rows)
        mine = (fields["state"] <= RunState.RETRY_WAIT) & (fields["state"] != RunState.LEASED) & np.isin(fields["spec"], specs)
        if mine.any():
            cancel_rows(engine, np.ascontiguousarray(rows[mine]))
            count += int(mine.sum())
    return done(engine, cmd, {"count": count})


def queues(engine: Engine, cmd: Incoming) -> bytes:
    """All queues that have settings or that a definition names."""
    names = sorted(engine.state.queue_numbers.keys() | engine.state.queues.keys())
    return protocol.encode_ok(cmd.request.id, _told(engine.state, names))


def _told(state: State, names: Iterable[str]) -> list[dict[str, Any]]:
    columns, since = state.runs.ready()
    out = []
    for name in names:
        number, settings = state.queue_numbers.get(name), state.queues.get(name, {})
        mine = np.zeros(len(since), np.bool_) if number is None else columns[_QUEUE] == number
        out.append({
            "name": name, "settings": {key: value for key, value in settings.items() if key != "paused"},
            "queued": int(columns[1][mine].sum()), "leased": 0 if number is None else state.runs.leased(number),
            "oldest_us": int(since[mine].min()) if mine.any() else None, "paused": bool(settings.get("paused")),
        })
    return out


VERBS: Final[dict[str, Callable[[Engine, Incoming], bytes]]] = {
    "queue_set": queue_set, "queue_pause": queue_pause, "queue_resume": queue_resume, "queue_purge": queue_purge, "queues": queues,
}


__all__ = ["AGEING_US", "VERBS", "Limits"]

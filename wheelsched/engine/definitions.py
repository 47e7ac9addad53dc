"""Compiled definitions, by number, as arrays: what the due path needs to know about a million jobs at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ..model.nouns import HOOKS, MS, NEVER
from ..schedules.table import KIND_AFTER, KIND_AT, KIND_MANUAL

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..schedules.calendars import Calendars
    from ..schedules.table import ScheduleTable

OVERLAP_SKIP: Final = 0
OVERLAP_ALLOW: Final = 1
OVERLAP_BUFFER: Final = 2
OVERLAP_REPLACE: Final = 3  # one waits at most: the newest; cancel_other and kill_other also end what is active
FREE_TRIES: Final = 100  # excluded stretches that are passed in search of an occurrence that may run
TRIES: Final = 50_000  # of all searches of a turn
NO_LIMIT: Final = 0xFFFFFFFF
_CODES: Final = {"skip": OVERLAP_SKIP, "allow": OVERLAP_ALLOW, "buffer_one": OVERLAP_BUFFER, "buffer_all": OVERLAP_BUFFER}
_DTYPES: Final = {
    "kind": np.uint8, "a": np.int64, "overlap": np.uint8, "overlap_max": np.uint32, "start": np.int64, "end": np.int64,
    "max_runs": np.uint32, "timeout": np.int64, "skip_missed": np.bool_, "calendar": np.uint32, "jitter_us": np.int64,
    "jitter_share": np.float64, "pause_after": np.uint8, "late_after": np.int64, "quiet_from": np.int64, "quiet_until": np.int64,
    "dates": np.bool_, "expires_after": np.int64, "silence": np.int64, "hooked": np.bool_,
}


class SpecTable:
    """Compiled definitions, by spec number. `quiet_from` to `quiet_until` is a span in which no zone change takes an occurrence away."""

    kind: NDArray[np.uint8]
    a: NDArray[np.int64]
    overlap: NDArray[np.uint8]
    overlap_max: NDArray[np.uint32]
    start: NDArray[np.int64]
    end: NDArray[np.int64]
    max_runs: NDArray[np.uint32]
    timeout: NDArray[np.int64]
    skip_missed: NDArray[np.bool_]
    calendar: NDArray[np.uint32]  # 0: none; n: the n-th of calendar_sets
    jitter_us: NDArray[np.int64]
    jitter_share: NDArray[np.float64]  # of the period
    pause_after: NDArray[np.uint8]
    late_after: NDArray[np.int64]
    quiet_from: NDArray[np.int64]
    quiet_until: NDArray[np.int64]
    dates: NDArray[np.bool_]  # a union of instants alone
    expires_after: NDArray[np.int64]
    silence: NDArray[np.int64]  # heartbeat_timeout; NEVER: none
    hooked: NDArray[np.bool_]  # how a run ends triggers another job

    def __init__(self, schedules: ScheduleTable, calendars: Calendars) -> None:
        self.schedules = schedules
        self.calendars = calendars
        self.calendar_sets: list[tuple[str, ...]] = []
        self.tries_left = TRIES
        self.count = 0
        self.any_jitter = self.any_after = self.any_late = self.any_silence = self.any_expires = self.any_hooked = False
        self._cap = 64
        for name, dtype in _DTYPES.items():
            setattr(self, name, np.zeros(64, dtype))

    def add(self, spec: int, wire: dict[str, Any], now_us: int) -> None:
        """Compile one definition. ScheduleError when its schedule can't be evaluated; then nothing is held."""
        kind, a = self.schedules.compile(wire["schedule"], wire.get("hash_id") or "")
        if spec >= self._cap:
            self._cap *= 2
            for name in _DTYPES:
                old = getattr(self, name)
                fresh = np.zeros(self._cap, old.dtype)
                fresh[: len(old)] = old
                setattr(self, name, fresh)
        overlap, jitter = wire["overlap"], wire.get("jitter") or {}
        policy = overlap["policy"]
        self.kind[spec], self.a[spec] = kind, a
        self.overlap[spec] = _CODES.get(policy, OVERLAP_REPLACE)
        self.overlap_max[spec] = overlap["max"] or (1 if policy in ("buffer_one", "skip") else NO_LIMIT if policy == "allow" else 100)
        self.start[spec] = -1 if wire["start_us"] is None else wire["start_us"]
        self.end[spec] = NEVER if wire["end_us"] is None else wire["end_us"]
        self.max_runs[spec] = NO_LIMIT if wire["max_runs"] is None else wire["max_runs"]
        self.timeout[spec] = wire["timeout_us"]
        self.skip_missed[spec] = wire["catchup"]["policy"] == "skip"
        self.jitter_us[spec] = jitter.get("us", 0)
        self.jitter_share[spec] = jitter.get("percent", 0) / 100
        self.pause_after[spec] = wire.get("pause_after") or 0
        self.late_after[spec] = wire.get("late_after_us", NEVER)
        self.quiet_from[spec], self.quiet_until[spec] = self.schedules.quiet(kind, a, now_us)
        if wire.get("calendar"):
            names = tuple(wire["calendar"])
            if names not in self.calendar_sets:
                self.calendar_sets.append(names)
            self.calendar[spec] = self.calendar_sets.index(names) + 1
        parts = wire["schedule"].get("of", ())
        self.dates[spec] = bool(parts) and all(part["schedule"]["kind"] == "at" for part in parts)
        self.any_jitter |= bool(jitter)
        self.any_after |= kind == KIND_AFTER
        self.any_late |= "late_after_us" in wire
        self.expires_after[spec] = NEVER if wire["expires_after_us"] is None else wire["expires_after_us"]
        self.any_expires |= wire["expires_after_us"] is not None
        self.silence[spec] = wire.get("heartbeat_timeout_us", NEVER)
        self.any_silence |= "heartbeat_timeout_us" in wire
        self.hooked[spec] = any(hook in wire for hook in HOOKS)
        self.any_hooked |= bool(self.hooked[spec])
        self.count = spec + 1

    def grid(self, spec: NDArray[np.uint32], param: NDArray[np.int64], after: NDArray[np.int64]) -> NDArray[np.int64]:
        """First nominal instant strictly after each `after`, inside start and end; NEVER where there is none. Calendars don't count."""
        out = np.empty(len(spec), np.int64)
        after = np.maximum(after, self.start[spec] - 1)
        self.schedules.next_many(self.kind[spec], self.a[spec], np.ascontiguousarray(param), np.ascontiguousarray(after), out)
        out[out > self.end[spec]] = NEVER
        return out

    def next(self, spec: NDArray[np.uint32], param: NDArray[np.int64], after: NDArray[np.int64]) -> NDArray[np.int64]:
        """As `grid`, without what a calendar excludes; where nothing else is in sight an excluded one, which is decided as skipped."""
        out = self.grid(spec, param, after)
        if self.calendar_sets:
            self._pass_excluded(spec, param, out, np.flatnonzero(self.excluded(spec, out)))
        return out

    def _pass_excluded(self, spec: NDArray[np.uint32], param: NDArray[np.int64], out: NDArray[np.int64], left: NDArray[np.int64]) -> None:
        """Move the instants in rows `left` of `out` on to the first ones that no calendar excludes. Where the search finds none, or has
        taken long enough, an excluded one stays: it is decided as skipped when its time comes, and all before it.
        """
        for _ in range(FREE_TRIES):
            if not len(left) or self.tries_left <= 0:
                return
            self.tries_left -= len(left)
            left = left[np.argsort(out[left], kind="stable")]  # neighbours ask for the same stretch of a calendar
            pairs = zip(spec[left].tolist(), out[left].tolist(), strict=True)
            until = np.fromiter((self.calendars.blocked_until(self.names(s), at) for s, at in pairs), np.int64, len(left))
            coming = np.full(len(left), NEVER, np.int64)
            ends = until < NEVER
            coming[ends] = self.grid(spec[left[ends]], param[left[ends]], until[ends] - 1)
            left, coming = left[coming < NEVER], coming[coming < NEVER]
            out[left] = coming
            left = left[self.excluded(np.ascontiguousarray(spec[left]), coming)]

    def excluded(self, spec: NDArray[np.uint32], at: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which instants a calendar of their definition excludes."""
        out = np.zeros(len(spec), np.bool_)
        if self.calendar_sets:
            sets = self.calendar[spec]
            for n in np.unique(sets[sets > 0]).tolist():
                some = np.flatnonzero((sets == n) & (at < NEVER))
                out[some] = self.calendars.blocked(self.calendar_sets[n - 1], np.ascontiguousarray(at[some]))
        return out

    def names(self, spec: int) -> tuple[str, ...]:
        """The calendars of a definition."""
        return self.calendar_sets[int(self.calendar[spec]) - 1] if self.calendar[spec] else ()

    def next_one(self, spec: int, param: int, after: int) -> int:
        """`next` for one."""
        return int(self.next(np.array([spec], np.uint32), np.array([param], np.int64), np.array([after], np.int64))[0])

    def one(self, spec: int, param: int, after: int) -> int:
        """`grid` for one."""
        after = max(after, int(self.start[spec]) - 1)
        found = self.schedules.next_one(int(self.kind[spec]), int(self.a[spec]), param, after)
        return NEVER if found > self.end[spec] else found

    def before(self, spec: int, param: int, before: int) -> int:
        """The last nominal instant strictly before, inside start and end; NEVER if there is none."""
        before = min(before, int(self.end[spec]) + 1) if self.end[spec] < NEVER else before
        found = self.schedules.prev_one(int(self.kind[spec]), int(self.a[spec]), param, before)
        return NEVER if found < self.start[spec] else found

    def counted(self, spec: int, param: int, after: int, until: int) -> tuple[int, int, int]:
        """(count, first, last) of the nominal instants in (after, until], inside start and end; (0, NEVER, -1) for none."""
        until, after = min(until, int(self.end[spec])), max(after, int(self.start[spec]) - 1)
        found = self.schedules.count_between(int(self.kind[spec]), int(self.a[spec]), param, after, until, NO_LIMIT)
        return found if found[0] else (0, NEVER, -1)

    def quiet(self, spec: NDArray[np.uint32], cursor: NDArray[np.int64], nominal: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Where surely no zone change took an occurrence between cursor and nominal time."""
        return np.asarray((cursor >= self.quiet_from[spec]) & (nominal < self.quiet_until[spec]), np.bool_)

    def look_on(self, spec: int, at_us: int) -> None:
        """Move the quiet span of a definition to the one around an instant."""
        self.quiet_from[spec], self.quiet_until[spec] = self.schedules.quiet(int(self.kind[spec]), int(self.a[spec]), at_us)

    def once(self, spec: NDArray[np.uint32]) -> NDArray[np.bool_]:
        """Which definitions have one instant, and no grid."""
        return np.asarray((self.kind[spec] == KIND_AT) | (self.kind[spec] == KIND_MANUAL) | (self.kind[spec] == KIND_AFTER), np.bool_)


def whole_ms(us: int) -> int:
    """Rounded up to whole milliseconds."""
    return -(-us // MS) * MS

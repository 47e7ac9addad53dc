"""What moves next times from outside: other zone data at a start, a clock that was set back, a calendar that changed.

Nothing here fires an occurrence. Cursors see to it that none fires twice.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from ..model.errors import ScheduleError
from ..model.nouns import NEVER, Disposition, JobState, Reason, RunState
from ..schedules.expressions import parse
from ..schedules.table import KIND_AFTER, KIND_AT, KIND_MANUAL, ScheduleTable
from ..schedules.zones import Zone, Zones
from ..state import records
from .catchup import ledger_rows, owed_after
from .decided import taken_times
from .due import record_planned
from .spans import Entry, Span, changed_away

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .core import Core
    from .turn import ClockBack

LISTED_MAX: Final = 10_000  # moved jobs that `admin tzdiff` names


# Zone data


def zones_of(schedule: dict[str, Any]) -> set[str]:
    """The names of the zones that a schedule depends on."""
    if schedule["kind"] == "union":
        return set().union(*(zones_of(part["schedule"]) for part in schedule["of"]))
    return {schedule["tz"]} if schedule["kind"] == "cron" else set()


def keep_zones(core: Core, schedule: dict[str, Any]) -> None:
    """Journal the zone data that a new definition is evaluated with, once a zone."""
    record_zones(core, sorted(zones_of(schedule) - core.state.zones.keys()))


def record_zones(core: Core, names: list[str]) -> None:
    """Journal what these zones are now."""
    if names:
        data = [zlib.compress(core.zones.data(name), 9) for name in names]
        core.record("ZONES", {
            "at": core.now.wall_us, "version": core.state.meta.zone_version, "name": records.Blobs([n.encode() for n in names]),
            "data": records.Blobs(data),
        })


def other_zone_data(core: Core, old_version: str, new_version: str) -> None:
    """At a start: compute the next times anew where zone data changed, and list the jobs whose next time moved."""
    used: set[str] = set().union(*(zones_of(wire["schedule"]) for wire in core.state.specs.values())) if core.state.specs else set()
    known = core.state.zones
    changed = {name for name in used & known.keys() if zlib.decompress(known[name]) != core.zones.data(name)}
    if changed:
        old = Zones(lambda name: zlib.decompress(known[name]) if name in known else None)
        _Moved(core, old, changed).apply(old_version, new_version)
    record_zones(core, sorted(changed | (used - known.keys())))


class _Moved:
    """The jobs that other zone data moves."""

    def __init__(self, core: Core, old: Zones, changed: set[str]) -> None:
        self.core = core
        self.old = old
        self.changed = changed
        self.old_table, self.new_table = ScheduleTable(old), ScheduleTable(core.zones)
        self.members: dict[int, list[_Member]] = {}  # by definition

    def apply(self, old_version: str, new_version: str) -> None:
        """Record what moved."""
        core, specs = self.core, self.core.specs
        touched = {spec for spec, wire in core.state.specs.items() if zones_of(wire["schedule"]) & self.changed}
        rows = np.array(core.state.jobs.slots(), np.uint32)
        jobs = core.state.jobs.gather(rows)
        mine = np.isin(jobs["spec"], list(touched)) & (jobs["state"] == JobState.ACTIVE)
        rows, jobs = rows[mine], jobs[mine]
        before = jobs["next_us"].copy()
        base = owed_after(core, jobs)
        following = specs.next(jobs["spec"].copy(), jobs["param_us"].copy(), base)
        over = jobs["fired"] >= specs.max_runs[jobs["spec"]]
        following[over & (following > core.now.wall_us)] = NEVER  # what is past has its row in the ledger first
        moved = following != before
        if moved.any():
            retime(core, rows[moved], jobs[moved], following[moved])
        self._pass_by(rows, jobs, following)
        now = core.state.jobs.gather(rows)["next_us"]
        moved = now != before
        if not moved.any():
            return
        rows, before, now = rows[moved], before[moved], now[moved]
        core.record("TZDIFF", {
            "at": core.now.wall_us, "old": old_version, "new": new_version, "total": len(rows),
            "name": records.Blobs(core.state.jobs.names(rows[:LISTED_MAX])), "before": before[:LISTED_MAX],
            "after": now[:LISTED_MAX].copy(),
        })

    def _pass_by(self, rows: NDArray[np.uint32], jobs: Any, following: NDArray[np.int64]) -> None:
        """Ledger rows of occurrences whose wall time was decided already under the old data: they don't fire again."""
        passed: dict[tuple[int, int, int, int], tuple[list[Entry], int]] = {}
        planned: list[dict[str, int]] = []
        for i in np.flatnonzero((jobs["cursor_us"] >= 0) & (following < NEVER)).tolist():
            key = int(jobs["spec"][i]), int(jobs["param_us"][i]), int(jobs["cursor_us"][i]), int(following[i])
            if key not in passed:  # jobs of one definition mostly stand at the same time
                passed[key] = self._passed(*key)
            entries, at = passed[key]
            if entries:
                row, last = int(rows[i]), entries[-1].span.last
                with_run = taken_times(self.core, row, [e.span.first for e in entries])  # moved by a person: it has its row
                state = JobState.FINISHED if at == NEVER else JobState.ACTIVE
                common = {"job": row, "next": at, "cursor": last, "job_state": state}
                planned += ledger_rows([e for e in entries if e.span.first not in with_run], common)
        record_planned(self.core, planned)

    def _passed(self, spec: int, param: int, cursor: int, at: int) -> tuple[list[Entry], int]:
        """The occurrences from `at` on that were decided by their wall time, and the first one that was not."""
        entries: list[Entry] = []
        while at < NEVER and self._again(spec, param, cursor, at):
            entries.append(Entry(Span(at, at, 1), Disposition.TZDATA_MOVED, Reason.NONE))
            at = self.core.specs.next_one(spec, param, at)
        return entries, at

    def _again(self, spec: int, param: int, cursor: int, at: int) -> bool:
        """Whether each member of the schedule that gives `at` had that wall time, or a later one, at or before the cursor."""
        if spec not in self.members:
            self.members[spec] = self._compiled(spec)
        giving = [m for m in self.members[spec] if self.new_table.next_one(*m.mine, param if m.anchor == NEVER else m.anchor, at - 1) == at]
        return bool(giving) and all(self._had(member, cursor, at) for member in giving)

    def _had(self, member: _Member, cursor: int, at: int) -> bool:
        if member.theirs is None:
            return False
        old, new = self.old.get(member.zone), self.core.zones.get(member.zone)
        last = self.old_table.prev_one(*member.theirs, NEVER, cursor + 1)
        differs = _offset(old, at) != _offset(new, at) or (last < NEVER and _offset(old, last) != _offset(new, last))
        return last < NEVER and differs and at + _offset(new, at) <= last + _offset(old, last)

    def _compiled(self, spec: int) -> list[_Member]:
        wire = self.core.state.specs[spec]
        name, found = wire.get("hash_id") or "", []
        for part, anchor in _members(wire["schedule"]):
            mine = _compiled(self.new_table, part, name)
            if mine is None:
                continue
            wall = part["kind"] == "cron" and part["tz"] in self.changed
            if wall and parse(part["expr"], part["seconds"], part["day_or"], name or None).wild:
                wall = False  # it follows real time
            found.append(_Member(mine, anchor, part["tz"] if wall else "", _compiled(self.old_table, part, name) if wall else None))
        return found


class _Member(NamedTuple):
    """A schedule, or one of a union, compiled with the new data; if it keeps to wall time in a zone that changed, with the old too."""

    mine: tuple[int, int]
    anchor: int
    zone: str
    theirs: tuple[int, int] | None


def _compiled(table: ScheduleTable, part: dict[str, Any], name: str) -> tuple[int, int] | None:
    """None for what never fires with that zone data: a union may have such members."""
    try:
        return table.compile(part, name)
    except ScheduleError:
        return None


def _members(schedule: dict[str, Any]) -> list[tuple[dict[str, Any], int]]:
    """(schedule, its own anchor or NEVER) of a schedule, or of the members of a union."""
    return [(part["schedule"], part["param_us"]) for part in schedule["of"]] if schedule["kind"] == "union" else [(schedule, NEVER)]


def _offset(zone: Zone, us: int) -> int:
    """Offset from UTC in microseconds at an instant."""
    i = int(np.searchsorted(np.frombuffer(zone.at_s, np.int64), us // 1_000_000, "right")) if len(zone.at_s) else 0
    return int(zone.offset_s[i]) * 1_000_000


# The clock


def clock_back(core: Core, item: ClockBack) -> None:
    """Cursors beyond the new now are lowered to it, and ledger rows beyond it are withdrawn; runs beyond it stay and block their own
    nominal time. What was put or resumed while the clock was ahead counts from the new now.
    """
    now = core.now.wall_us
    for wheel in (core.wall, core.delayed, core.alarms.wheel, core.deadlines.wheel):
        wheel.rebuild(now // 1_000)
    _withdraw(core, now)
    rows = np.array(core.state.jobs.slots(), np.uint32)
    jobs = core.state.jobs.gather(rows)
    grid = ~core.specs.once(jobs["spec"]) if len(rows) else np.zeros(0, np.bool_)
    _delays_back(core, rows, jobs)
    jobs = core.state.jobs.gather(rows)
    wrong = (jobs["updated_us"] > now) & (jobs["state"] != JobState.DELETED) & grid
    ahead = (jobs["cursor_us"] > now) | wrong
    cursor = np.where(wrong, now, np.minimum(jobs["cursor_us"], now))[ahead]
    rows, jobs = rows[ahead], jobs[ahead]
    following = core.specs.next(jobs["spec"].copy(), jobs["param_us"].copy(), np.full(len(rows), now, np.int64))
    delays = core.specs.kind[jobs["spec"]] == KIND_AFTER
    following[delays] = jobs["next_us"][delays]
    left = (following < NEVER) & (jobs["fired"] < core.specs.max_runs[jobs["spec"]])
    live = (jobs["state"] == JobState.ACTIVE) | ((jobs["state"] == JobState.FINISHED) & left)
    following[~live] = NEVER
    blocked = [(core.state.jobs.find_key(key), at) for key, at in item.fired]
    blocked = [(job, at) for job, at in blocked if job is not None]
    _keep_decided(core, rows, jobs["cursor_us"], cursor, item)
    core.record("CLOCK", {
        "at": now, "job": rows, "cursor": cursor, "next": following,
        "state": np.where(live, JobState.ACTIVE, jobs["state"]).astype(np.uint8),
        "blocked_job": np.array([j for j, _ in blocked], np.uint32), "blocked_at": np.array([a for _, a in blocked], np.int64),
    })
    core.arm_jobs(rows, following)
    core.missed_before_us = min(core.missed_before_us, now)


def _keep_decided(core: Core, rows: NDArray[np.uint32], before: NDArray[np.int64], cursor: NDArray[np.int64], item: ClockBack) -> None:
    """What history has dropped blocks no nominal time: remember how far each job had decided."""
    spans = [(first, last) for first, last in item.dropped if last > core.now.wall_us]
    if not spans:
        return
    some = (before > cursor) & (before >= spans[0][0])
    if some.any():
        core.record("DECIDED", {
            "at": core.now.wall_us, "job": rows[some], "until": before[some], "first": np.array([first for first, _ in spans], np.int64),
            "last": np.array([last for _, last in spans], np.int64),
        })


def _delays_back(core: Core, rows: NDArray[np.uint32], jobs: Any) -> None:
    """Delays after completion that were counted on the wrong clock count from now."""
    delay = core.specs.a[jobs["spec"]]
    wrong = (core.specs.kind[jobs["spec"]] == KIND_AFTER) & (jobs["state"] == JobState.ACTIVE)
    known = jobs["next_us"] < NEVER  # else it is the last one, which was decided
    latest = core.now.wall_us + np.where(known, delay + 1_000, 0)
    wrong &= jobs["param_us"] > np.maximum(latest, core.specs.start[jobs["spec"]])
    if wrong.any():
        some, never = rows[wrong], np.full(int(wrong.sum()), NEVER, np.int64)
        core.record("RETIME", {
            "at": core.now.wall_us, "job": some, "next": never, "cursor": jobs["cursor_us"][wrong].copy(),
            "param": np.clip(jobs["cursor_us"][wrong], 0, core.now.wall_us), "state": jobs["state"][wrong].copy(),
        })
        core.arm_jobs(some, never)
        core.look_at(some)


def _withdraw(core: Core, now: int) -> None:
    """Dispositions beyond the new now that are not runs are decided again when their time comes."""
    rows = core.state.runs.peek(1, 2**31)
    fields = core.state.runs.gather(rows)
    ahead = (fields["state"] == RunState.SKIPPED) & (fields["due_us"] > now) & (fields["disposition"] != Disposition.TZDATA_MOVED)
    rows, fields = rows[ahead], fields[ahead]
    if not len(rows):
        return
    until, count = np.zeros(len(rows), np.int64), np.zeros(len(rows), np.uint32)
    for i in np.flatnonzero(fields["nominal_us"] <= now).tolist():
        until[i], count[i] = _up_to(core, fields[i], now)
    core.record("WITHDRAW", {"at": now, "run": rows, "until": until, "count": count})


def _up_to(core: Core, f: Any, now: int) -> tuple[int, int]:
    """(end, count) of what is left of a range that begins before now and ends after it."""
    spec, param, first = int(f["spec"]), int(f["queued_us"]), int(f["nominal_us"])
    if f["reason"] in (Reason.DST_GAP, Reason.DST_OVERLAP):
        kept = [e.span for e in changed_away(core.specs, spec, param, first - 1, now) if e.reason == f["reason"]]
        n, last = sum(span.n for span in kept), max((span.last for span in kept), default=first)
    else:
        n, _, last = core.specs.counted(spec, param, first - 1, now)
    return (last, n) if n else (first, 1)


# Calendars


def calendar_changed(core: Core, name: str) -> int:
    """Next times of the jobs that a calendar concerns, computed anew from what is decided. How many jobs use it."""
    rows = np.array(core.state.jobs.slots(), np.uint32)
    if not len(rows):
        return 0
    jobs = core.state.jobs.gather(rows)
    users = [spec for spec in range(core.specs.count) if name in core.specs.names(spec)]
    mine = np.isin(jobs["spec"], users) & (jobs["state"] != JobState.DELETED)
    rows, jobs = rows[mine], jobs[mine]
    again = (jobs["state"] == JobState.ACTIVE) & ~np.isin(core.specs.kind[jobs["spec"]], (KIND_AT, KIND_MANUAL, KIND_AFTER))
    if again.any():
        some = jobs[again]
        held = core.state.meta.held_us >= 0  # what came due meanwhile is decided on release
        base = owed_after(core, some) if held else np.maximum(some["cursor_us"], core.now.wall_us)
        following = core.specs.next(some["spec"].copy(), some["param_us"].copy(), base)
        retime(core, rows[again], some, following)
        core.arm_jobs(rows[again], following)
    return len(rows)


def retime(core: Core, rows: NDArray[np.uint32], jobs: Any, following: NDArray[np.int64]) -> None:
    """Record other next times of jobs; one without any is finished."""
    core.record("RETIME", {
        "at": core.now.wall_us, "job": rows, "next": following, "cursor": jobs["cursor_us"].copy(), "param": jobs["param_us"].copy(),
        "state": np.where(following == NEVER, JobState.FINISHED, JobState.ACTIVE).astype(np.uint8),
    })


__all__ = ["calendar_changed", "clock_back", "keep_zones", "other_zone_data", "zones_of"]

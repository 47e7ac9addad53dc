"""What became of an occurrence, or will, in words: `why`.

The answer comes from, in this order: the rows of the run table, those of the run history, and for what has no row the schedule itself with
all that bears on it: a person's exception, a pause, a hold, a calendar, a zone change, start, end and max_runs.
"""

from __future__ import annotations

from bisect import bisect_right
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ..engine.catchup import owed_after
from ..engine.decided import is_lost, part_lost, taken_between
from ..engine.retime import zones_of
from ..engine.spans import free_and_excluded
from ..engine.start_times import armed_us
from ..model.errors import InvalidArgumentError, NotFoundError
from ..model.ids import scheduled_run_id
from ..model.nouns import INSTANT_MAX_US, NEVER, US, JobState, RunState, display_name, format_duration
from ..protocol import frames
from ..reads import reads
from ..schedules.table import KIND_AFTER, KIND_MANUAL
from ..state import readable
from ..state.state import SKIP
from .put import job_row

if TYPE_CHECKING:
    from ..engine.core import Core
    from ..engine.turn import Incoming
    from ..schedules.zones import Zone

_COUNTED_US: Final = 3_660 * 86_400 * US  # how far ahead occurrences are counted against max_runs
_COUNTED_CALENDAR_US: Final = 400 * 86_400 * US  # where a calendar has to be walked through
_REASONS: Final = {
    "overlap": "an earlier run was still open",
    "misfire": "the server was away or held, or the clock was set, and the catch-up policy left it out",
    "pause": "the job was paused, or all triggering was held", "calendar": "a calendar excludes it",
    "dst_gap": "the clock skipped that wall time (daylight saving)", "dst_overlap": "that wall time came twice (daylight saving)",
    "window": "it was older than the catch-up window", "max": "more were missed than the catch-up maximum",
    "limit": "max_runs was used up", "deleted": "the job was deleted", "manual": "a person skipped it",
    "decided": "it was decided before the clock was set back, and what became of it then is no longer in history",
}


def instant_of(args: dict[str, Any], name: str = "at_us") -> int:
    """A checked instant of a request."""
    value = args.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= INSTANT_MAX_US:
        raise InvalidArgumentError(f"{name}: microseconds since 1970, up to the year 9999, are wanted")
    return value


class Clock:
    """Writes instants in the zone of a job, and in UTC where that differs."""

    def __init__(self, core: Core, spec: int) -> None:
        zones = sorted(zones_of(core.state.specs[spec]["schedule"]))
        self._zone = core.zones.tzinfo(zones[0]) if len(zones) == 1 else UTC
        self._changes = core.zones.get(zones[0] if len(zones) == 1 else "UTC")

    def before_change(self, us: int) -> str:
        """The wall time as it would be without the last change of the zone: one that the clock skipped."""
        wall = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=min(INSTANT_MAX_US, us + _offset_before_change(self._changes, us)))
        return wall.strftime("%Y-%m-%d %H:%M:%S")

    def __call__(self, us: int) -> str:
        moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=us)
        try:
            local = moment.astimezone(self._zone)
        except OverflowError:  # the last night of 9999
            local = moment
        form = "milliseconds" if us % 1_000_000 else "seconds"
        text = local.isoformat(sep=" ", timespec=form)
        return text if local.utcoffset() else text.replace("+00:00", "Z")


def _offset_before_change(zone: Zone, us: int) -> int:
    """Offset from UTC, microseconds, before the last change at or before an instant."""
    i = bisect_right(zone.at_s, us // 1_000_000)
    return zone.offset_s[max(0, i - 1)] * 1_000_000


def fate(disposition: str, text: str, **more: Any) -> dict[str, Any]:
    """What `why` answers."""
    blank = dict.fromkeys(("reason", "run_id", "at_us", "scheduled_us", "until_us", "count", "blocking"))
    return {"disposition": disposition, "text": text, **blank, **more}


def why(core: Core, cmd: Incoming) -> bytes:
    """What became, or will become, of the occurrence of a job at a nominal time."""
    at = instant_of(cmd.request.args)
    row = job_row(core, cmd.request.args, deleted=True)
    return frames.encode_ok(cmd.request.id, explain(core, row, at, cmd.found))


def explain(core: Core, row: int, at: int, found: list[dict[str, Any]] | None) -> dict[str, Any]:
    """The same, as a map. `found`: rows of the run history that cover the instant, oldest first. NotFoundError when it is no occurrence."""
    fields = core.state.jobs.gather(np.array([row], np.uint32))[0]
    name = display_name(core.state.jobs.names(np.array([row], np.uint32))[0].decode())
    clock = Clock(core, int(fields["spec"]))
    decided = [*(found or ()), *_rows_at(core, row, at)]
    if at > core.now.wall_us:  # a ledger row of the time before the clock went back: its time will come again
        decided = [run for run in decided if run["state"] != "skipped" or run["disposition"] == "superseded"]
    if decided:
        runs = [run for run in decided if run["state"] != "skipped"]
        return _decided(runs[-1] if runs else decided[-1], name, at, clock)
    exception = core.state.exceptions.get((row, at))
    if exception == SKIP:
        return fate("skipped", f"{name} will not run at {clock(at)}: a person skipped it", reason="manual", scheduled_us=at)
    if exception is not None:
        return fate("moved", f"{name} was moved from {clock(at)} to {clock(exception)}", reason="manual", scheduled_us=at, at_us=exception)
    return _undecided(core, row, fields, name, at, clock)


def _rows_at(core: Core, row: int, at: int) -> list[dict[str, Any]]:
    """What the run table has of an occurrence, oldest first."""
    runs = core.state.runs
    ended = np.ascontiguousarray(runs.chained(row, ended=True)[::-1])
    f = runs.gather(ended)
    hits = ended[(f["state"] == RunState.SKIPPED) & (f["nominal_us"] <= at) & (f["due_us"] >= at)].tolist()
    own = core.state.find_run(scheduled_run_id(core.state.jobs.names(np.array([row], np.uint32))[0], at))
    if own is not None and own not in hits:
        hits.append(own)
    return [readable.run(core.state, i, core.running) for i in hits]


def _decided(run: dict[str, Any], name: str, at: int, clock: Clock) -> dict[str, Any]:
    """The answer from a run or a row of the ledger."""
    state, reason = run["state"], run["reason"]
    common = {"run_id": run["id"], "at_us": run["created_us"], "scheduled_us": at, "count": run["count"], "until_us": run["until_us"]}
    if state != "skipped":
        late = max(0, (run["started_us"] or run["queued_us"] or run["created_us"]) - at)
        how = {"backfill": "made by a backfill", "schedule": "on schedule"}[run["trigger"]]
        if reason == "misfire":
            how = f"as catch-up, {format_duration(late // 1_000_000 * 1_000_000)} late"
            how += f", standing for {run['missed']} missed ones too" if run["missed"] else ""
        if reason == "expired":
            how = "not started within expires_after"
        if reason == "deleted":
            how = "the job was deleted"
        moved = run["disposition"] == "moved"
        if moved and run["next_us"]:
            common["at_us"] = run["next_us"]
            text = f"{name} was moved by a person from {clock(at)} to {clock(run['next_us'])}: run {run['id']} waits for that"
            return fate("moved", text, reason="manual", **common)
        how = "moved by a person" if moved else how
        return fate("moved" if moved else "fired", f"{name} at {clock(at)}: run {run['id']} ({how}) is {state}", reason=reason, **common)
    common["run_id"] = None
    where = "" if (run["count"] or 1) == 1 else f", one of {run['count']} from {clock(run['scheduled_us'])} to {clock(run['until_us'])}"
    because = _REASONS.get(reason or "", "")
    if run["blocking"]:
        because = f"run {run['blocking']} was still open"
        common["blocking"] = run["blocking"]
    text = {
        "coalesced": f"{name} at {clock(at)} was folded into another run{where}: {because}",
        "superseded": f"{name} at {clock(at)} was replaced by a new definition before it ran",
        "tzdata_moved": f"{name} at {clock(at)} did not run: other zone data moved it here, and its wall time was decided already",
    }.get(run["disposition"], f"{name} at {clock(at)} was skipped{where}: {because}")
    return fate(run["disposition"], text, reason=reason, **common)


def _undecided(core: Core, row: int, f: Any, name: str, at: int, clock: Clock) -> dict[str, Any]:
    """The answer from the schedule."""
    specs, spec, param, now = core.specs, int(f["spec"]), int(f["param_us"]), core.now.wall_us
    common: dict[str, Any] = {"scheduled_us": at}
    kind, a = int(specs.kind[spec]), int(specs.a[spec])
    on_grid = kind != KIND_MANUAL and specs.schedules.next_one(kind, a, param, at - 1) == at
    if not on_grid:
        lost = specs.schedules.wall_fate(kind, a, param, at)
        if lost is None or not int(specs.start[spec]) <= at <= int(specs.end[spec]):
            raise NotFoundError(_no_occurrence(core, f, name, at, clock))
        if (at <= int(owed_after(core, f)) and lost[1] is None) or at < int(f["created_us"]):
            raise NotFoundError(_nothing(f, name, at, clock))
        return _lost(name, at, lost, clock, clock.before_change(at) if lost[0] == "dst_gap" else clock(at))
    if not int(specs.start[spec]) <= at <= int(specs.end[spec]):
        side = "before the job's start" if at < specs.start[spec] else "after the job's end"
        return fate("skipped", f"{name} does not run at {clock(at)}: it is {side}", reason="limit", **common)
    owed = int(owed_after(core, f)) if f["state"] != JobState.DELETED else int(f["updated_us"])
    if f["state"] == JobState.DELETED and at > owed:
        text = f"{name} does not run at {clock(at)}: the job was deleted at {clock(owed)}"
        return fate("skipped", text, reason="deleted", at_us=owed, **common)
    over = reads.runs_left(core, f) == 0 and at > f["cursor_us"] and at >= f["created_us"]  # whatever was put since
    if at <= owed and not over and (f["state"] != JobState.ACTIVE or f["next_us"] != at):
        raise NotFoundError(_nothing(f, name, at, clock))
    if specs.excluded(np.array([spec], np.uint32), np.array([at], np.int64))[0]:
        text = f"{name} does not run at {clock(at)}: calendar {specs.calendars.blocking(specs.names(spec), at)} excludes it"
        return fate("skipped", text, reason="calendar", **common)
    if is_lost(core, row, at):
        return fate("skipped", f"{name} does not run at {clock(at)}: {_REASONS['decided']}", reason="decided", **common)
    return _coming(core, row, f, name, at, clock, now)


def _coming(core: Core, row: int, f: Any, name: str, at: int, clock: Clock, now: int) -> dict[str, Any]:
    """An occurrence that the schedule has and nothing excludes."""
    common: dict[str, Any] = {"scheduled_us": at, "at_us": at}
    left = reads.runs_left(core, f)
    if f["state"] == JobState.FINISHED or not left:
        text = f"{name} does not run at {clock(at)}: the job is finished, no run is left of max_runs"
        return fate("skipped", text, reason="limit", **common)
    if f["state"] == JobState.PAUSED:
        note = core.state.pauses.get(row)
        since = f"{name} is paused since {clock(int(f['updated_us']))}" + (f" ({note})" if note else "")
        text = "will not run unless it is resumed before" if at > now else "waits for the resume, which skips it unless told otherwise"
        return fate("pending", f"{since}: the occurrence at {clock(at)} {text}", reason="pause", **common)
    if core.state.meta.held_us >= 0:
        text = f"all triggering is held since {clock(core.state.meta.held_us)}: the occurrence at {clock(at)} is decided on release"
        return fate("pending", text, reason="pause", **common)
    wire, before = core.state.specs[int(f["spec"])], _runs_before(core, row, f, at)
    if before >= left:
        text = f"{name} will not run at {clock(at)}: earlier occurrences use up the {left} that max_runs leaves"
        return fate("skipped", text, reason="limit", **common)
    tz = sorted(zones_of(wire["schedule"]))
    because = "its schedule says so" + (f" (zone {', '.join(tz)})" if tz else "")
    if wire.get("jitter"):
        rows = np.array([row], np.uint32)
        following = np.array([NEVER if before + 1 >= left else core.specs.next_one(int(f["spec"]), int(f["param_us"]), at)])
        start = armed_us(core.specs, f["spec"].reshape(1), core.state.jobs.gather(rows)["key_low"], np.array([at]), following)
        common["at_us"] = int(start[0])
        because += f", and start at {clock(int(start[0]))}, put off by its jitter"
    if int(f["active"]) + int(f["waiting"]):
        because += f"; a run is open now, and overlap is {wire['overlap']['policy']}"
    return fate("pending", f"{name} will fire at {clock(at)}, because {because}", **common)


def _runs_before(core: Core, row: int, f: Any, at: int) -> int:
    """How many coming occurrences before an instant make a run, as far as they are counted; 0 where max_runs has no limit."""
    spec, param, first = int(f["spec"]), int(f["param_us"]), int(f["next_us"])
    if core.state.specs[spec]["max_runs"] is None or first >= at:
        return 0
    most = _COUNTED_CALENDAR_US if core.specs.calendar[spec] else _COUNTED_US
    free, _ = free_and_excluded(core.specs, spec, param, first - 1, min(at - 1, first + most))
    free, _ = part_lost(core, row, spec, param, free)
    marked = {to for job, to in core.state.exceptions if job == row} | taken_between(core, row, spec, param, first, at - 1)
    inside = [to for to in marked if any(span.first <= to <= span.last for span in free)]
    return sum(span.n for span in free) - sum(core.specs.one(spec, param, to - 1) == to for to in inside)


def _lost(name: str, at: int, lost: tuple[str, int | None], clock: Clock, wall: str) -> dict[str, Any]:
    """A wall time that a zone change took away."""
    reason, instead = lost
    what = "that wall time does not exist" if reason == "dst_gap" else "that wall time comes twice"
    text = f"{name} at {wall}: {what} on that day (daylight saving)"
    if instead is None:
        return fate("skipped", f"{text}, and the schedule's rule for that skips it", reason=reason, scheduled_us=at)
    return fate("coalesced", f"{text}: it runs at {clock(instead)}", reason=reason, scheduled_us=at, at_us=instead)


def _nothing(f: Any, name: str, at: int, clock: Clock) -> str:
    return (
        f"{name} at {clock(at)}: nothing is on record. The job was put, changed or resumed at {clock(int(f['updated_us']))},"
        " or it is longer ago than the history is kept; `job history` has its changes"
    )


def _no_occurrence(core: Core, f: Any, name: str, at: int, clock: Clock) -> str:
    specs, spec, param = core.specs, int(f["spec"]), int(f["param_us"])
    if specs.kind[spec] == KIND_MANUAL:
        return f"{name} has no schedule of its own: it runs when it is triggered"
    if specs.kind[spec] == KIND_AFTER:
        known = f"the next time is {clock(int(f['next_us']))}" if f["next_us"] < NEVER else "the next one is known when its run has ended"
        return f"{name} has no occurrence at {clock(at)}: its delay counts from the end of each run; {known}"
    before, after = specs.before(spec, param, at), specs.one(spec, param, at)
    near = [clock(us) for us in (before, after) if us < NEVER]
    return f"{name} has no occurrence at {clock(at)}" + (f"; the nearest are {' and '.join(near)}" if near else "")


__all__ = ["explain", "fate", "instant_of", "why"]

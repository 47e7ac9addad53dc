"""The operator's verbs: hold and release, calendars, what other zone data moved, who changed a job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ..engine.arguments import done, text, whole
from ..engine.catchup import owed_after
from ..engine.due import decide_jobs
from ..engine.retime import calendar_changed
from ..engine.unattended import settle
from ..model.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError, ResourceExhaustedError
from ..model.ids import job_key
from ..model.nouns import CALENDARS_MAX, KEY_MAX, NOTE_MAX, JobState, display_name
from ..protocol import frames
from ..protocol.definition import SERVER_KEYS
from ..schedules.calendars import check_calendar
from ..state.changelog import BACKFILL, MOVE, NO_SPEC, SKIP, UNDO
from .put import job_row

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..engine.core import Core
    from ..engine.turn import Incoming


def hold(core: Core, cmd: Incoming) -> bytes:
    """Stop all triggering: no occurrence and no delayed run starts until release. What is queued goes on. A hold stays as it was."""
    note = text(cmd.request.args, "note", NOTE_MAX)
    if core.state.meta.held_us < 0:
        set_hold(core, cmd.uid, on=True, note=note)
    return done(core, cmd, _held(core))


def set_hold(core: Core, uid: int, *, on: bool, note: str) -> None:
    """Record the switch."""
    core.record("HOLD", {"at": core.now.wall_us, "uid": uid, "on": on, "note": note})


def _held(core: Core) -> dict[str, Any]:
    meta = core.state.meta
    return {"held": meta.held_us >= 0, "since_us": None if meta.held_us < 0 else meta.held_us, "note": meta.hold_note}


def release(core: Core, cmd: Incoming) -> bytes:
    """Trigger again. What came due meanwhile is a misfire, decided by each job's policy."""
    missed, held_us = 0, core.state.meta.held_us
    if held_us >= 0:
        jobs = core.state.jobs.gather(np.array(core.state.jobs.slots(), np.uint32))
        missed = int(((jobs["state"] == JobState.ACTIVE) & (jobs["next_us"] <= core.now.wall_us)).sum())
        set_hold(core, cmd.uid, on=False, note="")
        core.missed_before_us = core.now.wall_us
        core.held_span = held_us, core.now.wall_us
        core.effects.again = True
    return done(core, cmd, {"held": False, "missed": missed})


def calendar_put(core: Core, cmd: Incoming) -> bytes:
    """Make or change a calendar. It is effective at once for what is not decided yet."""
    name, wire = _calendar_name(cmd.request.args), check_calendar(cmd.request.args.get("calendar"))
    return done(core, cmd, {"name": name, "calendar": wire, "jobs": put_calendar(core, cmd.uid, name, wire)})


def put_calendar(core: Core, uid: int, name: str, wire: dict[str, Any]) -> int:
    """Record a checked calendar; how many jobs use it. What it excluded up to now is decided by what it was."""
    if name not in core.state.calendars and len(core.state.calendars) >= CALENDARS_MAX:
        raise ResourceExhaustedError(f"{CALENDARS_MAX} calendars are there; delete one first")
    if core.state.calendars.get(name) == wire:
        return _users(core, name)
    rows = np.array(rows_using(core, name), np.uint32)
    decide_jobs(core, rows)
    if len(rows):
        fields = core.state.jobs.gather(rows)
        owed = owed_after(core, fields)
        for row in rows[core.specs.grid(fields["spec"].copy(), fields["param_us"].copy(), owed) <= core.now.wall_us].tolist():
            settle(core, row)
    core.calendars.put(name, wire)  # raises for an unknown zone before anything is recorded
    core.record("CALENDAR", {"at": core.now.wall_us, "uid": uid, "name": name, "wire": wire})
    return calendar_changed(core, name)


def calendar_delete(core: Core, cmd: Incoming) -> bytes:
    """Delete a calendar that no job uses."""
    name = _calendar_name(cmd.request.args)
    if name not in core.state.calendars:
        raise NotFoundError(f"no calendar {name}")
    users = _users(core, name)
    if users:
        raise FailedPreconditionError(f"calendar {name} is used by {users} jobs; put them without it first", jobs=users)
    core.calendars.remove(name)
    core.record("CALENDAR", {"at": core.now.wall_us, "uid": cmd.uid, "name": name, "wire": None})
    return done(core, cmd, {"name": name})


def calendars(core: Core, cmd: Incoming) -> bytes:
    """All calendars by name."""
    listed = [{"name": name, "calendar": wire, "jobs": _users(core, name)} for name, wire in sorted(core.state.calendars.items())]
    return frames.encode_ok(cmd.request.id, listed)


def _calendar_name(args: dict[str, Any]) -> str:
    name = args.get("name")
    if not isinstance(name, str) or not 1 <= len(name) <= KEY_MAX:
        raise InvalidArgumentError(f"calendar name: text of 1 to {KEY_MAX} characters is wanted")
    return name


def rows_using(core: Core, name: str) -> list[int]:
    """The jobs that a calendar is for."""
    specs = [spec for spec in range(core.specs.count) if name in core.specs.names(spec)]
    if not specs:
        return []
    rows = np.array(core.state.jobs.slots(), np.uint32)
    jobs = core.state.jobs.gather(rows)
    return [int(i) for i in rows[np.isin(jobs["spec"], specs) & (jobs["state"] != JobState.DELETED)]]


def _users(core: Core, name: str) -> int:
    return len(rows_using(core, name))


def tzdiff(core: Core, cmd: Incoming) -> bytes:
    """The jobs whose next time moved when the zone data last changed."""
    f = core.state.tzdiff
    if not f:
        version = core.state.meta.zone_version
        blank: dict[str, list[Any]] = {"job": [], "old_us": [], "new_us": []}
        return frames.encode_ok(cmd.request.id, {"old": version, "new": version, "at_us": None, "total": 0, "columns": blank})
    columns = {"job": [display_name(name.decode()) for name in f["name"]], "old_us": f["before"].tolist(), "new_us": f["after"].tolist()}
    return frames.encode_ok(cmd.request.id, {"old": f["old"], "new": f["new"], "at_us": f["at"], "total": f["total"], "columns": columns})


def history(core: Core, cmd: Incoming) -> bytes:
    """Who changed a job, when, from what to what; newest first."""
    limit = whole(cmd.request.args, "limit", 1, 10_000, 100) or 100
    row = job_row(core, cmd.request.args, deleted=True)
    key = job_key(core.state.jobs.names(np.array([row], np.uint32))[0])
    rows = [*(cmd.found or ()), *(change for entry in core.state.changes for change in entry.of(key))]
    return frames.encode_ok(cmd.request.id, [_change(core, change) for change in rows[::-1][:limit]])


def _change(core: Core, change: dict[str, Any]) -> dict[str, Any]:
    old, new = _side(core, change, "old_"), _side(core, change, "")
    if change["payload"] is not None and old is not None and new is not None:
        specs = [core.state.specs[change[prefix + "spec"]] for prefix in ("old_", "")]
        announced = core.state.announced
        old["payload"], new["payload"] = (p if p is None else core.redaction.shown(p, announced, *specs) for p in change["payload"])
    return {
        "at_us": change["at_us"], "uid": change["uid"], "what": _DONE.get(change["what"]) or _what(old, new),
        "version": change["version"], "old": old, "new": new,
        "note": change["note"],
    }


_DONE: Final = {SKIP: "skip", UNDO: "undo skip", MOVE: "move", BACKFILL: "backfill"}


def _side(core: Core, change: dict[str, Any], prefix: str) -> dict[str, Any] | None:
    spec = change[prefix + "spec"]
    if spec == NO_SPEC:
        return None
    shown = {k: v for k, v in core.state.specs[spec].items() if k not in SERVER_KEYS}
    return {"spec": shown, "param_us": change[prefix + "param"], "state": JobState(change[prefix + "state"]).name.lower()}


def _what(old: dict[str, Any] | None, new: dict[str, Any] | None) -> str:
    """One word for a change, by what it did."""
    assert new is not None
    was, now = "deleted" if old is None else old["state"], new["state"]
    if now == "deleted":
        return "delete"
    if was == "deleted":
        return "create"
    if old is not None and (old["spec"], old["param_us"]) == (new["spec"], new["param_us"]) and was != now:
        return "pause" if now == "paused" else "resume" if was == "paused" else "put"
    return "put"


VERBS: Final[dict[str, Callable[[Core, Incoming], bytes]]] = {
    "hold": hold, "release": release, "calendar_put": calendar_put, "calendar_delete": calendar_delete, "calendars": calendars,
    "tzdiff": tzdiff, "history": history,
}

"""The operator's verbs: hold and release, calendars, what other zone data moved, who changed a job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ..engine.arguments import done, text, whole
from ..engine.catchup import owed_after, settle
from ..engine.retime import calendar_changed
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

    from ..engine.engine import Engine
    from ..engine.turn import Incoming


def hold(engine: Engine, cmd: Incoming) -> bytes:
    """Stop all triggering: no occurrence and no delayed run starts until release. What is queued goes on. A hold stays as it was."""
    note = text(cmd.request.args, "note", NOTE_MAX)
    if engine.state.meta.held_us < 0:
        set_hold(engine, cmd.uid, on=True, note=note)
    return done(engine, cmd, _held(engine))


def set_hold(engine: Engine, uid: int, *, on: bool, note: str) -> None:
    """Record the switch."""
    engine.record("HOLD", {"at": engine.now.wall_us, "uid": uid, "on": on, "note": note})


def _held(engine: Engine) -> dict[str, Any]:
    meta = engine.state.meta
    return {"held": meta.held_us >= 0, "since_us": None if meta.held_us < 0 else meta.held_us, "note": meta.hold_note}


def release(engine: Engine, cmd: Incoming) -> bytes:
    """Trigger again. What came due meanwhile is a misfire, decided by each job's policy."""
    missed, held_us = 0, engine.state.meta.held_us
    if held_us >= 0:
        jobs = engine.state.jobs.gather(np.array(engine.state.jobs.slots(), np.uint32))
        missed = int(((jobs["state"] == JobState.ACTIVE) & (jobs["next_us"] <= engine.now.wall_us)).sum())
        set_hold(engine, cmd.uid, on=False, note="")
        engine.missed_before_us = engine.now.wall_us
        engine.held_span = held_us, engine.now.wall_us
        engine.effects.again = True
    return done(engine, cmd, {"held": False, "missed": missed})


def calendar_put(engine: Engine, cmd: Incoming) -> bytes:
    """Make or change a calendar. It is effective at once for what is not decided yet."""
    name, wire = _calendar_name(cmd.request.args), check_calendar(cmd.request.args.get("calendar"))
    return done(engine, cmd, {"name": name, "calendar": wire, "jobs": put_calendar(engine, cmd.uid, name, wire)})


def put_calendar(engine: Engine, uid: int, name: str, wire: dict[str, Any]) -> int:
    """Record a checked calendar; how many jobs use it. What it excluded up to now is decided by what it was."""
    if name not in engine.state.calendars and len(engine.state.calendars) >= CALENDARS_MAX:
        raise ResourceExhaustedError(f"{CALENDARS_MAX} calendars are there; delete one first")
    if engine.state.calendars.get(name) == wire:
        return _users(engine, name)
    rows = np.array(_rows_using(engine, name), np.uint32)
    engine.decide_jobs(rows)
    if len(rows):
        fields = engine.state.jobs.gather(rows)
        owed = owed_after(engine, fields)
        for row in rows[engine.specs.grid(fields["spec"].copy(), fields["param_us"].copy(), owed) <= engine.now.wall_us].tolist():
            settle(engine, row)
    engine.calendars.put(name, wire)  # raises for an unknown zone before anything is recorded
    engine.record("CALENDAR", {"at": engine.now.wall_us, "uid": uid, "name": name, "wire": wire})
    return calendar_changed(engine, name)


def calendar_delete(engine: Engine, cmd: Incoming) -> bytes:
    """Delete a calendar that no job uses."""
    name = _calendar_name(cmd.request.args)
    if name not in engine.state.calendars:
        raise NotFoundError(f"no calendar {name}")
    users = _users(engine, name)
    if users:
        raise FailedPreconditionError(f"calendar {name} is used by {users} jobs; put them without it first", jobs=users)
    engine.calendars.remove(name)
    engine.record("CALENDAR", {"at": engine.now.wall_us, "uid": cmd.uid, "name": name, "wire": None})
    return done(engine, cmd, {"name": name})


def calendars(engine: Engine, cmd: Incoming) -> bytes:
    """All calendars by name."""
    listed = [{"name": name, "calendar": wire, "jobs": _users(engine, name)} for name, wire in sorted(engine.state.calendars.items())]
    return frames.encode_ok(cmd.request.id, listed)


def _calendar_name(args: dict[str, Any]) -> str:
    name = args.get("name")
    if not isinstance(name, str) or not 1 <= len(name) <= KEY_MAX:
        raise InvalidArgumentError(f"calendar name: text of 1 to {KEY_MAX} characters is wanted")
    return name


def _rows_using(engine: Engine, name: str) -> list[int]:
    specs = [spec for spec in range(engine.specs.count) if name in engine.specs.names(spec)]
    if not specs:
        return []
    rows = np.array(engine.state.jobs.slots(), np.uint32)
    jobs = engine.state.jobs.gather(rows)
    return [int(i) for i in rows[np.isin(jobs["spec"], specs) & (jobs["state"] != JobState.DELETED)]]


def _users(engine: Engine, name: str) -> int:
    return len(_rows_using(engine, name))


def tzdiff(engine: Engine, cmd: Incoming) -> bytes:
    """The jobs whose next time moved when the zone data last changed."""
    f = engine.state.tzdiff
    if not f:
        version = engine.state.meta.zone_version
        blank: dict[str, list[Any]] = {"job": [], "old_us": [], "new_us": []}
        return frames.encode_ok(cmd.request.id, {"old": version, "new": version, "at_us": None, "total": 0, "columns": blank})
    columns = {"job": [display_name(name.decode()) for name in f["name"]], "old_us": f["before"].tolist(), "new_us": f["after"].tolist()}
    return frames.encode_ok(cmd.request.id, {"old": f["old"], "new": f["new"], "at_us": f["at"], "total": f["total"], "columns": columns})


def history(engine: Engine, cmd: Incoming) -> bytes:
    """Who changed a job, when, from what to what; newest first."""
    limit = whole(cmd.request.args, "limit", 1, 10_000, 100) or 100
    row = job_row(engine, cmd.request.args, deleted=True)
    key = job_key(engine.state.jobs.names(np.array([row], np.uint32))[0])
    rows = [*(cmd.found or ()), *(change for entry in engine.state.changes for change in entry.of(key))]
    return frames.encode_ok(cmd.request.id, [_change(engine, change) for change in rows[::-1][:limit]])


def _change(engine: Engine, change: dict[str, Any]) -> dict[str, Any]:
    old, new = _side(engine, change, "old_"), _side(engine, change, "")
    if change["payload"] is not None and old is not None and new is not None:
        specs = [engine.state.specs[change[prefix + "spec"]] for prefix in ("old_", "")]
        announced = engine.state.announced
        old["payload"], new["payload"] = (p if p is None else engine.redaction.shown(p, announced, *specs) for p in change["payload"])
    return {
        "at_us": change["at_us"], "uid": change["uid"], "what": _DONE.get(change["what"]) or _what(old, new),
        "version": change["version"], "old": old, "new": new,
        "note": change["note"],
    }


_DONE: Final = {SKIP: "skip", UNDO: "undo skip", MOVE: "move", BACKFILL: "backfill"}


def _side(engine: Engine, change: dict[str, Any], prefix: str) -> dict[str, Any] | None:
    spec = change[prefix + "spec"]
    if spec == NO_SPEC:
        return None
    shown = {k: v for k, v in engine.state.specs[spec].items() if k not in SERVER_KEYS}
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


VERBS: Final[dict[str, Callable[[Engine, Incoming], bytes]]] = {
    "hold": hold, "release": release, "calendar_put": calendar_put, "calendar_delete": calendar_delete, "calendars": calendars,
    "tzdiff": tzdiff, "history": history,
}

"""What readers are shown of the state: jobs, runs, counts. Pure; positions of pages are opaque to clients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ..engine.alarms import living
from ..engine.decided import any_known, first_open, known
from ..engine.served import any_ready, served
from ..model.columns import encode_blobs, encode_column
from ..model.errors import InvalidArgumentError
from ..model.globs import glob, names_a_turn
from ..model.nouns import (
    BUILTIN_FLAGS,
    NEVER,
    TASKS_TOLD_MAX,
    JobState,
    display_name,
)
from ..protocol.definition import SERVER_KEYS
from ..state.readable import LOOKED_AT_MAX, TOLD_MAX, page_of, text_argument
from ..tables._runs import DEAD_LETTERS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..engine.core import Core

PAGE_MAX: Final = 1_000


def runs_left(core: Core, fields: Any) -> int:
    """How many runs by its schedule max_runs leaves to a job."""
    return max(0, int(core.specs.max_runs[int(fields["spec"])]) - int(fields["fired"]))


def job(core: Core, row: int) -> dict[str, Any]:
    """One job as the wire shows it."""
    return {name: column[0] for name, column in jobs(core, np.array([row], np.uint32)).items()}


def jobs(core: Core, rows: NDArray[np.uint32]) -> dict[str, list[Any]]:
    """Jobs as the wire shows them, in columns."""
    state, numbers = core.state, rows.tolist()
    f = state.jobs.gather(rows)
    spec = f["spec"].tolist()
    shared = {n: _shared(core, state.specs[n]) for n in set(spec)}
    payload = [state.jobs.payload(row) for row in numbers]
    if any(hides for _, hides in shared.values()):
        shown = core.redaction.shown
        payload = [shown(p, state.announced, state.specs[n]) if shared[n][1] else p for p, n in zip(payload, spec, strict=True)]
    notes, pauses = state.notes, state.pauses
    return {
        "name": [display_name(name.decode()) for name in state.jobs.names(rows)], "state": [_JOB_STATES[n] for n in f["state"].tolist()],
        "spec": [shared[n][0] for n in spec], "param_us": f["param_us"].tolist(), "payload": payload, "version": f["version"].tolist(),
        "note": [pauses.get(row) or notes.get(row, "") for row in numbers],  # why it is paused, as long as it is
        "pause_note": [pauses.get(row, "") for row in numbers],
        "next_us": [None if us == NEVER else us for us in _following(core, rows, f).tolist()],
        "cursor_us": [None if us < 0 else us for us in f["cursor_us"].tolist()],
        "active": (f["active"].astype(np.int64) + f["waiting"]).tolist(), "created_us": f["created_us"].tolist(),
        "updated_us": f["updated_us"].tolist(),
    }


def packed_jobs(core: Core, rows: NDArray[np.uint32]) -> dict[str, Any]:
    """Jobs in columns, for who reads many: {n, columns {name: column}, names (column), spec (column: places in the next two), tasks,
    queues}. Columns are `model.columns`.
    """
    f = core.state.jobs.gather(rows)
    specs, spec = np.unique(f["spec"], return_inverse=True)
    wires = [core.state.specs[n] for n in specs.tolist()]
    columns = {name: np.ascontiguousarray(f[name]) for name in ("state", "cursor_us", "version", "created_us", "updated_us")}
    columns |= {"next_us": _following(core, rows, f), "active": (f["active"].astype(np.uint32) + f["waiting"]).astype(np.uint32)}
    return {
        "n": len(rows), "columns": {name: encode_column(column) for name, column in columns.items()},
        "names": encode_blobs(core.state.jobs.names(rows)), "spec": encode_column(spec.astype("<u4")),
        "tasks": [w["task"] for w in wires], "queues": [w["queue"] for w in wires],
    }


def _following(core: Core, rows: NDArray[np.uint32], f: Any) -> NDArray[np.int64]:
    """Next times; NEVER for none, and where a calendar excludes it, since no other is in sight."""
    following: NDArray[np.int64] = f["next_us"].copy()
    if any_known(core):  # skipped or moved by a person, or decided before the clock went back
        for i in np.flatnonzero((following < NEVER) & known(core, rows, following)).tolist():
            following[i] = first_open(core, int(rows[i]), int(f["spec"][i]), int(f["param_us"][i]), int(following[i]))
    none = core.specs.excluded(np.ascontiguousarray(f["spec"]), following) | (f["fired"] >= core.specs.max_runs[f["spec"]])
    following[none] = NEVER
    return following


def _shared(core: Core, wire: dict[str, Any]) -> tuple[dict[str, Any], bool]:
    """What jobs of one definition have in common: how it is shown, and whether some of their arguments are not."""
    return {k: v for k, v in wire.items() if k not in SERVER_KEYS}, bool(core.redaction.names(core.state.announced, wire))


_JOB_STATES: Final = {int(s): s.name.lower() for s in JobState}


def jobs_page(core: Core, args: dict[str, Any]) -> dict[str, Any]:
    """A page of jobs in order of their rows; every state, deleted ones too, unless one is named."""
    state, match, wanted = core.state, text_argument(args, "match"), args.get("state")
    number = None
    if wanted is not None:
        try:
            number = JobState[str(wanted).upper()]
        except KeyError:
            raise InvalidArgumentError(f"state: {wanted!r} is not one of active, paused, finished, deleted") from None
    packed = bool(args.get("packed"))
    start, limit = page_of(args, LOOKED_AT_MAX if packed else TOLD_MAX)
    fits = None if match is None else glob(match)
    picked: list[int] = []
    room = names_a_turn(match, LOOKED_AT_MAX)
    while room:
        rows = state.jobs.slots(min(start, 2**32 - 1), min(room, PAGE_MAX))
        room -= min(room, PAGE_MAX)
        array = np.array(rows, np.uint32)
        states = state.jobs.gather(array)["state"].tolist() if rows else []
        names = state.jobs.names(array) if rows and fits else [b""] * len(rows)
        for row, st, raw in zip(rows, states, names, strict=True):
            if (number is None or st == number) and (fits is None or fits(display_name(raw.decode()))):
                picked.append(row)
                if len(picked) == limit:
                    break
        if not rows or len(picked) == limit:
            break
        start = rows[-1] + 1
    after = picked[-1] + 1 if len(picked) == limit else start if rows else None
    found = np.array(picked, np.uint32)
    if packed:
        return {"parts": [packed_jobs(core, found)] if picked else [], "after": after}
    return {"columns": jobs(core, found) if picked else {}, "after": after}


def counts(core: Core) -> dict[str, Any]:
    """Counters and what waits, for `stats`."""
    state = core.state
    ready = {s.worker for s in core.sessions.values() if s.ready}
    known = served(core)
    queues: dict[str, dict[str, int]] = {}
    unserved: dict[str, int] = {}
    for name, number in state.queue_numbers.items():
        queues[name] = {"queued": 0, "leased": state.runs.leased(number)}
    for line, waiting, *_ in state.runs.ready()[0].T.tolist():
        what = state.line_of[line]
        queues[what.queue]["queued"] += waiting
        if what.task not in known:
            unserved[what.task] = unserved.get(what.task, 0) + waiting
    queued, held_back = sum(q["queued"] for q in queues.values()), core.limits.held_back(core.now.mono_us)
    startable = queued - sum(unserved.values()) - sum(held["runs"] for held in held_back)
    return {
        "jobs": len(state.jobs), "runs": len(state.runs), "queued": queued,
        "leased": sum(state.runs.list_len(w.list_id) for w in state.workers.values()), "dead_letters": state.runs.list_len(DEAD_LETTERS),
        "queues": queues, "unserved_tasks": unserved, "builtin_tasks": sorted(BUILTIN_FLAGS.keys() & known),
        "unserved_jobs": core.census.unserved(state, known) if any_ready(core) else {}, "served_tasks": sorted(known)[:TASKS_TOLD_MAX],
        "held_back": held_back, "pulse": core.pulse.told(core, startable),
        "paused_queues": sorted(name for name, settings in state.queues.items() if settings.get("paused")),
        "generation": state.meta.generation, "seq": state.meta.seq,
        "folded": state.meta.folded,
        "workers": [
            {"id": f"w{i}", "name": w.name, "kind": w.kind, "leased": state.runs.list_len(w.list_id), "ready": i in ready}
            for i, w in sorted(state.workers.items())
        ],
        "alarm_jobs": {
            hook: {"job": display_name(name), "exists": living(state, name) is not None}
            for hook, name in (("on_dead", core.alarm_jobs.on_dead), ("on_missed", core.alarm_jobs.on_missed)) if name
        },
        "counters": dict(core.counters), "draining": core.draining, "held": state.meta.held_us >= 0, "hold_note": state.meta.hold_note,
        "held_since_us": None if state.meta.held_us < 0 else state.meta.held_us, "zone_version": state.meta.zone_version,
        "bytes": {
            "jobs": state.jobs.nbytes, "runs": state.runs.nbytes,
            "wheels": core.wall.nbytes + core.delayed.nbytes + core.mono.nbytes,
        },
    }

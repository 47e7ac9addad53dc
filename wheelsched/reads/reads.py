"""What readers are shown of the state: jobs, runs, counts. Pure; positions of pages are opaque to clients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ..engine.decided import any_known, first_open, known
from ..engine.served import any_ready, served
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
from ..state.readable import LOOKED_AT_MAX, page_of, text_argument
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
    """Jobs as the wire shows them, in columns. A next time that a calendar excludes is none: no other is in sight."""
    state, numbers = core.state, rows.tolist()
    f = state.jobs.gather(rows)
    following = f["next_us"].copy()
    if any_known(core):  # skipped or moved by a person, or decided before the clock went back
        for i in np.flatnonzero((following < NEVER) & known(core, rows, following)).tolist():
            following[i] = first_open(core, numbers[i], int(f["spec"][i]), int(f["param_us"][i]), int(following[i]))
    none = (following == NEVER) | core.specs.excluded(np.ascontiguousarray(f["spec"]), following)
    none |= f["fired"] >= core.specs.max_runs[f["spec"]]
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
        "next_us": [None if no else us for us, no in zip(following.tolist(), none.tolist(), strict=True)],
        "cursor_us": [None if us < 0 else us for us in f["cursor_us"].tolist()],
        "active": (f["active"].astype(np.int64) + f["waiting"]).tolist(), "created_us": f["created_us"].tolist(),
        "updated_us": f["updated_us"].tolist(),
    }


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
    start, limit = page_of(args)
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
    found = jobs(core, np.array(picked, np.uint32)) if picked else {}
    return {"columns": found, "after": picked[-1] + 1 if len(picked) == limit else start if rows else None}


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
    return {
        "jobs": len(state.jobs), "runs": len(state.runs), "queued": sum(q["queued"] for q in queues.values()),
        "leased": sum(state.runs.list_len(w.list_id) for w in state.workers.values()), "dead_letters": state.runs.list_len(DEAD_LETTERS),
        "queues": queues, "unserved_tasks": unserved, "builtin_tasks": sorted(BUILTIN_FLAGS.keys() & known),
        "unserved_jobs": core.census.unserved(state, known) if any_ready(core) else {}, "served_tasks": sorted(known)[:TASKS_TOLD_MAX],
        "held_back": core.limits.held_back(core.now.mono_us),
        "paused_queues": sorted(name for name, settings in state.queues.items() if settings.get("paused")),
        "generation": state.meta.generation, "seq": state.meta.seq,
        "folded": state.meta.folded,
        "workers": [
            {"id": f"w{i}", "name": w.name, "kind": w.kind, "leased": state.runs.list_len(w.list_id), "ready": i in ready}
            for i, w in sorted(state.workers.items())
        ],
        "counters": dict(core.counters), "draining": core.draining, "held": state.meta.held_us >= 0, "hold_note": state.meta.hold_note,
        "held_since_us": None if state.meta.held_us < 0 else state.meta.held_us, "zone_version": state.meta.zone_version,
        "bytes": {
            "jobs": state.jobs.nbytes, "runs": state.runs.nbytes,
            "wheels": core.wall.nbytes + core.delayed.nbytes + core.mono.nbytes,
        },
    }

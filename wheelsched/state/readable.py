"""What readers are shown of runs, from their rows: in the table or in a block of history. Positions of pages are opaque to clients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgpack
import numpy as np

from ..model.errors import InvalidArgumentError
from ..model.globs import glob, names_a_turn
from ..model.nouns import GLOB_MAX, NEVER, Disposition, Outcome, Reason, RunFlag, RunState, Trigger, display_name
from .past import unpack_past

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .live import Live
    from .state import State

TOLD_MAX: Final = 250  # rows of a page: as many as one turn has time for
LOOKED_AT_MAX: Final = 4_000  # jobs that one request looks at: a page may have fewer than asked for, or none, and others follow
_64: Final = 2**64 - 1
_RUN_STATES: Final = {int(s): s.name.lower() for s in RunState}
_TRIGGERS: Final = {int(t): t.name.lower() for t in Trigger}
_REASONS: Final = {int(r): r.name.lower() for r in Reason if r} | {0: None}
_DISPOSITIONS: Final = {int(d): d.name.lower() for d in Disposition} | {0: None}
_OUTCOMES: Final = {int(o): o.name.lower() for o in Outcome} | {0: None}
_SCHEDULED, _LEASED, _RETRY_WAIT, _SKIPPED = (int(s) for s in (RunState.SCHEDULED, RunState.LEASED, RunState.RETRY_WAIT, RunState.SKIPPED))


def run_fields(f: dict[str, int], name: str, task: str, queue: str, result: bytes, history: bytes, running: dict[int, int]
               ) -> dict[str, Any]:
    """One run as the wire shows it, from the plain numbers of its row and its byte strings. Called for each row of a listing."""
    state, spent, worker, token, due = f["state"], f["attempt"], f["worker"], f["token"], f["due_us"]
    ended = msgpack.unpackb(result, raw=False) if result else None
    past, stale = unpack_past(history) if history else ([], [])
    attempts = [
        _attempt(n, tok, w, begun, end, how, msgpack.unpackb(data, raw=False) if data else None)
        for n, tok, w, begun, end, how, data in past
    ]
    waiting = (state in {_SCHEDULED, _RETRY_WAIT}) and 0 <= due < NEVER
    skipped = state == _SKIPPED
    started, queued, blocking = f["started_us"], f["queued_us"], None
    if skipped:  # a row that an open run blocked holds that run's id, XOR its own, in these places
        if started:
            blocking = f"{(started & _64) ^ f['id_high']:016x}{(token & _64) ^ f['id_low']:016x}"
        started = token = queued = 0
    if state == _LEASED or (f["outcome"] and not skipped and (not attempts or attempts[-1]["token"] != token)):
        attempts.append(_attempt(spent, token, worker, f["started_us"], f["ended_us"], f["outcome"], ended))
    return {
        "id": f"{f['id_high']:016x}{f['id_low']:016x}", "job": display_name(name), "trigger": _TRIGGERS[f["trigger"]], "task": task,
        "queue": queue, "scheduled_us": f["nominal_us"], "created_us": f["created_us"], "queued_us": queued or None,
        "started_us": started or None, "ended_us": f["ended_us"] or None, "next_us": due if waiting else None,
        "state": "running" if state == _LEASED and running.get(token) == worker else _RUN_STATES[state],
        "reason": _REASONS[f["reason"]] or (ended.get("reason") if ended else None), "snoozed": f["snoozes"], "attempt": spent,
        "token": token or None, "worker": f"w{worker}" if worker else None,
        "result": ended, "missed": f["missed"], "until_us": due if skipped else None, "count": f["count"] if skipped else None,
        "late": bool(f["flags"] & RunFlag.LATE), "disposition": _DISPOSITIONS[f["disposition"]], "blocking": blocking, "attempts": attempts,
        "stale": [{**s, "worker": f"w{s['worker']}", "outcome": _OUTCOMES[s["outcome"]]} for s in stale], "progress": None,
        "heartbeat_us": None,
    }


def _attempt(attempt: int, token: int, worker: int, started: int, ended: int, outcome: int, result: Any) -> dict[str, Any]:
    return {
        "attempt": attempt, "token": token, "worker": f"w{worker}", "started_us": started or None, "ended_us": ended or None,
        "outcome": _OUTCOMES[outcome], "result": result,
    }


def run(state: State, row: int, running: Live) -> dict[str, Any]:
    """One run that is not folded."""
    return runs(state, np.array([row], np.uint32), running)[0]


def runs(state: State, rows: NDArray[np.uint32], running: Live) -> list[dict[str, Any]]:
    """Runs that are not folded."""
    if not len(rows):
        return []
    f = state.runs.gather(rows)
    columns, jobs = f.dtype.names, f["job"].tolist()
    assert columns is not None
    known = np.unique(f["job"])
    names = {job: name.decode() for job, name in zip(known.tolist(), state.jobs.names(known), strict=True)}
    found = []
    for i, row in enumerate(rows.tolist()):
        values = dict(zip(columns, f[i].item(), strict=True))
        wire = state.specs[values["spec"]]
        _, result, history = state.runs.blobs(row)
        shown = run_fields(values, names[jobs[i]], wire["task"], wire["queue"], result, history, running)
        if values["state"] == _LEASED:
            _add_live(shown, values["token"], running)
        elif values["state"] == _SCHEDULED and (number := state.group_of.get(state.runs.ids(rows[i : i + 1]))) is not None:
            group = state.groups[number]
            shown["progress"] = f"waits for its group: {group.members - group.left} of {group.members} have ended"
        found.append(shown)
    return found


def _add_live(shown: dict[str, Any], token: int, running: Live) -> None:
    """What a leased run's worker has told of it."""
    beat = running.beats.get(token)
    if beat is not None:
        shown |= {"state": "running", "progress": beat.progress, "heartbeat_us": beat.at_us}
        output = running.output(token)
        if output:
            shown["attempts"][-1]["result"] = shown["result"] = output
    if started_us := running.started_us(token):
        shown["started_us"] = shown["attempts"][-1]["started_us"] = started_us


def as_columns(rows: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """Rows of equal keys as columns."""
    return {name: [r[name] for r in rows] for name in rows[0]} if rows else {}


def text_argument(args: dict[str, Any], name: str) -> str | None:
    """A text, or nothing. InvalidArgumentError."""
    value = args.get(name)
    if value is not None and not isinstance(value, str):
        raise InvalidArgumentError(f"{name}: a text is wanted")
    if value is not None and len(value) > GLOB_MAX:
        raise InvalidArgumentError(f"{name}: a text of {len(value):,} characters: at most {GLOB_MAX} are allowed")
    return value


def page_of(args: dict[str, Any], most: int = TOLD_MAX) -> tuple[int, int]:
    """Where a page begins, and how many rows it has at most. InvalidArgumentError."""
    start, limit = args.get("after"), args.get("limit")
    start = 0 if start is None else start
    limit = most if limit is None else limit
    if not isinstance(start, int) or isinstance(start, bool) or not 0 <= start < POSITION_MAX or not isinstance(limit, int) or limit < 1:
        raise InvalidArgumentError("after is a position from the page before, limit a whole number from 1 on")
    return start, min(limit, most)
POSITION_MAX: Final = 2**63


def select_runs(state: State, rows: NDArray[np.uint32], wanted: RunFilter) -> NDArray[np.intp]:
    """Places of the rows of the run table that pass a filter."""
    if not len(rows):
        return np.empty(0, np.intp)
    fields = state.runs.gather(rows)
    places = np.flatnonzero(wanted.mask(fields))
    if wanted.of_definitions and len(places):
        specs, index = np.unique(fields["spec"][places], return_inverse=True)
        fit = np.array([wanted.fits(wire["task"], wire["queue"]) for wire in (state.specs[n] for n in specs.tolist())], np.bool_)
        places = places[fit[index]]
    if wanted.of_names and len(places):
        jobs, index = np.unique(fields["job"][places], return_inverse=True)
        good = np.array([wanted.matches(x.decode()) for x in state.jobs.names(jobs.astype(np.uint32))], np.bool_)
        places = places[good[index]]
    return places


class RunFilter:
    """What a listing of runs asks for."""

    def __init__(self, args: dict[str, Any]) -> None:
        """InvalidArgumentError for a state that doesn't exist."""
        self.newest = bool(args.get("newest"))
        pattern, self._namespace, self._task, self._queue = (text_argument(args, name) for name in ("job", "namespace", "task", "queue"))
        self.looked_at = names_a_turn(pattern, LOOKED_AT_MAX)  # runs of the table, for one page
        self._job = None if pattern is None else glob(display_name(pattern), "job")
        self.of_names = pattern is not None or self._namespace is not None
        self.of_definitions = self._task is not None or self._queue is not None
        self.since: int = args.get("since_us") or 0
        self.until: int = NEVER if args.get("until_us") is None else args["until_us"]
        if not isinstance(self.since, int) or not isinstance(self.until, int):
            raise InvalidArgumentError("since_us and until_us are microseconds since 1970")
        wanted = args.get("state")
        self.state: int | None = None
        if wanted is not None and not isinstance(wanted, str):
            raise InvalidArgumentError("state: a text is wanted")
        if wanted is not None:
            known = {s.name.lower(): int(s) for s in RunState} | {"running": int(RunState.LEASED)}
            if wanted not in known:
                raise InvalidArgumentError(f"state: {wanted!r} is not one of {', '.join(known)}")
            self.state = known[wanted]
        self.skipped = bool(args.get("skipped")) or self.state == RunState.SKIPPED
        self.late = bool(args.get("late"))
        self.steps: list[tuple[int, int]] = []  # see state.Meta

    def matches(self, name: str) -> bool:
        """Does a full job name pass?"""
        ours = self._namespace is None or name.partition("/")[0] == self._namespace
        return ours and (self._job is None or self._job(display_name(name)))

    def fits(self, task: str, queue: str) -> bool:
        """Does a definition pass?"""
        return self._task in (None, task) and self._queue in (None, queue)

    def mask(self, fields: Any) -> NDArray[np.bool_]:
        """Which rows pass by state, nominal time and lateness. Ledger rows pass only when they are asked for."""
        keep = (fields["nominal_us"] >= self.since) & (fields["nominal_us"] < self.until)
        if self.state is not None:
            keep &= fields["state"] == self.state
        elif not self.skipped:
            keep &= fields["state"] != RunState.SKIPPED
        if self.late:
            late = fields["flags"] & RunFlag.LATE > 0
            keep &= late | (fields["state"] == RunState.SKIPPED) if self.skipped else late
        return np.asarray(keep, np.bool_)


def run_or_stub(state: State, run_id: bytes, running: Live) -> dict[str, Any]:
    """A run by id; one that is folded is told by its id only, which the client can look up."""
    row = state.find_run(run_id)
    return {"id": run_id.hex()} if row is None else run(state, row, running)

"""stage and apply: many frames of jobs, one decision. All faults are found before anything is recorded; then all of it is one commit.

`stage` keeps a frame with its connection, under the client's number of the batch, until `apply` decides on the batch or the
connection goes. `apply` says how many jobs it expects: after a reconnect they are not there, and the client stages them again.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ..engine import memory
from ..engine.arguments import done, payload_fault, whole
from ..engine.chains import cycle_text, find_cycle, targets_of
from ..engine.due import decide_jobs
from ..engine.overlap import open_runs
from ..engine.quotas import size_of
from ..engine.served import remarks
from ..engine.uploads import Frame, Staged
from ..model.errors import FailedPreconditionError, InvalidArgumentError, ResourceExhaustedError, WheelschedError
from ..model.globs import glob
from ..model.ids import job_key
from ..model.nouns import (
    CALENDARS_MAX,
    FRAME_JOBS_MAX,
    GLOB_MAX,
    HOOKS,
    INSTANT_MAX_US,
    MS,
    NEVER,
    NOTE_MAX,
    JobState,
    display_name,
    parse_job_name,
)
from ..protocol import frames as protocol
from ..protocol.checks import check_name
from ..protocol.limits import check
from ..schedules.calendars import Calendar, check_calendar
from ..state.changelog import NO_SPEC
from ..tables._runs import NO_ROW
from .differences import Wanted, difference
from .operator import put_calendar, rows_using
from .put import (
    CREATED,
    OUTSIDE,
    SPECS_MAX,
    UNCHANGED,
    UPDATED,
    check_spec,
    decided_before,
    decided_text,
    kept_anchors,
    own,
    own_name,
    put_jobs,
    record_spec,
    resolved_spec,
    so_long_past,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from ..engine.core import Core
    from ..engine.turn import Incoming

STAGED_JOBS_MAX: Final = 200_000  # of one batch
FAULTS_MAX: Final = 1_000
CHANGES_TOLD_MAX: Final = 1_000


@dataclass(slots=True)
class Plan:
    """A frame, checked: what would become of each of its jobs."""

    frame: Frame
    names: list[bytes]
    keys: bytes
    wires: list[dict[str, Any]]  # resolved definitions, one a job; equal ones are one object
    spec_keys: list[bytes]
    rows: NDArray[np.uint32]
    param: NDArray[np.int64]
    result: NDArray[np.uint8]


def stage(core: Core, cmd: Incoming) -> bytes:
    """Keep a frame for `apply`. An error drops the whole batch."""
    args = cmd.request.args
    number = whole(args, "batch", 0, 2**63 - 1, 0) or 0
    batches = core.staged.setdefault(cmd.conn, {})
    batch = batches.pop(number, None) or Staged()
    core.quotas.give("staged_bytes", cmd.conn, batch.size)
    check("staged_batches", connection=len(batches) + 1)
    frame = _frame(args, batch.jobs)
    if batch.jobs + len(frame.names) > STAGED_JOBS_MAX:
        raise ResourceExhaustedError(f"stage: at most {STAGED_JOBS_MAX:,} jobs are applied at once; split them by namespace")
    size = batch.size + size_of(args)
    core.quotas.take("staged_bytes", cmd, size)
    batch.frames.append(frame)
    batch.jobs += len(frame.names)
    batch.size = size
    batches[number] = batch
    return protocol.encode_ok(cmd.request.id, {"staged": batch.jobs})


def _frame(args: dict[str, Any], first: int) -> Frame:
    """The frame of a request. InvalidArgumentError for what is no frame; what is wrong with single jobs is left to `apply`."""
    names, payloads, given = args.get("names"), args.get("payload"), args.get("given")
    if not isinstance(names, list) or not isinstance(payloads, list) or not isinstance(given, list) or len(names) != len(payloads):
        raise InvalidArgumentError("stage: names, payload and given are lists, the first two of one length")
    n = len(names)
    if not 1 <= n <= FRAME_JOBS_MAX:
        raise InvalidArgumentError(f"stage: 1 to {FRAME_JOBS_MAX} jobs a frame, not {n}")
    which, param = _column(args, "which", "<u4", n), _column(args, "param_us", "<i8", n)
    if not given or int(which.max()) >= len(given):
        raise InvalidArgumentError("stage: which names a row of `given` that is not there")
    if not all(isinstance(p, bytes) for p in payloads):
        raise InvalidArgumentError("stage: payload is a list of bins")
    notes, paused = args.get("notes"), args.get("paused")
    notes, paused = [""] * n if notes is None else notes, [None] * n if paused is None else paused
    if not isinstance(notes, list) or len(notes) != n or not all(isinstance(x, str) for x in notes):
        raise InvalidArgumentError("stage: notes has one text a job")
    if not isinstance(paused, list) or len(paused) != n or not all(x is None or isinstance(x, bool) for x in paused):
        raise InvalidArgumentError("stage: paused has true, false or nil for each job")
    return Frame(list(range(first, first + n)), given, names, payloads, which, param, notes, paused)


def _column(args: dict[str, Any], name: str, dtype: str, n: int) -> NDArray[Any]:
    data = args.get(name)
    if not isinstance(data, bytes) or len(data) != n * np.dtype(dtype).itemsize:
        raise InvalidArgumentError(f"{name}: a column of {n} rows is wanted")
    return np.frombuffer(data, dtype)


def apply(core: Core, cmd: Incoming, delete: Callable[[Core, Incoming, NDArray[np.uint32]], int]) -> bytes:
    """Put all that is staged, and delete what `prune` matches and is not staged: all of it in one commit, or nothing.

    `delete` ends the jobs of some rows, and says how many of their runs it cancelled. InvalidArgumentError lists up to 1,000 faults as
    [row, message] in detail["jobs"].
    """
    args = cmd.request.args
    dry, prune = args.get("dry_run", False), args.get("prune")
    if not isinstance(dry, bool):
        raise InvalidArgumentError("dry_run: true or false is wanted")
    if prune is not None and (not isinstance(prune, str) or not 0 < len(prune) <= GLOB_MAX):
        raise InvalidArgumentError(f"prune: a pattern of 1 to {GLOB_MAX} characters is wanted")
    number = whole(args, "batch", 0, 2**63 - 1, 0) or 0
    batch = core.staged.get(cmd.conn, {}).get(number) or Staged()
    together = _names(batch.frames)
    pruned = np.array([] if prune is None else _prunable(core, prune, {name.encode() for name in together}), np.uint32)
    if not dry:
        _decide(core, together, pruned, args.get("calendars"))
    core.staged.get(cmd.conn, {}).pop(number, None)
    core.quotas.give("staged_bytes", cmd.conn, batch.size)
    expected = whole(args, "jobs", 0, STAGED_JOBS_MAX, batch.jobs)
    if expected != batch.jobs:
        raise FailedPreconditionError(
            f"apply: {batch.jobs} jobs are staged on this connection, not {expected}: the connection was lost meanwhile; stage them again",
            staged=batch.jobs,
        )
    calendars = _calendars(core, args.get("calendars"))
    plans = _checked(core, batch, calendars, together)
    answer = _answer(core, plans, pruned)
    changed = {name: wire for name, wire in calendars.items() if core.state.calendars.get(name) != wire}
    answer["calendars"] = {name: "updated" if name in core.state.calendars else "created" for name in changed}
    if dry:
        return protocol.encode_ok(cmd.request.id, answer)
    try:
        for name, wire in changed.items():
            put_calendar(core, cmd.uid, name, wire)
        for plan in plans:
            _carry_out(core, cmd, plan)
        answer["cancelled"] = delete(core, cmd, pruned)
    except WheelschedError as e:  # half of it is recorded: only a crash keeps it out of the journal
        raise AssertionError(f"apply met a fault that its check did not find: {e}") from e
    return done(core, cmd, answer)


def _decide(core: Core, together: frozenset[str], pruned: NDArray[np.uint32], calendars: Any) -> None:
    """Decide the occurrences up to now of all jobs that are about to change. Later: the batch stays as it is until then."""
    names = [name.encode() for name in together]
    rows = [*core.state.jobs.find(names, b"".join([job_key(name) for name in names])).tolist(), *pruned.tolist()]
    for name in calendars if isinstance(calendars, dict) else ():
        rows += rows_using(core, name)
    decide_jobs(core, np.array(sorted({*rows} - {NO_ROW}), np.uint32))


def _calendars(core: Core, given: Any) -> dict[str, dict[str, Any]]:
    """Checked calendars by name. InvalidArgumentError with what is wrong, as [name, message] in detail["calendars"]."""
    if given is None:
        return {}
    if not isinstance(given, dict):
        raise InvalidArgumentError("calendars: a map of names to calendars is wanted")
    out: dict[str, dict[str, Any]] = {}
    faults = []
    for name, calendar in given.items():
        try:
            out[check_name(name, "calendar")] = check_calendar(calendar)
            Calendar(out[name], core.zones)
        except InvalidArgumentError as e:
            faults.append([name, str(e)])
    if faults:
        raise InvalidArgumentError(f"calendar {faults[0][0]}: {faults[0][1]} (nothing was changed)", calendars=faults[:FAULTS_MAX])
    if len(core.state.calendars.keys() | out) > CALENDARS_MAX:
        raise ResourceExhaustedError(f"{CALENDARS_MAX} calendars are stored at most; delete some first")
    return out


def _checked(core: Core, batch: Staged, calendars: dict[str, Any], together: frozenset[str]) -> list[Plan]:
    """Plans of all frames. InvalidArgumentError with every fault; nothing is recorded."""
    faults: list[list[Any]] = []
    seen: dict[str, int] = {}
    wires: dict[bytes, dict[str, Any]] = {}
    plans = []
    for frame in batch.frames:
        found = [x for x in (_fault_of(frame, i, seen) for i in range(len(frame.names))) if x is not None]
        good, keys = _resolve(core, frame, wires, found, {row for row, _ in found}, calendars, together)
        faults += found
        plans.append(_plan(core, frame.only(good), keys, [wires[key] for key in keys], faults))
    if any(hook in wire for wire in wires.values() for hook in HOOKS):
        faults += _cycles(core, plans)
    fresh = sum(key not in core.state.spec_ids for key in wires)
    if len(core.state.specs) + fresh > SPECS_MAX:
        raise ResourceExhaustedError(f"{SPECS_MAX:,} different definitions are stored at most; use fewer distinct schedules and policies")
    if faults:
        more = f"; {len(faults)} faults in all" if len(faults) > 1 else ""
        raise InvalidArgumentError(
            f"job {faults[0][0]}: {faults[0][1]}{more} (nothing was changed)", jobs=sorted(faults)[:FAULTS_MAX], faults=len(faults)
        )
    return plans


def _cycles(core: Core, plans: list[Plan]) -> list[list[Any]]:
    """The fault of a cycle of hooks that these jobs would close."""
    coming = {name.decode(): targets_of(wire) for plan in plans for name, wire in zip(plan.names, plan.wires, strict=True)}
    cycle = find_cycle(core, coming)
    if not cycle:
        return []
    rows = {name: row for plan in plans for name, row in zip(plan.names, plan.frame.rows, strict=True)}
    return [[rows[cycle[0].encode()], cycle_text(cycle)]]


def _fault_of(frame: Frame, i: int, seen: dict[str, int]) -> list[Any] | None:
    """What is wrong with a job on its own."""
    row = frame.rows[i]
    try:
        name = own_name(frame.names[i])
    except InvalidArgumentError as e:
        return [row, str(e)]
    frame.names[i] = name
    if seen.setdefault(name, row) != row:
        return [row, f"job {display_name(name)} is there twice, as number {seen[name]} too"]
    if (fault := payload_fault(frame.payloads[i])) is not None:
        return [row, fault]
    if len(frame.notes[i]) > NOTE_MAX:
        return [row, f"note: a text of at most {NOTE_MAX} characters is wanted"]
    if frame.param[i] != NEVER and not 0 <= frame.param[i] <= INSTANT_MAX_US:
        return [row, "param_us is out of range"]
    return None


def _resolve(core: Core, frame: Frame, wires: dict[bytes, dict[str, Any]], faults: list[list[Any]], bad: set[int],
             calendars: dict[str, Any], together: frozenset[str]) -> tuple[list[int], list[bytes]]:
    """(places in the frame, keys of their definitions) of the jobs that are right; the definitions go to `wires`.

    Each distinct (given, namespace) is resolved once, one that holds its job's name for each job.
    """
    cache: dict[tuple[int, str], bytes] = {}
    refused: dict[tuple[int, str], str] = {}
    good: list[int] = []
    keys: list[bytes] = []
    for i, (w, name) in enumerate(zip(frame.which.tolist(), frame.names, strict=True)):
        if frame.rows[i] in bad:
            continue
        place = (w, name.partition("/")[0])
        key = cache.get(place)
        if key is None and place not in refused:
            try:
                key, wire = resolved_spec(core, frame.given[w], name, calendars, together)
                if key not in wires and key not in core.state.spec_ids:
                    check_spec(core, wire)
            except WheelschedError as e:
                refused[place] = str(e)
            else:
                wires.setdefault(key, wire)
                if not own(wire):
                    cache[place] = key
        if place in refused or key is None:
            faults.append([frame.rows[i], refused[place]])
        elif wires[key]["schedule"]["kind"] == "at" and frame.param[i] == NEVER:
            faults.append([frame.rows[i], "at: param_us, the instant, is wanted"])
        elif wires[key]["schedule"]["kind"] == "at" and not _inside(wires[key], int(frame.param[i])):
            faults.append([frame.rows[i], OUTSIDE])
        else:
            good.append(i)
            keys.append(key)
    return good, keys


def _inside(wire: dict[str, Any], at_us: int) -> bool:
    """Whether an instant is not before start nor after end."""
    return at_us >= (wire["start_us"] or 0) and (wire["end_us"] is None or at_us <= wire["end_us"])


def _names(frames: list[Frame]) -> frozenset[str]:
    """The full names of all staged jobs, those that are no names left out."""
    found = set()
    for frame in frames:
        for name in frame.names:
            try:
                found.add(parse_job_name(name))
            except InvalidArgumentError:
                continue  # `_fault_of` tells it
    return frozenset(found)


def _plan(core: Core, frame: Frame, spec_keys: list[bytes], wires: list[dict[str, Any]], faults: list[list[Any]]) -> Plan:
    """What would become of each job of a checked frame."""
    names = [name.encode() for name in frame.names]
    keys = b"".join([job_key(name) for name in names])
    jobs = core.state.jobs
    rows = jobs.find(names, keys)
    known = np.flatnonzero(rows != NO_ROW)
    param = np.where(frame.param == NEVER, NEVER, -(-frame.param // MS) * MS)
    result = np.full(len(names), CREATED, np.uint8)
    plan = Plan(frame, names, keys, wires, spec_keys, rows, param, result)
    if not len(known):
        return plan
    state = jobs.gather(np.ascontiguousarray(rows[known]))["state"]
    result[known[state != JobState.DELETED]] = UPDATED
    result[_same(core, plan, known, state)] = UNCHANGED
    once = np.array([i for i in known.tolist() if result[i] != UNCHANGED and wires[i]["schedule"]["kind"] == "at"], np.int64)
    faults += [[frame.rows[i], decided_text(display_name(frame.names[i]))] for i in decided_before(core, rows, param, once).tolist()]
    return plan


def _same(core: Core, plan: Plan, known: NDArray[np.int64], state: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Which known jobs are already as they are asked to be."""
    frame, notes = plan.frame, core.state.notes
    numbers = [core.state.spec_ids.get(plan.spec_keys[i], NO_SPEC) for i in known.tolist()]
    spec = np.array(numbers, np.uint32)
    able = np.flatnonzero((spec != NO_SPEC) & (state != JobState.DELETED))
    at, rows = known[able], np.ascontiguousarray(plan.rows[known[able]])
    spec = np.ascontiguousarray(spec[able])
    param = kept_anchors(core, rows, spec, plan.param[at])
    same = core.state.jobs.same(rows, spec, param, [frame.payloads[i] for i in at.tolist()]) > 0
    for k, (i, row, now) in enumerate(zip(at.tolist(), rows.tolist(), state[able].tolist(), strict=True)):
        note, paused = frame.notes[i], frame.paused[i]
        if (note and notes.get(row, "") != note) or (paused is not None and now == (JobState.ACTIVE if paused else JobState.PAUSED)):
            same[k] = False
    return at[same]


def _prunable(core: Core, pattern: str, keep: set[bytes]) -> list[int]:
    """Rows of the jobs that match and are not to be kept. Enqueued runs' reserved names are no jobs of anybody's file."""
    match = glob(pattern, "prune")
    jobs = core.state.jobs
    rows = np.array(jobs.slots(), np.uint32)
    if not len(rows):
        return []
    rows = np.ascontiguousarray(rows[jobs.gather(rows)["state"] != JobState.DELETED])
    found = []
    for row, raw in zip(rows.tolist(), jobs.names(rows), strict=True):
        if raw not in keep and b"/~" not in raw and match(display_name(raw.decode())):
            found.append(row)
    return found


def _answer(core: Core, plans: list[Plan], pruned: NDArray[np.uint32]) -> dict[str, Any]:
    """The answer, before anything is changed: it tells what each job was."""
    changes: list[dict[str, Any]] = []
    created, updated = [], []
    for plan in plans:
        created += [display_name(plan.names[i].decode()) for i in np.flatnonzero(plan.result == CREATED).tolist()]
        for i in np.flatnonzero(plan.result == UPDATED).tolist():
            updated.append(display_name(plan.names[i].decode()))
            if len(changes) < CHANGES_TOLD_MAX:
                changes.append(_change(core, plan, i))
    names = core.state.jobs.names(pruned) if len(pruned) else []
    waiting, held = open_runs(core, pruned)
    return {
        "created": created, "updated": updated, "unchanged": sum(int((p.result == UNCHANGED).sum()) for p in plans),
        "deleted": [display_name(raw.decode()) for raw in names], "changes": changes, "said": _said(core, plans),
        "cancelled": len(waiting), "going_on": len(held),
        "warnings": remarks(core, {wire["task"] for plan in plans for wire in plan.wires}),
    }


def _said(core: Core, plans: list[Plan]) -> list[list[str]]:
    """[name, text] of the new jobs about which something is said, CHANGES_TOLD_MAX at most."""
    fresh = ((plan, i) for plan in plans for i in np.flatnonzero(plan.rows == NO_ROW).tolist())
    told = ((plan.names[i], so_long_past(core, plan.wires[i], int(plan.param[i]))) for plan, i in fresh)
    return [[display_name(raw.decode()), said] for raw, said in islice((pair for pair in told if pair[1]), CHANGES_TOLD_MAX)]


def _change(core: Core, plan: Plan, i: int) -> dict[str, Any]:
    """What differs of one job: {name, old, new}."""
    frame, wanted = plan.frame, Wanted(plan.wires[i], int(plan.param[i]), plan.frame.payloads[i], plan.frame.notes[i], plan.frame.paused[i])
    return {"name": display_name(frame.names[i]), **difference(core, int(plan.rows[i]), wanted)}


def _carry_out(core: Core, cmd: Incoming, plan: Plan) -> None:
    """Put what is not as it should be, those of one `paused` together."""
    memory.renew(core, np.ascontiguousarray(plan.rows[plan.result == UNCHANGED]))
    numbers: dict[bytes, int] = {}
    for paused, rows in _by_pause(plan):
        for i in rows:
            key = plan.spec_keys[i]
            if key not in numbers:
                known = core.state.spec_ids.get(key)
                numbers[key] = record_spec(core, plan.wires[i]) if known is None else known
        pick = np.array(rows, np.int64)
        spec = np.array([numbers[plan.spec_keys[i]] for i in rows], np.uint32)
        notes = [[k, plan.frame.notes[i]] for k, i in enumerate(rows) if plan.frame.notes[i]]
        names, payloads = [plan.names[i] for i in rows], [plan.frame.payloads[i] for i in rows]
        put_jobs(core, cmd, names, payloads, spec, plan.param[pick], notes, paused=paused)


def _by_pause(plan: Plan) -> Iterator[tuple[bool | None, list[int]]]:
    changed = np.flatnonzero(plan.result != UNCHANGED).tolist()
    for paused in (None, True, False):
        rows = [i for i in changed if plan.frame.paused[i] is paused]
        if rows:
            yield paused, rows

"""How attempts end: completions in columns, what each leads to, leases that are given back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgpack
import numpy as np

from ..model import plain
from ..model.errors import InvalidArgumentError
from ..model.nouns import INSTANT_MAX_US, NEVER, OUTPUT_MAX, SERVER_UID, US, Outcome, RunFlag
from ..protocol import frames
from ..protocol.returned import fitted
from . import chains, holders, notices, retries, waiters
from .arguments import column
from .due import decide_jobs
from .late import answer_repeats, record_stale
from .overlap import end_with_job
from .peers import session_of
from .unattended import skip_unattended

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .core import Core
    from .turn import Incoming

ACCEPTED: Final = 1
STALE: Final = 2
_ENDED: Final = 3  # the run was held under that token once
_RESULT_MAX: Final = 3 * OUTPUT_MAX + 16 * 1024
_PLAIN: Final = {"value"}  # all there is in most result maps
_NOTHING: Final[dict[str, Any]] = {}
_COUNTED: Final = (
    ("succeeded", plain.EVENT_SUCCEED), ("retried", plain.EVENT_RETRY), ("dead", plain.EVENT_EXHAUST), ("cancelled", plain.EVENT_CANCEL),
)
_MEASURED_MAX: Final = 10_000  # runs that a moving mean remembers


def finish(core: Core, cmd: Incoming) -> bytes:
    """Completions in columns; a verdict for each."""
    session = session_of(core, cmd)
    args = cmd.request.args
    token = column(args, "token", "<i8")
    n = len(token)
    ids = args.get("id")
    if not isinstance(ids, bytes) or len(ids) != 16 * n:
        raise InvalidArgumentError("finish: id has 16 bytes a row")
    outcome, started, ended = column(args, "outcome", "u1", n), column(args, "started_us", "<i8", n), column(args, "ended_us", "<i8", n)
    if n and not (int(outcome.min()) >= 1 and int(outcome.max()) <= plain.OUTCOME_SNOOZED):
        raise InvalidArgumentError("finish: outcome is a number from 1 to 8")
    for name, times in (("started_us", started), ("ended_us", ended)):
        if n and not (int(times.min()) >= 0 and int(times.max()) <= INSTANT_MAX_US):
            raise InvalidArgumentError(f"finish: {name} is in microseconds since 1970, up to the year 9999")
    results, said = _read_results(args.get("result", []), n, outcome, foreign=session.kind == "external")
    snoozed = np.flatnonzero(outcome == plain.OUTCOME_SNOOZED).tolist() if n and int(outcome.max()) == plain.OUTCOME_SNOOZED else ()
    if any(i not in said for i in snoozed):
        raise InvalidArgumentError("finish: outcome 8 (snoozed) goes with snooze_us in its result: for how long")
    rows, verdict = holders.held(core, session, ids, token)
    held = np.flatnonzero(verdict == 1)
    first = np.unique(rows[held], return_index=True)[1]  # the same completion twice in one frame counts once
    held = held[np.sort(first)]
    mine = list(enumerate(held.tolist())) if results else []
    end_attempts(core, rows[held], outcome[held], started[held], ended[held],
                 {k: results[i] for k, i in mine if i in results}, {k: said[i] for k, i in mine if i in said})
    core.effects.finished.append((session.worker, token))
    # a repeat is answered as the first was; another outcome under a token whose attempt has ended is late
    late = np.flatnonzero(verdict == _ENDED)
    same = core.state.runs.gather(rows[late])["outcome"] == outcome[late]
    verdict[late] = np.where(same | (outcome[late] == plain.OUTCOME_NOT_STARTED), ACCEPTED, STALE)
    stale = verdict == STALE
    if cmd.found:
        answer_repeats(cmd.found, ids, token, outcome, stale)
    if stale.any():
        record_stale(core, session.worker, rows, token, outcome, stale)
        core.counters["stale"] += int(stale.sum())
    return frames.encode_ok(cmd.request.id, {"verdict": np.where(stale, STALE, ACCEPTED).astype(np.uint8).tobytes()})


def _read_results(sparse: Any, n: int, outcome: NDArray[np.uint8], *, foreign: bool) -> tuple[dict[int, bytes], dict[int, dict[str, Any]]]:
    """Result maps by row, as they are kept; and of those that did not succeed, as they came."""
    results: dict[int, bytes] = {}
    said: dict[int, dict[str, Any]] = {}
    if not isinstance(sparse, list):
        raise InvalidArgumentError("finish: result is a list of [row, map]")
    for pair in sparse:
        if not isinstance(pair, list) or len(pair) != 2 or not isinstance(pair[0], int) or not 0 <= pair[0] < n:
            raise InvalidArgumentError("finish: result is a list of [row, map]")
        row, result = pair
        results[row], told = read_result(result, int(outcome[row]), foreign=foreign)
        if told is not None:
            said[row] = told
    return results, said


def read_result(result: Any, outcome: int, *, foreign: bool) -> tuple[bytes, dict[str, Any] | None]:
    """A result map as it is kept; and of an attempt that did not succeed, as it came. InvalidArgumentError for what is none.

    What is not our own worker's (`foreign`) is checked in full: a value that can't be read would fail all who read it later. What is too
    long in it is cut.
    """
    told = None
    if foreign and isinstance(result, dict):
        retries.check_kept(result)
        result = fitted(result, _RESULT_MAX)
    if isinstance(result, dict) and result.keys() != _PLAIN:
        retries.check_result(result, outcome)
        if outcome != Outcome.SUCCEEDED:
            told = result
            result = {key: value for key, value in result.items() if key not in ("bases", "together")}
    data = msgpack.packb(result, use_bin_type=True)
    if not isinstance(result, dict) or len(data) > _RESULT_MAX:
        raise InvalidArgumentError(f"finish: a result is a map of at most {_RESULT_MAX} bytes")
    return data, told


def _measure(core: Core, spec: NDArray[np.uint32], took: NDArray[np.int64]) -> None:
    """Add the run times of ended attempts (microseconds) to the means of their tasks. Soft state: a restart forgets it."""
    means = core.durations
    numbers, which = np.unique(spec, return_inverse=True)
    total, count = np.bincount(which, took), np.bincount(which)
    for number, us, n in zip(numbers.tolist(), total.tolist(), count.tolist(), strict=True):
        task = core.state.specs[number]["task"]
        known, mean = means.get(task, (0, 0.0))
        share = n / (min(known, _MEASURED_MAX) + n)
        means[task] = known + n, mean + (us / n - mean) * share


def end_attempts(core: Core, rows: NDArray[np.uint32], outcome: NDArray[np.uint8], started: NDArray[np.int64],
                 ended: NDArray[np.int64], results: dict[int, bytes], said: dict[int, dict[str, Any]]) -> None:
    """Decide what each ended attempt leads to, and record it. What a worker had when its job was deleted is not retried, but cancelled.

    `results` are the maps as they are kept, `said` those of attempts that did not succeed, as the worker sent them.
    """
    back = outcome == plain.OUTCOME_NOT_STARTED
    fields = core.state.runs.gather(rows)
    started, ended = _within(fields["queued_us"], started, ended, core.now.wall_us)
    results = core.running.with_outputs(fields["token"], results)
    core.running.forget(fields["token"])
    asked = (fields["flags"] & RunFlag.CANCEL_ASKED) > 0
    orphaned = (fields["flags"] & RunFlag.ORPHANED) > 0
    if (back & ~asked).any():
        give_back(core, rows[back & ~asked])
    take = ~(back & ~asked)
    if not take.any():
        return
    event = np.full(len(rows), plain.EVENT_SUCCEED, np.uint8)
    due = np.zeros(len(rows), np.int64)
    for i in np.flatnonzero(take & (outcome != plain.OUTCOME_SUCCEEDED)).tolist():
        if asked[i] or orphaned[i]:
            event[i] = plain.EVENT_CANCEL
        elif said.get(i, _NOTHING).get("together") and retries.spared(core, int(rows[i]), int(outcome[i])):
            event[i], due[i] = plain.EVENT_SPARE, core.now.wall_us
        else:
            event[i], due[i] = retries.decide(core, fields[i], int(outcome[i]), said.get(i, _NOTHING))
    keep = np.flatnonzero(take).tolist()
    core.record("FINISH", {
        "at": core.now.wall_us, "run": rows[take], "event": event[take], "outcome": outcome[take], "started": started[take],
        "ended": ended[take], "due": due[take], "result": [[k, results[i]] for k, i in enumerate(keep) if i in results] if results else [],
    })
    retry = (event == plain.EVENT_RETRY) | (event == plain.EVENT_SPARE)
    if retry.any():
        core.arm_retries(rows[retry], due[retry])
    _count(core, event[take], outcome[take], fields[take], started[take])
    timed = take & (started > 0) & (ended >= started)
    if timed.any():
        _measure(core, fields["spec"][timed], (ended - started)[timed])
    chains.ended(core, rows[take & ~retry])
    dead = np.flatnonzero(event == plain.EVENT_EXHAUST)
    core.pulse.ended(core, int((take & ~retry).sum()), fields["job"][dead])
    if len(dead):
        notices.died(core, rows[dead], fields[dead], [said.get(i, _NOTHING) for i in dead[: notices.TEXTS_MAX].tolist()])
        _pause_failing(core, fields["job"][dead])
    core.turn_of(rows[take])
    waiters.end(core, rows[take & ~retry])


def _within(queued: NDArray[np.int64], started: NDArray[np.int64], ended: NDArray[np.int64], now: int
            ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """When attempts started (0: not known) and ended, as workers say, where that can be: else they ended now. Retention, forecasts and
    `dead discard --until` go by it, so neither a worker that tells no times nor one with another clock may decide it. How long a run took,
    such a worker knows as well as any: that counts back from now.
    """
    first = np.minimum(queued, now)
    took = np.where((started > 0) & (ended >= started), ended - started, 0)
    apart = (ended < first) | (ended > now) | ((started > 0) & (started < first))  # its clock is another one than the server's
    started = np.where(apart & (started > 0), now - np.minimum(took, now - first), started)
    ended = np.where(apart, now, ended)
    return np.where(started > 0, np.clip(started, first, ended), 0), ended


def _pause_failing(core: Core, jobs: NDArray[np.uint32]) -> None:
    """`pause_after`: jobs whose last so many runs all died are paused, with a note."""
    jobs = np.unique(jobs)
    fields = core.state.jobs.gather(jobs)
    wanted = core.specs.pause_after[fields["spec"]]
    stop = (wanted > 0) & (fields["failures"] >= wanted) & (fields["state"] == plain.JOB_ACTIVE)
    if stop.any():
        rows, wanted = jobs[stop], wanted[stop]
        decide_jobs(core, rows, whole=True)
        for row in rows.tolist():
            skip_unattended(core, row)
        fields = core.state.jobs.gather(rows)
        never = np.full(len(rows), NEVER, np.int64)
        core.record("JOBS", {
            "at": core.now.wall_us, "uid": SERVER_UID, "job": rows, "state": np.full(len(rows), plain.JOB_PAUSED, np.uint8), "next": never,
            "cursor": fields["cursor_us"].copy(),
            "note": [
                [i, f"paused by pause_after: {n} dead runs one after another; resume it when the cause is gone"]
                for i, n in enumerate(wanted.tolist())
            ],
        })
        core.arm_jobs(rows, never)


def _count(core: Core, event: NDArray[np.uint8], outcome: NDArray[np.uint8], fields: NDArray[Any], started: NDArray[np.int64]) -> None:
    counts = np.bincount(event, minlength=plain.EVENT_SPARE + 1).tolist()
    for name, number in _COUNTED:
        core.counters[name] += counts[number]
    if counts[plain.EVENT_SPARE]:
        core.counters["snoozed"] += int(((event == plain.EVENT_SPARE) & (outcome == plain.OUTCOME_SNOOZED)).sum())
    timely = fields["trigger"] != plain.TRIGGER_BACKFILL  # what makes up for the past is late by nature
    due, nominal = fields["due_us"], fields["nominal_us"]  # a lag begins at the jittered or moved instant, but not at that of a retry
    armed = (fields["disposition"] == plain.DISPOSITION_MOVED) | ((fields["attempt"] == 1) & (fields["snoozes"] == 0) & (due < NEVER))
    wanted = _asked_for(core, fields, np.where(armed, np.maximum(due, nominal), nominal))
    core.effects.lags.append(("done", wanted[timely & (event == plain.EVENT_SUCCEED)]))
    first = timely & (fields["attempt"] == 1) & (started > 0)
    core.effects.start_lags.append((started - wanted)[first])


def _asked_for(core: Core, fields: NDArray[Any], wanted: NDArray[np.int64]) -> NDArray[np.int64]:
    """The instants that lags count from: none is earlier than somebody asked for the run. A time of the past that was given to enqueue, or
    to a job, and the time of a dead letter that was sent back, are nobody's delay.
    """
    by_schedule, created = fields["trigger"] == plain.TRIGGER_SCHEDULE, fields["created_us"]
    asked = np.where(by_schedule, wanted, np.maximum(wanted, created))
    behind = np.flatnonzero(by_schedule & (created - wanted > US))  # few: only then it matters when the job was put
    if len(behind):
        put = core.state.jobs.gather(np.ascontiguousarray(fields["job"][behind]))["updated_us"]
        asked[behind] = np.maximum(wanted[behind], np.minimum(put, created[behind]))
    return np.where(fields["flags"] & RunFlag.SENT_BACK > 0, np.maximum(asked, fields["queued_us"]), asked)


def give_back(core: Core, rows: NDArray[np.uint32]) -> None:
    """Leases end without an attempt being spent: user code was not entered. Nor will it be, if the job was deleted meanwhile."""
    fields = core.state.runs.gather(rows)
    core.running.forget(fields["token"])
    core.record("GIVE_BACK", {"at": core.now.wall_us, "run": rows})
    core.counters["given_back"] += len(rows)
    orphaned = (fields["flags"] & RunFlag.ORPHANED) > 0
    if orphaned.any():
        end_with_job(core, rows[orphaned], rows[:0])
    core.watch(rows[~orphaned])

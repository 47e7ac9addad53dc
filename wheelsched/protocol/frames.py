"""The wire, sans-IO. This text is its specification; a worker in any language can be written from it alone.

Transport: a stream Unix socket (the pool's executors: a socketpair). Version 1.

Frame: 4 bytes big-endian length of the body, then the body, one MessagePack array. A request's body is at most
1 MiB, a reply's at most 64 MiB. Text is UTF-8. Map keys are text. Nesting deeper than 500 levels, arrays and maps of
over 100,000 items and extension types outside of payloads are refused.

    request   [id, verb, args]            id: positive int64, chosen by the client, echoed; args: a map
    reply     [id, "ok", result]   or   [id, "error", {"code", "message", "detail"}]

Requests may be pipelined; replies come in the order in which requests are decided: that of their coming, but that hello, lease, finish
and heartbeat overtake others of their connection, and `wait` and `lease` answer when they can. A frame that can't be decoded is
answered with an error of id 0 and the connection is closed. A connection begins with `hello`: a worker must, a client learns versions
and limits by it.

The server knows its peer's user and groups by the socket. `given` with the task `command` or `http` needs the role of that name; hold,
release, queue_set, queue_pause, queue_resume and queue_purge need `admin`, a worker's hello `worker`, and with the task `command` or `http`
the role of that name too: permission_denied otherwise. Fencing tokens are shown to those alone who have all four roles, as the server's own
user has: to others each `token` of a run is nil, and 0 in events.

Codes: invalid_argument not_found already_exists failed_precondition permission_denied resource_exhausted storage_full
unavailable deadline_exceeded fenced unimplemented internal.

Instants and durations are int64 microseconds (`_us`); instants since the epoch, UTC; 2**63-1 is "never".
A *column* is a bin of little-endian numbers, one a row (i64: 8 bytes, u32: 4, u8: 1). *Sparse* is a list of [row, value] pairs.
Run ids are 16 bytes in columns and 32 hex digits in results. A payload is a bin: MessagePack [args, kwargs], or
[args, kwargs, headers], with None, bool, int64, float, text, bin, list, map with text keys, the timestamp extension (-1) for aware
datetimes, and extension types 0 to 127 for types of users' own: each holds MessagePack of such a value, and only who knows the type knows
what it means. `headers` is a map of names to texts, at most 32 of 8,192 characters, left out when empty: what came with a call (as a
trace context), the same in every attempt, and in the runs that its hooks make. `cause` is not a client's to give: a run that an
`on_missed` made has in it {"cause": {job, jobs, reason ("missed" or "late"), from_us, until_us, count}}: a job's name, the first of so
many; how many occurrences, from the first to the last nominal time, were not run or started late. One that `on_success`, `on_failure` or
`on_dead` made has {"cause": {reason ("success", "failure" or "dead"), job, run_id (text), value, error}}: the run that ended, the `value`
of its result (a bin or nil; over 8 KiB it is left out, with its size as value_left_out), {type, message} of its last error or nil. The
one behind a group: {"cause": {reason "group", group (id of that run), members, succeeded, failed, cancelled}}, how many ended how.

Every mutating request carries `rid`, a client-made bin of 16 bytes that is remembered durably for 10 minutes: a repeat is
answered as the first was and does nothing.

    hello      version, role ("client" or "worker"), name; a worker: tasks {task: options its decorator gave}, secret (a bin of 16 to 64
               random bytes that it makes at its start, or nil)
               -> version, server, instance (bin, new at each start), generation, clock_offset_us, worker (its id, for workers),
               lease_us, heartbeat_us, ignored (left out when empty: tasks whose options are not taken, since the server's own workers or
               those of another user announced others; the first 100)
    put        rid, name, given, param_us, payload, paused (bool), note, version (int or nil: compare-and-set), keep (bool: changes what
               `given` names, nil takes a policy away; without `schedule` its own stays, with payload nil its arguments)
               -> a job, "result", "said" (more to know), "warning" (no worker serves its task), "changes" {old, new} of an updated one.
               A version that is not the job's: already_exists
    put_many   rid, given [maps], names [texts], which (u32 column: row of `given`), param_us (i64 column), payload [bins]
               -> result (u8 column: 0 unchanged, 1 created, 2 updated), said [[row, text]...] if there is more to know, warnings
               [[task, text]...] of tasks that no worker serves.
               All or nothing: an error's detail has jobs [[row, message]…]
    get        name -> a job
    jobs       match (glob or nil), state (or nil), after (position or nil), limit -> columns {name: [values]}, after (nil at the end;
               until then a page may have fewer rows than asked for, even none)
    next       name, n -> [instants]
    pause      rid, name, note -> a job          resume  rid, name, catchup (nil, "skip", "latest", "all") -> a job
    delete     rid, name -> a job                trigger rid, name, key -> a run
    enqueue    rid, given, payload, namespace, at_us or delay_us or neither, key, unique (nil or a list of "task", "args", "queue",
               "concurrency_key") -> a run, with existing (bool): the one that the key made, or the open one of the same namespace, task and
               fields, and no new one was made
    enqueue_many  rid, given [maps], namespace [texts] and unique [as above], all of one length, which (u32 column: row of these), payload
               [bins], at_us and delay_us (i64 columns; 2**63-1: none), key (nil or [texts or nil]) -> id (16 bytes a run), existing (u8
               column). All or nothing: an error's detail has runs [[row, message]...]
    group      rid, given [maps], which, payload (as in enqueue_many), namespace, then {which, payload}, when ("finished" or "succeeded"),
               key, members (how many in all), batch (nil, or that of the parts) -> run (that of `then`, which waits until the members have
               ended; with "succeeded" it is cancelled unless all did), existing (bool), id (16 bytes a member; empty when existing). At
               most 10,000 members, all in one commit. An error's detail has runs [[row, message]...], or staged: send the parts again
    group_part batch, given, which, payload -> staged (members so far). Kept with the connection until `group`, or its end
    run        id -> a run                       cancel  rid, id -> a run
    cancel_many  rid, match (glob over job names), state ("scheduled", "queued", "retry_wait", "leased", "running"), task, queue, namespace
               (texts; nil or empty: any, but not all of them), dry_run (bool) -> count: open runs that were ended, or asked to end through
               their workers
    wait       id, timeout_us -> a run, when it is final or the time is over
    runs       job (name, glob or nil), state, since_us, until_us, task, queue, namespace, skipped (bool: with the occurrences that made no
               run), late (bool: runs only that are marked late; with skipped: "late and skipped"), newest (bool), after, limit -> columns,
               after. Oldest first, or newest first; a page may be empty and not the last
    dead       match (glob over job names), error (type's name as in `errors` of `retry`, or a glob), task, queue, namespace, since_us,
               until_us (of their end), payload (bool: a column more, the bin of the call), after, limit -> columns, after. In the order in
               which they died; a page may be empty and not the last
    redrive    rid, ids or a filter of `dead` (not all of it nil), rate (text as of a queue: the first is queued now, further ones wait for
               their instants; what waits is scheduled, an enqueued run in retry_wait), limit (the oldest so many), dry_run (bool) -> count
    discard    rid, ids or a filter, limit, dry_run -> count
    stats      -> counters, lags, workers [{id, name, kind, leased, ready (it has said hello, and its lease isn't over)}], start_failure
               {text, tries} (workers of the server's own can't start; nil when all have), slow_starts [{worker, us}] (have not said hello
               for so long), reload_failure {text, at_us} (the old code went on; nil after a reload that didn't fail), queues,
               unserved_tasks {task: runs}, builtin_tasks [those that are served],
               held (bool), hold_note, paused_queues [names], held_back [{task, queue, runs, reason}]: what waits for a limit or a paused
               queue, not for a worker

    queue_set     rid, name, settings {concurrency, key_concurrency, burst (whole numbers), rate, key_rate (texts: "100/s", "5/m",
                  "10/30s"), weights {namespace: 1…1000}}: those alone that change; nil takes one away -> a queue
    queue_pause   rid, name -> a queue: nothing is leased from it; runs wait      queue_resume  rid, name -> a queue
    queue_purge   rid, name -> count: all its open runs that no worker holds are cancelled, those made meanwhile left alone; not_found for
                  a queue that nothing has named
    queues        -> [a queue]: {name, settings, queued, leased (runs), oldest_us (since when the one that waits longest does, or nil),
                  paused (bool)}

    why        name, at_us -> a fate
    skip       rid, name, at_us, undo (bool) -> a fate         move rid, name, at_us, to_us -> a run
    backfill   rid, name, since_us, until_us, dry_run (bool), only ("missing" or "failed"), overlap (nil or {policy, max}: "allow" or
               "buffer_all"), backwards (bool) -> count (runs made; with dry_run: that would be), existing (occurrences left alone because
               they have a run), total, first_us and last_us (of the range's occurrences, or nil), forgotten (of count: history has
               dropped the runs of that time, so they may have run before), ids (texts, the first 1,000 of the runs made). Both ends
               belong to the range; until_us is not in the future
    history    name, limit -> [{at_us, uid, what, version, old, new, note}], newest first; old and new: {spec, param_us, state} or nil
    calendar_put     rid, name, calendar -> {name, calendar, jobs}      calendar_delete  rid, name -> {name}
    calendars        -> [{name, calendar, jobs (how many use it)}]
    hold       rid, note -> {held, since_us, note}. No job is triggered until `release`; runs that are there go on
    release    rid -> {held, missed (jobs)}: what came due meanwhile is decided by each job's policies
    reload     -> workers, finishing: the server's own workers import the task code anew, one after another; answered when all have it
               (finishing: how many still finish runs on the old code), or when one can't begin: failed_precondition, the old ones go on
    tzdiff     -> {old, new, at_us, total, columns {job, old_us, new_us}}: jobs whose next time moved when the zone data did, the first
               10,000; old and new are versions of tzdata
    stage      batch (a number that the client uses once on a connection), given [maps], names, which, param_us, payload, as for put_many;
               notes [texts], paused [bools or nil] -> staged (jobs of the batch so far). Kept with the connection until `apply`, or its end
    apply      rid, batch, jobs (how many are staged: failed_precondition with `staged` in its detail when there are not so many, as after
               a reconnect), prune (glob or nil), dry_run (bool), calendars {name: calendar} -> calendars {name: "created" or "updated"},
               created [names], updated [names], unchanged (how many), deleted
               [names], cancelled and going_on (how many runs of these), changes [{name, old, new}: the keys of the spec that differ,
               param_us, payload, note, paused; 1,000 updated jobs at most], said [[name, text]...]. All that was staged, in one commit,
               or nothing: an error's detail has jobs [[row, message]...], 1,000 at most
    forecast   for_us, bucket_us (whole seconds), queue (glob or nil) -> a forecast: how many runs will start when

    events     since (a position, "oldest", or nil: from now), match (glob or nil), kinds (names or globs such as "run.*", or nil),
               limit, wait_us -> n, position, and for n > 0: seq (i64), row (u32), at_us (i64), kind (u8: place in `kinds`), state
               (u8: place in `states`; of the run, or of the job), job (u32: place in `jobs`; 2**32-1: none), id (16 bytes a row; zeros:
               none), scheduled_us (i64; negative: none), attempt (u32), token (i64), worker (u32; in these three 0 is none), jobs, kinds,
               states [texts], generations [[row, generation from it on]...], more (sparse maps: reason, outcome, error, message,
               disposition, name, settings, note, count, next_us, until_us, scheduled_us, worker).
               Answered when there is an event that fits, or the wait is over (with behind: true when it was over before all that is
               on disk was looked at: ask on at once). A page has 4,096 events at most. The position of an
               event is the text "GENERATION.SEQ.ROW"; `position` is where the next page begins, beyond what did not fit. Only what is
               on disk is told, in the order of the journal. failed_precondition (detail: oldest) when what followed the position
               is not kept any more, or when it is of another past (a backup was restored)

`given` is what was asked for, and only that: {task, schedule, queue, priority, timeout_us, retry, overlap, catchup, start_us, end_us,
max_runs, expires_after_us, concurrency_key, jitter, calendar, pause_after, late_after_us, redact, on_missed, on_success, on_failure,
on_dead, heartbeat_timeout_us, concurrency}. The server adds what the task's decorator announced and then the house defaults; the
answer's `spec` is the resolved form, in which those from jitter on stand only when given.

    schedule   {"kind": "cron", expr, tz, dst_gap, dst_overlap, day_or, seconds}, {"kind": "every", every_us}, {"kind": "every", every_us,
               "after_completion": true}, {"kind": "at"}, {"kind": "manual"} or {"kind": "union", "of": [{schedule, param_us}, ...]} with 2
               to 100 of the others but after_completion and manual; a part with param_us 2**63-1 takes the job's
    param_us   the instant of `at` and the anchor of `every` (2**63-1: none)
    retry      {attempts, backoff_us, factor, cap_us, not_on, errors}; errors, only when given: {name: {attempts, backoff_us, factor,
               cap_us}}, at most 100. The rule of the failure's type, or else of the nearest of its `bases`, takes the place of the four
               above; a name fits a type when its dotted parts stand in the type's in that order and both end alike, and the one with the
               most parts counts. What fits a name of not_on as well or better is not retried. attempts counts all of the run
    overlap    {policy: skip, buffer_one, buffer_latest, buffer_all, cancel_other, kill_other or allow, max (of the 4th and last, or nil)}
    catchup    {policy: latest, earliest, all or skip, window_us, max (of all, or nil)}
    jitter     {us} or {percent}: each start is put off by a stable part of it, never past the next nominal time
    calendar   1 to 10 names of calendars; an occurrence that any of them blocks is skipped
    pause_after    1 to 255: the job is paused after so many dead runs one after another
    concurrency_key   text: at most `key_concurrency` (of the queue; 1) runs of one key are leased at once within their queue
    concurrency    1…1000000: at most so many runs of the job (an enqueue: of its namespace and task) are leased at once. A run obeys the
               number that it was made with; those made without one neither obey nor count; of several numbers the smallest holds
    heartbeat_timeout_us  an attempt whose own code sends no heartbeat for so long is ended as if by its timeout
    expires_after_us  a run that no worker has so long after its nominal time, and its jitter, is cancelled, with the reason "expired"; of a
               moved run it counts from its instant, of a backfill's from its making
    late_after_us  a run that has not started so long after that time is marked late
    redact         1 to 100 names of argument fields: keyword arguments, keys of maps at any depth (letters of either case are equal) and
                   positions ("0" is the first positional argument). Their values are "[redacted]" in every payload that is shown, which
                   no payload that is sent may have as an argument; those of the server are added, and those of the task's decorator as a
                   worker announced it last, for what was put before that as well
    on_missed      full name of a job to trigger when occurrences were not run, or a run is late
    on_success, on_failure, on_dead   full name of a job to trigger when a run succeeded; will not succeed any more, being a dead letter or
               expired (a cancel is no failure); is a dead letter. Once for each (run, hook). A cycle is refused

A calendar: {"mode": "exclude" or "include", "tz": zone, "dates": ["2026-12-25", ...], "yearly": ["12-25", ...], "weekdays": ["sat", ...],
"windows": [{from_us, to_us}, ...], "daily": [{"weekdays": [...] or left out, "from": "22:00", "to": "06:00"}, ...]}. `exclude`: nothing
runs at these instants; `include`: only at these.

A job: name, state, spec, param_us, payload, version, note, next_us, cursor_us (last decided nominal time), active (open runs),
created_us, updated_us, and from put: result ("created" "updated" "unchanged"), from delete: cancelled (runs that no worker had; `active`
ones go on).
A run: id, job, trigger, task, queue, scheduled_us, created_us, queued_us, started_us, ended_us, next_us, state, reason, attempt, token,
worker, snoozed (attempts that were snoozed and not counted), result, missed, until_us and count (a skipped range), late (bool),
disposition (text, as in a fate), blocking (run id or nil: the run that it had to give way to), attempts [{attempt, token, worker,
started_us, ended_us, outcome, result}], stale [{token, worker, outcome, at_us}] (completions that were refused), progress and
heartbeat_us (of the open attempt, as its own code told; or nil). started_us of an open attempt: nil until it is known to have
been entered; of an external worker's, when a heartbeat first said so.
progress of a run that waits for its group tells how many have ended. The answer to `run` has two keys more: payload (bin
of the call, redacted; nil once the run is history) and waiting: nil, or of an open run that no worker has {reason (text), rank (1 is
next in its queue; nil: not queued, or beyond the first 10,000), expected_us (of its start,
if all goes on as measured and nothing else comes; nil: that can't be said)}.
`result` is a map or nil: {value: bin (a MessagePack value) or left_out: {type, bytes (or nil), why} in its place, stdout: bin,
stderr: bin, stdout_cut, stderr_cut (bytes left out), type, message, traceback (these three after a failure), retry (false: a failure that
no further attempt can mend), reason (text, of a cancel or a snooze), retry_us, snooze_us, cpu_us (user and system), max_rss (bytes)}.
A fate is what became of one occurrence: {disposition, reason, run_id, at_us, text, scheduled_us, until_us, count, blocking}; all but
disposition and text may be nil. disposition: fired skipped coalesced superseded moved tzdata_moved pending; at_us: when it was decided, or
(pending) will be, or when it ran instead (moved by a clock change); scheduled_us: its nominal time; until_us, count: of the range of
occurrences that it is part of; text: all this in words.
A forecast: now_us, from_us, until_us, bucket_us, starts, counts (i64 column: one a bucket), peak ({at_us, starts} or nil),
queues [{name, starts, peak, counts}], held, jobs (active ones with a time in the span), paused (jobs; counted nowhere else), delayed
and retries (runs among the starts that wait already), contributors to the peak [{namespace, schedule, tz, starts, jobs, job (its name,
when it is one alone)}], drain {after_us (from the peak on; nil has its reason in why), inside (the span), workers, measured (runs),
unmeasured [tasks], why}, what_if ({moved, h (a peak), jitter_us, jitter (a peak)} or nil).

Workers:

    lease      queues [names] (empty: all), credits (1…65536), wait_us -> n, and for n > 0:
               id (16 bytes a row), token (i64), attempt (u32), scheduled_us (i64), missed (u32), spec (u32: row of `specs`),
               specs [{task, timeout_us, queue, heartbeat_timeout_us (when there is one)}], job (bin, names joined) with job_end
               (u32 column of ends), payload (bin, joined) with payload_end (u32), last_result (sparse: the value
               that the last run of the job to succeed returned, up to 16 KiB), last_error (sparse bins, each MessagePack [type, message]:
               of the job's last attempt, when it failed), checkpoint (sparse), lease_us, alone (rows whose last
               attempt did not end by itself: one that calls user code for several runs at once does so for each of these alone).
               Both lasts are none for runs of enqueue.
               Rows come in token order. n = 0: the wait is over, or with "stop": true, the server is stopping: ask no more on this
               connection. credits: the most rows of this answer, so no more than the worker has room for. credits 0 asks for none: it ends
               the waits of this connection. A worker that stops sends it, and hands back what came before all is answered: what is
               granted to one that has gone waits for the end of its lease.
    finish     id, token (i64), outcome (u8), started_us (i64), ended_us (i64), result (sparse)
               -> verdict (u8 column: 1 accepted, 2 stale)
               outcome: 1 succeeded 2 failed 3 timed_out 4 lost 5 interrupted 6 cancelled 7 not_started (handed back, no attempt spent)
               8 snoozed (no attempt spent). 6 that nobody asked for: the run ends so, with the `reason` of its result.
               started_us 0: not known. ended_us 0, or not between the moment the run was queued and now: it ended now.
               In a result, beside what a run shows of it: bases, after a failure (texts: names of the type's base classes, nearest
               first, at most 10; for the rules of `retry`); retry_us, after a failure (the next attempt comes so much later, or up to a
               tenth more, and not after the backoff); snooze_us, of outcome 8 (so long the run waits; 100 ms at least); both at most
               366 days; together (true: of outcome 3, 4 or 5, when user code was called for several runs at once: nobody
               knows whose fault it was, so no attempt is spent, unless the run's last attempt ended with 3, 4 or 5 too)
    heartbeat  id, token (i64), started (u8: user code was entered), progress (sparse texts of at most 1,000 characters), checkpoint
               (sparse bins of at most 16 KiB, each a MessagePack value), output (sparse maps of stdout and stderr, each [at, bin of at
               most 64 KiB]: what was printed behind the first `at` bytes) -> cancel [rows], stale [rows]
               For all that is held, every heartbeat_us at least: it renews the worker's lease, which is over lease_us after the last
               one. A row with an entry in progress or checkpoint is a heartbeat of the run's own code; an empty text is one too, and
               leaves the progress told before. The answer comes when the checkpoints are on disk; the next attempt is handed the last
               one. An output is shown while the attempt lasts, and kept when it ends without a completion; else that has all of it,
               again. `cancel`: runs to be ended. `stale`: rows whose lease is over, nothing of which was kept: stop them at once.

The token is the fencing token of the lease. A completion counts only for the (run id, token) that holds the lease, and only from the
connection that it was granted to, or, when that is gone, from one of the same user whose hello had the same secret. A worker that tells
no secret goes on by its user alone. From anybody else the same is `stale` and changes nothing, and so is a heartbeat, with its
checkpoint. Any other completion is `stale` too, and the first 10 of a run are kept with it; the same
completion sent again is answered as the first was. A worker that was silent for longer than its lease holds
nothing any more; on the same connection it may go on at once: its heartbeats and completions
tell it what is stale, and a lease request that it had open was answered with n = 0. A worker executes the rows of a batch in token
order unless it has several executors.

The life of a worker. It connects, says `hello` with version 1 and tasks {name: options} (options: {}, or queue, timeout_us,
heartbeat_timeout_us, retry, priority, for those who enqueue the task without them), asks with `lease` for as many runs as it has room
for, one request at a time, and executes them. From the moment it enters user code it measures `timeout_us` itself, and ends the run
then (outcome 3). A run with heartbeat_timeout_us is ended so when its own code was silent for that long, counted from its start and
from each heartbeat of its own. For a worker that leaves either to the server, the server counts too: from the first row that says
`started`, and for heartbeat_timeout_us from each row with an entry in progress or checkpoint. It ends the attempt 5 s after the limit,
and answers `stale` from then on.
Every `heartbeat_us`, idle or busy, it sends `heartbeat` with all runs that it holds: that renews its leases, which else end after
`lease_us`. started is 1 for a run whose user code was entered; progress has only the texts that changed. A row of `cancel` shall be
ended and reported with outcome 6 (it comes again in each answer until it is); the lease of a row of `stale` is lost: end it, what it
reports is refused. `finish` comes at once or collected, in any order, in frames of at most 1 MiB. started_us and ended_us are the
worker's clock plus `clock_offset_us`, or 0 when user code was not entered. A result is as in a run, each key optional: {value} after
success, {type, message, traceback} after failure, stdout and stderr with either. Of stdout and of stderr 64 KiB each are kept, of each
text 4,096 characters, of a value what they leave of 208 KiB. A run whose code returned has succeeded, whatever it returned: a value that
is longer, or that can't be brought into MessagePack, is left out, and left_out {type, bytes (nil: not known), why} says so in its place.
Do that yourself where a frame would be too long; else the server cuts what is longer, and puts the mark in place of a value that is too
long or that no payload can hold (a map whose keys are no texts, say).
Connection lost: connect again, say hello with the same secret, beat with what is held, and send every `finish` that was not answered
once more. The leases go on meanwhile for `lease_us`, also when the server was started anew; that the worker has another id now does
not matter.
Errors: `unavailable`, `storage_full`, `resource_exhausted`: the same again, later. Any other code is a fault of the worker.
Orderly end: finish the runs that were entered, hand back the others with outcome 7 (also those that come with a `lease` that was
still to be answered, so its wait is best short), wait for the verdicts, close.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgpack

from ..model.errors import InvalidArgumentError, PayloadError, WheelschedError, error_from_wire
from ..model.nouns import PAYLOAD_MAX, to_datetime
from ..model.payloads import NO_EXTS, RAW, pack, storable, unpack
from .verbs import WORKERS

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..model.payloads import Exts

VERSION: Final = 1
FRAME_MAX: Final = 1024 * 1024
REPLY_MAX: Final = 64 * 1024 * 1024
HEADERS_MAX: Final = 32
HEADERS_CHARS_MAX: Final = 8 * 1024  # names and values of a call's headers together
ITEMS_MAX: Final = 100_000
_LENGTH: Final = struct.Struct(">I")


@dataclass(frozen=True, slots=True)
class Request:
    """One request as it came in."""

    id: int
    verb: str
    args: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Reply:
    """One reply as it came in; `error` is None for "ok"."""

    id: int
    result: Any
    error: WheelschedError | None


class FrameReader:
    """Bytes in, bodies out. Holds at most one incomplete frame of `limit` bytes."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._buffer = bytearray()

    @property
    def pending(self) -> int:
        """Bytes that no body was made of yet."""
        return len(self._buffer)

    def feed(self, data: bytes | bytearray | memoryview, most: int = sys.maxsize) -> list[bytes]:
        """The bodies completed by `data`, in order, `most` of them; others stay. InvalidArgumentError for a frame over the limit."""
        buffer = self._buffer
        buffer += data
        bodies: list[bytes] = []
        at = 0
        while len(buffer) - at >= 4 and len(bodies) < most:
            (size,) = _LENGTH.unpack_from(buffer, at)
            if size > self._limit:
                raise InvalidArgumentError(f"frame of {size} bytes: at most {self._limit} are allowed; send fewer items a frame")
            if len(buffer) - at - 4 < size:
                break
            bodies.append(bytes(memoryview(buffer)[at + 4 : at + 4 + size]))
            at += 4 + size
        if at:
            del buffer[:at]
        return bodies


def encode_frame(body: Any, limit: int = REPLY_MAX) -> bytes:
    """A frame of one MessagePack value. InvalidArgumentError over the limit or for what MessagePack can't hold."""
    try:
        data: bytes = msgpack.packb(body, use_bin_type=True)
    except (TypeError, ValueError, OverflowError, RecursionError) as e:
        raise InvalidArgumentError(f"this can't be sent: {e}") from e
    if len(data) > limit:
        raise InvalidArgumentError(f"frame of {len(data)} bytes: at most {limit} are allowed; send fewer items a frame")
    return _LENGTH.pack(len(data)) + data


def decode_body(body: bytes) -> Any:
    """The MessagePack value of one body. InvalidArgumentError for anything malformed."""
    try:
        return msgpack.unpackb(
            body, raw=False, strict_map_key=True, max_array_len=ITEMS_MAX, max_map_len=ITEMS_MAX, max_ext_len=0
        )
    except (ValueError, TypeError, RecursionError, UnicodeDecodeError, msgpack.exceptions.UnpackException) as e:
        raise InvalidArgumentError(f"malformed frame: {type(e).__name__}: {str(e)[:200]}") from e


def encode_request(request_id: int, verb: str, args: Mapping[str, Any]) -> bytes:
    """A request's frame."""
    return encode_frame([request_id, verb, args], FRAME_MAX)


def encode_ok(request_id: int, result: Any) -> bytes:
    """The frame of a reply that all went well."""
    return encode_frame([request_id, "ok", result])


def encode_error(request_id: int, error: WheelschedError) -> bytes:
    """The frame of a refusal."""
    return encode_frame([request_id, "error", {"code": error.code, "message": str(error)[:4_000], "detail": error.detail}])


def parse_request(body: bytes) -> Request:
    """A checked Request. InvalidArgumentError for any other shape."""
    value = decode_body(body)
    if not isinstance(value, list) or len(value) != 3:
        raise InvalidArgumentError("a request is an array [id, verb, args]")
    request_id, verb, args = value
    if isinstance(request_id, bool) or not isinstance(request_id, int) or not 0 < request_id < 2**63:
        raise InvalidArgumentError("a request's id is a positive int64")
    if not isinstance(verb, str) or not isinstance(args, dict):
        raise InvalidArgumentError("a request is an array [id, verb, args] with a text and a map")
    return Request(request_id, verb, args)


def parse_reply(body: bytes) -> Reply:
    """A checked Reply. InvalidArgumentError when the peer doesn't speak this protocol."""
    try:
        value = msgpack.unpackb(body, raw=False, strict_map_key=True)
        request_id, kind, result = value
        if kind == "ok":
            return Reply(request_id, result, None)
        if kind == "error":
            return Reply(request_id, None, error_from_wire(result["code"], result["message"], result.get("detail")))
    except (ValueError, TypeError, KeyError, RecursionError, msgpack.exceptions.UnpackException) as e:
        raise InvalidArgumentError(f"the server's answer is malformed: {type(e).__name__}: {str(e)[:200]}") from e
    raise InvalidArgumentError(f"the server's answer has the unknown kind {str(kind)[:40]!r}")


def encode_value(value: Any, what: str = "value", exts: Exts = NO_EXTS, *, lenient: bool = False) -> bytes:
    """MessagePack of one payload value. PayloadError names the path of what can't be stored; `lenient`: see `payloads.storable`."""
    return pack(storable(value, what, exts, lenient=lenient))


def check_headers(headers: Any) -> dict[str, str]:
    """A copy of a call's headers. PayloadError for what can't be."""
    if not isinstance(headers, Mapping) or not all(isinstance(k, str) and k and isinstance(v, str) for k, v in headers.items()):
        raise PayloadError("headers: a map of names to texts is wanted")
    if "cause" in headers:
        raise PayloadError("headers: the name 'cause' is taken: it tells why a hook has made a run")
    size = sum(len(k) + len(v) for k, v in headers.items())
    if len(headers) > HEADERS_MAX or size > HEADERS_CHARS_MAX:
        raise PayloadError(f"headers: {len(headers)} of {size} characters; at most {HEADERS_MAX} of {HEADERS_CHARS_MAX} are allowed")
    return dict(headers)


def encode_payload(
    args: tuple[Any, ...] | list[Any], kwargs: Mapping[str, Any], headers: Mapping[str, str] | None = None, *, exts: Exts = NO_EXTS
) -> bytes:
    """The payload of a call. PayloadError names the path of what can't be stored, or says by how much it is too large."""
    parts = [storable(list(args), "args", exts), storable(dict(kwargs), "kwargs", exts)]
    if headers:
        parts.append(storable(check_headers(headers), "headers", lenient=True))
    data = pack(parts)
    if len(data) > PAYLOAD_MAX:
        raise PayloadError(f"payload of {len(data)} bytes: at most {PAYLOAD_MAX} are allowed; store large data elsewhere and pass its key")
    return data


def decode_value(data: bytes | memoryview, hook: Callable[[int, bytes], Any] = NO_EXTS.decode) -> Any:
    """The value that `encode_value` stored; `hook` makes those of extension types."""
    return unpack(data, hook)


def decode_payload(
    data: bytes | memoryview, hook: Callable[[int, bytes], Any] = NO_EXTS.decode
) -> tuple[list[Any], dict[str, Any]]:
    """(args, kwargs) of a stored payload. PayloadError when it isn't one."""
    args, kwargs, _ = _decoded(data, hook)
    return args, kwargs


def decode_headers(data: bytes | memoryview) -> dict[str, Any]:
    """The headers of a stored payload; empty when it has none. PayloadError when it isn't one."""
    return _decoded(data, RAW)[2]


def decode_cause(data: bytes | memoryview, hook: Callable[[int, bytes], Any] = NO_EXTS.decode) -> dict[str, Any] | None:
    """Why a hook has made the run of a stored payload, as `current_run().cause`; None when none has. PayloadError when it isn't one."""
    return read_cause(decode_headers(data).get("cause"), hook)


def read_cause(cause: Any, hook: Callable[[int, bytes], Any]) -> dict[str, Any] | None:
    """A cause as it is for people, from what it is among the headers."""
    if not isinstance(cause, dict):
        return None
    if "value" in cause:
        named = {key.replace("value", "output"): known for key, known in cause.items() if key != "value"}
        return {**named, "output": None if cause["value"] is None else decode_value(cause["value"], hook)}
    return {key.removesuffix("_us"): to_datetime(value) if key.endswith("_us") else value for key, value in cause.items()}


def _decoded(data: bytes | memoryview, hook: Callable[[int, bytes], Any]) -> tuple[list[Any], dict[str, Any], dict[str, Any]]:
    try:
        args, kwargs, *rest = unpack(data, hook)
    except PayloadError:
        raise
    except (ValueError, TypeError, OverflowError, RecursionError, msgpack.exceptions.UnpackException) as e:
        raise PayloadError(f"stored payload can't be read: {type(e).__name__}: {e}") from e
    headers = rest[0] if rest else {}
    if not isinstance(args, list) or not isinstance(kwargs, dict) or not isinstance(headers, dict) or len(rest) > 1:
        raise PayloadError("stored payload is not [args, kwargs] or [args, kwargs, headers]")
    return args, kwargs, headers


def check_executor(verb: str, *, greeted: bool) -> bool:
    """Has this executor said hello, with this request or before? InvalidArgumentError for a request that ours never make."""
    if verb not in WORKERS:
        raise InvalidArgumentError(f"it asked for {verb[:60]!r}, as no executor does" if verb else "what it sent is no request")
    if verb == "hello" and greeted:
        raise InvalidArgumentError("it said hello a second time")
    return greeted or verb == "hello"

"""`wheelsched run`: list, get, cancel, wait, logs."""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ..client.times import Times, is_ago, on_a_clock, parse_bound, relative, schedule_zone, span
from ..client.words import clean, cut, size
from ..model.errors import NotFoundError, PayloadError, ResultNotKept, RunFailed
from ..model.nouns import counted
from ..model.tape import STREAMS
from .output import pairs, show_many, show_one, to_json
from .run_names import HELP, find_id, find_run, run_name
from .shell import Failed, Shell, Verbs, exit_code, say, shell
from .tables import Head, Tinted, brief
from .zone import machine_zone

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from datetime import datetime

    from ..client.client import Run
    from ..client.values import Attempt

F = TypeVar("F", bound="Callable[..., Any]")

STATES = ["scheduled", "queued", "leased", "running", "retry_wait", "succeeded", "dead", "cancelled", "skipped"]
SPAN_HELP = "1h (ago), a day (2026-11-30) or a time on the clock of the job (of several: UTC), RFC 3339."
_WITH_A_WORKER = ("leased", "running")
_CALL_MAX = 1_000  # characters of arguments that a page has
_ZONES_MAX = 200  # jobs whose zone one listing asks for


def wait_flags(f: F) -> F:
    """Add `--wait` and `--wait-timeout`."""
    f = click.option("--wait-timeout", metavar="D", help="Give up waiting after this long (exit 8).")(f)
    return click.option("--wait", is_flag=True, help="Wait for the end; exit 7 if the run failed.")(f)


def finish_wait(run: Run, timeout: str | None) -> None:
    """Wait for a run's end and show it. RunTimeout; a run that did not succeed ends the verb with 7."""
    sh = shell()
    try:
        with suppress(PayloadError, ResultNotKept):  # a type of the user's, shown as it is on the wire; one that is not kept, told below
            run.result(timeout)
    except RunFailed as e:
        show_one(sh, run.to_dict(), lambda: _outcome(run))
        raise Failed(e.message, exit_code(e)) from e
    show_one(sh, run.to_dict(), lambda: _outcome(run))


def _outcome(run: Run) -> Iterator[str]:
    """What a run gave, for people: its value, or its output."""
    if run.stdout:
        yield run.stdout.decode("utf-8", "replace").rstrip("\n")
    if run.stderr:
        click.echo("\n".join(clean(line) for line in run.stderr.decode("utf-8", "replace").rstrip("\n").split("\n")), err=True)
    value = "" if run.not_kept or run.task == "command" else _value(run)  # the exit code of a program that succeeded is no news
    if value:
        yield value
    if run.not_kept:
        say(f"run {run.id} of {run.job} succeeded, but {run.not_kept}")
    elif run.state == "succeeded" and not run.stdout and not value:
        say(f"run {run.id} of {run.job} succeeded")


class Zones:
    """The zone of each run's job, asked for once a job."""

    def __init__(self, sh: Shell) -> None:
        self._sh = sh
        self._known: dict[str, str] = {}

    def of(self, run: Run) -> str:
        """The zone; UTC for a job that is gone, or behind the 200th."""
        if self._sh.times != "job" or "~" in run.job:
            return "UTC"
        if run.job not in self._known:
            if len(self._known) >= _ZONES_MAX:
                return "UTC"
            try:
                found = self._sh.client.get(run.job)
            except NotFoundError:
                self._known[run.job] = "UTC"
            else:
                self._known[run.job] = schedule_zone(found.spec["schedule"])
        return self._known[run.job]


@click.group(cls=Verbs)
def run() -> None:
    """List, inspect, cancel, follow and wait for runs."""


@run.command("list")
@click.argument("match", required=False)
@click.option("--job", "job", metavar="NAME", help="Of a job, or of a glob of names (also as the argument).")
@click.option("--state", type=click.Choice(STATES), help="`leased` and `running` find the same runs: those that a worker has.")
@click.option("--task", metavar="TASK", help="Of a task.")
@click.option("--queue", metavar="Q", help="Of a queue.")
@click.option("--namespace", metavar="NS", help="Of the jobs of a namespace.")
@click.option("--since", metavar="T", help=f"Nominal times from here on: {SPAN_HELP}")
@click.option("--until", metavar="T", help="Nominal times before this, or up to the end of this day.")
@click.option("--skipped", is_flag=True, help="The occurrences that made no run, with the reason.")
@click.option("--late", is_flag=True, help="The runs that are marked late (job put --late-after); with --skipped: both.")
@click.option("--limit", "-n", type=click.IntRange(0), metavar="N", default=100, show_default=True, help="How many in all; 0 is all.")
@click.option("--oldest", is_flag=True, help="Oldest first.")
def list_(match: str | None, job: str | None, *, skipped: bool, late: bool, oldest: bool, limit: int, **filters: Any) -> None:
    """List runs, newest first: by when they were made, those in the history by when they ended.

    Of dead letters alone, `dead list` can also look for the type of their error (--error).
    """
    sh = shell()
    if match is not None and job is not None:
        raise click.UsageError("give the job as the argument or as --job, not both")
    if skipped and filters["state"] not in (None, "skipped"):
        raise click.UsageError("give --skipped or --state, not both")
    if skipped and not late:
        filters["state"] = "skipped"
    name = job or match
    found = sh.client.runs(
        name, **in_span(name, filters), skipped=skipped, late=late, newest=not oldest, limit=limit + 1 if limit else None,
    )
    runs = iter(found)
    empty = {(True, True): "nothing late, nothing skipped", (True, False): "nothing skipped", (False, True): "no late runs"}
    show_runs(sh, islice(runs, limit or None), empty.get((skipped, late)) or "no runs" + _enqueued(name or "*"))
    if next(runs, None) is not None:
        say(f"the {'oldest' if oldest else 'newest'} {limit} are shown, and there are more: --limit 0 for all, --since for a time")


def in_span(job: str | None, filters: dict[str, Any]) -> dict[str, Any]:
    """The filters, since and until as instants: on the clock of the job, when it is one, else in UTC, or as --time asks. NotFoundError."""
    sh, given = shell(), {what: filters[what] for what in ("since", "until") if filters.get(what) is not None}
    tz = machine_zone() if sh.times == "local" else "UTC"
    if sh.times == "job" and job is not None and not set(job) & set("*?[") and any(map(on_a_clock, given.values())):
        tz = schedule_zone(sh.client.get(job).spec["schedule"])
    if any(map(is_ago, given.values())):
        sh.client.queues()  # the server's clock counts; it is known from the first answer on
    return filters | {what: parse_bound(text, tz, sh.now, f"--{what}", end=what == "until") for what, text in given.items()}


def _enqueued(name: str) -> str:
    """Where runs of enqueue are, for who looks for them by their task."""
    namespace, slash, task = name.rpartition("/")
    return "" if set(name) & set("~*?[") else f"; those of enqueue: `run list '{namespace}{slash}~{task}'`"


def show_runs(sh: Shell, runs: Any, empty: str) -> None:
    """A listing of runs: by job and time, which the verbs take as well as the ids; those are shown where there is room."""
    times, zones = Times(sh.times), Zones(sh)

    def cells(r: Run) -> list[str]:
        due, tz = due_at(r), zones.of(r)
        began = r.attempts[0].started_at if r.attempts else r.started_at  # what came after a failure is no lag
        late = "-" if began is None or due is None else span(max(0.0, (began - due).total_seconds()))
        moved = [f"moved to {times.show(due, tz)}"] if r.disposition == "moved" else []
        told = ", ".join(filter(None, [*moved, _why(r) if sh.wide else cut(_why(r), 80)]))
        name = machine_zone() if sh.times == "local" else tz if sh.times == "job" else "UTC"
        worker = "-" if r.final or not r.worker else str(r.worker)
        first = [run_name(r, name), _tinted(r)] if short else [r.id, run_name(r, name), _tinted(r)]
        more = [r.task or "-", r.queue or "-"] if sh.wide else []
        return [*first, *more, str(r.attempt), worker, late, _took(sh, r), told]

    short = brief()
    heads = [*([] if short else [Head("ID")]), Head("RUN", least=24), Head("STATE"), *([Head("TASK"), Head("QUEUE")] if sh.wide else []),
             Head("ATTEMPT", right=True, rank=3), Head("WORKER", rank=1), Head("LAG", right=True, rank=2), Head("TOOK", right=True),
             Head("WHY", least=10)]
    show_many(sh, runs, lambda r: r.to_dict(), heads, cells, times, empty)


def _tinted(r: Run) -> str:
    """Its state; in red what died, in yellow what waits for another attempt or is late."""
    colour = "red" if r.state == "dead" else "yellow" if r.state == "retry_wait" or r.late else ""
    return Tinted(r.state, colour) if colour else r.state


def _took(sh: Shell, r: Run) -> str:
    """How long its last attempt took; with a plus, how long it has been running."""
    if r.started_at is None:
        return "-"
    if r.ended_at is not None and r.state not in _WITH_A_WORKER:
        return span((r.ended_at - r.started_at).total_seconds())
    return f"{span(max(0.0, (sh.now - r.started_at).total_seconds()))}+" if r.state in _WITH_A_WORKER else "-"


def due_at(r: Run) -> datetime | None:
    """When it was to start: its nominal time, or where somebody moved it (once it is queued, when that happened). A time of the past that
    was given to enqueue counts from then on.
    """
    if r.disposition == "moved":
        return r.next_at or r.queued_at
    times = [at for at in (r.scheduled_at, r.created_at if r.trigger != "schedule" else None) if at is not None]
    return max(times, default=None)


def _why(r: Run) -> str:
    parts = ["late"] if r.late else []
    if r.reason:
        whose = f" with {r.blocking}" if r.blocking else ""
        parts.append(f"{r.reason}{whose} ({r.count} occurrences)" if r.count and r.count > 1 else r.reason + whose)
    elif r.error is not None:
        parts.append(str(r.error))
    return ", ".join(parts)


@run.command(epilog=HELP)
@click.argument("run_id", metavar="RUN")
def get(run_id: str) -> None:
    """Show a run with its attempts and output."""
    sh = shell()
    found = find_run(run_id)
    show_one(sh, found.to_dict(), lambda: _page(found, Times(sh.times), Zones(sh).of(found)))


def _page(r: Run, times: Times, tz: str) -> Iterator[str]:
    now = shell().now
    due = "-" if r.next_at is None else f"{times.show(r.next_at, tz)}, {relative(r.next_at, now)}"
    yield from pairs([
        ("run", r.id), ("job", r.job), ("state", r.state + (f" ({r.reason})" if r.reason else "") + (", late" if r.late else "")),
        ("trigger", r.trigger or ""), *_call(r),
        ("gave way to run", r.blocking or ""),
        ("task", r.task or ""), ("queue", r.queue or ""), ("scheduled", times.show(r.scheduled_at, tz)),
        ("recorded", times.show(r.created_at, tz)), ("queued", times.show(r.queued_at, tz)), ("next", due),
        *_waits(r, times, tz),
        ("snoozed", f"{r.snoozed} times" if r.snoozed else ""),
        ("stands also for", f"{r.missed} missed occurrences" if r.missed else ""), ("value", _value(r)),
        ("progress", r.progress or ""),
        ("heartbeat", "" if r.heartbeat_at is None else f"{times.show(r.heartbeat_at, tz)}, {relative(r.heartbeat_at, now)}"),
        *(("refused", f"{s['outcome']} by {s['worker']}, token {s['token']}, at {times.show(s['at'], tz)}") for s in r.stale),
    ])
    for attempt in r.attempts:
        yield ""
        yield from _attempt(r, attempt, times, tz)


def _call(r: Run) -> Iterator[tuple[str, str]]:
    """What it was called with, and why when a hook has made it. Nothing when that is not kept any more."""
    told = r.to_dict()
    for name in ("args", "kwargs", "headers"):
        yield name, cut(json.dumps(told[name], ensure_ascii=False), _CALL_MAX) if told[name] else ""
    cause = told["cause"]
    if cause is None:
        return
    if cause["reason"] == "group":
        ended = ", ".join(f"{cause[name]} {name}" for name in ("succeeded", "failed", "cancelled") if cause[name])
        yield "cause", f"its group of {counted(cause['members'], 'run')} has ended: {ended}"
    elif "run_id" in cause:
        yield "cause", f"{cause['reason']} of {cause['job']}, run {cause['run_id']}"
    else:
        others = f" and of {counted(cause['jobs'] - 1, 'other job')}" if cause["jobs"] > 1 else ""
        yield "cause", f"{counted(cause['count'], cause['reason'] + ' occurrence')} of {cause['job']}{others}"


def _waits(r: Run, times: Times, tz: str) -> Iterator[tuple[str, str]]:
    if r.waiting is not None:
        expected = r.waiting.expected_at
        yield "waits", r.waiting.reason
        yield "place in its queue", str(r.waiting.rank or "")
        if expected is not None and expected != r.next_at:
            yield "expected to start", f"{times.show(expected, tz)}, {relative(expected, shell().now)}"


def _value(r: Run) -> str:
    if r.not_kept is not None:
        return str(r.not_kept)
    value = r.plain_output
    return "" if value is None else json.dumps(value, ensure_ascii=False)


def _attempt(r: Run, a: Attempt, times: Times, tz: str) -> list[str]:
    took = "" if a.started_at is None or a.ended_at is None else f", took {span((a.ended_at - a.started_at).total_seconds())}"
    going = ""
    if a.outcome is None and a.started_at is not None:
        going = f" for {span(max(0.0, (shell().now - a.started_at).total_seconds()))}"
    error = "" if a.error is None else (a.error.traceback or str(a.error)).rstrip()
    return pairs([
        (f"attempt {a.attempt}", f"{a.outcome or r.state} on {a.worker or 'no worker'}{going}, token {a.token}{took}"),
        ("reason", a.reason or ""), ("started", times.show(a.started_at, tz)), ("ended", times.show(a.ended_at, tz)),
        ("used", _used(a)), ("error", error),
        ("stdout", _text(a.stdout, a.stdout_cut)), ("stderr", _text(a.stderr, a.stderr_cut)),
    ])


def _used(a: Attempt) -> str:
    if a.cpu is None:
        return ""
    return f"CPU {span(a.cpu)}" if a.max_rss is None else f"CPU {span(a.cpu)}, memory {size(a.max_rss)}"


def _text(data: bytes, left_out: int) -> str:
    text = data.decode("utf-8", "replace").rstrip("\n")
    return f"({left_out} bytes left out)\n{text}" if left_out else text


@run.command(epilog=HELP)
@click.argument("run_ids", nargs=-1, metavar="[RUN]...")
@click.option("--match", metavar="GLOB", help="All open runs of the jobs that match; '*' is all.")
@click.option("--state", type=click.Choice(["scheduled", "queued", "retry_wait", "leased", "running"]))
@click.option("--task", metavar="TASK", help="All open runs of a task.")
@click.option("--queue", metavar="Q", help="All open runs of a queue.")
@click.option("--namespace", metavar="NS", help="All open runs of a namespace.")
@click.option("--dry-run", is_flag=True, help="Only count them.")
def cancel(run_ids: tuple[str, ...], dry_run: bool, **filters: Any) -> None:
    """End runs: at once when they wait, cooperatively and then by force when they run.

    Runs by name, or all open ones that all the filters given find.
    """
    sh = shell()
    filtered = any(value is not None for value in filters.values())
    if bool(run_ids) == filtered or (run_ids and dry_run):
        raise click.UsageError("give run ids, or one or more of --match, --state, --task, --queue, --namespace, and perhaps --dry-run")
    if filtered:
        count = sh.client.cancel(dry_run=dry_run, **filters)
        show_one(sh, {"count": count, "dry_run": dry_run}, lambda: [f"{counted(count, 'run')} {'would be ' if dry_run else ''}cancelled"])
        return
    ids = [find_id(text) for text in run_ids]  # all are known before the first is ended
    show_many(sh, map(sh.client.cancel, ids), lambda r: r.to_dict(), ["RUN", "JOB", "STATE"], lambda r: [r.id, r.job, r.state])


@run.command(epilog=HELP)
@click.argument("run_id", metavar="RUN")
@click.option("--timeout", metavar="D", help="Give up after this long (exit 8).")
def wait(run_id: str, timeout: str | None) -> None:
    """Wait for a run's end; exit 7 if it failed."""
    finish_wait(find_run(run_id), timeout)


@run.command(epilog=HELP)
@click.argument("run_id", metavar="RUN")
def stack(run_id: str) -> None:
    """Show where a running run is in its code; the run goes on.

    Its stack, those of its process's other threads, and what its coroutines await. Of a `command`: its processes. No values are shown.
    """
    sh = shell()
    found = sh.client.stack(find_id(run_id))
    lines = [clean(line.expandtabs()) for line in found.text.split("\n")]
    show_one(sh, found._asdict(), lambda: [f"run {found.id} of {found.job} on {found.worker}", *lines])


@run.command(epilog=HELP)
@click.argument("run_id", metavar="RUN")
@click.option("--follow", "-f", is_flag=True, help="Go on until the run ends, over its retries and restarts of the server.")
@click.option("--stream", type=click.Choice(STREAMS), help="Only what went there; without it, both are written to stdout.")
@click.option("--raw", is_flag=True, help="To a terminal too, byte by byte: colours, and whatever else moves its cursor.")
def logs(run_id: str, follow: bool, stream: str | None, raw: bool) -> None:
    """Write what a run printed, attempt by attempt; of one that runs, what it printed so far.

    Into a pipe or file as it is; to a terminal without what moves its cursor, unless --raw is given.
    `-o jsonl` (as `-o json`) writes an object a line, with attempt, worker, stream and text.
    """
    sh = shell()
    attempt, end = 0, b"\n"
    try:
        for piece in sh.client.logs(find_id(run_id), follow=follow):
            if stream is not None and piece.stream != stream:
                continue
            if not sh.table:
                click.echo(to_json(piece.to_dict()))
                continue
            if piece.attempt != attempt:
                attempt = piece.attempt
                _write(b"" if end == b"\n" else b"\n")
                say(f"attempt {attempt} on {piece.worker}")
            _write(piece.data, raw=raw)
            end = piece.data[-1:]
    except KeyboardInterrupt:
        say("the run goes on")


def _write(data: bytes, *, raw: bool = False) -> None:
    """As it is; to a terminal, unless `raw`, nothing that moves its cursor."""
    if sys.stdout.isatty() and not raw:
        data = "\n".join(clean(line.removesuffix("\r").expandtabs()) for line in data.decode("utf-8", "replace").split("\n")).encode()
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()

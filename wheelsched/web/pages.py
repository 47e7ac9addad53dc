"""What each page shows: asks the reader, and hands plain things to a template."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

from ..client.times import schedule_zone, span
from ..client.troubles import troubles
from ..client.views_time import definition_words
from ..client.words import number
from ..model.errors import InvalidArgumentError, NotFoundError
from ..model.nouns import JobState, RunState, counted
from . import charts, parameters
from .figures import Clock, plain_json, schedule_of
from .reader import SAMPLE_S, Page

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from ..client.async_client import AsyncRun
    from ..client.values import Attempt, JobInfo, RunInfo
    from ..client.views_forecast import Forecast
    from .reader import Reader, Sample, Snapshot

__all__ = ["JOB_STATES", "PAGES", "RUN_STATES", "dead", "job", "jobs", "overview", "run", "runs"]

JOB_STATES: Final = tuple(state.name.lower() for state in JobState)
RUN_STATES: Final = tuple(dict.fromkeys((*(state.name.lower() for state in RunState), "running")))
_ROWS: Final = 50
_LETTERS: Final = 100
_STRIP: Final = 50
_NEXT: Final = 10
_EDITS: Final = 20
_QUEUES: Final = 15
_WORKERS: Final = 30
_MINUTES: Final = 60
_SINCE: Final = ("1h", "24h", "7d")


@dataclass(frozen=True, slots=True)
class Card:
    """A figure of the overview."""

    name: str
    value: str
    more: str = ""
    kind: str = ""  # good, bad, or nothing
    link: str = ""


def _link(path: str, **query: Any) -> str:
    given = {key: value for key, value in query.items() if value not in (None, "")}
    return path + (f"?{urlencode(given)}" if given else "")


# Overview


async def overview(reader: Reader, query: Mapping[str, str]) -> dict[str, Any]:  # noqa: ARG001 - the face of all pages
    """Is all well, and what goes on."""
    found = await reader.snapshot()
    s, at = found.stats, Clock(found.now)
    coming = await reader.forecast()
    queues = sorted(s["queues"].items(), key=lambda q: (-q[1]["queued"] - q[1]["leased"], q[0]))
    return {
        "title": "Overview",
        "troubles": troubles({"storage": {"state": "ok"}, **s}),
        "cards": _cards(s),
        "lags": _lags(s),
        "charts": _hour(reader, s),
        "coming": _coming(coming, at),
        "queues": queues[:_QUEUES],
        "more_queues": max(0, len(queues) - _QUEUES),
        "paused_queues": set(s.get("paused_queues", ())),
        "held_back": s.get("held_back", ()),
        "unserved": s.get("unserved_tasks", {}),
        "workers": s["workers"][:_WORKERS],
        "more_workers": max(0, len(s["workers"]) - _WORKERS),
        "store": s.get("storage"),
        "s": s,
    }


def _failed(counters: Mapping[str, int]) -> int:
    """Attempts that failed: those with another one to come, and the last ones."""
    return counters["retried"] + counters["dead"]


def _cards(s: dict[str, Any]) -> list[Card]:
    ready, counters = sum(bool(w["ready"]) for w in s["workers"]), s["counters"]
    return [
        Card("jobs", number(s["jobs"]), "", "", "/jobs"),
        Card("queued", number(s["queued"]), "wait for a worker", "", _link("/runs", state="queued")),
        Card(
            "with workers",
            number(s["leased"]),
            f"{counted(ready, 'worker')} ready",
            "" if ready else "bad",
            _link("/runs", state="running"),
        ),
        Card("dead letters", number(s["dead_letters"]), "out of attempts", "bad" if s["dead_letters"] else "good", "/dead"),
        Card("succeeded", number(counters["succeeded"]), "since the server's start", "", _link("/runs", state="succeeded")),
        Card("failed attempts", number(_failed(counters)), "since the server's start"),
        Card("late", number(counters["late"]), "since the server's start", "bad" if counters["late"] else "", _link("/runs", late="1")),
    ]


_LAG_NAMES: Final = {"queued": "queued", "start": "started", "done": "done"}


def _lags(s: dict[str, Any]) -> list[dict[str, Any]]:
    """Each lag against the promise: queued within 5 s at p99."""
    found = [(name, lag) for name, lag in s.get("lag_ms", {}).items() if lag.get("count")]
    return [{"name": _LAG_NAMES.get(name, name), **lag, "kept": name != "queued" or lag["p99"] <= 5_000} for name, lag in found]


def _hour(reader: Reader, s: dict[str, Any]) -> list[dict[str, Any]]:
    """The last hour, a bar a minute; of what was sampled since the dashboard began."""
    columns = _minutes(list(reader.samples), s["generation"])
    measured = sum(column is not None for column in columns)
    since = "" if measured >= _MINUTES else f", of which {counted(measured, 'minute')} measured since this dashboard began"
    kinds = (
        ("succeeded", "runs succeeded", "succeeded"),
        ("failed", "attempts failed", "failed"),
        ("queued", "most runs queued at once", "waiting"),
    )
    out = []
    for key, what, kind in kinds:
        values = [None if column is None else column[key] for column in columns]
        known = [v for v in values if v is not None]
        most = max(known, default=0)
        titles = ["" if v is None else f"{_MINUTES - i} min ago: {number(v)}" for i, v in enumerate(values)]
        told = f"{what} each minute, last hour{since}: at most {number(most)}"
        out.append(
            {
                "name": what,
                "most": most,
                "last": known[-1] if known else 0,
                "svg": charts.bars(values, told, titles, kind=f"bars {kind}"),
                "measured": measured,
            }
        )
    return out


def _minutes(samples: list[Sample], generation: int) -> list[dict[str, int] | None]:
    """What each of the last 60 minutes had, oldest first."""
    out: list[dict[str, int] | None] = [None] * _MINUTES
    if not samples:
        return out
    end = samples[-1].at
    for old, new in pairwise(samples):
        index = _MINUTES - 1 - int((end - new.at) // 60)
        if index < 0 or new.generation != old.generation or new.at - old.at > 3 * SAMPLE_S:
            continue
        column = out[index] or {"succeeded": 0, "failed": 0, "queued": 0}
        column["succeeded"] += max(0, new.counters["succeeded"] - old.counters["succeeded"])
        column["failed"] += max(0, _failed(new.counters) - _failed(old.counters))
        column["queued"] = max(column["queued"], new.queued)
        out[index] = column
    if out[-1] is None and samples[-1].generation == generation:
        out[-1] = {"succeeded": 0, "failed": 0, "queued": samples[-1].queued}
    return out


def _coming(f: Forecast | None, at: Clock) -> dict[str, Any] | None:
    """The starts of the next hour."""
    if f is None:
        return None
    peak = None if f.peak is None else f.counts.index(max(f.counts))
    titles = [f"{f.start + i * f.bucket:%H:%M}Z: {counted(n, 'start')}" for i, n in enumerate(f.counts)]
    told = f"starts each minute of the next hour: {number(f.starts)} in all"
    told += f", most at {f.peak.at:%H:%M}Z: {number(f.peak.starts)}" if f.peak else ""
    return {
        "starts": f.starts,
        "peak": f.peak,
        "peak_at": at(f.peak.at) if f.peak else None,
        "made": at(f.now),
        "held": f.held,
        "svg": charts.bars(list(f.counts), told, titles, mark=peak, kind="bars coming"),
    }


# Jobs


async def jobs(reader: Reader, query: Mapping[str, str]) -> dict[str, Any]:
    """Search, filter, and page after page."""
    match, state = parameters.glob(query, "match"), parameters.choice(query, "state", JOB_STATES)
    typed = query.get("match", "").strip()
    after = parameters.position(query)
    found = await reader.rows(lambda: reader.client.jobs(match, state, timeout="5s"), after, _ROWS)
    named = await _named(reader, typed) if after is None and state is None else []
    if named and named[0].name not in {j.name for j in found.rows}:
        found = Page([*named, *found.rows], found.after, found.looked_on)
    at = Clock((await reader.snapshot()).now)
    whole = after is None and found.after is None
    rows = sorted(found.rows, key=lambda j: (j.next_at is None, j.next_at or at.now, j.name)) if whole else found.rows
    return {
        "title": "Jobs",
        "rows": [_job_row(j, at) for j in rows],
        "states": JOB_STATES,
        "match": typed,
        "state": state or "",
        "order": "by next start" if whole else "in the order in which they were made",
        "whole": whole,
        "first": after is None,
        "looked_on": found.looked_on,
        "total": (await reader.snapshot()).stats["jobs"],
        "filtered": bool(match or state),
        "next": found.after is not None and _link("/jobs", match=typed, state=state, after=parameters.cursor(found.after)),
        "start": _link("/jobs", match=typed, state=state),
    }


async def _named(reader: Reader, typed: str) -> list[JobInfo]:
    """The job whose whole name was typed: found at once, wherever it is."""
    if not typed or set(typed) & set("*?["):
        return []
    try:
        return [await reader.ask(reader.client.get(typed, timeout="5s"))]
    except (NotFoundError, InvalidArgumentError):
        return []


def _job_row(j: JobInfo, at: Clock) -> dict[str, Any]:
    tz = schedule_zone(j.spec["schedule"])
    return {"job": j, "schedule": schedule_of(j, brief=True), "next": at(j.next_at, tz), "note": j.pause_note or j.note or ""}


async def job(reader: Reader, query: Mapping[str, str]) -> dict[str, Any]:
    """All about one job."""
    name = parameters.text(query, "name", parameters.NAME_MAX)
    if name is None:
        raise NotFoundError("no job is named: choose one of the list")
    client = reader.client
    found = await reader.ask(client.get(name, timeout="5s"))
    at, tz = Clock((await reader.snapshot()).now), schedule_zone(found.spec["schedule"])
    coming = await reader.ask(client.next(name, _NEXT, timeout="5s")) if found.state == "active" else []
    last = await reader.rows(lambda: client.runs(name, newest=True, skipped=True, timeout="5s"), None, _STRIP)
    wanted = parameters.choice(query, "edits", ("1",)) is not None  # the server looks through its history for them: only when asked for
    edits = await reader.ask(client.history(name, _EDITS, timeout="5s")) if wanted else []
    words = definition_words({"spec": found.spec, "param_us": found.param_us})
    return {
        "title": found.name,
        "job": found,
        "tz": tz,
        "schedule": schedule_of(found),
        "next": [at(moment, tz) for moment in coming],
        "next_at": at(found.next_at, tz),
        "created": at(found.created_at, tz),
        "updated": at(found.updated_at, tz),
        "cursor": at(found.cursor, tz),
        "words": {k: _policy(v) for k, v in words.items() if k not in ("task", "schedule")},
        "call": _call(found),
        "runs": [_run_row(r, at, tz) for r in last.rows],
        "strip": _strip(last.rows, at),
        "all": _link("/runs", job=found.name),
        "edits": [_edit(e, at, tz) for e in edits],
        "edits_shown": wanted,
        "edits_link": _link("/job", name=found.name, edits="1") + "#edits",
    }


def _policy(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_policy(v)}" for key, v in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _call(found: JobInfo) -> dict[str, str]:
    told = found.to_dict()
    return {key: plain_json(told[key]) for key in ("args", "kwargs", "headers") if told.get(key)}


def _edit(e: Any, at: Clock, tz: str) -> dict[str, Any]:
    who = "the server" if e.uid is None or e.uid < 0 else e.user or f"uid {e.uid}"
    return {
        "at": at(e.at, tz),
        "who": who,
        "what": e.what,
        "note": e.note,
        "changes": {} if e.old is None else {k: (_policy(o), _policy(n)) for k, (o, n) in e.changes.items()},
    }


def _took(r: RunInfo | Attempt, now: datetime) -> float | None:
    return None if r.started_at is None else max(0.0, ((r.ended_at or now) - r.started_at).total_seconds())


def _strip(rows: Sequence[RunInfo], at: Clock) -> Any:
    ordered = [(r.state, _took(r, at.now), f"{r.scheduled_at or r.created_at:%Y-%m-%d %H:%M:%S}Z {r.state}") for r in reversed(rows)]
    if not ordered:
        return None
    bad = sum(state in ("dead", "cancelled") for state, _, _ in ordered)
    return charts.strip(
        ordered, f"the last {counted(len(ordered), 'run')}, oldest first, higher is longer: {number(bad)} dead or cancelled"
    )


# Runs


async def runs(reader: Reader, query: Mapping[str, str]) -> dict[str, Any]:
    """Filters, newest first."""
    given = {
        "job": parameters.text(query, "job"),
        "state": parameters.choice(query, "state", RUN_STATES),
        "task": parameters.text(query, "task"),
        "queue": parameters.text(query, "queue"),
        "since": parameters.choice(query, "since", _SINCE),
        "late": parameters.choice(query, "late", ("1",)),
        "skipped": parameters.choice(query, "skipped", ("1",)),
    }
    after = parameters.position(query, listed=True)
    found = await reader.rows(
        lambda: reader.client.runs(
            given["job"],
            given["state"],
            given["since"],
            task=given["task"],
            queue=given["queue"],
            late=bool(given["late"]),
            skipped=bool(given["skipped"]),
            newest=True,
            timeout="5s",
        ),
        after,
        _ROWS,
    )
    at = Clock((await reader.snapshot()).now)
    return {
        "title": "Runs",
        "rows": [_run_row(r, at) for r in found.rows],
        "states": RUN_STATES,
        "sinces": _SINCE,
        "given": given,
        "filtered": any(given.values()),
        "looked_on": found.looked_on,
        "first": after is None,
        "start": _link("/runs", **given),
        "next": found.after is not None and _link("/runs", **given, after=parameters.cursor(found.after)),
    }


def _run_row(r: RunInfo, at: Clock, tz: str | None = None) -> dict[str, Any]:
    error = r.error
    took = _took(r, at.now) if r.state != "skipped" else None
    why = r.reason or (f"{error.type}: {error.message}" if error is not None and r.state != "succeeded" else "")
    return {"run": r, "scheduled": at(r.scheduled_at or r.created_at, tz), "took": took, "why": why, "started": at(r.started_at, tz)}


async def run(reader: Reader, query: Mapping[str, str]) -> dict[str, Any]:
    """All about one run."""
    run_id = parameters.text(query, "id", 32)
    if run_id is None:
        raise NotFoundError("no run is named: choose one of the list")
    found: AsyncRun = await reader.ask(reader.client.run(run_id, timeout="5s"))
    at = Clock((await reader.snapshot()).now)
    told = found.to_dict()
    times = [
        (name, at(getattr(found, f"{name}_at"))) for name in ("scheduled", "created", "queued", "started", "ended", "next", "heartbeat")
    ]
    waiting = found.waiting
    return {
        "title": f"Run of {found.job}",
        "run": found,
        "times": [(name, when) for name, when in times if when is not None],
        "took": _took(found, at.now),
        "call": {key: plain_json(told[key]) for key in ("args", "kwargs", "headers", "cause") if told.get(key)},
        "output": plain_json(told["output"]) if told["output"] is not None else "",
        "waiting": waiting,
        "expected": at(waiting.expected_at) if waiting else None,
        "attempts": [_attempt(a, at) for a in found.attempts],
        "timeline": _timeline(found, at),
        "stale": [(s, at(s["at"])) for s in found.stale],
        "runs_of": _link("/runs", job=found.job),
        "job_link": None if "~" in found.job else _link("/job", name=found.job),
    }


def _attempt(a: Attempt, at: Clock) -> dict[str, Any]:
    return {
        "a": a,
        "started": at(a.started_at),
        "ended": at(a.ended_at),
        "took": _took(a, at.now),
        "stdout": a.stdout.decode("utf-8", "replace"),
        "stderr": a.stderr.decode("utf-8", "replace"),
    }


def _timeline(r: RunInfo, at: Clock) -> dict[str, Any] | None:
    """From its scheduled time to its end: what it waited for, and each attempt."""
    begin = r.scheduled_at or r.created_at
    if begin is None or r.queued_at is None:
        return None
    end = max(m for m in (r.ended_at or at.now, begin) if m is not None)
    spans: list[tuple[str, datetime, datetime, str]] = [("waits", begin, r.queued_at, "scheduled until queued")]
    for a in r.attempts:
        if a.started_at is not None:
            ended = a.ended_at or at.now
            spans.append((f"s-{a.outcome or 'running'}", a.started_at, ended, f"attempt {a.attempt}: {a.outcome or 'running'}"))
    if r.started_at is not None and len(r.attempts) == 1:
        spans.insert(1, ("queued", r.queued_at, r.started_at, "queued until started"))
    begin = min(begin, *(a for _, a, _, _ in spans))
    rows = [
        (kind, (a - begin).total_seconds(), max((b - begin).total_seconds(), (a - begin).total_seconds()), title)
        for kind, a, b, title in spans
    ]
    total = max((end - begin).total_seconds(), 1e-6, *(b for _, _, b, _ in rows))
    legend = [(kind, title, span(b - a)) for kind, a, b, title in rows]
    told = f"from the scheduled time on, {span(total)} in all: " + "; ".join(f"{title}: {took}" for _, title, took in legend)
    return {"svg": charts.timeline(rows, total, told), "legend": legend}


# Dead letters


async def dead(reader: Reader, query: Mapping[str, str]) -> dict[str, Any]:
    """Grouped by task and error, in the order in which they died."""
    given = {
        "match": parameters.glob(query, "match"),
        "task": parameters.text(query, "task"),
        "error": parameters.text(query, "error"),
        "queue": parameters.text(query, "queue"),
    }
    after = parameters.position(query)
    found = await reader.rows(
        lambda: reader.client.dead(given["match"], error=given["error"], task=given["task"], queue=given["queue"], timeout="5s"),
        after,
        _LETTERS,
    )
    shot = await reader.snapshot()
    at = Clock(shot.now)
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for letter in found.rows:
        groups.setdefault((letter.task or "", letter.error.type if letter.error else ""), []).append(
            {
                "run": letter,
                "ended": at(letter.ended_at),
                "scheduled": at(letter.scheduled_at),
                "message": letter.error.message if letter.error else "",
            }
        )
    typed = {**given, "match": query.get("match", "").strip()}
    return {
        "all": {do: _link("/ask", do=do, **typed) for do in ("redrive", "discard")},
        "title": "Dead letters",
        "total": shot.stats["dead_letters"],
        "given": typed,
        "filtered": any(given.values()),
        "shown": len(found.rows),
        "groups": [
            {"task": task, "error": error, "rows": rows, "link": _link("/dead", task=task, error=error)}
            for (task, error), rows in sorted(groups.items(), key=lambda g: -len(g[1]))
        ],
        "looked_on": found.looked_on,
        "first": after is None,
        "start": _link("/dead", **typed),
        "next": found.after is not None and _link("/dead", **typed, after=parameters.cursor(found.after)),
    }


PAGES: Final = {
    "/": (overview, "overview"),
    "/jobs": (jobs, "jobs"),
    "/job": (job, "job"),
    "/runs": (runs, "runs"),
    "/run": (run, "run"),
    "/dead": (dead, "dead"),
}


def header(shot: Snapshot | None) -> dict[str, Any]:
    """What the top of every page needs."""
    if shot is None:
        return {"clock": None, "ill": True, "dead_letters": 0}
    wrong = troubles({"storage": {"state": "ok"}, **shot.stats})
    return {
        "clock": Clock(shot.now).day(),
        "ill": bool(wrong),
        "dead_letters": shot.stats["dead_letters"],
        "version": shot.stats.get("server", ""),
    }

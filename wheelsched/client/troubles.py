"""What keeps a server from doing its work, and what to do about it: in the words of `wheelsched status`. Pure."""

from __future__ import annotations

from typing import Any, Final

from ..model.nouns import alarm_missing, counted, to_datetime, unserved
from .times import Times, span
from .words import clean, cut, number

__all__ = ["held_words", "troubles"]

_TEXT_MAX: Final = 300  # characters of what user code said
_TASKS_SHOWN: Final = 5
_DIED_MIN: Final = 3  # runs in an hour, and of 100 that ended at least one: a single one is told by `on_dead`
_LOST_MIN: Final = 3  # workers within two minutes
_LOST_AN_HOUR: Final = 10


def troubles(s: dict[str, Any]) -> list[str]:
    """What keeps the server from doing its work; empty when all is well."""
    out = [held_words(s)] if s.get("held") else []
    if s["draining"]:
        out.append("draining: it is about to stop")
    if s["storage"]["state"] == "full":
        out.append(s["storage"].get("why") or "storage is nearly full: new commands are refused")
    if s.get("start_failure"):
        failure = s["start_failure"]
        out.append(f"workers can't start: {_one_line(failure['text'])} ({failure['tries']} {'try' if failure['tries'] == 1 else 'tries'})")
    slow = s.get("slow_starts", ())
    out += [f"worker {w['worker']} has not come up for {span(w['us'] / 1e6)}: importing, or in its on_start" for w in slow]
    if s.get("reload_failure"):
        failure = s["reload_failure"]
        at = Times("utc").show(to_datetime(failure["at_us"]))
        out.append(f"reload failed at {at}: the old code goes on: {_one_line(failure['text'])}; `wheelsched admin reload` tries again")
    if s.get("pulse"):
        out += _of_the_hour(s["pulse"])
    if s["queued"] and not any(w["ready"] for w in s["workers"]):
        out.append(f"{counted(s['queued'], 'run')} {'is' if s['queued'] == 1 else 'are'} queued and there is no worker")
    elif s["unserved_tasks"]:
        out += [unserved(task, s.get("served_tasks", ())) for task in sorted(s["unserved_tasks"])]
    jobs = {task: n for task, n in s.get("unserved_jobs", {}).items() if task not in s["unserved_tasks"]}
    if jobs:
        n, some = sum(jobs.values()), [unserved(task, s.get("served_tasks", ())) for task in list(jobs)[:_TASKS_SHOWN]]
        told = "; ".join(text.removeprefix("no worker serves task ") for text in some)
        more = f" and {len(jobs) - len(some)} other tasks" if len(jobs) > len(some) else ""
        out.append(f"{counted(n, 'active job')} {'names a task' if n == 1 else 'name tasks'} that no worker serves: {told}{more}")
    out += [alarm_missing(hook, alarm["job"]) for hook, alarm in s.get("alarm_jobs", {}).items() if not alarm["exists"]]
    return out


def _of_the_hour(p: dict[str, Any]) -> list[str]:
    """What died, hangs, is skipped again and again, and which workers went."""
    out = []
    if p["died"] >= _DIED_MIN and p["died"] * 100 >= p["ended"]:
        told = f"{counted(p['died'], 'run')} died in the last hour, of {counted(p['died_jobs'], 'job')}"
        out.append(f"{told}: {_named(p['died_most'], p['died_jobs'])}; `wheelsched dead list` says why")
    if p["failing_jobs"]:
        told = f"{counted(p['failing_jobs'], 'job')} died again and again"
        out.append(f"{told}: {_named(p['failing_most'], p['failing_jobs'], ' in a row')}; `wheelsched run get JOB` shows the last run")
    if p["lost_lately"] >= _LOST_MIN or p["lost_workers"] >= _LOST_AN_HOUR:
        lately = p["lost_lately"] >= _LOST_MIN
        n, when = (p["lost_lately"], "the last two minutes") if lately else (p["lost_workers"], "the last hour")
        out.append(f"{counted(n, 'worker')} died in the midst of a run within {when}: `wheelsched dead list` and the log say of what")
    if p["stalled"]:
        s = p["stalled"]
        busy = ", ".join(f"{one['job']} for {span(one['us'] / 1e6)}" for one in s["busy"])
        all_busy = "the only worker is busy" if s["workers"] == 1 else f"all {number(s['workers'])} workers are busy"
        out.append(
            f"no run was started for {span(s['us'] / 1e6)}, {number(s['waiting'])} wait, {all_busy}: {busy}; "
            "`wheelsched run list --state running` shows them"
        )
    if p["blocked_jobs"]:
        was = "job was" if p["blocked_jobs"] == 1 else "jobs were"
        told = f"{number(p['blocked_jobs'])} {was} skipped again and again, since a run of it is still open"
        named = _named(p["blocked_most"], p["blocked_jobs"], " in a row")
        out.append(f"{told}: {named}; `wheelsched run get JOB` shows that run, `wheelsched run cancel JOB` ends it")
    return out


def _named(most: list[list[Any]], n: int, unit: str = "") -> str:
    """`shop.a (7), shop.b (5) and 3 others`."""
    more = f" and {n - len(most)} others" if n > len(most) else ""
    return ", ".join(f"{clean(name)} ({number(count)}{unit})" for name, count in most) + more


def held_words(s: dict[str, Any]) -> str:
    """That all triggering is held, why and since when."""
    why = f" ({clean(s['hold_note'])})" if s.get("hold_note") else ""
    since = "" if s.get("held_since_us") is None else f" since {Times('utc').show(to_datetime(s['held_since_us']))}"
    return f"HELD{why}{since}: `wheelsched admin release` ends it"


def _one_line(text: str) -> str:
    return clean(cut(text, _TEXT_MAX))

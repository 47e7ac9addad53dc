"""What keeps a server from doing its work, and what to do about it: in the words of `wheelsched status`. Pure."""

from __future__ import annotations

from typing import Any, Final

from ..model.nouns import alarm_missing, counted, to_datetime, unserved
from .times import Times, span
from .words import clean, cut

__all__ = ["held_words", "troubles"]

_TEXT_MAX: Final = 300  # characters of what user code said
_TASKS_SHOWN: Final = 5


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


def held_words(s: dict[str, Any]) -> str:
    """That all triggering is held, why and since when."""
    why = f" ({clean(s['hold_note'])})" if s.get("hold_note") else ""
    since = "" if s.get("held_since_us") is None else f" since {Times('utc').show(to_datetime(s['held_since_us']))}"
    return f"HELD{why}{since}: `wheelsched admin release` ends it"


def _one_line(text: str) -> str:
    return clean(cut(text, _TEXT_MAX))

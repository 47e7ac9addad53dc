"""What is said of a job that was put, set or edited, and how a difference is written everywhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..client.times import Times, relative, schedule_zone
from ..client.words import cut
from .output import show_one
from .policies import warn
from .shell import say, shell

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ..client.values import JobInfo

__all__ = ["changes_text", "difference_line", "show_put"]


def changes_text(pairs: Mapping[str, tuple[str, str]]) -> str:
    """`timeout: 3h -> 1h; retry: ...`."""
    return "; ".join(f"{policy}: {cut(old or 'none', 60)} -> {cut(new or 'none', 60)}" for policy, (old, new) in pairs.items())


def difference_line(name: str, pairs: Mapping[str, tuple[str, str]]) -> str:
    """The line of a changed job."""
    told = changes_text(pairs)
    return f"~ {name}" + (f"  {told}" if told else "")


def show_put(found: JobInfo) -> None:
    """The answer to a put: what became of the job, what changed of it, when it comes next, and what else is to know."""
    sh = shell()
    times, tz = Times(sh.times), schedule_zone(found.spec["schedule"])

    def page() -> Iterator[str]:
        due = "" if found.next_at is None else f"; next {times.show(found.next_at, tz)}, {relative(found.next_at, sh.now)}"
        yield f"{found.name}: {found.result or 'put'}, {found.state}{due}"
        if found.changes:
            yield difference_line(found.name, found.changes)

    show_one(sh, found.to_dict(), page)
    warn(found.task, found.warning)
    if found.said:
        say(f"{found.name}: {found.said}")
    elif found.state == "finished" and found.result != "unchanged":
        say(f"{found.name} has no time left to run at: what its schedule has is past, outside of start and end, or was decided before")

"""What a command decides before it changes a job: what came due while the job was paused or held, and what calendars and other zone data
took away. Most jobs have nothing of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..model import plain
from ..model.nouns import NEVER, JobState
from ..schedules.table import KIND_AFTER, KIND_AT
from .catchup import SKIP_PAUSED, excluded_entries, ledger_rows, owed_after, plan
from .due import record_planned
from .spans import changed_away, free_and_excluded

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .catchup import Catching
    from .core import Core


def settle(core: Core, row: int) -> None:
    """Ledger rows for what calendars and zone changes took away up to now: a command is about to change what that depends on."""
    fields = core.state.jobs.gather(np.array([row], np.uint32))[0]
    if fields["state"] != JobState.ACTIVE or core.state.meta.held_us >= 0:
        return
    spec, param, owed, now = int(fields["spec"]), int(fields["param_us"]), int(owed_after(core, fields)), core.now.wall_us
    entries = changed_away(core.specs, spec, param, owed, now)
    if core.specs.calendar[spec]:
        _, excluded = free_and_excluded(core.specs, spec, param, owed, now)
        entries += excluded_entries(core, row, spec, param, excluded)
    if entries:
        last = max(e.span.last for e in entries)
        common = {"job": row, "next": int(fields["next_us"]), "cursor": max(last, int(fields["cursor_us"])), "job_state": JobState.ACTIVE}
        record_planned(core, ledger_rows(entries, common))


def unsettled(core: Core, fields: Any) -> NDArray[np.bool_]:
    """Which jobs a command must call `skip_unattended` for: most have nothing but their next occurrence open."""
    specs, spec, state = core.specs, fields["spec"], fields["state"]
    noisy = (specs.calendar[spec] > 0) | ~specs.quiet(spec, owed_after(core, fields), np.full(len(spec), core.now.wall_us, np.int64))
    attended = (state == plain.JOB_ACTIVE) if core.state.meta.held_us < 0 else np.zeros(len(spec), np.bool_)
    return np.asarray(np.where(attended, noisy, state <= plain.JOB_PAUSED), np.bool_)


def skip_unattended(core: Core, row: int, *, once: bool = False) -> None:
    """What a job missed up to now, paused or while all triggering was held, is skipped for good; and what else took occurrences away.

    A command is about to end that pause or to change its definition. `once`: a paused one-time job's instant too, which it owes on resume
    as long as it keeps it.
    """
    settle(core, row)
    fields = core.state.jobs.gather(np.array([row], np.uint32))[0]
    state, kind = fields["state"], core.specs.kind[int(fields["spec"])]
    if state == JobState.PAUSED and kind == KIND_AT and once and int(fields["cursor_us"]) < int(fields["param_us"]) <= core.now.wall_us:
        fields["next_us"] = fields["param_us"]
        planned = plan(core, row, fields, core.now.wall_us + 1, SKIP_PAUSED)
        record_planned(core, [p | {"job_state": state, "next": NEVER} for p in planned])
    elif state == JobState.PAUSED and kind not in (KIND_AT, KIND_AFTER):
        planned = plan_unattended(core, row, fields, SKIP_PAUSED)
        record_planned(core, [p | {"job_state": state, "next": NEVER} for p in planned])
    elif state == JobState.ACTIVE and core.state.meta.held_us >= 0:
        record_planned(core, plan_unattended(core, row, fields, SKIP_PAUSED))


def plan_unattended(core: Core, row: int, fields: Any, catching: Catching) -> list[dict[str, int]]:
    """Rows for all that a paused or held job owes up to now, with what calendars and zone changes took away; none if it owes nothing."""
    specs, spec, param, now = core.specs, int(fields["spec"]), int(fields["param_us"]), core.now.wall_us
    owed = int(owed_after(core, fields))
    fields = fields.copy()
    first = int(fields["next_us"])
    if specs.kind[spec] != KIND_AFTER:  # its grid has what calendars exclude as well
        first = min(first, specs.one(spec, param, owed))
    fields["next_us"] = first
    if first > now and not changed_away(specs, spec, param, owed, now):
        return []
    return plan(core, row, fields, now + 1, catching)

"""Members of the enums in `nouns` as plain numbers, for what is compared with arrays on each run's way. Pure.

Of an enum's member numpy first asks the class for methods of its own. With Python 3.11 that question costs more than the comparison of a
short array: in a turn with one run, a quarter of its time.
"""

from __future__ import annotations

from typing import Final

from .nouns import Disposition, Event, JobState, Outcome, Reason, RunState, Trigger

JOB_ACTIVE: Final = int(JobState.ACTIVE)
JOB_PAUSED: Final = int(JobState.PAUSED)
JOB_FINISHED: Final = int(JobState.FINISHED)
JOB_DELETED: Final = int(JobState.DELETED)

RUN_SCHEDULED: Final = int(RunState.SCHEDULED)
RUN_QUEUED: Final = int(RunState.QUEUED)
RUN_SKIPPED: Final = int(RunState.SKIPPED)

EVENT_SUCCEED: Final = int(Event.SUCCEED)
EVENT_RETRY: Final = int(Event.RETRY)
EVENT_EXHAUST: Final = int(Event.EXHAUST)
EVENT_CANCEL: Final = int(Event.CANCEL)
EVENT_SPARE: Final = int(Event.SPARE)

OUTCOME_SUCCEEDED: Final = int(Outcome.SUCCEEDED)
OUTCOME_TIMED_OUT: Final = int(Outcome.TIMED_OUT)
OUTCOME_INTERRUPTED: Final = int(Outcome.INTERRUPTED)
OUTCOME_NOT_STARTED: Final = int(Outcome.NOT_STARTED)
OUTCOME_SNOOZED: Final = int(Outcome.SNOOZED)

TRIGGER_SCHEDULE: Final = int(Trigger.SCHEDULE)
TRIGGER_BACKFILL: Final = int(Trigger.BACKFILL)
TRIGGER_ENQUEUE: Final = int(Trigger.ENQUEUE)

DISPOSITION_FIRED: Final = int(Disposition.FIRED)
DISPOSITION_SKIPPED: Final = int(Disposition.SKIPPED)
DISPOSITION_COALESCED: Final = int(Disposition.COALESCED)
DISPOSITION_MOVED: Final = int(Disposition.MOVED)
DISPOSITION_TZDATA_MOVED: Final = int(Disposition.TZDATA_MOVED)

REASON_NONE: Final = int(Reason.NONE)
REASON_OVERLAP: Final = int(Reason.OVERLAP)
REASON_MISFIRE: Final = int(Reason.MISFIRE)
REASON_LIMIT: Final = int(Reason.LIMIT)

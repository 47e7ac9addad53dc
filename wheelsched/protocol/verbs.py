"""The verbs of the wire: one table of what client, server, engine and simulator need to know of each. `frames` has their specification.

A verb without a row here is answered with `unimplemented`. `tests/protocol/test_verbs.py` compares the table with
the specification and with the handlers.
"""

from __future__ import annotations

from typing import Final, NamedTuple

ENGINE: Final = "engine"  # in a turn, in order
READS: Final = "reads"  # from what is there, after the turn
EVENTS: Final = "events"  # when there are some
FORECAST: Final = "forecast"  # in pieces, over many turns
RELOAD: Final = "reload"  # when it is over
STACK: Final = "stack"  # when the process that was asked has answered


class Verb(NamedTuple):
    """One verb."""

    name: str
    answered_by: str = ENGINE
    mutating: bool = False  # it carries a `rid`; a repeat is answered from memory
    calming: bool = False  # taken on a full disk, too: it needs little and stops more
    growing: bool = False  # refused while memory is scarce: it makes the server keep more
    role: str = ""  # that its sender needs; what a job's task needs comes beside (see `engine/roles.py`)
    history: bool = False  # decided with a look into history
    worker: bool = False  # of workers: taken in each turn, past other requests of its connection
    early: bool = False  # decided before losses of the same turn: what a worker reported before it died counts


TABLE: Final = (
    # jobs
    Verb("put", mutating=True, growing=True),
    Verb("put_many", mutating=True, growing=True),
    Verb("stage", growing=True),
    Verb("apply", mutating=True, growing=True),
    Verb("get"),
    Verb("next"),
    Verb("jobs", READS),
    Verb("pause", mutating=True, calming=True),
    Verb("resume", mutating=True, growing=True),
    Verb("delete", mutating=True, calming=True),
    Verb("trigger", mutating=True, growing=True),
    Verb("history", history=True),
    # single occurrences
    Verb("why", history=True),
    Verb("skip", mutating=True, growing=True),
    Verb("move", mutating=True, growing=True),
    Verb("backfill", mutating=True, growing=True, history=True),
    # runs
    Verb("enqueue", mutating=True, growing=True),
    Verb("enqueue_many", mutating=True, growing=True),
    Verb("group_part", growing=True),
    Verb("group", mutating=True, growing=True),
    Verb("run", READS),
    Verb("runs", READS),
    Verb("stack", STACK),
    Verb("wait"),
    Verb("cancel", mutating=True, calming=True),
    Verb("cancel_many", mutating=True, calming=True),
    Verb("dead", READS),
    Verb("redrive", mutating=True, growing=True),
    Verb("discard", mutating=True, calming=True),
    # queues
    Verb("queues"),
    Verb("queue_set", mutating=True, growing=True, role="admin"),
    Verb("queue_pause", mutating=True, calming=True, role="admin"),
    Verb("queue_resume", mutating=True, role="admin"),
    Verb("queue_purge", mutating=True, calming=True, role="admin"),
    # calendars and zones
    Verb("calendars"),
    Verb("calendar_put", mutating=True, growing=True),
    Verb("calendar_delete", mutating=True),
    Verb("tzdiff"),
    # the server
    Verb("hold", mutating=True, calming=True, role="admin"),
    Verb("release", mutating=True, role="admin"),
    Verb("reload", RELOAD, role="admin"),
    Verb("stats", READS),
    Verb("events", EVENTS),
    Verb("forecast", FORECAST),
    # workers, and the hello of everybody
    Verb("hello", worker=True),
    Verb("lease", worker=True),
    Verb("finish", worker=True, early=True),
    Verb("heartbeat", worker=True, early=True),
)
BY_NAME: Final = {verb.name: verb for verb in TABLE}
UNKNOWN: Final = Verb("")  # what is said of any other: it is handed to the engine, which refuses it
MUTATING: Final = frozenset(verb.name for verb in TABLE if verb.mutating)
WORKERS: Final = frozenset(verb.name for verb in TABLE if verb.worker)

__all__ = ["BY_NAME", "ENGINE", "EVENTS", "FORECAST", "MUTATING", "READS", "RELOAD", "STACK", "TABLE", "UNKNOWN", "WORKERS", "Verb"]

"""What requests can make a server keep, and how much of it: one table. The page `limits` of the manual shows it, and a test compares them.

Whoever asks for more is refused with `resource_exhausted` and the limit's name. What a connection made the server keep is given back when
it goes. A limit of a user is for all connections of one uid together; nobody is exempt, so that one user never takes what others need.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ..model.errors import ResourceExhaustedError

__all__ = ["LIMITS", "Limit", "check", "table"]

_MIB: Final = 1024 * 1024
SCOPES: Final = {"connection": "a connection", "user": "a user", "server": "the server"}


@dataclass(frozen=True, slots=True)
class Limit:
    """`None`: no limit of that scope."""

    name: str
    what: str  # in the plural
    connection: int | None
    user: int | None
    server: int | None
    advice: str  # what whoever meets it does
    size: bool = False  # in bytes

    def shown(self, value: int | None) -> str:
        """One of its values as a manual has it."""
        if value is None:
            return ""
        return f"{value // _MIB} MiB" if self.size else f"{value:,}"


LIMITS: Final = {limit.name: limit for limit in (
    Limit("staged_bytes", "bytes of jobs and group members that wait for their `apply` or `group`", 128 * _MIB, 192 * _MIB, 256 * _MIB,
          "apply fewer at once, split by namespace", size=True),
    Limit("staged_batches", "batches that wait for their `apply`", 16, None, None, "apply or drop some first"),
    Limit("waiting_leases", "lease requests that wait for runs", 16, 2_048, 4_096, "a worker needs one at a time"),
    Limit("waits", "requests that wait for the end of a run", 10_000, 50_000, 100_000, "wait for fewer runs at a time, or read events"),
    Limit("event_readers", "requests for events that wait", 32, 256, 512, "ask again later"),
    Limit("forecasts", "forecasts that are under way", 4, 32, 64, "ask again later"),
    Limit("reloads", "requests that wait for the end of a reload", 4, 16, 64, "one is enough: wait for its answer"),
    Limit("stacks", "requests that wait for the stack of a run", 8, 32, 64, "wait for some of the answers first"),
    Limit("sweeps", "commands on many runs that are under way", 16, 64, 256, "repeat it later, with the same rid"),
    Limit("postponed_bytes", "bytes of requests that wait until occurrences of the past are decided", 64 * _MIB, 128 * _MIB, 256 * _MIB,
          "wait for some of the answers first", size=True),
    Limit("served_tasks", "tasks of connected workers, one counted for each worker that serves it", 10_000, 200_000, 1_000_000,
          "start fewer workers, or give each fewer tasks"),
    Limit("announced_tasks", "tasks whose options workers announced; what nobody serves goes first", None, 20_000, 100_000,
          "let workers announce fewer tasks"),
    Limit("announced_bytes", "bytes of these options", None, 8 * _MIB, 32 * _MIB, "let workers announce less", size=True),
    Limit("remembered_answers", "bytes of answers that are kept for 10 minutes, for repeats of a request", None, 512 * _MIB, 1_024 * _MIB,
          "send more items a request (put_many, enqueue_many, apply), or repeat it later with the same rid", size=True),
    Limit("idempotency_keys", "keys of enqueue, trigger and group", None, None, 5_000_000, "use fewer keys, or wait until some are over"),
)}


def check(name: str, *, connection: int = 0, user: int = 0, server: int = 0) -> None:
    """ResourceExhaustedError when what would be kept, by scope, is more than a limit allows."""
    limit = LIMITS[name]
    for (scope, whose), wanted, most in zip(
            SCOPES.items(), (connection, user, server), (limit.connection, limit.user, limit.server), strict=True):
        if most is not None and wanted > most:
            raise ResourceExhaustedError(
                f"limit {name}: {limit.shown(most)} for {whose} ({limit.what}); {limit.advice}", limit=name, scope=scope, most=most,
            )


def table() -> str:
    """The table of the manual."""
    rows = ["| limit | what is kept | " + " | ".join(SCOPES.values()) + " |", "|---|---|---|---|---|"]
    for one in LIMITS.values():
        values = (one.shown(value) for value in (one.connection, one.user, one.server))
        rows.append(f"| `{one.name}` | {one.what} | " + " | ".join(values) + " |")
    return "\n".join(row.replace("  |", " |") for row in rows) + "\n"

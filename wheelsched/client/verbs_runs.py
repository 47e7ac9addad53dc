"""The verbs that make and end runs, as questions. No I/O. Like `verbs`, shared by the clients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar

from ..model.errors import InvalidArgumentError
from ..model.nouns import display_name, parse_duration, parse_job_name
from ..protocol.definition import given_from_api
from ..protocol.frames import encode_payload
from .bulk_runs import checked_unique
from .requests import Ask
from .values import RunInfo
from .verbs import checked_call, checked_filters, checked_glob, checked_key, checked_run_id, checked_word, field_of, instant_of_enqueue
from .views_runs import Stack

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ..model.payloads import Exts

__all__ = ["cancel", "cancel_many", "enqueue", "stack"]

R = TypeVar("R", bound=RunInfo)
_OPEN: Final = ("scheduled", "queued", "retry_wait", "leased", "running")


def enqueue(
    read: Callable[[Any], R], call: Any, policies: Mapping[str, Any], *, delay: Any, at: Any, key: Any, unique: Any, namespace: Any,
    exts: Exts
) -> Ask[R]:
    """One run, now, after a delay or at an instant."""
    call = checked_call(call)
    if delay is not None and at is not None:
        raise InvalidArgumentError("enqueue: give a delay or an instant (at), not both")
    parse_job_name(f"{namespace}/x")
    given, _ = given_from_api(call, None, policies)
    args = {
        "given": given, "payload": encode_payload(call.args, call.kwargs, call.headers, exts=exts), "namespace": namespace,
        "key": checked_key(key),
    }
    fields = checked_unique(unique)
    if fields is not None:
        args["unique"] = fields
    if delay is not None:
        args["delay_us"] = parse_duration(delay, "delay")
    if at is not None:
        args["at_us"] = instant_of_enqueue(at)
    return Ask("enqueue", args, read)


def stack(run_id: Any) -> Ask[Stack]:
    """Where a run is in its code."""

    def read(result: Any) -> Stack:
        run, job, text = (field_of(result, name, str) for name in ("id", "job", "text"))
        return Stack(run, display_name(job), str(result.get("worker")), text)

    return Ask("stack", {"id": checked_run_id(run_id)}, read)


def cancel(read: Callable[[Any], R], run_id: Any, filters: Mapping[str, Any], *, dry_run: Any) -> Ask[R]:
    """End a run. With a run id there is nothing to filter."""
    if dry_run or any(value is not None for value in filters.values()):
        raise InvalidArgumentError("cancel: give a run id, or filters (and dry_run), not both")
    return Ask("cancel", {"id": checked_run_id(run_id)}, read)


def cancel_many(filters: Mapping[str, Any], *, dry_run: Any) -> Ask[int]:
    """End all open runs that the filters find: match, state, task, queue, namespace; None: any."""
    if all(value is None for value in filters.values()):
        raise InvalidArgumentError("cancel: give a run id or one of match, state, task, queue, namespace; match='*' is all open runs")
    args = {
        "match": checked_glob(filters["match"]), "state": checked_word(filters["state"], "state", _OPEN),
        **checked_filters(filters["task"], filters["queue"], filters["namespace"]), "dry_run": bool(dry_run),
    }
    return Ask("cancel_many", args, lambda result: field_of(result, "count", int))

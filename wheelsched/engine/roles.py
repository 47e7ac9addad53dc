"""Who may do what: roles, what needs which, and who is shown fencing tokens. Pure: the server finds out a peer's roles when it connects.

Whoever may open the socket may do everything else. Defining a command means running programs as the server's user, so that and `http` are
roles that nobody has by default but that user and root; `admin` is everybody's until the operator names somebody, and so is `worker` as
long as the socket is not shared.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ..model.errors import PermissionDeniedError
from ..model.nouns import OPEN_ROLES, ROLES
from ..protocol.verbs import BY_NAME, UNKNOWN

if TYPE_CHECKING:
    from collections.abc import Collection

    from .turn import Incoming

_TASKS: Final = {"command": "command", "http": "http"}  # task -> role of who defines a job with it, enqueues it or serves it
assert {*_TASKS.values(), *(known.role for known in BY_NAME.values() if known.role)} <= set(ROLES)
assert set(OPEN_ROLES) <= set(ROLES)


def check(cmd: Incoming) -> None:
    """PermissionDeniedError when a request needs a role that its sender hasn't got. What is malformed is left to the verb."""
    verb, args = cmd.request.verb, cmd.request.args
    role = BY_NAME.get(verb, UNKNOWN).role
    if role:
        _need(cmd, role, f"`{verb}`")
    elif verb == "hello":
        if args.get("role") == "worker":
            _need(cmd, "worker", "being a worker")
            served: Any = args.get("tasks")
            for task, of_task in _TASKS.items():
                if isinstance(served, dict) and task in served:
                    _need(cmd, of_task, f"serving the task `{task}`")
    elif "given" in args:
        given = args["given"]
        for one in given if isinstance(given, list) else (given,):
            check_task(cmd, one.get("task") if isinstance(one, dict) else None)


def check_task(cmd: Incoming, task: Any) -> None:
    """PermissionDeniedError when a job with this task needs a role that the sender of a request hasn't got."""
    if isinstance(task, str) and task in _TASKS:
        _need(cmd, _TASKS[task], f"a job with the task `{task}`")


def _need(cmd: Incoming, role: str, what: str) -> None:
    if role not in cmd.roles:
        raise PermissionDeniedError(
            f"{what} needs the role {role!r}, which the user with the uid {cmd.uid} has not; the operator of the server grants it:"
            f' `serve --grant {role}={cmd.uid}`, or [roles] {role} = ["USER", "%GROUP"] in its configuration file', role=role,
        )


def has_all(roles: Collection[str]) -> bool:
    """Has a peer every role, as the server's own user and root have? It alone is shown fencing tokens."""
    return all(role in roles for role in ROLES)


def shown(roles: Collection[str], result: Any) -> Any:
    """An answer as a peer may see it: a run, a page of runs in columns, a page of events, or a map with a `run`; others as they are."""
    if has_all(roles) or not isinstance(result, dict):
        return result
    if isinstance(result.get("run"), dict):
        return {**result, "run": _without(result["run"])}
    if isinstance(result.get("columns"), dict):
        return {**result, "columns": _columns(result["columns"])}
    return _without(result)


def _without(told: dict[str, Any]) -> dict[str, Any]:
    """A run or a page of events without tokens."""
    if "attempts" in told and "stale" in told:
        return {**told, "token": None, "attempts": _bare(told["attempts"]), "stale": _bare(told["stale"])}
    if "seq" in told and isinstance(told.get("token"), bytes):
        return {**told, "token": bytes(len(told["token"]))}
    return told


def _columns(columns: dict[str, list[Any]]) -> dict[str, list[Any]]:
    if "token" not in columns:
        return columns
    return {
        **columns, "token": [None] * len(columns["token"]), "attempts": [_bare(one) for one in columns["attempts"]],
        "stale": [_bare(one) for one in columns["stale"]],
    }


def _bare(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**entry, "token": None} for entry in entries]

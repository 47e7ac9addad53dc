"""Who may do what: roles, and what needs which. Pure: which roles a peer has is found out by the server when it connects.

Whoever may open the socket may do everything else. Defining a command means running programs as the server's user, so that and `http` are
roles that nobody has by default but that user and root; `admin` and `worker` are everybody's until the operator names somebody.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from .errors import PermissionDeniedError
from .model import OPEN_ROLES, ROLES

if TYPE_CHECKING:
    from .turn import Incoming

_TASKS: Final = {"command": "command", "http": "http"}  # task -> role of who defines a job with it or enqueues it
_VERBS: Final = dict.fromkeys(("hold", "release", "reload", "queue_set", "queue_pause", "queue_resume", "queue_purge"), "admin")
assert {*_TASKS.values(), *_VERBS.values()} <= set(ROLES)
assert set(OPEN_ROLES) <= set(ROLES)


def check(cmd: Incoming) -> None:
    """PermissionDeniedError when a request needs a role that its sender hasn't got. What is malformed is left to the verb."""
    verb, args = cmd.request.verb, cmd.request.args
    if verb in _VERBS:
        _need(cmd, _VERBS[verb], f"`{verb}`")
    elif verb == "hello":
        if args.get("role") == "worker":
            _need(cmd, "worker", "being a worker")
    elif "given" in args:
        given = args["given"]
        for one in given if isinstance(given, list) else (given,):
            task: Any = one.get("task") if isinstance(one, dict) else None
            if isinstance(task, str) and task in _TASKS:
                _need(cmd, _TASKS[task], f"a job with the task `{task}`")


def _need(cmd: Incoming, role: str, what: str) -> None:
    if role not in cmd.roles:
        raise PermissionDeniedError(
            f"{what} needs the role {role!r}, which the user with the uid {cmd.uid} has not; the operator of the server grants it:"
            f' `serve --grant {role}={cmd.uid}`, or [roles] {role} = ["USER", "%GROUP"] in its configuration file', role=role,
        )

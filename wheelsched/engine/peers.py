"""Connections that said hello: clients, and workers with the tasks they serve."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..model.errors import FailedPreconditionError, InvalidArgumentError
from ..model.nouns import parse_task_name
from ..protocol import frames
from ..protocol.definition import check_announced
from .announcements import TOLD_MAX, announce, check_served
from .connected import Session
from .holders import proof_of
from .roles import has_all

if TYPE_CHECKING:
    from typing import Any

    from .core import Core
    from .turn import Incoming


def add_worker(core: Core, conn: int, name: str, kind: str) -> int:
    """A worker of the pool is about to connect: its number is durable before anything is leased to it."""
    session = core.sessions[conn] = Session(conn, 0, core.state.meta.next_worker, name, kind)
    _record(core, session)
    return session.worker


def _record(core: Core, session: Session) -> None:
    """A worker is there."""
    fields = {"id": session.worker, "name": session.name, "kind": session.kind, "gone": False}
    core.record("WORKER", {"at": core.now.wall_us, **fields})
    if session.kind == "external":
        core.record("WHOSE", {"id": session.worker, "uid": session.uid, "proof": session.proof})


def hello(core: Core, cmd: Incoming) -> bytes:
    """Versions and roles; a worker announces its tasks."""
    args = cmd.request.args
    if args.get("version") != frames.VERSION:
        raise FailedPreconditionError(f"protocol version {args.get('version')!r}: this server speaks {frames.VERSION}")
    role, name = args.get("role"), args.get("name", "")
    if role not in ("client", "worker") or not isinstance(name, str) or len(name) > 200:
        raise InvalidArgumentError("hello: role is 'client' or 'worker', name a text of at most 200 characters")
    session, ignored = core.sessions.get(cmd.conn), list[str]()
    if session is not None:
        _take_back(core, session)
    if role == "worker":
        tasks = args.get("tasks")
        if not isinstance(tasks, dict) or len(tasks) > 10_000 or not all(isinstance(v, dict) for v in tasks.values()):
            raise InvalidArgumentError("hello: tasks is a map of task names to the options of their decorators")
        checked = {parse_task_name(task): check_announced(options) for task, options in tasks.items()}
        proof = proof_of(args.get("secret"))
        if session is None or session.kind == "external":
            check_served(core, cmd.conn, cmd.uid, len(checked))
        if session is not None and (not session.worker or session.proof != proof):
            raise FailedPreconditionError("hello: this connection is a client's or another worker's; connect anew")
        fresh, session = session is None, session or _joining(core, cmd, name, proof)
        news, ignored = announce(core, session, checked)
        if fresh:
            core.sessions[cmd.conn] = session
            _record(core, session)
        if news:
            core.record("ANNOUNCED", news)
        session.tasks = _shared(core, frozenset(checked))
    elif session is None:
        session = core.sessions[cmd.conn] = Session(cmd.conn, cmd.uid, name=name)
    result: dict[str, Any] = {
        "version": frames.VERSION, "server": core.server, "instance": core.instance, "generation": core.state.meta.generation,
        "clock_offset_us": core.clock_offset_us, "worker": session.worker, "lease_us": core.lease_us,
        "heartbeat_us": core.lease_us * 3 // 10,
    }
    if ignored:
        result["ignored"] = ignored[:TOLD_MAX]
    return frames.encode_ok(cmd.request.id, result)


def _shared(core: Core, tasks: frozenset[str]) -> frozenset[str]:
    """An equal set of another worker: there is one for many."""
    return next((s.tasks for s in core.sessions.values() if s.tasks == tasks), tasks)


def _joining(core: Core, cmd: Incoming, name: str, proof: bytes) -> Session:
    return Session(
        cmd.conn, cmd.uid, core.state.meta.next_worker, name, "external", lease_until_us=core.now.mono_us + core.lease_us,
        own=has_all(cmd.roles), proof=proof,
    )


def _take_back(core: Core, session: Session) -> None:
    """A worker whose lease had run out says something: it is a worker again, under its number."""
    if session.lost:
        session.lost, session.lease_until_us = False, core.now.mono_us + core.lease_us
        _record(core, session)


def session_of(core: Core, cmd: Incoming) -> Session:
    """The worker session of a connection; failed_precondition for others. A worker that was silent for longer than its lease is
    taken back: it holds nothing any more, and is told so by its tokens.
    """
    session = core.sessions.get(cmd.conn)
    if session is None or not session.worker:
        raise FailedPreconditionError(f"{cmd.request.verb}: say hello with role 'worker' first")
    _take_back(core, session)
    return session

"""Connections that said hello: clients, and workers with the tasks they serve."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from ..model.errors import FailedPreconditionError, InvalidArgumentError
from ..model.nouns import NEVER, parse_task_name
from ..protocol import frames
from ..protocol.definition import check_announced
from .announcements import TOLD_MAX, announce, check_served
from .holders import proof_of
from .roles import has_all

if TYPE_CHECKING:
    from typing import Any

    from .engine import Engine
    from .turn import Incoming


@dataclass(slots=True)
class Session:
    """A connection that said hello."""

    conn: int
    uid: int
    worker: int = 0
    name: str = ""
    kind: str = "client"  # client, pool, external
    tasks: frozenset[str] = frozenset()
    lease_until_us: int = NEVER  # monotonic; external workers only
    lost: bool = False  # its lease ran out; it comes back when it says something
    own: bool = False  # of the server's own user, or of one with all roles
    proof: bytes = b""  # of the secret by which it is known again

    @property
    def ready(self) -> bool:
        """Is it a worker that has said hello, and is not lost? Those of the pool, who all serve some task, are here before they do."""
        return self.worker > 0 and not self.lost and (self.kind != "pool" or bool(self.tasks))


@dataclass(slots=True)
class Seeker:
    """A lease request that waits for runs."""

    conn: int
    request_id: int
    worker: int
    queues: frozenset[str]
    credits: int
    deadline_us: int  # monotonic


class Waiter(NamedTuple):
    """A client that waits for a run."""

    conn: int
    request_id: int
    deadline_us: int  # monotonic
    roles: frozenset[str]


def add_worker(engine: Engine, conn: int, name: str, kind: str) -> int:
    """A worker of the pool is about to connect: its number is durable before anything is leased to it."""
    session = engine.sessions[conn] = Session(conn, 0, engine.state.meta.next_worker, name, kind)
    _record(engine, session)
    return session.worker


def _record(engine: Engine, session: Session) -> None:
    """A worker is there."""
    fields = {"id": session.worker, "name": session.name, "kind": session.kind, "gone": False}
    engine.record("WORKER", {"at": engine.now.wall_us, **fields})
    if session.kind == "external":
        engine.record("WHOSE", {"id": session.worker, "uid": session.uid, "proof": session.proof})


def hello(engine: Engine, cmd: Incoming) -> bytes:
    """Versions and roles; a worker announces its tasks."""
    args = cmd.request.args
    if args.get("version") != frames.VERSION:
        raise FailedPreconditionError(f"protocol version {args.get('version')!r}: this server speaks {frames.VERSION}")
    role, name = args.get("role"), args.get("name", "")
    if role not in ("client", "worker") or not isinstance(name, str) or len(name) > 200:
        raise InvalidArgumentError("hello: role is 'client' or 'worker', name a text of at most 200 characters")
    session, ignored = engine.sessions.get(cmd.conn), list[str]()
    if session is not None:
        _take_back(engine, session)
    if role == "worker":
        tasks = args.get("tasks")
        if not isinstance(tasks, dict) or len(tasks) > 10_000 or not all(isinstance(v, dict) for v in tasks.values()):
            raise InvalidArgumentError("hello: tasks is a map of task names to the options of their decorators")
        checked = {parse_task_name(task): check_announced(options) for task, options in tasks.items()}
        proof = proof_of(args.get("secret"))
        if session is None or session.kind == "external":
            check_served(engine, cmd.conn, cmd.uid, len(checked))
        if session is not None and (not session.worker or session.proof != proof):
            raise FailedPreconditionError("hello: this connection is a client's or another worker's; connect anew")
        fresh, session = session is None, session or _joining(engine, cmd, name, proof)
        news, ignored = announce(engine, session, checked)
        if fresh:
            engine.sessions[cmd.conn] = session
            _record(engine, session)
        if news:
            engine.record("ANNOUNCED", news)
        session.tasks = _shared(engine, frozenset(checked))
    elif session is None:
        session = engine.sessions[cmd.conn] = Session(cmd.conn, cmd.uid, name=name)
    result: dict[str, Any] = {
        "version": frames.VERSION, "server": engine.server, "instance": engine.instance, "generation": engine.state.meta.generation,
        "clock_offset_us": engine.clock_offset_us, "worker": session.worker, "lease_us": engine.lease_us,
        "heartbeat_us": engine.lease_us * 3 // 10,
    }
    if ignored:
        result["ignored"] = ignored[:TOLD_MAX]
    return frames.encode_ok(cmd.request.id, result)


def _shared(engine: Engine, tasks: frozenset[str]) -> frozenset[str]:
    """An equal set of another worker: there is one for many."""
    return next((s.tasks for s in engine.sessions.values() if s.tasks == tasks), tasks)


def _joining(engine: Engine, cmd: Incoming, name: str, proof: bytes) -> Session:
    return Session(
        cmd.conn, cmd.uid, engine.state.meta.next_worker, name, "external", lease_until_us=engine.now.mono_us + engine.lease_us,
        own=has_all(cmd.roles), proof=proof,
    )


def _take_back(engine: Engine, session: Session) -> None:
    """A worker whose lease had run out says something: it is a worker again, under its number."""
    if session.lost:
        session.lost, session.lease_until_us = False, engine.now.mono_us + engine.lease_us
        _record(engine, session)


def session_of(engine: Engine, cmd: Incoming) -> Session:
    """The worker session of a connection; failed_precondition for others. A worker that was silent for longer than its lease is
    taken back: it holds nothing any more, and is told so by its tokens.
    """
    session = engine.sessions.get(cmd.conn)
    if session is None or not session.worker:
        raise FailedPreconditionError(f"{cmd.request.verb}: say hello with role 'worker' first")
    _take_back(engine, session)
    return session

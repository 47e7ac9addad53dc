"""Connections that said hello: clients, and workers with the tasks they announce."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from . import protocol
from .definition import check_announced
from .errors import FailedPreconditionError, InvalidArgumentError
from .model import NEVER, parse_task_name

if TYPE_CHECKING:
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


def add_worker(engine: Engine, conn: int, name: str, kind: str, uid: int = 0) -> int:
    """A worker is about to connect (pool) or has (external): its number is durable before anything is leased to it."""
    worker = engine.state.meta.next_worker
    engine.record("WORKER", {"at": engine.now.wall_us, "id": worker, "name": name, "kind": kind, "gone": False})
    engine.sessions[conn] = Session(conn, uid, worker, name, kind)
    return worker


def hello(engine: Engine, cmd: Incoming) -> bytes:
    """Versions and roles; a worker announces its tasks."""
    args = cmd.request.args
    if args.get("version") != protocol.VERSION:
        raise FailedPreconditionError(f"protocol version {args.get('version')!r}: this server speaks {protocol.VERSION}")
    role, name = args.get("role"), args.get("name", "")
    if role not in ("client", "worker") or not isinstance(name, str) or len(name) > 200:
        raise InvalidArgumentError("hello: role is 'client' or 'worker', name a text of at most 200 characters")
    session = engine.sessions.get(cmd.conn)
    if session is not None:
        _take_back(engine, session)
    if role == "worker":
        tasks = args.get("tasks")
        if not isinstance(tasks, dict) or len(tasks) > 10_000 or not all(isinstance(v, dict) for v in tasks.values()):
            raise InvalidArgumentError("hello: tasks is a map of task names to the options of their decorators")
        checked = {parse_task_name(task): check_announced(options) for task, options in tasks.items()}
        if session is None:
            add_worker(engine, cmd.conn, name, "external", cmd.uid)
            session = engine.sessions[cmd.conn]
            session.lease_until_us = engine.now.mono_us + engine.lease_us
        session.tasks = frozenset(checked)
        # Durable: a put just after a restart must resolve to what it resolved to before, though no worker has said hello yet.
        news = {task: options for task, options in checked.items() if engine.state.announced.get(task) != options}
        if news:
            engine.record("ANNOUNCE", {"at": engine.now.wall_us, "tasks": news})
    elif session is None:
        session = engine.sessions[cmd.conn] = Session(cmd.conn, cmd.uid, name=name)
    result = {
        "version": protocol.VERSION, "server": engine.server, "instance": engine.instance, "generation": engine.state.meta.generation,
        "clock_offset_us": engine.clock_offset_us, "worker": session.worker, "lease_us": engine.lease_us,
        "heartbeat_us": engine.lease_us * 3 // 10,
    }
    return protocol.encode_ok(cmd.request.id, result)


def _take_back(engine: Engine, session: Session) -> None:
    """A worker whose lease had run out says something: it is a worker again, under its number."""
    if session.lost:
        session.lost, session.lease_until_us = False, engine.now.mono_us + engine.lease_us
        fields = {"id": session.worker, "name": session.name, "kind": session.kind, "gone": False}
        engine.record("WORKER", {"at": engine.now.wall_us, **fields})


def session_of(engine: Engine, cmd: Incoming) -> Session:
    """The worker session of a connection; failed_precondition for others. A worker that was silent for longer than its lease is
    taken back: it holds nothing any more, and is told so by its tokens.
    """
    session = engine.sessions.get(cmd.conn)
    if session is None or not session.worker:
        raise FailedPreconditionError(f"{cmd.request.verb}: say hello with role 'worker' first")
    _take_back(engine, session)
    return session

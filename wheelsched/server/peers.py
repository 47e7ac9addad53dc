"""The connections of a server: who is there, who may come, and what epoll watches."""

from __future__ import annotations

import os
import resource
import select
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from ..model.errors import ResourceExhaustedError
from ..model.nouns import NEVER, US
from ..process.stderr import WARNING
from ..protocol.frames import encode_error
from .connections import HALF_FRAME_US, READ_BYTES, Connection, out_of_descriptors, peer

if TYPE_CHECKING:
    import socket

    from ..process.stderr import Log
    from .grants import Grants
    from .listener import Listener

ACCEPT_PAUSE_US: Final = US  # when the system has no room for another connection
TURN_BYTES: Final = 1024 * 1024  # that are read in one turn from all connections together
READ_LEAST: Final = 4 * 1024  # from one of them, whatever the others have
KEPT_BACK: Final = 64  # descriptors that connections never get: for the journal, files, and workers about to start
_OF_A_WORKER: Final = 8  # descriptors of one process of the pool
_LOG_EVERY_US: Final = 60 * US


class Peers:
    """All connections by descriptor and by number. Nobody is dropped here but who isn't let in."""

    def __init__(self, listener: Listener, grants: Grants, workers: int, log: Log) -> None:
        self.listener = listener
        self.grants = grants
        self.epoll = select.epoll()
        self.by_fd: dict[int, Connection] = {}
        self.by_number: dict[int, Connection] = {}
        self.most = max(16, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - KEPT_BACK - _OF_A_WORKER * workers)
        self.most_of_user = max(8, self.most // 2)  # of each but the server's own and root
        self.of_user: Counter[int] = Counter()
        self.accept_again_us = 0
        self._log = log
        self._refused_us = -NEVER  # when that was logged last
        self._halves: dict[int, Connection] = {}  # by number; those that have an incomplete frame
        self._events: dict[int, int] = {}  # what epoll watches, by descriptor
        self._last = 1  # number
        self._spare = _spare()  # given up for a moment when a connection must be taken to be refused

    def new_number(self) -> int:
        """Of a connection that will come."""
        self._last += 1
        return self._last

    # What is watched

    def watch(self, fd: int, mask: int = select.EPOLLIN) -> None:
        """From now on; another mask than before changes it."""
        if self._events.get(fd) == mask:
            return
        if fd in self._events:
            self.epoll.modify(fd, mask)
        else:
            self.epoll.register(fd, mask)
        self._events[fd] = mask

    def unwatch(self, fd: int) -> None:
        """Not any more."""
        self.epoll.unregister(fd)
        del self._events[fd]

    def look_after(self, connection: Connection) -> None:
        """Watch a connection for what it can do now."""
        self.watch(
            connection.fileno(),
            (select.EPOLLIN if connection.readable else 0) | (select.EPOLLOUT if connection.writable_wanted else 0),
        )
        if connection.half_since_us:
            self._halves[connection.number] = connection
        else:
            self._halves.pop(connection.number, None)

    # Who is there

    def add(self, connection: Connection) -> None:
        """One more."""
        self.by_fd[connection.fileno()] = connection
        self.by_number[connection.number] = connection
        if not connection.trusted:
            self.of_user[connection.uid] += 1
        self.watch(connection.fileno())

    def remove(self, connection: Connection) -> bool:
        """Forget it and close it. False when that was done before."""
        fd = connection.fileno()
        if self.by_fd.pop(fd, None) is None:
            return False
        del self.by_number[connection.number]
        self._halves.pop(connection.number, None)
        if not connection.trusted:
            self.of_user[connection.uid] -= 1
            self.of_user += Counter()  # without those that have none
        self.unwatch(fd)
        connection.close()
        return True

    def accept(self, now_us: int) -> None:
        """Let in who waits. Who is one too many is told so at once: nobody hangs, and no descriptor is lost to it."""
        try:
            for sock in self.listener.accept():
                self._let_in(sock, now_us)
        except OSError as e:
            if not out_of_descriptors(e):
                raise
            self._turn_away(e, now_us)

    def _let_in(self, sock: socket.socket, now_us: int) -> None:
        uid, gids = peer(sock)
        number = self.new_number()
        connection = Connection(number, sock, uid, self.grants.roles(uid, gids))
        others = uid not in (0, os.geteuid())
        if len(self.by_fd) >= self.most:
            why = f"the server has {self.most} connections, as many as its limit of descriptors allows: close some, or raise LimitNOFILE"
        elif others and self.of_user[uid] >= self.most_of_user:
            why = f"user {uid} has {self.most_of_user} connections, half of all that the server's limit of descriptors allows: close some"
        else:
            self.add(connection)
            return
        connection.send(encode_error(0, ResourceExhaustedError(why)))
        connection.close()
        self._say_refused(why, now_us)

    def _turn_away(self, error: OSError, now_us: int) -> None:
        """There is no descriptor for a new connection: with a spare one who waits is told so. Without, nobody is taken for a second."""
        why = f"no descriptor is left for a new connection: {error.strerror}"
        if self._spare is not None:
            os.close(self._spare)
            self._spare = None
        try:
            for sock in self.listener.accept(1):
                sock.setblocking(False)
                try:
                    sock.send(encode_error(0, ResourceExhaustedError(why)))
                except OSError:
                    why += "; nor could it be told"
                sock.close()
        except OSError as e:
            if not out_of_descriptors(e):
                raise
            self.accept_again_us = now_us + ACCEPT_PAUSE_US
            self.unwatch(self.listener.fileno())
        finally:
            self._spare = _spare()
        self._say_refused(why, now_us)

    def _say_refused(self, why: str, now_us: int) -> None:
        if now_us >= self._refused_us + _LOG_EVERY_US:
            self._refused_us = now_us
            self._log(f"a connection was refused: {why}; others are refused without a word for a minute", WARNING)

    def keep_socket(self, now_us: int, *, noted: bool) -> None:
        """Make the socket's file again when it is lost: else nobody new could reach a server that runs."""
        if not self.listener.lost(now_us, noted=noted):
            return
        self.accept(now_us)  # who came before it was lost
        old = self.listener.fileno()
        said = self.listener.make_again()
        if said:
            self._log(said, WARNING)
        if self.listener.fileno() != old or old not in self._events:
            self._events.pop(old, None)  # epoll has forgotten it with its closing
            self.accept_again_us = 0
            self.watch(self.listener.fileno())

    # What they send

    def share(self, ready: int) -> int:
        """How many bytes each of so many connections that have something is read in this turn."""
        return min(READ_BYTES, max(READ_LEAST, TURN_BYTES // max(ready, 1)))

    def wake_us(self) -> int:
        """Monotonic instant at which one has to be looked at though nothing is sent; NEVER for none."""
        due = min((c.half_since_us + HALF_FRAME_US for c in self._halves.values()), default=NEVER)
        return min(due, self.accept_again_us or NEVER)

    def overdue(self, now_us: int) -> list[Connection]:
        """Those that have sent half a frame and nothing more for too long. New connections are taken again when it is time for it."""
        if self.accept_again_us and now_us >= self.accept_again_us:
            self.accept_again_us = 0
            self.watch(self.listener.fileno())
        return [c for c in self._halves.values() if now_us - c.half_since_us >= HALF_FRAME_US]

    def stats(self) -> dict[str, Any]:
        """Figures."""
        return {"connections": len(self.by_fd)}


def _spare() -> int | None:
    try:
        return os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
    except OSError as e:
        if not out_of_descriptors(e):
            raise
        return None

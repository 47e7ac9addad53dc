"""What is kept for each connection and each user, counted against `limits`. Soft state: it begins anew with each start. Pure."""

from __future__ import annotations

import sys
from collections import Counter, deque
from typing import TYPE_CHECKING, Any, Final

from ..model.errors import InvalidArgumentError
from ..model.nouns import REQUEST_TTL_US, US
from ..protocol.limits import check

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .turn import Incoming

PARTS_MAX: Final = 200_000  # lists and maps in one frame that is kept
ANSWER_BYTES: Final = 256  # that a remembered answer takes beside its own
_BUCKET_US: Final = 60 * US  # answers of a user are counted together for so long
_KEPT_US: Final = REQUEST_TTL_US + 2 * _BUCKET_US  # they are forgotten once a minute


class Quotas:
    """Amounts by limit and connection, and their sums by user and of all."""

    def __init__(self) -> None:
        self._of: dict[int, Counter[str]] = {}
        self._users: dict[int, int] = {}
        self._of_user: Counter[tuple[str, int]] = Counter()
        self._all: Counter[str] = Counter()

    def take(self, name: str, cmd: Incoming, n: int = 1) -> None:
        """Keep so much more for who sent this. ResourceExhaustedError beyond a limit: then nothing was taken."""
        check(name, connection=self.of(name, cmd.conn) + n, user=self._of_user[name, cmd.uid] + n, server=self._all[name] + n)
        self._users[cmd.conn] = cmd.uid
        self._add(name, cmd.conn, n)

    def give(self, name: str, conn: int, n: int = 1) -> None:
        """So much is not kept any more."""
        if conn in self._of:  # else it has left, with all that it had
            self._add(name, conn, -n)

    def of(self, name: str, conn: int) -> int:
        """What is kept for a connection."""
        return self._of[conn][name] if conn in self._of else 0

    def leave(self, conn: int) -> None:
        """A connection is gone."""
        for name, n in list(self._of.get(conn, Counter()).items()):
            self._add(name, conn, -n)
        self._of.pop(conn, None)
        self._users.pop(conn, None)

    def _add(self, name: str, conn: int, n: int) -> None:
        user = self._users[conn]
        self._of.setdefault(conn, Counter())[name] += n
        self._of_user[name, user] += n
        self._all[name] += n
        assert self._of[conn][name] >= 0, (name, conn)
        if not self._of_user[name, user]:
            del self._of_user[name, user]


class Answers:
    """The size of the memory of requests: of all from the state, of each user since the start."""

    def __init__(self, replies: Iterable[tuple[int, bytes]]) -> None:
        self.size = sum(len(reply) + ANSWER_BYTES for _, reply in replies)
        self._of: dict[int, deque[list[int]]] = {}  # uid -> [since when (monotonic), bytes]

    def check(self, uid: int, mono_us: int) -> None:
        """ResourceExhaustedError when there is no room for another: it is refused before anything is done, never forgotten too soon."""
        mine = self._of.get(uid)
        while mine and mine[0][0] + _KEPT_US < mono_us:
            mine.popleft()
        if mine is not None and not mine:
            del self._of[uid]
        check("remembered_answers", user=sum(size for _, size in mine or ()) + ANSWER_BYTES, server=self.size + ANSWER_BYTES)

    def add(self, uid: int, reply: bytes, mono_us: int) -> None:
        """One more."""
        n = len(reply) + ANSWER_BYTES
        self.size += n
        mine = self._of.setdefault(uid, deque())
        if not mine or mine[-1][0] + _BUCKET_US < mono_us:
            mine.append([mono_us, 0])
        mine[-1][1] += n

    def forgot(self, replies: Iterable[bytes]) -> None:
        """These are over."""
        self.size -= sum(len(reply) + ANSWER_BYTES for reply in replies)


def size_of(value: Any) -> int:
    """Bytes of memory that a decoded value takes. InvalidArgumentError for one of too many parts."""
    total, parts, stack = sys.getsizeof(value), 0, [value]
    while stack:
        part = stack.pop()
        parts += 1
        if parts > PARTS_MAX:
            raise InvalidArgumentError(f"a frame has at most {PARTS_MAX:,} lists and maps; send fewer items a frame")
        if isinstance(part, dict):
            total += sum(map(sys.getsizeof, part))
            part = part.values()
        elif not isinstance(part, list):
            continue
        total += sum(map(sys.getsizeof, part))
        stack += [one for one in part if isinstance(one, list | dict)]
    return total


__all__ = ["Answers", "Quotas", "size_of"]

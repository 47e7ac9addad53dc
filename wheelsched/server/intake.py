"""Which requests a turn takes: what is urgent from everybody, and others by cost, connections in turns. Pure but for what they read.

Each connection has a number that grows by the cost of what is taken from it; the smallest is next. One that had nothing to ask begins at
the number of whoever was served last: who asks for little is next at once, however many ask for much.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

from ..engine.costs import TURN_US, cost, verb_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..protocol.frames import Request
    from .connections import Connection


class Intake:
    """The connections that have requests waiting."""

    def __init__(self) -> None:
        self._waiting: dict[int, Connection] = {}  # by number
        self._served_us = 0  # number of whoever was served last
        self.spent_us = 0  # cost of what the last turn took
        self.touched: dict[int, Connection] = {}  # by number; those that something was taken from, until somebody looks after them

    def __bool__(self) -> bool:
        """Would a turn take something? Who doesn't read answers is waited for."""
        return any(c.urgent or not c.clogged for c in self._waiting.values())

    def add(self, connection: Connection) -> None:
        """Something was read from this one."""
        if connection.waiting and connection.number not in self._waiting:
            connection.served_us = max(connection.served_us, self._served_us)
            self._waiting[connection.number] = connection

    def drop(self, connection: Connection) -> None:
        """This one is gone."""
        self._waiting.pop(connection.number, None)
        self.touched.pop(connection.number, None)

    def urgent(self) -> Iterator[tuple[Connection, Request]]:
        """What keeps leases alive: all of it of the pool's, of each other connection as much as a turn has time for; one at least."""
        for connection in [c for c in self._waiting.values() if c.urgent]:
            spent = 0
            self.touched[connection.number] = connection
            while connection.urgent and (connection.trusted or spent < TURN_US):
                taken = connection.take(connection.urgent)
                if taken is not None:
                    spent += cost(taken[0].verb, taken[0].args, taken[1])
                    yield connection, taken[0]
            self._leave(connection)

    def heartbeats(self) -> Iterator[tuple[Connection, Request]]:
        """The first heartbeat of each connection, if nothing else that is urgent comes before it. It stays until it is `answered`."""
        for connection in [c for c in self._waiting.values() if c.urgent and verb_of(c.urgent[0]) == "heartbeat"]:
            request = connection.look(connection.urgent)
            if request is not None:
                yield connection, request

    def answered(self, connection: Connection) -> None:
        """Its first urgent request, without a turn."""
        self.touched[connection.number] = connection
        connection.take(connection.urgent)
        self._leave(connection)

    def others(self) -> Iterator[tuple[Connection, Request]]:
        """Commands and questions, until their cost is a turn's; one at least."""
        self.spent_us = 0
        heap = [(c.served_us, number) for number, c in self._waiting.items() if c.others and not c.clogged]
        heapq.heapify(heap)
        while heap and self.spent_us < TURN_US:
            self._served_us, number = heap[0]
            connection = self.touched[number] = self._waiting[number]
            taken = connection.take(connection.others)
            price = 0 if taken is None else cost(taken[0].verb, taken[0].args, taken[1])
            self.spent_us += price
            connection.served_us = self._served_us + price
            if connection.others:
                heapq.heapreplace(heap, (connection.served_us, number))
            else:
                heapq.heappop(heap)
                self._leave(connection)
            if taken is not None:
                yield connection, taken[0]

    def _leave(self, connection: Connection) -> None:
        if not connection.waiting:
            self._waiting.pop(connection.number, None)

"""A seeded world that lasts for months: a server that drops its history, and clocks that are wrong for minutes or hours.

What is remembered, and for how long, is held against the time that has really passed, which only this world knows.
"""

from __future__ import annotations

from tests.sim.definitions import TASKS
from tests.sim.world import US, World
from wheelsched import At, Call
from wheelsched.model.nouns import to_datetime
from wheelsched.protocol.definition import given_from_api
from wheelsched.protocol.frames import encode_payload
from wheelsched.state.doubles import doubled

DAY, YEAR = 86_400, 365 * 86_400
WORK = Call(TASKS[0])
KEYED = {"given": given_from_api(WORK, None, {})[0], "payload": encode_payload((), {}), "key": "k", "namespace": "default"}


class Kept(World):
    """A server's keeper with a retention, and a client; time goes in days."""

    def __init__(self, retention_days=30, *, seed=1):
        super().__init__(seed)
        self.config.retention_us = self.engine.retention_us = retention_days * DAY * US
        self.spawn("pool")
        self.turn()

    def boot_up(self, proofs=None):
        super().boot_up(proofs)
        self.engine.retention_us = min(self.config.retention_us, 2**60)

    def turn(self):
        for _ in range(3):
            self.step()
            self.sync()
        for worker in self.workers:
            while worker.held:
                for _ in list(worker.held):
                    self.enter(worker)
                self.report(worker, picks=list(worker.held), outcome=1)
                self.step()
                self.sync()
            if not worker.asking and worker.id:
                self.lease(worker)
        self.step()
        self.sync()

    def days(self, n):
        for _ in range(round(n * 24)):
            self.pass_time(3_600 * US)
            self.turn()

    def ask(self, verb, **args):
        got = []
        self.request(self.client, verb, {**args, "rid": self.rng.randbytes(16)}, got.append)
        self.turn()
        (reply,) = got
        assert reply.error is None, reply.error
        return reply.result

    def put(self, name, schedule):
        given, param = given_from_api(WORK, schedule, {})
        return self.ask("put", name=name, given=given, param_us=param, payload=encode_payload((), {}))

    def records(self):
        """Of all runs: (job, nominal time, created)."""
        rows, after = [], None
        while True:
            page = self.keeper.runs_page(self.engine.state, {"after": after}, self.engine.running)
            columns = page["columns"]
            rows += zip(*(columns[name] for name in ("job", "scheduled_us", "created_us")), strict=True) if columns else []
            after = page["after"]
            if after is None:
                return rows

    def doubled(self):
        return doubled(self.engine.state, self.journal.history_blocks)


def at(world, minutes=10):
    return At(to_datetime(world.start_us + minutes * 60 * US))

"""Seeded stories of months: few jobs that are put again at each deploy, retention, wrong clocks, machines that are off.

`lasting(seed)` is one story. It holds what is forgotten against the time that has really passed.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from tests.sim.kept import DAY, KEYED, WORK, YEAR, Kept
from tests.sim.world import US
from wheelsched import At, Cron, Every, Manual
from wheelsched.model.errors import InvalidArgumentError
from wheelsched.model.nouns import KEY_TTL_US, REQUEST_TTL_US, JobState, to_datetime
from wheelsched.protocol.definition import given_from_api
from wheelsched.protocol.frames import encode_payload
from wheelsched.state import records
from wheelsched.state.history import Block, of_runs

HOUR_US, DAY_US = 3_600 * US, DAY * US
NAME_US = 31 * DAY_US  # after the last put or change
RENEWED_US = HOUR_US  # an unchanged put renews a name at most so often
WRONG = (25 * 3_600, 40 * DAY, YEAR)


class Months(Kept):
    """Knows what has really passed, and when each name was last of use."""

    def __init__(self, seed):
        self.true_us = 0
        self.touched: dict[bytes, int] = {}  # full name -> when it was last put or deleted
        self.kept: dict[bytes, int] = {}  # full name -> when a row of it last went to history
        self.requests: dict[bytes, int] = {}  # request id -> when it was decided
        self.read = 0  # history blocks
        self.counts: Counter = Counter()
        super().__init__(1, seed=seed)
        self.config.retention_us = self.engine.retention_us = self.rng.choice([1, 7, 31, 45]) * DAY_US

    def pass_time(self, us):
        super().pass_time(us)
        self.true_us += us

    def made_durable(self, bodies):
        for body in bodies:
            kind, f = records.decode(body)
            if kind == "FORGET":
                self.forgotten(f)
            elif kind == "REPLY":
                self.requests[f["rid"]] = self.true_us
        super().made_durable(bodies)

    def forgotten(self, f):
        """Nothing is forgotten before its time."""
        for row in f["job"].tolist():
            name = self.judge.names[row]
            put, kept = self.touched.get(name, 0), self.kept.get(name)
            assert self.true_us - put > NAME_US - RENEWED_US, f"{name} is forgotten {(self.true_us - put) / DAY_US:.1f} days after its last change"
            after = self.config.retention_us + DAY_US
            assert kept is None or self.true_us - kept >= after, f"{name} is forgotten {(self.true_us - kept) / DAY_US:.1f} days after its last run"
            self.counts["names forgotten"] += 1
        for rid in f["rid"]:
            assert self.true_us - self.requests.pop(rid) >= REQUEST_TTL_US, "an answer is forgotten too early"

    def check_acked(self):
        """History is dropped here, and runs with it."""

    def turn(self):
        super().turn()
        for number, data in of_runs(self.journal.history_blocks(self.read)):
            block = Block(data)
            names = block.names()
            self.kept.update(dict.fromkeys((names[i] for i in np.unique(block.jobs()).tolist()), self.true_us))
            self.read = number + 1


class Story:
    """Draws what happens in some months."""

    def __init__(self, seed):
        self.world = w = Months(seed)
        self.rng = r = w.rng
        w.spawn("pool")
        days = sorted(r.sample(range(1, 60), 4))
        dates = [At(to_datetime(w.start_us + d * DAY_US + r.randrange(24) * HOUR_US)) for d in days]
        self.jobs = {
            "once": (dates[0], {}), "later": (dates[2], {}), "dates": (dates[:3], {}), "few": (Every("12h"), {"max_runs": r.randint(1, 4)}),
            "until": (Every("1d"), {"end": to_datetime(w.start_us + days[1] * DAY_US)}), "manual": (Manual(), {}), "steady": (Every("8h"), {}),
        }
        if r.random() < 0.3:
            self.jobs["daily"] = (Cron("30 5 * * *"), {"end": to_datetime(w.start_us + 20 * DAY_US)})
        self.keyed = (-KEY_TTL_US, "")  # when the key was used, and its run

    def go(self, steps):
        """So many things, then a time in which nobody names a job any more."""
        actions = [self.deploy] * 3 + [self.delete, self.use_key, self.wrong_clock, self.wrong_start, self.off, self.crash]
        actions = [a for a in actions if self.rng.random() < 0.8]
        for _ in range(steps):
            if actions:
                self.rng.choice(actions)()
            self.wait(self.rng.choice([0.05, 0.5, 1, 3, 9]))
        self.check()

    def check(self):
        """One record of a scheduled time; a replay is the same."""
        w = self.world
        assert not w.doubled(), f"two records of one scheduled time: {w.doubled()}"
        w.check_replay()

    def wait(self, days):
        """Some days pass, in steps of hours."""
        w, left = self.world, round(days * DAY_US)
        while left:
            part = min(left, self.rng.choice([1, 6, 6]) * HOUR_US)
            w.pass_time(part)
            w.turn()
            left -= part

    def deploy(self):
        w = self.world
        for name in self.rng.sample(sorted(self.jobs), self.rng.randint(1, len(self.jobs))):
            schedule, policies = self.jobs[name]
            try:
                given, param = given_from_api(WORK, schedule, policies)
            except InvalidArgumentError:
                continue
            w.ask("put", name=name, given=given, param_us=param, payload=encode_payload((), {}))
            w.touched[f"default/{name}".encode()] = w.true_us
        self.check()

    def delete(self):
        w = self.world
        name = self.rng.choice(sorted(self.jobs))
        row = w.engine.state.find_job(f"default/{name}".encode())
        if row is not None and w.engine.state.jobs.gather(np.array([row], np.uint32))["state"][0] != JobState.DELETED:
            w.ask("delete", name=name)
            w.touched[f"default/{name}".encode()] = w.true_us

    def use_key(self):
        """The same key within its time is the same run."""
        w = self.world
        run = w.ask("enqueue", **KEYED)["id"]
        since, known = self.keyed
        assert w.true_us - since >= KEY_TTL_US or run == known, f"a key is forgotten after {(w.true_us - since) / HOUR_US:.1f} hours"
        if run != known:
            self.keyed = (w.true_us, run)

    # Clocks

    def meanwhile(self):
        """Somebody works while the clock is wrong."""
        for _ in range(self.rng.randint(1, 3)):
            self.world.pass_time(self.rng.choice([US, 61 * US, 300 * US, HOUR_US]))
            self.world.turn()
            if self.rng.random() < 0.6:
                self.rng.choice([self.deploy, self.delete, self.use_key])()

    def set(self, us):
        """Somebody sets the clock."""
        w = self.world
        if us >= 0:
            w.wall_us += us
            w.engine.missed_before_us = w.wall_us
        else:
            w.set_back(-us)
            w.inputs.append(w.clock_back())
        w.turn()

    def wrong_by(self):
        """How far ahead of the time a clock is, or behind."""
        return self.rng.choice(WRONG) * US * self.rng.choice([1, 1, -1])

    def wrong_clock(self):
        step = self.wrong_by()
        self.set(step)
        self.meanwhile()
        if self.rng.random() < 0.2:
            self.crash()
        self.set(-step)

    def wrong_start(self):
        step = self.wrong_by()
        self.restart(reboot=self.rng.random() < 0.7, down_us=self.rng.choice([US, HOUR_US, 5 * DAY_US]), back_us=-step)
        self.meanwhile()
        self.set(-step)

    def off(self):
        self.restart(reboot=True, down_us=self.rng.choice([2, 10, 50]) * DAY_US)
        self.meanwhile()

    def crash(self):
        self.restart(reboot=False, down_us=self.rng.choice([US, HOUR_US, 2 * DAY_US]))

    def restart(self, **how):
        self.world.crash(**how)
        self.world.spawn("pool")
        self.world.turn()


def lasting(seed, steps=30):
    """One story; what happened in it."""
    story = Story(seed)
    story.go(steps)
    return story.world.counts


__all__ = ["lasting"]

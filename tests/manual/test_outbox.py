"""The recipe of the manual for an outbox, as it stands there: one run for each row, wherever the relay or the server is killed."""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
from itertools import count
from pathlib import Path

import pytest

import wheelsched
from tests.rigs.engine import OK, Bench
from wheelsched import At, Call, Client, Enqueue, Job

RECIPES = Path(wheelsched.__file__).with_name("manual") / "recipes.md"
ROWS = "SELECT count(*) FROM outbox"


@pytest.fixture(scope="module")
def recipe():
    (code,) = re.findall(r"<!-- run by: tests/manual/test_outbox\.py -->\n\n```python\n(.*?)```", RECIPES.read_text(encoding="utf-8"), re.DOTALL)
    return code


@pytest.fixture
def shop(recipe, tmp_path, monkeypatch):
    """What the recipe defines, on a database with orders."""
    monkeypatch.chdir(tmp_path)
    with sqlite3.connect("shop.db") as db:
        db.execute("CREATE TABLE orders (item TEXT)")
    db.close()
    names = {"sqlite3": sqlite3, "json": json, "Enqueue": Enqueue, "Call": Call}
    exec(compile(recipe, "recipes.md", "exec"), names)
    yield names
    names["db"].close()


class Dies(Exception):
    """The relay is killed here."""


class Fragile:
    """A client and a database whose user dies after so many steps: a call to either is a step, and one that is just done is one too."""

    def __init__(self, db, client, steps):
        self.db, self.client, self.left = db, client, steps

    def step(self):
        self.left -= 1
        if self.left < 0:
            raise Dies

    def execute(self, *args):
        self.step()
        found = self.db.execute(*args)
        self.step()
        return found

    def executemany(self, *args):
        self.step()
        self.db.executemany(*args)
        self.step()

    def enqueue_many(self, calls):
        self.step()
        self.client.enqueue_many(calls)
        self.step()

    def __enter__(self):
        return self.db.__enter__()

    def __exit__(self, kind, *rest):
        if kind is None:
            try:
                self.step()
            except Dies as e:
                self.db.rollback()
                raise Dies from e
        return self.db.__exit__(kind, *rest)


def test_one_run_for_each_row_wherever_the_relay_dies(shop):
    sim, db, relay = Bench(), shop["db"], shop["relay"]
    deaths, items = 0, count()
    for steps in range(9):
        for _ in range(3):
            shop["order"](db, next(items))
        with pytest.raises(TypeError):  # no JSON: neither the order, which is written first, nor its task
            shop["order"](db, b"x")
        broken = Fragile(db, sim.client, steps)
        try:
            relay(broken, broken)
        except Dies:
            deaths += 1
        if steps % 2:
            sim.crash(down="25h" if steps == 5 else 0)
    assert deaths >= 6
    while relay(db, sim.client, limit=4):
        pass
    runs = sim.engine.state.runs
    payloads = sorted(runs.blobs(row)[0] for row in runs.slots())
    assert len(payloads) == len(set(payloads)) == next(items) == 27
    assert db.execute(ROWS).fetchone() == (0,)
    assert db.execute("SELECT count(*) FROM orders").fetchone() == (27,)


def test_jobs_with_an_instant_go_the_same_way(shop):
    """put_many in the middle, again at once, when the runs have ended, and after a restart weeks later."""
    sim = Bench()
    jobs = [Job(f"ship/{row}", Call("t", row), At(sim.now)) for row in range(3)]
    for down in (0, 0, "20d"):
        sim.client.put_many(jobs)
        sim.advance(1)
        sim.finish(sim.lease(), OK)
        sim.crash(down=down)
    sim.client.put_many(jobs)
    sim.advance("1h")
    assert sim.lease() == []
    assert sorted(r.job for r in sim.runs()) == ["ship/0", "ship/1", "ship/2"]


RELAY = """
import json, os, signal, sqlite3, sys
from wheelsched import Call, Client, Enqueue

class Dying(Client):
    def enqueue_many(self, calls):
        if where == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        super().enqueue_many(calls)
        if where == "between":
            os.kill(os.getpid(), signal.SIGKILL)

where = sys.argv[2]
{recipe}
while relay(db, Dying(sys.argv[1]), limit=3):
    pass
"""


@pytest.mark.slow
def test_a_relay_and_a_server_that_are_killed(shop, recipe, serving):
    for item in range(5):
        shop["order"](shop["db"], item)
    server = serving(workers=0)
    server.client()
    path = [str(Path(wheelsched.__file__).resolve().parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(path)}
    for where, left in (("before", 5), ("between", 5), ("nowhere", 0)):
        done = subprocess.run(
            [sys.executable, "-c", RELAY.format(recipe=recipe), server.socket, where],
            env=env, timeout=120, check=False, capture_output=True, text=True,
        )
        assert done.returncode == (0 if where == "nowhere" else -signal.SIGKILL), done.stderr
        assert shop["db"].execute(ROWS).fetchone() == (left,)
        if where == "between":
            server.end(signal.SIGKILL)
            server = serving(workers=0)
            server.client()
    with Client(server.socket) as ws:
        assert [r.job for r in ws.runs()] == ["~orders.ship"] * 5

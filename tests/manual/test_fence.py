"""The fence of the manual: what an attempt that has lost its run writes late is refused by the user's own database."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

import wheelsched
from wheelsched import Call, FencedError, current_run
from wheelsched.simulator.simulator import Simulator

RECIPES = Path(wheelsched.__file__).with_name("manual") / "recipes.md"


@pytest.fixture
def settle(tmp_path, monkeypatch):
    """The task as the manual shows it; what its `add_up` does is the test's."""
    code = re.search(r"<!-- run by: tests/manual/test_fence\.py -->\n\n```python\n(.*?)```", RECIPES.read_text(encoding="utf-8"), re.DOTALL)
    names: dict = {"__name__": "recipes"}
    exec(code[1], names)
    monkeypatch.chdir(tmp_path)
    with closing(sqlite3.connect("bank.db")) as db, db:
        db.execute("CREATE TABLE account (id INTEGER PRIMARY KEY, balance INTEGER, fence INTEGER NOT NULL DEFAULT 0)")
        db.execute("INSERT INTO account (id) VALUES (7)")
    return names["settle"]


def account():
    with closing(sqlite3.connect("bank.db")) as db:
        return db.execute("SELECT balance, fence FROM account").fetchone()


@pytest.mark.parametrize("late", ["after", "before"], ids=lambda x: f"the_late_one_writes_{x}_the_newer")
def test_an_attempt_that_has_lost_its_run_does_not_overwrite_a_newer_one(settle, late):
    """The first attempt loses its run while it adds up, and goes on all the same."""
    tokens, refused, run = [], [], None

    def add_up(_):
        tokens.append(current_run().token)
        mine = len(tokens)
        if mine == 1:
            sim.crash()  # its lease is gone; nobody tells this code
            if late == "after":
                sim.advance("1m")
        return mine

    def watched(number):
        try:
            return settle(number)
        except FencedError as e:
            refused.append(str(e))
            raise

    settle.__globals__["add_up"] = add_up
    with Simulator("2026-03-02T00:00:00Z", tasks={"bank.settle": watched}) as sim:
        run = sim.client.enqueue(Call("bank.settle", 7), retry=3)
        sim.advance("2m")
        assert [a.outcome for a in run.refresh().attempts] == ["lost", "succeeded"]
        assert tokens == sorted(set(tokens)) == [a.token for a in run.attempts]
    assert account() == (2, tokens[1]), "the newer attempt's balance stands"
    assert refused == (["a newer attempt has written this account"] if late == "after" else [])


def test_a_further_run_writes_again(settle):
    balances = iter((10, 20))
    settle.__globals__["add_up"] = lambda _: next(balances)
    with Simulator("2026-03-02T00:00:00Z", tasks={"bank.settle": settle}) as sim:
        for balance in (10, 20):
            run = sim.client.enqueue(Call("bank.settle", 7))
            sim.advance("1s")
            assert run.refresh().output == balance
            assert account() == (balance, run.token)

"""Listings of open runs walk them in the order of their creation, and a page looks at a bound of them."""

import random

import numpy as np
import pytest

from tests.rigs.engine import Bench
from wheelsched import Call
from wheelsched.journal.recover import recover
from wheelsched.state.creation import Created
from wheelsched.state.pages import runs_page
from wheelsched.state.readable import LOOKED_AT_MAX, TOLD_MAX
from wheelsched.state.state import State


@pytest.mark.parametrize("seed", range(5))
def test_t3_the_order_is_that_of_a_list_whatever_comes_and_goes(seed):
    rng = random.Random(seed)
    order, there, free, number = Created(), {}, list(range(6_000)), 0
    for _ in range(300):
        if rng.random() < 0.55 and len(free) > 400:
            rng.shuffle(free)
            new, free = free[: rng.randint(1, 400)], free[400:] + free[:0]
            again = rng.sample(sorted(there.values()), min(3, len(there)))  # rows that are lengthened
            batch = [*new, *again, *new[:2]]
            order.add(np.array(batch, np.uint32))
            for row in new:
                there[number] = row
                number += 1
        else:
            gone = rng.sample(sorted(there), rng.randint(0, len(there)))
            order.remove(np.array([there[n] for n in gone], np.uint32))
            free += [there.pop(n) for n in gone]
        rows, numbers = order.rows()
        assert dict(zip(numbers.tolist(), rows.tolist(), strict=True)) == there
        assert numbers.tolist() == sorted(there)
        start, most = rng.randint(-1, number), rng.randint(1, 2_000)
        for walk, wanted in ((order.after, [n for n in sorted(there) if n > start]), (order.before, [n for n in sorted(there, reverse=True) if n < start])):
            found, at = [], start
            while at is not None:
                rows, numbers, at = walk(at, most)
                assert len(rows) <= most
                assert [there[n] for n in numbers.tolist()] == rows.tolist()
                found += numbers.tolist()
            assert found == wanted


@pytest.fixture
def b():
    with Bench("2026-03-02T00:00:00Z") as bench:
        yield bench


def pages(b, **args):
    """Names of all pages of runs, and how many pages there were."""
    after, names, n = None, [], 0
    while n == 0 or after is not None:
        page = runs_page(b.engine.state, b.journal.history_blocks, {**args, "after": after}, b.engine.running, TOLD_MAX)
        names += page["columns"].get("id", [])
        after, n = page["after"], n + 1
    return names, n


def many(b, n):
    return [made.id for made in b.client.enqueue_many([Call("t", i) for i in range(n)])]


def test_t3_a_page_of_open_runs_looks_at_a_bound_of_them(b, monkeypatch):
    ids = many(b, 3 * LOOKED_AT_MAX)
    looked = []
    table = b.engine.state.runs
    real = type(table).gather

    class Watched:
        def __getattr__(self, name):
            return getattr(table, name)

        def gather(self, rows):
            looked.append(len(rows))
            return real(table, rows)

        def slots(self, *_):
            raise AssertionError("the whole table is read")

    monkeypatch.setattr(b.engine.state, "runs", Watched())
    for args in ({}, {"newest": True}, {"state": "running"}, {"state": "running", "newest": True}, {"job": "no/*"}):
        looked.clear()
        page = runs_page(b.engine.state, b.journal.history_blocks, args, b.engine.running, TOLD_MAX)
        assert 0 < sum(looked) <= LOOKED_AT_MAX + TOLD_MAX + 1
        assert page["after"] is not None
    monkeypatch.undo()
    assert pages(b)[0] == ids
    assert pages(b, newest=True)[0] == ids[::-1]
    assert pages(b, state="running") == ([], 3)


def test_t3_a_listing_goes_on_after_a_restart(b):
    first = many(b, TOLD_MAX)
    b.advance("1s")
    second = many(b, 2 * TOLD_MAX)
    for newest in (False, True):
        args = {"newest": newest}
        page = runs_page(b.engine.state, b.journal.history_blocks, args, b.engine.running, 100)
        again = recover(b.journal)
        again.meta.generation += 1
        rest, after = [], page["after"]
        while after is not None:
            more = runs_page(again, b.journal.history_blocks, {**args, "after": after}, b.engine.running, TOLD_MAX)
            rest += more["columns"].get("id", [])
            after = more["after"]
        assert {*page["columns"]["id"], *rest} == {*first, *second}, "none is left out"
        assert len(rest) == len(set(rest))


def test_t3_the_order_is_in_no_snapshot_and_no_digest(b):
    ids = many(b, 50)
    before = b.engine.state.digest()
    pieces = [part for piece in b.engine.state.copy(2**20) for part in piece]
    loaded = State.load(iter(pieces))
    assert loaded.digest() == before
    rows, _ = loaded.created.rows()
    assert {loaded.runs.text_id(int(row)) for row in rows} == set(ids)
    assert sorted(rows.tolist()) == loaded.runs.slots()


def test_t3_a_turn_counts_only_the_changes_that_are_new(b, monkeypatch):
    from wheelsched import Manual
    from wheelsched.state.changelog import Changes

    for i in range(50):
        b.client.put(f"a/{i}", Call("t"), Manual())
    counted = []
    real = Changes.__len__
    monkeypatch.setattr(Changes, "__len__", lambda self: counted.append(1) or real(self))
    b.client.put("a/x", Call("t"), Manual())
    b._step([])
    b._step([])
    assert len(counted) == 1
    assert len(b.engine.state.changes) == 51
    monkeypatch.undo()
    b.advance("2m")
    assert len(b.engine.state.changes) == 0
    assert [c.what for c in b.client.history("a/3")] == ["create"]

"""Listings in columns tell what the same listings in rows tell: of history, of the table, of what was skipped, in each order and filter."""

from __future__ import annotations

import asyncio
import random
import sys
from datetime import UTC, datetime

import numpy as np
import pytest

from tests.rigs.engine import FAILED, OK, Bench, fold
from wheelsched import Call, Catchup, Every, FailedPreconditionError, InternalError, InvalidArgumentError
from wheelsched.client.columns import NONE_US, PackedPages
from wheelsched.client.verbs import Pages
from wheelsched.state import pages

START = "2026-03-02T00:00:00Z"
INSTANTS = ("scheduled", "created", "queued", "started", "ended", "next")


def us(moment):
    return NONE_US if moment is None else round((moment - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() * 1_000_000)


def as_row(run):
    """What a row of the columns has, from a run of a listing in rows."""
    return {
        "id": run.id, "job": run.job, "task": run.task, "queue": run.queue, "state": run.state, "trigger": run.trigger,
        "disposition": run.disposition, "attempt": run.attempt, "missed": run.missed, "late": run.late, "snoozed": run.snoozed,
        "worker": int(run.worker[1:]) if run.worker else 0, "count": run.count or 0, "until_us": us(run.until),
        **{f"{what}_us": us(getattr(run, f"{what}_at")) for what in INSTANTS},
    }


def rows_of(columns):
    names = [name for name in columns if name != "reason"]  # rows also tell the reason that is in a result
    return [dict(zip(names, row, strict=True)) for row in zip(*(columns[name].tolist() for name in names), strict=True)]


def same(b, *args, **filters):
    """Both listings; how many rows."""
    want = [as_row(run) for run in b.client.runs(*args, **filters)]
    got = rows_of(b.client.runs(*args, **filters, columns=True))
    assert got == want, (args, filters)
    return len(want)


@pytest.fixture(scope="module")
def b():
    """Runs of each kind: in two blocks of history and in the table; skipped, dead, waiting, running."""
    with Bench(START) as bench:
        bench.hello()
        bench.put("a", Every("60s"), queue="q", retry=1)
        bench.put("b/c", Every("90s"), Call("t", 2), retry=1)
        bench.put("busy", Every("30s"), retry=1, late_after="10s")
        for turn in range(6):
            bench.advance("60s")
            held = bench.lease()
            bench.finish(held[: turn + 1], OK)
            bench.finish(held[turn + 1 :], FAILED)
            if turn == 2:
                fold(bench)
        fold(bench)
        bench.client.enqueue(Call("t", 3), delay="1h")
        bench.client.pause("b/c")
        bench.put("d", Every("60s"))
        bench.advance("120s")
        held = bench.lease(n=3)
        run_id, token, _ = held[0]
        beat = {"id": run_id, "token": np.array([token], "<i8").tobytes(), "started": b"\1", "progress": []}
        bench.call(50, ("heartbeat", beat))
        bench.engine.state.check()
        yield bench


FILTERS = [
    {}, {"skipped": True}, {"newest": True}, {"newest": True, "skipped": True}, {"state": "dead"}, {"state": "succeeded", "newest": True},
    {"state": "skipped"}, {"queue": "q"}, {"task": "t"}, {"namespace": "b"}, {"late": True}, {"limit": 3}, {"limit": 7, "newest": True},
    {"since": "2026-03-02T00:02:00Z", "until": "2026-03-02T00:05:00Z"}, {"job": "b/*"}, {"job": "nothing"}, {"job": "a", "skipped": True},
]


@pytest.mark.parametrize("filters", FILTERS, ids=str)
@pytest.mark.parametrize("most", [1, 2, 5, 16_384])
def test_columns_tell_what_the_rows_tell(b, monkeypatch, filters, most):
    """Pages of any size; a block of which all is wanted goes out as it is stored."""
    real = pages.PackedPage.__init__
    monkeypatch.setattr(pages.PackedPage, "__init__", lambda self, limit: real(self, min(limit, most)))
    n = same(b, **filters)
    assert n or filters.get("job") == "nothing"


def test_there_is_one_of_each_kind(b):
    states = set(b.client.runs(skipped=True, columns=True)["state"])
    assert states >= {"succeeded", "dead", "skipped", "scheduled", "queued", "leased", "running"}, states
    assert len(list(b.journal.history_blocks())) >= 2


def test_equal_names_are_one_object_and_absent_instants_are_not_a_time(b):
    columns = b.client.runs(columns=True)
    for name in ("job", "task", "queue"):
        assert len({id(x) for x in columns[name]}) == len(set(columns[name]))
    ended = columns["ended_us"].view("datetime64[us]")
    assert np.isnat(ended).any()
    assert not np.isnat(ended).all()
    assert columns.rows == len(columns["id"])


def test_a_listing_of_nothing_has_its_columns(b):
    full, empty = b.client.runs(columns=True), b.client.runs("nothing", columns=True)
    assert list(empty) == list(full)
    assert {name: column.dtype for name, column in empty.items()} == {name: column.dtype for name, column in full.items()}
    assert empty.rows == 0
    assert list(b.client.jobs("nothing", columns=True)) == list(b.client.jobs(columns=True))


@pytest.mark.parametrize("args", [{}, {"state": "paused"}, {"match": "b/*"}, {"limit": 2}], ids=str)
def test_jobs_in_columns_tell_what_the_rows_tell(b, args):
    want = [
        {"name": j.name, "task": j.task, "queue": j.spec["queue"], "state": j.state, "next_us": us(j.next_at), "version": j.version,
         "active": j.active, "created_us": us(j.created_at), "updated_us": us(j.updated_at)}
        for j in b.client.jobs(**args)
    ]
    columns = b.client.jobs(**args, columns=True)
    columns.pop("cursor_us")
    names = list(columns)
    got = [dict(zip(names, row, strict=True)) for row in zip(*(columns[name].tolist() for name in names), strict=True)]
    assert got == want
    assert want


def test_asyncio_has_them_too(b):
    async def main():
        ws = b.async_client
        return await ws.runs(columns=True), await ws.jobs(columns=True), await ws.runs().columns()

    runs, jobs, again = asyncio.run(main())
    assert rows_of(runs) == rows_of(b.client.runs(columns=True)) == rows_of(again)
    assert jobs["name"].tolist() == b.client.jobs(columns=True)["name"].tolist()


def test_pandas(b):
    pytest.importorskip("pandas")
    frame = b.client.runs().to_pandas()
    assert len(frame) == b.client.runs(columns=True).rows
    assert str(frame["scheduled_at"].dtype).startswith("datetime64[us, UTC")
    assert frame["ended_at"].isna().any()
    assert "scheduled_us" not in frame


def test_without_pandas_it_says_what_to_do(b, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(FailedPreconditionError, match="pip install pandas"):
        b.client.runs().to_pandas()


def test_a_listing_without_columns_says_so(b):
    with pytest.raises(InvalidArgumentError, match="no columns"):
        b.client.dead().columns()


def test_many_runs_in_many_blocks():
    rng = random.Random(20261201)
    with Bench(START) as b:
        b.hello()
        b.put("many", Every("1s"), catchup=Catchup("all", max=3_000), overlap="allow")
        b.crash(down="2500s")
        b.hello()
        for _ in range(30):
            b.advance("1s")
            held = b.lease(n=200)
            b.finish(held, rng.choice([OK, OK, FAILED]))
            if rng.random() < 0.3:
                fold(b)
        assert same(b) > 2_000
        assert same(b, newest=True, limit=1_500) == 1_500


@pytest.mark.parametrize("damage", [
    {"parts": [{"n": 1}]}, {"parts": [{"n": "x"}]}, {"parts": [7]}, {"parts": None}, {"columns": {}}, {},
    {"parts": [{"n": 2, "columns": {}, "job": b"", "spec": b"", "names": b"", "tasks": [], "queues": [], "id": b""}]},
], ids=repr)
def test_malformed_answers_have_one_error(damage):
    listing = PackedPages(Pages("runs", {}, None, dict))
    with pytest.raises(InternalError):
        listing.columns(listing.next_ask().decode({"after": None, **damage}))

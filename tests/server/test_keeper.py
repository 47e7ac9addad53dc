"""What the loop keeps beside the records, on a journal that is told when to write: listings, storage, retention, headroom."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np
import pytest

from tests.rigs.clock import Shift
from tests.rigs.engine import FAILED, Bench, at
from tests.rigs.server import wait_for
from wheelsched import Call, Cron, Every
from wheelsched.engine.turn import Effects
from wheelsched.journal.lmdb_journal import HEADROOM_BYTES, Batch, LmdbJournal
from wheelsched.journal.memory import LAST, Usage
from wheelsched.model.errors import CorruptJournalError
from wheelsched.server.config import Config
from wheelsched.server.keeper import Keeper
from wheelsched.state.history import Block, opener, pack

START = "2026-03-02T00:00:00Z"


@dataclass
class ToldJournal:
    """A journal whose disk a test fills: what was submitted is on disk when `land` says so."""

    on_disk: dict[int, bytes] = field(default_factory=dict)
    next_block: int = 0
    seq: int = 0
    durable: int = 0
    state: str = "ok"
    looks: int = 0

    def history_range(self):
        return (min(self.on_disk, default=0), max(self.on_disk, default=-1) + 1)

    def history_blocks(self, start=0, *, reverse=False, last=LAST):
        numbers = sorted(n for n in self.on_disk if start <= n <= last)
        yield from ((n, self.on_disk[n]) for n in (reversed(numbers) if reverse else numbers))

    def submit(self, batch):
        self.seq += max(1, len(batch.records)) if batch.records else 0
        return self.seq

    def poll(self):
        return self.durable

    def usage(self):
        self.looks += 1
        return Usage(map_used_bytes=1, free_bytes=1 << 20, live_bytes=1, state=self.state)


def keeper_of(journal, **config):
    state = SimpleNamespace(trail=SimpleNamespace(blocks=0), meta=SimpleNamespace(at_us=0, seq=0), elapsed=SimpleNamespace(us=0, begun_us=0))
    return Keeper(journal, state, Config(data="d", socket="s", **config))


def waiting(keeper, *numbers):
    for number in numbers:
        keeper._unwritten.append((number, number, b"block %d" % number))


def test_t9_a_snapshot_that_finds_no_memory_is_given_up_and_tried_later():
    """Death in the middle of a commit is the other choice; the journal is whole without a snapshot."""
    def copy(_):
        yield [b"S"]
        raise MemoryError

    journal, dropped, batches = ToldJournal(), [], []
    keeper = keeper_of(journal, snapshot_bytes=1 << 20)
    keeper.state.copy, keeper.state.copy_drop = copy, lambda: dropped.append(1)
    real = journal.submit
    journal.submit = lambda batch: batches.append(batch) or real(batch)
    for n, size in enumerate((2 << 20, 1, 1, 256 << 20)):
        keeper.submit(Effects(records=[bytes(size)], seq=n + 1))
    assert [(b.snapshot, b.snapshot_drop) for b in batches] == [([b"S"], False), ([], True), ([], False), ([b"S"], False)]
    assert dropped == [1]


def test_the_newest_block_is_listed_before_it_is_on_disk():
    journal = ToldJournal({n: b"block %d" % n for n in range(5)})
    keeper = keeper_of(journal)
    waiting(keeper, 5)
    assert [n for n, _ in keeper.blocks(reverse=True)] == [5, 4, 3, 2, 1, 0]
    assert [n for n, _ in keeper.blocks()] == [0, 1, 2, 3, 4, 5]


def test_a_block_that_is_on_disk_and_not_yet_known_to_be_is_listed_once():
    journal = ToldJournal({n: b"block %d" % n for n in range(6)})
    keeper = keeper_of(journal)
    waiting(keeper, 4, 5, 6)
    assert [n for n, _ in keeper.blocks(reverse=True)] == [6, 5, 4, 3, 2, 1, 0]
    assert [n for n, _ in keeper.blocks()] == [0, 1, 2, 3, 4, 5, 6]
    assert [n for n, _ in keeper.blocks(reverse=True, last=5)] == [5, 4, 3, 2, 1, 0]
    assert [n for n, _ in keeper.blocks(5)] == [5, 6]


def test_a_burst_is_looked_at_before_its_second_is_over():
    journal = ToldJournal()
    keeper = keeper_of(journal, reserve_bytes=1 << 20)
    keeper.full(0)
    assert journal.looks == 1
    keeper.full(1)
    assert journal.looks == 1
    keeper.submit(Effects(records=[b"x" * (1 << 16)], seq=1))
    keeper.full(2)
    assert journal.looks == 2


def test_storage_is_looked_at_once_a_second_otherwise():
    journal = ToldJournal()
    keeper = keeper_of(journal, reserve_bytes=1 << 30)
    for us in (0, 999_999, 1_000_000, 1_000_001):
        keeper.full(us)
    assert journal.looks == 2


@pytest.fixture
def b():
    with Bench(START) as bench:
        bench.hello()
        yield bench


def test_a_block_ends_with_its_latest_run(b):
    b.client.enqueue(Call("t", 1), retry=1)
    b.client.enqueue(Call("t", 1), retry=1)
    first, second = b.lease(n=2)
    b.finish([first])
    b.advance(5)
    b.finish([second], FAILED)
    state = b.engine.state
    rows = [state.find_run(bytes.fromhex(r.id)) for r in b.runs("~t")]
    block = Block(pack(state, np.array(rows, np.uint32)))
    assert block.ended_us == b.now_us


def test_a_block_is_read_once_for_the_pages_of_a_listing(b):
    run = b.client.enqueue(Call("t", 1), retry=1)
    b.finish(b.lease())
    state = b.engine.state
    data, opened = pack(state, np.array([state.find_run(bytes.fromhex(run.id))], np.uint32)), opener()
    assert opened(data) is opened(bytes(bytearray(data)))


def test_the_runs_between_two_instants_have_both_ends(b):
    b.put(schedule=Cron("0 * * * *"), overlap="allow")
    b.advance("3h")
    b.finish(b.lease())
    state = b.engine.state
    rows = [state.find_run(bytes.fromhex(r.id)) for r in b.runs("j")]
    block = Block(pack(state, np.array(rows, np.uint32)))
    us = [int(at(f"2026-03-02T0{h}:00").timestamp() * 1e6) for h in (1, 2, 3)]
    name = b"default/j"
    assert sorted(block.runs_between(name, us[0], us[2])) == us
    assert sorted(block.runs_between(name, us[0], us[0])) == us[:1]
    assert sorted(block.runs_between(name, us[2], us[2] + 5)) == us[2:]
    assert sorted(block.runs_between(name, us[0] + 1, us[2] - 1)) == us[1:2]
    assert block.runs_between(name, us[2] + 1, us[2] + 9) == block.runs_between(name, 0, us[0] - 1) == {}


def test_a_backfill_makes_no_run_again_that_history_has(b):
    b.put(schedule=Cron("0 * * * *"), overlap="allow")
    b.advance("2h")
    b.finish(b.lease())
    b.advance("2h")  # folded meanwhile
    b.finish(b.lease())
    before = [(r.id, r.created_at) for r in b.runs("j")]
    b.client.backfill("j", at("2026-03-02T01:00"), at("2026-03-02T02:00"))
    assert [(r.id, r.created_at) for r in b.runs("j")] == before


# On disk


def test_a_directory_put_back_to_another_record_of_the_same_number_is_refused(tmp_path):
    path = tmp_path / "data"
    with LmdbJournal.open(path, reserve_bytes=0) as j:
        j.append(Batch(records=[b"one"]))
        j.backup(tmp_path / "older")
        j.append(Batch(records=[b"two"]))
    position = (path / "position").read_bytes()
    with LmdbJournal.open(tmp_path / "older", reserve_bytes=0, create=False) as j:
        j.append(Batch(records=[b"another"]))
    for name in ("data.mdb",):
        (path / "journal" / name).write_bytes((tmp_path / "older" / "journal" / name).read_bytes())
    assert (path / "position").read_bytes() == position
    with pytest.raises(CorruptJournalError, match="older copy"):
        LmdbJournal.open(path, reserve_bytes=0)


def test_dropping_history_leaves_the_file_longer_than_its_pages(tmp_path):
    with LmdbJournal.open(tmp_path / "data", reserve_bytes=0) as j:
        j.append(Batch(records=[b"a first commit sweeps"]))
        j.append(Batch(records=[b"r"], history=[bytes([n]) * 1_000_000 for n in range(30)]))
        data = tmp_path / "data" / "journal" / "data.mdb"
        pages = (j._env.info()["last_pgno"] + 1) * j._env.stat()["psize"]
        assert data.stat().st_size < pages + HEADROOM_BYTES
        j.append(Batch(drop_history=4))
        assert data.stat().st_size >= pages + HEADROOM_BYTES


# Starts


@pytest.mark.slow
def test_a_second_start_with_hold_does_not_begin_the_hold_anew(serving):
    first = serving("--hold", workers=0)
    since = first.client().stats()["held_since_us"]
    first.end()
    second = serving("--hold", workers=0)
    stats = second.client().stats()
    assert (stats["held"], stats["held_since_us"]) == (True, since)


@pytest.mark.slow
def test_a_start_with_a_clock_that_stays_behind_goes_on_from_it(serving, short_tmp, monkeypatch):
    """It waits 10 minutes for the clock, which is cut short here, and then counts as a clock that was set back."""
    shift = Shift(short_tmp)
    shift.set(86_400)
    first = serving(env=shift.env)
    ws = first.client()
    ws.put("tick", Call("t.echo", 1), Every("500ms", anchor="2020-01-01T00:00:00Z"))
    wait_for(lambda: len(list(ws.runs("tick"))) >= 2)
    ahead = min(run.scheduled_at for run in ws.runs("tick"))
    first.end()
    impatient = short_tmp / "impatient"
    impatient.mkdir()
    (impatient / "sitecustomize.py").write_text("from wheelsched.server import boot\nboot.CLOCK_WAIT_US = 0\n")
    second = serving(paths=(str(impatient),))
    ws = second.client()
    wait_for(lambda: any(run.scheduled_at < ahead for run in ws.runs("tick")))
    assert "behind the last record" in second.log.read_text()
    shift.map.close()

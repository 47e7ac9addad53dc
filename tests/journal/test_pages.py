"""The look at the pages before LMDB has them: flipped bits and zeroed pages over many copies, none silent, none that destroys."""

from __future__ import annotations

import random
import shutil

import numpy as np
import pytest

from wheelsched.journal import store
from wheelsched.journal.directory import read_extent
from wheelsched.journal.lmdb_journal import Batch, LmdbJournal, page_findings
from wheelsched.journal.pages import Walk, walk_pages
from wheelsched.model.errors import CorruptJournalError

PAGE = 4096


def build(path, seed=1, commits=12):
    """Records, history and a snapshot, of which much was trimmed: a list of free pages with several entries, some of them long."""
    rng = random.Random(seed)
    with LmdbJournal.open(path, reserve_bytes=0) as j:
        for _ in range(commits):
            j.append(Batch(records=[rng.randbytes(rng.choice([40, 900, 9_000])) for _ in range(4)], history=[rng.randbytes(700)] * 2))
        j.append(Batch(snapshot_begin=j.last_seq, snapshot=[rng.randbytes(9_000)] * 5, snapshot_end=True, trim_to=j.last_seq - 8))
        for _ in range(3):
            j.append(Batch(records=[b"x"], drop_history=commits))
    return path / "journal" / "data.mdb"


@pytest.fixture(scope="module")
def victim(tmp_path_factory):
    return build(tmp_path_factory.mktemp("victim") / "data")


def free_list_pages(data):
    """The pages of the tree of free pages, its long values included."""
    walk = Walk(data, read_extent(data).page_bytes)
    walk.free_list()
    walk.close()
    return [int(n) for n in np.flatnonzero(walk.live) if n > 1]


def judged(data, raw, at, byte):
    """Write one byte; what the look says, and what lmdb's own verifier says. The file is as before afterwards."""
    with data.open("r+b") as f:
        f.seek(at)
        f.write(bytes([byte]))
    try:
        ours = walk_pages(data, PAGE)
        theirs = page_findings(data)
    finally:
        with data.open("r+b") as f:
            f.seek(at)
            f.write(raw[at : at + 1])
    return ours, theirs


def test_a_healthy_file_has_no_findings(tmp_path):
    for seed in range(4):
        data = build(tmp_path / f"d{seed}", seed, 4 * seed + 1)
        assert walk_pages(data, PAGE) == []
        assert page_findings(data) == []


@pytest.mark.slow
def test_t7_every_flipped_bit_of_the_free_list_is_seen_or_harmless(victim):
    raw = victim.read_bytes()
    rng = random.Random(7)
    pages = free_list_pages(victim)
    assert pages
    seen = harmless = 0
    for page in pages:
        for at in range(page * PAGE, (page + 1) * PAGE):
            if rng.random() > (0.15 if raw[at] else 0.003):  # most of a page is empty
                continue
            ours, theirs = judged(victim, raw, at, raw[at] ^ 1 << rng.randrange(8))
            assert bool(ours) == bool(theirs), (page, at - page * PAGE, ours, theirs)
            seen += bool(ours)
            harmless += not ours
    assert seen > 10, (seen, harmless)


@pytest.mark.slow
def test_t7_a_start_refuses_it_and_changes_nothing(victim, tmp_path):
    """Also a page that is in range, that is there once, and that is no root: only a look at all pages in use can tell."""
    raw = victim.read_bytes()
    walk = Walk(victim, PAGE)
    assert walk.look() == []
    free = set(np.flatnonzero(walk.free).tolist())
    walk.close()
    refused = 0
    for number in sorted(free):
        for bit in range(6):
            other = number ^ 1 << bit
            at = next((at for page in free_list_pages(victim) for at in range(page * PAGE, (page + 1) * PAGE, 2)
                       if int.from_bytes(raw[at : at + 8], "little") == number), None)
            if at is None or other in free or refused > 20:
                continue
            path = tmp_path / "copy"
            shutil.copytree(victim.parent.parent, path)
            data = path / "journal" / "data.mdb"
            changed = bytearray(raw)
            changed[at : at + 8] = other.to_bytes(8, "little")
            data.write_bytes(changed)
            if page_findings(data):
                with pytest.raises(CorruptJournalError, match="admin verify"):
                    LmdbJournal.open(path, reserve_bytes=0)
                assert data.read_bytes() == changed
                refused += 1
            shutil.rmtree(path)
    assert refused > 10


def test_t7_zeroed_pages_are_refused_in_words(victim, tmp_path):
    raw = victim.read_bytes()
    walk = Walk(victim, PAGE)
    walk.look()
    live = walk.live.copy()
    heads = [n for n in range(2, len(live)) if live[n] and int.from_bytes(raw[n * PAGE : n * PAGE + 8], "little") == n]
    walk.close()
    for number in heads:
        ours, _ = judged(victim, raw, 0, raw[0])
        assert ours == []
        changed = raw[: number * PAGE] + bytes(PAGE) + raw[(number + 1) * PAGE :]
        data = tmp_path / "data.mdb"
        data.write_bytes(changed)
        assert walk_pages(data, PAGE), number
    path = tmp_path / "copy"
    shutil.copytree(victim.parent.parent, path)
    (path / "journal" / "data.mdb").write_bytes(raw[: heads[-1] * PAGE] + bytes(PAGE) + raw[(heads[-1] + 1) * PAGE :])
    with pytest.raises(CorruptJournalError, match="admin verify"):
        LmdbJournal.open(path, reserve_bytes=0)


@pytest.mark.slow
@pytest.mark.parametrize("flips", [300, pytest.param(1_500, marks=pytest.mark.nightly)])
def test_t7_flips_anywhere_in_the_structure_agree_with_the_second_opinion(victim, flips):
    """Heads of pages, pointers and entries of all tables. What only the second opinion finds is the order of keys."""
    raw = victim.read_bytes()
    rng = random.Random(8)
    for _ in range(flips):
        page = rng.randrange(2, len(raw) // PAGE)
        at = page * PAGE + rng.randrange(160)
        ours, theirs = judged(victim, raw, at, raw[at] ^ 1 << rng.randrange(8))
        assert bool(ours) == bool(theirs) or all("order" in text for text in theirs), (page, at % PAGE, ours, theirs)


def test_t7_a_long_history_is_looked_at_in_the_background(tmp_path, monkeypatch):
    monkeypatch.setattr(store, "HISTORY_BYTES", 1 << 16)
    data = build(tmp_path / "data", commits=40)
    path = data.parents[1]
    assert read_extent(data).bytes_needed > 1 << 17
    with LmdbJournal.open(path, reserve_bytes=0) as j:
        for _ in range(30):
            j.append(Batch(records=[b"y"], history=[b"h" * 700] * 40))
    with LmdbJournal.open(path, reserve_bytes=0) as j:
        assert j._looking is not None
        told = []
        j._on_damage = told.append
        j.append(Batch(records=[b"z"]))  # commits go on meanwhile
        j._looking.join()
        assert told == []
        assert j.verify() == []
    with LmdbJournal.open(path, reserve_bytes=0) as j:
        j._looking.join()
        root = int(Walk(data, PAGE).names()["history"]["root"])
    changed = bytearray(data.read_bytes())
    changed[root * PAGE + 8 : root * PAGE + 16] = bytes(8)  # the head of the table's root
    data.write_bytes(changed)
    found = []
    monkeypatch.setattr("wheelsched.journal.lmdb_journal.end_damaged", found.append)
    j = LmdbJournal.open(path, reserve_bytes=0)
    j._looking.join()
    j.close()
    assert len(found) == 1
    assert "the table history" in found[0].message
    with pytest.raises(CorruptJournalError, match="the table history"):
        monkeypatch.setattr(store, "HISTORY_BYTES", 1 << 30)
        LmdbJournal.open(path, reserve_bytes=0)

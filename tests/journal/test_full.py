"""A full disk and a full map: what is refused, what goes on, and that no server ends by it."""

from __future__ import annotations

import os
import subprocess
from itertools import pairwise

import pytest

from tests.rigs.server import wait_for
from wheelsched import At, Call, Job
from wheelsched.journal.ending import why_failed
from wheelsched.journal.lmdb_journal import Batch, LmdbJournal
from wheelsched.journal.memory import MemoryJournal, Usage
from wheelsched.model.errors import StorageFullError
from wheelsched.server.config import load
from wheelsched.server.keeper import Keeper
from wheelsched.server.storage import Storage
from wheelsched.state.state import State

MIB = 1 << 20
LATER = At("2099-01-01T00:00:00Z")


@pytest.fixture
def disk(short_tmp):
    """Makes the data directory of `serving` a file system of its own, of so many MiB."""
    data = short_tmp / "data"

    def make(size):
        data.mkdir(mode=0o700)
        option = f"size={size}m,mode=0700"
        if os.geteuid() or subprocess.run(["mount", "-t", "tmpfs", "-o", option, "wsfull", data], capture_output=True, check=False).returncode:
            pytest.skip("mount isn't allowed here")
        return data

    yield make
    if data.is_mount():
        subprocess.run(["umount", "-l", data], check=True)


@pytest.fixture
def small(serving, short_tmp):
    """Starts a server with a small reserve."""

    def start(reserve, map_size=None, workers=0):
        (short_tmp / "c.toml").write_text(f"reserve_bytes = {reserve}\n" + (f"map_size = {map_size}\n" if map_size else ""))
        return serving("--config", str(short_tmp / "c.toml"), workers=workers)

    return start


def fill(ws, first=0, size=2_000):
    """Put jobs until the storage is full; how many, and what it said."""
    made = first
    while True:
        try:
            ws.put_many([Job(f"j{made + i}", Call("t.echo", "x" * size), LATER) for i in range(50)])
        except StorageFullError as e:
            return made, str(e)
        made += 50


def stuff(data, name="fill"):
    """Take all that is left of the disk."""
    with (data / name).open("wb", buffering=0) as file:
        try:
            while file.write(bytes(4096)):
                pass
        except OSError as e:
            assert e.errno == 28


@pytest.mark.slow
def test_t6_a_full_disk_ends_no_server_however_much_is_deleted(disk, small):
    data = disk(24)
    server = small(4 * MIB)
    ws = server.client()
    made, said = fill(ws)
    assert made > 1_000
    assert "free on the disk of" in said
    assert "until 8.0 MiB are free" in said
    refused = ""
    for number in range(made):
        try:
            ws.delete(f"j{number}")
        except StorageFullError as e:
            refused = str(e)
            break
    assert server.process.poll() is None, server.log.read_text()
    assert not refused or "kept for the ends of runs" in refused
    subprocess.run(["mount", "-o", "remount,size=64m", data], check=True)
    wait_for(lambda: ws.stats()["storage"]["state"] == "ok")
    ws.put("new", Call("t.echo"), LATER)
    assert server.end() == 0


def test_t6_who_takes_the_reserve_is_named(disk, small):
    data = disk(24)
    server = small(4 * MIB)
    ws = server.client()
    ws.put("a", Call("t.echo", 1), LATER)
    stuff(data)
    wait_for(lambda: ws.stats()["storage"]["why"])
    stuff(data, "more")  # what the reserve had
    wait_for(lambda: "kept for the ends of runs" in ws.stats()["storage"]["why"])
    with pytest.raises(StorageFullError, match="kept for the ends of runs"):
        ws.pause("a")
    assert server.process.poll() is None
    (data / "fill").unlink()
    (data / "more").unlink()
    wait_for(lambda: ws.stats()["storage"]["state"] == "ok")
    ws.pause("a")


@pytest.mark.slow
def test_f4_a_start_on_a_full_disk_gives_up_the_reserve_first(disk, small):
    data = disk(40)
    server = small(8 * MIB, workers=1)
    ws = server.client()
    ws.put("a", Call("t.echo", 1), LATER)
    run = ws.enqueue(Call("t.echo", 5), delay="3s")
    assert server.end() == 0
    stuff(data)
    server = small(8 * MIB, workers=1)
    ws = server.client()
    with pytest.raises(StorageFullError):
        ws.put("b", Call("t.echo", 1), LATER)
    assert ws.pause("a").state == "paused"
    ws.hold()
    assert ws.run(run.id).id == run.id
    assert "reserve" not in {p.name for p in data.iterdir()}
    (data / "fill").unlink()
    wait_for(lambda: ws.stats()["storage"]["state"] == "ok")
    ws.release()
    assert ws.enqueue(Call("t.echo", 6)).result(timeout=60) == 6
    assert server.end() == 0


@pytest.mark.parametrize("mib", [2, pytest.param(16, marks=pytest.mark.slow), pytest.param(64, marks=pytest.mark.slow)])
def test_t6_a_full_map_ends_no_server_and_it_starts_again(small, mib):
    server = small(2 * MIB, map_size=mib * MIB)
    ws = server.client()
    made, said = fill(ws, size=4_000 if mib < 64 else 40_000)
    assert "left in the map (map_size), and space on the disk doesn't help" in said
    for number in range(min(made, 2_000)):
        try:
            ws.delete(f"j{number}")
        except StorageFullError as e:
            assert "kept for the ends of runs" in str(e)
            break
    assert server.process.poll() is None
    assert server.end() == 0
    server = small(2 * MIB, map_size=2 * mib * MIB)
    ws = server.client()
    ws.put("new", Call("t.echo"), LATER)
    assert server.end() == 0
    with LmdbJournal.open(server.folder / "data", read_only=True) as j:
        assert j.verify() == []


def usage(room, kept=4 * MIB, state="full", short="disk", snapshots=0):
    return Usage(10 * MIB, room, 8 * MIB, state, short, room, 100 * MIB, kept, snapshots)


class Scripted(MemoryJournal):
    """A journal that says how much room there is."""

    room = usage(100 * MIB, state="ok", short="")

    def usage(self):
        return self.room


def keeper(journal, **settings):
    state = State()
    return Keeper(journal, state, load({"data": "/d", "socket": "/s", "reserve_bytes": 4 * MIB, "snapshot_bytes": 1 << 16, **settings}))


def test_t6_no_snapshot_is_begun_that_does_not_fit():
    journal = Scripted()
    kept = keeper(journal)
    kept._bytes = 1 << 16
    journal.room = usage(100, state="ok", short="")
    kept._snapshot(batch := Batch())
    assert batch.snapshot_begin is None
    journal.room = usage(100 * MIB, state="ok", short="")
    kept._snapshot(batch := Batch())
    assert batch.snapshot_begin is None  # not again at once
    kept._bytes *= 8
    kept._snapshot(batch := Batch())
    assert batch.snapshot_begin == 0
    assert kept.busy


def test_t6_a_snapshot_that_eats_the_rest_is_given_up_and_can_be_made_again():
    journal = Scripted()
    kept = keeper(journal)
    kept._bytes = 1 << 16
    kept._snapshot(batch := Batch())
    journal.append(batch)
    journal.room = usage(100)
    kept._snapshot(batch := Batch())
    assert batch.snapshot_drop
    journal.append(batch)
    assert not kept.busy
    journal.room = usage(100 * MIB, state="ok", short="")
    kept._bytes = 1 << 20
    while not (kept._snapshot(batch := Batch()) or batch.snapshot_end):
        journal.append(batch)
    journal.append(batch)
    assert journal.snapshot()[0] == 0


def test_t6_a_full_storage_gets_its_snapshot_early():
    journal = Scripted()
    kept = keeper(journal, snapshot_bytes=64 * MIB)
    kept._bytes = MIB
    assert not kept._wants_snapshot()
    journal.room = usage(3 * MIB)
    assert kept.full(0)
    assert kept._wants_snapshot()


def test_t6_calming_verbs_are_counted_against_what_is_left():
    journal = Scripted()
    journal.room = usage(3 * MIB)
    storage = Storage(journal, load({"data": "/d", "socket": "/s", "reserve_bytes": 4 * MIB}))
    storage.look(0)
    assert storage.full
    assert not storage.exhausted
    journal.room = usage(MIB)
    storage.look(10**7)
    assert "1.0 MiB, is kept" in storage.exhausted
    journal.room = usage(100 * MIB, state="ok", short="")
    storage.look(2 * 10**7)
    assert (storage.full, storage.exhausted) == ("", "")


def test_w11_the_last_line_names_the_full_disk_or_map(tmp_path, monkeypatch):
    import lmdb

    assert "map_size is 2 MiB" in why_failed(lmdb.MapFullError("x"), tmp_path, 2 * MIB)
    assert "disk is full" not in why_failed(OSError(5, "Input/output error"), tmp_path, 2 * MIB)
    nothing = type("F", (), {"f_bavail": 3, "f_frsize": 4096})
    monkeypatch.setattr(os, "statvfs", lambda _: nothing)
    said = why_failed(lmdb.DiskError("mdb_txn_commit: Input/output error"), tmp_path, 2 * MIB)
    assert f"the disk is full: 12 KiB are free at {tmp_path}" in said
    assert "who else writes there" in said


def test_a_snapshot_that_was_given_up_leaves_no_chunks(tmp_path):
    with LmdbJournal.open(tmp_path / "data", reserve_bytes=0) as j:
        j.append(Batch(records=[b"1"], snapshot_begin=0, snapshot=[b"s" * 9_000] * 9))
        assert j._store.live_bytes()[1] > 70_000
        j.append(Batch(snapshot_drop=True))
        while j.sweeping:
            j.append(Batch())
        assert j._store.live_bytes()[1] == 0
        sizes = [j.append(Batch(snapshot_begin=1, snapshot=[b"t"], snapshot_end=True)), j.last_seq]
        assert all(a == b for a, b in pairwise(sizes))
        assert j.verify() == []

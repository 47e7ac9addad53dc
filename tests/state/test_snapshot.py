"""Snapshots: what there may be much of comes in pieces, and what older programs wrote is read."""

from __future__ import annotations

import msgpack
import numpy as np
import pytest

from tests.rigs.engine import CALL, Bench
from wheelsched import Enqueue, Manual
from wheelsched.model.errors import CorruptJournalError
from wheelsched.state import snapshot
from wheelsched.state.state import State


@pytest.fixture
def state():
    """One with keys, replies, checkpoints and values for next runs, five each at least."""
    with Bench("2026-03-02T00:00:00Z") as b:
        b.hello()
        b.client.enqueue_many(Enqueue(CALL, key=f"k{i}") for i in range(5))
        leases = b.lease(n=5)
        b.call(50, ("heartbeat", {
            "id": b"".join(x[0] for x in leases), "token": np.array([x[1] for x in leases], "<i8").tobytes(), "started": b"\1" * 5,
            "progress": [], "checkpoint": [[i, msgpack.packb(i)] for i in range(5)],
        }))
        for i in range(5):
            b.put(f"j{i}", Manual())
            b.client.trigger(f"j{i}", key="once")
        live = b.engine.state
        live.lasts.take([[row, b"\x01", b""] for row in range(5)])
        yield live


def pieces(state):
    return [piece for part in state.copy(1 << 20) for piece in part]


def test_what_is_many_comes_in_pieces_of_few(state, monkeypatch):
    monkeypatch.setattr(snapshot, "ENTRIES_MAX", 2)
    found = pieces(state)
    for letter, whole in ((b"K", state.keys), (b"A", state.replies), (b"C", state.checkpoints), (b"L", state.lasts.of)):
        sizes = [len(msgpack.unpackb(piece[1:])) for piece in found if piece[:1] == letter]
        assert sum(sizes) == len(whole) >= 5
        assert max(sizes) == 2
    loaded = State.load(iter(found))
    assert loaded.digest() == state.digest()
    assert list(loaded.replies) == list(state.replies), "the oldest are forgotten first"


def test_a_snapshot_is_of_its_instant(state):
    before = state.digest()
    parts = state.copy(1 << 20)
    found = list(next(parts))
    state.keys.popitem()
    state.checkpoints.popitem()
    found += [piece for part in parts for piece in part]
    assert State.load(iter(found)).digest() == before != state.digest()


def test_keys_and_replies_in_the_first_piece_are_read(state):
    first, *others = (piece for piece in pieces(state) if piece[:1] not in (b"K", b"A"))
    small = msgpack.unpackb(first[1:], raw=False) | {
        "keys": [[key, one.run_id, one.at_us] for key, one in state.keys.items()],
        "replies": [[rid, at, reply] for rid, (at, reply) in state.replies.items()],
    }
    older = [b"S" + msgpack.packb(small, use_bin_type=True), *others]
    assert State.load(iter(older)).digest() == state.digest()


def test_a_piece_of_no_known_kind_is_damage(state):
    with pytest.raises(CorruptJournalError):
        State.load(iter([*pieces(state), b"?" + msgpack.packb([])]))

"""Snapshots of the state: what is in no table as one piece, then the chunks of the tables, then what there may be much of: keys, replies,
checkpoints, what is left for next runs. Readers of older versions stay.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgpack
import numpy as np

from ..model.errors import CorruptJournalError
from . import bygone
from .changelog import Changes
from .elapsed import Elapsed
from .nouns import ANYBODY, Group, Key, Worker, ordered
from .records import decode_fields, encode_fields

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    from .state import State
    from .touched import Touched

VERSION: Final = 4
READABLE: Final = frozenset({1, 2, 3, 4})  # 4 added elapsed time, further holders of identities, whose a worker is
ENTRIES_MAX: Final = 8_192  # of a piece: 2 ms


def small(state: State) -> bytes:
    """All that is in no table, and of which there are never many."""
    m = state.meta
    data: bytes = msgpack.packb(
        {
            "version": VERSION,
            "meta": [m.seq, m.at_us, m.generation, m.boot_id, m.zone_version, m.tokens, m.folded, m.next_worker, m.recheck_us],
            "hold": [m.held_us, m.hold_note],
            "steps": m.steps,
            "exceptions": sorted([*pair, to, state.past_us[pair]] for pair, to in state.exceptions.items()),
            "elapsed": state.elapsed.to_plain(),
            "bygone": [state.bygone.folded, state.bygone.lost],
            "calendars": sorted(state.calendars.items()),
            "queues": [[name, ordered(settings)] for name, settings in sorted(state.queues.items())],
            "zones": sorted(state.zones.items()),
            "tzdiff": encode_fields(state.tzdiff) if state.tzdiff else b"",
            "changes": [entry.to_plain() for entry in state.changes],
            "blocked": sorted(m.blocked),
            "order": state.runs.order,
            "specs": [state.specs[i] for i in range(len(state.specs))],
            "workers": [[i, w.name, w.kind, w.generation, w.uid, w.proof] for i, w in sorted(state.workers.items())],
            "announced": [[task, ordered(options)] for task, options in sorted(state.announced.items())],
            "announcers": sorted(state.announcers.items()),
            "notes": sorted(state.notes.items()),
            "pauses": sorted(state.pauses.items()),
            "groups": [m.groups, [
                [number, g.run_id, g.members, g.needs_all, g.succeeded, g.failed, g.cancelled] for number, g in state.groups.items()
            ]],
        },
        use_bin_type=True,
    )
    return data


def copy(state: State, step_bytes: int) -> Iterator[list[bytes]]:
    """As State.copy."""
    first, many = small(state), Many.of(state)
    state.jobs.copy_begin()
    state.runs.copy_begin()

    def pieces() -> Iterator[list[bytes]]:
        yield [b"S" + first]
        for mark, table in ((b"J", state.jobs), (b"R", state.runs)):
            while chunks := table.copy_next(step_bytes):
                yield [mark + chunk.to_bytes(4, "little") + data for chunk, data in chunks]
        for piece in many.pieces(step_bytes):
            yield [piece]

    return pieces()


class Many(NamedTuple):
    """What there may be much of, as it is at one instant."""

    keys: dict[bytes, Key]
    replies: dict[bytes, tuple[int, bytes]]
    checkpoints: dict[int, bytes]
    lasts: dict[int, tuple[bytes, bytes]]
    touched: Touched
    decided: NDArray[np.int64]

    @classmethod
    def of(cls, state: State) -> Many:
        """In whatever order, but the replies, which are in the order in which they are forgotten."""
        marks = state.touched.copy(), state.bygone.copy()
        return cls(dict(state.keys), dict(state.replies), dict(state.checkpoints), dict(state.lasts.of), *marks)

    @classmethod
    def ordered(cls, state: State) -> Many:
        """In an order that says nothing of the past."""
        keys, checkpoints, lasts = sorted(state.keys.items()), sorted(state.checkpoints.items()), sorted(state.lasts.of.items())
        marks = state.touched.copy(), state.bygone.copy()
        return cls(dict(keys), dict(state.replies), dict(checkpoints), dict(lasts), *marks)

    def pieces(self, step_bytes: int) -> Iterator[bytes]:
        """Each begins with a letter that says what it has."""
        keys = ((key, one.run_id, one.at_us, one.others) for key, one in self.keys.items())
        yield from (b"K" + piece for piece in _packed(keys, step_bytes))
        yield from (b"A" + piece for piece in _packed(((rid, at, reply) for rid, (at, reply) in self.replies.items()), step_bytes))
        yield from (b"C" + piece for piece in _packed(self.checkpoints.items(), step_bytes))
        yield from (b"L" + piece for piece in _packed(((row, *left) for row, left in self.lasts.items()), step_bytes))
        yield from (b"T" + piece for piece in _packed(self.touched.pieces(), step_bytes))
        yield from (b"D" + piece for piece in _packed(bygone.pieces(self.decided), step_bytes))


def _packed(entries: Iterable[tuple[Any, ...]], step_bytes: int) -> Iterator[bytes]:
    """Arrays of entries, which are of numbers and bytes. Each has about `step_bytes` at most, and few of them: a server does nothing else
    meanwhile.
    """
    part: list[tuple[Any, ...]] = []
    size = 0
    for entry in entries:
        part.append(entry)
        size += sum(len(value) for value in entry if type(value) is bytes)
        if size >= step_bytes or len(part) == ENTRIES_MAX:
            yield msgpack.packb(part, use_bin_type=True)
            part, size = [], 0
    if part:
        yield msgpack.packb(part, use_bin_type=True)


def load(state: State, pieces: Iterator[bytes]) -> None:
    """Fill a new state. CorruptJournalError when the pieces don't fit together."""
    try:
        first = next(pieces)
        parts = msgpack.unpackb(first[1:], raw=False, strict_map_key=True)
        if first[:1] != b"S" or parts["version"] not in READABLE:
            raise CorruptJournalError(f"snapshot of version {parts.get('version')}; this program reads up to {VERSION}")
        _load_small(state, parts)
        for piece in pieces:
            if piece[:1] in (b"J", b"R"):
                table = state.jobs if piece[:1] == b"J" else state.runs
                table.load(int.from_bytes(piece[1:5], "little"), piece[5:])
            else:
                _load_many(state, piece[:1], msgpack.unpackb(piece[1:], raw=False))
    except (StopIteration, ValueError, KeyError, TypeError) as e:
        raise CorruptJournalError(f"the snapshot is damaged: {type(e).__name__}: {e}") from e
    if parts["version"] < 4:  # which jobs have rows in history is not known: all may have
        state.touched.fold(np.array(state.jobs.slots(), np.uint32), 0)
    state.runs.order = parts["order"]
    state.runs.rebuild({i: w.list_id for i, w in state.workers.items()})
    rows = np.array(state.runs.slots(), np.uint32)
    made = state.runs.gather(rows)
    state.created.add(rows[np.lexsort((made["id_low"], made["id_high"], made["created_us"]))])


def _load_many(state: State, letter: bytes, entries: list[list[Any]]) -> None:
    """A piece of `Many`; KeyError for a letter that is none of its."""
    if letter == b"K":
        state.keys.update((key, Key(*parts)) for key, *parts in entries)  # those of versions before 4 have no others
    elif letter == b"A":
        state.replies.update((rid, (at, reply)) for rid, at, reply in entries)
    elif letter == b"C":
        state.checkpoints.update((row, checkpoint) for row, checkpoint in entries)
    elif letter == b"L":
        state.lasts.take(entries)
    elif letter == b"T":
        for entry in entries:
            state.touched.take(*entry)
    elif letter == b"D":
        for entry in entries:
            state.bygone.take(*entry)
    else:
        raise KeyError(letter)


def _load_small(state: State, small: dict[str, Any]) -> None:
    m = state.meta
    m.seq, m.at_us, m.generation, m.boot_id, m.zone_version, m.tokens, m.folded, m.next_worker, m.recheck_us = small["meta"]
    m.blocked = dict.fromkeys((job, at) for job, at in small["blocked"])
    for spec, wire in enumerate(small["specs"]):
        state.add_spec(spec, wire)
    for i, name, kind, generation, *who in small["workers"]:
        state.workers[i] = Worker(name, kind, generation, state.runs.new_list(), *who)
    if small["version"] > 1:
        m.held_us, m.hold_note = small["hold"]
        m.steps = [(folded, at) for folded, at in small["steps"]]
        state.exceptions = {(job, at): to for job, at, to, *_ in small["exceptions"]}
        state.past_us = {(job, at): (past or [at])[0] for job, at, _, *past in small["exceptions"]}
        state.calendars, state.zones = dict(small["calendars"]), dict(small["zones"])
        state.tzdiff = decode_fields(small["tzdiff"]) if small["tzdiff"] else {}
        state.queues, state.pauses = dict(small["queues"]), dict(small["pauses"])
        state.changes = [Changes.from_plain(entry) for entry in small["changes"]]
    if small["version"] > 3:
        state.elapsed = Elapsed.from_plain(small["elapsed"])
    folded, lost = small.get("bygone", ([[0, m.at_us]] if m.folded else [], []))  # older ones don't say: any time may have gone
    state.bygone.folded, state.bygone.lost = ([(first, last) for first, last in spans] for spans in (folded, lost))
    m.groups, groups = small.get("groups", (0, ()))
    state.load_groups({number: Group(*parts) for number, *parts in groups})
    state.announced = dict(small["announced"])
    state.announcers = dict(small.get("announcers", dict.fromkeys(state.announced, ANYBODY)))
    state.notes = dict(small["notes"])
    for letter, part in ((b"K", "keys"), (b"A", "replies")):  # of older snapshots; now they have pieces of their own
        _load_many(state, letter, small.get(part, []))

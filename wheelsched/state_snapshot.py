"""Snapshots of the state: what is in no table as one piece, then the chunks of the tables, then the checkpoints and what
is left for next runs. Readers of older versions stay.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import astuple
from typing import TYPE_CHECKING, Any, Final

import msgpack

from .changes import Changes
from .errors import CorruptJournalError
from .lasts import pieces as last_pieces
from .records import decode_fields, encode_fields
from .state_parts import Group, Key, Worker, ordered

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .state import State

VERSION: Final = 3
READABLE: Final = frozenset({1, 2, 3})


def small(state: State) -> bytes:
    """All that is in no table."""
    m = state.meta
    data: bytes = msgpack.packb(
        {
            "version": VERSION,
            "meta": [m.seq, m.at_us, m.generation, m.boot_id, m.zone_version, m.tokens, m.folded, m.next_worker, m.recheck_us],
            "hold": [m.held_us, m.hold_note],
            "steps": m.steps,
            "exceptions": sorted([*pair, to] for pair, to in state.exceptions.items()),
            "calendars": sorted(state.calendars.items()),
            "queues": [[name, ordered(settings)] for name, settings in sorted(state.queues.items())],
            "zones": sorted(state.zones.items()),
            "tzdiff": encode_fields(state.tzdiff) if state.tzdiff else b"",
            "changes": [entry.to_plain() for entry in state.changes],
            "blocked": sorted(m.blocked),
            "order": state.runs.order,
            "specs": [state.specs[i] for i in range(len(state.specs))],
            "workers": [[i, w.name, w.kind, w.generation] for i, w in sorted(state.workers.items())],
            "announced": [[task, ordered(options)] for task, options in sorted(state.announced.items())],
            "notes": sorted(state.notes.items()),
            "pauses": sorted(state.pauses.items()),
            "groups": [m.groups, [[number, *astuple(group)] for number, group in state.groups.items()]],
            "keys": [[k, v.run_id, v.at_us] for k, v in sorted(state.keys.items())],
            "replies": [[rid, at, reply] for rid, (at, reply) in state.replies.items()],
        },
        use_bin_type=True,
    )
    return data


def copy(state: State, step_bytes: int) -> Iterator[list[bytes]]:
    """As State.copy."""
    first, checkpoints, lasts = small(state), dict(state.checkpoints), dict(state.lasts.of)
    state.jobs.copy_begin()
    state.runs.copy_begin()

    def pieces() -> Iterator[list[bytes]]:
        yield [b"S" + first]
        for mark, table in ((b"J", state.jobs), (b"R", state.runs)):
            while chunks := table.copy_next(step_bytes):
                yield [mark + chunk.to_bytes(4, "little") + data for chunk, data in chunks]
        for piece in kept_pieces(checkpoints, lasts, step_bytes):
            yield [piece]

    return pieces()


def kept_pieces(checkpoints: dict[int, bytes], lasts: dict[int, tuple[bytes, bytes]], step_bytes: int) -> Iterator[bytes]:
    """Pieces with the checkpoints in order of their rows, and then with what jobs left for their next runs."""
    part: list[list[Any]] = []
    size = 0
    for row in sorted(checkpoints):
        part.append([row, checkpoints[row]])
        size += len(checkpoints[row])
        if size >= step_bytes:
            yield b"C" + msgpack.packb(part, use_bin_type=True)
            part, size = [], 0
    if part:
        yield b"C" + msgpack.packb(part, use_bin_type=True)
    yield from (b"L" + piece for piece in last_pieces(lasts, step_bytes))


def load(state: State, pieces: Iterator[bytes]) -> None:
    """Fill a new state. CorruptJournalError when the pieces don't fit together."""
    try:
        first = next(pieces)
        parts = msgpack.unpackb(first[1:], raw=False, strict_map_key=True)
        if first[:1] != b"S" or parts["version"] not in READABLE:
            raise CorruptJournalError(f"snapshot of version {parts.get('version')}; this program reads up to {VERSION}")
        _load_small(state, parts)
        for piece in pieces:
            if piece[:1] == b"C":
                state.checkpoints.update(msgpack.unpackb(piece[1:]))
                continue
            if piece[:1] == b"L":
                state.lasts.take(msgpack.unpackb(piece[1:]))
                continue
            take = {b"J": state.jobs.load, b"R": state.runs.load}[piece[:1]]
            take(int.from_bytes(piece[1:5], "little"), piece[5:])
    except (StopIteration, ValueError, KeyError, TypeError) as e:
        raise CorruptJournalError(f"the snapshot is damaged: {type(e).__name__}: {e}") from e
    state.runs.order = parts["order"]
    state.runs.rebuild({i: w.list_id for i, w in state.workers.items()})


def _load_small(state: State, small: dict[str, Any]) -> None:
    m = state.meta
    m.seq, m.at_us, m.generation, m.boot_id, m.zone_version, m.tokens, m.folded, m.next_worker, m.recheck_us = small["meta"]
    m.blocked = dict.fromkeys((job, at) for job, at in small["blocked"])
    for spec, wire in enumerate(small["specs"]):
        state.add_spec(spec, wire)
    for i, name, kind, generation in small["workers"]:
        state.workers[i] = Worker(name, kind, generation, state.runs.new_list())
    if small["version"] > 1:
        m.held_us, m.hold_note = small["hold"]
        m.steps = [(folded, at) for folded, at in small["steps"]]
        state.exceptions = {(job, at): to for job, at, to in small["exceptions"]}
        state.calendars, state.zones = dict(small["calendars"]), dict(small["zones"])
        state.tzdiff = decode_fields(small["tzdiff"]) if small["tzdiff"] else {}
        state.queues, state.pauses = dict(small["queues"]), dict(small["pauses"])
        state.changes = [Changes.from_plain(entry) for entry in small["changes"]]
    m.groups, groups = small.get("groups", (0, ()))
    state.load_groups({number: Group(*parts) for number, *parts in groups})
    state.announced = dict(small["announced"])
    state.notes = dict(small["notes"])
    state.keys = {k: Key(run_id, at) for k, run_id, at in small["keys"]}
    state.replies = OrderedDict((rid, (at, reply)) for rid, at, reply in small["replies"])

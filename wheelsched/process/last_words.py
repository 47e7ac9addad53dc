"""What runs have printed and perhaps nobody has told, where it outlives the process: at the end of the started file.

A run can end the process that it is in. What it printed last explains why, and is still in that process's memory, or on its way there. So
what is captured is put here as well, at once: for each stream of each place the first and the last part of what was captured since it was
taken last. The parent reads it when the process is gone.

What is written to the descriptors comes through pipes. Once it is read from a pipe it is nowhere else, and the process may end before the
reading thread goes on. So it is read into the area itself (its stage), and counts there until it was put behind the rest.

Of an executor with several runs at a time the descriptors have an area of their own, as nobody knows who writes there. What was written
while a run was in user code is among the last words of that run, and of the others.
"""

from __future__ import annotations

from typing import Final

from ..model.nouns import OUTPUT_MAX
from ..model.tape import Tape

HALF: Final = OUTPUT_MAX // 2
STAGE_BYTES: Final = 65_536
HEAD_BYTES: Final = 64
ALONE_BYTES: Final = HEAD_BYTES + 2 * HALF + STAGE_BYTES  # of a stream of an executor with one run at a time
_PLACES_BYTES: Final = 16 * 1024 * 1024  # about, of all places of an executor with many
_HALF_LEAST: Final = 1_024
# Words of the head. BITS: twice how many bytes there were, plus 1 after an odd number of stages: so both change at once.
# INTENT: how many there will be in a moment; what that overwrites counts no more. TAKEN: 0, or the token that it was taken for, plus 1.
# STAGED: the lowest of BITS, once what is in the stage has been added.
# SINCE: of a place, how much was written to the descriptor when the run in it was entered. PASSED: how much of that was passed on.
(L_BITS, L_INTENT, L_TAKEN, L_STAGED, L_SINCE, L_PASSED) = range(6)


def half_of(places: int) -> int:
    """How many bytes of the first and of the last are kept of a stream, in each of so many places; 0 places: one run at a time."""
    return HALF if not places else max(_HALF_LEAST, min(HALF, _PLACES_BYTES // (4 * places) // 64 * 64))


def stream_bytes(places: int) -> int:
    """Size of the area of a stream of a place."""
    return HEAD_BYTES + 2 * half_of(places) if places else ALONE_BYTES


class LastWords:
    """The area of one stream of one place, mapped by its executor."""

    def __init__(self, area: memoryview, half: int) -> None:
        """`area`: what is behind the halves is the stage."""
        self._head = area[:HEAD_BYTES].cast("q")
        self._first = area[HEAD_BYTES : HEAD_BYTES + half]
        self._last = area[HEAD_BYTES + half : HEAD_BYTES + 2 * half]
        self._half = half
        self.stage = area[HEAD_BYTES + 2 * half :]

    def expect(self) -> memoryview:
        """The stage, to read into; `add` what came with `staged`. It is empty, and whatever comes there counts from now on."""
        self._head[L_STAGED] = (self._head[L_BITS] & 1) ^ 1
        return self.stage

    def add(self, data: bytes, *, staged: bool = False) -> None:
        """Put it behind what there is."""
        head, half = self._head, self._half
        if head[L_TAKEN]:
            head[L_BITS] &= 1
            head[L_TAKEN] = 0
        bits = head[L_BITS]
        at = bits >> 1
        end = head[L_INTENT] = at + len(data)
        rest = memoryview(data)
        if at < half:
            self._first[at : min(half, end)] = rest[: half - at]
            rest = rest[half - at :]
        if len(rest):
            rest = rest[-half:]
            start = (end - len(rest)) % half
            room = half - start
            self._last[start : start + len(rest)] = rest[:room]
            if len(rest) > room:
                self._last[: len(rest) - room] = rest[room:]
        head[L_BITS] = (end << 1) | ((bits & 1) ^ staged)
        if staged:
            self.stage[: len(data)] = bytes(len(data))

    def since(self, shared: LastWords) -> None:
        """A run is about to be entered: what is written to the descriptor from now on may be its own."""
        self._head[L_SINCE] = shared._head[L_BITS] >> 1

    def passed(self) -> None:
        """All that there is was passed on to where the descriptor led before."""
        self._head[L_PASSED] = self._head[L_BITS] >> 1

    def taken(self, token: int) -> None:
        """It was taken, for the run that was entered with this token; it stays until there is something else, in case that run is lost."""
        self._head[L_TAKEN] = token + 1

    def close(self) -> None:
        """Release the views; the file stays."""
        for view in (self._head, self._first, self._last, self.stage):
            view.release()


def read(area: bytes | bytearray, half: int, token: int) -> Tape:
    """What the run in user code had printed, which was entered with this token, once the process is gone. User code may have spoilt it."""
    tape = Tape(OUTPUT_MAX)
    with memoryview(area)[:HEAD_BYTES] as raw, raw.cast("q") as head:
        bits, intent, taken, staged = head[L_BITS], head[L_INTENT], head[L_TAKEN], head[L_STAGED]
    total = 0 if taken not in (0, token + 1) else max(0, bits >> 1)
    first, last = area[HEAD_BYTES : HEAD_BYTES + half], area[HEAD_BYTES + half : HEAD_BYTES + 2 * half]
    tape.add_at(0, bytes(first[:total]))
    start = max(half, max(intent, total) - half)
    if start < total:
        place = start % half
        tape.add_at(start, bytes(last[place:] + last[:place])[: total - start])
    if staged != bits & 1:
        tape.add(bytes(area[HEAD_BYTES + 2 * half :]).rstrip(b"\0"))
    return tape


def word_of(area: bytes | bytearray, word: int) -> int:
    """One word of the head of an area; not negative."""
    with memoryview(area)[:HEAD_BYTES] as raw, raw.cast("q") as head:
        return max(0, head[word])


def behind(tape: Tape, start: int) -> bytes:
    """What is kept of what comes behind the first `start` bytes, with a mark where some was left out."""
    found = Tape(OUTPUT_MAX)
    for at, data in tape.pieces():
        if at + len(data) > start:
            found.add_at(max(0, at - start), data[max(0, start - at) :])
    return found.text()[0]


__all__ = ["ALONE_BYTES", "HALF", "L_PASSED", "L_SINCE", "STAGE_BYTES", "LastWords", "behind", "half_of", "read", "stream_bytes", "word_of"]

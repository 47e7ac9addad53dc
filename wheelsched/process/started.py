"""The started file from outside, as its parent and the next server see it: read and written by system calls.

Whoever maps a file that another process cuts short is ended by SIGBUS. User code can do that to its own executor; to the server it can't.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ..model.tape import STREAMS, Piece, Tape
from . import processes
from .kept import AREA_BYTES, Kept
from .kept_log import LOG_BYTES, LOG_HEAD_BYTES, read_log
from .last_words import ALONE_BYTES, HALF, L_PASSED, L_SINCE, behind, half_of, read, stream_bytes, word_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..model.nouns import Ended

SUFFIX: Final = ".started"
_HEAD_BYTES: Final = 8 * processes.PLACE_WORDS
_WORD: Final = struct.Struct("<q")


class SeenPlace:
    """One place of the file: the words as they were seen last."""

    __slots__ = ("_at", "_early", "_file", "words")

    def __init__(self, file: SeenFile, at: int, early: memoryview, words: memoryview) -> None:
        """`at`: byte offset in the file. `early` was read before `words`."""
        self._file = file
        self._at = at
        self._early = early
        self.words = words

    def inside(self) -> tuple[int, int]:
        """(token entered last, when in monotonic µs; 0 when it is not in user code now)."""
        token = self._early[processes.W_STARTED]  # the token first: see execution.Runner.execute
        return token, -(-self.words[processes.W_MONO_NS] // 1_000)

    def write(self, word: int, value: int) -> None:
        """Have the executor read this."""
        self._file.write(self._at, word, value)
        self.words[word] = value

    def release(self) -> None:
        """Give the views back."""
        self._early.release()
        self.words.release()


class SeenFile:
    """One started file. `look` reads it; all else but the texts tells what was seen then."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """OSError when it can't be opened, ValueError when it is none."""
        self.path = os.fspath(path)
        self._fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            self._size = os.fstat(self._fd).st_size
            head = self._check()
            self._boot = self._read(processes.BOOT_AT, 36)
        except BaseException:
            os.close(self._fd)
            raise
        count = max(0, min(head[processes.W_PLACES], (self._size - processes.FILE_BYTES) // _HEAD_BYTES))
        self._kept_at, self._log_at = processes.kept_at(head, self._size), processes.log_at(head, self._size)
        self._said_at, self._several = processes.said_at(head, self._size), head[processes.W_PLACES]
        self._shared_at = processes.shared_at(head, self._size)
        self._skips = head[processes.W_SKIPS]
        self.cut = False  # it is shorter than it was
        # User code can write here too, so what tells whose file it is is read once, before there is any.
        self.mark = f"{head[processes.W_GENERATION]}.{head[processes.W_WORKER]}.{head[processes.W_MARK]:016x}"
        self._early, self._late = bytearray(_HEAD_BYTES * (1 + count)), bytearray(_HEAD_BYTES * (1 + count))
        early, late = memoryview(self._early).cast("q"), memoryview(self._late).cast("q")
        n = processes.PLACE_WORDS
        self._views = [early, late]
        self._head = SeenPlace(self, 0, early[:n], late[:n])
        self.places = [
            SeenPlace(self, processes.FILE_BYTES + _HEAD_BYTES * i, early[n * (i + 1) : n * (i + 2)], late[n * (i + 1) : n * (i + 2)])
            for i in range(count)
        ] or [self._head]
        self.look()

    def _check(self) -> memoryview:
        head = memoryview(self._read(0, _HEAD_BYTES)).cast("q")
        known = head[processes.W_MAGIC] == processes.MAGIC and head[processes.W_VERSION] == processes.VERSION
        if self._size < processes.FILE_BYTES or not known:
            raise ValueError(f"{self.path}: not a started file of version {processes.VERSION}")
        return head

    def _read(self, at: int, size: int) -> bytearray:
        data = bytearray(size)
        if os.preadv(self._fd, [data], at) < size:
            raise ValueError(f"{self.path}: it ends before byte {at + size}")
        return data

    def look(self) -> None:
        """See how it stands now. Of a file that was cut short, what was seen before stays."""
        try:
            for seen in (self._early, self._late):
                found = self._read(0, _HEAD_BYTES)
                if len(seen) > _HEAD_BYTES:
                    found += self._read(processes.FILE_BYTES, len(seen) - _HEAD_BYTES)
                seen[:] = found
            self.cut = self.cut or os.fstat(self._fd).st_size < self._size
        except (OSError, ValueError):
            self.cut = True

    @property
    def words(self) -> memoryview:
        """The words of the file itself."""
        return self._head.words

    @property
    def started(self) -> int:
        """The token entered last of all."""
        return self._head.inside()[0]

    def write(self, at: int, word: int, value: int) -> None:
        """Write a word of the place that begins at byte `at`. Never beyond the end: a file that was cut short stays so."""
        try:
            if not self.cut and os.fstat(self._fd).st_size >= self._size:
                os.pwrite(self._fd, _WORD.pack(value), at + 8 * word)
        except OSError:
            self.cut = True  # nothing that is told here would be heard

    def put(self, word: int, value: int) -> None:
        """Write a word of the file itself."""
        self._head.write(word, value)

    def skip(self, token: int) -> None:
        """Tell the executor not to enter this token. The ring holds SKIPS_MAX; older ones are overwritten."""
        self.write(0, processes.SKIPS_AT + self._skips % processes.SKIPS_MAX, token)
        self._skips += 1
        self.put(processes.W_SKIPS, self._skips)

    @property
    def boot_id(self) -> str:
        """The boot under which the words mean something."""
        return self._boot.rstrip(b"\0").decode("ascii", "replace")

    @property
    def text(self) -> str:
        """Why the executor could not begin, or is to be replaced; else empty."""
        try:
            data = self._read(processes.TEXT_AT, processes.FILE_BYTES - processes.TEXT_AT)
        except (OSError, ValueError):
            return ""
        return data.rstrip(b"\0").decode("utf-8", "replace")

    @property
    def ended(self) -> dict[int, Ended]:
        """{token: how it ended} of what ended last, some of it reported."""
        found: dict[int, Ended] = {}
        for at in self._kept_at:
            try:
                area = self._read(at, AREA_BYTES)
            except (OSError, ValueError):  # the file was cut short: what is still there counts
                continue
            kept = Kept(memoryview(area))
            try:
                found |= kept.read()
            finally:
                kept.close()
        for at in self._log_at:
            try:
                found |= read_log(self._read(at, LOG_HEAD_BYTES + LOG_BYTES))
            except (OSError, ValueError):
                continue
        return found

    def last_words(self, pipes: Sequence[int] = ()) -> tuple[dict[int, list[Piece]], list[bytes]]:
        """Once the executor is gone: ({token: what was printed} of those in user code, of a batch handler's call under its first token;
        what nobody has passed on of what was printed by no run, by stream). `pipes`: see Launched. Both are empty without room for it.

        The descriptors of an executor with several runs at a time are everybody's: what was written there is told of each run in user code.
        """
        found: dict[int, list[Piece]] = {}
        alone = not self._several
        if not self._said_at or not (alone or self._shared_at):
            return found, []
        inside = [(i, place, place.inside()[0]) for i, place in enumerate(self.places) if place.inside()[1]]
        common = [self._area(at, ALONE_BYTES) for at in (self._said_at if alone else self._shared_at)]
        tapes = [read(area, HALF, inside[0][2] if alone and inside else -1) for area in common]
        for pipe, tape in zip(pipes, tapes, strict=False):
            processes.drain(pipe, tape)
        for i, place, token in inside:
            told = tapes if alone else self._with_shared(i, token, tapes, len(inside))
            pieces = [Piece(name, *piece) for name, tape in zip(STREAMS, told, strict=True) for piece in tape.pieces()]
            if pieces:
                found[place.words[processes.W_FIRST] or token] = pieces
        left = [behind(tape, word_of(area, L_PASSED)) for area, tape in zip(common, tapes, strict=True)]
        return found, [] if alone and inside else left

    def _with_shared(self, place: int, token: int, shared: list[Tape], inside: int) -> list[Tape]:
        """What the run in this place has printed, and what was written to the descriptors meanwhile."""
        size, found = stream_bytes(self._several), []
        for i, at in enumerate(self._said_at[len(STREAMS) * place :][: len(STREAMS)]):
            area = self._area(at, size)
            tape = read(area, half_of(self._several), token)
            rest = behind(shared[i], word_of(area, L_SINCE))
            if rest and inside > 1:
                tape.add(f"wheelsched: written to descriptor {i + 1} by any of the {inside} runs in this process:\n".encode())
            tape.add(rest)
            found.append(tape)
        return found

    def _area(self, at: int, size: int) -> bytearray:
        try:
            return self._read(at, size)
        except (OSError, ValueError):  # it was cut short
            return bytearray(size)

    @property
    def calls(self) -> list[tuple[int, int]]:
        """(first, last token) of each call of a batch handler with several runs that user code is in."""
        calls = [(place.words[processes.W_FIRST], place.inside()[0]) for place in self.places if place.words[processes.W_MONO_NS]]
        return [(first, last) for first, last in calls if 0 < first < last]

    def close(self) -> None:
        """Close it; the file stays."""
        for place in {id(p): p for p in (self._head, *self.places)}.values():
            place.release()
        for view in self._views:
            view.release()
        os.close(self._fd)

    def remove(self) -> None:
        """Close it, and remove the file."""
        self.close()
        Path(self.path).unlink(missing_ok=True)

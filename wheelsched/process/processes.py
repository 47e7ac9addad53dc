"""Processes as an operating system sees them: identity, groups, the started file, bounded capture of output.

A process is named by its pid *and* its start time under one boot id, because pids are used again. Nothing here kills by
pid alone: a group is killed while its leader is known to be ours, or when its members carry the executor's mark in
their environment.

The started file is mapped by an executor; its parent reads and writes it by system calls (see `started`). It holds little-endian
int64 words and two texts: the boot id, and why the executor could not begin, or is to be replaced. Before user code is entered the
executor writes the token there; as tokens are entered in order, that one number is the whole proof of what was started and what was
not. It needs no sync: a page of a mapped file outlives the process, and after a reboot it counts for nothing.

An executor keeps there what has ended and perhaps was not reported (see `kept`, and `kept_log` for several runs at a time), and what its
runs have printed (see `last_words`).

An executor that has several runs in user code at a time has as many *places* behind the first 4,096 bytes. A place repeats the
words from W_STARTED on, for the one run (or the one call of a batch handler) that is in it; W_STARTED of the file itself is the
largest token of all.
"""

from __future__ import annotations

import ctypes
import errno
import io
import mmap
import os
import select
import signal
import threading
import time
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ..model.nouns import OUTPUT_MAX, US
from ..model.tape import STREAMS, Tape
from .kept import AREA_BYTES, Kept
from .kept_log import LOG_BYTES, LOG_HEAD_BYTES, KeptLog
from .last_words import ALONE_BYTES, HALF, LastWords, half_of, stream_bytes

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Container, Iterable

MARK: Final = "WHEELSCHED_EXECUTOR"  # environment of an executor and of all that it starts
FILE_BYTES: Final = 4_096
MAGIC: Final = 0x3144_5452_5453_5357  # "WSSTRTD1"
VERSION: Final = 1
SKIPS_MAX: Final = 256
DRAIN_READS: Final = 64  # reads of 64 KiB: a child that never stops writing holds up nobody
BOOT_AT: Final = 256  # byte offset of the boot id
SKIPS_AT: Final = 64  # word offset of the ring of cancelled tokens
TEXT_AT: Final = 2_560  # byte offset of why the executor could not begin
PLACE_WORDS: Final = 32  # words of a place
_KEPT_BYTES: Final = -(-AREA_BYTES // (8 * PLACE_WORDS)) * 8 * PLACE_WORDS
_LOG_BYTES: Final = LOG_HEAD_BYTES + LOG_BYTES
_PR_SET_PDEATHSIG: Final = 1
_PR_SET_NAME: Final = 15

# Words of the started file. Written by the parent: GRACE, CANCEL, WHY, SILENT, SKIPS and the ring; by the executor: the others.
# IMPORT: not 0 when the executor has ended because a task module can't be imported.
(W_MAGIC, W_VERSION, W_PID, W_PGID, W_BEGUN, W_GENERATION, W_WORKER, W_STARTED, W_MONO_NS, W_FIRST, W_CANCEL, W_WHY, W_SKIPS,
 W_COMMAND, W_COMMAND_PGID, W_COMMAND_BEGUN, W_MARK, W_GRACE_US, W_BEAT_NS, W_SILENT_US, W_DEAF) = range(21)
W_PLACES: Final = 24  # how many places follow; 0: the file itself is the only one
W_KEPT: Final = 25  # byte offset of the first area of what is kept of ended runs; 0: none
W_IMPORT: Final = 26
W_KEPT2: Final = 27  # as W_KEPT, of the second area
W_LOG: Final = 29  # as W_KEPT and W_KEPT2, of an executor with several runs at a time
W_LOG2: Final = 30
W_SAID: Final = 28  # byte offset of the areas of what is printed: two of each place; 0: none
W_SHARED: Final = 31  # likewise, of both descriptors of an executor with several runs at a time


def text_sum(text: str) -> str:
    """Tells one text from another."""
    return f"{zlib.crc32(text.encode()):08x}"


class StartedFile:
    """One mapped started file. `words[W_X]` reads and writes a word; about 40 ns."""

    def __init__(self, path: str | os.PathLike[str], *, create: bool = False, places: int = 0) -> None:
        """OSError when it can't be opened, ValueError when it is none. `places`, with `create`: how many runs at a time; 0 for one."""
        self.path = os.fspath(path)
        fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | (os.O_CREAT | os.O_EXCL if create else 0), 0o600)
        try:
            if create:
                os.fchmod(fd, 0o600)  # whatever the umask
                _allocate(fd, places)
            size = os.fstat(fd).st_size
            if size < FILE_BYTES or size % (8 * PLACE_WORDS):
                raise ValueError(f"{self.path}: not a started file")
            self._map = mmap.mmap(fd, size)
        finally:
            os.close(fd)
        self.words = memoryview(self._map).cast("q")
        if create:
            self.words[W_PLACES] = places
            at = FILE_BYTES + 8 * PLACE_WORDS * places
            if size > at:
                kept = (W_LOG, W_LOG2) if places else (W_KEPT, W_KEPT2)
                for word in kept:
                    self.words[word] = at
                    at += _kept_bytes(places)
                self.words[W_SAID] = at
                self.words[W_SHARED] = at + len(STREAMS) * places * stream_bytes(places)
            self.words[W_VERSION] = VERSION
            self.words[W_MAGIC] = MAGIC
        elif self.words[W_MAGIC] != MAGIC or self.words[W_VERSION] != VERSION:
            self.close()
            raise ValueError(f"{self.path}: not a started file of version {VERSION}")
        with memoryview(self._map) as whole:
            self.kept = [Kept(whole[at : at + AREA_BYTES]) for at in kept_at(self.words, size)]
            self.log = KeptLog([whole[at : at + _LOG_BYTES] for at in log_at(self.words, size)])
            self.shared = [LastWords(whole[at : at + ALONE_BYTES], HALF) for at in shared_at(self.words, size)]
        self.said = self._said(size)  # of each place: stdout and stderr, or nothing
        first, count = FILE_BYTES // 8, min(self.words[W_PLACES], (size - FILE_BYTES) // 8 // PLACE_WORDS)
        places_at = range(first, first + count * PLACE_WORDS, PLACE_WORDS)
        self.places = [self.words[at : at + PLACE_WORDS] for at in places_at] or [self.words]

    def _said(self, size: int) -> list[list[LastWords]]:
        places = self.words[W_PLACES]
        with memoryview(self._map) as whole:
            streams = [LastWords(whole[at : at + stream_bytes(places)], half_of(places)) for at in said_at(self.words, size)]
        return [streams[len(STREAMS) * i :][: len(STREAMS)] for i in range(max(1, places))]

    @property
    def boot_id(self) -> str:
        """The boot under which the words mean something."""
        return self._map[BOOT_AT : BOOT_AT + 36].rstrip(b"\0").decode("ascii", "replace")

    @boot_id.setter
    def boot_id(self, value: str) -> None:
        self._map[BOOT_AT : BOOT_AT + 36] = value.encode("ascii")[:36].ljust(36, b"\0")

    @property
    def text(self) -> str:
        """Why the executor could not begin, or is to be replaced; else empty."""
        return self._map[TEXT_AT:FILE_BYTES].rstrip(b"\0").decode("utf-8", "replace")

    @text.setter
    def text(self, value: str) -> None:
        self._map[TEXT_AT:FILE_BYTES] = value.encode("utf-8", "replace")[: FILE_BYTES - TEXT_AT].ljust(FILE_BYTES - TEXT_AT, b"\0")

    @property
    def mark(self) -> str:
        """The value of MARK in the environment of this executor: unique, so no stranger has it."""
        return f"{self.words[W_GENERATION]}.{self.words[W_WORKER]}.{self.words[W_MARK]:016x}"

    def skip(self, token: int) -> None:
        """Tell the executor not to enter this token. The ring holds SKIPS_MAX; older ones are overwritten."""
        words = self.words
        words[SKIPS_AT + words[W_SKIPS] % SKIPS_MAX] = token
        words[W_SKIPS] += 1

    def skips(self) -> set[int]:
        """The tokens that shall not be entered."""
        return set(self.words[SKIPS_AT : SKIPS_AT + min(self.words[W_SKIPS], SKIPS_MAX)])

    def close(self) -> None:
        """Unmap; the file stays."""
        for words in (*getattr(self, "places", ()), self.words):
            words.release()
        kept: list[Kept] = getattr(self, "kept", [])
        for area in kept:
            area.close()
        if hasattr(self, "log"):
            self.log.close()
        said: list[list[LastWords]] = getattr(self, "said", [])
        for streams in [*said, getattr(self, "shared", [])]:
            for stream in streams:
                stream.close()
        self._map.close()


def kept_at(words: memoryview, size: int) -> list[int]:
    """Byte offsets of the areas of what is kept, in a started file of this size that begins with these words."""
    return [at for at in (words[W_KEPT], words[W_KEPT2]) if 0 < at <= size - AREA_BYTES]


def log_at(words: memoryview, size: int) -> list[int]:
    """Byte offsets of both areas of the log of what has ended, likewise; or none."""
    found = [at for at in (words[W_LOG], words[W_LOG2]) if 0 < at <= size - _LOG_BYTES]
    return found if len(found) == 2 else []


def _kept_bytes(places: int) -> int:
    return _whole(_LOG_BYTES) if places else _KEPT_BYTES


def said_at(words: memoryview, size: int) -> list[int]:
    """Byte offsets of the areas of what is printed, in a started file of this size that begins with these words: two of each place."""
    at, places = words[W_SAID], words[W_PLACES]
    count, one = len(STREAMS) * max(1, places), stream_bytes(places)
    return [at + one * i for i in range(count)] if at > 0 and at + one * count <= size else []


def shared_at(words: memoryview, size: int) -> list[int]:
    """Byte offsets of the areas of what is written to the descriptors that all runs share; none where each has them for itself."""
    at = words[W_SHARED] if words[W_PLACES] else 0
    return [at, at + ALONE_BYTES] if 0 < at <= size - len(STREAMS) * ALONE_BYTES else []


def _allocate(fd: int, places: int) -> None:
    """Room for a started file: a full disk shows here, not as SIGBUS later. Without room for what is kept of runs, nothing is."""
    least = FILE_BYTES + 8 * PLACE_WORDS * places
    said = len(STREAMS) * (places * stream_bytes(places) + ALONE_BYTES)
    try:
        os.posix_fallocate(fd, 0, _whole(least + 2 * _kept_bytes(places) + said))
    except OSError as e:
        if e.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        os.ftruncate(fd, 0)
        os.posix_fallocate(fd, 0, least)


def _whole(size: int) -> int:
    """Room for so many bytes, in whole places."""
    return -(-size // (8 * PLACE_WORDS)) * 8 * PLACE_WORDS


def zombies_of(parent: int) -> list[int]:
    """Children of this process that have ended and were not waited for."""
    return [pid for pid in _pids() for fields in [_stat(pid)] if fields and fields[0] == "Z" and int(fields[1]) == parent]


def begun_ticks(pid: int, *, alive: bool = False) -> int:
    """Start time of a process in clock ticks since boot; 0 when there is none, or with `alive` only a zombie."""
    fields = _stat(pid)
    return 0 if fields is None or (alive and fields[0] in "ZX") else int(fields[19])


def stopped(pid: int) -> bool:
    """Was it stopped by a signal (SIGSTOP, SIGTSTP)?"""
    fields = _stat(pid)
    return fields is not None and fields[0] == "T"


def _stat(pid: int) -> list[str] | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    return text[text.rindex(")") + 2 :].split()  # the name may hold blanks and brackets


def die_with_parent(parent: int) -> None:
    """SIGKILL for this process when its parent ends. SystemExit when the parent has ended already."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:  # it ended before the call above
        raise SystemExit(0)


def set_name(name: str) -> None:
    """What `ps -o comm`, `top` and `pgrep` call this process: 15 bytes at most."""
    ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode()[:15], 0, 0, 0)


def signal_group(pgid: int, number: int) -> bool:
    """Signal a group that is known to be ours. False when nothing is left of it."""
    assert pgid > 1, pgid
    try:
        os.killpg(pgid, number)
    except ProcessLookupError:
        return False
    except PermissionError:  # a member changed its user; those we may signal were
        return True
    return True


def signal_process(pid: int, number: int) -> bool:
    """Signal one process that is known to be ours. False when it is gone, or no longer ours to signal."""
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def members(pgid: int, mark: str) -> list[int]:
    """Living processes of a group or session whose environment carries the mark: ours, although the leader is gone."""
    wanted = f"{MARK}={mark}"
    found = []
    for pid in _pids():
        fields = _stat(pid)
        if fields and fields[0] not in "ZX" and pgid in (int(fields[2]), int(fields[3])) and has_mark(pid, wanted):
            found.append(pid)
    return found


def marked(mark: str) -> list[int]:
    """Living processes with this variable, as `NAME=value`, in their environment."""
    return [pid for pid in _pids() if has_mark(pid, mark)]


def _pids() -> Iterable[int]:
    return [int(entry.name) for entry in os.scandir("/proc") if entry.name.isdigit() and int(entry.name) != os.getpid()]


def has_mark(pid: int, mark: str) -> bool:
    """Is `NAME=value` in the environment that a process was started with?"""
    try:
        data = Path(f"/proc/{pid}/environ").read_bytes()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return False
    return mark.encode() in data.split(b"\0")


def kill_group(pgid: int, begun: int, mark: str) -> bool:
    """SIGKILL for a group of a former time, if it is ours. False when nothing of it was there.

    The leader with the recorded start time, or a member with the mark, shows that it is; a stranger that has got the
    number since shows neither.
    """
    if pgid <= 1:
        return False
    if begun and begun_ticks(pgid) == begun:
        return signal_group(pgid, signal.SIGKILL)
    return sum(signal_process(pid, signal.SIGKILL) for pid in members(pgid, mark)) > 0


def living(pgids: Container[int]) -> bool:
    """Has one of these groups a member that is no zombie?"""
    return any(f[0] not in "ZX" and int(f[2]) in pgids for f in map(_stat, _pids()) if f)


def kill_younger(mark: str, begun_ns: int, pgid: int = 0) -> None:
    """SIGKILL for what was started since then (monotonic) and carries the mark, or is in this group, which is known to be ours."""
    age_s = (time.monotonic_ns() - begun_ns) / 1e9
    since = int((time.clock_gettime(time.CLOCK_BOOTTIME) - age_s) * os.sysconf("SC_CLK_TCK"))
    for pid in _pids():
        fields = _stat(pid)
        young = fields is not None and fields[0] not in "ZX" and int(fields[19]) >= since
        if young and fields is not None and (int(fields[2]) == pgid or has_mark(pid, f"{MARK}={mark}")):
            signal_process(pid, signal.SIGKILL)


def kill_command(token: int, mark: str) -> None:
    """SIGKILL for what the command of this attempt has started, in whatever group."""
    for pid in marked(f"{MARK}={mark}"):
        if has_mark(pid, f"WHEELSCHED_TOKEN={token}"):
            signal_process(pid, signal.SIGKILL)


def group_left(pgid: int, begun: int, mark: str) -> bool:
    """Does anything of ours live in this group?"""
    return pgid > 1 and (begun == begun_ticks(pgid, alive=True) > 0 or bool(members(pgid, mark)))


def supervise(proc: subprocess.Popen[bytes], out: Capture, err: Capture, ended_for: Callable[[], bool], grace_us: int,
              reap: Callable[[subprocess.Popen[bytes]], int]) -> int:
    """Wait for a program and capture what it writes; the exit code, negative for a signal.

    The wait is for the program, not for its pipes: a grandchild that holds them open holds up nobody. When `ended_for`
    then says that the run was told to end, what is left of the group gets most of the grace period and is killed. `reap` waits for it.
    """
    assert proc.stdout is not None
    assert proc.stderr is not None
    pipes = {proc.stdout.fileno(): out, proc.stderr.fileno(): err}
    pidfd = os.pidfd_open(proc.pid)
    poll = select.poll()
    try:
        for fd in (*pipes, pidfd):
            os.set_blocking(fd, False)
            poll.register(fd, select.POLLIN)
        ready: list[int] = []
        while pidfd not in ready:
            ready = [fd for fd, _ in poll.poll()]
            for fd in ready:
                if fd in pipes and not drain(fd, pipes[fd], reads_max=1):
                    poll.unregister(fd)
        for fd, capture in pipes.items():
            drain(fd, capture)
        code = reap(proc)
        if ended_for():
            until = time.monotonic() + 0.8 * grace_us / US  # the parent waits for the whole of it
            while (left := living((proc.pid,))) and time.monotonic() < until:
                time.sleep(0.02)  # nothing tells of the end of a group
            if left:
                signal_group(proc.pid, signal.SIGKILL)
        return code
    finally:
        os.close(pidfd)
        proc.stdout.close()
        proc.stderr.close()


def drain(fd: int, capture: Capture | Tape, reads_max: int = DRAIN_READS) -> bool:
    """Read what a non-blocking pipe holds, at most `reads_max` times 64 KiB. False at its end."""
    for _ in range(reads_max):
        try:
            data = os.read(fd, 65_536)
        except BlockingIOError:
            return True
        if not data:
            return False
        capture.add(data)
    return True


class Capture(io.RawIOBase):
    """Keeps the first and the last half of `limit` bytes of a stream.

    It is also the binary stream under an executor's `sys.stdout`: what Python code prints touches no descriptor. In a
    forked child, whose memory nobody reads, it writes to descriptor `fd`.
    """

    def __init__(self, fd: int, limit: int = OUTPUT_MAX, said: LastWords | None = None) -> None:
        """`said`: where it outlives this process."""
        super().__init__()
        self.dirty = False  # was anything written since the last `take`?
        self.notify: Callable[[], None] | None = None  # called when it becomes dirty by `write` and `add`
        self._fd = fd
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._tape = Tape(limit)
        self._said = said
        os.register_at_fork(after_in_child=self._forked)

    def _forked(self) -> None:
        self._pid = 0
        self._lock = threading.Lock()
        self._said = None

    def writable(self) -> bool:
        """Yes."""
        return True

    def close(self) -> None:
        """Stay open: a run that closes its stdout closes its own stream, not that of the next run."""

    def fileno(self) -> int:
        """The descriptor that children inherit."""
        return self._fd

    def write(self, data: Any) -> int:
        """Keep `data`, or what there is room for."""
        data = bytes(data)
        if self._pid:
            self.add(data)
            return len(data)
        return os.write(self._fd, data)

    def add(self, data: bytes, *, staged: bool = False) -> None:
        """As write, and never to the descriptor. `staged`: see LastWords."""
        fresh, self.dirty = not self.dirty, True
        with self._lock:
            if self._said is not None:
                self._said.add(data, staged=staged)
            self._tape.add(data)
        if fresh and self.notify is not None:
            self.notify()

    def since(self, at: int) -> tuple[int, bytes]:
        """As Tape.since, of what was written since the last `take`."""
        with self._lock:
            return self._tape.since(at)

    def fill(self, fd: int) -> bool:
        """As `drain`, by the only one who reads this pipe: what is read is nowhere else than here, and outlives this process at once."""
        if self._said is None:
            return drain(fd, self)
        for _ in range(DRAIN_READS):
            stage = self._said.expect()
            try:
                count = os.readv(fd, [stage])
            except BlockingIOError:
                return True
            if not count:
                return False
            self.add(bytes(stage[:count]), staged=True)
        return True

    def take(self, token: int = 0) -> tuple[bytes, int]:
        """As Tape.text, for the run with this token. The capture is empty afterwards."""
        with self._lock:
            self.dirty = False
            if self._said is not None:
                self._said.taken(token)
            found = self._tape.text()
            self._tape.clear()
        return found

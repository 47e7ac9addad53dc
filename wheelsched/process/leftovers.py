"""What executors leave when they end: groups and commands to kill, and started files as proof of what had begun and ended."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from ..model.nouns import US
from . import processes
from .started import SUFFIX, SeenFile

if TYPE_CHECKING:
    import os

    from ..model.nouns import Ended
    from ..model.tape import Piece

GONE_WAIT_US: Final = 10 * US  # how long a start waits for the groups of the former generation to be gone


def kill_commands(file: SeenFile, number: int = signal.SIGKILL) -> None:
    """Signal the groups of the commands that the executor was in, if any. SIGKILL is also for what has left the groups."""
    strays = False
    for place in file.places:
        words = place.words
        pgid, begun = words[processes.W_COMMAND_PGID], words[processes.W_COMMAND_BEGUN]
        if not words[processes.W_COMMAND]:
            continue
        if pgid and begun and processes.begun_ticks(pgid) == begun:
            processes.signal_group(pgid, number)
        else:
            strays = True
        if number == signal.SIGKILL:
            processes.kill_command(words[processes.W_COMMAND], file.mark)
    if number != signal.SIGKILL:
        return
    if strays:  # a leader is gone, or was about to be recorded: the mark tells who belongs to it
        for pid in processes.marked(f"{processes.MARK}={file.mark}"):
            processes.signal_process(pid, number)
    begun_ns = file.words[processes.W_MONO_NS]
    if begun_ns and not file.words[processes.W_PLACES]:  # one run at a time, so what is younger was started by the one inside
        processes.kill_younger(file.mark, begun_ns)


class Proof(NamedTuple):
    """What an executor of a former generation has left in its started file."""

    started: int  # the token entered last
    calls: list[tuple[int, int]]  # (first, last token) of each call of a batch handler that was in user code
    ended: dict[int, Ended]  # token -> how it ended
    printed: dict[int, list[Piece]]  # token -> what was captured of those in user code


def kill_former_generation(workers_dir: str | os.PathLike[str], generation: int, boot_id: str) -> dict[int, Proof]:
    """End what servers before `generation` have left running; {worker: proof of what was started, and of what ended}.

    Kills only what is shown to be ours, under the same boot id; waits until it is gone, 10 s at most (then TimeoutError,
    because voiding a lease whose run still runs would run it twice). Proofs of another boot count for nothing: their
    files are removed.
    """
    proofs: dict[int, Proof] = {}
    files: list[SeenFile] = []
    for path in sorted(Path(workers_dir).glob(f"*{SUFFIX}")):
        if path.is_symlink():  # none of ours
            path.unlink()
            continue
        try:
            file = SeenFile(path)
        except ValueError:  # the server died while it made the file: nothing was started with it
            path.unlink()
            continue
        if file.words[processes.W_GENERATION] >= generation:
            file.close()
        elif file.boot_id != boot_id:
            file.close()
            path.unlink()
        else:
            files.append(file)
    for file in files:
        processes.kill_group(file.words[processes.W_PGID], file.words[processes.W_BEGUN], file.mark)
        kill_commands(file)
    until = time.monotonic_ns() // 1_000 + GONE_WAIT_US
    for file in files:
        while _left(file):
            if time.monotonic_ns() // 1_000 > until:
                raise TimeoutError(f"the group {file.words[processes.W_PGID]} of a former executor does not end after SIGKILL")
            time.sleep(0.01)  # these are no children of ours: nothing tells of their end
        file.look()
        if not file.cut:  # else nobody knows what was started
            proofs[file.words[processes.W_WORKER]] = Proof(file.started, file.calls, file.ended, file.last_words()[0])
    for file in files:
        file.remove()
    return proofs


def _left(file: SeenFile) -> bool:
    return any(processes.group_left(pgid, begun, file.mark) for pgid, begun in groups_of(file))


def groups_of(file: SeenFile) -> list[tuple[int, int]]:
    """(number, start of its leader) of the process group of an executor, and of each command that it was in."""
    commands = [(place.words[processes.W_COMMAND_PGID], place.words[processes.W_COMMAND_BEGUN]) for place in file.places]
    return [(file.words[processes.W_PGID], file.words[processes.W_BEGUN]), *commands]

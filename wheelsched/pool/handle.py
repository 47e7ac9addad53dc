"""An executor process as its parent sees it: what it holds, what of that is in user code, how it ended."""

from __future__ import annotations

import signal
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ..model.nouns import NEVER, US, Outcome, format_duration
from ..process import processes

if TYPE_CHECKING:
    import socket
    import subprocess

    from ..model.nouns import Ended
    from ..model.tape import Piece
    from ..process.launch import Launched
    from ..process.started import SeenFile, SeenPlace


@dataclass(frozen=True, slots=True)
class Exited:
    """An executor is gone, its group too. User code was entered for tokens up to `started_token`; None: not known."""

    worker: int
    started_token: int | None
    outcomes: dict[int, int]  # token -> model.Outcome of what was in user code: lost, timed_out, cancelled or interrupted
    calls: list[tuple[int, int]]  # (first, last token) of each call for several runs that was in user code: `outcomes` has the last
    ended: dict[int, Ended]  # token -> of what had ended; it may have been reported
    text: str
    status: int  # exit code, negative for a signal
    can_not_import: bool  # a task module can't be imported, and never could: it says so on stderr
    errors: dict[int, dict[str, str]]  # token -> type and message, of those in `outcomes`; `text` tells what is not here
    begun_us: dict[int, int]  # token -> when user code was entered (monotonic), likewise
    printed: dict[int, list[Piece]] = field(default_factory=dict)  # token -> of those in `outcomes`, of a call under its first token
    said: str = ""  # by itself, of why it could not begin or had to be replaced; else empty
    told: bool = False  # as a start that has failed: the log has it

    @property
    def outcome(self) -> int:
        """Outcome of what was entered last."""
        return self.outcomes.get(self.started_token or 0, Outcome.LOST)

    def call_of(self, token: int) -> int:
        """The token under which the others know of a run that was in one call with other runs; 0 for one that was not."""
        return next((last for first, last in self.calls if first <= token <= last), 0)


class Place:
    """Where an executor shows one run (or one call of a batch handler) that is in user code, and how far its ending has come."""

    __slots__ = ("because", "ending", "inside", "next_step_us", "seen", "silent_us", "step", "why", "words")

    def __init__(self, seen: SeenPlace) -> None:
        self.seen = seen
        self.words = seen.words
        self.inside = seen.inside
        self.ending = 0  # the token whose run is being ended
        self.why = 0
        self.because = ""  # how the text of its error begins, of a timeout
        self.silent_us = 0  # the heartbeat_timeout that is the reason
        self.step = 0  # 0 told, 1 SIGTERM sent, 2 SIGKILL sent
        self.next_step_us = NEVER

    def beat_us(self, since_us: int) -> int:
        """When user code that was entered at `since_us` last said that it goes on; when it was entered, if it never did."""
        return max(since_us, -(-self.words[processes.W_BEAT_NS] // 1_000))


class Executor:
    """One executor: from when it is wanted (the process may follow later: back-off) until its process has ended."""

    def __init__(self, worker: int, start_at_us: int, *, once: bool) -> None:
        """`once`: if the process can't be made, that is an end like any other, and nobody tries again."""
        self.worker = worker
        self.once = once
        self.start_at_us = start_at_us  # monotonic; NEVER once it is started
        self.proc: subprocess.Popen[bytes] | None = None  # this, and what belongs to it, there is once it is started
        self.sock: socket.socket | None = None  # the caller's end
        self.pidfd = -1
        self.outputs: list[int] = []
        self.asked: socket.socket | None = None  # what its stacks are asked over
        self.held: deque[list[Any]] = deque()  # [tokens, limits, how many are open]; tokens rise; limits as in Pool.sent
        self.finished_any = False
        self.begun = False  # it has said hello
        self.unwanted = False  # it was ended by us before that: no start that has failed
        self.wake_us = start_at_us
        self.places: list[Place] = []
        self.ended = False  # as a whole, by a signal, because a run in it would not end
        self.looked_us = 0  # when it was last seen whether it is stopped
        self.stopped_us = 0  # since when it is
        self.because = ""  # why it was ended otherwise
        self.exit_by_us = NEVER  # it has closed its end of the socket: when it is ended, or killed, if it has not exited
        self.late = False  # it had not
        self.group_until_us: int | None = None  # it has ended; what else got the SIGTERM of which it did has until then
        self.cancels: set[int] = set()
        self.kills: set[int] = set()  # of these, the ones that are not told first
        self._file: SeenFile | None = None

    def launched(self, made: Launched) -> None:
        """It is a process now."""
        self.proc, self.sock, self._file, self.pidfd, self.outputs, self.asked = made
        self.places = [Place(seen) for seen in made.file.places]
        self.start_at_us = self.wake_us = NEVER

    @property
    def file(self) -> SeenFile:
        """Of one that was started."""
        assert self._file is not None, self.worker
        return self._file

    @property
    def pid(self) -> int:
        """0 before it is started."""
        return 0 if self.proc is None else self.proc.pid

    @property
    def started(self) -> int:
        """The token entered last, when one looked: of what is held, those above it were not entered."""
        return 0 if self._file is None else self._file.started

    def look(self) -> None:
        """See what it shows now."""
        if self._file is not None:
            self._file.look()

    def inside(self) -> dict[int, int]:
        """{token: when it was entered, monotonic} of what is in user code, when one looked."""
        return {token: since for place in self.places for token, since in [place.inside()] if since}

    def limits_of(self, token: int, first: int = 0) -> tuple[int, int]:
        """(timeout, heartbeat_timeout) in µs of what was entered with this token: of a batch handler, whose first is `first`, the
        smallest. NEVER when it isn't held, and for no limit.
        """
        first = first or token
        least = [NEVER, NEVER]
        for tokens, limits, _ in self.held:
            if tokens[-1] >= first and tokens[0] <= token:
                low, high = np.searchsorted(tokens, first), np.searchsorted(tokens, token, "right")
                if low < high:
                    for i, column in enumerate(limits):
                        least[i] = min(least[i], int(column[low:high].min()))
        return least[0], least[1]

    def least_waiting(self, token: int) -> int:
        """The smallest limit of what is held and not entered; NEVER for nothing."""
        least = NEVER
        for tokens, limits, _ in self.held:
            if tokens[-1] > token:
                at = np.searchsorted(tokens, token, "right")
                least = min(least, *(int(column[at:].min()) for column in limits))
        return least


def outcome_of(executor: Executor, place: Place, token: int) -> int:
    """Of a run that was in user code when its executor ended."""
    if place.ending == token:
        return place.why
    return Outcome.INTERRUPTED if executor.ended else Outcome.LOST


def too_long(timeout_us: int, *, batch: bool) -> str:
    """How the error of a run begins whose timeout is over, or the shortest of the runs in one call."""
    limit = format_duration(timeout_us)
    return f"ran longer than {f'the shortest timeout in its batch, {limit},' if batch else f'its timeout of {limit}'} and"


def error_of(executor: Executor, place: Place, token: int, how: str) -> dict[str, str]:
    """Type and message of a run in whose user code an executor was that we have ended; `how`: "was ended by SIGTERM"."""
    by = f"(worker {executor.worker} {how})"
    if place.ending != token:
        return {"type": "wheelsched.WorkerLost", "message": f"was in a process that was ended because of another run {by}"}
    heeded = "was told to end" if not place.step else "was ended at once" if token in executor.kills else "did not end when told to"
    if place.why == Outcome.CANCELLED:
        return {"type": "wheelsched.Cancelled", "message": f"{heeded} {by}"}
    return {"type": "wheelsched.TimedOut", "message": f"{place.because} {heeded} {by}"}


def text_of(executor: Executor, status: int, outcome: int, how: str) -> str:
    """What is told of an executor that has ended; `outcome`: of the run that it was in."""
    who = f"worker {executor.worker} (pid {executor.pid})"
    text = f"{who} {how}"
    silent_us = max(place.silent_us for place in executor.places)
    silence = f"no heartbeat for {silent_us / US:g} s: " if silent_us else ""
    if executor.late and status < 0:
        text = f"{who} did not exit after its last run: killed"
    elif executor.file.text:
        text = f"{text}: {executor.file.text}" if status else f"{who} is replaced {executor.file.text}"
    if executor.ended and len(executor.places) > 1:
        return f"{silence}{text}, with all that was in it: a run did not end when it was told to"
    if outcome == Outcome.TIMED_OUT:
        return f"timed out: {silence}{text}"
    return f"cancelled: {text}" if outcome == Outcome.CANCELLED else text


def how_ended(executor: Executor, status: int) -> str:
    """As "was killed by SIGKILL"."""
    if status >= 0:
        return f"ended with exit code {status}{executor.because}"
    verb = "ended" if executor.ended else "killed"
    try:
        return f"was {verb} by {signal.Signals(-status).name}{executor.because}"
    except ValueError:
        return f"was {verb} by signal {-status}{executor.because}"

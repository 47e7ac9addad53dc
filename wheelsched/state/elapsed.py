"""Time that has really passed, by which things are forgotten for good. Pure, part of the state.

What a wall clock says may be wrong for a minute or for a day, so nothing is forgotten on its word alone. Elapsed time counts what the
boot clock measures (it goes on while the machine sleeps), over all starts within one boot of the machine. A step of the wall clock while
that clock runs changes nothing.

How long a machine was off no clock but the wall clock knows. So the time between the last record and a start after a boot is a *claim*:
it counts once the wall clock has stood there for a day. Steps in the first day after such a start correct the claim: a machine that
starts with a wrong clock is set right soon. What stood lowest during the last day is believed, so of many short boots each adds what
has stood for a day.

What was stamped between such a start and that day's end was stamped without the absence, which lay before it. So stamps are read through
`read`: it adds what came to count later. Else a key that is an hour old would be as old as the absence.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from ..model.nouns import US

BELIEVED_AFTER_US: Final = 86_400 * US  # how long a claim must stand
BOOT_MAX_US: Final = 60 * US  # of the boot clock at a start, at most so much is time since the last record: the data may have moved here
_APART_US: Final = 600 * US  # claims are kept no closer to each other
_BELATED_MAX: Final = 512  # one a start that stood for a day


@dataclass(slots=True)
class Elapsed:
    """The clock itself. `us` grows only; it begins with the wall time of the store's first start."""

    begun_us: int = 0  # 0: not begun
    lived_us: int = 0  # measured, from `begun_us` on
    absent_us: int = 0  # claimed and believed
    wall_us: int = 0  # as of the last look
    boot_us: int = 0
    boot: str | None = None
    started_us: int = -1  # `lived_us` at the last start without a measure; -1: all claims are settled
    claims: list[list[int]] = field(default_factory=list)  # [since when (lived), so much is claimed in sum, `us` at its start]; growing
    start_us: int = 0  # `us` at that start
    belated: list[list[int]] = field(default_factory=list)  # [first, end, more]: stamps of this span lack so much that lay before them

    @property
    def us(self) -> int:
        """As of the last look."""
        return self.lived_us + self.absent_us

    def read(self, stamp: Any) -> Any:
        """A stamp, or a column of them, with the absences before it that came to count later. A second's rounding up does no harm."""
        out = stamp
        for first, end, more in self.belated:
            out = out + ((stamp >= first) & (stamp < end + US)) * more
        return out

    def prepare(self, wall_us: int) -> None:
        """Where the first look begins: at the last record of a program that had no such clock, or at the first one of all."""
        self.lived_us = self.wall_us = wall_us

    def at(self, boot_us: int) -> int:
        """As of now, by the boot clock of the boot of the last look."""
        lived = self.lived_us + max(0, boot_us - self.boot_us)
        return lived + max(self.absent_us, *(claim for since, claim, _ in self.claims if since <= lived - BELIEVED_AFTER_US), 0)

    def look(self, wall_us: int, boot_us: int, boot: str) -> None:
        """Take up both clocks."""
        gone = wall_us - self.wall_us
        if boot == self.boot and boot_us >= self.boot_us:
            passed = boot_us - self.boot_us
            self.lived_us += passed
            self._believe()
            if self.started_us >= 0 and self.lived_us - self.started_us < BELIEVED_AFTER_US:
                self._claim(gone - passed)
        else:
            passed = min(max(gone, 0), boot_us, BOOT_MAX_US)
            self.lived_us += passed
            self._believe()
            if self.begun_us or gone:  # a new store was away from nothing
                self.started_us, self.start_us = self.lived_us, self.us
                self._claim(gone - passed)
        self.begun_us = self.begun_us or self.lived_us
        self.wall_us, self.boot_us, self.boot = wall_us, boot_us, boot

    def _believe(self) -> None:
        """What has stood for a day counts. Claims of which none is younger are settled: the next start begins anew."""
        if not self.claims:
            return
        believed = [claim for claim in self.claims if claim[0] <= self.lived_us - BELIEVED_AFTER_US]
        for _, claim, first in believed:
            if claim > self.absent_us:
                self.belated = [*self.belated[1 - _BELATED_MAX :], [first, self.us, claim - self.absent_us]]
                self.absent_us = claim
        self.claims = believed[-1:] + self.claims[len(believed) :]
        if len(self.claims) == 1 and self.lived_us - self.started_us >= BELIEVED_AFTER_US:
            self.claims, self.started_us = [], -1

    def _claim(self, more_us: int) -> None:
        """Keep the sum of all claims, and since when it has stood at that: a lower one has stood for as long as those before it."""
        if not self.claims:
            self.claims = [[self.lived_us - BELIEVED_AFTER_US, self.absent_us, self.start_us]]
        claim, since, first = self.claims[-1][1] + more_us, self.lived_us, self.start_us
        while self.claims and self.claims[-1][1] >= claim:
            since, _, first = self.claims.pop()
        if len(self.claims) > 1 and self.claims[-1][0] - self.claims[-2][0] < _APART_US:
            first = min(first, self.claims.pop()[2])
        self.claims.append([since, claim, first])

    def to_plain(self) -> list[Any]:
        """For a snapshot."""
        return [
            self.begun_us, self.lived_us, self.absent_us, self.wall_us, self.boot_us, self.boot, self.started_us,
            [list(claim) for claim in self.claims], self.start_us, [list(span) for span in self.belated],
        ]

    @classmethod
    def from_plain(cls, data: list[Any]) -> Elapsed:
        """The clock again."""
        return cls(*data)


__all__ = ["BELIEVED_AFTER_US", "Elapsed"]

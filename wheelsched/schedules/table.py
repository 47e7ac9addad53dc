"""The server's table of schedules: wire forms in, columns of next times out. Pure.

A job holds (kind, a) and its own anchor. What `a` is depends on the kind:

    1 cron              an index here; schedules that fire alike share one
    2 every             the period in microseconds; instants are anchor + k * period, k >= 1
    3 at                0; the anchor is the instant
    4 manual            0; there is no instant
    5 union             an index here; the instants of 1 to 100 members of kinds 1 to 3, equal ones once. A member without
                        an anchor of its own takes the job's
    6 after completion  the period; evaluated as `at`: the anchor is the one time that is known, and whoever knows that a
                        run ended moves it
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any, Final

from ..model.errors import ScheduleError
from ..model.nouns import INSTANT_MAX_US, MS, NEVER, US
from ._cron import CronTable
from .expressions import can_match, parse
from .grids import Grid, count_together, meet, outer
from .schedule import BEGIN_US, check_union, check_wire, columns, dst_codes, masks_of, never_fires

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from .zones import Zones

__all__ = [
    "KIND_AFTER", "KIND_AT", "KIND_CRON", "KIND_EVERY", "KIND_MANUAL", "KIND_UNION", "ScheduleTable",
]

KIND_CRON: Final = 1
KIND_EVERY: Final = 2
KIND_AT: Final = 3
KIND_MANUAL: Final = 4
KIND_UNION: Final = 5
KIND_AFTER: Final = 6

_FEW: Final = 20_000  # instants of a union that are stepped through: a millisecond or two
_REASONS: Final = {1: "dst_gap", 2: "dst_overlap"}  # by the numbers of `_cron`


class ScheduleTable:
    """Compiled schedules, held and given back by number. One thread at a time."""

    def __init__(self, zones: Zones) -> None:
        self._zones = zones
        self._table = CronTable()
        self._zone_index: dict[str, int] = {}
        # what fires alike -> index, and index -> what it is and how many hold it
        self._by_key: dict[tuple[Any, ...], int] = {}
        self._users: dict[int, tuple[tuple[Any, ...], int]] = {}
        self._union_by_key: dict[tuple[tuple[int, int, int], ...], int] = {}
        self._union_users: dict[int, tuple[tuple[tuple[int, int, int], ...], int]] = {}

    def __len__(self) -> int:
        """How many different cron schedules and unions are held."""
        return len(self._users) + len(self._union_users)

    def compile(self, wire: dict[str, Any], job_name: str) -> tuple[int, int]:
        """(kind, a) of a wire form, to be released later; `job_name` is what H hashes.

        ScheduleError for anything that is not right, and for what can never fire; nothing is held then.
        """
        if isinstance(wire, dict) and wire.get("kind") == "union":
            return KIND_UNION, self._compile_union(wire, job_name)
        kind = check_wire(wire)
        if kind == "at":
            return KIND_AT, 0
        if kind == "manual":
            return KIND_MANUAL, 0
        if kind == "every":
            if wire["every_us"] % MS:
                raise ScheduleError(f"every: {wire['every_us']} µs is given; whole milliseconds are allowed")
            return KIND_AFTER if wire.get("after_completion") else KIND_EVERY, int(wire["every_us"])
        index = self._compile_cron(wire, job_name)
        if index is None:
            raise never_fires(wire["expr"], wire["tz"])
        return KIND_CRON, index

    def _compile_cron(self, wire: dict[str, Any], job_name: str) -> int | None:
        """The index of a checked cron schedule; None if it never fires."""
        masks = masks_of(wire["expr"], wire["seconds"], wire["day_or"], None, wire["dst_gap"], wire["dst_overlap"])
        if masks.hashed:
            masks = parse(wire["expr"], wire["seconds"], wire["day_or"], job_name)
        masked = columns(masks)
        codes = dst_codes(masks, wire["dst_gap"], wire["dst_overlap"])
        key = (masked, wire["tz"], codes)
        index = self._by_key.get(key)
        if index is None:
            zone = self._zone(wire["tz"])
            if not can_match(masks):
                return None
            index = self._table.add(*masked, zone, *codes)
            if self._table.next_one(index, BEGIN_US) == NEVER:
                self._table.remove(index)
                return None
            self._by_key[key] = index
            self._users[index] = key, 0
        self._users[index] = key, self._users[index][1] + 1
        return index

    def _compile_union(self, wire: dict[str, Any], job_name: str) -> int:
        """The index of a union, which holds its cron members. A member that never fires is left out."""
        members = check_union(wire)
        rows: set[tuple[int, int, int]] = set()
        held: list[int] = []
        try:
            for member, param_us in members:
                if member["kind"] == "cron":
                    index = self._compile_cron(member, job_name)
                    if index is not None:
                        held.append(index)
                        rows.add((KIND_CRON, index, NEVER))
                elif member["kind"] == "every":
                    rows.add((KIND_EVERY, member["every_us"], param_us))
                else:
                    rows.add((KIND_AT, 0, param_us))
        except ScheduleError:
            for index in held:
                self.release(KIND_CRON, index)
            raise
        if not rows:  # then nothing is held
            raise ScheduleError("schedule: none of the union's members ever fires")
        for index in held[:]:  # the union holds each of its members once
            if held.count(index) > 1:
                held.remove(index)
                self.release(KIND_CRON, index)
        key = tuple(sorted(rows))
        union = self._union_by_key.get(key)
        if union is None:
            kinds, values, anchors = zip(*key, strict=True)
            union = self._table.add_union(array("B", kinds), array("q", values), array("q", anchors))
            self._union_by_key[key] = union
            self._union_users[union] = key, 0
        else:
            for index in held:
                self.release(KIND_CRON, index)
        self._union_users[union] = key, self._union_users[union][1] + 1
        return union

    def release(self, kind: int, a: int) -> None:
        """Give back what one `compile` gave. KeyError if nothing of the kind is held."""
        if kind == KIND_CRON:
            key, users = self._users[a]
            if users > 1:
                self._users[a] = key, users - 1
            else:
                del self._users[a], self._by_key[key]
                self._table.remove(a)
        elif kind == KIND_UNION:
            rows, users = self._union_users[a]
            if users > 1:
                self._union_users[a] = rows, users - 1
            else:
                del self._union_users[a], self._union_by_key[rows]
                self._table.remove_union(a)
                for member, index, _ in rows:
                    self.release(member, index)

    def needs_anchor(self, kind: int, a: int) -> bool:
        """Whether a schedule has a grid that begins with the job's first put: `every` itself, or within a union.

        KeyError for a union that isn't held.
        """
        if kind == KIND_UNION:
            return any(member == KIND_EVERY and anchor == NEVER for member, _, anchor in self._union_users[a][0])
        return kind == KIND_EVERY

    def next_many(self, kind: Buffer, a: Buffer, anchor_us: Buffer, after_us: Buffer, out: Buffer) -> None:
        """The first nominal instant strictly after, or NEVER, in bulk: kind uint8[n], all others int64[n].

        IndexError or ValueError for a schedule that isn't there, and then nothing was computed.
        """
        self._table.next_mixed(kind, a, anchor_us, after_us, out)

    def next_one(self, kind: int, a: int, anchor_us: int, after_us: int) -> int:
        """The first nominal instant strictly after, or NEVER. Errors as `next_many`."""
        return self._table.next_row(kind, a, anchor_us, after_us)

    def prev_one(self, kind: int, a: int, anchor_us: int, before_us: int) -> int:
        """The last nominal instant strictly before, or NEVER. Errors as `next_many`."""
        return self._table.prev_row(kind, a, anchor_us, before_us)

    def count_between(
        self, kind: int, a: int, anchor_us: int, after_us: int, until_us: int, limit: int
    ) -> tuple[int, int, int]:
        """How many nominal instants lie in (after, until], at most `limit`; the first and the last of all of them.

        0, NEVER, NEVER if there are none. The last one isn't capped by `limit`.
        """
        first = self.next_one(kind, a, anchor_us, after_us)
        if first == NEVER or first > until_us or limit < 1:
            return 0, NEVER, NEVER
        last = self.prev_one(kind, a, anchor_us, min(until_us, INSTANT_MAX_US) + 1)
        if kind == KIND_UNION:
            return self._count_union(a, anchor_us, first - 1, last, limit), first, last
        return self._table.count(kind, a, anchor_us, after_us, until_us, limit), first, last

    def _count_union(self, a: int, anchor_us: int, after_us: int, until_us: int, limit: int) -> int:
        """Different instants of a union's members: by steps if these are few, by arithmetic otherwise.

        Grids are counted by where they meet, cron by the bits of each day less what the grids hit, the rest one by one.
        """
        rows = [(kind, value, anchor_us if own == NEVER else own) for kind, value, own in self._union_users[a][0]]
        counts = [self._table.count(*row, after_us, until_us, limit) for row in rows]
        grids = outer([
            Grid(self._table.next_row(*row, after_us), row[1], self._table.prev_row(*row, until_us + 1))
            for row, count in zip(rows, counts, strict=True) if row[0] == KIND_EVERY and count
        ])
        together = count_together(grids) if sum(counts) > _FEW else None
        if together is None:
            return self._table.count(KIND_UNION, a, anchor_us, after_us, until_us, limit)
        crons = array("q", (row[1] for row, count in zip(rows, counts, strict=True) if row[0] == KIND_CRON and count))
        if crons:
            seconds = Grid(after_us // US * US, US, (until_us // US + 1) * US)
            hits = [both for grid in grids if (both := meet(grid, seconds)) is not None]
            together += self._table.count_beside(
                crons, array("q", (g.first // US for g in hits)), array("q", (g.period // US for g in hits)), after_us, until_us
            )
        for at_us in {anchor for kind, _, anchor in rows if kind == KIND_AT and after_us < anchor <= until_us}:
            together += not any(kind != KIND_AT and self._table.next_row(kind, v, own, at_us - 1) == at_us for kind, v, own in rows)
        return min(together, limit)

    def dropped(
        self, kind: int, a: int, anchor_us: int, after_us: int, until_us: int
    ) -> list[tuple[int, int, int, str]]:
        """Wall times in (after, until] that a change of the clock took away: (first, last, count, reason) in order.

        A wall time in a gap is known by the instant that `shift` would give it, a repeated one by the instant left out;
        reason is `dst_gap` or `dst_overlap`. An instant that the schedule runs all the same is not among them, and
        `run_after`, `shift` and `both` lose nothing. One range has one reason, one change and no occurrence inside.
        Cost: microseconds a change, see `quiet`. KeyError, IndexError for a schedule that isn't held.
        """
        lost: dict[int, tuple[int, int]] = {}
        for index in self._crons(kind, a):
            for us, reason, change in self._table.lost(index, after_us, until_us):
                if kind == KIND_CRON or self.next_one(kind, a, anchor_us, us - 1) != us:
                    lost.setdefault(us, (reason, change))
        ranges: list[tuple[int, int, int, str]] = []
        before = (0, 0)
        for us, cause in sorted(lost.items()):
            word = _REASONS[cause[0]]
            if cause == before and self.next_one(kind, a, anchor_us, ranges[-1][1]) > us:
                first, _, count, _ = ranges[-1]
                ranges[-1] = first, us, count + 1, word
            else:
                ranges.append((us, us, 1, word))
            before = cause
        return ranges

    def quiet(self, kind: int, a: int, at_us: int) -> tuple[int, int]:
        """(low, high) around an instant: `dropped` of any after >= low and until <= high is surely empty.

        (-2**63, NEVER) for what never drops. Wide, not the widest: it looks 20 years of summer time ahead and back.
        """
        low, high = BEGIN_US, NEVER
        for index in self._crons(kind, a):
            one_low, one_high = self._table.quiet(index, at_us)
            low, high = max(low, one_low), min(high, one_high)
        return low, high

    def wall_fate(self, kind: int, a: int, anchor_us: int, us: int) -> tuple[str, int | None] | None:
        """Which change of the clock took an instant away, `dst_gap` or `dst_overlap`, and the instant that runs instead.

        None for an occurrence, and for an instant whose wall time doesn't match anyway.
        """
        if self.next_one(kind, a, anchor_us, us - 1) == us:
            return None
        found: tuple[str, int | None] | None = None
        for index in self._crons(kind, a):
            reason, instead = self._table.fate(index, us)
            if reason and (found is None or found[1] is None):
                found = _REASONS[reason], None if instead == NEVER else instead
        return found

    def _crons(self, kind: int, a: int) -> list[int]:
        """The indexes of a schedule's cron parts."""
        if kind == KIND_UNION:
            return [index for member, index, _ in self._union_users[a][0] if member == KIND_CRON]
        return [a] if kind == KIND_CRON else []

    def _zone(self, name: str) -> int:
        index = self._zone_index.get(name)
        if index is None:
            zone = self._zones.get(name)
            index = self._table.add_zone(zone.at_s, zone.offset_s, zone.cycle)
            self._zone_index[name] = index
        return index

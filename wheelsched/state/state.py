"""All that is remembered, and `apply(kind, fields)`: the only way it changes, live and on replay alike.

Nothing here decides and nothing reads a clock: a record carries every result of a decision. `digest()` is equal for equal
states, so digest(replay(journal)) == digest(live) can be asserted at any time.
"""

from __future__ import annotations

from collections import OrderedDict
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import numpy as np

from ..model import plain
from ..model.ids import job_key
from ..model.nouns import TRANSITIONS, JobState, Reason, RunFlag, RunState, Trigger, to_datetime
from ..tables._jobs import JobTable
from ..tables._runs import FINISHED, NO_ROW, RunTable
from . import changelog
from . import snapshot as state_snapshot
from .attempts import AttemptRecords
from .bygone import Bygone
from .changelog import NO_SPEC, Changes
from .creation import Created
from .elapsed import Elapsed
from .nouns import IDENTITY, Group, Key, Line, Meta, spec_bytes
from .reused_rows import Trail
from .touched import Touched

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray


SKIP = -1  # `to` of an exception: the occurrence is skipped
AS_EVER = -2  # it is no exception any more
STEPS_KEPT = 1_000
_STAMP = "%Y-%m-%d %H:%M:%SZ"
_DUE_COLUMNS = ("job", "nominal", "state", "disposition", "reason", "until", "count", "missed")


def _moves() -> bytes:
    table = bytearray(256)
    for (state, event), target in TRANSITIONS.items():
        table[state << 4 | event] = target
    return bytes(table)


class State(AttemptRecords):
    """The tables and the small maps beside them."""

    def __init__(self) -> None:
        super().__init__()
        self.jobs = JobTable()
        self.runs = RunTable(self.jobs, _moves())
        self.created = Created()
        self.meta = Meta()
        self.specs: dict[int, dict[str, Any]] = {}
        self.spec_ids: dict[bytes, int] = {}
        self.lines: dict[Line, int] = {}  # ready line -> list of runs
        self.line_of: dict[int, Line] = {}
        self.queue_numbers: dict[str, int] = {}  # all that a definition named, settings or not
        self.key_numbers: dict[tuple[str, str], int] = {}  # (queue, concurrency key); ("", job): of a job with its own concurrency
        self.group_numbers: dict[tuple[str, str], int] = {}  # (queue, namespace)
        self.task_numbers: dict[str, int] = {}
        self.queues: dict[str, dict[str, Any]] = {}  # queue -> its settings, those alone that are not the house's
        self.notes: dict[int, str] = {}
        self.pauses: dict[int, str] = {}  # job row -> why it is paused
        self.keys: dict[bytes, Key] = {}
        self.groups: dict[int, Group] = {}  # that have not ended, by number
        self._ended: list[int] = []  # of these, those whose members have all ended; their GROUP_END is in the same commit
        self.group_of: dict[bytes, int] = {}  # run that waits for a group -> its number
        self.replies: OrderedDict[bytes, tuple[int, bytes]] = OrderedDict()  # rid -> (when in elapsed time, encoded reply)
        self.exceptions: dict[tuple[int, int], int] = {}  # (job row, nominal) -> SKIP or the instant it was moved to
        self.past_us: dict[tuple[int, int], int] = {}  # of those: when their nominal time is past, in elapsed time
        self.elapsed = Elapsed()
        self.touched = Touched()
        self.bygone = Bygone()
        self.calendars: dict[str, dict[str, Any]] = {}
        self.zones: dict[str, bytes] = {}  # the zone data that next times were computed with
        self.tzdiff: dict[str, Any] = {}  # the last TZDIFF record
        self.changes: list[Changes] = []  # not yet in history
        self.trail = Trail()  # soft state

    def apply(self, kind: str, f: dict[str, Any]) -> Any:
        """Change the state by one record. Returns what the engine needs to arm timers; replay ignores it."""
        result = getattr(self, "_" + kind.lower())(f)
        if self.runs.left:
            self._leave_groups()
        self.meta.seq += 1
        if "at" in f:
            self.meta.at_us = max(self.meta.at_us, f["at"]) if kind != "CLOCK" else f["at"]
        return result

    # Records

    def _start(self, f: dict[str, Any]) -> None:
        assert f["generation"] > self.meta.generation
        if not self.elapsed.begun_us:
            self.elapsed.prepare(self.meta.at_us or f["wall"])
        self.meta.generation = f["generation"]
        self.meta.boot_id = f["boot_id"]
        self.meta.zone_version = f["zone_version"]
        self.meta.at_us = max(self.meta.at_us, f["wall"])
        self.meta.tokens = 0
        self.trail.started(self.meta.seq + 1, f["generation"])

    def _spec(self, f: dict[str, Any]) -> None:
        self.add_spec(f["id"], f["wire"])

    def add_spec(self, spec: int, wire: dict[str, Any]) -> None:
        """Number one definition."""
        assert spec == len(self.specs)
        self.specs[spec] = wire
        self.spec_ids[spec_bytes(wire)] = spec
        queue, key = wire["queue"], wire["concurrency_key"] or ""
        most, expires_us = wire.get("concurrency", 0), wire["expires_after_us"]
        line = Line(queue, wire["priority"], wire["namespace"], wire["task"], False, key, wire.get("concurrency_of", ""), most)
        first = line if expires_us is None else line._replace(expires_us=expires_us)
        four = [self._line(one._replace(backlog=backlog)) for one in (first, line) for backlog in (False, True)]
        self.runs.set_spec(spec, four[0], four[1], wire["retry"]["attempts"], four[2], four[3])

    def _line(self, line: Line) -> int:
        if line not in self.lines:
            if line.queue not in self.queue_numbers:
                self.queue_numbers[line.queue] = self.runs.new_queue()
            group = self.group_numbers.setdefault((line.queue, line.namespace), len(self.group_numbers))
            task = self.task_numbers.setdefault(line.task, len(self.task_numbers))
            number = self.runs.new_list(
                self.queue_numbers[line.queue], self._key(line.queue, line.key), self._key("", line.job), line.job_most, group, task,
                line.priority, line.backlog, line.expires_us,
            )
            self.lines[line], self.line_of[number] = number, line
        return self.lines[line]

    def _key(self, queue: str, key: str) -> int:
        if key and (queue, key) not in self.key_numbers:
            self.key_numbers[queue, key] = self.runs.new_key()
        return self.key_numbers.get((queue, key), 0)

    def _put(self, f: dict[str, Any]) -> NDArray[np.uint32]:
        before = self.jobs.find(list(f["name"]), f["key"])
        old = self._shown(before)
        self.trail.put(self.meta.seq + 1, (before == NO_SPEC) | (old["state"] == plain.JOB_DELETED))
        payloads = self._other_payloads(before, f["payload"])
        rows = self.jobs.put(f["name"], f["key"], f["payload"], f["spec"], f["param"], f["next"], f["cursor"], f["state"], f["at"])
        self._note(rows, f["note"])
        for row in rows[f["state"] != plain.JOB_PAUSED].tolist() if self.pauses else ():
            self.pauses.pop(row, None)
        self._changed(f, f["key"], rows, old, f["note"])
        self.changes[-1].payloads = payloads
        self._touch(rows)
        return rows

    def _other_payloads(self, rows: NDArray[np.uint32], payloads: list[bytes]) -> list[list[Any]]:
        """[row, old, new] of the jobs that get another payload."""
        found: list[list[Any]] = []
        for i in np.flatnonzero(rows != NO_SPEC).tolist():
            old = self.jobs.payload(int(rows[i]))
            if old != payloads[i]:
                found.append([i, *(None if len(side) > changelog.PAYLOAD_SHOWN else side for side in (old, payloads[i]))])
        return found

    def _shown(self, rows: NDArray[np.uint32]) -> dict[str, NDArray[Any]]:
        """What the change log keeps of jobs; NO_SPEC where there is none."""
        n = len(rows)
        old: dict[str, NDArray[Any]] = {
            "spec": np.full(n, NO_SPEC, np.uint32), "param_us": np.zeros(n, np.int64), "state": np.zeros(n, np.uint8),
        }
        known = np.flatnonzero(rows != NO_SPEC)
        if len(known):
            fields = self.jobs.gather(rows[known])
            for name, column in old.items():
                column[known] = fields[name]
        return old

    def _changed(self, f: dict[str, Any], keys: bytes, rows: NDArray[np.uint32], old: dict[str, NDArray[Any]], notes: list[list[Any]],
                 what: int = changelog.SEEN) -> None:
        """Keep who changed what, until it goes to history."""
        new = self.jobs.gather(rows)
        self.changes.append(Changes(f["at"], f["uid"], keys, {
            "what": np.full(len(rows), what, np.uint8), "version": new["version"].copy(), "old_spec": old["spec"],
            "old_param": old["param_us"], "old_state": old["state"], "spec": new["spec"].copy(), "param": new["param_us"].copy(),
            "state": new["state"].copy(),
        }, [list(pair) for pair in notes]))

    def _touched(self, f: dict[str, Any], row: int, what: int, note: str) -> None:
        """Keep who did something to single occurrences of a job."""
        rows = np.array([row], np.uint32)
        self._changed(f, job_key(self.jobs.names(rows)[0]), rows, self._shown(rows), [[0, note]], what)

    def _note(self, rows: NDArray[np.uint32], notes: list[list[Any]]) -> None:
        for i, note in notes:
            if note:
                self.notes[int(rows[i])] = note
            else:
                self.notes.pop(int(rows[i]), None)

    def _due(self, f: dict[str, Any]) -> NDArray[np.uint32]:
        self.jobs.set(f["job"], f["job_state"], f["next"], f["cursor"], -1)
        self._touch(f["job"][f["job_state"] == plain.JOB_FINISHED])
        self.bygone.pass_by(f["job"], f["cursor"])
        if self.exceptions:
            for pair in zip(f["job"].tolist(), f["nominal"].tolist(), strict=True):
                self._unmark(pair)
        made = f["state"] > 0
        columns = f if made.all() else {name: f[name][made] for name in _DUE_COLUMNS}
        job, nominal, state, disposition, reason, until, count, missed = (columns[name] for name in _DUE_COLUMNS)
        rows = self.runs.due(job, nominal, state, disposition, reason, until, count, missed, f["at"])
        self.created.add(rows)
        return rows

    def _enqueue(self, f: dict[str, Any]) -> NDArray[np.uint32]:
        rows = self.runs.enqueue(
            f["job"], f["id"], f["spec"], f["trigger"], f["nominal"], f["due"], f["state"], f["payload"], f["at"]
        )
        self.created.add(rows)
        if len(rows) and f["trigger"][0] == Trigger.BACKFILL:
            first, last = (to_datetime(int(f["nominal"][i])) for i in (0, -1))
            self._touched(f, int(f["job"][0]), changelog.BACKFILL, f"{len(rows)} runs, {first:{_STAMP}} to {last:{_STAMP}}")
        for i, key in f["key"]:
            self.keys[key] = Key(f["id"][16 * i : 16 * i + 16], self.stamp(f["at"]), self._may_hold(key))
        return rows

    def _may_hold(self, key: bytes) -> bytes:
        """Ids of the runs that have an identity or had it and may be sent back, when another one takes it."""
        known = self.keys.get(key)
        if known is None or not key.startswith(IDENTITY):
            return b""
        return known.holders(self.runs, may=True)

    def _group(self, f: dict[str, Any]) -> None:
        self.groups[f["number"]] = Group(f["run"], f["members"], f["succeeded"])
        self.group_of[f["run"]] = f["number"]
        self.meta.groups = f["number"]

    def _leave_groups(self) -> None:
        """Members have ended. A group that has ended itself is no more: whoever is sent back belongs to none."""
        for number, state in self.runs.left:
            group = self.groups[number]
            name = "succeeded" if state == RunState.SUCCEEDED else "failed" if state == RunState.DEAD else "cancelled"
            setattr(group, name, getattr(group, name) + 1)
            if not group.left:
                self._ended.append(number)
        self.runs.left.clear()

    def load_groups(self, groups: dict[int, Group]) -> None:
        """Groups as a snapshot has them."""
        self.groups = groups
        self.group_of = {group.run_id: number for number, group in groups.items()}

    def ended_groups(self) -> list[int]:
        """Numbers of the groups whose last member has ended, and whose GROUP_END is not recorded yet."""
        return list(self._ended)

    def _group_end(self, f: dict[str, Any]) -> None:
        del self.group_of[self.groups.pop(f["number"]).run_id]
        self._ended.remove(f["number"])
        if not len(f["run"]):
            return
        if f["payload"]:
            self.runs.let_go(f["run"], f["payload"], f["at"])
        else:
            self.runs.expire(f["run"], f["at"], Reason.GROUP)

    def _keyed(self, f: dict[str, Any]) -> None:
        for i, key in enumerate(f["key"]):
            self.keys[key] = Key(f["id"][16 * i : 16 * i + 16], self.stamp(f["at"]))

    def _wake(self, f: dict[str, Any]) -> None:
        self.runs.wake(f["run"], f["at"])

    def _jobs(self, f: dict[str, Any]) -> None:
        old = self._shown(f["job"])
        self.jobs.set(f["job"], f["state"], f["next"], f["cursor"], f["at"])
        self._touch(f["job"])
        for row in f["job"].tolist() if self.pauses else ():
            self.pauses.pop(row, None)
        self.pauses |= {int(f["job"][i]): note for i, note in f["note"] if f["state"][i] == JobState.PAUSED}
        self._changed(f, b"".join([job_key(name) for name in self.jobs.names(f["job"])]), f["job"], old, f["note"])
        deleted = set(f["job"][f["state"] == JobState.DELETED].tolist())
        if deleted:
            self.lasts.forget(deleted)
            for pair in [pair for pair, to in self.exceptions.items() if pair[0] in deleted and to == SKIP]:  # a moved one has its run
                self._unmark(pair)

    def _fold(self, f: dict[str, Any]) -> None:
        rows = self.runs.peek(FINISHED, f["count"])
        fields = self.runs.gather(rows)
        self.touched.fold(fields["job"], self._since_begin())
        stays = (fields["state"] != plain.RUN_SKIPPED) | (fields["disposition"] == plain.DISPOSITION_TZDATA_MOVED)
        stays &= fields["trigger"] <= plain.TRIGGER_BACKFILL
        self.bygone.fold(fields["nominal_us"][stays])
        if self.meta.recheck_us >= 0:  # after the clock went back: what leaves the table must still block its nominal time
            fields = fields[stays & (fields["nominal_us"] <= self.meta.recheck_us)]
            if len(fields):
                ahead = fields["nominal_us"] > self.jobs.gather(np.ascontiguousarray(fields["job"]))["cursor_us"]
                self.meta.blocked |= dict.fromkeys(zip(fields["job"][ahead].tolist(), fields["nominal_us"][ahead].tolist(), strict=True))
        self.trail.fold(self.meta.seq + 1, self.meta.folded, rows)
        self.created.remove(rows)
        self.runs.fold(f["count"])
        self.meta.folded += f["count"]

    def _reply(self, f: dict[str, Any]) -> None:
        self.replies[f["rid"]] = (self.stamp(f["at"]), f["reply"])

    def _forget(self, f: dict[str, Any]) -> None:
        for rid in f["rid"]:
            del self.replies[rid]
        for key in f["key"]:
            del self.keys[key]
        for row in f["job"].tolist():
            self.notes.pop(row, None)
            self.pauses.pop(row, None)
        gone = set(f["job"].tolist())
        self.meta.blocked = {pair: None for pair in self.meta.blocked if pair[0] not in gone}
        if gone:
            self.trail.forget(self.meta.seq + 1, dict(zip(f["job"].tolist(), self.jobs.names(f["job"]), strict=True)))
        self.lasts.forget(f["job"].tolist())
        self.touched.remove(f["job"])
        self.bygone.remove(f["job"])
        self.jobs.remove(f["job"])

    def _decided(self, f: dict[str, Any]) -> None:
        self.bygone.mark(f["job"], f["until"], list(zip(f["first"].tolist(), f["last"].tolist(), strict=True)))

    def _clock(self, f: dict[str, Any]) -> None:
        self.meta.recheck_us = max(self.meta.recheck_us, self.meta.at_us)  # nothing later was decided
        self.meta.steps = [*self.meta.steps[-STEPS_KEPT:], (self.meta.folded, f["at"])]
        if len(f["job"]):
            self.meta.recheck_us = max(self.meta.recheck_us, int(self.jobs.gather(f["job"])["cursor_us"].max()))
        self.jobs.set(f["job"], f["state"], f["next"], f["cursor"], -1)
        self.jobs.set_back(f["job"], f["at"])
        self._touch(f["job"])
        for job, at in zip(f["blocked_job"].tolist(), f["blocked_at"].tolist(), strict=True):
            self.meta.blocked[(job, at)] = None

    def _retime(self, f: dict[str, Any]) -> None:
        self.jobs.retime(f["job"], f["state"], f["next"], f["cursor"], f["param"])
        self._touch(f["job"])

    def _zones(self, f: dict[str, Any]) -> None:
        self.zones.update(zip((name.decode() for name in f["name"]), f["data"], strict=True))

    def _tzdiff(self, f: dict[str, Any]) -> None:
        self.tzdiff = f

    def _supersede(self, f: dict[str, Any]) -> None:
        self.runs.supersede(f["run"], f["disposition"], f["reason"], f["at"])
        self._drop_checkpoints(f["run"])

    def _except(self, f: dict[str, Any]) -> None:
        for job, nominal, to in zip(f["job"].tolist(), f["nominal"].tolist(), f["to"].tolist(), strict=True):
            moved = f" to {to_datetime(to):{_STAMP}}" if to >= 0 else ""
            what = changelog.MOVE if moved else changelog.SKIP if to == SKIP else changelog.UNDO
            self._touched(f, job, what, f"{to_datetime(nominal):{_STAMP}}{moved}")
            if to == AS_EVER:
                self._unmark((job, nominal))
            else:
                self.exceptions[job, nominal] = to
                self.past_us[job, nominal] = self.stamp(f["at"]) + max(0, nominal - f["at"])

    def _unmark(self, pair: tuple[int, int]) -> None:
        self.exceptions.pop(pair, None)
        self.past_us.pop(pair, None)

    def _calendar(self, f: dict[str, Any]) -> None:
        if f["wire"] is None:
            del self.calendars[f["name"]]
        else:
            self.calendars[f["name"]] = f["wire"]

    def _queue(self, f: dict[str, Any]) -> None:
        if f["settings"]:
            self.queues[f["name"]] = f["settings"]
        else:
            self.queues.pop(f["name"], None)

    def _hold(self, f: dict[str, Any]) -> None:
        self.meta.held_us = f["at"] if f["on"] else -1
        self.meta.hold_note = f["note"]

    def _late(self, f: dict[str, Any]) -> None:
        self.runs.mark(f["run"], RunFlag.LATE)

    def _chained(self, f: dict[str, Any]) -> None:
        self.runs.mark(f["run"], RunFlag.TOLD)

    def _withdraw(self, f: dict[str, Any]) -> None:
        if not f["count"].all():
            self.trail.cut(self.meta.seq + 1)  # rows go and history has nothing of them
        self.created.remove(f["run"][f["count"] == 0])
        self.runs.withdraw(f["run"], f["until"], f["count"])

    def _expire(self, f: dict[str, Any]) -> None:
        self.runs.expire(f["run"], f["at"])
        self._drop_checkpoints(f["run"])

    def _rearm(self, f: dict[str, Any]) -> None:
        self.runs.rearm(f["run"], f["due"])

    def _told(self, f: dict[str, Any]) -> None:
        del self.changes[: f["count"]]
        self.trail.blocks += 1

    # What is forgotten some day: by time that has really passed

    def _elapsed(self, f: dict[str, Any]) -> None:
        first = not self.elapsed.begun_us
        self.elapsed.look(f["at"], f["boot_us"], self.meta.boot_id)
        if first:  # what an older program remembered by a wall clock that was ahead
            now = self.elapsed.us
            self.keys = {key: Key(one.run_id, min(one.at_us, now), one.others) for key, one in self.keys.items()}
            self.replies = OrderedDict((rid, (min(at, now), reply)) for rid, (at, reply) in self.replies.items())

    def _renew(self, f: dict[str, Any]) -> None:
        self._touch(f["job"])

    def stamp(self, at_us: int) -> int:
        """The elapsed time of what is decided now; its wall time where that time has not begun."""
        return self.elapsed.us if self.elapsed.begun_us else at_us

    def _since_begin(self) -> int:
        return self.elapsed.us - self.elapsed.begun_us if self.elapsed.begun_us else 0

    def _touch(self, jobs: NDArray[np.uint32]) -> None:
        self.touched.change(jobs, self._since_begin())

    # Questions

    def find_job(self, name: bytes) -> int | None:
        """Row of a job by its full name in UTF-8, tombstones too."""
        row = int(self.jobs.find([name], job_key(name))[0])
        return None if row == NO_ROW else row

    def find_run(self, run_id: bytes) -> int | None:
        """Row of a run that is not folded."""
        row = int(self.runs.find(run_id)[0])
        return None if row == NO_ROW else row

    def digest(self) -> str:
        """Hex digest of everything that a replay must reproduce."""
        h = blake2b(state_snapshot.small(self), digest_size=16)
        for table in (self.jobs, self.runs):
            for chunk in range(table.chunk_total):
                h.update(table.dump(chunk))
        for piece in state_snapshot.Many.ordered(self).pieces(2**20):
            h.update(piece)
        return h.hexdigest()

    def check(self) -> None:
        """AssertionError naming the first broken invariant."""
        self.jobs.check()
        self.runs.check()
        states = self.runs.gather(np.array(sorted(self.checkpoints), np.uint32))["state"]
        assert ((states <= RunState.RETRY_WAIT) | (states == RunState.DEAD)).all(), "a checkpoint of a run that is over"

    def copy(self, step_bytes: int) -> Iterator[list[bytes]]:
        """Snapshot of this instant, in pieces of about `step_bytes`; state may go on changing between the pieces."""
        return state_snapshot.copy(self, step_bytes)

    def copy_drop(self) -> None:
        """End a snapshot that nobody wants any more."""
        self.jobs.copy_drop()
        self.runs.copy_drop()

    @classmethod
    def load(cls, pieces: Iterator[bytes]) -> State:
        """The state of a snapshot. CorruptJournalError when it doesn't fit together."""
        state = cls()
        state_snapshot.load(state, pieces)
        return state


__all__ = ["AS_EVER", "SKIP", "Line", "State", "spec_bytes"]

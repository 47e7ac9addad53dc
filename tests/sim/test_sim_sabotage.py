"""Each sabotage breaks one rule about time; the seeded world must turn red, and say why. A world that stays green would prove nothing."""

from __future__ import annotations

import numpy as np
import pytest

from tests.sim.kept import Kept
from tests.sim.seeds import simulate
from wheelsched import Every
from wheelsched.engine import alarms, catchup, chains, definitions, due, endings, engine, groups, overlap, start_times
from wheelsched.model.errors import WheelschedError
from wheelsched.model.nouns import MS, US, RunState
from wheelsched.server import keeper
from wheelsched.state import state
from wheelsched.state.history import Past
from wheelsched.verbs import dead, occurrences, operator, put
from wheelsched.verbs import jobs as commands


def calendar_rows_left_out(patch):
    """The cursor goes past what a calendar excludes, and no row says so."""
    for module in (due, catchup):
        real = module.free_and_excluded
        patch.setattr(module, "free_and_excluded", lambda *args, real=real: (real(*args)[0], []))


def zone_changes_left_out(patch):
    """Wall times that a zone change took away leave no row."""
    for module in (due, catchup):
        patch.setattr(module, "changed_away", lambda *_: [])


def jitter_past_the_next(patch):
    """An occurrence may be spread beyond the next one."""
    real = start_times.jitter
    patch.setattr(start_times, "jitter", lambda key, nominal, span: real(key, nominal, span) + np.where(span > 0, span + 2 * MS, 0))


def backfill_ignores_history(patch):
    """A backfill sees the table alone."""
    real = keeper.Keeper.look_for
    patch.setattr(keeper.Keeper, "look_for", lambda self, verb, args: Past({}, []) if verb == "backfill" else real(self, verb, args))


def superseded_without_a_row(patch):
    """A put forgets what waits under the old schedule."""
    patch.setattr(put, "supersede", lambda *_: None)


def runs_forgotten_when_the_clock_goes_back(patch):
    """Runs in history don't block their nominal time."""
    patch.setattr(keeper.Keeper, "fired_after", lambda *_: [])


def hold_leaks(patch):
    """Occurrences are decided though all triggering is held."""
    real = engine.Engine._expire

    def leaky(self):
        if self.state.meta.held_us >= 0:
            due.decide(self, self.wall.advance(self.now.wall_us // MS, 65_536))
        real(self)

    patch.setattr(engine.Engine, "_expire", leaky)


def delay_counts_from_before_the_end(patch):
    """A delay after completion begins a second too early."""
    real = overlap.whole_ms
    patch.setattr(overlap, "whole_ms", lambda us: real(us - US))


def changed_column(patch, column, change):
    real = definitions.SpecTable.add

    def add(self, spec, *args):
        real(self, spec, *args)
        values = getattr(self, column)
        values[spec] = change(values[spec])

    patch.setattr(definitions.SpecTable, "add", add)


def pause_after_off_by_one(patch):
    """A job is paused one failure too late."""
    changed_column(patch, "pause_after", lambda n: n + (n > 0))


def one_more_beside(patch):
    """`allow(2)` allows three."""
    changed_column(patch, "overlap_max", lambda n: n + (n == 2))


def one_more_run(patch):
    """max_runs is counted wrong."""
    changed_column(patch, "max_runs", lambda n: n + (n < 100))


def skip_ignored(patch):
    """What a person skipped leaves no row."""
    patch.setattr(due, "SKIP", -99)


def late_unmarked(patch):
    """Nobody looks at the timers of late_after."""
    patch.setattr(alarms.Alarms, "expire", lambda self, now_us: [self.wheel.advance(now_us // MS)].clear())


def nobody_told(patch):
    """on_missed triggers nothing."""
    patch.setattr(alarms.Alarms, "orders", lambda _: [])


def release_forgets(patch):
    """Release puts next times to the future without deciding what was missed."""
    real = operator.release

    def release(eng, cmd):
        if eng.state.meta.held_us >= 0:
            rows = np.array(eng.state.jobs.slots(), np.uint32)
            jobs = eng.state.jobs.gather(rows)
            some = (jobs["state"] == 1) & (jobs["next_us"] <= eng.now.wall_us) & ~eng.specs.once(jobs["spec"])
            following = eng.specs.next(jobs["spec"][some].copy(), jobs["param_us"][some].copy(), np.full(int(some.sum()), eng.now.wall_us, np.int64))
            eng.record("RETIME", {
                "at": eng.now.wall_us, "job": rows[some], "next": following, "cursor": np.full(int(some.sum()), eng.now.wall_us, np.int64),
                "param": jobs["param_us"][some].copy(), "state": np.where(following == 2**63 - 1, 3, 1).astype(np.uint8),
            })
            eng.arm_jobs(rows[some], following)
        return real(eng, cmd)

    patch.setitem(commands.VERBS, "release", release)


def catch_up_counts_wrong(patch):
    """`missed` of a catch-up run is one too many."""
    real = catchup._choose

    def choose(*args):
        chosen, folded = real(*args)
        return [(at, missed + 1) for at, missed in chosen], folded

    patch.setattr(catchup, "_choose", choose)


def hooks_forgotten(patch):
    """An ending triggers nothing."""
    patch.setattr(chains, "ended", lambda *_: None)


def dead_letters_told_again(patch):
    """That a dead letter was told of is not remembered."""
    real = engine.Engine.record
    patch.setattr(engine.Engine, "record", lambda self, kind, fields: None if kind == "CHAINED" else real(self, kind, fields))


def a_cancel_taken_for_a_failure(patch):
    """on_failure is called for what somebody cancelled, too."""
    real = chains.hooks_of
    patch.setattr(chains, "hooks_of", lambda f: ("on_failure",) if f["state"] == RunState.CANCELLED else real(f))


def groups_left_open(patch):
    """Nobody looks whether the last member has ended."""
    patch.setattr(groups, "end", lambda _: None)


def groups_end_early(patch):
    """The run behind does not wait for the last member."""

    def early(self):
        return [number for number, group in self.groups.items() if group.left <= 1]

    def end(self, f):
        self._ended = early(self)
        real(self, f)

    real = state.State._group_end
    patch.setattr(state.State, "ended_groups", early)
    patch.setattr(state.State, "_group_end", end)


def groups_go_on_regardless(patch):
    """`when` is not looked at."""
    real = state.State._group

    def careless(self, f):
        real(self, f)
        self.groups[f["number"]].needs_all = False

    patch.setattr(state.State, "_group", careless)


def members_counted_wrong(patch):
    """A dead letter counts as cancelled."""
    real = state.State._leave_groups

    def leave(self):
        self.runs.left[:] = [(n, RunState.CANCELLED if how == RunState.DEAD else how) for n, how in self.runs.left]
        real(self)

    patch.setattr(state.State, "_leave_groups", leave)


def what_is_queued_outlives_its_job(patch):
    """A delete cancels what is scheduled or waits for a retry alone."""
    real = commands.open_runs

    def some(eng, jobs):
        waiting, held = real(eng, jobs)
        return waiting[eng.state.runs.gather(waiting)["state"] != RunState.QUEUED], held

    patch.setattr(commands, "open_runs", some)


def orphans_are_queued_again(patch):
    """A run that a worker hands back after its job was deleted waits for another one."""
    patch.setattr(endings, "end_with_job", lambda *_: None)


def sent_back_at_once(patch):
    """Dead letters that are sent back ask nobody whether they may run."""

    def at_once(eng, rows, due, how=None):
        eng.record("REDRIVE", {"at": eng.now.wall_us, "run": rows, "due": due})
        later = due > eng.now.wall_us
        eng.arm_retries(rows[later], due[later])

    patch.setattr(dead, "send_back", at_once)
    patch.setattr(occurrences, "send_back", at_once)


def sent_back_beside_the_active(patch):
    """Whoever is sent back takes a turn though a run of its job is active."""
    real = overlap._woken

    def woken(eng, job, fields):
        fields = fields.copy()
        fields["active"] -= min(1, int(fields["active"])) if 1 in eng.state.runs.lines_of(job) else 0
        return real(eng, job, fields)

    patch.setattr(overlap, "_woken", woken)


def sent_back_is_dropped(patch):
    """A later occurrence takes the place of what was sent back."""

    def own_open(eng, row):
        runs = eng.state.runs
        rows = np.concatenate([runs.in_line(row, 0), runs.in_line(row, 1), runs.chained(row, ended=False)])
        return rows, runs.gather(rows)

    patch.setattr(overlap, "own_open", own_open)
    patch.setattr(put, "own_open", own_open)


def identities_forgotten(patch):
    """The last run that took an identity is the only one that holds it."""
    patch.setattr(state.State, "_may_hold", lambda *_: b"")


SABOTAGE = [  # with what the world says to it, and a seed that has met it: searched from there on
    (calendar_rows_left_out, "(calendar) disappeared", 10),
    (zone_changes_left_out, "(dst_", 82),
    (jitter_past_the_next, "is spread to", 22),
    (superseded_without_a_row, "of the old schedule still waits", 4),
    (runs_forgotten_when_the_clock_goes_back, "a second run record", 110),
    (hold_leaks, "while all triggering is held", 2),
    (delay_counts_from_before_the_end, "completed at", 28),
    (pause_after_off_by_one, "did nothing", 15),
    (one_more_beside, "active at once", 1),
    (one_more_run, "max_runs", 11),
    (skip_ignored, "dropped silently", 5),
    (late_unmarked, "unmarked", 31),
    (nobody_told, "alarms were not raised", 8),
    (release_forgets, "disappeared", 2),
    (catch_up_counts_wrong, "`missed` and the ledger disagree", 2),
    (hooks_forgotten, "hooks were not called", 3),
    (dead_letters_told_again, "a second run for the", 183),
    (a_cancel_taken_for_a_failure, "and it should not", 47),
    (groups_left_open, "nothing came of it", 7),
    (groups_end_early, "ends before its members", 7),
    (groups_go_on_regardless, "and its run is", 15),
    (members_counted_wrong, "tells of", 15),
    (what_is_queued_outlives_its_job, "job was deleted", 1),
    (orphans_are_queued_again, "job was deleted", 133),
    (sent_back_at_once, "is sent back past its turn", 41),
    (sent_back_beside_the_active, "active at once", 57),
    (sent_back_is_dropped, "was sent back, and gives its place", 57),
    (identities_forgotten, "that has its identity", 113),
]


@pytest.mark.slow
@pytest.mark.parametrize(("sabotage", "why", "met"), SABOTAGE, ids=[row[0].__name__ for row in SABOTAGE])
def test_sabotage_turns_it_red(sabotage, why, met, monkeypatch):
    sabotage(monkeypatch)
    for seed in range(met, met + 300):
        try:
            simulate(seed)
        except WheelschedError as e:
            pytest.fail(f"red for another reason, seed {seed}: {e!r}")
        except AssertionError as e:
            assert why in str(e), f"red for another reason, seed {seed}: {e!r}"
            return
    pytest.fail("300 seeds did not notice")


def test_a_backfill_that_ignores_history_turns_it_red(monkeypatch):
    """Seeds meet it rarely: what is backfilled has to be history by then."""
    world = Kept()
    world.put("tick", Every("6h"))
    world.days(2)
    whole = {"name": "tick", "since_us": world.start_us, "until_us": world.wall_us}
    assert world.ask("backfill", **whole)["existing"] == 8
    backfill_ignores_history(monkeypatch)
    with pytest.raises(AssertionError, match="a second run record"):
        world.ask("backfill", **whole)

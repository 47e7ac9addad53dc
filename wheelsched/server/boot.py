"""From a configuration to a running server: lock, replay, end the former generation, take over, serve."""

from __future__ import annotations

import errno
import faulthandler
import os
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from ..engine.alarms import AlarmJobs, living
from ..engine.engine import Engine
from ..engine.turn import WorkerGone
from ..journal.directory import damage
from ..journal.ending import EXIT_DAMAGED, EXIT_FATAL
from ..journal.files import in_words
from ..journal.lmdb_journal import LmdbJournal
from ..journal.recover import recover
from ..model.errors import ConfigError, CorruptJournalError, LockedError, StorageFullError
from ..model.nouns import CLOCK_STEP_US, US, Outcome, alarm_missing, counted, display_name, format_offset, to_datetime
from ..pool.pool import Pool
from ..process.leftovers import kill_former_generation
from ..process.stderr import ERROR, WARNING, say
from ..protocol.redact import Redaction
from ..schedules.expressions import Zones
from ..schedules.zonedata import VERSION as ZONE_VERSION
from ..schedules.zonedata import load_zone
from ..state import history
from ..verbs import jobs
from ..verbs.operator import set_hold
from .check import allowed_of
from .clock import Clock
from .config import restart_wanted
from .grants import Grants
from .keeper import Keeper
from .listener import Listener
from .server import EXIT_CONFIG, Server

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..process.contract import Allowed
    from ..state.state import State
    from .config import Config

EXIT_LOCKED: Final = 75
SWITCH_S: Final = 0.0005  # a busy loop lets the commit thread in so often: at Python's 5 ms each commit would take six times that
CLOCK_WAIT_US: Final = 600 * US
# Of a path that was chosen badly; all else is the storage's fault.
_NOT_USABLE: Final = frozenset({
    errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ELOOP, errno.ENAMETOOLONG,
    errno.EINVAL, errno.ENOTEMPTY,
})


def boot_id() -> str:
    """The kernel's random id of this boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def open_offline(directory: str) -> State:
    """The state of a data directory that no server holds; for `admin verify`."""
    with LmdbJournal.open(directory, read_only=True) as journal:
        return recover(journal)


def _wait_for_clock(state: State, clock: Clock) -> bool:
    """A start earlier than the last record waits up to 10 minutes for the clock. True when it is still earlier then."""
    behind = state.meta.at_us - clock.now().wall_us
    if behind <= CLOCK_STEP_US:
        return False
    say(f"the clock is {behind / US:.0f} s behind the last record; waiting for it for up to 10 minutes", WARNING)
    end = clock.now().mono_us + CLOCK_WAIT_US
    while state.meta.at_us > clock.now().wall_us and clock.now().mono_us < end:
        time.sleep(0.2)  # the wall clock is being corrected by somebody else: there is nothing to wait on
    return state.meta.at_us > clock.now().wall_us


def _take_over(state: State, config: Config, workers: Path, clock: Clock, boot: str) -> Engine:
    from .. import __version__  # noqa: PLC0415 - reads package metadata

    same_boot = state.meta.boot_id == boot
    proofs = kill_former_generation(workers, state.meta.generation + 1, boot)
    engine = Engine(
        state, Zones(load_zone), history.pack, clock.now(), verbs=jobs.VERBS, zone_version=ZONE_VERSION, boot_id=boot,
        server=f"wheelsched {__version__}", alarm_jobs=AlarmJobs(config.on_dead, config.on_missed),
    )
    engine.clock_offset_us, engine.lease_us, engine.redaction = config.clock_offset_us, config.lease_us, Redaction(config.redact)
    engine.retention_us = config.retention_us
    if config.hold and state.meta.held_us < 0:
        set_hold(engine, os.geteuid(), on=True, note="serve --hold")
    for worker, known in list(state.workers.items()):
        if known.kind == "pool":
            proof = proofs.get(worker) if same_boot else None
            started, calls, ended, printed = (None, [], {}, {}) if proof is None else proof
            why = "worker lost: the server was ended"
            engine.lose(WorkerGone(worker, started, Outcome.LOST, why, calls=calls, ended=ended, printed=printed))
        else:
            engine.adopt(worker)
    return engine


def _same_offset(config: Config, journal: LmdbJournal) -> None:
    """A data directory keeps the clock offset it was made with: another one would be a step of the clock at every start."""
    made_with = journal.directory.read_clock_offset() if journal.last_seq else config.clock_offset_us
    if made_with != config.clock_offset_us:
        made, given = (f"with --clock-offset={format_offset(us)}" if us else "without one" for us in (made_with, config.clock_offset_us))
        raise ConfigError(f"clock_offset: {config.data} was made {made}, not {given}; start it {made}")
    journal.directory.write_clock_offset(made_with, fresh=not journal.last_seq)


def serve(config: Config, reread: Callable[[], Config] | None = None) -> int:
    """Serve until told to stop; the exit code. 65: the data directory is damaged; 70: the storage failed; 75: the directory is locked;
    78: a configuration that can't be used. `reread`: the configuration as a start would find it now; ConfigError.
    """
    sys.setswitchinterval(SWITCH_S)
    faulthandler.enable(2)  # a damaged page of the store can end the process by a signal: not without a word
    try:
        server = _start(config)
    except LockedError as e:
        say(e.message, ERROR)
        return EXIT_LOCKED
    except ConfigError as e:
        say(e.message, ERROR)
        return EXIT_CONFIG
    except CorruptJournalError as e:
        say(e.message if config.data in e.message else damage(Path(config.data), e.message).message, ERROR)
        return EXIT_DAMAGED
    except StorageFullError as e:
        say(f"the storage is full: {e.message}. Free space and start again", ERROR)
        return EXIT_FATAL
    except TimeoutError as e:
        say(f"not started: {e}", ERROR)
        return EXIT_LOCKED
    except OSError as e:
        if e.errno in _NOT_USABLE:
            say(f"data {config.data}: {in_words(e)}; choose a folder that this user may write", ERROR)
            return EXIT_CONFIG
        say(f"the storage failed: data {config.data}: {in_words(e)}. Start again when the cause is gone", ERROR)
        return EXIT_FATAL
    if reread is not None:
        server.reload.settings = lambda: restart_wanted(config, reread)
    return server.run()


def _start(config: Config) -> Server:
    begun = time.monotonic()
    allowed = allowed_of(config)
    allowed.check()
    grants = Grants(dict(config.roles), shared=config.shared)
    with ExitStack() as undo:
        journal = LmdbJournal.open(config.data, map_size=config.map_size, reserve_bytes=config.reserve_bytes)
        undo.callback(journal.close)
        listener = Listener(config.socket, config.socket_mode, config.socket_group)
        undo.callback(listener.close)
        journal.directory.name_socket(str(Path(config.socket).absolute()))
        _same_offset(config, journal)
        server = _server(config, journal, listener, allowed, grants, begun)
        undo.pop_all()
    return server


def _server(config: Config, journal: LmdbJournal, listener: Listener, allowed: Allowed, grants: Grants, begun: float) -> Server:
    clock = Clock(config.clock_offset_us)
    boot = boot_id()
    workers = journal.directory.workers()
    state = recover(journal)
    behind = _wait_for_clock(state, clock)
    engine = _take_over(state, config, workers, clock, boot)
    pool = Pool(
        workers_dir=workers, modules=config.tasks, generation=state.meta.generation, boot_id=boot,
        allowed=allowed, mode=config.mode, concurrency=config.concurrency, lease_us=config.lease_us,
        max_runs=config.max_runs, max_rss=config.max_rss, start_us=config.start_timeout_us,
    )
    keeper = Keeper(journal, state, config)
    keeper.full(engine.now.mono_us)  # on a full disk the reserve is given up before anything is written, a worker's file included
    server = Server(config, keeper, engine, pool, listener, clock, grants)
    if behind:
        server.inputs.append(keeper.clock_back(clock.now().wall_us))
    if state.meta.held_us >= 0:
        since = f"{to_datetime(state.meta.held_us):%Y-%m-%d %H:%M:%SZ}" + (f" ({state.meta.hold_note})" if state.meta.hold_note else "")
        say(f"all triggering is held since {since}; `wheelsched admin release` ends that", WARNING)
    if state.tzdiff and state.tzdiff["at"] == engine.now.wall_us:
        diff = state.tzdiff
        say(f"zone data {diff['old']} became {diff['new']}: {diff['total']} jobs moved; `wheelsched admin tzdiff` lists them")
    rows = state.jobs.gather(np.array(state.jobs.slots(), np.uint32))
    say(
        f"serving {config.data} on {config.socket}: {counted(len(state.jobs), 'job')},"
        f" {counted(int((rows['active'] + rows['waiting']).sum()), 'open run')}, generation {state.meta.generation},"
        f" {counted(config.workers, 'worker')}, ready in {time.monotonic() - begun:.2f} s (pid {os.getpid()})"
    )
    for hook, job in (("on_dead", config.on_dead), ("on_missed", config.on_missed)):
        if job and living(state, job) is None:
            say(alarm_missing(hook, display_name(job)), WARNING)
    if config.workers and not config.tasks:
        on = [task for task, allowed in (("command", config.allow_commands), ("http", config.allow_http)) if allowed]
        served = f"{' and '.join(on)} alone" if on else "no task"
        say(f"no --tasks: its workers serve {served}; give --tasks MODULE or start `wheelsched worker`", WARNING)
    return server

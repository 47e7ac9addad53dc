"""From a configuration to a running server: lock, replay, end the former generation, take over, serve."""

from __future__ import annotations

import faulthandler
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from . import history
from .admin_commands import set_hold
from .builtin import Allowed
from .clock import Clock
from .config import format_offset
from .connections import Listener
from .cron import Zones
from .engine import Engine
from .errors import ConfigError, CorruptJournalError, LockedError
from .grants import Grants
from .journal import LmdbJournal
from .keeper import Keeper
from .messages import say
from .model import CLOCK_STEP_US, US, Outcome, to_datetime
from .pool import Pool, kill_former_generation
from .redact import Redaction
from .server import EXIT_CONFIG, Server
from .state import recover
from .turn import ClockBack, WorkerGone
from .zonedata import VERSION as ZONE_VERSION
from .zonedata import load_zone

if TYPE_CHECKING:
    from .config import Config
    from .state import State

EXIT_LOCKED: Final = 75
EXIT_DAMAGED: Final = 65
CLOCK_WAIT_US: Final = 600 * US


def boot_id() -> str:
    """The kernel's random id of this boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def open_offline(directory: str) -> State:
    """The state of a data directory that no server holds; for `admin verify`."""
    journal = LmdbJournal.open(directory, create=False)
    try:
        return recover(journal)
    finally:
        journal.close()


def _wait_for_clock(state: State, clock: Clock) -> bool:
    """A start earlier than the last record waits up to 10 minutes for the clock. True when it is still earlier then."""
    behind = state.meta.at_us - clock.now().wall_us
    if behind <= CLOCK_STEP_US:
        return False
    say(f"the clock is {behind / US:.0f} s behind the last record; waiting for it for up to 10 minutes")
    end = clock.now().mono_us + CLOCK_WAIT_US
    while state.meta.at_us > clock.now().wall_us and clock.now().mono_us < end:
        time.sleep(0.2)  # the wall clock is being corrected by somebody else: there is nothing to wait on
    return state.meta.at_us > clock.now().wall_us


def _take_over(state: State, config: Config, clock: Clock, boot: str) -> Engine:
    from . import __version__  # noqa: PLC0415 - reads package metadata

    same_boot = state.meta.boot_id == boot
    proofs = kill_former_generation(_workers_dir(config), state.meta.generation + 1, boot)
    engine = Engine(
        state, Zones(load_zone), history.pack, clock.now(), zone_version=ZONE_VERSION, boot_id=boot, server=f"wheelsched {__version__}"
    )
    engine.clock_offset_us, engine.lease_us, engine.redaction = config.clock_offset_us, config.lease_us, Redaction(config.redact)
    if config.hold and state.meta.held_us < 0:
        set_hold(engine, os.geteuid(), on=True, note="serve --hold")
    for worker, known in list(state.workers.items()):
        if known.kind == "pool":
            proof = proofs.get(worker) if same_boot else None
            started, calls, ended = (None, [], {}) if proof is None else proof
            engine.lose(WorkerGone(worker, started, Outcome.LOST, "worker lost: the server was ended", calls=calls, ended=ended))
        else:
            engine.adopt(worker)
    return engine


def _same_offset(config: Config, *, fresh: bool) -> None:
    """A data directory keeps the clock offset it was made with: another one would be a step of the clock at every start."""
    note = Path(config.data) / "clock_offset"
    if fresh:
        note.write_text(f"{config.clock_offset_us}\n", encoding="ascii")
        return
    made_with = int(note.read_text(encoding="ascii")) if note.exists() else 0
    if made_with != config.clock_offset_us:
        made, given = (f"with --clock-offset={format_offset(us)}" if us else "without one" for us in (made_with, config.clock_offset_us))
        raise ConfigError(f"clock_offset: {config.data} was made {made}, not {given}; start it {made}")


def _allowed(config: Config) -> Allowed:
    return Allowed(
        commands=config.allow_commands, http=config.allow_http, env=config.allow_env, http_nets=config.http_allow_net,
        http_secret_file=config.http_secret_file, http_ca_file=config.http_ca_file, socket=str(Path(config.socket).absolute()),
    )


def _workers_dir(config: Config) -> Path:
    return Path(config.data) / "workers"


def serve(config: Config) -> int:
    """Serve until told to stop; the exit code. 75: the data directory is locked; 78: bad configuration; 65: damaged journal."""
    faulthandler.enable()  # a damaged page of the store can end the process by a signal: not without a word
    try:
        return _serve(config)
    except LockedError as e:
        say(str(e))
        return EXIT_LOCKED
    except ConfigError as e:
        say(str(e))
        return EXIT_CONFIG
    except CorruptJournalError as e:
        say(str(e))
        return EXIT_DAMAGED


def _serve(config: Config) -> int:
    begun = time.monotonic()
    allowed = _allowed(config)
    allowed.check()
    grants = Grants(dict(config.roles))
    try:
        journal = LmdbJournal.open(config.data, map_size=config.map_size, reserve_bytes=config.reserve_bytes)
    except OSError as e:
        raise ConfigError(f"data {config.data}: {e.strerror or e}; choose a folder that this user may write") from e
    try:
        listener = Listener(config.socket, config.socket_mode, config.socket_group)
    except BaseException:
        journal.close()
        raise
    try:
        _same_offset(config, fresh=journal.last_seq == 0)
    except ConfigError:
        listener.close()
        journal.close()
        raise
    clock = Clock(config.clock_offset_us)
    boot = boot_id()
    state = recover(journal)
    behind = _wait_for_clock(state, clock)
    engine = _take_over(state, config, clock, boot)
    pool = Pool(
        workers_dir=_workers_dir(config), modules=config.tasks, generation=state.meta.generation, boot_id=boot,
        allowed=allowed, mode=config.mode, concurrency=config.concurrency, lease_us=config.lease_us,
        max_runs=config.max_runs, max_rss=config.max_rss,
    )
    keeper = Keeper(journal, state, config)
    server = Server(config, keeper, engine, pool, listener, clock, grants)
    if behind:
        server.inputs.append(ClockBack(keeper.fired_after(clock.now().wall_us)))
    if state.meta.held_us >= 0:
        since = f"{to_datetime(state.meta.held_us):%Y-%m-%d %H:%M:%SZ}" + (f" ({state.meta.hold_note})" if state.meta.hold_note else "")
        say(f"all triggering is held since {since}; `wheelsched admin release` ends that")
    if state.tzdiff and state.tzdiff["at"] == engine.now.wall_us:
        diff = state.tzdiff
        say(f"zone data {diff['old']} became {diff['new']}: {diff['total']} jobs moved; `wheelsched admin tzdiff` lists them")
    rows = state.jobs.gather(np.array(state.jobs.slots(), np.uint32))
    say(
        f"serving {config.data} on {config.socket}: {len(state.jobs)} jobs, {int((rows['active'] + rows['waiting']).sum())} open runs,"
        f" generation {state.meta.generation}, {config.workers} workers, ready in {time.monotonic() - begun:.2f} s (pid {os.getpid()})"
    )
    if config.workers and not config.tasks:
        on = [task for task, allowed in (("command", config.allow_commands), ("http", config.allow_http)) if allowed]
        say(f"no --tasks: its workers serve {' and '.join(on) or 'no task'} alone; give --tasks MODULE, or start `wheelsched worker`")
    return server.run()

"""The LMDB journal under kill -9, failing and hanging calls, full disks, two servers, and damaged files.

A runner process (this file as a script) forks a child for each trial before LMDB is opened, so a trial costs milliseconds and a signal
ends only the child. What a child saw acknowledged goes to a pipe, outside the directory whose calls are made to fail.
"""
from __future__ import annotations

import contextlib
import faulthandler
import json
import mmap
import os
import random
import resource
import select
import shutil
import signal
import struct
import subprocess
import sys
import time
import zlib
from pathlib import Path

import pytest

from tests.rigs.places import SCRIPT_PATH, TESTS
from wheelsched.journal.directory import read_extent
from wheelsched.journal.lmdb_journal import Batch, LmdbJournal
from wheelsched.model.errors import CorruptJournalError, LockedError, WheelschedError

MODES = {"eio_sync": 1, "enospc_write": 2, "eio_write": 3, "short_write": 4, "kill": 6, "eintr": 7}


def body(seq: int) -> bytes:
    """Record `seq` of every workload; some need more than one value."""
    return b"%d:" % seq + bytes([seq % 251]) * (150_000 if seq % 11 == 0 else 40 + seq % 300)


# ---- in the runner


def attempt(work) -> tuple[int, list[str], str]:
    """Fork, run work(tell), and give (exit status: negative signal or code, lines told, stderr). tell() is one write to a pipe."""
    read_end, write_end = os.pipe()
    err_read, err_write = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 99
        try:
            os.close(read_end)
            os.close(err_read)
            os.dup2(err_write, 2)
            faulthandler.enable(2)  # as the server does: a death by signal has a message
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            code = work(lambda text: os.write(write_end, text.encode() + b"\n")) or 0
        except WheelschedError as e:
            os.write(2, f"{type(e).__name__}: {e}".encode())
            code = 3
        except OSError as e:
            os.write(2, f"OSError: {e}".encode())
            code = 4
        except BaseException as e:
            os.write(2, f"{type(e).__name__}: {e}".encode())
        finally:
            os._exit(code)
    os.close(write_end)
    os.close(err_write)
    chunks: dict[int, list[bytes]] = {read_end: [], err_read: []}
    while chunks.keys() - {fd for fd, c in chunks.items() if c[-1:] == [b""]}:
        ready, _, _ = select.select([fd for fd, c in chunks.items() if c[-1:] != [b""]], [], [], 60)
        if not ready:
            os.kill(pid, signal.SIGKILL)
            raise TimeoutError("a trial took over 60 s")
        for fd in ready:
            chunks[fd].append(os.read(fd, 65_536))
    _, status = os.waitpid(pid, 0)
    os.close(read_end)
    os.close(err_read)
    told, err = (b"".join(chunks[fd]).decode("utf-8", "replace") for fd in (read_end, err_read))
    return os.waitstatus_to_exitcode(status), told.splitlines(), err


def write_records(path: str, tell, commits: int, seed: int) -> None:
    """Open or make the journal, and commit in mixed ways; tells `opened` and, for each durable record, its number."""
    rng = random.Random(seed)
    j = LmdbJournal.open(path, reserve_bytes=0, low_water_bytes=0)
    tell("opened")
    told = j.durable_seq
    for _ in range(commits):
        n = rng.choice([1, 1, 3, 12])
        batch = Batch(records=[body(j.last_seq + 1 + i) for i in range(n)], history=[b"h" * rng.choice([10, 5_000])])
        if rng.random() < 0.3:
            batch.snapshot_begin = j.durable_seq
            batch.snapshot = [b"%d" % j.durable_seq, b"s" * 70_000]
            batch.snapshot_end = True
            batch.trim_to = max(0, j.durable_seq - 5)
        if rng.random() < 0.5:
            j.append(batch)
        else:
            last = j.submit(batch)
            while j.poll() < last:
                select.select([j.fileno()], [], [], 30)
        assert told < j.durable_seq
        told = j.durable_seq
        tell(str(told))
    tell("done")
    j.close()


def check_records(path: str, tell) -> None:
    """What a restart finds: tells the last number. Everything must be whole, and the journal usable."""
    with LmdbJournal.open(path, reserve_bytes=0) as j:
        findings = j.verify()
        assert findings == [], findings
        found = j.snapshot()
        after = 0
        if found is not None:
            after = found[0]
            assert list(found[1]) == [b"%d" % after, b"s" * 70_000]
        seqs = []
        for seq, data in j.replay(after):
            assert data == body(seq), seq
            seqs.append(seq)
        assert seqs == list(range(after + 1, j.last_seq + 1))
        last = j.last_seq
        assert j.append(Batch(records=[body(last + 1)])) == last + 1
    tell(str(last))


def last_ack(lines: list[str]) -> int:
    return max((int(x) for x in lines if x.isdigit()), default=0)


def must_restart(path: str, lines: list[str], what: str) -> None:
    """The directory opens, whole, with all that was acknowledged."""
    code, found, err = attempt(lambda tell: check_records(path, tell))
    assert code == 0, f"{what}: after it the restart gives {code}: {err}"
    assert int(found[0]) >= last_ack(lines), f"{what}: acknowledged {last_ack(lines)}, there are {found[0]}"


class Shim:
    """The control page of shims/fsyncshim.c."""

    def __init__(self, path: str) -> None:
        with open(path, "r+b") as f:  # noqa: PTH123
            self.page = mmap.mmap(f.fileno(), 4096)

    def set(self, mode: int, skip: int = 0, count: int = 1) -> None:
        self.page[:20] = struct.pack("=5i", mode, skip, count, 0, 0)

    def hits(self) -> int:
        return struct.unpack_from("=i", self.page, 16)[0]


def run_calls(folder: str, mode: str, count: str, commits: str, seed: str) -> dict[str, object]:
    """Let the Nth matching call fail, N = 1, 2, … until it is not reached any more."""
    shim = Shim(os.environ["FS_CTL"])
    codes: dict[str, int] = {}
    for n in range(5_000):
        path = f"{folder}/data{n}"
        shim.set(MODES[mode], skip=n, count=int(count))
        code, lines, err = attempt(lambda tell, path=path: write_records(path, tell, int(commits), int(seed)))
        hits = shim.hits()
        shim.set(0)
        what = f"{mode} count {count} seed {seed} call {n + 1}"
        if hits <= n:
            assert code == 0, f"{what} was not reached, and yet: {code} {err}"
            return {"points": n, "codes": codes}
        if mode == "kill":
            assert code == -signal.SIGKILL, f"{what}: {code} {err}"
        elif mode == "eintr":
            assert code == 0, f"{what}: {code} {err}"
        elif "opened" in lines and "done" not in lines:
            assert code == 70, f"{what}: {code} {err}"
            assert "the journal failed" in err, f"{what}: {err}"
        else:
            assert code in {0, 3, 4}, f"{what}: {code} {err}"
            assert code or mode != "eio_sync", f"{what}: a failed sync went unnoticed"
        codes[str(code)] = codes.get(str(code), 0) + 1
        must_restart(path, lines, what)
        shutil.rmtree(path, ignore_errors=True)
    raise AssertionError("the workload never ended")


def run_kills(folder: str, trials: str, seed: str) -> dict[str, object]:
    """kill -9 of a child that writes in a loop, on one directory that lives through all of it."""
    rng = random.Random(int(seed))
    path = f"{folder}/data"
    acked = 0
    for trial in range(int(trials)):
        read_end, write_end = os.pipe()
        pid = os.fork()
        if pid == 0:
            with contextlib.suppress(BaseException):
                write_records(path, lambda text, fd=write_end: os.write(fd, text.encode() + b"\n"), 100_000, int(seed) + trial)
            os._exit(98)
        os.close(write_end)
        data = b""
        for _ in range(rng.randint(1, 40)):
            data += os.read(read_end, 100)
        time.sleep(rng.random() * 0.002)  # the instant of the kill: anywhere in a commit
        os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        while chunk := os.read(read_end, 65_536):
            data += chunk
        os.close(read_end)
        assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL, f"seed {seed} trial {trial}: {status}"
        acked = last_ack(data.decode().split())
        must_restart(path, data.decode().split(), f"seed {seed} kill {trial}")
    return {"acked": acked}


def run_races(folder: str, trials: str, n: str) -> dict[str, object]:
    """Many open one directory at once: one wins, the others are refused by name; kill -9 of the winner frees it at once."""
    for trial in range(int(trials)):
        path = f"{folder}/data{trial}"
        go_read, go_write = os.pipe()
        out_read, out_write = os.pipe()
        pids = []
        for _ in range(int(n)):
            pid = os.fork()
            if pid == 0:
                os.close(go_write)
                os.read(go_read, 1)
                try:
                    journal = LmdbJournal.open(path, reserve_bytes=0)
                    os.write(out_write, b"w%d\n" % os.getpid())
                    signal.pause()
                    journal.close()
                except LockedError:
                    os.write(out_write, b"l\n")
                except BaseException as e:
                    os.write(out_write, f"{type(e).__name__}:{e}\n".replace(" ", "_").encode())
                os._exit(0)
            pids.append(pid)
        os.close(go_read)
        os.close(go_write)
        data = b""
        while data.count(b"\n") < int(n):
            assert select.select([out_read], [], [], 60)[0], data
            data += os.read(out_read, 65_536)
        os.close(out_read)
        os.close(out_write)
        lines = data.decode().split()
        winners = [int(x[1:]) for x in lines if x[0] == "w"]
        assert len(winners) == 1, f"trial {trial}: {lines}"
        assert lines.count("l") == int(n) - 1, f"trial {trial}: {lines}"
        os.kill(winners[0], signal.SIGKILL)
        for pid in pids:
            os.waitpid(pid, 0)
        must_restart(path, [], f"race {trial}")
    return {"races": int(trials)}


def build_victim(path: str) -> None:
    """A directory with records, a snapshot, history and freed pages."""
    with LmdbJournal.open(path, reserve_bytes=0) as j:
        for i in range(60):
            j.append(Batch(records=[body(j.last_seq + 1 + k) for k in range(3)], history=[b"%d" % i * 300]))
        j.append(Batch(snapshot_begin=120, snapshot=[b"c%d" % i * 400 for i in range(30)], snapshot_end=True, trim_to=90, drop_history=5))
        j.append(Batch(records=[body(181)]))


def read_all(path: str, tell) -> None:
    """Tells a digest of all that is there, then writes and reads again."""
    with LmdbJournal.open(path, reserve_bytes=0, create=True) as j:
        def everything(end: int) -> int:
            crc = 0
            for item in (j.snapshot() or (0, iter(())))[1], j.history_blocks(), j.history_blocks(reverse=True), j.replay(90):
                for piece in item:
                    if not isinstance(piece, bytes):
                        number, data = piece
                        if number > end:
                            continue
                        crc = zlib.crc32(b"%d" % number, crc)
                    else:
                        data = piece
                    crc = zlib.crc32(data, crc)
            return crc
        end = j.last_seq
        first = zlib.crc32(b"%d" % end, everything(end))
        tell(str(first))
        for i in range(20):
            j.append(Batch(records=[body(j.last_seq + 1)], trim_to=90 if i == 0 else None))
        assert zlib.crc32(b"%d" % end, everything(end)) == first, "what was written changed what was there"


def mutate(rng: random.Random, path: Path, other: Path, old: Path) -> str:
    """Damage one thing in the directory; what was done."""
    data = path / "journal" / "data.mdb"
    size = data.stat().st_size
    kind = rng.choice(["flip", "flip", "flip", "flips", "zero_page", "copy_page", "truncate", "truncate_pages", "file"])
    if kind == "file":
        kind = rng.choice(["empty", "missing", "swapped", "stale", "lock", "no_lock", "marker", "no_marker", "no_env", "position", "bare"])
    pages = size // 4096
    with data.open("r+b") as f:
        raw = bytearray(f.read())
        if kind in {"flip", "flips"}:
            for _ in range(1 if kind == "flip" else rng.randint(2, 40)):
                # Half of the flips in what is structure, not data: the first bytes of pages.
                at = rng.randrange(size) if rng.random() < 0.5 else rng.randrange(pages) * 4096 + rng.randrange(160)
                raw[at] ^= 1 << rng.randrange(8)
        elif kind == "zero_page":
            at = rng.randrange(pages) * 4096
            raw[at : at + 4096] = bytes(4096)
        elif kind == "copy_page":
            a, b = rng.randrange(pages) * 4096, rng.randrange(pages) * 4096
            raw[a : a + 4096] = raw[b : b + 4096]
        f.seek(0)
        f.write(raw)
        if kind == "truncate":
            f.truncate(rng.randrange(size))
        elif kind == "truncate_pages":
            f.truncate(rng.randrange(pages) * 4096)
        elif kind == "empty":
            f.truncate(0)
    if kind == "missing":
        data.unlink()
    elif kind in {"swapped", "stale"}:
        shutil.copyfile((other if kind == "swapped" else old) / "journal" / "data.mdb", data)
    elif kind in {"lock", "no_lock"}:
        (path / "journal" / "lock.mdb").write_bytes(rng.randbytes(8192)) if kind == "lock" else (path / "lock").unlink()
    elif kind in {"marker", "position"}:
        target = path / ("marker.json" if kind == "marker" else "position")
        raw = bytearray(target.read_bytes())
        raw[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)
        target.write_bytes(raw)
    elif kind == "no_marker":
        (path / "marker.json").unlink()
    elif kind == "no_env":
        shutil.rmtree(path / "journal")
    elif kind == "bare":
        for name in ("journal", "marker.json", "lock"):
            shutil.rmtree(path / name) if name == "journal" else (path / name).unlink()
    return kind


def run_mutations(folder: str, first_seed: str, count: str) -> dict[str, object]:
    """Damage, then open, read, write. Each must be refused with advice or be complete; a death by LMDB's own check must leave its
    message and be explained by the next start."""
    good, other, old = (Path(folder, name) for name in ("good", "other", "old"))
    build_victim(str(good))
    build_victim(str(other))
    shutil.copytree(good, old)
    attempt(lambda tell: read_all(str(good), tell))  # `old` is now an older copy of the same directory
    data = good / "journal" / "data.mdb"
    os.truncate(data, read_extent(data).bytes_needed)
    shutil.copytree(good, Path(folder, "victim"))
    code, lines, err = attempt(lambda tell: read_all(f"{folder}/victim", tell))
    assert code == 0, err
    expected = lines[0]
    counts: dict[str, int] = {}
    bad: list[str] = []
    for seed in range(int(first_seed), int(first_seed) + int(count)):
        path = Path(folder, "victim")
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(good, path)
        kind = mutate(random.Random(seed), path, other, old)
        code, lines, err = attempt(lambda tell, path=path: read_all(str(path), tell))
        what = f"seed {seed} {kind}: {code} {err[-300:]}"
        if lines and lines[0] != expected:
            outcome = "silent"
        elif code == 0:
            outcome = "complete"
        elif code == 3 and ("admin verify" in err or "format" in err or "older copy" in err):
            outcome = "refused"
        elif code == 70:
            outcome = "stopped while writing"
        elif code in {-signal.SIGABRT, -signal.SIGBUS, -signal.SIGSEGV} and ("mdb.c" in err or "Fatal Python error" in err):
            again, _, err2 = attempt(lambda tell, path=path: read_all(str(path), tell))
            explained = (again == 3 and "admin verify" in err2)
            outcome = "died with a message, then refused" if explained else "bad" if not lines else "died while writing"
        counts[outcome] = counts.get(outcome, 0) + 1
        if outcome in {"silent", "bad"}:
            bad.append(what)
    return {"counts": counts, "bad": bad[:20]}


def run_rlimit(folder: str, limit: str) -> dict[str, object]:
    """The file may not grow beyond a limit: the process ends with 70, all acknowledged is there."""
    path = f"{folder}/data"

    def work(tell) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit), int(limit)))
        write_records(path, tell, 100_000, 5)

    code, lines, err = attempt(work)
    assert code == 70, (code, err)
    assert last_ack(lines) > 3
    must_restart(path, lines, "RLIMIT_FSIZE")
    return {"acked": last_ack(lines)}


if __name__ == "__main__":
    print(json.dumps(globals()["run_" + sys.argv[1]](*sys.argv[2:])))


# ---- in pytest


def runner(*args: object, env: dict[str, str] | None = None) -> dict[str, object]:
    """Run this file as a script; what it found. Its failed assertion is ours."""
    done = subprocess.run(
        [sys.executable, __file__, *map(str, args)], capture_output=True, text=True, timeout=300, check=False,
        env={**os.environ, "PYTHONPATH": SCRIPT_PATH, **(env or {})},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def shim(tmp_path_factory):
    """Environment that preloads the fault shim."""
    gcc = shutil.which("gcc")
    if gcc is None:
        pytest.skip("the fault shim needs gcc")
    folder = tmp_path_factory.mktemp("shim")
    source = TESTS / "shims" / "fsyncshim.c"
    built = subprocess.run(
        [gcc, "-O2", "-shared", "-fPIC", "-o", folder / "shim.so", source, "-ldl"], capture_output=True, text=True, check=False
    )
    assert built.returncode == 0, built.stderr
    (folder / "ctl").write_bytes(bytes(4096))
    return {"LD_PRELOAD": str(folder / "shim.so"), "FS_CTL": str(folder / "ctl"), "FS_MATCH": "/data"}


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "count"), [
    ("kill", 1), ("eio_sync", 1), ("eio_sync", -1), ("enospc_write", 1), ("enospc_write", -1),
    ("eio_write", 1), ("short_write", 1), ("eintr", 1),
])
def test_every_journal_call_may_be_the_one_that_fails(tmp_path, shim, mode, count):
    found = runner("calls", tmp_path, mode, count, 6, 1, env=shim)
    assert found["points"] > 15, found


@pytest.mark.slow
def test_nothing_acknowledged_is_lost_by_kill_9(tmp_path):
    assert runner("kills", tmp_path, 20, 20261129)["acked"] > 20


def test_of_many_servers_exactly_one_opens(tmp_path):
    runner("races", tmp_path, 3, 12)


@pytest.mark.slow
def test_damage_is_refused_or_harmless_never_silent(tmp_path):
    found = runner("mutations", tmp_path, 0, 150)
    assert found["bad"] == [], found
    assert found["counts"]["refused"] > 25, found
    assert found["counts"]["complete"] > 2, found


def test_a_file_that_may_not_grow_ends_the_process(tmp_path):
    runner("rlimit", tmp_path, 20 << 20)


def test_the_first_error_message_names_the_way_out(tmp_path):
    path = tmp_path / "data"
    LmdbJournal.open(path, reserve_bytes=0).close()
    os.truncate(path / "journal" / "data.mdb", 4096)
    before = {p: p.read_bytes() for p in path.rglob("*") if p.is_file() and p.name != "lock"}
    with pytest.raises(CorruptJournalError, match=r"admin verify .*restore a copy"):
        LmdbJournal.open(path, reserve_bytes=0)
    assert before == {p: p.read_bytes() for p in path.rglob("*") if p.is_file() and p.name != "lock"}

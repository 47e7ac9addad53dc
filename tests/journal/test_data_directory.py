"""The data directory: whose it is, what its files are, what a damaged one is answered; and a look that changes nothing."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

import wheelsched
from tests.rigs.server import ws_job
from wheelsched.cli.root import cli
from wheelsched.journal.files import read_note, write_note
from wheelsched.journal.lmdb_journal import Batch, LmdbJournal
from wheelsched.model.errors import CorruptJournalError
from wheelsched.server import boot
from wheelsched.server.config import load

DAMAGED, FATAL, LOCKED, CONFIG = 65, 70, 75, 78
LATER = "2099-01-01T00:00:00Z"
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="root is needed to be another user")


def config(data, short_tmp):
    return load({"data": str(data), "socket": str(short_tmp / "s"), "workers": 0, "reserve_bytes": 4096})


@pytest.fixture
def data(tmp_path, short_tmp):
    """A directory that a server has used."""
    path = tmp_path / "data"
    boot._start(config(path, short_tmp))._stop()
    return path


def start(data, short_tmp, capfd):
    """(exit code, what it says) of a start that goes no further."""
    capfd.readouterr()
    code = boot.serve(config(data, short_tmp))
    said = capfd.readouterr().err
    assert "Traceback" not in said
    assert "Z ERROR wheelsched: " in said
    assert said.count("\n") == 1, said
    return code, said


def verify(data):
    """(exit code, what it prints) of `admin verify`."""
    done = CliRunner().invoke(cli, ["admin", "verify", str(data)])
    assert not done.exception or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.output


def everything(path):
    """Names, modes and contents below a directory."""
    return {p.relative_to(path).as_posix(): (p.lstat().st_mode, p.lstat().st_mtime_ns, p.read_bytes() if p.is_file() else b"")
            for p in [path, *path.rglob("*")]}


# What a power cut leaves of a file


@pytest.mark.parametrize(("text", "why"), [
    (b"", "empty"), (bytes(20), "empty"), (b"0 crc32=f4dbdf20\n", "checksum"), (b"1 crc32=f4dbdf21\n", "checksum"),
    (b"0 crc32=f4dbdf21", "checksum"), (b"zero\n", "zero"), (b"0 1\n", "0 1"), (b"\xff\n", "xff"), (b"0" * 5000, "more than"),
])
def test_t2_a_damaged_clock_offset_is_told_in_words_and_verify_sees_it(data, short_tmp, capfd, text, why):
    (data / "clock_offset").write_bytes(text)
    before = everything(data / "journal")
    code, said = start(data, short_tmp, capfd)
    assert code == DAMAGED
    assert why in said
    assert "remove it" in said
    assert "admin verify" in said
    code, told = verify(data)
    assert code == 1
    assert str(data / "clock_offset") in told
    assert why in told
    assert everything(data / "journal").keys() == before.keys()


def test_t2_every_flipped_bit_of_a_note_is_seen(tmp_path):
    path = tmp_path / "note"
    for numbers in ((0,), (-5_000_000,), (12, 3_333_333_333)):
        write_note(path, *numbers)
        good = path.read_bytes()
        assert read_note(path, len(numbers)) == numbers
        for bit in range(8 * len(good)):
            path.write_bytes((int.from_bytes(good, "big") ^ 1 << bit).to_bytes(len(good), "big"))
            with pytest.raises(ValueError, match=r"it |its "):
                read_note(path, len(numbers))
        for size in range(len(good)):
            path.write_bytes(good[:size])
            with pytest.raises(ValueError, match=r"it |its "):
                read_note(path, len(numbers))


def test_t2_what_older_versions_wrote_is_read_and_replaced(data, short_tmp, capfd):
    (data / "clock_offset").write_bytes(b"-7200000000\n")
    seq, crc = read_note(data / "position", 2)
    (data / "position").write_bytes(b"%d %d\n" % (seq, crc))
    code, said = start(data, short_tmp, capfd)
    assert (code, "--clock-offset=-2h" in said) == (CONFIG, True)
    (data / "clock_offset").write_bytes(b"0\n")
    LmdbJournal.open(data, reserve_bytes=0).close()
    assert b"crc32=" in (data / "position").read_bytes()


def test_t2_no_file_is_written_without_temp_sync_rename_and_sync(data, monkeypatch):
    calls = []
    for name in ("fsync", "replace", "open"):
        real = getattr(os, name)

        def call(*args, _name=name, _real=real, **options):
            path = {"fsync": lambda: Path(f"/proc/self/fd/{args[0]}").readlink(), "replace": lambda: args[1]}.get(_name, lambda: args[0])()
            calls.append((_name, str(path)))
            return _real(*args, **options)

        monkeypatch.setattr(os, name, call)
    with LmdbJournal.open(data.with_name("new"), reserve_bytes=0) as j:
        for write, name in ((j.directory.write_clock_offset, "clock_offset"), (lambda _: j.directory.write_position(0, 0), "position")):
            calls.clear()
            write(0)
            path, folder = str(j.directory.path / name), str(j.directory.path)
            kinds = [c for c in calls if c[1].startswith(folder)]
            assert kinds == [("open", f"{path}.new"), ("fsync", f"{path}.new"), ("replace", path), ("open", folder), ("fsync", folder)]


def test_t2_the_offset_is_on_disk_before_the_first_record(serving):
    server = serving("--clock-offset", "1h", workers=0)
    ws = server.client()
    data = server.folder / "data"
    assert read_note(data / "clock_offset", 1) == (3_600_000_000,)
    ws.put_many([ws_job("a", LATER)])
    (data / "clock_offset").write_bytes(b"")
    server.end(9)
    again = serving("--clock-offset", "1h", workers=0)
    assert again.process.wait(60) == DAMAGED
    assert "Traceback" not in again.log.read_text()


# Modes and owners


@pytest.mark.parametrize("umask", [0o000, 0o077, 0o777])
def test_s14_every_file_of_a_server_is_private_whatever_the_umask(serving, umask):
    if umask == 0o777 and os.geteuid():
        pytest.skip("a directory nobody can enter needs root")
    server = serving(preexec=lambda: os.umask(umask))
    ws = server.client()
    ws.put_many([ws_job("a", LATER)])
    top = server.folder / "data"
    found = {p.relative_to(top).as_posix(): stat.S_IMODE(p.lstat().st_mode) for p in [top, *top.rglob("*")]}
    assert {"clock_offset", "position", "marker.json", "lock", "journal/data.mdb", "workers"} <= found.keys()
    assert {n: oct(m) for n, m in found.items() if m != (0o700 if (top / n).is_dir() else 0o600)} == {}


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o1777, 0o702, 0o720])
def test_t11_a_directory_that_others_may_write_in_is_refused(data, short_tmp, capfd, mode):
    data.chmod(mode)
    code, said = start(data, short_tmp, capfd)
    assert (code, f"chmod 700 {data}" in said) == (CONFIG, True)
    assert stat.S_IMODE(data.stat().st_mode) == mode
    new = data.with_name("new")
    new.mkdir()
    new.chmod(mode)
    assert start(new, short_tmp, capfd)[0] == CONFIG
    assert list(new.iterdir()) == []


@as_root
def test_t11_another_users_directory_is_refused(data, short_tmp, capfd):
    os.chown(data, 12345, 12345)
    before = everything(data)
    code, said = start(data, short_tmp, capfd)
    assert (code, "user 12345" in said) == (CONFIG, True)
    assert everything(data) == before


@pytest.mark.parametrize("name", ["reserve", "clock_offset", "position", "marker.json", "lock", "workers", "journal", "journal/data.mdb",
                                  "reserve.new", "clock_offset.new", "position.new"])
def test_t11_no_link_is_followed(data, short_tmp, capfd, name):
    victim = short_tmp / "victim"
    target = data / name
    if target.is_dir():
        shutil.copytree(target, victim)
        shutil.rmtree(target)
    else:
        victim.write_bytes(target.read_bytes() if target.exists() else b"0\n")
        target.unlink(missing_ok=True)
    victim.chmod(0o755)
    target.symlink_to(victim)
    before = everything(victim)
    if name in {"reserve", "reserve.new", "clock_offset.new", "position.new"}:  # replaced
        with LmdbJournal.open(data, reserve_bytes=4096) as j:
            j.directory.write_clock_offset(0)
        assert name == "reserve.new" or not target.is_symlink()
    else:
        assert start(data, short_tmp, capfd)[0] in {DAMAGED, CONFIG}
        assert target.is_symlink()
    assert everything(victim) == before


# One sentence for whoever operates it


def test_s9_the_message_of_a_damaged_directory_names_only_what_exists(data, short_tmp, capfd):
    (data / "marker.json").write_text("{")
    code, said = start(data, short_tmp, capfd)
    assert code == DAMAGED
    verbs = CliRunner().invoke(cli, ["admin", "--help"]).output
    assert "verify" in verbs
    assert ("salvage" in said) <= ("salvage" in verbs)
    assert str(data / "marker.json") in said
    assert CliRunner().invoke(cli, ["serve", "--help"]).output.count("65") == 1


def test_t10_a_file_where_the_directory_should_be(tmp_path, short_tmp, capfd):
    file = tmp_path / "file"
    file.write_text("x")
    code, said = start(file, short_tmp, capfd)
    assert (code, "no directory" in said) == (CONFIG, True)
    code, said = start(file / "below", short_tmp, capfd)
    assert code == CONFIG
    for path in (file, file / "below"):
        code, told = verify(path)
        assert code in {2, 3}
        assert "directory" in told


def test_t10_workers_as_a_file(data, short_tmp, capfd):
    (data / "workers").rmdir()
    (data / "workers").write_text("x")
    code, said = start(data, short_tmp, capfd)
    assert (code, f"{data / 'workers'} is no directory" in said) == (DAMAGED, True)
    code, told = verify(data)
    assert (code, "is no directory" in told) == (1, True)


def test_t10_a_folder_that_may_not_be_written(tmp_path, short_tmp, capfd, monkeypatch):
    def denied(self, *_, **__):
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "mkdir", denied)
    code, said = start(tmp_path / "new", short_tmp, capfd)
    assert (code, "Permission denied; choose a folder that this user may write" in said) == (CONFIG, True)


@pytest.mark.parametrize(("number", "code", "word"), [(28, FATAL, "full"), (122, FATAL, "full"), (5, FATAL, "failed"), (30, CONFIG, "ead-only")])
def test_t6_a_disk_that_fails_while_the_directory_is_made(tmp_path, short_tmp, capfd, monkeypatch, number, code, word):
    def fails(path, *_, **__):
        raise OSError(number, os.strerror(number), str(path))

    monkeypatch.setattr("wheelsched.journal.directory.make_private", fails)
    found, said = start(tmp_path / "new", short_tmp, capfd)
    assert (found, word in said) == (code, True)


def test_t10_verify_changes_nothing(data):
    (data / "lock").unlink()
    shutil.rmtree(data / "journal" / "lock.mdb", ignore_errors=True)
    (data / "journal" / "lock.mdb").unlink(missing_ok=True)
    before = everything(data)
    code, told = verify(data)
    assert code == 0, told
    assert everything(data) == before


def test_t10_verify_of_a_directory_without_records_and_of_none(tmp_path):
    LmdbJournal.open(tmp_path / "data", reserve_bytes=0).close()
    assert verify(tmp_path / "data")[0] == 0
    assert verify(tmp_path / "none")[0] == 3
    (tmp_path / "empty").mkdir()
    assert verify(tmp_path / "empty")[0] == 3
    assert list((tmp_path / "empty").iterdir()) == []


@as_root
def test_t10_verify_as_another_user_and_as_root(data, tmp_path):
    os.chown(data, 12345, 12345)
    assert verify(data)[0] == 0
    if shutil.which("setpriv") is None:
        pytest.skip("setpriv is needed to be another user")
    root = str(Path(wheelsched.__file__).resolve().parents[1])
    for folder in tmp_path.parents:  # pytest's own are 0700
        if folder.stat().st_uid == os.geteuid() and folder != Path("/"):
            folder.chmod(folder.stat().st_mode | 0o011)
    tmp_path.chmod(0o711)
    done = subprocess.run(
        ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", sys.executable, "-m", "wheelsched", "admin", "verify", str(data)],
        env={**os.environ, "PYTHONPATH": root, "PYTHONDONTWRITEBYTECODE": "1"}, capture_output=True, text=True, check=False, cwd="/",
    )
    if "wheelsched:" not in done.stderr:
        pytest.skip("another user can't run this interpreter")
    assert done.returncode == 6
    assert done.stderr.count("\n") == 1
    assert "Permission denied" in done.stderr


@as_root
def test_t10_verify_on_a_read_only_mount(data, tmp_path):
    mount = tmp_path / "mount"
    mount.mkdir()
    if subprocess.run(["mount", "--bind", data, mount], capture_output=True, check=False).returncode:
        pytest.skip("mount isn't allowed here")
    try:
        subprocess.run(["mount", "-o", "remount,ro,bind", mount], check=True)
        code, told = verify(mount)
        assert code == 0, told
    finally:
        subprocess.run(["umount", mount], check=True)


def test_a_directory_opened_to_be_read_takes_no_record(data):
    with LmdbJournal.open(data, read_only=True) as j:
        assert [seq for seq, _ in j.replay(0)]
        with pytest.raises(AssertionError, match="read only"):
            j.append(Batch())
    with pytest.raises(CorruptJournalError):
        (data / "position").write_bytes(b"")
        LmdbJournal.open(data, read_only=True)

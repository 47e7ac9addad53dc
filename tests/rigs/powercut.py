"""The images of a data directory that a power cut could leave: built from the log of shims/powercut.c, and started, one by one.

What was synced is there. Of what was not, a random choice: sectors of the data, and a prefix of the changes of names (or, less kindly, any
of them). `python powercut.py FOLDER IMAGES SEED` prints the counts as JSON.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

from tests.rigs.places import SCRIPT_PATH
from wheelsched import At, Call, Client
from wheelsched.model.errors import UnavailableError, WheelschedError
from wheelsched.server.boot import serve
from wheelsched.server.config import load

WRITE, TRUNCATE, SYNC, RENAME, UNLINK, MKDIR = range(1, 7)
SECTOR = 512
LATER = At("2099-01-01T00:00:00Z")


def record(folder: Path, shim: Path, jobs: int) -> list[tuple]:
    """The operations of a new directory's first seconds: a server that is put jobs, one by one, stopped and started once more."""
    data, log = folder / "data", folder / "ops"
    env = {**os.environ, "LD_PRELOAD": str(shim), "CUT_MATCH": str(data), "CUT_LOG": str(log)}
    acked = 0
    for _ in range(2):
        argv = [sys.executable, "-m", "wheelsched", "--socket", str(folder / "s"), "serve", "--data", str(data), "--workers", "0"]
        server = subprocess.Popen(argv, env=env, stderr=subprocess.DEVNULL)
        until = time.monotonic() + 60
        with Client(str(folder / "s")) as ws:
            while True:
                try:
                    ws.stats()
                    break
                except WheelschedError:
                    if server.poll() is not None or time.monotonic() > until:
                        raise
                    time.sleep(0.02)
            for _ in range(jobs):
                ws.put(f"j{acked + 1}", Call("t.x", acked), LATER)
                acked += 1
                with log.open("ab") as file:  # after the answer, so after all that the answer waited for
                    file.write(struct.pack("<IIQQI", 9, 0, acked, 0, 0))
        server.send_signal(signal.SIGTERM)
        server.wait(60)
    return parse(log.read_bytes())


def parse(raw: bytes) -> list[tuple]:
    ops, at = [], 0
    while at < len(raw):
        op, flags, offset, size, length = struct.unpack_from("<IIQQI", raw, at)
        at += 28
        path, body = raw[at : at + length].decode(), raw[at + length : at + length + size]
        at += length + size
        ops.append((op, flags, offset, path, body))
    return ops


class Disk:
    """Names and data, what of them is durable, and what is not yet."""

    def __init__(self) -> None:
        self.names: dict[str, int] = {}  # as the processes see them
        self.folders: set[str] = set()
        self.kept: dict[str, int] = {}  # durable
        self.kept_folders: set[str] = set()
        self.waiting: list[tuple] = []  # changes of names
        self.data: list[bytearray] = []
        self.writes: list[list[tuple[int, bytes | None]]] = []
        self.acked = 0

    def inode(self, path: str) -> int:
        if path not in self.names:
            self.names[path] = len(self.data)
            self.data.append(bytearray())
            self.writes.append([])
            self.waiting.append(("link", path, self.names[path]))
        return self.names[path]

    def take(self, op: int, flags: int, offset: int, path: str, body: bytes) -> None:
        if op == 9:
            self.acked = offset
        elif op == WRITE and flags:
            put(self.data[self.inode(path)], offset, body)
        elif op == WRITE:
            self.writes[self.inode(path)].append((offset, body))
        elif op == TRUNCATE:
            self.writes[self.inode(path)].append((offset, None))
        elif op == SYNC and path in self.folders:
            here = [w for w in self.waiting if str(Path(w[1]).parent) == path]
            for entry in here:
                apply(self.kept, self.kept_folders, entry)
                self.waiting.remove(entry)
        elif op == SYNC:
            number = self.inode(path)
            for write in self.writes[number]:
                change(self.data[number], *write)
            self.writes[number] = []
        elif op in (RENAME, UNLINK, MKDIR):
            entry = ("rename", path, body.decode()) if op == RENAME else ("unlink", path) if op == UNLINK else ("mkdir", path)
            apply(self.names, self.folders, entry)
            self.waiting.append(entry)

    def image(self, rng: random.Random, root: Path, was: str) -> None:
        """Write what a cut now could leave."""
        names, folders = dict(self.kept), set(self.kept_folders)
        kind = rng.choice([True, True, False])
        count = rng.randint(0, len(self.waiting))
        for i, entry in enumerate(self.waiting):
            if i < count if kind else rng.random() < 0.5:
                apply(names, folders, entry)
        for folder in sorted(folders):
            moved(root, was, folder).mkdir(parents=True, exist_ok=True, mode=0o700)
        share = rng.choice([0, 0.1, 0.5, 0.9, 1])
        for path, number in names.items():
            target = moved(root, was, path)
            if not target.parent.is_dir():
                continue
            data = bytearray(self.data[number])
            for offset, body in self.writes[number]:
                if body is None:
                    if rng.random() < share:
                        change(data, offset, None)
                    continue
                for at in range(0, len(body), SECTOR):
                    if rng.random() < share:
                        put(data, offset + at, body[at : at + SECTOR])
            target.write_bytes(data)


def moved(root: Path, was: str, path: str) -> Path:
    return root / os.path.relpath(path, was)


def put(data: bytearray, offset: int, body: bytes) -> None:
    if len(data) < offset:
        data.extend(bytes(offset - len(data)))
    data[offset : offset + len(body)] = body


def change(data: bytearray, offset: int, body: bytes | None) -> None:
    if body is not None:
        put(data, offset, body)
    elif len(data) > offset:
        del data[offset:]
    else:
        data.extend(bytes(offset - len(data)))


def apply(names: dict[str, int], folders: set[str], entry: tuple) -> None:
    kind, path = entry[:2]
    if kind == "link":
        names[path] = entry[2]
    elif kind == "mkdir":
        folders.add(path)
    elif kind == "unlink":
        names.pop(path, None)
    elif path in folders:
        to = entry[2]
        folders.difference_update(inner := {f for f in folders if f == path or f.startswith(path + "/")})
        folders.update(to + f.removeprefix(path) for f in inner)
        for name in [n for n in names if n.startswith(path + "/")]:
            names[to + name.removeprefix(path)] = names.pop(name)
    elif path in names:
        names[entry[2]] = names.pop(path)


def started(data: Path, socket: Path, acked: int) -> str:
    """Start it in a child, see what is there; "ok", or what is wrong."""
    socket.unlink(missing_ok=True)
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read_end)
        err = os.open(data.parent / "err", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(err, 2)
        code = 1
        with contextlib.suppress(BaseException):
            config = load({"data": str(data), "socket": str(socket), "workers": 0, "reserve_bytes": 1 << 20})
            threading.Thread(target=look, args=(socket, acked, write_end), daemon=True).start()
            code = serve(config)
        os._exit(code)
    os.close(write_end)
    found = b""
    while piece := os.read(read_end, 4096):
        found += piece
    os.close(read_end)
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    if code == 0 and found == b"ok":
        return "ok"
    return f"{found.decode() or 'no answer'}; exit {code}; {(data.parent / 'err').read_text()[-300:]}"


def look(socket: Path, acked: int, write_end: int) -> None:
    text = "no server"
    until = time.monotonic() + 60
    while time.monotonic() < until:
        if not socket.exists():
            time.sleep(0.01)
            continue
        try:
            with Client(str(socket)) as ws:
                there = {job.name for job in ws.jobs()}
                lost = {f"j{n + 1}" for n in range(acked)} - there
                ws.put("after", Call("t.x"), LATER)
            text = f"lost {sorted(lost)}" if lost else "ok"
        except UnavailableError as e:  # it is bound, and not listened on yet
            text = str(e)
            time.sleep(0.01)
            continue
        except WheelschedError as e:
            text = str(e)
        break
    os.write(write_end, text.encode())
    os.kill(os.getpid(), signal.SIGTERM)


def run(folder: Path, shim: Path, images: int, seed: int, jobs: int = 12) -> dict[str, object]:
    """Counts, and the first ones that are not right."""
    rng = random.Random(seed)
    ops = record(folder, shim, jobs)
    points = sorted(rng.choices(range(len(ops)), k=images))
    disk, bad, ok = Disk(), [], 0
    was = str(folder / "data")
    for i, op in enumerate(ops):
        disk.take(*op)
        while points and points[0] == i:
            points.pop(0)
            root = folder / "image" / "data"
            shutil.rmtree(root.parent, ignore_errors=True)
            root.parent.mkdir()
            disk.image(rng, root, was)
            verdict = started(root, folder / "i", disk.acked)
            ok += verdict == "ok"
            if verdict != "ok":
                bad.append(f"operation {i} of {len(ops)} (acknowledged {disk.acked}): {verdict}")
    return {"operations": len(ops), "ok": ok, "bad": len(bad), "first": bad[:5]}


def run_apart(folder: Path, shim: Path, images: int, seed: int) -> dict[str, object]:
    """The same in a process of its own, which forks."""
    env = {**os.environ, "PYTHONPATH": SCRIPT_PATH}
    argv = [sys.executable, __file__, str(folder), str(shim), str(images), str(seed)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


if __name__ == "__main__":
    print(json.dumps(run(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))))

"""Single changes to the code, one at a time, each against the tests that reach the changed line: what no test notices is a hole.

    python -m tests.mutants [MODULE ...] [--count N] [--seed S] [--seconds T] [--sims N] [--map FILE]

MODULE is a module of wheelsched (`engine.due`, `wheel._wheel`); without one, all of DECIDES, DOES and COMPILED. A change is a
comparison with its limit moved, another operator, a part of a condition or a call or an assignment left out, swapped branches, a number
one off, or another column. It is made in a copy of the tree, never here, and in a fork of a process that has the tests imported: there the
functions of the changed file get their new code. What a test starts as a process reads the changed file. A `.pyx` is changed by line and built.

Which tests reach a line is measured once, by a run of the suite (without the slow tests) under coverage.py with a context a test (servers and
workers that a test starts are in its context), and kept in FILE. A change is tried with its quickest tests first, T seconds of them at most;
what they let pass in DECIDES meets N seeds of the simulator. Equivalent changes stand in `equivalent.txt` beside this: MODULE<TAB>the line, stripped<TAB>the
change<TAB>why. Exit code 1 when a change that is not listed there went unnoticed.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import importlib.util
import itertools
import json
import os
import random
import re
import resource
import select
import shutil
import signal
import sys
import tempfile
import types
from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.mutants.built import built
from tests.mutants.changes import COMPILED, DECIDES, DOES, ROOT, Change, changes_of
from tests.mutants.reach import reach

if TYPE_CHECKING:
    from collections.abc import Callable

EQUIVALENT = ROOT / "tests/mutants/equivalent.txt"
CANT = 3
LIMIT = 100  # seconds of a test; a quarter of it for what it computes itself


def codes(code: types.CodeType) -> dict[str, list[types.CodeType]]:
    """All code objects in one, by their names."""
    found = defaultdict(list, {code.co_qualname: [code]})
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            for name, these in codes(inner).items():
                found[name] += these
    return found


class Trials:
    """A pytest plugin: instead of running the tests, tries the changes, each in a fork."""

    def __init__(self, changes: list[Change], known: dict[str, dict], given: argparse.Namespace, tell: Callable) -> None:
        self.changes, self.known, self.seconds, self.sims, self.tell, self.sound = changes, known, given.seconds, given.sims, tell, {}

    def tests_for(self, change: Change) -> list[str]:
        """The tests that reach the line of a change, or the statement around it; the quickest ones."""
        lines = self.known.get(change.path, {})
        if change.inside:
            tests = next((lines[str(n)] for n in range(change.lines[1], change.lines[0] - 1, -1) if str(n) in lines), [])
            if not tests:  # a process that is killed does not tell what it reached: the tests that reach some line of the file
                tests = sorted(set().union(*lines.values()), key=self.known["took"].__getitem__)
        else:  # a constant: the lines that name it
            name = Path(change.path).read_text().splitlines()[change.lines[0] - 1].split("=")[0].split(":")[0].strip()
            users = [(p, str(n)) for p in self.known if p != "took" for n, line in enumerate(Path(p).read_text().splitlines(), 1)
                     if re.search(rf"\b{re.escape(name)}\b", line)]
            tests = sorted({t for p, n in users for t in self.known[p].get(n, [])}, key=self.known["took"].__getitem__)
        sums = itertools.accumulate(self.known["took"][t] for t in tests)
        return [t for t, total in zip(tests, sums, strict=True) if total <= self.seconds] or tests[:1]

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Every change in turn."""
        self.session, self.items = session, defaultdict(list)
        for item in session.items:
            self.items[item.nodeid.split("[")[0]].append(item)
        package = str(Path("wheelsched").resolve())
        self.functions = [f for f in gc.get_objects() if type(f) is types.FunctionType and f.__code__.co_filename.startswith(package)]
        ctypes.CDLL(None).prctl(36, 1)  # what a test leaves behind becomes a child of this process, which ends it
        gc.freeze()
        for change in self.changes:
            self.tell(change, self.tried(change))
        return True

    def tried(self, change: Change) -> str:
        """Which test notices a change?"""
        path = Path(change.path)
        before, times = path.read_bytes(), path.stat()
        items = [item for test in self.tests_for(change) for item in self.items[test]]
        if not items:
            return "UNREACHED"
        while items:
            path.write_bytes(change.made(before))
            at = self.forked(change, before, items)
            path.write_bytes(before)
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))  # compiled files stay valid
            if at is None:
                break
            if at == len(items):
                return "noticed by the simulator"
            if items[at] not in self.sound:  # a test that is red without the change notices nothing
                self.sound[items[at]] = self.forked(None, before, [items[at]]) is None
            if self.sound[items[at]]:
                return f"noticed by {items[at].nodeid}"
            items = items[at + 1 :]
        return "UNNOTICED"

    def forked(self, change: Change | None, before: bytes, items: list[pytest.Item]) -> int | None:
        """Where a fork that runs tests fails or hangs; None when all pass."""
        reading, writing = os.pipe()
        if not (pid := os.fork()):
            try:
                self.run(change, before, items, writing)
            finally:
                os._exit(1)
        os.close(writing)
        ended, at = os.pidfd_open(pid), 0
        while ready := select.select([reading, ended], [], [], LIMIT)[0]:
            if not (told := os.read(reading, 4) if reading in ready else b""):
                break
            at = int.from_bytes(told, "little")
        if not ready:
            os.kill(pid, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        assert code != CANT, f"this change can't be tried: {change}"
        os.close(reading)
        os.close(ended)
        while left := Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
            for child in map(int, left):
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
        return at if code else None

    def run(self, change: Change | None, before: bytes, items: list[pytest.Item], writing: int) -> None:
        """In the fork: the change, the tests, for what decides the simulator too."""
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, 1)
        os.dup2(nothing, 2)
        resource.setrlimit(resource.RLIMIT_DATA, (4 << 30, 4 << 30))
        try:
            if change:
                self.patch(change, before)
        except ValueError:  # a function without one of its closure's names
            os._exit(CANT)
        for at, (item, following) in enumerate(itertools.pairwise([*items, None])):
            os.write(writing, at.to_bytes(4, "little"))
            signal.setitimer(signal.ITIMER_PROF, LIMIT / 4)  # its signal ends a process that computes for ever
            item.ihook.pytest_runtest_protocol(item=item, nextitem=following)
            if self.session.testsfailed:
                return
        if change and self.sims and change.module in DECIDES:
            os.write(writing, len(items).to_bytes(4, "little"))
            signal.setitimer(signal.ITIMER_PROF, 3 * LIMIT)
            from tests.sim import seeds as sim

            if sim.main(["--seeds", str(self.sims), "--seed", "1000"]):
                return
        os._exit(0)

    def patch(self, change: Change, before: bytes) -> None:
        """The changed file's functions get their new code; after a change outside of functions, its constants their new values."""
        path = str(Path(change.path).resolve())
        if change.inside:
            old, new = (codes(compile(data, path, "exec", dont_inherit=True)) for data in (before, change.made(before)))
            pairs = {(name, a.co_firstlineno): b for name in old for a, b in zip(old[name], new[name], strict=False)}
            for function in self.functions:
                if function.__code__.co_filename == path:
                    function.__code__ = pairs.get((function.__code__.co_qualname, function.__code__.co_firstlineno), function.__code__)
            return
        name = f"wheelsched.{change.module}"
        spec = importlib.util.spec_from_file_location(name, path)
        changed = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(changed)
        for key, value in vars(changed).items():
            known = vars(sys.modules[name]).get(key)
            if isinstance(value, (int, str, bytes, tuple, frozenset, set, dict)) and value != known:
                for module in list(sys.modules.values()):
                    if vars(module).get(key) is known:
                        setattr(module, key, value)


def main() -> int:
    """See the top of the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("modules", nargs="*", default=[*DECIDES, *DOES, *COMPILED])
    for flag, kind, default in (("count", int, 40), ("seed", int, 0), ("seconds", float, 30.0), ("sims", int, 10), ("map", Path, ROOT / "build/mutants.json")):
        parser.add_argument(f"--{flag}", type=kind, default=default)
    given = parser.parse_args()
    excused = {tuple(row.split("\t")[:3]) for row in EQUIVALENT.read_text().splitlines() if row and not row.startswith("#")}
    everything = [change for module in given.modules for change in changes_of(module)]
    chosen = random.Random(given.seed).sample(everything, min(given.count, len(everything)))
    counts, out = defaultdict(Counter), os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # pytest's own words
    print(f"{len(chosen)} of {len(everything)} changes, seed {given.seed}", file=out)

    def tell(change: Change, how: str) -> None:
        counts[change.module][how.split(maxsplit=1)[0]] += 1
        print(f"{change.path}:{change.lines[1]}\t{change.what}\t{how}", file=out)

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        copy = shutil.copytree(ROOT, Path(folder, "copy"), ignore=shutil.ignore_patterns(".git", ".venv", "build", ".*_cache"))
        os.chdir(copy)
        sys.path.insert(0, str(copy))
        assert "wheelsched" not in sys.modules, "the package has been read here: a change in the copy would go unnoticed"
        for name in [name for name in sys.modules if name.split(".")[0] == "tests"]:
            del sys.modules[name]  # the copy's from here on
        sys.dont_write_bytecode = True
        os.environ.update(PYTHONPATH=str(copy), PYTHONDONTWRITEBYTECODE="1", WHEELSCHED_CHECKED="1")
        if not given.map.exists():
            given.map.parent.mkdir(exist_ok=True)
            given.map.write_text(json.dumps(reach(copy)))
        left = []
        for change in chosen:
            line = (ROOT / change.path).read_text().splitlines()[change.lines[1] - 1].strip()
            if (change.module, line, change.what) in excused:
                tell(change, "equivalent")
            elif change.path.endswith(".pyx"):
                tell(change, built(change))
            else:
                left.append(change)
        trials = Trials(left, json.loads(given.map.read_text()), given, tell)
        files = sorted({test.split("::")[0] for change in left for test in trials.tests_for(change)})
        assert not files or not pytest.main(["-q", "-m", "not slow", f"--basetemp={folder}/tmp", *files], plugins=[trials])
    for module, count in sorted(counts.items()):
        print(module, *(f"{how} {n}" for how, n in sorted(count.items())), file=out)
    return int(any(how.isupper() for count in counts.values() for how in count))

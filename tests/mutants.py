"""Single changes to the code, one at a time, each against the tests that reach the changed line: what no test notices is a hole.

    python -m tests.mutants [MODULE ...] [--count N] [--seed S] [--jobs J] [--seconds T] [--map FILE]

MODULE is a file name in wheelsched/ without its ending (`due`, `_wheel`); without one, all of GUARDED. A change is a comparison with
its limit moved, another operator, `and` for `or`, a call that is dropped, swapped branches, a number one off, or another column of the
same kind. It is made in a copy of the tree, never here. `.pyx` files are changed by line, and their extension is built again.

Which tests reach a line is measured once, by a run of the whole suite under coverage.py with a context a test (servers and workers that
a test starts are in its context), and kept in FILE. A changed line is tried with its quickest tests first, for at most T seconds of
tests. Equivalent changes, with the reason, stand in `mutants_equivalent.txt`: MODULE<TAB>the line, stripped<TAB>the change<TAB>why.
Exit code 1 when a change that is not listed there went unnoticed.
"""

from __future__ import annotations

import argparse
import ast
import concurrent.futures
import itertools
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
EQUIVALENT = HERE / "mutants_equivalent.txt"
GUARDED = (
    "engine", "put", "apply", "commands", "run_commands", "due", "misfire", "spans", "overlap", "chains", "alarms", "expiry",
    "retime", "workers", "holders", "announcements", "queues", "sessions", "endings", "retries", "beats", "stale", "enqueues", "groups",
    "sweeps", "occurrences", "cancels", "dead", "rights", "waiting", "state", "elapsed", "touched", "forgetting", "attempts", "records",
    "history", "creation", "doubles", "keeper", "storage", "boot", "journal", "journal_dir", "journal_env", "journal_files",
    "memory_journal", "pool", "executors", "starts", "launch", "reaper", "process", "started", "kept", "worker", "returned", "external",
    "execution", "loops", "surroundings", "intake", "costs", "limits", "quotas", "outbox", "listener", "connections", "grants", "protocol",
    "_rows", "_jobs", "_runs", "_runrows", "_runturns", "_ready", "_wheel", "_cron",
)
SWAPS = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", " and ": " or ", " or ": " and ", " + ": " - ", " - ": " + "}
COMPARE = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==", ast.Is: "is not", ast.IsNot: "is",
    ast.In: "not in", ast.NotIn: "in",
}
BINARY = {ast.Add: "-", ast.Sub: "+", ast.Mult: "//", ast.FloorDiv: "*", ast.BitAnd: "|", ast.BitOr: "&"}
CALLS = {"min": "max", "max": "min", "minimum": "maximum", "maximum": "minimum", "any": "all", "all": "any"}


@dataclass(frozen=True)
class Change:
    """One change: bytes [start, end) of a file become `new`."""

    path: str
    line: int
    start: int
    end: int
    new: str
    what: str


class Finder(ast.NodeVisitor):
    """All changes of a Python file."""

    def __init__(self, path: str, data: bytes) -> None:
        self.path, self.data, self.found = path, data, []
        self.starts = [0, *itertools.accumulate(map(len, data.splitlines(keepends=True)))]
        tree = ast.parse(data)
        self.columns = sorted({
            n.slice.value for n in ast.walk(tree)
            if isinstance(n, ast.Subscript) and isinstance(n.slice, ast.Constant) and isinstance(n.slice.value, str)
        })
        self.visit(tree)

    def span(self, node: ast.AST) -> tuple[int, int]:
        return self.starts[node.lineno - 1] + node.col_offset, self.starts[node.end_lineno - 1] + node.end_col_offset

    def text(self, node: ast.AST) -> str:
        start, end = self.span(node)
        return self.data[start:end].decode()

    def add(self, node: ast.AST, new: str, what: str) -> None:
        self.found.append(Change(self.path, node.lineno, *self.span(node), new, what))

    def visit_Compare(self, node: ast.Compare) -> None:
        if len(node.ops) == 1 and type(node.ops[0]) in COMPARE:
            op = COMPARE[type(node.ops[0])]
            self.add(node, f"({self.text(node.left)}) {op} ({self.text(node.comparators[0])})", f"compared by {op}")
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        text = isinstance(node.left, (ast.Constant, ast.JoinedStr)) and not isinstance(getattr(node.left, "value", 0), (int, float))
        if type(node.op) in BINARY and not text:
            op = BINARY[type(node.op)]
            self.add(node, f"(({self.text(node.left)}) {op} ({self.text(node.right)}))", f"computed by {op}")
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        op = " or " if isinstance(node.op, ast.And) else " and "
        self.add(node, "(" + op.join(f"({self.text(v)})" for v in node.values) + ")", f"joined by{op}".rstrip())
        for i in range(len(node.values)):
            rest = (" and " if isinstance(node.op, ast.And) else " or ").join(f"({self.text(v)})" for v in node.values[:i] + node.values[i + 1:])
            self.add(node, f"({rest})", f"without part {i}")
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, (ast.Not, ast.Invert)):
            self.add(node, f"({self.text(node.operand)})", "not negated")
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if type(node.value) is int and node.value not in (0, 1) and node.value < 1 << 32:
            self.add(node, str(node.value + 1), "one more")

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Texts for people are left alone."""

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Call):
            self.add(node, "pass", "left out")
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self.add(node, "pass", "left out")
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        name = getattr(node.func, "id", getattr(node.func, "attr", ""))
        if name in CALLS:
            self.add(node.func, self.text(node.func).removesuffix(name) + CALLS[name], f"{CALLS[name]} for {name}")
        self.generic_visit(node)

    def visit_If(self, node: ast.If) -> None:
        if self.text(node.test) != "TYPE_CHECKING":
            self.add(node.test, f"not ({self.text(node.test)})", "branches swapped")
            self.generic_visit(node)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        value = getattr(node.slice, "value", None)
        if isinstance(value, str) and isinstance(node.slice, ast.Constant):
            others = [c for c in self.columns if c != value and c.endswith("_us") == value.endswith("_us")]
            if others:
                self.add(node.slice, f'"{others[len(value) % len(others)]}"', "another column")
        self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        for child in node.body:  # neither annotations nor defaults nor decorators
            self.visit(child)


def by_line(path: str, data: bytes) -> list[Change]:
    """Changes of a Cython file, by what stands on its lines of code."""
    found, at, inside = [], 0, False
    for number, line in enumerate(data.decode().splitlines(keepends=True), 1):
        raw = len(line.encode())
        quotes = line.count('"""')
        code = line.split("#")[0]
        if not inside and not quotes and not re.match(r"\s*(cdef extern|cimport|from|import|@|def |cdef \w+ \w+\()", code) and code.isascii():
            for match in re.finditer(r" (?:<=|>=|==|!=|<|>|and|or|\+|-) ", code):
                op = match.group()
                new = SWAPS.get(op, f" {SWAPS.get(op.strip(), '')} ")
                found.append(Change(path, number, at + match.start(), at + match.end(), new, f"{new.strip()} for {op.strip()}"))
        inside ^= quotes % 2 == 1
        at += raw
    return found


def changes_of(module: str) -> list[Change]:
    """Every change of a module's files."""
    found = []
    for path in sorted((ROOT / "wheelsched").glob(module + ".py*")):
        name, data = str(path.relative_to(ROOT)), path.read_bytes()
        found += Finder(name, data).found if path.suffix == ".py" else by_line(name, data) if path.suffix == ".pyx" else []
    return found


# Which tests reach a line

COVERAGE = """[run]
source_pkgs = wheelsched
parallel = true
patch = subprocess, _exit
dynamic_context = test_function
context = ${PYTEST_CURRENT_TEST-}
data_file = DATA
"""
COMPILED = {"_wheel": ["test_wheel.py"], "_cron": ["test_cron.py", "test_cron_table.py", "test_schedule.py"]}
TABLES = ["test_table.py", "test_snapshot.py", "test_queues.py", "test_fairness.py", "test_engine.py"]


def reach(copy: Path) -> dict[str, dict[str, list[str]]]:
    """{file: {line: its tests, the quickest first}} by one run of the suite."""
    import coverage

    (copy / "coveragerc").write_text(COVERAGE.replace("DATA", str(copy / "coverage.data")))
    env = dict(os.environ, PYTHONPATH=str(copy), COVERAGE_PROCESS_START=str(copy / "coveragerc"))
    run = [sys.executable, "-m", "coverage", "run", "--rcfile=coveragerc", "-m", "pytest", "-q", "-n", "auto", "--junitxml=times.xml", "tests"]
    subprocess.run(run, cwd=copy, env=env, check=True)
    took: dict[str, float] = {}
    for name, test, seconds in re.findall(r'<testcase classname="tests\.(\w+)" name="(\w+)[^"]*" time="([\d.]+)"', (copy / "times.xml").read_text()):
        took[f"tests/{name}.py::{test}"] = took.get(f"tests/{name}.py::{test}", 0) + float(seconds)
    data = coverage.Coverage(config_file=str(copy / "coveragerc"))
    data.combine()
    found: dict[str, dict[str, list[str]]] = {}
    for path in data.get_data().measured_files():
        lines = found[str(Path(path).relative_to(copy))] = {}
        for line, contexts in data.get_data().contexts_by_lineno(path).items():
            names = {re.sub(r"^.*?(test_\w+)(?:\.py::|\.)(test_\w+).*$", r"tests/\1.py::\2", c) for c in contexts}
            lines[str(line)] = sorted(names & took.keys(), key=took.__getitem__)
    return {"took": took, **found}  # type: ignore[dict-item]


def tests_for(change: Change, known: dict, seconds: float) -> list[str]:
    """The tests to try a change with."""
    if change.path.endswith(".pyx"):
        return [f"tests/{name}" for name in COMPILED.get(Path(change.path).stem, TABLES)]
    tests = known.get(change.path, {}).get(str(change.line), [])
    sums = itertools.accumulate(known["took"][t] for t in tests)
    return [t for t, total in zip(tests, sums, strict=True) if total <= seconds] or tests[:1]


def tried(change: Change, copy: Path, tests: list[str], seconds: float) -> bool:
    """Is the change noticed?"""
    path, env = copy / change.path, dict(os.environ, PYTHONPATH=str(copy))
    before = path.read_bytes()
    try:
        path.write_bytes(before[: change.start] + change.new.encode() + before[change.end :])
        if path.suffix == ".pyx":
            build = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
            if subprocess.run(build, cwd=copy, env=env, capture_output=True, check=False).returncode:
                return True  # the compiler has noticed it
        run = [sys.executable, "-m", "pytest", "-x", "-q", *tests]
        code = subprocess.run(run, cwd=copy, env=env, capture_output=True, check=False, timeout=120 + 10 * seconds).returncode
    except subprocess.TimeoutExpired:
        return True
    finally:
        path.write_bytes(before)
    assert code in (0, 1, 2, 3), f"pytest ended with {code}: {change}"
    return code != 0


def main() -> int:
    """See the top of the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("modules", nargs="*", default=GUARDED)
    for flag, kind, default in (("count", int, 40), ("seed", int, 0), ("jobs", int, 2), ("seconds", float, 30.0), ("map", Path, ROOT / "build/mutants.json")):
        parser.add_argument(f"--{flag}", type=kind, default=default)
    given = parser.parse_args()
    excused = {tuple(row.split("\t")[:3]) for row in EQUIVALENT.read_text().splitlines() if row and not row.startswith("#")}
    everything = [c for module in given.modules for c in changes_of(module)]
    chosen = random.Random(given.seed).sample(everything, min(given.count, len(everything)))
    print(f"{len(chosen)} of {len(everything)} changes, seed {given.seed}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        copies: list[Path] = []
        for number in range(given.jobs):
            skip = shutil.ignore_patterns(".git", ".venv", "build", "__pycache__", ".*_cache")
            copies.append(shutil.copytree(ROOT, Path(folder, str(number)), ignore=skip))
        if not given.map.exists():
            given.map.parent.mkdir(exist_ok=True)
            given.map.write_text(json.dumps(reach(copies[0])))
        known, lock, unnoticed = json.loads(given.map.read_text()), threading.Lock(), 0

        def one(change: Change) -> tuple[Change, str]:
            line = (ROOT / change.path).read_text().splitlines()[change.line - 1].strip()
            if (Path(change.path).stem, line, change.what) in excused:
                return change, "equivalent"
            if not (tests := tests_for(change, known, given.seconds)):
                return change, "UNREACHED"
            with lock:
                copy = copies.pop()
            try:
                return change, "noticed" if tried(change, copy, tests, given.seconds) else "UNNOTICED"
            finally:
                copies.append(copy)

        begun = time.monotonic()
        with concurrent.futures.ThreadPoolExecutor(given.jobs) as pool:
            for change, how in pool.map(one, chosen):
                unnoticed += how.isupper()
                print(f"{how}\t{change.path}:{change.line}\t{change.what}", flush=True)
        print(f"{unnoticed} of {len(chosen)} unnoticed, {time.monotonic() - begun:.0f} s")
    return int(unnoticed > 0)


if __name__ == "__main__":
    raise SystemExit(main())

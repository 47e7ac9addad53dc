"""Which single changes a file of the code can have: comparisons with another limit, other operators, parts left out, other columns."""

from __future__ import annotations

import ast
import itertools
import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]  # the package itself stays unread here: a run reads that of its copy
DECIDES = (
    "engine.engine", "verbs.put", "verbs.apply", "verbs.jobs", "verbs.runs", "engine.due", "engine.catchup", "engine.spans",
    "engine.overlap", "engine.chains", "engine.alarms", "engine.expiry", "engine.retime", "engine.leases", "engine.holders",
    "engine.announcements", "engine.queues", "engine.peers", "engine.endings", "engine.retries", "engine.heartbeats", "engine.late",
    "verbs.enqueue", "verbs.groups", "engine.sweeps", "verbs.occurrences", "verbs.cancels", "verbs.dead", "engine.roles", "reads.waiting",
    "state.state", "state.elapsed", "state.touched", "engine.forgetting", "state.past", "state.records",
)
DOES = (
    "state.history", "state.creation", "state.doubles", "server.keeper", "server.storage", "server.boot", "journal.lmdb_journal",
    "journal.directory", "journal.store", "journal.files", "journal.memory", "pool.pool", "pool.handle", "process.starts",
    "process.launch", "process.reaper", "process.processes", "process.started", "process.kept", "executor.main", "protocol.returned",
    "pool.supervisor", "executor.runner", "executor.loops", "executor.surroundings", "server.intake", "engine.costs", "protocol.limits",
    "engine.quotas", "engine.outbox", "server.listener", "server.connections", "server.grants", "protocol.frames",
)
TABLES = ("tables/test_table", "engine/test_fairness", "state/test_snapshot", "engine/test_queues", "engine/test_engine")
COMPILED = {
    "tables._rows": TABLES, "tables._jobs": TABLES, "tables._runs": TABLES, "tables._runrows": TABLES, "tables._runturns": TABLES, "tables._ready": TABLES,
    "tables._runindex": TABLES,
    "wheel._wheel": ("wheel/test_wheel",), "schedules._cron": ("schedules/test_cron", "schedules/test_cron_table", "schedules/test_schedule"),
}
SWAPS = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "and": "or", "or": "and", "+": "-", "-": "+"}
COMPARE = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==", ast.Is: "is not", ast.IsNot: "is",
    ast.In: "not in", ast.NotIn: "in",
}
BINARY = {ast.Add: "-", ast.Sub: "+", ast.Mult: "//", ast.FloorDiv: "*", ast.BitAnd: "|", ast.BitOr: "&"}
CALLS = {"min": "max", "max": "min", "minimum": "maximum", "maximum": "minimum", "any": "all", "all": "any"}


class Change(NamedTuple):
    """One change: bytes [start, end) of a file become `new`. `lines`: the first of its statement, and its own; `inside` a function."""

    path: str
    lines: tuple[int, int]
    start: int
    end: int
    new: str
    what: str
    inside: bool = True

    @property
    def module(self) -> str:
        """Its module, as the lists above name it."""
        return ".".join(Path(self.path).with_suffix("").parts[1:])

    def made(self, data: bytes) -> bytes:
        return data[: self.start] + self.new.encode() + data[self.end :]


class Finder(ast.NodeVisitor):
    """All changes of a Python file."""

    def __init__(self, path: str, data: bytes) -> None:
        self.path, self.data, self.found, self.statement, self.depth = path, data, [], 1, 0
        self.starts = [0, *itertools.accumulate(map(len, data.splitlines(keepends=True)))]
        tree = ast.parse(data)
        subscripts = [n.slice.value for n in ast.walk(tree) if isinstance(n, ast.Subscript) and isinstance(n.slice, ast.Constant)]
        self.columns = sorted({value for value in subscripts if isinstance(value, str)})
        self.visit(tree)

    def visit(self, node: ast.AST) -> None:
        if isinstance(node, ast.stmt):
            self.statement = node.lineno
        left_out = (isinstance(node, ast.Expr) and isinstance(node.value, (ast.Call, ast.Yield))) or isinstance(node, ast.AugAssign) or (
            isinstance(node, ast.Assign) and isinstance(node.targets[0], (ast.Attribute, ast.Subscript)))
        if left_out:
            self.add(node, "pass", "left out")
        super().visit(node)

    def span(self, node: ast.AST) -> tuple[int, int]:
        return self.starts[node.lineno - 1] + node.col_offset, self.starts[node.end_lineno - 1] + node.end_col_offset

    def text(self, node: ast.AST) -> str:
        start, end = self.span(node)
        return self.data[start:end].decode()

    def add(self, node: ast.AST, new: str, what: str) -> None:
        self.found.append(Change(self.path, (self.statement, node.lineno), *self.span(node), new, what, self.depth > 0))

    def visit_Compare(self, node: ast.Compare) -> None:
        if len(node.ops) == 1 and type(node.ops[0]) in COMPARE:
            op = COMPARE[type(node.ops[0])]
            self.add(node, f"(({self.text(node.left)}) {op} ({self.text(node.comparators[0])}))", f"compared by {op}")
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        if type(node.op) in BINARY and not isinstance(node.left, (ast.JoinedStr, ast.List)):
            op = BINARY[type(node.op)]
            self.add(node, f"(({self.text(node.left)}) {op} ({self.text(node.right)}))", f"computed by {op}")
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        values = [f"({self.text(value)})" for value in node.values]
        this, other = (" and ", " or ")[:: 1 if isinstance(node.op, ast.And) else -1]
        self.add(node, f"({other.join(values)})", f"joined by{other}".rstrip())
        for i in range(len(values)):
            self.add(node, f"({this.join(values[:i] + values[i + 1:])})", f"without part {i}")
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
        others = [c for c in self.columns if isinstance(value, str) and c != value and c.endswith("_us") == value.endswith("_us")]
        if others and isinstance(node.slice, ast.Constant):
            self.add(node.slice, f'"{others[len(value) % len(others)]}"', "another column")
        self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self.depth += 1
        for child in node.body:  # neither annotations nor defaults nor decorators
            self.visit(child)
        self.depth -= 1

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value:
            self.visit(node.value)


def by_line(path: str, data: bytes) -> list[Change]:
    """Changes of a Cython file, by what stands on its lines of code."""
    found, at, inside = [], 0, False
    for number, line in enumerate(data.decode().splitlines(keepends=True), 1):
        quotes, code = line.count('"""'), line.split("#")[0]
        if not inside and not quotes and not re.match(r"\s*(cdef extern|cimport|from|import|@|def |cdef \w+ \w+\()", code) and code.isascii():
            for match in re.finditer(r" (<=|>=|==|!=|<|>|and|or|\+|-) ", code):
                new = SWAPS[match[1]]
                found.append(Change(path, (number, number), at + match.start(1), at + match.end(1), new, f"{new} for {match[1]}"))
        inside ^= quotes % 2 == 1
        at += len(line.encode())
    return found


def changes_of(module: str) -> list[Change]:
    """Every change of a module."""
    path = f"wheelsched/{module.replace('.', '/')}.{'pyx' if module in COMPILED else 'py'}"
    data = (ROOT / path).read_bytes()
    return by_line(path, data) if module in COMPILED else Finder(path, data).found
